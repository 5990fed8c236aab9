"""A task: labelled images, checked once, with a fingerprint of their content.

Two people who have the same images under the same partition have the same task, whatever the names and numbers of the
classes and the order of the files. `Task.canonical` makes that exact: classes are sorted by the SHA-256 of their
members and images by their own, so that everything computed afterwards agrees to the bit. The one exception: where
*identical* images have different rows in a multi-label task, columns may stay tied.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from task2vec.errors import BadImagesError, DataError, UsageError
from task2vec.tasks.images import MAX_BAD_SHARE, BadImage, Images, StoredImages, choose_images

if TYPE_CHECKING:
    from task2vec.tasks.subsets import TasksByTaxon
    from task2vec.tasks.taxonomy import Taxonomy

NameOf = Callable[[int], str]


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """A checked set of labelled images; read `warnings` and `bad` before trusting it.

    Attributes:
        name: The name in tables and figures.
        images: The images, loaded one at a time.
        targets: Class index of every image (int64), or one row of 0 and 1 per image (uint8) for multi-label.
        classes: Name of every class, verbatim.
        digests: SHA-256 of every image's content.
        bad: Every image that could not be read and was left out.
        warnings: What looks odd and was accepted.
        source: The folder or table as given, or the type of the dataset.

    Example:
        >>> from PIL import Image
        >>> from task2vec.tasks import from_dataset
        >>> pictures = [(Image.new("RGB", (8, 8), (shade, 0, 0)), shade // 3) for shade in range(6)]
        >>> task = from_dataset(pictures, classes=["dark", "bright"], name="reds")
        >>> task
        Task(reds, 6 images, 2 classes)
        >>> task.counts.tolist()
        [3, 3]
        >>> task.fingerprint == from_dataset(pictures[::-1], name="renamed").fingerprint
        True
    """

    name: str
    images: Images
    targets: np.ndarray
    classes: tuple[str, ...]
    digests: tuple[str, ...]
    bad: tuple[BadImage, ...] = ()
    warnings: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self):
        """Refuse whatever is not a task, so that no reader can forget to."""
        lengths = (len(self.images), len(self.targets), len(self.digests))
        if len(set(lengths)) > 1:
            raise DataError(
                "a task needs one label and one digest per image, and got {} images, {} labels and {} digests, so "
                "labels would be shifted. Pass sequences of equal length.".format(*lengths)
            )
        targets = check_targets(self.targets, self.classes, self.images.name)
        targets.setflags(write=False)
        object.__setattr__(self, "targets", targets)
        object.__setattr__(self, "classes", tuple(self.classes))
        object.__setattr__(self, "digests", tuple(self.digests))

    def __len__(self) -> int:
        """The number of images."""
        return len(self.digests)

    def __repr__(self) -> str:
        """The task in one line."""
        return f"Task({self.name}, {len(self)} images, {len(self.classes)} classes)"

    @property
    def is_multilabel(self) -> bool:
        """Whether an image may have any number of classes."""
        return self.targets.ndim == 2

    @property
    def counts(self) -> np.ndarray:
        """The number of images of every class; for multi-label, of positive images."""
        return count_images(self.targets, len(self.classes))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content: images and their partition, not their order nor the names of the classes."""
        image_order, class_order = self._order
        targets = renumber(self.targets, class_order)[image_order]
        content = hashlib.sha256(f"task {targets.ndim} {len(self)} {len(self.classes)}\n".encode())
        content.update("".join(self.digests[index] for index in image_order).encode())
        content.update(targets.astype("<i8").tobytes())
        return content.hexdigest()

    @cached_property
    def _order(self) -> tuple[list[int], list[int]]:
        """The canonical order of images and of classes."""
        return canonical_order(self.digests, self.targets)

    def canonical(self) -> "Task":
        """The same task in the order that its content alone determines."""
        image_order, class_order = self._order
        return replace(
            self,
            images=choose_images(self.images, image_order),
            targets=renumber(self.targets, class_order)[image_order],
            classes=tuple(self.classes[index] for index in class_order),
            digests=tuple(self.digests[index] for index in image_order),
        )

    def subset(self, indices: Sequence[int] | np.ndarray) -> "Task":
        """The task of the images at `indices` alone, with the classes that still have one."""
        chosen = _check_indices(indices, len(self))
        targets = self.targets[chosen]
        kept = np.flatnonzero(count_images(targets, len(self.classes)))
        targets = targets[:, kept] if self.is_multilabel else np.searchsorted(kept, targets)
        images = choose_images(self.images, chosen)
        classes = tuple(self.classes[index] for index in kept)
        digests = tuple(self.digests[index] for index in chosen)
        warnings = find_warnings(targets, classes, digests, images.name)
        return replace(self, images=images, targets=targets, classes=classes, digests=digests, warnings=warnings)

    def select(self, classes: Sequence[str | int], *, name: str | None = None) -> "Task":
        """The task of some classes, by name or number, in the order that they have here.

        A single-label task keeps the images of these classes; a multi-label task keeps all images and these columns.

        Example:
            >>> import task2vec as t2v
            >>> digits = t2v.sample_tasks(images_per_task=40)[0]
            >>> digits.select(["7", "1"], name="one or seven").classes
            ('1', '7')
        """
        from task2vec.tasks.subsets import select_classes

        return select_classes(self, classes, name)

    def by_taxon(self, level: str, taxonomy: "Taxonomy") -> "TasksByTaxon":
        """One task per taxon of the rank `level`, between the classes of the taxon, by the taxon's name.

        Taxa with a single class make no task; `left_out` of the result names them. `at_taxon` classifies the taxa.

        Example:
            >>> import task2vec as t2v
            >>> digits = t2v.sample_tasks(images_per_task=40)[0].select(["0", "1", "2", "3"])
            >>> tree = t2v.Taxonomy(("shape",), {"0": ("round",), "1": ("straight",), "2": ("bent",), "3": ("bent",)})
            >>> found = digits.by_taxon("shape", tree)
            >>> dict(found)
            {'bent': Task(digits: bent, 8 images, 2 classes)}
            >>> found.left_out["round"]
            "it has a single class with images, '0'"
        """
        from task2vec.tasks.subsets import divide_by_taxon

        return divide_by_taxon(self, level, taxonomy)

    def at_taxon(self, level: str, taxonomy: "Taxonomy", *, name: str | None = None) -> "Task":
        """The task whose classes are the taxa of the rank `level`: orders, for example, instead of species.

        Images of classes without a taxon of that rank are left out, with a warning.
        """
        from task2vec.tasks.subsets import merge_by_taxon

        return merge_by_taxon(self, level, taxonomy, name)

    def one_vs_rest(self) -> tuple["Task", ...]:
        """One binary task per class or attribute, on the same images.

        Example:
            >>> import task2vec as t2v
            >>> shapes = t2v.sample_tasks(images_per_task=40)[2]
            >>> shapes.one_vs_rest()[0].classes
            ('not circle', 'circle')
        """
        from task2vec.tasks.subsets import make_one_vs_rest

        return make_one_vs_rest(self)

    def sample(self, n: int, seed: int = 0) -> "Task":
        """`n` images of the task: every class keeps its share of them, and at least one image.

        For multi-label every attribute keeps a positive and a negative image, and its share on average. The sample
        depends on the seed and on the content alone, not on the order of the images.

        Example:
            >>> import task2vec as t2v
            >>> t2v.sample_tasks(images_per_task=40)[0].sample(20).counts.tolist()
            [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
        """
        from task2vec.tasks.subsets import sample_images

        return sample_images(self, n, seed)

    def split(self, seed: int = 0, *, test: float = 0.2) -> tuple["Task", "Task"]:
        """A training and a test part without a common image, identical copies included.

        Every class with two different images is in both parts, in about its share; a warning names the others.
        Identical images under different labels stay in the training part. The split depends on seed and content alone.

        Example:
            >>> import task2vec as t2v
            >>> t2v.sample_tasks(images_per_task=40)[0].split(test=0.25)
            (Task(digits (train), 30 images, 10 classes), Task(digits (test), 10 images, 10 classes))
        """
        from task2vec.tasks.subsets import split_images

        return split_images(self, seed, test)


def _check_indices(indices: Sequence[int] | np.ndarray, length: int) -> list[int]:
    """The indices as a list: within the task, each once."""
    chosen = np.asarray(indices, dtype=None if len(indices) else np.int64)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or not set(chosen.tolist()) <= set(range(length)):
        raise UsageError(
            f"subset needs a list of image numbers from 0 to {length - 1} and got {indices!r}. For a mask, pass "
            "numpy.flatnonzero(mask)."
        )
    if len(np.unique(chosen)) < chosen.size:
        raise UsageError("some image numbers of a subset occur twice, so images would count double. Pass each once.")
    return chosen.tolist()


def make_task(
    images: StoredImages,
    labels: np.ndarray,
    outcomes: Sequence[str | BadImage],
    *,
    classes: Sequence[str],
    name: str,
    source: str,
    allow_bad: bool,
    refused: Sequence[BadImage] = (),
    warnings: Sequence[str] = (),
) -> Task:
    """The task of the images that could be read, unless too many could not.

    `images` have no digests yet: `outcomes` holds them, or why an image is bad, as `inspect_images` returns them.
    """
    labels = check_labels(labels, len(classes), lambda row: repr(images.name(row)))
    good = [row for row, outcome in enumerate(outcomes) if isinstance(outcome, str)]
    digests = tuple(outcome for outcome in outcomes if isinstance(outcome, str))
    bad = (*refused, *(outcome for outcome in outcomes if isinstance(outcome, BadImage)))
    total = len(bad) + len(good)
    if len(bad) > MAX_BAD_SHARE * total and not allow_bad:
        raise BadImagesError(
            f"{source}: {len(bad)} of {total} images cannot be read, more than {MAX_BAD_SHARE:.0%}, so the rest may "
            f"not represent the task.{_format_bad(bad)} Repair or remove them, or pass allow_bad=True (--allow-bad).",
            bad=bad,
        )
    keys, names = ([part[row] for row in good] for part in (images.keys, images.names))
    images = replace(images, keys=keys, names=names, digests=digests)
    labels = labels[good]
    warnings = (*warnings, *find_warnings(labels, classes, digests, images.name))
    try:
        return Task(name, images, labels, tuple(classes), digests, bad, warnings, source)
    except DataError as error:
        raise DataError(f"{source}: {error}{_format_bad(bad)}") from None


def _format_bad(bad: Sequence[BadImage]) -> str:
    """The first few bad images with their reasons, as the end of a message."""
    shown = "; ".join(f"{item.path!r}: {item.reason}" for item in bad[:5])
    return f" Bad: {shown}{f'; and {len(bad) - 5} more' if len(bad) > 5 else ''}." if bad else ""


def check_labels(labels: np.ndarray, n_classes: int, name_of: NameOf) -> np.ndarray:
    """The labels as int64 class indices or uint8 rows of 0 and 1; the first that is neither is refused by its row."""
    labels = np.asarray(labels)
    if labels.ndim == 1:
        # Indexing with a float or a missing value would guess a class.
        is_wrong = (labels < 0) | (labels >= n_classes) if labels.dtype.kind in "iu" else np.ones(len(labels), bool)
        expected, kind = f"a class index, an integer from 0{f' to {n_classes - 1}' if n_classes else ''}", np.int64
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
        raise DataError(
            f"the label of {name_of(row)} (row {row}) is {np.asarray(labels[row]).tolist()!r}, not {expected}, and "
            "guessing one would change the task. Correct the label or leave the image out."
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
                f"{len(constant)} of {len(classes)} label columns have one value for every image ({quote(constant)}), "
                "so nothing can be learned from them. Leave them out of the label columns."
            )
        return targets
    if len(classes) < 2:
        raise DataError(
            f"the task has only one class ({quote(classes)}), and a classifier needs two. "
            "Add a second class; images of anything else will do."
        )
    empty = [name for name, count in zip(classes, counts, strict=True) if count == 0]
    if empty:
        raise DataError(
            f"{len(empty)} of {len(classes)} classes have no readable image ({quote(empty)}); leaving them out would "
            "change the task. Add or repair images, or remove the class."
        )
    return targets


def count_images(targets: np.ndarray, n_classes: int) -> np.ndarray:
    """The number of images of every class; for multi-label, of positive images."""
    return targets.sum(axis=0, dtype=np.int64) if targets.ndim == 2 else np.bincount(targets, minlength=n_classes)


def find_warnings(
    targets: np.ndarray,
    classes: Sequence[str],
    digests: Sequence[str],
    name_of: NameOf,
    *,
    copies: Sequence[Sequence[int]] | None = None,
) -> tuple[str, ...]:
    """Warnings about checked labels: classes with one image, copies of one image, columns that look one-hot.

    `copies` are those of `find_copies`, for callers that have many tasks on the same images.
    """
    warnings = []
    counts = count_images(targets, len(classes))
    single = [name for name, count in zip(classes, counts, strict=True) if count == 1]
    if single:
        warnings.append(f"classes with a single image: {quote(single)}; no held-out error can be measured on them")
    if targets.ndim == 2 and len(classes) > 1 and (targets.sum(axis=1) == 1).all():
        warnings.append("every image has exactly one positive label: if these are classes, give one class per image")
    groups = find_copies(digests) if copies is None else copies
    if groups:
        surplus = sum(len(rows) - 1 for rows in groups)
        shown = quote([name_of(row) for row in groups[0][:2]])
        warnings.append(f"images that are exact copies of another: {surplus}, such as {shown}")
    conflicts = [rows for rows in groups if (targets[rows] != targets[rows[0]]).any()]
    if conflicts:
        shown = quote([name_of(row) for row in conflicts[0][:2]])
        warnings.append(f"identical images under different labels: {len(conflicts)} groups, such as {shown}")
    return tuple(warnings)


def find_copies(digests: Sequence[str]) -> list[list[int]]:
    """The rows of every image that occurs more than once, one list for each."""
    rows_of = defaultdict(list)
    for row, digest in enumerate(digests):
        rows_of[digest].append(row)
    return [rows for rows in rows_of.values() if len(rows) > 1]


def canonical_order(digests: Sequence[str], targets: np.ndarray) -> tuple[list[int], list[int]]:
    """The order of images and of classes that depends on the content only."""
    names, ranks = np.unique(np.array([digest.encode() for digest in digests]), return_inverse=True)
    if targets.ndim == 2:
        members = [np.flatnonzero(column) for column in targets.T]
    else:
        by_label = np.argsort(targets, kind="stable")
        members = np.split(by_label, np.cumsum(np.bincount(targets))[:-1])
    signatures = [hashlib.sha256(b"".join(names[np.sort(ranks[rows])].tolist())).hexdigest() for rows in members]
    class_order = sorted(range(len(members)), key=signatures.__getitem__)
    if len(names) == len(digests):
        return np.argsort(ranks).tolist(), class_order
    columns = np.atleast_2d(renumber(targets, class_order).T)  # copies of one image are ordered by their labels
    return np.lexsort((*columns[::-1], ranks)).tolist(), class_order


def renumber(targets: np.ndarray, class_order: list[int]) -> np.ndarray:
    """The targets after the classes took the places of `class_order`."""
    return targets[:, class_order] if targets.ndim == 2 else np.argsort(class_order)[targets]


def refuse_regression(what: str, *, example: str = "") -> NoReturn:
    """Raise the `DataError` for labels that are decimal numbers."""
    raise DataError(
        f"{what} holds decimal numbers{f' (such as {example})' if example else ''}: a regression target, and "
        "regression is not supported. Bin it into classes first (numpy.digitize(values, edges)), or write class "
        "numbers as integers."
    )


def quote(names: Sequence[str], at_most: int = 5) -> str:
    """Names with quotation marks, spaces and line breaks visible, cut after a few."""
    shown = ", ".join(repr(name) for name in names[:at_most])
    return shown if len(names) <= at_most else f"{shown} and {len(names) - at_most} more"
