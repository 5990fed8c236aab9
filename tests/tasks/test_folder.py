"""A folder of class folders becomes a task."""

import sys
import warnings
import weakref
from pathlib import Path

import pytest
from PIL import Image

import task2vec.progress as progress_module
from task2vec.errors import DataChangedError, DataError, UsageError
from task2vec.tasks import images, read_folder
from task2vec.tasks.images import decode


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
        (["dataset_info.json", "state.json", "data-00000-of-00001.arrow"], "state.json"),
        (["dataset_dict.json", "train/state.json", "train/data-00000-of-00001.arrow"], "dataset_dict.json"),
        (["README.md", "data/train-00000-of-00001.parquet"], "data/train-00000-of-00001.parquet"),
        (["train.parquet"], "train.parquet"),
    ],
)
def test_a_hugging_face_dataset_is_called_what_it_is(tmp_path, images, sign):
    for name in images:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")
    words = rf"is a Hugging Face dataset \(it has {sign}\).*from_huggingface\('{tmp_path}'\)"
    with pytest.raises(DataError, match=words):
        read_folder(tmp_path)
    # Class folders with images are a task, whatever else lies there.
    for kind, shade in (("a", 10), ("b", 200)):
        paint(tmp_path / kind / "1.png", shade)
    if not any("/" in name for name in images):
        assert read_folder(tmp_path).classes == ("a", "b")


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
    with pytest.raises(UsageError, match=r"num_workers=0 \(--workers\)"):
        read_folder(tmp_path, num_workers=0)


def test_names_of_files_and_classes_do_not_change_the_fingerprint(tmp_path):
    one = read_folder(make_folder(tmp_path / "one", cats=2, dogs=3))
    (tmp_path / "one" / "cats").rename(tmp_path / "one" / "zebras")
    (tmp_path / "one" / "dogs" / "00.png").rename(tmp_path / "one" / "dogs" / "99.png")
    other = read_folder(tmp_path / "one", name="another")
    assert one.classes != other.classes
    assert one.fingerprint == other.fingerprint
    (tmp_path / "one" / "dogs" / "99.png").rename(tmp_path / "one" / "zebras" / "99.png")
    assert read_folder(tmp_path / "one").fingerprint != one.fingerprint


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


def test_images_of_formats_that_are_not_read_are_bad_and_not_ignored(tmp_path):
    make_folder(tmp_path, cats=30, dogs=30)
    (tmp_path / "cats" / "photo.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    task = read_folder(tmp_path)
    assert [item.path for item in task.bad] == ["cats/photo.HEIC"]
    assert "not a JPEG" in task.bad[0].reason


def test_images_beside_the_class_folders_are_warned_of(tmp_path):
    paint(make_folder(tmp_path, cats=2, dogs=2) / "stray.png", 99)
    task = read_folder(tmp_path)
    assert len(task) == 4
    assert "outside of every class folder" in task.warnings[0]
    assert "'stray.png'" in task.warnings[0]


def test_nested_classes_are_refused_with_the_folder_to_pass(tmp_path):
    make_folder(tmp_path / "birds", cats=2, dogs=2)
    make_folder(tmp_path / "apes", cats=2, dogs=2)
    with pytest.raises(DataError, match=r"apes holds the folder 'cats'.*Pass .*apes itself"):
        read_folder(tmp_path)
    assert len(read_folder(tmp_path / "birds")) == 4


def test_splits_are_not_taken_for_classes(tmp_path):
    make_folder(tmp_path / "train", cats=2, dogs=3)
    make_folder(tmp_path / "Test", cats=1, dogs=1)
    with pytest.raises(DataError, match=r"'Test' with class folders inside.*split='Test'.*read_splits\("):
        read_folder(tmp_path)
    task = read_folder(tmp_path, split="train")
    assert (task.classes, task.counts.tolist()) == (("cats", "dogs"), [2, 3])
    assert (task.name, task.source) == (f"{tmp_path.name} (train)", str(tmp_path / "train"))
    assert task.fingerprint == read_folder(tmp_path / "train").fingerprint
    assert read_folder(tmp_path, split="train", name="mine").name == "mine"


def test_a_split_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    make_folder(tmp_path / "pets" / "train", cats=2, dogs=3)
    make_folder(tmp_path / "private", cats=2, dogs=3)
    with pytest.raises(UsageError, match=r"no split 'val': its folders are 'train'"):
        read_folder(tmp_path / "pets", split="val")
    for split in ("../private", "..", ".", "", "train/cats"):
        with pytest.raises(UsageError, match="no split"):
            read_folder(tmp_path / "pets", split=split)


def test_classes_that_are_called_like_splits_are_warned_of(tmp_path):
    task = read_folder(make_folder(tmp_path, train=2, val=2))
    assert task.warnings == ("the classes are called like splits: 'train', 'val'; were class folders meant inside?",)
    assert read_folder(make_folder(tmp_path / "x", train=2, bus=2)).warnings == ()


def test_a_changed_file_is_not_loaded(tmp_path):
    task = read_folder(make_folder(tmp_path, cats=2, dogs=2))
    paint(tmp_path / "cats" / "00.png", 200)
    (tmp_path / "dogs" / "01.png").unlink()
    with pytest.raises(DataChangedError, match=r"00\.png changed"):
        task.images.load(0)
    with pytest.raises(DataChangedError, match="no such file"):
        task.images.load(3)
    assert task.images.load(1).size == (6, 6)


def test_odd_metadata_makes_neither_noise_nor_a_bad_image(tmp_path):
    make_folder(tmp_path, cats=2, dogs=2)
    Image.new("RGB", (6, 6)).save(tmp_path / "cats" / "odd.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    with warnings.catch_warnings(record=True) as noise:
        warnings.simplefilter("always")
        task = read_folder(tmp_path)
    assert (noise, task.bad, len(task)) == ([], (), 5)


def test_a_relative_path_is_named_for_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(make_folder(tmp_path / "here", cats=2, dogs=2))
    task = read_folder(".")
    assert (task.name, task.source) == ("here", ".")
    monkeypatch.chdir(tmp_path)
    assert task.images.load(0).size == (6, 6)


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


def test_reading_keeps_no_pixels(tmp_path, monkeypatch):
    """Of forty images, no more are alive at any time than one per worker and one that is about to go."""
    made, most = [], 0

    def decode_and_count(data):
        nonlocal most
        image = decode(data)
        made.append(weakref.ref(image))
        most = max(most, sum(one() is not None for one in made))
        return image

    monkeypatch.setattr(images, "decode", decode_and_count)
    task = read_folder(make_folder(tmp_path, cats=20, dogs=20), num_workers=2)
    assert (len(task), len(made)) == (40, 40)
    assert most <= 3
    assert all(one() is None for one in made)


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_a_link_inside_the_root_is_an_image_like_any_other(tmp_path):
    make_folder(tmp_path, cats=2, dogs=2)
    (tmp_path / "dogs" / "link.png").symlink_to(tmp_path / "cats" / "00.png")
    task = read_folder(tmp_path)
    assert task.counts.tolist() == [2, 3]
    assert any("different labels" in text and "'dogs/link.png'" in text for text in task.warnings)
