"""Collections of tasks: both layouts of a folder, every way in which one can be wrong, and what ships with us."""

import csv

import numpy as np
import pytest
from PIL import Image

from experiments import collection as collection_module
from experiments.collection import LEAST_IMAGES, pick_rich, read_collection, sample_collection
from task2vec.errors import DataError, UsageError


def paint_class(folder, count, *, seed):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for index in range(count):
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(folder / f"{index}.png")


def write_csv(place, rows):
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def taxa(tmp_path):
    """A dataset of five birds, one of them rare, under two opinions on their orders, and two tasks by the newer one."""
    birds = {"owl": ("O", "O"), "lark": ("P", "P"), "finch": ("P", "P"), "swift": ("A", "P"), "rail": ("P", "P")}
    for seed, kind in enumerate(birds):
        paint_class(tmp_path / "birds" / "images" / kind, 4 if kind == "rail" else LEAST_IMAGES, seed=seed)
    rows = [{"class_dir": kind, "order": old, "order_new": new} for kind, (old, new) in birds.items()]
    write_csv(tmp_path / "birds" / "taxonomy.csv", rows)
    return tmp_path


def name_tasks(taxa, **columns):
    write_csv(taxa / "tasks.csv", [{"dataset": "birds", "taxon_level": "order", "taxon": "P", **columns}])


def test_a_row_is_the_task_of_a_taxon(taxa):
    name_tasks(taxa)
    [member] = read_collection(taxa).members
    assert (member.dataset, member.task.name) == ("birds", "birds P")
    assert member.task.classes == ("finch", "lark")
    assert member.task.counts.tolist() == [LEAST_IMAGES, LEAST_IMAGES]


def test_classes_of_few_images_are_left_out_with_a_word(taxa):
    name_tasks(taxa, task="songbirds")
    [member] = read_collection(taxa).members
    assert member.task.name == "songbirds"
    assert any("left out: rail" in warning for warning in member.task.warnings)


def test_the_counts_say_which_opinion_is_meant(taxa):
    name_tasks(taxa, n_classes=3, n_images=3 * LEAST_IMAGES)
    [member] = read_collection(taxa).members
    assert member.task.classes == ("finch", "lark", "swift")


def test_every_dataset_is_read_once(taxa, monkeypatch):
    row = {"dataset": "birds", "taxon_level": "order", "taxon": "P"}
    write_csv(taxa / "tasks.csv", [row, {**row, "taxon_level": "order_new"}])
    said = []
    first, second = read_collection(taxa, say=said.append).members
    assert said == ["reading birds"]
    assert set(first.task.classes) < set(second.task.classes)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"n_classes": 4}, "n_classes is 4"),
        ({"n_images": 21}, "n_images is 21"),
        ({"taxon": "O"}, "'O' in column 'order' has 1 classes"),
        ({"taxon_level": "family"}, "no column 'family'"),
        ({"dataset": "fish"}, "fish"),
        ({"dataset": "../birds"}, "not the name of a folder beside it"),
        ({"dataset": ".."}, "not the name of a folder beside it"),
    ],
)
def test_rows_that_fit_nothing_are_refused(taxa, columns, words):
    name_tasks(taxa, **columns)
    with pytest.raises(DataError, match=words):
        read_collection(taxa)


def test_tables_that_are_none_are_refused(taxa):
    (taxa / "tasks.csv").write_text("dataset,taxon\nbirds,P\n")
    with pytest.raises(DataError, match="taxon_level"):
        read_collection(taxa)
    (taxa / "tasks.csv").write_text("dataset,taxon_level,taxon\n")
    with pytest.raises(DataError, match="has no rows"):
        read_collection(taxa)
    (taxa / "tasks.csv").write_bytes(b"dataset,taxon_level,taxon\nbirds,order,\xff\xfe\n")
    with pytest.raises(DataError, match="cannot be read as CSV"):
        read_collection(taxa)


def test_folders_of_class_folders_are_tasks_and_others_are_named(tmp_path):
    for task, classes in {"letters": 3, "leaves": 2}.items():
        for number in range(classes):
            paint_class(tmp_path / "all" / task / str(number), 4, seed=number)
    paint_class(tmp_path / "all" / "stray", 2, seed=9)
    paint_class(tmp_path / "all" / ".cache" / "thumbs", 2, seed=9)
    said = []
    collection = read_collection(tmp_path / "all", say=said.append)
    assert [(m.dataset, m.task.name, len(m.task.classes)) for m in collection.members] == [
        ("all", "leaves", 2),
        ("all", "letters", 3),
    ]
    assert [member.task.name for member in collection.rich] == ["letters"]
    assert "left out: stray holds no class folders" in said


def test_a_folder_that_is_one_task_is_pointed_at_its_parent(tmp_path):
    for number in range(2):
        paint_class(tmp_path / "one" / str(number), 2, seed=number)
    with pytest.raises(DataError, match=f"--data {tmp_path}"):
        read_collection(tmp_path / "one")


def test_a_folder_that_is_not_there_is_a_usage_error(tmp_path):
    (tmp_path / "file").write_text("")
    for name, word in (("nowhere", "not there"), ("file", "not a folder")):
        with pytest.raises(UsageError, match=word):
            read_collection(tmp_path / name)


@pytest.fixture
def few(monkeypatch):
    """Fewer pictures to paint."""
    monkeypatch.setattr(collection_module, "RICH_IMAGES", 20)


def test_the_samples_come_in_sizes_and_halves(few):
    collection = sample_collection(sizes=(20, 30))
    assert len(collection.members) == 26
    assert len({member.task.fingerprint for member in collection.members}) == 26
    half = next(member for member in collection.members if member.task.name == "digits, 30 images, half the classes")
    assert (half.dataset, len(half.task.classes), len(half.task)) == ("digits", 5, 15)
    again = sample_collection(sizes=(20, 30))
    assert [m.task.fingerprint for m in again.members] == [m.task.fingerprint for m in collection.members]
    assert sample_collection(sizes=(20,), seed=7).members[0].task.fingerprint != again.members[0].task.fingerprint


def test_the_richest_of_every_dataset_and_those_that_are_named(few):
    collection = sample_collection(sizes=(20, 30))
    rich = pick_rich(collection.members)
    assert len(rich) == 8
    assert rich[0].task.name == "digits, 30 images"
    named = collection.named(["colours", "shapes, 30 images"])
    assert [member.task.name for member in named.rich] == ["colours", "shapes, 30 images"]
    with pytest.raises(UsageError, match="no task named 'cats'"):
        collection.named(["cats"])
