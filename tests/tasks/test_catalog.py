"""Tasks of a catalog: found by name, drawn by seed, every file read once, every label where it belongs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from task2vec.errors import BadImagesError, DataError, TooFewClassesError, UsageError
from task2vec.tasks import Catalog, TaskDefinition, Taxonomy, images, read_catalog, recognize_layout
from task2vec.tasks.catalog import (
    LabelTable,
    Splits,
    define_attributes,
    define_by_taxon,
    define_groups,
    draw_by_class,
    draw_for_attributes,
    read_records,
)
from task2vec.tasks.subsets import make_rng
from tests.tasks.birds import make_cub
from tests.tasks.dresses import make_deepfashion
from tests.tasks.published import write_imaterialist, write_inaturalist

BIRDS = ("raven", "jay", "robin", "kiwi", "emu", "dodo")
ORDERS = ("Passeriformes", "Passeriformes", "Passeriformes", "Ratites", "Ratites", "Columbiformes")
FAMILIES = ("Corvidae", "Corvidae", "Turdidae", "Apterygidae", "Casuariidae", "Columbidae")
TREE = Taxonomy(("order", "family"), dict(zip(BIRDS, zip(ORDERS, FAMILIES, strict=True), strict=True)))


def paint_all(folder, count, mark=0):
    paths = [f"{number:03}.png" for number in range(count)]
    for number, path in enumerate(paths):
        Image.new("RGB", (4, 4), (number % 250, number // 250, mark)).save(folder / path)
    return paths


def make_birds(folder, counts=(12, 6, 3, 4, 1, 2)):
    """Birds with so many images each, in turn; every third image is for validation."""
    numbers = np.repeat(np.arange(len(counts)), counts)
    numbers = numbers[np.random.default_rng(0).permutation(len(numbers))].astype(np.int32)
    splits = Splits((np.arange(len(numbers)) % 3 == 2).astype(np.uint8), ("train", "val"))
    table = LabelTable(numbers, BIRDS)
    definitions = define_by_taxon(table, TREE, splits, ranks=("order", "family", "genus"))
    paths = paint_all(folder, len(numbers))
    return Catalog("birds", folder, paths, splits, {"labels": table}, definitions, ("birds.txt",), TREE)


# red is common, striped rare, golden rarest; "warm" is unknown for every fourth image.
COLOURS = ("red", "striped", "golden", "warm", "every")


def make_hats(folder, count=60):
    yes = np.zeros((count, 5), bool)
    yes[::2, 0] = yes[10:16, 1] = yes[[7, 33, 41], 2] = yes[:20, 3] = yes[:, 4] = True
    known = np.ones_like(yes)
    known[::4, 3] = False
    groups = ("color", "pattern", "color", "feeling", "color")
    table = LabelTable(np.where(known, yes, -1).astype(np.int8), COLOURS, groups)
    splits = Splits(np.repeat([0, 1, 2], [count - 20, 10, 10]).astype(np.uint8), ("train", "val", "test"))
    definitions = define_attributes(table, splits) + define_groups(table, splits)
    paths = paint_all(folder, count, mark=9)
    return Catalog("hats", folder, paths, splits, {"labels": table}, definitions), yes, known


def rows_of(task):
    return [int(task.images.name(row)[:3]) for row in range(len(task))]


@pytest.fixture
def opened(monkeypatch):
    """The paths of all files that are opened."""
    found, read = [], images.read_inside
    monkeypatch.setattr(images, "read_inside", lambda root, path: (found.append(path), read(root, path))[1])
    return found


def test_labels_are_those_of_the_table(tmp_path):
    birds = make_birds(tmp_path)
    numbers = birds.tables["labels"].values
    for name, split in (("Passeriformes", "train"), ("Passeriformes", None), ("Corvidae", "val"), ("Ratites", None)):
        task = birds.task(name, split=split)
        assert [task.classes[label] for label in task.targets] == [BIRDS[numbers[row]] for row in rows_of(task)]
        assert split is None or {birds.splits.names[birds.splits.codes[row]] for row in rows_of(task)} == {split}
        assert [task.images.load(row).getpixel((0, 0))[0] for row in range(len(task))] == rows_of(task)


def test_name_and_source_name_the_split_and_the_draw(tmp_path):
    birds = make_birds(tmp_path)
    whole, val = (birds.task("Corvidae", split=split) for split in (None, "val"))
    assert (whole.name, whole.source) == ("birds: Corvidae", "birds.txt")
    assert (val.name, val.source) == ("birds: Corvidae (val)", "birds.txt; split val")
    (drawn,) = birds.tasks(["Corvidae"], split="train", images=4, seed=3)
    assert drawn.source == "birds.txt; split train, up to 4 images drawn by seed 3"


def test_definitions_are_sorted_by_training_images_and_counted_by_split(tmp_path):
    birds = make_birds(tmp_path)
    numbers, codes = birds.tables["labels"].values, birds.splits.codes
    names = ["order Passeriformes in ", "order Ratites in ", "family Corvidae in Passeriformes"]
    assert [f"{one.kind} {one.name} in {one.group}" for one in birds.definitions] == names
    for one in birds.definitions:
        for code, split in enumerate(birds.splits.names):
            assert one.counts[split] == int(np.isin(numbers[codes == code], one.members).sum())
    assert repr(birds) == "Catalog(birds, 28 images, train and val, tasks: 2 order, 1 family)"
    table = LabelTable(np.arange(4), ("a", "b", "c", "d"))
    tree = Taxonomy(("class", "order"), {"a": ("X", "O"), "b": ("X", "O"), "c": ("Y", "O"), "d": ("Y", "O")})
    found = define_by_taxon(table, tree, Splits(np.zeros(4, np.uint8), ("train",)), ranks=("order",))
    assert [(one.name, one.classes) for one in found] == [("O (X)", ("a", "b")), ("O (Y)", ("c", "d"))]


def test_classes_without_an_image_in_the_split_are_left_out_with_a_warning(tmp_path):
    birds = make_birds(tmp_path)
    emu = int(np.flatnonzero(birds.tables["labels"].values == 4)[0])
    split, other = ("train", "val") if birds.splits.codes[emu] == 0 else ("val", "train")
    assert birds.task("Ratites", split=split).classes == ("kiwi", "emu")
    with pytest.raises(TooFewClassesError, match=rf"1 of 1 tasks .* split '{other}' \('Ratites'\)"):
        birds.task("Ratites", split=other)
    few = birds.task("Passeriformes", images=2)
    assert len(few.classes) == 2
    assert any("classes without an image, left out: 1" in warning for warning in few.warnings)


def test_a_name_is_found_or_refused_with_suggestions(tmp_path):
    birds = make_birds(tmp_path)
    assert birds.find("Corvidae").classes == ("raven", "jay")
    assert birds.find(birds.definitions[1]) is birds.definitions[1]
    stranger = TaskDefinition("x", "order", ("a", "b"), {"train": 2}, (0, 1))
    for words, message in (
        (("passeriforms",), r"no task 'passeriforms' among its 3\. Did you mean 'Passeriformes'"),
        (("Corvidae", "order"), "no task 'Corvidae' of kind 'order'"),
        (("Corvidae", "phylum"), r"no tasks of kind 'phylum'.*'order', 'family'"),
        (("zzz",), "To list them: task2vec tasks"),
        ((stranger,), "is not in birds"),
    ):
        with pytest.raises(UsageError, match=message):
            birds.find(*words)
    with pytest.raises(UsageError, match=r"no split 'test'.*\['train', 'val'\]"):
        birds.task("Corvidae", split="test")
    twins = tuple(TaskDefinition("Aves", kind, ("a", "b"), {"train": 2}, (0, 1)) for kind in ("order", "class"))
    both = Catalog("both", tmp_path, birds.paths, birds.splits, birds.tables, twins)
    with pytest.raises(UsageError, match=r"several tasks 'Aves'.*\(kind=, --kind\): \['order', 'class'\]"):
        both.find("Aves")
    assert both.find("Aves", "class").kind == "class"


def test_a_draw_is_seeded_nested_and_its_own(tmp_path):
    birds = make_birds(tmp_path)
    state = np.random.get_state()[1].tolist()
    first = birds.task("Passeriformes", images=9, seed=3)
    assert np.random.get_state()[1].tolist() == state
    assert (first.counts.tolist(), rows_of(first)) == ([3, 3, 3], sorted(rows_of(first)))
    assert rows_of(birds.task("Passeriformes", images=9, seed=4)) != rows_of(first)
    assert set(rows_of(first)) < set(rows_of(birds.task("Passeriformes", images=14, seed=3)))
    # Read together with others, a task by class is drawn as if it were alone.
    assert rows_of(birds.tasks(["Corvidae", "Passeriformes"], images=9, seed=3)[1]) == rows_of(first)
    with pytest.raises(UsageError, match=r"images=1 \(--max-images\) must be 2 or more"):
        birds.task("Passeriformes", images=1)
    with pytest.raises(UsageError, match=r"seed=-1 \(--seed\)"):
        birds.task("Passeriformes", images=4, seed=-1)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=80), st.integers(2, 90), st.integers(0, 9))
def test_every_class_gets_its_share(labels, count, seed):
    labels = np.array(labels)
    chosen = draw_by_class(labels, count, make_rng(seed, "x"))
    assert len(set(chosen.tolist())) == len(chosen) == min(count, len(labels))
    has, got = np.bincount(labels, minlength=6), np.bincount(labels[chosen], minlength=6)
    # No class has two less than another, unless nothing is left of it.
    assert all(got[kind] == has[kind] or got[kind] >= got.max() - 1 for kind in range(6))
    assert set(chosen.tolist()) <= set(draw_by_class(labels, count + 7, make_rng(seed, "x")).tolist())


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


def test_an_attribute_is_one_where_it_is_positive_and_out_where_it_is_unknown(tmp_path):
    hats, yes, known = make_hats(tmp_path)
    for number, name in ((0, "red"), (3, "warm")):
        task = hats.task(name)
        assert rows_of(task) == np.flatnonzero(known[:, number]).tolist()
        assert task.targets.tolist() == yes[known[:, number], number].astype(int).tolist()
        assert task.classes == (f"not {name}", name)
        one = hats.find(name)
        for code, split in enumerate(("train", "val", "test")):
            here = (hats.splits.codes == code) & known[:, number]
            assert (one.counts[split], one.positives[split]) == (here.sum(), yes[here, number].sum())


def test_a_group_is_multilabel_where_all_is_known(tmp_path):
    hats, yes, known = make_hats(tmp_path)
    task = hats.task("color")
    assert (task.is_multilabel, task.classes) == (True, ("red", "golden"))
    assert task.targets.tolist() == yes[:, [0, 2]].astype(int).tolist()
    assert any("one value for all images, left out: 1, such as 'every'" in warning for warning in task.warnings)
    assert rows_of(hats.task("feeling", split="train")) == [row for row in range(40) if known[row, 3]]


def test_attributes_share_one_draw(tmp_path, opened):
    hats, yes, _ = make_hats(tmp_path)
    red, striped, golden = hats.tasks(["red", "striped", "golden"], images=16)
    assert rows_of(red) == rows_of(striped) == rows_of(golden) and len(red) == 16
    assert golden.counts.tolist() == [13, 3] and striped.counts.tolist()[1] >= 3
    for number, task in enumerate((red, striped, golden)):
        assert task.targets.tolist() == yes[rows_of(task), number].astype(int).tolist()
    assert sorted(opened) == [f"{row:03}.png" for row in rows_of(red)]
    # With room for one attribute only, it is the rarest that gets its images.
    assert hats.tasks(["red", "golden"], images=6)[1].counts.tolist() == [3, 3]
    with pytest.raises(UsageError, match=r"several kinds.*\(kind=, --kind\): \['attribute', 'attribute group'\]"):
        hats.tasks(images=16)
    with pytest.raises(UsageError, match=r"Pass \['red'\]"):
        hats.tasks("red")
    with pytest.raises(TooFewClassesError, match=r"1 of 5 tasks .*'every'"):
        hats.tasks(kind="attribute", images=16)
    assert hats.tasks([]) == []


def test_tasks_by_class_that_overlap_read_every_file_once(tmp_path, opened):
    birds = make_birds(tmp_path)
    tasks = birds.tasks(["Corvidae", "Passeriformes", "Corvidae"])
    assert len(opened) == len(set(opened)) == len(tasks[1]) == 21
    assert tasks[0].fingerprint == tasks[2].fingerprint == birds.task("Corvidae").fingerprint


def test_bad_images_are_listed_in_every_task_and_too_many_are_refused(tmp_path):
    birds = make_birds(tmp_path, counts=(30, 20, 10, 2, 2, 2))
    rows = np.flatnonzero(birds.tables["labels"].values == 0).tolist()
    (tmp_path / birds.paths[rows[3]]).write_bytes(b"no image")
    whole, part, other = birds.tasks(["Passeriformes", "Corvidae", "Ratites"])
    assert [item.path for item in whole.bad] == [item.path for item in part.bad] == [birds.paths[rows[3]]]
    assert (other.bad, whole.counts.tolist(), part.counts.tolist()) == ((), [29, 20, 10], [29, 20])
    for row in rows[:4]:
        (tmp_path / birds.paths[row]).write_bytes(b"no image")
    with pytest.raises(BadImagesError, match=r"2 of 3 tasks .*\('Passeriformes', 'Corvidae'\).*Leave these") as caught:
        birds.tasks(["Ratites", "Passeriformes", "Corvidae"])
    assert sorted(image.path for image in caught.value.bad) == sorted(birds.paths[row] for row in rows[:4])
    assert "The first, 'Passeriformes': birds.txt: 4 of 60 images" in str(caught.value)
    with pytest.raises(BadImagesError, match=r"^birds\.txt: 4 of 50 images"):
        birds.task("Corvidae")


def test_links_are_not_followed_out_of_the_root(tmp_path):
    (tmp_path / "in").mkdir()
    birds = make_birds(tmp_path / "in")
    row = int(np.flatnonzero(birds.tables["labels"].values == 0)[0])
    Image.new("RGB", (4, 4)).save(tmp_path / "secret.png")
    (tmp_path / "in" / birds.paths[row]).unlink()
    (tmp_path / "in" / birds.paths[row]).symlink_to(tmp_path / "secret.png")
    assert "leads out of the root" in birds.task("Corvidae", allow_bad=True).bad[0].reason


def test_parts_that_do_not_fit_are_refused(tmp_path):
    table, splits = LabelTable(np.array([0, 1]), ("a", "b")), Splits(np.array([0, 0], np.uint8), ("train",))
    one = TaskDefinition("t", "order", ("a", "b"), {"train": 2}, (0, 1))
    for paths, tasks, message in (
        (["1", "2", "3"], (one,), "different lengths"),
        (["1", "1"], (one,), "it has the path '1' 2 times"),
        (["1", "2"], (one, one), r"it has the task \('order', 't'\) 2 times"),
    ):
        with pytest.raises(DataError, match=message):
            Catalog("x", tmp_path, paths, splits, {"labels": table}, tasks)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "no list of records under 'images'"),
        ('{"images": [1]}', "no list of records"),
        ('{"images": ' + "[" * 100_000, "recursion"),
        (b'{"images": [{"id": "\xff"}]}', "utf-8"),
    ],
)
def test_files_that_are_no_records_are_refused(tmp_path, text, message):
    (tmp_path / "a.json").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(DataError, match=message) as caught:
        read_records(tmp_path / "a.json", "images")
    assert "a.json" in str(caught.value) and len(str(caught.value)) < 1000


# --- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "layout", "name"),
    [
        (make_cub, "cub200", "cub200"),
        (make_deepfashion, "deepfashion", "deepfashion"),
        (write_inaturalist, "inaturalist", "inaturalist2018"),
        (lambda folder: write_inaturalist(folder, 2021, mini=True), "inaturalist", "inaturalist2021 mini"),
        # This one and iNaturalist 2021 have train.json and val.json.
        (lambda folder: write_imaterialist(folder, with_map=False, val="val"), "imaterialist", "imaterialist2018"),
        (lambda folder: write_inaturalist(folder, 2021), "inaturalist", "inaturalist2021"),
    ],
)
def test_a_dataset_is_recognized_by_its_files(tmp_path, make, layout, name):
    make(tmp_path)
    assert recognize_layout(tmp_path) == layout
    assert read_catalog(tmp_path).name == read_catalog(tmp_path, layout=layout).name == name


def test_unknown_and_ambiguous_folders_are_refused(tmp_path):
    assert recognize_layout(tmp_path) is None
    with pytest.raises(DataError, match="has no files of a known dataset"):
        read_catalog(tmp_path)
    with pytest.raises(DataError, match="nowhere is not a folder"):
        read_catalog(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no layout 'cifar'"):
        read_catalog(tmp_path, layout="cifar")
    make_cub(tmp_path)
    with pytest.raises(UsageError, match="only imaterialist has one"):
        read_catalog(tmp_path, labels="x.csv")
    make_deepfashion(tmp_path)
    with pytest.raises(UsageError, match="files of cub200 and deepfashion"):
        recognize_layout(tmp_path)
    assert read_catalog(tmp_path, layout="cub200").name == "cub200"
