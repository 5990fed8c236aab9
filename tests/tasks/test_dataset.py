"""Any map-style dataset becomes a task."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from task2vec.errors import DataChangedError, DataError, NotFiniteError, UsageError
from task2vec.tasks import from_dataset


def array(seed: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (4, 5, channels), dtype=np.uint8)


def tensor(seed: int) -> torch.Tensor:
    return torch.from_numpy(array(seed)).permute(2, 0, 1)


class Pairs(torch.utils.data.Dataset):
    """A torch dataset whose images pass through `see` each time they are read."""

    def __init__(self, labels, see=array, classes=None):
        self.labels, self.see = labels, see
        if classes is not None:
            self.classes = classes

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.see(index), self.labels[index]


SIGHTS = {
    "array": array,
    "float array": lambda seed: array(seed) / np.float64(255),
    "image": lambda seed: Image.fromarray(array(seed)),
    "tensor": tensor,
    "float tensor": lambda seed: tensor(seed).float() / 255,
    "double tensor that needs a gradient": lambda seed: (tensor(seed).double() / 255).requires_grad_(),
}


@pytest.mark.parametrize("sight", SIGHTS)
def test_every_kind_of_image_gives_the_same_task(sight):
    task = from_dataset(Pairs([0, 1, 1], SIGHTS[sight]))
    assert task.fingerprint == from_dataset(Pairs([0, 1, 1])).fingerprint
    assert np.array_equal(np.asarray(task.images.load(2)), array(2))
    assert (task.name, task.source, task.images.is_threadsafe) == ("Pairs", "Pairs", False)
    assert task.images.name(2) == "item 2"


def test_grey_and_transparent_images_are_converted():
    grey = from_dataset(
        [(array(0, 1), 0), (array(1, 1)[:, :, 0], 1), (tensor(2)[:1], 1), (tensor(3)[0].half() / 255, 1)]
    )
    assert np.array_equal(np.asarray(grey.images.load(0))[:, :, 2], array(0, 1)[:, :, 0])
    assert np.array_equal(np.asarray(grey.images.load(2))[:, :, 1], array(2)[:, :, 0])
    clear = np.zeros((2, 2, 4), dtype=np.uint8)
    assert from_dataset([(clear, 0), (array(1), 1)]).images.load(0).getpixel((0, 0)) == (255, 255, 255)


def test_bfloat16_is_understood():
    task = from_dataset([(torch.ones(3, 2, 2, dtype=torch.bfloat16), 0), (array(1), 1)])
    assert task.images.load(0).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("label", [int, np.int64, np.uint8, torch.tensor, bool])
def test_labels_may_be_any_whole_number(label):
    assert from_dataset(Pairs([label(0), label(1), label(1)])).targets.tolist() == [0, 1, 1]


def test_class_names_come_from_the_caller_then_the_dataset_then_the_numbers():
    labels = [2, 0, 2]
    assert from_dataset(Pairs(labels)).classes == ("0", "2")
    own = from_dataset(Pairs(labels, classes=["a", "b", "c"]))
    assert (own.classes, own.targets.tolist()) == (("a", "c"), [1, 0, 1])
    assert own.warnings[0] == "classes without an item, left out: 'b'"
    given = from_dataset(Pairs(labels, classes=["a", "b", "c"]), classes=["x", "y", "z"], name="mine")
    assert (given.classes, given.name) == (("x", "z"), "mine")
    assert from_dataset(Pairs(labels, classes=["too", "few"])).classes == ("0", "2")
    assert from_dataset(Pairs([0, 10**12])).classes == ("0", "1000000000000")
    with pytest.raises(DataError, match=r"item 0 \(row 0\) is 2"):
        from_dataset(Pairs(labels), classes=["x", "y"])


@pytest.mark.parametrize("row", [list, np.array, torch.tensor, lambda row: torch.tensor(row).float()])
def test_rows_of_zeros_and_ones_are_several_labels(row):
    rows = [[0, 1], [1, 1], [1, 0]]
    task = from_dataset(Pairs([row(values) for values in rows]), classes=["red", "round"])
    assert task.is_multilabel
    assert task.targets.tolist() == rows
    assert task.classes == ("red", "round")
    assert from_dataset(Pairs(rows)).classes == ("0", "1")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, -1], r"item 2 \(row 2\) is -1"),
        ([0.0, 1.5, 1.0], r"item 0 \(row 0\) is 0.0"),
        ([0, float("nan"), 1], r"item 0 \(row 0\)"),
        ([0, "cat", 1], "item 1: its label 'cat'"),
        ([0, [0, 1], 1], "item 1: its label"),
        ([[0, 1], [0, 1, 1]], "item 1: its label"),
        ([[0, 1], [0, 2]], r"item 1 \(row 1\)"),
        ([[0, 1], [1, float("nan")]], r"item 1 \(row 1\)"),
        ([[[0, 1]], [[1, 0]]], "item 0: its label"),
        ([0, None, 1], "item 1: its label"),
        ([3, 3], "only one class"),
        ([[0, 1], [1, 1]], "'1'"),
        ([], "no images"),
    ],
)
def test_wrong_labels_are_refused_by_their_item(labels, message):
    with pytest.raises(DataError, match=message):
        from_dataset(Pairs(labels))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (tensor(1).float() / 127.5 - 1, "item 1: .*Normalize"),
        (tensor(1).float(), "item 1: .*divide 0 to 255 by 255"),
        (tensor(1).int(), "item 1: .*int32"),
        (array(1).transpose(2, 0, 1), r"item 1: .*shape \(3, 4, 5\).*\(height, width, channels\)"),
        (torch.zeros(6, 5, 3), r"item 1: .*\(channels, height, width\)"),
        (np.zeros((0, 4, 3), np.uint8), "item 1: .*shape"),
        ("picture.png", "item 1: .*str"),
        (None, "item 1: .*NoneType"),
    ],
)
def test_images_of_unknown_scale_or_shape_are_refused(image, message):
    with pytest.raises(DataError, match=message):
        from_dataset([(array(0), 0), (image, 1)])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_pixels_that_are_not_finite_are_refused_by_their_item(value):
    broken = tensor(1).float() / 255
    broken[0, 0, 0] = value
    with pytest.raises(NotFiniteError, match=r"item 1: .*NaN"):
        from_dataset([(array(0), 0), (broken, 1)])


def test_augmentation_is_refused():
    noise = np.random.default_rng(0)
    with pytest.raises(DataError, match=r"item 0 .*augmentation"):
        from_dataset(Pairs([0, 1] * 10, lambda index: noise.integers(0, 256, (4, 4, 3), dtype=np.uint8)))
    with pytest.raises(DataError, match=r"item .*augmentation"):
        from_dataset(Pairs([0, 1] * 200, lambda index: array(index)[:, :: 1 if noise.random() < 0.5 else -1].copy()))


def test_items_that_change_later_are_not_loaded():
    pairs = [(array(0), 0), (array(1), 1)]
    task = from_dataset(pairs)
    pairs[1] = (array(7), 1)
    with pytest.raises(DataChangedError, match="item 1"):
        task.images.load(1)
    assert np.array_equal(np.asarray(task.images.load(0)), array(0))


def test_items_that_are_no_pairs_are_refused():
    with pytest.raises(DataError, match=r"item 1 of the list .*not a pair"):
        from_dataset([(array(0), 0), array(1)])
    with pytest.raises(DataError, match=r"item 0 .*not a pair"):
        from_dataset([{"image": array(0), "label": 0, "id": 1}])
    with pytest.raises(DataError, match=r"item 1 .*ZeroDivisionError"):
        from_dataset(Pairs([0, 1], lambda index: array(index // (1 - index))))
    with pytest.raises(UsageError, match="map-style"):
        from_dataset(iter([(array(0), 0)]))


def test_a_lazily_opened_file_that_is_truncated_is_refused_by_its_item(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(tmp_path / "x.png")
    (tmp_path / "x.png").write_bytes((tmp_path / "x.png").read_bytes()[:4000])
    with Image.open(tmp_path / "x.png") as image, pytest.raises(DataError, match=r"item 1: .*truncated"):
        from_dataset([(array(0), 0), (image, 1)])


def test_the_room_does_not_import_torch():
    code = "import sys, task2vec.tasks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
