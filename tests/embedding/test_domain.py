"""Domain embeddings: against the definition, without labels, and from ready features."""

import numpy as np
import pytest
import torch

from experiments.toy_probes import make_polynomial_probe
from task2vec.embedding import EmbedSettings
from task2vec.embedding.domain import DomainEmbedding, domain_of, embed_domain
from task2vec.embedding.single import prepare_job
from task2vec.errors import DataError, NotFiniteError, UsageError
from task2vec.progress import silent
from task2vec.tasks import from_dataset, toy_tasks
from tests.embedding.conftest import make_attributes, make_task, pictures


def definition(task, probe):
    """Features of one image after the other by the network as it is, in float64."""
    images = torch.stack([probe.preprocess(task.images.load(i)) for i in range(len(task))])
    images = probe.preprocess.normalise(images, torch.float64)
    with torch.no_grad():
        features = torch.cat([probe.network.double()(image[None]) for image in images]).numpy()
    probe.network.float()
    return features


@pytest.fixture(scope="module")
def domain(probe):
    return embed_domain(make_task(), probe)


@pytest.mark.parametrize("make", [make_task, make_attributes])
def test_moments_equal_the_definition(probe, make):
    task = make()
    features = definition(task, probe)
    found = embed_domain(task, probe, dtype="float64", batch_size=5)
    assert np.allclose(found.mean, features.mean(0), rtol=1e-9)
    assert np.allclose(found.second_moment, (features**2).mean(0), rtol=1e-9)
    assert np.allclose(found.std, features.std(0), rtol=1e-6, atol=1e-12)
    assert found.vector is found.mean


def test_single_precision_is_close(probe, domain):
    features = definition(make_task(), probe)
    assert np.allclose(domain.mean, features.mean(0), rtol=1e-4, atol=1e-6)


def test_labels_and_order_change_nothing_at_all(probe, domain):
    images, _ = pictures()
    order = np.random.default_rng(0).permutation(len(images))
    others = [(images[i], int(i) % 2) for i in order]
    other = embed_domain(from_dataset(others, name="coins"), probe)
    assert other.mean.tobytes() == domain.mean.tobytes()
    assert other.second_moment.tobytes() == domain.second_moment.tobytes()
    assert other.provenance["task_fingerprint"] != domain.provenance["task_fingerprint"]


def test_other_images_do_change_it(probe, domain):
    assert not np.allclose(embed_domain(make_task(seed=1), probe).mean, domain.mean, rtol=1e-3)


@pytest.mark.parametrize("as_array", [False, True])
def test_ready_features_give_the_same(probe, domain, as_array):
    task = make_task()
    features = prepare_job(task, probe, settings=EmbedSettings()).features(silent)
    found = domain_of(features.numpy() if as_array else features, task, probe=probe)
    assert found.mean.tobytes() == domain.mean.tobytes()
    assert found.second_moment.tobytes() == domain.second_moment.tobytes()
    assert found.provenance == domain.provenance


def test_what_it_tells_of_itself(probe, domain):
    assert repr(domain) == f"DomainEmbedding(colours, probe={probe.name}, 32 features, 22 images)"
    assert len(domain) == probe.feature_dim == 32
    assert domain.probe_fingerprint == probe.fingerprint
    assert domain.provenance["counts"] == {"images": 22, "bad": 0}
    assert domain.provenance["settings"] == {"dtype": "float32"}
    with pytest.raises(ValueError, match="read-only"):
        domain.mean[0] = 1


def test_points_of_the_toy_experiment():
    task, probe = toy_tasks(count=1, side=16)[0], make_polynomial_probe(side=16)
    found = embed_domain(task, probe, dtype="float64").mean
    assert np.allclose(found, definition(task, probe).mean(0), rtol=1e-12)


def test_features_that_are_not_the_task_s(probe):
    task = make_task()
    with pytest.raises(UsageError, match=r"shape \(21, 32\).*'colours'.*\(22, 32\)"):
        domain_of(np.zeros((21, 32)), task, probe=probe)
    with pytest.raises(UsageError, match="belong to something else"):
        domain_of(np.zeros((22, 31)), task, probe=probe)
    features = np.zeros((22, 32))
    features[3, 4] = np.nan
    with pytest.raises(NotFiniteError, match="'colours' is not finite"):
        domain_of(features, task, probe=probe)
    with pytest.raises(UsageError, match="dtype='float16' is not known"):
        embed_domain(task, probe, dtype="float16")


def test_moments_that_no_features_have():
    with pytest.raises(DataError, match="at least E"):
        DomainEmbedding("a", "net", np.array([2.0]), np.array([3.0]))
    with pytest.raises(DataError, match="same features"):
        DomainEmbedding("a", "net", np.array([2.0]), np.array([5.0, 5.0]))
    with pytest.raises(DataError, match="'mean'"):
        DomainEmbedding("a", "net", np.array([np.nan]), np.array([1.0]))
    # Rounding is no contradiction: constant features.
    assert DomainEmbedding("a", "net", np.array([0.1]), np.array([0.01 * (1 - 1e-12)])).std.tolist() == [0.0]
