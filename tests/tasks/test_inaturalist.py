"""iNaturalist as published becomes a catalog of orders, classes and families."""

import pytest

from task2vec.errors import DataError, UsageError
from task2vec.tasks.inaturalist import read_inaturalist
from tests.tasks.published import SPECIES, categories, edit, species_of, split_of, write_inaturalist


def show(definitions):
    return [(one.name, one.group, one.classes, dict(one.counts)) for one in definitions]


BIRDS = ("Corvus corax", "Corvus corone", "Turdus merula")
FUNGI = ("Amanita muscaria", "Clitocybe × éburnea")


@pytest.mark.parametrize(("year", "mini"), [(2018, False), (2021, True)])
def test_tasks_are_taxa_with_two_species_that_have_images(tmp_path, year, mini):
    catalog = read_inaturalist(write_inaturalist(tmp_path, year, mini=mini), mini=mini)
    name = f"inaturalist{year}{' mini' if mini else ''}"
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


def test_pixels_confirm_labels_and_splits(tmp_path):
    catalog = read_inaturalist(write_inaturalist(tmp_path))
    for definition in catalog.definitions:
        for split in ("train", "val", None):
            task = catalog.task(definition, split=split)
            pictures = [task.images.load(row) for row in range(len(task))]
            assert [task.classes[label] for label in task.targets] == [species_of(picture) for picture in pictures]
            assert {split_of(picture) for picture in pictures} == ({split} if split else {"train", "val"})
            assert len(task) == (definition.counts[split] if split else definition.total)
            assert task.name == f"inaturalist2018: {definition.name}{f' ({split})' if split else ''}"
            assert task.bad == ()


def test_hidden_names_need_the_published_list(tmp_path):
    write_inaturalist(tmp_path, with_names=False)
    with pytest.raises(DataError, match=r"hides the names.*'3'.*Unpack categories\.json.*inat_comp"):
        read_inaturalist(tmp_path)
    # Those who followed the organisers put the names into the files themselves.
    for file in ("train2018.json", "val2018.json"):
        edit(tmp_path / file, lambda content: content.update(categories=categories()))
        edit(tmp_path / file, lambda content: content["categories"][0].update(name="Apteryx"))  # a genus, no species
    catalog = read_inaturalist(tmp_path)
    assert catalog.find("Agaricales").classes == FUNGI
    assert catalog.find("Aves", "class").classes == (*BIRDS, "Apteryx")


def test_2017_has_supercategories(tmp_path):
    catalog = read_inaturalist(write_inaturalist(tmp_path, 2017))
    assert show(catalog.definitions) == [
        ("Aves", "", (*BIRDS, "Apteryx owenii"), {"train": 12, "val": 6}),
        ("Fungi", "", FUNGI, {"train": 3, "val": 2}),
    ]
    assert catalog.kinds == ("supercategory",)
    assert catalog.warnings == ()


def test_one_training_set_is_read(tmp_path):
    with pytest.raises(DataError, match=r"none of 'train2017\.json', 'train2018\.json'"):
        read_inaturalist(tmp_path)
    write_inaturalist(tmp_path, 2021)
    with pytest.raises(DataError, match=r"none of 'train_mini\.json'"):
        read_inaturalist(tmp_path, mini=True)
    write_inaturalist(tmp_path, 2021, mini=True)
    assert [read_inaturalist(tmp_path, mini=mini).name[15:] for mini in (False, True)] == ["", " mini"]
    write_inaturalist(tmp_path, 2018)
    with pytest.raises(UsageError, match=r"several years.*Give each a folder"):
        read_inaturalist(tmp_path)
    write_inaturalist(tmp_path / "b")
    (tmp_path / "b" / "val2018.json").unlink()
    with pytest.raises(DataError, match=r"val2018\.json: it cannot be read as JSON"):
        read_inaturalist(tmp_path / "b")


def change(key, number, **fields):
    return lambda content: content[key][number].update(fields)


def repeat(key, number):
    return lambda content: content[key].append(dict(content[key][number]))


@pytest.mark.parametrize(
    ("file", "damage", "complaint"),
    [
        ("train2018.json", repeat("images", 2), r"images, record 17: the id 4926 is that of record 2 too"),
        ("train2018.json", repeat("annotations", 2), r"annotations, record 17: the image_id .* of record 2 too"),
        ("train2018.json", lambda c: c["annotations"].pop(), r"images, record 0: the image id 5000 has no entry"),
        ("val2018.json", change("annotations", 3, image_id=6), r"annotations, record 3: the image id 6 has no entry"),
        ("val2018.json", change("annotations", 4, category_id=4), r"record 4: the category id 4 has no entry"),
        ("val2018.json", change("annotations", 4, category_id=True), r"record 4: True as its"),
        ("train2018.json", lambda c: c["images"][1].pop("id"), r"images, record 1: it has no 'id'"),
        ("train2018.json", lambda c: c["images"][1].pop("file_name"), r"images, record 1: None is not a path"),
        ("train2018.json", change("images", 8, file_name="a/../../b"), r"record 8: .*is not a path below"),
        ("train2018.json", change("images", 8, file_name="C:\\a.jpg"), r"record 8: .*is not a path below"),
        ("train2018.json", change("images", 8, file_name="a\0b"), r"record 8: .*is not a path below"),
        ("val2018.json", lambda c: c["categories"].pop(), r"the category id 12 has no entry in categories"),
        ("val2018.json", repeat("categories", 1), r"categories, record 8: the id 41 is that of record 1 too"),
    ],
)
def test_broken_annotations_are_refused_by_record(tmp_path, file, damage, complaint):
    write_inaturalist(tmp_path)
    edit(tmp_path / file, damage)
    with pytest.raises(DataError, match=complaint) as caught:
        read_inaturalist(tmp_path)
    assert file in str(caught.value)


def exchange(first, second):
    """Two categories under each other's id."""

    def change(content):
        listed = content if isinstance(content, list) else content["categories"]
        one, other = (next(c for c in listed if c["id"] == number) for number in (first, second))
        one["id"], other["id"] = second, first

    return change


@pytest.mark.parametrize("field", ["name", "supercategory", "order"])
def test_a_category_of_which_two_files_tell_other_things_is_refused(tmp_path, field):
    write_inaturalist(tmp_path, 2021)
    edit(tmp_path / "val.json", lambda content: content["categories"][2].update({field: "Other"}))
    words = rf"val\.json, categories: the id 57 has 'Other' as its {field}, and in .*train\.json '"
    with pytest.raises(DataError, match=words):
        read_inaturalist(tmp_path)
    edit(tmp_path / "val.json", lambda content: content["categories"][2].pop(field))
    with pytest.raises(DataError, match=r"it has no name" if field == "name" else rf"has '' as its {field}"):
        read_inaturalist(tmp_path)


def test_names_are_compared_with_all_that_is_not_hidden(tmp_path):
    write_inaturalist(tmp_path / "a")
    edit(tmp_path / "a" / "categories.json", exchange(3, 41))
    words = r"categories\.json, categories: the id 3 has 'Fungi' as its supercategory, and in .*train2018\.json 'Aves'"
    with pytest.raises(DataError, match=words):
        read_inaturalist(tmp_path / "a")
    # Where nothing is hidden, the names must be the same ones; what only one file tells is no contradiction.
    write_inaturalist(tmp_path / "b", obfuscated=False)
    (tmp_path / "b" / "categories.json").write_text((tmp_path / "a" / "categories.json").read_text())
    with pytest.raises(DataError, match=r"the id 3 has 'Amanita muscaria' as its name, and in .* 'Corvus corax'"):
        read_inaturalist(tmp_path / "b")
    edit(tmp_path / "b" / "categories.json", exchange(3, 41))
    edit(tmp_path / "b" / "categories.json", lambda content: [one.pop("supercategory") for one in content])
    assert read_inaturalist(tmp_path / "b").find("Agaricales").classes == FUNGI
    # Names of other birds altogether are not hidden ones.
    edit(tmp_path / "b" / "categories.json", lambda content: [one.update(name=f"X {one['id']}") for one in content])
    with pytest.raises(DataError, match=r"as its name, and in"):
        read_inaturalist(tmp_path / "b")

    edit(tmp_path / "a" / "categories.json", lambda content: content.pop())
    with pytest.raises(DataError, match=r"categories\.json: its categories are not those of .*train2018\.json"):
        read_inaturalist(tmp_path / "a")


def test_species_of_one_name_are_told_apart(tmp_path):
    write_inaturalist(tmp_path)
    ravens = {"name": "Corvus corax"}
    edit(tmp_path / "categories.json", lambda content: [c.update(ravens) for c in content if c["id"] == 11])
    catalog = read_inaturalist(tmp_path)
    assert catalog.find("Corvidae").classes == ("Corvus corax (3)", "Corvus corax (11)")
    assert catalog.task("Corvidae", split="train").counts.tolist() == [4, 3]


def test_one_file_in_both_splits_is_refused(tmp_path):
    write_inaturalist(tmp_path)
    train = read_inaturalist(tmp_path).paths[2]
    edit(tmp_path / "val2018.json", change("images", 5, file_name=train))
    with pytest.raises(DataError, match=r"train2018\.json.*val2018\.json: it has the path .* 2 times"):
        read_inaturalist(tmp_path)
