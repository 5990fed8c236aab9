"""Domain embeddings, and embeddings of the batches of a collection."""

import numpy as np
import pytest

from task2vec import DomainEmbedding, EmbedSettings, distance, embed, embed_batches, embed_domain
from task2vec.embedding import many
from task2vec.errors import DataError, UsageError
from task2vec.tasks import draw_batches, from_dataset
from tests.cases import make_attributes, make_task, pictures
from tests.embedding.families import plain_features
from tests.failures import refuse


@pytest.fixture(scope="module")
def domain(probe):
    return embed_domain(make_task(), probe)


@pytest.mark.parametrize("make", [make_task, make_attributes])
def test_moments_equal_the_definition(probe, make):
    task = make()
    features = plain_features(task, probe)[1].numpy()
    found = embed_domain(task, probe, dtype="float64", batch_size=5)
    assert np.allclose(found.mean, features.mean(0), rtol=1e-9)
    assert np.allclose(found.second_moment, (features**2).mean(0), rtol=1e-9)
    assert np.allclose(found.std, features.std(0), rtol=1e-6, atol=1e-12)


def test_labels_and_order_change_nothing_at_all(probe, domain):
    images, _ = pictures()
    order = np.random.default_rng(0).permutation(len(images))
    others = [(images[i], int(i) % 2) for i in order]
    other = embed_domain(from_dataset(others, name="coins"), probe)
    assert other.mean.tobytes() == domain.mean.tobytes()
    assert other.second_moment.tobytes() == domain.second_moment.tobytes()
    assert other.provenance["task_fingerprint"] != domain.provenance["task_fingerprint"]


def test_its_repr_and_provenance(probe, domain):
    assert repr(domain) == f"DomainEmbedding(colours, probe={probe.name}, 8 features, 22 images)"
    assert len(domain) == probe.feature_dim == 8 and domain.probe_fingerprint == probe.fingerprint
    assert domain.provenance["counts"] == {"images": 22, "bad": 0}
    assert domain.provenance["settings"] == {"dtype": "float32"}
    refuse(UsageError, "dtype='float16' is not available", embed_domain, make_task(), probe, dtype="float16")


def test_moments_that_no_features_have():
    for mean, second, words in ((2, [3], "at least E"), (2, [5, 5], "same features"), (np.nan, [1], "'mean'")):
        refuse(DataError, words, DomainEmbedding, "a", "net", np.array([mean]), np.array(second))
    # Rounding is no contradiction: constant features.
    found = DomainEmbedding("a", "net", np.array([0.1]), np.array([0.01 * (1 - 1e-12)]))
    assert found.std.tolist() == [0.0]
    with pytest.raises(ValueError, match="read-only"):
        found.mean[0] = 1


SMALL = EmbedSettings(max_samples=6, l2=0.01)
COLLECTION = make_task((20, 20, 20, 20))


def test_each_is_what_embed_makes_of_the_batch(probe):
    how = {"classes": 3, "images": 2, "seed": 4}
    batches, twins = embed_batches(COLLECTION, probe, batches=4, settings=SMALL, device="cpu", **how)
    drawn = draw_batches(COLLECTION, 4, **how)
    assert [one.task for one in batches] == [batch.name for batch, _ in drawn]
    assert [one.task for one in twins] == [twin.name for _, twin in drawn]
    for found, task in zip((batches[2], twins[3]), (drawn[2][0], drawn[3][1]), strict=True):
        assert np.allclose(found.fisher, embed(task, probe, settings=SMALL, device="cpu").fisher, rtol=1e-4)
    found = distance.diversity(batches, twins, device="cpu")
    assert found.batches == 4 and found.floor is not None and 0 < found.floor.value < 1


def test_a_batch_that_fails_stops_all(probe, monkeypatch):
    result = many.TaskResult(0, "batch", error=DataError("no pixels"))
    monkeypatch.setattr(many, "embed_many", lambda tasks, probe, **options: iter([result]))
    refuse(DataError, "no pixels", embed_batches, COLLECTION, probe, batches=3, classes=2, images=2, settings=SMALL)
