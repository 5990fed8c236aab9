"""The order of images and classes that the content of a task alone decides."""

import hashlib
from collections.abc import Sequence

import numpy as np


def canonical_order(digests: Sequence[str], targets: np.ndarray) -> tuple[list[int], list[int]]:
    """The order of images and of classes that depends on the content only."""
    names, ranks = np.unique(np.array([digest.encode() for digest in digests]), return_inverse=True)
    class_order = _order_classes(names, ranks, targets)
    if len(names) == len(digests):
        return np.argsort(ranks).tolist(), class_order
    columns = np.atleast_2d(renumber(targets, class_order).T)  # copies of one image are ordered by their labels
    return np.lexsort((*columns[::-1], ranks)).tolist(), class_order


def order_classes(digests: Sequence[str], targets: np.ndarray) -> list[int]:
    """The order of classes by the SHA-256 of their members."""
    return canonical_order(digests, targets)[1]


def _order_classes(names: np.ndarray, ranks: np.ndarray, targets: np.ndarray) -> list[int]:
    """The order of classes by the SHA-256 of the sorted digests of their members."""
    if targets.ndim == 2:
        members = [np.flatnonzero(column) for column in targets.T]
    else:
        by_label = np.argsort(targets, kind="stable")
        members = np.split(by_label, np.cumsum(np.bincount(targets))[:-1])
    signatures = [hashlib.sha256(b"".join(names[np.sort(ranks[rows])].tolist())).hexdigest() for rows in members]
    return sorted(range(len(members)), key=signatures.__getitem__)


def renumber(targets: np.ndarray, class_order: list[int]) -> np.ndarray:
    """The targets after the classes took the places of `class_order`."""
    return targets[:, class_order] if targets.ndim == 2 else np.argsort(class_order)[targets]
