"""One defined result for every kind of image."""

import io

import numpy as np
import pytest
from PIL import Image, ImageFile

from task2vec.errors import DataError, UsageError
from task2vec.tasks.images import FORMATS, decode


def encode(image: Image.Image, form: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def noise(side: int = 40) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8))


def pixels(data: bytes) -> np.ndarray:
    image = decode(data)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM"])
def test_a_lossless_rgb_file_keeps_every_pixel(form):
    assert np.array_equal(pixels(encode(noise(), form)), np.asarray(noise()))


@pytest.mark.parametrize("form", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_divided_by_257(form):
    values = np.array([[0, 257, 257 * 100, 65535]], dtype=np.uint16)
    assert pixels(encode(Image.fromarray(values), form))[0, :, 0].tolist() == [0, 1, 100, 255]
    if form == "PNG":
        clear = encode(Image.fromarray(values), transparency=257)
        assert pixels(clear)[0, :, 0].tolist() == [0, 255, 100, 255]


@pytest.mark.parametrize("value", [-0.1, 1.5, np.nan, np.inf])
def test_numbers_of_unknown_scale_are_refused(value):
    with pytest.raises(DataError, match=r"\[0, 1\]"):
        decode(encode(Image.fromarray(np.array([[0.5, value]], dtype=np.float32)), "TIFF"))
    with pytest.raises(DataError, match="32-bit integers"):
        decode(encode(Image.fromarray(np.array([[1, 2]], dtype=np.int32)), "TIFF"))


def test_transparency_is_laid_on_white():
    half = Image.new("RGBA", (1, 1), (255, 0, 0, 128))
    assert pixels(encode(half))[0, 0].tolist() == pytest.approx([255, 127, 127], abs=1)
    hidden = Image.new("LA", (1, 1), (7, 0))
    assert pixels(encode(hidden))[0, 0].tolist() == [255, 255, 255]
    palette = Image.new("P", (2, 1))
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.putpixel((1, 0), 1)
    assert pixels(encode(palette, transparency=0))[0].tolist() == [[255, 255, 255], [10, 20, 30]]
    assert pixels(encode(palette, transparency=b"\x00\xff"))[0].tolist() == [[255, 255, 255], [10, 20, 30]]


def test_other_modes_are_converted():
    assert pixels(encode(Image.new("L", (2, 2), 77)))[0, 0].tolist() == [77, 77, 77]
    cmyk = pixels(encode(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"))
    assert np.abs(cmyk[0, 0].astype(int) - (255, 0, 0)).max() <= 3


@pytest.mark.parametrize(
    ("form", "orientation"), [*(("PNG", n) for n in range(1, 9)), ("TIFF", 6), ("WEBP", 6), ("JPEG", 6)]
)
def test_exif_orientation_is_honoured(form, orientation):
    """The stored picture is the upright one turned by the inverse, so that decoding must give the upright one again."""
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Pillow's numbers of the inverse operations
    upright = Image.new("RGB", (48, 32), "black")
    upright.paste((255, 255, 255), (0, 0, 16, 16))
    upright.paste((255, 0, 0), (32, 0, 48, 16))
    stored = upright if orientation == 1 else upright.transpose(Image.Transpose(back[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = pixels(encode(stored, form, exif=exif, **({"quality": 100} if form in ("WEBP", "JPEG") else {})))
    assert found.shape == (32, 48, 3)
    assert np.abs(found[8, 8].astype(int) - 255).max() < 30
    assert np.abs(found[8, 40].astype(int) - (255, 0, 0)).max() < 30
    assert found[24].max() < 30


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_an_animation_the_first_frame_counts(form):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    data = encode(frames[0], form, save_all=True, append_images=frames[1:])
    assert np.abs(pixels(data)[0, 0].astype(int) - (255, 0, 0)).max() <= 4


@pytest.mark.parametrize("form", FORMATS)
def test_a_truncated_file_is_refused(form):
    data = encode(noise(), form)
    with pytest.raises(DataError, match=r"truncated|damaged"):
        decode(data[: len(data) // 2])


def test_formats_that_were_not_invited_are_refused():
    with pytest.raises(DataError, match="not a JPEG"):
        decode(encode(noise(), "ICO"))
    with pytest.raises(DataError, match="empty"):
        decode(b"")


def test_the_pixel_limit_counts_pixels():
    assert decode(encode(Image.new("1", (10_000, 5_000)))).size == (10_000, 5_000)
    with pytest.raises(DataError, match="10000 x 5001"):
        decode(encode(Image.new("1", (10_000, 5_001))))


def test_grey_filling_of_truncated_files_must_be_off(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(UsageError, match="LOAD_TRUNCATED_IMAGES"):
        decode(encode(noise()))
