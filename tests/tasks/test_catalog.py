"""Tasks of a catalog: found by name, drawn by seed, every file read once, every label where it belongs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import task2vec.tasks.images as files
from task2vec.errors import BadImagesError, DataError, UsageError
from task2vec.tasks import Catalog, TaskDefinition
from task2vec.tasks.catalog import (
    AttributeTable,
    ClassTable,
    Splits,
    define_attributes,
    define_by_taxon,
    define_groups,
    draw_by_class,
    draw_for_attributes,
)
from task2vec.tasks.subsets import make_rng
from task2vec.tasks.taxonomy import Taxonomy

BIRDS = ("raven", "jay", "robin", "kiwi", "emu", "dodo")
TREE = Taxonomy(
    ("order", "family"),
    {
        "raven": ("Passeriformes", "Corvidae"),
        "jay": ("Passeriformes", "Corvidae"),
        "robin": ("Passeriformes", "Turdidae"),
        "kiwi": ("Ratites", "Apterygidae"),
        "emu": ("Ratites", "Casuariidae"),
        "dodo": ("Columbiformes", "Columbidae"),
    },
)


def paint_all(folder, paths, mark=0):
    for number, path in enumerate(paths):
        Image.new("RGB", (4, 4), (number % 250, number // 250, mark)).save(folder / path)


def make_birds(folder, counts=(12, 6, 3, 4, 1, 2)):
    """Birds with so many images each, in turn; every third image is for validation."""
    numbers = np.repeat(np.arange(len(counts)), counts)
    numbers = numbers[np.random.default_rng(0).permutation(len(numbers))].astype(np.int32)
    splits = Splits((np.arange(len(numbers)) % 3 == 2).astype(np.uint8), ("train", "val"))
    paths = [f"{number:03}.png" for number in range(len(numbers))]
    paint_all(folder, paths)
    table = ClassTable(numbers, BIRDS)
    definitions = define_by_taxon(table, TREE, splits, ranks=("order", "family", "genus"))
    return Catalog("birds", folder, paths, splits, {"labels": table}, definitions, ("birds.txt",), TREE)


# red is common, striped rare, golden rarest; "warm" is unknown for every fourth image.
COLOURS = ("red", "striped", "golden", "warm", "every")


def make_hats(folder, count=60):
    yes = np.zeros((count, 5), bool)
    yes[::2, 0] = yes[10:16, 1] = yes[[7, 33, 41], 2] = yes[:20, 3] = yes[:, 4] = True
    known = np.ones_like(yes)
    known[::4, 3] = False
    groups = ("color", "pattern", "color", "feeling", "color")
    table = AttributeTable(np.where(known, yes, -1).astype(np.int8), COLOURS, groups=groups)
    splits = Splits(np.repeat([0, 1, 2], [count - 20, 10, 10]).astype(np.uint8), ("train", "val", "test"))
    paths = [f"{number:03}.png" for number in range(count)]
    paint_all(folder, paths, mark=9)
    definitions = define_attributes(table, splits) + define_groups(table, splits)
    return Catalog("hats", folder, paths, splits, {"labels": table}, definitions), yes, known


def rows_of(task):
    return [int(task.images.name(row)[:3]) for row in range(len(task))]


def test_labels_are_those_of_the_table(tmp_path):
    birds = make_birds(tmp_path)
    numbers = birds.tables["labels"].numbers
    for name in ("Passeriformes", "Ratites", "Corvidae"):
        for split, code in (("train", 0), ("val", 1), (None, None)):
            if (name, split) == ("Ratites", "val"):
                continue
            task = birds.task(name, split=split)
            assert [task.classes[label] for label in task.targets] == [BIRDS[numbers[row]] for row in rows_of(task)]
            assert code is None or {int(birds.splits.codes[row]) for row in rows_of(task)} == {code}
            assert [task.images.load(row).getpixel((0, 0))[0] for row in range(len(task))] == rows_of(task)


def test_name_and_source_tell_the_split_and_the_draw(tmp_path):
    birds = make_birds(tmp_path)
    whole, train, val = (birds.task("Corvidae", split=split) for split in (None, "train", "val"))
    assert [one.name for one in (whole, train, val)] == [
        "birds: Corvidae",
        "birds: Corvidae (train)",
        "birds: Corvidae (val)",
    ]
    assert whole.source == "birds.txt" and val.source == "birds.txt; split val"
    (drawn,) = birds.tasks(["Corvidae"], split="train", images=4, seed=3)
    assert drawn.name == "birds: Corvidae (train)"
    assert drawn.source == "birds.txt; split train, up to 4 images drawn by seed 3"
    assert birds.task("Corvidae", images=4, seed=7).source == "birds.txt; up to 4 images drawn by seed 7"


def test_definitions_are_sorted_by_training_images_and_counted_by_split(tmp_path):
    birds = make_birds(tmp_path)
    numbers, codes = birds.tables["labels"].numbers, birds.splits.codes
    assert [(one.name, one.kind) for one in birds.definitions] == [
        ("Passeriformes", "order"),
        ("Ratites", "order"),
        ("Corvidae", "family"),
    ]
    for one in birds.definitions:
        for code, split in enumerate(birds.splits.names):
            assert one.counts[split] == int(np.isin(numbers[codes == code], one.members).sum())
    assert [one.group for one in birds.definitions] == ["", "", "Passeriformes"]
    assert repr(birds) == "Catalog(birds, 28 images, train and val, tasks: 2 order, 1 family)"


def test_taxa_of_one_name_are_told_apart_by_what_holds_them():
    table = ClassTable(np.arange(4), ("a", "b", "c", "d"))
    tree = Taxonomy(("class", "order"), {"a": ("X", "O"), "b": ("X", "O"), "c": ("Y", "O"), "d": ("Y", "O")})
    found = define_by_taxon(table, tree, Splits(np.zeros(4, np.uint8), ("train",)), ranks=("order",))
    assert [(one.name, one.classes) for one in found] == [("O (X)", ("a", "b")), ("O (Y)", ("c", "d"))]


def test_classes_without_an_image_in_the_split_are_left_out_with_a_word(tmp_path):
    birds = make_birds(tmp_path)
    emu = int(np.flatnonzero(birds.tables["labels"].numbers == 4)[0])
    split, other = ("train", "val") if birds.splits.codes[emu] == 0 else ("val", "train")
    assert birds.task("Ratites", split=split).classes == ("kiwi", "emu")
    with pytest.raises(DataError, match=rf"1 of 1 tasks .* split '{other}' \('Ratites'\)"):
        birds.task("Ratites", split=other)
    few = birds.task("Passeriformes", images=2)
    assert len(few.classes) == 2
    assert any("classes without an image, left out: 1" in remark for remark in few.warnings)


def test_a_name_is_found_or_refused_with_what_could_be_meant(tmp_path):
    birds = make_birds(tmp_path)
    assert birds.find("Corvidae").classes == ("raven", "jay")
    assert birds.find(birds.definitions[1]) is birds.definitions[1]
    with pytest.raises(UsageError, match=r"no task 'passeriforms' among its 3\. Did you mean 'Passeriformes'"):
        birds.find("passeriforms")
    with pytest.raises(UsageError, match="no task 'Corvidae' of kind 'order'"):
        birds.find("Corvidae", kind="order")
    with pytest.raises(UsageError, match=r"no tasks of kind 'phylum'.*'order', 'family'"):
        birds.find("Corvidae", kind="phylum")
    with pytest.raises(UsageError, match=r"Its definitions, or `task2vec tasks .*`, list them"):
        birds.find("zzz")
    with pytest.raises(UsageError, match="is not one of birds"):
        birds.find(TaskDefinition("x", "order", ("a", "b"), {"train": 2}, (0, 1)))
    with pytest.raises(UsageError, match=r"no split 'test'.*\['train', 'val'\]"):
        birds.task("Corvidae", split="test")
    hats, *_ = make_hats(tmp_path)
    assert hats.find("red").kind == "attribute"
    both = Catalog(
        "both",
        tmp_path,
        birds.paths,
        birds.splits,
        birds.tables,
        (
            TaskDefinition("Aves", "order", ("a", "b"), {"train": 2}, (0, 1)),
            TaskDefinition("Aves", "class", ("a", "b"), {"train": 2}, (0, 1)),
        ),
    )
    with pytest.raises(
        UsageError, match=r"several tasks 'Aves'. Say which \(kind=, --kind\), one of \['order', 'class'\]"
    ):
        both.find("Aves")
    assert both.find("Aves", "class").kind == "class"


def test_a_draw_is_seeded_nested_and_its_own(tmp_path):
    birds = make_birds(tmp_path)
    state = np.random.get_state()[1].tolist()
    first = birds.task("Passeriformes", images=9, seed=3)
    assert np.random.get_state()[1].tolist() == state
    np.random.seed(5)
    assert rows_of(birds.task("Passeriformes", images=9, seed=3)) == rows_of(first)
    assert first.counts.tolist() == [3, 3, 3]
    assert rows_of(birds.task("Passeriformes", images=9, seed=4)) != rows_of(first)
    assert set(rows_of(first)) < set(rows_of(birds.task("Passeriformes", images=14, seed=3)))
    assert rows_of(first) == sorted(rows_of(first))
    # Read together with others, a task by class is drawn as if it were alone.
    together = birds.tasks(["Corvidae", "Passeriformes"], images=9, seed=3)
    assert rows_of(together[1]) == rows_of(first)
    assert birds.task("Passeriformes", images=500).counts.tolist() == [12, 6, 3]
    for images in (1, 0, -3, 2.5, True):
        with pytest.raises(UsageError, match=r"images=.* \(--draw\) draws no task"):
            birds.task("Passeriformes", images=images)
    with pytest.raises(UsageError, match=r"seed=-1 \(--seed\)"):
        birds.task("Passeriformes", images=4, seed=-1)
    with pytest.raises(UsageError, match="least=-1"):
        birds.tasks(kind="order", images=4, least=-1)


def test_every_purpose_has_a_draw_of_its_own():
    draws = [make_rng(seed, purpose).integers(1 << 60) for seed in (0, 1) for purpose in ("a", "b")]
    assert len(set(draws)) == 4
    assert make_rng(0, "a").integers(1 << 60) == draws[0]


@given(st.lists(st.integers(0, 5), min_size=2, max_size=80), st.integers(2, 90), st.integers(0, 9))
def test_every_class_gets_its_share(labels, images, seed):
    labels = np.array(labels)
    chosen = draw_by_class(labels, images, make_rng(seed, "x"))
    assert len(set(chosen.tolist())) == len(chosen) == min(images, len(labels))
    has, got = np.bincount(labels, minlength=6), np.bincount(labels[chosen], minlength=6)
    # Nobody has two less than another, unless nothing is left of it.
    assert all(got[kind] == has[kind] or got[kind] >= got.max() - 1 for kind in range(6))
    more = draw_by_class(labels, images + 7, make_rng(seed, "x"))
    assert set(chosen.tolist()) <= set(more.tolist())


@given(st.integers(0, 99), st.integers(2, 60), st.integers(0, 6))
def test_rare_attributes_come_first(seed, images, least):
    values = (np.random.default_rng(seed).random((50, 3)) < [0.08, 0.5, 0.9]).astype(np.int8)
    values[::5, 1] = -1
    order = [0, 2, 1]

    def draw(count):
        taken = draw_for_attributes(values, order, images=count, least=least)
        return np.flatnonzero(taken)

    chosen = draw(images)
    assert len(chosen) == min(images, 50)
    assert set(chosen.tolist()) <= set(draw(images + 5).tolist())
    if images >= 6 * least:
        for number in order:
            for kind in (0, 1):
                there = int((values[:, number] == kind).sum())
                assert (values[chosen, number] == kind).sum() >= min(least, there)


def test_an_attribute_is_one_where_it_is_positive_and_out_where_it_is_unknown(tmp_path):
    hats, yes, known = make_hats(tmp_path)
    for number, name in enumerate(COLOURS[:4]):
        task = hats.task(name)
        assert rows_of(task) == np.flatnonzero(known[:, number]).tolist()
        assert task.targets.tolist() == yes[known[:, number], number].astype(int).tolist()
        assert task.classes == (f"not {name}", name)
        one = hats.find(name)
        for code, split in enumerate(("train", "val", "test")):
            here = (hats.splits.codes == code) & known[:, number]
            assert (one.counts[split], one.positives[split]) == (here.sum(), yes[here, number].sum())
    with pytest.raises(DataError, match="'every'"):
        hats.task("every")


def test_a_group_is_multilabel_where_all_is_known(tmp_path):
    hats, yes, known = make_hats(tmp_path)
    task = hats.task("color")
    assert task.is_multilabel
    assert task.classes == ("red", "golden")
    assert task.targets.tolist() == yes[:, [0, 2]].astype(int).tolist()
    assert any("one value for all images, left out: 1, such as 'every'" in remark for remark in task.warnings)
    assert hats.task("color", split="test").classes == ("red",)
    feeling = hats.task("feeling", split="train")
    assert rows_of(feeling) == [row for row in range(40) if known[row, 3]]
    few = hats.task("color", images=12, least=2)
    assert len(few) == 12
    assert few.counts.tolist()[1] >= 2


def test_attributes_share_one_draw(tmp_path, monkeypatch):
    hats, yes, _ = make_hats(tmp_path)
    opened = []
    read = files.read_inside
    monkeypatch.setattr(files, "read_inside", lambda root, path: (opened.append(path), read(root, path))[1])
    red, striped, golden = hats.tasks(["red", "striped", "golden"], images=16, least=3)
    assert rows_of(red) == rows_of(striped) == rows_of(golden)
    assert len(red) == 16
    assert golden.counts.tolist() == [13, 3]
    assert striped.counts.tolist()[1] >= 3
    for number, task in enumerate((red, striped, golden)):
        assert task.targets.tolist() == yes[rows_of(task), number].astype(int).tolist()
    assert sorted(opened) == [f"{row:03}.png" for row in rows_of(red)]
    # With room for one attribute only, it is the rarest that is cared for.
    assert hats.tasks(["red", "golden"], images=6, least=3)[1].counts.tolist() == [3, 3]
    with pytest.raises(
        UsageError, match=r"several kinds. Say which \(kind=, --kind\), one of \['attribute', 'attribute group'\]"
    ):
        hats.tasks(images=16)
    with pytest.raises(UsageError, match=r"Pass \['red'\]"):
        hats.tasks("red")
    with pytest.raises(DataError, match=r"1 of 5 tasks .*'every'"):
        hats.tasks(kind="attribute", images=16)
    assert hats.tasks([]) == []


def test_tasks_by_class_that_overlap_read_every_file_once(tmp_path, monkeypatch):
    birds = make_birds(tmp_path)
    opened = []
    read = files.read_inside
    monkeypatch.setattr(files, "read_inside", lambda root, path: (opened.append(path), read(root, path))[1])
    tasks = birds.tasks(["Corvidae", "Passeriformes", "Corvidae"])
    assert len(opened) == len(set(opened)) == len(tasks[1]) == 21
    assert tasks[0].fingerprint == tasks[2].fingerprint == birds.task("Corvidae").fingerprint
    assert [task.name for task in birds.tasks(kind="order")] == ["birds: Passeriformes", "birds: Ratites"]


def test_nothing_is_opened_before_a_task_is_asked_for(tmp_path):
    birds = make_birds(tmp_path)
    for path in birds.paths:
        (tmp_path / path).unlink()
    again = Catalog("birds", tmp_path, birds.paths, birds.splits, birds.tables, birds.definitions)
    assert len(again.definitions) == 3
    with pytest.raises(BadImagesError, match="there is no such file"):
        again.task("Corvidae")


def test_bad_images_are_listed_in_every_task_that_has_them(tmp_path):
    birds = make_birds(tmp_path, counts=(30, 20, 10, 2, 2, 2))
    row = int(np.flatnonzero(birds.tables["labels"].numbers == 0)[3])
    (tmp_path / birds.paths[row]).write_bytes(b"no image")
    whole, part, other = birds.tasks(["Passeriformes", "Corvidae", "Ratites"])
    assert [item.path for item in whole.bad] == [item.path for item in part.bad] == [birds.paths[row]]
    assert (other.bad, whole.counts.tolist(), part.counts.tolist()) == ((), [29, 20, 10], [29, 20])


def test_tasks_with_too_many_bad_images_are_named_and_no_others(tmp_path):
    birds = make_birds(tmp_path)
    broken = [birds.paths[row] for row in np.flatnonzero(birds.tables["labels"].numbers == 0)[:4].tolist()]
    for path in broken:
        (tmp_path / path).write_bytes(b"no image")
    with pytest.raises(BadImagesError, match=r"2 of 3 tasks .*\('Passeriformes', 'Corvidae'\).*Leave these") as caught:
        birds.tasks(["Ratites", "Passeriformes", "Corvidae"])
    assert sorted(image.path for image in caught.value.bad) == sorted(broken)
    assert "The first, 'Passeriformes': birds.txt: 4 of 21 images" in str(caught.value)
    with pytest.raises(BadImagesError, match=r"^birds\.txt: 4 of 18 images"):
        birds.task("Corvidae")
    assert [task.name for task in birds.tasks(["Ratites"])] == ["birds: Ratites"]


def test_links_are_not_followed_out_of_the_root(tmp_path):
    (tmp_path / "in").mkdir()
    birds = make_birds(tmp_path / "in")
    row = int(np.flatnonzero(birds.tables["labels"].numbers == 0)[0])
    Image.new("RGB", (4, 4)).save(tmp_path / "secret.png")
    (tmp_path / "in" / birds.paths[row]).unlink()
    (tmp_path / "in" / birds.paths[row]).symlink_to(tmp_path / "secret.png")
    task = birds.task("Corvidae", allow_bad=True)
    assert "leads out of the root" in task.bad[0].reason


def test_parts_that_do_not_fit_are_refused(tmp_path):
    table = ClassTable(np.array([0, 1]), ("a", "b"))
    splits = Splits(np.array([0, 0], np.uint8), ("train",))
    one = TaskDefinition("t", "order", ("a", "b"), {"train": 2}, (0, 1))
    with pytest.raises(DataError, match=r"different lengths \(paths: 3, splits: 2, table 'labels': 2"):
        Catalog("x", tmp_path, ["1", "2", "3"], splits, {"labels": table}, (one,))
    with pytest.raises(DataError, match="'2' has the split code 1"):
        wrong = Splits(np.array([0, 1], np.uint8), ("train",))
        Catalog("x", tmp_path, ["1", "2"], wrong, {"labels": table}, (one,))
    with pytest.raises(DataError, match="two tasks are called"):
        Catalog("x", tmp_path, ["1", "2"], splits, {"labels": table}, (one, one))
    for lost in (
        TaskDefinition("t", "order", ("a", "b"), {}, (0, 2)),
        TaskDefinition("t", "order", ("a", "b"), {}, (-1, 0)),
        TaskDefinition("t", "order", ("a", "b"), {}, (0, 1), "other"),
    ):
        with pytest.raises(DataError, match="does not have"):
            Catalog("x", tmp_path, ["1", "2"], splits, {"labels": table}, (lost,))
