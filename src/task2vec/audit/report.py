"""A report on a task: its contents, its problems, the measured error of one model, and what to do next.

The model is measured as `recommend` measures it, and the result is stored in the same record of the library: there is
one error, whoever shows it. Everything else follows from the features of that pass.
"""

import html
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.audit import findings
from task2vec.audit.analysis import Analysis, NearTask
from task2vec.audit.changes import find_baseline, find_changes
from task2vec.audit.corrections import write_corrections
from task2vec.audit.html import MAX_BYTES, render
from task2vec.audit.labels import judge_labels, measure_isolation
from task2vec.audit.suggestions import format_path, suggest
from task2vec.distance import with_error
from task2vec.embedding import Embedding
from task2vec.errors import LibraryError, NotInLibraryError, ResourceError
from task2vec.library import Library
from task2vec.metatask import list_bundled, measure_all
from task2vec.progress import Report as Progress
from task2vec.progress import show_progress
from task2vec.select.candidates import Candidate, list_candidates, load_candidate
from task2vec.select.evidence import KnownTask, find_task
from task2vec.select.history import merge_measurements
from task2vec.select.recommend import PROGRESS_PAUSE, find_or_measure_curve, recommend_known
from task2vec.storage import write_file
from task2vec.tasks import Task, read_splits, to_task
from task2vec.tasks.copies import find_copies
from task2vec.tasks.folder import list_splits
from task2vec.tasks.images import ChosenImages
from task2vec.version import __version__

if TYPE_CHECKING:
    from torch import Tensor

    from task2vec.probe import Probe
    from task2vec.select.measure import Measurements

# How many nearest tasks are listed.
MAX_NEIGHBOURS = 8


@dataclass(frozen=True, repr=False, eq=False)
class TaskReport(Analysis):
    """The result of `report`; `to_html` turns it into a page. Its values are those of `Analysis`."""

    def __repr__(self) -> str:
        """The report in one line."""
        counts = ", ".join(f"{count} {name}" for name, count in self.checks.items())
        return f"TaskReport({self.task.name}, {len(self.task)} images: {counts})"

    def to_dict(self) -> dict[str, Any]:
        """All of it but the pictures as plain values: what the page shows, and a row for every image."""
        widths, heights = np.quantile(self.sizes, [0, 0.5, 1], axis=0).astype(int).T.tolist()
        names = [self.images.name(number) for number in range(len(self.images))]
        embedding = None
        if self.embedding is not None:
            embedding = {"probe": self.embedding.probe, "norm": self.embedding.norm()}
            embedding["stages"] = self.embedding.stages()
        examples = ("typical", "hardest")
        return {
            "task": self.task.name,
            "fingerprint": self.task.fingerprint,
            "made": self.made,
            "version": self.version,
            "source": self.task.source,
            "images": len(self.task),
            "splits": list(self.splits),
            "is_multilabel": self.task.is_multilabel,
            "formats": self.formats,
            "width": widths,
            "height": heights,
            "model": asdict(self.model),
            "judged": self.judged,
            "beats_chance": self.beats_chance,
            "checks": self.checks,
            "label_issues": _list_plain(self.label_issues),
            "expected_precision": self.expected,
            "copies": [
                plain | {"is_leak": group.is_leak, "has_conflict": group.has_conflict, "advice": group.advice}
                for plain, group in zip(_list_plain(self.copies), self.copies, strict=True)
            ],
            "unseen_copies": list(self.unseen),
            "classes": [
                asdict(facts) | {name: [names[number] for number in getattr(facts, name)] for name in examples}
                for facts in self.classes
            ],
            "confused": _list_plain(self.confused),
            "outliers": [names[number] for number in self.outliers],
            "learning_curve": self.learning_curve and asdict(self.learning_curve),
            "recommendation": self.recommendation.to_dict(),
            "embedding": embedding,
            "embed_command": self.embed_command,
            "neighbours": _list_plain(self.neighbours),
            "changes": self.changes and asdict(self.changes),
            "suggestions": _list_plain(self.suggestions),
            "bad": _list_plain(self.bad),
            "notes": list(self.notes),
            "table": list(self.table),
        }

    def to_json(self, path: str | Path) -> Path:
        """Writes all of it but the pictures: what `baseline` of a later report takes."""
        return write_file(Path(path), _encode(self.to_dict()))

    def to_html(self, path: str | Path | None = None, *, max_bytes: int = MAX_BYTES) -> str:
        """The report as one self-contained page; also written to `path` if given.

        Args:
            path: of the file.
            max_bytes: how long it may be; pictures that there is no room for are left out, with 0 all of them.
        """
        page = render(self, max_bytes=max_bytes)
        if path is not None:
            write_file(Path(path), page.encode("utf-8", errors="replace"))
        return page

    def to_corrections(self, path: str | Path) -> Path:
        """Writes a table of what was found, to fill in decisions; `apply_corrections` makes a corrected table of it.

        Raises:
            UsageError: The images are not files, or have attributes instead of classes.
        """
        return write_corrections(path, self)

    def keep(self, library: Library, page: str | None = None) -> Path:
        """Writes the page to where `task2vec serve` finds it, and its values beside it; returns its path."""
        file = library.report_file(self.task.fingerprint)
        write_file(file.with_suffix(".json"), _encode(self.to_dict()), makes_folder=True)
        return write_file(file, (self.to_html() if page is None else page).encode("utf-8", errors="replace"))

    def _repr_html_(self) -> str:
        """The page inside a notebook, in a frame of its own."""
        page = html.escape(self.to_html())
        return f'<iframe sandbox srcdoc="{page}" style="width:100%;height:640px;border:1px solid #ccc"></iframe>'


def _encode(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=1, allow_nan=False).encode()


def _list_plain(records: Sequence[Any]) -> list[dict[str, Any]]:
    """Records as plain values, without numbers of images."""
    numbers = ("number", "numbers")
    return [{key: value for key, value in asdict(record).items() if key not in numbers} for record in records]


def report(
    what: Any,
    probe: "Probe | None" = None,
    *,
    test: Any = None,
    library: Library | str | Path | None = None,
    baseline: str | Path | None = None,
    device: str | None = None,
    num_workers: int | None = None,
    progress: bool | Progress = False,
    command: Callable[[str], str] | None = None,
) -> TaskReport:
    """A report on a task: its contents, its problems, the measured error of a model, and what to do next.

    Args:
        what: a task, the name of one in the library, or anything that `to_task` accepts; for a folder with splits, the
            first split is the task.
        probe: the model that is measured, what `load_probe` returns; the default one if None.
        test: another split, or several by name: its images must not be copies of those of the task. By default the
            other splits of the folder, if it has any.
        library: where the measured error is stored, and where other errors and an embedding are looked up.
        baseline: the JSON file of an earlier report, or "last" for the last one that the library keeps: the report says
            what changed.
        device: "cpu", "cuda"; None uses a GPU if there is one.
        num_workers: threads that decode images; None takes one per core.
        progress: show progress on standard error, or a function that reports it (see `task2vec.progress`).
        command: what runs a command ("report", "recommend", "embed") on the same data, for the suggestions.

    Example:
        >>> import task2vec as t2v
        >>> task = t2v.sample_tasks(images_per_task=24)[0]
        >>> found = t2v.report(task, t2v.load_probe(size=64))
        >>> found
        TaskReport(digits, 24 images: ... copies, 0 leaks, ... labels)
        >>> "<h1>digits</h1>" in found.to_html()
        True
    """
    from task2vec.probe import load_probe
    from task2vec.select.measure import MAX_IMAGES_FOR_ONE_THREAD, use_threads

    with ExitStack() as stack:
        if isinstance(library, str | Path):
            library = stack.enter_context(Library.open(library))
        show = stack.enter_context(show_progress(progress, pause=PROGRESS_PAUSE))
        options = {"num_workers": num_workers, "progress": progress is True}
        task, tests = _read(what, test, library, options)
        earlier = find_baseline(baseline, task, library)
        probe = probe or load_probe()
        model, others = _choose_candidates(probe, library)
        canonical = replace(task.canonical(), name=task.name)
        splits = {"": canonical, **tests}
        images = _join_images(splits)
        digests = [digest for split in splits.values() for digest in split.digests]
        measured = _measure(canonical, model, device, show)
        seen = [(measured.features[0], measured.pictures)]
        seen += [_look_at(probe, split, device, show) for split in tests.values()]
        if len(digests) <= MAX_IMAGES_FOR_ONE_THREAD:  # more threads would only wait for each other
            stack.enter_context(use_threads(1))
        step = show("copies and labels", 1)
        rows = np.concatenate([features.float().cpu().numpy() for features, _ in seen])
        pictures = np.concatenate([pictures for _, pictures in seen if pictures is not None])
        found = find_copies(pictures, digests=digests, features=rows)
        copies = findings.list_copies(splits, images, found)
        own, about = rows[: len(task)], {"classes": len(task.classes), "groups": measured.groups}
        judgement = judge_labels(own, canonical.targets.astype(np.int64), **about)
        step(1)
        known = merge_measurements(library, canonical, measured, model, others)
        predictions = findings.predict(canonical, measured, known, model.name)
        is_suspected = np.isin(np.arange(len(task)), judgement.suspects)
        isolation = measure_isolation(own)
        embedding = _find_embedding(canonical, library)
        command = command or _make_command(what, task)
        subject = KnownTask(task.name, task.fingerprint, len(task), len(task.classes), data=task)
        advice = recommend_known(subject, model, others, known, library, command=command("recommend"))
        sizes = pictures[: len(task), -1, :4].astype(np.int64) @ np.array([[0, 256], [0, 1], [256, 0], [1, 0]])
        table = findings.list_rows(canonical, images, digests, predictions, judgement, copies)
        result = TaskReport(
            task=canonical,
            splits=tuple(tests),
            model=next(row for row in advice.rows if row.model == model.name),
            judged=int(predictions.is_judged.sum()),
            size=probe.size[0],
            learning_curve=find_or_measure_curve(subject, model, measured, library),
            label_issues=tuple(findings.list_issues(canonical, judgement)),
            expected=judgement.expected,
            copies=copies,
            unseen=found.unseen,
            confused=findings.list_confused(canonical, predictions),
            classes=findings.list_classes(canonical, predictions, own, is_suspected),
            outliers=findings.list_outliers(isolation),
            embedding=embedding,
            neighbours=() if embedding is None else tuple(_find_neighbours(embedding, library)),
            recommendation=advice,
            notes=canonical.warnings,
            images=images,
            sizes=sizes,
            table=tuple(table),
            bad=tuple(bad for split in (task, *tests.values()) for bad in split.bad),
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            version=__version__,
            embed_command=command("embed"),
        )
    if earlier is not None:
        groups = dict(zip(canonical.digests, measured.groups.tolist(), strict=True))
        result = replace(result, changes=find_changes(result.to_dict(), earlier, groups))
    return replace(result, suggestions=suggest(result, command))


def _read(source: Any, test: Any, library: Library | None, options: dict[str, Any]) -> tuple[Task, dict[str, Task]]:
    """The task, and the splits that it is compared with."""
    if isinstance(source, str) and library is not None and not Path(source).exists():
        with suppress(NotInLibraryError):
            source = find_task(library.task(source), library).data
    if test is None and isinstance(source, str | os.PathLike) and list_splits(Path(source)):
        splits = read_splits(source, **options)
        return splits.pop(next(iter(splits))), splits
    tests = test if isinstance(test, Mapping) else {} if test is None else {"test": test}
    return to_task(source, **options), {name or "test": to_task(split, **options) for name, split in tests.items()}


def _make_command(what: Any, task: Task) -> Callable[[str], str]:
    """What runs a command on the same data: on the command line for a path, or in Python for what is in memory."""
    if isinstance(what, str | os.PathLike):
        return lambda name: f"task2vec {name} {format_path(task.source)}"
    return lambda name: "library.add(t2v.embed(task))" if name == "embed" else f"t2v.{name}(task)"


# --- the model and what it sees ---------------------------------------------------------------------------------------


def _join_images(splits: Mapping[str, Task]) -> ChosenImages:
    """The images of all splits one after the other, those of other splits with its name before theirs."""
    places = [(number, row) for number, split in enumerate(splits.values()) for row in range(len(split))]
    prefixes = tuple(f"{name}: " if name else "" for name in splits)
    return ChosenImages(tuple(split.images for split in splits.values()), places, prefixes)


def _choose_candidates(probe: "Probe", library: Library | None) -> tuple[Candidate, list[Candidate]]:
    """The probe as the candidate that `recommend` knows it as, and the other candidates."""
    (model,) = list_candidates([probe])
    others = list_candidates(None, library=library)
    is_same = [(other.location, other.size) == (model.location, model.size) for other in others]
    same = [other for other, is_twin in zip(others, is_same, strict=True) if is_twin]
    rest = [other for other, is_twin in zip(others, is_same, strict=True) if not is_twin and other.name != model.name]
    return replace(same[0], model=probe, is_here=True) if same else model, rest


def _measure(task: Task, model: Candidate, device: str | None, show: Progress) -> "Measurements":
    """What the model gets wrong, with its features and pictures of the images; without losses if none can be judged."""
    from task2vec.select.measure import HopelessError, Measurements, measure_models

    numbers = np.arange(len(task))
    try:
        measured = measure_models(task, [model], load=load_candidate, device=device, progress=show)
    except HopelessError:
        features, pictures = _look_at(load_candidate(model), task, device, show)
        about: dict[str, Any] = {"features": (features,), "pictures": pictures}
        return Measurements(numbers, task.fold_groups, (), np.empty((len(task), 0)), len(task), **about)
    if measured.is_interrupted:
        raise KeyboardInterrupt
    if measured.failures:
        raise ResourceError(f"{model.name} could not be run on '{task.name}': {measured.failures[0].message}")
    return measured


def _look_at(probe: "Probe", task: Task, device: str | None, show: Progress) -> "tuple[Tensor, np.ndarray]":
    """Features and small pictures of the images of a task that is not measured."""
    from task2vec.embedding.batching import choose_device
    from task2vec.select.measure import DecodedImages, compute_features, use_threads

    chosen, images = choose_device(device), DecodedImages(task.images, room=0)
    probe.prepare(device=chosen)
    with use_threads(1) as workers:
        step = show(task.name, len(task))
        features = compute_features(probe, images, range(len(task)), device=chosen, workers=workers, step=step)
    return features, images.stack(np.arange(len(task)))


# --- other tasks ------------------------------------------------------------------------------------------------------


def _find_embedding(task: Task, library: Library | None) -> Embedding | None:
    """The newest embedding of the task in the library; a damaged one is none: `task2vec library verify` names it."""
    with suppress(LibraryError):
        entries = () if library is None else library.task(task.fingerprint).embeddings
        return library.get(entries[-1].key) if library is not None and entries else None
    return None


def _find_neighbours(embedding: Embedding, library: Library | None) -> list[NearTask]:
    """The nearest tasks of the library and of the bundle, with the noise of their distances."""
    bundled = list_bundled(embedding)
    near: dict[str, tuple[str, str, Embedding]] = {}
    for number in np.argsort(measure_all([embedding], bundled)[0], kind="stable")[: MAX_NEIGHBOURS + 1].tolist():
        task = bundled[number]
        near[task.provenance["task_fingerprint"]] = task.task, "bundled", task
    for match in [] if library is None else library.nearest(embedding, MAX_NEIGHBOURS):
        try:
            near[match.task.fingerprint] = match.task.name, "library", library.get(match.embedding.key)  # type: ignore[union-attr]
        except LibraryError:
            continue  # damaged: `task2vec library verify` names it
    near.pop(embedding.provenance.get("task_fingerprint") or "", None)
    rows = [(name, origin, with_error(embedding, task)) for name, origin, task in near.values()]
    rows.sort(key=lambda row: row[2].value)
    return [
        NearTask(name, origin, d.value, *(None if math.isnan(value) else value for value in (d.floor, d.corrected)))
        for name, origin, d in rows[:MAX_NEIGHBOURS]
    ]
