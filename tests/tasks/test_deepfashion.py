"""DeepFashion in its published layout: what is positive, negative and unknown, categories from 1, and torn lists."""

import re
import shutil

import pytest

from task2vec.errors import DataError
from task2vec.tasks.published import read_deepfashion
from tests.tasks.dresses import ATTRIBUTES, CATEGORIES, make_deepfashion


@pytest.fixture(scope="module")
def clothes(tmp_path_factory):
    """The folder, what was written into it, and its catalog."""
    root = tmp_path_factory.mktemp("deepfashion")
    return root, make_deepfashion(root), read_deepfashion(root)


def test_every_value_is_read_as_it_is_meant(clothes):
    _, told, catalog = clothes
    assert list(catalog.paths) == [f"Img/{path}" for path, *_ in told]
    table, kinds = catalog.tables["labels"], catalog.tables["categories"]
    assert table.names == tuple(name for name, _ in ATTRIBUTES)
    meaning = {1: 1, -1: 0, 0: -1}
    assert table.values.tolist() == [[meaning[value] for value in row] for _, row, _, _ in told]
    assert [kinds.names[number] for number in kinds.values] == [CATEGORIES[one[2] - 1][0] for one in told]
    split_of = {row: split for split, rows in catalog.splits.items() for row in rows}
    assert [split_of[row] for row in range(len(told))] == [one[3] for one in told]


def test_categories_without_images_leave_the_numbers_of_the_others(clothes):
    # The one full-body category that has images has nothing to be told from.
    assert {one.name: (one.classes, one.members) for one in clothes[2].of_kind("category")} == {
        "upper-body": (("Anorak", "Blouse"), (0, 1)),
        "lower-body": (("Jeans", "Shorts"), (2, 4)),
    }


def test_an_attribute_is_a_task_of_the_images_for_which_it_is_known(clothes):
    _, told, catalog = clothes
    task = catalog.task("abstract", split="train")
    assert task.classes == ("not abstract", "abstract")
    meant = {f"Img/{path}": int(row[2] == 1) for path, row, _, part in told if row[2] != 0 and part == "train"}
    assert {task.images.name(index): label for index, label in enumerate(task.targets)} == meant
    for index in range(len(task)):
        number = int(task.images.name(index)[-12:-4]) - 1
        assert task.images.load(index).getpixel((0, 0)) == (number, 3 * number, 7)


def test_other_names_of_folders_and_names_that_come_twice(tmp_path):
    make_deepfashion(tmp_path, anno="Anno_coarse", folder=".")
    place = tmp_path / "Anno_coarse" / "list_attr_cloth.txt"
    place.write_text(place.read_text().replace("floral ", "linen  "))
    catalog = read_deepfashion(tmp_path)
    assert len(catalog.task("upper-body").bad) == 0 and catalog.paths[0].startswith("img/")
    names = catalog.tables["labels"].names
    assert (names[3], names[7]) == ("linen (4)", "linen (8)")


ATTR, ATTR_IMG, PARTS = "Anno/list_attr_cloth.txt", "Anno/list_attr_img.txt", "Eval/list_eval_partition.txt"
KIND_IMG = "Anno/list_category_img.txt"


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        (ATTR, r"\A9", "8", "line 1: '8' is not the number of entries, 9"),
        (ATTR, r"linen +", "", "line 6: '2' is not a name and its type"),
        (ATTR, r"(summer +)5", r"\g<1>6", "line 8: 'summer .* is not a name and its type, one of 1, 2, 3, 4, 5"),
        (ATTR_IMG, r" +-?\d\n\Z", "\n", "line 26: it does not have 9 values"),
        (ATTR_IMG, r"-1 ", " 3 ", "line 3: it does not have 9 values"),
        (ATTR_IMG, r"00000002", "00009992", r"list_category_img\.txt: image '.*00000002.jpg' is not both here"),
        (KIND_IMG, r" 2\n", " 8\n", "line 4: '8' is not one of '1', '2', '3'"),
        (PARTS, None, None, r"list_eval_partition\.txt: it cannot be read"),
        (ATTR_IMG, None, None, r"has no Anno/list_attr_img\.txt or .*so it is not DeepFashion"),
    ],
)
def test_lists_that_are_wrong_are_refused_where(tmp_path, clothes, name, old, new, words):
    shutil.copytree(clothes[0], tmp_path / "copy", ignore=shutil.ignore_patterns("Img"))
    place = tmp_path / "copy" / name
    if old is None:
        place.unlink()
    else:
        text = re.sub(old, new, place.read_text(), count=1)
        assert text != place.read_text()
        place.write_text(text)
    with pytest.raises(DataError, match=words):
        read_deepfashion(tmp_path / "copy")
