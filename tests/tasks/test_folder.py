"""A folder of class folders becomes a task."""

import warnings
from pathlib import Path

import pytest
from PIL import Image

import task2vec.progress as progress_module
from task2vec.errors import DataError, UsageError
from task2vec.tasks import read_folder, read_splits


def paint(path: Path, shade: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 6), (shade, shade, 255 - shade)).save(path, "PNG")
    return path


def make_folder(root: Path, **counts: int) -> Path:
    """A class folder for every name, with that many different images."""
    shade = 0
    for kind, count in counts.items():
        for number in range(count):
            paint(root / kind / f"{number:02}.png", shade)
            shade += 1
    return root


@pytest.mark.parametrize(
    ("images", "sign"),
    [
        (["dataset_dict.json", "train/state.json", "train/data-00000-of-00001.arrow"], "dataset_dict.json"),
        (["README.md", "data/train-00000-of-00001.parquet"], "data/train-00000-of-00001.parquet"),
    ],
)
def test_a_hugging_face_dataset_is_called_what_it_is(tmp_path, images, sign):
    for name in images:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")
    words = rf"is a Hugging Face dataset \(it has {sign}\).*from_huggingface\('{tmp_path}'\)"
    with pytest.raises(DataError, match=words):
        read_folder(tmp_path)


def test_class_folders_become_classes(tmp_path):
    task = read_folder(make_folder(tmp_path / "pets", cats=3, dogs=2))
    assert repr(task) == "Task(pets, 5 images, 2 classes)"
    assert task.classes == ("cats", "dogs")
    assert task.targets.tolist() == [0, 0, 0, 1, 1]
    assert [task.images.name(index) for index in (0, 4)] == ["cats/00.png", "dogs/01.png"]
    assert (task.bad, task.warnings, task.source) == ((), (), str(tmp_path / "pets"))
    assert task.images.is_threadsafe
    assert task.images.load(4).getpixel((0, 0)) == (4, 4, 251)


def test_the_number_of_workers_changes_nothing(tmp_path):
    make_folder(tmp_path, cats=20, dogs=20)
    (tmp_path / "dogs" / "07.png").write_bytes(b"no image")
    one, many = (read_folder(tmp_path, num_workers=workers) for workers in (1, 4))
    assert (one.digests, one.bad, one.fingerprint) == (many.digests, many.bad, many.fingerprint)
    assert one.targets.tolist() == many.targets.tolist()
    with pytest.raises(UsageError, match=r"num_workers=0 \(--num-workers\)"):
        read_folder(tmp_path, num_workers=0)


def test_content_decides_and_not_the_name(tmp_path):
    make_folder(tmp_path, cats=2, dogs=2)
    paint(tmp_path / "cats" / "misnamed.jpg", 90)
    paint(tmp_path / "cats" / "00000017", 91)
    (tmp_path / "dogs" / "README.txt").write_text("BM and P5 begin no image here")
    (tmp_path / "dogs" / ".DS_Store").write_bytes(b"\0")
    paint(tmp_path / "dogs" / "._02.png", 92)
    paint(tmp_path / ".ipynb_checkpoints" / "x.png", 93)
    paint(tmp_path / "dogs" / ".ipynb_checkpoints" / "x.png", 94)
    (tmp_path / "dogs" / "notes").mkdir()
    (tmp_path / "dogs" / "notes" / "a.txt").write_text("a")
    task = read_folder(tmp_path)
    assert task.counts.tolist() == [4, 2]
    assert task.bad == ()
    assert task.warnings == ("entries that are not images and were ignored: 6, such as '.ipynb_checkpoints'",)


def test_nested_classes_are_refused_with_the_folder_to_pass(tmp_path):
    make_folder(tmp_path / "birds", cats=2, dogs=2)
    make_folder(tmp_path / "apes", cats=2, dogs=2)
    with pytest.raises(DataError, match=r"apes contains the folder 'cats'.*Pass .*apes itself"):
        read_folder(tmp_path)
    assert len(read_folder(tmp_path / "birds")) == 4


def test_splits_are_not_taken_for_classes_and_are_read_by_name(tmp_path):
    make_folder(tmp_path.parent / "private", cats=2, dogs=3)
    make_folder(tmp_path / "train", cats=2, dogs=3)
    make_folder(tmp_path / "Test", cats=1, dogs=1)
    with pytest.raises(DataError, match=r"'Test' with class folders inside.*split='Test'.*read_splits\("):
        read_folder(tmp_path)
    task = read_folder(tmp_path, split="train")
    assert (task.classes, task.counts.tolist()) == (("cats", "dogs"), [2, 3])
    assert (task.name, task.source) == (f"{tmp_path.name} (train)", str(tmp_path / "train"))
    assert task.fingerprint == read_folder(tmp_path / "train").fingerprint
    assert read_folder(tmp_path, split="train", name="mine").name == "mine"

    with pytest.raises(UsageError, match=r"no split 'val': its folders are 'Test', 'train'"):
        read_folder(tmp_path, split="val")
    for split in ("../private", "..", ".", "", "train/cats"):
        with pytest.raises(UsageError, match="no split"):
            read_folder(tmp_path, split=split)


def test_classes_that_are_called_like_splits_are_warned_of(tmp_path):
    task = read_folder(make_folder(tmp_path, train=2, val=2))
    assert task.warnings == ("the classes are named like splits: 'train', 'val'; are the class folders inside them?",)
    assert read_folder(make_folder(tmp_path / "x", train=2, bus=2)).warnings == ()


def test_odd_metadata_makes_neither_noise_nor_a_bad_image(tmp_path):
    make_folder(tmp_path, cats=2, dogs=2)
    Image.new("RGB", (6, 6)).save(tmp_path / "cats" / "odd.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    with warnings.catch_warnings(record=True) as noise:
        warnings.simplefilter("always")
        task = read_folder(tmp_path)
    assert (noise, task.bad, len(task)) == ([], (), 5)


def test_a_bar_appears_on_standard_error_only_when_asked_and_late(tmp_path, capsys, monkeypatch):
    make_folder(tmp_path, cats=3, dogs=3)
    read_folder(tmp_path, progress=True)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(progress_module, "BAR_AFTER", 0.0)
    read_folder(tmp_path, progress=False)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    read_folder(tmp_path, progress=True, name="p [bold]")
    out, err = capsys.readouterr()
    assert out == ""
    assert "6/6" in err
    assert "p [bold]" in err


# --- splits -----------------------------------------------------------------------------------------------------------


def make_splits(root, **splits):
    """A folder for every split, with that many different images in every class."""
    counts = {f"{split}/{kind}": count for split, kinds in splits.items() for kind, count in kinds.items()}
    return make_folder(root, **counts)


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
    assert tasks["train"].warnings == ("images that are also in 'val': 1, such as 'a/00.png'",)


def test_splits_of_other_names_are_read_if_named(tmp_path):
    root = make_splits(tmp_path, fold1={"a": 2, "b": 2}, fold2={"a": 2, "b": 2})
    with pytest.raises(DataError, match=r"has no split: no folder like 'train'.*splits="):
        read_splits(root)
    assert list(read_splits(root, splits=["fold2", "fold1"])) == ["fold2", "fold1"]
    with pytest.raises(UsageError, match="no split 'fold3'"):
        read_splits(root, splits=["fold1", "fold3"])
    with pytest.raises(DataError, match="has no split"):
        read_splits(tmp_path / "missing")
    with pytest.raises(DataError, match="has no split"):
        read_splits(make_splits(tmp_path, train={}, val={}))
