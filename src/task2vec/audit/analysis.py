"""The values of a report: what was measured, what was found among images and labels, and what changed since."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.embedding import Embedding
from task2vec.select.recommendation import Recommendation, Row
from task2vec.tasks import BadImage, Task
from task2vec.tasks.images import ChosenImages
from task2vec.text import format_percent

if TYPE_CHECKING:
    from task2vec.select.learning_curve import LearningCurve

# What the images of a group have in common; the first two kinds are one picture.
EXACT, COPY, SCENE, ALIKE = "exact", "copy", "scene", "alike"
ADVICE = {
    EXACT: "The same pixels. Keep one.",
    COPY: "One picture, saved differently. Keep one.",
    SCENE: "Different pictures of one scene. Keep them in one split; delete nothing.",
    ALIKE: "Different pictures that look alike. Worth a look; nothing follows from it.",
}
# The check of `--fail-on` that finds each kind of finding.
COPIES, LEAKS, LABELS = CHECKS = ("copies", "leaks", "labels")


@dataclass(frozen=True)
class LabelIssue:
    """An image whose label may be wrong.

    Attributes:
        image: its name.
        label: its label; for attributes, which one is in question, and its value.
        suggested: the label that models fitted without the image suggest.
        score: how far the suggestion is ahead of the label; the largest come first.
        is_lookalike: whether the two classes are hard to tell apart here, so that the label may well be right.
        number: of the image, see `TaskReport.images`.
    """

    image: str
    label: str
    suggested: str
    score: float
    is_lookalike: bool
    number: int


@dataclass(frozen=True)
class CopyGroup:
    """Images that show the same thing.

    Attributes:
        kind: "exact", "copy", "scene" or "alike"; see `ADVICE`.
        images: their names.
        labels: of each.
        splits: of each; empty for the task itself.
        numbers: of the images, see `TaskReport.images`.
    """

    kind: str
    images: tuple[str, ...]
    labels: tuple[str, ...]
    splits: tuple[str, ...]
    numbers: tuple[int, ...]

    @property
    def is_copy(self) -> bool:
        """Whether the images are one picture."""
        return self.kind in (EXACT, COPY)

    @property
    def is_leak(self) -> bool:
        """Whether images of different splits show the same thing, so that a test image was trained on."""
        return len(set(self.splits)) > 1 and self.kind != ALIKE

    @property
    def has_conflict(self) -> bool:
        """Whether one picture has different labels."""
        return len(set(self.labels)) > 1 and self.is_copy

    @property
    def advice(self) -> str:
        """What to do with the images."""
        if self.is_leak and self.is_copy:
            return "One picture in two splits. Remove it from one of them."
        if self.has_conflict:
            return "One picture with different labels. Decide which is right, then keep one."
        return ADVICE[self.kind]


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
class Confusion:
    """How many images of a class are taken for another one, on average over repetitions, and the share of them."""

    label: str
    predicted: str
    images: float
    share: float


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


@dataclass(frozen=True)
class Finding:
    """A finding of this report or of an earlier one, to be named: its kind, the images, and their labels."""

    kind: str
    images: tuple[str, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Changes:
    """What changed since an earlier report.

    Attributes:
        since: when that report was made.
        new: findings that it did not have.
        solved: findings that only it has.
        images: judged images that both reports have.
        error: how much higher the error on these images is now, and earlier than that; None if other models measured.
        low: lower end of the 95% interval of that difference.
        high: upper end.
    """

    since: str
    new: tuple[Finding, ...]
    solved: tuple[Finding, ...]
    images: int
    error: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Suggestion:
    """Something to do next, the evidence for it, and the command that does it."""

    text: str
    evidence: str
    command: str


@dataclass(frozen=True, repr=False, eq=False)
class Analysis:
    """The values of a report.

    Attributes:
        task: the task, in its canonical order.
        splits: names of the splits that its images were compared with.
        model: the model that measured it, with its error and interval; the error is None if no image can be judged,
            because every class has one image, or copies of one.
        judged: how many images the error is measured on.
        size: side of the images in pixels, as the model sees them.
        learning_curve: errors with fewer training images; None for few images.
        label_issues: suspected label errors, the worst first.
        expected: the share of them that are probably wrong; None without any.
        copies: groups of images that show the same thing, leaks between splits first.
        unseen: which copies cannot be seen in this set, a sentence each.
        confused: which classes are taken for which, the most images first.
        classes: the hardest first.
        outliers: numbers of images that are unlike all others, the most unusual first.
        embedding: of the task, if the library has one.
        neighbours: nearest known tasks, if the task was embedded.
        recommendation: models that were measured on the task, by this report or before, then those to measure next.
        notes: remarks on the task and on the report itself.
        images: all images that numbers refer to: those of the task, then those of the other splits.
        sizes: (n, 2) width and height of the images of the task.
        table: image, label, prediction, doubt, loss and digest of every image.
        bad: images that could not be read, of all splits.
        made: when, in UTC.
        version: of task2vec.
        embed_command: what adds the embedding of the task to the library.
        changes: what changed since an earlier report, if one was named.
        suggestions: what to do next.
    """

    task: Task
    splits: tuple[str, ...]
    model: Row
    judged: int
    size: int
    learning_curve: "LearningCurve | None"
    label_issues: tuple[LabelIssue, ...]
    expected: float | None
    copies: tuple[CopyGroup, ...]
    unseen: tuple[str, ...]
    confused: tuple[Confusion, ...]
    classes: tuple[ClassFacts, ...]
    outliers: tuple[int, ...]
    embedding: Embedding | None
    neighbours: tuple[NearTask, ...]
    recommendation: Recommendation
    notes: tuple[str, ...]
    images: ChosenImages
    sizes: np.ndarray
    table: tuple[dict[str, Any], ...]
    bad: tuple[BadImage, ...]
    made: str
    version: str
    embed_command: str
    changes: Changes | None = None
    suggestions: tuple[Suggestion, ...] = ()

    @property
    def checks(self) -> dict[str, int]:
        """How many groups of copies, leaks between splits, and suspected labels there are."""
        copies = sum(group.is_copy and not group.is_leak for group in self.copies)
        return {COPIES: copies, LEAKS: sum(group.is_leak for group in self.copies), LABELS: len(self.label_issues)}

    @cached_property
    def formats(self) -> dict[str, int]:
        """How many images have which suffix; none for images in memory."""
        suffixes = (Path(self.images.name(number)).suffix.lower() for number in range(len(self.task)))
        return dict(Counter(suffix[1:] for suffix in suffixes if suffix).most_common())

    @property
    def beats_chance(self) -> bool | None:
        """Whether the interval of the error is below the error of guessing the largest class; None if not known."""
        if self.model.high is None:
            return None
        chance = 0.5 if self.task.is_multilabel else 1 - self.task.counts.max() / len(self.task)
        return bool(self.model.high < chance)

    def format_interval(self) -> str:
        """The interval of the error in words, or why there is none."""
        if self.model.low is None or self.model.high is None:
            return "cannot be measured: every class has only one image, or copies of one"
        if self.model.error == 0:
            return f"none of {self.judged} images; 95% interval: up to {format_percent(self.model.high)}"
        return f"95% interval {100 * self.model.low:.1f} to {format_percent(self.model.high)}"

    def format_precision(self) -> str:
        """How many of the suspected labels are probably wrong, in words."""
        count = len(self.label_issues)
        if self.expected is None or not count:
            return "none is suspected"
        return f"about {max(1, round(self.expected * count))} of these {count} are probably wrong"
