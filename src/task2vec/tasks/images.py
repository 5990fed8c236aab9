"""Images of a task: decoded in one defined way, read only while they are unchanged, reported when they are unreadable.

Pillow alone is not enough: it only warns at 144 megapixels, saturates 16-bit greys to white, ignores the EXIF
orientation, and shows the colour hidden behind transparent pixels. A `DataError` raised here holds the reason alone;
the readers add the path.
"""

import hashlib
import os
import stat
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from task2vec.errors import DataChangedError, DataError, NotFiniteError, UsageError
from task2vec.progress import track

StrPath = str | os.PathLike[str]
MAX_PIXELS = 50_000_000
# Of a JPEG whose rows can be decoded one after the other, at reduced size.
MAX_JPEG_PIXELS = 250_000_000
# Four 16-bit channels of the largest accepted image, uncompressed: no valid file is larger.
MAX_FILE_BYTES = 8 * MAX_PIXELS
# AVIF comes with Pillow from 11.3 on; HEIF is added below where another package has registered it (pillow-heif).
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", *(["AVIF"] if find_spec("PIL._avif") else []))
# EXIF tag 0x0112: how the stored rows and columns must be rotated for the image to stand upright.
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
# Images that wait for a thread at a time, so that a million do not queue in memory.
QUEUED_IMAGES = 1024
# Pixels that are hashed at a time.
STRIP_PIXELS = 1 << 15
# A pipe is opened without waiting for a writer, and a link is not opened at all.
_OPEN_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NONBLOCK", "O_NOFOLLOW"))


@dataclass(frozen=True)
class BadImage:
    """An image that could not be read: its path, and the reason."""

    path: str
    reason: str


class Images(Protocol):
    """The images of a task, decoded one at a time so that memory does not grow with their number."""

    @property
    def is_threadsafe(self) -> bool:
        """Whether several threads may call `load` at once: true for files, false for the user's own datasets."""
        ...

    def __len__(self) -> int:
        """The number of images."""
        ...

    def load(self, index: int) -> Image.Image:
        """Image `index`, upright 8-bit RGB; `DataChangedError` if it changed after the task was read."""
        ...

    def name(self, index: int) -> str:
        """The name of image `index` in messages: a path below the root, or "item 17"."""
        ...


@dataclass(frozen=True)
class ChosenImages:
    """Images of one or several sources: the number of the source and the index in it of each, in order.

    `labels` come before the names that the sources give to their images.
    """

    sources: tuple[Images, ...]
    places: Sequence[tuple[int, int]]
    labels: tuple[str, ...] = ("",)

    @property
    def is_threadsafe(self) -> bool:
        """Whether all sources are."""
        return all(source.is_threadsafe for source in self.sources)

    def __len__(self) -> int:
        """The number of chosen images."""
        return len(self.places)

    def load(self, index: int) -> Image.Image:
        """The chosen image at `index`, as its source loads it."""
        source, within = self.places[index]
        return self.sources[source].load(within)

    def name(self, index: int) -> str:
        """The label of its source and the name that the source gives to it."""
        source, within = self.places[index]
        return self.labels[source] + self.sources[source].name(within)


def choose_images(images: Images, indices: Sequence[int]) -> ChosenImages:
    """The images at `indices`; a choice from a choice refers to the first sources, so that calls do not nest."""
    if isinstance(images, ChosenImages):
        return replace(images, places=[images.places[index] for index in indices])
    return ChosenImages((images,), [(0, index) for index in indices])


@dataclass(frozen=True)
class StoredImages:
    """Images of which `read` returns the stored bytes, which must still be those that `checksums` were computed from.

    Attributes:
        read: The bytes of an image by its key: the path of a file, or the row of a table.
        keys: What `read` is called with.
        names: The names of the images in messages.
        checksums: SHA-256 of the bytes: less to hash than the pixels, whose digests the task has.
        root: The folder that the names begin in, for messages.
    """

    read: Callable[[Any], bytes]
    keys: Sequence[Any]
    names: Sequence[str]
    checksums: Sequence[str]
    root: str = ""
    is_threadsafe: bool = True

    def __len__(self) -> int:
        """The number of images."""
        return len(self.keys)

    def load(self, index: int) -> Image.Image:
        """The image at `index`, decoded; `DataChangedError` if its bytes changed."""
        try:
            data = self.read(self.keys[index])
            if hashlib.sha256(data).hexdigest() == self.checksums[index]:
                return decode(data)
            reason = "its bytes are different"
        except DataError as error:
            reason = str(error)
        raise DataChangedError(
            f"{os.path.join(self.root, self.names[index])} changed after the task was read ({reason}), so the result "
            "would mix two states of the data. Read the task again when nothing writes to it."
        )

    def name(self, index: int) -> str:
        """The path of the file below the root, or the row."""
        return self.names[index]


def decode(data: bytes) -> Image.Image:
    """The image that `data` encodes, as upright 8-bit RGB; of an animation, its first frame.

    The content decides, not the file name. A `DataError` gives the reason if there is no image.
    """
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise UsageError(
            "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is True, so a truncated file would pass as a partly grey image and "
            "nothing would report it. Set it to False before reading a task."
        )
    if not data:
        raise DataError("the file is empty")
    try:
        with _open(data) as image:
            return to_rgb(image)
    except (DataError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise DataError(f"not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image, or its header is damaged") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(f"its header claims more than {MAX_PIXELS // 10**6} megapixels") from None
    except Exception as error:  # a damaged file makes Pillow raise almost anything: OSError, SyntaxError, struct.error
        raise DataError(f"damaged or truncated ({error or type(error).__name__})") from error


def _open(data: bytes) -> Image.Image:
    """The image whose header was read; a JPEG of more than 50 megapixels is set to be decoded at a half or less."""
    if not data.startswith(b"\xff\xd8\xff"):
        return Image.open(BytesIO(data), formats=[*FORMATS, *(["HEIF"] if "HEIF" in Image.OPEN else [])])
    try:
        image = JpegImageFile(BytesIO(data))  # `Image.open` warns above 89 megapixels
    except SyntaxError as error:
        raise UnidentifiedImageError from error
    width, height = image.size
    # All components in one scan: otherwise libjpeg holds all coefficients, however small the result.
    scan_size = 6 + 2 * image.layers
    scan_header = bytes([0xFF, 0xDA, 0, scan_size, image.layers])
    position = image.fp.tell() if image.fp else 0
    is_sequential = (
        data[position - scan_size - 2 : position].startswith(scan_header) and "progressive" not in image.info
    )
    if MAX_PIXELS < width * height <= MAX_JPEG_PIXELS and is_sequential:
        factor = next(n for n in (2, 4, 8) if width * height <= n * n * MAX_PIXELS)
        image.draft(None, (width // factor, height // factor))
    return image


def to_rgb(image: Image.Image) -> Image.Image:
    """An opened image as upright 8-bit RGB: 16-bit values divided by 257, transparency composited on white."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise DataError(f"its header claims {width} x {height} pixels, more than {MAX_PIXELS // 10**6} megapixels")
    image.load()
    try:
        turn = UPRIGHT.get(int(image.getexif().get(ORIENTATION_TAG, 1)))
    except Exception:  # the pixels are intact; broken metadata is no reason to lose them
        turn = None
    if image.mode == "F" or image.mode.startswith("I"):
        image = _to_eight_bit_grey(image)
    elif image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    if image.mode != "RGB":
        image = image.convert("RGB")
    if turn is not None:
        image = image.transpose(turn)
        image.info.clear()  # with the orientation, which would rotate it again if it were passed to `from_dataset`
    return image


def digest_pixels(image: Image.Image) -> str:
    """SHA-256 of mode, size and pixels: the identity of an image, whatever file or dataset it comes from."""
    digest = hashlib.sha256(f"{image.mode} {image.width} {image.height}\n".encode())
    rows = 1 + STRIP_PIXELS // max(1, image.width)
    for top in range(0, image.height, rows):  # `tobytes` copies, twice for a moment
        bottom = min(top + rows, image.height)
        strip = image if bottom - top == image.height else image.crop((0, top, image.width, bottom))
        digest.update(strip.tobytes())
    return digest.hexdigest()


def to_eight_bit(pixels: np.ndarray) -> np.ndarray:
    """Floats in [0, 1] times 255, rounded; any other scale is refused."""
    if not np.isfinite(pixels).all():
        raise NotFiniteError("a pixel is NaN or infinite, not in [0, 1]. Fix the file or the transform.")
    if pixels.min() < 0 or pixels.max() > 1:
        raise DataError(
            f"its pixels range from {pixels.min():.4g} to {pixels.max():.4g}, outside of [0, 1], so their scale is "
            "unknown. Leave Normalize out of a transform: the probe has its own; divide 0 to 255 by 255."
        )
    return np.rint(pixels * 255).astype(np.uint8)


def _to_eight_bit_grey(image: Image.Image) -> Image.Image:
    """An image of 16-bit integers or of floats in [0, 1] as 8-bit grey; any other scale is refused."""
    values = np.asarray(image)
    if image.mode == "F":
        return Image.fromarray(to_eight_bit(values))
    # Pillow opens a 16-bit PGM or PNG as mode "I", but also TIFFs of 32-bit integers, which have no agreed scale.
    if image.mode == "I" and image.format not in ("PNG", "PPM"):
        raise DataError("its pixels are 32-bit integers, which have no agreed scale: save it with 8 or 16 bits")
    grey = np.rint(values / 257).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey)


def read_inside(root: Path, path: str) -> bytes:
    """The bytes of the regular file `path` below the resolved folder `root`; `DataError` with the reason otherwise."""
    try:
        location = os.path.realpath(os.path.join(root, path), strict=True)
        if not location.startswith(os.path.join(root, "")):
            raise DataError(f"it leads out of the root folder, to {location}")
        seen = os.stat(location)
        if not stat.S_ISREG(seen.st_mode):
            raise DataError("it is not a regular file")
        if seen.st_size > MAX_FILE_BYTES:
            raise DataError(f"the file has {seen.st_size} bytes, more than any image of 50 megapixels needs")
        with open(os.open(location, _OPEN_FLAGS), "rb") as file:
            now = os.fstat(file.fileno())
            if (now.st_dev, now.st_ino, now.st_mode) != (seen.st_dev, seen.st_ino, seen.st_mode):
                raise DataError("another file replaced it while it was read")  # perhaps a pipe or a link
            data = file.read(seen.st_size + 1)
        if len(data) != seen.st_size:
            raise DataError("its length changed while it was read")
        return data
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError("there is no such file") from None
    except (OSError, RuntimeError, ValueError) as error:  # no permission, a loop of links, a NUL in the path
        raise DataError(f"the file cannot be read ({getattr(error, 'strerror', None) or error})") from error


def open_files(root: Path, paths: Sequence[str]) -> StoredImages:
    """The images at `paths` below `root`, whose checksums are not known yet."""
    return StoredImages(partial(read_inside, root), paths, paths, (), str(root))


def inspect_images(
    images: StoredImages, *, name: str, num_workers: int | None, progress: bool
) -> list[tuple[str, str] | BadImage]:
    """For every image, in order, the SHA-256 of its pixels and of its bytes, or the reason why it does not decode."""

    def inspect(index: int) -> tuple[str, str] | BadImage:
        try:
            data = images.read(images.keys[index])
            return digest_pixels(decode(data)), hashlib.sha256(data).hexdigest()
        except DataError as error:
            return BadImage(images.name(index), str(error))

    num_workers = min(8, os.cpu_count() or 1) if num_workers is None else num_workers
    if num_workers < 1:
        raise UsageError(f"num_workers={num_workers} (--num-workers) reads nothing. Give 1 or more, or leave it out.")
    # Pillow warns of odd metadata and large headers; anything that matters is in the outcome. The filters belong to the
    # whole process: set in `decode`, threads would restore each other's.
    with warnings.catch_warnings(), ThreadPoolExecutor(num_workers, "task2vec-read") as pool:
        warnings.simplefilter("ignore")
        starts = range(0, len(images), QUEUED_IMAGES)
        chunks = (range(start, min(start + QUEUED_IMAGES, len(images))) for start in starts)
        outcomes = (outcome for chunk in chunks for outcome in pool.map(inspect, chunk))
        return list(track(outcomes, len(images), what=f"reading {name}", progress=progress))


# --- near copies: recompressed, resized, mirrored or slightly brighter versions of one picture ------------------------
#
# Every image is kept as 16 x 16 colours. Two images are copies if two correlations are high, that of the fine detail
# and that of the grey levels, and if their mean colours are the same. Detail is what differs from the surroundings, on
# a scale that saturates, so that a frame or a bright spot that all images share does not decide. What all images of a
# dataset have in common is subtracted: X-rays look alike, yet only copies are alike beyond that.
#
# Frames of one scene and photographs of one object from the same place are found as well. An image without contrast is
# a copy of no other; compare its pixels.

SIGNATURE_SIDE = 16
_WINDOW = 5  # the surroundings, in cells
_SATURATION = 4.0  # grey levels at which detail begins to count less
_LUMA = (0.299, 0.587, 0.114)
# So much noise, squared, hides the detail and the grey levels of an image without contrast.
_DETAIL_NOISE = 0.01
_GREY_NOISE = 0.25
_MIN_GREY_CORRELATION = 0.97
_PRIOR_IMAGES = 16  # the mean of so many images counts half
_COMPARED_IMAGES = 512  # at a time
_MAX_COLOUR_DIFFERENCE = 0.15  # of mean colours, as shares of the brightness


def make_signature(image: Image.Image) -> np.ndarray:
    """(16, 16, 3) colours, float16, of an RGB image."""
    side = SIGNATURE_SIDE
    small = np.asarray(image.resize((4 * side, 4 * side), Image.Resampling.BICUBIC, reducing_gap=2.0), dtype=np.float32)
    return small.reshape(side, 4, side, 4, 3).mean((1, 3)).astype(np.float16)


def find_near_copies(
    signatures: np.ndarray, *, digests: Sequence[str] | None = None, threshold: float = 0.9
) -> list[list[int]]:
    """Groups of images that are near copies of each other, as their numbers, in the order of their first images.

    Copies of a copy are in its group, and so are images with the same one of the `digests`. `threshold` is the least
    correlation of fine detail.

    Example:
        >>> random = np.random.default_rng(0)
        >>> images = [Image.fromarray(random.integers(0, 256, (64, 64, 3), dtype=np.uint8)) for _ in range(3)]
        >>> images.append(images[1].transpose(Image.Transpose.FLIP_LEFT_RIGHT))
        >>> find_near_copies(np.stack([make_signature(image) for image in images]))
        [[1, 3]]
    """
    count = len(signatures)
    levels = signatures.astype(np.float32) @ np.array(_LUMA, dtype=np.float32)
    detail, grey = _describe(levels)
    colours = signatures.mean((1, 2), dtype=np.float32) / np.maximum(levels.mean((1, 2)), 8)[:, None]
    group = np.arange(count)
    if digests is not None:
        _, first, same = np.unique(digests, return_index=True, return_inverse=True)
        group = first[same]
    # As they are, and mirrored.
    detail = np.stack([detail, detail[:, :, ::-1]]).reshape(2, count, SIGNATURE_SIDE**2)
    grey = np.stack([grey, grey[:, :, ::-1]]).reshape(2, count, SIGNATURE_SIDE**2)
    for start in range(0, count, _COMPARED_IMAGES):
        stop = min(start + _COMPARED_IMAGES, count)
        is_copy = np.zeros((stop - start, count - start), dtype=bool)
        for turn in (0, 1):
            is_alike = detail[turn, start:stop] @ detail[0, start:].T >= threshold
            np.fill_diagonal(is_alike, False)  # every image is like itself
            few = np.flatnonzero(is_alike.any(0))
            correlation = grey[turn, start:stop] @ grey[0, start:][few].T
            is_copy[:, few] |= is_alike[:, few] & (correlation >= _MIN_GREY_CORRELATION)
        first, second = np.array(is_copy.nonzero()) + start
        is_same = np.abs(colours[first] - colours[second]).max(1, initial=0) <= _MAX_COLOUR_DIFFERENCE
        group = _join(group, first[is_same], second[is_same])
    order = np.argsort(group, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    return [members.tolist() for members in groups if len(members) > 1]


def _join(group: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(n,) the first image in the group of every image, after the groups of these pairs were joined."""
    while (group[first] != group[second]).any():
        joined = np.arange(len(group))
        np.minimum.at(joined, np.maximum(group[first], group[second]), np.minimum(group[first], group[second]))
        while (joined[joined] != joined).any():
            joined = joined[joined]
        group = joined[group]
    return group


def _describe(grey: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n, 16, 16) fine detail and grey levels of every image, both of length one or less."""
    padded = np.pad(grey, ((0, 0), *2 * [(_WINDOW // 2,) * 2]), mode="edge")
    rows = np.sum([padded[:, shift : shift + SIGNATURE_SIDE] for shift in range(_WINDOW)], axis=0)
    means = np.mean([rows[:, :, shift : shift + SIGNATURE_SIDE] for shift in range(_WINDOW)], axis=0) / _WINDOW
    detail = grey - means
    detail /= np.sqrt(np.square(detail) + _SATURATION**2)
    common = detail.sum(0) / (len(detail) + _PRIOR_IMAGES)
    detail -= (common + common[:, ::-1]) / 2  # the same for an image and its mirror image
    grey = grey - grey.mean((1, 2), keepdims=True)
    return _shorten(detail, _DETAIL_NOISE), _shorten(grey, _GREY_NOISE)


def _shorten(values: np.ndarray, noise: float) -> np.ndarray:
    return values / np.sqrt(np.square(values).sum((1, 2), keepdims=True) + noise * SIGNATURE_SIDE**2)
