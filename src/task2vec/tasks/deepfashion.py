"""DeepFashion (Category and Attribute Prediction) as it is unpacked becomes a catalog of attributes and categories.

The lists are read as published: a count, a header, then entries with columns separated by blanks. In the list of
attributes 1 is positive, -1 negative and 0 unknown; an image for which an attribute is unknown is not in its task.
Categories are numbered from 1 by their place in `list_category_cloth.txt`, and some have no image.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from task2vec.progress import track
from task2vec.tasks import annotations
from task2vec.tasks.catalog import Catalog, LabelTable, define_attributes, define_by_taxon
from task2vec.tasks.images import StrPath
from task2vec.tasks.taxonomy import Taxonomy

ATTRIBUTE_TYPES = {"1": "texture", "2": "fabric", "3": "shape", "4": "part", "5": "style"}
CATEGORY_TYPES = {"1": "upper-body", "2": "lower-body", "3": "full-body"}
SPLITS = ("train", "val", "test")
# Of published values, the bytes of 1 positive, 0 negative and -1 unknown.
MEANING = {"1": 1, "-1": 0, "0": 255}
# The folder of annotations has had both names; later archives split it by how fine the attributes are.
ANNOTATIONS = ("Anno", "Anno_coarse")
NAMES = ("list_attr_cloth.txt", "list_attr_img.txt", "list_category_cloth.txt", "list_category_img.txt")
PARTITION = "Eval/list_eval_partition.txt"


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
    lists = [f"{name}/{NAMES[1]}" for name in ANNOTATIONS]
    anno = annotations.find_file(root, *lists, dataset="DeepFashion (category and attribute prediction)").parent
    places = [*(anno / name for name in NAMES), root / PARTITION]
    names, types = _read_types(places[0], ATTRIBUTE_TYPES)
    categories, bodies = _read_types(places[2], CATEGORY_TYPES)
    paths, values = _read_attributes(places[1], len(names), progress)
    # The file counts categories from 1.
    numbers = [str(number + 1) for number in range(len(categories))]
    kinds = LabelTable(_encode_list(places[3], paths, numbers), tuple(categories))
    codes = _encode_list(places[4], paths, SPLITS)
    splits = {split: np.flatnonzero(codes == code) for code, split in enumerate(SPLITS)}
    table = LabelTable(values, tuple(names), tuple(types))
    tree = Taxonomy(("category",), {name: (body,) for name, body in zip(categories, bodies, strict=True)})
    definitions = define_attributes(table, splits)
    definitions += define_by_taxon(kinds, tree, splits, ranks=tree.ranks, table_name="categories")
    # The lists have img/..., and the archive of images is unpacked beside Anno or into Img.
    prefix = "Img/" if (root / "Img" / "img").is_dir() else ""
    paths, tables = [prefix + path for path in paths], {"labels": table, "categories": kinds}
    return Catalog("deepfashion", root, paths, splits, tables, definitions, sources=tuple(map(str, places)))


def _read_entries(place: Path) -> Iterator[tuple[str, str]]:
    """Place and text of every entry; the first line has their number, the second is a header."""
    lines, found = annotations.read_lines(place), 0
    where, count = next(lines, (str(place), ""))
    next(lines, None)
    for entry in lines:
        found += 1
        yield entry
    if not found or count.strip() != str(found):
        raise annotations.damaged(where, f"{count.strip()[:40]!r} is not the number of entries, {found}")


def _read_types(place: Path, types: dict[str, str]) -> tuple[list[str], list[str]]:
    """The names of a list and the type of each; a name that comes twice gets its number."""
    names, groups = [], []
    for where, line in _read_entries(place):
        name, _, word = line.strip().rpartition(" ")
        if not name or word not in types:
            raise annotations.damaged(where, f"{line.strip()!r} is not a name and its type, one of {', '.join(types)}")
        names.append(name.strip())
        groups.append(types[word])
    return annotations.deduplicate_names(names, range(1, len(names) + 1)), groups


def _encode_list(place: Path, paths: list[str], values: Sequence[str]) -> np.ndarray:
    """(images,) the place among `values` of each image's value in a list."""
    return annotations.encode_values(place, annotations.index_lines(_read_entries(place)), paths, values)


def _read_attributes(place: Path, n_attributes: int, progress: bool) -> tuple[list[str], np.ndarray]:
    """Paths, and (images, attributes) int8: 1 positive, 0 negative, -1 unknown. 290 million values, as published."""
    paths, content = [], bytearray()
    for where, line in track(_read_entries(place), 289_222, what=f"reading {place.name}", progress=progress):
        path, *words = line.split()
        try:
            row = bytes(map(MEANING.__getitem__, words))
        except KeyError:
            row = b""
        if len(row) != n_attributes:
            raise annotations.damaged(where, f"it does not have {n_attributes} values of 1, -1 or 0 (unknown)")
        paths.append(annotations.check_path(path, where))
        content += row
    return paths, np.frombuffer(content, np.int8).reshape(len(paths), n_attributes)
