"""A report on a task: its contents, its problems, its difficulty, similar tasks, and which model to start from.

It only uses intermediate results of an embedding: the pooled features of the images, predictions of heads that were
fitted without them, and the Fisher. Copies of one image (exact, or near with the same label) are predicted by the same
head: otherwise a head that has seen a copy knows the answer, and the error looks smaller than it is.
"""

import html
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from task2vec.audit.labels import (
    ConfusedPair,
    find_confused_pairs,
    find_label_issues,
    find_outliers,
    measure_isolation,
)
from task2vec.audit.suggestions import Suggestion, format_path, suggest
from task2vec.distance import with_error
from task2vec.embedding import Embedding, EmbedSettings
from task2vec.errors import LibraryError
from task2vec.experts.protocol import Score, score_balanced
from task2vec.library import Library
from task2vec.metatask import bundled_metatask, list_bundled, measure_all
from task2vec.plots.layout import lay_out
from task2vec.progress import Report as Progress
from task2vec.progress import show_progress
from task2vec.select.recommend import recommend
from task2vec.select.recommendation import Recommendation
from task2vec.storage import write_csv, write_file
from task2vec.tasks import BadImage, Images, Task, read_splits, to_task
from task2vec.tasks.folder import list_splits
from task2vec.tasks.images import SIGNATURE_SIDE, ChosenImages, find_near_copies, make_signature
from task2vec.text import format_percent

if TYPE_CHECKING:
    from torch import Tensor

    from task2vec.embedding.single import Job
    from task2vec.probe import Probe

# Nearest tasks and outliers that are listed, and typical or hard images of a class.
NEIGHBOURS, OUTLIERS, EXAMPLES = 8, 12, 3
PAIRS = 8
# Images that are shown small on a page, at most.
MAX_THUMBNAILS = 200
# The penalty of heads that judge labels. A twentieth of it ranks wrong labels among 40 classes worse (areas of 0.945,
# 0.92 and 0.86 instead of 0.95, 0.94 and 0.90 on flowers, pets and birds), and the error is no lower.
_PENALTY = 1e-3
COLUMNS = ("image", "label", "predicted", "probability", "label_quality", "is_suspected", "copies", "outlier")


@dataclass(frozen=True)
class LabelIssue:
    """An image whose label may be wrong.

    Attributes:
        image: its name.
        label: its label; for attributes, which one is in question, and its value.
        suggested: the prediction of heads that were fitted without the image.
        score: quality of the label, from 0 (surely wrong) to 1.
        number: of the image, see `TaskReport.images`.
    """

    image: str
    label: str
    suggested: str
    score: float
    number: int


@dataclass(frozen=True)
class CopyGroup:
    """Images that show the same thing.

    Attributes:
        images: their names.
        labels: of each.
        splits: of each; empty for the task itself.
        is_exact: whether all of them have the same pixels.
        numbers: of the images, see `TaskReport.images`.
    """

    images: tuple[str, ...]
    labels: tuple[str, ...]
    splits: tuple[str, ...]
    is_exact: bool
    numbers: tuple[int, ...]

    @property
    def is_leak(self) -> bool:
        """Whether the images are in different splits, so that a test image was trained on."""
        return len(set(self.splits)) > 1

    @property
    def has_conflict(self) -> bool:
        """Whether the images have different labels."""
        return len(set(self.labels)) > 1


@dataclass(frozen=True)
class ClassFacts:
    """One class: how many images it has, how many of these are mistaken for others, and examples.

    Attributes:
        name: of the class.
        images: how many it has.
        error: fraction of its images that heads fitted without them misclassify; None if none can be judged.
        typical: numbers of the images most similar to the others of the class.
        hardest: numbers of the images whose labels are least expected but not suspected.
    """

    name: str
    images: int
    error: float | None
    typical: tuple[int, ...]
    hardest: tuple[int, ...]


@dataclass(frozen=True)
class NearTask:
    """A known task, its origin, and its distance: as measured, the part due to noise, and without that part.

    The last two are None where no standard errors of the known task are stored, as of the bundled ones.
    """

    task: str
    origin: str
    distance: float
    floor: float | None
    corrected: float | None


@dataclass(frozen=True, repr=False, eq=False)
class TaskReport:
    """The result of `report`; `to_html` turns it into a page that can be stored and shared.

    Attributes:
        task: the task, in its canonical order.
        embedding: of the task.
        error: class-balanced error of heads on images that they were not fitted on, with its 95% interval; None if no
            image can be judged, because every class has one image, or copies of one.
        label_issues: suspected label errors, the worst first.
        copies: groups of images that show the same thing, leaks between splits first.
        confused: pairs of classes, the most confused first.
        classes: the hardest first.
        outliers: numbers of images that are unlike all others, the most unusual first.
        neighbours: nearest known tasks.
        known: the tasks that are compared with: name, dataset, error and norm, and where they lie on the map.
        place: where this task lies on the map.
        recommendation: which model to start from, if that was measured; else which to measure first.
        suggestions: what to do next.
        notes: remarks on the report itself.
        images: all images that numbers refer to: those of the task, then those of the test splits.
        sizes: (n, 2) width and height of the images of the task.
        table: one row of `COLUMNS` for every image.
        bad: images that could not be read, of all splits.
    """

    task: Task
    embedding: Embedding
    error: Score | None
    label_issues: tuple[LabelIssue, ...]
    copies: tuple[CopyGroup, ...]
    confused: tuple[ConfusedPair, ...]
    classes: tuple[ClassFacts, ...]
    outliers: tuple[int, ...]
    neighbours: tuple[NearTask, ...]
    known: tuple[dict[str, Any], ...]
    place: tuple[float, float] | None
    recommendation: Recommendation
    suggestions: tuple[Suggestion, ...]
    notes: tuple[str, ...]
    images: Images
    sizes: np.ndarray
    table: tuple[dict[str, Any], ...]
    bad: tuple[BadImage, ...]

    def __repr__(self) -> str:
        """The report in one line."""
        issues, copies = len(self.label_issues), self.n_copies
        return f"TaskReport({self.task.name}, {len(self.task)} images, {issues} label issues, {copies} copies)"

    @property
    def n_copies(self) -> int:
        """The number of images of the task that are copies of another one."""
        return sum(max(0, group.splits.count("") - 1) for group in self.copies)

    @cached_property
    def formats(self) -> dict[str, int]:
        """How many images have which suffix; none for images in memory."""
        suffixes = (Path(self.images.name(number)).suffix.lower() for number in range(len(self.task)))
        return dict(Counter(suffix[1:] for suffix in suffixes if suffix).most_common())

    def compare(self, key: str) -> tuple[list[float], float | None]:
        """The "error" or "norm" of the known tasks, as far as it is known, and that of this task."""
        own = (self.error and self.error.error) if key == "error" else self.embedding.norm()
        return [one[key] for one in self.known if one[key] is not None], own

    def rank(self, key: str) -> float | None:
        """The fraction of the known tasks whose "error" or "norm" is below that of this task; None without any."""
        values, own = self.compare(key)
        return float(np.mean([value < own for value in values])) if values and own is not None else None

    def format_interval(self) -> str:
        """The interval of the error in words, or why there is none."""
        if self.error is None:
            return "cannot be measured: every class has only one image, or copies of one"
        return f"95% interval {100 * self.error.low:.1f} to {format_percent(self.error.high)}"

    @property
    def beats_chance(self) -> bool | None:
        """Whether the error is more than a standard error below that of guessing; None if it is not known."""
        if self.error is None:
            return None
        chance = 0.5 if self.task.is_multilabel else 1 - 1 / len(self.task.classes)
        return self.error.error < chance - (self.error.high - self.error.low) / (2 * 1.96)

    def to_dict(self) -> dict[str, Any]:
        """All of it but the images as plain values."""
        sizes = self.sizes
        plain = ("label_issues", "copies", "confused", "neighbours", "suggestions", "bad")
        return {
            "task": self.task.name,
            "fingerprint": self.task.fingerprint,
            "images": len(self.task),
            "is_multilabel": self.task.is_multilabel,
            "formats": self.formats,
            "width": np.quantile(sizes[:, 0], [0, 0.5, 1]).astype(int).tolist(),
            "height": np.quantile(sizes[:, 1], [0, 0.5, 1]).astype(int).tolist(),
            "error": self.error and asdict(self.error) | {"rank": self.rank("error")},
            "norm": {"norm": self.embedding.norm(), "rank": self.rank("norm")},
            "probe": self.embedding.probe,
            "stages": self.embedding.stages(),
            "classes": [
                asdict(one) | {"typical": self._name_all(one.typical), "hardest": self._name_all(one.hardest)}
                for one in self.classes
            ],
            "outliers": self._name_all(self.outliers),
            "recommendation": self.recommendation.to_dict(),
            "notes": list(self.notes),
            **{name: [_drop_numbers(asdict(one)) for one in getattr(self, name)] for name in plain},
        }

    def _name_all(self, numbers: Sequence[int]) -> list[str]:
        return [self.images.name(number) for number in numbers]

    def to_csv(self, path: str | Path) -> Path:
        """Writes one line for every image of the task, those with the most doubtful labels first."""
        return write_csv(path, self.table, COLUMNS)

    def to_html(self, path: str | Path | None = None, *, max_thumbnails: int = MAX_THUMBNAILS) -> str:
        """The report as one self-contained page; also written to `path` if given.

        Args:
            path: of the file.
            max_thumbnails: maximum number of thumbnails; 0 for a page without images.
        """
        from task2vec.audit.html import render

        page = render(self, max_thumbnails=max_thumbnails)
        if path is not None:
            write_file(Path(path), page.encode("utf-8", errors="replace"))
        return page

    def keep(self, library: Library, page: str | None = None) -> Path:
        """Writes the page, created if it is not given, to where `task2vec serve` finds it; returns its path."""
        content = (self.to_html() if page is None else page).encode("utf-8", errors="replace")
        return write_file(library.report_file(self.task.fingerprint), content, makes_folder=True)

    def _repr_html_(self) -> str:
        """The page inside a notebook, in a frame of its own."""
        page = html.escape(self.to_html())
        return f'<iframe sandbox srcdoc="{page}" style="width:100%;height:640px;border:1px solid #ccc"></iframe>'


def _drop_numbers(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in ("number", "numbers")}


def report(
    what: Any,
    probe: "Probe | None" = None,
    *,
    test: Any = None,
    library: Library | str | Path | None = None,
    settings: EmbedSettings = EmbedSettings(),
    device: str | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    progress: bool | Progress = False,
    command: str | None = None,
) -> TaskReport:
    """A report on a task: its contents, its problems, its difficulty, similar tasks, and which model to start from.

    Args:
        what: a task, or anything that `to_task` accepts; for a folder with splits, the first split is the task.
        probe: what `load_probe` returns; the default one if None.
        test: another split, or several by name: its images must not be copies of those of the task. By default the
            other splits of the folder, if it has any.
        library: where the embedding, other tasks and measured errors are looked up, and a new embedding is stored.
        settings: of the embedding.
        device: "cpu", "cuda"; None uses a GPU if there is one.
        num_workers: threads that decode images; None takes one per core.
        batch_size: images per step; None chooses one.
        progress: show progress bars on standard error, or a function that reports it (see `task2vec.progress`).
        command: the command that makes this report, for the suggestions; by default derived from the task's source.

    Example:
        >>> import task2vec as t2v
        >>> task = t2v.sample_tasks(images_per_task=24)[0]
        >>> found = t2v.report(task, t2v.load_probe(size=64), settings=t2v.EmbedSettings(max_samples=16))
        >>> found
        TaskReport(digits, 24 images, ... label issues, ... copies)
        >>> "<h1>digits</h1>" in found.to_html()
        True
    """
    from task2vec.embedding.single import prepare_job
    from task2vec.probe import load_probe

    task, tests = _read(what, test, {"num_workers": num_workers, "progress": progress is True})
    watched, order = _Watched(task.images), task.canonical_order[0]
    compute: dict[str, Any] = {"device": device, "num_workers": num_workers, "batch_size": batch_size}
    job = prepare_job(replace(task, images=watched), probe or load_probe(), settings=settings, **compute)
    with ExitStack() as stack:
        if isinstance(library, str | Path):
            library = stack.enter_context(Library.open(library))
        show = stack.enter_context(show_progress(progress))
        features = job.features(show)
        embedding = _embed(job, features, library, show)
        signatures = [watched.signatures[order], *(_look_at(one, num_workers, show) for one in tests.values())]
        own = replace(task.canonical(), name=task.name)
        images, copies = _find_groups({"": own, **tests}, np.concatenate(signatures))
        found = _Findings(own, images, _hold_out(job, features, copies), features.float().cpu().numpy())
        advice = recommend(embedding, library=library)
        known, place = _draw_map(embedding)
        made = TaskReport(
            task=own,
            embedding=embedding,
            error=found.score_error(),
            label_issues=tuple(found.list_issues()),
            copies=copies,
            confused=tuple(found.list_confused()),
            classes=found.list_classes(),
            outliers=found.list_outliers(),
            neighbours=tuple(_find_neighbours(embedding, library)),
            known=known,
            place=place,
            recommendation=advice,
            suggestions=(),
            notes=tuple(embedding.provenance["warnings"]),
            images=images,
            sizes=watched.sizes[order],
            table=tuple(found.list_rows(copies)),
            bad=tuple(bad for one in (task, *tests.values()) for bad in one.bad),
        )
    if command is None and os.path.exists(task.source):
        command = f"task2vec report {format_path(task.source)}"
    return replace(made, suggestions=suggest(made, command))


def _read(what: Any, test: Any, options: dict[str, Any]) -> tuple[Task, dict[str, Task]]:
    """The task, and the splits that it is compared with."""
    if test is None and isinstance(what, str | os.PathLike) and list_splits(Path(what)):
        splits = read_splits(what, **options)
        return splits.pop(next(iter(splits))), splits
    tests = test if isinstance(test, Mapping) else {} if test is None else {"test": test}
    return to_task(what, **options), {name or "test": to_task(one, **options) for name, one in tests.items()}


def _name_labels(task: Task) -> list[str]:
    """The label of every image as text; of attributes, the names of those that it has."""
    if not task.is_multilabel:
        return [task.classes[target] for target in task.targets]
    return [", ".join(name for name, has in zip(task.classes, row, strict=True) if has) for row in task.targets]


# --- images, seen once ------------------------------------------------------------------------------------------------


class _Watched:
    """The images of a task; of each the size and a signature are noted when it is loaded for the first time."""

    def __init__(self, images: Images):
        self.images, self.is_threadsafe, self.name = images, images.is_threadsafe, images.name
        self.sizes = np.zeros((len(images), 2), dtype=np.int64)
        self.signatures = np.zeros((len(images), SIGNATURE_SIDE, SIGNATURE_SIDE, 3), dtype=np.float16)

    def __len__(self) -> int:
        return len(self.images)

    def load(self, index: int) -> Image.Image:
        """Image `index`."""
        image = self.images.load(index)
        if not self.sizes[index, 0]:
            self.signatures[index] = make_signature(image)
            self.sizes[index] = image.size
        return image


def _look_at(task: Task, num_workers: int | None, show: Progress) -> np.ndarray:
    """The signatures of a split that is not embedded."""
    watched, step = _Watched(task.images), show("splits", len(task))
    workers = num_workers or min(8, os.cpu_count() or 1) if task.images.is_threadsafe else 1

    def look(number: int) -> None:
        watched.load(number)
        step(1)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(look, range(len(task))))
    return watched.signatures


def _embed(job: "Job", features: "Tensor", library: Library | None, show: Progress) -> Embedding:
    """The embedding that the library has, or a new one, which it then has if it can be written."""
    found = None if library is None else library.find(job.given, job.passes.probe, settings=job.settings)
    if found is None:
        found = job.embed(features, show)
        if library is not None and not library.is_read_only:
            library.add(found, source=job.given.source)
    return found


def _find_groups(splits: Mapping[str, Task], signatures: np.ndarray) -> tuple[Images, tuple[CopyGroup, ...]]:
    """The images of all splits one after the other, and those of them that show the same, leaks first."""
    tasks = tuple(splits.values())
    places = [(at, row) for at, task in enumerate(tasks) for row in range(len(task))]
    prefixes = tuple(f"{name}: " if name else "" for name in splits)
    images = ChosenImages(tuple(task.images for task in tasks), places, prefixes)
    digests = [digest for task in tasks for digest in task.digests]
    labels = [label for task in tasks for label in _name_labels(task)]
    names = [*splits]
    groups = [
        CopyGroup(
            images=tuple(images.name(number) for number in group),
            labels=tuple(labels[number] for number in group),
            splits=tuple(names[places[number][0]] for number in group),
            is_exact=len({digests[number] for number in group}) == 1,
            numbers=tuple(group),
        )
        for group in find_near_copies(signatures, digests=digests)
    ]
    groups.sort(key=lambda group: (not group.is_leak, not group.has_conflict, not group.is_exact, group.images))
    return images, tuple(groups)


def _hold_out(job: "Job", features: "Tensor", copies: Sequence[CopyGroup]) -> tuple[np.ndarray, ...]:
    """What heads fitted without an image and its copies predict of it: see `_Findings`.

    Near copies with different labels need not share a head: they give no answer away.
    """
    import torch

    from task2vec.head import predict_held_out

    _, first, same = np.unique(job.task.digests, return_index=True, return_inverse=True)
    fold = first[same]
    for group in copies:
        for label in set(group.labels):
            pairs = zip(group.numbers, group.labels, strict=True)
            own = fold[[number for number, name in pairs if name == label and number < len(fold)]]
            fold[np.isin(fold, own)] = own.min(initial=len(fold))
    groups = torch.from_numpy(np.unique(fold, return_inverse=True)[1]).to(features.device)
    how = {"classes": len(job.task.classes), "penalty": _PENALTY, "balance": job.settings.balance, "groups": groups}
    predicted = (one.cpu().numpy() for one in predict_held_out(features, job.targets, **how))
    return *predicted, fold == np.arange(len(fold))


# --- findings ---------------------------------------------------------------------------------------------------------


class _Findings:
    """What predictions on images that were held out say about labels, classes and images.

    Attributes:
        task: the task.
        images: of the task, and of the splits after them.
        predicted: (n, c) probabilities.
        is_judged: (n,) whether they mean anything.
        is_counted: (n,) whether they count in errors, where copies count once.
        wrong: (n,) share of repetitions with a wrong prediction, or (n, c) for attributes.
    """

    def __init__(self, task: Task, images: Images, held_out: Sequence[np.ndarray], features: np.ndarray):
        self.task, self.images = task, images
        self.predicted, votes, self.is_judged, is_first = held_out
        self.is_counted = self.is_judged & is_first
        rows, targets = np.arange(len(task)), task.targets
        self.wrong = np.abs(votes - targets) if task.is_multilabel else 1 - votes[rows, targets]
        self.issues = find_label_issues(self.predicted, task.targets, self.is_judged)
        self.isolation = measure_isolation(features)
        self.features = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)

    def score_error(self) -> Score | None:
        """The class-balanced error with its interval."""
        if not self.is_counted.any():
            return None
        return score_balanced(self.wrong[self.is_counted], self.task.targets[self.is_counted])

    def list_issues(self) -> Iterator[LabelIssue]:
        """The suspected images, the worst label first."""
        numbers, classes = np.flatnonzero(self.issues.is_suspected), self.task.classes
        for number in numbers[np.argsort(self.issues.score[numbers], kind="stable")].tolist():
            suggested = int(self.issues.suggested[number])
            if self.task.is_multilabel:
                has = bool(self.task.targets[number, suggested])
                label, other = (f"{classes[suggested]}: {'yes' if value else 'no'}" for value in (has, not has))
            else:
                label, other = classes[self.task.targets[number]], classes[suggested]
            yield LabelIssue(self.images.name(number), label, other, float(self.issues.score[number]), number)

    def list_confused(self) -> list[ConfusedPair]:
        """The most confused pairs of classes."""
        how = {"names": self.task.classes, "limit": PAIRS}
        return find_confused_pairs(self.predicted, self.task.targets, self.is_counted, **how)

    def list_classes(self) -> tuple[ClassFacts, ...]:
        """All classes, the hardest first; of attributes, their images are those that have them."""
        found = []
        for number, name in enumerate(self.task.classes):
            is_own = self.task.targets[:, number] > 0 if self.task.is_multilabel else self.task.targets == number
            rows = np.flatnonzero(is_own)
            counted = rows[self.is_counted[rows]]
            wrong = self.wrong[counted, number] if self.task.is_multilabel else self.wrong[counted]
            typical = rows[np.argsort(-(self.features[rows] @ self.features[rows].mean(0)), kind="stable")][:EXAMPLES]
            others = rows[self.is_judged[rows] & ~self.issues.is_suspected[rows] & ~np.isin(rows, typical)]
            hardest = others[np.argsort(self.predicted[others, number], kind="stable")][:EXAMPLES]
            error = float(wrong.mean()) if len(counted) else None
            found.append(ClassFacts(name, len(rows), error, tuple(typical.tolist()), tuple(hardest.tolist())))
        return tuple(sorted(found, key=lambda one: (-(one.error or 0.0), one.images, one.name)))

    def list_outliers(self) -> tuple[int, ...]:
        """The images that are unlike all others, the most unusual first."""
        numbers = np.flatnonzero(find_outliers(self.isolation))
        return tuple(numbers[np.argsort(-self.isolation[numbers], kind="stable")][:OUTLIERS].tolist())

    def list_rows(self, copies: Sequence[CopyGroup]) -> Iterator[dict[str, Any]]:
        """One row of `COLUMNS` for every image, the most doubtful labels first, then for copies in other splits."""
        group_of = {number: group for group in copies for number in group.numbers}
        labels, count = _name_labels(self.task), len(self.task)
        order = np.argsort(self.issues.score, kind="stable").tolist()
        for number in [*order, *(number for number in group_of if number >= count)]:
            group, name = group_of.get(number), self.images.name(number)
            others = () if group is None else (one for one in group.images if one != name)
            row: dict[str, Any] = {"image": name, "copies": " | ".join(others)}
            if number < count:
                row |= {"label": labels[number], "outlier": round(float(self.isolation[number]), 4)}
                row |= self._describe_prediction(number) if self.is_judged[number] else {}
            elif group is not None:
                row["label"] = group.labels[group.numbers.index(number)]
            yield row

    def _describe_prediction(self, number: int) -> dict[str, Any]:
        classes, chances = self.task.classes, self.predicted[number]
        found = {"predicted": classes[int(chances.argmax())], "probability": round(float(chances.max()), 4)}
        if self.task.is_multilabel:
            found = {"predicted": ", ".join(name for name, p in zip(classes, chances, strict=True) if p > 0.5)}
        quality = round(float(self.issues.score[number]), 4)
        return found | {"label_quality": quality, "is_suspected": bool(self.issues.is_suspected[number])}


# --- other tasks ------------------------------------------------------------------------------------------------------


def _draw_map(embedding: Embedding) -> tuple[tuple[dict[str, Any], ...], tuple[float, float] | None]:
    """The bundled tasks with their errors, norms and places on a map, and the place of this task on it."""
    own = embedding.provenance.get("task_fingerprint")
    tasks = [one for one in list_bundled(embedding) if one.provenance.get("task_fingerprint") != own]
    if len(tasks) < 2:
        return (), None
    datasets = {info.name: info.dataset for info in bundled_metatask().tasks}
    laid = lay_out(measure_all(tasks, tasks), method="classical scaling")  # t-SNE takes as long as all the rest
    known = [
        {
            "task": one.task,
            "dataset": datasets.get(one.task),
            "error": (one.provenance.get("head") or {}).get("cv_error"),
            "norm": one.norm(),
            "place": tuple(place),
        }
        for one, place in zip(tasks, laid.positions.tolist(), strict=True)
    ]
    x, y = laid.place(measure_all([embedding], tasks))[0].tolist()
    return tuple(known), (x, y)


def _find_neighbours(embedding: Embedding, library: Library | None) -> list[NearTask]:
    """The nearest tasks of the library and of the bundle, with the noise of their distances."""
    own, every = embedding.provenance.get("task_fingerprint"), list_bundled(embedding)
    near: dict[str, tuple[str, str, Embedding]] = {}
    for number in np.argsort(measure_all([embedding], every)[0], kind="stable")[: NEIGHBOURS + 1].tolist():
        near[every[number].provenance["task_fingerprint"]] = every[number].task, "bundled", every[number]
    for found in [] if library is None else library.nearest(embedding, NEIGHBOURS):
        try:
            near[found.task.fingerprint] = found.task.name, "library", library.get(found.embedding.key)  # type: ignore[union-attr]
        except LibraryError:
            continue  # damaged: `task2vec library verify` names it
    near.pop(own or "", None)
    rows = [(name, origin, with_error(embedding, one)) for name, origin, one in near.values()]
    rows.sort(key=lambda row: row[2].value)
    return [
        NearTask(name, origin, d.value, *(None if math.isnan(each) else each for each in (d.floor, d.corrected)))
        for name, origin, d in rows[:NEIGHBOURS]
    ]
