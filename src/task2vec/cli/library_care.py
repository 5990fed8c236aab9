"""`task2vec library verify | repair | compact | check-search`: is all of it whole, and is it found."""

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from task2vec.cli import options
from task2vec.cli.library import word_bytes, word_space
from task2vec.cli.shelf import is_library, open_known, place_of, word_none
from task2vec.cli.speech import is_watched, name_library, print_json, say
from task2vec.errors import LibraryError, UsageError
from task2vec.text import format_percent, pluralize, printable

if TYPE_CHECKING:
    from task2vec.library.search import SearchReport

MEND_ENTRY = "An entry is mended by the task itself (task2vec embed FOLDER) or a good copy (task2vec library add FILE)."
MEND_EXPERT = (
    "Put the file back, train it again (task2vec train-expert FOLDER), or take the expert out: "
    "task2vec library rm-expert NAME"
)
MEND_INDEX = "To copy everything readable into a new file: task2vec library repair"


def verify(library: options.LibraryFolder = None, as_json: options.AsJson = False) -> None:
    """Read everything, and name what is damaged.

    The exit code is 4 if anything is. Files of experts lie elsewhere: those that are missing or changed are named, and
    do no damage to the library.
    """
    from task2vec.progress import show_progress

    with open_known(library) as opened, show_progress(is_watched()) as report:
        found, folder = opened.verify(report=report), str(opened.folder)
    is_sound, problems = found.is_sound, [asdict(problem) for problem in found.problems]
    if as_json:
        told = {"library": folder, "is_sound": is_sound, "entries": found.entries}
        told |= {"problems": problems, "experts": [asdict(problem) for problem in found.experts]}
        print_json(told)
    else:
        for problem in problems:
            say(f"damaged: {printable(problem['entry'])}: {printable(problem['what'])}")
        state = "sound" if is_sound else f"{pluralize(len(problems), 'problem')}"
        without = f", {pluralize(len(found.experts), 'expert')} without its file" if found.experts else ""
        print(f"{state}: {pluralize(found.entries, 'embedding')} read in {printable(folder)}{without}")
        of_index = any(problem["entry"] == "library" for problem in problems)
        if any(problem["entry"] != "library" for problem in problems):
            say(MEND_ENTRY)
        for problem in found.experts:
            say(f"warning: expert {printable(problem.entry)}: {printable(problem.what)}")
        if found.experts:
            say(MEND_EXPERT)
        if of_index:
            say(MEND_INDEX)
    if not is_sound:
        raise typer.Exit(LibraryError.exit_code)


def repair(library: options.LibraryFolder = None, as_json: options.AsJson = False) -> None:
    """Copy everything readable into a new file.

    The damaged file is kept in the folder `backups`. What could not be read is named (exit code 4). Nobody else may use
    the library meanwhile.
    """
    from task2vec.library import Library
    from task2vec.progress import show_progress

    if not is_library(library):
        raise UsageError(word_none(library))
    with show_progress(is_watched()) as report:
        found = Library.repair(library, report=report)
    if as_json:
        told = {"library": str(place_of(library)), "embeddings": found.embeddings}
        print_json(told | {"lost": list(found.lost), "kept": str(found.kept)})
    else:
        print(
            f"{pluralize(found.embeddings, 'embedding')} in the new file; the damaged one is in {printable(found.kept)}"
        )
        for lost in found.lost:
            say(f"lost: {printable(lost)}")
    if found.lost:
        raise typer.Exit(LibraryError.exit_code)


def compact(library: options.LibraryFolder = None, as_json: options.AsJson = False) -> None:
    """Free the space of removed entries."""
    from task2vec.progress import show_progress

    with open_known(library) as opened, show_progress(is_watched()) as report:
        sizes, folder = opened.compact(report=report), str(opened.folder)
    if as_json:
        print_json({"library": folder, **sizes})
    else:
        before, after = (word_bytes(sizes[name]) for name in ("before", "after"))
        print(f"{before} before, {after} now; in {printable(folder)}")


def check_search(
    refit: Annotated[bool, typer.Option("--refit", help="Make the sketches anew first, from today's tasks.")] = False,
    queries: Annotated[int, typer.Option(help="How many tasks are asked for their neighbours.")] = 50,
    library: options.LibraryFolder = None,
    as_json: options.AsJson = False,
) -> None:
    """Tell how many true neighbours are found, and how fast.

    Up to 2,000 embeddings everything is compared, and nothing is missed.
    """
    if queries < 1:
        raise UsageError(f"--queries {queries} asks for nothing. Give 1 or more, or leave it out.")
    from task2vec.progress import show_progress

    with open_known(library) as opened, show_progress(is_watched()) as report:
        if refit:
            opened.refit_search(report=report)
        found = opened.check_search(queries=queries, report=report)
    if as_json:
        print_json({"spaces": [{**space, **_tell(result)} for space, result in found]})
        return
    if not found:
        print("There is no embedding in the library, so there is nothing to search.")
    for space, result in found:
        print(f"{word_space(space)}: {pluralize(result.entries, 'embedding')}")
        print(f"  finds {format_percent(result.recall)} of the 10 nearest of {pluralize(result.queries, 'task')}")
        print(f"  {1000 * result.seconds_sketch:.1f} ms each; comparing all, {1000 * result.seconds_exact:.1f} ms")
        print(f"  {name_library(printable(result.advice))}")


def _tell(result: "SearchReport") -> dict[str, Any]:
    """The figures as plain values; JSON knows no NaN."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in asdict(result).items()
    }
