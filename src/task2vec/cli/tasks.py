"""`task2vec tasks`: which tasks a published dataset holds."""

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from task2vec.cli import options
from task2vec.cli.chosen import Layout
from task2vec.cli.listing import print_rows
from task2vec.cli.reading import find_root, is_table, name_options, read_own, say_bad
from task2vec.cli.speech import is_watched, open_page, print_json, say
from task2vec.errors import UsageError
from task2vec.text import printable

if TYPE_CHECKING:
    from task2vec.tasks import Catalog, TaskDefinition

# More rows than a person would read; JSON has them all.
MOST_ROWS = 50
HOW_TO = (
    "Embed one, or all of a kind:",
    "  task2vec embed {path} --task NAME --split train",
    "  task2vec embed-many {path} --kind KIND --split train",
)


@dataclass(frozen=True)
class Asked:
    """What is said of the dataset: which it is, which of its tasks, and how a folder or table of one's own is read."""

    layout: str | None
    kind: str | None
    split: str | None
    labels: Path | None
    table: dict[str, Any]
    allow_bad: bool


def tasks(
    dataset: Annotated[
        Path | None, typer.Argument(metavar="DATASET", help="A folder as its archive unpacks, or your own task.")
    ] = None,
    layout: Annotated[Layout | None, typer.Option("--as", help="Which dataset; default: seen by its files.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only tasks of this kind, e.g. order or attribute.")] = None,
    split: Annotated[str | None, typer.Option(help="Only the images of train, val or test.")] = None,
    limit: Annotated[int | None, typer.Option(help=f"Rows to show; default: {MOST_ROWS}, and all in JSON.")] = None,
    labels: Annotated[Path | None, typer.Option(help="iMaterialist: the table of the labels' names.")] = None,
    path_column: options.PathColumn = None,
    label_column: options.LabelColumn = None,
    root: options.Root = None,
    allow_bad: options.AllowBad = False,
    as_json: options.AsJson = False,
) -> None:
    """List the tasks of a dataset, without opening an image.

    Known by their files are CUB-200-2011, iNaturalist, iMaterialist (Fashion) 2018 and DeepFashion; a folder of class
    folders or a table is one task, which is read.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit} shows nothing. Give 1 or more, or leave it out.")
    table = {"root": root, "path_column": path_column, "label_columns": label_column}
    if dataset is None:
        raise UsageError("no dataset was named, so there is nothing to list. Name its folder: task2vec tasks DIR")
    report = _describe(dataset, Asked(layout, kind, split, labels, table, allow_bad))
    if as_json:
        report["tasks"] = report["tasks"][:limit]
        print_json(report)
    else:
        _print(report, limit or MOST_ROWS, dataset)


def _describe(dataset: Path, asked: Asked) -> dict[str, Any]:
    """What the dataset holds, as plain values."""
    from task2vec.tasks import read_catalog, recognize_layout

    if is_table(dataset) or (asked.layout is None and recognize_layout(dataset) is None):
        return _describe_own(dataset, asked)
    if strays := name_options(asked.table | {"allow_bad": asked.allow_bad}):
        raise UsageError(f"{strays} cannot be meant for '{dataset}', which is no task of your own. Leave it out.")
    catalogue = read_catalog(dataset, layout=asked.layout, labels=asked.labels, progress=is_watched())
    chosen = catalogue.definitions if asked.kind is None else catalogue.of_kind(asked.kind)
    return {
        "dataset": catalogue.name,
        "images": _count_splits(catalogue, asked.split),
        "kinds": dict(Counter(one.kind for one in catalogue.definitions)),
        "warnings": list(catalogue.warnings),
        "bad": [],
        "tasks": [_describe_task(one, asked.split) for one in chosen],
    }


def _describe_own(dataset: Path, asked: Asked) -> dict[str, Any]:
    """The one task of a folder of class folders or of a table; images that cannot be read are named."""
    own = "table" if is_table(dataset) else "folder"
    others = {"layout": asked.layout, "labels": asked.labels}
    others |= {"kind": asked.kind if asked.kind != own else None}
    others |= {"split": asked.split} if own == "table" else asked.table
    if strays := name_options(others):
        raise UsageError(f"{strays} cannot be meant for '{dataset}': it is a {own}, and one task. Leave it out.")
    task = read_own(dataset, table=asked.table, split=asked.split, allow_bad=asked.allow_bad, workers=None)
    say_bad(task.bad, root=find_root(dataset, table=asked.table, split=asked.split))
    row = {"name": task.name, "kind": own, "group": "", "classes": len(task.classes), "images": {"all": len(task)}}
    row |= {"positives": {}, "is_multilabel": task.is_multilabel}
    return {
        "dataset": task.name,
        "images": {"all": len(task)},
        "kinds": {own: 1},
        "warnings": list(task.warnings),
        "bad": [asdict(bad) for bad in task.bad],
        "tasks": [row],
    }


def _count_splits(catalogue: "Catalog", split: str | None) -> dict[str, int]:
    names = catalogue.splits.names if split is None else (split,)
    return {name: len(catalogue.splits.rows(name)) for name in names}


def _describe_task(one: "TaskDefinition", split: str | None = None) -> dict[str, Any]:
    def of_split(counts: Any) -> dict[str, int]:
        return {name: count for name, count in counts.items() if split in (None, name)}

    return {
        "name": one.name,
        "kind": one.kind,
        "group": one.group,
        "classes": len(one.classes),
        "images": of_split(one.counts),
        "positives": of_split(one.positives),
        "is_multilabel": one.is_multilabel,
    }


def _print(report: dict[str, Any], limit: int, dataset: Path) -> None:
    """A line about the dataset, its tasks as a table, and how to go on."""
    page = open_page()
    is_own = list(report["images"]) == ["all"]
    splits = ", ".join(f"{split} {count}" for split, count in report["images"].items())
    images = f"{sum(report['images'].values())} images{'' if is_own else f' ({splits})'}"
    kinds = ", ".join(f"{count} {kind}" for kind, count in report["kinds"].items())
    page.print(f"{printable(report['dataset'])}: {images}; tasks: {kinds}")
    for warning in report["warnings"]:
        say(f"warning: {printable(warning)}")
    print_rows(report["tasks"][:limit])
    left = len(report["tasks"]) - limit
    if left > 0:
        page.print(f"and {left} more; --limit {len(report['tasks'])} shows them, --json lists them")
    for line in () if is_own else HOW_TO:
        page.print(line.format(path=printable(dataset)), soft_wrap=True)
