"""Folders and tables of the user's own, read as tasks; what cannot be read is named."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from task2vec.cli.speech import is_watched, say, visible
from task2vec.errors import BadImagesError, UsageError

if TYPE_CHECKING:
    from task2vec.tasks import BadImage, Task

TABLES = (".csv", ".parquet", ".pq")
MOST_NAMED = 10
T = TypeVar("T")


def is_table(path: Path) -> bool:
    """Whether it is the name of a table of images.

    Raises:
        UsageError: It is a file, and no table.
    """
    if path.suffix.lower() in TABLES and not path.is_dir():
        return True
    if path.is_file():
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
    """The task of a table, by what was said of its columns, or of a folder of class folders, by its split."""
    from task2vec.tasks import read_folder, read_table

    asked = {key: value for key, value in table.items() if value}
    read = partial(read_table, **asked) if is_table(path) else partial(read_folder, split=split)
    return tell_bad(read, path, name=name, allow_bad=allow_bad, workers=workers, progress=is_watched())


def tell_bad(read: Callable[..., T], *args: Any, **options: Any) -> T:
    """What `read` gives; where it gives up, the unreadable images are named first."""
    try:
        return read(*args, **options)
    except BadImagesError as error:
        say_bad(error.bad)
        raise


def say_bad(bad: "Sequence[BadImage]") -> None:
    """One line for each unreadable image, as many as a person would read."""
    for image in bad[:MOST_NAMED]:
        say(f"unreadable: {visible(image.path)}: {visible(image.reason)}")
    if len(bad) > MOST_NAMED:
        say(f"and {len(bad) - MOST_NAMED} more; --json lists them all")


def name_options(options: dict[str, Any]) -> str:
    """Those of the options that were given, as they are spelled; empty if none was."""
    names = {"layout": "as", "label_columns": "label-column", "names": "task"}
    return ", ".join(f"--{names.get(key, key.replace('_', '-'))}" for key, value in options.items() if value)
