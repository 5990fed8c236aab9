"""Noise against a second full convolution, draw by draw; the gradient and the run of the optimisation; CUDA graphs."""

import copy
import math
from itertools import chain, repeat

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from task2vec.fisher import NoisyNetwork, PerSampleFisher, mean_loss, minimise
from task2vec.fisher.variational import GraphedStep, _Record, fisher_under_noise
from tests.cases import make_case, make_tiny
from tests.fisher.seeds import all_seeds, normal, random_head, random_images, seeded
from tests.oracles.fisher import noisy_features


def random_deviations(probe, part=0.1):
    """A deviation per filter, about `part` of the weights of its layer, each its own."""
    sizes = torch.tensor([layer.mean_square_weight for layer in probe.layers for _ in range(layer.filters)]).double()
    return part * sizes.sqrt() * (0.5 + torch.rand(len(sizes), generator=seeded(5), dtype=torch.float64))


def features_under_noise(noisy, images, deviations):
    with noisy.noise(deviations, seeded()):
        return noisy.network.module(images)


def with_gradient(function, images):
    """Features, and the gradient of a fixed mixture of them with respect to the images."""
    images = images.clone().requires_grad_()
    features = function(images)
    return features.detach(), torch.autograd.grad(features, images, normal(*features.shape))[0]


def gap(found, expected):
    """Largest difference, as a part of the largest number."""
    return float((found - expected).abs().max() / expected.abs().max())


# Every kind of layer; the other cases have no other.
LARGE = [pytest.param(name, marks=pytest.mark.long) for name in ("tf_efficientnet_lite0", "vit_tiny", "swin_v2")]


@pytest.mark.parametrize("name", [*LARGE, "odd", "shared", "encoder"])
def test_box_sums_equal_a_second_convolution(name):
    probe = make_case(name)
    images, deviations = random_images(probe, 1), random_deviations(probe)
    plain = copy.deepcopy(probe.network).double().requires_grad_(False)
    expected = with_gradient(lambda x: noisy_features(plain, probe.layers, x, deviations, generator=seeded()), images)
    for fold in (True, False):
        network = probe.prepare(dtype=torch.float64, fold=fold, flip=fold)
        noisy = NoisyNetwork(network, probe.layers)
        found = with_gradient(lambda x, noisy=noisy: features_under_noise(noisy, x, deviations), images)
        assert gap(found[0], network.module(images)) > 1e-3  # there is noise to compare
        for what, one, other in zip(("features", "images"), found, expected, strict=True):
            assert gap(one, other) < 1e-8, (fold, what)


# --- the gradient ---


@pytest.fixture(scope="module")
def probe():
    return make_tiny()


TARGETS = {
    "classes": torch.tensor([0, 2, 1, 1]),
    "attributes": torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 1], [1, 1, 1]]),
}


@pytest.fixture(params=list(TARGETS))
def task(request, probe):
    return normal(4, 3, 8, 8, seed=1), TARGETS[request.param], random_head(probe, 3)


def noisy_network(probe):
    return NoisyNetwork(probe.prepare(dtype=torch.float64), probe.layers)


def test_loss_is_that_of_torch():
    logits, y = normal(4, 3), TARGETS["attributes"]
    assert mean_loss(logits, TARGETS["classes"]) == functional.cross_entropy(logits, TARGETS["classes"])
    p = logits.sigmoid()
    expected = -(y * p.log() + (1 - y) * (1 - p).log()).sum(1).mean()  # attributes add up, images are averaged
    assert torch.allclose(mean_loss(logits, y), expected)


def test_the_fisher_under_noise_is_that_of_all_labels_on_average(probe, task):
    images, targets, head = task
    network, deviations = noisy_network(probe), random_deviations(probe, 0.3)
    fisher = PerSampleFisher(network.network, probe.layers, is_untied=True)
    gaps, sizes, losses = [], [], []
    for seed in range(50):
        loss, found = fisher_under_noise(network, images, targets, deviations, head, seeded(seed))
        passed = []

        def seeds(features, passed=passed):
            passed.append(features)
            return all_seeds(features, *head, targets.ndim == 2)

        with network.noise(deviations, seeded(seed)):  # noise comes before labels, so it is the same
            everything = fisher.rows(images, seeds).mean(0)
        gaps.append(found - everything)
        sizes.append(everything)
        losses.append(abs(float(loss - mean_loss(functional.linear(passed[0], *head), targets))))
    gaps, mean = torch.stack(gaps), torch.stack(sizes).mean(0)
    error = gaps.std(0) / len(gaps) ** 0.5
    assert max(losses) < 1e-12
    assert float((gaps.mean(0).abs() / error).max()) < 4.5 and float((error / mean).max()) < 0.15
    # And it is another Fisher than that without noise.
    with torch.no_grad():
        clean = fisher.rows(images, lambda features: all_seeds(features, *head, targets.ndim == 2)).mean(0)
    assert float(((mean - clean).abs() / clean).median()) > 0.02


# --- the run ---


def run(probe, images, targets, head, *, first=None, **options):
    given = {"beta": 1e-4, "steps": 30, "steps_per_epoch": 10, "generator": seeded(7), "head_rate": 1e-3, **options}
    batches = chain([(images if first is None else first, targets)], repeat((images, targets)))
    return minimise(noisy_network(probe), batches, weight=head[0], bias=head[1], **given)


def test_the_head_moves_only_if_it_may(probe, task):
    images, targets, head = task
    before = [part.clone() for part in head]
    free, held = (run(probe, images, targets, head, head_rate=rate) for rate in (1e-3, 0.0))
    for old, own, moved, stays in zip(before, head, (free.weight, free.bias), (held.weight, held.bias), strict=True):
        assert torch.equal(stays, old) and torch.equal(own, old)  # nor is the caller's ever touched
        assert not torch.equal(moved, old) and not moved.requires_grad
    assert free.loss < held.loss + 0.05 and math.isfinite(free.kl)


def test_a_start_away_from_the_minimum_comes_back_to_it(probe):
    images, head = normal(4, 3, 8, 8, seed=1), random_head(probe, 3)
    # L begins at the curvature of the first batch: darker images there are another start.
    long = {"head_rate": 0.0, "beta": 1e-3, "rate": 5e-2, "steps": 100, "steps_per_epoch": 20}
    found, again = (run(probe, images, TARGETS["classes"], head, first=scale * images, **long) for scale in (1, 0.01))
    assert float((again.log_precision - found.log_precision).abs().median()) < 0.1
    assert again.drift < 0.1 and again.speed < 0.1
    # A few steps away from it is not there yet, and the speed shows it.
    short = long | {"steps": 6, "steps_per_epoch": 3}
    assert run(probe, images, TARGETS["classes"], head, first=0.01 * images, **short).speed > 0.5


# --- the record ---


def summarise(values, steps_per_epoch):
    record = _Record(len(values), steps_per_epoch)
    for value in values:
        record.add(torch.tensor([float(value), 2.0 * value]), torch.tensor(float(value)))
    return record.summarise()


def test_the_record_has_the_mean_of_the_last_half_and_the_drift_of_the_last_epochs():
    mean, _, trend, drift, loss = summarise(range(40), 10)
    assert mean.tolist() == [29.5, 59.0] and loss == pytest.approx(34.5)
    assert drift == pytest.approx(math.sqrt((10**2 + 20**2) / 2))
    assert trend == pytest.approx(math.sqrt((8.5**2 + 17**2) / 2))  # of eight blocks, the last of six steps
    _, stderr, _, drift, _ = summarise([3.0] * 40, 10)
    assert drift == 0 and stderr.tolist() == [0, 0]


@pytest.mark.parametrize(("steps", "steps_per_epoch"), [(1, 5), (2, 1000), (7, 5), (17, 1000)])
def test_any_length_of_run_has_a_record(steps, steps_per_epoch):
    mean, stderr, *rest = summarise(range(steps), steps_per_epoch)
    last = max(1, round(steps / 2))
    assert mean[0].item() == pytest.approx(steps - (last + 1) / 2, abs=1e-9)
    assert torch.isfinite(stderr).all() and all(math.isfinite(value) for value in rest)
    assert steps > 1 or (rest[:2] == [1.0, 1.0] and stderr.tolist() == [1.0, 1.0])


def test_the_stated_error_of_the_tail_is_that_of_independent_steps():
    found = [summarise(row.tolist(), 8) for row in normal(120, 64)]
    means, errors = (torch.stack([pair[i][0] for pair in found]) for i in (0, 1))
    assert float(errors.square().mean() / means.var()) == pytest.approx(1, rel=0.3)


# --- CUDA graphs ---

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need an NVIDIA GPU")


def walk(*, is_recorded: bool, does_read: bool = False):
    """A noisy walk on a GPU with state and optimiser; returns where it ends, its losses, and the step."""
    generator = torch.Generator("cuda").manual_seed(0)
    place = torch.zeros(3, device="cuda")
    place.grad = torch.zeros_like(place)
    optimiser = torch.optim.Adam([place], lr=0.1, capturable=True)

    def step(images: Tensor, targets: Tensor) -> Tensor:
        noise = torch.empty_like(images).normal_(generator=generator)
        if does_read and noise.sum().item() > 1e9:
            raise AssertionError
        place.grad.copy_((place - images - noise).mean(0) + targets.sum())
        optimiser.step()
        return (place - images).square().sum()

    move = GraphedStep(step, generator) if is_recorded else step
    ones = torch.ones(4, device="cuda")
    losses = [float(move(torch.full((4, 3), float(i), device="cuda"), ones)) for i in range(12)]
    return place.clone(), losses, move


@needs_cuda
@pytest.mark.parametrize("does_read", [False, True])
def test_a_recorded_step_draws_the_same_noise_and_goes_the_same_way(does_read):
    one, losses, replay = walk(is_recorded=True, does_read=does_read)
    other, same, _ = walk(is_recorded=False, does_read=does_read)
    assert (replay.graph is None) == does_read  # a step that reads a value runs without a recording
    torch.testing.assert_close(one, other)
    assert losses == pytest.approx(same, rel=1e-5)
