"""The meta-task of pretrained networks: its tasks, their groups, and a small one that is built and resumed."""

import json
from itertools import product

import numpy as np
import pytest

import task2vec as t2v
from experiments.metatask import measure, networks, plan
from tests.experiments.material import write_collection, write_shades
from tests.tiny_probe import make_tiny


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A collection with two folders of other sources, and a file beside them."""
    root = write_collection(tmp_path_factory.mktemp("data"), per_class=12)
    rng = np.random.default_rng(1)
    for folder, number in product((root / "domains" / "masks", root / "public" / "food15"), range(2)):
        write_shades(folder / str(number), (60 + 90 * number, 128, 90), 12, rng)
    (root / "public" / "README").write_text("where they are from")
    return root


def test_the_tasks_are_those_of_the_plan_and_all_folders_of_domains_and_public(data):
    tasks = networks.plan_tasks(data)
    known = plan.plan_metatask(data).tasks
    assert [one.task.name for one in tasks[: len(known)]] == [one.task.name for one in known]
    others = [(one.family, one.dataset, one.label_set, one.task.name) for one in tasks[len(known) :]]
    assert others == [("sources", "masks", "masks", "masks"), ("sources", "food101", "food15", "food15")]
    whole = [one.task.name for one in networks.list_whole(tasks)]
    assert whole == ["cub200", "dogs", "masks", "food15"]
    groups = networks.split(tasks)
    assert list(groups)[:2] == ["whole", "sources"]
    assert [one.task.name for one in groups["whole"]] == whole[:2] and groups["sources"] == list(tasks[-2:])
    grouped = [one.task.name for own in groups.values() for one in own]
    assert sorted(grouped) == sorted(one.task.name for one in tasks)  # each once


def test_a_small_meta_task_is_built_and_resumed(data, tmp_path, monkeypatch):
    tasks = networks.plan_tasks(data)[-2:]
    probes = {name: make_tiny() for name in ("tf_efficientnet_lite0", "resnet34")}
    small = {"plan_tasks": lambda _: tasks, "load_network": lambda name, *_, **__: probes[name]}
    small |= {"NETWORKS": tuple(probes), "TUNED": ("resnet34",)}
    small |= {"SPACES": {"resnet34 robust": ("resnet34", "robust", 224)}}
    for name, value in small.items():
        monkeypatch.setattr(networks, name, value)
    monkeypatch.setattr(measure, "SEEDS", (0, 1))
    monkeypatch.setattr(measure, "TUNING", t2v.Recipe("brief", epochs=1, draws=16, batch=8))
    out, made = tmp_path / "out", []
    try_network = networks.try_network

    def interrupt(studio, name, own):
        if made:
            raise KeyboardInterrupt
        made.append(name)
        return try_network(studio, name, own)

    monkeypatch.setattr(networks, "try_network", interrupt)
    with pytest.raises(KeyboardInterrupt):
        networks.build(data, tmp_path, out, device="cpu")
    assert len(list((out / "tables").glob("*.json"))) == 1 and not (out / "results").exists()
    again = []
    monkeypatch.setattr(networks, "try_network", lambda *args: again.append(args[1]) or try_network(*args))
    monkeypatch.setattr(networks, "embed_space", lambda *_: pytest.fail("embedded again"))
    networks.build(data, tmp_path, out, note="a test", device="cpu", part="errors")
    assert again == ["resnet34"] and not (out / "results").exists()
    networks.build(data, tmp_path, out, note="a test", device="cpu")
    assert again == ["resnet34"]
    metatask = t2v.load_metatask(out / "results" / "metatask.safetensors")
    assert metatask.errors.shape == (2, 2, 5, 2) and metatask.halves.shape == (2, 2, 5, 2, 2)
    assert [task.name for task in metatask.tasks] == ["masks", "food15"] and metatask.info["note"] == "a test"
    assert [(model.name, model.kind, model.location) for model in metatask.models] == [
        ("tf_efficientnet_lite0", "network", "timm:tf_efficientnet_lite0"),
        ("resnet34", "generic", "torchvision:resnet34"),
    ]
    table = json.loads(next((out / "tables").glob("resnet34*.json")).read_text())
    for row, column in np.ndindex(2, 5):
        cell = table["cells"][metatask.tasks[row].name][metatask.protocols[column]]
        np.testing.assert_allclose(metatask.errors[row, 1, column], np.array(cell)[:, 1], atol=1e-6)
    found = t2v.error_matrix([one.task for one in tasks], [probes["resnet34"]], seeds=(0, 1), device="cpu")
    np.testing.assert_allclose(metatask.errors[:, 1, 4], found.errors[:, 0, 0], atol=1e-6)
    known = np.isfinite(metatask.scores["logme"])
    assert known[:, :, [1, 4]].all() and not known[:, :, [0, 2, 3]].any()
    assert not metatask.shares_images.any() and not metatask.shares_labels.any()
    points = {(point["task"], point["expert"], point["train"], point["way"]) for point in metatask.info["curves"]}
    assert points == {(name, "resnet34", size, "tuned") for name in ("masks", "food15") for size in ("5", "half")}
    assert [one.task for one in metatask.embeddings["resnet34 robust"]] == ["masks", "food15"]
    monkeypatch.setattr(networks, "tune_network", lambda *_: pytest.fail("tuned again"))
    networks.build(data, tmp_path, out, device="cpu")
