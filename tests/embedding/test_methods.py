"""The three methods from a task to an embedding: what they share, what distinguishes them, and how training reports."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from timm.layers.std_conv import StdConv2d

from task2vec.distance import symmetric
from task2vec.embedding import EmbedSettings, VariationalSettings, embed, load_embedding
from task2vec.embedding.batching import Passes, Pixels
from task2vec.embedding.single import draw_batches, prepare_job, train_head
from task2vec.errors import NotFiniteError, ProbeError
from task2vec.probe import Preprocess, make_probe
from task2vec.progress import silent
from task2vec.tasks import from_dataset
from tests.cases import Tiny, make_attributes, make_task, make_tiny
from tests.embedding.families import numbers

METHODS = ("robust", "direct", "variational")
QUICK = VariationalSettings(epochs=3, head_epochs=1, draws=32, batch=16)


def settings_of(method, *, training=QUICK, l2=0.1, **own):
    return EmbedSettings(method=method, variational=training, l2=l2, **own)


def train(probe, *, task=None, own=None, **changes):
    """The embedding of a task by the variational method, with the quick training but for some changes."""
    settings = settings_of("variational", training=replace(QUICK, **changes), **(own or {}))
    return embed(task or make_task(), probe, settings=settings)


def is_sound(embedding):
    finite = all(np.isfinite(values).all() for values in (embedding.fisher, embedding.stderr, embedding.vector))
    return finite and bool((embedding.vector > 0).all()) and bool((embedding.fisher >= 0).all())


@pytest.mark.parametrize("make", [make_task, make_attributes])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_a_positive_vector_and_records_which_it_is(probe, tmp_path, method, make):
    task = make()
    before = {key: value.clone() for key, value in probe.network.state_dict().items()}
    embedding = embed(task, probe, settings=settings_of(method))
    assert is_sound(embedding) and embedding.norm() > 0
    story = embedding.provenance
    assert story["settings"]["method"] == method and json.loads(json.dumps(story)) == story
    assert ("variational" in story) == ("epochs" in story["settings"]) == (method == "variational")
    assert numbers(load_embedding(embedding.save(tmp_path / "x"))) == numbers(embedding)
    after = probe.network.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)
    for network in (probe.network, probe.prepare(device=torch.device("cpu")).module):
        assert not any(m._forward_hooks for m in network.modules())
        assert not any(p.requires_grad or p.grad is not None for p in network.parameters())


def test_every_setting_of_the_training_counts(probe):
    others = {"epochs": 4, "head_epochs": 2, "draws": 48, "batch": 8, "rate": 0.02, "head_rate": 1e-2, "head": "fixed"}
    seen = {numbers(train(probe))} | {numbers(train(probe, **{name: value})) for name, value in others.items()}
    assert len(seen) == 1 + len(others)


@pytest.mark.parametrize(("balance", "shares"), [(True, [1 / 3] * 3), (False, [0.15, 0.2, 0.65])])
def test_images_are_drawn_uniformly_over_classes_and_keep_their_labels(probe, balance, shares):
    """Images that can be told apart by one look: what arrives under a label is of its class."""
    shades = np.repeat([20, 120, 220], [13, 4, 3])
    task = from_dataset([(Image.new("RGB", (8, 8), (int(s) + i % 3,) * 3), int(s)) for i, s in enumerate(shades)])
    settings = settings_of("variational", training=VariationalSettings(batch=100), balance=balance)
    job = prepare_job(task, probe, settings=settings, device="cpu", num_workers=2)
    drawn = list(draw_batches(job, 30))
    assert all(images.shape == (100, 3, 8, 8) and images.dtype == torch.float32 for images, _ in drawn)
    images, targets = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    assert sorted((torch.bincount(targets) / 3000).tolist()) == pytest.approx(shares, abs=0.03)
    classes = [images.mean((1, 2, 3))[targets == c] for c in range(3)]
    middles = torch.stack([some.mean() for some in classes]).sort().values
    assert max(float(some.max() - some.min()) for some in classes) < 0.1 < float(middles.diff().min()) / 5


def test_batches_that_were_filled_up_for_a_gpu_lose_what_was_added(probe, monkeypatch):
    """On a GPU the input is filled up to a multiple of 32; targets are not."""
    before, plain = train(probe, batch=20), Passes.input
    filled = lambda x: torch.cat([x, x[-1:].expand(-len(x) % 32, -1, -1, -1)])  # noqa: E731
    monkeypatch.setattr(Passes, "input", lambda self, pixels: filled(plain(self, pixels)))
    assert numbers(before) == numbers(train(probe, batch=20))


def test_the_head_learns_and_stays_if_fixed(probe):
    task = make_task((30, 30), seed=4)
    training = VariationalSettings(draws=320, batch=32, head_epochs=10, head_rate=1e-2)
    job = prepare_job(task, probe, settings=settings_of("variational", training=training), device="cpu", num_workers=1)
    features = job.features(silent)
    weight, bias = train_head(job, features, silent)
    assert float(((features @ weight.T + bias).argmax(1) == job.targets).float().mean()) > 0.9
    fixed, fast = (train(probe, task=task, head="fixed", **own) for own in ({}, {"head_rate": 0.1, "head_epochs": 3}))
    assert numbers(fixed) == numbers(fast)
    assert fixed.provenance["head"] == embed(task, probe, settings=settings_of("direct")).provenance["head"]


LONG = VariationalSettings(epochs=6, head_epochs=1, draws=1120, batch=16, head="fixed")


@pytest.fixture(scope="module")
def converged(probe):
    # A penalty that leaves a head of moderate size: then hardly any noise is needed, and curvature is all there is.
    return embed(make_task(), probe, settings=settings_of("variational", training=LONG, beta=1e-4))


def test_a_run_that_has_converged_has_no_warning_and_another_has_one_with_the_remedy(probe, converged):
    story = converged.provenance["variational"]
    assert set(story) == {"loss", "kl", "drift", "trend", "has_converged"}
    assert story["has_converged"] is True and max(story["drift"], story["trend"]) < 0.1
    assert 0 < story["loss"] < math.log(3) + 0.1 and story["kl"] > 0
    assert "converged" not in str(converged.provenance["warnings"]) and 0 < converged.provenance["relative_error"] < 0.1
    for epochs in (1, 2):  # one step shows nothing
        embedding = train(probe, epochs=epochs, draws=16)
        assert embedding.provenance["variational"]["has_converged"] is False and is_sound(embedding)
        assert "% of the optimiser's top speed: raise epochs= (--epochs)" in str(embedding.provenance["warnings"])


def test_training_ends_where_the_closed_form_says(probe, converged):
    """Where the same head is held and the noise is small, the optimisation and the robust Fisher are one."""
    robust = embed(make_task(), probe, settings=EmbedSettings("robust", "all", smoothing=0, beta=1e-4, l2=0.1))
    assert converged.provenance["head"] == robust.provenance["head"]
    # Filters that fire for a few images only are drawn too seldom to settle.
    alive = robust.fisher > 0.05 * np.median(robust.fisher)
    assert alive.sum() > 8
    logs = (np.log(converged.vector) - np.log(robust.vector))[alive]
    assert np.median(np.abs(logs)) < 0.05 and np.abs(logs).max() < 0.3
    direct = embed(make_task(), probe, settings=EmbedSettings("direct", seeds="all", beta=1e-4, l2=0.1))
    assert np.median(np.abs(np.log(converged.vector) - np.log(direct.vector))) > 0.3  # another quantity


@pytest.mark.parametrize("method", METHODS)
def test_dead_layers_and_extreme_priors_are_never_nan(probe, method):
    """Weights of zeros, and a bias so low that no ReLU after it ever fires."""
    module = Tiny().eval()
    with torch.no_grad():
        module.first.weight.zero_()
        module.second.bias.fill_(-1e4)
    dead = make_probe("dead", module, ("fc",), Preprocess(size=(8, 8), resize=8), source="test")
    embedding = embed(make_task(), dead, settings=settings_of(method))
    assert is_sound(embedding) and symmetric(embedding, embedding) == 0
    for beta in (1e-30, 1e30):
        assert is_sound(embed(make_task(), probe, settings=settings_of(method, beta=beta)))


def test_huge_learning_rates_are_bounded(probe):
    embedding = train(probe, rate=1e6, head_rate=1e6)
    assert is_sound(embedding) and all(math.isfinite(x) for x in embedding.provenance["variational"].values())


class Explosive(Tiny):
    """As soon as there is any noise, its features overflow."""

    def forward(self, x):
        clean = super().forward(x)
        return clean + (1e30 * (self.first(x) - self.first(x)).flatten(1)[:, :1]) ** 3


def test_features_that_overflow_under_noise_name_a_layer():
    probe = make_tiny(kind=Explosive)
    with pytest.raises(NotFiniteError, match=r"layer 'first'.*step 1 .*nothing was saved.*--dtype float64"):
        embed(make_task(), probe, settings=settings_of("variational"))
    assert not any(m._forward_hooks for m in probe.prepare(device=torch.device("cpu")).module.modules())
    for method in ("robust", "direct"):  # which know no noise
        assert is_sound(embed(make_task(), probe, settings=EmbedSettings(method)))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 says so and goes on
def test_half_precision_trains_as_single_precision_does(probe):
    """Steps of 0.01 on a logarithm near 10 are below the resolution of bfloat16."""
    moved = []
    for dtype in ("float32", "bfloat16"):
        how = {"own": {"dtype": dtype, "beta": 1e-4}, "epochs": 4, "draws": 96, "head": "fixed"}
        start, end = (train(probe, rate=rate, **how) for rate in (1e-9, 1e-2))
        moved.append(np.log(end.vector / start.vector))
    assert np.abs(moved[0]).mean() > 0.01
    assert np.abs(moved[1] - moved[0]).mean() < 0.5 * np.abs(moved[0]).mean() + 0.05


def test_a_probe_that_changes_its_weights_is_refused_before_an_image_is_read(monkeypatch):
    probe, task = make_tiny(second=StdConv2d), make_task()
    with monkeypatch.context() as patch:
        patch.setattr(Pixels, "load", lambda *_: pytest.fail("an image was read"))
        with pytest.raises(ProbeError, match=r"'second'.*StdConv2d.*--method robust"):
            embed(task, probe, settings=settings_of("variational"))
    assert is_sound(embed(task, probe))  # whose warnings are errors here
