"""The taxonomic distance of tasks against its definition: the minimum over all pairs of classes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from task2vec.distance import taxonomic, taxonomic_matrix
from task2vec.errors import DataError, UsageError
from task2vec.tasks import from_dataset
from task2vec.tasks.taxonomy import Taxonomy
from tests.oracles.tree_walk import height, walk

ORACLES = {"graph": walk, "ultrametric": height}
BIRDS = Taxonomy(
    ("order", "family"),
    {
        "raven": ("Passeriformes", "Corvidae"),
        "jay": ("Passeriformes", "Corvidae"),
        "robin": ("Passeriformes", "Turdidae"),
        "wren": ("Passeriformes", ""),
        "kiwi": ("Apterygiformes", "Apterygidae"),
    },
)


@st.composite
def worlds(draw):
    """A tree with gaps, and tasks that may share classes."""
    ranks = ("a", "b", "c")[: draw(st.integers(0, 3))]
    lineage = st.tuples(*[st.sampled_from(["", "x", "y"])] * len(ranks))
    tree = Taxonomy(ranks, draw(st.dictionaries(st.sampled_from("abcdefgh"), lineage, min_size=1)))
    task = st.lists(st.sampled_from(tree.classes), min_size=1, max_size=4)
    return tree, draw(st.lists(task, min_size=2, max_size=5))


@pytest.mark.parametrize("kind", list(ORACLES))
@settings(max_examples=50, deadline=None)
@given(worlds())
def test_equals_the_definition(kind, world):
    tree, tasks = world
    expected = [[min(ORACLES[kind](tree, i, j) for i in a for j in b) for b in tasks] for a in tasks]
    assert taxonomic_matrix(tasks, tree, kind=kind).tolist() == expected
    assert taxonomic(tasks[0], tasks[1], tree, kind=kind) == expected[0][1]


def test_known_values():
    assert taxonomic(["raven", "kiwi"], ["robin"], BIRDS) == 4
    assert taxonomic(["raven", "wren"], ["robin"], BIRDS) == 3
    assert taxonomic(["raven", "wren"], ["robin"], BIRDS, kind="ultrametric") == 2
    assert taxonomic(["raven", "robin"], ["kiwi"], BIRDS, kind="ultrametric") == 3
    assert taxonomic(["raven", "robin"], ["kiwi", "robin"], BIRDS) == 0


def test_it_is_no_proper_distance_in_general_as_the_docstring_says():
    a, between, b = ["raven"], ["raven", "kiwi"], ["kiwi"]
    assert taxonomic(a, between, BIRDS) == taxonomic(between, b, BIRDS) == 0 < taxonomic(a, b, BIRDS)


@settings(max_examples=50, deadline=None)
@given(worlds())
def test_it_is_one_between_tasks_with_subtrees_of_their_own(world):
    tree, _ = world
    tasks: dict[str, list[str]] = {}
    for name in tree.classes:
        key = tree.lineages[name][0] if tree.ranks else ""
        tasks.setdefault(key or f"alone {name}", []).append(name)
    for kind in ORACLES:
        found = taxonomic_matrix(list(tasks.values()), tree, kind=kind)
        assert ((found == 0) == np.eye(len(tasks), dtype=bool)).all()
        assert (found[:, None] <= found[:, :, None] + found[None]).all()


def test_tasks_are_known_by_their_classes():
    pictures = [(Image.new("L", (4, 4), shade), shade % 2) for shade in range(4)]
    task = from_dataset(pictures, classes=["raven", "jay"], name="corvids")
    assert taxonomic(task, ["robin"], BIRDS) == 4
    assert taxonomic_matrix([task, task, ["robin"]], BIRDS).tolist() == [[0, 0, 4], [0, 0, 4], [4, 4, 0]]


def test_what_cannot_be_meant():
    with pytest.raises(DataError, match="does not know 1 of 2 classes: 'dodo'"):
        taxonomic(["raven"], ["raven", "dodo"], BIRDS)
    with pytest.raises(UsageError, match="without classes"):
        taxonomic(["raven"], [], BIRDS)
    with pytest.raises(UsageError, match=r"Pass \['kiwi'\]"):
        taxonomic(["raven"], "kiwi", BIRDS)
    with pytest.raises(UsageError, match="kind='tree'"):
        taxonomic(["raven"], ["kiwi"], BIRDS, kind="tree")
    assert taxonomic_matrix([], BIRDS).shape == (0, 0)


def test_hundreds_of_tasks_of_thousands_of_classes_take_no_time():
    rng = np.random.default_rng(0)
    tree = Taxonomy(
        ("order", "family", "genus"),
        {str(n): (str(n // 50), str(n // 10), str(rng.integers(3))) for n in range(3000)},
    )
    tasks = [[str(n) for n in range(start, start + 50)] for start in range(0, 3000, 50)]
    assert (taxonomic_matrix(tasks, tree) == 8 * (1 - np.eye(len(tasks)))).all()
    assert (taxonomic_matrix(tasks, tree, kind="ultrametric") == 4 * (1 - np.eye(len(tasks)))).all()
