"""Samples and splits: every class keeps its share, content decides, nothing lies on both sides."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from task2vec.errors import DataError, UsageError
from task2vec.tasks.subsets import share_out
from tests.tasks.shades import make_task


@st.composite
def tasks(draw, copies: bool = True):
    """A task of 2 to 4 classes; with `copies`, some images are identical, also across classes."""
    n_classes = draw(st.integers(2, 4))
    rest = draw(st.lists(st.integers(0, n_classes - 1), max_size=24))
    labels = [*range(n_classes), *rest]
    shade = st.integers(0, 200)
    shades = draw(st.lists(shade, min_size=len(labels), max_size=len(labels), unique=not copies))
    return make_task(shades, labels, [f"class {number}" for number in range(n_classes)])


@st.composite
def attributes(draw):
    """A multi-label task of distinct images whose columns have two of each answer."""
    rows = draw(st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=3), max_size=12))
    return make_task(range(len(rows) + 4), [[0, 0, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0], *rows], "abc")


def shuffle(task, seed):
    """The same task with images and classes in another order and under other names."""
    rng = np.random.default_rng(seed)
    rows, numbers = rng.permutation(len(task)), rng.permutation(len(task.classes))
    shades = [task.images.shades[row] for row in rows]
    targets = task.targets[rows][:, numbers] if task.is_multilabel else numbers[task.targets[rows]]
    return make_task(shades, targets, [f"other {number}" for number in range(len(numbers))])


@given(tasks(copies=False), st.integers(0, 5), st.data())
def test_a_sample_keeps_the_shares(task, seed, data):
    n = data.draw(st.integers(len(task.classes), len(task)))
    part = task.sample(n, seed)
    assert len(part) == n
    assert part.classes == task.classes
    exact = n * task.counts / len(task)
    assert (part.counts <= task.counts).all()
    # No class is more than one off, but for the ones that are lifted to one image and those that pay for it.
    lifted = np.maximum(1 - exact, 0).sum()
    assert (part.counts >= np.maximum(np.floor(exact) - np.ceil(lifted), 1)).all()
    assert (part.counts <= np.maximum(np.ceil(exact), 1)).all()
    names = [part.images.name(row) for row in range(n)]
    own = {task.images.name(row): task.classes[label] for row, label in enumerate(task.targets.tolist())}
    assert [own[name] for name in names] == [part.classes[label] for label in part.targets.tolist()]


@given(st.one_of(tasks(), attributes()), st.integers(0, 3), st.integers(0, 99))
def test_draws_do_not_depend_on_the_order_of_images_or_classes(task, seed, order):
    other = shuffle(task, order)
    n = max(len(task.classes) + 1, len(task) // 2, 6)
    if n <= len(task):
        assert task.sample(n, seed).fingerprint == other.sample(n, seed).fingerprint
    try:
        parts = [part.fingerprint for part in task.split(seed)]
    except DataError:
        with pytest.raises(DataError, match="split"):
            other.split(seed)
    else:
        assert parts == [part.fingerprint for part in other.split(seed)]


@given(tasks(), st.integers(0, 5), st.sampled_from([0.1, 0.2, 0.5, 0.9]))
def test_a_split_is_disjoint_by_content_and_exhaustive(task, seed, test):
    try:
        train, held = task.split(seed, test=test)
    except DataError:  # copies leave one side with fewer than two classes
        assert len(set(task.digests)) < len(task) or min(task.counts) == 1
        return
    assert not set(train.digests) & set(held.digests)
    assert sorted([*train.digests, *held.digests]) == sorted(task.digests)
    labels = [
        sorted((part.images.name(row), part.classes[label]) for row, label in enumerate(part.targets.tolist()))
        for part in (train, held, task)
    ]
    assert sorted(labels[0] + labels[1]) == labels[2]
    clean = {digest for digest in task.digests if len(set(task.targets[np.array(task.digests) == digest])) == 1}
    for number, name in enumerate(task.classes):
        contents = {task.digests[row] for row in np.flatnonzero(task.targets == number)}
        if len(contents) > 1:
            assert name in train.classes
        if len(contents) > 1 and contents & clean:
            assert name in held.classes
        if name not in held.classes:
            assert any(f"{name!r}" in text and "test part" in text for text in held.warnings)


def test_the_share_of_a_split_is_kept_in_every_class():
    task = make_task(range(100), [0] * 50 + [1] * 30 + [2] * 20, "abc")
    train, held = task.split(test=0.1)
    assert (train.counts.tolist(), held.counts.tolist()) == ([45, 27, 18], [5, 3, 2])
    assert (train.name, held.name) == ("shades (train)", "shades (test)")
    assert task.split()[1].counts.tolist() == [10, 6, 4]


def test_seeds_differ_and_repeat():
    task = make_task(range(60), [0, 1] * 30, "ab")
    for draw in (lambda seed: task.sample(20, seed), lambda seed: task.split(seed)[1]):
        assert len({draw(seed).fingerprint for seed in range(5)}) == 5
        assert draw(3).digests == draw(3).digests
    # Neither of the two draws gives away the other.
    assert not set(task.split(0)[1].digests) <= set(task.sample(20, 0).digests)


def test_every_image_is_drawn_about_as_often():
    task = make_task(range(40), [0, 1] * 20, "ab")
    times = np.zeros(40)
    for seed in range(300):
        drawn = task.sample(10, seed)
        times[[task.digests.index(digest) for digest in drawn.digests]] += 1
    assert abs(times - 75).max() < 4.5 * np.sqrt(300 * 0.25 * 0.75)


def test_a_class_with_one_image_stays_in_training_and_is_told():
    train, held = make_task(range(7), [0, 0, 0, 1, 1, 1, 2], ["a", "b", "lonely"]).split()
    assert train.classes == ("a", "b", "lonely")
    assert held.classes == ("a", "b")
    assert held.warnings[0] == "classes without an image in the test part: 'lonely'"
    assert not any("train part" in text for text in train.warnings)


def test_identical_images_under_two_labels_stay_in_training():
    task = make_task([1, 2, 3, 4, 5, 5], [0, 0, 1, 1, 0, 1], "ab")
    for seed in range(10):
        train, held = task.split(seed, test=0.5)
        assert train.digests.count(task.digests[4]) == 2
        assert held.counts.tolist() == [1, 1]


@given(attributes(), st.integers(0, 5))
def test_several_labels_keep_both_answers_on_both_sides(task, seed):
    train, held = task.split(seed, test=0.3)
    assert not set(train.digests) & set(held.digests)
    assert len(train) + len(held) == len(task)
    for part in (train, held):
        assert part.classes == task.classes
        assert (part.counts > 0).all()
        assert (part.counts < len(part)).all()
    sample = task.sample(min(6, len(task)), seed)
    assert (sample.classes, len(sample)) == (task.classes, min(6, len(task)))


def test_attributes_that_would_become_constant_are_refused():
    once = make_task(range(5), [[0, 1], [1, 1], [0, 0], [0, 1], [0, 0]], ["rare", "fine"])
    with pytest.raises(DataError, match=r"1 attributes have a single image of one answer \('rare'\).*select"):
        once.split()
    with pytest.raises(DataError, match=r"1 images are too few .*2 were needed"):
        once.select(["fine"]).sample(1)


@pytest.mark.parametrize("n", [2, 8, 0, -1])
def test_samples_that_cannot_be_are_refused(n):
    with pytest.raises(UsageError, match=rf"{n} images cannot be drawn .*Ask for 3 to 7"):
        make_task(range(7), [0, 1, 2, 0, 1, 2, 0], "abc").sample(n)


@pytest.mark.parametrize("test", [0, 1, -0.1, 1.5, True, float("nan")])
def test_shares_that_are_none_are_refused(test):
    with pytest.raises(UsageError, match="test="):
        make_task(range(4), [0, 1, 0, 1], "ab").split(test=test)


def test_a_part_with_one_class_is_refused_by_its_name():
    with pytest.raises(DataError, match=r"the test part of a split of 'shades' is no task: .*only one class"):
        make_task(range(3), [0, 0, 1], "ab").split()


def test_whole_numbers_are_shared_out_by_largest_remainder():
    sizes = np.array([5, 3, 2])
    assert share_out(sizes, 4, least=np.zeros(3, int), most=sizes).tolist() == [2, 1, 1]
    assert share_out(sizes, 10, least=np.ones(3, int), most=sizes).tolist() == [5, 3, 2]
    assert share_out(np.array([98, 1, 1]), 4, least=np.ones(3, int), most=np.array([98, 1, 1])).tolist() == [2, 1, 1]


def test_attributes_that_block_each_other_are_tried_again():
    rows = [[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 1, 0], [1, 1, 0, 1]]
    for part in make_task(range(6), rows, "abcd").split(0):
        assert len(part.classes) == 4


def test_the_rarest_answers_choose_first():
    rows = [[1, 1, 1], [0, 0, 1], [1, 1, 0], [0, 1, 1], [0, 1, 1], [1, 1, 0]]
    part = make_task(range(6), rows, "abc").sample(3, 0)
    assert (len(part), part.classes) == (3, ("a", "b", "c"))


@pytest.mark.parametrize("order", range(6))
def test_copies_under_other_labels_are_drawn_the_same_in_any_order(order):
    rows = [[0, 1], [1, 1], [1, 0], [1, 1], [0, 1], [1, 0], [1, 1]]
    task = make_task([5, 5, 5, 6, 6, 6, 7], rows, "ab")
    for seed in range(4):
        for n in (3, 4, 5):
            assert task.sample(n, seed).fingerprint == shuffle(task, order).sample(n, seed).fingerprint
