"""A published dataset by its own annotation files: every task in it, and no image opened before a task is read.

A reader (`read_inaturalist`, ...) parses the annotations into a `Catalog`; a task is read from it by name. Only then
are its files read, hashed and decoded, as those of any folder are. Draws are seeded, and the same whatever else was
drawn before; a draw of 2,000 images contains the draw of 500 with the same seed.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from task2vec.errors import BadImagesError, DataError, TooFewClassesError, UsageError
from task2vec.tasks.images import StoredImages, inspect_images, open_files
from task2vec.tasks.sampling import make_rng, rank_within
from task2vec.tasks.task import Task, drop_empty, make_task
from task2vec.tasks.taxonomy import Taxonomy
from task2vec.text import quote


@dataclass(frozen=True)
class TaskDefinition:
    """A task that a catalog can read: its classes, and the number of its images.

    Attributes:
        name: Unique within its kind, such as "Passeriformes".
        kind: "order", "class", "family", "category", "attribute" or "attribute group".
        classes: The classes; of an attribute `("not NAME", "NAME")`.
        counts: The number of images by split; of attributes, those for which they are known.
        members: The indices of the classes or attributes in the catalog's table, ascending.
        table: Which of the catalog's tables; most have one.
        group: What it belongs to: the taxonomic class of an order, the type of an attribute.
        is_multilabel: Whether an image may have any number of the classes.
        positives: Of attributes, the number of images by split that have it; of groups, any of it. Else empty.

    Example:
        >>> ravens = TaskDefinition("Corvidae", "family", ("raven", "jay"), {"train": 60, "val": 20}, (3, 5))
        >>> ravens
        TaskDefinition(Corvidae, family, 2 classes, train 60, val 20)
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


# The rows of the images of each split; the first split is the training set.
Splits = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class LabelTable:
    """The labels of all images: one class each, or many attributes.

    Attributes:
        values: (images,) the index of each image's class in `names`; or (images, attributes) int8: 1 positive, 0
            negative, -1 unknown.
        names: The classes or attributes.
        groups: What each attribute belongs to, such as "color"; "" for nothing.
    """

    values: np.ndarray
    names: tuple[str, ...]
    groups: tuple[str, ...] = ()

    def select(self, definition: TaskDefinition, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows that belong to the definition (all of its attributes are known), and their labels."""
        members = list(definition.members)
        if self.values.ndim == 1:
            rows = rows[np.isin(self.values[rows], members)]
            return rows, np.searchsorted(members, self.values[rows])
        values = self.values[rows[:, None], members]
        is_known = (values >= 0).all(axis=1)
        labels = values[is_known].astype(np.uint8) if definition.is_multilabel else values[is_known, 0].astype(np.int64)
        return rows[is_known], labels


@dataclass(frozen=True, eq=False, repr=False)
class Catalog:
    """The images, labels, splits and tasks of a published dataset; print it for a summary.

    Attributes:
        name: The names of its tasks begin with it.
        root: The folder that the paths begin in.
        paths: The path of every image below the root.
        splits: The rows of the images of every split, the training set first.
        tables: The labels of every image, by the name of the table; most datasets have one, "labels".
        definitions: The tasks.
        sources: The annotation files that were read.
        taxonomy: The tree above the classes, where the dataset has one.
        warnings: What looks odd in the annotations and was accepted.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> table = LabelTable(np.array([[1], [0], [1], [0]], np.int8), ("red",), ("",))
        >>> splits = {"train": np.arange(3), "val": np.array([3])}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     paths = [f"{number}.png" for number in range(4)]
        ...     for number, path in enumerate(paths):
        ...         Image.new("RGB", (8, 8), (60 * number, 0, 0)).save(Path(folder, path))
        ...     definitions = define_attributes(table, splits)
        ...     dresses = Catalog("dresses", Path(folder), paths, splits, {"labels": table}, definitions)
        ...     task = dresses.task("red", split="train")
        >>> dresses
        Catalog(dresses, 4 images, train and val, tasks: 1 attribute)
        >>> task, task.classes
        (Task(dresses: red (train), 3 images, 2 classes), ('not red', 'red'))
    """

    name: str
    root: Path
    paths: Sequence[str]
    splits: Splits
    tables: Mapping[str, LabelTable]
    definitions: tuple[TaskDefinition, ...]
    sources: tuple[str, ...] = ()
    taxonomy: Taxonomy | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self):
        """Refuse parts that do not fit each other, so that no reader can shift a label."""
        object.__setattr__(self, "root", Path(os.path.realpath(self.root)))
        lengths = {len(table.values) for table in self.tables.values()}
        assert {len(self)} == lengths | {sum(map(len, self.splits.values()))}
        tasks = [(definition.kind, definition.name) for definition in self.definitions]
        for noun, names in (("path", self.paths), ("task", tasks)):
            if len(set(names)) < len(names):
                name, times = Counter(names).most_common(1)[0]
                raise damaged(", ".join(self.sources) or self.name, f"it has the {noun} {name!r} {times} times")

    def __len__(self) -> int:
        """The number of images."""
        return len(self.paths)

    def __repr__(self) -> str:
        """The catalog in one line."""
        counts = Counter(definition.kind for definition in self.definitions)
        kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        return f"Catalog({self.name}, {len(self)} images, {' and '.join(self.splits)}, tasks: {kinds})"

    def rows(self, split: str | None) -> np.ndarray:
        """The rows of the images of a split; of all for None."""
        if split is None:
            return np.arange(len(self))
        if split not in self.splits:
            raise UsageError(f"there is no split {split!r}. Choose one of {list(self.splits)}.")
        return self.splits[split]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its tasks."""
        return tuple(dict.fromkeys(definition.kind for definition in self.definitions))

    def of_kind(self, kind: str) -> tuple[TaskDefinition, ...]:
        """All tasks of a kind, in the order of the reader."""
        if kind not in self.kinds:
            raise UsageError(f"{self.name} has no tasks of kind {kind!r}. Choose one of {list(self.kinds)}.")
        return tuple(definition for definition in self.definitions if definition.kind == kind)

    def find(self, name: str | TaskDefinition, kind: str | None = None) -> TaskDefinition:
        """The definition of that name; if none or several have it, it is refused with suggestions.

        Args:
            name: The name as in `definitions`.
            kind: The kind of task, where several have the name.
        """
        if isinstance(name, TaskDefinition):
            if name not in self.definitions:
                raise UsageError(f"{name} is not in {self.name}. Use a definition of this catalog.")
            return name
        candidates = self.definitions if kind is None else self.of_kind(kind)
        matches = [definition for definition in candidates if definition.name == name]
        if len(matches) != 1:
            lowered = {definition.name.lower(): definition.name for definition in candidates}
            close = [lowered[match] for match in get_close_matches(str(name).lower(), lowered, n=5)]
            kinds = list(dict.fromkeys(definition.kind for definition in matches or candidates))
            hint = f" Did you mean {quote(close)}?" if close else ""
            raise UsageError(
                f"{self.name} has {len(matches) or 'no'} tasks {name!r} among {len(candidates)} of the kinds {kinds} "
                f"(kind=, --kind).{hint} To list them: task2vec tasks {self.root}"
            )
        return matches[0]

    def name_task(self, name: str, split: str | None = None) -> str:
        """The name of a task once it is read: the catalog, the definition, and the split if there is one."""
        return f"{self.name}: {name}{'' if split is None else f' ({split})'}"

    def task(
        self,
        name: str | TaskDefinition,
        *,
        kind: str | None = None,
        split: str | None = None,
        images: int | None = None,
        seed: int = 0,
        allow_bad: bool = False,
    ) -> Task:
        """One task, by its name or definition; the arguments are those of `tasks`."""
        return self.tasks([self.find(name, kind)], split=split, images=images, seed=seed, allow_bad=allow_bad)[0]

    def tasks(
        self,
        names: Sequence[str | TaskDefinition] | None = None,
        *,
        kind: str | None = None,
        split: str | None = None,
        images: int | None = None,
        seed: int = 0,
        allow_bad: bool = False,
        num_workers: int | None = None,
        progress: bool = False,
    ) -> list[Task]:
        """Several tasks; a file that they share is read, hashed and decoded once.

        Tasks by class are drawn one by one, `images` for each, every class its equal share as far as it has images.
        Tasks by attribute share one draw of `images`, so that all of them can be embedded in the same passes: every
        attribute, the rarest first, gets up to 10 positive and 10 negative images, and random ones fill the rest. The
        task of an attribute then consists of the drawn images for which it is known.

        Args:
            names: A list of names or definitions; all, or all of the kind, if not given.
            kind: The kind of tasks; needed where several have a name.
            split: The images of one split, such as "train"; of all if not given.
            images: Draw that many without replacement; all if not given.
            seed: Another seed draws other images.
            allow_bad: Continue if more than 5% of the images cannot be read.
            num_workers: Threads that decode; by default chosen from the number of CPU cores. The tasks are the same.
            progress: Show a progress bar when reading takes longer than two seconds.

        Raises:
            BadImagesError: More than 5% of the images of some task cannot be read, and `allow_bad` is false; all such
                tasks are named, and no task is returned.
            TooFewClassesError: Some of the tasks have fewer than two classes in the split or draw; all of them are
                named, and it holds their definitions.
            UsageError: There is no such task or split.
        """
        if images is not None and images < 2:
            raise UsageError(f"images={images} (--max-images) must be 2 or more: every task has two classes.")
        candidates = self.definitions if kind is None else self.of_kind(kind)
        definitions = candidates if names is None else [self.find(name, kind) for name in names]
        chosen = [
            (definition, rows, *drop_empty(labels, definition.classes))
            for definition, rows, labels in self._draw(definitions, self.rows(split), images, seed)
        ]
        fewest = {definition: 1 if definition.is_multilabel else 2 for definition, *_ in chosen}
        lacking = tuple(definition for definition, _, _, classes, _ in chosen if len(classes) < fewest[definition])
        if lacking:
            drawn_from = f"split {split!r}" if split else "the images drawn"
            raise TooFewClassesError(
                f"{self.name}: {len(lacking)} of {len(chosen)} tasks have fewer than two classes with images in "
                f"{drawn_from} ({quote([definition.name for definition in lacking])}). Leave them out, or use more "
                "images or another split (`task2vec tasks` shows how many there are).",
                lacking,
            )
        all_rows = sorted({row for _, rows, *_ in chosen for row in rows.tolist()})
        inspected = inspect_images(self._open(all_rows), name=self.name, num_workers=num_workers, progress=progress)
        outcomes = dict(zip(all_rows, inspected, strict=True))
        source = ", ".join(self.sources) or str(self.root)
        if split or images:
            drawn = f"up to {images} images drawn with seed {seed}" if images else ""
            source += "; " + ", ".join(filter(None, (split and f"split {split}", drawn)))
        tasks = []
        failed: dict[str, BadImagesError] = {}
        for definition, rows, labels, classes, notes in chosen:
            try:
                about = (classes, self.name_task(definition.name, split), source, notes)
                inspected = [outcomes[row] for row in rows]
                tasks.append(make_task(self._open(rows), labels, *about, outcomes=inspected, allow_bad=allow_bad))
            except BadImagesError as error:
                failed[definition.name] = error
        if failed:
            name, first = next(iter(failed.items()))
            if len(chosen) == 1:
                raise first
            raise BadImagesError(
                f"{self.name}: {len(failed)} of {len(chosen)} tasks have too many images that cannot be read "
                f"({quote(list(failed), 20)}). Leave these tasks out to read the others. The first, {name!r}: {first}",
                tuple(dict.fromkeys(image for error in failed.values() for image in error.bad)),
                tuple(failed),
            )
        return tasks

    def _open(self, rows: Iterable[int]) -> StoredImages:
        return open_files(self.root, [str(self.paths[row]) for row in rows])

    def _draw(
        self, definitions: Sequence[TaskDefinition], rows: np.ndarray, images: int | None, seed: int
    ) -> Iterator[tuple[TaskDefinition, np.ndarray, np.ndarray]]:
        """Every task with its rows, chosen among `rows`, and their labels."""
        common = {}  # the rows that all attributes of a table share
        for name, table in self.tables.items():
            in_table = [definition for definition in definitions if definition.table == name]
            members = {member for definition in in_table for member in definition.members}
            if images is not None and table.values.ndim == 2 and members:
                shuffled = rows[make_rng(seed, f"{name}/attributes").permutation(len(rows))]
                chosen = draw_for_attributes(table.values[shuffled], sorted(members), images=images)
                common[name] = np.sort(shuffled[chosen])
        for definition in definitions:
            table = definition.table
            selected, labels = self.tables[table].select(definition, common.get(table, rows))
            if images is not None and table not in common:
                rng = make_rng(seed, f"{table}/{definition.kind}/{definition.name}")
                chosen = draw_by_class(labels, images, rng)
                selected, labels = selected[chosen], labels[chosen]
            yield definition, selected, labels


def draw_by_class(labels: np.ndarray, images: int, rng: np.random.Generator) -> np.ndarray:
    """The indices of `images` labels, ascending: every class gets the same number as far as it has them.

    Example:
        >>> labels = np.array([0] * 50 + [1] * 50 + [2] * 3)
        >>> chosen = draw_by_class(labels, 23, make_rng(0, "birds"))
        >>> np.bincount(labels[chosen]).tolist()
        [10, 10, 3]
    """
    if images >= len(labels):
        return np.arange(len(labels))
    order = rng.permutation(len(labels))
    classes = rng.permutation(int(labels.max()) + 1)
    # The rank of every image within its class: the first image of each class comes before all second ones, and so on.
    rank = rank_within(labels[order])[np.argsort(order)]
    turn = np.argsort(classes)[labels]
    return np.sort(np.lexsort((turn, rank))[:images])


def draw_for_attributes(values: np.ndarray, numbers: Sequence[int], *, images: int, least: int = 10) -> np.ndarray:
    """A mask of images to use for all attributes, from the front; shuffle the rows of `values` before.

    Every attribute, the rarest first, gets up to `least` positive and `least` negative images; the first ones fill the
    rest.

    Args:
        values: (images, attributes) 1, 0, or -1 for unknown.
        numbers: The attributes to draw for.
        images: How many to choose.
        least: The positive and negative images that every attribute should have.

    Example:
        >>> values = np.zeros((1000, 2), np.int8)
        >>> values[-4:, 0] = values[::2, 1] = 1
        >>> np.flatnonzero(draw_for_attributes(values, [0, 1], images=20, least=3)).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 996, 997, 998]
    """
    rarity = np.minimum((values == 1).sum(axis=0), (values == 0).sum(axis=0))
    is_chosen = np.zeros(len(values), bool)
    left = images
    for number in sorted(numbers, key=rarity.__getitem__):
        for wanted in (1, 0):
            matches = values[:, number] == wanted
            lacking = min(left, least - int((matches & is_chosen).sum()))
            if lacking > 0:
                added = np.flatnonzero(matches & ~is_chosen)[:lacking]
                is_chosen[added] = True
                left -= len(added)
    is_chosen[np.flatnonzero(~is_chosen)[: max(left, 0)]] = True
    return is_chosen


# --- definitions -----------------------------------------------------------------------------------------------------


def define_by_taxon(
    table: LabelTable, taxonomy: Taxonomy, splits: Splits, *, ranks: Sequence[str], table_name: str = "labels"
) -> tuple[TaskDefinition, ...]:
    """One task for every taxon of each rank, between its classes that have images, if they are two or more.

    Within a rank, the task with the most training images comes first. The group of a task is the next broader taxon of
    the taxonomy; it distinguishes taxa of one name. Ranks that the taxonomy does not have give no task.

    Example:
        >>> table = LabelTable(np.array([0, 0, 1, 1, 2, 3]), ("raven", "robin", "kiwi", "wren"))
        >>> passerine = ("Aves", "Passeriformes")
        >>> tree = {"raven": passerine, "robin": passerine, "kiwi": ("Aves", "Apterygiformes"), "wren": passerine}
        >>> splits = {"train": np.array([0, 2, 4, 5]), "val": np.array([1, 3])}
        >>> define_by_taxon(table, Taxonomy(("class", "order"), tree), splits, ranks=("order",))
        (TaskDefinition(Passeriformes, order, 3 classes, train 3, val 2),)
    """
    images = {split: np.bincount(table.values[rows], minlength=len(table.names)) for split, rows in splits.items()}
    present = np.unique(table.values)
    definitions = []
    for rank in (rank for rank in ranks if rank in taxonomy.ranks):
        taxa = taxonomy.group([table.names[number] for number in present], rank)
        usable = {taxon: present[places] for taxon, places in taxa.items() if taxon and len(places) > 1}
        above = [next((name for name in reversed(taxon[:-1]) if name), "") for taxon in usable]
        names = deduplicate_names([taxon[-1] for taxon in usable], above)
        of_rank = []
        for name, group, numbers in zip(names, above, usable.values(), strict=True):
            classes = tuple(table.names[number] for number in numbers)
            counts = {split: int(count[numbers].sum()) for split, count in images.items()}
            of_rank.append(TaskDefinition(name, rank, classes, counts, tuple(numbers.tolist()), table_name, group))
        definitions += sorted(of_rank, key=lambda task: (-next(iter(task.counts.values())), task.name))
    return tuple(definitions)


def define_attributes(table: LabelTable, splits: Splits) -> tuple[TaskDefinition, ...]:
    """One binary task for every attribute, and one multi-label task for every named group of attributes.

    The images of a group are those for which all of its attributes are known.

    Example:
        >>> values = np.array([[1, 0, 1], [0, -1, 0], [1, 1, 0]], np.int8)
        >>> table = LabelTable(values, ("red", "blue", "floral"), groups=("color", "color", ""))
        >>> splits = {"train": np.array([0, 1]), "val": np.array([2])}
        >>> for task in define_attributes(table, splits):
        ...     print(task.kind, task.classes, task.counts, task.positives)
        attribute ('not red', 'red') {'train': 2, 'val': 1} {'train': 1, 'val': 1}
        attribute ('not blue', 'blue') {'train': 1, 'val': 1} {'train': 0, 'val': 1}
        attribute ('not floral', 'floral') {'train': 2, 'val': 1} {'train': 1, 'val': 0}
        attribute group ('red', 'blue') {'train': 1, 'val': 1} {'train': 1, 'val': 1}
    """

    def count(has: np.ndarray) -> list[dict[str, int]]:
        """Of every column of a mask, the number of images by split."""
        counts = [np.count_nonzero(has[rows], axis=0).tolist() for rows in splits.values()]
        return [dict(zip(splits, column, strict=True)) for column in zip(*counts, strict=True)]

    known, positive = (count(table.values >= least) for least in (0, 1))
    definitions = [
        TaskDefinition(name, "attribute", (f"not {name}", name), known[n], (n,), group=group, positives=positive[n])
        for n, (name, group) in enumerate(zip(table.names, table.groups, strict=True))
    ]
    for group in dict.fromkeys(filter(None, table.groups)):
        members = tuple(number for number, name in enumerate(table.groups) if name == group)
        values = table.values[:, members]
        classes = tuple(table.names[number] for number in members)
        is_known = (values >= 0).all(axis=1)
        counts, positives = count(np.stack([is_known, is_known & (values == 1).any(axis=1)], axis=1))
        about = {"group": group, "is_multilabel": True, "positives": positives}
        definitions.append(TaskDefinition(group, "attribute group", classes, counts, members, **about))
    return tuple(definitions)


def damaged(location: object, problem: str) -> DataError:
    """The error for an annotation file that is not as published."""
    return DataError(f"{location}: {problem}, so labels would be wrong or missing. Use the published file, unchanged.")


def deduplicate_names(names: Sequence[str], marks: Iterable[object]) -> list[str]:
    """The names; where several are the same, each with its mark.

    Example:
        >>> deduplicate_names(["Oenanthe", "Corvus", "Oenanthe"], ["birds", "birds", "parsleys"])
        ['Oenanthe (birds)', 'Corvus', 'Oenanthe (parsleys)']
    """
    times = Counter(names)
    return [f"{name} ({mark})" if times[name] > 1 else name for name, mark in zip(names, marks, strict=True)]
