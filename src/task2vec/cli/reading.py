"""Folders and tables of the user's own, read as tasks; what cannot be read is named."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from task2vec.cli.speech import is_watched, say
from task2vec.errors import BadImagesError, DataError, UsageError
from task2vec.text import printable

if TYPE_CHECKING:
    from task2vec.tasks import BadImage, Task

TABLES = (".csv", ".parquet", ".pq")
MOST_NAMED = 10
T = TypeVar("T")


def check_there(path: Path) -> None:
    """Refuse a path that leads nowhere: a slip of the hand, not bad data."""
    if not os.path.exists(path):
        raise UsageError(f"'{path}' is not there, so there is nothing to read. Check its spelling, and where you are.")


def is_table(path: Path) -> bool:
    """Whether it is a table of images, by its name; if not, it is a folder.

    Raises:
        DataError: It is an archive.
        UsageError: It is not there, or a file and no table.
    """
    check_there(path)
    if path.suffix.lower() in TABLES and not path.is_dir():
        return True
    if path.is_file():
        from task2vec.tasks.folder import refuse_archive

        refuse_archive(path)
        raise UsageError(
            f"'{path}' is neither a folder nor a table, so there are no labels to learn from. "
            f"Name a folder of class folders, or a file ending in {', '.join(TABLES)}."
        )
    return False


def read_own(
    path: Path,
    *,
    table: dict[str, Any],
    split: str | None,
    allow_bad: bool,
    workers: int | None,
    name: str | None = None,
) -> "Task":
    """The task of a table, by what was said of its columns, or of a folder of class folders, by its split.

    Raises:
        UsageError: It is a published dataset, whose tasks are many.
    """
    from task2vec.tasks import read_folder, read_table, recognize_layout
    from task2vec.tasks.folder import SPLIT_NAMES, list_folders

    asked = {key: value for key, value in table.items() if value}
    read = partial(read_table, **asked) if is_table(path) else partial(read_folder, split=split)
    known = recognize_layout(path) if path.is_dir() else None
    # Its splits would pass for classes.
    if known is not None and split is None and {name.lower() for name in list_folders(path)} <= set(SPLIT_NAMES):
        raise _many_tasks(path, known)
    reading = {"name": name, "allow_bad": allow_bad, "num_workers": workers, "progress": is_watched()}
    try:
        return tell_bad(read, path, root=find_root(path, table=table, split=split), **reading)
    except BadImagesError:
        raise
    except (DataError, UsageError) as error:
        if known is None:
            raise
        raise _many_tasks(path, known) from error


def _many_tasks(path: Path, known: str) -> UsageError:
    return UsageError(
        f"'{path}' is {known}, a dataset of many tasks, and it is not said which is meant. List them: task2vec tasks "
        f"{path}; then name one (--task NAME), or embed many: task2vec embed-many {path} --kind KIND"
    )


def find_root(path: Path, *, table: dict[str, Any], split: str | None) -> Path:
    """The folder that the images of a folder or a table are told from."""
    return (table.get("root") or path.parent) if is_table(path) else path / (split or "")


def tell_bad(read: Callable[..., T], *args: Any, root: Path | None = None, **options: Any) -> T:
    """What `read` gives; where it gives up, the unreadable images are named first, as they lie in `root`."""
    try:
        return read(*args, **options)
    except BadImagesError as error:
        say_bad(error.bad, root=root)
        raise


def say_bad(bad: "Sequence[BadImage]", *, root: Path | None = None) -> None:
    """One line for each unreadable image, as many as a person would read, with the folder that it lies in."""
    for image in bad[:MOST_NAMED]:
        say(f"unreadable: {printable(image.path if root is None else root / image.path)}: {printable(image.reason)}")
    if len(bad) > MOST_NAMED:
        say(f"and {len(bad) - MOST_NAMED} more; --json lists them all")


def name_options(options: dict[str, Any]) -> str:
    """Those of the options that were given, as they are spelled; empty if none was."""
    names = {"layout": "as", "label_columns": "label-column", "names": "task"}
    return ", ".join(f"--{names.get(key, key.replace('_', '-'))}" for key, value in options.items() if value)
