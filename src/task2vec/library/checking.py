"""Does searching by sketches find what comparing everything finds? Asked of the library itself."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from task2vec.library.comparing import READ_AT_ONCE, Known, Load, Query, scan
from task2vec.library.memory import View
from task2vec.library.spaces import read_basis
from task2vec.progress import Report

# New tasks are strangers to a basis that leaves out so many times more of them than of the older ones, and this much.
_TIMES, _MORE = 1.5, 0.05
_GOOD_RECALL = 0.98


@dataclass(frozen=True)
class SearchReport:
    """How well a space is searched.

    Attributes:
        entries: embeddings in the space.
        queries: how many of them were asked for their neighbours.
        recall: share of the true nearest that were found; 1 where all entries are compared anyway.
        seconds_exact: for one query by comparing everything (all queries share one reading of the rows).
        seconds_sketch: for one query as `nearest` answers it.
        explained: mean share of an entry's deviation that the principal directions hold, of those at the last fit.
        explained_since: of those that came later; NaN if there are none or no sketches.
        advice: what to do, in a sentence.
    """

    entries: int
    queries: int
    recall: float
    seconds_exact: float
    seconds_sketch: float
    explained: float
    explained_since: float
    advice: str


def check(
    known: Known,
    view: View,
    nearest: Callable[..., list[tuple[int, float]]],
    *,
    queries: int,
    seed: int,
    k: int,
    load: Load,
    sketch_from: int,
    report: Report,
) -> SearchReport:
    """Asks some entries for their neighbours, by sketches and by comparing everything, each without itself."""
    ids = np.concatenate([part.ids for part in view.list_places(1 << 16)] or [np.empty(0, dtype=np.int64)])
    drawn = np.random.default_rng(seed).permutation(ids)[:queries].tolist()
    loaded = {one: load(one) for one in drawn}
    asked = {one: embedding for one, embedding in loaded.items() if embedding is not None}
    begin = time.perf_counter()
    step = report("neighbours", len(view))
    truth = scan(
        known,
        view.list_places(READ_AT_ONCE),
        [Query(one) for one in asked.values()],
        k=k,
        without=[np.array([one]) for one in asked],
        load=load,
        step=step,
    )
    middle = time.perf_counter()
    found = [nearest(embedding, without={one}) for one, embedding in asked.items()]
    end, many = time.perf_counter(), max(len(asked), 1)
    basis = read_basis(known.space)
    principal = 0 if known.sketcher is None else known.sketcher.principal.shape[1]
    old, new = view.explained(principal, up_to=-1 if basis is None else basis.last)
    recall = _recall(truth, found)
    return SearchReport(
        entries=len(view),
        queries=len(asked),
        recall=recall,
        seconds_exact=(middle - begin) / many,
        seconds_sketch=(end - middle) / many,
        explained=old,
        explained_since=new,
        advice=_advise(recall, old, new, has_basis=known.sketcher is not None)
        if len(view) >= sketch_from
        else f"Nothing to do: below {sketch_from:,} embeddings all are compared.",
    )


def _recall(truth: list[list[tuple[int, float]]], found: list[list[tuple[int, float]]]) -> float:
    """The share of the true nearest that were found; one at the same distance is as good."""
    shares = []
    for true, got in zip(truth, found, strict=True):
        if true:
            names, farthest = {one for one, _ in true}, true[-1][1]
            shares.append(sum(one in names or distance <= farthest for one, distance in got) / len(true))
    return float(np.mean(shares)) if shares else 1.0


def _advise(recall: float, old: float, new: float, *, has_basis: bool) -> str:
    if not has_basis:
        return "There are no sketches, so all embeddings are compared. Make them: task2vec library check-search --refit"
    if not math.isnan(new) and 1 - new > max(_TIMES * (1 - old), 1 - old + _MORE):
        return (
            f"The basis holds {new:.0%} of what is special about the newer tasks, and {old:.0%} of the older ones: "
            "tasks have come that it does not know. Make it anew: task2vec library check-search --refit"
        )
    if recall < _GOOD_RECALL:
        mends = "task2vec library check-search --refit, or compare all: task2vec nearest --exact"
        return f"Some neighbours are missed. Try {mends}"
    return "Nothing to do."
