"""iMaterialist (Fashion) 2018 as published: annotation files, and images as their user saved them.

    imaterialist/  train.json  validation.json  train/1.jpg  train/2.jpg ...  validation/1.jpg ...

The files hold URLs, not images: each image was saved under its id. Names of the 228 labels are in a table of their own,
with the columns labelId, taskId, labelName and taskName.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks import annotations
from task2vec.tasks.catalog import Catalog, LabelTable, define_attributes
from task2vec.tasks.images import StrPath
from task2vec.tasks.table import read_columns
from task2vec.text import quote

# The folder of each split's images, and its annotation file as named by Kaggle and by the organisers.
SPLITS = {"train": ("train", "train.json"), "val": ("validation", "validation.json", "val.json")}
LABEL_MAP = "iMat_fashion_2018_label_map_228.csv"
NAMELESS = (
    f"labels are named by their numbers and have no groups, because the folder has no {LABEL_MAP}: put it there, "
    "or pass it (labels=, --labels)"
)


def read_imaterialist(folder: StrPath, *, labels: StrPath | None = None) -> Catalog:
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
    label_map = Path(labels) if labels is not None else root / LABEL_MAP
    if labels is not None and not label_map.is_file():
        raise UsageError(f"{label_map} is not a file. Check the path, or leave it out (labels=, --labels).")
    suffix = _infer_suffix(root)
    known = _read_names(label_map) if label_map.is_file() else {}
    paths, carried, splits, files = [], [], {}, []
    for split, (place, *names) in SPLITS.items():
        files.append(annotations.find_file(root, *names, dataset="iMaterialist (Fashion) 2018"))
        start = len(paths)
        for key, own in _read_annotations(files[-1], known):
            paths.append(f"{place}/{key}{suffix}")
            carried.append(own)
        splits[split] = np.arange(start, len(paths))
    ids = sorted(known or {label for own in carried for label in own})
    names, groups = zip(*(known.get(number, (str(number), "")) for number in ids), strict=True)
    column = {label: place for place, label in enumerate(ids)}
    values = np.zeros((len(paths), len(ids)), np.int8)
    for row, own in enumerate(carried):
        values[row, [column[label] for label in own]] = 1
    table = LabelTable(values, tuple(annotations.deduplicate_names(names, groups)), groups)
    about = {"sources": tuple(map(str, files)), "warnings": () if known else (NAMELESS,)}
    definitions = define_attributes(table, splits)
    return Catalog("imaterialist2018", root, paths, splits, {"labels": table}, definitions, **about)


def _infer_suffix(root: Path) -> str:
    """How the names of images end; refused if there are none or several suffixes."""
    folders = [root / place for place, *_ in SPLITS.values()]

    def is_there(suffix: str) -> bool:
        return any(next(folder.glob(f"[0-9]*{suffix}"), None) for folder in folders)

    found = list(filter(is_there, (".jpg", ".jpeg", ".png")))
    if len(found) != 1:
        seen = f"images ending in {' and '.join(found)}" if found else "no images named by their ids"
        raise DataError(
            f"{root} has {seen} in train and validation, so their paths are unknown. Save them as train/ID.jpg and "
            "validation/ID.jpg."
        )
    return found[0]


def _read_annotations(file: Path, known: Mapping[int, object]) -> Iterator[tuple[int, list[int]]]:
    """Id and labels of every image; if names are `known`, each label must have one."""
    content = annotations.read_json(file)
    for key, _, (where, annotation) in annotations.pair_records(file, content, "imageId", "imageId"):
        listed = annotation.get("labelId")
        if not isinstance(listed, list):
            raise annotations.damaged(where, "it has no list of labels in 'labelId'")
        own = [annotations.take_id({"labelId": label}, "labelId", where) for label in listed]
        if len(set(own)) < len(own) or (known and not known.keys() >= set(own)):
            raise annotations.damaged(where, f"its labels {own} repeat or are not in the table of names (--labels)")
        yield key, own


def _read_names(place: Path) -> dict[int, tuple[str, str]]:
    """Name and group of every label by its id."""
    columns = read_columns(place)
    wanted = ("labelId", "labelName", "taskName")
    if missing := [column for column in wanted if column not in columns]:
        raise annotations.damaged(place, f"it has no column {quote(missing)}, only {quote(list(columns), 20)}")
    found: dict[int, tuple[str, str]] = {}
    for row, (label, called, group) in enumerate(zip(*(columns[column] for column in wanted), strict=True)):
        where = f"{place}, {columns.format_row(row)}"
        key = annotations.take_id({"labelId": label}, "labelId", where)
        name = (str(called).strip(), str(group or "").strip())
        if key in found or not name[0] or name in found.values():
            raise annotations.damaged(where, f"the label {key} is repeated, without a name or named like another")
        found[key] = name
    return found
