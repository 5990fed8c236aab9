"""The paper's meta-tasks by its rules, on small catalogs, and each rule broken once."""

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

import task2vec as t2v
from experiments import paper_metatasks
from experiments.paper_metatasks import MetaTaskDefinition, MixedRules, inat_cub, mixed
from tests.experiments.material import run
from tests.tasks.birds import make_cub as write_cub
from tests.tasks.published import write_inaturalist

RULES = MixedRules(
    **{
        "birds": 7,
        "inaturalist_tasks": 5,
        "inaturalist_validation": 4,
        "imaterialist_tasks": 5,
        "deepfashion_tasks": 2,
    },
    **{"imaterialist_validation": 3, "order_experts": 2, "class_experts": 2, "expert_samples": 10},
    **{"body_experts": ("upper-body", "full-body"), "group_experts": ("color", "sleeve")},
)
# Class, order, training and validation images.
ORDERS = (
    ("Aves", "Passeriformes", 40, 8),
    ("Aves", "Piciformes", 12, 6),
    ("Aves", "Anseriformes", 10, 4),
    ("Aves", "Gaviiformes", 18, 2),
    ("Insecta", "Lepidoptera", 16, 18),
    ("Insecta", "Odonata", 14, 4),
    ("Mammalia", "Rodentia", 6, 4),
    ("Mammalia", "Carnivora", 4, 2),
)
LABELS = {"color": ["red", "blue", "green", "grey"], "sleeve": ["short", "long", "none"]}
LABELS["category"] = ["Pants", "Shoes", "Hats"]


def define(name, kind, members, train=9, val=1, *, positives=0, group="", table="labels"):
    counts, many = {"train": train, "val": val}, {"train": positives, "val": positives}
    classes = tuple(map(str, members))
    return t2v.TaskDefinition(name, kind, classes, counts, tuple(members), table, group, kind.endswith("group"), many)


def make_catalog(name, definitions, splits=("train", "val")):
    """What the rules read of a catalog."""
    found = list(definitions)
    of_kind = {kind: tuple(one for one in found if one.kind == kind) for kind in {one.kind for one in found}}
    return SimpleNamespace(name=name, splits=SimpleNamespace(names=splits), of_kind=lambda kind: of_kind.get(kind, ()))


def make_inaturalist(**options):
    orders = [define(o, "order", (2 * n, 2 * n + 1), t, v, group=c) for n, (c, o, t, v) in enumerate(ORDERS)]
    classes = []
    for kind in ("Aves", "Insecta", "Mammalia"):
        own = [one for one in orders if one.group == kind]
        members = [member for one in own for member in one.members]
        classes.append(define(kind, "class", members, sum(one.counts["train"] for one in own)))
    return make_catalog("inaturalist", orders + classes, **options)


def make_cub(orders=3, families=4):
    found = [define(f"order {n}", "order", (3 * n, 3 * n + 1, 3 * n + 2)) for n in range(orders)]
    found.append(define("Passeriformes", "order", range(50, 60)))
    found += [define(f"family {n}", "family", (50 + 2 * n, 51 + 2 * n), group="Passeriformes") for n in range(families)]
    return make_catalog("cub200", [*found, define("family x", "family", (0, 1), group="order 0")])


def make_imaterialist(*, has_groups=True):
    names = [(label, group) for group, labels in LABELS.items() for label in labels]
    rare = [labels[-1] for labels in LABELS.values()]
    found = [
        define(name, "attribute", [n], group=group if has_groups else "", positives=2 if name in rare else 4)
        for n, (name, group) in enumerate(names)
    ]
    groups = {group: [n for n, (_, other) in enumerate(names) if other == group] for group in LABELS}
    return make_catalog("imaterialist", found + [define(g, "attribute group", m, group=g) for g, m in groups.items()])


def make_deepfashion():
    found = [define(f"attribute {n}", "attribute", [n], positives=5 if n < 4 else 0) for n in range(6)]
    bodies = ("upper-body", "lower-body", "full-body")
    found += [define(body, "category", (2 * n, 2 * n + 1), table="kinds") for n, body in enumerate(bodies)]
    return make_catalog("deepfashion", found)


def make_mixed(seed=0, rules=RULES, **others):
    parts = {"inaturalist": make_inaturalist, "cub": make_cub, "imaterialist": make_imaterialist}
    parts |= {"deepfashion": make_deepfashion}
    return mixed(**{name: others.get(name) or make() for name, make in parts.items()}, seed=seed, rules=rules)


def test_inat_cub_takes_the_largest_orders_and_the_birds():
    meta = inat_cub(make_inaturalist(), make_cub(), orders=4, birds=7)
    names = [one.name for _, one in meta.tasks]
    assert names[:4] == ["Passeriformes", "Gaviiformes", "Lepidoptera", "Odonata"]
    assert names[4:] == [f"order {n}" for n in range(3)] + [f"family {n}" for n in range(4)]
    assert meta.experts == meta.tasks and meta.left_out == {(number, number) for number in range(11)}
    with pytest.raises(t2v.errors.DataError, match="asks for 25, and there are 8"):
        inat_cub(make_inaturalist(), make_cub(), birds=7)
    with pytest.raises(t2v.errors.DataError, match=r"there are 8 orders and Passeriformes families.*taxonomy='paper'"):
        inat_cub(make_inaturalist(), make_cub(orders=4), orders=4, birds=7)


@pytest.mark.parametrize("seed", range(3))
def test_mixed_keeps_the_rules_whatever_the_seed(seed):
    by_catalog = {}
    for catalog, one in make_mixed(seed).tasks:
        by_catalog.setdefault(catalog, []).append(one)
    counts = {"cub200": 5, "inaturalist": 5, "imaterialist": 5, "deepfashion": 2}
    assert {name: len(some) for name, some in by_catalog.items()} == counts
    assert Counter(one.kind for one in by_catalog["cub200"]) == {"order": 2, "family": 3}
    # Two orders have too few validation images. Every class is there, and none a third time before the others' second.
    orders, labels = by_catalog["inaturalist"], by_catalog["imaterialist"]
    assert {one.name for one in orders} <= {order for _, order, _, val in ORDERS if val >= 4}
    assert len({one.group for one in orders[:3]}) == 3 and max(Counter(one.group for one in orders).values()) == 2
    assert not {one.name for one in labels} & {"grey", "none", "Hats"}
    assert sorted(Counter(one.group for one in labels).values()) == [1, 2, 2]
    assert {one.name for one in by_catalog["deepfashion"]} <= {f"attribute {number}" for number in range(4)}


def test_mixed_has_its_experts_and_leaves_out_those_that_know_the_labels():
    meta = make_mixed()
    assert [(catalog, one.name, one.kind) for catalog, one in meta.experts] == [
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
    for row, (catalog, task) in enumerate(meta.tasks):
        if catalog == "imaterialist" and task.group in ("color", "sleeve"):
            assert (row, 8 + ["color", "sleeve"].index(task.group)) in meta.left_out
        assert catalog not in ("cub200", "deepfashion") or not any(pair[0] == row for pair in meta.left_out)
    wasps, insects = define("wasps", "order", (0, 1)), define("insects", "class", range(5))
    shirts = define("upper-body", "category", (0, 1), table="kinds")  # the same numbers, but other labels
    pairs = (("inat", wasps), ("inat", insects), ("inat", shirts), ("cub", wasps))
    assert MetaTaskDefinition("test", (("inat", wasps),), pairs).left_out == {(0, 0), (0, 1)}


def test_a_seed_is_a_choice_and_the_paper_s_numbers_are_the_defaults():
    first, other = make_mixed(3), make_mixed(4)
    assert make_mixed(3) == first and other.tasks != first.tasks and other.experts == first.experts
    rules = MixedRules()
    tasks = rules.cub_orders + rules.cub_families + rules.inaturalist_tasks
    assert tasks + rules.imaterialist_tasks + rules.deepfashion_tasks == 40 and rules.birds == 25
    named = len(rules.body_experts) + len(rules.label_experts) + len(rules.group_experts)
    assert rules.order_experts + rules.class_experts + named == 25
    assert (rules.inaturalist_validation, rules.imaterialist_validation, rules.expert_samples) == (100, 1000, 10000)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cub_orders": 4}, "cub200: orders but Passeriformes.*asks for 4, and there are 3"),
        ({"inaturalist_tasks": 7}, "orders with at least 4 validation images: the rule asks for 7, and there are 6"),
        ({"imaterialist_validation": 5}, "at least 5 validation images have: .*there are 0"),
        ({"deepfashion_tasks": 5}, "some training images have and some have not: .*asks for 5, and there are 4"),
        ({"order_experts": 7}, "tasks by order with more than 10 training images: .*asks for 7.*are 5"),
        ({"body_experts": ("head",)}, "deepfashion has no category called 'head'.*'upper-body', 'lower-body'"),
        ({"label_experts": ("red",)}, "no attribute of the group 'category' called 'red'"),
    ],
)
def test_a_rule_that_cannot_be_filled_is_named(change, words):
    with pytest.raises(t2v.errors.DataError, match=words):
        make_mixed(rules=replace(RULES, **change))


def test_labels_without_groups_and_sets_without_validation_are_refused():
    with pytest.raises(t2v.errors.DataError, match=r"labels of a known group .*asks for 5, and there are 0"):
        make_mixed(imaterialist=make_imaterialist(has_groups=False))
    with pytest.raises(t2v.errors.DataError, match=r"inaturalist has no validation split, only train, mini"):
        make_mixed(inaturalist=make_inaturalist(splits=("train", "mini")))


def test_the_command_reads_the_datasets(tmp_path, monkeypatch):
    write_cub(tmp_path / "cub")
    write_inaturalist(tmp_path / "inat")
    monkeypatch.setattr(paper_metatasks, "inat_cub", lambda inat, cub: inat_cub(inat, cub, orders=2, birds=3))
    options = ("--inaturalist", tmp_path / "inat", "--cub200", tmp_path / "cub")
    report = json.loads(run(paper_metatasks.app, "inat+cub", *options).stdout)
    assert [row["dataset"] for row in report["tasks"]] == ["inaturalist2018"] * 2 + ["cub200-paper"] * 3
    assert report["left_out"] == [[n, n] for n in range(5)]
    result = run(paper_metatasks.app, "mixed", *options, code=2)
    assert "lacks --imaterialist DIR --deepfashion DIR" in result.stderr
