"""Many experts: each as it is alone, by every engine, and one that fails does not stop the others."""

from dataclasses import replace

import pytest

import task2vec as t2v
from task2vec.errors import UsageError
from task2vec.experts.loading import load_trained
from task2vec.experts.many import train_experts
from task2vec.experts.recipes import Recipe

BRIEF = Recipe("brief", epochs=1, draws=8, batch=4)


@pytest.fixture(scope="module")
def lite():
    return t2v.load_probe(size=32)


@pytest.fixture(scope="module")
def tasks():
    shapes = t2v.sample_tasks(images_per_task=20)[2]
    return [replace(shapes.select([0, 1]), name="first"), replace(shapes.select([1, 2]), name="second")]


def content(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.expert.safetensors")}


def test_a_pool_trains_the_same_experts_and_nothing_twice(lite, tasks, tmp_path):
    how = {"device": "cpu", "seed": 3}
    with t2v.open_engine("serial", threads=1) as engine:
        here = list(train_experts(tasks, lite, BRIEF, folder=tmp_path / "here", engine=engine, **how))
    with t2v.open_engine("pool", workers=2, threads=1) as engine:
        there = list(train_experts(tasks, lite, BRIEF, folder=tmp_path / "there", engine=engine, **how))
    assert sorted(result.task for result in there) == ["first", "second"] and not any(one.error for one in there)

    def weights(result):
        expert = load_trained(result.entry.location)
        return {name: tensor.numpy().tobytes() for name, tensor in expert.probe.network.state_dict().items()}

    by_name = {result.task: result for result in there}
    assert all(weights(result) == weights(by_name[result.task]) for result in here)
    before = content(tmp_path / "here")
    again = list(train_experts(tasks, lite, BRIEF, folder=tmp_path / "here", **how))
    assert all(result.is_found for result in again) and content(tmp_path / "here") == before


def test_one_that_fails_is_told_and_the_rest_goes_on(lite, tasks, tmp_path):
    folder = tmp_path / "experts"
    folder.mkdir()
    (folder / "first.expert.safetensors").write_bytes(b"something else")
    results = {result.task: result for result in train_experts(tasks, lite, BRIEF, folder=folder, device="cpu")}
    assert "first.expert" in str(results["first"].error) and results["first"].entry is None
    assert results["second"].entry is not None and results["second"].entry.task == tasks[1].fingerprint
    assert (folder / "first.expert.safetensors").read_bytes() == b"something else"


def test_two_tasks_of_one_name_are_refused(lite, tasks, tmp_path):
    with pytest.raises(UsageError, match=r"same\.expert"):
        train_experts([replace(task, name="same") for task in tasks], lite, BRIEF, folder=tmp_path)
