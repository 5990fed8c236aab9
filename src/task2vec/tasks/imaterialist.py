"""iMaterialist (Fashion) 2018 as published: files of annotations, and images as their user saved them.

    imaterialist/  train.json  validation.json  train/1.jpg  train/2.jpg ...  validation/1.jpg ...

The files hold addresses, not images: each image was saved under its id. Names of the 228 labels stand in a table of
their own, whose rows are labelId, taskId, labelName and taskName.
"""

import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.catalogue import Catalogue
from task2vec.tasks.check import quote
from task2vec.tasks.definitions import Splits, define_attributes, define_groups, tell_apart
from task2vec.tasks.json_records import Record, read_records
from task2vec.tasks.label_tables import AttributeTable
from task2vec.tasks.matching import match_annotations, take_id
from task2vec.tasks.parsed import parse_once
from task2vec.tasks.paths import Paths, check_path
from task2vec.tasks.table import read_columns

# What each split is called here, its files as Kaggle and as the organisers name them, and the folder of its images.
SPLITS = {"train": ("train.json",), "val": ("validation.json", "val.json")}
FOLDERS = {"train": "train", "val": "validation"}
LABEL_MAP = "iMat_fashion_2018_label_map_228.csv"
NAMELESS = (
    f"labels are called by their numbers and have no groups, for there is no {LABEL_MAP} in the folder: put it there, "
    "or name it (labels=, --labels)"
)
_SUFFIXES = (".jpg", ".jpeg", ".png")
# The fields as in the files, and as the organisers' description spells them.
_OTHER = {"imageId": "image_id", "labelId": "label_id"}
# Label ids are held in 16 bits; the published ones end at 228.
_MOST = 1 << 16
# Counts up when the same files give another catalogue.
_READER = "imaterialist 3"
# Entries of a folder of images that are looked at to learn how they are called.
_ENTRIES = 2000


def read_imaterialist(
    folder: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    images: str | None = None,
    name: str | None = None,
    cache: bool = True,
    progress: bool = False,
) -> Catalogue:
    r"""The catalogue of iMaterialist (Fashion) 2018: each label a binary task, each group of labels a multi-label one.

    A label that an image does not carry is a negative: this dataset knows no other. With the table of names there are
    228 attributes in groups such as color, gender, neckline, sleeve and style; without it, the labels that occur are
    called by their ids and have no group, and a warning says so. A label's `positives` count the images that carry it.

    Args:
        folder: Where train.json and validation.json lie.
        labels: The table of names (CSV); if not given, the one that lies in the folder under its published name,
            `iMat_fashion_2018_label_map_228.csv`.
        images: How the images are called below the folder, such as "{folder}/{id}.jpg", where the folder is "train" or
            "validation". If not given, it is learned from the files that are there: train/ID.jpg, .jpeg or .png.
        name: What to call the catalogue; "imaterialist2018" if not given.
        cache: Keep the parsed form in the user's cache folder, and use it while the files stay as they are.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        DataError: A file is missing or damaged, or an id has no entry or two; the message names file and record.
        UsageError: `images` does not say where an image lies, or `labels` is not there.

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
        ...     catalogue = read_imaterialist(folder, labels=names, images="{folder}/{id}.jpg", cache=False)
        >>> catalogue
        Catalogue(imaterialist2018, 4 images, train and val, tasks: 2 attribute, 2 attribute group)
        >>> black = catalogue.find("Black")
        >>> black.group, dict(black.positives), dict(black.counts)
        ('color', {'train': 1, 'val': 1}, {'train': 2, 'val': 2})
    """
    root = Path(folder)
    files = [_find_file(root, names) for names in SPLITS.values()]
    table = Path(labels) if labels is not None else root / LABEL_MAP
    has_names = labels is not None or table.is_file()
    if has_names and not table.is_file():
        raise UsageError(
            f"{table} is not a file, so the labels have no names. Check the path, or leave it out (labels=, --labels)."
        )
    pattern = _learn_pattern(root) if images is None else _check_pattern(images)
    catalogue = parse_once(
        lambda: _parse(root, files, table if has_names else None, pattern, progress),
        reader=_READER,
        files=[*files, table] if has_names else files,
        options={"images": pattern},
        cache=cache,
    )
    return replace(catalogue, name="imaterialist2018" if name is None else name)


def _find_file(root: Path, names: Sequence[str]) -> Path:
    """The one file of these names that is there."""
    found = [root / name for name in names if (root / name).is_file()]
    if len(found) != 1:
        what = f"has both {' and '.join(names)}" if found else f"has no {' or '.join(names)}"
        raise DataError(
            f"{root} {what}, so it is unclear what the labels are. Pass the folder of iMaterialist (Fashion) 2018 with "
            "one file for training and one for validation, unpacked."
        )
    return found[0]


def _check_pattern(images: str) -> str:
    """The pattern, if it gives every image of every split a place of its own below the root."""
    try:
        found = {images.format(folder=folder, id=n) for folder, n in (("train", 1), ("train", 2), ("validation", 1))}
    except (LookupError, ValueError, AttributeError, TypeError):
        found = set()
    if len(found) < 3:
        raise UsageError(
            f"images={images!r} does not say where each image lies. Write the folder (train or validation) and the id "
            'in braces, such as "{folder}/{id}.jpg".'
        )
    for path in found:
        check_path(path, f"images={images!r}")
    return images


def _learn_pattern(root: Path) -> str:
    """How the images are called, by those that are there; refused if there are none or two kinds."""
    found = set()
    for place in FOLDERS.values():
        try:
            with os.scandir(root / place) as entries:
                names = [entry.name for entry in islice(entries, _ENTRIES)]
        except OSError:
            names = []
        found |= {suffix for stem, suffix in map(os.path.splitext, names) if stem.isdecimal() and suffix in _SUFFIXES}
    if len(found) != 1:
        seen = f"images ending in {' and '.join(sorted(found))}" if found else "no images called by their ids"
        raise DataError(
            f"{root} has {seen} in train and validation, so nothing tells where each one lies. Save them as "
            'train/ID.jpg and validation/ID.jpg, or say in Python how they are called: images="{folder}/{id}.jpg".'
        )
    return f"{{folder}}/{{id}}{found.pop()}"


@dataclass(frozen=True)
class _Annotations:
    """One file: the id of every image, and of every label carried its id, the image's row and the record."""

    file: Path
    image_ids: array
    label_ids: np.ndarray
    rows: np.ndarray
    records: np.ndarray


def _parse(root: Path, files: Sequence[Path], names: Path | None, pattern: str, progress: bool) -> Catalogue:
    """The catalogue of the files for training and validation."""
    parts = [_read_annotations(file, progress) for file in files]
    if names is None:
        ids = np.unique(np.concatenate([np.unique(part.label_ids) for part in parts])).tolist()
        called, groups = [str(number) for number in ids], [""] * len(ids)
    else:
        ids, called, groups = _read_names(names)
    bits = np.concatenate([_pack_labels(part, ids, names) for part in parts])
    table = AttributeTable(bits, None, tuple(called), tuple(groups))
    codes = np.repeat(np.arange(len(parts), dtype=np.uint8), [len(part.image_ids) for part in parts])
    splits = Splits(codes, tuple(SPLITS))
    paths = Paths.pack(
        pattern.format(folder=folder, id=number)
        for part, folder in zip(parts, FOLDERS.values(), strict=True)
        for number in part.image_ids
    )
    return Catalogue(
        "imaterialist",
        root,
        paths,
        splits,
        {"labels": table},
        define_attributes(table, splits) + define_groups(table, splits),
        tuple(str(file) for file in files),
        warnings=() if names is not None else (NAMELESS,),
    )


def _read_annotations(file: Path, progress: bool) -> _Annotations:
    """The content of one file."""
    image_ids, annotated, label_ids, counts = array("q"), array("q"), array("H"), array("H")
    known: dict[str, int] = {}
    place = str(file)
    for key, number, record in read_records(file, ("images", "annotations"), progress=progress):
        where = f"{place}, {key}, record {number}"
        (image_ids if key == "images" else annotated).append(take_id(record, _field(record, "imageId", where), where))
        if key == "annotations":
            found = _take_labels(record, known, where)
            label_ids.extend(found)
            counts.append(len(found))
    if not image_ids:
        raise DataError(f"{file} lists no images, so there is no task in it. Take the dataset's own file, unchanged.")
    records = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    rows = match_annotations(file, image_ids, annotated).astype(np.int32)
    return _Annotations(file, image_ids, np.asarray(label_ids), rows[records], records)


def _field(record: Mapping[str, object], name: str, where: str) -> str:
    """The spelling of a field in this record; one that has both is refused."""
    other = _OTHER[name]
    if other not in record:
        return name
    if name in record:
        raise DataError(
            f"{where}: it has both {name!r} and {other!r}, so it is unclear which holds. Take the dataset's own file, "
            "unchanged."
        )
    return other


def _take_labels(record: Record, known: dict[str, int], where: str) -> list[int]:
    """The label ids of an annotation, each of them once; `known` remembers what a text means."""
    listed = record.get(_field(record, "labelId", where))
    if not isinstance(listed, list):
        raise DataError(f"{where}: it has no list of labels in 'labelId', so the labels of its image are unknown.")
    try:
        found = [known[label] for label in listed]
    except (KeyError, TypeError):
        found = [take_id({"labelId": label}, "labelId", where) for label in listed]
        known.update((text, label) for text, label in zip(listed, found, strict=True) if isinstance(text, str))
    if len(set(found)) < len(found) or (found and max(found) >= _MOST):
        raise DataError(
            f"{where}: its labels {quote(listed, 20)} name one twice or are larger than any, so the record is damaged. "
            "Take the dataset's own file, unchanged."
        )
    return found


def _read_names(place: Path) -> tuple[list[int], list[str], list[str]]:
    """Ids, names and groups of the labels, by ascending id; names that two groups share get the group's."""
    columns = read_columns(place)
    missing = [column for column in ("labelId", "labelName", "taskName") if column not in columns]
    if missing:
        raise DataError(
            f"{place} has no column {quote(missing)} (it has {quote(list(columns), 20)}), so labels would have no "
            "names. Take the published table: labelId, taskId, labelName, taskName."
        )
    cells = zip(columns["labelId"], columns["labelName"], columns["taskName"], strict=True)
    found: dict[int, tuple[str, str]] = {}
    taken: set[tuple[str, str]] = set()
    for row, (label, called, group) in enumerate(cells):
        where = f"{place}, {columns.tell_row(row)}"
        key = take_id({"labelId": label}, "labelId", where)
        name = (str(called).strip(), str(group or "").strip())
        wrong = {
            "was named before": key in found,
            "has no name": not name[0],
            f"is larger than {_MOST - 1}": key >= _MOST,
            f"is called {name[0]!r} as another of its group is": name in taken,
        }
        if any(wrong.values()):
            what = next(what for what, is_so in wrong.items() if is_so)
            raise DataError(
                f"{where}: the label {key} {what}, so it would be unclear. Take the published table, unchanged."
            )
        found[key] = name
        taken.add(name)
    ids = sorted(found)
    names, groups = ([found[key][part] for key in ids] for part in (0, 1))
    return ids, tell_apart(names, groups), groups


def _pack_labels(part: _Annotations, ids: Sequence[int], names: Path | None) -> np.ndarray:
    """(images, labels / 8) the labels that each image carries, as bits."""
    place_of = np.full(_MOST, -1, np.int32)
    place_of[ids] = np.arange(len(ids))
    places = place_of[part.label_ids]
    unknown = np.flatnonzero(places < 0)
    if len(unknown):
        raise DataError(
            f"{part.file}, annotations, record {part.records[unknown[0]]}: the label {part.label_ids[unknown[0]]} is "
            f"not in {names}, so it has no name. Take the table of the same year, or none (labels=, --labels)."
        )
    bits = np.zeros((len(part.image_ids), -(-len(ids) // 8)), np.uint8)
    np.bitwise_or.at(bits, (part.rows, places // 8), (128 >> (places % 8)).astype(np.uint8))
    return bits
