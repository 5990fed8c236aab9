"""Several tasks become one."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.check import quote, remark
from task2vec.tasks.cutting import inherit_warnings
from task2vec.tasks.images import JoinedImages, choose_images
from task2vec.tasks.task import Task

SameNames = Literal["merge", "apart"]
Conflicts = Literal["refuse", "keep"]


def join_tasks(
    tasks: Sequence[Task],
    *,
    classes: SameNames | None = None,
    conflicts: Conflicts = "refuse",
    name: str | None = None,
) -> Task:
    """The union of tasks: all their images, those that several of them share kept once.

    Images are the same if their content is (the bytes of files, the pixels of datasets). Multi-label tasks can be
    joined if they ask the same questions.

    Args:
        tasks: Two tasks or more, all single-label or all multi-label.
        classes: What classes of one name in two tasks are: "merge" for one class, "apart" for two, which are then
            called "task/class", as all classes are. Needed only if there are any.
        conflicts: What happens to an image that two tasks label differently: "refuse" all, or "keep" both and warn.
        name: What to call the union; the names of the tasks joined by " + " if not given.

    Raises:
        DataError: Two tasks label one image differently.
        UsageError: Nothing says what classes of one name are, or the tasks cannot be joined at all.

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
    _check_kind(tasks, classes, conflicts)
    if tasks[0].is_multilabel:
        names, numbered = _match_columns(tasks, classes)
    else:
        names, numbered = _number_classes(tasks, classes)
    kept = _keep_once(tasks, names, numbered, conflicts)
    images = JoinedImages(
        tuple(choose_images(task.images, rows) for task, rows in zip(tasks, kept, strict=True)),
        tuple(task.name for task in tasks),
    )
    targets = np.concatenate([rows_of[rows] for rows_of, rows in zip(numbered, kept, strict=True)])
    digests = tuple(task.digests[row] for task, rows in zip(tasks, kept, strict=True) for row in rows)
    shared = sum(map(len, tasks)) - len(digests)
    warnings = dict.fromkeys(warning for task in tasks for warning in inherit_warnings(task))
    if shared:
        warnings[f"images that several of the joined tasks share, kept once: {shared}"] = None
    return Task(
        " + ".join(task.name for task in tasks) if name is None else name,
        images,
        targets,
        tuple(names),
        digests,
        bad=tuple(dict.fromkeys(bad for task in tasks for bad in task.bad)),
        warnings=(*warnings, *remark(targets, names, digests, images.name)),
        source=" + ".join(dict.fromkeys(task.source for task in tasks)),
    )


def _check_kind(tasks: list[Task], classes: SameNames | None, conflicts: Conflicts) -> None:
    """Raise `UsageError` for arguments that name no way to join, and for tasks of two kinds."""
    if len(tasks) < 2:
        raise UsageError(f"join_tasks got {len(tasks)} tasks, and there is nothing to join. Pass two or more.")
    if classes not in (None, "merge", "apart") or conflicts not in ("refuse", "keep"):
        raise UsageError(
            f"classes={classes!r}, conflicts={conflicts!r} is no way to join tasks. Pass classes='merge' or 'apart', "
            "and conflicts='refuse' or 'keep'."
        )
    many = [task.name for task in tasks if task.is_multilabel]
    if many and len(many) < len(tasks):
        one = next(task.name for task in tasks if not task.is_multilabel)
        raise UsageError(
            f"'{one}' has one class per image and '{many[0]}' is multi-label, so their labels do not mean the same. "
            f"Take the one_vs_rest() tasks of '{many[0]}', or join tasks of one kind."
        )
    for task in tasks:
        twice = [kind for kind in dict.fromkeys(task.classes) if task.classes.count(kind) > 1]
        if twice:
            raise UsageError(
                f"'{task.name}' itself has several classes called {quote(twice)}, so a name does not say which one is "
                "meant. Give its classes names of their own when you read it."
            )


def _number_classes(tasks: list[Task], classes: SameNames | None) -> tuple[list[str], list[np.ndarray]]:
    """The classes of the union of single-label tasks, and every task's targets in their numbers."""
    tally = Counter(kind for task in tasks for kind in task.classes)
    shared = [kind for kind, count in tally.items() if count > 1]
    if classes is None and shared:
        raise UsageError(
            f"several tasks have classes of one name ({quote(shared)}), and it is not known whether they are the same "
            "thing. Pass classes='merge' if they are, classes='apart' if not."
        )
    names_of_tasks = [task.name for task in tasks]
    if classes == "apart" and len(set(names_of_tasks)) < len(tasks):
        raise UsageError(
            f"the tasks are called {quote(names_of_tasks)}: with one name twice, 'task/class' would not keep their "
            "classes apart. Rename one: dataclasses.replace(task, name=...)."
        )
    called = [[f"{task.name}/{kind}" if classes == "apart" else kind for kind in task.classes] for task in tasks]
    number = {kind: index for index, kind in enumerate(dict.fromkeys(kind for kinds in called for kind in kinds))}
    numbered = [
        np.array([number[kind] for kind in kinds])[task.targets] for task, kinds in zip(tasks, called, strict=True)
    ]
    return list(number), numbered


def _match_columns(tasks: list[Task], classes: SameNames | None) -> tuple[list[str], list[np.ndarray]]:
    """The columns of multi-label tasks in the order of the first; all must ask the same questions."""
    first = tasks[0]
    for task in tasks[1:]:
        other = sorted(set(first.classes) ^ set(task.classes))
        if other or classes == "apart":
            what = f"only one of them has {quote(other)}" if other else "classes='apart' makes them all different"
            raise UsageError(
                f"'{first.name}' and '{task.name}' do not ask the same questions ({what}): whether the images of one "
                "have the attributes of the other is not known. Keep common attributes with select(classes=...), and "
                "pass classes='merge'."
            )
    if classes is None:
        raise UsageError(
            f"the attributes of '{first.name}' occur in all tasks, and it is not known whether they mean the same. "
            "Pass classes='merge' if they do."
        )
    orders = [[task.classes.index(kind) for kind in first.classes] for task in tasks]
    return list(first.classes), [task.targets[:, order] for task, order in zip(tasks, orders, strict=True)]


def _keep_once(
    tasks: list[Task], names: list[str], numbered: list[np.ndarray], conflicts: Conflicts
) -> list[list[int]]:
    """The rows of every task that no earlier one has under the same label; a contradiction is refused if asked for."""
    known: dict[str, dict[bytes, tuple[int, int]]] = {}
    kept = []
    for part, (task, targets) in enumerate(zip(tasks, numbered, strict=True)):
        mine: dict[str, dict[bytes, tuple[int, int]]] = {}
        rows = []
        for row, digest in enumerate(task.digests):
            label = targets[row].tobytes()
            before = known.get(digest, {})
            if before and label not in before and conflicts == "refuse":
                raise DataError(_contradict(tasks, names, numbered, next(iter(before.values())), (part, row)))
            if label not in before:
                rows.append(row)
            mine.setdefault(digest, {}).setdefault(label, (part, row))
        for digest, labels in mine.items():
            known[digest] = {**labels, **known.get(digest, {})}
        kept.append(rows)
    return kept


def _contradict(
    tasks: list[Task], names: list[str], numbered: list[np.ndarray], one: tuple[int, int], other: tuple[int, int]
) -> str:
    """The message for one image under two labels."""
    shown = []
    for part, row in (one, other):
        label = numbered[part][row]
        kinds = [names[label]] if label.ndim == 0 else [names[column] for column in np.flatnonzero(label)]
        shown.append(f"{quote(kinds) or 'nothing'} in '{tasks[part].name}' ({tasks[part].images.name(row)})")
    return (
        f"one image has two labels: {shown[0]}, and {shown[1]}. Both cannot be right in one task. Correct one, leave "
        "the image out with subset(...), or pass conflicts='keep' to keep both with a warning."
    )
