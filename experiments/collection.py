"""Many tasks at once: those of a folder of datasets with taxonomies.

A folder has a `tasks.csv` (columns dataset, taxon_level and taxon; task, n_classes and n_images if known). Each of its
rows is the task of the classes of one taxon: the rows of `<dataset>/taxonomy.csv` whose column `taxon_level` holds
`taxon`, their images in `<dataset>/images/<class_dir>/`.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import task2vec as t2v
from experiments.report import say
from task2vec.errors import DataError

# Classes of fewer images are left out of a taxon: five folds of one or two images measure nothing.
MIN_IMAGES = 10
Record = dict[str, str]


@dataclass(frozen=True)
class Member:
    """A task and the dataset that it is a part of."""

    dataset: str
    task: t2v.Task


@dataclass(frozen=True)
class Dataset:
    """All images of a dataset as one task, and the place of each class in a taxonomy.

    Attributes:
        images: the task of all classes; its name is that of the dataset.
        taxonomy: the rows of its table.
        path: of that table.
        columns: the column that each level of the tasks follows.
    """

    images: t2v.Task
    taxonomy: tuple[Record, ...]
    path: Path
    columns: dict[str, str] = field(default_factory=dict)

    def find_column(self, level: str, rows: Sequence[Record]) -> str:
        """The column of the taxonomy that a level means: the first under which the counts of all rows are right.

        A taxonomy may have several versions of a rank (`order`, `order_traditional`); the counts decide.
        """
        columns = [column for column in self.taxonomy[0] if column == level or column.startswith(f"{level}_")]
        wrong = {column: [w for row in rows if (w := self._find_mismatch(column, row))] for column in columns}
        fitting = [column for column in columns if not wrong[column]]
        if not fitting:
            reason = wrong[columns[0]][0] if columns else f"there is no column {level!r}"
            raise DataError(
                f"tasks.csv and {self.path} do not agree: {reason}, so the task would be another. Correct tasks.csv, "
                "or remove n_classes and n_images."
            )
        return fitting[0]

    def cut(self, row: Record) -> t2v.Task:
        """The task of one taxon, with a warning that names the classes of too few images."""
        kept, small = self._find_classes(self.columns[row["taxon_level"]], row["taxon"])
        task = self.images.select(kept, name=row.get("task") or f"{row['dataset']} {row['taxon']}")
        notes = [f"classes of fewer than {MIN_IMAGES} images, left out: {', '.join(small)}"] if small else []
        return replace(task, notes=(*task.notes, *notes))

    def _find_classes(self, column: str, taxon: str) -> tuple[list[str], list[str]]:
        """The classes of a taxon: those with enough images, and the others."""
        wanted = [row["class_dir"] for row in self.taxonomy if row[column] == taxon]
        counts = dict(zip(self.images.classes, self.images.counts.tolist(), strict=True))
        kept = [name for name in wanted if counts.get(name, 0) >= MIN_IMAGES]
        return kept, [name for name in wanted if name not in kept]

    def _find_mismatch(self, column: str, row: Record) -> str | None:
        """What is wrong with a row if this column is meant: too few classes, or other counts."""
        kept, _ = self._find_classes(column, row["taxon"])
        counts = dict(zip(self.images.classes, self.images.counts.tolist(), strict=True))
        found = {"n_classes": len(kept), "n_images": sum(counts[name] for name in kept)}
        given = {key: row[key] for key in found if row.get(key)}
        if len(kept) >= 2 and all(given[key] == str(found[key]) for key in given):
            return None
        return f"{row['taxon']!r} in column {column!r} has {found}, and the row has {given}"


@dataclass(frozen=True)
class Collection:
    """Tasks to compare, and those among them (or beside them) with enough images to be cut into smaller ones.

    Tasks by taxon come with the whole datasets.
    """

    members: tuple[Member, ...]
    rich: tuple[Member, ...]
    datasets: tuple[Dataset, ...] = ()


def pick_rich(members: Sequence[Member]) -> tuple[Member, ...]:
    """The richest task of every dataset (most images with all classes equal, then most classes), richest first."""

    def count_images(member: Member) -> tuple[int, int]:
        return int(member.task.counts.min()) * len(member.task.classes), len(member.task.classes)

    best: dict[str, Member] = {}
    for member in members:
        best[member.dataset] = max(best.get(member.dataset, member), member, key=count_images)
    return tuple(sorted(best.values(), key=count_images, reverse=True))


def read_collection(folder: str | Path) -> Collection:
    """The tasks of `tasks.csv`, in its order, and the datasets that they are parts of, each read once."""
    root = Path(folder)
    rows = _read_records(root / "tasks.csv", ("dataset", "taxon_level", "taxon"))
    datasets: dict[str, Dataset] = {}
    for name in dict.fromkeys(row["dataset"] for row in rows):
        if Path(name).name != name or name.startswith("."):
            raise DataError(
                f"{root / 'tasks.csv'} names the dataset {name!r}, which is not the name of a folder beside it: "
                "nothing outside of the collection is read. Write the folder's name alone."
            )
        say(f"reading {name}")
        path, own = root / name / "taxonomy.csv", [row for row in rows if row["dataset"] == name]
        images = t2v.read_folder(root / name / "images", name=name)
        whole = Dataset(images, tuple(_read_records(path, ["class_dir"])), path)
        levels = dict.fromkeys(row["taxon_level"] for row in own)
        columns = {each: whole.find_column(each, [row for row in own if row["taxon_level"] == each]) for each in levels}
        datasets[name] = replace(whole, columns=columns)
    members = tuple(Member(row["dataset"], datasets[row["dataset"]].cut(row)) for row in rows)
    return Collection(members, pick_rich(members), tuple(datasets.values()))


def _read_records(path: Path, wanted: Sequence[str]) -> list[Record]:
    """The rows of a CSV file that has the wanted columns."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, strict=True, restval=""))
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise DataError(
            f"{path} cannot be read as CSV ({error}), so its tasks are unknown. Give --data a folder with a tasks.csv "
            "(dataset, taxon_level, taxon) and DATASET/taxonomy.csv (class_dir, order, ...), both in UTF-8."
        ) from error
    if not rows or not set(wanted) <= rows[0].keys():
        raise DataError(f"{path} has no task in it: it needs a header with {', '.join(wanted)}, and rows. Add them.")
    return rows
