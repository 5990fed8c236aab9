"""A task: labelled images, checked once, with a fingerprint of their content.

Two people who hold the same images under the same partition hold the same task, whatever they called the classes,
however they numbered them and in whatever order they listed the files. `Task.canonical` makes that exact: classes are
sorted by the SHA-256 of their members and images by their own, so that all that is computed afterwards agrees to the
bit. The one exception: where *identical* images carry different rows of a multi-label task, columns may stay tied.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.check import check_targets, count_images, remark
from task2vec.tasks.cutting import TasksByTaxon, ask_one_vs_rest, divide_by_taxon, merge_by_taxon, select_classes
from task2vec.tasks.images import BadImage, ChosenImages, Images
from task2vec.tasks.ordering import canonical_order, renumber
from task2vec.tasks.splitting import sample_images, split_images
from task2vec.tasks.taxonomy import Taxonomy


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """A checked set of labelled images; print it to see its size, and read `warnings` and `bad` before trusting it.

    Attributes:
        name: What to call it in tables and pictures.
        images: Where its pixels come from, one at a time.
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
                "a task needs one label and one digest per image, and got {} images, {} labels and {} digests: some "
                "image would carry another's label. Pass sequences of one length.".format(*lengths)
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
        """The same task in the order that its content alone decides."""
        image_order, class_order = self._order
        return replace(
            self,
            images=ChosenImages(self.images, image_order),
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
        images = ChosenImages(self.images, chosen)
        classes = tuple(self.classes[index] for index in kept)
        digests = tuple(self.digests[index] for index in chosen)
        remarks = remark(targets, classes, digests, images.name)
        return replace(self, images=images, targets=targets, classes=classes, digests=digests, warnings=remarks)

    def select(self, classes: Sequence[str | int], *, name: str | None = None) -> "Task":
        """The task of some classes, by name or number, in the order that they have here.

        A single-label task keeps the images of these classes; a multi-label task keeps all images and these columns.

        Example:
            >>> import task2vec as t2v
            >>> digits = t2v.sample_tasks(images_per_task=40)[0]
            >>> digits.select(["7", "1"], name="one or seven").classes
            ('1', '7')
        """
        return select_classes(self, classes, name)

    def by_taxon(self, level: str, taxonomy: Taxonomy) -> TasksByTaxon:
        """One task per taxon of the rank `level`, in which the taxon's classes are told apart, by the taxon's name.

        Taxa with a single class make no task; `left_out` of the answer names them. `at_taxon` tells the taxa apart.

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
        return divide_by_taxon(self, level, taxonomy)

    def at_taxon(self, level: str, taxonomy: Taxonomy, *, name: str | None = None) -> "Task":
        """The task whose classes are the taxa of the rank `level`: which order is it, and not which species.

        Images of classes without a taxon of that rank are left out, with a warning.
        """
        return merge_by_taxon(self, level, taxonomy, name)

    def one_vs_rest(self) -> tuple["Task", ...]:
        """One task per class or attribute, on the same images: is it X, or not?

        Example:
            >>> import task2vec as t2v
            >>> shapes = t2v.sample_tasks(images_per_task=40)[2]
            >>> shapes.one_vs_rest()[0].classes
            ('not circle', 'circle')
        """
        return ask_one_vs_rest(self)

    def sample(self, n: int, seed: int = 0) -> "Task":
        """`n` images of the task: every class keeps its share of them, and at least one image.

        For multi-label every attribute keeps a positive and a negative image, and its share on average. The draw
        depends on the seed and on the content alone, not on the order of the images.

        Example:
            >>> import task2vec as t2v
            >>> t2v.sample_tasks(images_per_task=40)[0].sample(20).counts.tolist()
            [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
        """
        return sample_images(self, n, seed)

    def split(self, seed: int = 0, *, test: float = 0.2) -> tuple["Task", "Task"]:
        """A training and a test part without a common image, identical copies included.

        Every class with two different images is in both parts, in about its share; what is missing is warned of.
        Identical images under different labels stay in the training part. The draw depends on seed and content alone.

        Example:
            >>> import task2vec as t2v
            >>> t2v.sample_tasks(images_per_task=40)[0].split(test=0.25)
            (Task(digits (train), 30 images, 10 classes), Task(digits (test), 10 images, 10 classes))
        """
        return split_images(self, seed, test)


def _check_indices(indices: Sequence[int] | np.ndarray, length: int) -> list[int]:
    """The indices as a list, each of them meant: within the task and given once."""
    chosen = np.asarray(indices)
    if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
        raise UsageError(
            f"subset needs a list of image numbers and got {indices!r}: nothing else says which images are meant. "
            "For a mask, pass numpy.flatnonzero(mask)."
        )
    outside = chosen[(chosen < 0) | (chosen >= length)]
    if outside.size or len(np.unique(chosen)) < chosen.size:
        wrong = f"{outside[0]} is outside of 0 to {length - 1}" if outside.size else "some occur twice"
        raise UsageError(
            f"the image numbers of a subset are wrong: {wrong}, so images would be missing or count double. "
            f"Pass every number once, from 0 to {length - 1}."
        )
    return [int(index) for index in chosen]
