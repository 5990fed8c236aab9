"""CUB-200-2011 as it is unpacked becomes a catalogue of tasks: birds by order and by family.

The dataset names species and nothing above them. The table of orders and families (`cub200_taxonomy.csv`) is our own
compilation: orders as before cormorants and frigatebirds left the pelicans, families as before 2009. It has 12 orders,
11 of them with more than one species, and 21 families of Passeriformes, 14 of them with more than one species.

The paper counts 134 Passeriformes in 22 families, 15 of them usable, and no taxonomy that we know of gives that. Two
species explain its numbers exactly: the Groove-billed Ani, a cuckoo, filed under Passeriformes in a family of its own,
and the Tree Sparrow read as the Eurasian one, which makes the Passeridae two. The table holds these readings in columns
of their own, so that `taxonomy="paper"` gives the paper's 25 tasks, where our own gives 24.
"""

import csv
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.catalogue import Catalogue
from task2vec.tasks.check import quote
from task2vec.tasks.definitions import Splits, TaskDefinition, define_by_taxon
from task2vec.tasks.label_tables import ClassTable
from task2vec.tasks.paths import Paths, check_path
from task2vec.tasks.taxonomy import Taxonomy

FILES = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")
RANKS = ("order", "family")
# What stands above all birds, under the names that iNaturalist uses, so that the two trees join.
ABOVE = {"kingdom": "Animalia", "phylum": "Chordata", "class": "Aves"}
# The columns of the shipped table, by the taxonomy that is asked for.
COLUMNS = {"traditional": ("order", "family"), "paper": ("order_paper", "family_paper")}
SPLITS = {"1": "train", "0": "test"}
DIVIDED = "Passeriformes"

Numbered = dict[str, tuple[int, str]]


def read_cub200(folder: str | os.PathLike[str], *, taxonomy: str = "traditional") -> Catalogue:
    r"""The catalogue of CUB-200-2011: tasks by order and by family, with the published splits "train" and "test".

    Args:
        folder: What the archive unpacks to: the folder with images.txt, image_class_labels.txt, train_test_split.txt,
            classes.txt and images, or the one around it.
        taxonomy: "traditional", or "paper" for the two species that the paper files elsewhere (see the module). The
            catalogue is then called "cub200-paper", since three of its tasks are others.

    Raises:
        DataError: A list is missing or torn, two lists disagree, or a class is none of CUB-200-2011.

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
        ...     catalogue = read_cub200(folder)
        >>> catalogue
        Catalogue(cub200, 3 images, train and test, tasks: 1 order, 1 family)
        >>> catalogue.find("Corvidae")
        TaskDefinition(Corvidae, family, 3 classes, train 2, test 1)
    """
    if taxonomy not in COLUMNS:
        raise UsageError(f"taxonomy={taxonomy!r} is none that we ship. Choose one of {', '.join(COLUMNS)}.")
    root = _find_root(Path(folder))
    images, labels, parts, classes = (_read_numbered(root / name) for name in FILES)
    for name, entries in zip(FILES[1:3], (labels, parts), strict=True):
        _check_same(root / FILES[0], images, root / name, entries)
    names = [name for _, name in classes.values()]
    tree = _read_tree(root / FILES[3], classes, COLUMNS[taxonomy])
    table = ClassTable(_find_classes(root, images, labels, classes), tuple(names))
    codes = {word: code for code, word in enumerate(SPLITS)}
    splits = Splits(_look_up(root / FILES[2], parts, images, codes, "1 (train) or 0 (test)"), tuple(SPLITS.values()))
    return Catalogue(
        name="cub200" if taxonomy == "traditional" else f"cub200-{taxonomy}",
        root=root,
        paths=_find_paths(root / FILES[0], images),
        splits=splits,
        tables={"labels": table},
        definitions=define_by_taxon(table, tree, splits, ranks=RANKS),
        sources=tuple(str(root / name) for name in FILES),
        taxonomy=tree,
    )


def paper_tasks(catalogue: Catalogue) -> tuple[TaskDefinition, ...]:
    """The CUB tasks of the paper: the orders but Passeriformes, which outweighs them all, and the families of that.

    With `read_cub200(folder, taxonomy="paper")` they are the paper's 25, 10 orders and 15 families; with our own
    taxonomy 24. Three of these have other species in the two: the Cuculiformes of the paper lack the Groove-billed Ani,
    its Emberizidae lack the Tree Sparrow, and its Passeridae, of one species in ours, have it.
    """
    orders = tuple(one for one in catalogue.of_kind("order") if one.name != DIVIDED)
    return orders + tuple(one for one in catalogue.of_kind("family") if one.group == DIVIDED)


def _find_root(folder: Path) -> Path:
    """The folder that holds the lists: the one given, or CUB_200_2011 in it, as the archive unpacks."""
    for root in (folder, folder / "CUB_200_2011"):
        if (root / FILES[0]).is_file():
            return root
    raise DataError(
        f"{folder} has no images.txt, so it is not CUB-200-2011 as unpacked. Pass the folder that holds "
        f"{', '.join(FILES)} and the folder images."
    )


def _read_numbered(place: Path) -> Numbered:
    """For every number of a list its line and what stands beside it; a number that comes twice is refused."""
    try:
        text = place.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{place} cannot be read ({error}). Unpack CUB-200-2011 again.") from error
    found: Numbered = {}
    for line, content in enumerate(text.splitlines(), start=1):
        words = content.split(None, 1)
        if words and (len(words) < 2 or not (words[0].isascii() and words[0].isdecimal())):
            raise DataError(
                f"{place}, line {line}: {content!r} is not a number and what belongs to it, so an image or a class is "
                "unknown. Unpack CUB-200-2011 again."
            )
        if words and words[0] in found:
            raise DataError(
                f"{place}, line {line}: number {words[0]} stands in line {found[words[0]][0]} already, so it is "
                "ambiguous which is meant. Drop one."
            )
        if words:
            found[words[0]] = (line, words[1].rstrip())
    return found


def _check_same(place: Path, images: Numbered, other: Path, entries: Numbered) -> None:
    """Raise `DataError` unless two lists are about the same images."""
    for here, mine, there, theirs in ((place, images, other, entries), (other, entries, place, images)):
        alone = [number for number in mine if number not in theirs]
        if alone:
            raise DataError(
                f"{here}, line {mine[alone[0]][0]}: image {alone[0]} is not in {there}, and {len(alone)} such images "
                "would have no path, class or split. Unpack CUB-200-2011 again."
            )


def _find_paths(place: Path, images: Numbered) -> Paths:
    """The path of every image below the root; one that leaves it or comes twice is refused by its line."""
    paths = Paths.pack(f"images/{check_path(path, f'{place}, line {line}')}" for line, path in images.values())
    again = paths.find_repeated()
    if again:
        lines = [line for line, _ in images.values()]
        raise DataError(
            f"{place}, line {lines[again[1]]}: {paths[again[1]]!r} stands in line {lines[again[0]]} already, under "
            "another number: the image would count double. Drop one."
        )
    return paths


def _look_up(place: Path, entries: Numbered, images: Numbered, codes: Mapping[str, int], expected: str) -> np.ndarray:
    """(images,) the code of what a list says of each image; anything without a code is refused by its line."""
    for line, word in entries.values():
        if word not in codes:
            raise DataError(
                f"{place}, line {line}: {word!r} is not {expected}, and guessing would change the tasks. "
                "Use the file as published."
            )
    return np.array([codes[entries[number][1]] for number in images], np.uint8)


def _find_classes(root: Path, images: Numbered, labels: Numbered, classes: Numbered) -> np.ndarray:
    """(images,) the class of every image as a place in classes.txt, checked against the folder that it lies in."""
    places = {number: place for place, number in enumerate(classes)}
    found = _look_up(root / FILES[1], labels, images, places, "the number of a class of classes.txt")
    names = [name for _, name in classes.values()]
    for (line, path), place in zip(images.values(), found.tolist(), strict=True):
        if path.split("/")[0] != names[place]:
            raise DataError(
                f"{root / FILES[0]}, line {line}: {path!r} lies in another folder than its class {names[place]!r} by "
                f"{FILES[1]}, so one of the two is wrong. Unpack CUB-200-2011 again."
            )
    return found


def _read_tree(place: Path, classes: Numbered, columns: tuple[str, str]) -> Taxonomy:
    """The place of every class in the shipped table; a class that is not in it is refused by its line."""
    with files("task2vec.tasks").joinpath("cub200_taxonomy.csv").open(encoding="utf-8") as file:
        lineages = {row["class_dir"]: tuple(row[column] for column in columns) for row in csv.DictReader(file)}
    unknown = [(line, name) for line, name in classes.values() if name not in lineages]
    if unknown or not classes:
        where = f", line {unknown[0][0]}" if unknown else ""
        raise DataError(
            f"{place}{where}: {quote([name for _, name in unknown]) or 'nothing'} is no class of CUB-200-2011, so its "
            "order and family are unknown. Use the file as published; birds of your own are a folder of class folders."
        )
    tree = {name: (*ABOVE.values(), *lineages[name]) for _, name in classes.values()}
    return Taxonomy((*ABOVE, *RANKS), tree)
