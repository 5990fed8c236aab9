"""A tree of taxa: distances by hand and against a walk through the graph, homonyms, gaps, joining."""

import pickle
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task2vec.errors import DataError, UsageError
from task2vec.tasks.taxonomy import KNOWN_RANKS, MAIN_RANKS, Taxon, Taxonomy
from tests.oracles.tree_walk import common_taxon, height, walk

LIFE = Taxonomy(
    ("kingdom", "order", "genus"),
    {
        "wheatear": ("Animalia", "Passeriformes", "Oenanthe"),
        "desert wheatear": ("Animalia", "Passeriformes", "Oenanthe"),
        "raven": ("Animalia", "Passeriformes", "Corvus"),
        "wren": ("Animalia", "Passeriformes", ""),
        "jellyfish": ("Animalia", "", ""),
        "water dropwort": ("Plantae", "Apiales", "Oenanthe"),
        "stone": ("", "", ""),
    },
    root="things",
)

# By hand: edges, and height (genus 1, order 2, kingdom 3, root 4).
BY_HAND = [
    ("raven", "raven", 0, 0),
    ("wheatear", "desert wheatear", 2, 1),
    ("wheatear", "raven", 4, 2),
    ("raven", "wren", 3, 2),
    ("wren", "jellyfish", 3, 3),
    ("raven", "jellyfish", 4, 3),
    ("wheatear", "water dropwort", 8, 4),
    ("stone", "raven", 5, 4),
    ("stone", "jellyfish", 3, 4),
]


@st.composite
def trees(draw):
    """Trees of up to four ranks with gaps, and so few names that taxa share them."""
    ranks = ("a", "b", "c", "d")[: draw(st.integers(0, 4))]
    lineage = st.tuples(*[st.sampled_from(["", "x", "y"])] * len(ranks))
    return Taxonomy(ranks, draw(st.dictionaries(st.sampled_from("xyzuvw123"), lineage, min_size=1)))


@pytest.mark.parametrize(("a", "b", "edges", "height"), BY_HAND)
def test_distances_by_hand(a, b, edges, height):
    assert (LIFE.graph_distance(a, b), LIFE.graph_distance(b, a)) == (edges, edges)
    assert (LIFE.ultrametric(a, b), LIFE.ultrametric(b, a)) == (height, height)


@settings(max_examples=100, deadline=None)
@given(trees())
def test_matrices_equal_a_walk_through_the_graph(tree):
    names = tree.classes
    edges, heights = tree.distance_matrix(names), tree.distance_matrix(names, kind="ultrametric")
    for (i, a), (j, b) in product(enumerate(names), repeat=2):
        assert edges[i, j] == walk(tree, a, b)
        assert heights[i, j] == height(tree, a, b)


@settings(max_examples=100, deadline=None)
@given(trees())
def test_inequalities(tree):
    edges, heights = (tree.distance_matrix(tree.classes, kind=kind).astype(int) for kind in ("graph", "ultrametric"))
    assert (edges[:, None] <= edges[:, :, None] + edges[None]).all()
    assert (heights[:, None] <= np.maximum(heights[:, :, None], heights[None])).all()
    for matrix in (edges, heights):
        assert (matrix == matrix.T).all()
        assert ((matrix == 0) == np.eye(len(tree), dtype=bool)).all()


@settings(max_examples=100, deadline=None)
@given(trees(), st.data())
def test_lowest_common_ancestor_is_the_end_of_what_lineages_share(tree, data):
    names = data.draw(st.lists(st.sampled_from(tree.classes), min_size=1, max_size=4))
    found = tree.lowest_common_ancestor(names)
    shared = common_taxon(tree, names)
    assert (*found.above, found.name) == ("life", *(name for _, name in shared))
    assert found in tree.lineage(names[0])
    assert len(tree.lineage(names[0])) - 1 == tree.depths[tree.ancestors([names[0]])[0, -1]]


def test_captions():
    def caption(*names):
        return str(LIFE.lowest_common_ancestor(names))

    assert caption("raven", "wren", "wheatear") == "Passeriformes (order)"
    assert caption("raven", "jellyfish") == "Animalia (kingdom)"
    assert caption("raven", "stone") == "things"
    assert caption("raven") == caption("raven", "raven") == "raven"
    with pytest.raises(UsageError, match="no class was named"):
        LIFE.lowest_common_ancestor([])


def test_homonyms_stay_apart():
    bird, plant = (LIFE.lineage(name)[-2] for name in ("wheatear", "water dropwort"))
    assert str(bird) == str(plant) == "Oenanthe (genus)"
    assert bird != plant
    assert bird == LIFE.lineage("desert wheatear")[-2] == Taxon("Oenanthe", "genus", bird.above)
    assert plant.above == ("things", "Plantae", "Apiales")
    # Nor does a class become its genus by bearing its name.
    tree = Taxonomy(("order", "genus"), {"x": ("x", "x"), "y": ("x", "")})
    assert [taxon.rank for taxon in tree.lineage("x")] == ["root", "order", "genus", "class of a task"]
    assert tree.graph_distance("x", "y") == 3


def test_rows_and_columns_are_those_asked_for():
    found = LIFE.distance_matrix(["wren", "raven"], ["raven", "stone", "raven"])
    assert found.tolist() == [[3, 4, 3], [0, 5, 0]]
    assert LIFE.distance_matrix([], ["raven"]).shape == (0, 1)


def test_many_rows_are_worked_on_in_parts():
    rng = np.random.default_rng(0)
    tree = Taxonomy(("a", "b"), {str(n): (str(rng.integers(5)), str(rng.integers(9))) for n in range(600)})
    whole = tree.distance_matrix(tree.classes, kind="ultrametric")
    for i, j in rng.integers(600, size=(50, 2)).tolist():
        assert whole[i, j] == height(tree, str(i), str(j))


def test_what_is_unknown_is_named():
    with pytest.raises(DataError, match=r"does not know 2 of 3 classes: 'dodo', 'moa'.*look like 'wheatear'"):
        LIFE.distance_matrix(["raven", "dodo", "moa"])
    with pytest.raises(DataError, match="'Passeriformes'"):
        LIFE.lineage("Passeriformes")
    with pytest.raises(UsageError, match=r"Pass \['raven'\]"):
        LIFE.ancestors("raven")
    with pytest.raises(UsageError, match=r"kind='tree'.*graph, ultrametric"):
        LIFE.distance_matrix(["raven"], kind="tree")
    assert "raven" in LIFE and "dodo" not in LIFE and len(LIFE) == 7


def test_what_is_no_taxonomy_is_refused():
    with pytest.raises(DataError, match="lineage of 'b' has 1 names"):
        Taxonomy(("order", "family"), {"a": ("x", "y"), "b": ("x",)})
    with pytest.raises(DataError, match="it has no class"):
        Taxonomy(("order",), {})
    for ranks in (("order", "order"), ("root", "order"), ("", "order")):
        with pytest.raises(UsageError, match="Rename them"):
            Taxonomy(ranks, {"a": ("x", "y")})


def test_a_taxonomy_travels_between_processes():
    copy = pickle.loads(pickle.dumps(LIFE))
    assert copy.graph_distance("wheatear", "raven") == 4


BIRDS = Taxonomy(("order", "family"), {"raven": ("Passeriformes", "Corvidae"), "kiwi": ("Apterygiformes", "")})
FLOWERS = Taxonomy(("kingdom", "family"), {"rose": ("Plantae", "Rosaceae"), "apple": ("Plantae", "Rosaceae")})


@pytest.mark.parametrize("above", [("Animalia", "Chordata"), {"kingdom": "Animalia", "phylum": "Chordata"}])
def test_joined_trees(above):
    both = Taxonomy.join({"birds": BIRDS, "flowers": FLOWERS}, above={"birds": above}, root="Eukaryota")
    assert both.ranks == ("kingdom", "phylum", "order", "family")
    assert both.classes == ("raven", "kiwi", "rose", "apple")
    assert [t.name for t in both.lineage("raven")] == [
        *("Eukaryota", "Animalia", "Chordata", "Passeriformes", "Corvidae", "raven")
    ]
    assert (both.graph_distance("rose", "apple"), both.graph_distance("raven", "kiwi")) == (2, 5)
    assert (both.graph_distance("raven", "rose"), both.ultrametric("raven", "rose")) == (8, 5)
    assert (both.ultrametric("raven", "kiwi"), both.ultrametric("rose", "apple")) == (3, 1)
    assert str(both.lowest_common_ancestor(["raven", "kiwi"])) == "Chordata (phylum)"


def test_joining_changes_nothing_inside_the_parts():
    both = Taxonomy.join({"life": LIFE, "flowers": FLOWERS})
    assert (both.distance_matrix(LIFE.classes) == LIFE.distance_matrix(LIFE.classes)).all()
    alone, joined = (tree.distance_matrix(LIFE.classes, kind="ultrametric") for tree in (LIFE, both))
    assert ((alone[:, :, None, None] < alone) == (joined[:, :, None, None] < joined)).all()


def test_a_class_that_two_parts_know():
    same = Taxonomy(("order", "family"), {"raven": ("Passeriformes", "Corvidae"), "jay": ("Passeriformes", "Corvidae")})
    joined = Taxonomy.join({"birds": BIRDS, "same": same})
    assert joined.classes == ("raven", "kiwi", "jay")
    assert joined.graph_distance("raven", "jay") == 2
    with pytest.raises(DataError, match=r"'raven' has two places.*birds: Passeriformes > Corvidae; other: Corvi"):
        Taxonomy.join({"birds": BIRDS, "other": Taxonomy(("order",), {"raven": ("Corviformes",)})})


def test_ranks_in_no_order_are_refused():
    dogs = Taxonomy(("breed group",), {"husky": ("working",)})
    with pytest.raises(UsageError, match="which of the ranks 'breed group', 'order' is the broadest"):
        Taxonomy.join({"birds": BIRDS, "dogs": dogs})
    placed = Taxonomy.join(
        {"birds": BIRDS, "dogs": dogs}, above={"dogs": {"order": "Carnivora", "family": "Canidae", "genus": "Canis"}}
    )
    assert placed.ranks == ("order", "family", "genus", "breed group")
    upside = Taxonomy(("family", "breed group"), {"a": ("x", "y")})
    down = Taxonomy(("breed group", "family"), {"b": ("x", "y")})
    with pytest.raises(UsageError, match="two opposite orders"):
        Taxonomy.join({"upside": upside, "down": down})


def test_joins_that_cannot_be_meant():
    with pytest.raises(UsageError, match="above 'bird', and the parts are 'birds'"):
        Taxonomy.join({"birds": BIRDS}, above={"bird": ("Animalia",)})
    with pytest.raises(UsageError, match="'birds' has the rank 'order' itself"):
        Taxonomy.join({"birds": BIRDS}, above={"birds": ("Animalia", "Chordata", "Aves", "Passeriformes")})
    with pytest.raises(UsageError, match="two opposite orders"):
        Taxonomy.join({"birds": BIRDS}, above={"birds": {"genus": "Corvus"}})
    with pytest.raises(UsageError, match="above 'birds' stands 'Animalia'"):
        Taxonomy.join({"birds": BIRDS}, above={"birds": "Animalia"})
    with pytest.raises(UsageError, match="no taxonomies to join"):
        Taxonomy.join({})


def test_main_ranks_are_known_and_in_order():
    assert [rank for rank in KNOWN_RANKS if rank in MAIN_RANKS] == list(MAIN_RANKS)
