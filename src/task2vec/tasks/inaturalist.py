"""iNaturalist as published: annotation files with categories, and images below the same folder.

    inat2018/  train2018.json  val2018.json  categories.json  train_val2018/Aves/2761/4a7d....jpg
    inat2021/  train.json (or train_mini.json)  val.json  train/02912_Animalia_..._corax/3f1c....jpg  val/...

The annotations of 2018 and 2019 replace all names by numbers, as in their competitions; the names were published later
as categories.json, which must be in the same folder. Those of 2017 have a supercategory and no other rank.
"""

import json
import os
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.catalog import (
    Catalog,
    ClassTable,
    Splits,
    check_path,
    damaged,
    deduplicate_names,
    define_by_taxon,
    find_repeated,
    match_annotations,
    read_records,
    take_id,
)
from task2vec.tasks.task import quote
from task2vec.tasks.taxonomy import Taxonomy, collect_lineages

KINDS = ("order", "class", "family", "supercategory")
RANKS = ("kingdom", "phylum", "class", "order", "family", "genus")
MAX_CATEGORIES_BYTES = 1 << 26
_FILES = {year: (f"train{year}.json", f"val{year}.json") for year in (2017, 2018, 2019)}
_FILES[2021] = ("train.json", "val.json")
_MINI = "train_mini.json"
_NAMES = "categories.json"

_Categories = dict[int, dict]


def read_inaturalist(
    folder: str | os.PathLike[str],
    *,
    year: int | None = None,
    mini: bool = False,
    name: str | None = None,
    progress: bool = False,
) -> Catalog:
    """The catalog of iNaturalist 2017, 2018, 2019 or 2021: the species of an order, class or family.

    Tasks are those taxa in which at least two species have an image; the one with the most training images comes first
    within its kind. The group of an order is its class, that of a family its order. A species without an order belongs
    to no task by order. The paper counts 207 orders: whether ours are as many cannot be checked without the data, and
    depends on the year (which the paper does not give) and on how orders of one species count.

    Args:
        folder: The folder with the unpacked annotation files; the paths of images begin there.
        year: Which of them to read, if the folder has several.
        mini: Of 2021, the smaller training set (train_mini.json).
        name: The name of the catalog; "inaturalist" and the year if not given.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        DataError: A file is missing or damaged, or an id has no entry or two; the message names file and record.
        UsageError: The folder has several years, and none was named.

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
    year = _find_year(root, year)
    if mini and year != 2021:
        raise UsageError(f"mini=True needs {_MINI}, which only 2021 has, and this is {year}. Leave it out.")
    places = [root / (_MINI if mini else _FILES[year][0]), root / _FILES[year][1]]
    missing = [file.name for file in places if not file.is_file()]
    if missing:
        is_mini = not mini and (root / _MINI).is_file()
        hint = "Pass mini=True to read train_mini.json." if is_mini else "Unpack it there."
        raise DataError(f"{root} has no {quote(missing)}, so a split has no labels. {hint}")
    paths: list[str] = []
    parts = [_read_annotations(file, paths, progress) for file in places]
    categories = _merge_categories(places, [part[2] for part in parts], root / _NAMES)
    names = tuple(deduplicate_names([str(one["name"]) for one in categories.values()], categories))
    table = ClassTable(
        np.concatenate(
            [_number_classes(file, *part[:2], list(categories)) for file, part in zip(places, parts, strict=True)]
        ),
        names,
    )
    codes = np.repeat(np.arange(2, dtype=np.uint8), [len(part[0]) for part in parts])
    if repeated := find_repeated(paths):
        starts = (0, len(parts[0][0]))
        first, second = (f"{places[codes[row]]}, images, record {row - starts[codes[row]]}" for row in repeated)
        raise damaged(second, f"the file {paths[repeated[1]]!r} is that of {first} too")
    named = [{**category, "name": name} for category, name in zip(categories.values(), names, strict=True)]
    taxonomy, splits = _make_taxonomy(named, places[0]), Splits(codes, ("train", "val"))
    order = taxonomy.ranks.index("order") if "order" in taxonomy.ranks else None
    lost = [] if order is None else [leaf for leaf, lineage in taxonomy.lineages.items() if not lineage[order]]
    return Catalog(
        f"inaturalist{year}{' mini' if mini else ''}" if name is None else name,
        root,
        paths,
        splits,
        {"labels": table},
        define_by_taxon(table, taxonomy, splits, ranks=KINDS),
        tuple(map(str, places)),
        taxonomy,
        (f"species without an order, in no task by order: {len(lost)}, such as {quote(lost, 3)}",) if lost else (),
    )


def read_inaturalist_taxonomy(
    file: str | os.PathLike[str], *, class_field: str = "name", root: str = "life"
) -> Taxonomy:
    """The taxonomy of iNaturalist's categories, of any year: `categories.json`, or an annotation file that has them.

    Categories with kingdom, phylum, class, order, family and genus (2018 and later) give these ranks; those that have
    only a supercategory (2017) give that one rank. All files of a year have the same categories, so use the smallest;
    those of 2018 and 2019 have numbers for names, as in the competition, unless `categories.json` is used.

    Args:
        file: A JSON list of categories, or an object that holds it as "categories".
        class_field: The field with the class names of your tasks: "name", "id" (the folders of 2018 and 2019) or
            "image_dir_name" (those of 2021).
        root: The name of the taxon that contains all.

    Raises:
        DataError: The file has no such categories, or a class has two places.

    Example:
        >>> import tempfile
        >>> finch = {"id": 7, "name": "Fringilla coelebs", "supercategory": "Aves", "order": "Passeriformes"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "categories.json")
        ...     _ = file.write_text(json.dumps([finch]))
        ...     read_inaturalist_taxonomy(file, class_field="id").lineages["7"]
        ('Passeriformes',)
    """
    return _make_taxonomy(_read_categories(Path(file)), Path(file), class_field=class_field, root=root)


def _read_categories(file: Path) -> list[dict]:
    """The categories of a JSON list, or of an object that has them."""
    try:
        with file.open(encoding="utf-8-sig") as source:
            is_list = source.read(1 << 10).lstrip()[:1] == "["
        if not is_list:
            found = [record for _, _, record in read_records(file, ["categories"])]
        elif file.stat().st_size > MAX_CATEGORIES_BYTES:
            raise damaged(file, f"it has more than {MAX_CATEGORIES_BYTES >> 20} MB")
        else:
            found = json.loads(file.read_text(encoding="utf-8-sig"))
    except DataError:
        raise
    except (ValueError, OSError, RecursionError) as error:
        raise damaged(file, f"it cannot be read as JSON ({error})") from error
    if not found or not all(isinstance(one, dict) for one in found):
        raise damaged(file, "it has no list of categories")
    return found


def _make_taxonomy(
    categories: Sequence[Mapping[str, object]], place: Path, *, class_field: str = "name", root: str = "life"
) -> Taxonomy:
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
    return Taxonomy(ranks, collect_lineages(place, rows), root)


def _find_year(root: Path, year: int | None) -> int:
    """The year asked for, or the only one in the folder."""
    if year is not None and year not in _FILES:
        raise UsageError(f"year={year!r} is not supported. Choose one of {list(_FILES)}.")
    found = [known for known, (train, _) in _FILES.items() if (root / train).is_file()]
    if 2021 not in found and (root / _MINI).is_file():
        found.append(2021)
    if year is None and len(found) > 1:
        raise UsageError(f"{root} has iNaturalist of several years. Pass year=, one of {found}.")
    if year is None and not found:
        raise DataError(
            f"{root} has no annotations of iNaturalist: none of {quote([train for train, _ in _FILES.values()])}. Pass "
            "the folder that holds them, unpacked from their archives."
        )
    return found[0] if year is None else year


def _read_annotations(file: Path, paths: list[str], progress: bool) -> tuple[np.ndarray, array, _Categories]:
    """The image row and the category id of every annotation, and the categories by id; paths are collected."""
    image_ids, annotated, category_ids = array("q"), array("q"), array("q")
    categories: list[dict] = []
    place = str(file)
    for key, number, record in read_records(file, ("images", "annotations", "categories"), progress=progress):
        where = f"{place}, {key}, record {number}"
        if key == "images":
            image_ids.append(take_id(record, "id", where))
            paths.append(check_path(record.get("file_name"), where))
        elif key == "annotations":
            annotated.append(take_id(record, "image_id", where))
            category_ids.append(take_id(record, "category_id", where))
        else:
            categories.append(record)
    if not image_ids or not categories:
        raise damaged(file, f"it has no {'categories' if image_ids else 'images'}")
    return match_annotations(file, image_ids, annotated), category_ids, _by_id(file, categories)


def _by_id(file: Path, categories: Sequence[dict]) -> _Categories:
    """The categories by ascending id; an id that occurs twice is refused, and so is a category without a name."""
    found: _Categories = {}
    for number, category in enumerate(categories):
        where = f"{file}, categories, record {number}"
        key = take_id(category, "id", where)
        if key in found or "name" not in category:
            raise damaged(where, f"the id {key} is that of an earlier one too" if key in found else "it has no name")
        found[key] = category
    return dict(sorted(found.items()))


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
                is_told = field in one and field in found[key] and (not is_hidden or mine in words)
                if mine != theirs and (file != names or is_told):
                    raise damaged(
                        f"{file}, categories", f"the id {key} has {theirs!r} as its {field}, and in {files[0]} {mine!r}"
                    )
    return sources[-1][1]


def _text(category: dict, field: str) -> str:
    """The value of a field as text; "" if there is none."""
    value = category.get(field)
    return "" if value is None else str(value).strip()


def _number_classes(file: Path, rows: np.ndarray, category_ids: array, ids: Sequence[int]) -> np.ndarray:
    """(images,) for every image of a file the place of its category among the ids."""
    place_of = {key: place for place, key in enumerate(ids)}
    numbers = np.empty(len(rows), np.int32)
    for record, (row, key) in enumerate(zip(rows.tolist(), category_ids, strict=True)):
        if key not in place_of:
            raise damaged(f"{file}, annotations, record {record}", f"the category id {key} has no entry in categories")
        numbers[row] = place_of[key]
    return numbers
