"""How well distances between tasks agree with a taxonomy, and with labels: pure functions of matrices.

Pairs of tasks are not independent of one another, tasks are. So the distribution under chance comes from permuting
tasks (Mantel 1967), never pairs, and intervals from drawing tasks with replacement. A collection of several datasets
has a coarse answer built in, as images of one dataset look alike; the stricter test uses the pairs within each dataset
and permutes within it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 1000
# A correlation of the pairs of fewer tasks means nothing.
MIN_TASKS = 4
ALL, WITHIN = "all pairs", "within datasets"
_CHUNK = 500


@dataclass(frozen=True)
class Agreement:
    """Rank correlations of several spaces with one taxonomy.

    Attributes:
        pairs: number of pairs of tasks.
        rho: (spaces,) Spearman's correlation over pairs.
        null: (permutations, spaces) the same after permuting the tasks of the taxonomy.
        draws: (resamples, spaces) the same over tasks drawn with replacement; NaN where a draw has nothing to rank.
    """

    pairs: int
    rho: np.ndarray
    null: np.ndarray
    draws: np.ndarray

    @property
    def p(self) -> np.ndarray:
        """(spaces,) two-sided probability of this by chance: (1 + as far from 0) / (1 + permutations)."""
        return (1 + (np.abs(self.null) >= np.abs(self.rho) - 1e-12).sum(axis=0)) / (1 + len(self.null))

    def interval(self, space: int, *, minus: int | None = None) -> tuple[float, float]:
        """95% interval of the correlation of one space, or of its difference to that of another."""
        return find_interval(self.draws[:, space] - (0 if minus is None else self.draws[:, minus]))


def find_interval(draws: np.ndarray) -> tuple[float, float]:
    """The middle 95% of the draws that are known."""
    draws = draws[np.isfinite(draws)]
    low, high = np.quantile(draws, [0.025, 0.975]) if len(draws) else (np.nan, np.nan)
    return float(low), float(high)


def rank_pairs(distances: np.ndarray) -> np.ndarray:
    """(n, n) the ranks of all pairs, ties with their mean, centred and of length 1; zeros if all pairs are alike.

    The sum over pairs of the product of two such matrices is Spearman's correlation.

    Example:
        >>> rank_pairs(np.array([[0, 2, 9], [2, 0, 5], [9, 5, 0]])).round(3)
        array([[ 0.   , -0.707,  0.707],
               [-0.707,  0.   ,  0.   ],
               [ 0.707,  0.   ,  0.   ]])
    """
    from scipy.stats import rankdata

    rows, columns = np.triu_indices(len(distances), 1)
    ranks = rankdata(np.asarray(distances)[rows, columns])
    ranks = ranks - ranks.mean()
    length = np.linalg.norm(ranks)
    matrix = np.zeros(np.shape(distances))
    matrix[rows, columns] = matrix[columns, rows] = ranks / length if length > 1e-9 else 0.0
    return matrix


def agree(spaces: Sequence[np.ndarray], taxonomic: np.ndarray, *, permutations: int, seed: int) -> Agreement:
    """The agreement of each space with the taxonomy over all pairs of tasks.

    Example:
        >>> taxa = np.array([[0, 2, 8, 8], [2, 0, 8, 8], [8, 8, 0, 4], [8, 8, 4, 0]])
        >>> agreement = agree([taxa, -taxa], taxa, permutations=99, seed=0)
        >>> agreement.rho.round(6).tolist(), agreement.p[0] == agreement.p[1]
        ([1.0, -1.0], np.True_)
    """
    count = len(taxonomic)
    ranks = np.stack([rank_pairs(space) for space in spaces])
    tree_ranks = rank_pairs(taxonomic)
    rng = np.random.default_rng([seed, 7])
    null = np.empty((permutations, len(spaces)))
    for start in range(0, permutations, _CHUNK):
        size = min(_CHUNK, permutations - start)
        orders = rng.permuted(np.tile(np.arange(count), (size, 1)), axis=1)
        null[start : start + size] = _correlate(tree_ranks[orders[:, :, None], orders[:, None, :]], ranks)
    draws = _resample(ranks, tree_ranks, rng=np.random.default_rng([seed, 8]))
    return Agreement(count * (count - 1) // 2, _correlate(tree_ranks[None], ranks)[0], null, draws)


def agree_within(
    spaces: Sequence[np.ndarray], taxonomic: np.ndarray, datasets: Sequence[str], *, permutations: int, seed: int
) -> dict[str, Agreement]:
    """The agreement within every dataset that has near and distant relatives, and their mean weighted by pairs."""
    agreements = {}
    for number, name in enumerate(dict.fromkeys(datasets)):
        rows = np.flatnonzero(np.array(datasets) == name)
        inside = np.ix_(rows, rows)
        if len(rows) >= MIN_TASKS and rank_pairs(taxonomic[inside]).any():
            within = [space[inside] for space in spaces]
            agreements[name] = agree(within, taxonomic[inside], permutations=permutations, seed=seed + number)
    if agreements:
        weights = np.array([agreement.pairs for agreement in agreements.values()], dtype=np.float64)
        rho, null, draws = (
            np.tensordot(weights / weights.sum(), np.stack(parts), axes=1)
            for parts in zip(*((each.rho, each.null, each.draws) for each in agreements.values()), strict=True)
        )
        agreements[WITHIN] = Agreement(int(weights.sum()), rho, null, draws)
    return agreements


def _correlate(tree_ranks: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """(m, spaces) sums over pairs of (m, n, n) and (spaces, n, n) ranks; every pair is in a matrix twice."""
    return tree_ranks.reshape(len(tree_ranks), -1) @ ranks.reshape(len(ranks), -1).T / 2


def _resample(ranks: np.ndarray, tree_ranks: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
    """(resamples, spaces) correlations of the ranks, over pairs weighted by how often both tasks were drawn.

    The ranks stay those of all pairs; a task paired with its own copy does not count.
    """
    count = len(tree_ranks)
    rows, columns = np.triu_indices(count, 1)
    times = rng.multinomial(count, np.full(count, 1 / count), size=RESAMPLES).astype(np.float64)
    weights = times[:, rows] * times[:, columns]
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    x = ranks[:, rows, columns].T
    y = tree_ranks[rows, columns][:, None]
    mean_x, mean_y = weights @ x, weights @ y
    scale = (weights @ x**2 - mean_x**2) * (weights @ y**2 - mean_y**2)
    covariance = weights @ (x * y) - mean_x * mean_y
    return np.divide(covariance, np.sqrt(np.maximum(scale, 0)), out=np.full(scale.shape, np.nan), where=scale > 1e-18)


# --- neighbours ------------------------------------------------------------------------------------------------------


def neighbour_shares(distances: np.ndarray, labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(n,) the share of the nearest tasks of each task that have its label, and that of all tasks: chance.

    Several tasks at the smallest distance count alike; NaN where no other task has the label.

    Example:
        >>> points = np.array([0.0, 1.0, 3.0, 9.0])
        >>> shares, chance = neighbour_shares(abs(points[:, None] - points), ["a", "a", "b", "b"])
        >>> shares.tolist(), chance.round(2).tolist()
        ([1.0, 1.0, 0.0, 1.0], [0.33, 0.33, 0.33, 0.33])
    """
    names = np.array(labels)
    others = ~np.eye(len(names), dtype=bool)
    same = others & (names[:, None] == names)
    shares = (share_nearest(np.where(others, distances, np.inf)) * same).sum(axis=1)
    chance = same.sum(axis=1) / (len(names) - 1)
    has_relative = same.any(axis=1)
    return np.where(has_relative, shares, np.nan), np.where(has_relative, chance, np.nan)


def retrieve(distances: np.ndarray, *, permutations: int = 9999) -> dict[str, float]:
    """How well k label sets of one set of images are found again among the same k of another, given (2k, 2k) distances.

    `rate` is the share of the tasks whose nearest task on the other images has the same label set (ties count by their
    share), and `p` is two-sided, by permuting the label sets.

    Example:
        >>> points = np.array([0.0, 5.0, 9.0, 0.5, 5.5, 9.5])
        >>> row = retrieve(abs(points[:, None] - points))
        >>> row["rate"], round(row["chance"], 2)
        (1.0, 0.33)
    """
    k = len(distances) // 2
    across = np.asarray(distances)[:k, k:]
    hits = (share_nearest(across) + share_nearest(across.T).T) / 2
    rate = float(np.trace(hits) / k)
    orders = np.random.default_rng([0, 10]).permuted(np.tile(np.arange(k), (permutations, 1)), axis=1)
    null = hits[np.arange(k), orders].mean(axis=1)
    # By chance the rate is 1 / k on average.
    extremes = (np.abs(null - 1 / k) >= abs(rate - 1 / k) - 1e-12).sum()
    return {"label_sets": k, "rate": rate, "p": float((1 + extremes) / (1 + permutations)), "chance": 1 / k}


def share_nearest(distances: np.ndarray) -> np.ndarray:
    """(rows, columns) one over the number of nearest columns of a row, at these columns; 0 elsewhere.

    Example:
        >>> share_nearest(np.array([[1.0, 1.0, 2.0]]))
        array([[0.5, 0.5, 0. ]])
    """
    nearest = distances == distances.min(axis=1, keepdims=True)
    return nearest / nearest.sum(axis=1, keepdims=True)
