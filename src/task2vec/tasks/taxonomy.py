"""A taxonomy: the tree above the classes of tasks, and the distances between classes in it.

A taxon is its whole lineage, not its name: the genus Oenanthe of the birds and that of the parsleys stay apart, and no
tree can have a cycle. A rank may be empty, as in many real lists; the lineage then skips it. It follows that a family
given once below its order and once without an order is two taxa.

Two distances between classes a and b, both from the lowest taxon c that contains both:

* graph: the edges from a up to c and down to b. Every rank that a lineage has adds an edge, every rank it skips none;
* ultrametric: the height of c, which depends on its rank alone: 0 for a class with itself, 1 for the finest rank, 2 for
  the next, and one more than the number of ranks for the root. Ranks that a lineage skips do not change it, and
  d(a, c) <= max(d(a, b), d(b, c)).
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.columns import read_columns
from task2vec.text import quote

# The ranks of biology that lists of species use, the broadest first.
KNOWN_RANKS = (
    "domain", "kingdom", "subkingdom", "phylum", "subphylum", "superclass", "class", "subclass", "infraclass",
    "superorder", "order", "suborder", "infraorder", "superfamily", "family", "subfamily", "tribe", "genus", "subgenus",
    "species", "subspecies",
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Taxonomy:
    """A rooted tree whose leaves are classes of tasks; see `read_taxonomy` for files.

    Attributes:
        ranks: Names of the ranks, the broadest first, without the classes themselves.
        lineages: For every class its taxon at each rank, "" where it has none.
        root: The name of the taxon that contains all.

    Example:
        >>> birds = {
        ...     "raven": ("Passeriformes", "Corvidae"),
        ...     "robin": ("Passeriformes", "Turdidae"),
        ...     "wren": ("Passeriformes", ""),
        ...     "kiwi": ("Apterygiformes", "Apterygidae"),
        ... }
        >>> taxonomy = Taxonomy(("order", "family"), birds)
        >>> taxonomy
        Taxonomy(4 classes, order > family)
        >>> taxonomy.lineage("wren")
        ('life', 'Passeriformes', 'wren')
        >>> taxonomy.group(["raven", "kiwi", "wren"], "order")
        {('Passeriformes',): [0, 2], ('Apterygiformes',): [1]}
    """

    ranks: tuple[str, ...]
    lineages: Mapping[str, tuple[str, ...]]
    root: str = "life"

    def __post_init__(self):
        """Refuse lineages that do not form a tree of classes, and freeze the others."""
        ranks = tuple(self.ranks)
        lineages = {name: tuple(lineage) for name, lineage in self.lineages.items()}
        uneven = [name for name, lineage in lineages.items() if len(lineage) != len(ranks)]
        if uneven or not lineages or len({*ranks, ""}) <= len(ranks):
            raise DataError(
                f"no taxonomy has the ranks {quote(ranks, 20)} and {len(lineages)} classes, {len(uneven)} of them with "
                f"more or fewer names ({quote(uneven)}). Name every rank once, and give every class one name per rank, "
                "'' where it has none."
            )
        object.__setattr__(self, "ranks", ranks)
        object.__setattr__(self, "lineages", lineages)

    def __len__(self) -> int:
        """The number of classes."""
        return len(self.lineages)

    def __repr__(self) -> str:
        """The taxonomy in one line."""
        return f"Taxonomy({len(self)} classes, {' > '.join(self.ranks)})"

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order given."""
        return tuple(self.lineages)

    def lineage(self, name: str) -> tuple[str, ...]:
        """The names of the taxa from the root down to the class `name`, which is the last."""
        self.ancestors([name])
        return (self.root, *filter(None, self.lineages[name]), name)

    def group(self, names: Sequence[str], rank: str) -> dict[tuple[str, ...], list[int]]:
        """The indices in `names` of the classes of every taxon of a rank.

        A taxon is given by its lineage, down from the broadest rank; () holds the classes without a taxon of the rank.
        """
        if rank not in self.ranks:
            raise UsageError(f"level={rank!r} is not a rank of this taxonomy. Choose one of {quote(self.ranks, 20)}.")
        self.ancestors(names)  # names all unknown classes at once
        end = self.ranks.index(rank) + 1
        members: dict[tuple[str, ...], list[int]] = {}
        for index, name in enumerate(names):
            lineage = self.lineages[name][:end]
            members.setdefault(lineage if lineage[-1] else (), []).append(index)
        return members

    def ancestors(self, names: Sequence[str]) -> np.ndarray:
        """(names, ranks + 2) the number of each class's taxon at the root, at every rank and its own; -1 for none."""
        if isinstance(names, str):
            raise UsageError(f"one name, {names!r}, was given where a list of classes is expected. Pass [{names!r}].")
        unknown = [name for name in dict.fromkeys(names) if name not in self.lineages]
        if unknown:
            raise DataError(
                f"{len(unknown)} of {len(names)} classes are not in the taxonomy ({self!r}): {quote(unknown)}. Its "
                f"classes look like {quote(self.classes[:3])}: read it by the column that holds the names of your "
                "classes, or add them."
            )
        return np.array([self._taxa[0][name] for name in names], np.int32).reshape(-1, len(self.ranks) + 2)

    @property
    def depths(self) -> np.ndarray:
        """(taxa,) the number of edges between the root and every taxon, by its number."""
        return np.array(self._taxa[2], np.int16)

    @property
    def heights(self) -> np.ndarray:
        """(taxa,) the height of every taxon by its rank, by its number: 0 for a class, 1 for the finest rank."""
        return len(self.ranks) + 1 - np.array(self._taxa[1], np.int16)

    @staticmethod
    def join(parts: Mapping[str, "Taxonomy"], *, above: Mapping[str, Mapping[str, str]] | None = None) -> "Taxonomy":
        """One taxonomy of several, below a common root.

        Ranks of one name are one rank, so that heights agree; those that biology does not know are the finest. A class
        of several parts must have the same lineage in all; it is then one class.

        Args:
            parts: The taxonomies by a name of your choice, which identifies them here.
            above: For parts that begin below others: the taxa above them by rank, as {"kingdom": "Animalia", ...}.

        Raises:
            DataError: A class has two places.
            UsageError: The ranks of a part are not given from the broadest to the finest, each once.

        Example:
            >>> birds = Taxonomy(("order",), {"raven": ("Passeriformes",)})
            >>> flowers = Taxonomy(("kingdom", "order"), {"rose": ("Plantae", "Rosales")})
            >>> above = {"birds": {"kingdom": "Animalia", "phylum": "Chordata", "class": "Aves"}}
            >>> Taxonomy.join({"birds": birds, "flowers": flowers}, above=above)
            Taxonomy(2 classes, kingdom > phylum > class > order)
        """
        above = above or {}
        if not parts or any(name not in parts for name in above):
            raise UsageError(f"cannot join {quote(list(parts))} with taxa above {quote(list(above))}. Use their names.")
        prefixes = {name: {rank: taxon for rank, taxon in above.get(name, {}).items() if taxon} for name in parts}
        chains = {name: (*prefixes[name], *taxonomy.ranks) for name, taxonomy in parts.items()}
        ranks = order_ranks(chains.values())
        known: dict[str, tuple[str, tuple[str, ...]]] = {}
        for name, taxonomy in parts.items():
            for leaf, names in taxonomy.lineages.items():
                taxa = dict(zip(chains[name], (*prefixes[name].values(), *names), strict=True))
                lineage = tuple(taxa.get(rank, "") for rank in ranks)
                first_name, first = known.setdefault(leaf, (name, lineage))
                if first != lineage:
                    raise _two_lineages(leaf, f"{first_name}: {_show(first)}", f"{name}: {_show(lineage)}")
        return Taxonomy(ranks, {leaf: lineage for leaf, (_, lineage) in known.items()})

    @cached_property
    def _taxa(self) -> tuple[dict[str, list[int]], list[int], list[int]]:
        """The numbers of every class's taxa by level, 0 being the root, and the level and the depth of each taxon.

        A taxon is identified by the number of its parent, its level and its name.
        """
        known: dict[tuple[int, int, str], int] = {}
        levels, depths = [0], [0]
        rows: dict[str, list[int]] = {}
        for leaf, lineage in self.lineages.items():
            rows[leaf] = [0]
            parent = 0
            for level, name in enumerate((*lineage, leaf), start=1):
                number = -1
                if name or level > len(lineage):
                    number = known.setdefault((parent, level, name), len(levels))
                    if number == len(levels):
                        levels.append(level)
                        depths.append(depths[parent] + 1)
                    parent = number
                rows[leaf].append(number)
        return rows, levels, depths


def order_ranks(chains: Collection[Sequence[str]]) -> tuple[str, ...]:
    """All ranks, the broadest first: those of biology in its order, then others as they come; no chain may differ."""
    present = dict.fromkeys(rank for chain in chains for rank in chain)
    ranks = sorted(present, key=lambda rank: (*KNOWN_RANKS, rank).index(rank))
    for chain in chains:
        if [rank for rank in ranks if rank in chain] != list(chain):
            raise UsageError(
                f"the ranks {' > '.join(chain)} are not given once each, from the broadest to the finest, with ranks "
                f"unknown to biology last, as in {' > '.join(ranks)}, and heights depend on it. Order them, or give "
                "them other names: ranks={'order': 'order_2011'} when reading."
            )
    return tuple(ranks)


def read_taxonomy(
    table: str | os.PathLike[str], class_column: str, *, ranks: Sequence[str] | Mapping[str, str] | None = None
) -> Taxonomy:
    r"""The taxonomy of a CSV or Parquet table with one class per row and one column per rank.

    An empty cell skips a rank. Rows may repeat, as long as a class has one lineage.

    Args:
        table: A file ending in .csv or .parquet.
        class_column: The column of classes, named as in the tasks, verbatim.
        ranks: The columns of ranks from the broadest to the finest, or {rank: column} where a column has another name
            than its rank. If not given: the columns named by a rank of biology, in its order.

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
    columns = read_columns(Path(table))
    if ranks is None:
        others = [column for column in columns if column != class_column]
        pairs = [(rank, column) for rank in KNOWN_RANKS for column in others if column.strip().lower() == rank]
    elif isinstance(ranks, Mapping):
        pairs = list(ranks.items())
    else:
        pairs = [(rank, rank) for rank in ([ranks] if isinstance(ranks, str) else ranks)]
    chosen = dict(pairs)
    available = f"the columns are {quote(list(columns), 20)}"
    if not chosen or len({class_column, *chosen.values()}) < len(pairs) + 1:
        problem = "a rank or a column is named twice" if chosen else "no column is named by a rank"
        raise UsageError(
            f"{table}: {problem}; {available}. Name the ranks from the broadest to the finest: ranks=('order', "
            "'family')."
        )
    order_ranks([[rank for rank in chosen if rank in KNOWN_RANKS]])
    if missing := [column for column in (class_column, *chosen.values()) if column not in columns]:
        raise DataError(f"{table} has no column {quote(missing)}; {available}. Name them with class_column and ranks.")
    cells = zip(columns[class_column], *(columns[column] for column in chosen.values()), strict=True)
    lineages: dict[str, tuple[str, ...]] = {}
    for row, (leaf, *taxa) in enumerate(cells):
        lineage = tuple("" if taxon is None else str(taxon).strip() for taxon in taxa)
        lineage = tuple("" if taxon.lower() == "nan" else taxon for taxon in lineage)
        if leaf is None or not str(leaf).strip():
            raise DataError(f"{columns.locate(row)}: the class has no name. Fill it in or drop it.")
        known = lineages.setdefault(str(leaf), lineage)
        if known != lineage:
            raise _two_lineages(str(leaf), _show(known), f"{_show(lineage)} in {columns.locate(row)}")
    return Taxonomy(tuple(chosen), lineages)


def _show(names: Iterable[str]) -> str:
    """A lineage on one line, without the ranks it skips."""
    return " > ".join(filter(None, names)) or "(directly below the root)"


def _two_lineages(leaf: str, first: str, second: str) -> DataError:
    """The error for a class that has two places in a tree."""
    return DataError(
        f"class {leaf!r} has two places in the taxonomy ({first}; {second}), so its distances are undefined. Correct "
        "one, or name the classes by a column that distinguishes them."
    )
