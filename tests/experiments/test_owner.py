"""The paper's meta-tasks: its numbers on catalogs of published size, and small ones built from the original layouts."""

import shutil
import zlib
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import timm
from PIL import Image
from safetensors.torch import save_file

import task2vec as t2v
from experiments import selection, taxonomy
from experiments.metatask import build, owner, paper
from task2vec.embedding import many
from task2vec.experts import error_matrix, features_of_tasks, train
from task2vec.tasks.catalog import Catalog, LabelTable, define_attributes, define_by_taxon
from task2vec.tasks.taxonomy import Taxonomy
from tests.experiments.material import ROOT, read_csv, run
from tests.failures import refuse
from tests.tasks import published

BRIEF = t2v.Recipe("brief", head="adam", head_epochs=1, epochs=1, draws=32, batch=16)
PHOTOGRAPHS = ROOT.parent / "shared" / "data" / "cub200"
WEIGHTS = ROOT.parent / "shared" / "weights" / "resnet34_body.fp16.safetensors"

# --- catalogs of published size, without images ----------------------------------------------------------------------


def make_catalog(name, tables, rows, tree=None):
    splits = {split: np.array(numbers) for split, numbers in rows.items()}
    definitions = ()
    for key, table in tables.items():
        if table.values.ndim == 1:
            definitions += define_by_taxon(table, tree, splits, ranks=tree.ranks[-2:], table_name=key)
        else:
            definitions += define_attributes(table, splits)
    paths = [str(number) for number in range(len(next(iter(tables.values())).values))]
    return Catalog(name, Path("."), paths, splits, tables, definitions, taxonomy=tree)


def make_life():
    """A catalog like iNaturalist's: sixty orders of two species in nine classes; at the limits one on each side."""
    orders = {f"order {number}": (f"class {number % 9}", 300 + number, 100 + number) for number in range(50)}
    named = ("Lepidoptera", "Accipitriformes", "Asparagales", "Passeriformes", "Asterales")
    orders |= {name: (f"class {number % 9}", 10_001 + number, 150) for number, name in enumerate(named)}
    orders |= {f"large {number}": (f"class {number % 9}", 20_000 + number, 120) for number in range(5, 9)}
    orders |= {"at the limit": ("class 9", 10_000, 99), "last": ("class 9", 10, 100)}
    species, labels, rows = {}, [], {"train": [], "val": []}
    for order, (above, *counts) in orders.items():
        first = len(species)
        species |= {f"{order} {number}": ("Life", above, order) for number in range(2)}
        for split, count in zip(rows, counts, strict=True):
            rows[split] += range(len(labels), len(labels) + count)
            labels += [first + number % 2 for number in range(count)]
    table, tree = LabelTable(np.array(labels), tuple(species)), Taxonomy(("kingdom", "class", "order"), species)
    return make_catalog("inaturalist2018", {"labels": table}, rows, tree)


def make_birds(root):
    """All classes of CUB-200-2011, without images."""
    table = read_csv(ROOT / "src/task2vec/tasks/cub200_taxonomy.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published, "paint", lambda *_: None)
        published.make_cub(root, {int(row["class_dir"][:3]): row["class_dir"] for row in table})
    return t2v.read_cub200(root, taxonomy="paper")


def make_clothes():
    """Labels in all groups: of each group two with 1,000 validation images, and one with 999."""
    names = [(f"{group} {number}", group, 1_000 - (number == 2)) for group in (*paper.GROUPS, "pattern", "category")
             for number in range(3)]  # fmt: skip
    names += [("Short Sleeves", "sleeve", 1_500), ("Jeans", "category", 30), ("Yoga Pants", "category", 20)]
    names += [("Boots", "category", 20), ("Sandals", "category", 20)]
    values = np.zeros((4_000, len(names)), dtype=np.int8)
    for column, (_, _, count) in enumerate(names):
        values[2_000 : 2_000 + count, column] = values[:count, column] = 1
    names, groups, _ = zip(*names, strict=True)
    rows = {"train": range(2_000), "val": range(2_000, 4_000)}
    return make_catalog("imaterialist2018", {"labels": LabelTable(values, names, groups)}, rows)


def make_fashion():
    """A thousand attributes; the first has no image in training, the second none for testing."""
    values = np.random.default_rng(0).integers(0, 2, (60, 1_000)).astype(np.int8)
    values[:40, 0] = values[50:, 1] = 0
    rows = {"train": range(40), "val": range(40, 50), "test": range(50, 60)}
    names = tuple(f"attribute {number}" for number in range(1_000))
    kinds = {f"{body} {number}": (body,) for body in paper.CATEGORIES for number in range(2)}
    tables = {"labels": LabelTable(values, names, ("texture",) * 1_000)}
    table, tree = LabelTable(np.arange(60) % 6, tuple(kinds)), Taxonomy(("category",), kinds)
    catalog = make_catalog("deepfashion", tables, rows)
    definitions = define_by_taxon(table, tree, catalog.splits, ranks=tree.ranks, table_name="categories")
    return replace(catalog, tables=tables | {"categories": table}, definitions=(*catalog.definitions, *definitions))


@pytest.fixture(scope="module")
def catalogs(tmp_path_factory):
    return make_life(), make_birds(tmp_path_factory.mktemp("cub")), make_clothes(), make_fashion()


@pytest.fixture(scope="module")
def inat_cub_plan(catalogs):
    return paper.plan_inat_cub(*catalogs[:2], counts=paper.PAPER)


def plan_mixed(catalogs, *, seed=0, **counts):
    return paper.plan_mixed(*catalogs, seed=seed, counts=replace(paper.PAPER, **counts))


def list_names(tasks):
    return [task.name for task in tasks]


def test_inat_cub_has_the_25_largest_orders_the_25_tasks_of_birds_and_the_same_experts(catalogs, inat_cub_plan):
    plan = inat_cub_plan
    counts = Counter((task.dataset, task.definition.kind) for task in plan.tasks)
    assert counts == {("inaturalist", "order"): 25, ("cub200", "order"): 10, ("cub200", "family"): 15}
    assert plan.experts == plan.tasks == plan.embedded
    largest = sorted((definition.counts["train"] for definition in catalogs[0].of_kind("order")), reverse=True)
    assert [task.samples for task in plan.tasks[:25]] == largest[:25]
    names = {task.definition.name for task in plan.tasks[25:]}
    assert {"Passeridae", "Corvidae", "Cuculiformes"} <= names and not names & {"Passeriformes", "Gaviiformes"}
    seen = [[task.was_trained_on(expert) for expert in plan.experts] for task in plan.tasks]
    assert seen == np.eye(50, dtype=bool).tolist()  # leave-one-out
    assert plan.tasks[25].lineage[:3] == ("Animalia", "Chordata", "Aves")


def test_mixed_has_the_tasks_and_experts_of_the_appendix(catalogs):
    plan = plan_mixed(catalogs)
    assert Counter(task.dataset for task in plan.tasks) == {
        "cub200": 5, "inaturalist": 15, "imaterialist": 15, "deepfashion": 5}  # fmt: skip
    assert Counter(task.definition.kind for task in plan.tasks[:5]) == {"order": 2, "family": 3}
    kinds = Counter((task.dataset, task.definition.kind) for task in plan.experts)
    assert kinds == {("inaturalist", "order"): 8, ("inaturalist", "class"): 7, ("deepfashion", "category"): 3,
                     ("imaterialist", "category"): 2, ("imaterialist", "attribute group"): 5}  # fmt: skip
    assert all(task.samples > 10_000 for task in plan.experts if task.dataset == "inaturalist")
    assert list_names(plan.experts[15:]) == [
        "deepfashion_upper-body", "deepfashion_lower-body", "deepfashion_full-body", "imat_pants", "imat_shoes",
        "imat_color", "imat_gender", "imat_neckline", "imat_sleeve", "imat_style"]  # fmt: skip
    assert all(task.definition.is_multilabel for task in plan.experts[20:])
    assert set(list_names(plan.tuned_tasks)) == set(paper.SUBSET_TASKS)
    assert set(list_names(plan.tuned_experts)) == set(paper.SUBSET_EXPERTS)
    # An expert that learned a label of a task is no candidate for it.
    seen = {
        (task.name, expert.name) for task, expert in product(plan.tasks, plan.experts) if task.was_trained_on(expert)
    }
    above = next(task.definition.group for task in plan.tasks if task.name == "inat_Asparagales")
    assert {expert for task, expert in seen if task == "imat_Short Sleeves"} == {"imat_sleeve"}
    assert {expert for task, expert in seen if task == "deepfashion_upper-body"} == {"deepfashion_upper-body"}
    assert {expert for task, expert in seen if task == "inat_Asparagales"} <= {"inat_Asparagales", f"inat_{above}"}
    assert ("inat_Asparagales", f"inat_{above}") in seen and not any("cub" in task for task, _ in seen)


def test_random_tasks_keep_to_the_rules(catalogs):
    plans = [plan_mixed(catalogs, seed=seed) for seed in (0, 1, 2, 0)]
    for plan in plans:
        names = list_names(plan.tasks)
        assert len(set(names)) == 40
        assert "inat_at the limit" not in names and not any(name.endswith(" 2") for name in names[20:35])
        assert not {"deepfashion_attribute 0", "deepfashion_attribute 1"} & set(names)
        groups = Counter(task.definition.group for task in plan.tasks[5:20])
        assert len(groups) == 10 and set(groups.values()) <= {1, 2}  # maximum variety
        assert len({task.definition.group for task in plan.tasks[20:35]}) == 7
        assert list_names(plan.experts) == list_names(plans[0].experts)
    assert list_names(plans[0].tasks) == names != list_names(plans[1].tasks)


def test_limits_of_samples_are_exact(catalogs):
    assert "inat_at the limit" in list_names(plan_mixed(catalogs, more_samples=9_999, expert_orders=10).experts)
    for counts, words in (
        ({"expert_orders": 10}, "9 orders of iNaturalist with more than 10000 samples, but"),
        ({"mixed": (2, 3, 61, 15, 5)}, "60 orders of iNaturalist with 100 validation samples or more"),
        ({"mixed": (2, 3, 15, 16, 5)}, "15 attributes of iMaterialist with 1000 validation samples or more"),
        ({"more_samples": 10_001}, "Lepidoptera cannot be in the meta-task Mixed"),
        ({"bird_orders": 9}, "10 orders and 15 families .* but the paper has 9 and 15"),
    ):
        refuse(t2v.errors.DataError, words, plan_mixed, catalogs, **counts)


def test_experts_for_kinds_of_pants_see_the_images_of_one_kind(catalogs):
    clothes = catalogs[2]
    kinds = paper.add_kinds(clothes)
    assert kinds.find("pants", "category").classes == ("Jeans", "Yoga Pants")
    # The first 20 images show both, ten more show jeans alone: of one kind only. No shoe is of one kind.
    assert dict(kinds.find("pants", "category").counts) == {"train": 10, "val": 10}
    table = kinds.tables["pants"]
    assert table.names[table.values[25]] == "Jeans" and table.names[table.values[5]] == "not one of the pants"
    nameless = replace(clothes, tables={"labels": replace(clothes.tables["labels"], names=tuple(map(str, range(26))))})
    refuse(t2v.errors.DataError, r"0 labels for pants.*iMat_fashion_2018_label_map_228.csv", paper.add_kinds, nameless)


def test_the_collection_has_every_order_and_attribute(catalogs):
    plan = paper.plan_collection(*catalogs, counts=paper.PAPER)
    counts = Counter(task.dataset for task in plan.tasks)
    assert counts == {"inaturalist": 61, "cub200": 25, "imaterialist": 26, "deepfashion": 999} and not plan.experts


def test_a_plan_says_what_it_will_take(inat_cub_plan):
    plan = inat_cub_plan
    recipes = [t2v.Recipe("long", epochs=60, draws=10_000), t2v.Recipe("short", epochs=5, draws=10_000)]
    hours, gigabytes = owner.estimate_cost(plan, owner.PROBES, *recipes)
    samples = sum(task.samples for task in plan.experts)
    assert hours["experts"] == pytest.approx((50 * 600_000 / 6_400 + samples / 17_700) / 3600)
    assert hours["fine-tuning"] > 51 * 25 * 50_000 / 6_400 / 3600
    assert gigabytes == pytest.approx(21.8e6 * 4 * 75 / 1e9, rel=0.02)
    text = owner.describe_plan(plan, owner.PROBES, *recipes)
    assert "| inat_large 8 | order | class 8 | 2 | 20,008 | 120 |" in text and "6,400 images/s" in text
    tested = sum(task.definition.counts[task.test_split] for task in plan.tasks)
    assert owner.count_images(plan.tasks, is_test=True) == tested and owner.count_images(plan.tasks) == samples


# --- from the original layouts to tables and figures -----------------------------------------------------------------

LIFE = {"Passeriformes": "Aves", "Accipitriformes": "Aves", "Lepidoptera": "Insecta", "Asterales": "Magnoliopsida",
        "Asparagales": "Liliopsida"}  # fmt: skip
BIRDS = published.CLASSES | {50: "050.Eared_Grebe", 51: "051.Horned_Grebe"}
LABELS = {17: "Black,color", 19: "Blue,color", 22: "Boots,category", 49: "Collared,neckline", 66: "Female,gender",
          92: "Jeans,category", 106: "Male,gender", 157: "Sandals,category", 164: "Short Sleeves,sleeve",
          171: "Sleeveless,sleeve", 184: "Summer,style", 201: "Trousers,category", 214: "V-Necks,neckline",
          225: "Wrap,style"}  # fmt: skip
SMALL = paper.Counts(
    orders=1, bird_orders=2, bird_families=2, mixed=(1, 1, 3, 3, 2), expert_orders=3, expert_classes=1,
    more_samples=9, least_order=4, least_attribute=2,
)  # fmt: skip
DATASETS = ("inaturalist", "cub", "imaterialist", "deepfashion")
PROBES = owner.PROBES[:2]


def draw_picture(path, _):
    """A picture that nobody else has, faintly of the colour of its folder."""
    rng, of_folder = (np.random.default_rng(zlib.crc32(str(name).encode())) for name in (path, path.parent.name))
    colour = of_folder.normal(128, 12, 3) + rng.normal(0, 12, 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.normal(colour, 40, (24, 24, 3)).clip(0, 255).astype(np.uint8)).save(path, "PNG")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The four datasets as their archives unpack, with all annotation files, as options of the command."""
    root, rng = tmp_path_factory.mktemp("datasets"), np.random.default_rng(0)
    folders = {name: root / name for name in DATASETS}
    for folder in folders.values():
        folder.mkdir()
    species = [
        (2 * row + number, f"{order[:6]} no{number}", above, f"Life|P|{above}|{order}|F{row}|G{row}", 6 + row, 2)
        for row, (order, above) in enumerate(LIFE.items())
        for number in range(2)
    ]
    carried = {
        split: {str(key): [str(label) for label in LABELS if rng.random() < 0.35] for key in range(1, count + 1)}
        for split, count in (("train", 50), ("val", 25))
    }
    names = "".join(f"{number},1,{label}\n" for number, label in LABELS.items())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published, "paint", draw_picture)
        published.make_inaturalist(folders["inaturalist"], species=species)
        published.make_cub(folders["cub"], BIRDS, copies=6)
        label_map = f"labelId,taskId,labelName,taskName\n{names}"
        published.make_imaterialist(folders["imaterialist"], all_carried=carried, label_map=label_map)
        published.make_deepfashion(folders["deepfashion"], count=70, used=(*published.USED, "Cape"))
    return folders


def list_options(folders, *names):
    return [each for name in names for each in (f"--{name}", folders[name])]


@pytest.fixture(scope="module", autouse=True)
def _small(tmp_path_factory):
    """A tiny network under the names of all probes, brief trainings, and few tasks."""
    file = tmp_path_factory.mktemp("weights") / "test_resnet.safetensors"
    save_file(timm.create_model("test_resnet").state_dict(), file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            owner, "load_probes",
            lambda names, *_, **__: {name: t2v.load_probe("test_resnet", weights=file, size=24) for name in names},
        )  # fmt: skip
        patch.setattr(build, "find_recipe", lambda _: BRIEF)
        for name, count in (("EPOCHS", 1), ("DRAWS", 256)):
            patch.setattr(error_matrix, name, count)
        yield


@pytest.fixture(scope="module", autouse=True)
def _few():
    """Few tasks and experts; few networks are fine-tuned, on one task alone."""

    def make(plan_whole):
        def plan(*args, counts=SMALL, **options):
            whole = plan_whole(*args, counts=counts, **options)
            if counts != SMALL:
                return whole
            tuned = whole.tuned_experts[: None if whole.shots else 1]
            return replace(whole, tuned_tasks=whole.tuned_tasks[2:3], tuned_experts=tuned, shots=whole.shots[:1])

        return plan

    with pytest.MonkeyPatch.context() as patch:
        for name in ("plan_inat_cub", "plan_mixed", "plan_collection"):
            patch.setattr(paper, name, make(getattr(paper, name)))
        yield


def test_a_dry_run_starts_nothing(data, tmp_path, monkeypatch):
    monkeypatch.setattr(owner, "load_probes", lambda *_, **__: pytest.fail("loaded"))
    monkeypatch.setattr(t2v.Catalog, "tasks", lambda *_, **__: pytest.fail("read"))
    out = tmp_path / "out"
    for command, names in (("inat-cub", DATASETS[:2]), ("mixed", DATASETS), ("collection", DATASETS)):
        printed = run(build.app, command, *list_options(data, *names), "--out", out, "--dry-run").stdout
        assert "GPU hours" in printed and "| in all |" in printed and not out.exists()
    assert "| 32 tasks | kind |" in printed and "experts |" not in printed
    # Every meta-task takes its own datasets, no fewer and no more.
    fewer = run(build.app, "mixed", *list_options(data, *DATASETS[:3]), "--out", out, code=2).stderr
    assert "so --deepfashion is needed. Give the folder of the dataset: --deepfashion DIR" in " ".join(fewer.split())
    more = run(build.app, "inat-cub", *list_options(data, *DATASETS[:3]), "--out", out, code=2).stderr
    assert "so --imaterialist would change nothing. Leave it out." in " ".join(more.split())


def build_small(command, data, out):
    names = DATASETS[:2] if command == "inat-cub" else DATASETS
    probes = ("--probe", PROBES[1]) if command == "inat-cub" else ()
    run(build.app, command, *list_options(data, *names), *probes, "--out", out, "--device", "cpu")
    return t2v.load_metatask(out / "metatask.safetensors")


def check_selection(out, family, more):
    """Tables 1 and 2 and all figures about choosing an expert are made from a meta-task."""
    strategies = ("chance", "generic", "symmetric", "asymmetric")
    chosen = [each for name in strategies for each in ("--strategy", name)]
    run(selection.app, "--bundle", out / "metatask.safetensors", "--out", out / "selection", "--jobs", 1, *chosen)
    files = {path.name for path in (out / "selection").iterdir()}
    figures = {f"violins_{family}.png", f"matrix_{family}.png", "norms.png"}
    assert files >= {"table1.md", "table2.md", "claims.md"} | figures | more
    rows = read_csv(out / "selection" / "table2.csv")
    spaces = {row["space"] for row in rows if row["strategy"] == "asymmetric"}
    assert spaces == {f"{name} robust" for name in (PROBES if family == "inat-cub" else (owner.BASE,))}


@pytest.fixture(scope="module")
def inat_cub(data, tmp_path_factory):
    """The folder of a meta-task iNat+CUB."""
    out = tmp_path_factory.mktemp("inat-cub")
    build_small("inat-cub", data, out)
    return out


def test_inat_cub_is_measured_as_by_hand_and_resumed(data, inat_cub, monkeypatch):
    metatask = t2v.load_metatask(inat_cub / "metatask.safetensors")
    names = ["inat_Asparagales"]
    names += [f"cub_{taxon}" for taxon in ("Cuculiformes", "Podicipediformes", "Corvidae", "Passeridae")]
    assert [task.name for task in metatask.tasks] == names
    assert [model.name for model in metatask.models] == ["test_resnet", *names]
    assert np.isfinite(metatask.errors).all() and metatask.errors.shape == (5, 6, 1, 1)
    assert metatask.is_candidate.tolist() == np.hstack([np.ones((5, 1)), 1 - np.eye(5)]).astype(bool).tolist()
    spaces = [f"{name} robust" for name in PROBES]
    assert set(metatask.distances) == set(metatask.embeddings) == set(metatask.norms) == set(spaces)
    # One cell by hand: the published splits, the paper's classifier, the kept expert.
    birds = t2v.read_cub200(data["cub"], taxonomy="paper")
    training, test = (birds.task("Corvidae", kind="family", split=split) for split in ("train", "test"))
    expert = t2v.load_expert(inat_cub / "experts" / "inat_Asparagales.expert.safetensors")
    (slow,) = t2v.linear_error(expert, training, owner.PROTOCOL, test=test, device="cpu")
    row, column = names.index("cub_Corvidae"), 1 + names.index("inat_Asparagales")
    assert metatask.errors[row, column, 0, 0] == pytest.approx(slow.error, abs=1e-6)
    assert metatask.tasks[row].images == len(training) == 10 and metatask.tasks[row].fingerprint == training.fingerprint
    embedding = t2v.embed(training, owner.load_probes([owner.BASE])[owner.BASE], device="cpu")
    np.testing.assert_allclose(metatask.norms[spaces[0]][row], embedding.norm(), rtol=1e-5)
    # One fine-tuned network by hand.
    tuned = t2v.train_expert(training, expert, BRIEF, device="cpu")
    probabilities = tuned.probabilities(features_of_tasks(tuned.probe, [test], device="cpu")[0])
    labels = [tuned.metadata["classes"][number] for number in probabilities.argmax(1)]
    wrong = float(np.mean([label != test.classes[target] for label, target in zip(labels, test.targets, strict=True)]))
    transfer = {"task": "cub_Corvidae", "expert": "inat_Asparagales", "seed": 0, "error": wrong}
    assert transfer in metatask.info["transfers"]
    pairs = {(point["expert"], point["task"]) for point in metatask.info["transfers"]}
    assert pairs == {(name, "cub_Corvidae") for name in ("test_resnet", names[0])} and not metatask.info["curves"]
    assert metatask.info["lineages"]["cub_Corvidae"][-3:] == ["Aves", "Passeriformes", "Corvidae"]
    # A second run only reads images.
    for module, name in ((many.GroupWork, "embed"), (train, "Training"), (error_matrix, "features_of_tasks")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("computed again"))
    monkeypatch.setattr(t2v, "embed_domain", lambda *_, **__: pytest.fail("embedded again"))
    again = build_small("inat-cub", data, inat_cub)
    assert (again.errors == metatask.errors).all() and again.info == metatask.info
    for space in spaces:
        assert (again.distances[space] == metatask.distances[space]).all()


@pytest.mark.long
def test_choosing_on_inat_cub_is_evaluated_with_all_probes(inat_cub):
    check_selection(inat_cub, "inat-cub", set())


@pytest.mark.long
def test_mixed_is_built_and_has_curves(data, tmp_path):
    metatask = build_small("mixed", data, tmp_path)
    names = [task.name for task in metatask.tasks]
    assert len(names) == 10 and set(paper.SUBSET_TASKS) <= set(names)
    assert len(metatask.models) == 1 + 3 + 1 + 3 + 2 + 5
    known = {task.name: row for row, task in enumerate((*metatask.tasks, *metatask.source_tasks))}
    assert [known[model.source_task] for model in metatask.models[1:]] == metatask.source_rows[1:].tolist()
    experts = ["test_resnet", *paper.SUBSET_EXPERTS]
    points = {(point["task"], point["expert"], point["way"], point["train"]) for point in metatask.info["curves"]}
    assert points == set(product(["imat_Short Sleeves"], experts, ("linear", "tuned"), ("2", "all")))
    for point in metatask.info["curves"]:
        if point["train"] == "all" and point["way"] == "linear":
            row, column = names.index(point["task"]), [model.name for model in metatask.models].index(point["expert"])
            assert point["error"] == pytest.approx(metatask.errors[row, column, 0, 0], abs=1e-6)
    counts = {(point["task"], point["train"]): point["images"] for point in metatask.info["curves"]}
    assert counts == {("imat_Short Sleeves", "2"): 4, ("imat_Short Sleeves", "all"): 50}
    check_selection(tmp_path, "mixed", {"curves.png"})


@pytest.mark.long
def test_the_collection_is_embedded(data, tmp_path, monkeypatch):
    metatask = build_small("collection", data, tmp_path)
    assert Counter(task.dataset for task in metatask.tasks) == {
        "inaturalist": 5, "cub200": 4, "imaterialist": 14, "deepfashion": 9}  # fmt: skip
    assert len(metatask.embeddings[f"{owner.BASE} robust"]) == 32 and not metatask.models
    monkeypatch.setattr(taxonomy, "PERMUTATIONS", 99)
    shown = run(taxonomy.app, "--bundle", tmp_path / "metatask.safetensors", "--out", tmp_path)
    assert f"spearman, all pairs, {owner.BASE} robust: " in shown.stdout
    assert read_csv(tmp_path / "measures.csv")[0]["count"] == 36
    figures = {path.name for path in tmp_path.glob("*.png")}
    assert figures == {"maps.png", "tree.png", "neighbourhoods.png"}


@pytest.mark.long
@pytest.mark.skipif(not PHOTOGRAPHS.is_dir(), reason="no photographs of CUB-200-2011 beside the repository")
def test_the_photographs_of_birds_are_embedded_and_learned(tmp_path):
    rows = read_csv(PHOTOGRAPHS / "manifest.csv")
    classes = {name: number for number, name in enumerate(sorted({row["class"] for row in rows}), start=1)}
    root = tmp_path / "cub"
    root.mkdir()
    published.write_lists(
        root,
        images=[f"{number} {row['file'].removeprefix('images/')}" for number, row in enumerate(rows, start=1)],
        image_class_labels=[f"{number} {classes[row['class']]}" for number, row in enumerate(rows, start=1)],
        train_test_split=[
            f"{number} {int(row['source_path'].startswith('train/'))}" for number, row in enumerate(rows, start=1)
        ],
        classes=[f"{number} {name}" for name, number in classes.items()],
    )
    names = ("cub_Corvidae", "cub_Laniidae")
    listed = paper.list_birds(t2v.read_cub200(root, taxonomy="paper"), paper.PAPER)
    tasks = tuple(task for task in listed if task.name in names)
    for task in tasks:
        for name in task.definition.classes:
            shutil.copytree(PHOTOGRAPHS / "images" / name, root / "images" / name)
    plan = paper.PaperPlan("birds", tasks, tasks, tasks[:1], tasks[:1])
    probes = {owner.BASE: t2v.load_probe(owner.BASE, weights=WEIGHTS, size=64)}
    metatask = owner.Run(plan, tmp_path / "out", probes, BRIEF, BRIEF, device="cpu").make_metatask()
    assert [task.name for task in metatask.tasks] == list(names)
    assert metatask.errors[0, 0, 0, 0] < 0.8  # of eight crows and jays, seven of eight by chance
    assert len(metatask.info["transfers"]) == 2 and 0 < metatask.distances[f"{owner.BASE} robust"][0, 1] < 1
