"""Draws are balanced and repeat themselves; crops lie where they were asked for."""

import numpy as np
import pytest
import torch

from task2vec.experts.sampling import crop, crop_centre, draw_epoch


def test_classes_come_up_equally_often_and_images_within_them():
    targets = np.array([0] * 60 + [1] * 30 + [2] * 10)
    drawn = draw_epoch(targets, draws=30_000, seed=0, epoch=0).images.numpy()
    shares = np.bincount(targets[drawn], minlength=3) / len(drawn)
    assert np.abs(shares - 1 / 3).max() < 0.015
    seen = np.bincount(drawn, minlength=100)
    assert seen.min() > 0 and abs(seen[targets == 2].mean() / seen[targets == 0].mean() - 6) < 0.3


def test_both_answers_to_every_question_come_up_equally_often():
    targets = np.zeros((100, 2), dtype=np.uint8)
    targets[:10, 0] = 1
    targets[:50, 1] = 1
    drawn = targets[draw_epoch(targets, draws=40_000, seed=1, epoch=0).images.numpy()]
    # Half of the draws ask about the first attribute, and half of these want a yes; the others have it by chance.
    expected = 0.25 * (1 + 0 + 10 / 50 + 0 / 50)
    assert abs(drawn[:, 0].mean() - expected) < 0.01


def test_an_attribute_without_a_choice_is_passed_over():
    targets = np.zeros((20, 2), dtype=np.uint8)
    targets[:5, 1] = 1
    assert set(draw_epoch(targets, draws=500, seed=0, epoch=0).images.tolist()) == set(range(20))


def test_an_epoch_depends_on_seed_and_number_alone():
    targets = np.arange(50) % 5
    first, again = (draw_epoch(targets, draws=64, seed=3, epoch=2) for _ in range(2))
    assert all(torch.equal(getattr(first, name), getattr(again, name)) for name in ("images", "corners", "is_mirrored"))
    for seed, epoch in ((4, 2), (3, 1), (2, 3)):
        assert not torch.equal(first.images, draw_epoch(targets, draws=64, seed=seed, epoch=epoch).images)
    assert 0.25 < first.is_mirrored.float().mean() < 0.75


@pytest.mark.parametrize("size", [(4, 4), (3, 5), (6, 8)])
def test_crops_are_the_parts_that_slicing_gives(size):
    pixels = torch.arange(5 * 3 * 6 * 8).view(5, 3, 6, 8)
    corners = torch.tensor([[0.0, 0.0], [0.999, 0.999], [0.5, 0.0], [0.0, 0.5], [0.3, 0.7]])
    mirrored = torch.tensor([False, False, True, True, False])
    found = crop(pixels, corners, mirrored, size)
    for number in range(5):
        top, left = (
            int(corners[number, i] * (have - want + 1)) for i, (have, want) in enumerate(zip((6, 8), size, strict=True))
        )
        wanted = pixels[number, :, top : top + size[0], left : left + size[1]]
        assert torch.equal(found[number], wanted.flip(2) if mirrored[number] else wanted)
    assert int(corners[1, 0] * (6 - size[0] + 1)) == 6 - size[0]  # the last corner is reached


def test_the_centre_is_in_the_middle():
    pixels = torch.zeros(1, 3, 8, 8)
    pixels[..., 2:6, 2:6] = 1
    assert crop_centre(pixels, (4, 4)).min() == 1
