"""A task is checked when it is made, its identity is its content, and parts of it keep names, images and labels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from task2vec.errors import DataError, UsageError
from task2vec.tasks import BadImage, Taxonomy
from tests.failures import refuse
from tests.tasks.shades import contents, facts, few, make_task

ABOUT = {"source": "zoo", "bad": (BadImage("x.png", "empty"),), "notes": ("entries that were ignored: 1",)}
ANIMALS = make_task(range(10, 17), [0, 1, 2, 3, 0, 1, 4], ["raven", "robin", "cat", "lynx", "kiwi"], **ABOUT)
LINEAGES = [("Aves", "Passeriformes")] * 2 + [("Mammalia", "Carnivora")] * 2 + [("Aves", "")]
TREE = Taxonomy(("class", "order"), dict(zip(ANIMALS.classes, LINEAGES, strict=True)))
MANY = make_task([1, 2, 3, 4], [[0, 1, 0], [1, 1, 0], [1, 0, 1], [0, 0, 1]], ["red", "round", "wet"])
GROUPS = Taxonomy(("group",), {"red": ("colour",), "round": ("feel",), "wet": ("feel",)})


@pytest.mark.parametrize(
    ("targets", "classes", "message"),
    [
        ([0, 0], ["only"], "only one class .'only'"),
        ([0, 0, 2], ["a", "b\n", "c"], r"1 of 3 classes .*'b\\n'"),
        ([[0, 1], [1, 1]], ["a", "always"], "'always'"),
        ([[0, 0], [1, 0]], ["a", "never"], "'never'"),
        (np.zeros(0, int), ["a", "b"], "no images"),
        ([True, False], "ab", r"shade 0 \(row 0\)"),
        ([[0, 1], [1, 0], [np.nan, 1]], "ab", r"shade 2 \(row 2\)"),
        (np.zeros((3, 3), int), "ab", "shape"),
    ],
)
def test_what_cannot_be_learned_is_refused_by_name(targets, classes, message):
    refuse(DataError, message, make_task, range(len(targets)), targets, classes)
    refuse(DataError, "2 images, 3 labels and 2 digests", make_task, [1, 2], [0, 1, 1], "ab")


def test_copies_single_images_and_one_hot_rows_are_warned_of():
    assert make_task(range(4), [0, 0, 1, 1], "ab").warnings == ()
    single, copies, conflict = make_task([7, 7, 7], [0, 0, 1], "ab").warnings
    assert "'b'" in single and "2, such as 'shade 7', 'shade 7'" in copies and "labels: 1 groups" in conflict
    assert "exactly one positive" in make_task(range(4), [[0, 1], [0, 1], [1, 0], [1, 0]], "ab").warnings[0]


def test_a_task_cannot_be_altered():
    labels = np.array([0, 1], np.uint8)
    task = make_task([1, 2], labels, ["a", "b"])
    labels[0] = 1
    assert (task.targets.tolist(), task.targets.dtype, task.counts.tolist()) == ([0, 1], np.int64, [1, 1])
    with pytest.raises(ValueError, match="read-only"):
        task.targets[0] = 1


@few
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=8), st.randoms(use_true_random=False))
def test_order_names_and_numbers_change_nothing_in_the_canonical_task(pairs, random):
    pairs = [*((shade, shade) for shade in range(4)), *pairs]  # with repeats, also under other labels
    one = make_task([shade for shade, _ in pairs], [label for _, label in pairs], "abcd")
    numbers = random.sample(range(4), 4)
    random.shuffle(pairs)
    other = make_task([shade for shade, _ in pairs], [numbers[label] for _, label in pairs], "xxxx")
    assert one.fingerprint == other.fingerprint == one.canonical().fingerprint
    assert contents(one.canonical()) == contents(other.canonical()) == contents(one.canonical().canonical())
    assert sorted(facts(one.canonical())) == sorted(facts(one))
    rows = np.array([[0, 1, 0], [1, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 1, 1]])
    images, columns = random.sample(range(6), 6), random.sample(range(3), 3)
    one, other = make_task(range(6), rows, "abc"), make_task(images, rows[images][:, columns], "xyz")
    assert one.fingerprint == other.fingerprint and contents(one.canonical()) == contents(other.canonical())


def test_other_content_has_another_fingerprint():
    contents = [
        ([1, 2, 3, 4], [0, 0, 1, 1]),
        ([1, 2, 3, 5], [0, 0, 1, 1]),
        ([1, 2, 3, 4], [0, 1, 0, 1]),
        ([1, 2, 3, 4, 4], [0, 0, 1, 1, 1]),
        ([1, 2, 3, 4], [[1, 0], [1, 0], [0, 1], [0, 1]]),
    ]
    assert len({make_task(*content, "ab").fingerprint for content in contents}) == 5


def test_a_subset_keeps_the_classes_that_still_have_images():
    task = make_task([1, 2, 3, 4], [0, 1, 2, 2], ["a", "b", "c"], source="here")
    part = task.subset([3, 0])
    assert (facts(part), part.classes, part.source) == ([("shade 4", "c"), ("shade 1", "a")], ("a", "c"), "here")
    assert part.digests == (task.digests[3], task.digests[0])
    assert part.warnings[0] == "classes without an image, left out: 'b'"
    assert MANY.subset(np.array([0, 1])).classes == ("red",)
    refuse(DataError, "only one class", task.subset, [2, 3])
    for indices in ([0, 4], [-1, 1], [0, 0, 1], [0.0, 1.0], [True, False, True, True], [[0], [1]]):
        refuse(UsageError, "number", task.subset, indices)


def test_selected_classes_keep_their_images_names_order_and_source():
    task = ANIMALS.select(["lynx", 0])
    assert facts(task) == [("shade 10", "raven"), ("shade 13", "lynx"), ("shade 14", "raven")]
    assert task.images.load(1).getpixel((0, 0)) == (13, 13, 13)
    assert (task.name, task.source, task.bad, task.warnings[0]) == ("shades", "zoo", ANIMALS.bad, ANIMALS.notes[0])
    assert task.warnings[1].startswith("classes with a single image: 'lynx';") and len(task.warnings) == 2
    assert task.select([0, 1]).images.sources == (ANIMALS.images,)  # a choice from a choice does not nest
    columns = MANY.select(["wet", "red"], name="two")
    assert (columns.name, columns.classes, len(columns)) == ("two", ("red", "wet"), 4)
    assert columns.targets.tolist() == [[0, 0], [1, 0], [1, 1], [0, 1]]
    twins = make_task([1, 2, 3], [0, 1, 2], ["x", "y", "x"])
    assert twins.select([0, 2]).targets.tolist() == [0, 1]
    refuse(UsageError, r"2 classes .*called 'x'.*\[0, 2\]", twins.select, ["x", "y"])


def test_wrong_classes_are_refused():
    for classes, message in (
        (["ravn", "cat"], r"no class 'ravn'.*'raven'"),
        (["raven", 0], "each once"),
        (["raven"], r"2 or more classes .*'raven'.*one_vs_rest"),
        ("raven", r"list of classes.*\['raven', ...\]"),
        ([True, False], "no class True.*flatnonzero"),
    ):
        refuse(UsageError, message, ANIMALS.select, classes)


def test_tasks_by_taxon_have_the_classes_of_each():
    found = ANIMALS.by_taxon("order", TREE)
    assert list(found) == ["Passeriformes", "Carnivora"]
    assert facts(found["Carnivora"]) == [("shade 12", "cat"), ("shade 13", "lynx")]
    assert found["Passeriformes"].name == "shades: Passeriformes"
    assert found.left_out == {"no order": "1 classes have none: 'kiwi'"}
    birds = ANIMALS.select(["raven", "cat", "lynx"]).by_taxon("class", TREE)
    assert (list(birds), birds.left_out) == (["Mammalia"], {"Aves": "it has a single class with images, 'raven'"})
    assert MANY.by_taxon("group", GROUPS)["feel"].classes == ("round", "wet")
    # Taxa of one name are kept apart by their lineage.
    lineages = {kind: (kingdom, "Oenanthe") for kind, kingdom in zip("abcd", ["Animalia", "Plantae"] * 2, strict=True)}
    homonyms = make_task(range(4), range(4), "abcd").by_taxon("genus", Taxonomy(("kingdom", "genus"), lineages))
    assert list(homonyms) == ["Animalia > Oenanthe", "Plantae > Oenanthe"]
    assert homonyms["Plantae > Oenanthe"].classes == ("b", "d")
    refuse(UsageError, r"level='family'.*'class', 'order'", ANIMALS.by_taxon, "family", TREE)
    with pytest.raises(DataError, match=r"2 of 2 classes are not in the taxonomy .*'a', 'b'"):
        make_task([1, 2], [0, 1], "ab").by_taxon("order", TREE)


def test_taxa_become_classes():
    task = ANIMALS.at_taxon("order", TREE)
    assert (task.name, task.counts.tolist()) == ("shades by order", [4, 2])
    assert facts(task)[1:3] == [("shade 11", "Passeriformes"), ("shade 12", "Carnivora")]
    assert "classes without order, left out with 1 images: 'kiwi'" in task.warnings
    with pytest.raises(DataError, match=r"subset of 'shades': .*only one class \('Aves'\)"):
        ANIMALS.select(["raven", "robin"]).at_taxon("class", TREE)
    refuse(UsageError, r"multi-label.*by_taxon", MANY.at_taxon, "group", GROUPS)


def test_one_vs_rest_has_one_task_per_class_on_the_same_images():
    for task in (ANIMALS, MANY):
        binary = task.one_vs_rest()
        columns = task.targets.T if task.is_multilabel else np.eye(5, dtype=int)[task.targets].T
        for kind, one, column in zip(task.classes, binary, columns, strict=True):
            assert (one.name, one.classes) == (f"shades: {kind}", (f"not {kind}", kind))
            assert one.targets.tolist() == column.tolist()
            assert one.images is task.images and one.digests is task.digests
    copies = make_task([1, 1, 2], [[0, 1], [1, 1], [1, 0]], "ab").one_vs_rest()
    assert [any("different labels" in text for text in task.warnings) for task in copies] == [True, False]
