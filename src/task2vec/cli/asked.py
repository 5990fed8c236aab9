"""What a word on the command line means: a task of the library, a saved embedding, or images yet to be embedded."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from task2vec.cli.shelf import open_if_any, place_of
from task2vec.errors import AmbiguousNameError, NotInLibraryError, UsageError
from task2vec.text import printable

if TYPE_CHECKING:
    from task2vec.embedding import Embedding
    from task2vec.library import Library

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


def load_asked(
    query: str, sort: str, library: Path | None, *, probe: str | None, method: str | None, size: int | None = None
) -> Asked:
    """The embedding of that name or file; of a task that has several, the one by this probe, method and image size."""
    if sort == FILE:
        import task2vec

        return Asked(task2vec.load_embedding(query), FILE, f"the file '{printable(query)}'")
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
            embedding = _get(opened, query, probe=probe, method=method, size=size)
        except NotInLibraryError as error:
            if query.endswith(EMBEDDING):
                raise _say_gone(query) from error
            raise NotInLibraryError(f"{error} (Nor is there a folder or file '{query}' here.)") from error
    path = Path(query)
    other = f" (to mean the folder or file here: {os.path.join(os.curdir, query)})" if path.exists() else ""
    return Asked(embedding, NAME, f"a task of the library{printable(other)}")


def _get(library: "Library", query: str, *, probe: str | None, method: str | None, size: int | None) -> "Embedding":
    """The embedding of a task; the index does not know the size of images, so all that may be meant are opened."""
    if size is None:
        return library.get(query, probe=probe, method=method)
    try:
        found = [library.get(query, probe=probe, method=method)]
    except AmbiguousNameError:
        entries = [
            entry
            for entry in library.task(query).embeddings
            if (probe is None or probe == entry.probe or entry.probe_fingerprint.startswith(probe))
            and method in (None, entry.settings.get("method"))
        ]
        found = [library.get(entry.key) for entry in entries]
    fitting = [one for one in found if size_of(one) == size]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise AmbiguousNameError(
            f"'{query}' has {len(fitting)} embeddings of images of {size} pixels, so it is unclear which is meant. "
            "Choose by --probe and --method, too."
        )
    sizes = ", ".join(sorted({str(size_of(one) or "unknown") for one in found}))
    raise UsageError(
        f"'{query}' has no embedding of images of {size} pixels, so there is nothing to take. Choose another --size: "
        f"{sizes}"
    )


def size_of(embedding: "Embedding") -> int | None:
    """The side of the images in pixels, if the embedding tells it."""
    told = embedding.provenance.get("image_size")
    return told[0] if isinstance(told, list) and told and isinstance(told[0], int) else None


def _say_gone(query: str) -> NotInLibraryError:
    """Of what is called like a file, and is none."""
    return NotInLibraryError(
        f"'{query}' is not there, and no task is called so. Check its spelling, and where you are."
    )
