"""The images of one task of a catalogue: its rows and labels, all of them or a draw."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from task2vec.errors import NothingToTellError, UsageError
from task2vec.tasks.check import count_images, quote
from task2vec.tasks.definitions import TaskDefinition
from task2vec.tasks.drawing import draw_by_class, make_rng, take_for_attributes
from task2vec.tasks.label_tables import AttributeTable, ClassTable, LabelTable


@dataclass(frozen=True)
class Draw:
    """How many images (None for all), by which seed, what every attribute should have of either kind, of which split.

    Example:
        >>> Draw(500, seed=3, split="train").tell()
        'split train, up to 500 images drawn by seed 3'
    """

    images: int | None = None
    seed: int = 0
    least: int = 10
    split: str | None = None

    def __post_init__(self):
        """Refuse numbers that cannot be meant."""
        if self.images is not None:
            _check_number("images", self.images, fewest=2, option=" (--draw)")
        _check_number("least", self.least, fewest=0)

    def tell(self) -> str:
        """What makes it less than all images, in words; nothing where they are all."""
        drawn = "" if self.images is None else f"up to {self.images} images drawn by seed {self.seed}"
        return ", ".join(filter(None, (self.split and f"split {self.split}", drawn)))


@dataclass(frozen=True)
class Choice:
    """The images of a task: their rows in the catalogue, ascending, and the label of each."""

    definition: TaskDefinition
    rows: np.ndarray
    labels: np.ndarray


def select(table: LabelTable, definition: TaskDefinition, among: np.ndarray) -> Choice:
    """All images of the task among the rows given, which ascend."""
    if isinstance(table, ClassTable) or definition.is_multilabel:
        return Choice(definition, *table.select(definition.members, among))
    labels = table.column(definition.members[0], among).astype(np.int64)
    is_known = labels >= 0  # an unknown attribute is neither class
    return Choice(definition, among[is_known], labels[is_known])


def choose(table: LabelTable, definition: TaskDefinition, among: np.ndarray, draw: Draw) -> Choice:
    """The images of the task among the rows given, drawn for it alone."""
    choice = select(table, definition, among)
    if draw.images is None or not len(choice.rows):
        return choice
    if definition.is_multilabel:
        return select(table, definition, draw_together(table, [definition], choice.rows, draw))
    rng = make_rng(draw.seed, f"{definition.table}/{definition.kind}/{definition.name}")
    chosen = draw_by_class(choice.labels, draw.images, rng)
    return Choice(definition, choice.rows[chosen], choice.labels[chosen])


def draw_together(
    table: LabelTable, definitions: Sequence[TaskDefinition], among: np.ndarray, draw: Draw
) -> np.ndarray:
    """The rows that tasks of one table of attributes share."""
    if draw.images is None or not isinstance(table, AttributeTable):
        return among
    positive, known = table.count(among)
    rarity = np.minimum(positive, known - positive)
    numbers = sorted({number for one in definitions for number in one.members})
    shuffled = among[make_rng(draw.seed, f"{definitions[0].table}/attributes").permutation(len(among))]
    rarest_first = sorted(numbers, key=rarity.__getitem__)
    is_chosen = take_for_attributes(
        table.columns(shuffled), rarest_first, total=len(among), images=draw.images, least=draw.least
    )
    return np.sort(shuffled[is_chosen])


def settle(choice: Choice) -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]] | None:
    """Labels, classes and warnings after what has no image is left out; None if nothing is left to tell apart."""
    classes, labels = choice.definition.classes, choice.labels
    counts = count_images(labels, len(classes))
    is_kept = (counts > 0) & (counts < len(labels)) if labels.ndim == 2 else counts > 0
    kept = np.flatnonzero(is_kept)
    if len(kept) < (1 if labels.ndim == 2 else 2):
        return None
    absent = [classes[number] for number in np.flatnonzero(~is_kept)]
    what = "attributes with one value for all images" if labels.ndim == 2 else "classes without an image"
    remarks = (f"{what}, left out: {len(absent)}, such as {quote(absent, 3)}",) if absent else ()
    labels = labels[:, kept] if labels.ndim == 2 else np.searchsorted(kept, labels)
    return labels, tuple(classes[number] for number in kept), remarks


def tell_hopeless(name: str, hopeless: tuple[TaskDefinition, ...], asked: int, split: str | None) -> NothingToTellError:
    """The error of all tasks of a call that have fewer than two classes."""
    where = f"split {split!r}" if split else "the images drawn"
    return NothingToTellError(
        f"{name}: {len(hopeless)} of {asked} tasks have fewer than two classes with images in {where} "
        f"({quote([one.name for one in hopeless])}): there is nothing to tell apart. Leave them out, or take more "
        "images or another split (`task2vec tasks`, or a definition's counts and positives, tell how many there are).",
        hopeless,
    )


def _check_number(name: str, value: object, *, fewest: int, option: str = "") -> None:
    """Raise `UsageError` unless the value is a whole number that is large enough."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < fewest:
        raise UsageError(f"{name}={value!r}{option} draws no task. Give a whole number, {fewest} or more.")
