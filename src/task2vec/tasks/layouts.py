"""Published datasets known by what lies in their folder, so that a path alone is enough to read one."""

import os
from pathlib import Path

from task2vec.errors import DataError, UsageError
from task2vec.tasks.catalogue import Catalogue
from task2vec.tasks.cub200 import read_cub200
from task2vec.tasks.deepfashion import read_deepfashion
from task2vec.tasks.imaterialist import read_imaterialist
from task2vec.tasks.inaturalist import read_inaturalist

# The second is the first with the taxonomy of the paper, for those who ask for it.
LAYOUTS = ("cub200", "cub200-paper", "inaturalist", "imaterialist", "deepfashion")
# Files that only one dataset has.
_SIGNS = {
    "cub200": ("image_class_labels.txt", "CUB_200_2011/image_class_labels.txt"),
    "inaturalist": ("train2017.json", "train2018.json", "train2019.json", "train_mini.json"),
    "imaterialist": ("iMat_fashion_2018_label_map_228.csv",),
    "deepfashion": ("Anno/list_attr_img.txt", "Anno_coarse/list_attr_img.txt"),
}
# Two datasets call their annotations train.json: a field of their images tells which it is.
_FIELDS = {"inaturalist": b'"file_name"', "imaterialist": b'"imageId"'}
_START_BYTES = 1 << 16


def recognise_layout(folder: str | os.PathLike[str]) -> str | None:
    """The published dataset whose files lie in the folder, such as "cub200", or None.

    Raises:
        UsageError: The files of several lie there.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "image_class_labels.txt").write_text("1 1")
        ...     recognise_layout(folder)
        'cub200'
    """
    root = Path(folder)
    found = {name for name, signs in _SIGNS.items() if any((root / sign).is_file() for sign in signs)}
    start = _read_start(root / "train.json")
    found |= {name for name, field in _FIELDS.items() if field in start}
    if len(found) > 1:
        raise UsageError(
            f"{root} has files of {' and '.join(sorted(found))}, so it is unclear which is meant. Say so (layout=, "
            "--as), or give each a folder of its own."
        )
    return found.pop() if found else None


def read_catalogue(
    folder: str | os.PathLike[str],
    *,
    layout: str | None = None,
    labels: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Catalogue:
    """The catalogue of a published dataset, by the reader that its files ask for.

    Args:
        folder: What the dataset's own archives unpack to.
        layout: Which dataset it is, one of `LAYOUTS`; recognised by its files if not given.
        labels: Of iMaterialist, the table of the labels' names.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        DataError: The folder is none that is known, or the dataset is damaged.
        UsageError: There is no such layout, or the files of several datasets lie there.
    """
    root = Path(folder)
    layout = layout or recognise_layout(root)
    if labels is not None and layout != "imaterialist":
        raise UsageError(
            f"a table of labels (labels=, --labels) was given for {root}, and only imaterialist has one. Leave it out."
        )
    if layout in ("cub200", "cub200-paper"):
        return read_cub200(root, taxonomy="traditional" if layout == "cub200" else "paper")
    if layout == "deepfashion":
        return read_deepfashion(root, progress=progress)
    if layout == "imaterialist":
        return read_imaterialist(root, labels=labels, progress=progress)
    if layout == "inaturalist":
        others = ("train.json", *_SIGNS[layout][:3])
        is_mini = (root / "train_mini.json").is_file() and not any((root / name).is_file() for name in others)
        return read_inaturalist(root, mini=is_mini, progress=progress)
    if layout is not None:
        raise UsageError(f"there is no reader for {layout!r}. Choose one of {', '.join(LAYOUTS)}.")
    wrong = "has no files of a dataset that we know" if root.is_dir() else "is not a folder"
    raise DataError(
        f"{root} {wrong}, so there is no list of tasks in it. Known are {', '.join(LAYOUTS)}, as their archives "
        "unpack; a folder of class folders is one task of its own."
    )


def _read_start(file: Path) -> bytes:
    """The first bytes of a file; none of one that is not there or may not be read."""
    try:
        with file.open("rb") as content:
            return content.read(_START_BYTES)
    except OSError:
        return b""
