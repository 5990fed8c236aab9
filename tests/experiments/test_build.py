"""The four meta-tasks are planned, and small ones of them built, resumed, joined and evaluated."""

import multiprocessing
import time
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import task2vec as t2v
from experiments.metatask import build, measure, plan
from tests.experiments.material import write_collection, write_shades
from tests.tiny_probe import make_tiny

BRIEF = t2v.Recipe("brief", epochs=1, draws=32, batch=8)
NAMES, SOURCES = ["cub200", "dogs", "food15", "food101"], ["cub200", "dogs", "food101", "food101"]
NETWORKS = ("resnet34", "mobilenet_v2")
SPACES = {"resnet34 robust": ("resnet34", "robust", 24)}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two datasets of a collection, two of one other source, and a file beside them."""
    root = write_collection(tmp_path_factory.mktemp("data"), per_class=12)
    rng = np.random.default_rng(1)
    folders = (root / "domains" / "food15", root / "public" / "food101")
    for (place, folder), number in product(enumerate(folders), range(3)):
        write_shades(folder / str(number), (40 + 60 * number, 128, 60 + 90 * place), 12, rng)
    (root / "public" / "README").write_text("where they are from")
    return root


@pytest.fixture(scope="module")
def plans(data):
    return {which: make(data) for which, make in build.PLANS.items()}


@pytest.fixture(scope="module", autouse=True)
def _small(plans):
    """Tiny networks and brief trainings."""
    probes = {"resnet34": make_tiny(), "mobilenet_v2": make_tiny(1)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "load_network", lambda name, *_, **__: probes[name])
        patch.setattr(measure, "TUNING", BRIEF)
        yield


def run(which, small, out, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(build.PLANS, which, lambda _: small)
        build.build(which, out, out, out, device="cpu", **options)
    return t2v.load_metatask(out / which / "results" / "metatask.safetensors")


@pytest.fixture(scope="module")
def networks(plans):
    """Two networks on the whole datasets alone; one is tuned on the first."""
    whole, tasks = plans["networks"], plans["domains"].tasks
    some = tuple(one for one in whole.experts if one.name in NETWORKS)
    about = {"experts": some, "tasks": tasks, "seeds": (0, 1), "spaces": SPACES, "scores": ("logme",)}
    return replace(whole, **about, curves=((some[0], tasks[0], (plan.FIVE, plan.HALF)),))


@pytest.fixture(scope="module")
def known(networks, tmp_path_factory):
    """What a run that was stopped after the first table comes to, and what is made by the second run."""
    out, made, make = tmp_path_factory.mktemp("known"), [], measure.Studio.measure

    def count(self, expert, *network):
        if len(made) == stop:
            raise KeyboardInterrupt
        made.append(expert.name)
        return make(self, expert, *network)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure.Studio, "measure", count)
        stop = 1
        with pytest.raises(KeyboardInterrupt):
            run("networks", networks, out)
        assert not (out / "networks" / "results").exists()
        stop = 9
        for name in ("embed", "measure", "tune"):
            found = run("networks", networks, out, note="a test")
            patch.setattr(measure.Studio, name, lambda *_: pytest.fail("made again"))
    assert made == list(NETWORKS)
    return found


def test_the_plans_have_their_tasks_and_models(plans):
    tasks, whole = plans["networks"].tasks, plans["domains"].tasks
    assert [one.task.name for one in whole] == NAMES and [one.dataset for one in whole] == SOURCES
    older = [one.task.name for one in plans["experts"].tasks]
    assert [one.task.name for one in tasks] == [*older, *NAMES[2:]] and older[7:9] == NAMES[:2]
    assert (tasks[-2].family, tasks[-2].label_set) == ("sources", "food15")
    tuned = {(expert.name, one.task.name) for expert, one, _ in plans["networks"].curves}
    assert tuned == set(product(plan.TUNED, NAMES))
    names = [one.name for one in plans["experts"].experts]
    assert plan.GENERIC in names and "cub200 half A" in names and "label: species" in names
    for which, recipe in (("experts", "achille2019"), ("fast-experts", "fast")):
        assert {one.recipe for one in plans[which].experts if one.source} == {recipe}
        assert [one.name for one in plans[which].experts] == names and len(set(names)) == len(names)
    assert not plans["fast-experts"].spaces and not plans["fast-experts"].curves
    own = plans["domains"].experts[len(plan.NETWORKS) :]
    assert [one.source for one in own] == list(whole) and not plans["domains"].source_tasks
    assert {(one.recipe, one.size, one.mirrors) for one in own} == {("fast", None, True)}
    assert not next(one for one in plans["experts"].experts if one.name == "label: direction").mirrors


def test_two_processes_share_the_models_and_nothing_is_begun_that_would_end_too_late(networks, known, tmp_path):
    brief = replace(networks, spaces={})
    with pytest.raises(t2v.errors.DataError):  # no time to begin anything
        run("networks", brief, tmp_path, seconds=0.0)
    assert not list((tmp_path / "networks").glob("tables/*.json"))
    shared = run("networks", brief, tmp_path, runs=2, seconds=300.0)
    np.testing.assert_array_equal(shared.errors, known.errors)
    assert len(list((tmp_path / "networks").glob("tables/*.json"))) == 2


def test_a_meta_task_of_networks_is_resumed_and_has_their_errors(networks, known):
    assert known.errors.shape == (4, 2, 5, 2) and known.halves.shape == (4, 2, 5, 2, 2)
    assert [task.name for task in known.tasks] == NAMES and known.info["note"] == "a test"
    models = [(model.name, model.kind, model.location) for model in known.models]
    assert models == [("resnet34", "generic", None), ("mobilenet_v2", "network", plan.LOCATIONS["mobilenet_v2"])]
    slow = t2v.error_matrix([one.task for one in networks.tasks], [make_tiny()], seeds=(0, 1), device="cpu")
    np.testing.assert_allclose(known.errors[:, 0, 4], slow.errors[:, 0, 0], atol=1e-6)
    scored = np.isfinite(known.scores["logme"])
    assert scored[:, :, [1, 4]].all() and not scored[:, :, [0, 2, 3]].any()
    assert not known.shares_images.any() and not known.shares_labels.any()
    points = {(point["task"], point["expert"], point["train"], point["way"]) for point in known.info["curves"]}
    assert points == {("cub200", "resnet34", size, "tuned") for size in ("5", "half")}
    assert [one.task for one in known.embeddings["resnet34 robust"]] == NAMES


@pytest.mark.long
def test_experts_of_whole_datasets_are_beside_the_networks_and_evaluated(plans, networks, known, tmp_path, monkeypatch):
    monkeypatch.setattr(measure.experts, "find_recipe", lambda _: BRIEF, raising=False)
    models = [one for one in plans["domains"].experts if one.kind == "domain" or one.name in NETWORKS]
    small = replace(plans["domains"], seeds=(0, 1), experts=tuple(models), spaces=networks.spaces)
    metatask = run("domains", small, tmp_path)
    sources = [model.source_dataset for model in metatask.models]
    assert sources == [None, None, *SOURCES]
    is_own = np.array([[one == source for source in sources] for one in SOURCES])
    for values in (metatask.errors, metatask.halves, metatask.scores["logme"]):
        assert (np.isnan(values).T == is_own.T).all()
    assert (metatask.shares_images > 0)[:, 2:].tolist() == np.eye(4, dtype=bool).tolist()
    distances = known.distances["resnet34 robust"]
    np.testing.assert_array_equal(metatask.to_sources("resnet34 robust")[:, 2:], distances)
    expert = t2v.train_expert(small.tasks[3].task, make_tiny(), BRIEF, device="cpu")
    slow = t2v.error_matrix([one.task for one in small.tasks[:2]], [expert.probe], seeds=(0, 1), device="cpu")
    half = metatask.protocols.index(plan.HALF.key)
    np.testing.assert_allclose(metatask.errors[:2, 2 + 3, half], slow.errors[:, 0, 0], atol=1e-6)


def test_experts_know_what_they_have_seen_and_have_curves(plans, tmp_path, monkeypatch):
    whole = plans["experts"].tasks
    tasks = (whole[0], next(one for one in whole if one.label_set == "brightness"))
    source = replace(whole[1], task=replace(whole[1].task, name=tasks[1].task.name))  # of other pictures
    models = (plans["experts"].experts[0], plan.PlannedExpert("one", "half", source, recipe=BRIEF))
    curves = ((models[1], tasks[0], (plan.TWO, plan.HALF)),)
    monkeypatch.setattr(build, "write_results", lambda *_: None)
    about = {"spaces": SPACES, "curves": curves, "transfers": tasks[:1]}
    small = replace(plans["experts"], tasks=tasks, experts=models, seeds=(0, 1), **about)
    metatask = run("experts", small, tmp_path)
    assert [(row["expert"], row["task"]) for row in metatask.info["transfers"]] == [
        (model.name, tasks[0].task.name) for model in models
    ]
    # The whole network tuned on half of the images, as on the curve of the same split.
    tuned = next(p for p in metatask.info["curves"] if (p["way"], p["train"], p["seed"]) == ("tuned", "half", 0))
    assert metatask.info["transfers"][1]["error"] == tuned["error"]
    assert not list(tmp_path.rglob("*.expert.safetensors*"))
    assert metatask.errors.shape == (2, 2, 2, 2) and metatask.halves.shape == (2, 2, 2, 2, 2)
    assert metatask.shares_images[1, 1] == pytest.approx(20 / 100, abs=1e-3) and not metatask.shares_images[:, 0].any()
    assert np.allclose(metatask.halves.mean(-1), metatask.errors, atol=0.05) and "logme" in metatask.scores
    points = {(point["way"], point["train"]): point["error"] for point in metatask.info["curves"]}
    assert points.keys() == set(product(("linear", "tuned"), ("2", "half"))) and max(points.values()) < 0.4
    fingerprints = [one.task.fingerprint for one in (*tasks, source)]
    embedded = [one.provenance["task_fingerprint"] for one in metatask.embeddings["resnet34 robust"]]
    assert embedded == fingerprints and metatask.source_tasks[0].name == tasks[1].task.name
    domain = t2v.embed_domain(source.task, make_tiny(), device="cpu").mean
    np.testing.assert_allclose(metatask.domains["resnet34"][2], domain, rtol=1e-3)
    file = metatask.save(tmp_path / "known.safetensors")
    monkeypatch.setattr(measure.Studio, "embed", lambda *_: pytest.fail("embedded again"))
    again = run("experts", replace(small, curves=(), transfers=()), tmp_path / "again", embeddings=file)
    np.testing.assert_array_equal(again.distances["resnet34 robust"], metatask.distances["resnet34 robust"])
    np.testing.assert_array_equal(again.errors, metatask.errors)


def _hold(file, is_held):
    with measure._lock(file):
        is_held.set()
        time.sleep(60)


def test_the_lock_of_a_killed_run_is_free(tmp_path):
    file, context = tmp_path / "tables" / "0.json", multiprocessing.get_context("fork")
    is_held = context.Event()
    process = context.Process(target=_hold, args=(file, is_held))
    process.start()
    assert is_held.wait(30)
    measure.make_once(file, lambda: pytest.fail("another run is making it"))
    process.kill()
    process.join()
    measure.make_once(file, lambda: {"made": 1})
    assert file.read_text() == '{"made": 1}'
