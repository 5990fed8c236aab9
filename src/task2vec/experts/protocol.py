"""How the error of a task on a model is measured: protocol, splits of the images, and the error with its interval.

Splits are decided by the seed and the content of the images, by SHA-256: not by their order, the names and numbers of
classes, or the version of a random generator. A task may also come with test images of its own, as published datasets
do; then nothing is split, and the classes of both are matched by their names.

The 95% interval of an error covers other test images of the same kind; the spread over seeds covers other training
images. The bootstrap knows only what it has seen: where nothing is wrong, nothing is wrong in any resample, and its
interval would be 0 to 0 however few the images. There (and where all is wrong) the other end is Wilson's, for as many
images as the mean over classes is worth: its variance is that of a share of n images with 1/n = mean of 1/n_c, over the
number of classes where these have different images. Attributes share their images, and may all be wrong at once, so
they count as one.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Any, Literal

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks import Task
from task2vec.tasks.images import ChosenImages
from task2vec.tasks.task import concatenate_groups
from task2vec.text import pluralize, quote

CLASSIFIERS = ("logistic", "achille2019")
MEASURES = ("usual", "balanced", "precision")
# "half" of the images, "all" where the task has test images of its own, or a number per class.
Shots = Literal["half", "all"] | int
# Increased when the same protocol gives different numbers, beyond rounding: stored errors are then measured again.
RECIPE = 2
_Z = 1.959964  # of 95%
_RESAMPLES = 500


# How the paper trains a linear classifier: epochs, images per epoch (with replacement, uniformly over classes), Adam.
# It does not give batch size and start, here 64 and zero.
EPOCHS = 16
DRAWS = 10_000
ADAM = {"batch": 64, "rate": 1e-4, "weight_decay": 5e-4}


@dataclass(frozen=True)
class ErrorProtocol:
    """How a linear classifier on a model's features is trained and tested; only errors of one protocol compare.

    The images of every class are halved by the seed: one half is for training, the other for testing. A smaller
    training set is drawn from the training half, so that all sizes are tested on the same images. A task that comes
    with test images of its own is tested on all of these instead.

    Attributes:
        shots: "half" trains on the whole half; "all", on all images of a task that comes with its own test images; a
            number, on that many images per class, or on all where there are fewer. For attributes, on that many images
            of each of their values.
        classifier: "logistic" is fitted to its optimum, with an L2 penalty chosen by cross-validation within the
            training images; "achille2019" is trained by Adam as in the paper. Both give every class the same weight.
        measure: "usual" is the share of test images that are wrong, as in the paper, and for attributes "balanced".
            "balanced" is the mean over classes of the share that is wrong; for attributes, over both values of each,
            then over attributes. "precision", for attributes alone, is one minus the mean average precision.

    Example:
        >>> ErrorProtocol(shots=5).key
        'linear-2, train 5, logistic, usual'
    """

    shots: Shots = "half"
    classifier: str = "logistic"
    measure: str = "usual"

    def __post_init__(self):
        """Refuse invalid values."""
        is_count = isinstance(self.shots, int) and not isinstance(self.shots, bool) and self.shots >= 1
        if self.shots not in ("half", "all") and not is_count:
            raise UsageError(
                f"shots={self.shots!r} (--shots) is not a valid size of a training set. Use 'half' of the images, "
                "'all' of them where a task has its own test images, or a number of images per class, such as 5."
            )
        for name, allowed in (("classifier", CLASSIFIERS), ("measure", MEASURES)):
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name}={getattr(self, name)!r} is unknown. Choose one of {', '.join(allowed)}.")

    @property
    def key(self) -> str:
        """The protocol in one line, the same as long as the numbers are; errors are kept under it."""
        return f"linear-{RECIPE}, train {self.shots}, {self.classifier}, {self.measure}"


def check_protocols(protocols: Iterable[ErrorProtocol], *, has_tests: bool) -> tuple[ErrorProtocol, ...]:
    """The protocols, if tasks with (or without) test images of their own can be measured by them."""
    protocols = tuple(protocols)
    unusable = "half" if has_tests else "all"
    if any(protocol.shots == unusable for protocol in protocols):
        raise UsageError(
            "shots='half' (--shots) splits the images of a task, but tests (--test-split) are given, so half of the "
            "training images would be wasted. Use 'all', or a number of images per class."
            if has_tests
            else "shots='all' (--shots) trains on all images of a task, so none would be left to test on. Pass tests "
            "(--test-split), or use 'half', or a number of images per class."
        )
    return protocols


# --- splits ----------------------------------------------------------------------------------------------------------


def choose_test_half(task: Task, seed: int) -> np.ndarray:
    """A mask of the test images: half of those of each class, one less than the training images if they are odd.

    Identical copies are all on one side, and so are the images of a group. A class with a single image is trained on
    and not tested, and so are identical images under different labels. Attributes keep both values on both sides.

    Example:
        >>> from task2vec import sample_tasks
        >>> digits = sample_tasks(images_per_task=40)[0]
        >>> int(choose_test_half(digits, seed=0).sum())
        20
    """
    is_test = task.choose_test(seed)
    if not is_test.any():
        raise DataError(
            f"'{task.name}' has no class with two different images, so none is left to test on once every class has "
            "one to train on. Add images, or leave the task out."
        )
    return is_test


def choose_training(task: Task, is_test: np.ndarray, *, shots: Shots, seed: int) -> np.ndarray:
    """A mask of the training images among those that are not tested: all, or `shots` different ones per class.

    A class that has fewer gives all it has. For attributes, images are taken in the order of the draw if they answer
    an attribute in a way that fewer than `shots` images before them do. With one label per image, a smaller draw is
    a part of a larger one of the same seed.
    """
    if shots in ("half", "all"):
        return ~is_test
    hashes = [hashlib.sha256(f"draw {seed} {digest}".encode()).digest() for digest in task.digests]
    # One copy stands for all: further copies would add weight but no information.
    copies: set[tuple[str, bytes]] = set()
    classes = np.arange(len(task.classes))
    one_hot = task.targets == 1 if task.is_multilabel else task.targets[:, None] == classes
    answers = np.hstack([one_hot, ~one_hot]) if task.is_multilabel else one_hot
    chosen = np.zeros(len(task), dtype=bool)
    seen = np.zeros(answers.shape[1], dtype=np.int64)
    for row in sorted(range(len(task)), key=hashes.__getitem__):
        content = (task.digests[row], task.targets[row].tobytes())
        if content not in copies and not is_test[row] and (answers[row] & (seen < shots)).any():
            chosen[row] = True
            seen += answers[row]
        copies.add(content)
    return chosen


# --- test images that a task comes with ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MatchedTest:
    """The test images that a task comes with, in the classes of the task; `match_test` makes it.

    Attributes:
        task: that the images belong to.
        test: the task of the test images.
        targets: of the test images, in the class numbers of the task; attributes that are not tested are 0.
        tested: numbers of the classes that have test images, ascending.
        warnings: what is odd about them and was accepted.
    """

    task: Task
    test: Task
    targets: np.ndarray
    tested: np.ndarray
    warnings: tuple[str, ...]

    def join(self) -> Task:
        """All images as one task: those of the task, then the test images."""
        prefixes = (f"{self.task.name}: ", f"{self.test.name}: ")
        places = [(0, row) for row in range(len(self.task))] + [(1, row) for row in range(len(self.test))]
        images = ChosenImages((self.task.images, self.test.images), places, prefixes)
        targets = np.concatenate([self.task.targets, self.targets])
        digests, groups = self.task.digests + self.test.digests, concatenate_groups([self.task, self.test])
        return replace(self.task, images=images, targets=targets, digests=digests, groups=groups)

    def describe(self) -> dict[str, Any]:
        """The test images as plain values."""
        about = {"name": self.test.name, "fingerprint": self.test.fingerprint, "images": len(self.test)}
        return about | {"key": self.key, "warnings": list(self.warnings)}

    @cached_property
    def key(self) -> str:
        """What distinguishes errors on these images in the key of a protocol, if the task is in its canonical order.

        Like a fingerprint it depends on images and classes, not on their names and order.
        """
        content = hashlib.sha256(b"test %d %d\n" % (self.targets.ndim, len(self.test)))
        content.update(self.tested.astype("<i8").tobytes())
        rows = zip(self.test.digests, self.targets.astype("<i8"), strict=True)
        for row in sorted(digest.encode() + target.tobytes() for digest, target in rows):
            content.update(row)
        return f"test {content.hexdigest()[:16]}"


def match_test(task: Task, test: Task) -> MatchedTest:
    """The test images of a task, whose classes are matched by their names.

    An image of a class that the task lacks could only be wrong, so it is refused; attributes that the task lacks are
    left out. Classes without test images are not tested. Images of both stay in both, as they were published, and are
    counted. Each of these gives a warning.

    Raises:
        DataError: They are not test images of this task.

    Example:
        >>> from task2vec import sample_tasks
        >>> train, test = sample_tasks(images_per_task=40)[0].split()
        >>> matched = match_test(train, test.select(["7", "3"]))
        >>> matched.tested.tolist(), matched.warnings
        ([3, 7], ("classes without test images: '0', '1', '2', '4', '5' and 3 more; the error does not cover them",))
    """
    subject = f"the test images '{test.name}' of the task '{task.name}'"
    if task.is_multilabel != test.is_multilabel:
        kinds = ("one class per image", "any number of attributes per image")
        raise DataError(
            f"{subject} have {kinds[test.is_multilabel]}, and the task has {kinds[task.is_multilabel]}, so none of its "
            "predictions could be checked. Read both in the same way."
        )
    for side in (task, test):
        if len(set(side.classes)) < len(side.classes):
            name, times = Counter(side.classes).most_common(1)[0]
            raise DataError(
                f"{times} classes of '{side.name}' are called {name!r}, so it is unclear which of them {subject} "
                "belong to: classes are matched by name. Rename them: dataclasses.replace(task, classes=...)."
            )
    numbers = {name: number for number, name in enumerate(task.classes)}
    unknown = [name for name in test.classes if name not in numbers]
    if len(unknown) == len(test.classes) or (unknown and not task.is_multilabel):
        raise DataError(
            f"{subject} have {pluralize(len(unknown), 'class')} that the task lacks ({quote(unknown)}), so all of "
            "their images would count as wrong. Add training images of them, or leave them out: test.select([name for "
            "name in test.classes if name in task.classes])."
        )
    known = set(task.digests)
    copies = [row for row, digest in enumerate(test.digests) if digest in known]
    if len(copies) == len(test):
        raise DataError(
            f"{subject} are all training images as well, so the error would be that of training. Pass other images, or "
            "no test images: then half of the images of the task are for testing."
        )
    noun = "attributes" if task.is_multilabel else "classes"
    untested = [name for name in task.classes if name not in test.classes]
    notes = (
        (untested, f"{noun} without test images: {quote(untested)}; the error does not cover them"),
        (unknown, f"{noun} without training images, left out of the test: {quote(unknown)}"),
        (copies, f"test images that are exact copies of training images: {len(copies)} of {len(test)}, such as "
                 f"{quote([test.images.name(row) for row in copies[:2]])}; the error may be too low"),
    )  # fmt: skip
    places = np.array([numbers.get(name, -1) for name in test.classes])
    targets = places[test.targets] if not task.is_multilabel else np.zeros((len(test), len(task.classes)), np.uint8)
    if task.is_multilabel:
        targets[:, places[places >= 0]] = test.targets[:, places >= 0]
    return MatchedTest(task, test, targets, np.sort(places[places >= 0]), tuple(text for items, text in notes if items))


# --- errors and their intervals --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """An error and the ends of its confidence interval."""

    error: float
    low: float
    high: float


def wilson_interval(mistakes: float, count: float) -> Score:
    """The share of mistakes among test images, with Wilson's interval.

    Example:
        >>> score = wilson_interval(3, 10)
        >>> round(score.low, 3), score.error, round(score.high, 3)
        (0.108, 0.3, 0.603)
    """
    share = mistakes / count
    spare = _Z**2 / count
    middle = (share + spare / 2) / (1 + spare)
    reach = sqrt(spare * share * (1 - share) + spare**2 / 4) / (1 + spare)
    return Score(share, min(max(middle - reach, 0.0), share), max(min(middle + reach, 1.0), share))


def score_balanced(mistakes: np.ndarray, targets: np.ndarray) -> Score:
    """The mean over classes of the share of mistakes, with a bootstrap interval.

    `mistakes` is (n,) for (n,) class numbers. For attributes both are (n, c), and the mean is over their answers.
    """
    if targets.ndim == 1:
        belongs = (targets[:, None] == np.unique(targets)).astype(np.float64)
        missed = belongs * mistakes[:, None]
        apart = belongs.shape[1]
    else:
        belongs = np.hstack([targets, 1 - targets]).astype(np.float64)
        missed = belongs * np.hstack([mistakes, mistakes])
        apart = 2  # the answers to one attribute

    def measure(weights: np.ndarray) -> np.ndarray:
        return _mean_known(weights @ missed, weights @ belongs)

    return _resample(measure, len(mistakes), worth=apart * _mean_count(belongs))


def score_precision(logits: np.ndarray, targets: np.ndarray) -> Score:
    """One minus the mean over attributes of the average precision, with a bootstrap interval."""

    def measure(weights: np.ndarray) -> np.ndarray:
        sums = np.zeros((2, len(weights), targets.shape[1]))
        for column, (scores, is_true) in enumerate(zip(logits.T, targets.T, strict=True)):
            order = np.argsort(-scores, kind="stable")
            # Equal scores are called together, so all of them count in the precision of each.
            ends = np.searchsorted(-scores[order], -scores[order], side="right") - 1
            called = weights[:, order]
            hits = weights[:, order] * is_true[order]
            precision = hits.cumsum(1)[:, ends] / np.maximum(called.cumsum(1)[:, ends], 1e-12)
            sums[0, :, column] = (hits * precision).sum(1)
            sums[1, :, column] = hits.sum(1)
        return 1 - _mean_known(*sums)

    # Each positive has a precision, and a missed one costs no more than its share.
    return _resample(measure, len(targets), worth=_mean_count(targets))


def _mean_count(belongs: np.ndarray) -> float:
    """The harmonic mean of how many images the columns have; those without any do not count."""
    counts = belongs.sum(0)
    return 1 / float((1 / counts[counts > 0]).mean())


def _mean_known(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    """The mean over columns of parts / wholes; a column that is empty in a resample does not count."""
    is_known = wholes > 0
    shares = np.divide(parts, wholes, out=np.zeros_like(parts), where=is_known)
    return shares.sum(1) / np.maximum(is_known.sum(1), 1)


def _resample(measure: Callable[[np.ndarray], np.ndarray], count: int, *, worth: float) -> Score:
    """`measure` of the images, with the middle 95% of its values over bootstrap resamples.

    If these are all 0 or all 1, the other end is Wilson's, for a share of `worth` images.
    """
    error = float(measure(np.ones((1, count)))[0])
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    low, high = np.quantile(measure(draws.astype(np.float64)), [0.025, 0.975]).tolist()
    if low == high and error in (0.0, 1.0):
        known = wilson_interval(error * worth, worth)
        low, high = known.low, known.high
    return Score(*(min(max(value, 0.0), 1.0) for value in (error, min(low, error), max(high, error))))
