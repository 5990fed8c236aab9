"""Batches of a collection: small tasks of some of its classes, each with a twin that asks the same about other images.

No image is in two batches. Batches that share images would look alike for that alone, and twins, which must not share
any, would then not tell the noise of the others.
"""

from dataclasses import replace

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.drawing import make_rng
from task2vec.tasks.task import Task

MOST_BATCHES = 20


def draw_batches(
    task: Task, batches: int | None = None, *, classes: int | None = 5, images: int = 10, seed: int = 0
) -> list[tuple[Task, Task]]:
    """Pairs of tasks: a batch of some classes, drawn at random, and its twin of the same classes and other images.

    The draw depends on the seed and on the content alone, not on the order of the images. Of identical images one
    counts.

    Args:
        task: the collection, with one label for each image.
        batches: how many; None takes as many as there are images for, 20 at most.
        classes: how many of its classes are in each batch; None takes all.
        images: of each class in a batch, and as many again in its twin.
        seed: of the draw.

    Example:
        >>> from task2vec import sample_tasks
        >>> digits = sample_tasks(images_per_task=100)[0]
        >>> [(batch, twin), *others] = draw_batches(digits, classes=4, images=2)
        >>> batch, twin.classes == batch.classes, len(others)
        (Task(digits batch 1, 8 images, 4 classes), True, 3)
    """
    _check(task, batches, classes, images)
    canonical = task.canonical()
    classes = len(task.classes) if classes is None else classes
    rng = make_rng(seed, f"batches of {classes} classes and {images} images")
    unique = np.unique(np.array(canonical.digests), return_index=True)[1]
    left = [rng.permutation(unique[canonical.targets[unique] == number]) for number in range(len(task.classes))]
    most = MOST_BATCHES if batches is None else batches
    drawn = []
    while len(drawn) < most:
        rich = [number for number, rows in enumerate(left) if len(rows) >= 2 * images]
        if len(rich) < classes:
            break
        chosen = rng.choice(rich, classes, replace=False)
        name = f"{task.name} batch {len(drawn) + 1}"
        rows = [np.sort(np.concatenate([left[n][part : 2 * images : 2] for n in chosen])) for part in (0, 1)]
        batch, twin = (canonical.subset(part) for part in rows)
        drawn.append((replace(batch, name=name), replace(twin, name=f"{name}, twin")))
        for number in chosen:
            left[number] = left[number][2 * images :]
    if not drawn or (batches is not None and len(drawn) < batches):
        raise DataError(
            f"'{task.name}' ({len(task)} images of {len(task.classes)} classes) is enough for {len(drawn)} batches: "
            f"each takes {classes} classes with twice {images} images, and no image is in two. Ask for fewer batches "
            "(--batches), classes (--classes) or images of a class (--per-class)."
        )
    return drawn


def _check(task: Task, batches: int | None, classes: int | None, images: int) -> None:
    if task.is_multilabel:
        raise UsageError(
            f"'{task.name}' has several labels for an image, so it cannot be cut into batches of some classes. Choose "
            "one attribute of it: select(classes=[...]), or one_vs_rest()."
        )
    if classes is not None and not 2 <= classes <= len(task.classes):
        raise UsageError(
            f"classes={classes} (--classes) of the {len(task.classes)} of '{task.name}' make no batch: a question has "
            f"two answers or more. Ask for 2 to {len(task.classes)}."
        )
    if images < 1 or (batches is not None and batches < 1):
        raise UsageError(
            f"{batches} batches (--batches) of {images} images per class (--per-class) cannot be drawn: a batch has at "
            "least one image of each class. Leave them out, or use larger numbers."
        )
