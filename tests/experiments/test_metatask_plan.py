"""Who has seen what: labels in common are found, nested ones too, and halves of a dataset keep tasks whole."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.collection import Dataset
from experiments.metatask_plan import PlannedTask, _halve, share_labels
from tests.embedding.conftest import make_task

COLOURS = replace(make_task((12, 12, 12, 12, 12)), classes=("a", "b", "c", "d", "e"), name="all")


def ask(question, classes, *, family="labels", dataset="birds"):
    return PlannedTask(family, dataset, replace(COLOURS.select(classes), name=question), question)


@pytest.mark.parametrize(
    ("task", "lesson", "wanted"),
    [
        (ask("hue", ["a", "b"]), ask("hue", ["c", "d"]), True),  # the same question about other pictures
        (ask("hue", ["a", "b"]), ask("grain", ["c", "d"]), False),
        (ask("species", ["a", "b"]), ask("family", ["c", "d"]), True),  # nested: who knows one knows the other
        (ask("order X or not", ["a", "b"]), ask("species", ["c", "d"]), True),
        (ask("hue", ["a", "b"]), ask("species", ["c", "d"]), False),
        (ask("x", ["a", "b"], family="taxa"), ask("y", ["b", "c"], family="taxa"), True),  # a class in common
        (ask("x", ["a", "b"], family="taxa"), ask("y", ["c", "d"], family="taxa"), False),
        (ask("x", ["a", "b"], family="taxa"), ask("y", ["a", "b"], family="taxa", dataset="dogs"), False),
    ],
)
def test_labels_in_common(task, lesson, wanted):
    assert share_labels(task, lesson) is wanted


def test_thirds_of_two_questions_are_not_the_same_labels():
    named = replace(COLOURS.select(["a", "b", "c"]), classes=("low", "medium", "high"))
    one, other = (PlannedTask("labels", "birds", named, question) for question in ("contrast", "brightness"))
    assert share_labels(one, other) is False


def test_no_task_has_classes_in_both_halves():
    whole = Dataset(replace(COLOURS, name="birds"), (), Path())
    tasks = [ask("x", ["a", "b"], family="taxa"), ask("y", ["c", "d"], family="taxa")]
    halves = [set(half.task.classes) for half in _halve(whole, tasks, seed=0)]
    assert halves[0] | halves[1] == set("abcde") and not halves[0] & halves[1]
    assert all(any(set(one.task.classes) <= half for half in halves) for one in tasks)
