"""Tasks: labelled images from any source, checked and decoded."""
# ruff: noqa: F401

from typing import TYPE_CHECKING

from task2vec.lazy import lazy_names

if TYPE_CHECKING:
    from task2vec.tasks.catalog import Catalog, TaskDefinition
    from task2vec.tasks.folder import read_folder, read_splits
    from task2vec.tasks.images import BadImage, Images
    from task2vec.tasks.published import read_catalog, recognize_layout
    from task2vec.tasks.source import join_tasks, to_task, to_tasks
    from task2vec.tasks.synthetic import draw_partitions, sample_tasks, toy_tasks
    from task2vec.tasks.table import read_table
    from task2vec.tasks.task import Task, draw_batches
    from task2vec.tasks.taxonomy import Taxonomy, read_taxonomy
    from task2vec.tasks.torch_dataset import from_dataset

__getattr__ = lazy_names(__name__)
