"""A library: tasks, their embeddings, experts and measured errors in one SQLite file.

Names are imported on first use: listing a library imports no torch.
"""
# ruff: noqa: F401

from typing import TYPE_CHECKING

from task2vec.lazy import lazy_names

if TYPE_CHECKING:
    from task2vec.library.database import find_library, has_library
    from task2vec.library.entries import EmbeddingEntry, Expert, MeasuredError, TaskEntry, check_tags, identify
    from task2vec.library.library import Library

__getattr__ = lazy_names(__name__)
