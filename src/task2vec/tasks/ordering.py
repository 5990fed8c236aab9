"""The order of images and classes that the content of a task alone decides."""

import hashlib
from collections.abc import Sequence

import numpy as np


def canonical_order(digests: Sequence[str], targets: np.ndarray) -> tuple[list[int], list[int]]:
    """The order of images and of classes that depends on the content only."""
    class_order = order_classes(digests, targets)
    renumbered = renumber(targets, class_order)
    image_order = sorted(range(len(digests)), key=lambda index: (digests[index], renumbered[index].tolist()))
    return image_order, class_order


def order_classes(digests: Sequence[str], targets: np.ndarray) -> list[int]:
    """The order of classes by the SHA-256 of their members."""
    if targets.ndim == 2:
        members = [np.flatnonzero(column).tolist() for column in targets.T]
    else:
        members = [[] for _ in np.unique(targets)]
        for index, label in enumerate(targets.tolist()):
            members[label].append(index)
    signatures = [_hash_together(digests[index] for index in rows) for rows in members]
    return sorted(range(len(members)), key=signatures.__getitem__)


def _hash_together(digests) -> str:
    """One SHA-256 for a set of digests, whatever their order."""
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def renumber(targets: np.ndarray, class_order: list[int]) -> np.ndarray:
    """The targets after the classes took the places of `class_order`."""
    return targets[:, class_order] if targets.ndim == 2 else np.argsort(class_order)[targets]
