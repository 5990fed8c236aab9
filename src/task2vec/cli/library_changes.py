"""`task2vec library add | rm | tag | rename`: what comes in, what goes, and what tasks are called."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from task2vec.cli import options
from task2vec.cli.library import DIGITS, Name, tell_embedding, tell_task, word_bytes
from task2vec.cli.shelf import open_known
from task2vec.cli.speech import is_watched, print_json, say
from task2vec.errors import DataError, EmbeddingFileError, NotInLibraryError, Task2VecError, UsageError
from task2vec.text import pluralize, printable

if TYPE_CHECKING:
    from task2vec.library import Library


def add(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILES OR FOLDERS", help="Saved embeddings, or folders of them.")
    ],
    tags: options.Tags = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what the library has under the same key.")] = False,
    library: options.LibraryFolder = None,
    as_json: options.AsJson = False,
) -> None:
    """Add saved embeddings to the library.

    What is damaged, or is in the library with other numbers, is named and left out (exit code 4 or 3); the rest is
    added. If the library cannot take more, as on a full disk, what it took before is told, and stays.
    """
    places = list_embeddings(files)
    from task2vec.library import Library
    from task2vec.library.entries import check_tags
    from task2vec.progress import show_progress

    check_tags(tags or ())
    rows: list[dict[str, Any]] = []
    failed: list[tuple[Path, Task2VecError]] = []
    stopped: Task2VecError | None = None
    with Library.open(library) as opened, show_progress(is_watched()) as report:
        step = report("adding", len(places))
        for place in places:
            try:
                rows.append(_add_file(opened, place, tags or (), force))
            except (EmbeddingFileError, DataError) as error:
                failed.append((place, error))
            except Task2VecError as error:  # of the library, which will not take the next file either
                stopped = _stop_at(place, error, done=len(rows), count=len(places))
                break
            step(1)
        folder = str(opened.folder)
    if as_json:
        told = [{"file": str(place), "reason": str(error)} for place, error in failed]
        print_json({"library": folder, "added": rows, "failed": told, "error": str(stopped) if stopped else None})
    else:
        _print_added(rows, folder)
        for place, error in failed:
            named = "" if str(place) in str(error) else f"{printable(place)}: "
            say(f"failed: {named}{printable(error)}")
    if stopped:
        raise stopped
    if failed:
        raise typer.Exit(max(error.exit_code for _, error in failed))


def _stop_at(place: Path, error: Task2VecError, *, done: int, count: int) -> Task2VecError:
    """The error that ended the work, which by itself knows of one file alone, with how far it came."""
    if count == 1:
        return error
    stop = f"stopped at '{place}': {done} of {count} files are in the library, and this one is not: "
    return type(error)(stop + str(error).replace("Nothing was added to the library", "Nothing of it was added"))


def list_embeddings(places: Sequence[Path]) -> list[Path]:
    """The files that were named, and the embeddings of the folders that were, each once."""
    found: dict[Path, Path] = {}
    for place in places:
        if not place.exists():
            raise UsageError(f"'{place}' is not there, so it cannot be added. Check its spelling, and where you are.")
        files = sorted(place.glob("*.safetensors")) if place.is_dir() else [place]
        if not files:
            raise UsageError(
                f"there is no embedding (*.safetensors) in '{place}', so there is nothing to add. If it holds images: "
                f"task2vec embed {place}"
            )
        found |= {file.resolve(): file for file in files if file.resolve() not in found}
    return list(found.values())


def _add_file(library: "Library", place: Path, tags: Sequence[str], force: bool) -> dict[str, Any]:
    import task2vec

    embedding = task2vec.load_embedding(place)
    (added,) = library.add(embedding, tags=tags, replace=force)
    known_as = added.name if added.name != embedding.task else None
    row = {"file": str(place), "task": embedding.task, "known_as": known_as}
    return row | {"key": added.key, "is_new": added.is_new}


def _print_added(rows: Sequence[dict[str, Any]], folder: str) -> None:
    for row in rows:
        what = "added" if row["is_new"] else "known"
        known_as = f", known as '{printable(row['known_as'])}'" if row["known_as"] else ""
        print(f"{what}: {printable(row['task'])} ({row['key'][:DIGITS]}){known_as}")
    new = sum(row["is_new"] for row in rows)
    print(f"{new} added, {len(rows) - new} known; in {printable(folder)}")


def rm(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A task by name or id, or one embedding by the digits of its key.")
    ],
    with_errors: Annotated[
        bool, typer.Option("--with-errors", help="Also the errors that were measured for the task.")
    ] = False,
    library: options.LibraryFolder = None,
    as_json: options.AsJson = False,
) -> None:
    """Remove a task with its embeddings, or one embedding."""
    with open_known(library) as opened:
        task = None
        with suppress(NotInLibraryError):  # then it is the key of an embedding
            task = opened.task(name)
        gone = opened.remove(name, with_errors=with_errors)
    if as_json:
        told = [tell_embedding(entry) for entry in gone]
        print_json({"task": tell_task(task) if task else None, "embeddings": told})
        return
    if task:
        print(f"removed: {printable(task.name)} ({task.fingerprint[:DIGITS]}), {pluralize(len(gone), 'embedding')}")
    for entry in gone:
        print(f"removed: embedding {entry.key[:DIGITS]} by {printable(entry.probe)}, {word_bytes(entry.bytes)}")


def tag(
    name: Name,
    tags: Annotated[list[str], typer.Argument(metavar="TAGS", help="One tag or more.")],
    remove: Annotated[bool, typer.Option("--remove", help="Take them away instead.")] = False,
    library: options.LibraryFolder = None,
    as_json: options.AsJson = False,
) -> None:
    """Give tags to a task, or take them away."""
    with open_known(library) as opened:
        task = opened.tag(name, *tags, remove=remove)
    if as_json:
        print_json(tell_task(task))
    else:
        print(f"{printable(task.name)}: {printable(', '.join(task.tags)) or 'no tags'}")


def rename(
    name: Name,
    new: Annotated[str, typer.Argument(metavar="NEW", help="What to call it from now on.")],
    library: options.LibraryFolder = None,
    as_json: options.AsJson = False,
) -> None:
    """Give a task another name."""
    with open_known(library) as opened:
        before, task = opened.task(name), opened.rename(name, new)
    if as_json:
        print_json(tell_task(task))
    else:
        print(f"{printable(before.name)} is called {printable(task.name)} now")
