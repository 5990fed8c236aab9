"""`task2vec library export | import | merge`: libraries are shared."""

import re
from pathlib import Path
from typing import Annotated

import typer

from task2vec.cli import options
from task2vec.cli.library import word_bytes
from task2vec.cli.shelf import open_known
from task2vec.cli.speech import is_watched, print_json, say
from task2vec.errors import ConflictError, UsageError
from task2vec.text import pluralize, printable

# What the library advises to others: `import` has no such option.
_ADVICE = re.compile(r" To take the new one(?: instead)?: .*$|, or put it in its place: .*$")
MEND_CONFLICT = (
    "What was here stays. To take another embedding instead, saved as FILE: task2vec library add FILE --force"
)


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write, for instance team.t2vlib.")],
    tag: Annotated[str | None, typer.Option(help="Only tasks with this tag, and what was measured for them.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file.")] = False,
    library: options.LibraryFolder = None,
    as_json: options.AsJson = False,
) -> None:
    """Write all, or the tasks with a tag, to one file.

    Others can import it. Where the images of a task lie on this machine is not told in it.
    """
    if file.is_dir():
        raise UsageError(f"'{file}' is a folder, and a library is exported to a file: {file / 'tasks.t2vlib'}")
    if file.exists() and not force:
        raise UsageError(f"'{file}' exists, and would be lost. Choose another name, or overwrite it with --force.")
    from task2vec.progress import show_progress

    with open_known(library) as opened, show_progress(is_watched()) as report:
        chosen = opened.tasks(tag=tag)
        if tag is not None and not chosen:
            raise UsageError(f"no task has the tag '{tag}', so nothing would be exported. See: task2vec library ls")
        place = opened.export(file, tag=tag, report=report)
    told = {"tasks": len(chosen), "embeddings": sum(len(task.embeddings) for task in chosen)}
    told |= {"bytes": place.stat().st_size}
    if as_json:
        print_json({"written": str(place), **told})
    else:
        counts = f"{pluralize(told['tasks'], 'task')}, {pluralize(told['embeddings'], 'embedding')}"
        print(f"{counts}, {word_bytes(told['bytes'])}: {printable(place)}")


def import_tasks(
    origin: Annotated[
        Path, typer.Argument(metavar="FILE OR FOLDER", help="An exported file, or the folder of another library.")
    ],
    library: options.LibraryFolder = None,
    as_json: options.AsJson = False,
) -> None:
    """Take in an exported file, or another library.

    What is new is added. All of it is checked before anything is taken. What is here under the same key with another
    content stays as it is and is named (exit code 3).
    """
    if not origin.exists():
        raise UsageError(f"'{origin}' is not there, so nothing can be taken from it. Check its spelling.")
    from task2vec.library import Library
    from task2vec.progress import show_progress

    with Library.open(library) as opened, show_progress(is_watched()) as report:
        merged, folder = opened.merge(origin, report=report), str(opened.folder)
    conflicts = [_ADVICE.sub("", conflict) for conflict in merged.conflicts]
    if as_json:
        told = {"added": merged.added, "known": merged.known, "conflicts": conflicts}
        print_json({"library": folder, "origin": str(origin), **told})
    else:
        new = [pluralize(count, kind) for kind, count in merged.added.items() if count]
        print(f"{', '.join(new) or 'nothing'} added, {merged.known} known; in {printable(folder)}")
        for conflict in conflicts:
            say(f"conflict: {printable(conflict)}")
        if conflicts:
            say(MEND_CONFLICT)
    if conflicts:
        raise typer.Exit(ConflictError.exit_code)
