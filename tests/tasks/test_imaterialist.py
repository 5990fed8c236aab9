"""iMaterialist (Fashion) 2018 as published becomes a catalog of attributes and their groups."""

import shutil

import pytest

from task2vec.errors import DataError, UsageError
from task2vec.tasks.published import read_imaterialist
from tests.tasks.published import CARRIED, LABEL_MAP, change, edit, labels_of, split_of, write_imaterialist

IDS = {"Black": "17", "Blue": "19", "Female": "66", "Hosiery, Stockings, Tights": "89", "Male": "106", "Zebra": "228"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_imaterialist(tmp_path_factory.mktemp("imaterialist"))


@pytest.fixture(scope="module")
def catalog(root):
    return read_imaterialist(root)


def test_labels_are_attributes_in_groups(catalog):
    told = "Catalog(imaterialist2018, 8 images, train and val, tasks: 6 attribute, 4 attribute group)"
    assert (repr(catalog), catalog.warnings) == (told, ())
    attributes = {one.name: one for one in catalog.of_kind("attribute")}
    assert list(attributes) == list(IDS)
    for name, one in attributes.items():
        carried = {split: sum(IDS[name] in ids for ids in images.values()) for split, images in CARRIED.items()}
        assert (one.classes, dict(one.positives)) == ((f"not {name}", name), carried)
        assert dict(one.counts) == {"train": 5, "val": 3}
    assert {one.name: (one.classes, dict(one.positives)) for one in catalog.of_kind("attribute group")} == {
        "color": (("Black", "Blue"), {"train": 3, "val": 2}),
        "gender": (("Female", "Male"), {"train": 4, "val": 2}),
        "category": (("Hosiery, Stockings, Tights",), {"train": 1, "val": 0}),
        "pattern": (("Zebra",), {"train": 0, "val": 0}),
    }
    assert [attributes[name].group for name in ("Black", "Male", "Zebra")] == ["color", "gender", "pattern"]


def test_pixels_confirm_labels_and_splits(catalog):
    for name in ("Black", "Male"):
        task = catalog.task(name, split="train")
        pictures = [task.images.load(row) for row in range(len(task))]
        assert task.targets.tolist() == [int(IDS[name] in labels_of(picture)) for picture in pictures]
        assert {split_of(picture) for picture in pictures} == {"train"}
    task = catalog.task("color")
    for row, values in enumerate(task.targets.tolist()):
        assert values == [int(label in labels_of(task.images.load(row))) for label in ("17", "19")]
    with pytest.raises(DataError, match=r"2 of 6 tasks .* split 'val' .*'Hosiery, Stockings, Tights', 'Zebra'"):
        catalog.tasks(kind="attribute", split="val")


def test_without_names_labels_are_called_by_their_ids(tmp_path):
    catalog = read_imaterialist(write_imaterialist(tmp_path, with_map=False))
    (warning,) = catalog.warnings
    assert "named by their numbers" in warning and "labels=, --labels" in warning
    assert [one.name for one in catalog.definitions] == ["17", "19", "66", "89", "106"]
    assert dict(catalog.find("106").positives) == {"train": 1, "val": 1}
    (tmp_path / "names.csv").write_text(LABEL_MAP.replace("Black", "Noir"), encoding="utf-8")
    assert read_imaterialist(tmp_path, labels=tmp_path / "names.csv").find("Noir").group == "color"
    with pytest.raises(UsageError, match="is not a file"):
        read_imaterialist(tmp_path, labels=tmp_path / "nowhere.csv")


def test_the_suffix_of_images_is_inferred(tmp_path):
    catalog = read_imaterialist(write_imaterialist(tmp_path, suffix=".jpeg"))
    assert (catalog.paths[0], catalog.paths[5]) == ("train/3.jpeg", "validation/1.jpeg")
    assert len(catalog.task("Black").bad) == 0
    write_imaterialist(tmp_path, suffix=".png")
    with pytest.raises(DataError, match=r"images ending in \.jpeg and \.png"):
        read_imaterialist(tmp_path)
    for place in ("train", "validation"):
        shutil.rmtree(tmp_path / place)
    with pytest.raises(DataError, match="no images named by their ids"):
        read_imaterialist(tmp_path)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (change("annotations", 1, imageId="01"), r"annotations, record 1: '01' as its 'imageId' is not an id"),
        (change("annotations", 0, labelId=["18"]), r"annotations, record 0: its labels \[18\] .* not in the table"),
        (change("annotations", 0, labelId=["17", "17"]), r"record 0: its labels \[17, 17\] repeat"),
        (change("annotations", 0, labelId="17"), r"annotations, record 0: it has no list of labels"),
        (change("annotations", 0, labelId=[["17"]]), r"annotations, record 0: \['17'\] as its 'labelId'"),
    ],
)
def test_broken_annotations_are_refused_by_record(tmp_path, root, damage, complaint):
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    edit(tmp_path / "train.json", damage)
    with pytest.raises(DataError, match=rf"train\.json.*{complaint}"):
        read_imaterialist(tmp_path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (LABEL_MAP.replace("labelName", "name"), "has no column 'labelName'"),
        (LABEL_MAP + "17,2,Dark,color\n", "line 8: the label 17 is repeated"),
        (LABEL_MAP.replace("Blue", " "), "line 3: the label 19 is .*without a name"),
        (LABEL_MAP.replace("66,3,Female,gender", "66,2, Black ,color"), "line 4: the label 66 is .*named like"),
        (LABEL_MAP.replace("19,", "x,"), "line 3: 'x' as its 'labelId'"),
    ],
)
def test_broken_names_are_refused_by_row(tmp_path, root, text, complaint):
    (tmp_path / "names.csv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=complaint):
        read_imaterialist(root, labels=tmp_path / "names.csv")
