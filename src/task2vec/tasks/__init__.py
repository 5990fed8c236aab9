"""Tasks: sources of labelled images become a checked `Task` of decoded images."""

from task2vec.tasks.catalogue import Catalogue
from task2vec.tasks.dataset import from_dataset
from task2vec.tasks.definitions import TaskDefinition
from task2vec.tasks.folder import read_folder
from task2vec.tasks.images import BadImage, Images
from task2vec.tasks.table import read_table
from task2vec.tasks.task import Task

__all__ = [
    "BadImage",
    "Catalogue",
    "Images",
    "Task",
    "TaskDefinition",
    "from_dataset",
    "read_folder",
    "read_table",
]
