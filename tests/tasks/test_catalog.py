"""Tasks of a catalog: found by name, drawn by seed, every file read once, every label where it belongs."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from task2vec.errors import BadImagesError, DataError, TooFewClassesError, UsageError
from task2vec.tasks import Catalog, TaskDefinition, Taxonomy, images
from task2vec.tasks.catalog import LabelTable, define_attributes, define_by_taxon, draw_by_class, draw_for_attributes
from task2vec.tasks.sampling import make_rng
from tests.failures import refuse
from tests.tasks.pictures import paint
from tests.tasks.shades import few

BIRDS = ("raven", "jay", "robin", "kiwi", "emu", "dodo")
ORDERS = ("Passeriformes", "Passeriformes", "Passeriformes", "Ratites", "Ratites", "Columbiformes")
FAMILIES = ("Corvidae", "Corvidae", "Turdidae", "Apterygidae", "Casuariidae", "Columbidae")
TREE = Taxonomy(("order", "family"), dict(zip(BIRDS, zip(ORDERS, FAMILIES, strict=True), strict=True)))
# Of hats: red is common, striped rare, golden rarest; "warm" is unknown for every fourth image, and all have "every".
COLOURS = ("red", "striped", "golden", "warm", "every")
YES = np.zeros((60, 5), bool)
YES[::2, 0] = YES[10:16, 1] = YES[[7, 33, 41], 2] = YES[:20, 3] = YES[:, 4] = True
KNOWN = np.ones_like(YES)
KNOWN[::4, 3] = False


def paint_all(folder, count):
    return [paint(folder / f"{number:03}.png", number).name for number in range(count)]


def make_birds(folder, counts=(12, 6, 3, 4, 1, 2)):
    """Birds with so many images each, mixed; every third image is for validation."""
    numbers = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    rows = np.arange(len(numbers))
    splits, table = {"train": rows[rows % 3 < 2], "val": rows[rows % 3 == 2]}, LabelTable(numbers, BIRDS)
    definitions = define_by_taxon(table, TREE, splits, ranks=("order", "family", "genus"))
    paths = paint_all(folder, len(numbers))
    return Catalog("birds", folder, paths, splits, {"labels": table}, definitions, ("birds.txt",), TREE)


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    return make_birds(tmp_path_factory.mktemp("birds"))


@pytest.fixture(scope="module")
def hats(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hats")
    groups = ("color", "pattern", "color", "feeling", "color")
    table = LabelTable(np.where(KNOWN, YES, -1).astype(np.int8), COLOURS, groups)
    splits = {"train": np.arange(40), "val": np.arange(40, 50), "test": np.arange(50, 60)}
    paths = paint_all(folder, 60)
    return Catalog("hats", folder, paths, splits, {"labels": table}, define_attributes(table, splits))


def rows_of(task):
    return [int(task.images.name(row)[:3]) for row in range(len(task))]


def test_labels_name_and_source_are_those_of_the_table_split_and_draw(birds):
    numbers = birds.tables["labels"].values
    for name, split in (("Passeriformes", "train"), ("Corvidae", "val"), ("Ratites", None)):
        task = birds.task(name, split=split)
        assert [task.classes[label] for label in task.targets] == [BIRDS[numbers[row]] for row in rows_of(task)]
        assert set(rows_of(task)) <= set(birds.rows(split).tolist())
        assert [task.images.load(row).getpixel((0, 0))[0] for row in range(len(task))] == rows_of(task)
    whole, (drawn,) = birds.task("Corvidae"), birds.tasks(["Corvidae"], split="train", images=4, seed=3)
    assert (whole.name, whole.source) == ("birds: Corvidae", "birds.txt")
    assert drawn.name == "birds: Corvidae (train)"
    assert drawn.source == "birds.txt; split train, up to 4 images drawn with seed 3"


def test_taxa_of_one_name_are_told_apart_by_the_taxon_above():
    tree = Taxonomy(("class", "order"), {"a": ("X", "O"), "b": ("X", "O"), "c": ("Y", "O"), "d": ("Y", "O")})
    tasks = define_by_taxon(LabelTable(np.arange(4), tuple("abcd")), tree, {"train": np.arange(4)}, ranks=("order",))
    assert [(task.name, task.classes) for task in tasks] == [("O (X)", ("a", "b")), ("O (Y)", ("c", "d"))]


def test_classes_without_an_image_in_the_split_are_left_out_with_a_warning(birds):
    (emu,) = np.flatnonzero(birds.tables["labels"].values == 4)
    split, other = ("train", "val") if emu in birds.splits["train"] else ("val", "train")
    assert birds.task("Ratites", split=split).classes == ("kiwi", "emu")
    refuse(TooFewClassesError, rf"1 of 1 tasks .* split '{other}' \('Ratites'\)", birds.task, "Ratites", split=other)
    few_images = birds.task("Passeriformes", images=2)
    assert len(few_images.classes) == 2 and "classes without an image, left out: " in few_images.warnings[0]


def test_a_name_is_found_and_what_cannot_be_found_or_drawn_is_refused(birds):
    assert birds.find("Corvidae").classes == ("raven", "jay")
    assert birds.find(birds.definitions[1]) is birds.definitions[1]
    twins = tuple(TaskDefinition("Aves", kind, ("a", "b"), {"train": 2}, (0, 1)) for kind in ("order", "class"))
    both = Catalog("both", birds.root, birds.paths, birds.splits, birds.tables, twins)
    assert both.find("Aves", "class").kind == "class"
    for catalog, name, options, message in (
        (birds, "passeriforms", {}, r"no tasks 'passeriforms' among 3 .*Did you mean 'Passeriformes'"),
        (birds, "Corvidae", {"kind": "order"}, r"no tasks 'Corvidae' among 2 of the kinds \['order'\]"),
        (birds, "Corvidae", {"kind": "phylum"}, r"no tasks of kind 'phylum'.*'order', 'family'"),
        (birds, "zzz", {}, "To list them: task2vec tasks"),
        (birds, twins[0], {}, "is not in birds"),
        (both, "Aves", {}, r"2 tasks 'Aves' among .* kinds \['order', 'class'\] \(kind=, --kind\)"),
        (birds, "Corvidae", {"images": 1}, r"images=1 \(--max-images\) must be 2 or more"),
        (birds, "Corvidae", {"images": 4, "seed": -1}, r"seed=-1 \(--seed\)"),
        (birds, "Corvidae", {"split": "test"}, r"no split 'test'.*\['train', 'val'\]"),
    ):
        refuse(UsageError, message, catalog.task, name, **options)
    refuse(DataError, r"it has the task \('order', 'Aves'\) 2 times", replace, both, definitions=(twins[0], twins[0]))
    with pytest.raises(AssertionError):
        replace(both, paths=both.paths[1:])


def test_a_draw_is_seeded_nested_and_its_own(birds):
    state = np.random.get_state()[1].tolist()
    first = birds.task("Passeriformes", images=9, seed=3)
    assert np.random.get_state()[1].tolist() == state
    assert (first.counts.tolist(), rows_of(first)) == ([3, 3, 3], sorted(rows_of(first)))
    assert rows_of(birds.task("Passeriformes", images=9, seed=4)) != rows_of(first)
    assert set(rows_of(first)) < set(rows_of(birds.task("Passeriformes", images=14, seed=3)))
    # Read together with others, a task by class is drawn as if it were alone.
    assert rows_of(birds.tasks(["Corvidae", "Passeriformes"], images=9, seed=3)[1]) == rows_of(first)


@few
@given(st.lists(st.integers(0, 5), min_size=2, max_size=80), st.integers(2, 90), st.integers(0, 9))
def test_every_class_gets_its_share(labels, count, seed):
    labels = np.array(labels)
    chosen = draw_by_class(labels, count, make_rng(seed, "x"))
    assert len(set(chosen.tolist())) == len(chosen) == min(count, len(labels))
    has, got = np.bincount(labels, minlength=6), np.bincount(labels[chosen], minlength=6)
    # No class has two less than another, unless nothing is left of it.
    assert all(got[kind] == has[kind] or got[kind] >= got.max() - 1 for kind in range(6))
    assert set(chosen.tolist()) <= set(draw_by_class(labels, count + 7, make_rng(seed, "x")).tolist())


@few
@given(st.integers(0, 99), st.integers(2, 60), st.integers(0, 6))
def test_rare_attributes_come_first(seed, count, least):
    values = (np.random.default_rng(seed).random((50, 3)) < [0.08, 0.5, 0.9]).astype(np.int8)
    values[::5, 1] = -1
    chosen, more = (draw_for_attributes(values, [0, 2, 1], images=n, least=least) for n in (count, count + 5))
    assert chosen.sum() == min(count, 50) and (more | ~chosen).all()
    if count >= 6 * least:
        for number in range(3):
            for kind in (0, 1):
                there = int((values[:, number] == kind).sum())
                assert (values[chosen, number] == kind).sum() >= min(least, there)


def test_an_attribute_is_one_where_it_is_positive_and_out_where_it_is_unknown(hats):
    for number, name in ((0, "red"), (3, "warm")):
        task, known = hats.task(name), KNOWN[:, number]
        assert rows_of(task) == np.flatnonzero(known).tolist()
        assert task.targets.tolist() == YES[known, number].astype(int).tolist()
        assert task.classes == (f"not {name}", name)
    group = hats.task("color")
    assert (group.is_multilabel, group.classes) == (True, ("red", "golden"))
    assert group.targets.tolist() == YES[:, [0, 2]].astype(int).tolist()
    assert "one value for all images, left out: 'every'" in group.warnings[0]
    assert rows_of(hats.task("feeling", split="train")) == [row for row in range(40) if KNOWN[row, 3]]


def test_tasks_share_one_reading_and_attributes_one_draw(birds, hats, monkeypatch):
    read = Mock(wraps=images.read_inside)
    monkeypatch.setattr(images, "read_inside", read)
    tasks = birds.tasks(["Corvidae", "Passeriformes", "Corvidae"])
    assert read.call_count == len(tasks[1]) == 21
    assert tasks[0].fingerprint == tasks[2].fingerprint == birds.task("Corvidae").fingerprint
    read.reset_mock()
    red, striped, golden = hats.tasks(["red", "striped", "golden"], images=16)
    assert rows_of(red) == rows_of(striped) == rows_of(golden) and len(red) == 16
    assert golden.counts.tolist() == [13, 3] and striped.counts.tolist()[1] >= 3
    for number, task in enumerate((red, striped, golden)):
        assert task.targets.tolist() == YES[rows_of(task), number].astype(int).tolist()
    assert sorted(call.args[1] for call in read.mock_calls) == [f"{row:03}.png" for row in rows_of(red)]
    # With room for one attribute only, it is the rarest that gets its images.
    assert hats.tasks(["red", "golden"], images=6)[1].counts.tolist() == [3, 3]
    refuse(TooFewClassesError, r"1 of 5 tasks .*'every'", hats.tasks, kind="attribute", images=16)
    assert hats.tasks([]) == []


def test_bad_images_are_listed_in_every_task_and_too_many_are_refused(tmp_path):
    birds = make_birds(tmp_path / "in", counts=(30, 20, 10, 2, 2, 2))
    rows = np.flatnonzero(birds.tables["labels"].values == 0).tolist()
    paths = [birds.paths[row] for row in rows[:4]]
    (birds.root / paths[3]).unlink()
    (birds.root / paths[3]).symlink_to(paint(tmp_path / "secret.png", 1))
    whole, part, other = birds.tasks(["Passeriformes", "Corvidae", "Ratites"])
    assert [item.path for item in whole.bad] == [item.path for item in part.bad] == [paths[3]]
    assert "leads out of the root" in whole.bad[0].reason
    assert (other.bad, whole.counts.tolist(), part.counts.tolist()) == ((), [29, 20, 10], [29, 20])
    for path in paths[:3]:
        (birds.root / path).write_bytes(b"no image")
    words = r"2 of 3 tasks .*\('Passeriformes', 'Corvidae'\).*Leave these.* 'Passeriformes': birds.txt: 4 of 60 images"
    error = refuse(BadImagesError, words, birds.tasks, ["Ratites", "Passeriformes", "Corvidae"])
    assert sorted(image.path for image in error.bad) == sorted(paths)
    refuse(BadImagesError, r"^birds\.txt: 4 of 50 images", birds.task, "Corvidae")
