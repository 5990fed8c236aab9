"""A Hugging Face dataset becomes a task: its stored bytes, decoded as files are, and its own class names.

The images are read undecoded, so that the same file has the same pixels here and in a folder, and a damaged one is
reported by its row instead of stopping everything. Nothing is downloaded unless asked for: `datasets.load_dataset`
contacts the hub for every name, so without `download` a cached dataset is opened by its Arrow files.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.errors import DataError, DatasetNotFoundError, MissingExtraError, Task2VecError, UsageError
from task2vec.tasks.columns import LABEL_NAMES, encode_labels, simplify
from task2vec.tasks.images import MAX_FILE_BYTES, StoredImages, read_inside
from task2vec.tasks.task import UNNAMED, Task, drop_empty, make_task
from task2vec.text import quote

if TYPE_CHECKING:
    import datasets

# Readers of the `datasets` package that give images and open nothing that could run code.
SAFE_READERS = ("arrow", "csv", "imagefolder", "json", "parquet")
# Plain values that may be classes.
_PLAIN = ("int", "uint", "string", "large_string", "float", "double", "decimal")
_SHARD = re.compile(r"^(.*-)(\d{5})(-of-)(\d{5})(.*)$")
# Rows whose bytes are in memory at a time.
_BATCH_ROWS = 64
_LOCK = Lock()


def from_huggingface(
    dataset: "str | os.PathLike[str] | datasets.Dataset | datasets.DatasetDict",
    split: str | None = None,
    *,
    config: str | None = None,
    image_column: str | None = None,
    label_columns: str | Sequence[str] | None = None,
    group: str | None = None,
    download: bool = False,
    name: str | None = None,
    allow_bad: bool = False,
    num_workers: int | None = None,
    progress: bool = False,
) -> Task:
    """The task of a Hugging Face dataset.

    Columns are found by their type: one of images, and one of class labels or of lists of class labels (multi-label),
    or all boolean columns (multi-label); if there are none, the one of integers, text or lists of these that is named
    like a label. If this is ambiguous, name the columns. Classes that no row belongs to, and labels
    of a list that all rows have, are left out, with a warning.

    Args:
        dataset: A dataset of the `datasets` package, a local folder or Parquet file, or a name on the hub.
        split: Which part, such as "train"; needed if there are several.
        config: Which configuration, of a folder or name that has several.
        image_column: The column of images.
        label_columns: One column of classes, or several of 0 and 1 for multi-label.
        group: The column that is the same for images of one patient, scene or object (see `Task.groups`).
        download: Allow downloading a dataset that is not on this machine. Scripts are never run.
        name: The name of the task; the name of the dataset if not given.
        allow_bad: Continue if more than 5% of the images cannot be read.
        num_workers: Threads that decode; by default chosen from the number of CPU cores. The task is the same.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        BadImagesError: More than 5% of the images cannot be read, and `allow_bad` is false.
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
            "Hugging Face datasets need the datasets package, which is not installed. Run: pip install 'task2vec[hf]'"
        ) from error
    table, default_name, home = _open(hf, dataset, split, config, download, progress)
    source = str(dataset) if isinstance(dataset, (str, os.PathLike)) else type(dataset).__name__
    image_column, label_columns = _find_columns(hf, table.features, image_column, label_columns, group)
    labels, classes, notes = _read_labels(hf, table.with_format(None), label_columns)
    if table.format["type"] == "custom":
        notes = ("the dataset's transform was not applied: images are read as they are stored", *notes)
    with _opening(f"column {image_column}"):
        cells = table.with_format(None).select_columns([image_column])
        cells = cells.cast_column(image_column, hf.Image(decode=False))
    images = StoredImages(partial(_read_row, cells, image_column, home), range(len(cells)), _name_rows(cells), ())
    options: dict[str, Any] = {"allow_bad": allow_bad, "num_workers": num_workers, "progress": progress}
    groups = None if group is None else table.with_format(None).select_columns([group])[:][group]
    return make_task(images, labels, classes, name or default_name, source, notes, groups=groups, **options)


def _name_rows(cells: Any) -> list[str]:
    """The row of every image, and the path that the dataset gives for it."""
    names = []
    for batch in cells.with_format("arrow").iter(_BATCH_ROWS):
        for path in batch.column(0).combine_chunks().field("path").to_pylist():
            names.append(f"row {len(names)} ({path})" if path else f"row {len(names)}")
    return names


def _read_row(cells: Any, column: str, home: Path | None, row: int) -> bytes:
    """The stored bytes of a row's image, or those of the local file that is named instead.

    Rows are fetched behind a lock, since a dataset need not be thread-safe; decoding is not locked.
    """
    with _LOCK:
        cell = cells[row][column] or {}
    data = cell.get("bytes")
    path = cell.get("path")
    if data is not None:
        if len(data) > MAX_FILE_BYTES:
            raise DataError(f"it has {len(data)} bytes, more than any image of 50 megapixels needs")
        return bytes(data)
    if path is None:
        raise DataError("there is no image in this row")
    if "://" in path or "::" in path:
        raise DataError(f"it is remote, at {path}, and nothing is downloaded while reading")
    # A dataset that the caller opened may name any file of this machine, also relative to the working directory.
    file = Path(home or "", path).resolve()
    if home is not None and not file.is_relative_to(home):
        raise DataError(
            f"it is outside of the dataset's folder, at {path}; to allow that, open the dataset and pass the object"
        )
    return read_inside(home or Path(file.anchor), str(file))


# --- where a dataset comes from --------------------------------------------------------------------------------------


def _open(
    hf: Any, dataset: Any, split: str | None, config: str | None, download: bool, progress: bool
) -> tuple[Any, str, Path | None]:
    """One split, its name, and the folder that the files it names must not leave (None: any)."""
    home = None
    if isinstance(dataset, (hf.Dataset, hf.DatasetDict)):
        if config is not None:
            raise UsageError(f"config={config!r} is for paths and names; this dataset is open already. Leave it out.")
        opened, name = dataset, UNNAMED
    elif isinstance(dataset, (str, os.PathLike)):
        path = Path(dataset).expanduser()
        name = os.fspath(dataset)
        with ExitStack() as restore, _opening(name):
            if not progress and not hf.are_progress_bars_disabled():
                hf.disable_progress_bars()
                restore.callback(hf.enable_progress_bars)
            if path.exists():
                opened = _open_local(hf, path, config)
                home = _find_home(path)
                name = path.resolve().name if path.is_dir() else path.stem
            elif name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1:  # no name on the hub
                raise DataError(f"{dataset} does not exist, so there is no dataset to read. Check the path.")
            elif cached := _find_cached(name, config):
                opened = cached.as_dataset()
            elif download:
                opened = hf.load_dataset(name, config)
            else:
                raise DatasetNotFoundError(
                    f"the dataset '{name}'{f' ({config})' if config else ''} is not on this machine: there is no such "
                    "folder, and it is not in the cache of datasets. Nothing is downloaded without being asked. Pass "
                    "download=True, or a local folder."
                )
    else:
        raise UsageError(
            f"a {type(dataset).__name__} is neither a Dataset nor a DatasetDict, and a task is read more than once, in "
            "any order. Pass load_dataset(..., streaming=False), a path or a name; from_dataset takes other datasets."
        )
    splits = opened if isinstance(opened, hf.DatasetDict) else {opened.split and str(opened.split): opened}
    if split is None and len(splits) == 1:
        split = next(iter(splits))
    elif split not in splits:
        problem = "several splits, and each is a separate task" if split is None else f"no split {split!r}"
        known = [name for name in splits if name is not None]
        fix = f"Pass split= one of {quote(known, 20)}; join_tasks joins splits" if known else "Leave split out"
        raise UsageError(f"'{name}' has {problem}. {fix}.")
    table = splits[split]
    if opened is dataset:
        name = table.info.dataset_name or name
    return table, f"{name} ({split})" if len(splits) > 1 else name, home


def _open_local(hf: Any, path: Path, config: str | None) -> Any:
    """The dataset of a Parquet file, of a folder written by `save_to_disk`, or of a folder of data files."""
    if path.is_file():
        if path.suffix.lower() != ".parquet":
            raise UsageError(f"{path} is neither a folder nor a .parquet file. Pass one; read_table reads .csv files.")
        return hf.Dataset.from_parquet(str(path))
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        opened = hf.load_from_disk(str(path))
        tables = opened.values() if isinstance(opened, hf.DatasetDict) else [opened]
        _check_files(path, [file["filename"] for table in tables for file in table.cache_files])
        return opened
    _refuse_remote(path)
    builder = hf.load_dataset_builder(os.path.join(".", path), config)
    reader = type(builder).__module__.split(".")[-1]
    if reader not in SAFE_READERS:
        raise DataError(
            f"{path} would be read as {reader!r}, which holds no images or could run code. Use {quote(SAFE_READERS)}."
        )
    _check_files(path, [str(file) for files in (builder.config.data_files or {}).values() for file in files])
    builder.download_and_prepare()
    return builder.as_dataset()


def _refuse_remote(folder: Path) -> None:
    """Raise `DataError` if the card of a local folder refers to remote files, which would be downloaded."""
    from huggingface_hub import DatasetCard

    card = folder / "README.md"
    settings = folder / ".huggingface.yaml"
    text = settings.read_text(encoding="utf-8", errors="replace") if settings.is_file() else ""
    if card.is_file():
        text += str(DatasetCard.load(card).data.to_dict().get("configs", ""))
    if "://" in text:
        raise DataError(
            f"{folder} names remote data files (in README.md or .huggingface.yaml), and nothing is downloaded without "
            "being asked. Download them into the folder, or pass the dataset's name with download=True."
        )


def _check_files(folder: Path, files: list[str]) -> None:
    """Raise `DataError` for data files outside of the folder, and for missing shards."""
    home = _find_home(folder)
    outside = [file for file in files if not Path(file).resolve().is_relative_to(home)]
    if outside:
        raise DataError(
            f"{folder} names data files outside of it ({quote(outside)}), which could be private. Copy them into it."
        )
    for shard in filter(None, map(_SHARD.match, files)):
        start, _, between, total, end = shard.groups()
        # Names may end in a hash of each shard; then only the number of shards can be compared.
        shards = {file for file in files if file.startswith(start) and f"{between}{total}" in file}
        if len(shards) < int(total):
            present = f"{len(shards)} of {int(total)} shards '{Path(start).name}*{between}{total}{end}'"
            raise DataError(f"{folder} has {present}, so images are missing. Complete the download.")


def _find_home(path: Path) -> Path:
    """The folder that a local dataset must not leave; in the hub's cache, files are links to a folder beside it."""
    resolved = path.resolve() if path.is_dir() else path.resolve().parent
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
        raise UsageError(f"{str(error).splitlines()[0]}. Each is a separate dataset: pass one as config=.") from error


@contextmanager
def _opening(source: str) -> Iterator[None]:
    """Whatever the `datasets` package raises inside becomes a `DataError` that names the dataset."""
    try:
        yield
    except (Task2VecError, MemoryError):
        raise
    except Exception as error:  # errors of datasets, pyarrow, fsspec, the hub, and built-in ones
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise DataError(
            f"'{source}' cannot be opened as a Hugging Face dataset ({type(error).__name__}: {reason}). Check the "
            "name, the config and the files; read_folder and read_table read plain folders and tables."
        ) from error


# --- columns ---------------------------------------------------------------------------------------------------------


def _find_columns(
    hf: Any, features: Any, image_column: str | None, label_columns: str | Sequence[str] | None, group: str | None
) -> tuple[str, list[str]]:
    """The image column and the label columns: those named, else the only ones of a suitable type."""
    labels = [label_columns] if isinstance(label_columns, str) else None if label_columns is None else [*label_columns]
    named = [*filter(None, (image_column, group)), *(labels or [])]
    images = [column for column, kind in features.items() if isinstance(kind, hf.Image)]
    candidates = [[column] for column, kind in features.items() if _name_classes(hf, kind)]
    if flags := [column for column, kind in features.items() if kind == hf.Value("bool")]:
        candidates.append(flags)
    plain = [column for column, kind in features.items() if column != group and _is_plain(hf, kind)]
    candidates = candidates or [[column] for column in plain if simplify(column) in LABEL_NAMES.split()]
    problem = ""
    if missing := [column for column in named if column not in features]:
        problem = f"there is no column {quote(missing)}"
    elif len(set(named)) < len(named) or labels == []:
        problem = "a column is named twice, or no label column"
    elif image_column is None and len(images) != 1:
        problem = f"several columns hold images ({quote(images)})" if images else "no column is of the type Image"
    elif labels is None and len(candidates) > 1:
        problem = f"several columns may be the labels ({'; or '.join(map(quote, candidates))})"
    elif labels is None and not candidates:
        problem = "no column is of the type ClassLabel, or has integers or text and is called label"
    if problem:
        available = ", ".join(f"{column!r} ({str(kind)[:40]})" for column, kind in features.items())
        raise UsageError(
            f"{problem}; the columns are {available}. Pass image_column= and label_columns=, each column once."
        )
    return image_column or images[0], labels or candidates[0]


def _read_labels(hf: Any, table: Any, columns: list[str]) -> tuple[np.ndarray, Sequence[str], tuple[str, ...]]:
    """Labels and classes of the label columns of all rows, and a note of known classes that no row has."""

    def locate(column: str, row: int) -> str:
        return f"column {column!r}, row {row}"

    cells = {column: table.select_columns([column])[:][column] for column in columns}
    column = columns[0]
    kind = table.features[column]
    known = (f"not {column}", column) if kind == hf.Value("bool") else _name_classes(hf, kind)
    is_list = not isinstance(kind, (hf.Value, hf.ClassLabel))
    if len(columns) == 1 and not known and not _is_plain(hf, kind):
        raise DataError(
            f"column {column!r} is {kind}, which is not a class. Pass label_columns= with a column of class labels, "
            "integers or text, or of lists of these, or several of 0 and 1."
        )
    if len(columns) > 1 or not known:
        return (*encode_labels(cells, locate), ())
    numbers = set(range(len(known)))
    for row, cell in enumerate(cells[column]):
        if cell is None or not set(cell if is_list else [cell]) <= numbers:
            raise DataError(
                f"{locate(column, row)}: {cell!r} is not a class. Filter out such rows; test splits often lack labels."
            )
    if not is_list:
        return drop_empty(np.array(cells[column], dtype=np.int64), known)
    labels = np.zeros((len(table), len(known)), dtype=np.uint8)
    for row, positive in enumerate(cells[column]):
        labels[row, positive] = 1
    return drop_empty(labels, known)


def _is_plain(hf: Any, kind: Any) -> bool:
    """Whether a feature is of values that may be classes, or of lists of them."""
    kind = kind.feature if isinstance(kind, (hf.Sequence, hf.LargeList)) else kind
    return isinstance(kind, hf.Value) and kind.dtype.startswith(_PLAIN)


def _name_classes(hf: Any, kind: Any) -> Sequence[str]:
    """The classes of a feature of class labels, or of lists of them, which `datasets` has called by several names."""
    kind = kind.feature if isinstance(kind, (hf.Sequence, hf.LargeList)) else kind
    return kind.names if isinstance(kind, hf.ClassLabel) else ()
