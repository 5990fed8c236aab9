"""The bytes of a picture become 8-bit RGB pixels, upright, in one defined way for every kind of file.

Pillow alone is not enough: it only warns at 144 megapixels, saturates 16-bit greys to white, leaves photographs lying
on their side, and shows whatever colour hides behind transparent pixels. Every refusal here is a `DataError` whose text
is the reason alone; the readers put the path in front of it.
"""

from io import BytesIO

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from task2vec.errors import DataError, UsageError

MAX_PIXELS = 50_000_000
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")

# EXIF tag 0x0112: how the stored rows and columns must be turned for the picture to stand upright.
ORIENTATION_TAG = 0x0112
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(data: bytes) -> Image.Image:
    """The picture that `data` encodes, as upright 8-bit RGB; of an animation, its first frame.

    The content decides, not the name of the file. A `DataError` gives the reason why there is no picture.
    """
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise UsageError(
            "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is True: half a file would pass as an image with grey in place of the "
            "rest, and nothing would report it. Set it to False before reading a task."
        )
    if not data:
        raise DataError("the file is empty")
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            return to_rgb(image)
    except (DataError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise DataError(f"not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image, or its header is damaged") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(f"its header claims more than {MAX_PIXELS // 10**6} megapixels") from None
    except Exception as error:  # a damaged file makes Pillow raise almost anything: OSError, SyntaxError, struct.error
        raise DataError(f"damaged or truncated ({error or type(error).__name__})") from error


def to_rgb(image: Image.Image) -> Image.Image:
    """An opened picture as upright 8-bit RGB: 16-bit values divided by 257, transparency laid on white."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise DataError(f"its header claims {width} x {height} pixels, more than {MAX_PIXELS // 10**6} megapixels")
    image.load()
    turn = UPRIGHT.get(_orientation(image))
    if image.mode == "F" or image.mode.startswith("I"):
        image = _eight_bit_grey(image)
    elif image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    if image.mode != "RGB":
        image = image.convert("RGB")
    return image if turn is None else image.transpose(turn)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 (as stored) where there is none or where the EXIF block cannot be read."""
    try:
        return int(image.getexif().get(ORIENTATION_TAG, 1))
    except Exception:  # the pixels are whole; a camera's broken metadata is no reason to lose them
        return 1


def _eight_bit_grey(image: Image.Image) -> Image.Image:
    """A picture of 16-bit integers or of floats in [0, 1] as 8-bit grey; any other scale is refused."""
    values = np.asarray(image)
    if image.mode == "F":
        if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1):
            raise DataError("its floating-point pixels are not all in [0, 1], so their scale is unknown")
        return Image.fromarray(np.rint(values * 255).astype(np.uint8))
    # Pillow opens a 16-bit PGM or PNG as mode "I", but also TIFFs of 32-bit integers, which no rule brings to 8 bits.
    if image.mode == "I" and image.format not in ("PNG", "PPM"):
        raise DataError("its pixels are 32-bit integers, which have no agreed scale: save it with 8 or 16 bits")
    grey = np.rint(values / 257).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey)
