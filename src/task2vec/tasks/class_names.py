"""What the classes of a dataset are called: by the caller, else by the dataset itself, else by their numbers."""

from collections.abc import Mapping, Sequence

import numpy as np

from task2vec.errors import DataError
from task2vec.tasks.check import NameOf, check_labels, count_images, quote
from task2vec.tasks.regression import refuse_regression

Settled = tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]


def settle_classes(
    labels: np.ndarray, given: Sequence[str] | None, own: Sequence[str] | None, name_of: NameOf
) -> Settled:
    """Targets, class names and warnings; the dataset's own names are taken where they fit the labels."""
    if labels.dtype.kind == "b":
        labels = labels.astype(np.uint8)
    refuse_decimals(labels, name_of)
    is_multilabel = labels.ndim == 2
    whole = labels.dtype.kind in "iu" and labels.size > 0
    needed = labels.shape[1] if is_multilabel else int(labels.max()) + 1 if whole else 0
    if given is None and own is not None and (len(own) == needed or (len(own) > needed and not is_multilabel)):
        given = own
    if given is not None and len(given) != needed and is_multilabel:
        raise DataError(
            f"{len(given)} class names were given for rows of {needed} values, so names would stand for the wrong "
            f"attributes. Pass {needed} names."
        )
    targets = check_labels(labels, needed if given is None else len(given), name_of)
    if is_multilabel:
        return targets, tuple(map(str, range(needed))) if given is None else tuple(given), ()
    if given is None:
        present, targets = np.unique(targets, return_inverse=True)
        return targets, tuple(str(number) for number in present), ()
    counts = count_images(targets, len(given))
    absent = [kind for kind, count in zip(given, counts, strict=True) if count == 0]
    remarks = (f"classes without an item, left out: {quote(absent)}",) if absent else ()
    present = np.flatnonzero(counts).tolist()
    return np.searchsorted(present, targets), tuple(given[number] for number in present), remarks


def refuse_decimals(labels: np.ndarray, name_of: NameOf) -> None:
    """Raise `DataError` for labels that are decimal numbers; rows that are all 0 and 1 may be stored as such."""
    if labels.dtype.kind != "f" or not labels.size:
        return
    rows = labels.reshape(len(labels), -1)
    missing = np.flatnonzero(np.isnan(rows).any(axis=1))
    if len(missing):
        raise DataError(
            f"the label of {name_of(missing[0])} (row {missing[0]}) is {labels[missing[0]].tolist()!r}: it is missing, "
            "and guessing one would change the task. Fill it in or leave the image out."
        )
    # The most telling one first: 0.5 rather than 1.0.
    odd = [*np.flatnonzero((rows != np.floor(rows)).any(axis=1)), *(range(len(rows)) if labels.ndim == 1 else ())]
    odd += np.flatnonzero(((rows != 0) & (rows != 1)).any(axis=1)).tolist()
    if odd:
        refuse_regression(f"the label of {name_of(odd[0])} (row {odd[0]})", example=repr(labels[odd[0]].tolist()))


def find_own_names(dataset: object, *, is_multilabel: bool) -> list[str] | None:
    """The class names that a dataset of torchvision or in its manner carries, None if it has none that we know.

    Example:
        >>> class Pets(list):
        ...     classes = ["cat", ("dog", "hound")]
        >>> find_own_names(Pets(), is_multilabel=False)
        ['cat', 'dog, hound']
    """
    kind = type(dataset)
    if kind.__name__ == "Subset" and kind.__module__.startswith("torch.utils.data"):
        return find_own_names(getattr(dataset, "dataset", None), is_multilabel=is_multilabel)
    if is_multilabel:
        names = getattr(dataset, "attr_names", None) or getattr(dataset, "classes", None)
        # CelebA's header ends in a blank, and torchvision keeps the empty name behind it.
        return _as_names(names[:-1] if isinstance(names, (list, tuple)) and names and names[-1] == "" else names)
    if getattr(dataset, "_target_types", None) == ["binary-category"]:  # OxfordIIITPet: `classes` are the 37 breeds
        return _as_names(getattr(dataset, "bin_classes", None))
    numbers = getattr(dataset, "class_to_idx", None)
    by_number = isinstance(numbers, Mapping) and sorted(numbers.values()) == list(range(len(numbers)))
    return (
        _as_names(getattr(dataset, "classes", None))
        or _as_names(getattr(dataset, "categories", None))  # Caltech101 and 256
        or _as_names(sorted(numbers, key=numbers.__getitem__) if isinstance(numbers, Mapping) and by_number else None)
    )


def _as_names(names: object) -> list[str] | None:
    """A list of names, synonyms (as ImageNet has them) put into one; None for anything else."""
    if not isinstance(names, (list, tuple)) or not names:
        return None
    words = [", ".join(name) if isinstance(name, tuple) and all(map(_is_text, name)) else name for name in names]
    return [str(word) for word in words] if all(map(_is_text, words)) else None


def _is_text(word: object) -> bool:
    return isinstance(word, str)
