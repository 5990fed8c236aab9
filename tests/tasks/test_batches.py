"""Batches of a collection: what is in them, and that nothing is in two."""

import numpy as np
import pytest
from PIL import Image

from task2vec import from_dataset
from task2vec.errors import DataError, UsageError
from task2vec.tasks import draw_batches
from task2vec.tasks.subsets import MAX_BATCHES


def paint(counts, *, order=None, copies=()):
    """A task with so many images of each class, no two of them the same but for the copies."""
    rows = [(label, number) for label, count in enumerate(counts) for number in range(count)]
    rows += [rows[place] for place in copies]
    rows = rows if order is None else [rows[place] for place in order]
    pictures = [(Image.new("RGB", (4, 4), (50 * label, number % 256, number // 256)), label) for label, number in rows]
    return from_dataset(pictures, classes=[f"class {label}" for label in range(len(counts))], name="paint")


def list_images(pairs):
    return [digest for pair in pairs for one in pair for digest in one.digests]


def test_no_image_is_in_two_of_them():
    pairs = draw_batches(paint([40] * 6), classes=3, images=4)
    shown = list_images(pairs)
    assert len(shown) == len(set(shown)) == len(pairs) * 2 * 3 * 4
    assert len(pairs) >= 8


def test_a_twin_has_the_same_classes_and_as_many_images_of_each():
    for batch, twin in draw_batches(paint([30, 20, 25, 40]), classes=2, images=3):
        assert batch.classes == twin.classes and len(batch.classes) == 2
        assert batch.counts.tolist() == twin.counts.tolist() == [3, 3]
        assert twin.name == f"{batch.name}, twin"


def test_labels_are_kept():
    task = paint([20] * 5)
    label_of = dict(zip(task.digests, (task.classes[target] for target in task.targets), strict=True))
    for pair in draw_batches(task, classes=3, images=2):
        for one in pair:
            told = [one.classes[target] for target in one.targets]
            assert told == [label_of[digest] for digest in one.digests]


def test_the_draw_depends_on_content_and_seed_alone():
    order = np.random.default_rng(0).permutation(120)
    draws = [draw_batches(paint([30] * 4, order=each), classes=2, images=3, seed=5) for each in (None, order)]
    one, other = ([sorted(task.digests) for pair in pairs for task in pair] for pairs in draws)
    assert one == other
    assert sorted(draw_batches(paint([30] * 4), classes=2, images=3, seed=6)[0][0].digests) != one[0]


def test_every_class_has_its_turn_and_all_may_be_in_each():
    pairs = draw_batches(paint([200] * 6), 12, classes=2, images=2)
    assert len(pairs) == 12
    assert {name for batch, _ in pairs for name in batch.classes} == {f"class {n}" for n in range(6)}
    whole = draw_batches(paint([12] * 3), classes=None, images=2)
    assert len(whole) == 3 and all(len(batch.classes) == 3 for batch, _ in whole)


def test_identical_images_count_once():
    task = paint([8, 8], copies=[0, 1, 2, 9])
    pairs = draw_batches(task, classes=2, images=4)
    assert len(pairs) == 1
    shown = list_images(pairs)
    assert len(shown) == len(set(shown)) == 16


def test_there_are_no_more_than_twenty_unless_asked_for():
    assert len(draw_batches(paint([200] * 2), classes=2, images=2)) == MAX_BATCHES == 20
    assert len(draw_batches(paint([200] * 2), 25, classes=2, images=2)) == 25


def test_what_cannot_be_drawn_is_refused():
    task = paint([10, 10, 3])
    with pytest.raises(DataError, match=r"'paint' \(23 images of 3 classes\) is enough for 1 batches"):
        draw_batches(task, 2, classes=2, images=5)
    with pytest.raises(DataError, match="enough for 0 batches"):
        draw_batches(task, classes=3, images=2)
    for classes in (1, 4):
        with pytest.raises(UsageError, match="Ask for 2 to 3"):
            draw_batches(task, classes=classes)
    with pytest.raises(UsageError, match="at least one image of each class"):
        draw_batches(task, classes=2, images=0)
    with pytest.raises(UsageError, match="0 batches"):
        draw_batches(task, 0, classes=2)
    pictures = [(Image.new("RGB", (4, 4), (n, 0, 0)), [n % 2, n // 2 % 2]) for n in range(8)]
    with pytest.raises(UsageError, match="several labels"):
        draw_batches(from_dataset(pictures, classes=["odd", "high"], name="both"), classes=2)
