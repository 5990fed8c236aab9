"""A folder that keeps every task and expert: embeddings in blobs, all else in an index.

Names are resolved on first use: listing a library imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from task2vec.library.entries import Added, EmbeddingEntry, Expert, MeasuredError, Neighbour, RunEntry, TaskEntry
    from task2vec.library.library import Library
    from task2vec.library.place import find_library

__all__ = [
    "Added",
    "EmbeddingEntry",
    "Expert",
    "Library",
    "MeasuredError",
    "Neighbour",
    "RunEntry",
    "TaskEntry",
    "find_library",
]

_FILES = {"Library": "library", "find_library": "place"}


def __getattr__(name: str) -> object:
    """The public name, from its file."""
    if name not in __all__:
        raise AttributeError(f"module 'task2vec.library' has no attribute {name!r}")
    return getattr(import_module(f"task2vec.library.{_FILES.get(name, 'entries')}"), name)
