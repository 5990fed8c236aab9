"""Tasks become one task."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from task2vec.errors import DataError, UsageError
from task2vec.tasks import BadImage, join_tasks
from tests.tasks.shades import contents, make_task


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


def test_classes_of_one_name_are_merged_or_kept_apart_as_told():
    merged = join_tasks([CATS, DOGS], classes="merge", name="pets")
    assert repr(merged) == "Task(pets, 6 images, 3 classes)"
    assert merged.classes == ("cat", "dog", "owl")
    assert merged.targets.tolist() == [0, 1, 1, 1, 2, 1]
    apart = join_tasks([CATS, DOGS], classes="apart")
    assert apart.classes == ("one/cat", "one/dog", "two/dog", "two/owl")
    assert apart.targets.tolist() == [0, 1, 1, 2, 3, 2]
    assert (apart.name, apart.source, apart.bad) == ("one + two", "here + there", CATS.bad)
    with pytest.raises(UsageError, match=r"classes of one name \('dog'\).*classes='merge'.*classes='apart'"):
        join_tasks([CATS, DOGS])


def test_images_are_shared_and_found_in_their_source():
    union = join_tasks([CATS, DOGS.subset([1, 2])], classes="merge")
    assert [union.images.load(row).getpixel((0, 0))[0] for row in range(5)] == [1, 2, 3, 5, 6]
    assert union.images.name(3) == "two: shade 5"
    assert (len(union.images), union.images.is_threadsafe) == (5, True)
    assert union.digests == (*CATS.digests, *DOGS.digests[1:])


def test_images_that_both_have_are_kept_once_and_told():
    other = named("two", [3, 9], [0, 1], ["dog", "owl"])
    union = join_tasks([CATS, other], classes="merge")
    assert len(union) == 4
    assert union.warnings[0] == "images that several of the joined tasks share, kept once: 1"
    copies = named("two", [8, 8, 9], [0, 0, 1], ["dog", "owl"])
    assert len(join_tasks([CATS, copies], classes="merge")) == 6  # copies within one task are its own affair


def test_one_image_under_two_labels_is_refused_or_told():
    other = named("two", [2, 9], [0, 1], ["cat", "owl"])
    with pytest.raises(DataError, match=r"'dog' in 'one' \(shade 2\), and 'cat' in 'two' .*conflicts='keep'"):
        join_tasks([CATS, other], classes="merge")
    kept = join_tasks([CATS, other], classes="merge", conflicts="keep")
    assert len(kept) == 5
    assert any("different labels: 1 groups" in text for text in kept.warnings)
    with pytest.raises(DataError, match="'one/dog'"):
        join_tasks([CATS, named("two", [2, 9], [0, 1], ["dog", "owl"])], classes="apart")


def test_tasks_without_a_common_name_need_no_word():
    union = join_tasks([CATS, named("two", [7, 8], [0, 1], ["owl", "ant"])])
    assert union.classes == ("cat", "dog", "owl", "ant")
    assert union.targets.tolist() == [0, 1, 1, 2, 3]


def test_several_labels_are_joined_by_the_names_of_their_columns():
    one = named("one", [1, 2, 3], [[0, 1], [1, 1], [1, 0]], ["red", "wet"])
    two = named("two", [3, 4], [[0, 1], [1, 0]], ["wet", "red"])
    union = join_tasks([one, two], classes="merge")
    assert (union.classes, union.targets.tolist()) == (("red", "wet"), [[0, 1], [1, 1], [1, 0], [0, 1]])
    with pytest.raises(DataError, match=r"'red' in 'one' \(shade 3\), and 'wet' in 'two'"):
        join_tasks([one, named("two", [3, 4], [[1, 0], [0, 1]], ["wet", "red"])], classes="merge")
    with pytest.raises(UsageError, match=r"same questions.*only one of them has 'dry'"):
        join_tasks([one, named("two", [5, 6], [[0, 1], [1, 0]], ["red", "dry"])], classes="merge")
    with pytest.raises(UsageError, match="classes='apart' makes them all different"):
        join_tasks([one, two], classes="apart")
    with pytest.raises(UsageError, match="Pass classes='merge'"):
        join_tasks([one, two])
    with pytest.raises(UsageError, match=r"'one' has one class per image and 'two' is multi-label.*one_vs_rest"):
        join_tasks([CATS, two], classes="merge")


def test_what_cannot_be_joined_is_refused():
    with pytest.raises(UsageError, match="1 tasks"):
        join_tasks([CATS])
    with pytest.raises(UsageError, match="classes='mix'"):
        join_tasks([CATS, DOGS], classes="mix")
    with pytest.raises(UsageError, match="conflicts='ignore'"):
        join_tasks([CATS, DOGS], classes="merge", conflicts="ignore")
    with pytest.raises(UsageError, match=r"'one' itself has several classes called 'x'"):
        join_tasks([named("one", [1, 2], [0, 1], ["x", "x"]), DOGS], classes="merge")
    with pytest.raises(UsageError, match=r"called 'one', 'one'.*Rename"):
        join_tasks([CATS, named("one", [7, 8], [0, 1], ["cat", "owl"])], classes="apart")
