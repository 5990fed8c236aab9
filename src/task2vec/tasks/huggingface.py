"""A Hugging Face dataset becomes a task: its stored bytes, hashed and decoded as files are, and its own class names.

The images are read undecoded, so that the same file has the same digest here and in a folder, and a damaged one is
reported by its row instead of stopping everything. Nothing is downloaded unless asked for: `datasets.load_dataset`
contacts the hub for every name, so without `download` a cached dataset is opened by its Arrow files.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.errors import DataError, DatasetNotFoundError, MissingExtraError, Task2VecError, UsageError
from task2vec.tasks.images import MAX_FILE_BYTES, StoredImages, inspect_images, read_inside
from task2vec.tasks.table import encode_labels
from task2vec.tasks.task import Task, make_task, quote, refuse_regression

if TYPE_CHECKING:
    import datasets

# Readers of the `datasets` package that give images and open nothing that could run code.
SAFE_READERS = ("arrow", "csv", "imagefolder", "json", "parquet")
FLOATS = ("float", "double", "decimal")
_SHARD = re.compile(r"^(.*-)(\d{5})(-of-)(\d{5})(.*)$")
# Rows whose bytes are in memory at a time.
_ROWS = 64
_LOCK = Lock()


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
    num_workers: int | None = None,
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
        download: Allow downloading a dataset that is not on this machine. Scripts are never run.
        name: The name of the task; the name of the dataset if not given.
        allow_bad: Go on when more than 5 % of the images cannot be read.
        num_workers: Threads that decode; chosen from the number of processors if not given. The task is the same.
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
    try:
        import datasets as hf
    except ImportError as error:
        raise MissingExtraError(
            "Hugging Face datasets need the datasets package, and that is not installed. "
            "Run: pip install 'task2vec[hf]'"
        ) from error
    table, default_name, home = _open(hf, dataset, split, config, download, progress)
    name = default_name if name is None else name
    warnings = []
    if table.format["type"] == "custom":
        warnings.append("the dataset's transform was not applied: images are read as they are stored")
    image_column, label_columns = _find_columns(hf, table.features, image_column, label_columns)
    labels, classes, absent = _read_labels(hf, table.with_format(None), label_columns)
    if absent:
        warnings.append(f"classes without an item, left out: {quote(absent)}")
    cells = table.with_format(None).select_columns([image_column])
    cells = _attempt(lambda: cells.cast_column(image_column, hf.Image(decode=False)), f"column {image_column}")
    images = StoredImages(partial(_read_row, cells, image_column, home), range(len(cells)), _name_rows(cells), ())
    return make_task(
        images,
        labels,
        inspect_images(images, name=name, num_workers=num_workers, progress=progress),
        classes=classes,
        name=name,
        source=str(dataset) if isinstance(dataset, (str, os.PathLike)) else type(dataset).__name__,
        allow_bad=allow_bad,
        warnings=warnings,
    )


def _name_rows(cells: Any) -> list[str]:
    """The row of every image, and the path that the dataset gives for it."""
    names, table = [], cells.with_format("arrow")
    for start in range(0, len(cells), _ROWS):
        for path in table[start : start + _ROWS].column(0).combine_chunks().field("path").to_pylist():
            names.append(f"row {len(names)} ({path})" if path else f"row {len(names)}")
    return names


def _read_row(cells: Any, column: str, home: Path | None, row: int) -> bytes:
    """The bytes of a row, fetched behind a lock, since a dataset need not be thread-safe; decoding is not locked."""
    with _LOCK:
        cell = cells[row][column]
    return _read_cell(cell, home)


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
        raise DataError(f"it is remote, at {path}, and nothing is downloaded while reading")
    if home is None:  # the caller's own dataset may name any file of this machine, also relative to his folder
        return read_inside(Path(Path(path).resolve().anchor), str(Path(path).resolve()))
    if not (home / path).resolve().is_relative_to(home):
        raise DataError(
            f"it is outside of the dataset's folder, at {path}; such files are read only if you open the dataset "
            "yourself and pass the object"
        )
    return read_inside(home, path)


# --- where a dataset comes from --------------------------------------------------------------------------------------


def _open(
    hf: Any, dataset: Any, split: str | None, config: str | None, download: bool, progress: bool
) -> tuple[Any, str, Path | None]:
    """One split, its name, and the folder that the files it names must not leave (None: any)."""
    if not isinstance(dataset, (str, os.PathLike)):
        if not isinstance(dataset, (hf.Dataset, hf.DatasetDict)):
            raise UsageError(
                f"a {type(dataset).__name__} is neither a Dataset nor a DatasetDict, and a task is read more than "
                "once, in any order. Pass load_dataset(..., streaming=False), a path or a name; from_dataset takes "
                "other datasets."
            )
        if config is not None:
            raise UsageError(f"config={config!r} is for paths and names; this dataset is open already. Leave it out.")
        chosen, which = _choose_split(hf, dataset, split, type(dataset).__name__)
        name = chosen.info.dataset_name or type(dataset).__name__
        return chosen, f"{name} ({which})" if which else name, None
    place, home = Path(dataset).expanduser(), None
    name = os.fspath(dataset)
    with _quiet(hf, progress):
        if place.exists():
            found, home = _open_local(hf, place, config), _find_home(place)
            name = place.resolve().name if place.is_dir() else place.stem
        elif name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1:  # no name on the hub
            raise DataError(f"{dataset} does not exist, so there is no dataset to read. Check the path.")
        elif cached := _find_cached(name, config):
            found = _attempt(cached.as_dataset, name)
        elif download:
            found = _attempt(lambda: hf.load_dataset(name, config), name)
        else:
            raise DatasetNotFoundError(
                f"the dataset '{name}'{f' ({config})' if config else ''} is not on this machine: there is no such "
                "folder, and it is not in the cache of datasets. Nothing is downloaded without being asked. "
                "Pass download=True, or a local folder."
            )
    chosen, which = _choose_split(hf, found, split, name)
    return chosen, f"{name} ({which})" if which else name, home


def _choose_split(hf: Any, found: Any, split: str | None, name: str) -> tuple[Any, str]:
    """The split that is meant, and its name where there was a choice."""
    if isinstance(found, hf.Dataset):
        if split is not None and str(found.split) != split:
            own = "no split" if found.split is None else f"only the split {str(found.split)!r}"
            raise UsageError(f"'{name}' has {own}, not {split!r}. Leave split out, or pass the whole dataset.")
        return found, ""
    if split is None and len(found) == 1:
        return next(iter(found.values())), ""
    if split not in found:
        what = "several splits" if split is None else f"no split {split!r}"
        raise UsageError(
            f"'{name}' has {what}, and each is another task. Pass split= one of {quote(list(found), 20)}; join_tasks "
            "joins splits."
        )
    return found[split], str(split)


def _open_local(hf: Any, place: Path, config: str | None) -> Any:
    """The dataset of a Parquet file, of a folder written by `save_to_disk`, or of a folder of data files."""
    if place.is_file():
        if place.suffix.lower() != ".parquet":
            raise UsageError(f"{place} is neither a folder nor a .parquet file. Pass one; read_table reads .csv files.")
        return _attempt(lambda: hf.Dataset.from_parquet(str(place)), place)
    if (place / "dataset_dict.json").is_file() or (place / "state.json").is_file():
        found = _attempt(lambda: hf.load_from_disk(str(place)), place)
        parts = found.values() if isinstance(found, hf.DatasetDict) else [found]
        _check_files(place, [file["filename"] for part in parts for file in part.cache_files])
        return found
    _refuse_remote(place)
    builder = _attempt(lambda: hf.load_dataset_builder(os.path.join(".", place), config), place)
    reader = type(builder).__module__.split(".")[-1]
    if reader not in SAFE_READERS:
        raise DataError(
            f"{place} would be read as {reader!r}, which holds no images or could run code. "
            f"Supported are {quote(SAFE_READERS, 20)}."
        )
    _check_files(place, [str(file) for files in (builder.config.data_files or {}).values() for file in files])

    def prepare() -> Any:
        builder.download_and_prepare()
        return builder.as_dataset()

    return _attempt(prepare, place)


def _refuse_remote(place: Path) -> None:
    """Raise `DataError` if the card of a local folder refers to remote files, which would be downloaded."""
    from huggingface_hub import DatasetCard

    card, settings = place / "README.md", place / ".huggingface.yaml"
    text = settings.read_text(encoding="utf-8", errors="replace") if settings.is_file() else ""
    if card.is_file():
        text += str(_attempt(lambda: DatasetCard.load(card).data.to_dict(), card).get("configs", ""))
    if "://" in text:
        raise DataError(
            f"{place} names remote data files (in README.md or .huggingface.yaml), and nothing is downloaded without "
            "being asked. Download them into the folder, or pass the dataset's name with download=True."
        )


def _check_files(place: Path, files: list[str]) -> None:
    """Raise `DataError` for data files outside of the folder, and for missing shards."""
    home = _find_home(place)
    outside = [file for file in files if not Path(file).resolve().is_relative_to(home)]
    if outside:
        raise DataError(
            f"{place} names data files outside of it ({quote(outside)}), which could be private. "
            "Copy them into the folder."
        )
    for shard in filter(None, map(_SHARD.match, files)):
        start, _, between, total, end = shard.groups()
        # Names may end in a hash of each shard; then only the number of shards can be compared.
        parts = {other for other in files if other.startswith(start) and f"{between}{total}" in other}
        if len(parts) < int(total):
            raise DataError(
                f"{place} has {len(parts)} of {int(total)} shards '{Path(start).name}*{between}{total}{end}', so "
                "images are missing. Complete the download."
            )


def _find_home(place: Path) -> Path:
    """The folder that a local dataset must not leave; in the hub's cache files are links into a folder beside."""
    resolved = place.resolve() if place.is_dir() else place.resolve().parent
    for folder in (resolved, *resolved.parents):
        if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("datasets--"):
            return folder.parent.parent
    return resolved


def _find_cached(name: str, config: str | None) -> Any:
    """The builder of the newest version of a dataset in the cache; None if there is none.

    `datasets` itself opens the cache this way when it is offline.
    """
    from datasets.packaged_modules.cache.cache import Cache

    try:
        return Cache(dataset_name=name.split("/")[-1], repo_id=name, config_name=config, version="auto", hash="auto")
    except ValueError as error:
        if "Couldn't find cache" in str(error):
            return None
        raise UsageError(f"{str(error).splitlines()[0]}. Each is another dataset: pass one as config=.") from error


def _attempt(open_it: Callable[[], Any], what: object) -> Any:
    """The result of `open_it`; whatever the `datasets` package raises becomes a `DataError` that names the dataset."""
    try:
        return open_it()
    except (Task2VecError, MemoryError):
        raise
    except Exception as error:  # errors of datasets, pyarrow, fsspec, the hub, and built-in ones
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise DataError(
            f"'{what}' cannot be opened as a Hugging Face dataset ({type(error).__name__}: {reason}). Check the name, "
            "the config and the files; read_folder and read_table read plain folders and tables."
        ) from error


@contextmanager
def _quiet(hf: Any, progress: bool) -> Iterator[None]:
    """No progress bars of the `datasets` package unless asked for; the user's setting is restored."""
    hide = not progress and not hf.are_progress_bars_disabled()
    if hide:
        hf.disable_progress_bars()
    try:
        yield
    finally:
        if hide:
            hf.enable_progress_bars()


# --- columns ---------------------------------------------------------------------------------------------------------


def _find_columns(
    hf: Any, features: Any, image_column: str | None, label_columns: str | Sequence[str] | None
) -> tuple[str, list[str]]:
    """The image column and the label columns: those named, else the only ones of a suitable type."""
    shown = ", ".join(f"{column!r} ({str(kind)[:40]})" for column, kind in features.items())
    labels = [label_columns] if isinstance(label_columns, str) else None if label_columns is None else [*label_columns]
    named = [*([] if image_column is None else [image_column]), *(labels or [])]
    images = [column for column, kind in features.items() if isinstance(kind, hf.Image)]
    candidates = [[column] for column, kind in features.items() if isinstance(kind, hf.ClassLabel)]
    candidates += [[column] for column, kind in features.items() if _is_label_list(hf, kind)]
    candidates += filter(None, [[column for column, kind in features.items() if _is_value(hf, kind, "bool")]])
    wrong = ""
    if missing := [column for column in named if column not in features]:
        wrong = f"there is no column {quote(missing)}"
    elif len(set(named)) < len(named) or labels == []:
        wrong = "a column is named twice, or no label column"
    elif image_column is None and len(images) != 1:
        wrong = f"several columns hold images ({quote(images)})" if images else "no column is of the type Image"
    elif labels is None and len(candidates) > 1:
        wrong = f"several columns may be the labels ({'; or '.join(map(quote, candidates))})"
    elif labels is None and not candidates:
        rest = [column for column, kind in features.items() if not isinstance(kind, hf.Image)]
        if len(rest) == 1 and _is_value(hf, features[rest[0]], *FLOATS):
            refuse_regression(f"column {rest[0]!r}")
        wrong = "no column is of the type ClassLabel"
    if wrong:
        raise UsageError(f"{wrong}; the columns are {shown}. Pass image_column= and label_columns=, each column once.")
    return image_column or images[0], labels or candidates[0]


def _read_labels(hf: Any, table: Any, columns: list[str]) -> tuple[np.ndarray, Sequence[str], list[str]]:
    """Labels and classes of the label columns of all rows, and the known classes that no row has."""

    def where(column: str, row: int) -> str:
        return f"column {column!r}, row {row}"

    cells = {column: table.select_columns([column])[:][column] for column in columns}
    if len(columns) > 1:
        return (*encode_labels(cells, where), [])
    column, kind = columns[0], table.features[columns[0]]
    if _is_label_list(hf, kind):
        known = kind.feature.names
        labels = np.zeros((len(table), len(known)), dtype=np.uint8)
        for row, numbers in enumerate(cells[column]):
            if numbers is None or not set(numbers) <= set(range(len(known))):
                raise DataError(f"{where(column, row)}: {numbers!r} is no list of classes. Filter such rows out.")
            labels[row, numbers] = 1
        present = np.flatnonzero(labels.any(axis=0)).tolist()
        labels, classes = labels[:, present], [known[number] for number in present]
    else:
        known: Sequence[str] = ()
        if isinstance(kind, hf.ClassLabel):
            known = kind.names
        elif _is_value(hf, kind, "bool"):
            known = (f"not {column}", column)
        elif not _is_value(hf, kind, "int", "uint", "string", "large_string", *FLOATS):
            raise DataError(
                f"column {column!r} is {kind}, which is no class. Pass label_columns=... with a column of class "
                "labels, integers or text, or several of 0 and 1; cast lists of class numbers to "
                "List(ClassLabel(...))."
            )
        if known:
            numbers = range(len(known))
            cells[column] = [known[cell] if cell in numbers else None for cell in cells[column]]
        labels, classes = encode_labels(cells, where, known=known)
    return labels, classes, [name for name in known if name not in classes]


def _is_value(hf: Any, kind: Any, *types: str) -> bool:
    """Whether a feature is a plain value of a type that begins like one of `types`."""
    return isinstance(kind, hf.Value) and kind.dtype.startswith(types)


def _is_label_list(hf: Any, kind: Any) -> bool:
    """Whether a feature is a list of class labels, under any of the names that `datasets` has had for lists."""
    return isinstance(kind, (hf.Sequence, hf.LargeList)) and isinstance(kind.feature, hf.ClassLabel)
