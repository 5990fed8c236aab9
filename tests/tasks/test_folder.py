"""A folder of class folders becomes a task, and a folder of splits one task for each."""

from PIL import Image

import task2vec.progress as progress_module
from task2vec.errors import DataError, UsageError
from task2vec.tasks import read_folder, read_splits
from tests.failures import refuse
from tests.tasks.pictures import make_folder, paint
from tests.tasks.shades import facts


def test_class_folders_become_classes_with_any_number_of_workers(tmp_path):
    root = make_folder(tmp_path / "pets", cats=3, dogs=2)
    task, other = read_folder(root, num_workers=1), read_folder(root, num_workers=4)
    assert (repr(task), task.classes) == ("Task(pets, 5 images, 2 classes)", ("cats", "dogs"))
    assert facts(task)[2:4] == [("cats/002.png", "cats"), ("dogs/000.png", "dogs")]
    assert (task.bad, task.warnings, task.source) == ((), (), str(root))
    assert task.images.is_threadsafe and task.images.load(4).getpixel((0, 0)) == (1001 % 256, 3, 7)
    assert (task.digests, task.fingerprint) == (other.digests, other.fingerprint)
    refuse(UsageError, r"num_workers=0 \(--num-workers\)", read_folder, root, num_workers=0)


def test_content_decides_and_not_the_name(tmp_path):
    make_folder(tmp_path, cats=2, dogs=2, train=2)
    Image.new("RGB", (6, 6)).save(tmp_path / "train" / "odd.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    paint(tmp_path / "cats" / "misnamed.jpg", 90)
    paint(tmp_path / "cats" / "00000017", 91)
    for place, text in (("README.txt", "BM and P5 begin no image here"), (".DS_Store", "\0"), ("notes/a.txt", "a")):
        (tmp_path / "dogs" / place).parent.mkdir(exist_ok=True)
        (tmp_path / "dogs" / place).write_text(text)
    # What systems leave behind is neither an image nor a class.
    for number, place in enumerate(("dogs/._02.png", "__MACOSX/x.png", ".git/x.png", "dogs/@eaDir/000.png/thumb.png")):
        paint(tmp_path / place, 92 + number)
    task = read_folder(tmp_path)  # without a warning of Pillow's, which would be an error here
    assert (task.counts.tolist(), task.bad) == ([4, 2, 3], ())
    assert task.warnings == ("entries that are not images and were ignored: 7, such as '.git'",)
    (tmp_path / "empty").mkdir()
    refuse(DataError, "empty", read_folder, tmp_path)


def test_folders_inside_class_folders_have_the_label_of_the_first_level(tmp_path):
    counts = {"cats": 2, "cats/from phone": 2, "cats/from phone/old": 1, "dogs": 3}
    root = make_folder(tmp_path / "pets", **counts)
    task = read_folder(root)
    assert (task.classes, task.counts.tolist()) == (("cats", "dogs"), [5, 3])
    (told,) = task.warnings
    assert told.startswith("2 folders inside class folders, such as 'cats/from phone': the label is the first folder")
    assert "cats/from phone/old/000.png" in dict(facts(task))
    # No image lies in a class directly, but all folders inside have one name, which makes no classes.
    alike = {f"{kind}/images": 2 for kind in ("cats", "dogs")}
    assert read_folder(make_folder(tmp_path / "alike", **alike)).counts.tolist() == [2, 2]
    (root / "cats" / "from phone" / "round").symlink_to(root)
    assert len(read_folder(root)) == 8


def test_classes_in_a_single_folder_are_found_and_told(tmp_path):
    make_folder(tmp_path / "apes", cats=2, dogs=2)
    task = read_folder(tmp_path)
    assert task.classes == ("cats", "dogs") and "the label is the second folder" in task.notes[0]
    (likely,) = read_folder(make_folder(tmp_path / "x", train=2, val=2)).warnings
    assert likely == "the classes are named like splits: 'train', 'val'; are the class folders inside them?"


def test_folders_above_the_classes_are_asked_about_with_both_candidates(tmp_path):
    root = make_folder(tmp_path / "scans", **{f"{site}/{kind}": 4 for site in ("oslo", "rome") for kind in "xyz"})
    words = r"2 classes, 'oslo' \(12 images\), 'rome' \(12 images\): .*--label-level 1\).*3 classes, 'x' \(8 images\).*"
    refuse(DataError, rf"{words}--label-level 2.*--group-level 1", read_folder, root)
    paint(root / "oslo" / "map.png", 9)
    refuse(DataError, words, read_folder, root)
    refuse(UsageError, r"label_level=2 .* matches 24 of 25 paths.*: 'oslo/map.png'", read_folder, root, label_level=2)
    (root / "oslo" / "map.png").unlink()
    task = read_folder(root, label_level=2, group_level=1)
    assert task.classes == ("x", "y", "z") and len(set(task.groups.tolist())) == 2 and task.notes == ()
    assert read_folder(root, label_level=1).classes == ("oslo", "rome")
    named = read_folder(root, label_pattern=r"^(?P<site>\w+)/(?P<label>\w)/", group="[0-9]+")
    assert named.fingerprint == task.fingerprint and len(set(named.groups.tolist())) == 4
    for options, message in (
        ({"label_level": 3}, "matches 0 of 24 paths"),
        ({"label_level": 0}, r"label_level=0 \(--label-level\) matches 0"),
        ({"label_pattern": "rome/(.)"}, r"matches 12 of 24 paths.*without a match: 'oslo/x/000.png'"),
        ({"label_pattern": "("}, "is no regular expression"),
        ({"label_pattern": "(.)", "label_level": 1}, "both say the label"),
        ({"label_level": 2, "group": "(.)", "group_level": 1}, "both say the groups"),
        ({"label_level": 2, "label_columns": "x"}, "are those of a table"),
    ):
        refuse(UsageError, message, read_folder, root, **options)


def test_a_table_beside_images_has_their_labels_and_is_named(tmp_path):
    root = make_folder(tmp_path / "pets" / "train", **{".": 6})
    names = [f"{number:03}" for number in range(6)]
    labelled = [*zip(names, "abab", strict=False)]
    rows = "".join(f"{name}.png {kind}\n" for name, kind in labelled)
    (root / "notes.csv").write_text("about,label\nnothing,a\n")
    refuse(DataError, "6 images lie in it directly.*no table", read_folder, root)
    (tmp_path / "pets" / "train.txt").write_text(rows)
    task = read_folder(root)
    assert (task.name, task.source, task.targets.tolist()) == ("train", str(root), [0, 1, 0, 1])
    assert task.notes == (
        "labels of the table '../train.txt', no header, separated by spaces, paths in column 1, labels in column 2",
        "images that the table does not name, left out: 2",
    )
    assert read_folder(tmp_path / "pets", split="train").fingerprint == task.fingerprint
    # Names without an ending, and no header: the first of them is not lost. Tables in the folder come first.
    (root / "labels.csv").write_text("".join(f"{name},{kind}\n" for name, kind in labelled))
    assert read_folder(root).fingerprint == task.fingerprint and "'labels.csv', no header" in read_folder(root).notes[0]
    (root / "more.csv").write_text("id,kind,size,patient\n" + "".join(f"{n},{k},1,p{n}\n" for n, k in labelled))
    refuse(DataError, r"labels.csv', .*more.csv' all name the images.*--root", read_folder, root)
    (root / "labels.csv").unlink()
    refuse(DataError, "name one: label_columns=", read_folder, root)
    assert len(set(read_folder(root, label_columns="kind", group="patient").groups.tolist())) == 4


def test_a_hugging_face_dataset_is_called_what_it_is(tmp_path):
    for number, sign in enumerate(("dataset_dict.json", "data/train-00000-of-00001.parquet")):
        place = tmp_path / f"{number}" / sign
        place.parent.mkdir(parents=True)
        place.write_bytes(b"{}")
        words = rf"is a Hugging Face dataset \(it has {sign}\).*from_huggingface\('{tmp_path}/{number}'\)"
        refuse(DataError, words, read_folder, tmp_path / f"{number}")


def test_splits_are_not_taken_for_classes_and_are_read_by_name(tmp_path):
    make_folder(tmp_path.parent / "private", cats=2, dogs=3)
    make_folder(tmp_path, **{"train/cats": 2, "train/dogs": 3, "Test/cats": 1, "Test/dogs": 1})
    refuse(DataError, r"'Test' with class folders inside.*split='Test'.*read_splits\(", read_folder, tmp_path)
    task = read_folder(tmp_path, split="train")
    assert (task.classes, task.counts.tolist()) == (("cats", "dogs"), [2, 3])
    assert (task.name, task.source) == (f"{tmp_path.name} (train)", str(tmp_path / "train"))
    assert read_folder(tmp_path, split="train", name="mine").name == "mine"
    refuse(UsageError, r"no split 'val': its folders are 'Test', 'train'", read_folder, tmp_path, split="val")
    for split in ("../private", "..", ".", "", "train/cats"):
        refuse(UsageError, "no split", read_folder, tmp_path, split=split)


def test_a_bar_appears_on_standard_error_only_when_asked_and_late(tmp_path, capsys, monkeypatch):
    make_folder(tmp_path, cats=3, dogs=3)
    read_folder(tmp_path, progress=True)
    monkeypatch.setattr(progress_module, "BAR_AFTER", 0.0)
    read_folder(tmp_path, progress=False)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    read_folder(tmp_path, progress=True, name="p [bold]")
    out, err = capsys.readouterr()
    assert out == "" and "6/6" in err and "p [bold]" in err


# --- splits -----------------------------------------------------------------------------------------------------------


def test_all_splits_are_read_in_the_usual_order_and_shared_images_are_reported(tmp_path):
    counts = {"test/bee": 2, "test/cat": 2, "test/eel": 1, "train/ant": 2, "train/bee": 2, "train/cat": 1}
    root = make_folder(tmp_path / "pets", **counts, notes=0)
    paint(root / "test" / "cat" / "leak.png", 4000)  # a copy of the first bee for training
    tasks = read_splits(root)
    assert [task.name for task in tasks.values()] == ["pets (train)", "pets (test)"]
    # Classes that all splits have keep their numbers.
    assert tasks["train"].classes == ("bee", "cat", "ant")
    assert tasks["test"].classes == ("bee", "cat", "eel")
    for split, task in tasks.items():  # each image still has the name of the folder it lies in
        assert all(name.split("/")[0] == kind for name, kind in facts(task))
        assert (task.fingerprint, task.source) == (read_folder(root / split).fingerprint, str(root / split))
    assert tasks["train"].notes == (
        "classes of other splits that have no image here: 'eel'",
        "images that are also in 'test': 1, such as 'bee/000.png'",
    )
    assert tasks["test"].notes == (
        "classes of other splits that have no image here: 'ant'",
        "images that are also in 'train': 1, such as 'cat/leak.png'",
    )
    assert read_splits(root, name="mine")["test"].name == "mine (test)"


def test_splits_of_other_names_are_read_if_named(tmp_path):
    root = make_folder(tmp_path, **{"fold1/a": 2, "fold1/b": 2, "fold2/a": 2, "fold2/b": 2, "train": 0})
    for place in (root, root / "missing"):
        refuse(DataError, r"has no split: no folder like 'train'.*splits=", read_splits, place)
    tasks = read_splits(root, splits=["fold2", "fold1"])
    assert [(name, task.notes) for name, task in tasks.items()] == [("fold2", ()), ("fold1", ())]
    refuse(UsageError, "no split 'fold3'", read_splits, root, splits=["fold1", "fold3"])
