"""A taxonomy: the tree above the classes of tasks, and how far apart two of them lie in it.

A taxon is its whole lineage, not its name: the genus Oenanthe of the birds and the one of the parsleys stay apart, and
no tree can have a cycle. A rank may be empty, as in many real lists; the lineage then skips it. It follows that a
family given once below its order and once without an order is two taxa.

Two distances between classes a and b, both from the lowest taxon c that holds the two:

* graph: the edges from a up to c and down to b. Every rank that a lineage has adds an edge, every rank it skips none;
* ultrametric: the height of c, which its rank alone decides: 0 for a class with itself, 1 for the finest rank, 2 for
  the next, and one more than the number of ranks for the root. Ranks that a lineage skips do not change it, and
  d(a, c) <= max(d(a, b), d(b, c)).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.check import quote

KINDS = ("graph", "ultrametric")
ROOT, LEAF = "root", "class of a task"
# Rows of a matrix of distances that are worked on at a time, so that nothing but the result grows with the square.
_ROWS = 256


@dataclass(frozen=True)
class Taxon:
    """A named group at its rank; `above` holds the names from the root down to it, so that homonyms differ.

    Example:
        >>> print(Taxon("Passeriformes", "order", ("life", "Aves")))
        Passeriformes (order)
    """

    name: str
    rank: str
    above: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The name with its rank, as for a caption; the root and the classes have no rank to tell."""
        return self.name if self.rank in (ROOT, LEAF) else f"{self.name} ({self.rank})"


@dataclass(frozen=True, eq=False, repr=False)
class Taxonomy:
    """A rooted tree whose leaves are classes of tasks; see `read_taxonomy` and `read_inaturalist_taxonomy` for files.

    Attributes:
        ranks: Names of the ranks, the broadest first, without the classes themselves.
        lineages: For every class its taxon at each rank, "" where it has none.
        root: What to call the taxon that holds all.

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
        >>> print(taxonomy.lowest_common_ancestor(["raven", "wren"]))
        Passeriformes (order)
        >>> taxonomy.graph_distance("raven", "robin"), taxonomy.graph_distance("raven", "wren")
        (4, 3)
        >>> taxonomy.ultrametric("raven", "robin"), taxonomy.ultrametric("raven", "wren")
        (2, 2)
    """

    ranks: tuple[str, ...]
    lineages: Mapping[str, tuple[str, ...]]
    root: str = "life"

    def __post_init__(self):
        """Refuse what is not a tree of classes, and freeze the rest."""
        ranks = tuple(self.ranks)
        if len(set(ranks)) < len(ranks) or {"", ROOT, LEAF} & set(ranks):
            raise UsageError(
                f"the ranks {quote(ranks, 20)} cannot be told apart: each needs a name of its own, and neither "
                f"'{ROOT}' nor '{LEAF}', which are taken. Rename them."
            )
        lineages = {name: tuple(lineage) for name, lineage in self.lineages.items()}
        uneven = [name for name, lineage in lineages.items() if len(lineage) != len(ranks)]
        if uneven or not lineages:
            what = f"the lineage of {uneven[0]!r} has {len(lineages[uneven[0]])} names" if uneven else "it has no class"
            raise DataError(
                f"this is no taxonomy of {len(ranks)} ranks ({quote(ranks, 20)}): {what}. "
                'Give every class one name per rank, "" where it has none.'
            )
        object.__setattr__(self, "ranks", ranks)
        object.__setattr__(self, "lineages", lineages)

    def __len__(self) -> int:
        """The number of classes."""
        return len(self.lineages)

    def __contains__(self, name: object) -> bool:
        """Whether there is a class of this name."""
        return name in self.lineages

    def __repr__(self) -> str:
        """The taxonomy in one line."""
        return f"Taxonomy({len(self)} classes, {' > '.join(self.ranks)})"

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order given."""
        return tuple(self.lineages)

    def lineage(self, name: str) -> tuple[Taxon, ...]:
        """The taxa from the root down to the class `name`, which is the last."""
        return tuple(self._taxon(int(number)) for number in self.ancestors([name])[0] if number >= 0)

    def lowest_common_ancestor(self, names: Sequence[str]) -> Taxon:
        """The smallest taxon that holds all classes `names`; a single class is its own."""
        rows = self.ancestors(names)
        if not len(rows):
            raise UsageError("no class was named, so there is no taxon that holds them all. Name at least one.")
        return self._taxon(int(rows[0, (rows == rows[0]).all(axis=0) & (rows[0] >= 0)][-1]))

    def graph_distance(self, a: str, b: str) -> int:
        """The number of edges on the way from class `a` to class `b`."""
        return int(self.distance_matrix([a], [b])[0, 0])

    def ultrametric(self, a: str, b: str) -> int:
        """The height of the lowest taxon that holds both: 0 for one class, 1 for the finest rank, and so on up."""
        return int(self.distance_matrix([a], [b], kind="ultrametric")[0, 0])

    def distance_matrix(
        self, rows: Sequence[str], columns: Sequence[str] | None = None, *, kind: str = "graph"
    ) -> np.ndarray:
        """(rows, columns) distances between classes as int16; from `rows` to themselves if no columns are given.

        Example:
            >>> tree = Taxonomy(("order",), {"raven": ("Passeriformes",), "robin": ("Passeriformes",), "kiwi": ("",)})
            >>> tree.distance_matrix(["raven", "robin", "kiwi"]).tolist()
            [[0, 2, 3], [2, 0, 3], [3, 3, 0]]
        """
        check_kind(kind)
        a = self.ancestors(rows)
        b = a if columns is None else self.ancestors(columns)
        found = np.empty((len(a), len(b)), dtype=np.int16)
        for start in range(0, len(a), _ROWS):
            some = a[start : start + _ROWS]
            found[start : start + _ROWS] = self._edges(some, b) if kind == "graph" else self._heights(some, b)
        return found

    def ancestors(self, names: Sequence[str]) -> np.ndarray:
        """(names, ranks + 2) the number of each class's taxon at the root, at every rank and its own; -1 for none."""
        if isinstance(names, str):
            raise UsageError(f"one name, {names!r}, was given where a list of classes is expected. Pass [{names!r}].")
        unknown = [name for name in dict.fromkeys(names) if name not in self._rows]
        if unknown:
            raise DataError(
                f"the taxonomy ({self!r}) does not know {len(unknown)} of {len(names)} classes: {quote(unknown)}, so "
                "their distances are not defined. Its classes look like "
                f"{quote(self.classes[:3])}: read it by the column that holds the names of your classes, or add them."
            )
        return self._tree.numbers[[self._rows[name] for name in names]]

    @property
    def depths(self) -> np.ndarray:
        """(taxa,) the number of edges between the root and every taxon, by its number."""
        return self._tree.depths

    @property
    def heights(self) -> np.ndarray:
        """(taxa,) the height of every taxon by its rank, by its number: 0 for a class, 1 for the finest rank."""
        return len(self.ranks) + 1 - self._tree.levels

    @staticmethod
    def join(
        parts: Mapping[str, "Taxonomy"],
        *,
        above: Mapping[str, Mapping[str, str] | Sequence[str]] | None = None,
        root: str = "life",
    ) -> "Taxonomy":
        """One taxonomy of several, below a common root.

        Ranks of one name are one rank, so that heights agree. A class that several parts know must have the same
        lineage in all; it is then one class.

        Args:
            parts: The taxonomies by a name of your choice, which serves to tell them apart here.
            above: For parts that begin below others: the taxa above them, as {"kingdom": "Animalia", ...}, or as names
                alone, which then stand for kingdom, phylum, class, order and so on.
            root: What to call the taxon that holds all.

        Raises:
            DataError: A class has two places.
            UsageError: Nothing says which of two ranks is the broader, or two parts say the opposite.

        Example:
            >>> birds = Taxonomy(("order",), {"raven": ("Passeriformes",)})
            >>> flowers = Taxonomy(("kingdom", "order"), {"rose": ("Plantae", "Rosales")})
            >>> both = Taxonomy.join(
            ...     {"birds": birds, "flowers": flowers}, above={"birds": ("Animalia", "Chordata", "Aves")}
            ... )
            >>> both
            Taxonomy(2 classes, kingdom > phylum > class > order)
            >>> both.ultrametric("raven", "rose"), both.graph_distance("raven", "rose")
            (5, 8)
        """
        from task2vec.tasks.taxonomy_joining import join_lineages

        ranks, lineages = join_lineages(parts, above or {})
        return Taxonomy(ranks, lineages, root)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.lineages)}

    @cached_property
    def _tree(self) -> "_Tree":
        return _grow(self.lineages)

    def _taxon(self, number: int) -> Taxon:
        """The taxon of that number, with the names above it."""
        path = [number]
        while path[-1]:
            path.append(self._tree.parents[path[-1]])
        names = [self._tree.names[n] for n in path[-2::-1]]
        rank = (ROOT, *self.ranks, LEAF)[self._tree.levels[number]]
        return Taxon(names[-1] if names else self.root, rank, (self.root, *names[:-1]) if names else ())

    def _edges(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """depth(a) + depth(b) - 2 depth(lowest common taxon), whose depth is the number of taxa that they share."""
        shared = np.zeros((len(a), len(b)), dtype=np.int16)
        for mine, theirs in zip(a.T[1:], b.T[1:], strict=True):
            shared += (mine[:, None] == theirs) & (mine >= 0)[:, None]
        return self.depths[a[:, -1], None] + self.depths[b[:, -1]] - 2 * shared

    def _heights(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The height of the finest level at which the two have the same taxon."""
        found = np.full((len(a), len(b)), len(self.ranks) + 1, dtype=np.int16)
        for level, (mine, theirs) in enumerate(zip(a.T, b.T, strict=True)):
            found[(mine[:, None] == theirs) & (mine >= 0)[:, None]] = len(self.ranks) + 1 - level
        return found


def check_kind(kind: str) -> None:
    """Refuses a distance that no tree has."""
    if kind not in KINDS:
        raise UsageError(f"kind={kind!r} is no distance in a tree. Choose one of {', '.join(KINDS)}.")


@dataclass(frozen=True)
class _Tree:
    """Numbered taxa, 0 being the root: those of every class by level, and the parent, level, depth and name of each."""

    numbers: np.ndarray
    parents: list[int]
    levels: np.ndarray
    depths: np.ndarray
    names: list[str]


def _grow(lineages: Mapping[str, tuple[str, ...]]) -> _Tree:
    """The tree of the lineages: a taxon is known by the number of its parent, its level and its name."""
    known: dict[tuple[int, int, str], int] = {}
    parents, levels, depths, names = [0], [0], [0], [""]
    rows = []
    for leaf, lineage in lineages.items():
        row, at = [0], 0
        for level, name in enumerate((*lineage, leaf), start=1):
            if not name and level <= len(lineage):
                row.append(-1)
                continue
            key = (at, level, name)
            if key not in known:
                known[key] = len(parents)
                parents.append(at)
                levels.append(level)
                depths.append(depths[at] + 1)
                names.append(name)
            at = known[key]
            row.append(at)
        rows.append(row)
    return _Tree(np.array(rows, np.int32), parents, np.array(levels, np.int16), np.array(depths, np.int16), names)
