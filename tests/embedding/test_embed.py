"""From a task to an embedding: against the definition, multi-label, stopping, memory running out, degenerate images."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from task2vec.distance import symmetric
from task2vec.embedding import EmbedSettings, embed, trivial
from task2vec.embedding.batching import Passes, Pixels
from task2vec.embedding.single import fixed_prior
from task2vec.errors import ResourceError, UsageError
from task2vec.fisher import PerSampleFisher, closed_form
from task2vec.fisher.posterior import WIDEST
from task2vec.probe import load_probe
from task2vec.tasks import from_dataset, sample_tasks
from tests.embedding.conftest import WAYS, make_attributes, make_task, pictures
from tests.oracles import slow_head
from tests.oracles.naive_fisher import naive_rows
from tests.oracles.untied_fisher import untied_rows

GOLDEN = Path(__file__).parents[1] / "golden"
ROWS = {"direct": naive_rows, "robust": untied_rows}


def definition(task, probe, *, l2, method, balance=True):
    """The Fisher of a task step by step: the network as it is, scipy's head, every label of every image, in float64."""
    images = torch.stack([probe.preprocess(task.images.load(i)) for i in range(len(task))])
    images = probe.preprocess.normalise(images, torch.float64)
    with torch.no_grad():
        features = torch.cat([probe.network.double()(image[None]) for image in images])
    probe.network.float()
    onehot = task.targets if task.is_multilabel else np.eye(len(task.classes))[task.targets]
    omega = slow_head.weights_of(onehot, is_multilabel=task.is_multilabel, balance=balance)
    penalty = l2 * slow_head.spread(features.numpy(), omega)
    weight, bias = slow_head.fit(features.numpy(), onehot, omega, penalty, is_multilabel=task.is_multilabel)
    names = tuple(layer.name for layer in probe.layers)
    rows = ROWS[method](probe.network, names, images, weight, bias, is_multilabel=task.is_multilabel).numpy()
    return omega @ rows, rows, omega


@pytest.mark.parametrize("method", list(ROWS))
@pytest.mark.parametrize("balance", [True, False])
def test_all_seeds_equal_the_definition_from_end_to_end(probe, balance, method):
    task = make_task((5, 3, 2))
    expected, rows, omega = definition(task, probe, l2=0.01, balance=balance, method=method)
    settings = EmbedSettings(method=method, seeds="all", l2=0.01, balance=balance, dtype="float64")
    embedding = embed(task, probe, settings=settings, batch_size=4)
    alive = expected > expected.max() * 1e-12
    assert alive.mean() > 0.9
    # The two heads were fitted by different solvers, each to its own tolerance.
    assert np.allclose(embedding.fisher[alive], expected[alive], rtol=2e-4)
    variance = (omega[:, None] ** 2 * (rows - expected) ** 2).sum(0) * len(task) / (len(task) - 1)
    assert np.allclose(embedding.stderr[alive], np.sqrt(variance)[alive], rtol=2e-3)
    counts = embedding.provenance["counts"]
    assert (counts["images"], counts["images_used"], counts["backpropagated"]) == (10, 10, 30)


@pytest.mark.parametrize("method", list(ROWS))
def test_attributes_equal_the_definition_from_end_to_end(probe, method):
    task = make_attributes(8)
    expected, _, _ = definition(task, probe, l2=0.02, method=method)
    settings = EmbedSettings(method=method, seeds="all", l2=0.02, dtype="float64")
    embedding = embed(task, probe, settings=settings)
    alive = expected > expected.max() * 1e-12
    assert np.allclose(embedding.fisher[alive], expected[alive], rtol=2e-4)
    assert embedding.provenance["is_multilabel"] and embedding.provenance["counts"]["backpropagated"] == 24


def test_attributes_by_sampling(probe):
    task = make_attributes(20)
    exact = embed(task, probe, settings=EmbedSettings(seeds="all", dtype="float64"))
    sampled = embed(task, probe, settings=EmbedSettings(max_samples=40, dtype="float64"))
    assert sampled.provenance["counts"]["backpropagated"] in (39, 40, 41)
    assert sampled.provenance["head"] == exact.provenance["head"]
    assert symmetric(sampled, exact) < 0.02
    assert 0.7 < sampled.norm() / exact.norm() < 1.4


def test_the_fast_engine_estimates_the_same(probe, task):
    exact, fast = (
        embed(task, probe, settings=EmbedSettings(method="direct", seeds="all")) for engine in ("exact", "fast")
    )
    assert not np.array_equal(exact.fisher, fast.fisher)
    assert symmetric(exact, fast) < 0.02
    assert fast.norm() == pytest.approx(exact.norm(), rel=0.1)


def test_a_requested_precision_ends_the_run_early(probe):
    task = make_task((80, 80, 80))
    whole = embed(task, probe, settings=EmbedSettings(max_samples=240))
    loose = 1.5 * whole.provenance["relative_error"]
    early = embed(task, probe, settings=EmbedSettings(max_samples=240, rel_tol=loose))
    assert early.provenance["relative_error"] <= loose
    assert early.provenance["counts"]["images_used"] < whole.provenance["counts"]["images_used"]
    assert symmetric(early, whole) < 0.1
    strict = embed(
        task, probe, settings=EmbedSettings(max_samples=240, rel_tol=1e-6)
    )  # cannot be reached: all are used
    assert np.allclose(strict.fisher, whole.fisher, rtol=1e-4, atol=whole.fisher.max() * 1e-6)


def test_stated_relative_error_shrinks_with_images(probe):
    task = make_task((40, 40, 40))
    errors = [
        embed(task, probe, settings=EmbedSettings(max_samples=n)).provenance["relative_error"] for n in (12, 24, 360)
    ]
    assert errors[0] > errors[1] > errors[2] > 0


# --- memory ---


class Small:
    """A GPU that holds `most` images at a time."""

    def __init__(self, most, monkeypatch):
        self.sizes = []
        self.refused = 0
        rows = PerSampleFisher.rows_by_seed

        def guarded(engine, images, seeds, keys=None):
            self.check(len(images), most)
            return rows(engine, images, seeds, keys)

        monkeypatch.setattr(PerSampleFisher, "rows_by_seed", guarded)
        features = Passes._features

        def guarded_features(run, pixels):
            self.check(len(pixels), most)
            return features(run, pixels)

        monkeypatch.setattr(Passes, "_features", guarded_features)

    def check(self, count, most):
        if count > most:
            self.refused += 1
            raise torch.cuda.OutOfMemoryError("CUDA out of memory (pretended)")
        self.sizes.append(count)


@pytest.mark.parametrize("way", WAYS)
def test_batches_halve_when_memory_runs_out(probe, task, monkeypatch, way):
    settings = EmbedSettings(*way, dtype="float64")
    before = embed(task, probe, settings=settings, batch_size=16)
    gpu = Small(3, monkeypatch)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        after = embed(task, probe, settings=settings, batch_size=16)
    assert "going on with batches of 8 images" in str(said[0].message)
    assert gpu.refused <= 4  # a size that did not fit is not tried again
    assert max(gpu.sizes) <= 3
    assert np.allclose(after.fisher, before.fisher, rtol=1e-9, atol=0)
    assert np.allclose(after.stderr, before.stderr, rtol=1e-6, atol=before.stderr.max() * 1e-9)


def test_one_image_too_many_is_an_error_that_says_what_to_do(probe, task, monkeypatch):
    Small(0, monkeypatch)
    with pytest.raises(ResourceError, match=r"single image.*50 x 50.*--size.*--device cpu"):
        embed(task, probe, batch_size=1)


def test_few_images_are_kept_and_the_numbers_do_not_depend_on_it(probe, task, monkeypatch):
    before = embed(task, probe)
    loads = []
    load = Pixels.load
    monkeypatch.setattr(
        Pixels, "load", lambda self, index: (loads.append(index not in self.kept), load(self, index))[1]
    )
    monkeypatch.setattr("task2vec.embedding.batching.CACHE_BYTES", {"cpu": 3 * 50 * 50 * 4, "cuda": 0})
    after = embed(task, probe)
    assert np.array_equal(before.fisher, after.fisher)
    assert sum(loads) > 22 + 10  # all but four images were decoded for each pass


# --- degenerate tasks ---


def constant(shade, count=8):
    image = Image.new("RGB", (30, 30), (shade,) * 3)
    return from_dataset([(image, i % 2) for i in range(count)], name=f"shade {shade}")


@pytest.mark.parametrize("shade", [0, 255, 90])
@pytest.mark.parametrize("balance", [True, False])
def test_identical_images_are_never_nan(probe, shade, balance):
    embedding = embed(constant(shade, 9), probe, settings=EmbedSettings(balance=balance))
    for values in (embedding.fisher, embedding.stderr, embedding.vector):
        assert np.isfinite(values).all()
    assert embedding.provenance["head"]["cv_error"] == pytest.approx(0.5, abs=0.35)
    # A head that has nothing to go by is nearly constant, so hardly any Fisher is left of the probe.
    assert embedding.norm() < 1e-3
    assert symmetric(embedding, trivial(embedding)) < 0.5


def test_identical_images_with_attributes_are_never_nan(probe):
    image = Image.new("RGB", (30, 30))
    task = from_dataset([(image, torch.tensor([i % 2, int(i % 3 == 0)])) for i in range(12)])
    embedding = embed(task, probe)
    assert np.isfinite(embedding.fisher).all() and embedding.norm() < 1e-3


@pytest.mark.parametrize("counts", [(1, 1), (1, 1, 1, 1), (12, 1)])
def test_one_image_per_class(probe, counts):
    embedding = embed(make_task(counts), probe)
    assert np.isfinite(embedding.vector).all() and (embedding.vector > 0).all()
    assert np.isfinite(embedding.stderr).all()


# --- inputs ---


def test_tensors_arrays_and_pictures_are_the_same_task(probe):
    images, labels = pictures()
    arrays = [np.asarray(image) for image in images]
    tensors = [torch.from_numpy(array.copy()).permute(2, 0, 1) for array in arrays]
    floats = [tensor.float() / 255 for tensor in tensors]
    found = [
        embed(from_dataset(list(zip(kind, labels, strict=True))), probe).fisher
        for kind in (images, arrays, tensors, floats)
    ]
    assert found[0].sum() > 0
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_a_torch_dataset(probe):
    images, labels = pictures()
    tensors = torch.stack([torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) for image in images])
    dataset = torch.utils.data.TensorDataset(tensors, torch.tensor(labels))
    expected = embed(from_dataset(list(zip(images, labels, strict=True))), probe)
    assert np.array_equal(embed(from_dataset(dataset), probe).fisher, expected.fisher)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 says so and goes on
def test_bfloat16_is_close_to_itself_and_marked(probe, task):
    rough, fine = (embed(task, probe, settings=EmbedSettings(dtype=d, seeds="all")) for d in ("bfloat16", "float32"))
    assert rough.norm() == pytest.approx(fine.norm(), rel=0.3)
    assert rough.provenance["settings"]["dtype"] == "bfloat16"


def test_provenance_tells_the_story(probe, task):
    embedding = embed(task, probe, settings=EmbedSettings(max_samples=30, seed=3))
    story = embedding.provenance
    assert story["task_fingerprint"] == task.fingerprint and story["probe_fingerprint"] == probe.fingerprint
    assert story["settings"]["images"] == 30 and story["settings"]["seed"] == 3
    assert story["counts"]["per_class"] == [9, 7, 6] and story["counts"]["bad"] == 0
    assert set(story["versions"]) >= {"task2vec", "torch", "timm", "numpy"}
    assert 0 < story["effective_images"] <= story["counts"]["images_used"] <= 22
    assert json.loads(json.dumps(story)) == story  # plain values only


def test_an_unknown_device_is_a_usage_error(probe, task):
    with pytest.raises(UsageError, match="device 'tpu9'"):
        embed(task, probe, device="tpu9")


@pytest.mark.parametrize(
    "values",
    [
        {"engine": "quick"},
        {"seeds": "some"},
        {"dtype": "int8"},
        {"images": 1},
        {"precision": 0},
        {"precision": float("nan")},
        {"l2": -1.0},
        {"beta": 0},
        {"beta": float("inf")},
        {"seed": -1},
        {"seed": 1 << 63},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(values):
    with pytest.raises(UsageError, match=next(iter(values))):
        EmbedSettings(**values)


# --- prior, trivial, norm ---


def test_direct_prior_is_beta_over_images_and_mean_square_weight(probe, task):
    embedding = embed(task, probe, settings=EmbedSettings(method="direct", beta=0.03))
    modules = dict(probe.network.named_modules())
    expected = [
        0.03 / 22 / modules[n.name].weight.double().square().mean().item()
        for n in probe.layers
        for _ in range(n.filters)
    ]
    assert np.allclose(embedding.prior, expected, rtol=1e-6)
    assert np.array_equal(embedding.vector, embedding.fisher + embedding.prior)
    assert np.allclose(fixed_prior(probe.layers, beta=0.03 / 220), embedding.prior / 10)


def test_robust_prior_is_that_of_the_closed_form(probe, task):
    embedding = embed(task, probe, settings=EmbedSettings(beta=1e-4))
    beta = 1e-4 / 22
    precision, variances = closed_form(torch.from_numpy(embedding.fisher.copy()), probe.layers, beta=beta)
    assert np.allclose(embedding.vector, beta * precision.numpy(), rtol=1e-12)
    narrow = fixed_prior(probe.layers, beta=beta).numpy()
    part = narrow / embedding.prior  # how much wider than the weights: every layer its own, between its bounds
    assert part.min() >= 1 - 1e-12 and part.max() <= WIDEST + 1e-12 and part.max() - part.min() > 0.1
    for slices, variance in zip(embedding.layer_slices().values(), variances.tolist(), strict=True):
        assert np.allclose(embedding.prior[slices], beta / variance, rtol=1e-12)


def test_trivial_is_the_prior_alone(probe, task):
    embedding = embed(task, probe)
    nothing = trivial(embedding)
    assert np.array_equal(nothing.vector, embedding.prior) and nothing.norm() == 0
    assert nothing.probe_fingerprint == embedding.probe_fingerprint
    assert symmetric(embedding, nothing) > 0 and symmetric(nothing, nothing) == 0


def test_norm_is_the_sum_of_the_fisher(probe, task):
    embedding = embed(task, probe)
    assert embedding.norm() == pytest.approx(float(np.abs(embedding.fisher).sum()))
    slices = embedding.layer_slices()
    assert list(slices) == [layer.name for layer in probe.layers]
    assert sum(embedding.fisher[part].sum() for part in slices.values()) == pytest.approx(embedding.norm())


def test_arrays_are_read_only_and_the_callers_are_not():
    from task2vec.embedding import Embedding
    from task2vec.probe import FilterLayer

    mine = np.ones(2)
    embedding = Embedding("a", "net", mine, mine, mine, (FilterLayer("conv", "convolution", 2, 9, 0.1),))
    mine[0] = 7
    assert embedding.fisher[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        embedding.fisher[0] = 3


# --- golden vectors ---


@pytest.mark.parametrize("method", list(ROWS))
def test_golden_vector_of_the_default_probe(method):
    """N5. The golden files were written by `definition` above, in double precision: see what they say of themselves."""
    task = sample_tasks(images_per_task=24)[1]
    embedding = embed(task, load_probe(size=64), settings=EmbedSettings(method=method, seeds="all", l2=0.01))
    found = {name: float(embedding.fisher[part].sum()) for name, part in embedding.layer_slices().items()}
    golden = json.loads((GOLDEN / f"digit_parity_64_{method}.json").read_text())
    assert list(found) == list(golden["layers"])
    logs = [np.log(np.array(list(d.values()))) for d in (found, golden["layers"])]
    raw = [torch.tensor(list(d.values())) for d in (found, golden["layers"])]
    assert functional.cosine_similarity(*raw, dim=0) > 0.9999
    assert np.abs(logs[0] - logs[1]).max() < 0.05  # small layers too, which a cosine does not see
    assert embedding.norm() == pytest.approx(golden["norm"], rel=0.01)
