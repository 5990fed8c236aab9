"""iMaterialist (Fashion) 2018 as published: annotation files, and images as their user saved them.

    imaterialist/  train.json  validation.json  train/1.jpg  train/2.jpg ...  validation/1.jpg ...

The files hold URLs, not images: each image was saved under its id. Names of the 228 labels are in a table of their own,
with the columns labelId, taskId, labelName and taskName.
"""

import os
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.catalog import (
    Catalog,
    LabelTable,
    Splits,
    damaged,
    deduplicate_names,
    define_attributes,
    define_groups,
    match_annotations,
    number_ids,
    read_records,
    take_id,
)
from task2vec.tasks.table import read_columns
from task2vec.tasks.task import quote

# The annotation files of each split, as named by Kaggle and by the organisers, and the folder of its images.
SPLITS = {"train": ("train.json",), "val": ("validation.json", "val.json")}
FOLDERS = {"train": "train", "val": "validation"}
LABEL_MAP = "iMat_fashion_2018_label_map_228.csv"
NAMELESS = (
    f"labels are named by their numbers and have no groups, because the folder has no {LABEL_MAP}: put it there, "
    "or pass it (labels=, --labels)"
)


def read_imaterialist(
    folder: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
) -> Catalog:
    r"""The catalog of iMaterialist (Fashion) 2018: each label a binary task, each group of labels a multi-label one.

    A label that an image does not have is a negative: no other negatives are published. With the table of names there
    are 228 attributes in groups such as color, gender, neckline, sleeve and style; without it, the labels that occur
    are named by their ids and have no group, with a warning. A label's `positives` count the images that have it.

    Args:
        folder: The folder with train.json and validation.json.
        labels: The table of names (CSV); if not given, the one in the folder under its published name,
            `iMat_fashion_2018_label_map_228.csv`.

    Raises:
        DataError: A file is missing or damaged, or an id has no entry or two; the message names file and record.
        UsageError: `labels` is not a file.

    Example:
        >>> import json, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for split in ("train", "validation"):
        ...         pictures = [{"url": "https://...", "imageId": str(n)} for n in (1, 2)]
        ...         carried = [{"imageId": "2", "labelId": ["66", "17"]}, {"imageId": "1", "labelId": ["66"]}]
        ...         content = {"images": pictures, "annotations": carried}
        ...         _ = Path(folder, f"{split}.json").write_text(json.dumps(content))
        ...         Path(folder, split).mkdir()
        ...         Path(folder, split, "1.jpg").touch()
        ...     names = Path(folder, "labels.csv")
        ...     _ = names.write_text("labelId,taskId,labelName,taskName\n17,2,Black,color\n66,3,Female,gender\n")
        ...     catalog = read_imaterialist(folder, labels=names)
        >>> catalog
        Catalog(imaterialist2018, 4 images, train and val, tasks: 2 attribute, 2 attribute group)
        >>> black = catalog.find("Black")
        >>> black.group, dict(black.positives), dict(black.counts)
        ('color', {'train': 1, 'val': 1}, {'train': 2, 'val': 2})
    """
    root = Path(folder)
    places = [_find_file(root, names) for names in SPLITS.values()]
    label_map = Path(labels) if labels is not None else root / LABEL_MAP
    if labels is not None and not label_map.is_file():
        raise UsageError(f"{label_map} is not a file. Check the path, or leave it out (labels=, --labels).")
    suffix = _infer_suffix(root)
    known = _read_names(label_map) if label_map.is_file() else {}
    parts = [_read_annotations(file, known) for file in places]
    ids = sorted(known or {label for part in parts for own in part.values() for label in own})
    names, groups = zip(*(known.get(number, (str(number), "")) for number in ids), strict=True)
    column = {label: place for place, label in enumerate(ids)}
    values = np.zeros((sum(map(len, parts)), len(ids)), np.int8)
    for row, own in enumerate(own for part in parts for own in part.values()):
        values[row, [column[label] for label in own]] = 1
    table = LabelTable(values, tuple(deduplicate_names(names, groups)), groups)
    splits = Splits(np.repeat(np.arange(2, dtype=np.uint8), list(map(len, parts))), tuple(SPLITS))
    return Catalog(
        "imaterialist2018",
        root,
        [f"{folder}/{number}{suffix}" for part, folder in zip(parts, FOLDERS.values(), strict=True) for number in part],
        splits,
        {"labels": table},
        define_attributes(table, splits) + define_groups(table, splits),
        tuple(map(str, places)),
        warnings=() if label_map.is_file() else (NAMELESS,),
    )


def _find_file(root: Path, names: Sequence[str]) -> Path:
    """The one file of these names that exists."""
    found = [root / name for name in names if (root / name).is_file()]
    if len(found) != 1:
        what = f"has both {' and '.join(names)}" if found else f"has no {' or '.join(names)}"
        raise DataError(
            f"{root} {what}. Pass the folder of iMaterialist (Fashion) 2018 with one file for training and one for "
            "validation, unpacked."
        )
    return found[0]


def _infer_suffix(root: Path) -> str:
    """How the names of images end, from some of the files; refused if there are none or several suffixes."""
    found = set()
    for place in FOLDERS.values():
        if (root / place).is_dir():
            with os.scandir(root / place) as entries:
                pairs = [os.path.splitext(entry.name) for entry in islice(entries, 2000)]
            found |= {suffix for stem, suffix in pairs if stem.isdecimal() and suffix in (".jpg", ".jpeg", ".png")}
    if len(found) != 1:
        seen = f"images ending in {' and '.join(sorted(found))}" if found else "no images named by their ids"
        raise DataError(
            f"{root} has {seen} in train and validation, so their paths are unknown. Save them as train/ID.jpg and "
            "validation/ID.jpg."
        )
    return found.pop()


def _read_annotations(file: Path, known: Mapping[int, object]) -> dict[int, list[int]]:
    """The labels of every image by its id; if names are `known`, each label must have one."""
    images, annotations = read_records(file, "images", "annotations")
    image_ids = number_ids(file, "images", images, "imageId")
    rows = match_annotations(file, image_ids, number_ids(file, "annotations", annotations, "imageId"))
    found: list[list[int]] = [[]] * len(images)
    for number, (row, record) in enumerate(zip(rows.tolist(), annotations, strict=True)):
        where, listed = f"{file}, annotations, record {number}", record.get("labelId")
        if not isinstance(listed, list):
            raise damaged(where, "it has no list of labels in 'labelId'")
        found[row] = [take_id({"labelId": label}, "labelId", where) for label in listed]
        if len(set(found[row])) < len(listed) or (known and not known.keys() >= set(found[row])):
            raise damaged(where, f"its labels {found[row]} repeat or are not in the table of names (labels=, --labels)")
    return dict(zip(image_ids, found, strict=True))


def _read_names(place: Path) -> dict[int, tuple[str, str]]:
    """Name and group of every label by its id."""
    columns = read_columns(place)
    wanted = ("labelId", "labelName", "taskName")
    if missing := [column for column in wanted if column not in columns]:
        raise damaged(place, f"it has no column {quote(missing)}, only {quote(list(columns), 20)}")
    found: dict[int, tuple[str, str]] = {}
    for row, (label, called, group) in enumerate(zip(*(columns[column] for column in wanted), strict=True)):
        where = f"{place}, {columns.format_row(row)}"
        key, name = take_id({"labelId": label}, "labelId", where), (str(called).strip(), str(group or "").strip())
        if key in found or not name[0] or name in found.values():
            raise damaged(where, f"the label {key} is repeated, without a name or named like another")
        found[key] = name
    return found
