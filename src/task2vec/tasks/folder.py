"""A folder of class folders becomes a task, and a folder of splits becomes one task per split.

Classes lie directly below the root; images lie in their class, or in folders inside it, which a note reports. If all
lie in folders inside folders, the caller says which are the classes. If there are no class folders, a table in or
beside the folder that names its images has the labels; no path of it leaves the folder. Links to folders are not
followed, so the reader can neither loop nor leave the root. Anything that is ignored is reported in a warning.
"""

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.errors import DataError, Task2VecError, UsageError
from task2vec.tasks.columns import (
    SUFFIXES,
    Columns,
    is_image_name,
    match_paths,
    read_columns,
    read_start,
    refuse_huggingface,
)
from task2vec.tasks.images import BadImage, StrPath, open_files
from task2vec.tasks.table import read_table
from task2vec.tasks.task import Task, make_task
from task2vec.text import pluralize, quote

# First bytes that no text begins with, for files without an image suffix.
IMAGE_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*")
# zip, gzip, bzip2, xz, zstd, 7z and rar; a tar has its mark at byte 257.
ARCHIVE_STARTS = (b"PK\3\4", b"PK\5\6", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf", b"Rar!")
# What is ignored, by its kind.
IGNORED = {
    "other": "not images and were ignored",
    "image": "images outside of every class folder and were ignored",
    "link": "links to folders and were not followed",
}
# Folders that systems and programs leave behind, in lower case; hidden ones (.git) are ignored in any case.
JUNK = ("__macosx", "__pycache__", "@eadir", "$recycle.bin", "system volume information", "lost+found")
# A larger file beside a folder is not looked into for labels.
MAX_TABLE_BYTES = 1 << 28
# Usual names of splits, in the usual order.
SPLIT_NAMES = ("train", "training", "trainval", "val", "valid", "validation", "dev", "eval", "test", "testing")


def read_folder(
    folder: StrPath,
    *,
    split: str | None = None,
    label_level: int | None = None,
    label_pattern: str | None = None,
    label_columns: str | Sequence[str] | None = None,
    group: str | None = None,
    group_level: int | None = None,
    name: str | None = None,
    allow_bad: bool = False,
    num_workers: int | None = None,
    progress: bool = False,
) -> Task:
    """The task of a folder that holds one folder of images per class, or images and a table of their labels.

    Every file is read, hashed and decoded. Unreadable ones are listed in `Task.bad` and left out, never replaced.

    Args:
        folder: The root; its folders are the classes, and their names the class names. Folders inside them are read,
            too.
        split: Read the class folders of this folder below the root, such as "train"; `read_splits` reads them all.
        label_level: Which folder of a path is the label: 1 for those in the root, 2 for those in them. If not given, it
            is the first, unless that is unclear.
        label_pattern: A regular expression on the path below the root whose group called "label", or else first group,
            is the label.
        label_columns: The columns of labels, if they are in a table in or beside the folder.
        group: As `label_pattern`, for what images of one patient, scene or object share (see `Task.groups`); or the
            column of the table.
        group_level: As `label_level`, for the same.
        name: The name of the task; the name of the folder if not given.
        allow_bad: Continue if more than 5% of the images cannot be read.
        num_workers: Threads that decode; by default chosen from the number of CPU cores. The task is the same.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        BadImagesError: More than 5% of the images cannot be read, and `allow_bad` is false.
        DataError: The folder is not a task: missing, fewer than two classes, a class without images, or unclear labels:
            the images lie in folders inside folders, or several tables name them.
        UsageError: There is no such split or level, or a pattern does not match every path.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for shade, kind in enumerate(("dawn", "dusk")):
        ...         Path(folder, kind).mkdir()
        ...         Image.new("L", (8, 8), shade).save(Path(folder, kind, "1.png"))
        ...     read_folder(folder, name="skies")
        Task(skies, 2 images, 2 classes)
    """
    if label_level is not None and label_pattern is not None:
        raise UsageError(
            "label_level (--label-level) and label_pattern (--label-pattern) both say the label. Pass one."
        )
    if group is not None and group_level is not None:
        raise UsageError("group (--group) and group_level (--group-level) both say the groups. Pass one.")
    root = Path(folder).resolve()
    if not root.is_dir():
        refuse_archive(root)
        raise DataError(
            f"{folder} {'is not a folder' if root.exists() else 'does not exist'}, so there are no class folders to "
            "read. Name a folder with one folder of images per class, or a CSV or Parquet table (read_table)."
        )
    if name is None:
        name = (root.name or str(root)) + (f" ({split})" if split is not None else "")
    if split is not None:
        root = find_split(root, split)
    source = str(folder) if split is None else os.path.join(folder, split)
    options: dict[str, Any] = {"allow_bad": allow_bad, "num_workers": num_workers, "progress": progress}
    listing = _list_root(root)
    is_asked = label_level is not None or label_pattern is not None
    beside = _find_table(root, listing.paths) if listing.is_flat and not is_asked else None
    if beside is not None:
        file, columns, column = beside
        about: dict[str, Any] = {"path_column": column, "label_columns": label_columns, "group": group}
        task = read_table(columns, root=root, name=name, **about, **options)
        left_out = len(set(listing.paths).difference(columns[column]))
        reading, *notes = task.notes
        notes += [f"images that the table does not name, left out: {left_out}"] if left_out else []
        return replace(
            task, source=source, notes=(f"labels of the table {os.path.relpath(file, root)!r}, {reading}", *notes)
        )
    if label_columns is not None:
        raise UsageError(
            f"label_columns (--label-columns) are those of a table, and none names the images of {root}. Leave it out, "
            "or pass the table itself."
        )
    paths, labels, classes, notes = _label_files(root, listing, label_level, label_pattern)
    groups = None if group is None else match_paths("group", group, paths)
    if group_level is not None:
        groups = match_paths("group_level", group_level, paths)
    targets, images = np.array(labels, dtype=np.int64), open_files(root, paths)
    options |= {"refused": listing.refused, "groups": groups}
    return make_task(images, targets, classes, name, source, notes, **options)


def read_splits(
    folder: StrPath,
    *,
    splits: Sequence[str] | None = None,
    name: str | None = None,
    allow_bad: bool = False,
    num_workers: int | None = None,
    progress: bool = False,
) -> dict[str, Task]:
    """The tasks of train, val, test and so on below one folder, by the name of the split.

    Classes that all splits have come first and have the same number in all of them. A class that is missing in a split
    is not a class there; a warning reports that, and images that are in two splits.

    Args:
        folder: The root; its folders are the splits, and theirs are the classes.
        splits: Which folders to read; all that are named like a split if not given.
        name: The name of the dataset; the name of the folder if not given.
        allow_bad: Continue if more than 5% of the images of a split cannot be read.
        num_workers: Threads that decode; by default chosen from the number of CPU cores. The tasks are the same.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        BadImagesError: More than 5% of the images of a split cannot be read, and `allow_bad` is false.
        DataError: There is no split, or one of them is not a task.
        UsageError: A named split does not exist.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for shade, kind in enumerate(("train/dawn", "train/dusk", "val/dawn", "val/dusk")):
        ...         Path(root, kind).mkdir(parents=True)
        ...         Image.new("L", (8, 8), shade).save(Path(root, kind, "1.png"))
        ...     read_splits(root, name="skies")
        {'train': Task(skies (train), 2 images, 2 classes), 'val': Task(skies (val), 2 images, 2 classes)}
    """
    root = Path(folder)
    if splits is None:
        splits = list_splits(root)
        if not splits:
            raise DataError(
                f"{root} has no split: no folder like 'train', 'val' or 'test' with class folders inside. Name them "
                "with splits=[...], or read a folder of classes with read_folder."
            )
    name = root.resolve().name if name is None else name
    options = {"allow_bad": allow_bad, "num_workers": num_workers, "progress": progress}
    tasks = {split: read_folder(folder, split=split, name=f"{name} ({split})", **options) for split in splits}
    shared = set.intersection(*(set(task.classes) for task in tasks.values()))
    all_classes = sorted({kind for task in tasks.values() for kind in task.classes})
    matched = {}
    for split, task in tasks.items():
        order = sorted(range(len(task.classes)), key=lambda number: (task.classes[number] not in shared, number))
        classes = tuple(task.classes[number] for number in order)
        notes = list(task.notes)
        if missing := [kind for kind in all_classes if kind not in classes]:
            notes.insert(0, f"classes of other splits that have no image here: {quote(missing)}")
        for sibling in tasks:
            common = set(task.digests) & set(tasks[sibling].digests) if sibling != split else ()
            if common:
                first = task.images.name(min(map(task.digests.index, common)))
                notes.append(f"images that are also in {sibling!r}: {len(common)}, such as {first!r}")
        matched[split] = replace(task, targets=task.renumber(order), classes=classes, notes=tuple(notes))
    return matched


def list_splits(root: Path) -> list[str]:
    """The names of the splits of a folder, in their usual order; none if it has none."""
    names = [name for name in list_folders(root) if _is_split(root / name)] if root.is_dir() else []
    return sorted(names, key=lambda name: (SPLIT_NAMES.index(name.lower()), name))


def find_split(root: Path, split: str) -> Path:
    """The folder of a split, which must lie directly below the root."""
    folders = list_folders(root)
    if split not in folders:
        _refuse_if_huggingface(root)
        raise UsageError(
            f"{root} has no split {split!r}: its folders are {quote(folders, 20) or 'none'}. Name one of them."
        )
    return root / split


def list_folders(root: Path) -> list[str]:
    """The names of the folders of a root, without hidden ones and links."""
    return [entry.name for entry in _sorted_entries(root) if _is_folder(entry) and not entry.is_symlink()]


def refuse_archive(file: Path) -> None:
    """Raise `DataError` if a regular file is an archive, recognised by its first bytes."""
    start = read_start(file, 262) if file.is_file() else b""
    if start.startswith(ARCHIVE_STARTS) or start[257:] == b"ustar":
        raise DataError(
            f"{file} is an archive. Archives are not unpacked: they could write anywhere and grow to any size. "
            "Unpack it into an empty folder yourself, and name the folder that holds the class folders."
        )


def find_huggingface(root: Path) -> Path | None:
    """A file by which the folder is known as a Hugging Face dataset, if it has one."""
    patterns = ("dataset_dict.json", "state.json", "*.arrow", "*.parquet", "*/*.arrow", "*/*.parquet")
    return next((file for pattern in patterns for file in root.glob(pattern)), None)


def _refuse_if_huggingface(root: Path) -> None:
    if (sign := find_huggingface(root)) is not None:
        refuse_huggingface(root, f"it has {sign.relative_to(root)}")


@dataclass
class _Listing:
    """What lies in a root: its folders, the paths of images, links that are refused, and what is ignored, by kind."""

    folders: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    refused: list[BadImage] = field(default_factory=list)
    ignored: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in IGNORED})

    @property
    def is_flat(self) -> bool:
        """Whether folders say nothing of classes: none has images, or one, or all are named like splits."""
        names = {path.rpartition("/")[0].lower() for path in self.paths if "/" in path}
        return bool(self.paths) and (len(names) < 2 or names <= set(SPLIT_NAMES))


def _list_root(root: Path) -> _Listing:
    """What lies in a root, in the order of the names."""
    listing = _Listing()
    for entry in _sorted_entries(root):
        kind = _find_kind(entry, root)
        if kind == "link out":
            raise DataError(
                f"the class folder {entry.path} is a link that leads out of {root}, to {os.path.realpath(entry.path)}. "
                "Such links are not followed, so that no private file is read. Copy or move the class folder there."
            )
        if kind == "image":
            listing.paths.append(entry.name)
        if kind != "folder":
            listing.ignored[kind].append(entry.name)
            continue
        listing.folders.append(entry.name)
        folders = [entry.name]
        for folder in folders:  # grows by the folders inside
            for inner in _sorted_entries(root / folder):
                path = f"{folder}/{inner.name}"
                kind = _find_kind(inner, root)
                if kind == "image":
                    listing.paths.append(path)
                elif kind == "link out":
                    listing.refused.append(BadImage(path, "a link to a folder outside of the root"))
                elif kind == "folder" and _holds_images(inner):
                    folders.append(path)
                else:
                    listing.ignored["link" if kind == "link" else "other"].append(path)
    return listing


def _label_files(
    root: Path, listing: _Listing, level: int | None, pattern: str | None
) -> tuple[list[str], list[int], list[str], list[str]]:
    """Paths, labels, classes and notes of the images of a root, by the folder at a level or a pattern of the path."""
    if not listing.paths and not listing.refused:
        _refuse_if_huggingface(root)
    paths = listing.paths if pattern is not None else [path for path in listing.paths if "/" in path]
    if pattern is None and not listing.folders:
        content = f"{len(listing.paths)} images lie in it directly" if listing.paths else "it has no folder"
        raise DataError(
            f"{root} has no class folders ({content}), and no table in it or beside it has their names in a column, so "
            "no image has a label. Put each class into a folder of its own, or pass a table of paths and labels "
            "(read_table), or a pattern of the file names (label_pattern=, --label-pattern)."
        )
    nested = list(dict.fromkeys(path.rpartition("/")[0] for path in paths if path.count("/") > 1))
    is_asked = level is not None or pattern is not None
    if pattern is not None:
        names = match_paths("label_pattern", pattern, paths)
    else:
        level = _find_level(root, paths) if level is None else level
        names = match_paths("label_level", level, paths)
    # A class folder without images is refused later, by name.
    classes = listing.folders if level == 1 else sorted(set(names))
    number = {name: index for index, name in enumerate(classes)}
    notes = [
        f"entries that are {IGNORED[kind]}: {len(entries)}, such as {entries[0]!r}"
        for kind, entries in listing.ignored.items()
        if entries and (kind != "image" or pattern is None)
    ]
    if nested and not is_asked:
        count, label = pluralize(len(nested), "folder"), "first" if level == 1 else "second"
        notes.append(
            f"{count} inside class folders, such as {nested[0]!r}: the label is the {label} folder below the root"
        )
    if not is_asked and {name.lower() for name in classes} <= set(SPLIT_NAMES):
        notes.append(f"the classes are named like splits: {quote(classes)}; are the class folders inside them?")
    return paths, [number[name] for name in names], classes, notes


def _find_level(root: Path, paths: Sequence[str]) -> int:
    """The level of the folders that are the labels: 1, or 2 if all lie in one folder; refused if it is unclear."""
    deep = [path.split("/")[:2] for path in paths if path.count("/") > 1]
    splits = [name for name in dict.fromkeys(first for first, _ in deep) if _is_split(root / name)]
    if splits:
        inner = next(second for first, second in deep if first == splits[0])
        raise DataError(
            f"{root} has {splits[0]!r} with class folders inside, such as {inner!r}: that is a split, not a class. "
            f"Choose it (split={splits[0]!r}, --split {splits[0]}), or read all of them in Python: "
            f"read_splits({str(root)!r})."
        )
    first, second = (Counter(names) for names in zip(*deep, strict=True)) if deep else (Counter(), Counter())
    is_repeated = len(set(map(tuple, deep))) > len(second)  # one name in several folders
    is_deep = len(deep) == len(paths) or (2 * len(deep) > len(paths) and is_repeated)
    if not is_deep or len(second) < 2:
        return 1
    if len(first) == 1:
        return 2
    candidates = [
        f"{pluralize(len(counts), 'class')}, {', '.join(f'{kind!r} ({n} images)' for kind, n in [*counts.items()][:3])}"
        for counts in (first, second)
    ]
    raise DataError(
        f"{root} has folders in folders, so it is unclear which is the label. By the first folder: {candidates[0]}: "
        f"label_level=1 (--label-level 1). By the second: {candidates[1]}: label_level=2 (--label-level 2); if images "
        "of one first folder belong together, as those of a site or a patient do, also group_level=1 (--group-level 1)."
    )


def _find_table(root: Path, paths: Sequence[str]) -> tuple[Path, Columns, str] | None:
    """The only table in a folder, or else beside it, that names its images; its columns, and that of their paths."""
    known: dict[str, str] = {}
    for path in paths:
        name = path.rpartition("/")[2]
        for key in {os.path.splitext(name)[0], name, path, str(root / path)}:
            known[key] = path if known.get(key, path) == path else ""
    for folder in (root, root.parent):
        tables: dict[Path, tuple[Columns, str]] = {}
        for entry in _sorted_entries(folder) if os.access(folder, os.R_OK) else []:
            is_table = os.path.splitext(entry.name)[1].lower() in SUFFIXES and not entry.name.startswith(".")
            if is_table and entry.is_file(follow_symlinks=False) and entry.stat().st_size <= MAX_TABLE_BYTES:
                with suppress(Task2VecError):  # a file that is no table names no images
                    if match := _match_columns(Path(entry.path), known, len(paths)):
                        tables[Path(entry.path)] = match
        if len(tables) > 1:
            first = next(iter(tables))
            raise DataError(
                f"{quote([*map(str, tables)])} all name the images of {root}, so it is unclear which has their labels. "
                f"Pass one of them: read_table({str(first)!r}, root={str(root)!r}), or task2vec embed "
                f"{shlex.quote(str(first))} --root {shlex.quote(str(root))}"
            )
        for file, (columns, column) in tables.items():
            return file, columns, column
    return None


def _match_columns(file: Path, known: dict[str, str], total: int) -> tuple[Columns, str] | None:
    """The columns of a table, and the one that names at least half of the images, with their paths in it."""
    columns = read_columns(file)
    if any(known.get(column) for column in columns):  # names of images without a suffix may look like a header
        columns = read_columns(file, header=False)
    best: tuple[int, str, list[str]] = (0, "", [])
    for column, cells in columns.items():
        names = [str(cell).strip().replace("\\", "/") for cell in cells]
        matches = [known.get(name) or known.get(os.path.normpath(file.parent / name)) or "" for name in names]
        count = len(set(filter(None, matches)))
        if 2 * count >= max(total, len(cells)) and count > best[0]:
            best = count, column, [match or name for match, name in zip(matches, names, strict=True)]
    if not best[0]:
        return None
    columns[best[1]] = best[2]
    return columns, best[1]


def _find_kind(entry: os.DirEntry, root: Path) -> str:
    """What an entry is: "folder", "link" to one, "link out" to one outside of the root, "image", or "other"."""
    if _is_folder(entry):
        if not entry.is_symlink():
            return "folder"
        return "link" if Path(os.path.realpath(entry.path)).is_relative_to(root) else "link out"
    if _has_image_suffix(entry.name):
        return "image"
    # Without an image suffix the first bytes decide. Nothing outside is opened, and no pipe, which would block.
    can_open = not entry.name.startswith(".") and not entry.is_symlink() and entry.is_file()
    start = read_start(Path(entry.path), 12) if can_open else b""
    return "image" if start.startswith(IMAGE_STARTS) or (start[:4] == b"RIFF" and start[8:] == b"WEBP") else "other"


def _is_split(folder: Path) -> bool:
    """Whether a folder is named like a split and holds folders of images."""
    folders = filter(_is_folder, _sorted_entries(folder)) if folder.name.lower() in SPLIT_NAMES else ()
    return any(map(_holds_images, folders))


def _sorted_entries(folder: Path) -> list[os.DirEntry]:
    """The entries of a folder by name; a folder that may not be listed is refused."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be listed ({error.strerror}), so its images are unknown. Fix its permissions."
        ) from error


def _is_folder(entry: os.DirEntry) -> bool:
    """Whether an entry is a folder, or a link to one, that is not hidden (.git, .ipynb_checkpoints) or junk."""
    try:
        return entry.is_dir() and not entry.name.startswith(".") and entry.name.lower() not in JUNK
    except OSError:  # a link to itself
        return False


def _holds_images(folder: os.DirEntry) -> bool:
    """Whether any file at any depth is named like an image; links to folders are not followed."""
    return any(_has_image_suffix(name) for _, _, names in os.walk(folder) for name in names)


def _has_image_suffix(name: str) -> bool:
    """Whether a file is named like an image; hidden files (._photo.jpg of some systems) never are."""
    return is_image_name(name) and not name.startswith(".")
