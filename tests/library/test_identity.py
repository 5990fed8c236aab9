"""What an embedding says of itself, and what is not believed."""

import json

import numpy as np
import pytest

from task2vec.embedding import Embedding
from task2vec.errors import DataError
from task2vec.library.identity import identify, is_same_vector, read_facts, space_of
from tests.library.making import PROBE, fingerprint_of, make


def test_what_an_index_lists():
    found = identify(make("birds", 3))
    assert found.task.fingerprint == fingerprint_of(3)
    assert (found.task.name, found.task.images, found.task.classes) == ("birds", 10, ("a", "b"))
    assert (found.space.probe_fingerprint, found.space.filters, found.recipe, found.cv_error) == (PROBE, 50, 2, 0.1)
    assert json.loads(found.settings)["method"] == "robust"
    assert found.norm == pytest.approx(make("birds", 3).fisher.sum())


def test_the_key_does_not_depend_on_the_order_of_settings():
    one, other = ({"method": "robust", "seed": 0}, {"seed": 0, "method": "robust"})
    assert identify(make("a", 1, settings=one)).key == identify(make("a", 1, settings=other)).key


@pytest.mark.parametrize(
    "other",
    [{"seed": 2}, {"settings": {"method": "robust", "seed": 1}}, {"probe_fingerprint": "cd" * 32}, {"recipe": 1}],
)
def test_the_key_depends_on_all_that_makes_the_numbers(other):
    told = {"seed": 1} | other
    assert identify(make("a", 1)).key != identify(make("a", told.pop("seed"), **told)).key


def test_spaces_are_of_one_probe_and_one_scale():
    space = space_of(make("a", 1))
    assert space.key == space_of(make("b", 2, settings={"method": "robust", "seed": 9})).key
    assert space.key == space_of(make("b", 2, probe="the same under another name")).key
    for other in ({"settings": {"method": "direct", "seed": 0}}, {"probe_fingerprint": "cd" * 32}, {"filters": 49}):
        assert space.key != space_of(make("b", 2, **other)).key


@pytest.mark.parametrize(
    "story",
    [
        {"task_fingerprint": None}, {"task_fingerprint": "../x"}, {"task_fingerprint": "ab"},
        {"probe_fingerprint": "X" * 64}, {"settings": "x"}, {"settings": []},
        {"settings": {"x": float("nan")}}, {"settings": {"x": {1, 2}}},
        {"settings": {"x": "y" * 70_000}}, {"recipe": "2"}, {"recipe": -1}, {"recipe": True}, {"recipe": 1 << 60},
        {"classes": "ab"}, {"classes": ["a"]}, {"classes": ["a", 5]}, {"counts": []}, {"counts": {}},
        {"counts": {"images": -1, "per_class": [5, 5]}}, {"counts": {"images": 10, "per_class": [5]}},
        {"counts": {"images": 10, "per_class": [5, -5]}}, {"counts": {"images": 10.0, "per_class": [5, 5]}},
    ],
)  # fmt: skip
def test_stories_that_are_not_sound(story):
    with pytest.raises(DataError, match="does not say how it was made"):
        identify(make("a", 1, **story))


@pytest.mark.parametrize(
    "missing", ["task_fingerprint", "probe_fingerprint", "settings", "classes", "counts", "is_multilabel"]
)
def test_stories_that_lack_something(missing):
    whole = make("a", 1)
    story = {name: value for name, value in whole.provenance.items() if name != missing}
    with pytest.raises(DataError, match=missing):
        identify(Embedding("a", "net", whole.fisher, whole.stderr, whole.prior, whole.layers, story))


@pytest.mark.parametrize("error", [None, "0.1", float("nan"), float("inf"), 10**400, -1, []])
def test_an_error_that_is_none_is_not_listed(error):
    assert identify(make("a", 1, head={"cv_error": error})).cv_error is None
    assert identify(make("a", 1, head=error)).cv_error is None


def test_the_same_numbers():
    one, halves = make("a", 1), np.ones((2, 50))
    assert is_same_vector(one, make("b", 2, numbers=1, versions={}))
    assert not is_same_vector(one, make("a", 2))
    assert not is_same_vector(one, make("a", 1, halves=halves)) and not is_same_vector(make("a", 1, halves=halves), one)
    assert is_same_vector(make("a", 1, halves=halves), make("a", 1, halves=halves))
    assert not is_same_vector(make("a", 1, halves=halves), make("a", 1, halves=2 * halves))


def test_is_multilabel_only_if_it_is_true():
    told = {"fingerprint": "ab" * 32, "name": "a", "images": 1, "classes": ["x"], "counts": [1]}
    assert [read_facts(told | {"is_multilabel": value}).is_multilabel for value in (True, False, "yes", 1)] == [
        True, False, False, False,
    ]  # fmt: skip
