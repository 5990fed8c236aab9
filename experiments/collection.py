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
    """All images of a dataset as one task, and where each class is in a taxonomy.

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
        mismatches = {
            column: list(filter(None, (self._find_mismatch(column, row) for row in rows))) for column in columns
        }
        fitting = [column for column in columns if not mismatches[column]]
        if not fitting:
            reason = mismatches[columns[0]][0] if columns else f"there is no column {level!r}"
            raise DataError(
                f"tasks.csv and {self.path} do not agree: {reason}, so the task would be another. Correct tasks.csv, "
                "or remove n_classes and n_images."
            )
        return fitting[0]

    def select_taxon(self, row: Record) -> t2v.Task:
        """The task of one taxon, with a warning that names the classes of too few images."""
        kept, small = self._find_classes(self.columns[row["taxon_level"]], row["taxon"])
        task = self.images.select(kept, name=row.get("task") or f"{row['dataset']} {row['taxon']}")
        notes = [f"classes of fewer than {MIN_IMAGES} images, left out: {', '.join(small)}"] if small else []
        return replace(task, notes=(*task.notes, *notes))

    def _find_classes(self, column: str, taxon: str) -> tuple[list[str], list[str]]:
        """The classes of a taxon: those with enough images, and the others."""
        names = [row["class_dir"] for row in self.taxonomy if row[column] == taxon]
        counts = self.count_images()
        kept = [name for name in names if counts.get(name, 0) >= MIN_IMAGES]
        return kept, [name for name in names if name not in kept]

    def _find_mismatch(self, column: str, row: Record) -> str | None:
        """The mistake in a row if this column is meant: too few classes, or other counts."""
        kept, _ = self._find_classes(column, row["taxon"])
        counts = self.count_images()
        actual = {"n_classes": len(kept), "n_images": sum(counts[name] for name in kept)}
        given = {key: row[key] for key in actual if row.get(key)}
        if len(kept) >= 2 and all(given[key] == str(actual[key]) for key in given):
            return None
        return f"{row['taxon']!r} in column {column!r} has {actual}, and the row has {given}"

    def count_images(self) -> dict[str, int]:
        """The number of images of every class."""
        return dict(zip(self.images.classes, self.images.counts.tolist(), strict=True))


@dataclass(frozen=True)
class Collection:
    """The tasks of taxa, and the whole datasets that they are parts of."""

    members: tuple[Member, ...]
    datasets: tuple[Dataset, ...] = ()


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
        path = root / name / "taxonomy.csv"
        images = t2v.read_folder(root / name / "images", name=name)
        whole = Dataset(images, tuple(_read_records(path, ["class_dir"])), path)
        levels: dict[str, list[Record]] = {}
        for row in rows:
            if row["dataset"] == name:
                levels.setdefault(row["taxon_level"], []).append(row)
        columns = {level: whole.find_column(level, group) for level, group in levels.items()}
        datasets[name] = replace(whole, columns=columns)
    members = tuple(Member(row["dataset"], datasets[row["dataset"]].select_taxon(row)) for row in rows)
    return Collection(members, tuple(datasets.values()))


def _read_records(path: Path, columns: Sequence[str]) -> list[Record]:
    """The rows of a CSV file that has these columns."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, strict=True, restval=""))
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise DataError(
            f"{path} cannot be read as CSV ({error}), so its tasks are unknown. Give --data a folder with a tasks.csv "
            "(dataset, taxon_level, taxon) and DATASET/taxonomy.csv (class_dir, order, ...), both in UTF-8."
        ) from error
    if not rows or not set(columns) <= rows[0].keys():
        raise DataError(f"{path} has no task in it: it needs a header with {', '.join(columns)}, and rows. Add them.")
    return rows
