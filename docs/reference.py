"""The reference of all public names, made by pdoc from their docstrings.

    python docs/reference.py site

Public names are resolved on first use, so pdoc, which looks at what a module holds, is shown a module that holds them.
"""

import sys
from pathlib import Path

import pdoc

import task2vec

# Rooms that are public as a whole: their pages stand beside that of the package.
ROOMS = ("task2vec.distance", "task2vec.errors")


def build(folder: Path) -> None:
    """Write the pages into a folder."""
    for name in task2vec.__all__:
        setattr(task2vec, name, getattr(task2vec, name))
    pdoc.render.configure(docformat="google", show_source=False, search=True)
    pdoc.pdoc("task2vec", *(f"!task2vec.{room}" for room in _inner_rooms()), output_directory=folder)


def _inner_rooms() -> list[str]:
    """The rooms that nobody imports by name."""
    here = Path(task2vec.__file__).parent
    rooms = [place.name for place in here.iterdir() if (place / "__init__.py").exists()]
    return sorted(room for room in rooms if f"task2vec.{room}" not in ROOMS)


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else "site"))
