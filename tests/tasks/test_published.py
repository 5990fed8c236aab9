"""Four published datasets in their own layouts: labels, splits and tasks, and annotation files that do not fit."""

import csv
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from task2vec.errors import DataError, UsageError
from task2vec.tasks import published, read_catalog, recognize_layout
from task2vec.tasks.published import read_cub200, read_deepfashion, read_imaterialist, read_inaturalist
from tests.tasks import published as made
from tests.tasks.birds import CLASSES, make_cub, write_lists
from tests.tasks.dresses import ATTRIBUTES, CATEGORIES, make_deepfashion

change, edit = made.change, made.edit
SHARED = Path(__file__).parents[3] / "shared" / "data"
WRITERS = {
    "cub200": make_cub,
    "deepfashion": make_deepfashion,
    "inaturalist": made.write_inaturalist,
    "imaterialist": made.write_imaterialist,
}


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """The folder of every dataset by its layout."""
    return {name: tmp_path_factory.mktemp(name) for name in WRITERS}


@pytest.fixture(scope="module")
def told(roots):
    """What was written into the folders: for two datasets, the truth about every image."""
    return {name: write(roots[name]) for name, write in WRITERS.items()}


@pytest.fixture(scope="module")
def catalogs(roots, told):
    return {name: read_catalog(roots[name]) for name in told}


def split_by_row(catalog):
    return {row: split for split, rows in catalog.splits.items() for row in rows}


def show(definitions):
    return [(one.name, one.group, one.classes, dict(one.counts)) for one in definitions]


def pictures_of(task):
    return [task.images.load(row) for row in range(len(task))]


# --- layouts ---------------------------------------------------------------------------------------------------------


def test_a_dataset_is_recognized_by_its_files(tmp_path, roots, catalogs):
    for layout, catalog in catalogs.items():
        assert recognize_layout(roots[layout]) == layout == re.sub("2018$", "", catalog.name)
    # These two have train.json and val.json.
    made.write_imaterialist(tmp_path / "one", with_map=False, val="val")
    made.write_inaturalist(tmp_path / "other", 2021)
    assert [read_catalog(tmp_path / name).name for name in ("one", "other")] == ["imaterialist2018", "inaturalist2021"]


def test_unknown_and_ambiguous_folders_are_refused(tmp_path):
    assert recognize_layout(tmp_path) is None
    for writers, place, options, message in (
        ((), "", {}, "is not a folder with the files of a known dataset"),
        ((), "", {"layout": "cifar"}, "files of cifar.*Known are cub200, "),
        ((make_cub,), "", {"labels": "x.csv"}, "only imaterialist has one"),
        ((make_deepfashion,), "", {}, "files of cub200 and deepfashion"),
    ):
        for write in writers:
            write(tmp_path)
        with pytest.raises((DataError, UsageError), match=message):
            read_catalog(tmp_path / place, **options)
    assert read_catalog(tmp_path, layout="cub200").name == "cub200"


# --- CUB-200-2011 ----------------------------------------------------------------------------------------------------


def paper_tasks(catalog):
    """The orders but Passeriformes, and the families of that: 25 by the paper's taxonomy, 24 by ours."""
    orders = [one for one in catalog.of_kind("order") if one.name != "Passeriformes"]
    return orders + [one for one in catalog.of_kind("family") if one.group == "Passeriformes"]


def test_every_bird_has_its_class_and_split(told, catalogs):
    catalog, told = catalogs["cub200"], told["cub200"]
    table, split_of_row = catalog.tables["labels"], split_by_row(catalog)
    kinds = [(table.names[kind], split_of_row[row]) for row, kind in enumerate(table.values)]
    assert dict(zip(catalog.paths, kinds, strict=True)) == told
    assert [Path(source).name for source in catalog.sources][:2] == ["images.txt", "image_class_labels.txt"]
    passerines, cuckoos = catalog.of_kind("order")
    assert (passerines.name, passerines.counts, passerines.group) == ("Passeriformes", {"train": 8, "test": 4}, "Aves")
    assert set(cuckoos.classes) == {name for name in CLASSES.values() if "Cuckoo" in name or "Ani" in name}
    # One duck and one sparrow of either family: nothing to tell apart.
    assert [one.name for one in paper_tasks(catalog)] == ["Cuculiformes", "Corvidae"]


def test_the_readings_of_the_paper(roots, catalogs):
    paper = read_cub200(roots["cub200"], taxonomy="paper")
    assert (paper.name, catalogs["cub200"].name) == ("cub200-paper", "cub200")
    by_name = {one.name: one for one in paper_tasks(paper)}
    assert sorted(by_name) == ["Corvidae", "Cuculiformes", "Passeridae"]
    assert set(by_name["Passeridae"].classes) == {"130.Tree_Sparrow", "118.House_Sparrow"}
    assert "004.Groove_billed_Ani" not in by_name["Cuculiformes"].classes
    with pytest.raises(UsageError, match="there is no taxonomy='modern'"):
        read_cub200(roots["cub200"], taxonomy="modern")


@pytest.mark.parametrize(("suffix", "passerines", "families", "usable"), [("", 133, 21, 14), ("_paper", 134, 22, 15)])
def test_the_shipped_table_has_the_counts_that_we_tell(suffix, passerines, families, usable):
    with Path(published.__file__).with_name("cub200_taxonomy.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["class_dir"][:3]) for row in rows] == list(range(1, 201))
    orders = Counter(row[f"order{suffix}"] for row in rows)
    assert (orders["Passeriformes"], orders["Gaviiformes"]) == (passerines, 1)
    others = [count for order, count in orders.items() if order != "Passeriformes" and count > 1]
    assert (len(others), min(others), max(others)) == (10, 3, 24)
    inside = Counter(row[f"family{suffix}"] for row in rows if row[f"order{suffix}"] == "Passeriformes")
    assert (len(inside), sum(count > 1 for count in inside.values())) == (families, usable)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real datasets are not on this machine")
def test_real_birds_give_the_orders_and_families_that_we_know(tmp_path):
    """The lists of the real images that we keep, in CUB's own layout, with the splits of the source."""
    with (SHARED / "cub200" / "manifest.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    numbers = {name: number for number, name in enumerate(sorted({row["class"] for row in rows}), start=1)}
    paths = [row["source_path"].split("/", 1) for row in rows]
    write_lists(
        tmp_path,
        classes=[f"{number} {name}" for name, number in numbers.items()],
        images=[f"{n} {path}" for n, (_, path) in enumerate(paths, 1)],
        image_class_labels=[f"{n} {numbers[row['class']]}" for n, row in enumerate(rows, 1)],
        train_test_split=[f"{n} {int(part == 'train')}" for n, (part, _) in enumerate(paths, 1)],
    )
    for taxonomy, table, families in (("traditional", "tasks.csv", 14), ("paper", "cub200/paper_tasks.csv", 15)):
        with (SHARED / table).open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row.get("dataset", "cub200") == "cub200"]
        known = {(row["taxon_level"], row["taxon"]): (int(row["n_classes"]), int(row["n_images"])) for row in rows}
        tasks = paper_tasks(read_cub200(tmp_path, taxonomy=taxonomy))
        assert {(one.kind, one.name): (len(one.classes), sum(one.counts.values())) for one in tasks} == known
        assert Counter(one.kind for one in tasks) == {"order": 10, "family": families}


# --- DeepFashion -----------------------------------------------------------------------------------------------------


def test_every_value_of_clothes_is_read_as_it_is_meant(told, catalogs):
    catalog, told = catalogs["deepfashion"], told["deepfashion"]
    assert list(catalog.paths) == [f"Img/{path}" for path, *_ in told]
    table, kinds = catalog.tables["labels"], catalog.tables["categories"]
    assert table.names == tuple(name for name, _ in ATTRIBUTES)
    meaning = {1: 1, -1: 0, 0: -1}
    assert table.values.tolist() == [[meaning[value] for value in row] for _, row, _, _ in told]
    assert [kinds.names[number] for number in kinds.values] == [CATEGORIES[one[2] - 1][0] for one in told]
    assert list(map(split_by_row(catalog).get, range(len(told)))) == [one[3] for one in told]
    # Categories without images leave the numbers of the others; a single full-body one has nothing to be told from.
    assert {one.name: (one.classes, one.members) for one in catalog.of_kind("category")} == {
        "upper-body": (("Anorak", "Blouse"), (0, 1)),
        "lower-body": (("Jeans", "Shorts"), (2, 4)),
    }


def test_other_names_of_folders_and_names_that_come_twice(tmp_path):
    make_deepfashion(tmp_path, anno="Anno_coarse", folder=".")
    place = tmp_path / "Anno_coarse" / "list_attr_cloth.txt"
    place.write_text(place.read_text().replace("floral ", "linen  "))
    catalog = read_deepfashion(tmp_path)
    assert len(catalog.task("upper-body").bad) == 0 and catalog.paths[0].startswith("img/")
    names = catalog.tables["labels"].names
    assert (names[3], names[7]) == ("linen (4)", "linen (8)")


# --- iMaterialist ----------------------------------------------------------------------------------------------------

IDS = {"Black": "17", "Blue": "19", "Female": "66", "Hosiery, Stockings, Tights": "89", "Male": "106", "Zebra": "228"}


def test_labels_of_clothes_are_attributes_in_groups(catalogs):
    catalog = catalogs["imaterialist"]
    assert (len(catalog), catalog.kinds, catalog.warnings) == (8, ("attribute", "attribute group"), ())
    attributes = {one.name: one for one in catalog.of_kind("attribute")}
    assert list(attributes) == list(IDS)
    for name, one in attributes.items():
        carried = {split: sum(IDS[name] in ids for ids in images.values()) for split, images in made.CARRIED.items()}
        assert (one.classes, dict(one.positives)) == ((f"not {name}", name), carried)
        assert dict(one.counts) == {"train": 5, "val": 3}
    assert {one.name: (one.classes, dict(one.positives)) for one in catalog.of_kind("attribute group")} == {
        "color": (("Black", "Blue"), {"train": 3, "val": 2}),
        "gender": (("Female", "Male"), {"train": 4, "val": 2}),
        "category": (("Hosiery, Stockings, Tights",), {"train": 1, "val": 0}),
        "pattern": (("Zebra",), {"train": 0, "val": 0}),
    }
    task = catalog.task("color", split="train")
    assert {made.split_of(picture) for picture in pictures_of(task)} == {"train"}
    labels = [[int(label in made.labels_of(picture)) for label in ("17", "19")] for picture in pictures_of(task)]
    assert task.targets.tolist() == labels


def test_without_names_labels_are_called_by_their_ids(tmp_path):
    catalog = read_imaterialist(made.write_imaterialist(tmp_path, with_map=False))
    (warning,) = catalog.warnings
    assert "named by their numbers" in warning and "labels=, --labels" in warning
    assert [one.name for one in catalog.definitions] == ["17", "19", "66", "89", "106"]
    assert dict(catalog.find("106").positives) == {"train": 1, "val": 1}
    assert (catalog.paths[0], catalog.paths[5]) == ("train/3.jpg", "validation/1.jpg")
    (tmp_path / "names.csv").write_text(made.LABEL_MAP.replace("Black", "Noir"), encoding="utf-8")
    assert read_imaterialist(tmp_path, labels=tmp_path / "names.csv").find("Noir").group == "color"
    with pytest.raises(DataError, match="is not a file"):
        read_imaterialist(tmp_path, labels=tmp_path / "nowhere.csv")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (made.LABEL_MAP.replace("labelName", "name"), "has no column 'labelName'"),
        (made.LABEL_MAP + "17,2,Dark,color\n", "line 8: the label '17' is .*repeated"),
        (made.LABEL_MAP.replace("Blue", " "), "line 3: the label '19' is .*without a name"),
        (made.LABEL_MAP.replace("66,3,Female,gender", "66,2, Black ,color"), "line 4: the label '66' is .*named like"),
    ],
)
def test_broken_names_are_refused_by_row(tmp_path, roots, told, text, complaint):
    (tmp_path / "names.csv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=complaint):
        read_imaterialist(roots["imaterialist"], labels=tmp_path / "names.csv")


# --- iNaturalist -----------------------------------------------------------------------------------------------------

BIRDS = ("Corvus corax", "Corvus corone", "Turdus merula")
FUNGI = ("Amanita muscaria", "Clitocybe × éburnea")


def test_tasks_are_taxa_with_two_species_that_have_images(tmp_path, catalogs):
    for catalog in (catalogs["inaturalist"], read_inaturalist(made.write_inaturalist(tmp_path, 2021))):
        assert catalog.kinds == ("order", "class", "family") and len(catalog) == 26
        assert show(catalog.definitions) == [
            ("Passeriformes", "Aves", BIRDS, {"train": 9, "val": 5}),
            ("Agaricales", "Agaricomycetes", FUNGI, {"train": 3, "val": 2}),
            ("Aves", "Chordata", (*BIRDS, "Apteryx owenii"), {"train": 12, "val": 6}),
            ("Agaricomycetes", "Basidiomycota", FUNGI, {"train": 3, "val": 2}),
            ("Corvidae", "Passeriformes", BIRDS[:2], {"train": 7, "val": 4}),
        ]
        assert catalog.taxonomy.lineage(BIRDS[0])[4:6] == ("Passeriformes", "Corvidae")
        assert len(catalog.taxonomy) == len(made.SPECIES)
        assert catalog.warnings == ("species without an order, in no task by order: 1, such as 'Spongilla sp'",)
        task = catalog.task("Aves", split="train")
        assert [task.classes[label] for label in task.targets] == [made.species_of(one) for one in pictures_of(task)]
        assert {made.split_of(one) for one in pictures_of(task)} == {"train"} and task.bad == ()


def copy(root, folder):
    """The annotation files of a dataset, without the images."""
    ignored = shutil.ignore_patterns("train_val*", "Img", "images")
    return shutil.copytree(root, folder, ignore=ignored, dirs_exist_ok=True)


def test_hidden_names_need_the_published_list(tmp_path, roots, told):
    copy(roots["inaturalist"], tmp_path)
    (tmp_path / "categories.json").unlink()
    with pytest.raises(DataError, match=r"hides the names.*'3'.*Unpack categories\.json.*inat_comp"):
        read_inaturalist(tmp_path)
    # Those who followed the organisers put the names into the files themselves.
    for file in ("train2018.json", "val2018.json"):
        edit(tmp_path / file, lambda content: content.update(categories=made.categories()))
        edit(tmp_path / file, change("categories", 0, name="Apteryx"))  # a genus, no species
    assert read_inaturalist(tmp_path).find("Aves", "class").classes == (*BIRDS, "Apteryx")


def test_2017_has_supercategories(tmp_path):
    catalog = read_inaturalist(made.write_inaturalist(tmp_path, 2017))
    assert show(catalog.definitions) == [
        ("Aves", "", (*BIRDS, "Apteryx owenii"), {"train": 12, "val": 6}),
        ("Fungi", "", FUNGI, {"train": 3, "val": 2}),
    ]
    assert (catalog.kinds, catalog.warnings) == (("supercategory",), ())


def test_one_training_set_is_read(tmp_path, roots, told):
    with pytest.raises(DataError, match=r"has no train2017\.json or train2018\.json"):
        read_inaturalist(tmp_path)
    made.write_inaturalist(tmp_path, 2021, mini=True)
    assert read_inaturalist(tmp_path).name == "inaturalist2021 mini"
    made.write_inaturalist(tmp_path, 2021)
    assert read_inaturalist(tmp_path).name == "inaturalist2021"
    copy(roots["inaturalist"], tmp_path)
    with pytest.raises(DataError, match=r"has train2018\.json and train\.json.*of one year"):
        read_inaturalist(tmp_path)


def test_species_of_one_name_and_files_of_two_splits(tmp_path, roots, told):
    copy(roots["inaturalist"], tmp_path)
    edit(tmp_path / "categories.json", lambda content: [one.update(name="Corvus") for one in content if one["id"] < 12])
    catalog = read_inaturalist(tmp_path)
    assert catalog.find("Corvidae").classes == ("Corvus (3)", "Corvus (11)")
    edit(tmp_path / "val2018.json", change("images", 5, file_name=catalog.paths[2]))
    with pytest.raises(DataError, match=r"train2018\.json.*val2018\.json: it has the path .* 2 times"):
        read_inaturalist(tmp_path)


# --- files that do not fit together ----------------------------------------------------------------------------------


def replace(old, new):
    """Another text for the first match of a pattern in a list."""
    return lambda text: re.sub(old, new, text, count=1)


def repeat(key, number):
    return lambda content: content[key].append(dict(content[key][number]))


ATTR, ATTR_IMG, KIND_IMG = (f"Anno/list_{name}.txt" for name in ("attr_cloth", "attr_img", "category_img"))
LABELS, TRAIN, VAL = "image_class_labels.txt", "train2018.json", "val2018.json"


@pytest.mark.parametrize(
    ("layout", "file", "damage", "complaint"),
    [
        ("cub200", LABELS, replace("12 31", "12 32"), r"images\.txt, line 2: .*not in the folder of its class '032"),
        ("cub200", LABELS, replace("12 31", "12 33"), r"labels\.txt, line 2: '33' is not one of"),
        ("cub200", LABELS, replace("12 31\n", ""), r"labels\.txt: image '12' is not both here"),
        ("cub200", "images.txt", replace("12 031", "11 031"), r"images\.txt, line 2: .* occurs twice"),
        ("cub200", "classes.txt", replace(r"031\..*", "031.Dodo"), r"classes\.txt, line 2: '031\.Dodo' is no class of"),
        ("cub200", "classes.txt", None, r"classes\.txt: it cannot be read"),
        ("deepfashion", ATTR, replace(r"\A9", "8"), "line 1: '8' is not the number of entries, 9"),
        ("deepfashion", ATTR, replace("(summer +)5", r"\g<1>6"), "line 8: 'summer .* its type, one of 1, 2, 3, 4, 5"),
        ("deepfashion", ATTR_IMG, replace(r" +-?\d\n\Z", "\n"), "line 26: it does not have 9 values"),
        ("deepfashion", ATTR_IMG, replace("-1 ", " 3 "), "line 3: it does not have 9 values"),
        ("deepfashion", KIND_IMG, replace(" 2\n", " 8\n"), "line 4: '8' is not one of '1', '2', '3'"),
        ("inaturalist", VAL, None, r"val2018\.json: it cannot be read as JSON"),
        ("inaturalist", TRAIN, repeat("images", 2), r"train2018\.json: .*two of one 'id'"),
        ("inaturalist", VAL, change("annotations", 3, image_id=6), r"val2018\.json: the image id 6 is not in both"),
        ("inaturalist", VAL, change("annotations", 4, category_id=4), r"the category id 4 of image \d+ has no entry"),
        ("inaturalist", TRAIN, lambda c: c["images"][1].pop("id"), r"2018\.json: .*without a number as 'id'"),
        ("inaturalist", "categories.json", lambda c: c.pop(), r"train2018\.json, val2018\.json and .* different ids"),
        ("inaturalist", "categories.json", lambda c: c.clear(), "no record under 'categories'"),
        ("imaterialist", "train.json", change("annotations", 1, imageId="01"), r"train\.json: .*two of one 'imageId'"),
        ("imaterialist", "train.json", change("annotations", 0, labelId=["18"]), r"\['18'\] of image 1 .*not in the"),
        ("imaterialist", "train.json", change("annotations", 0, labelId=["17"] * 2), r"\['17', '17'\] .*repeat"),
        ("imaterialist", "train.json", change("annotations", 0, labelId="17"), "the labels '17' .*are no list"),
    ],
)
def test_files_that_do_not_fit_are_refused_where_they_are_wrong(tmp_path, roots, told, layout, file, damage, complaint):
    place = copy(roots[layout], tmp_path) / file
    if damage is None:
        place.unlink()
    elif place.suffix == ".json":
        edit(place, damage)
    else:
        text = damage(place.read_text())
        assert text != place.read_text()
        place.write_text(text)
    with pytest.raises(DataError, match=complaint):
        read_catalog(tmp_path, layout=layout)
