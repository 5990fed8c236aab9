"""Figures on disk: matplotlib when it is there, pictures that are whole or absent."""

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from task2vec.errors import MissingExtraError, ResourceError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def import_figure() -> "type[Figure]":
    """The class of figures that needs no display and no pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "drawing needs matplotlib, which is not installed here. Install it: pip install 'task2vec[plot]'"
        ) from error
    return Figure


def save_picture(figure: "Figure", path: Path) -> Path:
    """Writes the picture in the format of its suffix, and returns its path."""
    picture = io.BytesIO()
    kind = path.suffix.lower().lstrip(".")
    # Nothing of the moment goes into the file, so the same figure gives the same bytes.
    metadata = {"CreationDate": None} if kind == "pdf" else None
    with missing_glyphs():
        figure.savefig(picture, format=kind, metadata=metadata)
    write_whole(path, picture.getvalue())
    return path


@contextmanager
def missing_glyphs() -> Iterator[None]:
    """Drawing, without a warning for a name in a script that has no font here: boxes are fine."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def write_whole(path: Path, content: bytes) -> None:
    """Writes the file beside its place and moves it there, so that it is whole or absent."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        with open(unfinished, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ResourceError(
            f"cannot write '{path}': {error.strerror or error}. Nothing was left behind. "
            f"Choose a folder that exists and may be written to."
        ) from error


def make_folder(folder: str | Path) -> Path:
    """The folder, made if it is not there."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(
            f"cannot make the folder '{folder}': {error.strerror}. What this command makes goes there. "
            "Choose another: --out DIR"
        ) from error
    return folder
