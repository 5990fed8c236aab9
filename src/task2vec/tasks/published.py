"""Published datasets as their archives unpack: the annotation files of four of them become catalogs of tasks.

Every value is checked, and every error names the file and, for a list, the line. Paths are checked when images are
read: a path that leads out of the folder counts as an unreadable image.

CUB-200-2011 names species and nothing above them. The table of orders and families (`cub200_taxonomy.csv`) is our own
compilation: orders as before cormorants and frigatebirds left the pelicans, families as before 2009. It has 12 orders,
11 of them with more than one species, and 21 families of Passeriformes, 14 of them with more than one species. The
paper counts 134 Passeriformes in 22 families, 15 of them usable, and no taxonomy that we know of gives that. Two
species explain its numbers exactly: the Groove-billed Ani, a cuckoo, placed under Passeriformes in a family of its own,
and the Tree Sparrow read as the Eurasian one, which makes the Passeridae two. The table has these readings in columns
of their own, so that `taxonomy="paper"` gives the paper's 25 tasks, where our own gives 24.

iNaturalist has annotation files with categories, and images below the same folder:

    inat2018/  train2018.json  val2018.json  categories.json  train_val2018/Aves/2761/4a7d....jpg
    inat2021/  train.json (or train_mini.json)  val.json  train/02912_Animalia_..._corax/3f1c....jpg  val/...

The annotations of 2018 and 2019 replace all names by numbers, as in their competitions; the names were published later
as categories.json, which must be in the same folder. Those of 2017 have a supercategory and no other rank.

iMaterialist (Fashion) 2018 has annotation files, and images as their user saved them:

    imaterialist/  train.json  validation.json  train/1.jpg  train/2.jpg ...  validation/1.jpg ...

The files hold URLs, not images: each image was saved as JPEG under its id. Names of the 228 labels are in a table of
their own, with the columns labelId, taskId, labelName and taskName.

The lists of DeepFashion (Category and Attribute Prediction) are read as published: a count, a header, then entries with
columns separated by blanks. In the list of attributes 1 is positive, -1 negative and 0 unknown; an image for which an
attribute is unknown is not in its task. Categories are numbered from 1 by their place in `list_category_cloth.txt`, and
some have no image.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.progress import track
from task2vec.tasks.catalog import Catalog, LabelTable, damaged, deduplicate_names, define_attributes, define_by_taxon
from task2vec.tasks.columns import read_columns, read_start
from task2vec.tasks.images import StrPath
from task2vec.tasks.taxonomy import Taxonomy, read_taxonomy
from task2vec.text import quote

# Files that only one dataset has.
_FILES = {
    "cub200": ("image_class_labels.txt", "CUB_200_2011/image_class_labels.txt"),
    "inaturalist": ("train2017.json", "train2018.json", "train2019.json", "train_mini.json"),
    "imaterialist": ("iMat_fashion_2018_label_map_228.csv",),
    "deepfashion": ("Anno/list_attr_img.txt", "Anno_coarse/list_attr_img.txt"),
}
# Two datasets have a train.json; a field of their images distinguishes them.
_FIELDS = {"inaturalist": b'"file_name"', "imaterialist": b'"imageId"'}


def recognize_layout(folder: StrPath) -> str | None:
    """The published dataset whose files are in the folder, such as "cub200", or None.

    Raises:
        UsageError: It has the files of several.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "image_class_labels.txt").write_text("1 1")
        ...     recognize_layout(folder)
        'cub200'
    """
    root = Path(folder)
    layouts = {layout for layout, files in _FILES.items() if any((root / file).is_file() for file in files)}
    start = read_start(root / "train.json", 1 << 16)
    layouts |= {layout for layout, field in _FIELDS.items() if field in start}
    if len(layouts) > 1:
        raise UsageError(
            f"{root} has files of {' and '.join(sorted(layouts))}. Choose one (layout=, --as), or use separate folders."
        )
    return layouts.pop() if layouts else None


def read_catalog(
    folder: StrPath, *, layout: str | None = None, labels: StrPath | None = None, progress: bool = False
) -> Catalog:
    """The catalog of a published dataset, by the reader for its files.

    Args:
        folder: The folder with the dataset's unpacked archives.
        layout: Which dataset it is, such as "cub200", or "cub200-paper" for the paper's taxonomy; recognised by its
            files if not given.
        labels: Of iMaterialist, the table of the labels' names.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        DataError: The folder is no known dataset, or the dataset is damaged.
        UsageError: There is no such layout, or the folder has the files of several datasets.
    """
    root = Path(folder)
    layout = layout or recognize_layout(root)
    if labels is not None and layout != "imaterialist":
        raise UsageError(f"labels={str(labels)!r} (--labels) applies only to imaterialist. Leave it out.")
    readers = {
        "cub200": read_cub200,
        "cub200-paper": partial(read_cub200, taxonomy="paper"),
        "inaturalist": read_inaturalist,
        "imaterialist": partial(read_imaterialist, labels=labels),
        "deepfashion": partial(read_deepfashion, progress=progress),
    }
    if layout in readers:
        return readers[layout](root)
    raise (UsageError if layout else DataError)(
        f"{root} is not a folder with the files of {layout or 'a known dataset'}, so there are no tasks to list. Known "
        f"datasets are {', '.join(readers)}, as unpacked from their archives; a folder of class folders is a single "
        "task (read_folder)."
    )


# --- CUB-200-2011 ----------------------------------------------------------------------------------------------------

BIRD_FILES = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")
# The taxa above all birds, under the names that iNaturalist uses, so that the two trees can be joined.
ABOVE_BIRDS = {"kingdom": "Animalia", "phylum": "Chordata", "class": "Aves"}
# How the columns of orders and families end, by taxonomy.
BIRD_TAXONOMIES = {"traditional": "", "paper": "_paper"}


def read_cub200(folder: StrPath, *, taxonomy: str = "traditional") -> Catalog:
    r"""The catalog of CUB-200-2011: tasks by order and by family, with the published splits "train" and "test".

    Args:
        folder: The unpacked archive: the folder with images.txt, image_class_labels.txt, train_test_split.txt,
            classes.txt and images, or the one around it.
        taxonomy: "traditional", or "paper" for the two species that the paper places elsewhere (see the module). The
            catalog is then called "cub200-paper", since three of its tasks differ.

    Raises:
        DataError: A list is missing or damaged, two lists disagree, or a class is not in CUB-200-2011.

    Example:
        >>> import tempfile
        >>> birds = ("107.Common_Raven", "029.American_Crow", "030.Fish_Crow")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name, lines in {
        ...         "classes.txt": [f"{n} {bird}" for n, bird in enumerate(birds, 1)],
        ...         "images.txt": [f"{n} {bird}/1.jpg" for n, bird in enumerate(birds, 1)],
        ...         "image_class_labels.txt": ["1 1", "2 2", "3 3"],
        ...         "train_test_split.txt": ["1 1", "2 1", "3 0"],
        ...     }.items():
        ...         _ = Path(folder, name).write_text("\n".join(lines))
        ...     catalog = read_cub200(folder)
        >>> catalog
        Catalog(cub200, 3 images, train and test, tasks: 1 order, 1 family)
        >>> catalog.find("Corvidae")
        TaskDefinition(Corvidae, family, 3 classes, train 2, test 1)
    """
    if taxonomy not in BIRD_TAXONOMIES:
        raise UsageError(f"there is no taxonomy={taxonomy!r}. Choose one of {', '.join(BIRD_TAXONOMIES)}.")
    root = find_file(Path(folder), "images.txt", "CUB_200_2011/images.txt", dataset="CUB-200-2011").parent
    image_file, label_file, split_file, class_file = files = [root / name for name in BIRD_FILES]
    images = index_lines(read_lines(image_file))
    classes = index_lines(read_lines(class_file))
    ranks = {rank: rank + BIRD_TAXONOMIES[taxonomy] for rank in ("order", "family")}
    species = read_taxonomy(Path(__file__).with_name("cub200_taxonomy.csv"), "class_dir", ranks=ranks)
    tree = Taxonomy.join({"birds": species}, above={"birds": ABOVE_BIRDS})
    for location, name in classes.values():
        if name not in tree.lineages:
            raise damaged(location, f"{name!r} is not a class of CUB-200-2011")
    names = tuple(name for _, name in classes.values())
    numbers = encode_values(label_file, read_lines(label_file), images, list(classes))
    for (location, path), number in zip(images.values(), numbers.tolist(), strict=True):
        if path.split("/")[0] != names[number]:
            raise damaged(location, f"{path!r} is not in the folder of its class {names[number]!r}")
    table = LabelTable(numbers, names)
    is_train = encode_values(split_file, read_lines(split_file), images, ["0", "1"])
    splits = {"train": np.flatnonzero(is_train == 1), "test": np.flatnonzero(is_train == 0)}
    name = "cub200" if taxonomy == "traditional" else "cub200-paper"
    paths = [f"images/{path}" for _, path in images.values()]
    definitions = define_by_taxon(table, tree, splits, ranks=species.ranks)
    return Catalog(name, root, paths, splits, {"labels": table}, definitions, tuple(map(str, files)), tree)


# --- DeepFashion -----------------------------------------------------------------------------------------------------

ATTRIBUTE_TYPES = {"1": "texture", "2": "fabric", "3": "shape", "4": "part", "5": "style"}
CATEGORY_TYPES = {"1": "upper-body", "2": "lower-body", "3": "full-body"}
DEEPFASHION_SPLITS = ("train", "val", "test")
# Of published values, the bytes of 1 positive, 0 negative and -1 unknown.
ATTRIBUTE_BYTES = {"1": 1, "-1": 0, "0": 255}
DEEPFASHION_LISTS = ("list_attr_cloth.txt", "list_attr_img.txt", "list_category_cloth.txt", "list_category_img.txt")


def read_deepfashion(folder: StrPath, *, progress: bool = False) -> Catalog:
    r"""The catalog of DeepFashion's Category and Attribute Prediction Benchmark, splits "train", "val" and "test".

    Every attribute is a binary task over the images for which it is known (1 or -1; 0 is unknown and left out). The
    attributes of one type (texture, fabric, shape, part, style) are also a multi-label task, over the images for which
    all of them are known. Three more tasks classify the categories of upper-body, lower-body and full-body clothes.

    Args:
        folder: The folder that holds Anno (or Anno_coarse), Eval and the images, as Img/img or img.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        DataError: A list is missing, not as long as it claims, or about other images than the others; a row is short; a
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
        ...     catalog = read_deepfashion(folder)
        >>> catalog
        Catalog(deepfashion, 2 images, train and val and test, tasks: 2 attribute, 2 attribute group, 1 category)
        >>> catalog.find("linen").counts
        {'train': 1, 'val': 0, 'test': 0}
    """
    root = Path(folder)
    # The folder of annotations has had both names; later archives split it by how fine the attributes are.
    lists = ("Anno/list_attr_img.txt", "Anno_coarse/list_attr_img.txt")
    folder = find_file(root, *lists, dataset="DeepFashion (category and attribute prediction)").parent
    files = [*(folder / name for name in DEEPFASHION_LISTS), root / "Eval/list_eval_partition.txt"]
    attribute_file, image_attribute_file, category_file, image_category_file, split_file = files
    names, types = _read_types(attribute_file, ATTRIBUTE_TYPES)
    categories, bodies = _read_types(category_file, CATEGORY_TYPES)
    paths, values = _read_attributes(image_attribute_file, len(names), progress)
    # The file counts categories from 1.
    numbers = [str(number + 1) for number in range(len(categories))]
    kinds = encode_values(image_category_file, _read_entries(image_category_file), paths, numbers)
    codes = encode_values(split_file, _read_entries(split_file), paths, DEEPFASHION_SPLITS)
    splits = {split: np.flatnonzero(codes == code) for code, split in enumerate(DEEPFASHION_SPLITS)}
    tables = {
        "labels": LabelTable(values, tuple(names), tuple(types)),
        "categories": LabelTable(kinds, tuple(categories)),
    }
    tree = Taxonomy(("category",), {name: (body,) for name, body in zip(categories, bodies, strict=True)})
    definitions = define_attributes(tables["labels"], splits)
    definitions += define_by_taxon(tables["categories"], tree, splits, ranks=tree.ranks, table_name="categories")
    # The lists have img/..., and the archive of images is unpacked beside Anno or into Img.
    prefix = "Img/" if (root / "Img" / "img").is_dir() else ""
    paths = [prefix + path for path in paths]
    return Catalog("deepfashion", root, paths, splits, tables, definitions, sources=tuple(map(str, files)))


def _read_entries(file: Path) -> Iterator[tuple[str, str]]:
    """Location and text of every entry; the first line has their number, the second is a header."""
    lines = read_lines(file)
    location, count = next(lines, (str(file), ""))
    next(lines, None)
    n_entries = 0
    for entry in lines:
        n_entries += 1
        yield entry
    if not n_entries or count.strip() != str(n_entries):
        raise damaged(location, f"{count.strip()[:40]!r} is not the number of entries, {n_entries}")


def _read_types(file: Path, types: dict[str, str]) -> tuple[list[str], list[str]]:
    """The names of a list and the type of each; a name that comes twice gets its number."""
    names, groups = [], []
    for location, line in _read_entries(file):
        name, _, word = line.strip().rpartition(" ")
        if not name or word not in types:
            raise damaged(location, f"{line.strip()!r} is not a name and its type, one of {', '.join(types)}")
        names.append(name.strip())
        groups.append(types[word])
    return deduplicate_names(names, range(1, len(names) + 1)), groups


def _read_attributes(file: Path, n_attributes: int, progress: bool) -> tuple[list[str], np.ndarray]:
    """Paths, and (images, attributes) int8: 1 positive, 0 negative, -1 unknown. 290 million values, as published."""
    paths, content = [], bytearray()
    for location, line in track(_read_entries(file), 289_222, what=f"reading {file.name}", progress=progress):
        path, *words = line.split()
        try:
            row = bytes(map(ATTRIBUTE_BYTES.__getitem__, words))
        except KeyError:
            row = b""
        if len(row) != n_attributes:
            raise damaged(location, f"it does not have {n_attributes} values of 1, -1 or 0 (unknown)")
        paths.append(path)
        content += row
    return paths, np.frombuffer(content, np.int8).reshape(len(paths), n_attributes)


# --- iMaterialist ----------------------------------------------------------------------------------------------------

# The folder of each split's images, and its annotation file as named by Kaggle and by the organisers.
IMATERIALIST_SPLITS = {"train": ("train", "train.json"), "val": ("validation", "validation.json", "val.json")}
LABEL_MAP = "iMat_fashion_2018_label_map_228.csv"
NO_NAMES_WARNING = (
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
    label_map = root / LABEL_MAP if labels is None else Path(labels)
    known = _read_names(label_map) if labels is not None or label_map.is_file() else {}
    paths: list[str] = []
    label_sets: list[set[int]] = []
    splits, files = {}, []
    for split, (image_folder, *names) in IMATERIALIST_SPLITS.items():
        file = find_file(root, *names, dataset="iMaterialist (Fashion) 2018")
        start = len(paths)
        for key, _, annotation in pair_records(file, read_json(file), "imageId", "imageId"):
            listed: Any = annotation.get("labelId")
            is_list = isinstance(listed, list) and all(str(label).isdecimal() for label in listed)
            label_set = set(map(int, listed)) if is_list else set()
            if not is_list or len(label_set) < len(listed) or (known and not known.keys() >= label_set):
                problem = f"the labels {listed!r} of image {key} are not a list of ids, repeat, or have no name"
                raise damaged(file, f"{problem} (labels=, --labels)")
            paths.append(f"{image_folder}/{key}.jpg")
            label_sets.append(label_set)
        splits[split] = np.arange(start, len(paths))
        files.append(str(file))
    ids = sorted(known or {number for label_set in label_sets for number in label_set})
    names, groups = zip(*(known.get(number, (str(number), "")) for number in ids), strict=True)
    column_of = {number: column for column, number in enumerate(ids)}
    values = np.zeros((len(paths), len(ids)), np.int8)
    for row, label_set in enumerate(label_sets):
        values[row, [column_of[number] for number in label_set]] = 1
    table = LabelTable(values, tuple(deduplicate_names(names, groups)), groups)
    about = {"sources": tuple(files), "warnings": () if known else (NO_NAMES_WARNING,)}
    definitions = define_attributes(table, splits)
    return Catalog("imaterialist2018", root, paths, splits, {"labels": table}, definitions, **about)


def _read_names(file: Path) -> dict[int, tuple[str, str]]:
    """Name and group of every label by its id."""
    columns = read_columns(file)
    wanted = ("labelId", "labelName", "taskName")
    if missing := [column for column in wanted if column not in columns]:
        raise damaged(file, f"it has no column {quote(missing)}, only {quote(list(columns), 20)}")
    names: dict[int, tuple[str, str]] = {}
    for row, (label, name, group) in enumerate(zip(*(columns[column] for column in wanted), strict=True)):
        pair = (str(name).strip(), str(group or "").strip())
        if not str(label).isdecimal() or int(label) in names or not pair[0] or pair in names.values():
            problem = f"the label {label!r} is not an id, is repeated, or has no name or that of another"
            raise damaged(columns.locate(row), problem)
        names[int(label)] = pair
    return names


# --- iNaturalist -----------------------------------------------------------------------------------------------------

INATURALIST_KINDS = ("order", "class", "family", "supercategory")
RANKS = ("kingdom", "phylum", "class", "order", "family", "genus")
# The training files that may be in a folder: the name of the catalog, and the validation file of each.
_YEARS = {f"train{year}.json": (f"inaturalist{year}", f"val{year}.json") for year in (2017, 2018, 2019)}
_YEARS |= {"train.json": ("inaturalist2021", "val.json"), "train_mini.json": ("inaturalist2021 mini", "val.json")}


def read_inaturalist(folder: StrPath) -> Catalog:
    """The catalog of iNaturalist 2017, 2018, 2019 or 2021: the species of an order, class or family.

    Tasks are those taxa in which at least two species have an image; the one with the most training images comes first
    within its kind. The group of an order is its class, that of a family its order. A species without an order belongs
    to no task by order. The paper counts 207 orders: whether ours are as many cannot be checked without the data, and
    depends on the year (which the paper does not give) and on how orders of one species count.

    Args:
        folder: The folder with the unpacked annotation files of one year; the paths of images begin there. Of the two
            training sets of 2021, train.json is read rather than train_mini.json.

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
    wanted = [*_YEARS][: -1 if (root / "train.json").is_file() else None]
    train = find_file(root, *wanted, dataset="iNaturalist of one year")
    name, val = _YEARS[train.name]
    files = {"train": train, "val": root / val}
    paths: list[str] = []
    labels: list[int] = []
    splits, lists = {}, []
    for split, file in files.items():
        content = read_json(file)
        categories = index_records(file, content, "categories", "id")
        start = len(paths)
        for key, image, annotation in pair_records(file, content, "id", "image_id"):
            category: Any = annotation.get("category_id")
            if category not in categories:
                raise damaged(file, f"the category id {category!r} of image {key} has no entry in categories")
            paths.append(str(image.get("file_name")))
            labels.append(category)
        splits[split] = np.arange(start, len(paths))
        lists.append(categories)
    published = root / "categories.json"
    if published.is_file():
        lists.append(index_records(published, read_json(published), "categories", "id"))
    elif not any(" " in _text(category, "name") for category in lists[0].values()):
        raise DataError(
            f"{train} hides the names of its categories (such as {_text(lists[0][min(lists[0])], 'name')!r}), so tasks "
            "have no names. Unpack categories.json into the same folder: it is among the downloads of that year "
            "(repository visipedia/inat_comp on GitHub)."
        )
    categories = dict(sorted(lists[-1].items()))
    if any(listed.keys() != categories.keys() for listed in lists):
        raise damaged(root, f"the categories of {train.name}, {val} and categories.json have different ids")
    names = deduplicate_names([_text(category, "name") for category in categories.values()], categories)
    table = LabelTable(np.searchsorted(list(categories), labels), tuple(names))
    ranks = [rank for rank in RANKS if any(rank in category for category in categories.values())] or ["supercategory"]
    lineages = [tuple(_text(category, rank) for rank in ranks) for category in categories.values()]
    taxonomy = Taxonomy(tuple(ranks), dict(zip(names, lineages, strict=True)))
    lost = taxonomy.group(names, "order").get((), []) if "order" in taxonomy.ranks else []
    listed = f"{len(lost)}, such as {quote([names[number] for number in lost], 3)}"
    warnings = (f"species without an order, left out of all order tasks: {listed}",) if lost else ()
    definitions = define_by_taxon(table, taxonomy, splits, ranks=INATURALIST_KINDS)
    sources = tuple(map(str, files.values()))
    return Catalog(name, root, paths, splits, {"labels": table}, definitions, sources, taxonomy, warnings)


def _text(category: dict, field: str) -> str:
    """The value of a field as text; "" if there is none."""
    value = category.get(field)
    return "" if value is None else str(value).strip()


# --- annotation files ------------------------------------------------------------------------------------------------


def read_lines(file: Path) -> Iterator[tuple[str, str]]:
    """The location and the text of every line that is not blank."""
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{file}, line {number}", line
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(file, f"it cannot be read ({error})") from error


def read_json(file: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(file, f"it cannot be read as JSON ({error})") from None


def index_records(file: Path, content: Any, key: str, name: str) -> dict[int, dict]:
    """The record of every id in the list under a key, or that the content is; an id that occurs twice is refused.

    Example:
        >>> index_records(Path("train.json"), {"images": [{"id": 7}, {"id": "17"}]}, "images", "id")
        {7: {'id': 7}, 17: {'id': '17'}}
    """
    try:
        records = content[key] if isinstance(content, dict) else content
        record_of = {int(record[name]): record for record in records}
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise damaged(file, f"it has no list of records under {key!r}, or one without a number as {name!r}") from error
    if not record_of or len(record_of) < len(records):
        raise damaged(file, f"it has no record under {key!r}, or two of one {name!r}")
    return record_of


def pair_records(file: Path, content: Any, image_key: str, annotation_key: str) -> Iterator[tuple[int, dict, dict]]:
    """The id of every image, and the records of the image and of its annotation; each must have one.

    Example:
        >>> content = {
        ...     "images": [{"id": 3}, {"id": 7}],
        ...     "annotations": [{"of": 7, "is": "cat"}, {"of": 3, "is": "dog"}],
        ... }
        >>> [(key, label["is"]) for key, _, label in pair_records(Path("train.json"), content, "id", "of")]
        [(3, 'dog'), (7, 'cat')]
    """
    images = index_records(file, content, "images", image_key)
    annotations = index_records(file, content, "annotations", annotation_key)
    if alone := images.keys() ^ annotations.keys():
        raise damaged(file, f"the image id {min(alone)} is not in both images and annotations")
    for key, image in images.items():
        yield key, image, annotations[key]


def find_file(root: Path, *names: str, dataset: str) -> Path:
    """The one file of these names that is below the folder; none and several are refused."""
    present = [name for name in names if (root / name).is_file()]
    if len(present) != 1:
        state = f"has {' and '.join(present)}" if present else f"has no {' or '.join(names)}"
        raise DataError(
            f"{root} {state}, so it is not {dataset} as unpacked. Pass the folder that holds its annotation files, "
            "each dataset in a folder of its own."
        )
    return root / present[0]


def index_lines(lines: Iterable[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Of lines that end in a value, their location and value by the name before it, which must occur once."""
    entries: dict[str, tuple[str, str]] = {}
    for location, line in lines:
        name, _, value = line.strip().rpartition(" ")
        if not name or name.strip() in entries:
            raise damaged(location, f"{line.strip()!r} is not a name and its value, or the name occurs twice")
        entries[name.strip()] = (location, value)
    return entries


def encode_values(
    file: Path, lines: Iterable[tuple[str, str]], images: Collection[str], values: Sequence[str]
) -> np.ndarray:
    """(images,) the index in `values` of each image's entry; unknown values, images and gaps are refused."""
    entries = index_lines(lines)
    codes = {value: code for code, value in enumerate(values)}
    for location, value in entries.values():
        if value not in codes:
            raise damaged(location, f"{value!r} is not one of {quote(values, 3)}")
    if alone := entries.keys() ^ set(images):
        raise damaged(file, f"image {min(alone)!r} is not both here and in the list of images ({len(alone)} such)")
    return np.array([codes[entries[image][1]] for image in images], np.int16)
