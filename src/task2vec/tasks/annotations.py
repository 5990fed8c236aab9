"""Annotation files of published datasets: lists and JSON, every value checked, every complaint with file and line."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.errors import DataError
from task2vec.text import quote


def damaged(where: object, what: str) -> DataError:
    """The error for an annotation file that is not as published."""
    return DataError(f"{where}: {what}, so labels would be wrong or missing. Use the published file, unchanged.")


def read_lines(place: Path) -> Iterator[tuple[str, str]]:
    """The place and the text of every line that is not blank."""
    try:
        with place.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{place}, line {number}", line
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(place, f"it cannot be read ({error})") from error


def read_json(file: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(file, f"it cannot be read as JSON ({error})") from None


def list_records(file: Path, content: Any, key: str) -> list[dict]:
    """The list of records under the key of a JSON object, or that the content itself is."""
    records = content.get(key) if isinstance(content, dict) else content
    if not records or not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise damaged(file, f"it has no list of records under {key!r}")
    return records


def take_id(record: Mapping[str, object], name: str, where: str) -> int:
    """The integer in a field of a record, also if it is written as text of digits.

    Example:
        >>> take_id({"image_id": 17}, "image_id", "train.json"), take_id({"imageId": "17"}, "imageId", "train.json")
        (17, 17)
    """
    value = record.get(name)
    if type(value) is str and value.isdecimal() and value.isascii() and str(int(value[:20])) == value:
        value = int(value)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise damaged(where, f"{value!r} as its {name!r} is not an id" if name in record else f"it has no {name!r}")
    return value


def index_records(file: Path, content: Any, key: str, name: str) -> dict[int, tuple[str, dict]]:
    """The place and the record of every id in the list under a key; an id that occurs twice is refused."""
    found: dict[int, tuple[str, dict]] = {}
    for number, record in enumerate(list_records(file, content, key)):
        where = f"{file}, {key}, record {number}"
        value = take_id(record, name, where)
        if value in found:
            raise damaged(where, f"the {name} {value} is also that of {found[value][0]}")
        found[value] = (where, record)
    return found


def pair_records(file: Path, content: Any, image_key: str, annotation_key: str) -> Iterator[tuple]:
    """The id of every image, then place and record of the image and of its annotation; each must have one.

    Example:
        >>> content = {
        ...     "images": [{"id": 3}, {"id": 7}],
        ...     "annotations": [{"of": 7, "is": "cat"}, {"of": 3, "is": "dog"}],
        ... }
        >>> [(key, label["is"]) for key, _, (_, label) in pair_records(Path("train.json"), content, "id", "of")]
        [(3, 'dog'), (7, 'cat')]
    """
    images = index_records(file, content, "images", image_key)
    annotations = index_records(file, content, "annotations", annotation_key)
    if alone := images.keys() ^ annotations.keys():
        (where, _), there = (images | annotations)[min(alone)], "annotations" if min(alone) in images else "images"
        raise damaged(where, f"the image id {min(alone)} has no entry in {there}")
    for key, image in images.items():
        yield key, image, annotations[key]


def find_file(root: Path, *names: str, dataset: str) -> Path:
    """The one file of these names that is below the folder; none and several are refused."""
    found = [name for name in names if (root / name).is_file()]
    if len(found) != 1:
        state = f"has {' and '.join(found)}" if found else f"has no {' or '.join(names)}"
        raise DataError(
            f"{root} {state}, so it is not {dataset} as unpacked. Pass the folder that holds its annotation files, "
            "each dataset in a folder of its own."
        )
    return root / found[0]


def index_lines(lines: Iterable[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Of lines that end in a value, their place and value by the name before it, which must occur once."""
    found: dict[str, tuple[str, str]] = {}
    for where, line in lines:
        name, _, value = line.strip().rpartition(" ")
        if not name or name.strip() in found:
            raise damaged(where, f"{line.strip()!r} is not a name and its value, or the name occurs twice")
        found[name.strip()] = (where, value)
    return found


def encode_values(
    place: Path, entries: Mapping[str, tuple[str, str]], images: Collection[str], values: Sequence[str]
) -> np.ndarray:
    """(images,) the place among `values` of each image's entry; unknown values, images and gaps are refused."""
    codes = {value: code for code, value in enumerate(values)}
    for where, value in entries.values():
        if value not in codes:
            raise damaged(where, f"{value!r} is not one of {quote(values, 3)}")
    if alone := entries.keys() ^ set(images):
        raise damaged(place, f"image {min(alone)!r} is not both here and in the list of images ({len(alone)} such)")
    return np.array([codes[entries[image][1]] for image in images], np.int16)


def check_path(path: object, where: str) -> str:
    """The path, if it is text that stays below its root; `where` begins the message if not.

    Example:
        >>> check_path("train/Aves/1.jpg", "images.txt, line 1")
        'train/Aves/1.jpg'
        >>> check_path("../secret.jpg", "images.txt, line 2")
        Traceback (most recent call last):
        task2vec.errors.DataError: images.txt, line 2: '../secret.jpg' is not a path below the dataset's folder, ...
    """
    parts = path.replace("\\", "/").split("/") if isinstance(path, str) and path.isprintable() else []
    if not parts or parts[0].strip() == "" or parts[0][1:] == ":" or ".." in parts:
        raise damaged(where, f"{path!r} is not a path below the dataset's folder")
    return str(path)


def deduplicate_names(names: Sequence[str], marks: Iterable[object]) -> list[str]:
    """The names; where several are the same, each with its mark.

    Example:
        >>> deduplicate_names(["Oenanthe", "Corvus", "Oenanthe"], ["birds", "birds", "parsleys"])
        ['Oenanthe (birds)', 'Corvus', 'Oenanthe (parsleys)']
    """
    times = Counter(names)
    return [f"{name} ({mark})" if times[name] > 1 else name for name, mark in zip(names, marks, strict=True)]
