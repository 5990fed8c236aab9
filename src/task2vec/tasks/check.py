"""What every task must satisfy, whatever its source, and what is worth a warning."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from task2vec.errors import DataError

NameOf = Callable[[int], str]


def check_labels(labels: np.ndarray, n_classes: int, name_of: NameOf) -> np.ndarray:
    """The labels as int64 class indices or uint8 rows of 0 and 1; the first that is neither is refused by its row."""
    labels = np.asarray(labels)
    if labels.ndim == 1:
        # Indexing with a float or a missing value would guess a class.
        is_wrong = (labels < 0) | (labels >= n_classes) if labels.dtype.kind in "iu" else np.ones(len(labels), bool)
        expected, kind = f"a class index, a whole number from 0{f' to {n_classes - 1}' if n_classes else ''}", np.int64
    elif labels.ndim == 2 and labels.shape[1] == n_classes:
        is_wrong = ~((labels == 0) | (labels == 1)).all(axis=1)
        expected, kind = f"a row of {n_classes} values that are 0 or 1", np.uint8
    else:
        raise DataError(
            f"the labels have shape {labels.shape}, which fits neither one class index per image nor one column per "
            f"class for {n_classes} classes. Pass shape (images,) or (images, {n_classes})."
        )
    if is_wrong.any():
        row = int(np.flatnonzero(is_wrong)[0])
        value = np.asarray(labels[row]).tolist()
        raise DataError(
            f"the label of {name_of(row)} (row {row}) is {value!r}, not {expected}: it names no class, "
            "and guessing one would change the task. Correct the label or leave the image out."
        )
    return labels.astype(kind)


def check_targets(targets: np.ndarray, classes: Sequence[str], name_of: NameOf) -> np.ndarray:
    """Checked labels of a task that can be learned: two classes or more, each with an image, no constant attribute."""
    targets = check_labels(targets, len(classes), name_of)
    if len(targets) == 0:
        raise DataError("the task has no images, so there is nothing to embed. Check the folder, table or dataset.")
    counts = count_images(targets, len(classes))
    if targets.ndim == 2:
        constant = [name for name, count in zip(classes, counts, strict=True) if count in (0, len(targets))]
        if constant or not classes:
            raise DataError(
                f"{len(constant)} of {len(classes)} label columns have one value for every image ({quote(constant)}): "
                "nothing can be learned from them. Leave them out of the label columns."
            )
        return targets
    if len(classes) < 2:
        raise DataError(
            f"the task has only one class ({quote(classes)}): a classifier needs two to tell apart. "
            "Add a second class; pictures of anything else will do."
        )
    empty = [name for name, count in zip(classes, counts, strict=True) if count == 0]
    if empty:
        raise DataError(
            f"{len(empty)} of {len(classes)} classes have no readable image ({quote(empty)}): leaving them out would "
            "make another task than the one you named. Add or repair images, or remove the class."
        )
    return targets


def count_images(targets: np.ndarray, n_classes: int) -> np.ndarray:
    """The number of images of every class; for multi-label, of positive images."""
    return targets.sum(axis=0, dtype=np.int64) if targets.ndim == 2 else np.bincount(targets, minlength=n_classes)


def remark(
    targets: np.ndarray,
    classes: Sequence[str],
    digests: Sequence[str],
    name_of: NameOf,
    *,
    copies: Sequence[Sequence[int]] | None = None,
) -> tuple[str, ...]:
    """Warnings about checked labels: classes with one image, copies of one image, columns that look one-hot.

    `copies` are those of `find_copies`, for callers that ask many questions about the same images.
    """
    remarks = []
    counts = count_images(targets, len(classes))
    lonely = [name for name, count in zip(classes, counts, strict=True) if count == 1]
    if lonely:
        remarks.append(f"classes with a single image: {quote(lonely)}; no held-out error can be measured on them")
    if targets.ndim == 2 and len(classes) > 1 and (targets.sum(axis=1) == 1).all():
        remarks.append("every image has exactly one positive label: if these are classes, give one class per image")
    groups = find_copies(digests) if copies is None else copies
    torn = [rows for rows in groups if (targets[rows] != targets[rows[0]]).any()]
    if groups:
        surplus = sum(len(rows) - 1 for rows in groups)
        shown = quote([name_of(row) for row in groups[0][:2]])
        remarks.append(f"images that are exact copies of another: {surplus}, such as {shown}")
    if torn:
        shown = quote([name_of(row) for row in torn[0][:2]])
        remarks.append(f"identical images under different labels: {len(torn)} groups, such as {shown}")
    return tuple(remarks)


def find_copies(digests: Sequence[str]) -> list[list[int]]:
    """The rows of every image that occurs more than once, one list for each."""
    rows_of = defaultdict(list)
    for row, digest in enumerate(digests):
        rows_of[digest].append(row)
    return [rows for rows in rows_of.values() if len(rows) > 1]


def quote(names: Sequence[str], at_most: int = 5) -> str:
    """Names as text that shows spaces and line breaks, cut after a few."""
    shown = ", ".join(repr(name) for name in names[:at_most])
    return shown if len(names) <= at_most else f"{shown} and {len(names) - at_most} more"
