"""Where a Hugging Face dataset comes from: an object, a local folder or file, the local cache; the hub only if asked.

`datasets.load_dataset` asks the hub for every name, and reports even the use of its own file readers. So without
`download` it is never called with a name: what is in the cache is opened as the files that it is.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task2vec.errors import DataError, DatasetNotFoundError, MissingExtraError, Task2VecError, UsageError
from task2vec.tasks.check import quote

# Readers of the `datasets` package that give images and open nothing that could run code.
SAFE_READERS = ("arrow", "csv", "imagefolder", "json", "parquet")
_HUB_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHARD = re.compile(r"^(.*-)(\d{5})(-of-)(\d{5})(.*)$")


@dataclass(frozen=True)
class Opened:
    """One split, what to call it, and the folder that the files it names must not leave (None: any on this machine)."""

    dataset: Any
    name: str
    source: str
    home: Path | None = None
    warnings: tuple[str, ...] = ()


def import_datasets() -> Any:
    """The `datasets` package; `MissingExtraError` with the install line if it is not there."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(
            "Hugging Face datasets are read with the datasets package, and that is not installed. "
            "Run: pip install 'task2vec[hf]'"
        ) from error
    return datasets


def open_source(
    hf: Any, dataset: Any, *, split: str | None, config: str | None, download: bool, progress: bool
) -> Opened:
    """The split of a dataset that is given as an object, a local path or a name."""
    if not isinstance(dataset, (str, os.PathLike)):
        return _open_object(hf, dataset, split, config)
    place, told = Path(dataset).expanduser(), ()
    with _quiet(hf, progress):
        if place.exists():
            found, home = _open_local(hf, place, config), _home(place)
        elif _is_path(str(dataset)):
            raise DataError(f"{dataset} is not there, so there is no dataset to read. Check the path.")
        else:
            name, home = os.fspath(dataset), None
            cached = _find_cached(hf, name, config)
            if cached:
                found, told = _attempt(lambda: _open_cached(hf, cached[0]), name), _tell_versions(cached)
            elif download:
                found = _attempt(lambda: hf.load_dataset(name, config), name)
            else:
                raise DatasetNotFoundError(
                    f"the dataset '{name}'{f' ({config})' if config else ''} is not on this machine: there is no such "
                    "folder, and it is not in the cache of datasets. Nothing is fetched without being asked. "
                    "Pass download=True, or a local folder."
                )
    word = os.fspath(dataset) if not place.exists() else place.resolve().name if place.is_dir() else place.stem
    chosen, which = _choose_split(hf, found, split, word)
    return Opened(chosen, f"{word} ({which})" if which else word, str(dataset), home, told)


def _open_object(hf: Any, dataset: Any, split: str | None, config: str | None) -> Opened:
    """The split of a dataset that somebody has opened already."""
    if not isinstance(dataset, (hf.Dataset, hf.DatasetDict)):
        raise UsageError(
            f"a {type(dataset).__name__} is neither a Dataset nor a DatasetDict, and a task is read more than once, in "
            "any order. Pass load_dataset(..., streaming=False), a path or a name; from_dataset takes other datasets."
        )
    if config is not None:
        raise UsageError(f"config={config!r} is for paths and names: this dataset is open already. Leave it out.")
    chosen, which = _choose_split(hf, dataset, split, type(dataset).__name__)
    word = chosen.info.dataset_name or type(dataset).__name__
    return Opened(chosen, f"{word} ({which})" if which else word, type(dataset).__name__)


def _choose_split(hf: Any, found: Any, split: str | None, word: str) -> tuple[Any, str]:
    """The split that is meant, and its name where there was a choice."""
    if isinstance(found, hf.Dataset):
        if split is not None and str(found.split) != split:
            own = "no split" if found.split is None else f"the split {str(found.split)!r}"
            raise UsageError(f"'{word}' is {own} alone, and not {split!r}. Leave split out, or pass the whole dataset.")
        return found, ""
    if split is None and len(found) == 1:
        return next(iter(found.values())), ""
    if split not in found:
        what = "several splits" if split is None else f"no split {split!r}"
        raise UsageError(
            f"'{word}' has {what}, and each is another task. Pass split= one of {quote(list(found), 20)}; splits are "
            "put together by join_tasks."
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
            f"{place} would be read as {reader!r}, which holds no images for us or could run code. "
            f"Readable are {quote(SAFE_READERS, 20)}."
        )
    _check_files(place, [str(file) for files in (builder.config.data_files or {}).values() for file in files])

    def prepare() -> Any:
        builder.download_and_prepare()
        return builder.as_dataset()

    return _attempt(prepare, place)


def _refuse_remote(place: Path) -> None:
    """Raise `DataError` if the card of a local folder points at files elsewhere, which would be fetched."""
    from huggingface_hub import DatasetCard

    card, settings = place / "README.md", place / ".huggingface.yaml"
    text = settings.read_text(encoding="utf-8", errors="replace") if settings.is_file() else ""
    if card.is_file():
        text += str(_attempt(lambda: DatasetCard.load(card).data.to_dict(), card).get("configs", ""))
    if "://" in text:
        raise DataError(
            f"{place} names data files that lie elsewhere (in README.md or .huggingface.yaml), and nothing is fetched "
            "without being asked. Download them into the folder, or pass the dataset's name with download=True."
        )


def _check_files(place: Path, files: list[str]) -> None:
    """Raise `DataError` for data files outside of the folder, and for parts of which some are missing."""
    home = _home(place)
    outside = [file for file in files if not Path(file).resolve().is_relative_to(home)]
    if outside:
        raise DataError(
            f"{place} names data files outside of it ({quote(outside)}): they are not read, lest private files be. "
            "Copy them into the folder."
        )
    present = set(files)
    for file in files:
        shard = _SHARD.match(file)
        if shard is None:
            continue
        start, _, between, total, end = shard.groups()
        # Names may end in a hash of each part; where they do, only the number of parts can be compared.
        parts = [other for other in present if other.startswith(start) and f"{between}{total}" in other]
        if len(parts) < int(total):
            raise DataError(
                f"{place} holds {len(parts)} of {int(total)} parts '{Path(start).name}*{between}{total}{end}': images "
                "would be missing. Complete the download."
            )


def _home(place: Path) -> Path:
    """The folder that a local dataset must not leave; in the hub's cache files are links into a folder beside."""
    resolved = place.resolve() if place.is_dir() else place.resolve().parent
    for folder in (resolved, *resolved.parents):
        if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("datasets--"):
            return folder.parent.parent
    return resolved


def _find_cached(hf: Any, name: str, config: str | None) -> list[Path]:
    """The folders of a prepared dataset in the cache, newest first, all of one configuration."""
    from datasets.naming import camelcase_to_snakecase

    owner, _, last = name.rpartition("/")
    folder = "___".join([*([owner] if owner else []), camelcase_to_snakecase(last)])
    root = Path(hf.config.HF_DATASETS_CACHE).expanduser() / folder
    # Folders of the hub are named by a commit or an older, longer hash; shorter ones come from local folders.
    found = [info.parent for info in root.glob("*/*/*/dataset_info.json") if _HUB_HASH.fullmatch(info.parent.name)]
    configs = sorted({place.parts[-3] for place in found})
    if config is None and len(configs) > 1:
        raise UsageError(
            f"'{name}' is in the cache with several configurations, and each is another dataset. "
            f"Pass config= one of {quote(configs, 20)}."
        )
    chosen = [place for place in found if config in (None, place.parts[-3])]
    return sorted(chosen, key=lambda place: place.stat().st_mtime, reverse=True)


def _open_cached(hf: Any, place: Path) -> Any:
    """The splits of a prepared dataset: its Arrow files, in the order of their parts."""
    info = hf.DatasetInfo.from_directory(str(place))
    splits = {}
    for split, facts in (info.splits or {}).items():
        ending = re.compile(rf"-{re.escape(split)}(-\d{{5}}-of-\d{{5}})?\.arrow$")
        files = sorted(str(file) for file in place.glob("*.arrow") if ending.search(file.name))
        parts = [hf.Dataset.from_file(file, info=info.copy(), split=hf.NamedSplit(split)) for file in files]
        count = sum(map(len, parts))
        if count != facts.num_examples:
            raise DataError(
                f"the cache holds {count} of {facts.num_examples} rows of the split {split!r} in {place}, so images "
                "would be missing. Remove that folder and fetch the dataset again with download=True."
            )
        splits[split] = hf.concatenate_datasets(parts) if len(parts) > 1 else parts[0]
    return hf.DatasetDict(splits)


def _tell_versions(cached: list[Path]) -> tuple[str, ...]:
    """A warning if the cache holds several versions, of which the newest was read."""
    return (f"versions of the dataset in the cache: {len(cached)}; the newest was read",) if len(cached) > 1 else ()


def _is_path(word: str) -> bool:
    """Whether a word cannot be a name on the hub, which has one slash at most and begins with a letter or number."""
    return word.startswith((".", "/", "~")) or "\\" in word or word.count("/") > 1


def _attempt(open_it: Callable[[], Any], what: object) -> Any:
    """What `open_it` gives; whatever the `datasets` package raises becomes a `DataError` that names the dataset."""
    try:
        return open_it()
    except (Task2VecError, MemoryError):
        raise
    except Exception as error:  # it raises its own errors, pyarrow's, fsspec's, the hub's and plain ones
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise DataError(
            f"'{what}' cannot be opened as a Hugging Face dataset ({type(error).__name__}: {reason}), so there are no "
            "images. Check the name, the config and the files; read_folder and read_table read the plain ones."
        ) from error


@contextmanager
def _quiet(hf: Any, progress: bool) -> Iterator[None]:
    """No bars of the `datasets` package unless asked for; the user's setting is put back."""
    hide = not progress and not hf.are_progress_bars_disabled()
    if hide:
        hf.disable_progress_bars()
    try:
        yield
    finally:
        if hide:
            hf.enable_progress_bars()
