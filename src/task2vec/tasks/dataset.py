"""Any map-style dataset of (image, label) pairs becomes a task; torch is welcome here but never imported."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from PIL import Image

from task2vec.errors import DataChangedError, DataError, NotFiniteError, UsageError
from task2vec.tasks.check import check_labels, count_images, quote, remark
from task2vec.tasks.decode import to_rgb
from task2vec.tasks.progress import watched
from task2vec.tasks.task import Task

# Items that are read twice, spread over the dataset: a flip with probability 0.1 escapes 32 of them once in 600 times,
# and is then found when the image is loaded again.
READ_TWICE = 32


class MapDataset(Protocol):
    """What `from_dataset` needs: a length, and items by number."""

    def __len__(self) -> int:
        """The number of items."""
        ...

    def __getitem__(self, index: int, /) -> object:
        """Item `index`, a pair of image and label."""
        ...


@dataclass(frozen=True)
class DatasetImages:
    """The images of a dataset, which must still have the pixels that `digests` were taken of."""

    dataset: MapDataset
    digests: tuple[str, ...]
    is_threadsafe: bool = False

    def __len__(self) -> int:
        """The number of items."""
        return len(self.digests)

    def load(self, index: int) -> Image.Image:
        """The image of item `index`; `DataChangedError` if its pixels are others than before."""
        image, _ = read_item(self.dataset, index)
        if digest_of(image) != self.digests[index]:
            raise DataChangedError(_changed(index))
        return image

    def name(self, index: int) -> str:
        """The number of the item, as text."""
        return f"item {index}"


def from_dataset(
    dataset: MapDataset, *, classes: Sequence[str] | None = None, name: str | None = None, progress: bool = False
) -> Task:
    """The task of a map-style dataset whose items are (image, label).

    Images may be PIL images, arrays (height, width, channels), or tensors (channels, height, width); numbers are 8-bit
    integers or floats in [0, 1]. A label is a class index, or a row of 0 and 1 for multi-label. Classes that no item
    belongs to are left out, with a warning.

    Args:
        dataset: Any object with a length and items by number: a torch dataset, or a list of pairs.
        classes: Names of the classes; `dataset.classes` if that fits, else the numbers of the labels.
        name: What to call the task; the type of the dataset if not given.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        DataError: An item that is no such pair, pixels of unknown scale, a dataset whose items change (augmentation).
        NotFiniteError: A pixel is NaN or infinite.

    Example:
        >>> import numpy as np
        >>> pixels = np.arange(4 * 8 * 8 * 3, dtype=np.uint8).reshape(4, 8, 8, 3)
        >>> from_dataset([(pixels[0], 0), (pixels[1], 1), (pixels[2] // 2, 1)], name="stripes")
        Task(stripes, 3 images, 2 classes)
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise UsageError(
            f"a {type(dataset).__name__} has no length or no items by number: a task is read more than once, in any "
            "order. Pass a map-style dataset; list(dataset) makes one of a small stream."
        )
    kind = type(dataset).__name__
    rows = watched(_read_rows(dataset), len(dataset), what=f"reading {name or kind}", progress=progress)
    digests, labels = (list(column) for column in zip(*rows, strict=True)) if len(dataset) else ([], [])
    images = DatasetImages(dataset, tuple(digests))
    targets, names, remarks = _settle_classes(_stack(labels), classes, getattr(dataset, "classes", None), images)
    remarks = (*remarks, *remark(targets, names, digests, images.name))
    return Task(name or kind, images, targets, names, images.digests, warnings=remarks, source=kind)


def read_item(dataset: MapDataset, index: int) -> tuple[Image.Image, np.ndarray]:
    """The RGB image and the label of one item; `DataError` names the item if it is no such pair."""
    try:
        pair: Any = dataset[index]
        image, label = pair
    except MemoryError:
        raise
    except Exception as error:
        raise DataError(
            f"item {index} of the {type(dataset).__name__} is not a pair of image and label ({error!r}), so the task "
            "would miss it. Make dataset[i] return (image, label)."
        ) from error
    try:
        return to_image(image), _as_array(label)
    except NotFiniteError as error:
        raise NotFiniteError(f"item {index}: {error}") from error
    except MemoryError:
        raise
    except Exception as error:  # our own refusals, and whatever Pillow says of a lazily opened file
        raise DataError(f"item {index}: {error}") from error


def to_image(image: object) -> Image.Image:
    """A PIL image, an array (height, width, channels) or a tensor (channels, height, width) as 8-bit RGB."""
    if isinstance(image, Image.Image):
        return to_rgb(image)
    pixels = _as_array(image)
    is_tensor = hasattr(image, "detach")
    if is_tensor and pixels.ndim == 3:
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.ndim == 3 and pixels.shape[-1] == 1:
        pixels = pixels[:, :, 0]
    if 0 in pixels.shape or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[-1] in (3, 4))):
        layout = "(channels, height, width) for a tensor" if is_tensor else "(height, width, channels) for an array"
        raise DataError(
            f"its image is a {type(image).__name__} of shape {np.shape(pixels)}, which shows no picture. Return a PIL "
            f"image, or {layout}, with 1, 3 or 4 channels."
        )
    return to_rgb(Image.fromarray(np.ascontiguousarray(_eight_bit(pixels))))


def digest_of(image: Image.Image) -> str:
    """SHA-256 of mode, size and pixels: what a file's bytes are to a file."""
    header = f"{image.mode} {image.width} {image.height}\n".encode()
    return hashlib.sha256(header + image.tobytes()).hexdigest()


def _read_rows(dataset: MapDataset) -> Iterator[tuple[str, np.ndarray]]:
    """Digest and label of every item in turn; some are read twice, and refused if they differ."""
    total = len(dataset)
    twice = set(np.linspace(0, total - 1, min(total, READ_TWICE)).astype(int).tolist())
    for index in range(total):
        image, label = read_item(dataset, index)
        digest = digest_of(image)
        if index in twice:
            again, label_again = read_item(dataset, index)
            if digest_of(again) != digest or repr(label) != repr(label_again):  # as text, for NaN is not NaN
                raise DataError(_changed(index))
        yield digest, label


def _changed(index: int) -> str:
    """The message for an item that is another one each time it is read."""
    return (
        f"item {index} of the dataset is not the same when read twice: an embedding of random images would differ "
        "with every run. Switch augmentation off (RandomCrop, RandomHorizontalFlip, ...) and keep the data unchanged."
    )


def _as_array(value: object) -> np.ndarray:
    """An array of anything that holds numbers; tensors are recognised by what they can do, without importing torch."""
    if hasattr(value, "detach"):
        tensor: Any = value
        value = (tensor.double() if tensor.is_floating_point() else tensor).detach().cpu()  # numpy knows no bfloat16
    try:
        return np.asarray(value)
    except ValueError:  # a ragged list
        return np.asarray(None)


def _eight_bit(pixels: np.ndarray) -> np.ndarray:
    """8-bit values as they are and floats in [0, 1] times 255; all else has no agreed scale."""
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind != "f":
        raise DataError(f"its pixels are {pixels.dtype}, whose scale is unknown. Return uint8, or floats in [0, 1].")
    if not np.isfinite(pixels).all():
        raise NotFiniteError("its image has a NaN or infinite pixel, and so would the embedding. Mend the transform.")
    if pixels.min() < 0 or pixels.max() > 1:
        raise DataError(
            f"its pixels run from {pixels.min():.4g} to {pixels.max():.4g}, outside of [0, 1], so their scale is "
            "unknown. Leave Normalize out of the transform: the probe brings its own; divide 0 to 255 by 255."
        )
    return np.rint(pixels * 255).astype(np.uint8)


def _stack(labels: list[np.ndarray]) -> np.ndarray:
    """All labels in one array; labels of different kinds or lengths are refused by their item."""
    for index, label in enumerate(labels):
        if label.shape != labels[0].shape or label.dtype.kind not in "biuf" or label.ndim > 1:
            raise DataError(
                f"item {index}: its label {label.tolist()!r} is neither a class index nor a row of 0 and 1 like "
                "that of item 0, so it names no class. Return one integer, or one 0 or 1 per class."
            )
    return np.asarray(labels)


def _settle_classes(
    labels: np.ndarray, given: Sequence[str] | None, own: object, images: DatasetImages
) -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """Targets, class names and warnings; names come from the caller, else from the dataset, else from the numbers."""
    if labels.dtype.kind == "b":
        labels = labels.astype(np.uint8)
    is_multilabel = labels.ndim == 2
    whole = labels.dtype.kind in "iu" and labels.size > 0
    needed = labels.shape[1] if is_multilabel else int(labels.max()) + 1 if whole else 0
    if given is None and isinstance(own, (list, tuple)) and all(isinstance(kind, str) for kind in own):
        given = own if len(own) == needed or (len(own) > needed and not is_multilabel) else None
    targets = check_labels(labels, needed if given is None else len(given), images.name)
    if is_multilabel:
        return targets, tuple(map(str, range(needed))) if given is None else tuple(given), ()
    if given is None:
        present, targets = np.unique(targets, return_inverse=True)
        return targets, tuple(str(number) for number in present), ()
    counts = count_images(targets, len(given))
    absent = [kind for kind, count in zip(given, counts, strict=True) if count == 0]
    remarks = (f"classes without an item, left out: {quote(absent)}",) if absent else ()
    present = np.flatnonzero(counts).tolist()
    return np.searchsorted(present, targets), tuple(given[number] for number in present), remarks
