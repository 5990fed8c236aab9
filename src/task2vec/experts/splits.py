"""Which images of a task train a linear classifier, and which test it.

All of it is decided by the seed and the content of the images, by SHA-256: not by their order, the names and numbers of
classes, or the version of a random generator.
"""

import hashlib

import numpy as np

from task2vec.errors import DataError
from task2vec.experts.protocols import Size
from task2vec.tasks import Task, choose_half


def choose_test_half(task: Task, seed: int) -> np.ndarray:
    """A mask of the test images: half of those of each class, one less than the training images if they are odd.

    Identical copies are all on one side. A class with a single image is trained on and not tested, and so are identical
    images under different labels. Attributes keep both answers on both sides.

    Example:
        >>> from task2vec import sample_tasks
        >>> digits = sample_tasks(images_per_task=40)[0]
        >>> int(choose_test_half(digits, seed=0).sum())
        20
    """
    is_test = choose_half(task, seed)
    if not is_test.any():
        raise DataError(
            f"'{task.name}' has no class with two different images, so none is left to test on once every class has "
            "one to learn from. Add images, or leave the task out."
        )
    return is_test


def choose_training(task: Task, is_test: np.ndarray, *, train: Size, seed: int) -> np.ndarray:
    """A mask of the training images among those that are not tested: all, or `train` different ones of each class.

    A class that has fewer gives all it has. For attributes, images are taken in the order of the draw if they answer
    some attribute in a way that fewer than `train` images before them did. With one label per image, a smaller draw is
    a part of a larger one of the same seed.
    """
    if train == "half":
        return ~is_test
    chosen = np.zeros(len(task), dtype=bool)
    # One copy stands for all: others would add weight and no picture.
    order = [row for row in _first_copies(task, _rank(task, seed)) if not is_test[row]]
    if task.is_multilabel:
        answers = np.hstack([task.targets == 1, task.targets == 0])
        seen = np.zeros(answers.shape[1], dtype=np.int64)
        for row in order:
            if (answers[row] & (seen < train)).any():
                chosen[row] = True
                seen += answers[row]
        return chosen
    seen = np.zeros(len(task.classes), dtype=np.int64)
    for row in order:
        if seen[task.targets[row]] < train:
            chosen[row] = True
            seen[task.targets[row]] += 1
    return chosen


def _rank(task: Task, seed: int) -> list[int]:
    """The images in the order of the draw; copies in the order of the task."""
    hashes = [hashlib.sha256(f"draw {seed} {digest}".encode()).digest() for digest in task.digests]
    return sorted(range(len(task)), key=hashes.__getitem__)


def _first_copies(task: Task, order: list[int]) -> list[int]:
    """The images without later copies of the same content and label."""
    seen: set[tuple[str, bytes]] = set()
    kept = []
    for row in order:
        content = (task.digests[row], task.targets[row].tobytes())
        if content not in seen:
            seen.add(content)
            kept.append(row)
    return kept
