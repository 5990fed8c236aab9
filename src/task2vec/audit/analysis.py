"""What is known about a task after its images, labels and neighbours were analysed: the values of a report."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.audit.labels import ConfusedPair
from task2vec.embedding import Embedding
from task2vec.experts.protocol import Score
from task2vec.select.recommendation import Recommendation
from task2vec.tasks import BadImage, Images, Task
from task2vec.text import format_percent


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
class Analysis:
    """The values of a report.

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
    notes: tuple[str, ...]
    images: Images
    sizes: np.ndarray
    table: tuple[dict[str, Any], ...]
    bad: tuple[BadImage, ...]

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
        value = (self.error and self.error.error) if key == "error" else self.embedding.norm()
        return [task[key] for task in self.known if task[key] is not None], value

    def rank(self, key: str) -> float | None:
        """The fraction of the known tasks whose "error" or "norm" is below that of this task; None without any."""
        known, value = self.compare(key)
        return float(np.mean(np.array(known) < value)) if known and value is not None else None

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
