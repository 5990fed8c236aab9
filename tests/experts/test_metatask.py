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
        told = {
            "task_fingerprint": str(number),
            "settings": {"method": "robust"},
            "probe_fingerprint": "p",
            "recipe": 2,
        }
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
    assert (found.tasks, found.models, found.protocols, found.seeds) == (
        metatask.tasks, metatask.models, metatask.protocols, metatask.seeds,
    )  # fmt: skip
    assert np.allclose(found.errors, metatask.errors, atol=1e-6)
    assert np.allclose(found.low, metatask.low, atol=1e-3) and np.allclose(found.high, metatask.high, atol=1e-3)
    assert np.array_equal(found.shares_labels, metatask.shares_labels)
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
    assert np.array_equal(part.errors, metatask.errors[[1, 3]][:, :2])
    assert np.array_equal(part.shares_images, metatask.shares_images[[1, 3]][:, :2])
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
    with pytest.raises(DataError, match="SHA-256"):
        load_metatask(file)
    with pytest.raises(DataError, match="not a meta-task"):
        load_metatask(tmp_path / "none")
    with pytest.raises(DataError, match="shares_images"):
        replace(metatask, shares_images=np.zeros((4, 2)))
    with pytest.raises(DataError, match="from 0 to 1"):
        replace(metatask, errors=metatask.errors * 100)
