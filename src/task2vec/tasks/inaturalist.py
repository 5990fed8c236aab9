"""iNaturalist as published: annotation files with categories, and images below the same folder.

    inat2018/  train2018.json  val2018.json  categories.json  train_val2018/Aves/2761/4a7d....jpg
    inat2021/  train.json (or train_mini.json)  val.json  train/02912_Animalia_..._corax/3f1c....jpg  val/...

The annotations of 2018 and 2019 replace all names by numbers, as in their competitions; the names were published later
as categories.json, which must be in the same folder. Those of 2017 have a supercategory and no other rank.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.catalog import (
    Catalog,
    LabelTable,
    Splits,
    check_path,
    damaged,
    deduplicate_names,
    define_by_taxon,
    match_annotations,
    number_ids,
    read_json,
    read_records,
    take_id,
)
from task2vec.tasks.task import quote
from task2vec.tasks.taxonomy import Taxonomy, collect_lineages

KINDS = ("order", "class", "family", "supercategory")
RANKS = ("kingdom", "phylum", "class", "order", "family", "genus")
# The training files that may be in a folder: the name of the catalog, and the validation file of each.
_FILES = {f"train{year}.json": (f"inaturalist{year}", f"val{year}.json") for year in (2017, 2018, 2019)}
_FILES |= {"train.json": ("inaturalist2021", "val.json"), "train_mini.json": ("inaturalist2021 mini", "val.json")}
_NAMES = "categories.json"

_Categories = dict[int, dict]


def read_inaturalist(folder: str | os.PathLike[str], *, mini: bool = False) -> Catalog:
    """The catalog of iNaturalist 2017, 2018, 2019 or 2021: the species of an order, class or family.

    Tasks are those taxa in which at least two species have an image; the one with the most training images comes first
    within its kind. The group of an order is its class, that of a family its order. A species without an order belongs
    to no task by order. The paper counts 207 orders: whether ours are as many cannot be checked without the data, and
    depends on the year (which the paper does not give) and on how orders of one species count.

    Args:
        folder: The folder with the unpacked annotation files of one year; the paths of images begin there.
        mini: If the folder has both training sets of 2021, read the smaller one (train_mini.json).

    Raises:
        DataError: A file is missing or damaged, or an id has no entry or two; the message names file and record.
        UsageError: The folder has several years.

    Example:
        >>> import json, tempfile
        >>> names = ["Corvus corax", "Turdus merula", "Apteryx owenii"]
        >>> orders = ["Passeriformes", "Passeriformes", "Apterygiformes"]
        >>> species = [{"id": n, "name": names[n], "class": "Aves", "order": orders[n]} for n in range(3)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for split in ("train", "val"):
        ...         images = [{"id": n, "file_name": f"{split}/{n}.jpg"} for n in range(6)]
        ...         labels = [{"id": n, "image_id": n, "category_id": n % 3} for n in range(6)]
        ...         content = {"images": images, "categories": species, "annotations": labels}
        ...         _ = Path(folder, f"{split}.json").write_text(json.dumps(content))
        ...     catalog = read_inaturalist(folder)
        >>> catalog
        Catalog(inaturalist2021, 12 images, train and val, tasks: 1 order, 1 class)
        >>> catalog.find("Passeriformes").classes
        ('Corvus corax', 'Turdus merula')
    """
    root = Path(folder)
    train = _find_training_file(root, mini)
    name, val = _FILES[train.name]
    places = [train, root / val]
    paths: list[str] = []
    parts = [_read_annotations(file, paths) for file in places]
    categories = _merge_categories(places, [categories for _, categories in parts], root / _NAMES)
    place_of = {key: place for place, key in enumerate(categories)}
    names = deduplicate_names([str(one["name"]) for one in categories.values()], categories)
    table = LabelTable(np.array([place_of[key] for keys, _ in parts for key in keys], np.int32), tuple(names))
    splits = Splits(np.repeat(np.arange(2, dtype=np.uint8), [len(keys) for keys, _ in parts]), ("train", "val"))
    named = [{**category, "name": name} for category, name in zip(categories.values(), names, strict=True)]
    taxonomy = _make_taxonomy(named, train)
    lost = taxonomy.group(names, "order").get((), []) if "order" in taxonomy.ranks else []
    shown = quote([names[number] for number in lost], 3)
    return Catalog(
        name,
        root,
        paths,
        splits,
        {"labels": table},
        define_by_taxon(table, taxonomy, splits, ranks=KINDS),
        tuple(map(str, places)),
        taxonomy,
        (f"species without an order, in no task by order: {len(lost)}, such as {shown}",) if lost else (),
    )


def read_inaturalist_taxonomy(file: str | os.PathLike[str], *, class_field: str = "name") -> Taxonomy:
    """The taxonomy of iNaturalist's categories, of any year: `categories.json`, or an annotation file that has them.

    Categories with kingdom, phylum, class, order, family and genus (2018 and later) give these ranks; those that have
    only a supercategory (2017) give that one rank. All files of a year have the same categories, so use the smallest;
    those of 2018 and 2019 have numbers for names, as in the competition, unless `categories.json` is used.

    Args:
        file: A JSON list of categories, or an object that holds it as "categories".
        class_field: The field with the class names of your tasks: "name", "id" (the folders of 2018 and 2019) or
            "image_dir_name" (those of 2021).

    Raises:
        DataError: The file has no such categories, or a class has two places.

    Example:
        >>> import json, tempfile
        >>> finch = {"id": 7, "name": "Fringilla coelebs", "supercategory": "Aves", "order": "Passeriformes"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "categories.json")
        ...     _ = file.write_text(json.dumps([finch]))
        ...     read_inaturalist_taxonomy(file, class_field="id").lineages["7"]
        ('Passeriformes',)
    """
    return _make_taxonomy(_read_categories(Path(file)), Path(file), class_field)


def _read_categories(file: Path) -> list[dict]:
    """The categories of a JSON list, or of an object that has them."""
    content = read_json(file)
    found = content.get("categories") if isinstance(content, dict) else content
    if not found or not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise damaged(file, "it has no list of categories")
    return found


def _make_taxonomy(categories: Sequence[Mapping[str, object]], place: Path, class_field: str = "name") -> Taxonomy:
    """The taxonomy of categories that were read from `place`."""
    ranks = tuple(rank for rank in RANKS if any(rank in category for category in categories)) or ("supercategory",)
    nameless = [number for number, category in enumerate(categories) if class_field not in category]
    if nameless or not any(rank in category for category in categories for rank in ranks):
        lacking = f"category {nameless[0]} has no field {class_field!r}" if nameless else "no category has a rank"
        raise DataError(
            f"{place}: {lacking} (the first has {quote(list(categories[0]), 20)}), so it has no place in a tree. "
            "Use the categories as published, and name the classes with class_field."
        )
    rows = (
        (f"category {number}", category[class_field], [category.get(rank) for rank in ranks])
        for number, category in enumerate(categories)
    )
    return Taxonomy(ranks, collect_lineages(place, rows))


def _find_training_file(root: Path, mini: bool) -> Path:
    """The only training file in the folder; of those of 2021, train_mini.json if `mini`."""
    found = [name for name in _FILES if (root / name).is_file()]
    if found == ["train.json", "train_mini.json"]:
        found = found[1:] if mini else found[:1]
    if len(found) > 1:
        raise UsageError(f"{root} has iNaturalist of several years ({quote(found)}). Give each a folder of its own.")
    if not found or (mini and found != ["train_mini.json"]):
        wanted = ["train_mini.json"] if mini else list(_FILES)
        raise DataError(
            f"{root} has no annotations of iNaturalist: none of {quote(wanted)}. Pass the folder that holds them, "
            "unpacked from their archives."
        )
    return root / found[0]


def _read_annotations(file: Path, paths: list[str]) -> tuple[list[int], _Categories]:
    """The category id of every image, and the categories by id; paths are collected."""
    images, annotations, categories = read_records(file, "images", "annotations", "categories")
    image_ids = number_ids(file, "images", images, "id")
    rows = match_annotations(file, image_ids, number_ids(file, "annotations", annotations, "image_id"))
    paths += [check_path(one.get("file_name"), f"{file}, images, record {n}") for n, one in enumerate(images)]
    by_id, found = _by_id(file, categories), [0] * len(images)
    for number, (row, record) in enumerate(zip(rows.tolist(), annotations, strict=True)):
        where = f"{file}, annotations, record {number}"
        found[row] = take_id(record, "category_id", where)
        if found[row] not in by_id:
            raise damaged(where, f"the category id {found[row]} has no entry in categories")
    return found, by_id


def _by_id(file: Path, categories: Sequence[dict]) -> _Categories:
    """The categories by ascending id; an id that occurs twice is refused, and so is a category without a name."""
    numbers = number_ids(file, "categories", categories, "id")
    for number, category in enumerate(categories):
        if "name" not in category:
            raise damaged(f"{file}, categories, record {number}", "it has no name")
    return {key: categories[number] for key, number in sorted(numbers.items())}


def _merge_categories(files: Sequence[Path], parts: Sequence[_Categories], names: Path) -> _Categories:
    """The categories by ascending id, with their published names; all files must have the same species.

    Hidden names are not among the published words, so only words that are can contradict.
    """
    known, is_hidden = parts[0], not any(" " in str(one["name"]) for one in parts[0].values())
    sources = [(files[1], parts[1])]
    if names.is_file():
        sources.append((names, _by_id(names, _read_categories(names))))
    elif is_hidden:
        raise DataError(
            f"{files[0]} hides the names of its categories (the first is {next(iter(known.values()))['name']!r}), so "
            "tasks have no names. Unpack categories.json into the same folder: it is among the downloads of that year "
            "(repository visipedia/inat_comp on GitHub)."
        )
    for file, found in sources:
        if found.keys() != known.keys():
            raise damaged(
                file, f"its categories are not those of {files[0]}, such as id {min(found.keys() ^ known.keys())}"
            )
        for field in ("name", "supercategory", *RANKS):
            words = {_text(one, field) for one in found.values()}
            for key, one in known.items():
                mine, theirs = _text(one, field), _text(found[key], field)
                is_given = field in one and field in found[key] and (not is_hidden or mine in words)
                if mine != theirs and (file != names or is_given):
                    raise damaged(
                        f"{file}, categories", f"the id {key} has {theirs!r} as its {field}, and in {files[0]} {mine!r}"
                    )
    return sources[-1][1]


def _text(category: dict, field: str) -> str:
    """The value of a field as text; "" if there is none."""
    value = category.get(field)
    return "" if value is None else str(value).strip()
