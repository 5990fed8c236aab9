"""Trees of taxa from files: tables by their columns, iNaturalist's categories, and what is neither."""

import json
from pathlib import Path

import numpy as np
import pytest

from task2vec.errors import DataError, UsageError
from task2vec.tasks import read_inaturalist_taxonomy, read_taxonomy
from task2vec.tasks.inaturalist import RANKS as INATURALIST_RANKS
from task2vec.tasks.taxonomy import Taxonomy
from tests.oracles.tree_walk import height, walk

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


def test_ranks_may_be_given(tmp_path):
    table = write(tmp_path / "t.csv", "breed,group,order,order_2011\nhusky,working,Carnivora,Ferae\n")
    assert read_taxonomy(table, "breed", ranks="group").lineages == {"husky": ("working",)}
    assert read_taxonomy(table, "breed", ranks=("order", "group")).lineages == {"husky": ("Carnivora", "working")}
    renamed = read_taxonomy(table, "breed", ranks={"order": "order_2011"})
    assert (renamed.ranks, renamed.lineages) == (("order",), {"husky": ("Ferae",)})


def test_tables_that_are_no_taxonomy(tmp_path):
    table = write(tmp_path / "t.csv", "class_dir,group,order,family\na,x,o,f\n")
    with pytest.raises(DataError, match=r"no column 'genus'.*'class_dir', 'group'"):
        read_taxonomy(table, "class_dir", ranks=("genus",))
    with pytest.raises(DataError, match="no column 'bird'"):
        read_taxonomy(table, "bird")
    with pytest.raises(UsageError, match="two opposite orders"):
        read_taxonomy(table, "class_dir", ranks=("family", "order"))
    for ranks in (("group", "group"), {"order": "group", "family": "group"}, ("class_dir",)):
        with pytest.raises(UsageError, match="meant twice"):
            read_taxonomy(table, "class_dir", ranks=ranks)
    with pytest.raises(UsageError, match="meant twice"):
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
    {"id": number, "name": name, "supercategory": group, **dict(zip(INATURALIST_RANKS, lineage.split(), strict=True))}
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


def test_inaturalist_2017_has_one_rank(tmp_path):
    few = [{key: category[key] for key in ("id", "name", "supercategory")} for category in CATEGORIES_2018]
    tree = read_inaturalist_taxonomy(write(tmp_path / "c.json", json.dumps(few)))
    assert tree.ranks == ("supercategory",)
    assert tree.ultrametric("Corvus corax", "Turdus merula") == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("{}", "no list of categories"),
        ('{"categories": []}', "no list of categories"),
        ("[1]", "no list of categories"),
        ('[{"id": 1}]', "category 0 has no field 'name'"),
        ('[{"name": "a", "id": 1}]', "no category tells a rank"),
        ('[{"name": "a", "order": "x"}, {"order": "x"}]', "category 1 has no field 'name'"),
        ('[{"name": "a", "order": 1.5}]', "category 0: 1.5 is neither"),
        ('[{"name": true, "order": "x"}]', "category 0: True is neither"),
        ('[{"name": "a", "order": "x", "name": "b"}]', "the key 'name' stands twice in .*'order'"),
        ('[{"name": null, "order": "x"}]', "category 0: the class has no name"),
        ('[{"name": "a", "order": "x"}, {"name": "a", "order": "y"}]', "'a' has two places"),
    ],
)
def test_files_that_are_no_categories(tmp_path, text, complaint):
    with pytest.raises(DataError, match=complaint):
        read_inaturalist_taxonomy(write(tmp_path / "c.json", text))


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.json is not a file"):
        read_inaturalist_taxonomy(tmp_path / "nowhere.json")
    with pytest.raises(DataError, match=r"nowhere\.csv is not a file"):
        read_taxonomy(tmp_path / "nowhere.csv", "bird")


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
