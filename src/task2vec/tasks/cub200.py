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
from importlib.resources import files
from pathlib import Path

import numpy as np

from task2vec.errors import UsageError
from task2vec.tasks import annotations
from task2vec.tasks.catalog import Catalog, LabelTable, define_by_taxon
from task2vec.tasks.images import StrPath
from task2vec.tasks.taxonomy import Taxonomy

FILES = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")
RANKS = ("order", "family")
# The taxa above all birds, under the names that iNaturalist uses, so that the two trees can be joined.
ABOVE = {"kingdom": "Animalia", "phylum": "Chordata", "class": "Aves"}
# The columns of the table of orders and families, by taxonomy.
COLUMNS = {"traditional": ("order", "family"), "paper": ("order_paper", "family_paper")}


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
    if taxonomy not in COLUMNS:
        raise UsageError(f"there is no taxonomy={taxonomy!r}. Choose one of {', '.join(COLUMNS)}.")
    images_list = annotations.find_file(Path(folder), FILES[0], f"CUB_200_2011/{FILES[0]}", dataset="CUB-200-2011")
    places = [images_list.with_name(name) for name in FILES]
    images, labels, parts, classes = (annotations.index_lines(annotations.read_lines(place)) for place in places)
    names = tuple(name for _, name in classes.values())
    tree = _read_taxonomy(classes, COLUMNS[taxonomy])
    numbers = annotations.encode_values(places[1], labels, images, list(classes))
    for (where, path), number in zip(images.values(), numbers.tolist(), strict=True):
        if annotations.check_path(path, where).split("/")[0] != names[number]:
            raise annotations.damaged(where, f"{path!r} is not in the folder of its class {names[number]!r}")
    table = LabelTable(numbers, names)
    is_train = annotations.encode_values(places[2], parts, images, ["0", "1"])
    splits = {"train": np.flatnonzero(is_train == 1), "test": np.flatnonzero(is_train == 0)}
    definitions, sources = define_by_taxon(table, tree, splits, ranks=RANKS), tuple(map(str, places))
    name, root = "cub200" if taxonomy == "traditional" else f"cub200-{taxonomy}", images_list.parent
    paths = [f"images/{path}" for _, path in images.values()]
    return Catalog(name, root, paths, splits, {"labels": table}, definitions, sources=sources, taxonomy=tree)


def _read_taxonomy(classes: dict[str, tuple[str, str]], columns: tuple[str, str]) -> Taxonomy:
    """The order and family of every class; a class that is not in CUB-200-2011 is refused by its line."""
    with files("task2vec.tasks").joinpath("cub200_taxonomy.csv").open(encoding="utf-8") as file:
        lineages = {row["class_dir"]: tuple(row[column] for column in columns) for row in csv.DictReader(file)}
    for where, name in classes.values():
        if name not in lineages:
            raise annotations.damaged(where, f"{name!r} is no class of CUB-200-2011")
    return Taxonomy((*ABOVE, *RANKS), {name: (*ABOVE.values(), *lineages[name]) for _, name in classes.values()})
