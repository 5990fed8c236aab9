"""iNaturalist as published: annotation files with categories, and images below the same folder.

    inat2018/  train2018.json  val2018.json  categories.json  train_val2018/Aves/2761/4a7d....jpg
    inat2021/  train.json (or train_mini.json)  val.json  train/02912_Animalia_..._corax/3f1c....jpg  val/...

The annotations of 2018 and 2019 replace all names by numbers, as in their competitions; the names were published later
as categories.json, which must be in the same folder. Those of 2017 have a supercategory and no other rank.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.errors import DataError
from task2vec.tasks import annotations
from task2vec.tasks.catalog import Catalog, LabelTable, define_by_taxon
from task2vec.tasks.images import StrPath
from task2vec.tasks.taxonomy import Taxonomy, collect_lineages
from task2vec.text import quote

KINDS = ("order", "class", "family", "supercategory")
RANKS = ("kingdom", "phylum", "class", "order", "family", "genus")
# The training files that may be in a folder: the name of the catalog, and the validation file of each.
_FILES = {f"train{year}.json": (f"inaturalist{year}", f"val{year}.json") for year in (2017, 2018, 2019)}
_FILES |= {"train.json": ("inaturalist2021", "val.json"), "train_mini.json": ("inaturalist2021 mini", "val.json")}
_NAMES = "categories.json"


def read_inaturalist(folder: StrPath, *, mini: bool = False) -> Catalog:
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
    # Where both training sets of 2021 are, the larger one is meant unless `mini`.
    wanted = ["train_mini.json"] if mini else [*_FILES][: -1 if (root / "train.json").is_file() else None]
    train = annotations.find_file(root, *wanted, dataset="iNaturalist of one year")
    name, val = _FILES[train.name]
    files, paths, labels, splits, parts = [train, root / val], [], [], {}, []
    for split, file in zip(("train", "val"), files, strict=True):
        content, start = annotations.read_json(file), len(paths)
        parts.append(_index_categories(file, content))
        for _, (place, image), (where, annotation) in annotations.pair_records(file, content, "id", "image_id"):
            paths.append(annotations.check_path(image.get("file_name"), place))
            labels.append(annotations.take_id(annotation, "category_id", where))
            if labels[-1] not in parts[-1]:
                raise annotations.damaged(where, f"the category id {labels[-1]} has no entry in categories")
        splits[split] = np.arange(start, len(paths))
    categories = _merge_categories(files, parts, root / _NAMES)
    names = annotations.deduplicate_names([_text(one, "name") for one in categories.values()], categories)
    table = LabelTable(np.searchsorted(list(categories), labels), tuple(names))
    named = [{**category, "name": name} for category, name in zip(categories.values(), names, strict=True)]
    taxonomy = _make_taxonomy(named, train)
    lost = taxonomy.group(names, "order").get((), []) if "order" in taxonomy.ranks else []
    warnings = ()
    if lost:
        shown = quote([names[number] for number in lost], 3)
        warnings = (f"species without an order, in no task by order: {len(lost)}, such as {shown}",)
    definitions, sources = define_by_taxon(table, taxonomy, splits, ranks=KINDS), tuple(map(str, files))
    return Catalog(name, root, paths, splits, {"labels": table}, definitions, sources, taxonomy, warnings)


def read_inaturalist_taxonomy(file: StrPath, *, class_field: str = "name") -> Taxonomy:
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
    place = Path(file)
    records = annotations.list_records(place, annotations.read_json(place), "categories")
    return _make_taxonomy(records, place, class_field)


def _make_taxonomy(categories: Sequence[Mapping[str, object]], place: Path, class_field: str = "name") -> Taxonomy:
    """The taxonomy of categories that were read from `place`."""
    ranks = tuple(rank for rank in RANKS if any(rank in category for category in categories)) or ("supercategory",)
    nameless = [number for number, category in enumerate(categories) if class_field not in category]
    if nameless or not any(rank in category for category in categories for rank in ranks):
        lacking = f"category {nameless[0]} has no field {class_field!r}" if nameless else "no category has a rank"
        raise DataError(
            f"{place}: {lacking} (the first has {quote(list(categories[0]), 20)}), so it has no place in a tree. Use "
            "the categories as published, and name the field of the classes with class_field."
        )
    rows = (
        (f"category {number}", category[class_field], [category.get(rank) for rank in ranks])
        for number, category in enumerate(categories)
    )
    return Taxonomy(ranks, collect_lineages(place, rows))


def _index_categories(file: Path, content: Any) -> dict[int, dict]:
    """The categories by ascending id."""
    found = annotations.index_records(file, content, "categories", "id")
    return {key: found[key][1] for key in sorted(found)}


def _merge_categories(files: Sequence[Path], parts: Sequence[dict[int, dict]], names: Path) -> dict[int, dict]:
    """The categories by ascending id, with their published names; all files must have the same species.

    Hidden names are not among the published words, so only words that are can contradict.
    """
    known, sources = parts[0], [(files[1], parts[1])]
    is_hidden = not any(" " in _text(one, "name") for one in known.values())
    if names.is_file():
        sources.append((names, _index_categories(names, annotations.read_json(names))))
    elif is_hidden:
        raise DataError(
            f"{files[0]} hides the names of its categories (such as {_text(known[min(known)], 'name')!r}), so tasks "
            "have no names. Unpack categories.json into the same folder: it is among the downloads of that year "
            "(repository visipedia/inat_comp on GitHub)."
        )
    for file, found in sources:
        if found.keys() != known.keys():
            other = min(found.keys() ^ known.keys())
            raise annotations.damaged(file, f"its categories are not those of {files[0]}, such as id {other}")
        for field in ("name", "supercategory", *RANKS):
            words = {_text(one, field) for one in found.values()}
            for key, one in known.items():
                mine, theirs = _text(one, field), _text(found[key], field)
                is_given = field in one and field in found[key] and (not is_hidden or mine in words)
                if mine != theirs and (file != names or is_given):
                    what = f"the id {key} has {theirs!r} as its {field}, and in {files[0]} {mine!r}"
                    raise annotations.damaged(f"{file}, categories", what)
    return sources[-1][1]


def _text(category: dict, field: str) -> str:
    """The value of a field as text; "" if there is none."""
    value = category.get(field)
    return "" if value is None else str(value).strip()
