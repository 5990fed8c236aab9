"""Many experts: each as it is alone, by every engine, and one that fails does not stop the others."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

import task2vec as t2v
from task2vec.errors import UsageError
from task2vec.experts import many
from task2vec.experts.loading import load_trained
from task2vec.experts.many import train_experts
from task2vec.experts.recipes import Recipe
from tests.embedding.conftest import make_task
from tests.embedding.test_methods import make_tiny

BRIEF = Recipe("brief", epochs=1, draws=8, batch=4)


@pytest.fixture(scope="module")
def lite():
    return t2v.load_probe(size=32)


@pytest.fixture(scope="module")
def tiny():
    return make_tiny()


@pytest.fixture(scope="module")
def tasks():
    shapes = t2v.sample_tasks(images_per_task=20)[2]
    return [replace(shapes.select([0, 1]), name="first"), replace(shapes.select([1, 2]), name="second")]


def content(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.expert.safetensors")}


def test_a_pool_trains_the_same_experts_and_nothing_twice(lite, tasks, tmp_path, pool):
    how = {"device": "cpu", "seed": 3}
    with t2v.open_engine("serial", threads=1) as engine:
        here = list(train_experts(tasks, lite, BRIEF, folder=tmp_path / "here", backend=engine, **how))
    there = list(train_experts(tasks, lite, BRIEF, folder=tmp_path / "there", backend=pool, **how))
    assert sorted(result.task for result in there) == ["first", "second"] and not any(one.error for one in there)

    def weights(result):
        expert = load_trained(result.entry.location)
        return {name: tensor.numpy().tobytes() for name, tensor in expert.probe.network.state_dict().items()}

    by_name = {result.task: result for result in there}
    assert all(weights(result) == weights(by_name[result.task]) for result in here)
    before = content(tmp_path / "here")
    again = list(train_experts(tasks, lite, BRIEF, folder=tmp_path / "here", **how))
    assert all(result.is_found for result in again) and content(tmp_path / "here") == before


def test_one_that_fails_is_told_first_and_the_rest_goes_on(lite, tasks, tmp_path):
    folder = tmp_path / "experts"
    folder.mkdir()
    (folder / "second.expert.safetensors").write_bytes(b"something else")
    found = train_experts(tasks, lite, BRIEF, folder=folder, device="cpu")
    refused = next(found)
    assert refused.task == "second" and "second.expert" in str(refused.error) and refused.entry is None
    assert [path.name for path in folder.iterdir()] == ["second.expert.safetensors"]  # before anything is trained
    (done,) = found
    assert done.entry is not None and done.entry.task == tasks[0].fingerprint
    assert (folder / "second.expert.safetensors").read_bytes() == b"something else"


def test_one_task_has_experts_of_several_names(tasks, tmp_path, tiny):
    task = make_task((6, 6))
    for name, seed in (("a", 0), ("b", 1)):
        (result,) = train_experts([task], tiny, BRIEF, folder=tmp_path, names=[name], seed=seed, device="cpu")
        assert result.error is None
        assert result.name == name and result.task == task.name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.expert.safetensors", "b.expert.safetensors"]
    (refused,) = train_experts([task], tiny, BRIEF, folder=tmp_path, names=["a"], seed=1, device="cpu")
    assert "another task, network, recipe or seed" in str(refused.error) and "--name" in str(refused.error)
    with pytest.raises(UsageError, match="1 names for 2 tasks"):
        train_experts(tasks, tiny, BRIEF, folder=tmp_path, names=["a"])


def test_a_training_here_shows_its_epochs_and_steps(tasks, tmp_path, tiny, monkeypatch):
    told = []

    @contextmanager
    def watch(show):
        assert show
        yield lambda stage, total: told.append((stage, total)) or (lambda done: told.append((stage, done)))

    monkeypatch.setattr(many, "watch", watch)
    recipe = replace(BRIEF, epochs=2)  # of two steps
    list(train_experts([make_task((6, 6))], tiny, recipe, folder=tmp_path, device="cpu", progress=True))
    done = {stage: sum(step for name, step in told if name == stage) for stage, _ in told}
    # Each stage is told how much there is, and then all of it.
    assert done == {"experts": 2, "features": 24, "epochs": 4, "training": 8}


def test_two_tasks_of_one_name_are_refused(lite, tasks, tmp_path):
    with pytest.raises(UsageError, match=r"same\.expert"):
        train_experts([replace(task, name="same") for task in tasks], lite, BRIEF, folder=tmp_path)
