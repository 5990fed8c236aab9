"""A map-style dataset of (image, label) pairs becomes a task; one of torch, too, without importing torch here."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from task2vec.errors import DataChangedError, DataError, UsageError
from task2vec.progress import track
from task2vec.tasks.columns import from_one_hot, refuse_regression
from task2vec.tasks.images import BadImage, decode, digest_pixels, to_eight_bit, to_rgb
from task2vec.tasks.task import UNNAMED, NameOf, Task, check_labels, drop_empty, number_groups, refuse_many
from task2vec.text import quote

# Items that are read twice, spread over the dataset: a flip with probability 0.1 escapes 32 of them once in 600 times,
# and is then found when the image is loaded again.
READ_TWICE = 32
CHANGED_ITEM = (
    "item {} of the dataset is not the same when read twice, so the embedding would differ with every run. Switch "
    "augmentation off (RandomCrop, RandomHorizontalFlip, ...) and keep the data unchanged."
)


@dataclass(frozen=True)
class DatasetImages:
    """The images of a dataset, which must still have the pixels that `digests` were computed from."""

    dataset: Any
    items: tuple[int, ...]
    digests: tuple[str, ...]
    is_threadsafe: bool = False

    def __len__(self) -> int:
        """The number of items."""
        return len(self.digests)

    def load(self, index: int) -> Image.Image:
        """A copy of the image at `index`, so that no caller can change it; `DataChangedError` if its pixels changed."""
        try:
            image, _ = read_item(self.dataset, self.items[index])
        except UnreadableItemError as error:
            raise DataChangedError(f"{error} It could be read when the task was created.") from error
        if digest_pixels(image) != self.digests[index]:
            raise DataChangedError(CHANGED_ITEM.format(self.items[index]))
        return image.copy()

    def name(self, index: int) -> str:
        """The number of the item, as text."""
        return f"item {self.items[index]}"


class UnreadableItemError(DataError):
    """An item without an image: the dataset raised an error, or the image file is damaged; its cause is the reason."""


def from_dataset(
    dataset: Any,
    *,
    classes: Sequence[str] | None = None,
    groups: Sequence[object] | None = None,
    name: str | None = None,
    allow_bad: bool = False,
    progress: bool = False,
) -> Task:
    """The task of a map-style dataset whose items are (image, label).

    Images may be PIL images, arrays (height, width, channels), tensors (channels, height, width), or encoded bytes;
    numbers are 8-bit integers or floats in [0, 1]. A label is a class index or name, or a row of 0 and 1 for
    multi-label; if every row has a single 1, these are classes. Classes that no item belongs to are left out, with a
    warning. Datasets of torchvision work as they are, without a random transform.

    Files that cannot be read are left out and listed in `Task.bad`, up to 5% of the items. Any other error in an item
    stops the reading: it may be a mistake in the dataset's own code.

    Args:
        dataset: Any object with a length and items by number: a torch dataset, or a list of pairs.
        classes: Names of the classes; the dataset's own names if they fit, else the numbers of the labels.
        groups: For every item the name of its group, the same for images of one patient, scene or object.
        name: The name of the task; that of the dataset or its folder if not given, as far as it has one.
        allow_bad: Leave out more of them, and items with any other error.
        progress: Show a progress bar when reading takes longer than two seconds.

    Raises:
        BadImagesError: More than 5% of the files cannot be read, and `allow_bad` is false.
        DataError: An item that is no such pair, pixels of unknown scale, a dataset whose items change (augmentation).
        NotFiniteError: A pixel is NaN or infinite.

    Example:
        >>> import numpy as np
        >>> pixels = np.arange(4 * 8 * 8 * 3, dtype=np.uint8).reshape(4, 8, 8, 3)
        >>> from_dataset([(pixels[0], 0), (pixels[1], 1), (pixels[2] // 2, 1)], name="stripes")
        Task(stripes, 3 images, 2 classes)
    """
    kind = type(dataset).__name__
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise UsageError(
            f"a {kind} has no length or no items by number, and a task is read more than once, in any order. Pass a "
            "map-style dataset; list(dataset) makes one of a small stream."
        )
    total = len(dataset)
    name = name or _find_name(dataset)
    if groups is not None and len(groups) != total:
        raise UsageError(
            f"{len(groups)} groups for {total} items: it is unclear whose they are. Pass one for each item."
        )
    twice = set(np.linspace(0, total - 1, min(total, READ_TWICE)).astype(int).tolist())
    items, digests, labels, bad = [], [], [], []
    for item in track(range(total), total, what=f"reading {name}", progress=progress):
        try:
            image, label = read_item(dataset, item)
            digest = digest_pixels(image)
            if item in twice:
                again, label_again = read_item(dataset, item)
                if digest_pixels(again) != digest or repr(label) != repr(label_again):  # as text: NaN differs from NaN
                    raise DataError(CHANGED_ITEM.format(item))
        except UnreadableItemError as error:
            if not (allow_bad or isinstance(error.__cause__, OSError)):  # Pillow raises these for damaged files
                raise
            bad.append(BadImage(f"item {item}", repr(error.__cause__)))
            continue
        if labels and (label.shape, label.dtype.kind == "U") != (labels[0].shape, labels[0].dtype.kind == "U"):
            raise DataError(
                f"item {item}: its label {label.tolist()!r} is unlike that of item {items[0]}, {labels[0].tolist()!r}, "
                "and a task has one kind of label. Return one integer or name for each, or one 0 or 1 per class."
            )
        items.append(item)
        digests.append(digest)
        labels.append(label)
    refuse_many(bad, total, kind, allow_bad=allow_bad)
    images = DatasetImages(dataset, tuple(items), tuple(digests))
    targets, names, notes = number_classes(np.asarray(labels), classes, dataset, images.name)
    numbers = None if groups is None else number_groups([groups[item] for item in items])
    return Task(name, images, targets, names, images.digests, tuple(bad), notes, kind, numbers)


def _find_name(dataset: Any) -> str:
    """The name of a dataset: that of its folder, or of a published dataset of torchvision."""
    dataset = getattr(dataset, "dataset", dataset)  # of a Subset
    kind, root = type(dataset), getattr(dataset, "root", None)
    if kind.__module__.startswith("torchvision.") and not kind.__name__.endswith("Folder"):
        return kind.__name__
    return (Path(root).resolve().name if isinstance(root, str | os.PathLike) else "") or UNNAMED


def read_item(dataset: Any, index: int) -> tuple[Image.Image, np.ndarray]:
    """The RGB image and the label of one item; `DataError` names the item if it is no such pair."""
    try:
        pair: Any = dataset[index]
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            form = f"a dict of {', '.join(map(repr, pair))}" if isinstance(pair, dict) else f"a {type(pair).__name__}"
            is_foreign = type(dataset).__module__.startswith("datasets")
            fix = "Use from_huggingface" if is_foreign else "Return (image, label), or pass a dict of these lists"
            raise DataError(f"it is not a pair of image and label but {form}. {fix}.")
        return to_image(pair[0]), _to_label(pair[1])
    except MemoryError:
        raise
    except DataError as error:
        raise type(error)(f"item {index}: {error}") from error
    except Exception as error:  # whatever the dataset raises, or Pillow for a lazily opened file
        raise UnreadableItemError(
            f"item {index} of the {type(dataset).__name__} cannot be read ({error!r}), so the task would miss it. Fix "
            "it, or pass allow_bad=True to leave such items out and list them."
        ) from error


def _to_label(label: object) -> np.ndarray:
    """The label as an array; targets of detection, segmentation and of several types at once are refused."""
    array = _to_array(label)
    if array.ndim > 1 or array.dtype.kind not in ("biuf" if array.ndim else "biufU"):
        targets: Sequence[Any] = label if isinstance(label, (list, tuple)) else [label]
        raise DataError(
            f"its label ({', '.join(type(target).__name__ for target in targets)}) is neither a class index or name "
            "nor a row of 0 and 1, but a target of detection, segmentation or of several types at once. Choose one "
            "type of target (target_type=, target_types=), or give the dataset a target_transform. Lists of names are "
            "read from (images, labels)."
        )
    return array


def to_image(image: object) -> Image.Image:
    """A PIL image, an array (height, width, channels), a tensor (channels, height, width) or bytes as 8-bit RGB."""
    if isinstance(image, Image.Image):
        return to_rgb(image)
    if isinstance(image, Mapping):  # as Hugging Face stores it
        image = image.get("bytes")
    if isinstance(image, bytes):
        try:
            return decode(image)
        except DataError as error:
            raise OSError(str(error)) from error  # a damaged file among others
    pixels = _to_array(image)
    is_tensor = hasattr(image, "detach")
    if is_tensor and pixels.ndim == 3:
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.ndim == 3 and pixels.shape[-1] == 1:
        pixels = pixels[:, :, 0]
    if 0 in pixels.shape or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[-1] in (3, 4))):
        layout = "(channels, height, width) for a tensor" if is_tensor else "(height, width, channels) for an array"
        shown = f"its image is a {type(image).__name__} of shape {pixels.shape}"
        raise DataError(f"{shown}. Return a PIL image, or {layout}, with 1, 3 or 4 channels.")
    if pixels.dtype.kind == "f":
        pixels = to_eight_bit(pixels)
    if pixels.dtype != np.uint8:
        raise DataError(f"its pixels are {pixels.dtype}, whose scale is unknown. Return uint8, or floats in [0, 1].")
    return to_rgb(Image.fromarray(np.ascontiguousarray(pixels)))


def _to_array(value: object) -> np.ndarray:
    """An array of anything that holds numbers; tensors are recognised by their methods, without importing torch."""
    if hasattr(value, "detach"):
        tensor: Any = value
        value = (tensor.double() if tensor.is_floating_point() else tensor).detach().cpu()  # numpy has no bfloat16
    try:
        return np.asarray(value)
    except ValueError:  # a ragged list
        return np.asarray(None)


def number_classes(
    labels: np.ndarray, given: Sequence[str] | None, dataset: object, name_of: NameOf
) -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """Targets, class names and notes; names are those given, else the dataset's own where they fit, else numbers."""
    if labels.dtype.kind == "U":
        given = given or sorted(set(labels.tolist()))
        if unknown := sorted(set(labels.tolist()).difference(given)):
            raise DataError(f"labels that are none of the classes: {quote(unknown)}. Pass all names as classes=.")
        labels = np.array([given.index(label) for label in labels.tolist()])
    if labels.ndim == 2 and labels.shape[1] == 1 and not np.isin(labels, (0, 1)).all():
        labels = labels[:, 0]  # a class index in a tensor of its own
    if labels.dtype.kind in "bu":
        labels = labels.astype(np.int64)
    _refuse_decimals(labels, name_of)
    notes: tuple[str, ...] = ()
    has_attributes = hasattr(getattr(dataset, "dataset", dataset), "attr_names")  # CelebA
    if labels.ndim == 2 and not has_attributes and len(given or labels[0]) == labels.shape[1]:
        classes_of_rows = from_one_hot(labels)
        notes = ("labels are one-hot: one class for each image",) if classes_of_rows.ndim == 1 else ()
        labels = classes_of_rows
    is_multilabel = labels.ndim == 2
    needed = labels.shape[1] if is_multilabel else int(labels.max(initial=-1)) + 1
    known = find_class_names(dataset, is_multilabel=is_multilabel) or []
    names = given or (known if len(known) == needed or (len(known) > needed and not is_multilabel) else None)
    if is_multilabel and names and len(names) != needed:
        raise DataError(f"{len(names)} class names were given for rows of {needed} values. Pass {needed} names.")
    targets = check_labels(labels, len(names) if names else needed, name_of)
    if is_multilabel:
        return targets, tuple(names or map(str, range(needed))), ()
    if names:
        targets, names, lost = drop_empty(targets, names)
        return targets, names, (*notes, *lost)
    present, targets = np.unique(targets, return_inverse=True)
    return targets, tuple(map(str, present.tolist())), notes


def _refuse_decimals(labels: np.ndarray, name_of: NameOf) -> None:
    """Raise `DataError` for labels that are decimal numbers; rows that are all 0 and 1 may be stored as floats."""
    if labels.dtype.kind != "f" or not labels.size or (labels.ndim == 2 and np.isin(labels, (0, 1)).all()):
        return
    rows = labels.reshape(len(labels), -1)
    # A clear example: a missing value, else 0.5 rather than 1.0.
    row = int(np.argmax((2 * np.isnan(rows) + (rows != np.floor(rows))).max(axis=1)))
    source = f"the label of {name_of(row)} (row {row})"
    value = labels[row].tolist()
    if np.isnan(rows[row]).any():
        raise DataError(f"{source} is {value!r}: it is missing. Fill it in or leave the image out.")
    refuse_regression(source, repr(value))


def find_class_names(dataset: object, *, is_multilabel: bool) -> list[str] | None:
    """The class names of a torchvision dataset, or of one with the same attributes; None if it has none.

    Example:
        >>> class Pets(list):
        ...     classes = ["cat", ("dog", "hound")]
        >>> find_class_names(Pets(), is_multilabel=False)
        ['cat', 'dog, hound']
    """
    if type(dataset).__name__ == "Subset":
        return find_class_names(getattr(dataset, "dataset", None), is_multilabel=is_multilabel)
    attributes = ("attr_names", "classes") if is_multilabel else ("classes", "categories")  # Caltech101 and 256
    if getattr(dataset, "_target_types", None) == ["binary-category"]:  # OxfordIIITPet: `classes` are the 37 breeds
        attributes = ("bin_classes",)
    values = [getattr(dataset, attribute, None) for attribute in attributes]
    candidates = [names for names in values if isinstance(names, (list, tuple))]
    numbers = getattr(dataset, "class_to_idx", None)
    if isinstance(numbers, Mapping) and sorted(numbers.values()) == list(range(len(numbers))):
        candidates.append(sorted(numbers, key=numbers.__getitem__))
    for names in candidates:
        # Synonyms, as ImageNet has them, are joined into one name.
        words = [", ".join(map(str, name)) if isinstance(name, tuple) else name for name in names]
        if words[-1:] == [""]:  # CelebA's header ends in a blank
            words.pop()
        if words and all(isinstance(word, str) for word in words):
            return words
    return None
