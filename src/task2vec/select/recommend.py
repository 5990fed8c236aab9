"""Which model to start from: a task, the errors of known tasks, and what was measured on the task itself."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from task2vec.embedding import Embedding
from task2vec.errors import DataError, ProbeMismatchError, Task2VecError, UsageError
from task2vec.experts import MetaTask, ModelInfo, bundled_metatask, load_metatask
from task2vec.experts.metatask import SYMMETRIC, CellFailure, Query, find_shots
from task2vec.library import Library, MeasuredError
from task2vec.progress import show_progress
from task2vec.select.budget import Budget, OutOfTimeError, read_seconds, spend
from task2vec.select.candidates import BATCH, PASSES, find_model, make_entry, read_count, time_models
from task2vec.select.combined import (
    MOST_HALVINGS,
    SURE,
    Scales,
    fingerprint_evidence,
    fit_with_heads,
    learn_scales,
    mean_errors,
    predict_conditioned,
)
from task2vec.select.curves import count_train_images, fit_curves
from task2vec.select.evidence import (
    add_models,
    choose_library_space,
    choose_shots,
    describe_entry,
    find_embedding,
    find_space,
    format_embed_command,
    format_space,
    image_size,
    list_library_errors,
    merge,
    metatask_from_library,
)
from task2vec.select.report import Recommendation, Row, format_error, format_measured, format_points
from task2vec.select.strategies import Prediction, find_average_best
from task2vec.select.suggestions import suggest_models
from task2vec.select.zoo import count_params, load_zoo, look_up
from task2vec.tasks import to_task
from task2vec.text import pluralize

if TYPE_CHECKING:
    from task2vec.tasks import Task

BUNDLE, LIBRARY = "bundle", "library"
# The transferability score that is computed from the features of models that are measured.
SCORE = "logme"
# Known tasks that are named as neighbours, and that reasons are taken from.
NEIGHBOURS = 5
# With fewer images of its median class, the embedding of a task is mostly noise.
FEWEST = 3
# The lower error that labels are counted for: a third less, or 10% if that is a tenth to a third less; none below 3%.
LESS, NEAR, ROUND, LOWEST = 2 / 3, 0.9, 0.1, 0.03
# The gain that makes an expert worth training, and the probability of being the best that makes one worth measuring.
WORTH, LIKELY = 0.01, 0.05
Evidence = MetaTask | str | Path | None


def recommend(
    what: Any,
    *,
    evidence: Evidence = None,
    library: Library | str | Path | None = None,
    candidates: Sequence[str | Path] | None = None,
    measure_top: int = 0,
    budget: str | float | None = None,
    seeds: int = 3,
    shots: str | int | None = None,
    probe: str | None = None,
    max_params: str | float | None = None,
    max_time: float | None = None,
    license: str | Sequence[str] | None = None,
    offline: bool = False,
    device: str | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    download: bool = False,
    progress: bool = False,
    embedding: Embedding | None = None,
) -> Recommendation:
    """The models that suit a task, with the predicted test error of each and its interval.

    If the evidence does not favour another model over the average-best model, which is the best on average over all
    known tasks, that one is recommended, and the verdict says so.

    Args:
        what: an embedding; or a task, or anything that `to_task` accepts (a folder, a table, a dataset), which is
            embedded in the space of the evidence.
        evidence: None uses the meta-task that comes with the package and the errors in `library`; "bundle" and
            "library" use only one of them; a `MetaTask`, or the path of one, replaces that of the package.
        library: where errors, models and embeddings are looked up, and where new ones are stored; None uses no library.
        candidates: only these: names of models with known errors, models of timm or torchvision, files of experts. By
            default all models with known errors and available weights.
        measure_top: number of the best candidates to measure on the task's own images, among those whose weights are on
            this machine (or, with `download`, can be downloaded). An interrupt (Ctrl-C) stops measuring, and the errors
            measured until then are used.
        budget: the time that reading, embedding and measuring may take together, in seconds or like "2m". If all
            candidates whose weights are on this machine can be measured in that time, they are; otherwise they are
            measured in an order that the embedding suggests, until the expected gain from another one is less than 0.1
            points. If there are many images, a sample is used.
        seeds: number of splits to measure on.
        shots: "half" of the images, or a number of images per class, that classifiers are trained on. None chooses by
            the median class: with up to ten images, the most that leave half of them for testing, otherwise "half".
        probe: use the space of this probe, among those with known errors; None takes the first.
        max_params: leave out models with more parameters, such as "10M".
        max_time: leave out models that take longer for 1,000 images on this machine, in seconds; they are timed.
        license: leave out models whose weights have none of these licences, or an unknown one. "permissive" stands for
            apache-2.0, bsd-3-clause, cc-by-4.0 and mit; "unknown" keeps the unknown ones.
        offline: leave out models whose weights are not on this machine.
        device: "cpu", "cuda"; None takes a GPU if there is one. This and the next two do not change the results.
        num_workers: threads that decode images.
        batch_size: images per step.
        download: download weights that are not on this machine.
        progress: show progress bars on standard error.
        embedding: of the task or folder, if there already is one.

    Raises:
        ProbeMismatchError: No errors are known for the probe of the embedding.
        DataError: No error is known at all.

    Example:
        >>> import task2vec as t2v
        >>> birds = t2v.bundled_metatask().embeddings["tf_efficientnet_lite0 robust"][0]
        >>> advice = t2v.recommend(birds, max_params="10M")
        >>> advice
        Recommendation(cub_Charadriiformes: ..., 4 candidates...)
        >>> advice.rows[0].load.startswith("t2v.load_probe(")
        True
    """
    run: dict[str, Any] = {"device": device, "num_workers": num_workers, "batch_size": batch_size}
    run |= {"download": download, "progress": progress}
    limits = {"max_params": max_params, "max_time": max_time, "license": license, "offline": offline}
    limit, is_embedded = None if budget is None else Budget(read_seconds(budget)), True
    with ExitStack() as stack:
        if isinstance(library, str | Path):
            library = stack.enter_context(Library.open(library))
        _check_limits(measure_top, limit, seeds, limits)
        whole = find_metatask(evidence)
        named = _find_candidates(whole, library, candidates, shots)
        if isinstance(what, Embedding):
            task, embedding = None, what
            if measure_top or limit:
                raise UsageError(
                    f"{'budget (--budget)' if limit else 'measure_top (--measure-top)'} measures errors on images, but "
                    "an embedding has none. Pass the task or the folder instead."
                )
        else:
            task = to_task(what, num_workers=num_workers, progress=progress)
            if embedding is None:
                like = choose_space(whole or LIBRARY, library, probe)
                entries = [] if library is None else [e for e in library.tasks() if e.fingerprint == task.fingerprint]
                embedding = find_embedding(library, entries[0], like) if library and entries else None
                is_embedded = embedding is not None or limit is None
                if embedding is None:
                    embedding = _stand_in(task, like) if limit else _embed_like(task, like, library, run)
        begin = time.perf_counter()
        case = Case(embedding, task, library)
        case.is_embedded = is_embedded
        case.gather(whole, shots, named, uses_library=evidence != BUNDLE)
        case.leave_out_seen()
        case.limit(limits, device=device, progress=progress)
        found, is_interrupted = case.rank(), False
        if task is not None and measure_top:
            ready = case.list_ready(found.rows, "--measure-top", measure_top, download=download)
            is_interrupted = case.measure(ready, task, seeds, run)
        elif limit:
            is_interrupted = spend(limit, case, found.rows, seeds, run)
        found = case.rank() if measure_top or limit else found
        return replace(found, is_interrupted=is_interrupted, seconds=time.perf_counter() - begin)


# --- what is asked for -----------------------------------------------------------------------------------------------


def _check_limits(measure_top: int, budget: Budget | None, seeds: int, limits: Mapping[str, Any]) -> None:
    """Raise for what cannot be meant, before the minutes that an embedding takes."""
    if measure_top < 0 or seeds < 1:
        raise UsageError(
            f"measure_top={measure_top} (--measure-top) with seeds={seeds} (--seeds) cannot be measured. Give a number "
            "of models, 0 or more, and at least one split."
        )
    if measure_top and budget:
        raise UsageError("measure_top (--measure-top) and budget (--budget) both say what to measure. Leave one out.")
    if limits["max_params"] is not None:
        read_count(limits["max_params"])
    if limits["license"] is not None:
        load_zoo().read_licenses(limits["license"])
    if (seconds := limits["max_time"]) is not None and not seconds > 0:
        raise UsageError(f"max_time={seconds} (--max-time) is not a time for 1,000 images. Give seconds above 0.")


def _find_candidates(
    metatask: MetaTask | None, library: Library | None, candidates: Sequence[str | Path] | None, shots: str | int | None
) -> list[ModelInfo] | None:
    """The models that are named, None for all, after checking that there is such evidence."""
    if metatask is not None:
        choose_shots((), metatask.protocols, shots)
    elif library is None:
        raise UsageError(
            "evidence='library' (--evidence library) needs a library, and none was given. Pass the folder of one: "
            "library=FOLDER, --library FOLDER"
        )
    if candidates is None:
        return None
    candidates = [candidates] if isinstance(candidates, str | Path) else candidates
    known = [] if metatask is None else list(metatask.models)
    known += [] if library is None else [describe_entry(expert) for expert in library.experts()]
    return [find_model(name, known) for name in dict.fromkeys(map(str, candidates))]


def find_metatask(evidence: Evidence) -> MetaTask | None:
    """The meta-task that is meant; None where it is the library alone."""
    if isinstance(evidence, MetaTask):
        return evidence
    if evidence == LIBRARY:
        return None
    if evidence in (None, BUNDLE):
        return bundled_metatask()
    if not Path(evidence).is_file():
        raise UsageError(
            f"there is no file '{evidence}' (--evidence), so no errors are known. Choose '{BUNDLE}', '{LIBRARY}', or "
            "the path of a meta-task that was saved: MetaTask.save(FILE)"
        )
    if Path(evidence).suffix.lower() == ".csv":
        raise UsageError(_no_embeddings(f"'{evidence}'"))
    return load_metatask(evidence)


def choose_space(evidence: Evidence = None, library: Library | None = None, probe: str | None = None) -> Embedding:
    """An embedding of the space that a task is to be embedded in: the first that errors are known in, or of a probe."""
    metatask = find_metatask(evidence)
    if metatask is not None:
        if not metatask.spaces:
            raise UsageError(_no_embeddings(f"'{metatask.name}'"))
        lost = {model.network: model.weights_origin for model in metatask.models if model.weights_origin}
        spaces = [one for one in metatask.spaces.values() if one.probe not in lost]
        for like in spaces:
            if probe in (None, like.probe):
                return like
        weights = (
            f" with weights that a library has; those of the known tasks are {lost[probe]}" if probe in lost else ""
        )
        known = "; ".join(dict.fromkeys(map(format_space, spaces))) or "none"
        raise UsageError(
            f"no errors are known for tasks embedded by '{probe}' (--probe){weights}, so your task would have no "
            f"neighbours. Choose one of: {known}"
        )
    assert library is not None
    having = {error.task for error in library.errors()}
    like = choose_library_space(library, [task for task in library.tasks() if task.fingerprint in having], probe)
    if like is None:
        raise DataError(_no_errors(library))
    return like


def _stand_in(task: "Task", like: Embedding) -> Embedding:
    """What stands for the embedding of a task before there is one: its counts, and the space of another one."""
    counts = {"images": len(task), "classes": len(task.classes), "per_class": task.counts.tolist()}
    about = {"task_fingerprint": task.fingerprint, "is_multilabel": task.is_multilabel, "counts": counts}
    return replace(like, task=task.name, provenance={**like.provenance, **about, "head": None})


def _embed_like(task: "Task", like: Embedding, library: Library | None, run: Mapping[str, Any]) -> Embedding:
    """The embedding of a task in the space of another one, kept in the library."""
    from task2vec.embedding import EmbedSettings, embed
    from task2vec.probe import load_probe

    probe = load_probe(like.probe, size=image_size(like), download=run["download"])
    if probe.fingerprint != like.probe_fingerprint:
        raise ProbeMismatchError(
            f"errors are known for tasks embedded by {format_space(like)}, and the weights of '{like.probe}' on this "
            "machine are different, so distances would mean nothing. Install the versions that were tested: pip "
            "install -c constraints.txt; or embed the task with the weights that were used."
        )
    settings = EmbedSettings(method=(like.provenance.get("settings") or {}).get("method") or "robust")
    made = embed(task, probe, settings=settings, **{name: run[name] for name in run if name != "download"})
    if library is not None and not library.is_read_only:
        library.add(made, source=task.source)
    return made


def _no_embeddings(what: str) -> str:
    return (
        f"{what} (--evidence) has errors of tasks, but not their embeddings, so it is not known which of them are like "
        "yours. `task2vec evaluate --evidence FILE` compares strategies on it. For a recommendation, measure errors of "
        "tasks in your library: task2vec error-matrix FOLDER --expert NAME"
    )


def _no_errors(library: Library | None) -> str:
    folder = "" if library is None else f" '{library.folder}'"
    return (
        f"no error of any model is in the library{folder}. Measure some: task2vec error-matrix "
        "FOLDER --expert NAME; or use those of the package: evidence='bundle', --evidence bundle"
    )


# --- one recommendation ----------------------------------------------------------------------------------------------


class Case:
    """A task, the errors of known tasks, the candidates, and what was measured on the task itself."""

    def __init__(self, embedding: Embedding, task: "Task | None", library: Library | None):
        self.embedding, self.task, self.library = embedding, task, library
        self.counts: Mapping[str, Any] = embedding.provenance.get("counts", {})
        self.per_class = self.counts.get("per_class") or ()
        is_multilabel = task is not None and task.is_multilabel
        self.is_multilabel = embedding.provenance.get("is_multilabel", is_multilabel)
        self.median_class = float(np.median(self.per_class)) if len(self.per_class) else np.inf  # images of it
        self.notes: list[str] = []
        self.seconds: dict[str, float | None] = {}
        self.measured: dict[str, list[MeasuredError]] = {}
        # Errors on the task at smaller images, and how often these are halved, by the location of the network.
        self.smaller: dict[str | None, tuple[Sequence[MeasuredError], float]] = {}
        self.scores: dict[str, float] = {}  # of the features that errors were measured on, by model
        self.failures: tuple[CellFailure, ...] = ()
        self.budget: Budget | None = None
        self.is_embedded, self.shift = True, 0.0  # of a stand-in it is not; of errors on a sample, see `spend`

    def gather(
        self, whole: MetaTask | None, shots: str | int | None, named: Sequence[ModelInfo] | None, *, uses_library: bool
    ) -> None:
        """Finds the known errors by the shots that suit the task, in the space of its embedding; adds named models."""
        self.whole, library = whole, self.library
        keys = whole.protocols if whole is not None else [error.protocol for error in library.errors()]  # type: ignore[union-attr]
        self.shots = choose_shots(self.per_class, keys, shots)
        half = np.ceil(self.median_class / 2)  # the other one is for testing
        self.train_images = int(half) if self.shots.isdigit() and half < int(self.shots) else None
        parts = [] if whole is None else [select_space(whole, self.shots, find_space(self.embedding, whole.spaces))]
        self.errors = [] if library is None else list_library_errors(library, self.shots)
        networks = {model.key for model in whole.models if model.key is not None} if whole is not None else set()
        counts = Counter(location for location, _ in networks)
        sizes = {location: size for location, size in networks if isinstance(size, int) and counts[location] == 1}
        if library is not None:
            self._compare_sizes(library, sizes)
        if library is not None and self.errors and uses_library:
            own = metatask_from_library(library, errors=self.errors, like=self.embedding)
            parts += [own.select(self.shots)] if own.tasks else []
            if others := own.info["other_spaces"]:
                self.notes.append(
                    f"Errors of {pluralize(others, 'task')} of your library are not used: they have no embedding by "
                    f"{format_space(self.embedding)}. Embed them: {format_embed_command(self.embedding)}"
                )
        if not parts:
            raise DataError(self.notes[0] if self.notes else _no_errors(library))
        self.metatask = parts[0] if len(parts) == 1 else merge(parts[0], parts[1], sizes)
        new = [one for one in named or () if not any(_is_same(one, model) for model in self.metatask.models)]
        self.metatask = add_models(self.metatask, new, library, self.embedding)
        chosen = [named is None or any(_is_same(one, model) for one in named) for model in self.metatask.models]
        self.is_allowed, self.is_named = np.array(chosen, dtype=bool), named is not None

    def _compare_sizes(self, library: Library, sizes: Mapping[str, int]) -> None:
        """Sets apart errors of the library at image sizes that cannot be compared with the known `sizes` of networks.

        Those of the task at smaller images are kept in `smaller`, for `predict_conditioned`; those of other tasks are
        moved to the known size by `merge`.
        """
        own, apart = self.embedding.provenance.get("task_fingerprint"), set()
        for expert in library.experts():
            model = describe_entry(expert)
            size = sizes.get(model.location or "")
            halvings = float(np.log2(size / model.size)) if size and model.size else 0.0
            here = [error for error in self.errors if (error.expert, error.task) == (expert.name, own)]
            if not 0 <= halvings <= MOST_HALVINGS:
                apart.add(expert.name)
            elif here and 0 < halvings < self.smaller.get(model.location, ((), np.inf))[1]:
                self.smaller[model.location] = here, halvings
        if lost := sorted({error.expert for error in self.errors} & apart):
            self.notes.append(
                f"Errors of {', '.join(lost)} in your library are not used: their image size differs from that of the "
                "known ones. Only smaller sizes are used, down to a half."
            )
        self.errors = [error for error in self.errors if error.expert not in apart]

    def leave_out_seen(self) -> None:
        """Takes the errors of the task out of the evidence, and models that have seen it out of the candidates."""
        known, own = self.metatask, self.embedding.provenance.get("task_fingerprint") or "unknown"
        is_own = np.array([task.fingerprint == own for task in known.tasks], dtype=bool)
        is_seen = np.array([model.source_fingerprint == own for model in known.models], dtype=bool)
        is_seen |= ~known.is_candidate[is_own].all(0)
        if is_own.all():
            raise DataError(
                f"errors are known only for '{self.embedding.task}', so there is no other task to learn from. Measure "
                "them on other tasks, too: task2vec error-matrix; or use what comes with the package: evidence=None, "
                "without --evidence"
            )
        self.metatask = known.only(np.flatnonzero(~is_own)) if is_own.any() else known
        errors = [error for error in self.errors if error.task == own]
        if errors and self.library is not None:
            for expert in self.library.experts():
                mine = [error for error in errors if error.expert == expert.name]
                same = [model.name for model in known.models if mine and _is_same(describe_entry(expert), model)]
                self.measured |= dict.fromkeys(same, mine)
        elif is_own.any():
            self.notes.append("This task is one of the known ones: its own errors were left out, and are predicted.")
        if is_seen.any():
            names = [model.name for model, seen in zip(known.models, is_seen, strict=True) if seen]
            listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            self.notes.append(f"Excluded because they were trained on images or labels of this task: {listed}.")
        if lost := [model.name for model in known.models if model.location is not None and not model.is_loadable]:
            self.notes.append(f"Excluded because their weights file is missing: {', '.join(lost)}.")
        self.is_allowed &= ~is_seen

    @property
    def is_candidate(self) -> np.ndarray:
        """(M) which models may be selected, and can be loaded."""
        return self.is_allowed & np.array([model.is_loadable for model in self.metatask.models], dtype=bool)

    def limit(self, limits: Mapping[str, Any], *, device: str | None, progress: bool) -> None:
        """Leaves out candidates that are too large, too slow, of another licence, or not on this machine."""
        models, self.limits = self.metatask.models, dict(limits)
        if limits["offline"]:
            here = [model.is_available for model in models]
            self._keep(here, "whose weights are not on this machine", "--offline")
        if limits["license"] is not None:
            licenses = load_zoo().read_licenses(limits["license"])
            stated = [look_up(model.location).license in licenses for model in models]
            why = f"whose weights are not known to have one of the licences {', '.join(sorted(licenses))}"
            self._keep(stated, why, "--license")
        if (max_params := limits["max_params"]) is not None:
            is_small = [(count_params(model) or np.inf) <= read_count(max_params) for model in models]
            self._keep(is_small, f"with more than {max_params} parameters, or an unknown number", "--max-params")
        if (max_time := limits["max_time"]) is not None:
            from task2vec.embedding.batching import choose_device

            allowed = [model for model, is_allowed in zip(models, self.is_allowed, strict=True) if is_allowed]
            # Networks are loaded at their own size, files of experts at theirs.
            loaded = [replace(one, size=None) if one.is_named or one.location is None else one for one in allowed]
            with show_progress(progress) as report:
                self.seconds = time_models(loaded, device=device, report=report)
            self.limits["is_gpu"] = choose_device(device).type == "cuda"
            self.notes.append(
                f"Networks were timed on this machine (--max-time): the median of {PASSES} passes over {BATCH} images "
                "of noise, without reading images. Times of models of the zoo are estimated from these and from speeds "
                "that timm measured."
            )
            is_fast = [(self.seconds.get(model.name) or np.inf) <= max_time for model in models]
            why = f"taking more than {max_time:g} s for 1,000 images, or impossible to time"
            self._keep(is_fast, why, "--max-time")

    def _keep(self, fits: Sequence[bool], why: str, option: str) -> None:
        """Keeps the models that fit; a note gives the number of the others."""
        before = self.is_candidate
        self.is_allowed = self.is_allowed & fits
        if before.any() and not self.is_candidate.any():
            raise UsageError(
                f"there are only candidates {why} ({option}), so none is left to recommend. Change or drop {option}, "
                "or name other models: --model NAME"
            )
        if gone := int((before & ~self.is_candidate).sum()):
            self.notes.append(f"Left out: {pluralize(gone, 'candidate')} {why}.")

    def list_ready(
        self, rows: Sequence[Row], option: str, count: int | None = None, *, download: bool
    ) -> list[ModelInfo]:
        """The first candidates whose weights can be loaded here, in their order; a note names those that cannot."""
        models = {model.name: model for model in self.metatask.models}
        ready = [models[row.model] for row in rows if row.is_available or (download and models[row.model].is_named)]
        if not ready:
            names = ", ".join(row.model for row in rows[:3])
            raise UsageError(
                f"none of the {len(rows)} candidates ({names}) has its weights on this machine, so nothing can be "
                f"measured ({option}). Download them: --download (download=True); or name files: --model FILE"
            )
        here = {*self.measured, *(model.name for model in ready)}
        if lacking := [row.model for row in rows[:count] if row.model not in here]:
            self.notes.append(
                f"Not measured, because the weights are not on this machine: {', '.join(lacking)}. Download them: "
                "--download (download=True)"
            )
        return ready[:count]

    def measure(self, models: Sequence[ModelInfo], task: "Task", seeds: int, run: Mapping[str, Any]) -> bool:
        """Measures models on the task, or a sample of it; returns whether that was interrupted.

        By a cross-validated linear head on the features of each, with the shots of the evidence. Errors on all images
        go into the library as soon as they are known; what is there already is not measured again.
        """
        import torch

        from task2vec.experts.error_matrix import error_matrix
        from task2vec.experts.protocol import ErrorProtocol
        from task2vec.select.scores import score_features

        is_kept = self.library is not None and not self.library.is_read_only and task is self.task  # no samples
        library = self.library if is_kept else None
        protocol = ErrorProtocol(int(self.shots) if self.shots.isdigit() else "half")
        entries = {model.name: make_entry(model, library) for model in models}
        names = {entry.name: name for name, entry in entries.items()}

        def keep(cell: tuple[MeasuredError, ...] | CellFailure) -> None:
            if isinstance(cell, CellFailure):
                self.failures += (replace(cell, model=names[cell.model]),)
                self.notes.append(f"'{names[cell.model]}' could not be measured: {cell.message}")
            else:
                name = names[cell[0].expert]
                self.measured[name] = [*self.measured.get(name, ()), *cell]

        def keep_score(entry: str, task: "Task", features: Any) -> None:
            targets = torch.from_numpy(np.array(task.targets, dtype=np.int64)).to(features.device)
            kind = {"classes": len(task.classes), "is_multilabel": task.is_multilabel}
            with suppress(Task2VecError):  # a model without a score is measured all the same
                self.scores[names[entry]] = score_features(features, targets, **kind, which=[SCORE])[SCORE]

        how = {"protocols": [protocol], "seeds": range(seeds), "library": library, "on_cell": keep, **run}
        how |= {"on_features": keep_score, "on_images": self.budget and self.budget.check}
        try:
            error_matrix([task], entries.values(), **how)
        except OutOfTimeError:
            raise
        except KeyboardInterrupt:
            return True
        return False

    def embed(self, run: Mapping[str, Any]) -> None:
        """Embeds the task in the space of what stood for its embedding."""
        assert self.task is not None
        self.embedding, self.is_embedded = _embed_like(self.task, self.embedding, self.library, run), True

    # --- ranking ---

    # Threads of BLAS wait for each other on matrices this small, by far the most where another process has the cores.
    @threadpool_limits.wrap(limits=1, user_api="blas")
    def rank(self) -> Recommendation:
        """The recommendation, from all that is known now."""
        metatask, models, is_candidate = self.metatask, self.metatask.models, self.is_candidate
        if not is_candidate.any():
            names = [model.name for model, one in zip(models, self.is_allowed, strict=True) if one]
            raise UsageError(
                f"none of the candidates can be loaded ({', '.join(names[:3]) or 'there are none'}): their errors are "
                "known, but their weights are not available. Name models of timm or torchvision, or files of experts: "
                "candidates=[NAME], --model NAME"
            )
        order = self._predict(is_candidate)
        rows = tuple(self._describe(number, rank) for rank, number in enumerate(order, start=1))
        is_confident, verdict = self._decide(rows)
        near = np.argsort(self.distances, kind="stable")[:NEIGHBOURS].tolist()
        known = pluralize(int(np.isfinite(metatask.mean).any(0).sum()), "model")
        return Recommendation(
            self.embedding.task,
            rows[0].model,
            verdict,
            is_confident,
            "" if self.average_best is None else models[self.average_best].name,
            rows,
            self._list_others(rows),
            tuple((metatask.tasks[row].name, float(self.distances[row])) for row in near if self.is_embedded),
            shots=self.shots,
            train_images=self.train_images,
            protocol=metatask.protocols[0],
            probe=format_space(self.embedding) if self.is_embedded else "",
            known=f"errors of {known} on {pluralize(len(metatask.tasks), 'task')} ({metatask.name})",
            images=self.counts.get("images"),
            classes=self.counts.get("classes"),
            notes=(*self.notes, *self._write_notes(order)),
            failures=self.failures,
            budget=None if self.budget is None else self.budget.seconds,
            spent={} if self.budget is None else dict(self.budget.spent),
            measured_images=self.budget.images if self.budget and self.measured else None,
            is_embedded=self.is_embedded,
            **self._read_curves(rows[0]),
        )

    def _read_curves(self, row: Row) -> dict[str, Any]:
        """How many labels the recommended model needs once it was measured, and what fine-tuning it would give.

        From a predicted error alone, labels are no better known than by the average task. Where no error of it is
        known, models of the zoo are compared with the network that is the best on average of all that are known.
        """
        is_known, is_named = row.error is not None, [model.is_named for model in self.metatask.models]
        best = None if is_known else find_average_best(self.metatask, np.array(is_named, dtype=bool))
        if best is not None:
            row = self._describe(best, 1)
        classes, own = self.counts.get("classes") or 0, self.embedding.provenance.get("task_fingerprint")
        if self.whole is None or classes < 2 or self.is_multilabel or None in (row.error, row.low, row.high):
            return {}
        rows = [number for number, task in enumerate(self.whole.tasks) if task.fingerprint != own]
        whole = self.whole if len(rows) == len(self.whole.tasks) else self.whole.only(rows)
        curves = fit_curves(whole, find_space(self.embedding, whole.spaces))
        if curves is None:
            return {}
        found: dict[str, Any] = {}
        error: Any = (row.error, row.low, row.high)
        now = 0.0 if row.measured is None else min(error[0], row.measured)
        if len(self.per_class) and now > LOWEST:
            target = ROUND if LESS * now < ROUND < NEAR * now else LESS * now
            known = [(count_train_images(self.per_class, self.shots), *error)]
            found["labels"] = curves.labels_needed(target, known, classes)
        if len(curves.shifts) and row.source_task is None:
            embedding = self.embedding if self.is_embedded else None
            found["tuned"] = curves.tuned(embedding, row.model, *error, classes=classes)
            locations = {one.name: one.location or "" for one in self.metatask.models}
            count = classes * count_train_images(self.per_class, self.shots) if len(self.per_class) else 0
            timed = {locations[name]: seconds for name, seconds in self.seconds.items() if seconds is not None}
            allowed = zip(locations.values(), self.is_candidate, strict=True)
            names = [location for location, is_allowed in allowed if is_allowed] if self.is_named else None
            about = {"names": names, "train_images": count, "timed": timed, **self.limits}
            found["zoo"] = suggest_models(found["tuned"], locations[row.model], **about)
        return found if is_known else {"zoo": found.get("zoo", ())}

    def _predict(self, is_candidate: np.ndarray) -> list[int]:
        """The candidates, the best first, by predictions that are moved by what was measured on the task itself."""
        metatask, models = self.metatask, self.metatask.models
        found, count = metatask.distances_from(self.embedding), len(metatask.tasks)
        to_sources = metatask.pick_sources(found if self.is_embedded else np.full_like(found, np.nan))
        self.distances = found[:count] if self.is_embedded else np.full(count, np.inf)
        scores = np.array([self.scores.get(model.name, np.nan) for model in models])
        query = Query(
            self.embedding.task,
            is_candidate,
            distances={SYMMETRIC: self.distances},
            to_sources={SYMMETRIC: to_sources},
            vector=self.embedding.vector,
            classes=self.counts.get("classes"),
            scores={SCORE: scores} if np.isfinite(scores[is_candidate]).all() else {},
        )
        best = self.average_best = find_average_best(metatask, is_candidate)
        smaller = {model.name: self.smaller[model.location] for model in models if model.location in self.smaller}
        prediction: Any = predict_conditioned(metatask, self.embedding, query, self.measured, self.shift, smaller)
        # Where most classes have so few images, nearness to other tasks is luck.
        is_luck = not self.measured and self.median_class < FEWEST
        self.is_confident, self.p_better = not prediction.abstains and not is_luck, prediction.p_better
        errors = prediction.errors
        gain = np.full(len(models), np.nan) if best is None else errors[best] - errors
        p_best = np.where(is_candidate, prediction.p_best, np.nan)
        ends = {"low": prediction.low, "high": prediction.high}
        self.values = {"error": errors, **ends, "p_best": p_best, "distance": to_sources, "gain": gain}
        promises = np.nan_to_num([p_best, prediction.gains]).T
        self.promises = dict(zip([model.name for model in models], promises, strict=True))
        loss = prediction.loss.copy()
        if best is not None and is_luck:
            loss[best] = np.nanmin(loss[is_candidate]) - 1e-6
        ranked = Prediction(loss)
        places = ranked.places()
        order = sorted(ranked.order(is_candidate).tolist(), key=lambda one: (places[one], not models[one].is_available))
        return order[:1] + sorted(order[1:], key=lambda one: models[one].name not in self.measured)  # these first

    def _describe(self, number: int, rank: int) -> Row:
        """One model as plain values."""
        model, metatask = self.metatask.models[number], self.metatask
        known = np.isfinite(metatask.mean[:, number]) & metatask.is_candidate[:, number]
        known &= np.isfinite(self.distances)
        nearest = int(np.argmin(np.where(known, self.distances, np.inf))) if known.any() else None
        own = self.measured.get(model.name, [])
        values = {name: None if np.isnan(each[number]) else float(each[number]) for name, each in self.values.items()}
        measured = zip(("measured", "measured_low", "measured_high"), mean_errors(own) if own else (), strict=False)
        same = ("source_task", "size", "gmacs", "is_available", "load")
        return Row(
            rank,
            model.name,
            **values,
            **dict(measured),
            splits=len(own),
            nearest=None if nearest is None else metatask.tasks[nearest].name,
            nearest_distance=None if nearest is None else float(self.distances[nearest]),
            seconds=self.seconds.get(model.name),
            is_average_best=number == self.average_best,
            params=count_params(model),
            license=look_up(model.location).license,
            why=self._explain(number),
            **{name: getattr(model, name) for name in same},
        )

    def _list_others(self, rows: Sequence[Row]) -> tuple[Row, ...]:
        """Experts without available weights that are predicted to be better than all that can be loaded.

        Their source tasks must be no farther than known tasks mostly are from each other: else it is luck.
        """
        lowest = min((row.error for row in rows if row.error is not None), default=-np.inf)
        is_other = [model.location is None and model.source_task is not None for model in self.metatask.models]
        is_other = np.array(is_other, dtype=bool) & self.is_allowed & (self.values["error"] < lowest - WORTH)
        between = self.metatask.between(SYMMETRIC)
        between = between[~np.eye(len(between), dtype=bool)]
        if np.isfinite(between).any():
            is_other &= ~(self.values["distance"] > np.nanmedian(between))
        better = Prediction(self.values["error"]).order(is_other)
        return tuple(self._describe(number, rank) for rank, number in enumerate(better.tolist(), start=1))

    # --- words ---

    def _explain(self, number: int) -> str:
        """The reason for a model: it is the average-best, or its errors on the nearest known tasks."""
        mean, best = self.metatask.mean, self.average_best
        known = np.isfinite(mean) & self.metatask.is_candidate
        if best is None or not known[:, number].any():
            return "Its errors are not known."
        if number == best:
            return f"Best on average over {pluralize(int(known[:, number].sum()), 'known task')}."
        both = np.flatnonzero(known[:, number] & known[:, best] & np.isfinite(self.distances))
        if not len(both):
            return "It was never measured on the same task as the average-best model."
        near = both[np.argsort(self.distances[both], kind="stable")][:NEIGHBOURS]
        gap = float((mean[near, best] - mean[near, number]).mean())
        how = f"is {format_points(abs(gap))} {'lower' if gap >= 0 else 'higher'} than"
        where = "task" if len(near) == 1 else f"{len(near)} tasks"
        return f"On the nearest {where} its error {how} that of the average-best model."

    def _decide(self, rows: tuple[Row, ...]) -> tuple[bool, str]:
        """Whether the first model is preferable to the average-best one, which it is otherwise, and the sentences."""
        first, best = rows[0], next((row for row in rows if row.is_average_best), None)
        start = f"Start from {first.model}: {format_error(first)}"
        if any(row.measured is not None for row in rows):
            is_confident = self.is_confident and best is not None and best is not first
            return is_confident, f"{start}.{self._compare_measured(rows, best)}"
        if best is None:
            words = f"No error of a linear classifier on any candidate is known: {first.model} is simply the first one."
            return False, f"{words} Measure them on your images: --measure-top K."
        if self.is_confident and first.gain is not None:
            gain = f"{format_points(first.gain)} lower than the average-best model, {best.model}"
            return True, f"{start}, {gain} (better with probability {self.p_better:.2f}). {first.why}"
        is_cut = len(rows) < sum(model.is_loadable for model in self.metatask.models)
        what = "the best of these candidates" if is_cut else "the best"
        tasks = pluralize(len(self.metatask.tasks), "known task")
        words = f"Start from {first.model}, {what} on average over {tasks}: {format_error(first)}."
        ahead = max(rows, key=lambda row: -1 if row.gain is None else row.gain)
        if ahead.gain is None or ahead.gain <= 0:
            return False, f"{words} No other candidate has a lower predicted error."
        ahead_by = f"{ahead.model} is predicted to be {format_points(ahead.gain)} better"
        return False, f"{words} The evidence for another model is too weak ({ahead_by})."

    def _compare_measured(self, rows: tuple[Row, ...], best: Row | None) -> str:
        """What was measured of the first model, the lowest and the average-best one, and which to measure next."""
        first, measured = rows[0], [row for row in rows if row.measured is not None]
        lowest = min(measured, key=lambda row: row.measured or 0)
        words = f" It has a {format_measured(first)}."
        if first.measured is None:
            words = f" It was not measured, but is better than the best measured one with probability {SURE} or more."
        if lowest is not first:
            words += f" {lowest.model} has a {format_measured(lowest)}, the lowest of {len(measured)} measured."
        if best is not None and best is not first:
            has = format_error(best) if best.measured is None else format_measured(best)
            words += f" The average-best model is {best.model}: {has} ({first.model} is better with probability "
            words += f"{self.p_better:.2f})."
        for row in rows:
            if row.measured is None and (row.p_best or 0) >= LIKELY:
                option = f"--measure-top {row.rank}"
                option = self.budget.suggest(self.budget.expect(row.model)) if self.budget else option
                option += "" if row.is_available else " --download"
                return f"{words} Measure {row.model} next ({option}): it is the best with probability {row.p_best:.2f}."
        return words

    def _write_notes(self, order: Sequence[int]) -> Iterator[str]:
        """What should be known before the recommendation is relied upon."""
        between = self.metatask.between(SYMMETRIC)
        if len(between) > 2 and np.isfinite(self.distances).any():
            nearest = np.nanmin(between + np.where(np.eye(len(between), dtype=bool), np.inf, 0), axis=1)
            if np.nanmin(self.distances) > np.nanmax(nearest):
                yield (
                    f"No known task is similar: the nearest is at distance {np.nanmin(self.distances):.3f}, and no "
                    f"known task is farther than {np.nanmax(nearest):.3f} from its nearest. Predictions are those for "
                    "an average task."
                )
        every = self.metatask.models
        if told := [one.name for one in every if one.location in self.smaller and one.name not in self.measured]:
            yield (
                f"Errors on this task at smaller image sizes are used, too ({', '.join(told)}), reduced by the average "
                "gain from larger images."
            )
        used = {error.protocol for error in chain(self.errors, *self.measured.values())}
        if others := sorted(used - {*self.metatask.protocols}):
            yield (
                f"Errors of your library, or on this task, were measured by '{others[0]}', the known ones by "
                f"'{self.metatask.protocols[0]}': similar, but not the same."
            )
        if self.is_multilabel:
            measure = "" if self.measured else ", and measure: --measure-top K"
            yield (
                "The task has several labels per image, and most known tasks have one: use the predicted errors as a "
                f"ranking, not as exact values{measure}."
            )
        models = [self.metatask.models[number] for number in order]
        if self.median_class < FEWEST and not self.measured:
            measure = "" if self.failures else ", or measure: --measure-top K"
            yield (
                f"Most classes have fewer than {FEWEST} images. The embedding of so few is mostly noise, so the "
                f"average-best model is recommended. Add images{measure}."
            )
        if self.train_images is not None:
            yield (
                f"Half of the images are for testing, so the median class has {self.train_images} for training. Known "
                f"errors are those of classifiers trained on {self.shots}: expect higher errors and another ranking."
            )
        unknown = zip(models, np.asarray(np.isnan(self.metatask.mean[:, order]).all(0)), strict=True)
        if new := [model.name for model, is_new in unknown if is_new and model.name not in self.measured]:
            yield (
                f"No error of a linear classifier on {', '.join(new)} is known, so none is predicted. --measure-top "
                f"{len(models)} measures all candidates on your images."
            )


def _is_same(one: ModelInfo, other: ModelInfo) -> bool:
    """Whether two models are one: the same network at the same size, entry of a library, or name."""
    if one.key is not None and one.key == other.key:
        return True
    return (one.name, one.location) == (other.name, other.location) if one.entry is None else one.entry == other.entry


@lru_cache(maxsize=4)
def select_space(whole: MetaTask, shots: str, space: str) -> MetaTask:
    """The meta-task by some shots and in one space, selected once for many queries; without distances of domains."""
    probe, _, method = space.rpartition(" ")
    return replace(whole, domains={}).select(shots, probe=probe, method=method)


def learn_bundled_scales() -> dict[str, Scales]:
    """Scales on the bundled meta-task for all that `recommend` may ask for, by what they are learned from."""
    whole, found = bundled_metatask(), {}
    for space in whole.spaces:
        for protocol in whole.protocols:
            known = select_space(whole, find_shots(protocol), space)
            for score in (None, SCORE) if np.isfinite(known.scores[SCORE]).any() else (None,):
                found[fingerprint_evidence(known, score)] = learn_scales(fit_with_heads(known, score).cells)
    return found
