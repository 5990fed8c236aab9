"""iNaturalist as published: files of annotations with categories, and images below the same folder.

    inat2018/  train2018.json  val2018.json  categories.json  train_val2018/Aves/2761/4a7d....jpg
    inat2021/  train.json (or train_mini.json)  val.json  train/02912_Animalia_..._corax/3f1c....jpg  val/...

The annotations of 2018 and 2019 hide all names behind numbers, as in their competitions; the names were published later
as categories.json, which then must lie beside them. Those of 2017 tell a supercategory and no other rank.
"""

import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.catalogue import Catalogue
from task2vec.tasks.check import quote
from task2vec.tasks.definitions import Splits, define_by_taxon, tell_apart
from task2vec.tasks.json_records import Record, read_records
from task2vec.tasks.label_tables import ClassTable
from task2vec.tasks.matching import match_annotations, take_id
from task2vec.tasks.parsed import parse_once
from task2vec.tasks.paths import PathPacker, Paths, check_path
from task2vec.tasks.taxonomy import Taxonomy
from task2vec.tasks.taxonomy_readers import INATURALIST_RANKS, place_categories, read_categories

SPLITS = ("train", "val")
KINDS = ("order", "class", "family", "supercategory")
# Counts up when the same files give another catalogue.
_READER = "inaturalist 2"
_FILES = {year: (f"train{year}.json", f"val{year}.json") for year in (2017, 2018, 2019)}
_FILES[2021] = ("train.json", "val.json")
_MINI = "train_mini.json"
# What a category tells of its species.
_TOLD = ("name", "supercategory", *INATURALIST_RANKS)


def read_inaturalist(
    folder: str | os.PathLike[str],
    *,
    year: int | None = None,
    mini: bool = False,
    name: str | None = None,
    cache: bool = True,
    progress: bool = False,
) -> Catalogue:
    """The catalogue of iNaturalist 2017, 2018, 2019 or 2021: species to tell apart within an order, class or family.

    Tasks are those taxa in which at least two species have an image; the one with the most training images comes first
    within its kind. The group of an order is its class, that of a family its order. A species of which the categories
    tell no order belongs to no task by order. The paper counts 207 orders: whether ours are as many cannot be checked
    without the data, and depends on the year (its text does not tell which) and on how orders of one species count.

    Args:
        folder: Where the files of annotations lie, unpacked; the paths of images begin there.
        year: Which of them to read, if the folder has several.
        mini: Of 2021, the smaller training set (train_mini.json).
        name: What to call the catalogue; "inaturalist" and the year if not given.
        cache: Keep the parsed form in the user's cache folder, and use it while the files stay as they are.
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
        ...     catalogue = read_inaturalist(folder, cache=False)
        >>> catalogue
        Catalogue(inaturalist2021, 12 images, train and val, tasks: 1 order, 1 class)
        >>> catalogue.find("Passeriformes").classes
        ('Corvus corax', 'Turdus merula')
    """
    root = Path(folder)
    year = _find_year(root, year)
    if mini and year != 2021:
        raise UsageError(f"mini=True asks for {_MINI}, which only 2021 has, and this is {year}. Leave it out.")
    train, val = _FILES[year]
    files = [root / (_MINI if mini else train), root / val]
    _check_files(root, files, mini)
    names = root / "categories.json"
    catalogue = parse_once(
        lambda: _parse(root, files, names if names.is_file() else None, progress),
        reader=_READER,
        files=[*files, names] if names.is_file() else files,
        cache=cache,
    )
    return replace(catalogue, name=f"inaturalist{year}{' mini' if mini else ''}" if name is None else name)


def _find_year(root: Path, year: int | None) -> int:
    """The year asked for, or the only one that lies in the folder."""
    if year is not None:
        if year not in _FILES:
            raise UsageError(f"year={year!r} is no iNaturalist that can be read. Choose one of {list(_FILES)}.")
        return year
    found = [year for year, (train, _) in _FILES.items() if (root / train).is_file()]
    if 2021 not in found and (root / _MINI).is_file():
        found.append(2021)
    if len(found) > 1:
        raise UsageError(f"{root} holds iNaturalist of several years. Pass year=, one of {found}.")
    if not found:
        wanted = [train for train, _ in _FILES.values()]
        raise DataError(
            f"{root} is no folder with annotations of iNaturalist: it has none of {quote(wanted)}, so there are no "
            "labels. Pass the folder that holds them, unpacked from their archives."
        )
    return found[0]


def _check_files(root: Path, files: Sequence[Path], mini: bool) -> None:
    """Raise `DataError` if a file of annotations is missing."""
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        hint = (
            "Pass mini=True to read train_mini.json." if not mini and (root / _MINI).is_file() else "Unpack it there."
        )
        raise DataError(f"{root} has no {quote(missing)}, so a part of the dataset has no labels. {hint}")


@dataclass(frozen=True)
class _Annotations:
    """One file: the image row and the category id of every annotation, and the list of categories."""

    file: Path
    rows: np.ndarray
    category_ids: np.ndarray
    categories: list[Record]


def _parse(root: Path, files: Sequence[Path], names: Path | None, progress: bool) -> Catalogue:
    """The catalogue of the files for training and validation, with the categories of a third if there is one."""
    packer = PathPacker()
    parts = [_read_annotations(file, packer, progress) for file in files]
    categories, ids = _settle_categories(parts, names)
    table = ClassTable(
        np.concatenate([_number_classes(part, ids) for part in parts]),
        tuple(tell_apart([str(category["name"]) for category in categories], ids)),
    )
    named = [{**category, "name": name} for category, name in zip(categories, table.names, strict=True)]
    taxonomy = place_categories(named, files[0] if names is None else names)
    codes = np.repeat(np.arange(len(parts), dtype=np.uint8), [len(part.rows) for part in parts])
    splits, paths = Splits(codes, SPLITS), packer.pack()
    _refuse_repeated(paths, parts)
    return Catalogue(
        "inaturalist",
        root,
        paths,
        splits,
        {"labels": table},
        define_by_taxon(table, taxonomy, splits, ranks=KINDS),
        tuple(str(file) for file in files),
        taxonomy,
        _remark(taxonomy),
    )


def _read_annotations(file: Path, packer: PathPacker, progress: bool) -> _Annotations:
    """The content of one file; its paths go to the packer."""
    image_ids, annotated, category_ids = array("q"), array("q"), array("q")
    categories: list[Record] = []
    place = str(file)
    for key, number, record in read_records(file, ("images", "annotations", "categories"), progress=progress):
        where = f"{place}, {key}, record {number}"
        if key == "images":
            image_ids.append(take_id(record, "id", where))
            packer.append(check_path(record.get("file_name"), where))
        elif key == "annotations":
            annotated.append(take_id(record, "image_id", where))
            category_ids.append(take_id(record, "category_id", where))
        else:
            categories.append(record)
    if not image_ids or not categories:
        raise DataError(f"{file} lists no {'categories' if image_ids else 'images'}, so there is no task in it.")
    return _Annotations(file, match_annotations(file, image_ids, annotated), np.asarray(category_ids), categories)


def _settle_categories(parts: Sequence[_Annotations], names: Path | None) -> tuple[list[Record], list[int]]:
    """The categories by ascending id, and their ids; those of all files must be the same species."""
    sources = [(part.file, part.categories) for part in parts]
    if names is not None:
        sources.append((names, read_categories(names)))
    (first, _), (last, categories) = sources[0], sources[-1]
    by_id = [_by_id(file, found) for file, found in sources]
    for (file, _), found in zip(sources[1:], by_id[1:], strict=True):
        torn = sorted(found.keys() ^ by_id[0].keys())
        if torn:
            raise DataError(
                f"{first} and {file} have different categories, such as id {torn[0]}, so that a label would mean no "
                "species or another one. They are of different years or damaged: take all files from one year."
            )
        _check_species(first, by_id[0], file, found, are_names=file == names)
    if names is None and _hides_names(categories):
        raise DataError(
            f"{last} hides the names of its categories (the first is {categories[0].get('name')!r}), so there are no "
            "orders to name tasks by. Unpack categories.json into the same folder: the names as published after the "
            "competition, which stand among the downloads of that year (repository visipedia/inat_comp on GitHub)."
        )
    return list(by_id[-1].values()), list(by_id[-1])


def _check_species(
    first: Path, known: dict[int, Record], file: Path, found: dict[int, Record], *, are_names: bool
) -> None:
    """Raise `DataError` if an id means other species in two files; `are_names` if the second tells what is hidden."""
    hidden = set()
    if are_names and _hides_names(known.values()):
        for field in _TOLD:
            words, published = ({_tell(one, field) for one in some.values()} - {""} for some in (known, found))
            # Numbers, or whatever stands for a name, are none of the published words; a few may be by chance.
            if 2 * len(words & published) <= len(words):
                hidden.add(field)
    for key, one in known.items():
        for field in _TOLD:
            is_told = field not in hidden and (not are_names or (field in one and field in found[key]))
            if is_told and _tell(one, field) != _tell(found[key], field):
                raise DataError(
                    f"{file}, categories: the id {key} has {found[key].get(field)!r} as its {field}, and in {first} "
                    f"{one.get(field)!r}, so that a label would mean another species. They are of different years or "
                    "damaged: take all files from one year, unchanged."
                )


def _hides_names(categories: Iterable[Record]) -> bool:
    """Whether no category has a name of two words, as species have."""
    return not any(" " in _tell(category, "name") for category in categories)


def _tell(category: Record, field: str) -> str:
    """What a category tells in a field, as text; "" if nothing."""
    value = category.get(field)
    return "" if value is None else str(value).strip()


def _by_id(file: Path, categories: Sequence[Record]) -> dict[int, Record]:
    """The categories by ascending id; an id that occurs twice is refused, and so is a category without a name."""
    found: dict[int, Record] = {}
    for number, category in enumerate(categories):
        where = f"{file}, categories, record {number}"
        key = take_id(category, "id", where)
        if key in found or "name" not in category:
            what = f"the id {key} is that of an earlier one" if key in found else "it has no name"
            raise DataError(f"{where}: {what}, so a label would be unclear. Take the dataset's own file, unchanged.")
        found[key] = category
    return dict(sorted(found.items()))


def _number_classes(part: _Annotations, ids: Sequence[int]) -> np.ndarray:
    """(images,) for every image of a file the place of its category among the ids, which ascend."""
    known = np.asarray(ids, np.int64)
    places = np.searchsorted(known, part.category_ids)
    unknown = np.flatnonzero(np.append(known, -1)[places] != part.category_ids)
    if len(unknown):
        raise DataError(
            f"{part.file}, annotations, record {unknown[0]}: the category id {part.category_ids[unknown[0]]} has no "
            "entry in categories, so the species is unknown. Take the dataset's own file, unchanged."
        )
    numbers = np.empty(len(part.rows), np.int32)
    numbers[part.rows] = places
    return numbers


def _refuse_repeated(paths: Paths, parts: Sequence[_Annotations]) -> None:
    """Raise `DataError` if two records mean one file: it would be trained on and tested, or have two labels."""
    repeated = paths.find_repeated()
    if repeated is None:
        return
    starts = np.cumsum([0, *(len(part.rows) for part in parts)])
    told = []
    for row in repeated:
        number = int(np.searchsorted(starts, row, side="right")) - 1
        told.append(f"{parts[number].file}, images, record {row - starts[number]}")
    raise DataError(
        f"{told[1]}: the file {paths[repeated[1]]!r} is that of {told[0]} already, so one image would count twice. "
        "Take the dataset's own files, unchanged."
    )


def _remark(taxonomy: Taxonomy) -> tuple[str, ...]:
    """A warning of species that belong to no task by order."""
    if "order" not in taxonomy.ranks:
        return ()
    level = taxonomy.ranks.index("order")
    lost = [leaf for leaf, lineage in taxonomy.lineages.items() if not lineage[level]]
    return (f"species without an order, in no task by order: {len(lost)}, such as {quote(lost, 3)}",) if lost else ()
