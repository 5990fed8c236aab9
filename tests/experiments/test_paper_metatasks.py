"""The paper's meta-tasks by its rules, on small catalogs, and each rule broken once."""

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

import task2vec as t2v
from experiments import paper_metatasks
from experiments.paper_metatasks import MetaTaskDefinition, inat_cub, mixed
from tests.experiments.material import run
from tests.tasks import published

# Class, order, training and validation images: eight classes of four orders, every fifth order with too few images.
ORDERS = [(f"class {n % 8}", f"order {n}", 20_000 - 500 * n, 99 if n % 5 == 4 else 100) for n in range(32)]
GROUPS = ("color", "gender", "neckline", "sleeve", "style")
# The last label of each group is rare.
LABELS = {group: [f"{group} {n}" for n in range(4)] for group in GROUPS} | {"category": ["Pants", "Shoes", "Hats"]}


def define(name, kind, members, train=9, val=1, *, positives=0, group="", table="labels"):
    counts, many = {"train": train, "val": val}, {"train": positives, "val": positives}
    classes = tuple(map(str, members))
    return t2v.TaskDefinition(name, kind, classes, counts, tuple(members), table, group, kind.endswith("group"), many)


def make_catalog(name, definitions, splits=("train", "val")):
    """What the rules read of a catalog."""
    found = list(definitions)
    of_kind = {kind: tuple(one for one in found if one.kind == kind) for kind in {one.kind for one in found}}
    return SimpleNamespace(name=name, splits=dict.fromkeys(splits), of_kind=lambda kind: of_kind.get(kind, ()))


def make_inaturalist(**options):
    orders = [define(o, "order", (2 * n, 2 * n + 1), t, v, group=c) for n, (c, o, t, v) in enumerate(ORDERS)]
    classes = {kind: [one for one in orders if one.group == kind] for kind in dict.fromkeys(row[0] for row in ORDERS)}
    for kind, own in classes.items():
        members = [member for one in own for member in one.members]
        orders.append(define(kind, "class", members, sum(one.counts["train"] for one in own)))
    return make_catalog("inaturalist", orders, **options)


def make_cub(orders=10, families=15):
    found = [define(f"order {n}", "order", (2 * n, 2 * n + 1)) for n in range(orders)]
    found.append(define("Passeriformes", "order", range(50, 80)))
    found += [define(f"family {n}", "family", (50 + 2 * n, 51 + 2 * n), group="Passeriformes") for n in range(families)]
    return make_catalog("cub200", [*found, define("family x", "family", (0, 1), group="order 0")])


def make_imaterialist(*, has_groups=True):
    names = [(label, group) for group, labels in LABELS.items() for label in labels]
    rare = [labels[-1] for labels in LABELS.values()]
    found = [
        define(name, "attribute", [n], group=group if has_groups else "", positives=999 if name in rare else 1000)
        for n, (name, group) in enumerate(names)
    ]
    groups = {group: [n for n, (_, other) in enumerate(names) if other == group] for group in LABELS}
    return make_catalog("imaterialist", found + [define(g, "attribute group", m, group=g) for g, m in groups.items()])


def make_deepfashion(usable=6):
    found = [define(f"attribute {n}", "attribute", [n], positives=5 if n < usable else 0) for n in range(8)]
    bodies = ("upper-body", "lower-body", "full-body")
    found += [define(body, "category", (2 * n, 2 * n + 1), table="kinds") for n, body in enumerate(bodies)]
    return make_catalog("deepfashion", found)


def make_mixed(seed=0, **others):
    parts = {"inaturalist": make_inaturalist(), "cub": make_cub(), "imaterialist": make_imaterialist()}
    return mixed(**(parts | {"deepfashion": make_deepfashion()} | others), seed=seed)


def test_inat_cub_takes_the_largest_orders_and_the_birds():
    meta = inat_cub(make_inaturalist(), make_cub())
    wanted = [f"{kind} {n}" for kind, count in (("order", 25), ("order", 10), ("family", 15)) for n in range(count)]
    assert [one.name for _, one in meta.tasks] == wanted
    assert meta.experts == meta.tasks and meta.left_out == {(number, number) for number in range(50)}


@pytest.mark.parametrize("seed", range(3))
def test_mixed_keeps_the_rules_whatever_the_seed(seed):
    by_catalog = {}
    for catalog, one in make_mixed(seed).tasks:
        by_catalog.setdefault(catalog, []).append(one)
    counts = {"cub200": 5, "inaturalist": 15, "imaterialist": 15, "deepfashion": 5}
    assert {name: len(some) for name, some in by_catalog.items()} == counts
    assert Counter(one.kind for one in by_catalog["cub200"]) == {"order": 2, "family": 3}
    # Every class is there, and none a third time before the others' second.
    orders, labels = by_catalog["inaturalist"], by_catalog["imaterialist"]
    assert {one.name for one in orders} <= {order for _, order, _, val in ORDERS if val == 100}
    assert len({one.group for one in orders[:8]}) == 8 and max(Counter(one.group for one in orders).values()) == 2
    assert not {one.name for one in labels} & {some[-1] for some in LABELS.values()}
    assert sorted(Counter(one.group for one in labels).values()) == [2, 2, 2, 3, 3, 3]
    assert {one.name for one in by_catalog["deepfashion"]} <= {f"attribute {number}" for number in range(6)}


def test_mixed_has_its_experts_and_leaves_out_those_that_know_the_labels():
    meta = make_mixed()
    found = [(catalog, one.kind, one.name) for catalog, one in meta.experts]
    wanted = [
        ("inaturalist", kind, f"{kind} {n}") for kind, count in (("order", 8), ("class", 7)) for n in range(count)
    ]
    wanted += [("deepfashion", "category", f"{part}-body") for part in ("upper", "lower", "full")]
    wanted += [("imaterialist", "attribute", name) for name in ("Pants", "Shoes")]
    assert found == wanted + [("imaterialist", "attribute group", group) for group in GROUPS]
    for row, (catalog, task) in enumerate(meta.tasks):
        if catalog == "imaterialist" and task.group in GROUPS:
            assert (row, 20 + GROUPS.index(task.group)) in meta.left_out
        assert catalog not in ("cub200", "deepfashion") or not any(pair[0] == row for pair in meta.left_out)
    wasps, insects = define("wasps", "order", (0, 1)), define("insects", "class", range(5))
    shirts = define("upper-body", "category", (0, 1), table="kinds")  # the same numbers, but other labels
    pairs = (("inat", wasps), ("inat", insects), ("inat", shirts), ("cub", wasps))
    assert MetaTaskDefinition("test", (("inat", wasps),), pairs).left_out == {(0, 0), (0, 1)}
    first, other = make_mixed(3), make_mixed(4)
    assert make_mixed(3) == first and other.tasks != first.tasks and other.experts == first.experts


SMALL_ORDERS = [replace(one, counts={"train": 9_000, "val": 100}) for one in make_inaturalist().of_kind("order")]
BOOTS = [replace(one, name=one.name.replace("Shoes", "Boots")) for one in make_imaterialist().of_kind("attribute")]


@pytest.mark.parametrize(
    ("part", "catalog", "words"),
    [
        ("cub", make_cub(orders=11), r"there are 26 orders and Passeriformes families.*taxonomy='paper'"),
        ("cub", make_cub(1, 24), "cub200: orders but Passeriformes: the rule needs 2, and there are 1"),
        ("imaterialist", make_imaterialist(has_groups=False), "labels of a known group .*needs 15, and there are 0"),
        ("imaterialist", make_catalog("imaterialist", BOOTS), r"'category' called 'shoes'.*'pants', 'boots'"),
        ("deepfashion", make_deepfashion(4), "images have and some have not: .*needs 5, and there are 4"),
        ("inaturalist", make_inaturalist(splits=("train", "mini")), "has no validation split, only train"),
        ("inaturalist", make_catalog("inaturalist", SMALL_ORDERS), "order with more than 10000 training .*are 0"),
    ],
)
def test_a_rule_that_cannot_be_filled_is_named(part, catalog, words):
    with pytest.raises(t2v.errors.DataError, match=words):
        make_mixed(**{part: catalog})


def test_the_command_reads_the_datasets(tmp_path, monkeypatch):
    published.make_cub(tmp_path / "cub")
    published.make_inaturalist(tmp_path / "inat")

    def choose(inat, cub):
        pairs = ((inat, "order"), (cub, "family"))
        tasks = tuple((catalog.name, one) for catalog, kind in pairs for one in catalog.of_kind(kind))
        return MetaTaskDefinition("small", tasks, tasks)

    monkeypatch.setattr(paper_metatasks, "inat_cub", choose)
    options = ("--inaturalist", tmp_path / "inat", "--cub200", tmp_path / "cub")
    report = json.loads(run(paper_metatasks.app, "inat+cub", *options).stdout)
    assert [row["dataset"] for row in report["tasks"]] == ["inaturalist2018"] * 2 + ["cub200-paper"] * 3
    assert report["left_out"] == [[n, n] for n in range(5)]
    result = run(paper_metatasks.app, "mixed", *options, code=2)
    assert "lacks --imaterialist DIR --deepfashion DIR" in result.stderr
