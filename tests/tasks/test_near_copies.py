"""Planted copies of painted images are found, and images that only look alike are not."""

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from task2vec.tasks.images import decode, find_near_copies, make_signature
from tests.tasks.pictures import encode


def paint(seed, *, shapes=25, base=None):
    """Coloured shapes, on a grey ground or on a picture."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (160, 128), (120, 130, 110)) if base is None else base.copy()
    draw = ImageDraw.Draw(image)
    for _ in range(shapes):
        x, y, w, h = rng.integers(0, [150, 118, 60, 50]).tolist()
        (draw.ellipse if rng.random() < 0.5 else draw.rectangle)((x, y, x + w, y + h), tuple(rng.integers(0, 256, 3)))
    return image


def compress(image, quality):
    """`image` as a JPEG file shows it."""
    return decode(encode(image, "JPEG", quality=quality))


def resize(image, factor):
    """`image` with its sides multiplied."""
    return image.resize((round(image.width * factor), round(image.height * factor)))


CHANGES = {
    "quality 30": lambda image: compress(image, 30),
    "third of the size": lambda image: compress(resize(image, 0.33), 90),
    "mirrored": lambda image: compress(ImageOps.mirror(image), 80),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.15),
    "mirrored, half the size, quality 50": lambda image: compress(resize(ImageOps.mirror(image), 0.5), 50),
}


def sign(images):
    """The signatures of PIL images."""
    return np.stack([make_signature(image) for image in images])


@pytest.fixture(scope="module")
def originals():
    """Forty different pictures."""
    return [paint(seed) for seed in range(40)]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_planted_copies_are_found_and_nothing_else(change, originals):
    signatures = sign([*originals, *(change(image) for image in originals[:12])])
    assert signatures.shape == (52, 16, 16, 3) and signatures.dtype == np.float16
    groups = find_near_copies(signatures)
    planted = [[i, 40 + i] for i in range(12)]
    assert sum(group in planted for group in groups) >= 11 and all(group in planted for group in groups)


def test_images_on_a_common_ground_are_not_copies_but_their_copies_are():
    """Like X-rays: most of what is seen is the same in all of them."""
    ground = paint(99, shapes=60)
    images = [paint(seed, shapes=7, base=ground) for seed in range(30)]
    flat = np.stack([np.asarray(image, dtype=float).mean(2).ravel() for image in images])
    assert np.median(np.corrcoef(flat)) > 0.5
    signatures = sign([*images, compress(images[3], 50), ImageOps.mirror(images[5])])
    assert find_near_copies(signatures) == [[3, 30], [5, 31]]


def test_images_without_contrast_are_no_copies():
    rng = np.random.default_rng(0)
    flat = [Image.new("RGB", (64, 64), (level,) * 3) for level in (0, 0, 128, 255)]
    noisy = [Image.fromarray(rng.integers(120, 126, (64, 64, 3), dtype=np.uint8)) for _ in range(10)]
    assert find_near_copies(sign([*flat, *noisy])) == []
    assert find_near_copies(sign([*flat, *noisy, *(paint(seed) for seed in range(20))])) == []


def test_one_drawing_in_two_colours_is_no_copy():
    """Red and green of the same luminance."""
    images = [Image.new("RGB", (96, 96), (128, 128, 128)) for _ in range(2)]
    for image, colour in zip(images, ((220, 40, 40), (26, 140, 26)), strict=True):
        ImageDraw.Draw(image).ellipse((20, 10, 80, 60), colour)
    red, green = images
    assert find_near_copies(sign([red, green, *(paint(seed) for seed in range(9))])) == []
    assert find_near_copies(sign([red, green, compress(red, 60), resize(green, 2)])) == [[0, 2], [1, 3]]


def test_copies_of_copies_are_one_group_in_any_chunks(originals, monkeypatch):
    images = [*originals, compress(originals[7], 40), ImageOps.mirror(originals[7]), resize(originals[2], 0.5)]
    expected = [[2, 42], [7, 40, 41]]
    assert find_near_copies(sign(images)) == expected
    monkeypatch.setattr("task2vec.tasks.images._COMPARED_IMAGES", 8)
    assert find_near_copies(sign(images)) == expected
    order = np.random.default_rng(0).permutation(43)
    back = [sorted(order[group].tolist()) for group in find_near_copies(sign(images)[order])]
    assert sorted(back) == expected


def test_equal_digests_are_copies_whatever_is_seen_and_two_images_are_enough(originals):
    flat = [Image.new("RGB", (64, 64), (level,) * 3) for level in (0, 128, 0)]
    images = [*flat, originals[0], compress(originals[0], 60), originals[1]]
    assert find_near_copies(sign(images), digests=["a", "b", "a", "c", "d", "b"]) == [[0, 2], [1, 5], [3, 4]]
    assert find_near_copies(sign(images[3:5])) == [[0, 1]]  # two are enough
    assert find_near_copies(sign(images[4:])) == find_near_copies(sign(images[:1])) == []
    assert find_near_copies(np.zeros((0, 16, 16, 3), dtype=np.float16)) == []
