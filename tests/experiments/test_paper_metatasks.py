"""The paper's meta-tasks by its rules, on small catalogues, and each rule broken once."""

import csv
import json
from collections import Counter
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments import paper_metatasks
from experiments.paper_metatasks import MetaTaskDefinition, MixedRules, inat_cub, mixed
from task2vec.errors import DataError
from task2vec.tasks import Catalog, TaskDefinition
from task2vec.tasks.catalog import AttributeTable, ClassTable, Splits, define_attributes, define_by_taxon, define_groups
from task2vec.tasks.taxonomy import Taxonomy
from tests.tasks.birds import write_lines

RULES = MixedRules(
    birds=7,
    cub_orders=2,
    cub_families=3,
    inaturalist_tasks=5,
    inaturalist_validation=4,
    imaterialist_tasks=5,
    imaterialist_validation=3,
    deepfashion_tasks=2,
    order_experts=2,
    class_experts=2,
    expert_samples=10,
    body_experts=("upper-body", "full-body"),
    label_experts=("pants", "shoes"),
    group_experts=("color", "sleeve"),
)
# Class, order, training and validation images of each of its two species.
ORDERS = (
    ("Aves", "Passeriformes", 20, 4),
    ("Aves", "Piciformes", 6, 3),
    ("Aves", "Anseriformes", 5, 2),
    ("Aves", "Gaviiformes", 9, 1),
    ("Insecta", "Lepidoptera", 8, 9),
    ("Insecta", "Odonata", 7, 2),
    ("Mammalia", "Rodentia", 3, 2),
    ("Mammalia", "Carnivora", 2, 1),
)


def make_classes(name, species, split_names, ranks, rank_tasks):
    """A catalogue of (lineage, images by split) for every species."""
    numbers = np.concatenate([np.full(sum(counts), number) for number, (_, counts) in enumerate(species)])
    codes = np.concatenate([np.repeat(np.arange(len(counts)), counts) for _, counts in species]).astype(np.uint8)
    names = tuple(f"species {number}" for number in range(len(species)))
    tree = Taxonomy(ranks, {names[number]: lineage for number, (lineage, _) in enumerate(species)})
    table, splits = ClassTable(numbers, names), Splits(codes, split_names)
    definitions = define_by_taxon(table, tree, splits, ranks=rank_tasks)
    paths = [f"{row}.jpg" for row in range(len(numbers))]
    return Catalog(name, Path("nowhere"), paths, splits, {"labels": table}, definitions, taxonomy=tree)


def make_inaturalist(orders=ORDERS, splits=("train", "val")):
    species = [((kind, order), (train, val)) for kind, order, train, val in orders for _ in range(2)]
    return make_classes("inaturalist", species, splits, ("class", "order"), ("order", "class"))


def make_cub(orders=3, families=4):
    lineages = [(f"order {number}", f"other {number}") for number in range(orders) for _ in range(3)]
    lineages += [("Passeriformes", f"family {number}") for number in range(families) for _ in range(2)]
    species = [(lineage, (3, 2)) for lineage in lineages]
    return make_classes("cub200", species, ("train", "test"), ("order", "family"), ("order", "family"))


LABELS = (
    *((f"{colour}", "color") for colour in ("red", "blue", "green", "grey")),
    *((f"sleeve {number}", "sleeve") for number in range(3)),
    *((name, "category") for name in ("Pants", "Shoes", "Hats")),
)


def make_imaterialist(labels=LABELS, positives=4):
    """Of 20 validation images `positives` have each label but the last of every group, which 2 have."""
    names, groups = (tuple(part) for part in zip(*labels, strict=True))
    values = np.zeros((40, len(names)), np.int8)
    codes = np.repeat([0, 1], 20).astype(np.uint8)
    for column, name in enumerate(names):
        count = 2 if name in ("grey", "sleeve 2", "Hats") else positives
        values[20 : 20 + count, column] = 1
        values[:10, column] = 1
    table, splits = AttributeTable(values, names, groups=groups), Splits(codes, ("train", "validation"))
    definitions = define_attributes(table, splits) + define_groups(table, splits)
    return Catalog("imaterialist", Path("x"), [str(n) for n in range(40)], splits, {"labels": table}, definitions)


def make_deepfashion(bodies=("upper-body", "lower-body", "full-body"), usable=4):
    values = np.zeros((10, 6), np.int8)
    values[:5, :usable] = 1  # the others have no positive image
    splits = Splits(np.repeat([0, 1], [8, 2]).astype(np.uint8), ("train", "val", "test"))
    table = AttributeTable(values, tuple(f"attribute {number}" for number in range(6)), ("",) * 6)
    kinds = ClassTable(np.arange(10) % 6, tuple("abcdef"))
    categories = tuple(
        TaskDefinition(body, "category", ("a", "b"), {"train": 4, "val": 1, "test": 0}, (2 * n, 2 * n + 1), "kinds")
        for n, body in enumerate(bodies)
    )
    definitions = define_attributes(table, splits) + categories
    tables = {"labels": table, "kinds": kinds}
    return Catalog("deepfashion", Path("x"), [str(n) for n in range(10)], splits, tables, definitions)


def test_inat_cub_takes_the_largest_orders_and_the_birds():
    meta = inat_cub(make_inaturalist(), make_cub(), orders=4, birds=7)
    names = [one.name for _, one in meta.tasks]
    assert names[:4] == ["Passeriformes", "Gaviiformes", "Lepidoptera", "Odonata"]
    assert sorted(names[4:]) == sorted([f"order {n}" for n in range(3)] + [f"family {n}" for n in range(4)])
    assert [catalogue for catalogue, _ in meta.tasks] == ["inaturalist"] * 4 + ["cub200"] * 7
    assert meta.experts == meta.tasks
    assert meta.left_out == {(number, number) for number in range(11)}


def test_inat_cub_is_refused_where_it_cannot_be_filled():
    with pytest.raises(DataError, match="asks for 25, and there are 8"):
        inat_cub(make_inaturalist(), make_cub(), birds=7)
    with pytest.raises(DataError, match=r"there are 7 orders and Passeriformes families.*takes 25.*taxonomy='paper'"):
        inat_cub(make_inaturalist(), make_cub(), orders=4)


def test_birds_of_another_taxonomy_are_refused_by_both():
    words = r"cub200: there are 8 orders and Passeriformes families.*takes 7\. Read it with taxonomy='paper'.*or pass "
    other = make_cub(orders=4)
    with pytest.raises(DataError, match=words + r"birds=8\."):
        inat_cub(make_inaturalist(), other, orders=4, birds=7)
    with pytest.raises(DataError, match=words + r"rules=MixedRules\(birds=8\)\."):
        make_mixed(cub=other)
    assert len(make_mixed(cub=other, rules=replace(RULES, birds=8)).tasks) == len(make_mixed().tasks)
    assert MixedRules().birds == 25


def make_mixed(seed=0, rules=RULES, **others):
    parts = {"inaturalist": make_inaturalist, "cub": make_cub, "imaterialist": make_imaterialist}
    parts |= {"deepfashion": make_deepfashion}
    return mixed(**{name: others.get(name) or make() for name, make in parts.items()}, seed=seed, rules=rules)


@pytest.mark.parametrize("seed", range(8))
def test_mixed_keeps_the_rules_whatever_the_seed(seed):
    meta = make_mixed(seed)
    by_catalogue = {name: [one for other, one in meta.tasks if other == name] for name, _ in meta.tasks}
    assert {name: len(some) for name, some in by_catalogue.items()} == {
        "cub200": 5,
        "inaturalist": 5,
        "imaterialist": 5,
        "deepfashion": 2,
    }
    assert Counter(one.name.split()[0] for one in by_catalogue["cub200"]) == {"order": 2, "family": 3}
    # Two orders have too few validation images. Every class is there, and none a third time before the others' second.
    orders = by_catalogue["inaturalist"]
    assert {one.name for one in orders} <= {order for _, order, _, val in ORDERS if 2 * val >= 4}
    assert len({one.group for one in orders[:3]}) == 3
    assert max(Counter(one.group for one in orders).values()) == 2
    labels = by_catalogue["imaterialist"]
    assert not {one.name for one in labels} & {"grey", "sleeve 2", "Hats"}
    assert sorted(Counter(one.group for one in labels).values()) == [1, 2, 2]
    assert {one.name for one in by_catalogue["deepfashion"]} <= {f"attribute {number}" for number in range(4)}


def test_mixed_has_its_experts():
    meta = make_mixed()
    assert [(catalogue, one.name, one.kind) for catalogue, one in meta.experts] == [
        ("inaturalist", "Passeriformes", "order"),
        ("inaturalist", "Gaviiformes", "order"),
        ("inaturalist", "Aves", "class"),
        ("inaturalist", "Insecta", "class"),
        ("deepfashion", "upper-body", "category"),
        ("deepfashion", "full-body", "category"),
        ("imaterialist", "Pants", "attribute"),
        ("imaterialist", "Shoes", "attribute"),
        ("imaterialist", "color", "attribute group"),
        ("imaterialist", "sleeve", "attribute group"),
    ]
    assert [one.is_multilabel for _, one in meta.experts] == [False] * 8 + [True] * 2
    for row, column in meta.left_out:
        assert meta.tasks[row][0] == meta.experts[column][0]
    for row, (catalogue, task) in enumerate(meta.tasks):
        if catalogue == "imaterialist" and task.group in ("color", "sleeve"):
            assert (row, 8 + ["color", "sleeve"].index(task.group)) in meta.left_out
        assert catalogue not in ("cub200", "deepfashion") or not any(pair[0] == row for pair in meta.left_out)


def test_a_seed_is_a_choice_and_the_order_of_a_catalogue_is_none():
    first = make_mixed(3)
    assert make_mixed(3) == first
    other = make_mixed(4)
    assert other.tasks != first.tasks and other.experts == first.experts
    turned = {}
    for name, make in (("inaturalist", make_inaturalist), ("deepfashion", make_deepfashion), ("cub", make_cub)):
        catalogue = make()
        turned[name] = replace(catalogue, definitions=catalogue.definitions[::-1])
    assert make_mixed(3, **turned) == first


def test_every_task_can_be_picked():
    names = {one.name for seed in range(40) for _, one in make_mixed(seed).tasks}
    assert {"Passeriformes", "Piciformes", "Anseriformes", "Lepidoptera", "Odonata", "Rodentia"} <= names
    assert {"order 0", "order 1", "order 2", "family 3", "attribute 3", "red", "blue", "green", "Shoes"} <= names


def test_the_defaults_are_the_paper_s():
    rules = MixedRules()
    tasks = rules.cub_orders + rules.cub_families + rules.inaturalist_tasks
    assert tasks + rules.imaterialist_tasks + rules.deepfashion_tasks == 40
    named = len(rules.body_experts) + len(rules.label_experts) + len(rules.group_experts)
    assert rules.order_experts + rules.class_experts + named == 25
    assert (rules.inaturalist_validation, rules.imaterialist_validation, rules.expert_samples) == (100, 1000, 10000)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cub_orders": 4}, "cub200: orders but Passeriformes.*asks for 4, and there are 3"),
        ({"cub_families": 5}, "families of Passeriformes.*asks for 5, and there are 4"),
        ({"inaturalist_tasks": 7}, "orders with at least 4 validation images: the rule asks for 7, and there are 6"),
        ({"inaturalist_validation": 9}, "orders with at least 9 validation images: .*asks for 5, and there are 1"),
        ({"imaterialist_tasks": 8}, "at least 3 validation images have: the rule asks for 8, and there are 7"),
        ({"imaterialist_validation": 5}, "at least 5 validation images have: .*there are 0"),
        ({"deepfashion_tasks": 5}, "some training images have and some have not: .*asks for 5, and there are 4"),
        ({"order_experts": 7}, "tasks by order with more than 10 training images, for experts: .*asks for 7.*are 5"),
        ({"class_experts": 3}, "tasks by class with more than 10 training images, for experts: .*asks for 3.*are 2"),
        ({"expert_samples": 30}, "tasks by order with more than 30 training images.*asks for 2, and there are 1"),
        ({"body_experts": ("head",)}, "deepfashion has no category called 'head'.*'upper-body', 'lower-body'"),
        ({"label_experts": ("socks",)}, "no attribute of the group 'category' called 'socks'.*'Pants'"),
        ({"label_experts": ("red",)}, "no attribute of the group 'category' called 'red'"),
        ({"group_experts": ("style",)}, "no attribute group called 'style'.*'color', 'sleeve', 'category'"),
    ],
)
def test_a_rule_that_cannot_be_filled_is_named(change, words):
    with pytest.raises(DataError, match=words):
        make_mixed(rules=replace(RULES, **change))


def test_labels_without_groups_and_sets_without_validation_are_refused():
    bare = make_imaterialist([(name, "") for name, _ in LABELS] + [("x", "y")])
    with pytest.raises(DataError, match=r"labels of a known group .*asks for 5, and there are 1"):
        make_mixed(imaterialist=bare)
    with pytest.raises(DataError, match=r"inaturalist has no validation split, only 'train', 'mini'"):
        make_mixed(inaturalist=make_inaturalist(splits=("train", "mini")))


def test_experts_that_know_the_labels_are_left_out():
    def define(name, members, *, kind="order", table="labels"):
        return TaskDefinition(name, kind, tuple(map(str, members)), {"train": 9}, members, table)

    wasps, bees, red = define("wasps", (0, 1)), define("bees", (2, 3)), define("red", (1,), kind="attribute")
    insects, colours = define("insects", (0, 1, 2, 3, 4), kind="class"), define("colours", (0, 1, 2))
    shirts = define("upper-body", (0, 1), table="categories")  # the same images and numbers, but other labels
    tasks = (("inat", wasps), ("inat", bees), ("cub", bees), ("clothes", red))
    experts = (("inat", wasps), ("inat", insects), ("clothes", colours), ("clothes", shirts), ("cub", wasps))
    assert MetaTaskDefinition("test", tasks, experts).left_out == {(0, 0), (0, 1), (1, 1), (3, 2)}


def make_large(root):
    """CUB's 200 classes and 30 orders of iNaturalist, as lists alone: nothing is opened to list a meta-task."""
    with files("task2vec.tasks").joinpath("cub200_taxonomy.csv").open(encoding="utf-8") as file:
        names = [row["class_dir"] for row in csv.DictReader(file)]
    (root / "cub").mkdir()
    write_lines(root / "cub" / "classes.txt", [f"{n} {name}" for n, name in enumerate(names, 1)])
    write_lines(root / "cub" / "images.txt", [f"{n} {name}/1.jpg" for n, name in enumerate(names, 1)])
    write_lines(root / "cub" / "image_class_labels.txt", [f"{n} {n}" for n in range(1, 201)])
    write_lines(root / "cub" / "train_test_split.txt", [f"{n} 1" for n in range(1, 201)])
    (root / "inat").mkdir()
    species = [
        {"id": n, "name": f"genus {n}", "class": f"class {n // 6}", "order": f"order{n // 2}"} for n in range(60)
    ]
    for split in ("train", "val"):
        ids = [n for n in range(60) for _ in range(1 + n // 2)]
        content = {
            "images": [{"id": n, "file_name": f"{split}/{n}.jpg"} for n in range(len(ids))],
            "annotations": [{"id": n, "image_id": n, "category_id": number} for n, number in enumerate(ids)],
            "categories": species,
        }
        (root / "inat" / f"{split}.json").write_text(json.dumps(content))
    return root


def list_json(*args):
    result = CliRunner().invoke(paper_metatasks.app, [*map(str, args), "--json"])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_the_command_lists_inat_cub(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_large(tmp_path)
    options = ["inat+cub", "--inaturalist", str(tmp_path / "inat"), "--cub200", str(tmp_path / "cub")]
    report = list_json(*options)
    assert [row["dataset"] for row in report["tasks"]] == ["inaturalist2021"] * 25 + ["cub200-paper"] * 25
    assert report["tasks"] == report["experts"] and report["left_out"] == [[n, n] for n in range(50)]
    assert {row["name"] for row in report["tasks"][:25]} == {f"order{n}" for n in range(5, 30)}
    assert "Passeridae" in {row["name"] for row in report["tasks"]}
    result = CliRunner().invoke(paper_metatasks.app, options)
    assert "inat+cub: 50 experts and the generic one" in result.stdout
    assert result.stdout.count("Charadriiformes (order): 24 classes, 24 images") == 2
    result = CliRunner().invoke(paper_metatasks.app, ["mixed", *options[1:]])
    assert result.exit_code == 2 and "lacks --imaterialist DIR --deepfashion DIR" in result.stderr
