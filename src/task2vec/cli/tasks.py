"""`task2vec tasks`: which tasks a published dataset holds, and which the paper chose."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from task2vec.cli.chosen import Layout
from task2vec.cli.reading import TABLES
from task2vec.cli.speech import is_watched, open_page, print_json, say, visible
from task2vec.errors import UsageError

if TYPE_CHECKING:
    from task2vec.tasks.catalogue import Catalogue
    from task2vec.tasks.definitions import TaskDefinition
    from task2vec.tasks.metatask import MetaTask

# More rows than a person would read; JSON has them all.
MOST_ROWS = 50
HOW_TO = (
    "Embed one: task2vec embed {path} --task NAME --split train --draw 1000, or many: "
    "task2vec embed-many {path} --kind KIND --split train --draw 2000 --out DIR"
)


Folder = Annotated[Path | None, typer.Option(help="With --paper: where it is unpacked.", metavar="DIR")]


def tasks(
    dataset: Annotated[
        Path | None, typer.Argument(metavar="DATASET", help="A folder as its archive unpacks, or your own task.")
    ] = None,
    layout: Annotated[Layout | None, typer.Option("--as", help="Which dataset; default: seen by its files.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only tasks of this kind, e.g. order or attribute.")] = None,
    limit: Annotated[int | None, typer.Option(help=f"Rows to show; default: {MOST_ROWS}, and all in JSON.")] = None,
    labels: Annotated[Path | None, typer.Option(help="iMaterialist: the table of the labels' names.")] = None,
    paper: Annotated[
        Literal["inat+cub", "mixed"] | None, typer.Option(help="List a meta-task of the paper instead.")
    ] = None,
    inaturalist: Folder = None,
    cub200: Folder = None,
    imaterialist: Folder = None,
    deepfashion: Folder = None,
    seed: Annotated[int, typer.Option(help="With --paper mixed: another seed picks other tasks.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List the tasks of a dataset, without opening an image.

    Known by their files are CUB-200-2011, iNaturalist, iMaterialist (Fashion) 2018 and DeepFashion; a folder of class
    folders or a table is one task, which is read.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit} shows nothing. Give 1 or more, or leave it out.")
    folders = {"inaturalist": inaturalist, "cub200": cub200, "imaterialist": imaterialist, "deepfashion": deepfashion}
    if paper is not None:
        meta = _choose(paper, dataset, folders, labels, seed)
        print_json(_describe_meta(meta)) if as_json else _print_meta(meta)
        return
    given = [f"--{name}" for name, folder in folders.items() if folder is not None]
    if dataset is None or given:
        wrong = f"{', '.join(given)} without --paper" if given else "no dataset was named"
        raise UsageError(f"{wrong}, so there is nothing to list. Name its folder: task2vec tasks DIR")
    report = _describe(dataset, layout, kind, labels)
    if as_json:
        report["tasks"] = report["tasks"][:limit]
        print_json(report)
    else:
        _print(report, limit or MOST_ROWS, dataset)


def _describe(dataset: Path, layout: str | None, kind: str | None, labels: Path | None) -> dict[str, Any]:
    """What the dataset holds, as plain values."""
    from task2vec.tasks.layouts import read_catalogue, recognise_layout

    is_table = dataset.suffix.lower() in TABLES and not dataset.is_dir()
    if layout is None and (is_table or (dataset.is_dir() and recognise_layout(dataset) is None)):
        return _describe_own(dataset, is_table, kind)
    catalogue = read_catalogue(dataset, layout=layout, labels=labels, progress=is_watched())
    chosen = catalogue.definitions if kind is None else catalogue.of_kind(kind)
    return {
        "dataset": catalogue.name,
        "images": _count_splits(catalogue),
        "kinds": dict(Counter(one.kind for one in catalogue.definitions)),
        "warnings": list(catalogue.warnings),
        "tasks": [_describe_task(one) for one in chosen],
    }


def _describe_own(dataset: Path, is_table: bool, kind: str | None) -> dict[str, Any]:
    """The one task of a folder of class folders or of a table."""
    from task2vec.tasks import read_folder, read_table

    own = "table" if is_table else "folder"
    if kind not in (None, own):
        raise UsageError(
            f"'{dataset}' is a {own}, one task of its own, and has none of kind {kind!r}. Leave --kind out."
        )
    task = (read_table if is_table else read_folder)(dataset, progress=is_watched())
    row = {"name": task.name, "kind": own, "group": "", "classes": len(task.classes), "images": {"all": len(task)}}
    row |= {"positives": {}, "is_multilabel": task.is_multilabel}
    return {
        "dataset": task.name,
        "images": {"all": len(task)},
        "kinds": {own: 1},
        "warnings": list(task.warnings),
        "tasks": [row],
    }


def _count_splits(catalogue: "Catalogue") -> dict[str, int]:
    return {name: len(catalogue.splits.rows(name)) for name in catalogue.splits.names}


def _describe_task(one: "TaskDefinition") -> dict[str, Any]:
    return {
        "name": one.name,
        "kind": one.kind,
        "group": one.group,
        "classes": len(one.classes),
        "images": dict(one.counts),
        "positives": dict(one.positives),
        "is_multilabel": one.is_multilabel,
    }


def _print(report: dict[str, Any], limit: int, dataset: Path) -> None:
    """A line about the dataset, its tasks as a table, and how to go on."""
    page = open_page()
    splits = ", ".join(f"{split} {count}" for split, count in report["images"].items())
    images = f"{sum(report['images'].values())} images{'' if list(report['images']) == ['all'] else f' ({splits})'}"
    kinds = ", ".join(f"{count} {kind}" for kind, count in report["kinds"].items())
    page.print(f"{visible(report['dataset'])}: {images}; tasks: {kinds}")
    for warning in report["warnings"]:
        say(f"warning: {visible(warning)}")
    _print_rows(report["tasks"][:limit])
    left = len(report["tasks"]) - limit
    if left > 0:
        page.print(f"and {left} more; --limit {len(report['tasks'])} shows them, --json lists them")
    if list(report["images"]) != ["all"]:
        page.print(HOW_TO.format(path=visible(dataset)), soft_wrap=True)


def _print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """The tasks as a table that fits the page: long names fold, numbers do not."""
    from rich import box
    from rich.table import Table

    splits = list(dict.fromkeys(split for row in rows for split in row["images"]))
    has_positives = any(row["positives"] for row in rows)
    words = [key for key in ("dataset", "name", "kind", "group") if any(row.get(key) for row in rows)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for word in words:
        table.add_column({"name": "task"}.get(word, word), overflow="fold", min_width=4)
    for number in ("classes", *splits, *(["positive"] if has_positives else [])):
        table.add_column(visible(number), justify="right", no_wrap=True)
    for row in rows:
        counts = [str(row["images"].get(split, "-")) for split in splits]
        positive = [str(sum(row["positives"].values())) if row["positives"] else "-"] if has_positives else []
        table.add_row(*(visible(row[word]) for word in words), str(row["classes"]), *counts, *positive)
    open_page().print(table)


def _choose(
    paper: str, dataset: Path | None, folders: dict[str, Path | None], labels: Path | None, seed: int
) -> "MetaTask":
    """The meta-task of the paper from the datasets given."""
    from task2vec.paper.metatasks import inat_cub, mixed
    from task2vec.tasks.layouts import read_catalogue

    needed = ["inaturalist", "cub200"] if paper == "inat+cub" else list(folders)
    missing = [f"--{name} DIR" for name in needed if folders[name] is None]
    extra = [f"--{name}" for name, folder in folders.items() if folder is not None and name not in needed]
    if dataset is not None or missing or extra:
        wrong = f"lacks {' '.join(missing)}" if missing else f"does not take {', '.join(extra) or dataset}"
        raise UsageError(f"--paper {paper} {wrong}: it is made of {', '.join(needed)}. Give the folder of each.")
    read = {}
    for name in needed:
        # The paper files two species elsewhere than our own table does; its meta-tasks follow it.
        layout = "cub200-paper" if name == "cub200" else name
        names = labels if name == "imaterialist" else None
        read[name] = read_catalogue(folders[name] or "", layout=layout, labels=names, progress=is_watched())
    if paper == "inat+cub":
        return inat_cub(read["inaturalist"], read["cub200"])
    return mixed(read["inaturalist"], read["cub200"], read["imaterialist"], read["deepfashion"], seed=seed)


def _describe_meta(meta: "MetaTask") -> dict[str, Any]:
    return {
        "metatask": meta.name,
        "tasks": [{"dataset": catalogue, **_describe_task(one)} for catalogue, one in meta.tasks],
        "experts": [{"dataset": one.catalogue, **_describe_task(one.definition)} for one in meta.experts],
        "has_generic": meta.has_generic,
        "left_out": sorted(meta.left_out),
    }


def _print_meta(meta: "MetaTask") -> None:
    facts = _describe_meta(meta)
    page = open_page()
    for what in ("tasks", "experts"):
        generic = " and the generic one" if what == "experts" and meta.has_generic else ""
        page.print(f"{meta.name}: {len(facts[what])} {what}{generic}")
        _print_rows(facts[what])
    page.print(f"{len(meta.left_out)} pairs are left out: the expert was trained on the labels of the task (--json)")
