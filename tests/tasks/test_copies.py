"""Made copies of painted pictures are found, different pictures of one kind are not; alignment has an oracle."""

import hashlib
from functools import cache

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from task2vec import sample_tasks
from task2vec.tasks import copies
from task2vec.tasks.copies import MIN_IMAGES, Copies, CopyGroup, find_copies, make_picture
from task2vec.tasks.images import decode, digest_pixels
from tests.tasks.pictures import encode


@cache
def paint(seed, shapes=25):
    """Coloured shapes on a grey ground."""
    random = np.random.default_rng(seed)
    image = Image.new("RGB", (160, 128), (120, 130, 110))
    draw = ImageDraw.Draw(image)
    for _ in range(shapes):
        x, y, width, height = random.integers(0, [150, 118, 60, 50]).tolist()
        shape = draw.ellipse if random.random() < 0.5 else draw.rectangle
        shape((x, y, x + width, y + height), tuple(random.integers(0, 256, 3).tolist()))
    return image


def draw_cell(seed, size=150):
    """A solar cell: the grid and the gradient of all, and three cracks, dark spots and noise of its own."""
    random = np.random.default_rng(seed)
    image = Image.new("L", (size, size), 150)
    draw = ImageDraw.Draw(image)
    for line in range(0, size, 6):
        draw.line((line, 0, line, size), fill=125)
    for line in (size // 4, size // 2, 3 * size // 4):
        draw.rectangle((0, line - 3, size, line + 3), fill=40)
    draw.rectangle((0, 0, size - 1, size - 1), outline=20, width=4)
    for _ in range(3):
        start, end = random.integers(10, size - 10, (2, 2)).tolist()
        draw.line((*start, *end), fill=60, width=2)
    for x, y in random.integers(10, size - 10, (4, 2)).tolist():
        draw.ellipse((x - 5, y - 5, x + 5, y + 5), fill=int(random.integers(70, 120)))
    noise = random.normal(0, 4, (size, size)) + 20 * np.linspace(-1, 1, size)
    return Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8)).convert("RGB")


def compress(image, quality=85):
    """The image as a JPEG file shows it."""
    return decode(encode(image, "JPEG", quality=quality))


def crop(image, share):
    """Without a share of its width and height, more of it on the right and at the top."""
    width, height = image.size
    return image.crop(
        (0.3 * share * width, 0.6 * share * height, (1 - 0.7 * share) * width, (1 - 0.4 * share) * height)
    )


def search(images, **options):
    """What is found in images."""
    pictures = np.stack([make_picture(image) for image in images])
    return find_copies(pictures, digests=[digest_pixels(image) for image in images], **options)


def list_groups(found, *kinds):
    """The groups of these kinds, as their numbers."""
    return [group.numbers for group in found.groups if group.kind in (kinds or copies.KINDS)]


CHANGES = {
    "recompressed": lambda image: compress(image, 50),
    "half size": lambda image: compress(image.resize((image.width // 2, image.height // 2))),
    "brighter": lambda image: compress(ImageEnhance.Brightness(image).enhance(1.4)),
    "darker": lambda image: compress(ImageEnhance.Brightness(image).enhance(0.6)),
    "cropped 2 %": lambda image: compress(crop(image, 0.02)),
    "cropped 5 %": lambda image: compress(crop(image, 0.05)),
    "cropped 10 %": lambda image: compress(crop(image, 0.10)),
    "mirrored": lambda image: compress(ImageOps.mirror(image)),
    "turned": lambda image: compress(image.transpose(Image.Transpose.ROTATE_90)),
    "mirrored and turned": lambda image: compress(image.transpose(Image.Transpose.TRANSPOSE)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_made_copies_are_found_and_nothing_else(change):
    originals = [paint(seed) for seed in range(40)]
    found = search([*originals, *map(change, originals[:10])])
    planted = [(number, 40 + number) for number in range(10)]
    assert set(list_groups(found)) <= set(planted)
    assert len(list_groups(found, "copy")) == 10


def test_solar_cells_share_a_grid_and_are_no_copies():
    cells = [draw_cell(seed) for seed in range(60)]
    assert search(cells).groups == ()
    found = search([*cells, *(compress(cell, 60) for cell in cells[:6]), *map(ImageOps.mirror, cells[6:12])])
    assert list_groups(found, "copy", "scene") == [(number, 60 + number) for number in range(12)]
    assert list_groups(found, "copy") or any(text.startswith("recompressed") for text in found.unseen)


@pytest.mark.parametrize("count", [3, 8, 20, 30, 90])
def test_pictures_that_differ_by_a_little_are_no_copies(count):
    """One drawing, with one more dot in another place each time, under another noise."""
    random = np.random.default_rng(0)
    images = []
    for _ in range(count):
        pixels = np.asarray(paint(0)) + random.normal(0, 3, (128, 160, 1))
        row, column = random.integers(10, [110, 140])
        pixels[row : row + 9, column : column + 9] = random.integers(0, 256)
        images.append(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)))
    assert list_groups(search(images), "exact", "copy") == []


def test_the_order_of_the_images_does_not_matter():
    images = [paint(seed) for seed in range(40)]
    images += [compress(images[3]), compress(images[3]), ImageOps.mirror(images[5]), crop(images[7], 0.1), images[9]]
    found = search(images)
    assert list_groups(found, "exact") == [(9, 44), (40, 41)]
    assert list_groups(found, "copy") == [(3, 40, 41), (5, 42), (7, 43)]
    order = np.random.default_rng(1).permutation(len(images))
    shuffled = search([images[number] for number in order])
    back = [CopyGroup(tuple(sorted(order[[*g.numbers]].tolist())), g.kind, g.score) for g in shuffled.groups]
    assert sorted(back, key=str) == sorted(found.groups, key=str)
    assert shuffled.unseen == found.unseen


def test_a_stronger_group_is_part_of_a_weaker_one_and_the_weakest_link_is_its_score():
    links = [("exact", 1.0, 0, 1), ("copy", 0.9, 2, 3), ("copy", 0.8, 1, 2), ("scene", 0.6, 3, 4), ("copy", 0.7, 0, 3)]
    groups = copies._join([copies._Link(*link) for link in links])
    assert groups == (
        CopyGroup((0, 1), "exact", 1.0),
        CopyGroup((0, 1, 2, 3), "copy", 0.8),
        CopyGroup((0, 1, 2, 3, 4), "scene", 0.6),
    )
    alike = CopyGroup((5, 6), "alike", 0.99)
    assert Copies((*groups, alike)).fold_groups(8).tolist() == [0, 0, 0, 0, 0, 1, 2, 3]


def test_a_few_images_have_no_copies_but_exact_ones():
    assert find_copies(np.zeros((0, 133, 128), dtype=np.uint8), digests=[]) == Copies(())
    assert search([paint(0)]).groups == ()
    assert search([paint(0), paint(0)]).groups == (CopyGroup((0, 1), "exact", 1.0),)
    found = search([paint(0), compress(paint(0)), paint(1)])
    assert list_groups(found) == list_groups(found, "scene") == [(0, 1)]
    few = search([paint(seed) for seed in range(MIN_IMAGES - 1)])
    assert few.groups == () and len(few.unseen) == 7
    assert all(f"fewer than {MIN_IMAGES} different images" in text for text in few.unseen)


def test_images_without_contrast_are_copies_of_none():
    flat = [Image.new("RGB", (100, 80), (shade, shade, shade)) for shade in range(40, 70)]
    assert search(flat).groups == ()
    assert list_groups(search([*flat, *(paint(seed) for seed in range(30)), compress(paint(4))])) == [(34, 60)]


def test_pictures_in_other_colours_are_one_scene():
    originals = [paint(seed) for seed in range(40)]
    changed = Image.merge("RGB", [originals[2].getchannel(channel) for channel in "GBR"])
    tinted = Image.fromarray((np.asarray(originals[2]) * [1.0, 0.75, 0.3]).astype(np.uint8))
    for image in (changed, tinted):
        assert list_groups(search([*originals, image]), "copy") == []


def test_pictures_with_the_features_of_another_are_alike():
    random = np.random.default_rng(0)
    features = random.normal(size=(40, 64))
    features[7] = features[3] + 0.05 * random.normal(size=64)
    found = search([paint(seed) for seed in range(40)], features=features)
    assert list_groups(found) == list_groups(found, "alike") == [(3, 7)]
    assert 0.99 < found.groups[0].score < 1
    assert found.fold_groups(40).tolist() == [*range(40)]


def test_what_a_set_cannot_show_is_said():
    """Grey marks on white: a brightened copy has lost most of them."""
    random = np.random.default_rng(0)
    pages = []
    for _ in range(40):
        page = np.full((128, 128), 255.0)
        for row in range(10, 118, 6):
            page[row : row + 2, 8:120] -= 60 * (random.random(112) < 0.5)
        pages.append(Image.fromarray(page.astype(np.uint8)).convert("RGB"))
    found = search(pages)
    assert found.groups == ()
    assert any(text.startswith("brightened by 40 % (") for text in found.unseen)
    assert not any(text.startswith("recompressed") for text in found.unseen)


def test_digits_of_the_package_are_no_copies():
    task = sample_tasks(images_per_task=150)[0]
    images = [task.images.load(number) for number in range(len(task))]
    assert list_groups(search(images), "copy") == []


# --- alignment -------------------------------------------------------------------------------------------------------


def test_shift_and_scale_are_those_of_a_slow_search():
    levels = np.stack([copies._levels(make_picture(image)) for image in (paint(0), crop(paint(0), 0.1), paint(1))])
    maps = copies._find_details(copies._halve(levels))
    results = [*copies._search_shifts(maps[[0, 0]], maps[[1, 2]])]
    small = copies._halve(copies._blur(maps, 1.0)).astype(np.float64)
    window = np.outer(np.hanning(34)[1:-1], np.hanning(34)[1:-1])
    for second, (response, starts) in zip((1, 2), results, strict=True):
        best = (-1.0, None)
        first = small[0] * window / np.linalg.norm(small[0] * window)
        for scale in copies._SCALES:
            places = ((np.arange(32) - 15.5) * scale + 15.5).clip(0, 31)
            columns = np.array([np.interp(places, np.arange(32), row) for row in small[second]])
            scaled = np.array([np.interp(places, np.arange(32), column) for column in columns.T]).T * window
            scaled /= np.linalg.norm(scaled)
            for down in range(-5, 6):
                for right in range(-5, 6):
                    value = (first * np.roll(scaled, (down, right), (0, 1))).sum()
                    best = max(best, (value, (scale, down, right)))
        assert response == pytest.approx(best[0], abs=1e-4)
        scale, down, right = best[1]
        np.testing.assert_allclose(starts[0], [[scale, 0, -2 * scale * down], [0, scale, -2 * scale * right]])


STOPS_EARLY = pytest.mark.xfail(
    reason="it stops 0.3 pixels of 64 away, where the correlation gains no more", strict=True
)


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=STOPS_EARLY), 3, 4])
def test_gauss_newton_finds_the_map_that_a_picture_was_moved_by(seed):
    """The oracle: Pillow's own transform of the picture, whose map is known."""
    random = np.random.default_rng(seed)
    affine = np.eye(2, 3) + random.uniform(-1, 1, (2, 3)) * [[0.015, 0.015, 1], [0.015, 0.015, 1]]
    centre = 63.5
    inverse = np.linalg.inv(np.vstack([affine * [1, 1, 2], [0, 0, 1]]))
    (p, q, r), (s, t, u), _ = inverse
    picture = paint(seed).convert("L").resize((128, 128))
    data = (t, s, u + centre + 0.5 - (t + s) * (centre + 0.5), q, p, r + centre + 0.5 - (q + p) * (centre + 0.5))
    moved = picture.transform((128, 128), Image.Transform.AFFINE, data, Image.Resampling.BICUBIC)
    levels = np.stack([np.asarray(image, dtype=np.float32) for image in (picture, moved)])
    target, details = copies._find_details(copies._halve(levels))
    searched = copies._PictureSet(np.stack([make_picture(paint(0))]))  # of one picture: shares nothing
    reached, found = searched.refine(target, details, np.eye(2, 3), steps=20, gain=0)
    assert reached > 0.9
    np.testing.assert_allclose(found[:, :2], affine[:, :2], atol=0.01)
    np.testing.assert_allclose(found[:, 2], affine[:, 2], atol=0.2)


def test_a_picture_keeps_luma_colours_and_size():
    image = paint(0)
    picture = make_picture(image)
    assert picture.shape == (133, 128) and picture.dtype == np.uint8
    luma = np.asarray(image.resize((128, 128), Image.Resampling.BICUBIC).convert("YCbCr"))[:, :, 0]
    np.testing.assert_allclose(picture[:128], luma, atol=1)
    assert picture[-1, :4].copy().view(">u2").tolist() == [128, 160]
    assert hashlib.sha256(picture.tobytes()).digest() == hashlib.sha256(make_picture(image.copy()).tobytes()).digest()
