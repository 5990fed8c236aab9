"""The layers of a probe gathered into the few stages that a person wants to see."""

from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from task2vec.embedding import Embedding

MOST_STAGES, FEWEST_STAGES = 14, 4


def summarize_stages(embedding: "Embedding") -> list[dict[str, Any]]:
    """For every stage in order: its name, its filters, its share of the norm, and the mean Fisher of its filters."""
    norm = float(embedding.fisher.sum())
    rows, start = [], 0
    for name, filters in group_layers([(layer.name, layer.filters) for layer in embedding.layers]):
        total = float(embedding.fisher[start : start + filters].sum())
        share = total / norm if norm > 0 else 0.0
        rows.append({"stage": name, "filters": filters, "share": share, "mean_fisher": total / filters})
        start += filters
    return rows


def group_layers(layers: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Consecutive layers gathered by the longest common beginnings of their names that give few enough stages.

    Networks whose names say nothing (a long flat `features.0` to `features.52`) are cut into equal runs.

    Example:
        >>> group_layers([("stem", 8), ("blocks.0.a", 4), ("blocks.0.b", 4), ("blocks.1.a", 6), ("neck", 2)])
        [('stem', 8), ('blocks.0.a', 4), ('blocks.0.b', 4), ('blocks.1.a', 6), ('neck', 2)]
    """
    deepest = max(name.count(".") for name, _ in layers) + 1
    depth = next((d for d in range(deepest, 0, -1) if len(_split_at(layers, d)) <= MOST_STAGES), 0)
    runs = _split_at(layers, depth)
    names = [".".join(run[0][0].split(".")[:depth]) for run in runs]
    if len(runs) < FEWEST_STAGES and len(layers) >= 2 * FEWEST_STAGES:
        length = -(-len(layers) // (MOST_STAGES - FEWEST_STAGES))
        runs = [layers[first : first + length] for first in range(0, len(layers), length)]
        names = [f"{run[0][0]} … {run[-1][0]}" if len(run) > 1 else run[0][0] for run in runs]
    return [(name, sum(filters for _, filters in run)) for name, run in zip(names, runs, strict=True)]


def _split_at(layers: list[tuple[str, int]], depth: int) -> list[list[tuple[str, int]]]:
    """Runs of layers whose names agree in their first `depth` parts."""
    return [list(run) for _, run in groupby(layers, key=lambda layer: layer[0].split(".")[:depth])]
