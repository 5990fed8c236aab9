"""The tasks of many paths, as the options of the command line ask for them; what cannot be read is told."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from task2vec.cli.reading import find_root, is_table, name_options, read_own, say_bad, tell_bad
from task2vec.cli.speech import is_watched, say
from task2vec.errors import BadImagesError, DataError, NothingToTellError, ResourceError, UsageError
from task2vec.text import printable

if TYPE_CHECKING:
    from task2vec.tasks import BadImage, Catalog, Task

TABLE, FOLDER = "table", "folder"
NOTHING_TO_TELL = (
    "fewer than two of its classes have images here, so there is nothing to tell apart. Leave it out, or take more "
    "images (--draw) or another --split."
)

TOO_MANY_BAD = (
    "more than 5 % of its images cannot be read, so the rest may not stand for it. Repair or remove them, or pass "
    "--allow-bad."
)


@dataclass(frozen=True)
class Wanted:
    """What is read of the paths.

    Attributes:
        table: of tables: the folder that paths start from, and columns.
        names: of published datasets: the names of tasks; empty for all of the kind.
        kind: of published datasets: the kind of tasks.
        layout: which published dataset the folders are; seen by their files if None.
        draw: how many images to read of a task, or together of attributes; None for all.
        labels: of iMaterialist, the table of the labels' names.
        split: of folders and published datasets.
        seed: of the draw.
        is_one_vs_rest: whether to ask for every class by itself.
        allow_bad: whether to go on where over 5 % of a task's images cannot be read.
        workers: how many threads decode.
    """

    table: dict[str, Any]
    names: Sequence[str]
    kind: str | None
    layout: str | None
    draw: int | None
    labels: Path | None
    split: str | None
    seed: int
    is_one_vs_rest: bool
    allow_bad: bool
    workers: int | None


@dataclass(frozen=True)
class Failure:
    """A path or a task of which nothing came, the reason, and the images that cannot be read if they are the reason."""

    name: str
    reason: str
    bad: "tuple[BadImage, ...]" = ()


@dataclass
class Gathered:
    """Tasks, and what did not become one, with its reason."""

    tasks: list["Task"] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)

    def fail(self, name: object, error: Exception) -> None:
        """Notes a failure, and says it now: what follows may take hours."""
        self.failed.append(Failure(str(name), str(error), getattr(error, "bad", ())))
        say(f"failed: {printable(name)}: {printable(error)}")


def sort_paths(paths: Sequence[Path], wanted: Wanted) -> dict[Path, str]:
    """What each path is: a table, a folder of class folders, or a published dataset, by the name of its layout.

    Raises:
        UsageError: A path is given twice, is not there or is none of these, a folder has no such split, or an option
            is given that is for none of them.
    """
    from task2vec.tasks import recognize_layout
    from task2vec.tasks.folder import find_split

    sorts: dict[Path, str] = {}
    for path in paths:
        if path.resolve() in {known.resolve() for known in sorts}:
            raise UsageError(f"'{path}' is given twice, and its tasks would be embedded once. Name it once.")
        if is_table(path):
            sorts[path] = TABLE
        else:
            sorts[path] = wanted.layout or recognize_layout(path) or FOLDER
    _refuse_strays(set(sorts.values()), wanted)
    for path, sort in sorts.items():
        if sort == FOLDER and wanted.split is not None:
            find_split(path, wanted.split)
    return sorts


def gather_tasks(sorts: dict[Path, str], wanted: Wanted) -> Gathered:
    """The tasks of all paths; a path that cannot be read is told, and the others are read."""
    found = Gathered()
    read: list[tuple[Path, str, Task]] = []
    for path, sort in sorts.items():
        try:
            tasks = list(_read(path, sort, wanted, found))
        except (DataError, ResourceError) as error:
            found.fail(path, error)
            continue
        _say_bad_of(path, sort, tasks, wanted)
        read += [(path, sort, task) for task in tasks]
    times = Counter(task.name for *_, task in read)
    for path, sort, task in read:
        is_alone = times[task.name] == 1 or sort not in (TABLE, FOLDER)
        found.tasks += _ask(task if is_alone else _call_by_path(task, path, sort), wanted, found)
    return found


def _read(path: Path, sort: str, wanted: Wanted, found: Gathered) -> "Iterator[Task]":
    """The tasks of one path."""
    if sort in (TABLE, FOLDER):
        table = wanted.table if sort == TABLE else {}
        yield read_own(path, table=table, split=wanted.split, allow_bad=wanted.allow_bad, workers=wanted.workers)
        return
    from task2vec.tasks import read_catalog

    labels = wanted.labels if sort == "imaterialist" else None
    catalogue = read_catalog(path, layout=sort, labels=labels, progress=is_watched())
    for warning in catalogue.warnings:
        say(f"warning: {printable(warning)}")
    yield from _read_tasks(catalogue, wanted, found)


def _read_tasks(catalogue: "Catalog", wanted: Wanted, found: Gathered) -> "list[Task]":
    """The tasks of a published dataset; those that cannot be read or told apart fail, and leave the others be."""
    if wanted.names:
        chosen = [catalogue.find(name, wanted.kind) for name in dict.fromkeys(wanted.names)]
    elif wanted.kind is None and len(catalogue.kinds) > 1:
        raise UsageError(
            f"{catalogue.name} has tasks of several kinds ({', '.join(catalogue.kinds)}), so it is unclear which are "
            f"meant. Choose: --kind {catalogue.kinds[0]!r}, or --task NAME, once for each."
        )
    else:
        chosen = list(catalogue.definitions if wanted.kind is None else catalogue.of_kind(wanted.kind))
    drawn = {"split": wanted.split, "images": wanted.draw, "seed": wanted.seed}
    reading = {"allow_bad": wanted.allow_bad, "num_workers": wanted.workers, "progress": is_watched()}
    called = partial(catalogue.name_task, split=wanted.split)
    while chosen:
        try:
            return tell_bad(catalogue.tasks, chosen, root=catalogue.root, **drawn, **reading)
        except NothingToTellError as error:
            say(f"failed: {printable(error)}")
            found.failed += [Failure(called(one.name), NOTHING_TO_TELL) for one in error.tasks]
            chosen = [one for one in chosen if one not in set(error.tasks)]
        except BadImagesError as error:
            if not error.tasks:
                raise
            say(f"failed: {printable(error)}")
            found.failed += [Failure(called(name), TOO_MANY_BAD) for name in error.tasks]
            chosen = [one for one in chosen if one.name not in error.tasks]
    return []


def _say_bad_of(path: Path, sort: str, tasks: "Sequence[Task]", wanted: Wanted) -> None:
    """Names the unreadable images of one path, each once however many tasks have it."""
    bad = list({bad.path: bad for task in tasks for bad in task.bad}.values())
    if bad and sort in (TABLE, FOLDER):
        say_bad(bad, root=find_root(path, table=wanted.table, split=wanted.split))
    elif bad:
        say_bad(bad, root=getattr(tasks[0].images, "root", path))


def _ask(task: "Task", wanted: Wanted, found: Gathered) -> "Sequence[Task]":
    """The task, or its questions if they are wanted; one of two classes is such a question already."""
    if not wanted.is_one_vs_rest or (len(task.classes) == 2 and not task.is_multilabel):
        return [task]
    try:
        return task.one_vs_rest()
    except DataError as error:
        found.fail(task.name, error)
        return []


def _call_by_path(task: "Task", path: Path, sort: str) -> "Task":
    """The task under a name that another path does not have."""
    return replace(task, name=str(path if sort == TABLE else path.parent / task.name))


def _refuse_strays(sorts: set[str], wanted: Wanted) -> None:
    """Raise `UsageError` if an option was given for a sort of path that is not there."""
    published = sorts - {TABLE, FOLDER}
    of_datasets = {"names": wanted.names, "kind": wanted.kind, "draw": wanted.draw, "layout": wanted.layout}
    strays = (
        (wanted.table, TABLE in sorts, "no table (.csv, .parquet)"),
        (of_datasets, bool(published), "no published dataset (see `task2vec tasks`)"),
        ({"labels": wanted.labels}, "imaterialist" in published, "no iMaterialist dataset"),
        ({"split": wanted.split}, sorts != {TABLE}, "neither a folder nor a published dataset"),
    )
    for given, is_meant, missing in strays:
        if (asked := name_options(given)) and not is_meant:
            raise UsageError(f"{asked} cannot be meant: there is {missing} among the paths. Leave it out, or name one.")
