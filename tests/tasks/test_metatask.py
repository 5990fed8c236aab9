"""Meta-tasks as definitions: which experts know the labels of which tasks."""

import pytest

from task2vec.errors import UsageError
from task2vec.tasks.definitions import TaskDefinition
from task2vec.tasks.metatask import ExpertDefinition, MetaTask


def define(name, members, *, kind="order", table="labels", is_multilabel=False):
    classes = tuple(map(str, members))
    return TaskDefinition(name, kind, classes, {"train": 9}, members, table, is_multilabel=is_multilabel)


WASPS, BEES = define("wasps", (0, 1)), define("bees", (2, 3))
INSECTS = define("insects", (0, 1, 2, 3, 4), kind="class")
RED = define("red", (1,), kind="attribute")
COLOURS = define("colours", (0, 1, 2), kind="attribute group", is_multilabel=True)
SHIRTS = define("upper-body", (0, 1), kind="category", table="categories")


def expert(catalogue, definition):
    return ExpertDefinition(definition.name, catalogue, definition)


def test_experts_that_know_the_labels_are_left_out():
    tasks = (("inat", WASPS), ("inat", BEES), ("cub", BEES), ("clothes", RED))
    experts = (
        expert("inat", WASPS),
        expert("inat", INSECTS),
        expert("clothes", COLOURS),
        expert("clothes", SHIRTS),  # the same images and numbers, but other labels
        expert("cub", WASPS),
    )
    meta = MetaTask("test", tasks, experts)
    assert meta.left_out == {(0, 0), (0, 1), (1, 1), (3, 2)}
    assert [one.is_multilabel for one in experts] == [False, False, True, False, False]
    assert meta.errors is None
    assert repr(meta) == "MetaTask(test, 4 tasks, 5 experts and the generic one)"
    assert repr(MetaTask("x", tasks, experts, has_generic=False)) == "MetaTask(x, 4 tasks, 5 experts)"


def test_what_cannot_be_chosen_from_is_refused():
    with pytest.raises(UsageError, match=r"has the task \('inat', 'order', 'wasps'\) twice"):
        MetaTask("test", (("inat", WASPS), ("inat", WASPS)), (expert("inat", BEES),))
    with pytest.raises(UsageError, match=r"has the expert \('inat', 'order', 'bees'\) twice"):
        MetaTask("test", (("inat", WASPS),), (expert("inat", BEES), expert("inat", BEES)))
    with pytest.raises(UsageError, match="has no expert"):
        MetaTask("test", (("inat", WASPS),), ())
