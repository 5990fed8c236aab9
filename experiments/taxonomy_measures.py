"""How well distances between tasks agree with a taxonomy: pure functions of matrices.

Pairs of tasks are not independent of one another, tasks are. So what chance could do is found by permuting tasks
(Mantel 1967), never pairs, and intervals by drawing tasks with replacement. A collection of several datasets has a
coarse answer built in, as images of one dataset look alike; the honest test looks at the pairs within each dataset and
permutes within it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 1000
# A correlation of the pairs of fewer tasks says nothing.
FEWEST_TASKS = 4
ALL, WITHIN = "all pairs", "within datasets"
_CHUNK = 500


@dataclass(frozen=True)
class Agreement:
    """Rank correlations of several spaces with one taxonomy.

    Attributes:
        tasks: how many.
        pairs: how many.
        rho: (spaces,) Spearman's correlation over pairs.
        null: (permutations, spaces) the same after permuting the tasks of the taxonomy.
        draws: (resamples, spaces) the same over tasks drawn with replacement; NaN where a draw has nothing to rank.
    """

    tasks: int
    pairs: int
    rho: np.ndarray
    null: np.ndarray
    draws: np.ndarray

    @property
    def p(self) -> np.ndarray:
        """(spaces,) how likely chance is to agree so well: (1 + as good) / (1 + permutations)."""
        return (1 + (self.null >= self.rho - 1e-12).sum(axis=0)) / (1 + len(self.null))

    def interval(self, space: int, *, minus: int | None = None) -> tuple[float, float]:
        """95 % of the draws of one space, or of how much it is above another."""
        draws = self.draws[:, space] - (0 if minus is None else self.draws[:, minus])
        draws = draws[np.isfinite(draws)]
        if not len(draws):
            return float("nan"), float("nan")
        low, high = np.quantile(draws, [0.025, 0.975])
        return float(low), float(high)


def rank_pairs(distances: np.ndarray) -> np.ndarray:
    """(n, n) the ranks of all pairs, ties with their mean, centred and of length 1; zeros if all pairs are alike.

    Two such matrices, multiplied element by element and summed over pairs, give Spearman's correlation.

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
    found = np.zeros(np.shape(distances))
    found[rows, columns] = found[columns, rows] = ranks / length if length > 1e-9 else 0.0
    return found


def agree(spaces: Sequence[np.ndarray], taxonomic: np.ndarray, *, permutations: int, seed: int) -> Agreement:
    """The agreement of each space with the taxonomy over all pairs of tasks.

    Example:
        >>> taxa = np.array([[0, 2, 8, 8], [2, 0, 8, 8], [8, 8, 0, 4], [8, 8, 4, 0]])
        >>> found = agree([taxa, -taxa], taxa, permutations=99, seed=0)
        >>> found.rho.round(6).tolist(), found.p[0] < found.p[1]
        ([1.0, -1.0], np.True_)
    """
    count = len(taxonomic)
    ranks = np.stack([rank_pairs(space) for space in spaces])
    own = rank_pairs(taxonomic)
    rng = np.random.default_rng([seed, 7])
    null = np.empty((permutations, len(spaces)))
    for start in range(0, permutations, _CHUNK):
        size = min(_CHUNK, permutations - start)
        orders = rng.permuted(np.tile(np.arange(count), (size, 1)), axis=1)
        null[start : start + size] = _multiply(own[orders[:, :, None], orders[:, None, :]], ranks)
    draws = _resample(ranks, own, rng=np.random.default_rng([seed, 8]))
    return Agreement(count, count * (count - 1) // 2, _multiply(own[None], ranks)[0], null, draws)


def agree_within(
    spaces: Sequence[np.ndarray],
    taxonomic: np.ndarray,
    datasets: Sequence[str],
    *,
    permutations: int,
    seed: int,
) -> dict[str, Agreement]:
    """The agreement within every dataset that has relatives and strangers, and all of them pooled by their pairs."""
    found = {}
    for number, name in enumerate(dict.fromkeys(datasets)):
        rows = np.flatnonzero(np.array(datasets) == name)
        inside = np.ix_(rows, rows)
        if len(rows) >= FEWEST_TASKS and rank_pairs(taxonomic[inside]).any():
            parts = [space[inside] for space in spaces]
            found[name] = agree(parts, taxonomic[inside], permutations=permutations, seed=seed + number)
    if len(found) > 1:
        found[WITHIN] = pool(list(found.values()))
    elif found:
        found[WITHIN] = next(iter(found.values()))
    return found


def pool(parts: Sequence[Agreement]) -> Agreement:
    """The mean of several agreements, weighted by their pairs; each was permuted by itself."""
    weights = np.array([part.pairs for part in parts], dtype=np.float64)
    weights /= weights.sum()

    def mix(arrays: list[np.ndarray]) -> np.ndarray:
        return np.tensordot(weights, np.stack(arrays), axes=1)

    return Agreement(
        sum(part.tasks for part in parts),
        sum(part.pairs for part in parts),
        mix([part.rho for part in parts]),
        mix([part.null for part in parts]),
        mix([part.draws for part in parts]),
    )


def nearest_shares(distances: np.ndarray, labels: Sequence[str], *, among: Sequence[str] | None = None) -> np.ndarray:
    """(n,) the share of the nearest tasks of each task that bear its label; NaN where no other task bears it.

    There is one nearest task, or several at the same distance, which count alike.

    Args:
        distances: between tasks.
        labels: one per task.
        among: look only at tasks that agree in this too (their dataset).

    Example:
        >>> places = np.array([0.0, 1.0, 3.0, 9.0])
        >>> nearest_shares(abs(places[:, None] - places), ["a", "a", "b", "b"])
        array([1., 1., 0., 1.])
    """
    near, same = _candidates(labels, among)
    farther = np.where(near, distances, np.inf)
    nearest = near & (farther == farther.min(axis=1, keepdims=True))
    shares = (nearest & same).sum(axis=1) / np.maximum(nearest.sum(axis=1), 1)
    return np.where(same.any(axis=1), shares, np.nan)


def chance_shares(labels: Sequence[str], *, among: Sequence[str] | None = None) -> np.ndarray:
    """(n,) the share of all other tasks that bear the label of a task: what a random neighbour would give."""
    near, same = _candidates(labels, among)
    shares = same.sum(axis=1) / np.maximum(near.sum(axis=1), 1)
    return np.where(same.any(axis=1), shares, np.nan)


def mean_interval(values: np.ndarray, *, seed: int) -> tuple[float, float]:
    """The 95 % interval of the mean of what is not NaN, by drawing with replacement."""
    known = values[np.isfinite(values)]
    if not len(known):
        return np.nan, np.nan
    draws = known[np.random.default_rng([seed, 9]).integers(len(known), size=(RESAMPLES, len(known)))].mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def _multiply(own: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """(m, spaces) sums over pairs of (m, n, n) and (spaces, n, n) ranks; every pair stands in a matrix twice."""
    return own.reshape(len(own), -1) @ ranks.reshape(len(ranks), -1).T / 2


def _resample(ranks: np.ndarray, own: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
    """(resamples, spaces) correlations of the ranks, over pairs weighted by how often both tasks were drawn.

    The ranks stay those of all pairs; a task paired with its own copy does not count.
    """
    rows, columns = np.triu_indices(len(own), 1)
    times = rng.multinomial(len(own), np.full(len(own), 1 / len(own)), size=RESAMPLES).astype(np.float64)
    weights = times[:, rows] * times[:, columns]
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    x, y = ranks[:, rows, columns].T, own[rows, columns][:, None]
    mean_x, mean_y = weights @ x, weights @ y
    scale = (weights @ x**2 - mean_x**2) * (weights @ y**2 - mean_y**2)
    covariance = weights @ (x * y) - mean_x * mean_y
    return np.divide(covariance, np.sqrt(np.maximum(scale, 0)), out=np.full(scale.shape, np.nan), where=scale > 1e-18)


def _candidates(labels: Sequence[str], among: Sequence[str] | None) -> tuple[np.ndarray, np.ndarray]:
    """Which tasks are looked at from each, and which of these bear its label."""
    names = np.array(labels)
    near = ~np.eye(len(names), dtype=bool)
    if among is not None:
        near &= np.array(among)[:, None] == np.array(among)
    return near, near & (names[:, None] == names)
