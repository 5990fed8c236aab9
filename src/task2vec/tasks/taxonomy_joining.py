"""Several taxonomies become one: their ranks in one order, their classes in one tree."""

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import TYPE_CHECKING

from task2vec.errors import DataError, UsageError
from task2vec.tasks.check import quote

if TYPE_CHECKING:
    from task2vec.tasks.taxonomy import Taxonomy

# The ranks of biology that lists of species use, the broadest first.
KNOWN_RANKS = (
    "domain",
    "kingdom",
    "subkingdom",
    "phylum",
    "subphylum",
    "superclass",
    "class",
    "subclass",
    "infraclass",
    "superorder",
    "order",
    "suborder",
    "infraorder",
    "superfamily",
    "family",
    "subfamily",
    "tribe",
    "genus",
    "subgenus",
    "species",
    "subspecies",
)
MAIN_RANKS = ("kingdom", "phylum", "class", "order", "family", "genus", "species")

Lineages = dict[str, tuple[str, ...]]


def join_lineages(
    parts: Mapping[str, "Taxonomy"], above: Mapping[str, Mapping[str, str] | Sequence[str]]
) -> tuple[tuple[str, ...], Lineages]:
    """The ranks and lineages of all parts together; see `Taxonomy.join`."""
    strangers = [name for name in above if name not in parts]
    if strangers or not parts:
        raise UsageError(
            f"taxa were given above {quote(strangers)}, and the parts are {quote(list(parts))}. Use the names of parts."
            if parts
            else "there are no taxonomies to join. Pass them by name: {'cub200': birds, 'flowers102': flowers}."
        )
    paths = {name: _name_ranks(name, above.get(name, {})) for name in parts}
    chains = {name: (*paths[name], *part.ranks) for name, part in parts.items()}
    for name, chain in chains.items():
        _check_chain(name, chain)
    ranks = order_ranks(chains.values())
    places: dict[str, tuple[str, tuple[str, ...]]] = {}
    for name, part in parts.items():
        for leaf, lineage in part.lineages.items():
            given = dict(zip(chains[name], (*paths[name].values(), *lineage), strict=True))
            place = tuple(given.get(rank, "") for rank in ranks)
            first, known = places.setdefault(leaf, (name, place))
            if known != place:
                raise two_places(leaf, f"{first}: {show_lineage(known)}", f"{name}: {show_lineage(place)}")
    return ranks, {leaf: place for leaf, (_, place) in places.items()}


def order_ranks(chains: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """All ranks, the broadest first, in the one order that the chains and the known ranks leave open."""
    chains = [tuple(chain) for chain in chains]
    present = dict.fromkeys(rank for chain in chains for rank in chain)
    graph: dict[str, set[str]] = {rank: set() for rank in present}
    for chain in [*chains, tuple(rank for rank in KNOWN_RANKS if rank in present)]:
        for broader, finer in pairwise(chain):
            graph[finer].add(broader)
    sorter = TopologicalSorter(graph)
    try:
        sorter.prepare()
    except CycleError as error:
        raise UsageError(
            f"the ranks are given in two opposite orders ({' > '.join(reversed(error.args[1]))}), so none is the "
            "broader. Name ranks from the broadest to the finest everywhere."
        ) from None
    ranks: list[str] = []
    while sorter.is_active():
        ready = sorter.get_ready()
        if len(ready) > 1:
            raise UsageError(
                f"nothing says which of the ranks {quote(sorted(ready))} is the broadest, and heights depend on it. "
                "Give ranks that mean the same one name, ranks={'order': 'order_2011'} when reading, or name in "
                "above= the taxa of the other ranks."
            )
        ranks.extend(ready)
        sorter.done(*ready)
    return tuple(ranks)


def show_lineage(names: Iterable[str]) -> str:
    """A lineage on one line, without the ranks it skips."""
    return " > ".join(filter(None, names)) or "(directly below the root)"


def two_places(leaf: str, first: str, second: str) -> DataError:
    """The error for a class that stands in two places of a tree."""
    return DataError(
        f"class {leaf!r} has two places in the taxonomy ({first}; {second}), so its distances are not defined. "
        "Correct one, or name the classes by a column that tells them apart."
    )


def _name_ranks(name: str, above: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """The taxa above a part by their rank."""
    if isinstance(above, str) or (not isinstance(above, Mapping) and len(above) > len(MAIN_RANKS)):
        raise UsageError(
            f"above {name!r} stands {above!r}, which names no taxa by rank. Pass {{'kingdom': 'Animalia', ...}}."
        )
    path = dict(above) if isinstance(above, Mapping) else dict(zip(MAIN_RANKS, above, strict=False))
    return {rank: taxon for rank, taxon in path.items() if taxon}


def _check_chain(name: str, chain: tuple[str, ...]) -> None:
    """Refuses taxa above a part at a rank that it has itself."""
    twice = [rank for rank in dict.fromkeys(chain) if chain.count(rank) > 1]
    if twice:
        raise UsageError(
            f"{name!r} has the rank {quote(twice)} itself, so a taxon above it cannot have it too. Leave it out of "
            "above=."
        )
