"""The union of tasks, which refers to the images of the tasks it comes from."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Literal

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.images import ChosenImages
from task2vec.tasks.task import Task
from task2vec.text import quote


def join_tasks(
    tasks: Sequence[Task], *, classes: Literal["merge", "apart"] | None = None, name: str | None = None
) -> Task:
    """The union of tasks: all their images, those that several of them share kept once.

    Images are the same if their content is (the bytes of files, the pixels of datasets). Multi-label tasks can be
    joined if they have the same attributes.

    Args:
        tasks: Two tasks or more, all single-label or all multi-label.
        classes: What classes of one name in two tasks are: "merge" for one class, "apart" for two, which are then
            called "task/class", as all classes are. Needed only if there are any.
        name: The name of the union; the names of the tasks joined by " + " if not given.

    Raises:
        DataError: Two tasks label one image differently.
        UsageError: It is unclear whether classes of one name are the same, or the tasks cannot be joined at all.

    Example:
        >>> import task2vec as t2v
        >>> train, test = t2v.sample_tasks(images_per_task=40)[0].split()
        >>> join_tasks([train, test], classes="merge", name="digits")
        Task(digits, 40 images, 10 classes)
        >>> shapes = t2v.sample_tasks(images_per_task=40)[2]
        >>> join_tasks([train, shapes]).name
        'digits (train) + shapes'
    """
    tasks = list(tasks)
    if len(tasks) < 2 or classes not in (None, "merge", "apart"):
        given = f"{len(tasks)} tasks and classes={classes!r}"
        raise UsageError(f"join_tasks got {given}. Pass two tasks or more, and 'merge', 'apart' or no classes.")
    names, numbered = _number_classes(tasks, classes)
    places = _keep_once(tasks, names, numbered)
    notes = list(dict.fromkeys(note for task in tasks for note in task.notes))
    if shared := sum(map(len, tasks)) - len(places):
        notes.append(f"images that several of the joined tasks share, kept once: {shared}")
    return Task(
        " + ".join(task.name for task in tasks) if name is None else name,
        ChosenImages(tuple(task.images for task in tasks), places, tuple(f"{task.name}: " for task in tasks)),
        np.array([numbered[part][row] for part, row in places]),
        tuple(names),
        tuple(tasks[part].digests[row] for part, row in places),
        tuple(dict.fromkeys(bad for task in tasks for bad in task.bad)),
        tuple(notes),
        " + ".join(dict.fromkeys(task.source for task in tasks)),
    )


def _number_classes(tasks: list[Task], classes: str | None) -> tuple[list[str], list[np.ndarray]]:
    """The classes of the union, and the targets of every task in their numbers; unclear names are refused."""
    first, names = tasks[0], [task.name for task in tasks]
    every = Counter(kind for task in tasks for kind in task.classes)
    shared = [kind for kind, times in every.items() if times > 1]
    differing = [kind for kind, times in every.items() if times != len(tasks)]
    wrong = ""
    if len({task.is_multilabel for task in tasks}) > 1:
        wrong = "are partly single-label and partly multi-label. Use the one_vs_rest() tasks, or join tasks of one kind"
    elif any(len(set(task.classes)) < len(task.classes) for task in tasks):
        wrong = f"have a task with several classes of one name, among {quote(shared)}. Rename them when you read it"
    elif classes == "apart" and len(set(names)) < len(names):
        wrong = "have equal names, so 'task/class' is ambiguous. Rename one: dataclasses.replace(task, name=...)"
    elif first.is_multilabel and (differing or classes == "apart"):
        what = f"only some have {quote(differing)}" if differing else "classes='apart' makes them all different"
        wrong = f"do not have the same attributes ({what}). Keep common ones with select(...), and pass classes='merge'"
    elif classes is None and shared:
        wrong = f"have classes of one name ({quote(shared)}). Pass classes='merge' if they are the same, else 'apart'"
    if wrong:
        raise UsageError(f"cannot join the tasks {quote(names)}: they {wrong}.")
    if first.is_multilabel:
        return list(first.classes), [task.targets[:, list(map(task.classes.index, first.classes))] for task in tasks]
    called = [[f"{task.name}/{kind}" if classes == "apart" else kind for kind in task.classes] for task in tasks]
    union = list(dict.fromkeys(chain.from_iterable(called)))
    number = {kind: index for index, kind in enumerate(union)}
    renumbered = [np.array([number[kind] for kind in kinds]) for kinds in called]
    return union, [numbers[task.targets] for numbers, task in zip(renumbered, tasks, strict=True)]


def _keep_once(tasks: list[Task], names: list[str], numbered: list[np.ndarray]) -> list[tuple[int, int]]:
    """Task and row of every image that no earlier task has; an image that two tasks label differently is refused.

    Copies within a task are kept, whatever their labels.
    """

    def show(part: int, row: int) -> str:
        label = np.atleast_1d(numbered[part][row])
        numbers = np.flatnonzero(label) if tasks[part].is_multilabel else label
        kinds = quote([names[number] for number in numbers]) or "nothing"
        return f"{kinds} in '{tasks[part].name}' ({tasks[part].images.name(row)})"

    places: list[tuple[int, int]] = []
    known: dict[str, dict[bytes, tuple[int, int]]] = {}
    for part, task in enumerate(tasks):
        for row, digest in enumerate(task.digests):
            label, seen = numbered[part][row].tobytes(), known.setdefault(digest, {})
            first = next(iter(seen.values()), (part, row))
            if first[0] == part:
                places.append((part, row))
                seen.setdefault(label, (part, row))
            elif label not in seen:
                raise DataError(
                    f"one image has two labels: {show(*first)}, and {show(part, row)}. Correct one, or leave the image "
                    "out with subset(...)."
                )
    return places
