"""Folders that hold train/, val/ and test/ with class folders inside, as datasets for ImageFolder are published."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from task2vec.errors import DataError
from task2vec.tasks.check import quote
from task2vec.tasks.folder import SPLIT_NAMES, list_folders, looks_like_split, read_folder
from task2vec.tasks.ordering import renumber
from task2vec.tasks.task import Task


def read_splits(
    folder: str | os.PathLike[str],
    *,
    splits: Sequence[str] | None = None,
    name: str | None = None,
    allow_bad: bool = False,
    workers: int | None = None,
    progress: bool = False,
) -> dict[str, Task]:
    """The tasks of train, val, test and so on below one folder, by the name of the split.

    Classes that all splits have come first and have the same number in all of them. A class that is missing in a split
    is not a class there; that, and images that lie in two splits, are warned of.

    Args:
        folder: The root; its folders are the splits, and theirs are the classes.
        splits: Which folders to read; all that are named like a split if not given.
        name: What to call the dataset; the name of the folder if not given.
        allow_bad: Go on when more than 5 % of the images of a split cannot be read.
        workers: Threads that decode; chosen from the number of processors if not given. It does not change the tasks.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        BadImagesError: More than 5 % of the images of a split cannot be read, and `allow_bad` is false.
        DataError: There is no split, or one of them is no task.
        UsageError: One of the splits that were named is not there.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for shade, place in enumerate(("train/dawn", "train/dusk", "val/dawn", "val/dusk")):
        ...         Path(root, place).mkdir(parents=True)
        ...         Image.new("L", (8, 8), shade).save(Path(root, place, "1.png"))
        ...     read_splits(root, name="skies")
        {'train': Task(skies (train), 2 images, 2 classes), 'val': Task(skies (val), 2 images, 2 classes)}
    """
    names = _find_splits(Path(folder)) if splits is None else list(splits)
    called = Path(folder).resolve().name if name is None else name
    reading = {"allow_bad": allow_bad, "workers": workers, "progress": progress}
    tasks = {split: read_folder(folder, split=split, name=f"{called} ({split})", **reading) for split in names}
    shared = set.intersection(*(set(task.classes) for task in tasks.values()))
    every = sorted({kind for task in tasks.values() for kind in task.classes})
    numbered = {split: _reorder(task, shared) for split, task in tasks.items()}
    return {split: _tell(split, task, every, numbered) for split, task in numbered.items()}


def _find_splits(root: Path) -> list[str]:
    """The folders of a root that are named like splits and hold class folders, in the usual order."""
    found = [name for name in list_folders(root) if looks_like_split(root / name)] if root.is_dir() else []
    if not found:
        raise DataError(
            f"{root} holds no split: no folder like 'train', 'val' or 'test' with class folders inside. "
            "Name them with splits=[...], or read a folder of classes with read_folder."
        )
    return sorted(found, key=lambda name: (SPLIT_NAMES.index(name.lower()), name))


def _reorder(task: Task, shared: set[str]) -> Task:
    """The same task with the classes that all splits have first, each kind in the order of its names."""
    order = sorted(range(len(task.classes)), key=lambda number: (task.classes[number] not in shared, number))
    classes = tuple(task.classes[number] for number in order)
    return replace(task, targets=renumber(task.targets, order), classes=classes)


def _tell(split: str, task: Task, every: list[str], tasks: dict[str, Task]) -> Task:
    """The task with warnings of classes that it lacks and of images that it shares."""
    told = []
    missing = [kind for kind in every if kind not in task.classes]
    if missing:
        told.append(f"classes of other splits that have no image here: {quote(missing)}")
    for other, theirs in tasks.items():
        common = set(task.digests) & set(theirs.digests) if other != split else set()
        if common:
            first = next(row for row, digest in enumerate(task.digests) if digest in common)
            told.append(f"images that are also in {other!r}: {len(common)}, such as {task.images.name(first)!r}")
    return replace(task, warnings=(*told, *task.warnings)) if told else task
