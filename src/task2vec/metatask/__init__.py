"""Meta-tasks: tasks, models and all measured errors as one value, and the views of it that strategies read.

Names are imported on first use: a meta-task is read without torch.
"""
# ruff: noqa: F401

from typing import TYPE_CHECKING

from task2vec.lazy import lazy_names

if TYPE_CHECKING:
    from task2vec.metatask.bundled import bundled_metatask, list_bundled
    from task2vec.metatask.info import CellFailure, ModelInfo, TaskInfo, find_free_name
    from task2vec.metatask.merge import describe_entry, list_library_errors, metatask_from_library
    from task2vec.metatask.metatask import MetaTask, build_metatask, find_protocol, find_shots, hide_test, load_metatask
    from task2vec.metatask.spaces import format_space, image_size, is_comparable
    from task2vec.metatask.view import DOMAIN, SYMMETRIC, Query, View, measure_all

__getattr__ = lazy_names(__name__)
