"""How good a ranking of experts was, once the errors are known. Pure functions of arrays of one task, or of many."""

from itertools import product
from math import comb

import numpy as np
from scipy import stats

# Errors this near are the same number of wrong images.
TIE = 1e-5
# So many gaps at most are compared under all their signs; of more, so many signs are drawn.
_FEW, _DRAWS = 13, 20_000


def choose_honestly(measured: np.ndarray, is_candidate: np.ndarray) -> np.ndarray:
    """(T) the error of the best candidate, chosen on all parts of (T, E, parts) but one and measured on that.

    It is averaged over the parts; of several that are equally good, their mean is taken. NaN where an error is known in
    fewer than two parts. The smallest mean over all parts is lower, for the noise is chosen with it.

    Example:
        >>> choose_honestly(np.array([[[0.1, 0.4], [0.3, 0.3]]]), np.ones((1, 2), dtype=bool))
        array([0.35])
    """
    found = np.full((len(measured), measured.shape[2]), np.nan)
    known = np.isfinite(measured) & is_candidate[:, :, None]
    for part in range(measured.shape[2]):
        rest = np.delete(known, part, axis=2)
        sums, counts = np.where(rest, np.delete(measured, part, axis=2), 0).sum(2), rest.sum(2)
        means = np.divide(sums, counts, out=np.full(sums.shape, np.inf), where=(counts > 0) & known[:, :, part])
        is_best = (means <= means.min(1, keepdims=True) + TIE) & np.isfinite(means)
        totals = np.where(is_best, measured[:, :, part], 0).sum(1)
        np.divide(totals, is_best.sum(1), out=found[:, part], where=is_best.any(1))
    is_known = np.isfinite(found)
    sums, counts = np.where(is_known, found, 0).sum(1), is_known.sum(1)
    return np.divide(sums, counts, out=np.full(len(found), np.nan), where=counts > 0)


def expect_first(places: np.ndarray, errors: np.ndarray) -> float:
    """The error of who is ranked first; of several that share the place, their mean."""
    return float(errors[places == places.min()].mean())


def hit(places: np.ndarray, errors: np.ndarray, first: int) -> float:
    """The chance that one of the best experts is among the `first` ranked, where shared places are drawn by lot.

    Example:
        >>> hit(np.array([0, 0, 0, 0]), np.array([0.1, 0.2, 0.3, 0.4]), 3)
        0.75
    """
    is_best = errors <= errors.min() + TIE
    room = first
    for place in np.unique(places):
        here = places == place
        size, good = int(here.sum()), int((here & is_best).sum())
        if size >= room:
            return 1 - comb(size - good, room) / comb(size, room)
        if good:
            return 1.0
        room -= size
    return 1.0


def weigh_tau(places: np.ndarray, errors: np.ndarray) -> float:
    """Weighted Kendall's tau of ranking and errors (Vigna 2015): the top counts more. 0 if all are equal."""
    if len(errors) < 2 or np.ptp(places) == 0 or np.ptp(errors) == 0:
        return 0.0
    return float(np.asarray(stats.weightedtau(-places.astype(np.float64), -errors)[0]))


def find_fidelity(badness: np.ndarray, errors: np.ndarray) -> float:
    """Pearson's correlation of gaps in badness and gaps in errors, over all pairs of experts that have a badness.

    Over all pairs it is that of the values themselves: sum over pairs of (a_j - a_k) (b_j - b_k) is twice their number
    times the covariance. 0 if all are equal or only one has a badness.
    """
    known = np.isfinite(badness)
    a, b = badness[known], errors[known]
    if len(a) < 2 or np.ptp(a) <= 1e-12 * np.abs(a).max() or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def find_brier(chances: np.ndarray, errors: np.ndarray) -> float:
    """Brier's score of the chances of being best: 0 if sure and right, 2 if sure and wrong."""
    is_best = errors <= errors.min() + TIE
    total = chances.sum()
    return float(np.square(chances / (total if total > 0 else 1) - is_best / is_best.sum()).sum())


def draw_weights(groups: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """(resamples, T) how often each task is in a sample that groups are drawn for with replacement."""
    names, members = np.unique(groups, return_inverse=True)
    drawn = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), size=resamples)
    return drawn[:, members].astype(np.float64)


def find_interval(weights: np.ndarray, above: np.ndarray, below: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of sum(above) / sum(below) over weighted samples of tasks; where `below` is 0 a task is left out.

    Example:
        >>> find_interval(draw_weights(np.arange(9), 99, 0), np.full(9, 0.5), np.ones(9))
        (0.5, 0.5)
    """
    counted = np.isfinite(above) & np.isfinite(below)
    sums = weights @ np.where(counted, below, 0)
    ratios = (weights @ np.where(counted, above, 0))[sums > 0] / sums[sums > 0]
    if not len(ratios):
        return float("nan"), float("nan")
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


def compare_paired(gaps: np.ndarray) -> float:
    """The p of no difference: Wilcoxon's signed ranks of gaps over tasks, two-sided; 1 if there is none.

    Of few tasks that differ it is exact: by the normal curve, five of the same sign among many equal ones would have
    p = 0.04, where chance alone does that once in sixteen times.

    Example:
        >>> compare_paired(np.array([-1.0, -2.0, -3.0, -4.0, -5.0, *np.zeros(44)]))
        0.0625
    """
    differing = gaps[np.abs(gaps) > 1e-12]
    if len(differing) == 0:
        return 1.0
    if len(differing) > _FEW:
        return float(np.asarray(stats.wilcoxon(gaps)[1]))
    ranks = stats.rankdata(np.abs(differing))
    signs = np.array(list(product((-1, 1), repeat=len(differing))))
    return float((np.abs(signs @ ranks) >= abs(np.sign(differing) @ ranks)).mean())


def compare_groups(gaps: np.ndarray, groups: np.ndarray) -> float:
    """The p of no difference where tasks of one dataset are alike: the signs of the datasets' mean gaps are flipped.

    Each dataset counts once, however many tasks it has. Of six datasets all signs are tried, and p cannot be less than
    2 of 64: so few show little, whatever the tasks say.

    Example:
        >>> compare_groups(np.array([-1.0, -1.2, -0.8, -2.0, -1.5]), np.array(["a", "a", "b", "c", "d"]))
        0.125
    """
    means = np.array([gaps[groups == one].mean() for one in np.unique(groups)])
    if len(means) <= _FEW:
        signs = np.array(list(product((-1, 1), repeat=len(means))))
    else:
        signs = np.random.default_rng(0).choice([-1, 1], size=(_DRAWS, len(means)))
        signs[0] = 1  # what was seen is one of them
    return float((np.abs(signs @ means) >= abs(means.sum()) - 1e-12).mean())
