"""DeepFashion (Category and Attribute Prediction) as it is unpacked becomes a catalogue of attributes and categories.

The lists are read as published: a count, a header, then entries whose columns are set apart by blanks. In the list of
attributes 1 is positive, -1 negative and 0 unknown; an image does not take part in an attribute that is unknown of it.
Categories are numbered from 1 by their place in `list_category_cloth.txt`, and some have no image.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from task2vec.errors import DataError
from task2vec.tasks.attribute_rows import read_attribute_rows
from task2vec.tasks.catalogue import Catalogue
from task2vec.tasks.check import quote
from task2vec.tasks.counted_lists import read_pairs
from task2vec.tasks.definitions import Splits, TaskDefinition, define_attributes, define_groups, tell_apart
from task2vec.tasks.label_tables import AttributeTable, ClassTable
from task2vec.tasks.parsed import parse_once
from task2vec.tasks.paths import Paths

# Counts up when the same files give another catalogue.
READER = "deepfashion 1"
ATTRIBUTE_TYPES = {"1": "texture", "2": "fabric", "3": "shape", "4": "part", "5": "style"}
CATEGORY_TYPES = {"1": "upper-body", "2": "lower-body", "3": "full-body"}
SPLITS = ("train", "val", "test")
# The folder of annotations has been called both ways; later archives split it by how fine the attributes are.
ANNOTATIONS = ("Anno", "Anno_coarse")
PARTITION = "Eval/list_eval_partition.txt"
CATEGORIES = "categories"


def read_deepfashion(folder: str | os.PathLike[str], *, cache: bool = True, progress: bool = False) -> Catalogue:
    r"""The catalogue of DeepFashion's Category and Attribute Prediction Benchmark, splits "train", "val" and "test".

    Every attribute is a binary task over the images of which it is known (1 or -1; 0 is unknown and left out). The
    attributes of one type (texture, fabric, shape, part, style) are also a multi-label task, over the images of which
    all of them are known. Three more tasks tell apart the categories of upper-body, lower-body and full-body clothes.

    Args:
        folder: What holds Anno (or Anno_coarse), Eval and the images, as Img/img or img.
        cache: Keep the parsed lists in the user's cache folder, and take them from there while they do not change.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        DataError: A list is missing, not as long as it says, or about other images than the others; a row is short; a
            value is none of 1, -1 and 0; a category, type or split is unknown.

    Example:
        >>> import tempfile
        >>> lists = {
        ...     "Anno/list_attr_cloth.txt": "2\nattribute_name attribute_type\nabstract floral  1\nlinen  2\n",
        ...     "Anno/list_attr_img.txt": "2\nimage_name attribute_labels\nimg/a/1.jpg  1 -1\nimg/a/2.jpg -1  0\n",
        ...     "Anno/list_category_cloth.txt": "2\ncategory_name category_type\nBlouse  1\nTee  1\n",
        ...     "Anno/list_category_img.txt": "2\nimage_name category_label\nimg/a/1.jpg  1\nimg/a/2.jpg  2\n",
        ...     "Eval/list_eval_partition.txt": "2\nimage_name evaluation_status\nimg/a/1.jpg train\nimg/a/2.jpg val\n",
        ... }
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name, text in lists.items():
        ...         Path(folder, name).parent.mkdir(exist_ok=True)
        ...         _ = Path(folder, name).write_text(text)
        ...     catalogue = read_deepfashion(folder, cache=False)
        >>> catalogue
        Catalogue(deepfashion, 2 images, train and val and test, tasks: 2 attribute, 2 attribute group, 1 category)
        >>> catalogue.find("linen").counts
        {'train': 1, 'val': 0, 'test': 0}
    """
    root = Path(folder)
    lists = _find_lists(root)
    # The lists say img/..., and the archive of images has been unpacked beside Anno or into Img.
    prefix = "Img/" if (root / "Img" / "img").is_dir() else ""
    parse = partial(_parse, root, lists, prefix, progress=progress)
    return parse_once(parse, reader=READER, files=lists, options={"prefix": prefix}, cache=cache)


def _parse(root: Path, lists: "_Lists", prefix: str, *, progress: bool) -> Catalogue:
    """The catalogue of the lists."""
    names, types = _read_names(lists.attributes, ATTRIBUTE_TYPES, "attribute")
    categories, bodies = _read_names(lists.categories, CATEGORY_TYPES, "category")
    found = read_attribute_rows(lists.attribute_rows, len(names), progress=progress)
    rows = {path: row for row, path in enumerate(found.paths)}
    numbers = _read_categories(lists.category_rows, rows, len(categories))
    splits = Splits(_read_splits(lists.partition, rows).astype(np.uint8), SPLITS)
    all_known = (found.known == np.packbits(np.ones(len(names), bool))).all()
    table = AttributeTable(found.positive, None if all_known else found.known, tuple(names), tuple(types))
    kinds = ClassTable(numbers, tuple(categories))
    return Catalogue(
        name="deepfashion",
        root=root,
        paths=Paths.pack(prefix + path for path in found.paths),
        splits=splits,
        tables={"labels": table, CATEGORIES: kinds},
        definitions=(
            *define_attributes(table, splits),
            *define_groups(table, splits),
            *_define_bodies(kinds, bodies, splits),
        ),
        sources=tuple(str(place) for place in lists),
    )


def _define_bodies(table: ClassTable, bodies: list[str], splits: Splits) -> list[TaskDefinition]:
    """One task for each part of the body: tell apart its categories that have images, if they are two or more."""
    present = np.bincount(table.numbers, minlength=len(bodies)) > 0
    definitions = []
    for body in CATEGORY_TYPES.values():
        members = [number for number, name in enumerate(bodies) if name == body and present[number]]
        if len(members) > 1:
            rows, _ = table.select(members)
            classes = tuple(table.names[number] for number in members)
            counts = splits.count(rows)
            definitions.append(TaskDefinition(body, "category", classes, counts, tuple(members), CATEGORIES))
    return definitions


class _Lists(NamedTuple):
    """Where the five lists lie."""

    attributes: Path
    attribute_rows: Path
    categories: Path
    category_rows: Path
    partition: Path


def _find_lists(root: Path) -> _Lists:
    """The lists below the root, in the first folder of annotations that has the attributes."""
    names = ("list_attr_cloth.txt", "list_attr_img.txt", "list_category_cloth.txt", "list_category_img.txt")
    folders = [root / name for name in ANNOTATIONS if (root / name / names[1]).is_file()]
    if not folders:
        raise DataError(
            f"{root} has no {ANNOTATIONS[0]}/{names[1]} (nor in {ANNOTATIONS[1]}), so it is not DeepFashion's Category "
            "and Attribute Prediction Benchmark as unpacked. Pass the folder that holds Anno, Eval and Img."
        )
    lists = _Lists._make([*(folders[0] / name for name in names), root / PARTITION])
    for place in lists:
        if not place.is_file():
            raise DataError(
                f"{place} is not there, and without it attributes, categories or splits are unknown. "
                "Unpack all of Anno and Eval."
            )
    return lists


def _read_names(place: Path, types: dict[str, str], what: str) -> tuple[list[str], list[str]]:
    """The names of a list and the type of each; a name that comes twice is told apart by its number."""
    names, groups = [], []
    for line, name, word in read_pairs(place, "type"):
        if word not in types:
            raise DataError(
                f"{place}, line {line}: the type of {name!r} is {word!r}, not one of {', '.join(types)}, so the {what} "
                "belongs to no group. Correct it."
            )
        names.append(name)
        groups.append(types[word])
    if not names:
        raise DataError(f"{place} names no {what}, so there is nothing to learn. Unpack the file again.")
    return tell_apart(names, range(1, len(names) + 1)), groups


def _read_categories(place: Path, rows: dict[str, int], n_categories: int) -> np.ndarray:
    """(images,) the category of every image, counted from 0; the file counts from 1."""
    return _read_column(place, rows, "category", lambda word: _category(word, n_categories))


def _category(word: str, n_categories: int) -> int:
    """The place of a category, or -1 for a word that is none."""
    # Digits of other scripts, and superscripts, are none here; nor are more of them than int takes.
    is_number = word.isascii() and word.isdecimal() and len(word) < 10
    return int(word) - 1 if is_number and 1 <= int(word) <= n_categories else -1


def _read_splits(place: Path, rows: dict[str, int]) -> np.ndarray:
    """(images,) the split of every image, as a place in `SPLITS`."""
    codes = {name: code for code, name in enumerate(SPLITS)}
    return _read_column(place, rows, "split", lambda word: codes.get(word, -1))


def _read_column(place: Path, rows: dict[str, int], what: str, code_of: Callable[[str], int]) -> np.ndarray:
    """(images,) what a list says of each image; unknown words, strangers and missing images are refused."""
    found = np.full(len(rows), -1, np.int16)
    for line, path, word in read_pairs(place, what):
        row = rows.get(path)
        if row is None or found[row] >= 0:
            why = "stands here twice" if row is not None else "is not in list_attr_img.txt"
            raise DataError(f"{place}, line {line}: {path!r} {why}, so its labels disagree. Unpack the lists again.")
        found[row] = code_of(word)
        if found[row] < 0:
            raise DataError(
                f"{place}, line {line}: {word!r} is no {what} of {path!r}, and guessing one would change the task. "
                "Use the file as published."
            )
    absent = np.flatnonzero(found < 0)
    if absent.size:
        paths = list(rows)
        raise DataError(
            f"{place} has no {what} for {absent.size} of {len(rows)} images of list_attr_img.txt, such as "
            f"{quote([paths[row] for row in absent[:2]])}. Unpack the lists again."
        )
    return found
