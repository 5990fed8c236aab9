"""Four published datasets in their own layouts: labels, splits and tasks, and annotation files that do not fit."""

import re
import shutil
from pathlib import Path

import pytest

from task2vec.errors import DataError, UsageError
from task2vec.tasks import published, read_catalog, recognize_layout
from task2vec.tasks.columns import read_columns
from task2vec.tasks.published import read_cub200, read_deepfashion, read_imaterialist, read_inaturalist
from tests.failures import refuse
from tests.tasks import published as made

WRITERS = {
    "cub200": made.make_cub,
    "deepfashion": made.make_deepfashion,
    "inaturalist": made.make_inaturalist,
    "imaterialist": made.make_imaterialist,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Of every layout a folder, and the label and the split of each of its images by their paths."""
    roots = {name: tmp_path_factory.mktemp(name) for name in WRITERS}
    return {name: (root, WRITERS[name](root)) for name, root in roots.items()}


@pytest.fixture(scope="module")
def catalogs(written):
    return {name: read_catalog(root) for name, (root, _) in written.items()}


@pytest.fixture
def copied(written, tmp_path):
    """The annotation files of a dataset, without the images, in the test's own folder."""
    ignored = shutil.ignore_patterns("*.jpg")
    return lambda layout: shutil.copytree(written[layout][0], tmp_path, ignore=ignored, dirs_exist_ok=True)


def substitute(place, old, new):
    """Another text for the first match of a pattern in a file."""
    text = re.sub(old, new, place.read_text("utf-8"), count=1)
    assert text != place.read_text("utf-8")
    place.write_text(text, "utf-8")


def show(definitions):
    return [(one.name, one.group, one.classes, dict(one.counts)) for one in definitions]


@pytest.mark.parametrize("layout", WRITERS)
def test_every_image_has_the_label_and_the_split_that_were_written(catalogs, written, layout):
    catalog, (root, labelled) = catalogs[layout], written[layout]
    assert recognize_layout(root) == layout == re.sub("2018$", "", catalog.name)
    table = catalog.tables["labels"]
    labels = table.values.tolist() if table.values.ndim == 2 else [table.names[number] for number in table.values]
    splits = {row: split for split, rows in catalog.splits.items() for row in rows.tolist()}
    found = {path: (labels[row], splits[row]) for row, path in enumerate(catalog.paths)}
    assert found == labelled and len(splits) == len(catalog)
    task = catalog.task(catalog.definitions[0])
    assert task.bad == () and task.images.load(0).size == (6, 6)


def test_unknown_and_ambiguous_folders_are_refused(tmp_path):
    assert recognize_layout(tmp_path) is None
    for writers, options, message in (
        ((), {}, "is not a folder with the files of a known dataset"),
        ((), {"layout": "cifar"}, "files of cifar.*Known datasets are cub200, "),
        ((made.make_cub,), {"labels": "x.csv"}, "applies only to imaterialist"),
        ((made.make_deepfashion,), {}, "files of cub200 and deepfashion"),
    ):
        for write in writers:
            write(tmp_path)
        refuse((DataError, UsageError), message, read_catalog, tmp_path, **options)
    assert read_catalog(tmp_path, layout="cub200").name == "cub200"
    # These two have train.json and val.json.
    made.make_imaterialist(tmp_path / "one", has_names=False, val="val")
    made.make_inaturalist(tmp_path / "other", 2021)
    assert [read_catalog(tmp_path / name).name for name in ("one", "other")] == ["imaterialist2018", "inaturalist2021"]


# --- CUB-200-2011 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "counts"), [("cub200", (133, 21, 14)), ("cub200-paper", (134, 22, 15))])
def test_all_200_birds_give_the_counts_that_we_publish(tmp_path, layout, counts):
    names = read_columns(Path(published.__file__).with_name("cub200_taxonomy.csv"))["class_dir"]
    rows = list(enumerate(names, start=1))
    assert all(name.startswith(f"{number:03}.") for number, name in rows) and len(rows) == 200
    made.write_lists(
        tmp_path,
        classes=[f"{number} {name}" for number, name in rows],
        images=[f"{number} {name}/1.jpg" for number, name in rows],
        image_class_labels=[f"{number} {number}" for number, _ in rows],
        train_test_split=[f"{number} 1" for number, _ in rows],
    )
    catalog = read_catalog(tmp_path, layout=layout)
    songbirds = catalog.find("Passeriformes")
    # The paper's tasks: the orders but Passeriformes, and the families of that.
    orders = [len(one.classes) for one in catalog.of_kind("order") if one is not songbirds]
    families = [one.name for one in catalog.of_kind("family") if one.group == "Passeriformes"]
    assert (catalog.name, songbirds.group) == (layout, "Aves")
    every_family = catalog.taxonomy.group(songbirds.classes, "family")
    assert (len(songbirds.classes), len(every_family), len(families)) == counts
    assert (len(orders), min(orders), max(orders)) == (10, 3, 24)
    # Two species are where the paper must have put them.
    assert ("004.Groove_billed_Ani" in songbirds.classes) == (layout == "cub200-paper")
    assert ("Passeridae" in families) == (layout == "cub200-paper")
    refuse(UsageError, "there is no taxonomy='modern'", read_cub200, tmp_path, taxonomy="modern")


# --- DeepFashion -----------------------------------------------------------------------------------------------------


def test_categories_without_images_leave_the_numbers_of_the_others(catalogs):
    catalog = catalogs["deepfashion"]
    assert catalog.tables["labels"].names == tuple(made.ATTRIBUTES)
    kinds = catalog.tables["categories"]
    assert [kinds.names[number] for number in kinds.values] == [made.USED[number % 5] for number in range(24)]
    # A single full-body one has nothing to be told from.
    assert {one.name: (one.classes, one.members) for one in catalog.of_kind("category")} == {
        "upper-body": (("Anorak", "Blouse"), (0, 1)),
        "lower-body": (("Jeans", "Shorts"), (2, 4)),
    }


def test_other_names_of_folders_and_names_that_come_twice(tmp_path):
    made.make_deepfashion(tmp_path, anno="Anno_coarse", folder=".")
    substitute(tmp_path / "Anno_coarse" / "list_attr_cloth.txt", "floral ", "linen  ")
    catalog = read_deepfashion(tmp_path)
    assert catalog.task("upper-body").bad == () and catalog.paths[0].startswith("img/")
    names = catalog.tables["labels"].names
    assert (names[3], names[7]) == ("linen (4)", "linen (8)")


# --- iMaterialist ----------------------------------------------------------------------------------------------------


def test_without_names_labels_are_called_by_their_ids(tmp_path):
    made.make_imaterialist(tmp_path, has_names=False)
    catalog = read_imaterialist(tmp_path)
    (warning,) = catalog.warnings
    assert "named by their numbers" in warning and "labels=, --labels" in warning
    assert [one.name for one in catalog.definitions] == ["17", "19", "66", "89", "106"]
    (tmp_path / "names.csv").write_text(made.LABEL_MAP.replace("Black", "Noir"), encoding="utf-8")
    assert read_imaterialist(tmp_path, labels=tmp_path / "names.csv").find("Noir").group == "color"
    for change, complaint in (
        (("labelName", "name"), "has no column 'labelName'"),
        (("19,2,Blue", "17,2,Dark"), "line 3: the label '17' is .*repeated"),
        (("Blue", " "), "line 3: the label '19' is .*has no name"),
        (("66,3,Female,gender", "66,2, Black ,color"), "line 4: the label '66' is .*that of another"),
    ):
        (tmp_path / "names.csv").write_text(made.LABEL_MAP.replace(*change), encoding="utf-8")
        refuse(DataError, complaint, read_imaterialist, tmp_path, labels=tmp_path / "names.csv")


# --- iNaturalist -----------------------------------------------------------------------------------------------------

BIRDS = ("Corvus corax", "Corvus corone", "Turdus merula")
FUNGI = ("Amanita muscaria", "Clitocybe × éburnea")


def test_tasks_are_taxa_with_two_species_that_have_images(tmp_path, catalogs):
    made.make_inaturalist(tmp_path, 2021)
    for catalog in (catalogs["inaturalist"], read_inaturalist(tmp_path)):
        assert show(catalog.definitions) == [
            ("Passeriformes", "Aves", BIRDS, {"train": 9, "val": 5}),
            ("Agaricales", "Agaricomycetes", FUNGI, {"train": 3, "val": 2}),
            ("Aves", "Chordata", (*BIRDS, "Apteryx owenii"), {"train": 12, "val": 6}),
            ("Agaricomycetes", "Basidiomycota", FUNGI, {"train": 3, "val": 2}),
            ("Corvidae", "Passeriformes", BIRDS[:2], {"train": 7, "val": 4}),
        ]
        assert catalog.taxonomy.lineage(BIRDS[0])[4:6] == ("Passeriformes", "Corvidae")
        assert (catalog.kinds, len(catalog.taxonomy)) == (("order", "class", "family"), len(made.SPECIES))
        assert catalog.warnings == ("species without an order, left out of all order tasks: 1, such as 'Spongilla sp'",)


def test_2017_has_supercategories(tmp_path):
    made.make_inaturalist(tmp_path, 2017)
    catalog = read_inaturalist(tmp_path)
    assert show(catalog.definitions) == [
        ("Aves", "", (*BIRDS, "Apteryx owenii"), {"train": 12, "val": 6}),
        ("Fungi", "", FUNGI, {"train": 3, "val": 2}),
    ]
    assert (catalog.kinds, catalog.warnings) == (("supercategory",), ())


def test_hidden_names_need_the_published_list(tmp_path, copied):
    (copied("inaturalist") / "categories.json").unlink()
    refuse(DataError, r"hides the names.*'3'.*Unpack categories\.json.*inat_comp", read_inaturalist, tmp_path)
    # Those who followed the organisers put the names into the files themselves.
    made.make_inaturalist(tmp_path, is_hidden=False)
    for split in ("train", "val"):
        substitute(tmp_path / f"{split}2018.json", "Apteryx owenii", "Apteryx")  # a genus, no species
    assert read_inaturalist(tmp_path).find("Aves", "class").classes == (*BIRDS, "Apteryx")


def test_one_training_set_is_read(tmp_path, copied):
    refuse(DataError, r"has no train2017\.json or train2018\.json", read_inaturalist, tmp_path)
    made.make_inaturalist(tmp_path, 2021, train="train_mini")
    assert read_inaturalist(tmp_path).name == "inaturalist2021 mini"
    made.make_inaturalist(tmp_path, 2021)
    assert read_inaturalist(tmp_path).name == "inaturalist2021"
    copied("inaturalist")
    refuse(DataError, r"has train2018\.json and train\.json.*of one year", read_inaturalist, tmp_path)


def test_species_of_one_name_and_files_of_two_splits(tmp_path, copied):
    copied("inaturalist")
    for name in BIRDS[:2]:
        substitute(tmp_path / "categories.json", name, "Corvus")
    catalog = read_inaturalist(tmp_path)
    assert catalog.find("Corvidae").classes == ("Corvus (3)", "Corvus (11)")
    substitute(tmp_path / "val2018.json", r"train_val/val[^\"]*", catalog.paths[2])
    refuse(DataError, r"train2018\.json.*val2018\.json: it has the path .* 2 times", read_inaturalist, tmp_path)


# --- files that do not fit together ----------------------------------------------------------------------------------

ATTR, ATTR_IMG, KIND_IMG = (f"Anno/list_{name}.txt" for name in ("attr_cloth", "attr_img", "category_img"))
LABELS, TRAIN, VAL, TREE = "image_class_labels.txt", "train2018.json", "val2018.json", "categories.json"


@pytest.mark.parametrize(
    ("layout", "file", "old", "new", "complaint"),
    [
        ("cub200", LABELS, "12 31", "12 32", r"images\.txt, line 2: .*not in the folder of its class '032"),
        ("cub200", LABELS, "12 31\n", "", r"labels\.txt: image '12' is not both here"),
        ("cub200", "images.txt", "12 031", "11 031", r"images\.txt, line 2: .* occurs twice"),
        ("cub200", "classes.txt", r"031\..*", "031.Dodo", r"classes\.txt, line 2: '031\.Dodo' is not a class of"),
        ("cub200", "classes.txt", None, None, r"classes\.txt: it cannot be read"),
        ("deepfashion", ATTR, r"\A9", "8", "line 1: '8' is not the number of entries, 9"),
        ("deepfashion", ATTR, "(summer +)5", r"\g<1>6", "line 8: 'summer .* its type, one of 1, 2, 3, 4, 5"),
        ("deepfashion", ATTR_IMG, r" +-?\d\n\Z", "\n", "line 26: it does not have 9 values"),
        ("deepfashion", ATTR_IMG, "-1 ", " 3 ", "line 3: it does not have 9 values"),
        ("deepfashion", KIND_IMG, " 2\n", " 8\n", "line 4: '8' is not one of '1', '2', '3'"),
        ("inaturalist", VAL, None, None, r"val2018\.json: it cannot be read as JSON"),
        ("inaturalist", VAL, r'"image_id": \d+', '"image_id": 6', r"val2018\.json: the image id 6 is not in both"),
        ("inaturalist", VAL, r'"category_id": \d+', '"category_id": 4', r"the category id 4 of image \d+ has no entry"),
        ("inaturalist", TRAIN, '"id": 4963', '"no": 4963', r"2018\.json: .*without a number as 'id'"),
        ("inaturalist", TREE, '"id": 3,', '"id": 4,', r"train2018\.json, val2018\.json and .* different ids"),
        ("inaturalist", TREE, "(?s).+", "[]", "no record under 'categories'"),
        ("imaterialist", "train.json", r'\], "imageId": "10"', '], "imageId": "01"', "json: .*two of one 'imageId'"),
        ("imaterialist", "train.json", r'\["106"\]', '["18"]', r"\['18'\] of image 1 .*have no name"),
        ("imaterialist", "train.json", r'\["106"\]', '["17", "17"]', r"\['17', '17'\] .*repeat"),
        ("imaterialist", "train.json", r'\["106"\]', '"17"', "the labels '17' .*are not a list"),
    ],
)
def test_files_that_do_not_fit_are_refused_where_they_are_wrong(copied, layout, file, old, new, complaint):
    root = copied(layout)
    if old is None:
        (root / file).unlink()
    else:
        substitute(root / file, old, new)
    refuse(DataError, complaint, read_catalog, root, layout=layout)
