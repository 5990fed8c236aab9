"""The union of tasks: every image once, classes of one name as asked, and contradictions refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from task2vec.errors import DataError, UsageError
from task2vec.tasks import BadImage, join_tasks
from tests.failures import refuse
from tests.tasks.shades import contents, few, make_task


def named(name, *arguments, **options):
    return replace(make_task(*arguments, **options), name=name)


CATS = named("one", [1, 2, 3], [0, 1, 1], ["cat", "dog"], source="here", bad=(BadImage("x.png", "empty"),))
DOGS = named("two", [4, 5, 6], [0, 1, 0], ["dog", "owl"], source="there")


@few
@given(st.lists(st.integers(0, 2), min_size=6, max_size=20), st.integers(0, 3))
def test_the_union_of_the_parts_is_the_whole(rest, seed):
    whole = make_task(range(len(rest) + 6), [0, 1, 2, 0, 1, 2, *rest], ["a", "b", "c"])
    train, held = whole.split(seed, test=0.3)
    for parts in ([train, held], [held, train]):
        union = join_tasks(parts, merge_classes=True)
        assert union.fingerprint == whole.fingerprint
        assert contents(union.canonical()) == contents(whole.canonical())
        assert not any("kept once" in text for text in union.warnings)


def test_classes_of_one_name_are_merged_if_asked():
    merged = join_tasks([CATS, DOGS], merge_classes=True, name="pets")
    assert (repr(merged), merged.classes) == ("Task(pets, 6 images, 3 classes)", ("cat", "dog", "owl"))
    assert merged.targets.tolist() == [0, 1, 1, 1, 2, 1]
    others = join_tasks([CATS, named("two", [7, 8], [0, 1], ["owl", "ant"], source="there")])
    assert (others.classes, others.targets.tolist()) == (("cat", "dog", "owl", "ant"), [0, 1, 1, 2, 3])
    assert (others.name, others.source, others.bad) == ("one + two", "here + there", CATS.bad)


def test_shared_images_are_kept_once_and_found_in_their_source():
    union = join_tasks([CATS, DOGS.subset([1, 2])], merge_classes=True)
    assert [union.images.load(row).getpixel((0, 0))[0] for row in range(5)] == [1, 2, 3, 5, 6]
    assert (union.images.name(3), len(union.images), union.images.is_threadsafe) == ("two: shade 5", 5, True)
    union = join_tasks([CATS, named("two", [3, 9], [0, 1], ["dog", "owl"])], merge_classes=True)
    assert len(union) == 4
    assert union.warnings[0] == "images that several of the joined tasks share, kept once: 1"
    copies = named("two", [8, 8, 9], [0, 0, 1], ["dog", "owl"])
    assert len(join_tasks([CATS, copies], merge_classes=True)) == 6  # copies within one task stay


ONE = named("one", [1, 2, 3], [[0, 1], [1, 1], [1, 0]], ["red", "wet"])
TWO = named("two", [3, 4], [[0, 1], [1, 0]], ["wet", "red"])
CONTRARY = named("two", [3, 4], [[1, 0], [0, 1]], ["wet", "red"])
DRY = named("two", [5, 6], [[0, 1], [1, 0]], ["red", "dry"])


def test_attributes_are_joined_by_name():
    union = join_tasks([ONE, TWO], merge_classes=True)
    assert (union.classes, union.targets.tolist()) == (("red", "wet"), [[0, 1], [1, 1], [1, 0], [0, 1]])


@pytest.mark.parametrize(
    ("tasks", "merge", "error", "message"),
    [
        ([CATS, named("two", [2, 9], [0, 1], ["cat", "owl"])], True, DataError, r"'dog' in 'one' .*'cat' in 'two' "),
        ([ONE, CONTRARY], True, DataError, r"'red' in 'one' \(shade 3\), and 'wet' in 'two' .*subset"),
        ([CATS, DOGS], False, UsageError, r"classes of one name \('dog'\).*merge_classes=True .*rename"),
        ([ONE, DRY], True, UsageError, r"same attributes.*only some have 'wet', 'dry'"),
        ([CATS, TWO], True, UsageError, r"partly single-label and partly multi-label.*one_vs_rest"),
        ([named("x", [1, 2], [0, 1], ["x", "x"]), DOGS], True, UsageError, "several classes of one name, among 'x'"),
        ([CATS], True, UsageError, "1 tasks cannot be joined"),
    ],
)
def test_what_cannot_be_joined_is_refused(tasks, merge, error, message):
    refuse(error, message, join_tasks, tasks, merge_classes=merge)
