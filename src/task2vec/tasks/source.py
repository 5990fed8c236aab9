"""Any source of labelled images becomes a task: the entry point of every public function that takes one."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from task2vec.errors import UsageError
from task2vec.tasks.folder import HuggingFaceFilesError, read_folder
from task2vec.tasks.published import recognize_layout
from task2vec.tasks.table import SUFFIXES, encode_labels, is_frame, read_table
from task2vec.tasks.task import Task
from task2vec.tasks.torch_dataset import from_dataset

SOURCES = (
    "a folder or table (its path), a pandas or polars frame, a Hugging Face or torch dataset, (paths, labels), or a "
    "list of (path, label)"
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
        source: A task; the path of a folder, a table or a Hugging Face dataset; a pandas or polars frame, or a dict of
            columns; a Hugging Face or torch dataset; (paths, labels), (images, labels), or a list of such pairs. Paths
            in memory are relative to the current folder and may name any file.
        name: The name of the task; that of the folder, the file or the type if not given.
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
        what, task = _read_path(Path(source).expanduser(), options)
    elif _is_huggingface(source):
        from task2vec.tasks.huggingface import from_huggingface

        what, task = f"a Hugging Face {kind}", from_huggingface(source, **options)
    elif is_frame(source):
        what, task = f"a table ({kind})", read_table(source, **options)
    elif isinstance(source, list | tuple):
        (images, labels), what = _split_pairs(source), "a list of images and labels"
        if all(isinstance(image, str | os.PathLike) for image in images):
            columns: dict[str, Any] = {"label": labels}
            if isinstance(labels[0], list | tuple):
                columns = {str(number): cells for number, cells in enumerate(zip(*labels, strict=True))}
            what, task = "a list of paths and labels", read_table({"path": images, **columns}, **options)
        elif all(isinstance(label, str) for label in labels):
            numbers, classes = encode_labels({"label": labels}, lambda column, row: f"item {row}, {column}")
            task = from_dataset([*zip(images, numbers, strict=True)], classes=classes, **simple)
        else:
            task = from_dataset([*zip(images, labels, strict=True)], **simple)
    elif hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        what, task = f"a dataset of images and labels ({kind})", from_dataset(source, **simple)
    else:
        raise UsageError(f"a {kind} holds no labelled images that can be read in any order. Pass {SOURCES}.")
    return replace(task, notes=(f"read as {what}", *task.notes))


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
    """What a path is, and its task."""
    layout = recognize_layout(path) if path.is_dir() else None
    if layout is not None or path.suffix == ".safetensors":
        what = f"is {layout}, a dataset of many tasks" if layout else "is an embedding or weights, and has no images"
        call = f"read_catalog({str(path)!r}).task(NAME)" if layout else f"load_embedding({str(path)!r})"
        raise UsageError(f"{path} {what}. Pass {'one of them' if layout else 'a folder or table, or read it'}: {call}.")
    try:
        if path.suffix.lower() in SUFFIXES and not path.is_dir():
            return "a table", read_table(path, **options)
        return "a folder with one folder per class", read_folder(path, **options)
    except HuggingFaceFilesError:
        from task2vec.tasks.huggingface import from_huggingface

        return "a Hugging Face dataset", from_huggingface(path, **options)


def _split_pairs(source: Any) -> tuple[Sequence[Any], list[Any]]:
    """Images and labels, of (images, labels) or of a list of pairs."""
    is_listed = not any(isinstance(one, str | os.PathLike) or not hasattr(one, "__len__") for one in source)
    is_columns = is_listed and len(source) == 2 and (isinstance(source, tuple) or {*map(len, source)} != {2})
    if not source or not is_listed or not (is_columns or {*map(len, source)} == {2}):
        raise UsageError(
            f"a {type(source).__name__} of {len(source)} is neither (images, labels) nor pairs of these, so images "
            f"have no labels. Pass {SOURCES}; embed_many takes several tasks."
        )
    images, labels = source if is_columns else zip(*source, strict=True)
    if len(images) != len(labels):
        raise UsageError(f"{len(images)} images and {len(labels)} labels: it is unclear which belong together.")
    return images, [label.tolist() if hasattr(label, "tolist") else label for label in labels]
