"""A task: labelled images, checked once, with a fingerprint of their content.

Two people who have the same images under the same partition have the same task, whatever the names and numbers of the
classes, the order of the images, and the files or dataset that they come from. Images are the same if their decoded
pixels are: with another JPEG decoder, pixels and thus the task may differ. `Task.canonical` makes that exact:
classes are sorted by the SHA-256 of their members and images by their own, so that everything computed afterwards
agrees to the bit. The one exception: where *identical* images have different rows in a multi-label task, columns may
stay tied.
"""

import difflib
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from task2vec.errors import BadImagesError, DataError, UsageError
from task2vec.tasks import sampling
from task2vec.tasks.images import BadImage, Images, StoredImages, choose_images, inspect_images
from task2vec.tasks.sampling import join_groups
from task2vec.tasks.taxonomy import Taxonomy
from task2vec.text import quote

NameOf = Callable[[int], str]
# The share of unreadable images above which a task is refused, if there are several.
MAX_BAD_SHARE = 0.05
MAX_BATCHES = 20
# The name of a task of images in memory, if the caller gives none.
UNNAMED = "unnamed"


class TasksByTaxon(dict[str, "Task"]):
    """The tasks of a rank by the name of their taxon, in the order of the classes.

    Attributes:
        left_out: Why every other taxon, and the classes without one, make no task.
    """

    left_out: dict[str, str]


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """A checked set of labelled images; read `warnings` and `bad` before trusting it.

    Attributes:
        name: The name in tables and figures.
        images: The images, loaded one at a time.
        targets: Class index of every image (int64), or one row of 0 and 1 per image (uint8) for multi-label.
        classes: Name of every class, verbatim.
        digests: SHA-256 of every image's size and pixels, decoded as upright 8-bit RGB.
        bad: Every image that could not be read and was left out.
        notes: Remarks of the reader; `warnings` has these and remarks about the task itself.
        source: The folder or table as given, or the type of the dataset.
        groups: A number for every image (int64), the same for images of one patient, scene or object, also in other
            tasks: they stay in one fold and on one side of a split. None if nothing is known of them. They are not
            part of the fingerprint.

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
    notes: tuple[str, ...] = ()
    source: str = ""
    groups: np.ndarray | None = None

    def __post_init__(self):
        """Refuse anything that is not a task, so that no reader can forget to."""
        lengths = len(self.images), len(self.targets), len(self.digests)
        if len(set(lengths)) > 1:
            given = "{} images, {} labels and {} digests".format(*lengths)
            raise DataError(f"{given} do not belong together: labels would be shifted. Pass the same number of each.")
        targets = check_targets(self.targets, self.classes, self.images.name)
        targets.setflags(write=False)
        object.__setattr__(self, "targets", targets)
        object.__setattr__(self, "classes", tuple(self.classes))
        object.__setattr__(self, "digests", tuple(self.digests))
        if self.groups is not None:
            groups = np.array(self.groups)
            if groups.shape != (len(self),) or groups.dtype.kind not in "iu":
                raise DataError(
                    f"groups of shape {groups.shape} and type {groups.dtype} are not one integer for each of "
                    f"{len(self)} images, so folds could not keep them together. Pass numpy.unique(names, "
                    "return_inverse=True)[1] of the groups' names."
                )
            groups = groups.astype(np.int64)
            groups.setflags(write=False)
            object.__setattr__(self, "groups", groups)

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
    def warnings(self) -> tuple[str, ...]:
        """What is accepted but looks odd: the notes of the source, single images, one-hot columns and copies."""
        warnings = [*self.notes]
        single = [name for name, count in zip(self.classes, self.counts, strict=True) if count == 1]
        if single:
            warnings.append(f"classes with a single image: {quote(single)}; no held-out error can be measured on them")
        if self.is_multilabel and len(self.classes) > 1 and (self.targets.sum(axis=1) == 1).all():
            warnings.append("every image has exactly one positive label: if these are classes, give one per image")
        copies = find_copies(self.digests)
        conflicts = [rows for rows in copies if (self.targets[rows] != self.targets[rows[0]]).any()]
        for warning, groups in (
            (f"images that are exact copies of another: {sum(map(len, copies)) - len(copies)}", copies),
            (f"identical images under different labels: {len(conflicts)} groups", conflicts),
        ):
            if groups:
                warnings.append(f"{warning}, such as {quote([self.images.name(row) for row in groups[0][:2]])}")
        return tuple(warnings)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content: pixels and their partition, not their order nor the names of the classes."""
        image_order, class_order = self.canonical_order
        content = hashlib.sha256(f"task {self.targets.ndim} {len(self)} {len(self.classes)}\n".encode())
        content.update(_sort_digests(self.digests)[0].tobytes())
        content.update(self.renumber(class_order)[image_order].astype("<i8").tobytes())
        return content.hexdigest()

    @cached_property
    def fold_groups(self) -> np.ndarray:
        """(n,) a number for every image, the same for copies and for images of one group: they belong in one fold."""
        copies = _sort_digests(self.digests)[1]
        return copies if self.groups is None else join_groups(copies, self.groups)

    @cached_property
    def groups_key(self) -> str:
        """What tells results with these groups from those with others; empty if no two different images share one."""
        folds, first, numbers = np.unique(
            self.fold_groups[self.canonical_order[0]], return_index=True, return_inverse=True
        )
        if len(folds) == len(set(self.digests)):
            return ""
        return hashlib.sha256(first[numbers].astype("<i8").tobytes()).hexdigest()[:16]

    @cached_property
    def canonical_order(self) -> tuple[list[int], list[int]]:
        """The order of images and of classes that depends on the content only."""
        digests, ranks, order = _sort_digests(self.digests)
        targets = self.targets[order]
        if self.is_multilabel:
            members = [np.flatnonzero(column) for column in targets.T]
        else:
            members = np.split(np.argsort(targets, kind="stable"), np.cumsum(self.counts)[:-1])
        signatures = [hashlib.sha256(digests[rows].tobytes()).hexdigest() for rows in members]
        class_order = sorted(range(len(members)), key=signatures.__getitem__)
        if ranks.max() == len(self) - 1:
            return order.tolist(), class_order
        columns = np.atleast_2d(self.renumber(class_order).T)  # copies of one image are ordered by their labels
        return np.lexsort((*columns[::-1], ranks)).tolist(), class_order

    def renumber(self, class_order: list[int]) -> np.ndarray:
        """The targets once the classes are in the order `class_order`."""
        return self.targets[:, class_order] if self.is_multilabel else np.argsort(class_order)[self.targets]

    def _choose(self, rows: list[int], targets: np.ndarray, classes: Sequence[str], **changes: Any) -> "Task":
        """The task of the images at `rows`, with their new targets and classes."""
        digests = tuple(self.digests[row] for row in rows)
        changes |= {"images": choose_images(self.images, rows), "digests": digests}
        changes["groups"] = None if self.groups is None else self.groups[rows]
        return replace(self, targets=targets, classes=tuple(classes), **changes)

    def canonical(self) -> "Task":
        """The same task in an order that depends on its content alone."""
        image_order, class_order = self.canonical_order
        classes = [self.classes[index] for index in class_order]
        return self._choose(image_order, self.renumber(class_order)[image_order], classes)

    def subset(self, indices: Sequence[int] | np.ndarray) -> "Task":
        """The task of the images at `indices`, with the classes that still have one; a warning names the others."""
        chosen = np.asarray(indices, dtype=None if len(indices) else np.int64)
        is_valid = chosen.ndim == 1 and chosen.dtype.kind in "iu" and set(chosen.tolist()) <= set(range(len(self)))
        if not is_valid or len(np.unique(chosen)) < chosen.size:
            raise UsageError(
                f"subset needs image numbers from 0 to {len(self) - 1}, each once, but got {indices!r}. For a mask, "
                "pass numpy.flatnonzero(mask)."
            )
        targets, classes, notes = drop_empty(self.targets[chosen], self.classes)
        return self._choose(chosen.tolist(), targets, classes, notes=(*self.notes, *notes))

    def select(self, classes: Sequence[str | int], *, name: str | None = None) -> "Task":
        """The task of some classes, by name or number, in the order that they have here.

        A single-label task keeps the images of these classes; a multi-label task keeps all images and these columns.

        Example:
            >>> import task2vec as t2v
            >>> digits = t2v.sample_tasks(images_per_task=40)[0]
            >>> digits.select(["7", "1"], name="one or seven").classes
            ('1', '7')
        """
        if isinstance(classes, (str, int)):
            raise UsageError(f"select needs a list of classes, but got {classes!r}. Pass [{classes!r}, ...].")
        numbers = sorted(self._find_class(kind) for kind in classes)
        fewest = 1 if self.is_multilabel else 2
        if len(set(numbers)) < max(len(numbers), fewest):
            raise UsageError(
                f"select needs {fewest} or more classes of '{self.name}', each once, but got {list(classes)}. For a "
                "binary task of each class, use one_vs_rest()."
            )
        return self._keep_classes(numbers, self.name if name is None else name)

    def _find_class(self, kind: str | int) -> int:
        """The number of one class; an unknown or ambiguous name is refused with close matches."""
        is_number = isinstance(kind, (int, np.integer)) and not isinstance(kind, bool)
        numbers = [n for n, name in enumerate(self.classes) if (n == kind if is_number else name == kind)]
        if len(numbers) == 1:
            return numbers[0]
        if numbers:
            raise UsageError(f"{len(numbers)} classes of '{self.name}' are called {kind!r}. Give a number: {numbers}.")
        close = difflib.get_close_matches(str(kind), self.classes, n=3) or list(self.classes[:3])
        raise UsageError(
            f"'{self.name}' has no class {kind!r} among its {len(self.classes)}, numbered from 0. Similar or first: "
            f"{quote(close)}. For a mask, pass numpy.flatnonzero."
        )

    def _keep_classes(self, numbers: list[int], name: str) -> "Task":
        """The task of some classes and their images; or, multi-label, of columns."""
        classes = tuple(self.classes[number] for number in numbers)
        if self.is_multilabel:
            return replace(self, name=name, targets=self.targets[:, numbers], classes=classes)
        return self._regroup([[number] for number in numbers], classes, name)

    def _regroup(self, groups: Sequence[list[int]], classes: Sequence[str], name: str, *notes: str) -> "Task":
        """The task whose classes are groups of those here, of the images that have one."""
        new_number = np.full(len(self.classes), -1)
        for number, group in enumerate(groups):
            new_number[group] = number
        targets = new_number[self.targets]
        rows = np.flatnonzero(targets >= 0)
        try:
            return self._choose(rows.tolist(), targets[rows], classes, name=name, notes=(*self.notes, *notes))
        except DataError as error:
            raise DataError(f"subset of '{self.name}': {error}") from None

    def by_taxon(self, level: str, taxonomy: Taxonomy) -> TasksByTaxon:
        """One task per taxon of the rank `level`, between the classes of the taxon, by the taxon's name.

        Taxa with a single class make no task; `left_out` of the result names them. `at_taxon` classifies the taxa.

        Example:
            >>> import task2vec as t2v
            >>> digits = t2v.sample_tasks(images_per_task=40)[0].select(["0", "1", "2", "3"])
            >>> tree = t2v.Taxonomy(("shape",), {"0": ("round",), "1": ("straight",), "2": ("bent",), "3": ("bent",)})
            >>> tasks = digits.by_taxon("shape", tree)
            >>> dict(tasks)
            {'bent': Task(digits: bent, 8 images, 2 classes)}
            >>> tasks.left_out["round"]
            "it has a single class with images, '0'"
        """
        groups, unplaced = self._group_classes(level, taxonomy)
        tasks = TasksByTaxon()
        tasks.left_out = {f"no {level}": f"{len(unplaced)} classes have none: {quote(unplaced)}"} if unplaced else {}
        for name, numbers in groups.items():
            if len(numbers) > 1:
                tasks[name] = self._keep_classes(numbers, f"{self.name}: {name}")
            else:
                tasks.left_out[name] = f"it has a single class with images, {self.classes[numbers[0]]!r}"
        return tasks

    def at_taxon(self, level: str, taxonomy: Taxonomy, *, name: str | None = None) -> "Task":
        """The task whose classes are the taxa of the rank `level`: orders, for example, instead of species.

        Images of classes without a taxon of that rank are left out, with a warning.
        """
        if self.is_multilabel:
            raise UsageError(
                f"'{self.name}' is multi-label, so an image may belong to several taxa at once. Use by_taxon instead."
            )
        groups, unplaced = self._group_classes(level, taxonomy)
        n_lost = sum(count for kind, count in zip(self.classes, self.counts, strict=True) if kind in unplaced)
        notes = [f"classes without {level}, left out with {n_lost} images: {quote(unplaced)}"] if unplaced else []
        return self._regroup(list(groups.values()), list(groups), name or f"{self.name} by {level}", *notes)

    def _group_classes(self, level: str, taxonomy: Taxonomy) -> tuple[dict[str, list[int]], list[str]]:
        """The numbers of the classes of every taxon by its name (lineage, if two share it), and classes without one."""
        members = taxonomy.group(self.classes, level)
        unplaced = [self.classes[number] for number in members.pop((), [])]
        times = Counter(taxon[-1] for taxon in members)
        names = [taxon[-1] if times[taxon[-1]] == 1 else " > ".join(filter(None, taxon)) for taxon in members]
        return dict(zip(names, members.values(), strict=True)), unplaced

    def one_vs_rest(self) -> tuple["Task", ...]:
        """One binary task per class or attribute, on the same images.

        Example:
            >>> import task2vec as t2v
            >>> shapes = t2v.sample_tasks(images_per_task=40)[2]
            >>> shapes.one_vs_rest()[0].classes
            ('not circle', 'circle')
        """
        columns = self.targets.T if self.is_multilabel else (self.targets == n for n in range(len(self.classes)))
        return tuple(
            replace(self, name=f"{self.name}: {kind}", targets=column.astype(np.int64), classes=(f"not {kind}", kind))
            for kind, column in zip(self.classes, columns, strict=True)
        )

    def sample(self, n: int, seed: int = 0) -> "Task":
        """`n` images of the task: every class keeps its share of them, and at least one image.

        For multi-label every attribute keeps a positive and a negative image, and its share on average. The sample
        depends on the seed and on the content alone, not on the order of the images.

        Example:
            >>> import task2vec as t2v
            >>> t2v.sample_tasks(images_per_task=40)[0].sample(20).counts.tolist()
            [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
        """
        fewest = 1 if self.is_multilabel else len(self.classes)
        if not fewest <= n <= len(self):
            raise UsageError(
                f"{n} images cannot be sampled from '{self.name}': it has {len(self)}, in {len(self.classes)} classes "
                f"that each keep one. Choose {fewest} to {len(self)}."
            )
        is_chosen = self.choose_sample(n, seed)
        if is_chosen.sum() > n:
            raise DataError(
                f"{n} images are too few for '{self.name}': {is_chosen.sum()} are needed for a positive and a negative "
                f"image of each of its {len(self.classes)} attributes. Choose as many, or select fewer attributes."
            )
        return self._take(is_chosen, f"a sample of {n}")

    def split(self, seed: int = 0, *, test: float = 0.2) -> tuple["Task", "Task"]:
        """A training and a test part without a common image, identical copies included.

        Every class with two different images is in both parts, in about its share; a warning names the others.
        Identical images under different labels stay in the training part. Images of one group (`groups`) are on one
        side. The split depends on seed, content and groups alone.

        Example:
            >>> import task2vec as t2v
            >>> t2v.sample_tasks(images_per_task=40)[0].split(test=0.25)
            (Task(digits (train), 30 images, 10 classes), Task(digits (test), 10 images, 10 classes))
        """
        if isinstance(test, bool) or not 0 < test < 1:
            raise UsageError(f"test={test!r} is not a fraction of the images. Pass a number between 0 and 1, e.g. 0.2.")
        is_test = self.choose_test(seed, test)
        train = replace(self._take(~is_test, "the train part of a split"), name=f"{self.name} (train)")
        held_out = replace(self._take(is_test, "the test part of a split"), name=f"{self.name} (test)")
        return train, held_out

    def choose_sample(self, n: int, seed: int) -> np.ndarray:
        """A mask of the images of `sample`; more than `n` where every attribute needs a positive and a negative one."""
        return sampling.choose_sample(self.digests, self.renumber(self.canonical_order[1]), n, seed)

    def choose_test(self, seed: int, share: float | None = None) -> np.ndarray:
        """A mask of the images of the test part of `split`; None takes half of every class, rounded down."""
        class_order = self.canonical_order[1]
        classes = [self.classes[number] for number in class_order]
        try:
            groups = self.fold_groups if self.groups_key else None
            return sampling.choose_test(self.digests, self.renumber(class_order), classes, seed, share, groups=groups)
        except DataError as error:
            raise DataError(f"'{self.name}' cannot be split: {error}") from None

    def _take(self, mask: np.ndarray, label: str) -> "Task":
        """The task of some images, called `label` in errors; attributes must all be there still."""
        try:
            chosen = self.subset(np.flatnonzero(mask))
        except DataError as error:
            raise DataError(f"{label} of '{self.name}' is not a task: {error}") from None
        if self.is_multilabel and len(chosen.classes) < len(self.classes):
            raise DataError(
                f"{label} of '{self.name}' would lose attributes ({chosen.notes[-1]}). Use more images, another seed, "
                "or fewer attributes: select(classes=...)."
            )
        return chosen


def draw_batches(
    task: Task, batches: int | None = None, *, classes: int | None = 5, images: int = 10, seed: int = 0
) -> list[tuple[Task, Task]]:
    """Pairs of tasks: a batch of some classes, drawn at random, and its twin of the same classes and other images.

    No image is in two batches: batches that share images would look alike for that alone. The draw depends on the seed
    and on the content alone, not on the order of the images. Of identical images one counts.

    Args:
        task: The collection, with one label for each image.
        batches: How many; None takes as many as there are images for, 20 at most.
        classes: How many of its classes are in each batch; None takes all.
        images: Of each class in a batch, and as many again in its twin.
        seed: Of the draw.

    Example:
        >>> from task2vec import sample_tasks
        >>> digits = sample_tasks(images_per_task=100)[0]
        >>> [(batch, twin), *others] = draw_batches(digits, classes=4, images=2)
        >>> batch, twin.classes == batch.classes, len(others)
        (Task(digits batch 1, 8 images, 4 classes), True, 3)
    """
    if task.is_multilabel:
        raise UsageError(f"'{task.name}' is multi-label, so it has no batches of classes. Use one_vs_rest().")
    classes = len(task.classes) if classes is None else classes
    if not 2 <= classes <= len(task.classes) or images < 1 or (batches is not None and batches < 1):
        raise UsageError(
            f"{batches} batches of {classes} classes (--classes) with {images} images each (--shots) "
            f"cannot be drawn from '{task.name}'. Choose 2 to {len(task.classes)} classes, and 1 or more of the others."
        )
    canonical = task.canonical()
    rng = sampling.make_rng(seed, f"batches of {classes} classes and {images} images")
    unique = np.unique(np.array(canonical.digests), return_index=True)[1]
    left = [rng.permutation(unique[canonical.targets[unique] == number]) for number in range(len(task.classes))]
    drawn = []
    while len(drawn) < (MAX_BATCHES if batches is None else batches):
        rich = [number for number, rows in enumerate(left) if len(rows) >= 2 * images]
        if len(rich) < classes:
            break
        chosen = rng.choice(rich, classes, replace=False)
        name = f"{task.name} batch {len(drawn) + 1}"
        batch, twin = (
            canonical.subset(np.sort(np.concatenate([left[number][start : 2 * images : 2] for number in chosen])))
            for start in (0, 1)
        )
        drawn.append((replace(batch, name=name, notes=()), replace(twin, name=f"{name}, twin", notes=())))
        for number in chosen:
            left[number] = left[number][2 * images :]
    if not drawn or (batches is not None and len(drawn) < batches):
        raise DataError(
            f"{task} is enough for {len(drawn)} batches: each takes {classes} classes with twice {images} images, and "
            "no image is in two. Choose fewer batches (batches=), classes (--classes) or images of a class (--shots)."
        )
    return drawn


def make_task(
    images: StoredImages,
    labels: np.ndarray,
    classes: Sequence[str],
    name: str,
    source: str,
    notes: Sequence[str] = (),
    *,
    allow_bad: bool,
    num_workers: int | None = None,
    progress: bool = False,
    outcomes: Sequence[tuple[str, str] | BadImage] | None = None,
    refused: Sequence[BadImage] = (),
    groups: Sequence[object] | None = None,
) -> Task:
    """The task of the images that can be read, unless too many cannot.

    `images` have no checksums yet: `inspect_images` finds them, or has already returned them as `outcomes`. `groups`
    are the names of the group of each.
    """
    if outcomes is None:
        outcomes = inspect_images(images, name=name, num_workers=num_workers, progress=progress)
    good = [row for row, outcome in enumerate(outcomes) if not isinstance(outcome, BadImage)]
    hashes = [outcome for outcome in outcomes if not isinstance(outcome, BadImage)]
    bad = (*refused, *(outcome for outcome in outcomes if isinstance(outcome, BadImage)))
    reasons = refuse_many(bad, len(bad) + len(good), source, allow_bad=allow_bad)
    images = replace(
        images,
        keys=[images.keys[row] for row in good],
        names=[images.names[row] for row in good],
        checksums=tuple(checksum for _, checksum in hashes),
    )
    digests = tuple(digest for digest, _ in hashes)
    before = count_images(labels, len(classes))
    labels = labels[good]
    is_lost = count_images(labels, len(classes)) == 0
    if labels.ndim == 1 and set(before[is_lost].tolist()) == {1} and (~is_lost).sum() > 1:
        labels, classes, lost = drop_empty(labels, classes)
        notes = (*notes, f"{lost[0]}; their only image cannot be read")
    numbers = None if groups is None else number_groups([groups[row] for row in good])
    try:
        return Task(name, images, labels, tuple(classes), digests, bad, tuple(notes), source, numbers)
    except DataError as error:
        raise DataError(f"{source}: {error}{reasons}") from None


def concatenate_groups(tasks: Sequence[Task]) -> np.ndarray | None:
    """The groups of the images of all tasks, one after the other; images of a task without groups are their own."""
    if all(task.groups is None for task in tasks):
        return None
    return np.concatenate([number_groups(task.digests) if task.groups is None else task.groups for task in tasks])


def number_groups(names: Sequence[object]) -> np.ndarray:
    """(n,) a number for every name of a group; it depends on the name alone, so that tasks can be joined."""
    hashes = {name: hashlib.sha256(str(name).encode(errors="surrogatepass")).digest() for name in set(names)}
    return np.array([int.from_bytes(hashes[name][:8], "big") >> 1 for name in names], dtype=np.int64)


def refuse_many(bad: Sequence[BadImage], total: int, source: str, *, allow_bad: bool) -> str:
    """The first reasons why images cannot be read, as a sentence; `BadImagesError` if too many cannot."""
    shown = "; ".join(f"{item.path!r}: {item.reason}" for item in bad[:5])
    more = f"; and {len(bad) - 5} more" if len(bad) > 5 else ""
    reasons = f" Bad: {shown}{more}." if bad else ""
    if len(bad) > max(1, MAX_BAD_SHARE * total) and not allow_bad:  # a single one is no reason to stop
        raise BadImagesError(
            f"{source}: {len(bad)} of {total} images cannot be read, more than {MAX_BAD_SHARE:.0%}, so the rest may "
            f"not represent the task.{reasons} Repair or remove them, or pass allow_bad=True (--allow-bad).",
            bad=tuple(bad),
        )
    return reasons


def check_labels(labels: np.ndarray, n_classes: int, name_of: NameOf) -> np.ndarray:
    """The labels as int64 class indices or uint8 rows of 0 and 1; the first that is neither is refused by its row."""
    labels = np.asarray(labels)
    if labels.ndim == 1:
        # Indexing with a float or a missing value would guess a class.
        is_valid = (labels >= 0) & (labels < n_classes) if labels.dtype.kind in "iu" else np.zeros(len(labels), bool)
        expected = f"a class index, an integer from 0{f' to {n_classes - 1}' if n_classes else ''}"
    elif labels.ndim == 2 and labels.shape[1] == n_classes:
        is_valid = ((labels == 0) | (labels == 1)).all(axis=1)
        expected = f"a row of {n_classes} values that are 0 or 1"
    else:
        raise DataError(
            f"labels of shape {labels.shape} are neither one class index per image nor one column for each of "
            f"{n_classes} classes. Pass shape (images,) or (images, {n_classes})."
        )
    if not is_valid.all():
        row = int(np.argmin(is_valid))
        raise DataError(
            f"the label of {name_of(row)} (row {row}) is {np.asarray(labels[row]).tolist()!r}, not {expected}, and "
            "guessing one would change the task. Correct the label or leave the image out."
        )
    return labels.astype(np.int64 if labels.ndim == 1 else np.uint8)


def check_targets(targets: np.ndarray, classes: Sequence[str], name_of: NameOf) -> np.ndarray:
    """Checked labels of a task that can be learned: two classes or more, each with an image, no constant attribute."""
    targets = check_labels(targets, len(classes), name_of)
    if len(targets) == 0:
        raise DataError("the task has no images, so there is nothing to embed. Check the folder, table or dataset.")
    is_multilabel = targets.ndim == 2
    if len(classes) < (1 if is_multilabel else 2):
        present = f"only one class ({quote(classes)})" if classes else "no class"
        raise DataError(f"the task has {present}, but a classifier needs two. Add a second class of any images.")
    empty = [classes[number] for number in np.flatnonzero(~_is_informative(targets, len(classes))).tolist()]
    if empty:
        problem = "label columns have one value for every image" if is_multilabel else "classes have no readable image"
        raise DataError(
            f"{len(empty)} of {len(classes)} {problem} ({quote(empty)}), so nothing can be learned about them, and "
            "leaving them out would change the task. Add or repair images, or remove them yourself."
        )
    return targets


def _is_informative(targets: np.ndarray, n_classes: int) -> np.ndarray:
    """Of every class, whether an image has it; for multi-label, whether some have it and some do not."""
    counts = count_images(targets, n_classes)
    return (counts > 0) & (counts < len(targets)) if targets.ndim == 2 else counts > 0


def count_images(targets: np.ndarray, n_classes: int) -> np.ndarray:
    """The number of images of every class; for multi-label, of positive images."""
    return targets.sum(axis=0, dtype=np.int64) if targets.ndim == 2 else np.bincount(targets, minlength=n_classes)


def drop_empty(labels: np.ndarray, classes: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """Labels and classes without classes of no image and constant attributes, and a note that names these."""
    is_multilabel = labels.ndim == 2
    is_kept = _is_informative(labels, len(classes))
    kept = np.flatnonzero(is_kept).tolist()
    absent = [classes[number] for number in np.flatnonzero(~is_kept).tolist()]
    problem = "attributes with one value for all images" if is_multilabel else "classes without an image"
    notes = (f"{problem}, left out: {quote(absent)}",) if absent else ()
    labels = labels[:, kept] if is_multilabel else np.searchsorted(kept, labels)
    return labels, tuple(classes[number] for number in kept), notes


@lru_cache(maxsize=1)  # many tasks may be on the same images
def _sort_digests(digests: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sorted digests as bytes, the rank of each image among the different ones, and the order of the images."""
    names, ranks = np.unique(np.array([digest.encode() for digest in digests]), return_inverse=True)
    order = np.argsort(ranks, kind="stable")
    return names[ranks[order]], ranks, order


@lru_cache(maxsize=1)  # as above
def find_copies(digests: tuple[str, ...]) -> list[list[int]]:
    """The rows of every image that occurs more than once, one list for each."""
    rows_of = defaultdict(list)
    for row, digest in enumerate(digests):
        rows_of[digest].append(row)
    return [rows for rows in rows_of.values() if len(rows) > 1]
