"""One defined result for every kind of image."""

import hashlib
import struct

import numpy as np
import pytest
from PIL import Image, ImageFile

from task2vec.errors import DataChangedError, DataError, UsageError
from task2vec.tasks import read_folder
from task2vec.tasks.images import FORMATS, decode, digest_pixels, to_rgb
from tests.failures import refuse
from tests.tasks.pictures import encode, make_folder, paint

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))


def pixels(data: bytes) -> np.ndarray:
    image = decode(data)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "PPM"])
def test_eight_bits_are_kept_and_sixteen_divided_by_257(form):
    assert np.array_equal(pixels(encode(NOISE, form)), np.asarray(NOISE))
    values = np.array([[0, 257, 257 * 100, 65535]], dtype=np.uint16)
    assert pixels(encode(Image.fromarray(values), form))[0, :, 0].tolist() == [0, 1, 100, 255]
    clear = encode(Image.fromarray(values), transparency=257)
    assert pixels(clear)[0, :, 0].tolist() == [0, 255, 100, 255]


def test_numbers_of_unknown_scale_are_refused():
    for value in (-0.1, 1.5, np.nan, np.inf):
        with pytest.raises(DataError, match=r"\[0, 1\]"):
            decode(encode(Image.fromarray(np.array([[0.5, value]], dtype=np.float32)), "TIFF"))
    refuse(DataError, "32-bit integers", decode, encode(Image.fromarray(np.array([[1, 2]], dtype=np.int32)), "TIFF"))


def test_transparency_is_laid_on_white_and_other_modes_are_converted():
    half = Image.new("RGBA", (1, 1), (255, 0, 0, 128))
    assert pixels(encode(half))[0, 0].tolist() == pytest.approx([255, 127, 127], abs=1)
    assert pixels(encode(Image.new("LA", (1, 1), (7, 0))))[0, 0].tolist() == [255, 255, 255]
    palette = Image.new("P", (2, 1))
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.putpixel((1, 0), 1)
    for transparency in (0, b"\x00\xff"):
        assert pixels(encode(palette, transparency=transparency))[0].tolist() == [[255, 255, 255], [10, 20, 30]]
    cmyk = pixels(encode(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"))
    assert np.abs(cmyk[0, 0].astype(int) - (255, 0, 0)).max() <= 3


@pytest.mark.parametrize(("form", "orientation"), [*(("PNG", n) for n in range(1, 9)), ("TIFF", 6), ("JPEG", 6)])
def test_exif_orientation_is_honoured(form, orientation):
    """The stored picture is the upright one turned by the inverse, so that decoding must give the upright one again."""
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Pillow's numbers of the inverse operations
    upright = Image.new("RGB", (48, 32), "black")
    upright.paste((255, 255, 255), (0, 0, 16, 16))
    upright.paste((255, 0, 0), (32, 0, 48, 16))
    stored = upright if orientation == 1 else upright.transpose(Image.Transpose(back[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = decode(encode(stored, form, exif=exif, **({"quality": 100} if form == "JPEG" else {})))
    found = np.asarray(image)
    assert found.shape == (32, 48, 3) and np.array_equal(np.asarray(to_rgb(image)), found)  # not rotated twice
    assert np.abs(found[8, [8, 40]].astype(int) - [(255, 255, 255), (255, 0, 0)]).max() < 30
    assert found[24].max() < 30


def test_a_digest_is_that_of_size_and_pixels_however_many_are_hashed_at_a_time(monkeypatch):
    for strip in (1, 999, 1 << 20):
        monkeypatch.setattr("task2vec.tasks.images.STRIP_PIXELS", strip)
        assert digest_pixels(NOISE) == hashlib.sha256(b"RGB 40 40\n" + np.asarray(NOISE).tobytes()).hexdigest()
    assert digest_pixels(Image.new("RGB", (4, 1))) != digest_pixels(Image.new("RGB", (1, 4)))


def test_every_format_is_read_whole_and_truncated_and_uninvited_ones_are_refused(monkeypatch):
    for form in FORMATS:
        data = encode(NOISE, form)
        assert pixels(data).shape == (40, 40, 3)
        refuse(DataError, r"truncated|damaged", decode, data[: len(data) // 2])
    refuse(DataError, "not a JPEG", decode, encode(NOISE, "ICO"))
    refuse(DataError, "empty", decode, b"")
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    refuse(UsageError, "LOAD_TRUNCATED_IMAGES", decode, encode(NOISE))


def claim_size(data: bytes, width: int, height: int) -> bytes:
    """A JPEG whose header claims another size."""
    place = max(data.find(bytes([0xFF, marker, 0, 17])) for marker in (0xC0, 0xC2)) + 5
    return data[:place] + struct.pack(">HH", height, width) + data[place + 4 :]


@pytest.mark.parametrize(("size", "factor"), [((200, 50), 1), ((200, 56), 2), ((400, 320), 4), ((800, 720), 8)])
def test_a_large_jpeg_is_decoded_at_reduced_size(monkeypatch, size, factor):
    monkeypatch.setattr("task2vec.tasks.images.MAX_PIXELS", 10_000)
    monkeypatch.setattr("task2vec.tasks.images.MAX_JPEG_PIXELS", 640_000)
    image = Image.linear_gradient("L").resize(size, Image.Resampling.BICUBIC)
    found = decode(encode(image, "JPEG", quality=90))
    assert found.size == (size[0] // factor, size[1] // factor)
    whole = np.asarray(image.resize(found.size, Image.Resampling.BOX), dtype=int)
    assert np.abs(np.asarray(found)[..., 0].astype(int) - whole).max() < 4


def test_a_larger_one_or_one_that_takes_all_memory_is_refused_by_its_header():
    """Of a progressive JPEG, or one of several scans, libjpeg would hold all coefficients."""
    data, progressive = encode(NOISE, "JPEG"), encode(NOISE, "JPEG", progressive=True)
    start = data.index(b"\xff\xda\0\x0c\x03")
    apart = data[:start] + b"\xff\xda\0\x08\x01\x01\0\0\x3f\0" + data[start + 14 :]
    assert decode(claim_size(data, 9000, 10_000)).size == (4500, 5000)  # Pillow would warn of it
    for large, side in ((data, 16_000), (progressive, 16_000), (progressive, 9000), (apart, 9000)):
        refuse(DataError, f"{side} x {side} pixels, more than", decode, claim_size(large, side, side))


def test_heif_is_read_where_a_package_has_registered_it(monkeypatch):
    data = b"\0\0\0\x18ftypheic" + bytes(40)
    refuse(DataError, "not a JPEG", decode, data)
    monkeypatch.setitem(Image.OPEN, "HEIF", (lambda file, name: NOISE.copy(), lambda start: start[4:12] == b"ftypheic"))
    assert np.array_equal(pixels(data), np.asarray(NOISE))


def test_a_file_that_changes_after_it_was_read_is_refused_and_read_again_by_a_new_task(tmp_path):
    task = read_folder(make_folder(tmp_path, cats=2, dogs=2))
    paint(tmp_path / "cats" / "000.png", 77)
    refuse(DataChangedError, r"000\.png changed", task.images.load, 0)
    assert np.asarray(read_folder(tmp_path).images.load(0))[0, 0, 0] == 77
