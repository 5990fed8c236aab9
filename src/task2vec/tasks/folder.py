"""A folder of class folders becomes a task, and a folder of splits becomes one task per split.

Classes lie directly below the root; images lie in their class, or in folders inside it, which a note reports. Links to
folders are not followed, so the reader can neither loop nor leave the root. Anything that is ignored is reported in a
warning.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.columns import read_start, refuse_huggingface
from task2vec.tasks.images import BadImage, StrPath, open_files
from task2vec.tasks.task import Task, make_task
from task2vec.text import pluralize, quote

# Names of image files. Those of a format that cannot be read here are listed as bad, not ignored.
SUPPORTED = "jpg jpeg jpe jfif mpo png apng gif bmp dib tif tiff webp ppm pgm pbm pnm pfm avif"
UNSUPPORTED = "heic heif jp2 j2k jxl tga psd ico svg"
IMAGE_SUFFIXES = frozenset(f".{ending}" for ending in f"{SUPPORTED} {UNSUPPORTED}".split())
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
# Usual names of splits, in the usual order.
SPLIT_NAMES = ("train", "training", "trainval", "val", "valid", "validation", "dev", "eval", "test", "testing")


def read_folder(
    folder: StrPath,
    *,
    split: str | None = None,
    name: str | None = None,
    allow_bad: bool = False,
    num_workers: int | None = None,
    progress: bool = False,
) -> Task:
    """The task of a folder that holds one folder of images per class.

    Every file is read, hashed and decoded. Unreadable ones are listed in `Task.bad` and left out, never replaced.

    Args:
        folder: The root; its folders are the classes, and their names the class names. Folders inside them are read,
            too.
        split: Read the class folders of this folder below the root, such as "train"; `read_splits` reads them all.
        name: The name of the task; the name of the folder if not given.
        allow_bad: Continue if more than 5% of the images cannot be read.
        num_workers: Threads that decode; by default chosen from the number of CPU cores. The task is the same.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        BadImagesError: More than 5% of the images cannot be read, and `allow_bad` is false.
        DataError: The folder is not a task: missing, fewer than two classes, a class without images, or unclear labels:
            every image lies in a folder inside a class folder, and these have names of their own.
        UsageError: There is no such split.

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
    classes, paths, labels, refused, notes = _list_root(root)
    source = str(folder) if split is None else os.path.join(folder, split)
    options: dict[str, Any] = {"allow_bad": allow_bad, "num_workers": num_workers, "progress": progress}
    targets = np.array(labels, dtype=np.int64)
    return make_task(open_files(root, paths), targets, classes, name, source, notes, refused=refused, **options)


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


def _list_root(root: Path) -> tuple[list[str], list[str], list[int], list[BadImage], list[str]]:
    """Classes, paths, labels, refused images and notes of a root, in the order of the names."""
    classes: list[str] = []
    paths: list[str] = []
    labels: list[int] = []
    refused: list[BadImage] = []
    nested: list[str] = []  # folders inside class folders
    ignored: dict[str, list[str]] = {kind: [] for kind in IGNORED}
    for entry in _sorted_entries(root):
        kind = _find_kind(entry, root)
        if kind == "link out":
            raise DataError(
                f"the class folder {entry.path} is a link that leads out of {root}, to {os.path.realpath(entry.path)}. "
                "Such links are not followed, so that no private file is read. Copy or move the class folder there."
            )
        if kind != "folder":
            ignored[kind].append(entry.name)
            continue
        folders = [entry.name]
        for folder in folders:  # grows by the folders inside
            for inner in _sorted_entries(root / folder):
                path = f"{folder}/{inner.name}"
                kind = _find_kind(inner, root)
                if kind == "image":
                    paths.append(path)
                    labels.append(len(classes))
                elif kind == "link out":
                    refused.append(BadImage(path, "a link to a folder outside of the root"))
                elif kind == "folder" and _holds_images(inner):
                    folders.append(path)
                else:
                    ignored["link" if kind == "link" else "other"].append(path)
        nested += folders[1:]
        if len(folders) > 1 and _is_split(root / entry.name):
            _refuse_nested(root, folders[1])
        classes.append(entry.name)
    inside = [path.split("/")[1] for path in nested if path.count("/") == 1]
    if nested and len(set(inside)) == len(inside) and not any(path.count("/") == 1 for path in paths):
        _refuse_nested(root, nested[0])
    if not paths and not refused:
        sign = find_huggingface(root)
        if sign is not None:
            refuse_huggingface(root, f"it has {sign.relative_to(root)}")
    if not classes:
        content = f"{len(ignored['image'])} images lie in it directly" if ignored["image"] else "it has no folder"
        raise DataError(
            f"{root} has no class folders ({content}), so no image has a label. Put each class into a folder of its "
            "own."
        )
    notes = [
        f"entries that are {IGNORED[kind]}: {len(names)}, such as {names[0]!r}"
        for kind, names in ignored.items()
        if names
    ]
    if nested:
        count = pluralize(len(nested), "folder")
        notes.append(
            f"{count} inside class folders, such as {nested[0]!r}: the label is the first folder below the root"
        )
    if {name.lower() for name in classes} <= set(SPLIT_NAMES):
        notes.append(f"the classes are named like splits: {quote(classes)}; are the class folders inside them?")
    return classes, paths, labels, refused, notes


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


def _refuse_nested(root: Path, path: str) -> NoReturn:
    """Raise the `DataError` for a folder of images inside a class folder, at `path` below the root."""
    kind, _, inner = path.partition("/")
    folder = root / kind
    if _is_split(folder):
        raise DataError(
            f"{root} has {kind!r} with class folders inside, such as {inner!r}: that is a split, not a class. "
            f"Choose it (split={kind!r}, --split {kind}), or read all of them in Python: read_splits({str(root)!r})."
        )
    raise DataError(
        f"{folder} contains the folder {inner!r}, and no class folder has images directly, so it is unclear which "
        f"label is meant. Pass {folder} itself if its folders are the classes, or move the images up into the class "
        "folder."
    )


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
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not name.startswith(".")
