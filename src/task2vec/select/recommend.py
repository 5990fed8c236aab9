"""Which model to start from: candidates -> propose (an order) -> measure -> decide -> recommendation."""

import shlex
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from task2vec.errors import UsageError
from task2vec.library import Library
from task2vec.progress import show_progress
from task2vec.select.candidates import TIMM, Candidate, count_download, list_candidates, load_candidate, read_seconds
from task2vec.select.evidence import PROPOSALS, Evidence, KnownTask, find_seen, find_task, gather_evidence
from task2vec.select.history import find_curve, find_measurements, find_protocol, keep_curve, keep_measurements
from task2vec.select.recommendation import Recommendation, list_names, list_rows, write_verdict
from task2vec.tasks import Task
from task2vec.text import pluralize

if TYPE_CHECKING:
    from task2vec.select.learning_curve import LearningCurve
    from task2vec.select.measure import Measurements

PREFERENCES = ("cheapest", "error")
# Seconds that measuring may take if nothing else is said, and about how long a device takes for a billion
# multiplications; networks of unknown cost count as 4 billion.
BUDGETS = {"cpu": 60.0, "cuda": 600.0}
SECONDS_PER_GMAC = {"cpu": 0.03, "cuda": 0.001}
UNKNOWN_GMACS = 4.0
# Seconds between two lines of progress without a terminal.
PROGRESS_PAUSE = 10.0


def recommend(
    task: Any,
    *,
    models: Any = None,
    library: Library | str | Path | None = None,
    budget: str | float | None = None,
    strategy: str | None = None,
    prefer: str = "cheapest",
    max_params: str | float | None = None,
    license: str | Sequence[str] | None = None,
    download: bool = False,
    device: str | None = None,
    progress: bool = False,
) -> Recommendation:
    """The model to start from, of those that were measured on the images of a task, and how sure that is.

    Every candidate is run once over the same images, and a linear classifier on its features is cross-validated. Models
    that cannot be told apart on these images are a tie, and the cheapest of them is recommended. If there are more
    candidates than can be measured in the budget, those are measured first that were best on similar tasks.

    Args:
        task: images: a task, the name of one in the library whose images are still where they were, or anything that
            `to_task` accepts (a folder, a table, a dataset). Of an embedding nothing can be measured: models are
            proposed.
        models: None takes about 16 modern networks and the experts of the library; "timm", all pretrained classifiers
            of timm; or name networks of timm or torchvision, files of experts, probes, or modules.
        library: where known errors, experts and embeddings are looked up, and what is measured is kept; None uses none.
        budget: the time that measuring may take, in seconds or like "2m". By default 60 s on a CPU, 10 minutes on a
            GPU. What does not fit is measured on a sample of the images, or not at all.
        strategy: None measures. "proposals" only puts the candidates in the order in which they would be measured; the
            name of a strategy of the paper, such as "nearest", selects a model from the embedding alone.
        prefer: what decides a tie: "cheapest" or "error".
        max_params: leave out models with more parameters, such as "10M".
        license: leave out models whose weights have none of these licences, or an unknown one. "permissive" stands for
            apache-2.0, bsd-3-clause, cc-by-4.0 and mit; "unknown" keeps the unknown ones.
        download: download weights that are not on this machine; by default such models are left out.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        progress: show progress on standard error.

    Raises:
        UsageError: A model is unknown, none is left, or something cannot be meant.
        DataError: The images of the task are not where they were.

    Example:
        >>> import task2vec as t2v
        >>> shapes = t2v.sample_tasks(images_per_task=40)[2]
        >>> advice = t2v.recommend(shapes, models=[t2v.load_probe(size=32)])
        >>> advice
        Recommendation(shapes: tf_efficientnet_lite0, 1 of 1 model measured)
        >>> advice.rows[0].low <= advice.rows[0].error <= advice.rows[0].high
        True
    """
    _check_choices(strategy, prefer)
    start = time.perf_counter()
    seconds = None if budget is None else read_seconds(budget)
    options: dict[str, Any] = {"device": device, "progress": progress}
    with ExitStack() as stack:
        if isinstance(library, str | Path):
            library = stack.enter_context(Library.open(library))
        candidates = list_candidates(models, library=library, max_params=max_params, license=license)
        subject = find_task(task, library, measures=strategy is None, progress=progress)
        candidates, notes = leave_out_seen(candidates, subject, library)
        about = {"images": subject.images, "protocol": find_protocol(subject.data)}
        stored = find_measurements(library, subject.fingerprint, candidates, **about)
        if strategy is not None or (subject.data is None and stored is None):
            evidence = gather_evidence(subject, candidates, library, strategy=strategy or PROPOSALS, **options)
            return recommend_unmeasured(subject, candidates, evidence, strategy=strategy or PROPOSALS, notes=notes)
        from task2vec.select.decide import decide
        from task2vec.select.measure import measure_models

        known = () if stored is None else stored.models
        if subject.data is None:
            candidates = [model for model in candidates if model.name in known]
        is_pool = models is None or (isinstance(models, str) and models == TIMM)
        candidates, missing = split_candidates(candidates, known, download=download or not is_pool)
        waiting = [model for model in candidates if model.name not in known]
        new, limit, evidence, proposals = None, None, None, ()
        if subject.data is not None and waiting:
            limit, is_short = plan_time(subject.data, waiting, seconds, device)
            evidence = gather_evidence(subject, waiting, library, embeds=is_short, **options)
            proposals = evidence.order(waiting)
            by_name = {model.name: model for model in waiting}
            ordered = [by_name[proposal.name] for proposal in proposals]
            left = max(limit - is_short * (time.perf_counter() - start), 1.0)
            with show_progress(progress, pause=PROGRESS_PAUSE) as report:  # of downloads and of images
                load = partial(load_candidate, download=download, progress=report)
                new = measure_models(subject.data, ordered, load=load, budget=left, device=device, progress=report)
        measurements = stored if new is None else new.add(stored)
        assert measurements is not None, "without measurements models are proposed"
        decision = decide(measurements, {model.name: model.cost for model in candidates}, prefer=prefer)
        if library is not None and new is not None and subject.data is not None:
            keep_measurements(library, subject.data, waiting, new, decision)
        choice = next((model for model in candidates if model.name == decision.choice), None)
        curve = None if choice is None else find_or_measure_curve(subject, choice, new, library)
    rows = tuple(list_rows(candidates, proposals, measurements, decision))
    compared = len(measurements.images)
    needed = decision.images_needed
    return Recommendation(
        subject.name,
        rows,
        decision.choice,
        tie=decision.tie,
        verdict=write_verdict(rows, prefer=prefer, images=compared, images_needed=needed),
        notes=(*notes, *missing, *explain_images(subject, measurements)),
        images=subject.images,
        classes=subject.classes,
        measured_images=compared if measurements.models else None,
        images_needed=needed,
        learning_curve=curve,
        prefer=prefer,
        neighbours=() if evidence is None else evidence.neighbours,
        budget=limit,
        seconds=time.perf_counter() - start,
        is_interrupted=measurements.is_interrupted,
        data=subject.data,
    )


def _check_choices(strategy: str | None, prefer: str) -> None:
    """Refuses what cannot be meant, before anything is read."""
    if prefer not in PREFERENCES:
        raise UsageError(f"prefer={prefer!r} (--prefer) is unknown. Choose {' or '.join(map(repr, PREFERENCES))}.")
    if strategy not in (None, PROPOSALS):
        from task2vec.select.evaluate import find_strategy

        find_strategy(strategy)


# --- candidates ------------------------------------------------------------------------------------------------------


def leave_out_seen(
    candidates: Sequence[Candidate], task: KnownTask, library: Library | None
) -> tuple[list[Candidate], tuple[str, ...]]:
    """The candidates that were not trained on the task or its images, and a note on the others."""
    seen = find_seen(task, candidates, library)
    if len(seen) == len(candidates):
        raise UsageError(
            f"all candidates were trained on images of this task ({list_names(seen)}), so their errors on it would "
            "mean nothing. Name others: --model NAME"
        )
    note = f"Left out, because trained on images of this task: {list_names(seen)}."
    return [model for model in candidates if model.name not in seen], (note,) if seen else ()


def split_candidates(
    candidates: Sequence[Candidate], known: Collection[str], *, download: bool
) -> tuple[list[Candidate], tuple[str, ...]]:
    """The candidates that can be measured now, and a note on those that `download` would add."""
    ready = [model for model in candidates if download or model.is_here or model.name in known]
    missing = [model for model in candidates if model not in ready]
    names = list_names([model.name for model in missing], most=3)
    words = f"{pluralize(len(missing), 'candidate')} not on this machine ({names})"
    size = f"{count_download(missing):,.0f} MB"
    if not ready:
        raise UsageError(
            f"no candidate can be measured: {words}. Download them ({size}): --download, download=True; or install "
            "three small ones: pip install 'task2vec[models]'"
        )
    return ready, (f"{words}: --download (download=True) adds them, {size}.",) if missing else ()


# --- without measuring -----------------------------------------------------------------------------------------------


def recommend_unmeasured(
    task: KnownTask, candidates: Sequence[Candidate], evidence: Evidence, *, strategy: str, notes: tuple[str, ...]
) -> Recommendation:
    """The candidates in their order with their reasons, without any error."""
    rows = tuple(list_rows(candidates, evidence.order(candidates, strategy)))
    verdict = f"Nothing was measured. {rows[0].model} comes first by '{strategy}'."
    if strategy == PROPOSALS:
        verdict = f"Nothing was measured. Measure these first: {list_names([row.model for row in rows[:3]])}."
    source = task.data.source if task.data is not None and Path(task.data.source).exists() else "FOLDER"
    notes = (*notes, *evidence.notes, f"To compare models on the images: task2vec recommend {shlex.quote(source)}")
    about = {"images": task.images, "classes": task.classes, "data": task.data, "neighbours": evidence.neighbours}
    return Recommendation(task.name, rows, None, verdict=verdict, notes=notes, strategy=strategy, **about)


def recommend_known(
    task: KnownTask,
    model: Candidate,
    others: Sequence[Candidate],
    measured: "Measurements",
    library: Library | None,
    *,
    command: str,
) -> Recommendation:
    """The models that were measured on a task, then the others in the order in which they would be.

    Nothing is measured here. `command` measures more models; a single one that was measured is not recommended.
    """
    from task2vec.select.decide import decide

    seen = find_seen(task, [model, *others], library)
    known = [candidate for candidate in (model, *others) if candidate.name in measured.models]
    waiting = [candidate for candidate in others if candidate not in known and candidate.name not in seen]
    proposals = gather_evidence(task, waiting, library, embeds=False).order(waiting) if waiting else ()
    decision = decide(measured, {candidate.name: candidate.cost for candidate in known})
    rows = [*list_rows(known or [model], (), measured, decision), *list_rows(waiting, proposals)]
    verdict = write_verdict(rows, prefer=PREFERENCES[0], images=task.images, images_needed=decision.images_needed)
    if len(known) < 2:
        decision, rows = replace(decision, choice=None), [replace(row, is_choice=False) for row in rows]
        first = list_names([proposal.name for proposal in proposals[:3]])
        verdict = f"No models were compared on this task. Measure these first: {first}."
    notes = [f"To measure more models on the images: {command}"]
    if model.name in seen:
        notes.append(f"{model.name} was trained on images of this task, so its error is too low.")
    return Recommendation(
        task.name,
        tuple(replace(row, rank=rank) for rank, row in enumerate(rows, 1)),
        decision.choice,
        tie=decision.tie,
        verdict=verdict,
        notes=tuple(notes),
        images=task.images,
        classes=task.classes,
        measured_images=task.images if known else None,
        images_needed=decision.images_needed,
        data=task.data,
    )


# --- measuring -------------------------------------------------------------------------------------------------------


def plan_time(
    task: Task, candidates: Sequence[Candidate], seconds: float | None, device: str | None
) -> tuple[float, bool]:
    """The seconds that measuring may take, and whether they are probably too few for all candidates."""
    from task2vec.embedding.batching import choose_device

    kind = choose_device(device).type
    kind = kind if kind in BUDGETS else "cpu"
    limit = BUDGETS[kind] if seconds is None else seconds
    gmacs = len(task) * sum(model.gmacs or UNKNOWN_GMACS for model in candidates)
    return limit, gmacs * SECONDS_PER_GMAC[kind] > limit


def find_or_measure_curve(
    task: KnownTask, model: Candidate, new: "Measurements | None", library: Library | None
) -> "LearningCurve | None":
    """The errors of a model with fewer training images: of its features, or as an earlier run found them."""
    if new is None or task.data is None or model.name not in new.models:
        return (
            None if library is None else find_curve(library, task.fingerprint, model, protocol=find_protocol(task.data))
        )
    from task2vec.select.learning_curve import measure_learning_curve

    features, data = new.features[new.models.index(model.name)], task.data.canonical()
    curve = measure_learning_curve(features, data.targets[new.images], classes=len(data.classes), groups=new.groups)
    if library is not None and curve is not None and new.is_of_all_images:
        keep_curve(library, task.data, model, curve)
    return curve


def explain_images(task: KnownTask, measurements: "Measurements") -> Iterator[str]:
    """Notes on the images that errors were measured on, if these are not all, or gone."""
    if task.data is None and task.embedding is None:
        yield f"The images of '{task.name}' are not where they were, so only what was measured before is shown."
    if measurements.models and not measurements.is_of_all_images:
        yield (
            f"Errors were measured on a sample of {len(measurements.images)} of {measurements.total_images} images, so "
            "they are higher and less certain than on all, and are not kept in the library. A longer --budget "
            "(budget=) measures on more."
        )
