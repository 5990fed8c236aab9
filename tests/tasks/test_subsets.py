"""Tasks made from tasks: classes, taxa, one-vs-rest, samples, splits, batches and unions."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from task2vec.errors import DataError, UsageError
from task2vec.tasks import BadImage, Taxonomy, choose_test, draw_batches, join_tasks
from tests.tasks.shades import contents, make_task

ANIMALS = make_task(
    [10, 11, 12, 13, 14, 15, 16],
    [0, 1, 2, 3, 0, 1, 4],
    ["raven", "robin", "cat", "lynx", "kiwi"],
    source="zoo",
    bad=(BadImage("x.png", "empty"),),
    notes=("entries that are not images and were ignored: 1, such as 'notes'",),
)
LINEAGES = [("Aves", "Passeriformes")] * 2 + [("Mammalia", "Carnivora")] * 2 + [("Aves", "")]
TREE = Taxonomy(("class", "order"), dict(zip(ANIMALS.classes, LINEAGES, strict=True)))
MANY = make_task([1, 2, 3, 4], [[0, 1, 0], [1, 1, 0], [1, 0, 1], [0, 0, 1]], ["red", "round", "wet"])


def facts(task) -> list[tuple[str, str]]:
    """Every image with the name of its class."""
    return [(task.images.name(row), task.classes[label]) for row, label in enumerate(task.targets.tolist())]


def test_selected_classes_keep_their_images_names_order_and_source():
    task = ANIMALS.select(["lynx", 0])
    assert facts(task) == [("shade 10", "raven"), ("shade 13", "lynx"), ("shade 14", "raven")]
    assert task.images.load(1).getpixel((0, 0)) == (13, 13, 13)
    assert (task.name, task.source, task.bad, task.warnings[0]) == ("shades", "zoo", ANIMALS.bad, ANIMALS.warnings[0])
    assert task.warnings[1].startswith("classes with a single image: 'lynx';") and len(task.warnings) == 2
    assert task.select([0, 1]).images.source is ANIMALS.images  # a choice from a choice does not nest
    assert ANIMALS.select(ANIMALS.classes).fingerprint == ANIMALS.fingerprint
    columns = MANY.select(["wet", "red"], name="two")
    assert (columns.name, columns.classes, len(columns)) == ("two", ("red", "wet"), 4)
    assert columns.targets.tolist() == [[0, 0], [1, 0], [1, 1], [0, 1]]


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["ravn", "cat"], r"no class 'ravn'.*'raven'"),
        ([0, 5], "no class 5 among its 5"),
        (["raven", 0], "each once"),
        (["raven"], r"2 or more classes .*'raven'.*one_vs_rest"),
        ("raven", r"list of classes.*\['raven', ...\]"),
        ([True, False], "no class True.*flatnonzero"),
    ],
)
def test_wrong_classes_are_refused(classes, message):
    with pytest.raises(UsageError, match=message):
        ANIMALS.select(classes)


def test_a_name_that_two_classes_have_is_refused_with_their_numbers():
    twins = make_task([1, 2, 3], [0, 1, 2], ["x", "y", "x"])
    with pytest.raises(UsageError, match=r"2 classes .*called 'x'.*\[0, 2\]"):
        twins.select(["x", "y"])
    assert twins.select([0, 2]).targets.tolist() == [0, 1]


def test_tasks_by_taxon_have_the_classes_of_each():
    found = ANIMALS.by_taxon("order", TREE)
    assert repr(found) == "TasksByTaxon(order, 2 tasks, 1 left out)"
    assert list(found) == ["Passeriformes", "Carnivora"]
    assert facts(found["Carnivora"]) == [("shade 12", "cat"), ("shade 13", "lynx")]
    assert found["Passeriformes"].name == "shades: Passeriformes"
    assert found.left_out == {"no order": "1 classes have none: 'kiwi'"}
    birds = ANIMALS.select(["raven", "cat", "lynx"]).by_taxon("class", TREE)
    assert (list(birds), birds.left_out) == (["Mammalia"], {"Aves": "it has a single class with images, 'raven'"})
    groups = Taxonomy(("group",), {"red": ("colour",), "round": ("feel",), "wet": ("feel",)})
    assert MANY.by_taxon("group", groups)["feel"].classes == ("round", "wet")
    with pytest.raises(UsageError, match=r"multi-label.*by_taxon"):
        MANY.at_taxon("group", groups)
    with pytest.raises(UsageError, match=r"level='family'.*'class', 'order'"):
        ANIMALS.by_taxon("family", TREE)
    with pytest.raises(DataError, match=r"2 of 2 classes are not in the taxonomy .*'a', 'b'"):
        make_task([1, 2], [0, 1], "ab").by_taxon("order", TREE)


def test_taxa_of_one_name_are_kept_apart_by_their_lineage():
    classes = ["wheatear", "chat", "dropwort", "parsley"]
    lineages = [("Animalia", "Oenanthe")] * 2 + [("Plantae", "Oenanthe")] * 2
    homonyms = Taxonomy(("kingdom", "genus"), dict(zip(classes, lineages, strict=True)))
    found = make_task([1, 2, 3, 4], [0, 1, 2, 3], classes).by_taxon("genus", homonyms)
    assert list(found) == ["Animalia > Oenanthe", "Plantae > Oenanthe"]
    assert found["Plantae > Oenanthe"].classes == ("dropwort", "parsley")


def test_taxa_become_classes():
    task = ANIMALS.at_taxon("order", TREE)
    assert task.name == "shades by order"
    assert facts(task)[1:3] == [("shade 11", "Passeriformes"), ("shade 12", "Carnivora")]
    assert task.counts.tolist() == [4, 2]
    assert "classes without order, left out with 1 images: 'kiwi'" in task.warnings
    with pytest.raises(DataError, match=r"subset of 'shades': .*only one class \('Aves'\)"):
        ANIMALS.select(["raven", "robin"]).at_taxon("class", TREE)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_one_vs_rest_has_one_task_per_class_on_the_same_images(rest):
    labels = [0, 1, 2, 3, *rest]
    task = make_task(range(len(labels)), labels, "abcd")
    binary = task.one_vs_rest()
    for number, one in enumerate(binary):
        assert one.classes == (f"not {task.classes[number]}", task.classes[number])
        assert one.targets.tolist() == [int(label == number) for label in labels]
        assert one.images is task.images and one.digests is task.digests
    assert len({one.fingerprint for one in binary}) == 4


def test_one_vs_rest_of_attributes():
    binary = MANY.one_vs_rest()
    assert [one.name for one in binary] == ["shades: red", "shades: round", "shades: wet"]
    assert [one.targets.tolist() for one in binary] == MANY.targets.T.tolist()
    copies = make_task([1, 1, 2], [[0, 1], [1, 1], [1, 0]], "ab").one_vs_rest()
    assert [any("different labels" in text for text in task.warnings) for task in copies] == [True, False]


# --- samples and splits ----------------------------------------------------------------------------------------------


@st.composite
def tasks(draw, copies: bool = True):
    """A task of 2 to 4 classes; with `copies`, some images are identical, also across classes."""
    n_classes = draw(st.integers(2, 4))
    rest = draw(st.lists(st.integers(0, n_classes - 1), max_size=24))
    labels = [*range(n_classes), *rest]
    shades = draw(st.lists(st.integers(0, 200), min_size=len(labels), max_size=len(labels), unique=not copies))
    return make_task(shades, labels, [f"class {number}" for number in range(n_classes)])


@st.composite
def attributes(draw):
    """A multi-label task of distinct images whose columns have two of each value."""
    rows = draw(st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=3), max_size=12))
    return make_task(range(len(rows) + 4), [[0, 0, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0], *rows], "abc")


def shuffle(task, seed):
    """The same task with images and classes in another order and under other names."""
    rng = np.random.default_rng(seed)
    rows, numbers = rng.permutation(len(task)), rng.permutation(len(task.classes))
    shades = [task.images.shades[row] for row in rows]
    targets = task.targets[rows][:, numbers] if task.is_multilabel else numbers[task.targets[rows]]
    return make_task(shades, targets, [f"other {number}" for number in range(len(numbers))])


@given(tasks(copies=False), st.integers(0, 5), st.data())
def test_a_sample_keeps_the_shares(task, seed, data):
    n = data.draw(st.integers(len(task.classes), len(task)))
    part = task.sample(n, seed)
    assert (len(part), part.classes) == (n, task.classes)
    exact = n * task.counts / len(task)
    # No class is more than one off, but for the ones that are lifted to one image and those that pay for it.
    lifted = np.maximum(1 - exact, 0).sum()
    assert (part.counts >= np.maximum(np.floor(exact) - np.ceil(lifted), 1)).all()
    assert (part.counts <= np.minimum(np.maximum(np.ceil(exact), 1), task.counts)).all()
    assert set(facts(part)) <= set(facts(task))


@given(st.one_of(tasks(), attributes()), st.integers(0, 3), st.integers(0, 99))
def test_draws_do_not_depend_on_the_order_of_images_or_classes(task, seed, order):
    other = shuffle(task, order)
    n = max(len(task.classes) + 1, len(task) // 2, 6)
    if n <= len(task):
        assert task.sample(n, seed).fingerprint == other.sample(n, seed).fingerprint
    try:
        parts = [part.fingerprint for part in task.split(seed)]
    except DataError:
        with pytest.raises(DataError, match="split"):
            other.split(seed)
    else:
        assert parts == [part.fingerprint for part in other.split(seed)]


@given(tasks(), st.integers(0, 5), st.sampled_from([0.1, 0.2, 0.5, 0.9]))
def test_a_split_is_disjoint_by_content_and_exhaustive(task, seed, test):
    try:
        train, held = task.split(seed, test=test)
    except DataError:  # copies leave one side with fewer than two classes
        assert len(set(task.digests)) < len(task) or min(task.counts) == 1
        return
    assert not set(train.digests) & set(held.digests)
    assert sorted(facts(train) + facts(held)) == sorted(facts(task))
    clean = {digest for digest in task.digests if len(set(task.targets[np.array(task.digests) == digest])) == 1}
    for number, name in enumerate(task.classes):
        contents = {task.digests[row] for row in np.flatnonzero(task.targets == number)}
        assert name in train.classes or len(contents) == 1
        assert name in held.classes or len(contents) == 1 or not contents & clean
        if name not in held.classes:
            assert any(f"{name!r}" in text and "test part" in text for text in held.warnings)


def test_the_share_of_a_split_is_kept_in_every_class():
    task = make_task(range(100), [0] * 50 + [1] * 30 + [2] * 20, "abc")
    train, held = task.split(test=0.1)
    assert (train.counts.tolist(), held.counts.tolist()) == ([45, 27, 18], [5, 3, 2])
    assert (train.name, held.name) == ("shades (train)", "shades (test)")
    half = choose_test(make_task(range(9), [0] * 5 + [1] * 4, "ab"), 0)
    assert (half[:5].sum(), half[5:].sum()) == (2, 2)


def test_seeds_differ_and_repeat_and_every_image_is_drawn_about_as_often():
    task = make_task(range(40), [0, 1] * 20, "ab")
    for draw in (lambda seed: task.sample(20, seed), lambda seed: task.split(seed)[1]):
        assert len({draw(seed).fingerprint for seed in range(5)}) == 5
        assert draw(3).digests == draw(3).digests
    assert not set(task.split(0)[1].digests) <= set(task.sample(20, 0).digests)
    times = np.zeros(40)
    for seed in range(300):
        times[[task.digests.index(digest) for digest in task.sample(10, seed).digests]] += 1
    assert abs(times - 75).max() < 4.5 * np.sqrt(300 * 0.25 * 0.75)


def test_single_images_and_conflicting_copies_stay_in_training():
    train, held = make_task(range(7), [0, 0, 0, 1, 1, 1, 2], ["a", "b", "lonely"]).split()
    assert (train.classes, held.classes) == (("a", "b", "lonely"), ("a", "b"))
    assert held.warnings[0] == "classes without an image in the test part: 'lonely'"
    task = make_task([1, 2, 3, 4, 5, 5], [0, 0, 1, 1, 0, 1], "ab")
    for seed in range(10):
        train, held = task.split(seed, test=0.5)
        assert (train.digests.count(task.digests[4]), held.counts.tolist()) == (2, [1, 1])


@given(attributes(), st.integers(0, 5))
def test_attributes_keep_both_values_on_both_sides(task, seed):
    train, held = task.split(seed, test=0.3)
    assert not set(train.digests) & set(held.digests)
    assert len(train) + len(held) == len(task)
    for part in (train, held):
        assert part.classes == task.classes
        assert (part.counts > 0).all() and (part.counts < len(part)).all()
    sample = task.sample(min(6, len(task)), seed)
    assert (sample.classes, len(sample)) == (task.classes, min(6, len(task)))


def test_attributes_that_block_each_other_are_tried_again():
    rows = [[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 1, 0], [1, 1, 0, 1]]
    for part in make_task(range(6), rows, "abcd").split(0):
        assert len(part.classes) == 4
    # The rarest values choose first.
    rows = [[1, 1, 1], [0, 0, 1], [1, 1, 0], [0, 1, 1], [0, 1, 1], [1, 1, 0]]
    assert make_task(range(6), rows, "abc").sample(3, 0).classes == ("a", "b", "c")


def test_copies_under_other_labels_are_drawn_the_same_in_any_order():
    rows = [[0, 1], [1, 1], [1, 0], [1, 1], [0, 1], [1, 0], [1, 1]]
    task = make_task([5, 5, 5, 6, 6, 6, 7], rows, "ab")
    for seed in range(4):
        for n in (3, 4, 5):
            assert task.sample(n, seed).fingerprint == shuffle(task, 1).sample(n, seed).fingerprint


def test_impossible_samples_and_splits_are_refused():
    once = make_task(range(5), [[0, 1], [1, 1], [0, 0], [0, 1], [0, 0]], ["rare", "fine"])
    with pytest.raises(DataError, match=r"1 attributes have a single positive or negative image \('rare'\).*select"):
        once.split()
    with pytest.raises(DataError, match=r"1 images are too few .*2 are needed"):
        once.select(["fine"]).sample(1)
    task = make_task(range(7), [0, 1, 2, 0, 1, 2, 0], "abc")
    for n in (2, 8, -1):
        with pytest.raises(UsageError, match=rf"{n} images cannot be sampled .*Choose 3 to 7"):
            task.sample(n)
    for test in (0, 1, True, float("nan")):
        with pytest.raises(UsageError, match="test="):
            task.split(test=test)
    with pytest.raises(DataError, match=r"the test part of a split of 'shades' is not a task: .*only one class"):
        make_task(range(3), [0, 0, 1], "ab").split()


# --- batches ---------------------------------------------------------------------------------------------------------


def test_batches_share_no_image_and_have_twins_of_the_same_classes():
    task = make_task([*range(160), 0, 1], [n % 5 for n in range(160)] + [0, 1], "abcde")
    label_of = dict(zip(task.digests, task.targets.tolist(), strict=True))
    pairs = draw_batches(task, classes=3, images=2, seed=5)
    shown = [digest for pair in pairs for one in pair for digest in one.digests]
    assert len(shown) == len(set(shown)) == len(pairs) * 2 * 3 * 2  # of copies one counts
    for batch, twin in pairs:
        assert batch.classes == twin.classes and twin.name == f"{batch.name}, twin"
        assert batch.counts.tolist() == twin.counts.tolist() == [2, 2, 2]
        assert [batch.classes[n] for n in batch.targets] == [task.classes[label_of[d]] for d in batch.digests]
    assert {name for batch, _ in pairs for name in batch.classes} == set("abcde")
    again = draw_batches(shuffle(task, 1), classes=3, images=2, seed=5)
    assert [sorted(one.digests) for pair in again for one in pair] == [sorted(one.digests) for p in pairs for one in p]
    assert draw_batches(task, classes=3, images=2, seed=6)[0][0].fingerprint != pairs[0][0].fingerprint
    assert all(len(batch.classes) == 5 for batch, _ in draw_batches(task, classes=None, images=2))
    two = make_task(range(200), [0, 1] * 100, "ab")
    assert [len(draw_batches(two, count, classes=2, images=1)) for count in (None, 25)] == [20, 25]


def test_impossible_batches_are_refused():
    task = make_task(range(23), [0] * 10 + [1] * 10 + [2] * 3, "abc")
    with pytest.raises(DataError, match=r"'shades' \(23 images of 3 classes\) is enough for 1 batches"):
        draw_batches(task, 2, classes=2, images=5)
    with pytest.raises(DataError, match="enough for 0 batches"):
        draw_batches(task, classes=3, images=2)
    with pytest.raises(UsageError, match="Choose 2 to 3"):
        draw_batches(task, classes=4)
    for batches, images in ((None, 0), (0, 1)):
        with pytest.raises(UsageError, match="cannot be drawn"):
            draw_batches(task, batches, classes=2, images=images)
    with pytest.raises(UsageError, match="multi-label"):
        draw_batches(MANY, classes=2)
    with pytest.raises(UsageError, match="seed=-1"):
        draw_batches(task, classes=2, images=1, seed=-1)


# --- unions ----------------------------------------------------------------------------------------------------------


def named(name, *arguments, **options):
    return replace(make_task(*arguments, **options), name=name)


CATS = named("one", [1, 2, 3], [0, 1, 1], ["cat", "dog"], source="here", bad=(BadImage("x.png", "empty"),))
DOGS = named("two", [4, 5, 6], [0, 1, 0], ["dog", "owl"], source="there")


@given(st.lists(st.integers(0, 2), min_size=6, max_size=20), st.integers(0, 3))
def test_the_union_of_the_parts_is_the_whole(rest, seed):
    whole = make_task(range(len(rest) + 6), [0, 1, 2, 0, 1, 2, *rest], ["a", "b", "c"])
    train, held = whole.split(seed, test=0.3)
    for parts in ([train, held], [held, train]):
        union = join_tasks(parts, classes="merge")
        assert union.fingerprint == whole.fingerprint
        assert contents(union.canonical()) == contents(whole.canonical())
        assert not any("kept once" in text for text in union.warnings)


def test_classes_of_one_name_are_merged_or_kept_apart_as_asked():
    merged = join_tasks([CATS, DOGS], classes="merge", name="pets")
    assert (repr(merged), merged.classes) == ("Task(pets, 6 images, 3 classes)", ("cat", "dog", "owl"))
    assert merged.targets.tolist() == [0, 1, 1, 1, 2, 1]
    apart = join_tasks([CATS, DOGS], classes="apart")
    assert apart.classes == ("one/cat", "one/dog", "two/dog", "two/owl")
    assert apart.targets.tolist() == [0, 1, 1, 2, 3, 2]
    assert (apart.name, apart.source, apart.bad) == ("one + two", "here + there", CATS.bad)
    with pytest.raises(UsageError, match=r"classes of one name \('dog'\).*classes='merge'.*classes='apart'"):
        join_tasks([CATS, DOGS])
    assert join_tasks([CATS, named("two", [7, 8], [0, 1], ["owl", "ant"])]).targets.tolist() == [0, 1, 1, 2, 3]


def test_shared_images_are_kept_once_and_found_in_their_source():
    union = join_tasks([CATS, DOGS.subset([1, 2])], classes="merge")
    assert [union.images.load(row).getpixel((0, 0))[0] for row in range(5)] == [1, 2, 3, 5, 6]
    assert (union.images.name(3), len(union.images), union.images.is_threadsafe) == ("two: shade 5", 5, True)
    union = join_tasks([CATS, named("two", [3, 9], [0, 1], ["dog", "owl"])], classes="merge")
    assert len(union) == 4
    assert union.warnings[0] == "images that several of the joined tasks share, kept once: 1"
    copies = named("two", [8, 8, 9], [0, 0, 1], ["dog", "owl"])
    assert len(join_tasks([CATS, copies], classes="merge")) == 6  # copies within one task stay


def test_one_image_under_two_labels_is_refused():
    with pytest.raises(DataError, match=r"'dog' in 'one' \(shade 2\), and 'cat' in 'two' .*subset"):
        join_tasks([CATS, named("two", [2, 9], [0, 1], ["cat", "owl"])], classes="merge")


def test_attributes_are_joined_by_name():
    one = named("one", [1, 2, 3], [[0, 1], [1, 1], [1, 0]], ["red", "wet"])
    two = named("two", [3, 4], [[0, 1], [1, 0]], ["wet", "red"])
    union = join_tasks([one, two], classes="merge")
    assert (union.classes, union.targets.tolist()) == (("red", "wet"), [[0, 1], [1, 1], [1, 0], [0, 1]])
    with pytest.raises(DataError, match=r"'red' in 'one' \(shade 3\), and 'wet' in 'two'"):
        join_tasks([one, named("two", [3, 4], [[1, 0], [0, 1]], ["wet", "red"])], classes="merge")
    with pytest.raises(UsageError, match=r"same attributes.*only some have 'wet', 'dry'"):
        join_tasks([one, named("two", [5, 6], [[0, 1], [1, 0]], ["red", "dry"])], classes="merge")
    with pytest.raises(UsageError, match="classes='apart' makes them all different"):
        join_tasks([one, two], classes="apart")
    with pytest.raises(UsageError, match=r"partly single-label and partly multi-label.*one_vs_rest"):
        join_tasks([CATS, two], classes="merge")


def test_what_cannot_be_joined_is_refused():
    with pytest.raises(UsageError, match="1 tasks"):
        join_tasks([CATS])
    with pytest.raises(UsageError, match="classes='mix'"):
        join_tasks([CATS, DOGS], classes="mix")
    with pytest.raises(UsageError, match=r"several classes of one name, among 'x'"):
        join_tasks([named("one", [1, 2], [0, 1], ["x", "x"]), DOGS], classes="merge")
    with pytest.raises(UsageError, match=r"'one', 'one': they have equal names.*Rename"):
        join_tasks([CATS, named("one", [7, 8], [0, 1], ["cat", "owl"])], classes="apart")
