"""iMaterialist (Fashion) 2018 as published: annotation files, and images as their user saved them.

    imaterialist/  train.json  validation.json  train/1.jpg  train/2.jpg ...  validation/1.jpg ...

The files hold URLs, not images: each image was saved under its id. Names of the 228 labels are in a table of their own,
with the columns labelId, taskId, labelName and taskName.
"""

import os
from array import array
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.catalog import (
    AttributeTable,
    Catalog,
    Splits,
    check_path,
    damaged,
    deduplicate_names,
    define_attributes,
    define_groups,
    match_annotations,
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
# Label ids are held in 16 bits; the published ones end at 228.
_MAX_LABELS = 1 << 16


def read_imaterialist(
    folder: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    images: str | None = None,
    name: str | None = None,
    progress: bool = False,
) -> Catalog:
    r"""The catalog of iMaterialist (Fashion) 2018: each label a binary task, each group of labels a multi-label one.

    A label that an image does not have is a negative: no other negatives are published. With the table of names there
    are 228 attributes in groups such as color, gender, neckline, sleeve and style; without it, the labels that occur
    are named by their ids and have no group, with a warning. A label's `positives` count the images that have it.

    Args:
        folder: The folder with train.json and validation.json.
        labels: The table of names (CSV); if not given, the one in the folder under its published name,
            `iMat_fashion_2018_label_map_228.csv`.
        images: The names of images below the folder, such as "{folder}/{id}.jpg", where the folder is "train" or
            "validation". If not given, it is inferred from the files: train/ID.jpg, .jpeg or .png.
        name: The name of the catalog; "imaterialist2018" if not given.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        DataError: A file is missing or damaged, or an id has no entry or two; the message names file and record.
        UsageError: `images` does not give each image a path, or `labels` is not a file.

    Example:
        >>> import json, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for split in ("train", "validation"):
        ...         pictures = [{"url": "https://...", "imageId": str(n)} for n in (1, 2)]
        ...         carried = [{"imageId": "2", "labelId": ["66", "17"]}, {"imageId": "1", "labelId": ["66"]}]
        ...         content = {"images": pictures, "annotations": carried}
        ...         _ = Path(folder, f"{split}.json").write_text(json.dumps(content))
        ...     names = Path(folder, "labels.csv")
        ...     _ = names.write_text("labelId,taskId,labelName,taskName\n17,2,Black,color\n66,3,Female,gender\n")
        ...     catalog = read_imaterialist(folder, labels=names, images="{folder}/{id}.jpg")
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
    pattern = _infer_pattern(root) if images is None else images
    if "{folder}" not in pattern or "{id}" not in pattern:
        raise UsageError(
            f'images={images!r} does not give each image a path. Pass a pattern like "{{folder}}/{{id}}.jpg".'
        )
    check_path(pattern, f"images={images!r}")
    parts = [_read_annotations(file, progress) for file in places]
    if label_map.is_file():
        ids, names, groups = _read_names(label_map)
    else:
        ids = sorted({label for _, _, label_ids, _ in parts for label in np.unique(label_ids).tolist()})
        names, groups = [str(number) for number in ids], [""] * len(ids)
    values = np.concatenate([_fill_values(file, *part, ids) for file, part in zip(places, parts, strict=True)])
    table = AttributeTable(values, tuple(names), tuple(groups))
    splits = Splits(np.repeat(np.arange(2, dtype=np.uint8), [len(part[0]) for part in parts]), tuple(SPLITS))
    return Catalog(
        "imaterialist2018" if name is None else name,
        root,
        [
            pattern.replace("{folder}", folder).replace("{id}", str(number))
            for part, folder in zip(parts, FOLDERS.values(), strict=True)
            for number in part[0]
        ],
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


def _infer_pattern(root: Path) -> str:
    """The names of images, from some of the files; refused if there are none or several suffixes."""
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
            'validation/ID.jpg, or give the pattern in Python: images="{folder}/{id}.jpg".'
        )
    return f"{{folder}}/{{id}}{found.pop()}"


def _read_annotations(file: Path, progress: bool) -> tuple[array, np.ndarray, array, array]:
    """The id of every image, the image row of every annotation, all label ids, and how many each annotation has."""
    image_ids, annotated, label_ids, counts = array("q"), array("q"), array("H"), array("q")
    known: dict[object, int] = {}
    place = str(file)
    for key, number, record in read_records(file, ("images", "annotations"), progress=progress):
        where = f"{place}, {key}, record {number}"
        (image_ids if key == "images" else annotated).append(take_id(record, "imageId", where))
        if key == "annotations":
            listed = record.get("labelId")
            if not isinstance(listed, list) or any(isinstance(label, list | dict) for label in listed):
                raise damaged(where, "it has no list of labels in 'labelId'")
            for label in listed:
                if label not in known:
                    known[label] = take_id({"labelId": label}, "labelId", where)
            found = [known[label] for label in listed]
            if len(set(found)) < len(found) or max(found, default=0) >= _MAX_LABELS:
                raise damaged(where, f"its labels {quote(listed, 20)} repeat or are too large")
            label_ids.extend(found)
            counts.append(len(found))
    if not image_ids:
        raise damaged(file, "it has no images")
    return image_ids, match_annotations(file, image_ids, annotated), label_ids, counts


def _read_names(place: Path) -> tuple[list[int], list[str], list[str]]:
    """Ids, names and groups of the labels, by ascending id; names that two groups share get the group's."""
    columns = read_columns(place)
    missing = [column for column in ("labelId", "labelName", "taskName") if column not in columns]
    if missing:
        raise damaged(place, f"it has no column {quote(missing)}, only {quote(list(columns), 20)}")
    found: dict[int, tuple[str, str]] = {}
    cells = zip(columns["labelId"], columns["labelName"], columns["taskName"], strict=True)
    for row, (label, called, group) in enumerate(cells):
        where = f"{place}, {columns.format_row(row)}"
        key, name = take_id({"labelId": label}, "labelId", where), (str(called).strip(), str(group or "").strip())
        if key in found or key >= _MAX_LABELS or not name[0] or name in found.values():
            raise damaged(where, f"the label {key} is repeated, too large, without a name or named like another")
        found[key] = name
    ids = sorted(found)
    names, groups = ([found[key][part] for key in ids] for part in (0, 1))
    return ids, deduplicate_names(names, groups), groups


def _fill_values(
    file: Path, image_ids: array, rows: np.ndarray, label_ids: array, counts: array, ids: Sequence[int]
) -> np.ndarray:
    """(images, labels) 1 where an image has a label, else 0."""
    place_of = np.full(_MAX_LABELS, -1, np.int32)
    place_of[ids] = np.arange(len(ids))
    records = np.repeat(np.arange(len(counts)), counts)
    places = place_of[np.asarray(label_ids)]
    unknown = np.flatnonzero(places < 0)
    if len(unknown):
        where = f"{file}, annotations, record {records[unknown[0]]}"
        raise damaged(where, f"the label {label_ids[unknown[0]]} is not in the table of names (labels=, --labels)")
    values = np.zeros((len(image_ids), len(ids)), np.int8)
    values[rows[records], places] = 1
    return values
