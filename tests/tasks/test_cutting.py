"""Tasks cut out of a task: classes, taxa, yes-or-no questions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from task2vec.errors import DataError, UsageError
from task2vec.tasks import BadImage
from task2vec.tasks.taxonomy import Taxonomy
from tests.tasks.shades import make_task

ANIMALS = make_task(
    [10, 11, 12, 13, 14, 15, 16],
    [0, 1, 2, 3, 0, 1, 4],
    ["raven", "robin", "cat", "lynx", "kiwi"],
    source="zoo",
    bad=(BadImage("x.png", "empty"),),
    warnings=("entries that are not images and were ignored: 1, such as 'notes'",),
)
TREE = Taxonomy(
    ("class", "order"),
    {
        "raven": ("Aves", "Passeriformes"),
        "robin": ("Aves", "Passeriformes"),
        "cat": ("Mammalia", "Carnivora"),
        "lynx": ("Mammalia", "Carnivora"),
        "kiwi": ("Aves", ""),
    },
)
MANY = make_task([1, 2, 3, 4], [[0, 1, 0], [1, 1, 0], [1, 0, 1], [0, 0, 1]], ["red", "round", "wet"])


def facts(task) -> list[tuple[str, str]]:
    """Every image with the name of its class."""
    return [(task.images.name(row), task.classes[label]) for row, label in enumerate(task.targets.tolist())]


def test_selected_classes_keep_their_images_names_and_order():
    task = ANIMALS.select(["lynx", 0])
    assert facts(task) == [("shade 10", "raven"), ("shade 13", "lynx"), ("shade 14", "raven")]
    assert task.classes == ("raven", "lynx")
    assert task.digests == tuple(ANIMALS.digests[row] for row in (0, 3, 4))
    assert task.images.load(1).getpixel((0, 0)) == (13, 13, 13)
    assert (task.name, task.source, task.bad) == ("shades", "zoo", ANIMALS.bad)
    assert ANIMALS.select(["lynx", "raven"], name="two").name == "two"
    assert ANIMALS.select(ANIMALS.classes).fingerprint == ANIMALS.fingerprint


def test_warnings_about_the_source_stay_and_those_about_counts_are_new():
    task = ANIMALS.select(["raven", "lynx"])
    assert task.warnings[0] == ANIMALS.warnings[0]
    assert task.warnings[1].startswith("classes with a single image: 'lynx';")
    assert len(task.warnings) == 2
    assert len(task.select(["raven", "lynx"]).warnings) == 2
    again = task.select([0, 1])
    assert again.images.source is ANIMALS.images  # a choice from a choice does not pile up


def test_selected_columns_keep_all_images():
    task = MANY.select(["wet", "red"])
    assert (task.classes, task.targets.tolist()) == (("red", "wet"), [[0, 0], [1, 0], [1, 1], [0, 1]])
    assert task.images is MANY.images
    assert MANY.select([1]).classes == ("round",)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["ravn", "cat"], r"no class 'ravn'.*'raven'"),
        (["zebra", "cat"], r"no class 'zebra'.*5 classes are called 'raven', 'robin', 'cat' and so on"),
        ([0, 5], "class 5 is not in 'shades': its classes are 0 to 4"),
        ([0, -1], "class -1"),
        (["raven", 0], "'raven' twice"),
        (["raven"], r"1 of the classes .*'raven'.*one_vs_rest"),
        ([], "0 of the classes"),
        ("raven", r"list of classes.*\['raven', ...\]"),
        (3, "list of classes"),
        ([True, False], "True is neither"),
        ([1.0, 2.0], r"1\.0 is neither"),
    ],
)
def test_classes_that_are_not_meant_are_refused(classes, message):
    with pytest.raises(UsageError, match=message):
        ANIMALS.select(classes)


def test_a_name_that_two_classes_have_is_refused_with_their_numbers():
    twins = make_task([1, 2, 3], [0, 1, 2], ["x", "y", "x"])
    with pytest.raises(UsageError, match=r"2 classes .*called 'x'.*\[0, 2\]"):
        twins.select(["x", "y"])
    assert twins.select([0, 2]).targets.tolist() == [0, 1]
    with pytest.raises(UsageError, match="no column"):
        MANY.select([])


def test_tasks_by_taxon_tell_the_classes_within_each_apart():
    found = ANIMALS.by_taxon("order", TREE)
    assert repr(found) == "TasksByTaxon(order, 2 tasks, 1 left out)"
    assert list(found) == ["Passeriformes", "Carnivora"]
    assert facts(found["Carnivora"]) == [("shade 12", "cat"), ("shade 13", "lynx")]
    assert found["Passeriformes"].name == "shades: Passeriformes"
    assert found["Passeriformes"].counts.tolist() == [2, 2]
    assert found.left_out == {"no order": "1 classes have none: 'kiwi'"}
    birds = ANIMALS.select(["raven", "cat", "lynx"]).by_taxon("class", TREE)
    assert (list(birds), birds.left_out) == (["Mammalia"], {"Aves": "it has a single class with images, 'raven'"})


def test_taxa_of_one_name_are_kept_apart_by_their_lineage():
    classes = ["wheatear", "chat", "dropwort", "parsley"]
    lineages = [("Animalia", "Oenanthe")] * 2 + [("Plantae", "Oenanthe")] * 2
    homonyms = Taxonomy(("kingdom", "genus"), dict(zip(classes, lineages, strict=True)))
    found = make_task([1, 2, 3, 4], [0, 1, 2, 3], classes).by_taxon("genus", homonyms)
    assert list(found) == ["Animalia > Oenanthe", "Plantae > Oenanthe"]
    assert found["Plantae > Oenanthe"].classes == ("dropwort", "parsley")


def test_attributes_are_divided_by_their_group():
    groups = Taxonomy(("group",), {"red": ("colour",), "round": ("feel",), "wet": ("feel",)})
    found = MANY.by_taxon("group", groups)
    assert found["feel"].classes == ("round", "wet")
    assert len(found["feel"]) == 4
    assert list(found.left_out) == ["colour"]
    with pytest.raises(UsageError, match=r"multi-label.*by_taxon"):
        MANY.at_taxon("group", groups)


def test_taxa_become_classes():
    task = ANIMALS.at_taxon("order", TREE)
    assert task.name == "shades by order"
    assert facts(task)[:3] == [("shade 10", "Passeriformes"), ("shade 11", "Passeriformes"), ("shade 12", "Carnivora")]
    assert task.counts.tolist() == [4, 2]
    assert "classes without order, left out with 1 images: 'kiwi'" in task.warnings
    assert ANIMALS.at_taxon("class", TREE, name="classes").counts.tolist() == [5, 2]
    with pytest.raises(DataError, match=r"cut from 'shades': .*only one class \('Aves'\)"):
        ANIMALS.select(["raven", "robin"]).at_taxon("class", TREE)


def test_ranks_and_classes_that_the_taxonomy_does_not_know_are_refused():
    with pytest.raises(UsageError, match=r"level='family'.*'class', 'order'"):
        ANIMALS.by_taxon("family", TREE)
    with pytest.raises(DataError, match=r"does not know 2 of 2 classes: 'a', 'b'"):
        make_task([1, 2], [0, 1], "ab").by_taxon("order", TREE)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_one_question_per_class_on_the_same_images(rest):
    labels = [0, 1, 2, 3, *rest]
    task = make_task(range(len(labels)), labels, "abcd")
    questions = task.one_vs_rest()
    assert [question.counts[1] for question in questions] == task.counts.tolist()
    for number, question in enumerate(questions):
        assert question.classes == (f"not {task.classes[number]}", task.classes[number])
        assert question.targets.tolist() == [int(label == number) for label in labels]
        assert question.images is task.images
        assert question.digests is task.digests
    assert len({question.fingerprint for question in questions}) == 4


def test_one_question_per_attribute():
    questions = MANY.one_vs_rest()
    assert [question.name for question in questions] == ["shades: red", "shades: round", "shades: wet"]
    assert [question.targets.tolist() for question in questions] == MANY.targets.T.tolist()
    assert questions[0].targets.dtype == np.int64
    copies = make_task([1, 1, 2], [[0, 1], [1, 1], [1, 0]], "ab").one_vs_rest()
    assert [any("different labels" in text for text in task.warnings) for task in copies] == [True, False]
