"""A tree of taxa: numbers and groups of taxa, homonyms, gaps, joins, and readers."""

import pytest

from task2vec.distance import taxonomic_matrix
from task2vec.errors import DataError, UsageError
from task2vec.tasks import Taxonomy, read_taxonomy
from tests.failures import refuse

BIRD, RAVENS = ("Animalia", "Passeriformes"), ("Passeriformes", "Corvidae")
LIFE = Taxonomy(
    ("kingdom", "order", "genus"),
    {
        "wheatear": (*BIRD, "Oenanthe"),
        "desert wheatear": (*BIRD, "Oenanthe"),
        "raven": (*BIRD, "Corvus"),
        "wren": (*BIRD, ""),
        "jellyfish": ("Animalia", "", ""),
        "water dropwort": ("Plantae", "Apiales", "Oenanthe"),
        "stone": ("", "", ""),
    },
    root="things",
)
BIRDS = Taxonomy(("order", "family"), {"raven": RAVENS, "kiwi": ("Apterygiformes", "")})
FLOWERS = Taxonomy(("kingdom", "family"), {"rose": ("Plantae", "Rosaceae"), "apple": ("Plantae", "Rosaceae")})
DOGS = Taxonomy(("breed group",), {"husky": ("working",)})


def distances(tree, a, b):
    """The edges between two classes, and the height of their lowest common taxon."""
    return tuple(int(taxonomic_matrix([[a], [b]], tree, kind=kind)[0, 1]) for kind in ("graph", "ultrametric"))


def test_distances_follow_lineages_and_homonyms_stay_apart():
    by_hand = {("raven", "wren"): (3, 2), ("wheatear", "water dropwort"): (8, 4), ("stone", "jellyfish"): (3, 4)}
    assert {pair: distances(LIFE, *pair) for pair in by_hand} == by_hand
    assert LIFE.lineage("wren") == ("things", "Animalia", "Passeriformes", "wren")
    assert LIFE.group(LIFE.classes, "genus") == {
        (*BIRD, "Oenanthe"): [0, 1],
        (*BIRD, "Corvus"): [2],
        (): [3, 4, 6],
        ("Plantae", "Apiales", "Oenanthe"): [5],
    }
    # Nor does a class become its genus by bearing its name.
    assert distances(Taxonomy(("order", "genus"), {"x": ("x", "x"), "y": ("x", "")}), "x", "y")[0] == 3


def test_joined_trees():
    above = {"birds": {"kingdom": "Animalia", "phylum": "Chordata"}}
    both = Taxonomy.join({"birds": BIRDS, "flowers": FLOWERS}, above=above)
    assert both.ranks == ("kingdom", "phylum", "order", "family")
    assert both.classes == ("raven", "kiwi", "rose", "apple")
    assert both.lineage("raven") == ("life", "Animalia", "Chordata", "Passeriformes", "Corvidae", "raven")
    assert (distances(both, "raven", "rose"), distances(both, "raven", "kiwi")) == ((8, 5), (5, 3))
    above = {"dogs": {"order": "Carnivora", "family": "Canidae", "genus": "Canis"}}
    ranks = Taxonomy.join({"birds": BIRDS, "dogs": DOGS}, above=above).ranks
    assert ranks == ("order", "family", "genus", "breed group")
    # A class that two parts know is one class.
    joined = Taxonomy.join({"birds": BIRDS, "same": Taxonomy(("order", "family"), {"raven": RAVENS, "jay": RAVENS})})
    assert (joined.classes, distances(joined, "raven", "jay")) == (("raven", "kiwi", "jay"), (2, 1))


@pytest.mark.parametrize(
    ("ranks", "lineages", "message"),
    [
        (("order", "x"), {"a": ("x", "y"), "b": ("x",)}, "more or fewer names .'b'"),
        (("order",), {}, "and 0 classes"),
        (("order", "order"), {"a": ("x", "y")}, "Name every rank once"),
    ],
)
def test_what_is_no_taxonomy_is_refused(ranks, lineages, message):
    refuse(DataError, message, Taxonomy, ranks, lineages)
    refuse(DataError, r"2 of 3 classes .*'dodo', 'moa'.*like 'wheat", LIFE.ancestors, ["raven", "dodo", "moa"])


@pytest.mark.parametrize(
    ("other", "above", "message"),
    [
        (Taxonomy(("order",), {"raven": ("Corviformes",)}), {}, r"'raven' has two places.*; other: Corvi"),
        (FLOWERS, {"b": {"kingdom": "Animalia"}}, "cannot join 'birds', 'other' with taxa above 'b'"),
        (FLOWERS, {"birds": {"order": "X"}}, "order > order > family are not given once"),
        (FLOWERS, {"birds": {"genus": "X"}}, "genus > order > family are .*as in kingdom > order > family > genus"),
    ],
)
def test_what_cannot_be_joined_is_refused(other, above, message):
    refuse((DataError, UsageError), message, Taxonomy.join, {"birds": BIRDS, "other": other}, above=above)


def test_ranks_are_known_by_the_names_of_columns(tmp_path):
    text = "bird,Family,n,order,species\na,F1,3,O1,s\nb,,4, O1 ,\nc,F1,5,nan,t\na,F1,9,O1,s\n"
    (tmp_path / "t.csv").write_text(text)
    tree = read_taxonomy(tmp_path / "t.csv", "bird")
    assert tree.ranks == ("order", "family", "species")
    assert tree.lineages == {"a": ("O1", "F1", "s"), "b": ("O1", "", ""), "c": ("", "F1", "t")}
    # The column of classes is no rank, even if it bears the name of one.
    (tmp_path / "u.csv").write_text("species,genus\na,g\n")
    assert read_taxonomy(tmp_path / "u.csv", "species").ranks == ("genus",)


@pytest.mark.parametrize(
    ("text", "ranks", "error", "message"),
    [
        ("bird,group,order\na,x,o\n", ("genus",), DataError, r"no column 'genus'.*'bird', 'group'"),
        ("bird,family,order\na,x,o\n", ("family", "order"), UsageError, "from the broadest"),
        ("bird,group\na,x\n", {"order": "group", "family": "group"}, UsageError, "named twice"),
        ("bird,kind\na,x\n", None, UsageError, r"no column is named by a rank.*'bird', 'kind'"),
        ("bird,order\na,x\n ,y\n", None, DataError, "line 3: the class has no name"),
        ("bird,order\na,x\nb,x\na,y\n", None, DataError, r"'a' has two places.*x; y in .*line 4"),
    ],
)
def test_tables_that_are_no_taxonomy(tmp_path, text, ranks, error, message):
    (tmp_path / "t.csv").write_text(text)
    refuse(error, message, read_taxonomy, tmp_path / "t.csv", "bird", ranks=ranks)
