"""CUB-200-2011 as it is unpacked becomes a catalog of tasks: birds by order and by family.

The dataset names species and nothing above them. The table of orders and families (`cub200_taxonomy.csv`) is our own
compilation: orders as before cormorants and frigatebirds left the pelicans, families as before 2009. It has 12 orders,
11 of them with more than one species, and 21 families of Passeriformes, 14 of them with more than one species.

The paper counts 134 Passeriformes in 22 families, 15 of them usable, and no taxonomy that we know of gives that. Two
species explain its numbers exactly: the Groove-billed Ani, a cuckoo, placed under Passeriformes in a family of its own,
and the Tree Sparrow read as the Eurasian one, which makes the Passeridae two. The table has these readings in columns
of their own, so that `taxonomy="paper"` gives the paper's 25 tasks, where our own gives 24.
"""

import csv
import os
from importlib.resources import files
from pathlib import Path

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.catalog import (
    Catalog,
    ClassTable,
    Splits,
    TaskDefinition,
    check_path,
    damaged,
    define_by_taxon,
    find_repeated,
)
from task2vec.tasks.task import quote
from task2vec.tasks.taxonomy import Taxonomy

FILES = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")
RANKS = ("order", "family")
# The taxa above all birds, under the names that iNaturalist uses, so that the two trees can be joined.
ABOVE = {"kingdom": "Animalia", "phylum": "Chordata", "class": "Aves"}
# The columns of the table of orders and families, by taxonomy.
COLUMNS = {"traditional": ("order", "family"), "paper": ("order_paper", "family_paper")}
DIVIDED = "Passeriformes"

_Numbered = dict[str, tuple[int, str]]


def read_cub200(folder: str | os.PathLike[str], *, taxonomy: str = "traditional") -> Catalog:
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
    if taxonomy not in COLUMNS:
        raise UsageError(f"there is no taxonomy={taxonomy!r}. Choose one of {', '.join(COLUMNS)}.")
    root = next((root for root in (Path(folder), Path(folder, "CUB_200_2011")) if (root / FILES[0]).is_file()), None)
    if root is None:
        raise DataError(
            f"{folder} has no images.txt, so it is not CUB-200-2011 as unpacked. Pass the folder that holds "
            f"{', '.join(FILES)} and the folder images."
        )
    places = [root / name for name in FILES]
    images, labels, parts, classes = map(_read_numbered, places)
    for place, entries in ((places[1], labels), (places[2], parts)):
        alone = [number for number in images if number not in entries]
        alone += [number for number in entries if number not in images]
        if alone:
            raise damaged(place, f"image {alone[0]} is not both here and in {FILES[0]} ({len(alone)} such images)")
    names = tuple(name for _, name in classes.values())
    tree = _read_taxonomy(places[3], classes, COLUMNS[taxonomy])
    numbers = _look_up(places[1], labels, images, list(classes))
    paths = [f"images/{check_path(path, f'{places[0]}, line {line}')}" for line, path in images.values()]
    lines = [line for line, _ in images.values()]
    if repeated := find_repeated(paths):
        first, second = (lines[row] for row in repeated)
        raise damaged(f"{places[0]}, line {second}", f"{paths[repeated[1]]!r} is in line {first} too")
    for line, path, number in zip(lines, paths, numbers.tolist(), strict=True):
        if path.split("/")[1] != names[number]:
            raise damaged(f"{places[0]}, line {line}", f"{path!r} is not in the folder of its class {names[number]!r}")
    table = ClassTable(numbers, names)
    splits = Splits(_look_up(places[2], parts, images, ["1", "0"]), ("train", "test"))
    return Catalog(
        name="cub200" if taxonomy == "traditional" else f"cub200-{taxonomy}",
        root=root,
        paths=paths,
        splits=splits,
        tables={"labels": table},
        definitions=define_by_taxon(table, tree, splits, ranks=RANKS),
        sources=tuple(map(str, places)),
        taxonomy=tree,
    )


def paper_tasks(catalog: Catalog) -> tuple[TaskDefinition, ...]:
    """The CUB tasks of the paper: the orders but Passeriformes, which outweighs them all, and the families of that.

    With `read_cub200(folder, taxonomy="paper")` they are the paper's 25, 10 orders and 15 families; with our own
    taxonomy 24. Three of these have other species in the two: the Cuculiformes of the paper lack the Groove-billed Ani,
    its Emberizidae lack the Tree Sparrow, and its Passeridae, of one species in ours, have it.
    """
    orders = tuple(one for one in catalog.of_kind("order") if one.name != DIVIDED)
    return orders + tuple(one for one in catalog.of_kind("family") if one.group == DIVIDED)


def _read_numbered(place: Path) -> _Numbered:
    """For every number of a list its line and the text beside it; a number that comes twice is refused."""
    try:
        text = place.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(place, f"it cannot be read ({error})") from error
    found: _Numbered = {}
    for line, content in enumerate(text.splitlines(), start=1):
        number, *rest = content.split(None, 1) or [""]
        if content.strip() and (not rest or not (number.isascii() and number.isdecimal()) or number in found):
            again = f"number {number} is in line {found[number][0]} too" if number in found else ""
            raise damaged(f"{place}, line {line}", again or f"{content!r} is not a number and its value")
        if rest:
            found[number] = (line, rest[0].rstrip())
    return found


def _look_up(place: Path, entries: _Numbered, images: _Numbered, words: list[str]) -> np.ndarray:
    """(images,) the place among `words` of each image's entry."""
    codes = {word: code for code, word in enumerate(words)}
    for line, word in entries.values():
        if word not in codes:
            raise damaged(f"{place}, line {line}", f"{word!r} is not one of {quote(words, 3)}")
    return np.array([codes[entries[number][1]] for number in images], np.uint8)


def _read_taxonomy(place: Path, classes: _Numbered, columns: tuple[str, str]) -> Taxonomy:
    """The order and family of every class; a class that is not in CUB-200-2011 is refused by its line."""
    with files("task2vec.tasks").joinpath("cub200_taxonomy.csv").open(encoding="utf-8") as file:
        lineages = {row["class_dir"]: tuple(row[column] for column in columns) for row in csv.DictReader(file)}
    unknown = [(line, name) for line, name in classes.values() if name not in lineages]
    if unknown or not classes:
        where = f"{place}, line {unknown[0][0]}" if unknown else place
        raise damaged(where, f"{unknown[0][1] if unknown else 'nothing'!r} is no class of CUB-200-2011")
    tree = {name: (*ABOVE.values(), *lineages[name]) for _, name in classes.values()}
    return Taxonomy((*ABOVE, *RANKS), tree)
