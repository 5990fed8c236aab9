"""DeepFashion in its published layout: what is positive, negative and unknown, categories from 1, and torn lists."""

import re

import pytest

from task2vec.errors import DataError, UsageError
from task2vec.tasks.deepfashion import read_deepfashion
from tests.tasks.dresses import ATTRIBUTES, CATEGORIES, SPLITS, make_deepfashion


def test_every_value_is_read_as_it_is_meant(tmp_path):
    told = make_deepfashion(tmp_path)
    catalog = read_deepfashion(tmp_path)
    assert list(catalog.paths) == [f"Img/{path}" for path, *_ in told]
    table = catalog.tables["labels"]
    assert table.names == tuple(name for name, _ in ATTRIBUTES)
    meaning = {1: 1, -1: 0, 0: -1}
    for number in range(len(ATTRIBUTES)):
        assert table.values[:, number].tolist() == [meaning[row[number]] for _, row, _, _ in told]
    kinds = catalog.tables["categories"]
    assert [kinds.names[number] for number in kinds.values] == [CATEGORIES[one[2] - 1][0] for one in told]
    assert [SPLITS[code] for code in catalog.splits.codes] == [one[3] for one in told]


def test_categories_without_images_leave_the_numbers_of_the_others(tmp_path):
    make_deepfashion(tmp_path)
    catalog = read_deepfashion(tmp_path)
    upper, lower = catalog.of_kind("category")
    assert (upper.name, upper.classes, upper.members) == ("upper-body", ("Anorak", "Blouse"), (0, 1))
    assert (lower.name, lower.classes, lower.members) == ("lower-body", ("Jeans", "Shorts"), (2, 4))
    # The one full-body category that has images has nothing to be told from.
    with pytest.raises(UsageError, match="no task 'full-body'"):
        catalog.find("full-body")


def test_an_attribute_is_a_task_of_the_images_for_which_it_is_known(tmp_path):
    told = make_deepfashion(tmp_path)
    task = read_deepfashion(tmp_path).task("abstract", split="train")
    assert task.classes == ("not abstract", "abstract")
    meant = {f"Img/{path}": int(row[2] == 1) for path, row, _, part in told if row[2] != 0 and part == "train"}
    assert {task.images.name(index): label for index, label in enumerate(task.targets)} == meant
    for index in range(len(task)):
        number = int(task.images.name(index)[-12:-4]) - 1
        assert task.images.load(index).getpixel((0, 0)) == (number, 3 * number, 7)


@pytest.mark.parametrize(("anno", "folder"), [("Anno_coarse", "Img"), ("Anno", ".")])
def test_both_names_of_folders(tmp_path, anno, folder):
    make_deepfashion(tmp_path, anno=anno, folder=folder)
    catalog = read_deepfashion(tmp_path)
    assert len(catalog.task("upper-body").bad) == 0
    assert catalog.paths[0].startswith("Img/img/" if folder == "Img" else "img/")


def test_names_that_come_twice_are_told_apart(tmp_path):
    make_deepfashion(tmp_path)
    place = tmp_path / "Anno" / "list_attr_cloth.txt"
    place.write_text(place.read_text().replace("floral ", "linen  "))
    names = read_deepfashion(tmp_path).tables["labels"].names
    assert (names[3], names[7]) == ("linen (4)", "linen (8)")


ATTR, ATTR_IMG, PARTS = "Anno/list_attr_cloth.txt", "Anno/list_attr_img.txt", "Eval/list_eval_partition.txt"
KIND, KIND_IMG = "Anno/list_category_cloth.txt", "Anno/list_category_img.txt"


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        (ATTR, r"\A9", "8", "line 1: '8' is not the number of entries, 9"),
        (ATTR, r"linen +", "", "line 6: '2' has no value beside it"),
        (ATTR, r"(summer +)5", r"\g<1>6", "line 8: the type of 'summer' is '6', not one of 1, 2, 3, 4, 5"),
        (ATTR_IMG, r" +-?\d\n\Z", "\n", "line 26: it does not have 9 values"),
        (ATTR_IMG, r"-1 ", " 3 ", "line 3: it does not have 9 values"),
        (ATTR_IMG, r"-1 ", f"-{2**70} ", "line 3: it does not have 9 values"),
        (ATTR_IMG, r"img/Sheer", "/img/Sheer", "line 3: '/img/.* is not a path below"),
        (ATTR_IMG, r"00000002", "00000001", r"00000002.jpg' is not in list_attr_img"),
        (ATTR_IMG, r"00000002", "00009992", r"line 4: '.*00000002.jpg' is not in list_attr_img\.txt"),
        (KIND_IMG, r" 2\n", " 8\n", "line 4: '8' of 'img/Sheer_Pleated-Front_Blouse/img_00000002.jpg' is unknown"),
        (KIND_IMG, r"00000002", "00000001", "line 4: .* is here twice"),
        (PARTS, r" val\n", " dev\n", r"line \d+: 'dev' of .* is unknown"),
        (PARTS, r"(?s)\A24(.*\n).*?\n\Z", r"23\1", "it lacks 1 of the images .*img_00000001.jpg"),
    ],
)
def test_lists_that_are_wrong_are_refused_where(tmp_path, name, old, new, words):
    make_deepfashion(tmp_path)
    place = tmp_path / name
    text = re.sub(old, new, place.read_text(), count=1)
    assert text != place.read_text()
    place.write_text(text)
    with pytest.raises(DataError, match=words):
        read_deepfashion(tmp_path)


def test_folders_that_are_not_deepfashion(tmp_path):
    with pytest.raises(DataError, match=r"Anno/list_attr_cloth\.txt is missing"):
        read_deepfashion(tmp_path)
    make_deepfashion(tmp_path)
    (tmp_path / "Eval" / "list_eval_partition.txt").unlink()
    with pytest.raises(DataError, match=r"list_eval_partition\.txt is missing"):
        read_deepfashion(tmp_path)
