"""A measured meta-task comes back from disk as it was, and is cut by family without mixing rows up."""

from dataclasses import replace

import numpy as np
import pytest

from task2vec.embedding import Embedding
from task2vec.errors import DataError, UsageError
from task2vec.experts import MetaTask, ModelInfo, TaskInfo, load_metatask
from task2vec.probe import FilterLayer

LAYERS = (FilterLayer("a", "convolution", 3, 9, 0.1), FilterLayer("b", "linear", 2, 4, 0.2))


def make_metatask(tasks=4, experts=3, protocols=2, seeds=5):
    rng = np.random.default_rng(0)
    shape = (tasks, experts, protocols, seeds)
    errors = rng.random(shape)
    embeddings = []
    for number in range(tasks):
        fisher = rng.lognormal(-20, 5, 5)
        fisher[number % 5] = 0  # a dead filter
        prior = np.repeat([1e-9 * (number + 1), 2e-9], [3, 2])
        told = {"task_fingerprint": str(number), "settings": {"method": "robust"}, "probe_fingerprint": "p"}
        embeddings.append(Embedding(f"t{number}", "net", fisher, np.zeros(5), prior, LAYERS, told))
    return MetaTask(
        "small",
        tuple(TaskInfo(f"t{n}", "ab"[n % 2], "d", f"f{n}", 10 + n, 2) for n in range(tasks)),
        tuple(ModelInfo(f"e{n}", "taxon", "net", size=112, is_repeat=n == experts - 1) for n in range(experts)),
        tuple(f"protocol {n}" for n in range(protocols)),
        tuple(range(seeds)),
        errors,
        errors * 0.9,
        errors * 0.9 + 0.1,
        (rng.random(shape[:2]) < 0.3) * 0.5,
        rng.random(shape[:2]) < 0.3,
        scores={"logme": rng.normal(size=shape[:3])},
        embeddings={"net robust": embeddings},
        domains={"net": rng.random((tasks, 7))},
        info={"commit": "abc"},
    )


def test_a_meta_task_comes_back_from_disk(tmp_path):
    metatask = make_metatask()
    found = load_metatask(metatask.save(tmp_path / "m.safetensors"))
    for name in ("tasks", "models", "protocols", "seeds"):
        assert getattr(found, name) == getattr(metatask, name)
    for name, tolerance in {"errors": 1e-6, "low": 1e-3, "high": 1e-3, "shares_labels": 0}.items():
        assert np.allclose(getattr(found, name), getattr(metatask, name), atol=tolerance)
    assert np.array_equal(found.is_candidate, metatask.is_candidate) and 0 < metatask.is_candidate.sum() < 12
    assert np.allclose(found.scores["logme"], metatask.scores["logme"], atol=1e-5)
    for one, other in zip(found.embeddings["net robust"], metatask.embeddings["net robust"], strict=True):
        assert np.array_equal(one.fisher == 0, other.fisher == 0)
        assert np.allclose(one.fisher, other.fisher, rtol=0.02) and np.allclose(one.prior, other.prior)
        assert one.provenance["task_fingerprint"] == other.provenance["task_fingerprint"]


def test_families_and_repeats_are_cut_alike_everywhere():
    metatask = make_metatask()
    part = metatask.subset(family="b")
    assert [task.name for task in part.tasks] == ["t1", "t3"] and [one.name for one in part.models] == ["e0", "e1"]
    for one, other in ((part.errors, metatask.errors), (part.shares_images, metatask.shares_images)):
        assert np.array_equal(one, other[[1, 3]][:, :2])
    assert np.array_equal(part.scores["logme"], metatask.scores["logme"][[1, 3]][:, :2])
    assert [one.task for one in part.embeddings["net robust"]] == ["t1", "t3"]
    assert np.array_equal(part.domains["net"], metatask.domains["net"][[1, 3]])
    assert len(metatask.subset(repeats=True).models) == 3
    with pytest.raises(UsageError, match="a, b"):
        metatask.subset(family="c")


def test_damage_is_named_and_shapes_are_checked(tmp_path):
    metatask = make_metatask()
    file = metatask.save(tmp_path / "m.safetensors")
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    for path, message in ((file, "SHA-256"), (tmp_path / "none", "not a meta-task")):
        with pytest.raises(DataError, match=message):
            load_metatask(path)
    for wrong, message in (
        ({"shares_images": np.zeros((4, 2))}, "shares_images"),
        ({"errors": metatask.errors * 100}, "from 0 to 1"),
    ):
        with pytest.raises(DataError, match=message):
            replace(metatask, **wrong)
