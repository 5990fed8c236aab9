"""What is served, as plain values: tasks of the library and of the bundled meta-task, each in its space."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from task2vec.distance import SCALING
from task2vec.experts.metatask import MetaTask
from task2vec.library import MeasuredError
from task2vec.library.entries import EmbeddingEntry, TaskEntry
from task2vec.web.answers import Origin
from task2vec.web.ids import make_id

LIBRARY: Origin = "library"
MEASURED: Origin = "measured by us"


@dataclass(frozen=True)
class Entry:
    """A task in one space.

    Attributes:
        id: that the server issued.
        space: id of its space.
        name: of the task.
        fingerprint: of its images and their partition.
        origin: the library, or what comes with the package.
        dataset: that its images are of; of the library's tasks, the first tag.
        taxon: its place in a taxonomy, or the family that it belongs to.
        images: how many.
        classes: their names; none where they are not known.
        counts: images of each class.
        norm: of its embedding.
        head_error: of the head of its embedding.
        best_error: lowest measured error of an expert.
        made: the day it came into the library.
        key: of its embedding in the library, or the name of its space in the meta-task.
        row: of its embedding in the meta-task.
        tags: of the library.
        is_multilabel: whether an image may have any number of classes.
    """

    id: str
    space: str
    name: str
    fingerprint: str
    origin: Origin
    dataset: str | None
    taxon: str | None
    images: int
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    norm: float
    head_error: float | None
    best_error: float | None
    made: str | None
    key: str
    row: int = -1
    tags: tuple[str, ...] = ()
    is_multilabel: bool = False

    def matches(self, words: Sequence[str]) -> bool:
        """Whether each of some words, in small letters, is in its name, dataset, tags or classes."""
        texts = [self.name, self.dataset or "", self.taxon or "", *self.tags, *self.classes]
        text = "\n".join(texts).casefold()
        return all(word in text for word in words)


def name_space(probe_fingerprint: str, settings: object) -> str:
    """The id of the space of embeddings by one probe and one choice of all settings that scale."""
    told = settings if isinstance(settings, Mapping) else {}
    return make_id("s", json.dumps([probe_fingerprint, [told.get(name) for name in SCALING]]))


def list_library(tasks: Iterable[TaskEntry], errors: Iterable[MeasuredError]) -> list[Entry]:
    """One entry for every task and space; of several embeddings in one space the newest stays."""
    best, found = find_best(errors), {}
    for task in tasks:
        for one in task.embeddings:
            found[task.fingerprint, name_space(one.probe_fingerprint, one.settings)] = _tell(task, one, best)
    return list(found.values())


def _tell(task: TaskEntry, one: EmbeddingEntry, best: Mapping[str, float]) -> Entry:
    return Entry(
        id=make_id("l", one.key),
        space=name_space(one.probe_fingerprint, one.settings),
        name=task.name,
        fingerprint=task.fingerprint,
        origin=LIBRARY,
        dataset=task.tags[0] if task.tags else None,
        taxon=task.taxon,
        images=task.images,
        classes=task.classes,
        counts=task.counts,
        norm=one.norm,
        head_error=one.cv_error,
        best_error=best.get(task.fingerprint),
        made=task.added[:10],
        key=one.key,
        tags=task.tags,
        is_multilabel=task.is_multilabel,
    )


def find_best(errors: Iterable[MeasuredError]) -> dict[str, float]:
    """The lowest error of every task, by fingerprint: over experts, of the mean over seeds."""
    cells: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for error in errors:
        cells[error.task, error.expert, error.protocol].append(error.error)
    best: dict[str, float] = {}
    for (task, _, _), values in cells.items():
        mean = sum(values) / len(values)
        best[task] = min(mean, best.get(task, mean))
    return best


def list_measured(measured: MetaTask) -> list[Entry]:
    """The tasks of a meta-task in every space that it has embeddings of."""
    best = _find_measured_best(measured)
    found = []
    for name, embeddings in measured.embeddings.items():
        for row, (task, embedding) in enumerate(zip(measured.tasks, embeddings, strict=False)):
            story: dict[str, Any] = embedding.provenance
            space = name_space(embedding.probe_fingerprint, story.get("settings"))
            error = (story.get("head") or {}).get("cv_error")
            counts = tuple((story.get("counts") or {}).get("per_class") or ())
            found.append(
                Entry(
                    id=make_id("m", space, task.fingerprint),
                    space=space,
                    name=task.name,
                    fingerprint=task.fingerprint,
                    origin=MEASURED,
                    dataset=task.dataset,
                    taxon=task.family,
                    images=task.images,
                    classes=(),
                    counts=counts if len(counts) == task.classes else (0,) * task.classes,
                    norm=embedding.norm(),
                    head_error=None if error is None else float(error),
                    best_error=best[row],
                    made=None,
                    key=name,
                    row=row,
                )
            )
    return found


def _find_measured_best(measured: MetaTask) -> list[float | None]:
    """The lowest error of every task over the experts that may be chosen for it, of the last protocol (most images)."""
    means = np.where(measured.is_candidate, measured.errors[:, :, -1].mean(axis=2), np.nan)
    return [None if np.isnan(row).all() else float(np.nanmin(row)) for row in means]
