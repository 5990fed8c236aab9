"""A Hugging Face dataset becomes a task: its stored bytes, hashed and decoded as files are, and its own class names.

The images are read undecoded, so that the same file gives the same digest here and in a folder, and a damaged one is
named by its row instead of stopping everything. Nothing is fetched unless asked for.
"""

import hashlib
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from PIL import Image

from task2vec.errors import DataChangedError, DataError
from task2vec.progress import track
from task2vec.tasks.check import remark
from task2vec.tasks.decode import decode
from task2vec.tasks.files import MAX_FILE_BYTES, choose_workers, read_inside, refuse_if_many
from task2vec.tasks.huggingface_columns import find_columns, read_labels
from task2vec.tasks.huggingface_source import import_datasets, open_source
from task2vec.tasks.images import BadImage
from task2vec.tasks.task import Task

if TYPE_CHECKING:
    import datasets

# Rows whose bytes are in memory at a time.
CHUNK = 64


@dataclass(frozen=True)
class RowImages:
    """The images of some rows of a dataset, which must still have the bytes that `digests` were taken of.

    Rows are fetched one at a time behind a lock, for nobody promises that a dataset may be read by several threads;
    decoding, which takes the time, is not behind it.
    """

    dataset: Any
    column: str
    rows: tuple[int, ...]
    names: tuple[str, ...]
    digests: tuple[str, ...]
    home: Path | None
    is_threadsafe: bool = True
    lock: Any = field(default_factory=Lock, repr=False, compare=False)

    def __len__(self) -> int:
        """The number of images."""
        return len(self.rows)

    def load(self, index: int) -> Image.Image:
        """The image at `index`, decoded; `DataChangedError` if its bytes are not those that were checked."""
        try:
            with self.lock:
                cell = self.dataset[self.rows[index]][self.column]
            data = _read_cell(cell, self.home)
            is_same, cause = hashlib.sha256(data).hexdigest() == self.digests[index], "its bytes are others"
        except DataError as error:
            data, is_same, cause = b"", False, str(error)
        if not is_same:
            raise DataChangedError(
                f"{self.names[index]} changed after the task was read ({cause}): the result would mix two states of "
                "the data. Read the task again when nothing writes to it."
            )
        return decode(data)

    def name(self, index: int) -> str:
        """The row, and the path that the dataset gives for it."""
        return self.names[index]


def from_huggingface(
    dataset: "str | os.PathLike[str] | datasets.Dataset | datasets.DatasetDict",
    split: str | None = None,
    *,
    config: str | None = None,
    image_column: str | None = None,
    label_columns: str | Sequence[str] | None = None,
    download: bool = False,
    name: str | None = None,
    allow_bad: bool = False,
    workers: int | None = None,
    progress: bool = False,
) -> Task:
    """The task of a Hugging Face dataset.

    Columns are found by their type: the one of images, and one of class labels, of lists of class labels (multi-label),
    or all those of booleans (multi-label). Where that leaves a choice, name them. Classes that no row belongs to are
    left out, with a warning.

    Args:
        dataset: A dataset of the `datasets` package, a local folder or Parquet file, or a name on the hub.
        split: Which part, such as "train"; needed if there are several.
        config: Which configuration, of a folder or name that has several.
        image_column: The column of images.
        label_columns: One column of classes, or several of 0 and 1 for multi-label.
        download: Allow fetching a dataset that is not on this machine. Scripts are never run.
        name: What to call the task; the name of the dataset if not given.
        allow_bad: Go on when more than 5 % of the images cannot be read.
        workers: Threads that decode; chosen from the number of processors if not given. It does not change the task.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        BadImagesError: More than 5 % of the images cannot be read, and `allow_bad` is false.
        DataError: The dataset is not a task: no image or label column, a label that is missing or a decimal number.
        DatasetNotFoundError: The dataset is not on this machine, and `download` is false.
        MissingExtraError: The `datasets` package is not installed.
        UsageError: It is not clear which split, configuration or column is meant.

    Example:
        >>> import datasets
        >>> from PIL import Image
        >>> skies = datasets.Dataset.from_dict(
        ...     {"image": [Image.new("L", (8, 8), shade) for shade in range(4)], "label": [0, 1, 1, 0]},
        ...     features=datasets.Features(
        ...         {"image": datasets.Image(), "label": datasets.ClassLabel(names=["dawn", "dusk"])}
        ...     ),
        ... )
        >>> from_huggingface(skies, name="skies")
        Task(skies, 4 images, 2 classes)
    """
    hf = import_datasets()
    opened = open_source(hf, dataset, split=split, config=config, download=download, progress=progress)
    table, told = opened.dataset, list(opened.warnings)
    if table.format["type"] == "custom":
        told.append("the dataset's transform was not applied: images are read as they are stored")
    image_column, wanted = find_columns(hf, table.features, image_column, label_columns)
    called = opened.name if name is None else name
    labels, classes, remarks = read_labels(hf, table.with_format(None), wanted)
    cells = _undecoded(hf, table, image_column)
    bar = partial(track, total=len(cells), what=f"reading {called}", progress=progress)
    outcomes = list(bar(_survey(cells, image_column, opened.home, workers)))
    good = [row for row, outcome in enumerate(outcomes) if outcome.digest]
    bad = tuple(BadImage(outcome.name, outcome.reason) for outcome in outcomes if not outcome.digest)
    if not allow_bad:
        refuse_if_many(bad, len(good), opened.source)
    names, digests = (tuple(getattr(outcomes[row], part) for row in good) for part in ("name", "digest"))
    images = RowImages(cells, image_column, tuple(good), names, digests, opened.home)
    told += [*remarks, *remark(labels[good], classes, digests, images.name)]
    try:
        return Task(called, images, labels[good], classes, digests, bad, tuple(told), opened.source)
    except DataError as error:
        raise DataError(f"{opened.source}: {error}{f' {len(bad)} images were bad.' if bad else ''}") from None


@dataclass(frozen=True)
class _Outcome:
    """What a row is called, and the SHA-256 of its image or the reason why it has none."""

    name: str
    digest: str = ""
    reason: str = ""


def _undecoded(hf: Any, table: Any, column: str) -> Any:
    """The image column alone, as stored bytes and path; formats and transforms of the user's dataset stay his own."""
    try:
        return table.with_format(None).select_columns([column]).cast_column(column, hf.Image(decode=False))
    except Exception as error:  # datasets and pyarrow refuse in many words
        raise DataError(
            f"column {column!r} holds no images ({str(error).splitlines()[0][:200]}), so there is nothing to embed. "
            "Name the column of images with image_column."
        ) from error


def _survey(table: Any, column: str, home: Path | None, workers: int | None) -> Iterator[_Outcome]:
    """The outcome of every row in turn; bytes of a few rows are in memory at a time."""
    # Pillow warns of odd metadata; what matters of it is in the outcome (see tasks/files.py).
    with warnings.catch_warnings(), ThreadPoolExecutor(choose_workers(workers), "task2vec-read") as pool:
        warnings.simplefilter("ignore")
        for start in range(0, len(table), CHUNK):
            cells = table[start : start + CHUNK][column]
            yield from pool.map(partial(_inspect, home=home), range(start, start + len(cells)), cells)


def _inspect(row: int, cell: dict[str, Any] | None, home: Path | None) -> _Outcome:
    """The outcome of one row; its pixels are dropped."""
    path = (cell or {}).get("path")
    name = f"row {row} ({path})" if path else f"row {row}"
    try:
        data = _read_cell(cell, home)
        decode(data)
    except DataError as error:
        return _Outcome(name, reason=str(error))
    return _Outcome(name, digest=hashlib.sha256(data).hexdigest())


def _read_cell(cell: dict[str, Any] | None, home: Path | None) -> bytes:
    """The stored bytes of an image, or those of the local file that is named instead; `DataError` with the reason."""
    stored = cell or {}
    data, path = stored.get("bytes"), stored.get("path")
    if data is not None:
        if len(data) > MAX_FILE_BYTES:
            raise DataError(f"it has {len(data)} bytes, more than any image of 50 megapixels needs")
        return bytes(data)
    if path is None:
        raise DataError("there is no image in this row")
    if "://" in path or "::" in path:
        raise DataError(f"it lies elsewhere, at {path}, and nothing is fetched while reading")
    if home is not None and not (home / path).resolve().is_relative_to(home):
        raise DataError(
            f"it lies outside of the dataset's folder, at {path}, where nothing is read unless you open the dataset "
            "yourself and pass the object"
        )
    if home is None:  # the caller's own dataset may name any file of this machine, also from where he stands
        return read_inside(Path(Path(path).resolve().anchor), str(Path(path).resolve()))
    return read_inside(home, path)
