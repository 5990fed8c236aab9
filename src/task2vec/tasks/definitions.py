"""What the tasks of a published dataset are, before any image is read."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from task2vec.errors import UsageError
from task2vec.tasks.label_tables import AttributeTable, ClassTable
from task2vec.tasks.taxonomy import Taxonomy

ATTRIBUTE, ATTRIBUTE_GROUP = "attribute", "attribute group"


@dataclass(frozen=True)
class TaskDefinition:
    """A task that a catalogue can read: what is told apart, and how many images there are.

    Attributes:
        name: Unique within its kind, such as "Passeriformes".
        kind: "order", "class", "family", "category", "attribute" or "attribute group".
        classes: What is told apart; of an attribute `("not NAME", "NAME")`.
        counts: The number of images by split; of attributes, those of which they are known.
        members: Places of the classes or attributes in the catalogue's table.
        table: Which of the catalogue's tables; most have one.
        group: What it belongs to: the taxonomic class of an order, the type of an attribute.
        is_multilabel: Whether an image may have any number of the classes.
        positives: Of attributes, the number of images by split that have it; of groups, any of it. Else empty.

    Example:
        >>> ravens = TaskDefinition("Corvidae", "family", ("raven", "jay"), {"train": 60, "val": 20}, (3, 5))
        >>> ravens
        TaskDefinition(Corvidae, family, 2 classes, train 60, val 20)
        >>> ravens.total
        80
    """

    name: str
    kind: str
    classes: tuple[str, ...]
    counts: Mapping[str, int] = field(hash=False)
    members: tuple[int, ...]
    table: str = "labels"
    group: str = ""
    is_multilabel: bool = False
    positives: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        """The definition in one line."""
        images = ", ".join(f"{split} {count}" for split, count in self.counts.items())
        return f"TaskDefinition({self.name}, {self.kind}, {len(self.classes)} classes, {images})"

    @property
    def total(self) -> int:
        """The number of images of all splits."""
        return sum(self.counts.values())


@dataclass(frozen=True, eq=False)
class Splits:
    """The split of every image, as a code, and what the codes are called; the first split is the one to train on.

    Example:
        >>> splits = Splits(np.array([0, 0, 1], np.uint8), ("train", "val"))
        >>> splits.rows("val").tolist(), splits.count(np.array([0, 1]))
        ([2], {'train': 2, 'val': 0})
    """

    codes: np.ndarray
    names: tuple[str, ...]

    def rows(self, split: str | None) -> np.ndarray:
        """The rows of the images of a split; of all for None. A split that is not there is refused."""
        if split is None:
            return np.arange(len(self.codes))
        if split not in self.names:
            raise UsageError(f"there is no split {split!r}, so no image is meant. Choose one of {list(self.names)}.")
        return np.flatnonzero(self.codes == self.names.index(split))

    def count(self, rows: np.ndarray) -> dict[str, int]:
        """How many of the rows are in each split."""
        return dict(zip(self.names, np.bincount(self.codes[rows], minlength=len(self.names)).tolist(), strict=True))


def define_by_taxon(
    table: ClassTable,
    taxonomy: Taxonomy,
    splits: Splits,
    *,
    ranks: Sequence[str],
    leaf_of: Callable[[str], str] = str,
    table_name: str = "labels",
) -> tuple[TaskDefinition, ...]:
    """One task for every taxon of each rank: tell apart its classes that have images, if they are two or more.

    Within a rank, the task with the most images of the first split comes first. The group of a task is the next broader
    taxon that the taxonomy knows. Taxa of one name in two places are told apart by that group.

    Args:
        table: The class of every image.
        taxonomy: The place of every class of the table.
        splits: The split of every image.
        ranks: The kinds of tasks, such as ("order", "family"); ranks that the taxonomy does not have give none.
        leaf_of: What the taxonomy calls a class of the table, if not the same.
        table_name: What the catalogue calls the table.

    Example:
        >>> table = ClassTable(np.array([0, 0, 1, 1, 2, 3]), ("raven", "robin", "kiwi", "wren"))
        >>> passerine = ("Aves", "Passeriformes")
        >>> tree = {"raven": passerine, "robin": passerine, "kiwi": ("Aves", "Apterygiformes"), "wren": passerine}
        >>> splits = Splits(np.array([0, 1, 0, 1, 0, 0], np.uint8), ("train", "val"))
        >>> define_by_taxon(table, Taxonomy(("class", "order"), tree), splits, ranks=("order",))
        (TaskDefinition(Passeriformes, order, 3 classes, train 3, val 2),)
    """
    size = len(table.names)
    images = np.stack(
        [np.bincount(table.numbers[splits.codes == code], minlength=size) for code in range(len(splits.names))]
    )
    present = np.flatnonzero(images.sum(axis=0)).tolist()
    definitions = []
    for rank in (rank for rank in ranks if rank in taxonomy.ranks):
        level = taxonomy.ranks.index(rank)
        members: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for number in present:
            lineage = taxonomy.lineages[leaf_of(table.names[number])]
            if lineage[level]:
                members[lineage[: level + 1]].append(number)
        usable = {taxon: numbers for taxon, numbers in members.items() if len(numbers) > 1}
        above = [next((name for name in reversed(taxon[:-1]) if name), "") for taxon in usable]
        names = tell_apart([taxon[-1] for taxon in usable], above)
        found = [
            TaskDefinition(
                name,
                rank,
                tuple(table.names[number] for number in numbers),
                dict(zip(splits.names, images[:, numbers].sum(axis=1).tolist(), strict=True)),
                tuple(numbers),
                table_name,
                group,
            )
            for name, group, numbers in zip(names, above, usable.values(), strict=True)
        ]
        definitions += sorted(found, key=lambda one: (-one.counts[splits.names[0]], one.name))
    return tuple(definitions)


def define_attributes(
    table: AttributeTable, splits: Splits, *, table_name: str = "labels"
) -> tuple[TaskDefinition, ...]:
    """One binary task for every attribute, in the order of the table: does an image have it or not?

    Example:
        >>> table = AttributeTable.pack(np.array([[1, 0], [0, 0], [1, 1]], bool), ("red", "floral"))
        >>> red, floral = define_attributes(table, Splits(np.array([0, 0, 1], np.uint8), ("train", "val")))
        >>> red.classes, dict(red.counts), dict(red.positives)
        (('not red', 'red'), {'train': 2, 'val': 1}, {'train': 1, 'val': 1})
    """
    counted = [table.count(splits.rows(split)) for split in splits.names]
    positive, known = (np.stack(numbers).T.tolist() for numbers in zip(*counted, strict=True))
    return tuple(
        TaskDefinition(
            name,
            ATTRIBUTE,
            (f"not {name}", name),
            dict(zip(splits.names, known[number], strict=True)),
            (number,),
            table_name,
            group,
            positives=dict(zip(splits.names, positive[number], strict=True)),
        )
        for number, (name, group) in enumerate(zip(table.names, table.groups, strict=True))
    )


def define_groups(table: AttributeTable, splits: Splits, *, table_name: str = "labels") -> tuple[TaskDefinition, ...]:
    """One multi-label task for every named group of attributes, over the images of which all of them are known.

    Example:
        >>> values = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 0]], bool)
        >>> table = AttributeTable.pack(values, ("red", "blue", "floral"), groups=("color", "color", "pattern"))
        >>> splits = Splits(np.zeros(3, np.uint8), ("train",))
        >>> [(one.name, one.classes, dict(one.positives)) for one in define_groups(table, splits)]
        [('color', ('red', 'blue'), {'train': 2}), ('pattern', ('floral',), {'train': 1})]
    """
    definitions = []
    for group in dict.fromkeys(filter(None, table.groups)):
        members = tuple(number for number, name in enumerate(table.groups) if name == group)
        rows = table.find_known(members)
        definitions.append(
            TaskDefinition(
                group,
                ATTRIBUTE_GROUP,
                tuple(table.names[number] for number in members),
                splits.count(rows),
                members,
                table_name,
                group,
                is_multilabel=True,
                positives=splits.count(rows[table.has_any(members, rows)]),
            )
        )
    return tuple(definitions)


def tell_apart(names: Sequence[str], marks: Iterable[object]) -> list[str]:
    """The names; where several are the same, each with its mark.

    Example:
        >>> tell_apart(["Oenanthe", "Corvus", "Oenanthe"], ["birds", "birds", "parsleys"])
        ['Oenanthe (birds)', 'Corvus', 'Oenanthe (parsleys)']
    """
    times = Counter(names)
    return [f"{name} ({mark})" if times[name] > 1 else name for name, mark in zip(names, marks, strict=True)]
