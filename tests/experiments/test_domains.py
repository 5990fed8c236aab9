"""The meta-task of experts for whole datasets: a small one that is built and evaluated; `test_networks` resumes one."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

import task2vec as t2v
from benchmarks import domain_experts, sizes
from experiments.metatask import build, domains, measure, networks
from experiments.metatask import sizes as other_sizes
from task2vec.select import combined
from tests.experiments.material import write_collection, write_shades
from tests.tiny_probe import make_tiny

SOURCES = ["cub200", "dogs", "food101", "food101"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two datasets of a collection, and two of one other source."""
    root = write_collection(tmp_path_factory.mktemp("data"), per_class=12)
    rng = np.random.default_rng(1)
    folders = (root / "domains" / "food15", root / "public" / "food101")
    for (place, folder), number in product(enumerate(folders), range(3)):
        write_shades(folder / str(number), (40 + 60 * number, 128, 60 + 90 * place), 12, rng)
    return root


@pytest.fixture(scope="module")
def known(data, tmp_path_factory):
    """The meta-task of two networks on the same datasets, by more protocols and seeds."""
    probes = {"resnet34": make_tiny(), "mobilenet_v2": make_tiny(1)}
    out, tasks = tmp_path_factory.mktemp("known"), domains.plan_experts(data).tasks
    with pytest.MonkeyPatch.context() as patch:
        small = {"plan_tasks": lambda _: tasks, "load_network": lambda name, *_, **__: probes[name]}
        small |= {"NETWORKS": tuple(probes), "TUNED": (), "PROTOCOLS": (networks.PROTOCOLS[0], *networks.SCORED)}
        small |= {"SPACES": {"resnet34 robust": ("resnet34", "robust", 24)}}
        small |= {"write_tables": lambda *_: None}  # there are no curves
        for name, value in small.items():
            patch.setattr(networks, name, value)
        patch.setattr(measure, "SEEDS", (0, 1, 2))
        networks.build(data, out, out, device="cpu")
    return out / "results" / "metatask.safetensors"


@pytest.fixture
def _small(monkeypatch):
    monkeypatch.setattr(build, "load_network", lambda *_, **__: make_tiny())
    monkeypatch.setattr(domains, "SEEDS", (0, 1))
    monkeypatch.setattr(domains, "RECIPE", t2v.Recipe("brief", epochs=1, draws=32, batch=8))


def test_whole_datasets_have_an_expert_each(data):
    plan = domains.plan_experts(data)
    assert [one.task.name for one in plan.tasks] == ["cub200", "dogs", "food15", "food101"]
    assert [one.dataset for one in plan.tasks] == SOURCES
    assert [one.source for one in plan.experts] == list(plan.tasks) and not plan.source_tasks
    assert {(one.recipe, one.network, one.size, one.mirrors) for one in plan.experts} == {
        ("fast", "resnet34", None, True)
    }
    signs = replace(plan.tasks[0], task=replace(plan.tasks[0].task, name="traffic_signs"))
    assert not domains.plan_expert(signs).mirrors


@pytest.mark.usefixtures("_small")
def test_a_small_meta_task_is_built_and_evaluated(data, known, tmp_path, monkeypatch):
    domains.build(data, tmp_path, out := tmp_path / "out", note="a test", device="cpu", base=known)
    plan = domains.plan_experts(data)
    names = [expert.name for expert in plan.experts]
    metatask, base = t2v.load_metatask(out / "results" / "metatask.safetensors"), t2v.load_metatask(known)
    assert [model.name for model in metatask.models] == ["resnet34", "mobilenet_v2", *names]
    assert [model.source_dataset for model in metatask.models] == [None, None, *SOURCES]
    assert metatask.seeds == domains.SEEDS and metatask.info["note"] == "a test"
    is_own = np.array([[one == source for source in [None, None, *SOURCES]] for one in SOURCES])
    for values in (metatask.errors, metatask.halves, metatask.scores["logme"]):
        assert (np.isnan(values).all(tuple(range(2, values.ndim))) == is_own).all()
        assert np.isfinite(values[~is_own]).all()
    assert (metatask.shares_images > 0)[:, 2:].tolist() == np.eye(4, dtype=bool).tolist()
    np.testing.assert_array_equal(metatask.distances["resnet34 robust"], base.distances["resnet34 robust"])
    np.testing.assert_array_equal(metatask.to_sources("resnet34 robust")[:, 2:], base.distances["resnet34 robust"])
    for column, key in enumerate(metatask.protocols):
        old = base.protocols.index(key)
        np.testing.assert_array_equal(metatask.errors[:, :2, column], base.errors[:, :, old, :2])
        np.testing.assert_array_equal(metatask.halves[:, :2, column], base.halves[:, :, old, :2])
        np.testing.assert_array_equal(metatask.scores["logme"][:, :2, column], base.scores["logme"][:, :, old])
    expert = t2v.train_expert(plan.tasks[3].task, make_tiny(), domains.RECIPE, device="cpu")
    others = [one.task for one in plan.tasks[:2]]
    slow = t2v.error_matrix(others, [expert.probe], seeds=domains.SEEDS, device="cpu")
    half = [key for key in metatask.protocols if "half" in key]
    found = metatask.errors[:2, 2 + 3, metatask.protocols.index(half[0])]
    np.testing.assert_allclose(found, slow.errors[:, 0, 0], atol=1e-6)
    for leave in ("task", "domain"):
        chosen = t2v.evaluate(metatask, ["symmetric"], shots=5, leave=leave, resamples=1).outcomes["symmetric"].chosen
        assert (chosen >= 2).all() and not is_own[np.arange(4), chosen].any()
    monkeypatch.setattr(domain_experts, "PROBE", "resnet34")
    rows = {(row["models"], row["strategy"]): row for row in domain_experts.compare(metatask, "half")}
    every, nets, alone = "6 (all)", "2 (networks)", "4 (experts)"
    assert {pool for pool, _ in rows} == {every, nets, alone}
    assert {(every, "combined + logme"), (nets, "optimum"), (alone, "average_best")} <= set(rows)
    assert rows[every, "symmetric"]["experts chosen"] == "4 of 4" and (nets, "symmetric") not in rows
    nearest = np.nanargmin(np.where(is_own, np.nan, metatask.to_sources("resnet34 robust")), axis=1)
    errors = metatask.errors[np.arange(4), nearest, metatask.protocols.index(half[0])]
    assert rows[every, "symmetric"]["error"] == pytest.approx(100 * errors.mean(), abs=1e-4)


def test_other_images_than_those_of_the_networks_are_refused(data, tmp_path):
    with pytest.raises(t2v.errors.DataError, match=r"'cub200' is none of the tasks of .*--base"):
        domains.build(data, tmp_path, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


def test_pixels_are_decoded_once_and_features_stay_the_same(data, tmp_path, monkeypatch):
    tasks, studio = domains.plan_experts(data).tasks[:2], measure.Studio(tmp_path, tmp_path, "cpu")
    plain, larger = make_tiny(), make_tiny()
    larger = replace(larger, preprocess=replace(larger.preprocess, size=(32, 32), resize=32))
    first = studio.compute_features(plain, tasks)
    for task in (one.task.canonical() for one in tasks):
        pixels = torch.stack([plain.preprocess(task.images.load(row)) for row in range(len(task))])
        with torch.no_grad():
            slow = plain.network(plain.preprocess.normalise(pixels, torch.float32))
        torch.testing.assert_close(first[task.name], slow)
    with monkeypatch.context() as patch:
        patch.setattr(type(tasks[0].task.images), "load", lambda *_: pytest.fail("decoded again"))
        again = studio.compute_features(plain, tasks)
    assert all(torch.equal(first[name], again[name]) for name in first)
    wide = studio.compute_features(larger, tasks)
    assert len(studio.pixels) == 1 and not torch.equal(wide["dogs"], first["dogs"])


def test_networks_at_other_sizes_are_measured_by_the_splits_of_the_bundle(data, known, tmp_path, monkeypatch):
    monkeypatch.setattr(other_sizes, "load_network", lambda *_, size: make_tiny())
    monkeypatch.setattr(other_sizes, "NETWORKS", ("resnet34",))
    other_sizes.build(data, tmp_path, tmp_path, device="cpu")
    base = t2v.load_metatask(known)
    monkeypatch.setattr(sizes, "FILE", tmp_path / "results" / "sizes.csv")
    for shots in ("5", "half"):
        whole = base.select(shots, probe="resnet34")
        tasks, models, found, own = sizes.read_errors(whole, 112, shots)
        assert [whole.tasks[row].name for row in tasks] == [one.task.name for one in domains.plan_experts(data).tasks]
        assert models == [0]
        np.testing.assert_allclose(found, own, atol=6e-5)  # the same tiny network at any size


def test_the_shift_of_image_sizes_is_the_one_that_was_measured():
    rows = [sizes.measure_shift(shots, size) for shots in ("5", "half") for size in (112, 160)]
    assert all(row["RMSE moved"] < row["RMSE unmoved"] for row in rows)
    fitted = sizes.fit_shift(rows)
    assert [round(fitted[name], 2) for name in ("shift", "common", "own")] == [
        combined.SIZE_SHIFT,
        combined._SIZE_COMMON,
        combined._SIZE_OWN,
    ]
