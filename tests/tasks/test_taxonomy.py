"""A tree of taxa: distances by hand and against a walk through the graph, homonyms, gaps, joins, and readers."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task2vec.errors import DataError, UsageError
from task2vec.tasks import read_inaturalist_taxonomy, read_taxonomy
from task2vec.tasks.inaturalist import RANKS
from task2vec.tasks.taxonomy import Taxon, Taxonomy
from tests.oracles.distances import common_taxon, height, walk

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


@settings(max_examples=60)
@given(trees())
def test_matrices_equal_a_walk_through_the_graph(tree):
    names = tree.classes
    edges, heights = tree.distance_matrix(names), tree.distance_matrix(names, kind="ultrametric")
    for (i, a), (j, b) in product(enumerate(names), repeat=2):
        assert edges[i, j] == walk(tree, a, b)
        assert heights[i, j] == height(tree, a, b)


@settings(max_examples=60)
@given(trees())
def test_inequalities(tree):
    edges, heights = (tree.distance_matrix(tree.classes, kind=kind).astype(int) for kind in ("graph", "ultrametric"))
    assert (edges[:, None] <= edges[:, :, None] + edges[None]).all()
    assert (heights[:, None] <= np.maximum(heights[:, :, None], heights[None])).all()
    for matrix in (edges, heights):
        assert (matrix == matrix.T).all()
        assert ((matrix == 0) == np.eye(len(tree), dtype=bool)).all()


@settings(max_examples=60)
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


def test_what_is_unknown_is_named():
    with pytest.raises(DataError, match=r"2 of 3 classes are not in .*'dodo', 'moa'.*look like 'wheatear'"):
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
    with pytest.raises(UsageError, match="cannot join 'birds' with taxa above 'bird'"):
        Taxonomy.join({"birds": BIRDS}, above={"bird": ("Animalia",)})
    with pytest.raises(UsageError, match="'birds' has the rank 'order' itself"):
        Taxonomy.join({"birds": BIRDS}, above={"birds": ("Animalia", "Chordata", "Aves", "Passeriformes")})
    with pytest.raises(UsageError, match="two opposite orders"):
        Taxonomy.join({"birds": BIRDS}, above={"birds": {"genus": "Corvus"}})
    with pytest.raises(UsageError, match=r"above=\{'birds': 'Animalia'\}"):
        Taxonomy.join({"birds": BIRDS}, above={"birds": "Animalia"})
    with pytest.raises(UsageError, match="cannot join"):
        Taxonomy.join({})


SHARED = Path(__file__).parents[3] / "shared" / "data"


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_ranks_are_known_by_the_names_of_columns(tmp_path):
    table = write(
        tmp_path / "t.csv", "bird,Family,n,order,species\na,F1,3,O1,s\nb,,4, O1 ,\nc,F1,5,nan,t\na,F1,9,O1,s\n"
    )
    tree = read_taxonomy(table, "bird", root="Aves")
    assert (tree.ranks, tree.root) == (("order", "family", "species"), "Aves")
    assert tree.lineages == {"a": ("O1", "F1", "s"), "b": ("O1", "", ""), "c": ("", "F1", "t")}
    # The column of classes is no rank, even if it bears the name of one.
    assert read_taxonomy(write(tmp_path / "u.csv", "species,genus\na,g\n"), "species").ranks == ("genus",)


def test_tables_that_are_no_taxonomy(tmp_path):
    table = write(tmp_path / "t.csv", "class_dir,group,order,family\na,x,o,f\n")
    with pytest.raises(DataError, match=r"no column 'genus'.*'class_dir', 'group'"):
        read_taxonomy(table, "class_dir", ranks=("genus",))
    with pytest.raises(DataError, match="no column 'bird'"):
        read_taxonomy(table, "bird")
    with pytest.raises(UsageError, match="two opposite orders"):
        read_taxonomy(table, "class_dir", ranks=("family", "order"))
    for ranks in (("group", "group"), {"order": "group", "family": "group"}, ("class_dir",)):
        with pytest.raises(UsageError, match="named twice"):
            read_taxonomy(table, "class_dir", ranks=ranks)
    with pytest.raises(UsageError, match="named twice"):
        read_taxonomy(write(tmp_path / "u.csv", "bird,order,Order\na,x,y\n"), "bird")
    with pytest.raises(UsageError, match=r"no column is named by a rank.*'breed', 'kind'"):
        read_taxonomy(write(tmp_path / "v.csv", "breed,kind\na,x\n"), "breed")
    with pytest.raises(DataError, match="line 3: the class has no name"):
        read_taxonomy(write(tmp_path / "w.csv", "bird,order\na,x\n ,y\n"), "bird")
    with pytest.raises(DataError, match=r"'a' has two places.*x; y in .*line 4"):
        read_taxonomy(write(tmp_path / "z.csv", "bird,order\na,x\nb,x\na,y\n"), "bird")


# Real lineages in the form published for 2018; 2021 added three fields.
SPECIES = [
    ("Amanita muscaria", "Fungi", "Fungi Basidiomycota Agaricomycetes Agaricales Amanitaceae Amanita"),
    ("Corvus corax", "Aves", "Animalia Chordata Aves Passeriformes Corvidae Corvus"),
    ("Corvus corone", "Aves", "Animalia Chordata Aves Passeriformes Corvidae Corvus"),
    ("Turdus merula", "Aves", "Animalia Chordata Aves Passeriformes Turdidae Turdus"),
]
CATEGORIES_2018 = [
    {"id": number, "name": name, "supercategory": group, **dict(zip(RANKS, lineage.split(), strict=True))}
    for number, (name, group, lineage) in enumerate(SPECIES)
]


def test_inaturalist_2018(tmp_path):
    tree = read_inaturalist_taxonomy(write(tmp_path / "categories.json", json.dumps(CATEGORIES_2018)))
    assert tree.ranks == ("kingdom", "phylum", "class", "order", "family", "genus")
    assert str(tree.lowest_common_ancestor(["Corvus corax", "Turdus merula"])) == "Passeriformes (order)"
    names = [name for name, *_ in SPECIES[1:]] + [SPECIES[0][0]]
    assert tree.distance_matrix(names[:1], names).tolist() == [[0, 2, 6, 14]]
    assert tree.distance_matrix(names[:1], names, kind="ultrametric").tolist() == [[0, 1, 3, 7]]


def test_inaturalist_2021_and_files_of_annotations(tmp_path):
    more = [
        {**c, "common_name": "?", "specific_epithet": "?", "image_dir_name": f"{c['id']:05}_{c['genus']}"}
        for c in CATEGORIES_2018
    ]
    content = {"info": {"year": 2021}, "images": [], "categories": more, "annotations": [], "licenses": []}
    file = write(tmp_path / "val.json", json.dumps(content))
    assert read_inaturalist_taxonomy(file, class_field="image_dir_name").classes[1] == "00001_Corvus"
    assert read_inaturalist_taxonomy(file, class_field="id").lineages["3"][-1] == "Turdus"
    with pytest.raises(DataError, match="'\\?' has two places"):
        read_inaturalist_taxonomy(file, class_field="common_name")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "damaged or not JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("{}", "has no 'categories'"),
        ('{"categories": []}', "no list of categories"),
        ("[1]", "no list of categories"),
        ('[{"id": 1}]', "category 0 has no field 'name'"),
        ('[{"name": "a", "id": 1}]', "no category has a rank"),
        ('[{"name": "a", "order": "x"}, {"order": "x"}]', "category 1 has no field 'name'"),
        ('[{"name": "a", "order": 1.5}]', "category 0: 1.5 is neither"),
        ('[{"name": true, "order": "x"}]', "category 0: True is neither"),
        ('[{"name": null, "order": "x"}]', "category 0: the class has no name"),
        ('[{"name": "a", "order": "x"}, {"name": "a", "order": "y"}]', "'a' has two places"),
    ],
)
def test_files_that_are_no_categories(tmp_path, text, complaint):
    with pytest.raises(DataError, match=complaint):
        read_inaturalist_taxonomy(write(tmp_path / "c.json", text))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real datasets are not on this machine")
def test_real_lists_become_one_tree():
    birds = read_taxonomy(SHARED / "cub200" / "taxonomy.csv", "class_dir")
    flowers = read_taxonomy(SHARED / "flowers102" / "taxonomy.csv", "class_dir")
    dogs = read_taxonomy(SHARED / "dogs" / "taxonomy.csv", "class_dir", ranks=("breed_group",))
    animal = ("Animalia", "Chordata")
    life = Taxonomy.join(
        {"cub200": birds, "flowers102": flowers, "dogs": dogs},
        above={"cub200": (*animal, "Aves"), "dogs": (*animal, "Mammalia", "Carnivora", "Canidae")},
        root="Eukaryota",
    )
    assert (len(birds), len(flowers), len(dogs), len(life)) == (200, 102, 170, 472)
    assert life.ranks == ("kingdom", "phylum", "class", "order", "family", "breed_group")
    albatrosses = ["001.Black_footed_Albatross", "002.Laysan_Albatross"]
    assert str(life.lowest_common_ancestor(albatrosses)) == "Diomedeidae (family)"
    assert str(life.lowest_common_ancestor([albatrosses[0], "affenpinscher"])) == "Chordata (phylum)"
    assert life.graph_distance(albatrosses[0], "1") == 6 + 5
    assert life.graph_distance(*albatrosses) == 2
    rng = np.random.default_rng(0)
    for a, b in rng.choice(life.classes, size=(20, 2)).tolist():
        assert (life.graph_distance(a, b), life.ultrametric(a, b)) == (walk(life, a, b), height(life, a, b))
