"""A folder of class folders becomes a task.

Classes lie directly below the root and images directly in their class: the depth is fixed, so no link can make the
reader walk in circles. Nothing is followed out of the root, and nothing is left out without a word.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.check import quote
from task2vec.tasks.files import read_files
from task2vec.tasks.foreign import refuse_archive, refuse_huggingface
from task2vec.tasks.images import BadImage
from task2vec.tasks.task import Task

# Names that announce an image. Those that we cannot read are listed as bad, and not passed over.
READABLE = "jpg jpeg jpe jfif mpo png apng gif bmp dib tif tiff webp ppm pgm pbm pnm pfm"
UNREADABLE = "heic heif avif jp2 j2k jxl tga psd ico svg"
IMAGE_SUFFIXES = frozenset(f".{ending}" for ending in f"{READABLE} {UNREADABLE}".split())
# First bytes that no text begins with; for files whose name does not tell.
IMAGE_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*")

# What the parts of a dataset are called, in the usual order.
SPLIT_NAMES = ("train", "training", "trainval", "val", "valid", "validation", "dev", "eval", "test", "testing")


@dataclass
class Findings:
    """What lies in the folder, gathered while it is listed."""

    classes: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    refused: list[BadImage] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)
    unfollowed: list[str] = field(default_factory=list)

    def remarks(self) -> list[str]:
        """One warning for each kind of thing that was passed over, with its number and an example."""
        kinds = (
            ("not images and were ignored", self.ignored),
            ("images outside of every class folder and were ignored", self.stray),
            ("links to folders and were not followed", self.unfollowed),
        )
        told = [f"entries that are {what}: {len(names)}, such as {names[0]!r}" for what, names in kinds if names]
        if {name.lower() for name in self.classes} <= set(SPLIT_NAMES):
            told.append(f"the classes are called like splits: {quote(self.classes)}; were class folders meant inside?")
        return told


def read_folder(
    folder: str | os.PathLike[str],
    *,
    split: str | None = None,
    name: str | None = None,
    allow_bad: bool = False,
    workers: int | None = None,
    progress: bool = False,
) -> Task:
    """The task of a folder that holds one folder of images per class.

    Every file is read, hashed and decoded once. Unreadable ones are listed in `Task.bad` and left out; nothing takes
    their place.

    Args:
        folder: The root; its folders are the classes, and their names the class names.
        split: Read the class folders of this folder below the root, such as "train"; `read_splits` reads them all.
        name: What to call the task; the name of the folder if not given.
        allow_bad: Go on when more than 5 % of the images cannot be read.
        workers: Threads that decode; chosen from the number of processors if not given. It does not change the task.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        BadImagesError: More than 5 % of the images cannot be read, and `allow_bad` is false.
        DataError: The folder is not a task: missing, fewer than two classes, nested classes, a class without images.
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
            f"{folder} is {'not a folder' if root.exists() else 'not there'}, so there are no class folders to read. "
            "Name a folder with one folder of images per class, or a CSV or Parquet table (read_table, embed FILE)."
        )
    called = root.name or str(root)
    if split is not None:
        root, called = find_split(root, split), f"{called} ({split})"
    found = _list_root(root)
    if not found.paths and not found.refused:
        refuse_huggingface(root)
    return read_files(
        root,
        found.paths,
        np.asarray(found.labels, dtype=np.int64),
        classes=found.classes,
        name=called if name is None else name,
        source=str(folder) if split is None else os.path.join(folder, split),
        allow_bad=allow_bad,
        workers=workers,
        progress=progress,
        refused=found.refused,
        remarks=found.remarks(),
    )


def find_split(root: Path, split: str) -> Path:
    """The folder of a split, which must lie directly below the root; another is refused."""
    there = list_folders(root)
    if split in there:
        return root / split
    raise UsageError(
        f"{root} has no split {split!r}: its folders are {quote(there, 20) or 'none'}, and another would make another "
        "task. Name one of them."
    )


def list_folders(root: Path) -> list[str]:
    """The names of the folders of a root, without hidden ones and links."""
    return [entry.name for entry in _sorted_entries(root) if _is_folder(entry) and not entry.is_symlink()]


def looks_like_split(folder: Path) -> bool:
    """Whether a folder is named like a split and holds folders of images."""
    if folder.name.lower() not in SPLIT_NAMES:
        return False
    return any(_is_folder(entry) and _holds_images(entry) for entry in _sorted_entries(folder))


def _list_root(root: Path) -> Findings:
    """All that lies in the root and in its class folders, in the order of the names."""
    found = Findings()
    for entry in _sorted_entries(root):
        if _is_folder(entry) and entry.is_symlink():
            _refuse_if_out(entry, root)
            found.unfollowed.append(entry.name)
        elif _is_folder(entry):
            found.classes.append(entry.name)
            _list_class(root, entry.name, found)
        else:
            (found.stray if _is_image(entry) else found.ignored).append(entry.name)
    if not found.classes:
        refuse_huggingface(root)
        lying = f"{len(found.stray)} images lie in it directly" if found.stray else "it holds no folder"
        raise DataError(
            f"{root} has no class folders ({lying}), so no image has a label. "
            "Put the images of each class into a folder of its own below it."
        )
    return found


def _list_class(root: Path, kind: str, found: Findings) -> None:
    """Add the images of the newest class; a folder of images inside it is refused."""
    for entry in _sorted_entries(root / kind):
        path = f"{kind}/{entry.name}"
        if _is_folder(entry) and entry.is_symlink():
            if _leads_out(entry, root):
                found.refused.append(BadImage(path, "a link to a folder outside of the root"))
            else:
                found.unfollowed.append(path)
        elif _is_folder(entry) and _holds_images(entry):
            if looks_like_split(root / kind):
                raise DataError(
                    f"{root} holds {kind!r} with class folders inside, such as {entry.name!r}: that is a split and not "
                    f"a class. Say which (split={kind!r}, --split {kind}), or read all of them in Python: "
                    f"read_splits({str(root)!r})."
                )
            raise DataError(
                f"{root / kind} holds the folder {entry.name!r} with images of its own: classes inside classes leave "
                f"open which label is meant. Pass {root / kind} itself if its folders are the classes, or move the "
                "images up into the class folder."
            )
        elif not _is_folder(entry) and _is_image(entry):
            found.paths.append(path)
            found.labels.append(len(found.classes) - 1)
        else:
            found.ignored.append(path)


def _sorted_entries(folder: Path) -> list[os.DirEntry]:
    """The entries of a folder by name; a folder that may not be listed is refused."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be listed ({error.strerror}), so its images are unknown. Mend its permissions."
        ) from error


def _refuse_if_out(entry: os.DirEntry, root: Path) -> None:
    """Raise `DataError` if a class folder is a link out of the root: without it the task would be another."""
    if _leads_out(entry, root):
        raise DataError(
            f"the class folder {entry.path} is a link that leads out of {root}, to {os.path.realpath(entry.path)}: "
            "links are not followed out of the root, lest private files be read. Copy or move the class folder there."
        )


def _leads_out(entry: os.DirEntry, root: Path) -> bool:
    """Whether a link leads out of the root."""
    return not Path(os.path.realpath(entry.path)).is_relative_to(root)


def _is_folder(entry: os.DirEntry) -> bool:
    """Whether an entry is a folder, or a link to one, that is not hidden (.git, .ipynb_checkpoints)."""
    try:
        return entry.is_dir() and not entry.name.startswith(".")
    except OSError:  # a link to itself
        return False


def _holds_images(folder: os.DirEntry) -> bool:
    """Whether any file at any depth is named like an image; links to folders are not followed."""
    return any(_has_image_suffix(name) for _, _, names in os.walk(folder) for name in names)


def _has_image_suffix(name: str) -> bool:
    """Whether a name announces an image; hidden files (._photo.jpg of some systems) never do."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not name.startswith(".")


def _is_image(entry: os.DirEntry) -> bool:
    """Whether an entry that is not a folder means to be an image, by its name or else by its first bytes."""
    if _has_image_suffix(entry.name):
        return True
    # Nothing outside is opened, and no pipe, which would never answer.
    if entry.name.startswith(".") or entry.is_symlink() or not entry.is_file():
        return False
    try:
        with open(entry.path, "rb") as file:
            start = file.read(12)
    except OSError:
        return False
    return start.startswith(IMAGE_STARTS) or (start[:4] == b"RIFF" and start[8:] == b"WEBP")
