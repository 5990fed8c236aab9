"""Files become a taxonomy: a table with a column per rank, or the categories of iNaturalist."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from task2vec.errors import DataError, UsageError
from task2vec.tasks.check import quote
from task2vec.tasks.json_records import keep_keys
from task2vec.tasks.table import read_columns
from task2vec.tasks.taxonomy import Taxonomy
from task2vec.tasks.taxonomy_joining import KNOWN_RANKS, order_ranks, show_lineage, two_places

INATURALIST_RANKS = ("kingdom", "phylum", "class", "order", "family", "genus")


def read_taxonomy(
    table: str | os.PathLike[str],
    class_column: str,
    *,
    ranks: Sequence[str] | Mapping[str, str] | None = None,
    root: str = "life",
) -> Taxonomy:
    r"""The taxonomy of a CSV or Parquet table with one class per row and one column per rank.

    An empty cell skips a rank. Rows may repeat, as long as a class has one lineage.

    Args:
        table: A file ending in .csv or .parquet.
        class_column: The column of classes, named as in the tasks, verbatim.
        ranks: The columns of ranks from the broadest to the finest, or {rank: column} where a column has another name
            than its rank. If not given: the columns named by a rank of biology, in its order.
        root: What to call the taxon that holds all.

    Raises:
        DataError: The table is no taxonomy: a column is missing, or a class has no name or two places.
        UsageError: No column is named by a known rank, or the ranks are not given from the broadest to the finest.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = Path(folder, "birds.csv")
        ...     _ = table.write_text("bird,family,order\nraven,Corvidae,Passeriformes\nkiwi,Apterygidae,\n")
        ...     read_taxonomy(table, "bird")
        Taxonomy(2 classes, order > family)
    """
    place = Path(table)
    columns = read_columns(place)
    chosen = _choose_ranks(place, list(columns), class_column, ranks)
    missing = [column for column in (class_column, *chosen.values()) if column not in columns]
    if missing:
        raise DataError(
            f"{place} has no column {quote(missing)}; its columns are {quote(list(columns), 20)}, and lineages would "
            "be torn. Name them with class_column and ranks."
        )
    cells = zip(columns[class_column], *(columns[column] for column in chosen.values()), strict=True)
    rows = ((columns.tell_row(row), leaf, lineage) for row, (leaf, *lineage) in enumerate(cells))
    return Taxonomy(tuple(chosen), _collect(place, rows), root)


def read_inaturalist_taxonomy(
    file: str | os.PathLike[str], *, class_field: str = "name", root: str = "life"
) -> Taxonomy:
    """The taxonomy of iNaturalist's categories, of any year: `categories.json`, or a file of annotations that has them.

    Categories with kingdom, phylum, class, order, family and genus (2018 and later) give these ranks; those that only
    tell a supercategory (2017) give that one rank. All files of a year have the same categories, so take the smallest;
    those of 2018 and 2019 have numbers for names, as in the competition, unless `categories.json` is taken.

    Args:
        file: A JSON list of categories, or an object that holds it as "categories".
        class_field: What the classes of your tasks are called by: "name", "id" (the folders of 2018 and 2019) or
            "image_dir_name" (those of 2021).
        root: What to call the taxon that holds all.

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
    place = Path(file)
    return place_categories(read_categories(place), place, class_field=class_field, root=root)


def place_categories(
    categories: Sequence[Mapping[str, object]], place: Path, *, class_field: str = "name", root: str = "life"
) -> Taxonomy:
    """The taxonomy of iNaturalist's categories, which were read from `place`."""
    ranks = tuple(rank for rank in INATURALIST_RANKS if any(rank in category for category in categories))
    ranks = ranks or ("supercategory",)
    torn = [n for n, category in enumerate(categories) if class_field not in category]
    if torn or not any(rank in category for category in categories for rank in ranks):
        lacking = f"category {torn[0]} has no field {class_field!r}" if torn else "no category tells a rank"
        raise DataError(
            f"{place}: {lacking} (the first has {quote(list(categories[0]), 20)}), so it has no place in a tree. "
            "Use the categories as published, and name the classes with class_field."
        )
    rows = (
        (f"category {n}", category[class_field], [category.get(rank) for rank in ranks])
        for n, category in enumerate(categories)
    )
    return Taxonomy(ranks, _collect(place, rows), root)


def _choose_ranks(
    place: Path, columns: list[str], class_column: str, ranks: Sequence[str] | Mapping[str, str] | None
) -> dict[str, str]:
    """The column of every rank, the broadest first."""
    if ranks is None:
        known = {column: column.strip().lower() for column in columns if column != class_column}
        pairs = [(rank, column) for rank in KNOWN_RANKS for column in known if known[column] == rank]
    elif isinstance(ranks, Mapping):
        pairs = list(ranks.items())
    else:
        pairs = [(rank, rank) for rank in ([ranks] if isinstance(ranks, str) else ranks)]
    chosen = dict(pairs)
    used = {class_column, *chosen.values()}
    if not chosen or len(used) < len(pairs) + 1:
        what = "a rank or a column is meant twice" if chosen else "no column is named by a rank"
        raise UsageError(
            f"{place}: {what}; the columns are {quote(columns, 20)}, and nothing says which holds which rank. "
            "Name them from the broadest to the finest: ranks=('order', 'family')."
        )
    order_ranks([tuple(chosen)])
    return chosen


def _collect(place: Path, rows: Iterable[tuple[str, object, Sequence[object]]]) -> dict[str, tuple[str, ...]]:
    """The lineage of every class; a class without a name or with two lineages is refused by its row."""
    lineages: dict[str, tuple[str, ...]] = {}
    for where, cell, cells in rows:
        leaf, lineage = _as_text(cell, f"{place}, {where}"), tuple(_as_taxon(c, f"{place}, {where}") for c in cells)
        if not leaf.strip():
            raise DataError(f"{place}, {where}: the class has no name, so no task can mean it. Fill it in or drop it.")
        known = lineages.setdefault(leaf, lineage)
        if known != lineage:
            raise two_places(leaf, show_lineage(known), f"{show_lineage(lineage)} in {place}, {where}")
    return lineages


def _as_taxon(cell: object, where: str) -> str:
    """The name of a taxon without spaces around it; "" for a rank that is left out."""
    name = _as_text(cell, where).strip()
    return "" if name.lower() == "nan" else name


def _as_text(cell: object, where: str) -> str:
    """Text or a whole number as text, nothing as ""; other values name nothing."""
    if cell is None or cell != cell:  # NaN, which Parquet may hold where nothing is
        return ""
    if isinstance(cell, bool) or not isinstance(cell, str | int):
        raise DataError(f"{where}: {cell!r} is neither text nor a whole number, so it names no taxon. Correct it.")
    return str(cell)


def read_categories(place: Path) -> list[dict[str, object]]:
    """The list of categories in a JSON file."""
    if not place.is_file():
        raise DataError(f"{place} is not a file, so there are no categories to read. Check the path.")
    try:
        content = json.loads(place.read_text(encoding="utf-8-sig"), object_pairs_hook=keep_keys)
    except (ValueError, OSError, RecursionError) as error:
        raise DataError(f"{place} cannot be read as JSON ({error}). Unpack it, or fetch it again.") from error
    categories = content.get("categories") if isinstance(content, dict) else content
    if not isinstance(categories, list) or not categories or not all(isinstance(c, dict) for c in categories):
        raise DataError(
            f"{place} holds no list of categories, so it tells no taxonomy. Pass iNaturalist's categories.json, or one "
            'of its files of annotations, which have them under "categories".'
        )
    return categories
