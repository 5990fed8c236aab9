"""Image files below one root become a task: every file is read once, hashed, decoded, and reported if that fails."""

import hashlib
import os
import stat
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from task2vec.errors import BadImagesError, DataChangedError, DataError, UsageError
from task2vec.progress import track
from task2vec.tasks.check import check_labels, quote, remark
from task2vec.tasks.decode import MAX_PIXELS, decode
from task2vec.tasks.images import BadImage
from task2vec.tasks.task import Task

MAX_BAD_SHARE = 0.05
# Four 16-bit channels of the largest picture we accept, without compression: no honest file is larger.
MAX_FILE_BYTES = 8 * MAX_PIXELS
# Files handed to the threads at a time, so that a million of them do not wait in memory.
CHUNK = 512

# A pipe is opened without waiting for who writes to it, and a link not at all.
_OPENING = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NONBLOCK", "O_NOFOLLOW"))

Watch = Callable[[Iterable], Iterable]


@dataclass(frozen=True)
class FileImages:
    """The images at `paths` below `root`, which must still have the bytes that `digests` were taken of."""

    root: Path
    paths: tuple[str, ...]
    digests: tuple[str, ...]
    is_threadsafe: bool = True

    def __len__(self) -> int:
        """The number of files."""
        return len(self.paths)

    def load(self, index: int) -> Image.Image:
        """The image at `index`, decoded; `DataChangedError` if the file is not the one that was checked."""
        try:
            data = read_inside(self.root, self.paths[index])
            is_same = hashlib.sha256(data).hexdigest() == self.digests[index]
            cause = "its bytes are others"
        except DataError as error:
            data, is_same, cause = b"", False, str(error)
        if not is_same:
            raise DataChangedError(
                f"{self.root / self.paths[index]} changed after the task was read ({cause}): the result would mix two "
                "states of the data. Read the task again when nothing writes to it."
            )
        return decode(data)

    def name(self, index: int) -> str:
        """The path of the file below the root."""
        return self.paths[index]


def read_files(
    root: Path,
    paths: Sequence[str],
    labels: np.ndarray,
    *,
    classes: Sequence[str],
    name: str,
    source: str,
    allow_bad: bool,
    workers: int | None,
    progress: bool,
    refused: Sequence[BadImage] = (),
    remarks: Sequence[str] = (),
) -> Task:
    """The task of the files that can be read; the others, and those `refused` before, are listed as bad."""
    labels = check_labels(labels, len(classes), lambda row: repr(paths[row]))
    watch = partial(track, total=len(paths), what=f"reading {name}", progress=progress)
    outcomes = survey(root, paths, workers=workers, watch=watch)
    return assemble(
        root,
        paths,
        labels,
        outcomes,
        classes=classes,
        name=name,
        source=source,
        allow_bad=allow_bad,
        refused=refused,
        remarks=remarks,
    )


def assemble(
    root: Path,
    paths: Sequence[str],
    labels: np.ndarray,
    outcomes: Sequence[str | BadImage],
    *,
    classes: Sequence[str],
    name: str,
    source: str,
    allow_bad: bool,
    refused: Sequence[BadImage] = (),
    remarks: Sequence[str] = (),
) -> Task:
    """The task of files that `survey` has seen, with its outcome for each."""
    good = [row for row, outcome in enumerate(outcomes) if isinstance(outcome, str)]
    bad = (*refused, *(outcome for outcome in outcomes if isinstance(outcome, BadImage)))
    if not allow_bad:
        refuse_if_many(bad, len(good), source)
    digests = tuple(outcome for outcome in outcomes if isinstance(outcome, str))
    images = FileImages(root, tuple(paths[row] for row in good), digests)
    remarks = (*remarks, *remark(labels[good], classes, digests, images.name))
    try:
        return Task(name, images, labels[good], tuple(classes), digests, bad, remarks, source)
    except DataError as error:
        raise DataError(f"{source}: {error}{_tell(bad)}") from None


def survey(root: Path, paths: Sequence[str], *, workers: int | None, watch: Watch) -> list[str | BadImage]:
    """For every path, in order, the SHA-256 of a file that decodes, or the reason why it is bad."""
    # Pillow warns of odd metadata and of large headers; what matters of it is in the outcome. Set here and not in
    # `decode`, since the filters belong to the whole process and threads would restore each other's.
    with warnings.catch_warnings(), ThreadPoolExecutor(choose_workers(workers), "task2vec-read") as pool:
        warnings.simplefilter("ignore")
        chunks = (paths[start : start + CHUNK] for start in range(0, len(paths), CHUNK))
        return list(watch(outcome for chunk in chunks for outcome in pool.map(partial(_inspect, root), chunk)))


def choose_workers(workers: int | None) -> int:
    """The number of threads that decode: as asked for, else by the number of processors."""
    workers = min(8, os.cpu_count() or 1) if workers is None else workers
    if workers < 1:
        raise UsageError(f"workers={workers} (--workers), and nothing is read without one. Give 1 or more, or none.")
    return workers


def _inspect(root: Path, path: str) -> str | BadImage:
    """The SHA-256 of a file that decodes, or the reason why it is bad; the pixels are dropped."""
    try:
        data = read_inside(root, path)
        decode(data)
    except DataError as error:
        return BadImage(path, str(error))
    return hashlib.sha256(data).hexdigest()


def read_inside(root: Path, path: str) -> bytes:
    """The bytes of the plain file `path` below the resolved folder `root`; `DataError` with the reason otherwise."""
    try:
        place = (root / path).resolve(strict=True)
        status = place.stat()
        if not place.is_relative_to(root):
            raise DataError(f"it leads out of the root folder, to {place}")
        if not stat.S_ISREG(status.st_mode):
            raise DataError("it is not a plain file")
        if status.st_size > MAX_FILE_BYTES:
            raise DataError(f"the file has {status.st_size} bytes, more than any image of 50 megapixels needs")
        return _read_as_seen(place, status)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError("there is no such file") from None
    except (OSError, RuntimeError, ValueError) as error:  # no permission, a loop of links, a NUL in the path
        raise DataError(f"the file cannot be read ({getattr(error, 'strerror', None) or error})") from error


def _read_as_seen(place: Path, seen: os.stat_result) -> bytes:
    """The bytes of the very file that was looked at: a pipe or a link may have come there since."""
    with open(os.open(place, _OPENING), "rb") as file:
        now = os.fstat(file.fileno())
        if (now.st_dev, now.st_ino, now.st_mode) != (seen.st_dev, seen.st_ino, seen.st_mode):
            raise DataError("another file was put in its place while it was read")
        data = file.read(seen.st_size + 1)
    if len(data) != seen.st_size:
        raise DataError("its length changed while it was read")
    return data


def refuse_if_many(bad: Sequence[BadImage], n_good: int, source: str) -> None:
    """Raise `BadImagesError` if more than 5 % of the images are bad: too many to call it the same task."""
    total = len(bad) + n_good
    if len(bad) > MAX_BAD_SHARE * total:
        raise BadImagesError(
            f"{source}: {len(bad)} of {total} images cannot be read, more than {MAX_BAD_SHARE:.0%}, so the rest may "
            f"not stand for the task.{_tell(bad)} Repair or remove them, or pass allow_bad=True (--allow-bad).",
            bad=tuple(bad),
        )


def join_failures(name: str, failed: Mapping[str, BadImagesError], asked: int) -> BadImagesError:
    """The error of all tasks of a call that have too many bad images, the first in full."""
    called, first = next(iter(failed.items()))
    if asked == 1:
        return first
    bad = dict.fromkeys(image for error in failed.values() for image in error.bad)
    return BadImagesError(
        f"{name}: {len(failed)} of {asked} tasks have too many images that cannot be read ({quote(list(failed), 20)}). "
        f"Leave these tasks out to read the others. The first, {called!r}: {first}",
        tuple(bad),
        tuple(failed),
    )


def _tell(bad: Sequence[BadImage], at_most: int = 5) -> str:
    """The first few bad images with their reasons, as the end of a message."""
    if not bad:
        return ""
    shown = "; ".join(f"{item.path!r}: {item.reason}" for item in bad[:at_most])
    return f" Bad: {shown}{f'; and {len(bad) - at_most} more' if len(bad) > at_most else ''}."
