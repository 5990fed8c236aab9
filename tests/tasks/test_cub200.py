"""CUB-200-2011 in its published layout: labels, splits, orders and families, and lists that do not fit together."""

import csv
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from task2vec.errors import DataError, UsageError
from task2vec.tasks import read_cub200
from tests.tasks.birds import CLASSES, make_cub, write_lines

SHARED = Path(__file__).parents[3] / "shared" / "data"
NO_DATA = "the shared real datasets are not on this machine"


def paper_tasks(catalog):
    """The orders but Passeriformes, and the families of that: 25 by the paper's taxonomy, 24 by ours."""
    orders = [one for one in catalog.of_kind("order") if one.name != "Passeriformes"]
    return orders + [one for one in catalog.of_kind("family") if one.group == "Passeriformes"]


def test_every_image_has_its_class_and_split(tmp_path):
    told = make_cub(tmp_path)
    catalog = read_cub200(tmp_path)
    table, splits = catalog.tables["labels"], catalog.splits
    kinds = [(table.names[kind], splits.names[code]) for kind, code in zip(table.values, splits.codes, strict=True)]
    assert dict(zip(catalog.paths, kinds, strict=True)) == told
    assert catalog.splits.names == ("train", "test")
    assert [Path(source).name for source in catalog.sources][:2] == ["images.txt", "image_class_labels.txt"]


def test_tasks_by_order_and_family(tmp_path):
    make_cub(tmp_path)
    catalog = read_cub200(tmp_path)
    assert repr(catalog) == "Catalog(cub200, 24 images, train and test, tasks: 2 order, 2 family)"
    passerines, cuckoos = catalog.of_kind("order")
    assert (passerines.name, passerines.counts, passerines.group) == ("Passeriformes", {"train": 8, "test": 4}, "Aves")
    assert set(cuckoos.classes) == {name for name in CLASSES.values() if "Cuckoo" in name or "Ani" in name}
    assert catalog.find("Corvidae").group == "Passeriformes"
    # One duck and one sparrow of either family: nothing to tell apart.
    assert {one.name for one in catalog.of_kind("family")} == {"Corvidae", "Cuculidae"}
    assert [one.name for one in paper_tasks(catalog)] == ["Cuculiformes", "Corvidae"]


def test_the_readings_of_the_paper(tmp_path):
    make_cub(tmp_path)
    catalog = read_cub200(tmp_path, taxonomy="paper")
    assert (catalog.name, read_cub200(tmp_path).name) == ("cub200-paper", "cub200")
    by_name = {one.name: one for one in paper_tasks(catalog)}
    assert sorted(by_name) == ["Corvidae", "Cuculiformes", "Passeridae"]
    assert set(by_name["Passeridae"].classes) == {"130.Tree_Sparrow", "118.House_Sparrow"}
    assert "004.Groove_billed_Ani" not in by_name["Cuculiformes"].classes
    with pytest.raises(UsageError, match="there is no taxonomy='modern'"):
        read_cub200(tmp_path, taxonomy="modern")


def test_a_task_has_the_pixels_that_belong_to_its_labels(tmp_path):
    told = make_cub(tmp_path)
    task = read_cub200(tmp_path).task("Cuculiformes", split="train")
    numbers = {name: number for number, name in CLASSES.items()}
    assert len(task) == 6
    for index, label in enumerate(task.targets):
        name = task.classes[label]
        assert told[task.images.name(index)] == (name, "train")
        red, green, _ = task.images.load(index).getpixel((0, 0))
        assert red == numbers[name] and green > 0


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("image_class_labels", "12 31", "12 32", r"images\.txt, line 2: .*not in the folder of its class '032\.Mang"),
        ("image_class_labels", "12 31", "12 33", r"image_class_labels\.txt, line 2: '33' is not one of"),
        ("image_class_labels", "12 31\n", "", r"image_class_labels\.txt: image 12 is not both here"),
        ("train_test_split", "34 1", "34 2", r"train_test_split\.txt, line 1: '2' is not one of '1', '0'"),
        ("train_test_split", "34 1", "35 1", r"train_test_split\.txt: image 34 is not both here"),
        ("images", "12 031", "11 031", r"images\.txt, line 2: .* occurs twice"),
        ("images", "Black_billed_Cuckoo/", "Black_billed_Cuckoo/../../", r"images\.txt, line 2: .*is not a path below"),
        ("classes", "31 031.Black_billed_Cuckoo", "31 031.Dodo", r"classes\.txt, line 2: '031\.Dodo' is no class of"),
    ],
)
def test_lists_that_do_not_fit_are_refused_where_they_are_wrong(tmp_path, name, old, new, words):
    make_cub(tmp_path)
    place = tmp_path / f"{name}.txt"
    text = place.read_text()
    assert old in text
    place.write_text(text.replace(old, new, 1))
    with pytest.raises(DataError, match=words):
        read_cub200(tmp_path)


def test_folders_that_are_not_cub(tmp_path):
    with pytest.raises(DataError, match=r"has no images\.txt, so it is not CUB-200-2011"):
        read_cub200(tmp_path)
    make_cub(tmp_path)
    (tmp_path / "classes.txt").unlink()
    with pytest.raises(DataError, match=r"classes\.txt: it cannot be read"):
        read_cub200(tmp_path)


def read_shipped():
    with files("task2vec.tasks").joinpath("cub200_taxonomy.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("suffix", "passerines", "families", "usable"), [("", 133, 21, 14), ("_paper", 134, 22, 15)], ids=["own", "paper"]
)
def test_the_shipped_table_has_the_counts_that_we_tell(suffix, passerines, families, usable):
    rows = read_shipped()
    assert len({row["class_dir"] for row in rows}) == 200
    assert [int(row["class_dir"][:3]) for row in rows] == list(range(1, 201))
    orders = Counter(row[f"order{suffix}"] for row in rows)
    assert orders["Passeriformes"] == passerines
    others = [count for order, count in orders.items() if order != "Passeriformes" and count > 1]
    assert (len(others), min(others), max(others)) == (10, 3, 24)
    inside = Counter(row[f"family{suffix}"] for row in rows if row[f"order{suffix}"] == "Passeriformes")
    assert (len(inside), sum(count > 1 for count in inside.values())) == (families, usable)
    assert orders["Gaviiformes"] == 1


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The lists of the real images that we keep, in CUB's own layout, with the splits of the source."""
    if not SHARED.is_dir():
        pytest.skip(NO_DATA)
    root = tmp_path_factory.mktemp("cub")
    with (SHARED / "cub200" / "manifest.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = sorted({row["class"] for row in rows})
    numbers = {name: number for number, name in enumerate(names, start=1)}
    paths = [row["source_path"].split("/", 1) for row in rows]
    write_lines(root / "classes.txt", [f"{number} {name}" for name, number in numbers.items()])
    write_lines(root / "images.txt", [f"{n} {path}" for n, (_, path) in enumerate(paths, 1)])
    write_lines(root / "image_class_labels.txt", [f"{n} {numbers[row['class']]}" for n, row in enumerate(rows, 1)])
    write_lines(root / "train_test_split.txt", [f"{n} {int(part == 'train')}" for n, (part, _) in enumerate(paths, 1)])
    return root


@pytest.mark.parametrize(
    ("taxonomy", "table", "orders", "families"),
    [("traditional", "tasks.csv", 10, 14), ("paper", "cub200/paper_tasks.csv", 10, 15)],
)
def test_real_birds_give_the_orders_and_families_that_we_know(real, taxonomy, table, orders, families):
    with (SHARED / table).open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row.get("dataset", "cub200") == "cub200"]
    known = {(row["taxon_level"], row["taxon"]): (int(row["n_classes"]), int(row["n_images"])) for row in rows}
    tasks = paper_tasks(read_cub200(real, taxonomy=taxonomy))
    assert {(one.kind, one.name): (len(one.classes), one.total) for one in tasks} == known
    assert Counter(one.kind for one in tasks) == {"order": orders, "family": families}
