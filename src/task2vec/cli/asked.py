"""What a word on the command line means: a task of the library, a saved embedding, or images yet to be embedded."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from task2vec.cli.shelf import open_if_any, place_of
from task2vec.cli.speech import visible
from task2vec.errors import NotInLibraryError

if TYPE_CHECKING:
    from task2vec.embedding import Embedding

NAME, FILE, PATH = "library", "file", "path"
EMBEDDING = ".safetensors"


@dataclass(frozen=True)
class Asked:
    """An embedding, whether it was named, saved or made, and that in words."""

    embedding: "Embedding"
    sort: str
    words: str


def recognise(query: str, library: Path | None) -> str:
    """Whether a task of the library, a saved embedding, or a folder or table is meant.

    What lies here is meant, unless it is a mere name, without a separator, and the library has a task of that name.
    """
    path = Path(query)
    if not path.exists():
        return NAME
    is_path = any(mark in query for mark in (os.sep, os.altsep) if mark) or query in (os.curdir, os.pardir)
    if not is_path and _has_name(query, library):
        return NAME
    return FILE if path.is_file() and path.suffix == EMBEDDING else PATH


def _has_name(query: str, library: Path | None) -> bool:
    opened = open_if_any(library)
    if opened is None:
        return False
    with opened:
        return any(task.name == query for task in opened.tasks())


def load_asked(query: str, sort: str, library: Path | None, *, probe: str | None, method: str | None) -> Asked:
    """The embedding of that name or file."""
    if sort == FILE:
        import task2vec

        return Asked(task2vec.load_embedding(query), FILE, f"the file '{visible(query)}'")
    opened = open_if_any(library)
    if opened is None:
        if query.endswith(EMBEDDING):
            raise _say_gone(query)
        raise NotInLibraryError(
            f"there is no folder or file '{query}' here, and no library in '{place_of(library)}' that could have a "
            "task of that name. Check its spelling, or embed a folder: task2vec embed FOLDER"
        )
    with opened:
        try:
            embedding = opened.get(query, probe=probe, method=method)
        except NotInLibraryError as error:
            if query.endswith(EMBEDDING):
                raise _say_gone(query) from error
            raise NotInLibraryError(f"{error} (Nor is there a folder or file '{query}' here.)") from error
    path = Path(query)
    other = f" (to mean the folder or file here: {os.path.join(os.curdir, query)})" if path.exists() else ""
    return Asked(embedding, NAME, f"a task of the library{visible(other)}")


def _say_gone(query: str) -> NotInLibraryError:
    """Of what is called like a file, and is none."""
    return NotInLibraryError(
        f"'{query}' is not there, and no task is called so. Check its spelling, and where you are."
    )
