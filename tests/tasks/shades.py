"""Tasks of one-grey images: enough to tell content, order and labels apart without a file."""

import hashlib
from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from PIL import Image

from task2vec.tasks import Task

# Enough examples for mutants to die; no deadline, since a busy machine is not an error.
few = settings(max_examples=30, deadline=None)


@dataclass(frozen=True)
class Shades:
    """Images of one grey each: enough to tell them apart."""

    shades: tuple[int, ...]
    is_threadsafe: bool = True

    def __len__(self):
        return len(self.shades)

    def load(self, index):
        return Image.new("RGB", (2, 2), (self.shades[index],) * 3)

    def name(self, index):
        return f"shade {self.shades[index]}"


def make_task(shades, targets, classes, **options) -> Task:
    digests = tuple(hashlib.sha256(bytes([shade])).hexdigest() for shade in shades)
    return Task("shades", Shades(tuple(shades)), np.asarray(targets), tuple(classes), digests, **options)


def contents(task: Task) -> tuple:
    """Everything that a computation could see of a task."""
    pictures = [task.images.load(index).getpixel((0, 0)) for index in range(len(task))]
    return pictures, task.targets.tolist(), task.digests, task.targets.dtype


def facts(task: Task) -> list[tuple[str, str]]:
    """Every image with the name of its class."""
    return [(task.images.name(row), task.classes[label]) for row, label in enumerate(task.targets.tolist())]
