"""Any map-style dataset becomes a task."""

import shutil

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from task2vec.errors import BadImagesError, DataChangedError, DataError, UsageError
from task2vec.tasks import from_dataset
from tests.failures import refuse
from tests.tasks.pictures import make_folder


def array(seed: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (4, 5, channels), dtype=np.uint8)


def tensor(seed: int) -> torch.Tensor:
    return torch.from_numpy(array(seed)).permute(2, 0, 1)


class Pairs(torch.utils.data.Dataset):
    """A torch dataset whose images pass through `see` each time they are read."""

    def __init__(self, labels, see=array, **attributes):
        self.labels, self.see = labels, see
        vars(self).update(attributes)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.see(index), self.labels[index]


def test_every_kind_of_image_gives_the_same_task_whose_images_are_copies():
    own = [Image.fromarray(array(seed)) for seed in range(3)]
    plain = from_dataset(Pairs([0, 1, 1]))
    for see in (own.__getitem__, tensor, lambda seed: (tensor(seed).double() / 255).requires_grad_()):
        task = from_dataset(Pairs([0, 1, 1], see))
        assert task.fingerprint == plain.fingerprint
        task.images.load(2).thumbnail((2, 2))  # in place, as a report makes its small images
        assert np.array_equal(np.asarray(task.images.load(2)), array(2))
    assert (task.name, task.source, task.images.is_threadsafe) == ("unnamed", "Pairs", False)
    assert task.images.name(2) == "item 2"


def test_grey_and_transparent_images_are_converted():
    greys = [(array(0, 1), 0), (array(1, 1)[:, :, 0], 1), (tensor(2)[:1], 1), (tensor(3)[0].half() / 255, 1)]
    grey = from_dataset([*greys, (np.zeros((2, 2, 4), dtype=np.uint8), 0)])
    assert np.array_equal(np.asarray(grey.images.load(0))[:, :, 2], array(0, 1)[:, :, 0])
    assert np.array_equal(np.asarray(grey.images.load(2))[:, :, 1], array(2)[:, :, 0])
    assert grey.images.load(4).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("labels", "given", "attributes", "classes"),
    [
        ([2, 0, 2], None, {"classes": ["a", "b", "c"]}, ("a", "c")),
        ([2, 0, 2], ["x", "y", "z"], {"classes": ["a", "b", "c"]}, ("x", "z")),
        ([2, 0, 2], None, {"classes": ["too", "few"]}, ("0", "2")),
        ([0, 10**12], None, {}, ("0", "1000000000000")),
        ([0, 1, 1], None, {"classes": [("tench", "Tinca tinca"), ("goldfish",)]}, ("tench, Tinca tinca", "goldfish")),
        ([0, 1, 1], None, {"categories": ["accordion", "airplanes"]}, ("accordion", "airplanes")),
        ([0, 1, 1], None, {"class_to_idx": {"Zed": 0, "Amy": 1}}, ("Zed", "Amy")),
        (np.array([False, True, True]), None, {}, ("0", "1")),
        # OxfordIIITPet by kind, and CelebA, whose header ends in a blank.
        ([0, 1, 1], None, {"_target_types": ["binary-category"], "bin_classes": ["Cat", "Dog"]}, ("Cat", "Dog")),
        ([[1, 0], [0, 1]], None, {"attr_names": ["Bald", "Smiling", ""]}, ("Bald", "Smiling")),
        (torch.tensor([[0, 1], [1, 1], [1, 0]]).float(), ["red", "round"], {}, ("red", "round")),
    ],
)
def test_class_names_come_from_the_caller_then_the_dataset_then_the_numbers(labels, given, attributes, classes):
    task = from_dataset(Pairs(labels, **attributes), classes=given, name="mine")
    assert (task.name, task.classes, task.is_multilabel) == ("mine", classes, np.ndim(labels) == 2)
    expected = np.asarray(labels) if task.is_multilabel else np.unique(labels, return_inverse=True)[1]
    assert task.targets.tolist() == expected.tolist()
    if attributes == {"classes": ["a", "b", "c"]}:
        assert task.warnings[0] == f"classes without an image, left out: {'y' if given else 'b'!r}"


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Pairs([[0, 1], [1, 0]]), "3 class names were given for rows of 2 values"),
        (Pairs([0.0, 1.5, 1.0]), r"item 1 \(row 1\) holds decimal numbers \(such as 1\.5\).*regression is not"),
        (Pairs([0.0, 1.0, 1.0]), r"item 0 \(row 0\) holds decimal numbers \(such as 0\.0\).*class numbers as integers"),
        (Pairs([[0.1, 0.9], [1.0, 0.0]]), r"item 0 \(row 0\) .*\[0\.1, 0\.9\].*regression"),
        (Pairs([0, {"boxes": [1]}, 1]), r"item 1: its label \(dict\) is neither.*target_types="),
        (Pairs([(0, Image.new("L", (2, 2)))] * 2), r"item 0: its label \(int, Image\)"),
        (Pairs([0, [0, 1]]), r"item 1: its label \[0, 1\] is unlike that of item 0, 0"),
        ([(tensor(1).float(), 1)], "item 0: .*divide 0 to 255 by 255"),
        ([(tensor(1).int(), 1)], "item 0: .*int32"),
        ([(array(1).transpose(2, 0, 1), 1)], r"item 0: .*shape \(3, 4, 5\).*\(height, width, channels\)"),
        ([(torch.zeros(6, 5, 3), 1)], r"item 0: .*\(channels, height, width\)"),
        ([array(1)], "item 0: it is not a pair"),
        ([{"image": array(0), "label": 0}], r"item 0: .*not a pair .*dict of 'image', 'label'.*Return \(image, label"),
    ],
)
def test_wrong_labels_and_items_that_are_no_pairs_are_refused_by_their_item(dataset, message):
    refuse(DataError, message, from_dataset, dataset, classes=["a", "b", "c"])


def test_augmentation_and_streams_are_refused():
    noise = np.random.default_rng(0)
    new = Pairs([0, 1] * 10, lambda index: noise.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    refuse(DataError, r"item 0 .*augmentation", from_dataset, new)
    flipped = Pairs([0, 1] * 200, lambda index: array(index)[:, :: 1 if noise.random() < 0.5 else -1].copy())
    refuse(DataError, r"item .*augmentation", from_dataset, flipped)
    refuse(UsageError, "map-style", from_dataset, iter([(array(0), 0)]))


def test_other_errors_of_an_item_stop_the_reading_unless_they_may_be_left_out():
    class Broken(list):
        def __getitem__(self, index):
            return {}["label"] if index == 5 else super().__getitem__(index)

    items = Broken((array(10 * number), number % 2) for number in range(40))
    refuse(DataError, r"item 5 of the Broken cannot be read \(KeyError.*allow_bad=True", from_dataset, items)
    assert [bad.path for bad in from_dataset(items, allow_bad=True).bad] == ["item 5"]


def test_files_that_cannot_be_read_are_left_out_unless_there_are_many(tmp_path):
    root = make_folder(tmp_path, cats=10, dogs=10)
    (root / "cats" / "003.png").write_bytes(b"no image")
    (root / "dogs" / "001.png").write_bytes((root / "dogs" / "001.png").read_bytes()[:45])
    folder = torchvision.datasets.ImageFolder(root)
    refuse(BadImagesError, r"ImageFolder: 2 of 20 .*'item 3': Unidentified.*allow_bad=True", from_dataset, folder)
    one = from_dataset(torch.utils.data.Subset(folder, [*range(12, 20), *range(11)]))
    assert [bad.path for bad in one.bad] == ["item 11"]
    assert (one.classes, one.counts.tolist()) == (("cats", "dogs"), [9, 9])
    task = from_dataset(folder, allow_bad=True)
    assert [bad.path for bad in task.bad] == ["item 3", "item 11"]
    assert (task.counts.tolist(), task.images.name(3)) == ([9, 9], "item 4")
    assert task.images.load(3).getpixel((0, 0)) == (4, 0, 7)
    assert task.images.load(17).getpixel((0, 0)) == (241, 3, 7)
    # Nor is an item loaded that went away or changed later.
    (root / "cats" / "004.png").unlink()
    shutil.copyfile(root / "cats" / "006.png", root / "cats" / "005.png")
    for row, words in ((3, "item 4 .*cannot be read"), (4, "item 5")):
        refuse(DataChangedError, words, task.images.load, row)
