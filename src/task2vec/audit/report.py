"""A report on a task: its contents, its problems, its difficulty, similar tasks, and which model to start from.

It only uses intermediate results of an embedding: the pooled features of the images, predictions of heads that were
fitted without them, and the Fisher. Copies of one image (exact, or near with the same label) are predicted by the same
head: otherwise a head that has seen a copy knows the answer, and the error looks smaller than it is.
"""

import html
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from task2vec.audit.analysis import Analysis, ClassFacts, CopyGroup, LabelIssue, NearTask
from task2vec.audit.html import render
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
from task2vec.storage import write_csv, write_file
from task2vec.tasks import Images, Task, read_splits, to_task
from task2vec.tasks.folder import list_splits
from task2vec.tasks.images import SIGNATURE_SIDE, ChosenImages, find_near_copies, make_signature
from task2vec.tasks.sampling import join_groups

if TYPE_CHECKING:
    from torch import Tensor

    from task2vec.embedding.single import Job
    from task2vec.probe import Probe

# How many nearest tasks, confused pairs of classes and outliers are listed, and examples of a class.
MAX_NEIGHBOURS = 8
MAX_PAIRS = 8
MAX_OUTLIERS = 12
MAX_EXAMPLES = 3
# Images that are shown small on a page, at most.
MAX_THUMBNAILS = 200
# The penalty of heads that judge labels. A twentieth of it ranks wrong labels among 40 classes worse (areas of 0.945,
# 0.92 and 0.86 instead of 0.95, 0.94 and 0.90 on flowers, pets and birds), and the error is no lower.
_PENALTY = 1e-3
COLUMNS = ("image", "label", "predicted", "probability", "label_quality", "is_suspected", "copies", "outlier")


@dataclass(frozen=True, repr=False, eq=False)
class TaskReport(Analysis):
    """The result of `report`: the analysis of a task, and what to do next; `to_html` turns it into a page.

    Attributes:
        suggestions: what to do next.
    """

    suggestions: tuple[Suggestion, ...]

    def __repr__(self) -> str:
        """The report in one line."""
        issues = len(self.label_issues)
        return f"TaskReport({self.task.name}, {len(self.task)} images, {issues} label issues, {self.n_copies} copies)"

    def to_dict(self) -> dict[str, Any]:
        """All of it but the images as plain values."""
        records = ("label_issues", "copies", "confused", "neighbours", "suggestions", "bad")
        widths, heights = np.quantile(self.sizes, [0, 0.5, 1], axis=0).astype(int).T.tolist()
        return {
            "task": self.task.name,
            "fingerprint": self.task.fingerprint,
            "images": len(self.task),
            "is_multilabel": self.task.is_multilabel,
            "formats": self.formats,
            "width": widths,
            "height": heights,
            "error": self.error and asdict(self.error) | {"rank": self.rank("error")},
            "norm": {"norm": self.embedding.norm(), "rank": self.rank("norm")},
            "probe": self.embedding.probe,
            "stages": self.embedding.stages(),
            "classes": [
                asdict(facts) | {"typical": self._name_all(facts.typical), "hardest": self._name_all(facts.hardest)}
                for facts in self.classes
            ],
            "outliers": self._name_all(self.outliers),
            "recommendation": self.recommendation.to_dict(),
            "notes": list(self.notes),
            **{name: [_drop_numbers(asdict(record)) for record in getattr(self, name)] for name in records},
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
        page = render(self, self.suggestions, max_thumbnails=max_thumbnails)
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
    recorded = _RecordedImages(task.images)
    order = task.canonical_order[0]
    compute: dict[str, Any] = {"device": device, "num_workers": num_workers, "batch_size": batch_size}
    job = prepare_job(replace(task, images=recorded), probe or load_probe(), settings=settings, **compute)
    with ExitStack() as stack:
        if isinstance(library, str | Path):
            library = stack.enter_context(Library.open(library))
        show = stack.enter_context(show_progress(progress))
        features = job.features(show)
        embedding = _embed(job, features, library, show)
        signatures = [recorded.signatures[order]]
        signatures += [_sign_images(split, num_workers, show) for split in tests.values()]
        canonical = replace(task.canonical(), name=task.name)
        images, copies = _find_groups({"": canonical, **tests}, np.concatenate(signatures))
        held_out = _hold_out(job, features, copies)
        findings = _Findings(canonical, images, held_out, features.float().cpu().numpy())
        known, position = _draw_map(embedding)
        analysis = Analysis(
            task=canonical,
            embedding=embedding,
            error=findings.score_error(),
            label_issues=tuple(findings.list_issues()),
            copies=copies,
            confused=tuple(findings.list_confused()),
            classes=findings.list_classes(),
            outliers=findings.list_outliers(),
            neighbours=tuple(_find_neighbours(embedding, library)),
            known=known,
            place=position,
            recommendation=recommend(embedding, library=library),
            notes=tuple(embedding.provenance["warnings"]),
            images=images,
            sizes=recorded.sizes[order],
            table=tuple(findings.list_rows(copies)),
            bad=tuple(bad for split in (task, *tests.values()) for bad in split.bad),
        )
    if command is None and os.path.exists(task.source):
        command = f"task2vec report {format_path(task.source)}"
    return TaskReport(**vars(analysis), suggestions=suggest(analysis, command))


def _read(source: Any, test: Any, options: dict[str, Any]) -> tuple[Task, dict[str, Task]]:
    """The task, and the splits that it is compared with."""
    if test is None and isinstance(source, str | os.PathLike) and list_splits(Path(source)):
        splits = read_splits(source, **options)
        return splits.pop(next(iter(splits))), splits
    tests = test if isinstance(test, Mapping) else {} if test is None else {"test": test}
    return to_task(source, **options), {name or "test": to_task(split, **options) for name, split in tests.items()}


def _name_labels(task: Task) -> list[str]:
    """The label of every image as text; of attributes, the names of those that it has."""
    if not task.is_multilabel:
        return [task.classes[target] for target in task.targets]
    return [", ".join(name for name, has in zip(task.classes, row, strict=True) if has) for row in task.targets]


# --- images, seen once ------------------------------------------------------------------------------------------------


class _RecordedImages:
    """The images of a task; the size and a signature of each are recorded when it is first loaded."""

    def __init__(self, images: Images):
        self.images = images
        self.is_threadsafe = images.is_threadsafe
        self.name = images.name
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


def _sign_images(task: Task, num_workers: int | None, show: Progress) -> np.ndarray:
    """The signatures of a split that is not embedded."""
    recorded = _RecordedImages(task.images)
    step = show("splits", len(task))
    workers = num_workers or min(8, os.cpu_count() or 1) if task.images.is_threadsafe else 1

    def load(number: int) -> None:
        recorded.load(number)
        step(1)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(load, range(len(task))))
    return recorded.signatures


def _embed(job: "Job", features: "Tensor", library: Library | None, show: Progress) -> Embedding:
    """The embedding that the library has, or a new one, which it then has if it can be written."""
    embedding = None if library is None else library.find(job.given, job.passes.probe, settings=job.settings)
    if embedding is None:
        embedding = job.embed(features, show)
        if library is not None and not library.is_read_only:
            library.add(embedding, source=job.given.source)
    return embedding


def _find_groups(splits: Mapping[str, Task], signatures: np.ndarray) -> tuple[Images, tuple[CopyGroup, ...]]:
    """The images of all splits one after the other, and those of them that show the same, leaks first."""
    tasks = tuple(splits.values())
    rows = [(number, row) for number, task in enumerate(tasks) for row in range(len(task))]
    prefixes = tuple(f"{name}: " if name else "" for name in splits)
    images = ChosenImages(tuple(task.images for task in tasks), rows, prefixes)
    digests = [digest for task in tasks for digest in task.digests]
    labels = [label for task in tasks for label in _name_labels(task)]
    names = [*splits]
    groups = [
        CopyGroup(
            images=tuple(images.name(number) for number in group),
            labels=tuple(labels[number] for number in group),
            splits=tuple(names[rows[number][0]] for number in group),
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

    _, first, copy_of = np.unique(job.task.digests, return_index=True, return_inverse=True)
    fold = first[copy_of]
    for group in copies:
        for label in set(group.labels):
            members = zip(group.numbers, group.labels, strict=True)
            folds = fold[[number for number, name in members if name == label and number < len(fold)]]
            fold[np.isin(fold, folds)] = folds.min(initial=len(fold))
    groups = torch.from_numpy(join_groups(fold, job.task.fold_groups)).to(features.device)
    classes = len(job.task.classes)
    predicted = predict_held_out(
        features, job.targets, classes=classes, penalty=_PENALTY, balance=job.settings.balance, groups=groups
    )
    return *(values.cpu().numpy() for values in predicted), fold == np.arange(len(fold))


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
        self.task = task
        self.images = images
        self.predicted, votes, self.is_judged, is_first = held_out
        self.is_counted = self.is_judged & is_first
        if task.is_multilabel:
            self.wrong = np.abs(votes - task.targets)
        else:
            self.wrong = 1 - votes[np.arange(len(task)), task.targets]
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
        numbers = np.flatnonzero(self.issues.is_suspected)
        classes = self.task.classes
        for number in numbers[np.argsort(self.issues.score[numbers], kind="stable")].tolist():
            suggested = int(self.issues.suggested[number])
            if self.task.is_multilabel:
                has = bool(self.task.targets[number, suggested])
                label, prediction = (f"{classes[suggested]}: {'yes' if value else 'no'}" for value in (has, not has))
            else:
                label = classes[self.task.targets[number]]
                prediction = classes[suggested]
            yield LabelIssue(self.images.name(number), label, prediction, float(self.issues.score[number]), number)

    def list_confused(self) -> list[ConfusedPair]:
        """The most confused pairs of classes."""
        return find_confused_pairs(
            self.predicted, self.task.targets, self.is_counted, names=self.task.classes, limit=MAX_PAIRS
        )

    def list_classes(self) -> tuple[ClassFacts, ...]:
        """All classes, the hardest first; of attributes, their images are those that have them."""
        classes = []
        for number, name in enumerate(self.task.classes):
            is_member = self.task.targets[:, number] > 0 if self.task.is_multilabel else self.task.targets == number
            rows = np.flatnonzero(is_member)
            counted = rows[self.is_counted[rows]]
            wrong_shares = self.wrong[counted, number] if self.task.is_multilabel else self.wrong[counted]
            error = float(wrong_shares.mean()) if len(counted) else None
            likeness = self.features[rows] @ self.features[rows].mean(0)
            typical = rows[np.argsort(-likeness, kind="stable")][:MAX_EXAMPLES]
            candidates = rows[self.is_judged[rows] & ~self.issues.is_suspected[rows] & ~np.isin(rows, typical)]
            hardest = candidates[np.argsort(self.predicted[candidates, number], kind="stable")][:MAX_EXAMPLES]
            classes.append(ClassFacts(name, len(rows), error, tuple(typical.tolist()), tuple(hardest.tolist())))
        return tuple(sorted(classes, key=lambda facts: (-(facts.error or 0.0), facts.images, facts.name)))

    def list_outliers(self) -> tuple[int, ...]:
        """The images that are unlike all others, the most unusual first."""
        numbers = np.flatnonzero(find_outliers(self.isolation))
        return tuple(numbers[np.argsort(-self.isolation[numbers], kind="stable")][:MAX_OUTLIERS].tolist())

    def list_rows(self, copies: Sequence[CopyGroup]) -> Iterator[dict[str, Any]]:
        """One row of `COLUMNS` for every image, the most doubtful labels first, then for copies in other splits."""
        group_of = {number: group for group in copies for number in group.numbers}
        labels = _name_labels(self.task)
        count = len(self.task)
        order = np.argsort(self.issues.score, kind="stable").tolist()
        for number in [*order, *(number for number in group_of if number >= count)]:
            group = group_of.get(number)
            name = self.images.name(number)
            copy_names = () if group is None else (image for image in group.images if image != name)
            row: dict[str, Any] = {"image": name, "copies": " | ".join(copy_names)}
            if number < count:
                row |= {"label": labels[number], "outlier": round(float(self.isolation[number]), 4)}
                row |= self._describe_prediction(number) if self.is_judged[number] else {}
            elif group is not None:
                row["label"] = group.labels[group.numbers.index(number)]
            yield row

    def _describe_prediction(self, number: int) -> dict[str, Any]:
        classes = self.task.classes
        p = self.predicted[number]
        row: dict[str, Any] = {"label_quality": round(float(self.issues.score[number]), 4)}
        row["is_suspected"] = bool(self.issues.is_suspected[number])
        if self.task.is_multilabel:
            return row | {"predicted": ", ".join(name for name, value in zip(classes, p, strict=True) if value > 0.5)}
        return row | {"predicted": classes[int(p.argmax())], "probability": round(float(p.max()), 4)}


# --- other tasks ------------------------------------------------------------------------------------------------------


def _draw_map(embedding: Embedding) -> tuple[tuple[dict[str, Any], ...], tuple[float, float] | None]:
    """The bundled tasks with their errors, norms and places on a map, and the place of this task on it."""
    fingerprint = embedding.provenance.get("task_fingerprint")
    tasks = [task for task in list_bundled(embedding) if task.provenance.get("task_fingerprint") != fingerprint]
    if len(tasks) < 2:
        return (), None
    datasets = {info.name: info.dataset for info in bundled_metatask().tasks}
    layout = lay_out(measure_all(tasks, tasks), method="classical scaling")  # t-SNE takes as long as all the rest
    known = [
        {
            "task": task.task,
            "dataset": datasets.get(task.task),
            "error": (task.provenance.get("head") or {}).get("cv_error"),
            "norm": task.norm(),
            "place": tuple(position),
        }
        for task, position in zip(tasks, layout.positions.tolist(), strict=True)
    ]
    x, y = layout.place(measure_all([embedding], tasks))[0].tolist()
    return tuple(known), (x, y)


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
