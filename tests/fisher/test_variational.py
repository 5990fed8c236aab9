"""The steps of the optimisation: both gradients by themselves, what moves and what does not, and how it ends."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from task2vec.errors import NotFiniteError
from task2vec.fisher import NoisyNetwork, PerSampleFisher, mean_loss, minimise, weight_scales
from task2vec.fisher.variational import _Record, curvature_gradient, fisher_under_noise, noise_gradient
from task2vec.probe import Preprocess, make_probe
from tests.fisher.seeds import all_seeds, random_head


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


def draw(seed=7):
    return torch.Generator().manual_seed(seed)


def test_loss_is_that_of_torch():
    logits = torch.randn(4, 3, generator=draw(), dtype=torch.float64)
    by_class = mean_loss(logits, TARGETS["classes"])
    assert by_class == functional.cross_entropy(logits, TARGETS["classes"])
    p = logits.sigmoid()
    y = TARGETS["attributes"]
    expected = -(y * p.log() + (1 - y) * (1 - p).log()).sum(1).mean()  # attributes add up, images are averaged
    assert torch.allclose(mean_loss(logits, y), expected)


def test_noise_gradient_is_the_slope_of_the_loss_under_the_same_noise(probe, task):
    images, targets, head = task
    network, here = noisy_network(probe), log_precisions(probe)
    heads = tuple(part.clone().requires_grad_() for part in head)
    loss, slope = noise_gradient(network, images, targets, here, heads, draw())

    def loss_at(log_precision, weight=head[0]):
        features = network.features(images, (-log_precision / 2).exp(), generator=draw())
        return float(mean_loss(functional.linear(features, weight, head[1]), torch.cat([targets, targets])))

    assert loss_at(here) == pytest.approx(float(loss), rel=1e-12)
    weights = torch.cat([torch.full((la.filters,), la.weights_per_filter) for la in probe.layers])
    for k in range(len(here)):
        step = torch.zeros_like(here)
        step[k] = 1e-5
        expected = (loss_at(here + step) - loss_at(here - step)) / 2e-5
        assert float(slope[k] * weights[k]) == pytest.approx(expected, rel=1e-4, abs=1e-9)
    step = torch.zeros_like(head[0])
    step[1, 2] = 1e-5
    expected = (loss_at(here, head[0] + step) - loss_at(here, head[0] - step)) / 2e-5
    assert float(heads[0].grad[1, 2]) == pytest.approx(expected, rel=1e-4)
    assert not here.requires_grad and here.grad is None


def test_curvature_gradient_is_minus_half_the_variance_times_the_fisher(probe, task):
    images, targets, head = task
    network, here = noisy_network(probe), log_precisions(probe)
    loss, slope = curvature_gradient(network, images, targets, here, head, draw())
    same_loss, fisher = fisher_under_noise(network, images, targets, (-here / 2).exp(), head, draw())
    assert loss == same_loss and torch.allclose(slope, -(-here).exp() * fisher / 2, rtol=1e-12)


def test_the_fisher_under_noise_is_that_of_all_labels_on_average(probe, task):
    images, targets, head = task
    network, deviations = noisy_network(probe), (-log_precisions(probe) / 2).exp()
    engine = PerSampleFisher(network.network, probe.layers, is_untied=True)
    gaps, sizes, losses = [], [], []
    for seed in range(160):
        loss, found = fisher_under_noise(network, images, targets, deviations, head, draw(seed))
        passed = []

        def seeds(features, passed=passed):
            passed.append(features)
            return all_seeds(features, *head, targets.ndim == 2)

        with network.noise(deviations, draw(seed)):  # noise comes before labels, so it is the same
            everything = engine.rows(images, seeds).mean(0)
        gaps.append(found - everything)
        sizes.append(everything)
        losses.append(abs(float(loss - mean_loss(functional.linear(passed[0], *head), targets))))
    gaps, mean = torch.stack(gaps), torch.stack(sizes).mean(0)
    error = gaps.std(0) / len(gaps) ** 0.5
    assert max(losses) < 1e-12
    assert float((gaps.mean(0).abs() / error).max()) < 4.5 and float((error / mean).max()) < 0.1
    # And it is another Fisher than that without noise.
    with torch.no_grad():
        clean = engine.rows(images, lambda features: all_seeds(features, *head, targets.ndim == 2)).mean(0)
    assert float(((mean - clean).abs() / clean).median()) > 0.02


def test_two_classes_leave_no_choice_of_labels(probe):
    images = torch.randn(3, 3, 8, 8, generator=draw(1), dtype=torch.float64)
    head, network = random_head(probe, 2), noisy_network(probe)
    nothing = torch.zeros(probe.n_filters).double()
    engine = PerSampleFisher(network.network, probe.layers, is_untied=True)
    expected = engine.rows(images, lambda features: all_seeds(features, *head, False)).mean(0)
    _, found = fisher_under_noise(network, images, torch.tensor([0, 1, 1]), nothing, head, draw())
    assert torch.allclose(found, expected, rtol=1e-10)


def test_the_gradient_of_the_head_is_that_of_the_mean_loss(probe, task):
    images, targets, head = task
    heads = tuple(part.clone().requires_grad_() for part in head)
    nothing = torch.zeros(probe.n_filters).double()
    network = noisy_network(probe)
    fisher_under_noise(network, images, targets, nothing, heads, draw())
    fixed = tuple(part.clone().requires_grad_() for part in head)
    with torch.no_grad():
        features = network.network.module(images)
    expected = torch.autograd.grad(mean_loss(functional.linear(features, *fixed), targets), fixed)
    assert all(torch.allclose(part.grad, want, rtol=1e-10) for part, want in zip(heads, expected, strict=True))


# --- the run ---


def run(probe, images, targets, head, **options):
    given = {"beta": 1e-4, "steps": 30, "steps_per_epoch": 10, "generator": draw(), "head_rate": 1e-3, **options}
    batches = iter(lambda: (images, targets), None)
    return minimise(noisy_network(probe), batches, weight=head[0], bias=head[1], **given)


@pytest.mark.parametrize("gradient", ["curvature", "noise"])
def test_the_head_moves_only_if_it_may(probe, task, gradient):
    images, targets, head = task
    before = [part.clone() for part in head]
    free = run(probe, images, targets, head, gradient=gradient)
    held = run(probe, images, targets, head, gradient=gradient, head_rate=0.0)
    assert not torch.equal(free.weight, before[0]) and not torch.equal(free.bias, before[1])
    assert torch.equal(held.weight, before[0]) and torch.equal(held.bias, before[1])
    assert torch.equal(head[0], before[0]) and torch.equal(head[1], before[1])  # nor is the caller's ever touched
    assert not free.weight.requires_grad and math.isfinite(free.loss) and math.isfinite(free.kl)
    assert free.loss < held.loss + 0.05


@pytest.mark.parametrize("gradient", ["curvature", "noise"])
def test_the_same_generator_gives_the_same_run(probe, task, gradient):
    one, same, other = (run(probe, *task, gradient=gradient, generator=draw(seed)) for seed in (7, 7, 8))
    assert torch.equal(one.log_precision, same.log_precision) and one.loss == same.loss
    assert not torch.equal(one.log_precision, other.log_precision)


def test_a_start_away_from_the_minimum_comes_back_to_it(probe):
    images = torch.randn(4, 3, 8, 8, generator=draw(1), dtype=torch.float64)
    long = {"gradient": "curvature", "head_rate": 0.0, "beta": 1e-3, "rate": 3e-2, "steps": 400, "steps_per_epoch": 40}
    found = run(probe, images, TARGETS["classes"], random_head(probe, 3), **long)
    start = found.log_precision + torch.linspace(-2, 2, probe.n_filters)
    again = run(probe, images, TARGETS["classes"], random_head(probe, 3), start=start, **long)
    assert float((again.log_precision - found.log_precision).abs().median()) < 0.1
    assert again.drift < 0.1 and again.speed < 0.1
    # Three steps away from it is not there yet, and says so.
    begun = run(
        probe,
        images,
        TARGETS["classes"],
        random_head(probe, 3),
        start=found.log_precision + 2,
        **{**long, "steps": 6, "steps_per_epoch": 3},
    )
    assert begun.speed > 0.5


def test_nobody_watches_without_seeing_every_step(probe, task):
    seen = []
    found = run(probe, *task, steps=7, watch=lambda step, log_precision: seen.append((step, log_precision.clone())))
    assert [step for step, _ in seen] == list(range(7))
    tail = torch.stack([value for _, value in seen[-4:]])  # the last half, rounded up
    assert torch.allclose(found.log_precision, tail.mean(0), rtol=1e-12)


@pytest.mark.parametrize("gradient", ["curvature", "noise"])
@pytest.mark.parametrize("rate", [10.0, 1e6])
def test_a_huge_learning_rate_stays_within_bounds(probe, task, gradient, rate):
    found = run(probe, *task, gradient=gradient, rate=rate)
    size = weight_scales(probe.layers).repeat_interleave(torch.tensor([la.filters for la in probe.layers])).log()
    assert torch.isfinite(found.log_precision).all() and torch.isfinite(found.stderr).all()
    assert bool((found.log_precision + size >= -2 - 1e-9).all()) and bool((found.log_precision + size <= 40).all())
    assert math.isfinite(found.loss) and math.isfinite(found.kl) and math.isfinite(found.drift)


@pytest.mark.parametrize("gradient", ["curvature", "noise"])
def test_a_gradient_that_is_not_finite_names_layer_and_step(probe, gradient):
    images = torch.randn(4, 3, 8, 8, generator=draw(1), dtype=torch.float64)
    head = random_head(probe, 3)
    fine, broken = (images, TARGETS["classes"]), (images.clone().fill_(float("nan")), TARGETS["classes"])
    batches = iter([fine, fine, fine, broken, fine])  # with "curvature" the first is looked at before the first step
    step = 3 if gradient == "curvature" else 4
    with pytest.raises(NotFiniteError, match=rf"layer 'first' is not finite in step {step}.*nothing was saved.*--beta"):
        minimise(
            noisy_network(probe),
            batches,
            weight=head[0],
            bias=head[1],
            beta=1e-4,
            steps=4,
            steps_per_epoch=2,
            generator=draw(),
            gradient=gradient,
        )
    assert not any(m._forward_hooks for m in probe.prepare(dtype=torch.float64).module.modules())


# --- the record ---


def record_of(values, steps_per_epoch):
    record = _Record(len(values), steps_per_epoch)
    for value in values:
        record.add(torch.tensor([float(value), 2.0 * value]), torch.tensor(float(value)))
    return record


def test_the_record_tells_the_mean_of_the_last_half_and_how_far_the_last_epochs_lie_apart():
    values = [float(v) for v in range(40)]
    record = record_of(values, 10)
    mean, _ = record.tail()
    assert mean.tolist() == [29.5, 59.0]
    assert record.drift() == pytest.approx(math.sqrt((10**2 + 20**2) / 2))
    assert record.loss() == pytest.approx(34.5)
    assert record_of([3.0] * 40, 10).drift() == 0 and record_of([3.0] * 40, 10).tail()[1].tolist() == [0, 0]


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 16, 17, 33, 100])
@pytest.mark.parametrize("steps_per_epoch", [1, 5, 1000])
def test_any_length_of_run_has_a_record(steps, steps_per_epoch):
    values = torch.arange(steps).double()
    mean, stderr = (record := record_of(values.tolist(), steps_per_epoch)).tail()
    last = max(1, round(steps / 2))
    assert mean[0].item() == pytest.approx(float(values[-last:].mean()), abs=1e-9)
    assert torch.isfinite(stderr).all() and math.isfinite(record.drift()) and math.isfinite(record.loss())
    if steps == 1:
        assert record.drift() == 1.0 and stderr.tolist() == [1.0, 1.0]  # nothing can be told


def test_the_stated_error_of_the_tail_is_that_of_independent_steps():
    generator = draw()
    found = []
    for _ in range(300):
        found.append(record_of(torch.randn(64, generator=generator).tolist(), 8).tail())
    means, errors = (torch.stack([pair[i][0] for pair in found]) for i in (0, 1))
    assert float(errors.square().mean() / means.var()) == pytest.approx(1, rel=0.3)
