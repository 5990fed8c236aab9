"""What is said or refused before hours of work: small images, odd tasks, and files that would be overwritten."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from task2vec.cli.speech import say
from task2vec.errors import ResourceError, UsageError
from task2vec.text import printable

if TYPE_CHECKING:
    from task2vec.tasks import Task

# Networks halve an image five times; of a smaller one they see a single point.
LEAST_SIZE = 32
MOST_WARNINGS = 10


def warn_size(size: int | None) -> None:
    """A word on images of which a network sees next to nothing."""
    if size is not None and 1 <= size < LEAST_SIZE:
        say(
            f"warning: --size {size}: most networks halve an image five times, so of less than {LEAST_SIZE} pixels "
            "they see a single point, and errors tell little about them"
        )


def warn_of(tasks: "Iterable[Task]") -> None:
    """What is odd about the tasks, such as classes with a single image."""
    told = [f"warning: '{printable(task.name)}': {printable(text)}" for task in tasks for text in task.warnings]
    for line in told[:MOST_WARNINGS]:
        say(line)
    if len(told) > MOST_WARNINGS:
        say(f"and {len(told) - MOST_WARNINGS} more warnings; `task2vec tasks PATH` tells those of one task")


def check_file(path: Path | None, *, option: str, is_forced: bool) -> None:
    """Refuses a file that is there already, or that nothing could be written to.

    Raises:
        UsageError: It would be lost, or is a folder.
        ResourceError: Its folder is not there, or not ours to write to.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{option} '{path}' is a folder, and a file is to be written. Name one in it.")
    if os.path.lexists(path) and not is_forced:
        raise UsageError(
            f"{option} '{path}' is there already, and would be lost. Choose another name, or overwrite it with --force."
        )
    check_writable(path.parent, option=option)


def check_folder(folder: Path, *, option: str) -> None:
    """Refuses a folder that is none, or that could not be made or written to when the time has come.

    Raises:
        UsageError: It is a file.
        ResourceError: It is not ours to write to.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        raise UsageError(f"{option} '{folder}' is a file, and a folder is wanted. Choose another name.")
    place = folder.absolute()
    while not os.path.lexists(place):
        place = place.parent
    check_writable(place, option=option)


def check_writable(folder: Path, *, option: str) -> None:
    """Refuses a folder that nothing could be written to; one that is not there is not made."""
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        reason = "is not a folder of this machine" if not folder.is_dir() else "cannot be written to"
        raise ResourceError(
            f"{option}: '{folder}' {reason}, so what is computed would be lost at the end. Choose another place."
        )
