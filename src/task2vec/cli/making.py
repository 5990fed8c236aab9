"""A path becomes an embedding: found in the library, or made and kept there."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from task2vec.cli.chosen import Request, read_task
from task2vec.cli.place import check_place, default_place
from task2vec.cli.reading import check_there, is_table, name_options, read_own, tell_bad
from task2vec.cli.shelf import LibraryShelf, open_shelf
from task2vec.cli.speech import is_watched
from task2vec.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from task2vec.embedding import Embedding, EmbedSettings
    from task2vec.probe import Probe
    from task2vec.tasks import Task


@dataclass(frozen=True)
class Wish:
    """What is to be embedded, how, and where it goes: the options of `task2vec embed`.

    Attributes:
        path: a folder, a table, or a published dataset.
        settings: what changes the numbers.
        probe: its name.
        loading: what else `load_probe` takes: weights, size, download.
        how: what does not change the numbers: device, workers, batch size.
        table: of tables: the folder that paths start from, and columns.
        catalogue: of published datasets: kind, layout, split, draw, labels.
        task_name: of published datasets: which task.
        name: what to call the task.
        allow_bad: whether to go on where over 5 % of the images cannot be read.
        out: a file or folder to write to.
        force: compute again what is known, and overwrite files.
        library: its folder; None for the default.
        no_library: whether to do without.
        tags: for the task in the library.
        is_kept: whether what no library takes becomes a file.
    """

    path: Path
    settings: "EmbedSettings"
    probe: str
    loading: dict[str, Any]
    how: dict[str, Any]
    table: dict[str, Any]
    catalogue: dict[str, Any]
    task_name: str | None = None
    name: str | None = None
    allow_bad: bool = False
    out: Path | None = None
    force: bool = False
    library: Path | None = None
    no_library: bool = False
    tags: tuple[str, ...] = ()
    is_kept: bool = True


@dataclass(frozen=True)
class Made:
    """What came of a wish.

    Attributes:
        task: what was read.
        embedding: of it.
        is_found: whether the library had it, so that nothing was computed.
        library: the folder of the library that has it, if one has.
        known_as: its name in the library, if that is another one.
        written: the file that has it, if one has.
        exit_code: not 0 if the library refused it.
    """

    task: "Task"
    embedding: "Embedding"
    is_found: bool
    library: Path | None = None
    known_as: str | None = None
    written: Path | None = None
    exit_code: int = 0


def make_embedding(wish: Wish, *, before: "Callable[[Task, Probe], None] | None" = None) -> Made:
    """The embedding of the task at a path: that of the library, or a new one, which is kept there.

    Args:
        wish: what, how and where.
        before: called before the minutes of work, if there is any.
    """
    import task2vec

    check_there(wish.path)
    with ExitStack() as stack:
        shelf = None
        if not wish.no_library:
            shelf = open_shelf(wish.library, tags=wish.tags, is_forced=wish.force, is_backed=wish.out is not None)
        if shelf is not None:
            stack.enter_context(shelf.library)
        task = read_wish(wish)
        probe = task2vec.load_probe(wish.probe, **wish.loading)
        known = shelf.find(task, probe, settings=wish.settings) if shelf else None
        if known is None and shelf is not None:
            story = {"task": task.name, "fingerprint": task.fingerprint, "source": task.source, "probe": probe.name}
            shelf.begin(stack, "embed", story | {"settings": wish.settings.as_dict()})
        place = default_place(task.name, wish.out)
        is_homeless = known is None and (shelf is None or shelf.is_for_finding)
        is_written = wish.out is not None or (is_homeless and wish.is_kept)
        if is_written and not wish.force:
            check_place(place, task, probe, wish.settings)
        if known is not None:
            found = replace(known, task=task.name)
        else:
            if before is not None:
                before(task, probe)
            found = task2vec.embed(task, probe, settings=wish.settings, progress=is_watched(), **wish.how)
            if shelf is not None:
                shelf.keep(found, source=task.source)
        if is_written:
            found.save(place)
        return _tell(Made(task, found, known is not None, written=place if is_written else None), shelf)


def read_wish(wish: Wish) -> "Task":
    """The task at a path, by the reader that its kind asks for."""
    path, how = wish.path, {"allow_bad": wish.allow_bad, "workers": wish.how.get("num_workers")}
    if wish.task_name is not None:
        _refuse_options(path, wish.table, "with --task")
        request = Request(path, wish.task_name, **wish.catalogue, seed=wish.settings.seed, name=wish.name)
        return tell_bad(read_task, request, **how)
    # A folder may have splits of its own; all else is for tasks of a published dataset.
    others = {key: value for key, value in wish.catalogue.items() if key != "split"}
    split = wish.catalogue["split"] if not is_table(path) and not any(others.values()) else None
    _refuse_options(path, others if split else wish.catalogue, "without --task")
    if not is_table(path):
        _refuse_options(path, wish.table, "because it is not a table")
    return read_own(path, table=wish.table, split=split, name=wish.name, **how)


def _tell(made: Made, shelf: LibraryShelf | None) -> Made:
    """What was made, with what the library says of it."""
    if shelf is None:
        return made
    fingerprint = made.task.fingerprint
    written = made.written or shelf.saved.get(fingerprint)
    if problem := shelf.problems.get(fingerprint):
        return replace(made, written=written, exit_code=0 if isinstance(problem, ResourceError) else problem.exit_code)
    if (name := shelf.names.get(fingerprint)) is None:
        return made
    return replace(made, library=shelf.library.folder, known_as=name if name != made.task.name else None)


def _refuse_options(path: Path, options: dict[str, Any], why: str) -> None:
    """Raise `UsageError` if any of the options was given, since they cannot be meant."""
    if asked := name_options(options):
        raise UsageError(
            f"{asked} cannot be meant for '{path}' {why}. Leave it out, or name a .csv or .parquet file "
            "(columns, --root), or a task of a published dataset (--task)."
        )
