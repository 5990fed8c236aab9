"""Any map-style dataset of (image, label) pairs becomes a task; torch is welcome here but never imported."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from PIL import Image

from task2vec.errors import DataChangedError, DataError, NotFiniteError, UsageError
from task2vec.progress import track
from task2vec.tasks.check import NameOf, remark
from task2vec.tasks.class_names import find_own_names, settle_classes
from task2vec.tasks.decode import to_rgb
from task2vec.tasks.images import BadImage
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
    items: tuple[int, ...]
    digests: tuple[str, ...]
    is_threadsafe: bool = False

    def __len__(self) -> int:
        """The number of items."""
        return len(self.digests)

    def load(self, index: int) -> Image.Image:
        """The image at `index`; `DataChangedError` if its pixels are others than before."""
        try:
            image, _ = read_item(self.dataset, self.items[index])
        except UnreadableItemError as error:
            raise DataChangedError(f"{error} It could be read when the task was made.") from error
        if digest_of(image) != self.digests[index]:
            raise DataChangedError(_changed(self.items[index]))
        return image

    def name(self, index: int) -> str:
        """The number of the item, as text."""
        return f"item {self.items[index]}"


class UnreadableItemError(DataError):
    """An item whose image could not be got: the dataset raised, or the picture in it is damaged."""

    def __init__(self, message: str, reason: str = ""):  # an error that travels is made anew from its message
        super().__init__(message)
        self.reason = reason


def from_dataset(
    dataset: MapDataset,
    *,
    classes: Sequence[str] | None = None,
    name: str | None = None,
    allow_bad: bool = False,
    progress: bool = False,
) -> Task:
    """The task of a map-style dataset whose items are (image, label).

    Images may be PIL images, arrays (height, width, channels), or tensors (channels, height, width); numbers are 8-bit
    integers or floats in [0, 1]. A label is a class index, or a row of 0 and 1 for multi-label. Classes that no item
    belongs to are left out, with a warning. Datasets of torchvision work as they are, without a random transform.

    An item that raises stops the reading, whatever their share: unlike a damaged file it may be a mistake in the
    dataset's own code, and its label is lost with it.

    Args:
        dataset: Any object with a length and items by number: a torch dataset, or a list of pairs.
        classes: Names of the classes; those that the dataset carries if they fit, else the numbers of the labels.
        name: What to call the task; the type of the dataset if not given.
        allow_bad: Leave out items that raise or whose picture is damaged, and list them in `Task.bad`.
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
    rows = track(_read_rows(dataset, allow_bad), len(dataset), what=f"reading {name or kind}", progress=progress)
    good, bad = [], []
    for item, row in enumerate(rows):
        bad.append(row) if isinstance(row, BadImage) else good.append((item, *row))
    items, digests, labels = zip(*good, strict=True) if good else ((), (), ())
    images = DatasetImages(dataset, items, digests)
    stacked = _stack(labels, images.name)
    own = find_own_names(dataset, is_multilabel=stacked.ndim == 2)
    targets, names, remarks = settle_classes(stacked, classes, own, images.name)
    remarks = (*remarks, *remark(targets, names, digests, images.name))
    return Task(name or kind, images, targets, names, images.digests, tuple(bad), remarks, kind)


def read_item(dataset: MapDataset, index: int) -> tuple[Image.Image, np.ndarray]:
    """The RGB image and the label of one item; `DataError` names the item if it is no such pair."""
    kind = type(dataset).__name__
    try:
        pair: Any = dataset[index]
    except MemoryError:
        raise
    except Exception as error:
        raise UnreadableItemError(
            f"item {index} of the {kind} cannot be read ({error!r}), so the task would miss it. Mend it, or pass "
            "allow_bad=True to leave such items out and list them.",
            repr(error),
        ) from error
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        shown = f"a dict of {', '.join(map(repr, pair))}" if isinstance(pair, dict) else f"a {type(pair).__name__}"
        mend = "Take from_huggingface" if type(dataset).__module__.startswith("datasets") else "Return (image, label)"
        raise DataError(
            f"item {index} of the {kind} is not a pair of image and label but {shown}: which part is which is not "
            f"known. {mend}."
        )
    image, label = pair
    try:
        return to_image(image), _as_label(label)
    except (NotFiniteError, DataError) as error:
        raise type(error)(f"item {index}: {error}") from error
    except MemoryError:
        raise
    except Exception as error:  # whatever Pillow says of a lazily opened file
        raise UnreadableItemError(f"item {index}: its picture is damaged or truncated ({error})", str(error)) from error


def _as_label(label: object) -> np.ndarray:
    """The label as an array; targets of detection, segmentation and of several kinds at once are refused by name."""
    parts: Sequence[Any] = label if isinstance(label, (list, tuple)) else [label]
    if isinstance(label, Image.Image):
        what = "an image, as for segmentation"
    elif any(isinstance(part, dict) for part in parts):
        what = "made of boxes or annotations (dict), as for detection"
    elif isinstance(label, (list, tuple)) and any(_is_target(part) for part in parts):
        what = f"{len(parts)} targets at once ({', '.join(type(part).__name__ for part in parts)})"
    else:
        return _as_array(label)
    raise DataError(
        f"its label is {what}: nothing says which class the image belongs to. Choose one kind of target (target_type=, "
        "target_types=), or give the dataset a target_transform that returns a class index or a row of 0 and 1."
    )


def _is_target(part: object) -> bool:
    """Whether a part of a label is a whole target and not one number of a row."""
    return isinstance(part, Image.Image) or _as_array(part).ndim > 0


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


def _read_rows(dataset: MapDataset, allow_bad: bool) -> Iterator[tuple[str, np.ndarray] | BadImage]:
    """Digest and label of every item in turn; some are read twice, and refused if they differ."""
    total = len(dataset)
    twice = set(np.linspace(0, total - 1, min(total, READ_TWICE)).astype(int).tolist())
    for index in range(total):
        try:
            image, label = read_item(dataset, index)
            digest = digest_of(image)
            if index in twice:
                again, label_again = read_item(dataset, index)
                if digest_of(again) != digest or repr(label) != repr(label_again):  # as text, for NaN is not NaN
                    raise DataError(_changed(index))
            yield digest, label
        except UnreadableItemError as error:
            if not allow_bad:
                raise
            yield BadImage(f"item {index}", error.reason)


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


def _stack(labels: Sequence[np.ndarray], name_of: NameOf) -> np.ndarray:
    """All labels in one array; labels of different kinds or lengths are refused by their item."""
    for row, label in enumerate(labels):
        if label.shape != labels[0].shape or label.dtype.kind not in "biuf" or label.ndim > 1:
            raise DataError(
                f"{name_of(row)}: its label {label.tolist()!r} is neither a class index nor a row of 0 and 1 like "
                f"that of {name_of(0)}, so it names no class. Return one integer, or one 0 or 1 per class."
            )
    return np.asarray(labels)
