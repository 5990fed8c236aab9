"""Whether the same question, asked about other images, is found again: pure functions of matrices."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Retrieval:
    """How well k questions about one set of images are found again among the same k about another.

    Attributes:
        questions: k.
        rate: share of the tasks whose nearest task about the other set asks the same; ties count by their share.
        p: how likely chance is to do so well, by permuting the questions of one set.
        same: mean distance between the same question about the two sets.
        other: mean distance between different questions about the two sets.
        beside: mean distance between different questions about the same set.
        auc: how often the same question about other images is nearer than another question about other images.
        auc_beside: how often it is nearer than another question about the same images.
    """

    questions: int
    rate: float
    p: float
    same: float
    other: float
    beside: float
    auc: float
    auc_beside: float

    @property
    def chance(self) -> float:
        """The rate of a random choice."""
        return 1 / self.questions


def retrieve(distances: np.ndarray, *, permutations: int = 9999, seed: int = 0) -> Retrieval:
    """What (2k, 2k) distances say, between k questions about one set of images and the same k about another.

    Example:
        >>> places = np.array([0.0, 5.0, 9.0, 0.5, 5.5, 9.5])
        >>> found = retrieve(abs(places[:, None] - places))
        >>> found.rate, found.auc_beside, round(found.chance, 2)
        (1.0, 1.0, 0.33)
    """
    k = len(distances) // 2
    across = np.asarray(distances)[:k, k:]
    hits = (share_nearest(across) + share_nearest(across.T).T) / 2
    orders = np.random.default_rng([seed, 10]).permuted(np.tile(np.arange(k), (permutations, 1)), axis=1)
    rate = float(np.trace(hits) / k)
    null = hits[np.arange(k), orders].mean(axis=1)
    is_other = ~np.eye(k, dtype=bool)
    same, other = np.diag(across), across[is_other]
    beside = np.concatenate([distances[:k, :k][is_other], distances[k:, k:][is_other]])
    return Retrieval(
        questions=k,
        rate=rate,
        p=float((1 + (null >= rate - 1e-12).sum()) / (1 + permutations)),
        same=float(same.mean()),
        other=float(other.mean()),
        beside=float(beside.mean()),
        auc=count_nearer(same, other),
        auc_beside=count_nearer(same, beside),
    )


def share_nearest(distances: np.ndarray) -> np.ndarray:
    """(rows, columns) one over the number of nearest columns of a row, at these columns; 0 elsewhere.

    Example:
        >>> share_nearest(np.array([[1.0, 1.0, 2.0]]))
        array([[0.5, 0.5, 0. ]])
    """
    nearest = distances == distances.min(axis=1, keepdims=True)
    return nearest / nearest.sum(axis=1, keepdims=True)


def count_nearer(near: np.ndarray, far: np.ndarray) -> float:
    """The share of pairs in which the first is smaller, ties half: the area under the ROC curve.

    Example:
        >>> count_nearer(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
        0.875
    """
    difference = np.asarray(far)[None, :] - np.asarray(near)[:, None]
    return float((difference > 0).mean() + (difference == 0).mean() / 2)


def spread_domains(domains: np.ndarray, questions: int) -> np.ndarray:
    """(2k, 2k) distances between questions by their domains alone, given those between the two sets.

    Every question about a set has the domain of that set.

    Example:
        >>> spread_domains(np.array([[0.0, 0.3], [0.3, 0.0]]), 2)[0].tolist()
        [0.0, 0.0, 0.3, 0.3]
    """
    return np.repeat(np.repeat(domains, questions, axis=0), questions, axis=1)
