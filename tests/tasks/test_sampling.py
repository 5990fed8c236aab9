"""Samples, splits and batches: shares kept, nothing twice, and the same whatever the order of images and classes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from task2vec.errors import DataError, UsageError
from task2vec.tasks import draw_batches
from tests.failures import refuse
from tests.tasks.shades import facts, few, make_task


@st.composite
def tasks(draw, copies: bool = True):
    """A task of 2 to 4 classes; with `copies`, some images are identical, also across classes."""
    n_classes = draw(st.integers(2, 4))
    rest = draw(st.lists(st.integers(0, n_classes - 1), max_size=24))
    labels = [*range(n_classes), *rest]
    shades = draw(st.lists(st.integers(0, 200), min_size=len(labels), max_size=len(labels), unique=not copies))
    return make_task(shades, labels, [f"class {number}" for number in range(n_classes)])


@st.composite
def attributes(draw):
    """A multi-label task of distinct images whose columns have two of each value."""
    rows = draw(st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=3), max_size=12))
    return make_task(range(len(rows) + 4), [[0, 0, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0], *rows], "abc")


def shuffle(task, seed):
    """The same task with images and classes in another order and under other names."""
    rng = np.random.default_rng(seed)
    rows, numbers = rng.permutation(len(task)), rng.permutation(len(task.classes))
    shades = [task.images.shades[row] for row in rows]
    targets = task.targets[rows][:, numbers] if task.is_multilabel else numbers[task.targets[rows]]
    return make_task(shades, targets, [f"other {number}" for number in range(len(numbers))])


@few
@given(tasks(copies=False), st.integers(0, 5), st.data())
def test_a_sample_keeps_the_shares(task, seed, data):
    n = data.draw(st.integers(len(task.classes), len(task)))
    part = task.sample(n, seed)
    assert (len(part), part.classes) == (n, task.classes)
    exact = n * task.counts / len(task)
    # No class is more than one off, but for the ones that are lifted to one image and those that pay for it.
    lifted = np.maximum(1 - exact, 0).sum()
    assert (part.counts >= np.maximum(np.floor(exact) - np.ceil(lifted), 1)).all()
    assert (part.counts <= np.minimum(np.maximum(np.ceil(exact), 1), task.counts)).all()
    assert set(facts(part)) <= set(facts(task))


@few
@given(st.one_of(tasks(), attributes()), st.integers(0, 3), st.integers(0, 99))
def test_draws_do_not_depend_on_the_order_of_images_or_classes(task, seed, order):
    other = shuffle(task, order)
    n = max(len(task.classes) + 1, len(task) // 2, 6)
    if n <= len(task):
        assert task.sample(n, seed).fingerprint == other.sample(n, seed).fingerprint
    try:
        parts = [part.fingerprint for part in task.split(seed)]
    except DataError:
        refuse(DataError, "split", other.split, seed)
    else:
        assert parts == [part.fingerprint for part in other.split(seed)]


@few
@given(tasks(), st.integers(0, 5), st.sampled_from([0.1, 0.2, 0.5, 0.9]))
def test_a_split_is_disjoint_by_content_and_exhaustive(task, seed, test):
    try:
        train, held = task.split(seed, test=test)
    except DataError:  # copies leave one side with fewer than two classes
        assert len(set(task.digests)) < len(task) or min(task.counts) == 1
        return
    assert not set(train.digests) & set(held.digests)
    assert sorted(facts(train) + facts(held)) == sorted(facts(task))
    clean = {digest for digest in task.digests if len(set(task.targets[np.array(task.digests) == digest])) == 1}
    for number, name in enumerate(task.classes):
        contents = {task.digests[row] for row in np.flatnonzero(task.targets == number)}
        assert name in train.classes or len(contents) == 1
        assert name in held.classes or len(contents) == 1 or not contents & clean
        if name not in held.classes:
            assert f"{name!r}" in held.warnings[0]


def test_the_share_of_a_split_is_kept_in_every_class_and_rare_ones_keep_an_image():
    assert make_task(range(27), [0] * 25 + [1, 2], "abc").sample(3).counts.tolist() == [1, 1, 1]
    task = make_task(range(100), [0] * 50 + [1] * 30 + [2] * 20, "abc")
    train, held = task.split(test=0.1)
    assert (train.counts.tolist(), held.counts.tolist()) == ([45, 27, 18], [5, 3, 2])
    assert (train.name, held.name) == ("shades (train)", "shades (test)")
    half = make_task(range(9), [0] * 5 + [1] * 4, "ab").choose_test(0)
    assert (half[:5].sum(), half[5:].sum()) == (2, 2)


def test_seeds_differ_and_repeat_and_every_image_is_drawn_about_as_often():
    task = make_task(range(20), [0, 1] * 10, "ab")
    for draw in (lambda seed: task.sample(10, seed), lambda seed: task.split(seed)[1]):
        assert len({draw(seed).fingerprint for seed in range(5)}) == 5
        assert draw(3).digests == draw(3).digests
    assert not set(task.split(0)[1].digests) <= set(task.sample(10, 0).digests)
    times = np.zeros(20)
    for seed in range(200):
        times[[task.digests.index(digest) for digest in task.sample(5, seed).digests]] += 1
    assert abs(times - 50).max() < 4.5 * np.sqrt(200 * 0.25 * 0.75)


def test_single_images_and_conflicting_copies_stay_in_training():
    train, held = make_task(range(7), [0, 0, 0, 1, 1, 1, 2], ["a", "b", "lonely"]).split()
    assert (train.classes, held.classes) == (("a", "b", "lonely"), ("a", "b"))
    assert held.warnings[0] == "classes without an image, left out: 'lonely'"
    task = make_task([1, 2, 3, 4, 5, 5], [0, 0, 1, 1, 0, 1], "ab")
    for seed in range(10):
        train, held = task.split(seed, test=0.5)
        assert (train.digests.count(task.digests[4]), held.counts.tolist()) == (2, [1, 1])


@few
@given(attributes(), st.integers(0, 5))
def test_attributes_keep_both_values_on_both_sides(task, seed):
    train, held = task.split(seed, test=0.3)
    assert not set(train.digests) & set(held.digests)
    assert len(train) + len(held) == len(task)
    for part in (train, held):
        assert part.classes == task.classes
        assert (part.counts > 0).all() and (part.counts < len(part)).all()
    sample = task.sample(min(6, len(task)), seed)
    assert (sample.classes, len(sample)) == (task.classes, min(6, len(task)))


def test_attributes_that_block_each_other_are_tried_again():
    rows = [[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 1, 0], [1, 1, 0, 1]]
    for part in make_task(range(6), rows, "abcd").split(0):
        assert len(part.classes) == 4
    # The rarest values choose first.
    rows = [[1, 1, 1], [0, 0, 1], [1, 1, 0], [0, 1, 1], [0, 1, 1], [1, 1, 0]]
    assert make_task(range(6), rows, "abc").sample(3, 0).classes == ("a", "b", "c")


def test_copies_under_other_labels_are_drawn_the_same_in_any_order():
    task = make_task([5, 5, 5, 6, 6, 6, 7], [[0, 1], [1, 1], [1, 0], [1, 1], [0, 1], [1, 0], [1, 1]], "ab")
    for seed in range(4):
        for n in (3, 4, 5):
            assert task.sample(n, seed).fingerprint == shuffle(task, 1).sample(n, seed).fingerprint


ONCE = make_task(range(5), [[0, 1], [1, 1], [0, 0], [0, 1], [0, 0]], ["rare", "fine"])
THREE = make_task(range(7), [0, 1, 2, 0, 1, 2, 0], "abc")
UNEVEN = make_task(range(23), [0] * 10 + [1] * 10 + [2] * 3, "abc")


@pytest.mark.parametrize(
    ("draw", "error", "message"),
    [
        (ONCE.split, DataError, r"1 attributes have a single positive or negative image \('rare'\).*select"),
        (lambda: ONCE.select(["fine"]).sample(1), DataError, r"1 images are too few .*2 are needed"),
        (lambda: THREE.sample(2), UsageError, r"2 images cannot be sampled .*Choose 3 to 7"),
        (lambda: THREE.split(test=True), UsageError, "test=True"),
        (lambda: THREE.split(test=float("nan")), UsageError, "test=nan"),
        (make_task(range(3), [0, 0, 1], "ab").split, DataError, r"the test part of a split .*: .*only one class"),
        (lambda: draw_batches(UNEVEN, 2, classes=2, images=5), DataError, "23 images.* is enough for 1 batches"),
        (lambda: draw_batches(UNEVEN, classes=4), UsageError, "Choose 2 to 3"),
        (lambda: draw_batches(UNEVEN, classes=2, images=0), UsageError, "cannot be drawn"),
        (lambda: draw_batches(ONCE, classes=2), UsageError, "multi-label"),
        (lambda: draw_batches(UNEVEN, classes=2, images=1, seed=-1), UsageError, "seed=-1"),
    ],
)
def test_impossible_draws_are_refused(draw, error, message):
    refuse(error, message, draw)


def test_batches_share_no_image_and_have_twins_of_the_same_classes():
    task = make_task([*range(160), 0, 1], [n % 5 for n in range(160)] + [0, 1], "abcde")
    label_of = dict(zip(task.digests, task.targets.tolist(), strict=True))
    pairs = draw_batches(task, classes=3, images=2, seed=5)
    shown = [digest for pair in pairs for one in pair for digest in one.digests]
    assert len(shown) == len(set(shown)) == len(pairs) * 2 * 3 * 2  # of copies one counts
    for batch, twin in pairs:
        assert batch.classes == twin.classes and twin.name == f"{batch.name}, twin"
        assert batch.counts.tolist() == twin.counts.tolist() == [2, 2, 2]
        assert [batch.classes[n] for n in batch.targets] == [task.classes[label_of[d]] for d in batch.digests]
    assert {name for batch, _ in pairs for name in batch.classes} == set("abcde")
    again = draw_batches(shuffle(task, 1), classes=3, images=2, seed=5)
    assert [sorted(one.digests) for pair in again for one in pair] == [sorted(one.digests) for p in pairs for one in p]
    assert draw_batches(task, classes=3, images=2, seed=6)[0][0].fingerprint != pairs[0][0].fingerprint
    assert all(len(batch.classes) == 5 for batch, _ in draw_batches(task, classes=None, images=2))
    two = make_task(range(200), [0, 1] * 100, "ab")
    assert [len(draw_batches(two, count, classes=2, images=1)) for count in (None, 25)] == [20, 25]
