"""train/, val/ and test/ below one folder become tasks whose classes have the same numbers."""

import pytest

from task2vec.errors import BadImagesError, DataError, UsageError
from task2vec.tasks import read_folder, read_splits
from tests.tasks.test_folder import paint


def make_splits(root, **splits):
    """A folder for every split, with that many different images in every class."""
    shade = 0
    for split, counts in splits.items():
        for kind, count in counts.items():
            for number in range(count):
                paint(root / split / kind / f"{number}.png", shade)
                shade += 1
    return root


def facts(task):
    """The folder of every image and the name of its class."""
    folders = [task.images.name(row).split("/")[0] for row in range(len(task))]
    return [(folder, task.classes[label]) for folder, label in zip(folders, task.targets.tolist(), strict=True)]


def test_all_splits_are_read_in_the_usual_order(tmp_path):
    counts = {"cats": 2, "dogs": 3}
    root = make_splits(tmp_path / "pets", test=counts, train=counts, val=counts)
    (root / "notes").mkdir()
    (root / "README.md").write_text("pets")
    tasks = read_splits(root)
    assert list(tasks) == ["train", "val", "test"]
    assert [task.name for task in tasks.values()] == ["pets (train)", "pets (val)", "pets (test)"]
    assert {task.classes for task in tasks.values()} == {("cats", "dogs")}
    assert all(task.warnings == () and task.counts.tolist() == [2, 3] for task in tasks.values())
    assert tasks["test"].fingerprint == read_folder(root / "test").fingerprint
    assert tasks["test"].source == str(root / "test")
    assert read_splits(root, name="mine")["val"].name == "mine (val)"


def test_classes_that_all_splits_have_keep_their_numbers(tmp_path):
    root = make_splits(tmp_path, train={"ant": 2, "bee": 2, "cat": 1, "dog": 2}, val={"bee": 2, "cat": 2, "eel": 1})
    tasks = read_splits(root)
    assert tasks["train"].classes == ("bee", "cat", "ant", "dog")
    assert tasks["val"].classes == ("bee", "cat", "eel")
    for task in tasks.values():  # each image still has the name of the folder it lies in
        assert all(folder == kind for folder, kind in facts(task))
    assert tasks["train"].counts.tolist() == [2, 1, 2, 2]
    assert tasks["train"].warnings[0] == "classes of other splits that have no image here: 'eel'"
    assert tasks["val"].warnings[0] == "classes of other splits that have no image here: 'ant', 'dog'"
    assert tasks["val"].fingerprint == read_folder(root / "val").fingerprint


def test_images_in_two_splits_are_told(tmp_path):
    root = make_splits(tmp_path, train={"a": 2, "b": 2}, val={"a": 2, "b": 2})
    paint(root / "val" / "b" / "leak.png", 0)
    tasks = read_splits(root)
    assert tasks["val"].warnings == ("images that are also in 'train': 1, such as 'b/leak.png'",)
    assert tasks["train"].warnings == ("images that are also in 'val': 1, such as 'a/0.png'",)


def test_splits_of_other_names_are_read_if_named(tmp_path):
    root = make_splits(tmp_path, fold1={"a": 2, "b": 2}, fold2={"a": 2, "b": 2})
    with pytest.raises(DataError, match=r"holds no split: no folder like 'train'.*splits="):
        read_splits(root)
    assert list(read_splits(root, splits=["fold2", "fold1"])) == ["fold2", "fold1"]
    with pytest.raises(UsageError, match="no split 'fold3'"):
        read_splits(root, splits=["fold1", "fold3"])
    with pytest.raises(DataError, match="holds no split"):
        read_splits(tmp_path / "missing")
    with pytest.raises(DataError, match="holds no split"):
        read_splits(make_splits(tmp_path, train={}, val={}))


def test_bad_images_are_counted_by_split(tmp_path):
    root = make_splits(tmp_path, train={"a": 30, "b": 30}, val={"a": 3, "b": 3})
    (root / "train" / "a" / "0.png").write_bytes(b"no image")
    assert [len(task.bad) for task in read_splits(root).values()] == [1, 0]
    (root / "val" / "a" / "0.png").write_bytes(b"no image")
    with pytest.raises(BadImagesError, match=r"val: 1 of 6 images"):
        read_splits(root)
    assert len(read_splits(root, allow_bad=True)["val"]) == 5
