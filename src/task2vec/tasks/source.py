"""Any source of labelled images becomes a task, and several become their union.

Every public function that takes a task calls `to_task`.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.columns import SUFFIXES, HuggingFaceFilesError, is_frame
from task2vec.tasks.folder import read_folder
from task2vec.tasks.huggingface import from_huggingface
from task2vec.tasks.images import ChosenImages
from task2vec.tasks.published import recognize_layout
from task2vec.tasks.table import read_table
from task2vec.tasks.task import Task, concatenate_groups
from task2vec.tasks.torch_dataset import from_dataset
from task2vec.text import quote

SOURCES = (
    "a folder or table (its path), a pandas or polars frame, a dict of columns or from classes to images, a Hugging "
    "Face or torch dataset, (paths, labels), (images, labels), or a list of such pairs"
)


def to_task(
    source: Any,
    *,
    name: str | None = None,
    allow_bad: bool = False,
    num_workers: int | None = None,
    progress: bool = False,
) -> Task:
    """The task of anything that holds labelled images; its first note says how it was read.

    Every function of this package that takes a task takes these, too. The readers (`read_folder`, `read_table`,
    `from_huggingface`, `from_dataset`) have more options.

    Args:
        source: A task; the path of a folder, a table or a Hugging Face dataset; a pandas or polars frame, a dict of
            columns, or a dict from classes to images; a Hugging Face or torch dataset; (paths, labels), (images,
            labels), or a list of such pairs. Paths in memory are relative to the current folder and may name any file.
        name: The name of the task; that of the folder, the file or the dataset if not given.
        allow_bad: Continue if more than 5% of the images cannot be read.
        num_workers: Threads that decode; by default chosen from the number of CPU cores. The task is the same.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        DataError: It is not a task, or too many of its images cannot be read.
        UsageError: It is none of these, or has several tasks.

    Example:
        >>> from PIL import Image
        >>> images = [Image.new("L", (8, 8), shade) for shade in range(4)]
        >>> task = to_task((images, ["dawn", "dusk", "dusk", "dawn"]), name="skies")
        >>> task, task.notes
        (Task(skies, 4 images, 2 classes), ('read as a list of images and labels',))
    """
    if isinstance(source, Task):
        return source
    simple: dict[str, Any] = {"name": name, "allow_bad": allow_bad, "progress": progress}
    options: dict[str, Any] = {**simple, "num_workers": num_workers}
    kind = type(source).__name__
    if isinstance(source, str | os.PathLike):
        form, task = _read_path(Path(source).expanduser(), options)
    elif _is_huggingface(source):
        form, task = f"a Hugging Face {kind}", from_huggingface(source, **options)
    elif is_frame(source):
        form, task = f"a table ({kind})", read_table(source, **options)
    elif isinstance(source, list) and source and all(isinstance(item, dict) for item in source):
        columns = {key: [item.get(key) for item in source] for key in source[0]}
        form, task = "a list of rows", read_table(columns, **options)
    elif isinstance(source, list | tuple):
        images, labels = _split_pairs(source)
        kind = "paths" if isinstance(images[0], str | os.PathLike) else "images"
        form, task = f"a list of {kind} and labels", read_table({"path": images, "label": labels}, **options)
    elif hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        form, task = f"a dataset of images and labels ({kind})", from_dataset(source, **simple)
    else:
        raise UsageError(f"a {kind} holds no labelled images that can be read in any order. Pass {SOURCES}.")
    return replace(task, notes=(f"read as {form}", *task.notes))


def to_tasks(sources: Any, **options: Any) -> tuple[Task, ...]:
    """The tasks of several sources, or of a single one that is not a list; options are those of `to_task`."""
    if isinstance(sources, Task | str | os.PathLike) or _is_huggingface(sources) or is_frame(sources):
        sources = [sources]
    if not isinstance(sources, Iterable):
        raise UsageError(f"a {type(sources).__name__} is not a list of tasks. Pass tasks, or for each {SOURCES}.")
    return tuple(to_task(source, **options) for source in sources)


def _is_huggingface(source: Any) -> bool:
    return type(source).__module__.partition(".")[0] == "datasets"


def _read_path(path: Path, options: dict[str, Any]) -> tuple[str, Task]:
    """The form of the data at a path, and its task."""
    layout = recognize_layout(path) if path.is_dir() else None
    if layout is not None:
        raise UsageError(
            f"{path} is {layout}, a dataset of many tasks. Pass one of them: read_catalog({str(path)!r}).task(NAME)."
        )
    if path.suffix == ".safetensors":
        raise UsageError(
            f"{path} is an embedding or weights, and has no images. Pass a folder or table, or read it: "
            f"load_embedding({str(path)!r})."
        )
    try:
        if path.suffix.lower() in SUFFIXES and not path.is_dir():
            return "a table", read_table(path, **options)
        return "a folder", read_folder(path, **options)
    except HuggingFaceFilesError:
        return "a Hugging Face dataset", from_huggingface(path, **options)


def _split_pairs(source: Any) -> tuple[Sequence[Any], list[Any]]:
    """Images and labels, of (images, labels) or of a list of pairs."""
    lengths = {
        0 if isinstance(item, str | os.PathLike) or not hasattr(item, "__len__") else len(item) for item in source
    }
    is_columns = len(source) == 2 and (isinstance(source, tuple) or lengths != {2})
    if not source or 0 in lengths or not (is_columns or lengths == {2}):
        raise UsageError(
            f"a {type(source).__name__} of {len(source)} is neither (images, labels) nor pairs of these, so images "
            f"have no labels. Pass {SOURCES}; embed_many takes several tasks."
        )
    images, labels = source if is_columns else zip(*source, strict=True)
    if len(images) != len(labels):
        raise UsageError(f"{len(images)} images and {len(labels)} labels: it is unclear which belong together.")
    return images, [label.tolist() if hasattr(label, "tolist") else label for label in labels]


# --- joins ------------------------------------------------------------------------------------------------------------


def join_tasks(tasks: Sequence[Any], *, merge_classes: bool = False, name: str | None = None) -> Task:
    """The union of tasks: all their images, those that several of them share kept once.

    Images are the same if their pixels are. Multi-label tasks can be joined if they have the same attributes.

    Args:
        tasks: Two tasks or more, or anything that `to_task` accepts, all single-label or all multi-label.
        merge_classes: Merge classes with the same name. If they are different classes, rename them first.
        name: The name of the union; the names of the tasks joined by " + " if not given.

    Raises:
        DataError: Two tasks label one image differently.
        UsageError: It is unclear whether classes of one name are the same, or the tasks cannot be joined at all.

    Example:
        >>> import task2vec as t2v
        >>> train, test = t2v.sample_tasks(images_per_task=40)[0].split()
        >>> join_tasks([train, test], merge_classes=True, name="digits")
        Task(digits, 40 images, 10 classes)
        >>> shapes = t2v.sample_tasks(images_per_task=40)[2]
        >>> join_tasks([train, shapes]).name
        'digits (train) + shapes'
    """
    tasks = list(to_tasks(tasks))
    if len(tasks) < 2:
        raise UsageError(f"{len(tasks)} tasks cannot be joined. Pass two tasks or more, in a list.")
    classes, targets = _number_classes(tasks, merge_classes)
    kept = _keep_once(tasks, classes, targets)
    notes = list(dict.fromkeys(note for task in tasks for note in task.notes))
    if shared := sum(map(len, tasks)) - len(kept):
        notes.append(f"images that several of the joined tasks share, kept once: {shared}")
    groups, starts = concatenate_groups(tasks), np.cumsum([0, *map(len, tasks)])
    return Task(
        name=" + ".join(task.name for task in tasks) if name is None else name,
        images=ChosenImages(tuple(task.images for task in tasks), kept, tuple(f"{task.name}: " for task in tasks)),
        targets=np.array([targets[number][row] for number, row in kept]),
        classes=tuple(classes),
        digests=tuple(tasks[number].digests[row] for number, row in kept),
        bad=tuple(dict.fromkeys(bad for task in tasks for bad in task.bad)),
        notes=tuple(notes),
        source=" + ".join(dict.fromkeys(task.source for task in tasks)),
        groups=None if groups is None else groups[[starts[number] + row for number, row in kept]],
    )


def _number_classes(tasks: list[Task], merge_classes: bool) -> tuple[list[str], list[np.ndarray]]:
    """The classes of the union, and the targets of every task in their numbers; unclear names are refused."""
    first = tasks[0]
    occurrences = Counter(kind for task in tasks for kind in task.classes)
    shared = [kind for kind, times in occurrences.items() if times > 1]
    differing = [kind for kind, times in occurrences.items() if times != len(tasks)]
    problem = ""
    if len({task.is_multilabel for task in tasks}) > 1:
        problem = (
            "are partly single-label and partly multi-label. Use the one_vs_rest() tasks, or join tasks of one kind"
        )
    elif any(len(set(task.classes)) < len(task.classes) for task in tasks):
        problem = f"have a task with several classes of one name, among {quote(shared)}. Rename them when you read it"
    elif first.is_multilabel and differing:
        problem = f"do not have the same attributes (only some have {quote(differing)}). Keep common ones: select(...)"
    elif shared and not merge_classes:
        problem = f"have classes of one name ({quote(shared)}). Pass merge_classes=True if they are the same; if not, "
        problem += "rename some: dataclasses.replace(task, classes=...)"
    if problem:
        raise UsageError(f"cannot join the tasks {quote([task.name for task in tasks])}: they {problem}.")
    if first.is_multilabel:
        return list(first.classes), [task.targets[:, list(map(task.classes.index, first.classes))] for task in tasks]
    number_of = {kind: number for number, kind in enumerate(occurrences)}
    targets = [np.array([number_of[kind] for kind in task.classes])[task.targets] for task in tasks]
    return list(occurrences), targets


def _keep_once(tasks: list[Task], classes: list[str], targets: list[np.ndarray]) -> list[tuple[int, int]]:
    """Task and row of every image that no earlier task has; an image that two tasks label differently is refused.

    Copies within a task are kept, whatever their labels.
    """

    def describe(number: int, row: int) -> str:
        label = np.atleast_1d(targets[number][row])
        members = np.flatnonzero(label) if tasks[number].is_multilabel else label
        kinds = quote([classes[member] for member in members]) or "nothing"
        return f"{kinds} in '{tasks[number].name}' ({tasks[number].images.name(row)})"

    kept: list[tuple[int, int]] = []
    known: dict[str, dict[bytes, tuple[int, int]]] = {}  # of every digest, the first image of each label
    for number, task in enumerate(tasks):
        for row, digest in enumerate(task.digests):
            label = targets[number][row].tobytes()
            seen = known.setdefault(digest, {})
            first = next(iter(seen.values()), (number, row))
            if first[0] == number:
                kept.append((number, row))
                seen.setdefault(label, (number, row))
            elif label not in seen:
                labels = f"{describe(*first)}, and {describe(number, row)}"
                raise DataError(f"one image has two labels: {labels}. Correct one, or leave it out with subset(...).")
    return kept
