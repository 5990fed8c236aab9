"""Halves and draws: every class keeps its share, copies stay together, and only seed and content decide."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from task2vec.errors import DataError
from task2vec.experts.splits import choose_test_half, choose_training
from task2vec.tasks import from_dataset
from tests.embedding.conftest import make_attributes, make_task, pictures

SEEDS = range(4)


def copied():
    """Pictures of three classes, of which some are there twice or three times."""
    images, labels = pictures((8, 7, 6))
    rows = [*range(21), 0, 0, 9, 20]
    return from_dataset([(images[row], labels[row]) for row in rows], name="copied")


@pytest.mark.parametrize("counts", [(9, 7, 6), (4, 2, 12), (2, 2), (1, 1, 1, 1, 8)])
def test_every_class_is_halved(counts):
    task = make_task(counts)
    for seed in SEEDS:
        is_test = choose_test_half(task, seed)
        for label, count in enumerate(counts):
            assert int(is_test[task.targets == label].sum()) == count // 2


def test_seeds_choose_others():
    task = make_task((20, 20))
    halves = {choose_test_half(task, seed).tobytes() for seed in SEEDS}
    draws = {choose_training(task, np.zeros(40, bool), train=5, seed=seed).tobytes() for seed in SEEDS}
    assert len(halves) == len(draws) == len(SEEDS)


def test_copies_are_on_one_side_and_drawn_once():
    task = copied()
    for seed in SEEDS:
        is_test = choose_test_half(task, seed)
        sides = {
            digest: {bool(is_test[i]) for i, own in enumerate(task.digests) if own == digest} for digest in task.digests
        }
        assert all(len(side) == 1 for side in sides.values())
        train = choose_training(task, is_test, train=3, seed=seed)
        drawn = [task.digests[row] for row in np.flatnonzero(train)]
        assert len(set(drawn)) == len(drawn)
        assert not (train & is_test).any()


@pytest.mark.parametrize("train", ["half", 2])
@pytest.mark.parametrize("make", [copied, make_attributes], ids=["single", "multi"])
def test_neither_order_nor_names_matter(make, train):
    task = make()
    shuffled = task.subset(np.random.default_rng(0).permutation(len(task)))
    for seed in SEEDS:
        chosen = []
        for one in (task, shuffled):
            is_test = choose_test_half(one, seed)
            mask = choose_training(one, is_test, train=train, seed=seed)
            sides = [sorted(one.digests[row] for row in np.flatnonzero(side)) for side in (is_test, mask)]
            chosen.append(sides)
        assert chosen[0] == chosen[1]


def test_so_many_of_each_class_and_smaller_draws_within_larger_ones():
    task = make_task((20, 9, 3))
    is_test = choose_test_half(task, 1)
    there = np.bincount(task.targets[~is_test])
    before = np.zeros(len(task), dtype=bool)
    for train in (1, 2, 5, 100):
        mask = choose_training(task, is_test, train=train, seed=1)
        assert np.bincount(task.targets[mask]).tolist() == np.minimum(there, train).tolist()
        assert not (mask & is_test).any() and (before <= mask).all()
        before = mask
    assert np.array_equal(before, choose_training(task, is_test, train="half", seed=1))
    assert np.array_equal(before, ~is_test)


def test_draws_are_not_always_the_same_images_of_the_half():
    # The draw has an order of its own: else the first images of the half would be those next to the test images.
    task = make_task((40, 40))
    shares = np.mean([choose_training(task, np.zeros(80, bool), train=5, seed=seed) for seed in range(60)], axis=0)
    assert shares.min() > 0 and shares.max() < 0.4


def test_attributes_have_both_answers_in_every_part():
    task = make_attributes(60)
    for seed in SEEDS:
        is_test = choose_test_half(task, seed)
        mask = choose_training(task, is_test, train=2, seed=seed)
        for side in (is_test, ~is_test, mask):
            share = task.targets[side].mean(0)
            assert (share > 0).all() and (share < 1).all()
        for answer in (0, 1):
            assert ((task.targets[mask] == answer).sum(0) >= 2).all()
        assert mask.sum() < 20 and not (mask & is_test).any()


def test_a_class_with_one_image_is_trained_on_and_not_tested():
    task = make_task((6, 1))
    for seed in SEEDS:
        is_test = choose_test_half(task, seed)
        assert not is_test[task.targets == 1].any() and is_test.sum() == 3


def test_nothing_to_test_on_is_said():
    with pytest.raises(DataError, match="no class with two different images"):
        choose_test_half(make_task((1, 1)), 0)
    image = Image.new("RGB", (8, 8))
    other = Image.new("RGB", (8, 8), (9, 9, 9))
    same = from_dataset([(image, 0), (image, 0), (other, 1), (other, 1)], name="copies alone")
    with pytest.raises(DataError, match="'copies alone'"):
        choose_test_half(same, 0)


def test_no_more_images_of_an_attribute_than_are_asked_for():
    task = make_attributes(60)
    same = replace(task, targets=np.repeat(task.targets[:, :1], 3, axis=1))  # then no image serves another attribute
    nobody = np.zeros(60, dtype=bool)
    for train in (1, 4):
        mask = choose_training(same, nobody, train=train, seed=0)
        assert [int((same.targets[mask, 0] == answer).sum()) for answer in (0, 1)] == [train, train]
