"""CUB-200-2011 in its published layout: labels, splits, orders and families, and lists that do not fit together."""

import csv
import shutil
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from task2vec.errors import DataError, UsageError
from task2vec.tasks.published import read_cub200
from tests.tasks.birds import CLASSES, make_cub, write_lines

SHARED = Path(__file__).parents[3] / "shared" / "data"


def paper_tasks(catalog):
    """The orders but Passeriformes, and the families of that: 25 by the paper's taxonomy, 24 by ours."""
    orders = [one for one in catalog.of_kind("order") if one.name != "Passeriformes"]
    return orders + [one for one in catalog.of_kind("family") if one.group == "Passeriformes"]


@pytest.fixture(scope="module")
def cub(tmp_path_factory):
    """The folder, what was written into it, and its catalog."""
    root = tmp_path_factory.mktemp("cub")
    return root, make_cub(root), read_cub200(root)


def test_every_image_has_its_class_split_and_pixels(cub):
    _, told, catalog = cub
    table, numbers = catalog.tables["labels"], {name: number for number, name in CLASSES.items()}
    split_of = {row: split for split, rows in catalog.splits.items() for row in rows}
    kinds = [(table.names[kind], split_of[row]) for row, kind in enumerate(table.values)]
    assert dict(zip(catalog.paths, kinds, strict=True)) == told
    assert [Path(source).name for source in catalog.sources][:2] == ["images.txt", "image_class_labels.txt"]
    task = catalog.task("Cuculiformes", split="train")
    assert len(task) == 6
    for index, label in enumerate(task.targets):
        assert told[task.images.name(index)] == (task.classes[label], "train")
        red, green, _ = task.images.load(index).getpixel((0, 0))
        assert red == numbers[task.classes[label]] and green > 0


def test_tasks_by_order_and_family(cub):
    catalog = cub[2]
    assert repr(catalog) == "Catalog(cub200, 24 images, train and test, tasks: 2 order, 2 family)"
    passerines, cuckoos = catalog.of_kind("order")
    assert (passerines.name, passerines.counts, passerines.group) == ("Passeriformes", {"train": 8, "test": 4}, "Aves")
    assert set(cuckoos.classes) == {name for name in CLASSES.values() if "Cuckoo" in name or "Ani" in name}
    # One duck and one sparrow of either family: nothing to tell apart.
    assert {one.name for one in catalog.of_kind("family")} == {"Corvidae", "Cuculidae"}
    assert [one.name for one in paper_tasks(catalog)] == ["Cuculiformes", "Corvidae"]


def test_the_readings_of_the_paper(cub):
    paper = read_cub200(cub[0], taxonomy="paper")
    assert (paper.name, cub[2].name) == ("cub200-paper", "cub200")
    by_name = {one.name: one for one in paper_tasks(paper)}
    assert sorted(by_name) == ["Corvidae", "Cuculiformes", "Passeridae"]
    assert set(by_name["Passeridae"].classes) == {"130.Tree_Sparrow", "118.House_Sparrow"}
    assert "004.Groove_billed_Ani" not in by_name["Cuculiformes"].classes
    with pytest.raises(UsageError, match="there is no taxonomy='modern'"):
        read_cub200(cub[0], taxonomy="modern")


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("image_class_labels", "12 31", "12 32", r"images\.txt, line 2: .*not in the folder of its class '032\.Mang"),
        ("image_class_labels", "12 31", "12 33", r"image_class_labels\.txt, line 2: '33' is not one of"),
        ("image_class_labels", "12 31\n", "", r"image_class_labels\.txt: image '12' is not both here"),
        ("train_test_split", "34 1", "34 2", r"train_test_split\.txt, line 1: '2' is not one of '0', '1'"),
        ("images", "12 031", "11 031", r"images\.txt, line 2: .* occurs twice"),
        ("images", "Black_billed_Cuckoo/", "Black_billed_Cuckoo/../../", r"images\.txt, line 2: .*is not a path below"),
        ("classes", "31 031.Black_billed_Cuckoo", "31 031.Dodo", r"classes\.txt, line 2: '031\.Dodo' is no class of"),
        ("classes", None, None, r"classes\.txt: it cannot be read"),
        ("images", None, None, r"has no images\.txt .*so it is not CUB-200-2011"),
    ],
)
def test_lists_that_do_not_fit_are_refused_where_they_are_wrong(tmp_path, cub, name, old, new, words):
    for place in cub[0].glob("*.txt"):
        shutil.copy(place, tmp_path)
    place = tmp_path / f"{name}.txt"
    if old is None:
        place.unlink()
    else:
        assert old in place.read_text()
        place.write_text(place.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=words):
        read_cub200(tmp_path)


@pytest.mark.parametrize(
    ("suffix", "passerines", "families", "usable"), [("", 133, 21, 14), ("_paper", 134, 22, 15)], ids=["own", "paper"]
)
def test_the_shipped_table_has_the_counts_that_we_tell(suffix, passerines, families, usable):
    with files("task2vec.tasks").joinpath("cub200_taxonomy.csv").open(encoding="utf-8") as file:
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
    lists = {
        "classes": [f"{number} {name}" for name, number in numbers.items()],
        "images": [f"{n} {path}" for n, (_, path) in enumerate(paths, 1)],
        "image_class_labels": [f"{n} {numbers[row['class']]}" for n, row in enumerate(rows, 1)],
        "train_test_split": [f"{n} {int(part == 'train')}" for n, (part, _) in enumerate(paths, 1)],
    }
    for name, lines in lists.items():
        write_lines(tmp_path / f"{name}.txt", lines)
    for taxonomy, table, families in (("traditional", "tasks.csv", 14), ("paper", "cub200/paper_tasks.csv", 15)):
        with (SHARED / table).open(encoding="utf-8") as file:
            known_rows = [row for row in csv.DictReader(file) if row.get("dataset", "cub200") == "cub200"]
        known = {
            (row["taxon_level"], row["taxon"]): (int(row["n_classes"]), int(row["n_images"])) for row in known_rows
        }
        tasks = paper_tasks(read_cub200(tmp_path, taxonomy=taxonomy))
        assert {(one.kind, one.name): (len(one.classes), sum(one.counts.values())) for one in tasks} == known
        assert Counter(one.kind for one in tasks) == {"order": 10, "family": families}
