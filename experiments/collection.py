"""Many tasks at once: those that come with the package, or a folder of the user's own.

A folder is read in one of two layouts. With a `tasks.csv` (columns dataset, taxon_level and taxon; task, n_classes and
n_images if known) each of its rows is the task of telling apart the classes of one taxon: the rows of
`<dataset>/taxonomy.csv` whose column `taxon_level` holds `taxon`, their images in `<dataset>/images/<class_dir>/`.
Without it, every folder of class folders is a task.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

import task2vec as t2v
from task2vec.errors import DataError, UsageError

# Classes of fewer images are left out of a taxon: five folds of one or two images measure nothing.
LEAST_IMAGES = 10
# Tasks of the package that have enough classes to be cut, from hard to easy.
RICH_SAMPLES = ("digits", "cluttered shapes", "colours", "textures")
RICH_IMAGES = 240

Say = Callable[[str], None]
Row = dict[str, str]


@dataclass(frozen=True)
class Member:
    """A task and the dataset that it was cut from."""

    dataset: str
    task: t2v.Task


@dataclass(frozen=True)
class Collection:
    """Tasks to compare, and those among them (or beside them) that are rich enough to be cut into smaller ones.

    Tasks that were cut by taxon come with the whole datasets, each with the place of its classes in a taxonomy.
    """

    members: tuple[Member, ...]
    rich: tuple[Member, ...]
    datasets: "tuple[Dataset, ...]" = ()

    def named(self, names: Sequence[str]) -> "Collection":
        """The same tasks, with those of the given names as the rich ones."""
        known = {member.task.name: member for member in (*self.members, *self.rich)}
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UsageError(
                f"there is no task named {unknown[0]!r} here, so there is nothing to cut. Choose among: "
                f"{', '.join(sorted(known))}."
            )
        return replace(self, rich=tuple(known[name] for name in names))


def sample_collection(*, sizes: Sequence[int] = (40, 60, 100), seed: int = 0) -> Collection:
    """The small tasks of the package, several sizes of each, and the same with half of their classes.

    Example:
        >>> collection = sample_collection(sizes=[30])
        >>> len(collection.members), [member.task.name for member in collection.rich][:2]
        (13, ['digits', 'cluttered shapes'])
    """
    members = []
    for number, size in enumerate(sizes):
        rng = np.random.default_rng([seed, number])
        for task in t2v.sample_tasks(images_per_task=size, seed=seed + number + 1):
            members.append(Member(task.name, replace(task, name=f"{task.name}, {size} images")))
            if len(task.classes) >= 4:
                kept = rng.choice(len(task.classes), len(task.classes) // 2, replace=False)
                half = task.subset(np.flatnonzero(np.isin(task.targets, kept)))
                members.append(Member(task.name, replace(half, name=f"{task.name}, {size} images, half the classes")))
    whole = {task.name: task for task in t2v.sample_tasks(images_per_task=RICH_IMAGES, seed=seed)}
    return Collection(tuple(members), tuple(Member(name, whole[name]) for name in RICH_SAMPLES))


def read_collection(folder: str | Path, *, say: Say = lambda message: None) -> Collection:
    """The tasks of a folder, in one of the two layouts that stand above.

    Args:
        folder: with a `tasks.csv`, or with one folder of class folders per task.
        say: called before each dataset is read, and with what was left out.
    """
    root = Path(folder)
    if not root.is_dir():
        raise UsageError(
            f"{folder} is {'not a folder' if root.exists() else 'not there'}, so there are no tasks to read. "
            "Name a folder with a tasks.csv, or with one folder of class folders per task: --data DIR"
        )
    if (root / "tasks.csv").exists():
        members, datasets = _read_taxa(root, say)
        return Collection(members, pick_rich(members), datasets)
    members = tuple(_read_folders(root, say))
    return Collection(members, pick_rich(members))


def pick_rich(members: Sequence[Member]) -> tuple[Member, ...]:
    """The richest task of every dataset (most images with all classes equal, then most classes), richest first."""

    def riches(member: Member) -> tuple[int, int]:
        return int(member.task.counts.min()) * len(member.task.classes), len(member.task.classes)

    best: dict[str, Member] = {}
    for member in members:
        if member.dataset not in best or riches(member) > riches(best[member.dataset]):
            best[member.dataset] = member
    return tuple(sorted(best.values(), key=riches, reverse=True))


def _read_folders(root: Path, say: Say) -> Iterator[Member]:
    """Every folder of class folders below the root; a folder of anything else is named and left out."""
    folders = _list_folders(root)
    whole = [folder for folder in folders if _list_folders(folder)]
    if not whole:
        held = "its folders hold no folders" if folders else "it holds no folder"
        raise DataError(
            f"{root} holds no folder of class folders ({held}), so there is no task in it. If its folders are the "
            f"classes of one task, name the folder above it: --data {root.resolve().parent}"
        )
    for folder in folders:
        if folder in whole:
            say(f"reading {folder.name}")
            yield Member(root.resolve().name, t2v.read_folder(folder))
        else:
            say(f"left out: {folder.name} holds no class folders")


def _list_folders(folder: Path) -> list[Path]:
    """The folders in a folder by name, hidden ones and links left out."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(
            f"{folder} cannot be listed ({error.strerror}), so its tasks are unknown. Mend its permissions."
        ) from error
    return [entry for entry in entries if entry.is_dir() and not entry.is_symlink() and entry.name[:1] != "."]


def _read_taxa(root: Path, say: Say) -> "tuple[tuple[Member, ...], tuple[Dataset, ...]]":
    """The tasks of `tasks.csv`, in its order, and the datasets that they are cut from, each read once."""
    rows = _read_rows(root / "tasks.csv", ("dataset", "taxon_level", "taxon"))
    datasets: dict[str, Dataset] = {}
    for name in dict.fromkeys(row["dataset"] for row in rows):
        say(f"reading {name}")
        whole, own = Dataset.read(root, name), [row for row in rows if row["dataset"] == name]
        levels = dict.fromkeys(row["taxon_level"] for row in own)
        columns = {
            level: whole.find_column(level, [row for row in own if row["taxon_level"] == level]) for level in levels
        }
        datasets[name] = replace(whole, columns=columns)
    members = [
        Member(row["dataset"], whole.cut(whole.columns[row["taxon_level"]], row))
        for row in rows
        for whole in [datasets[row["dataset"]]]
    ]
    return tuple(members), tuple(datasets.values())


@dataclass(frozen=True)
class Dataset:
    """All images of a dataset as one task, and the place of each class in a taxonomy.

    Attributes:
        images: the task of all classes; its name is that of the dataset.
        taxonomy: the rows of its table.
        place: of that table.
        columns: the column that each level of the tasks follows.
    """

    images: t2v.Task
    taxonomy: tuple[Row, ...]
    place: Path
    columns: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path, name: str) -> "Dataset":
        """The dataset in the folder `name` of a collection."""
        if Path(name).name != name or name.startswith("."):
            raise DataError(
                f"{root / 'tasks.csv'} names the dataset {name!r}, which is not the name of a folder beside it: "
                "nothing outside of the collection is read. Write the folder's name alone."
            )
        place = root / name / "taxonomy.csv"
        return cls(t2v.read_folder(root / name / "images", name=name), tuple(_read_rows(place, ("class_dir",))), place)

    def find_column(self, level: str, rows: Sequence[Row]) -> str:
        """The column of the taxonomy that is meant by a level: the first under which the counts of all rows are right.

        A taxonomy may hold several opinions (`order`, `order_traditional`); the counts say which one the tasks follow.
        """
        columns = [c for c in self.taxonomy[0] if c == level or c.startswith(f"{level}_")]
        if not columns:
            raise DataError(
                f"{self.place} has no column {level!r}, the taxon_level of tasks.csv, so no class can be found. "
                f"Its columns are {', '.join(self.taxonomy[0])}."
            )
        wrong = {column: [w for row in rows if (w := self._mismatch(column, row))] for column in columns}
        fitting = [column for column in columns if not wrong[column]]
        if not fitting:
            column = min(columns, key=lambda c: len(wrong[c]))
            raise DataError(
                f"tasks.csv and {self.place} do not agree: {wrong[column][0]}, so the task would be another. "
                "Correct the counts in tasks.csv, or remove n_classes and n_images."
            )
        return fitting[0]

    def cut(self, column: str, row: Row) -> t2v.Task:
        """The task of one taxon, with a warning that names the classes of too few images."""
        kept, small = self._classes(column, row["taxon"])
        numbers = [self.images.classes.index(kind) for kind in kept]
        task = self.images.subset(np.flatnonzero(np.isin(self.images.targets, numbers)))
        remarks = [f"classes of fewer than {LEAST_IMAGES} images, left out: {', '.join(small)}"] if small else []
        name = row.get("task") or f"{row['dataset']} {row['taxon']}"
        return replace(task, name=name, warnings=(*task.warnings, *remarks))

    def _classes(self, column: str, taxon: str) -> tuple[list[str], list[str]]:
        """The classes of a taxon: those with enough images, and the others."""
        wanted = [row["class_dir"] for row in self.taxonomy if row[column] == taxon]
        counts = dict(zip(self.images.classes, self.images.counts.tolist(), strict=True))
        kept = [kind for kind in wanted if counts.get(kind, 0) >= LEAST_IMAGES]
        return kept, [kind for kind in wanted if kind not in kept]

    def _mismatch(self, column: str, row: Row) -> str | None:
        """What is wrong with a row if the column is meant: too few classes, or other counts than it says."""
        kept, _ = self._classes(column, row["taxon"])
        counts = dict(zip(self.images.classes, self.images.counts.tolist(), strict=True))
        found = {"n_classes": len(kept), "n_images": sum(counts[kind] for kind in kept)}
        where = f"{row['taxon']!r} in column {column!r} has {len(kept)} classes of {LEAST_IMAGES} images or more"
        if len(kept) < 2:
            return where
        said = {key: row[key] for key in found if row.get(key)}
        return next(
            (
                f"{where} ({found['n_images']} images) and {key} is {said[key]}"
                for key in said
                if said[key] != str(found[key])
            ),
            None,
        )


def _read_rows(place: Path, wanted: Sequence[str]) -> list[Row]:
    """The rows of a CSV file that has the wanted columns."""
    try:
        with place.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True, restval="")
            rows, columns = list(reader), list(reader.fieldnames or [])
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise DataError(
            f"{place} cannot be read as CSV ({error}), so its tasks are unknown. Save it as comma-separated UTF-8 text."
        ) from error
    missing = [column for column in wanted if column not in columns]
    if missing or not rows:
        what = f"has no column {missing[0]!r}" if missing else "has no rows"
        raise DataError(
            f"{place} {what}, so no task can be made of it. It needs a header with {', '.join(wanted)}, and a row each."
        )
    return rows
