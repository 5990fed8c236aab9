"""iNaturalist as published becomes a catalog of orders, classes and families."""

import shutil

import pytest

from task2vec.errors import DataError
from task2vec.tasks.published import read_inaturalist
from tests.tasks.published import SPECIES, categories, change, edit, species_of, split_of, write_inaturalist

BIRDS = ("Corvus corax", "Corvus corone", "Turdus merula")
FUNGI = ("Amanita muscaria", "Clitocybe × éburnea")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_inaturalist(tmp_path_factory.mktemp("inaturalist"))


def copy(root, folder):
    """The annotation files of a year, without the images."""
    return shutil.copytree(root, folder, ignore=shutil.ignore_patterns("train_val*"), dirs_exist_ok=True)


def show(definitions):
    return [(one.name, one.group, one.classes, dict(one.counts)) for one in definitions]


def test_tasks_are_taxa_with_two_species_that_have_images(tmp_path, root):
    for folder, name in ((root, "inaturalist2018"), (write_inaturalist(tmp_path, 2021), "inaturalist2021")):
        catalog = read_inaturalist(folder)
        assert repr(catalog) == f"Catalog({name}, 26 images, train and val, tasks: 2 order, 2 class, 1 family)"
        assert show(catalog.of_kind("order")) == [
            ("Passeriformes", "Aves", BIRDS, {"train": 9, "val": 5}),
            ("Agaricales", "Agaricomycetes", FUNGI, {"train": 3, "val": 2}),
        ]
        assert show(catalog.of_kind("class")) == [
            ("Aves", "Chordata", (*BIRDS, "Apteryx owenii"), {"train": 12, "val": 6}),
            ("Agaricomycetes", "Basidiomycota", FUNGI, {"train": 3, "val": 2}),
        ]
        assert show(catalog.of_kind("family")) == [("Corvidae", "Passeriformes", BIRDS[:2], {"train": 7, "val": 4})]
        assert catalog.taxonomy.lineage(BIRDS[0])[4:6] == ("Passeriformes", "Corvidae")
        assert len(catalog.taxonomy) == len(SPECIES)
        assert catalog.warnings == ("species without an order, in no task by order: 1, such as 'Spongilla sp'",)


def test_pixels_confirm_labels_and_splits(root):
    catalog = read_inaturalist(root)
    for definition in catalog.definitions:
        for split in ("train", None):
            task = catalog.task(definition, split=split)
            pictures = [task.images.load(row) for row in range(len(task))]
            assert [task.classes[label] for label in task.targets] == [species_of(picture) for picture in pictures]
            assert {split_of(picture) for picture in pictures} == ({split} if split else {"train", "val"})
            assert len(task) == (definition.counts[split] if split else sum(definition.counts.values()))
            assert task.bad == ()


def test_hidden_names_need_the_published_list(tmp_path, root):
    copy(root, tmp_path)
    (tmp_path / "categories.json").unlink()
    with pytest.raises(DataError, match=r"hides the names.*'3'.*Unpack categories\.json.*inat_comp"):
        read_inaturalist(tmp_path)
    # Those who followed the organisers put the names into the files themselves.
    for file in ("train2018.json", "val2018.json"):
        edit(tmp_path / file, lambda content: content.update(categories=categories()))
        edit(tmp_path / file, change("categories", 0, name="Apteryx"))  # a genus, no species
    assert read_inaturalist(tmp_path).find("Aves", "class").classes == (*BIRDS, "Apteryx")


def test_2017_has_supercategories(tmp_path):
    catalog = read_inaturalist(write_inaturalist(tmp_path, 2017))
    assert show(catalog.definitions) == [
        ("Aves", "", (*BIRDS, "Apteryx owenii"), {"train": 12, "val": 6}),
        ("Fungi", "", FUNGI, {"train": 3, "val": 2}),
    ]
    assert (catalog.kinds, catalog.warnings) == (("supercategory",), ())


def test_one_training_set_is_read(tmp_path, root):
    with pytest.raises(DataError, match=r"has no train2017\.json or train2018\.json"):
        read_inaturalist(tmp_path)
    write_inaturalist(tmp_path, 2021)
    with pytest.raises(DataError, match=r"has no train_mini\.json"):
        read_inaturalist(tmp_path, mini=True)
    write_inaturalist(tmp_path, 2021, mini=True)
    assert [read_inaturalist(tmp_path, mini=mini).name[15:] for mini in (False, True)] == ["", " mini"]
    copy(root, tmp_path)
    with pytest.raises(DataError, match=r"has train2018\.json and train\.json.*of one year"):
        read_inaturalist(tmp_path)
    for place in ("train.json", "val.json", "val2018.json"):
        (tmp_path / place).unlink()
    (tmp_path / "train_mini.json").unlink()
    with pytest.raises(DataError, match=r"val2018\.json: it cannot be read as JSON"):
        read_inaturalist(tmp_path)


def repeat(key, number):
    return lambda content: content[key].append(dict(content[key][number]))


def exchange(first, second):
    """Two categories under each other's id."""

    def change(content):
        listed = content if isinstance(content, list) else content["categories"]
        one, other = (next(c for c in listed if c["id"] == number) for number in (first, second))
        one["id"], other["id"] = second, first

    return change


@pytest.mark.parametrize(
    ("file", "damage", "complaint"),
    [
        ("train2018.json", repeat("images", 2), r"images, record 17: the id 4926 is also that of .*record 2"),
        ("val2018.json", change("annotations", 3, image_id=6), r"annotations, record 3: the image id 6 has no entry"),
        ("val2018.json", change("annotations", 4, category_id=4), r"record 4: the category id 4 has no entry"),
        ("train2018.json", lambda c: c["images"][1].pop("id"), r"images, record 1: it has no 'id'"),
        ("train2018.json", lambda c: c["images"][1].pop("file_name"), r"images, record 1: None is not a path"),
        ("train2018.json", change("images", 8, file_name="a/../../b"), r"record 8: .*is not a path below"),
        ("train2018.json", change("images", 8, file_name="C:\\a.jpg"), r"record 8: .*is not a path below"),
        ("train2018.json", change("images", 8, file_name="a\0b"), r"record 8: .*is not a path below"),
        ("categories.json", exchange(3, 41), r"the id 3 has 'Fungi' as its supercategory, .*train2018\.json 'Aves'"),
        ("categories.json", lambda c: c.pop(), r"its categories are not those of .*train2018\.json"),
    ],
)
def test_broken_annotations_are_refused_by_record(tmp_path, root, file, damage, complaint):
    edit(copy(root, tmp_path) / file, damage)
    with pytest.raises(DataError, match=complaint) as caught:
        read_inaturalist(tmp_path)
    assert file in str(caught.value)


def test_a_category_of_which_two_files_tell_other_things_is_refused(tmp_path):
    write_inaturalist(tmp_path, 2021)
    for field, wrong in (("order", "Other"), ("name", None)):
        edit(tmp_path / "val.json", change("categories", 2, **{field: wrong}))
        words = rf"val\.json, categories: the id 57 has '{wrong or ''}' as its {field}, and in .*train\.json '"
        with pytest.raises(DataError, match=words):
            read_inaturalist(tmp_path)


def test_where_nothing_is_hidden_the_names_must_be_the_same(tmp_path):
    names = write_inaturalist(tmp_path) / "categories.json"
    text = names.read_text(encoding="utf-8")
    write_inaturalist(tmp_path, obfuscated=False)
    for damage in (exchange(3, 41), lambda content: [one.update(name=f"X {one['id']}") for one in content]):
        names.write_text(text, encoding="utf-8")
        edit(names, damage)
        with pytest.raises(DataError, match=r"the id 3 has '.*' as its name, and in .* 'Corvus corax'"):
            read_inaturalist(tmp_path)
    # What only one file tells is no contradiction.
    names.write_text(text, encoding="utf-8")
    edit(names, lambda content: [one.pop("supercategory") for one in content])
    assert read_inaturalist(tmp_path).find("Agaricales").classes == FUNGI


def test_species_of_one_name_and_files_of_two_splits(tmp_path, root):
    copy(root, tmp_path)
    ravens = {"name": "Corvus corax"}
    edit(tmp_path / "categories.json", lambda content: [c.update(ravens) for c in content if c["id"] == 11])
    catalog = read_inaturalist(tmp_path)
    assert catalog.find("Corvidae").classes == ("Corvus corax (3)", "Corvus corax (11)")
    edit(tmp_path / "val2018.json", change("images", 5, file_name=catalog.paths[2]))
    with pytest.raises(DataError, match=r"train2018\.json.*val2018\.json: it has the path .* 2 times"):
        read_inaturalist(tmp_path)
