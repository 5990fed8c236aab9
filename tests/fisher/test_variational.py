"""Noise against a second full convolution, draw by draw; the gradient and the run of the optimisation; CUDA graphs."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from task2vec.fisher import NoisyNetwork, PerSampleFisher, mean_loss, minimise
from task2vec.fisher.variational import GraphedStep, _Record, fisher_under_noise
from task2vec.probe import Preprocess, make_probe
from tests.cases import make_case
from tests.fisher.seeds import all_seeds, random_head
from tests.oracles.fisher import noisy_features


def draw(seed=7):
    return torch.Generator().manual_seed(seed)


def random_images(probe, count=2):
    return torch.randn(count, 3, *probe.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def random_deviations(probe, part=0.1):
    """A deviation per filter, about `part` of the weights of its layer, each its own."""
    generator = torch.Generator().manual_seed(5)
    sizes = torch.tensor([layer.mean_square_weight for layer in probe.layers for _ in range(layer.filters)]).double()
    return part * sizes.sqrt() * (0.5 + torch.rand(len(sizes), generator=generator, dtype=torch.float64))


def features_under_noise(noisy, images, deviations, seed=7):
    with noisy.noise(deviations, draw(seed)):
        return noisy.network.module(images)


def with_gradient(function, images):
    """Features, and the gradient of a fixed mixture of them with respect to the images."""
    images = images.clone().requires_grad_()
    features = function(images)
    mixture = torch.randn(features.shape, generator=draw(1), dtype=torch.float64)
    return features.detach(), torch.autograd.grad(features, images, mixture)[0]


def gap(found, expected):
    """Largest difference, as a part of the largest number."""
    return float((found - expected).abs().max() / expected.abs().max())


# Every kind of layer; the other cases have no other.
LARGE = pytest.param("tf_efficientnet_lite0", marks=pytest.mark.long)


@pytest.mark.parametrize("name", [LARGE, "vit_tiny", "swin_v2", "odd", "shared", "encoder"])
def test_box_sums_equal_a_second_convolution(name):
    probe = make_case(name)
    images, deviations = random_images(probe, 1), random_deviations(probe)
    plain = copy.deepcopy(probe.network).double().requires_grad_(False)
    expected = with_gradient(lambda x: noisy_features(plain, probe.layers, x, deviations, generator=draw()), images)
    for fold in (True, False):
        network = probe.prepare(dtype=torch.float64, fold=fold, flip=fold)
        noisy = NoisyNetwork(network, probe.layers)
        found = with_gradient(lambda x, noisy=noisy: features_under_noise(noisy, x, deviations), images)
        assert gap(found[0], network.module(images)) > 1e-3  # there is noise to compare
        for what, one, other in zip(("features", "images"), found, expected, strict=True):
            assert gap(one, other) < 1e-8, (fold, what)


# --- the gradient ---


class Smooth(nn.Module):
    """Two convolutions with batch-norm, all smooth, so that derivatives can be told from differences."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 6, 2, groups=2)
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(torch.tanh(self.second(torch.tanh(self.norm(self.first(x))))).mean((2, 3)))


@pytest.fixture(scope="module")
def probe():
    torch.manual_seed(0)
    module = Smooth().eval()
    module.norm.running_var.fill_(0.3)
    return make_probe("smooth", module, ("fc",), Preprocess(size=(8, 8), resize=8), source="test")


TARGETS = {
    "classes": torch.tensor([0, 2, 1, 1]),
    "attributes": torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 1], [1, 1, 1]]),
}


@pytest.fixture(params=list(TARGETS))
def task(request, probe):
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return images, TARGETS[request.param], random_head(probe, 3)


def noisy_network(probe):
    return NoisyNetwork(probe.prepare(dtype=torch.float64), probe.layers)


def log_precisions(probe, noise=0.3):
    sizes = torch.cat([torch.full((la.filters,), la.mean_square_weight) for la in probe.layers]).double()
    own = 0.3 * torch.randn(len(sizes), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return -2 * math.log(noise) - sizes.log() + own


def test_loss_is_that_of_torch():
    logits = torch.randn(4, 3, generator=draw(), dtype=torch.float64)
    by_class = mean_loss(logits, TARGETS["classes"])
    assert by_class == functional.cross_entropy(logits, TARGETS["classes"])
    p = logits.sigmoid()
    y = TARGETS["attributes"]
    expected = -(y * p.log() + (1 - y) * (1 - p).log()).sum(1).mean()  # attributes add up, images are averaged
    assert torch.allclose(mean_loss(logits, y), expected)


def test_the_fisher_under_noise_is_that_of_all_labels_on_average(probe, task):
    images, targets, head = task
    network, deviations = noisy_network(probe), (-log_precisions(probe) / 2).exp()
    fisher = PerSampleFisher(network.network, probe.layers, is_untied=True)
    gaps, sizes, losses = [], [], []
    for seed in range(80):
        loss, found = fisher_under_noise(network, images, targets, deviations, head, draw(seed))
        passed = []

        def seeds(features, passed=passed):
            passed.append(features)
            return all_seeds(features, *head, targets.ndim == 2)

        with network.noise(deviations, draw(seed)):  # noise comes before labels, so it is the same
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


def run(probe, images, targets, head, **options):
    given = {"beta": 1e-4, "steps": 30, "steps_per_epoch": 10, "generator": draw(), "head_rate": 1e-3, **options}
    batches = iter(lambda: (images, targets), None)
    return minimise(noisy_network(probe), batches, weight=head[0], bias=head[1], **given)


def test_the_head_moves_only_if_it_may(probe, task):
    images, targets, head = task
    before = [part.clone() for part in head]
    free = run(probe, images, targets, head)
    held = run(probe, images, targets, head, head_rate=0.0)
    assert not torch.equal(free.weight, before[0]) and not torch.equal(free.bias, before[1])
    assert torch.equal(held.weight, before[0]) and torch.equal(held.bias, before[1])
    assert torch.equal(head[0], before[0]) and torch.equal(head[1], before[1])  # nor is the caller's ever touched
    assert not free.weight.requires_grad and math.isfinite(free.loss) and math.isfinite(free.kl)
    assert free.loss < held.loss + 0.05


def test_a_start_away_from_the_minimum_comes_back_to_it(probe):
    images = torch.randn(4, 3, 8, 8, generator=draw(1), dtype=torch.float64)
    long = {"head_rate": 0.0, "beta": 1e-3, "rate": 5e-2, "steps": 140, "steps_per_epoch": 20}
    found = run(probe, images, TARGETS["classes"], random_head(probe, 3), **long)
    start = found.log_precision + torch.linspace(-2, 2, probe.n_filters)
    again = run(probe, images, TARGETS["classes"], random_head(probe, 3), start=start, **long)
    assert float((again.log_precision - found.log_precision).abs().median()) < 0.1
    assert again.drift < 0.1 and again.speed < 0.1
    # Three steps away from it is not there yet, and the speed shows it.
    begun = run(
        probe,
        images,
        TARGETS["classes"],
        random_head(probe, 3),
        start=found.log_precision + 2,
        **{**long, "steps": 6, "steps_per_epoch": 3},
    )
    assert begun.speed > 0.5


def test_every_step_is_watched(probe, task):
    seen = []
    found = run(probe, *task, steps=7, watch=lambda step, log_precision: seen.append((step, log_precision.clone())))
    assert [step for step, _ in seen] == list(range(7))
    tail = torch.stack([value for _, value in seen[-4:]])  # the last half, rounded up
    assert torch.allclose(found.log_precision, tail.mean(0), rtol=1e-12)


# --- the record ---


def record_of(values, steps_per_epoch):
    record = _Record(len(values), steps_per_epoch)
    for value in values:
        record.add(torch.tensor([float(value), 2.0 * value]), torch.tensor(float(value)))
    return record


def test_the_record_has_the_mean_of_the_last_half_and_the_drift_of_the_last_epochs():
    values = [float(v) for v in range(40)]
    record = record_of(values, 10)
    mean, _, trend = record.tail()
    assert mean.tolist() == [29.5, 59.0] and trend > 0
    assert record.drift() == pytest.approx(math.sqrt((10**2 + 20**2) / 2))
    assert record.loss() == pytest.approx(34.5)
    assert record_of([3.0] * 40, 10).drift() == 0 and record_of([3.0] * 40, 10).tail()[1].tolist() == [0, 0]


@pytest.mark.parametrize("steps", [1, 2, 7, 17, 100])
@pytest.mark.parametrize("steps_per_epoch", [5, 1000])
def test_any_length_of_run_has_a_record(steps, steps_per_epoch):
    values = torch.arange(steps).double()
    mean, stderr, _ = (record := record_of(values.tolist(), steps_per_epoch)).tail()
    last = max(1, round(steps / 2))
    assert mean[0].item() == pytest.approx(float(values[-last:].mean()), abs=1e-9)
    assert torch.isfinite(stderr).all() and math.isfinite(record.drift()) and math.isfinite(record.loss())
    if steps == 1:
        assert record.drift() == 1.0 and stderr.tolist() == [1.0, 1.0]


def test_the_stated_error_of_the_tail_is_that_of_independent_steps():
    generator = draw()
    found = []
    for _ in range(300):
        found.append(record_of(torch.randn(64, generator=generator).tolist(), 8).tail())
    means, errors = (torch.stack([pair[i][0] for pair in found]) for i in (0, 1))
    assert float(errors.square().mean() / means.var()) == pytest.approx(1, rel=0.3)


# --- CUDA graphs ---

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need an NVIDIA GPU")


def walk(device: str, *, is_recordable: bool, does_read: bool = False, sizes: tuple[int, ...] = (4,) * 12):
    """A noisy walk with state and optimiser; returns where it ends, its losses, and the graphed step."""
    generator = torch.Generator(device).manual_seed(0)
    place = torch.zeros(3, device=device)
    place.grad = torch.zeros_like(place)
    optimiser = torch.optim.Adam([place], lr=0.1, capturable=device == "cuda")

    def step(images: Tensor, targets: Tensor) -> Tensor:
        noise = torch.empty_like(images).normal_(generator=generator)
        if does_read and noise.sum().item() > 1e9:
            raise AssertionError
        place.grad.copy_((place - images - noise).mean(0) + targets.sum())
        optimiser.step()
        return (place - images).square().sum()

    replay = GraphedStep(step, generator, is_recordable=is_recordable)
    batches = [
        (torch.full((size, 3), float(i), device=device), torch.ones(size, device=device))
        for i, size in enumerate(sizes)
    ]
    losses = [float(replay(*batch)) for batch in batches]
    return place.clone(), losses, replay


def test_a_cpu_runs_the_step_as_written():
    one, losses, replay = walk("cpu", is_recordable=True)
    other, same, _ = walk("cpu", is_recordable=False)
    assert replay.graph is None
    assert torch.equal(one, other)
    assert losses == same
    assert len(set(losses)) == len(losses)


@needs_cuda
def test_a_recorded_step_draws_the_same_noise_and_goes_the_same_way():
    one, losses, replay = walk("cuda", is_recordable=True)
    other, same, _ = walk("cuda", is_recordable=False)
    assert replay.graph is not None
    torch.testing.assert_close(one, other)
    assert losses == pytest.approx(same, rel=1e-5)


@needs_cuda
def test_a_step_that_reads_a_value_runs_without_a_recording():
    one, losses, replay = walk("cuda", is_recordable=True, does_read=True)
    other, same, _ = walk("cuda", is_recordable=False, does_read=True)
    assert replay.graph is None
    torch.testing.assert_close(one, other)
    assert losses == pytest.approx(same, rel=1e-5)
