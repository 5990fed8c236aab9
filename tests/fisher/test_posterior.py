"""The closed form is the minimum of the paper's loss, and always finite."""

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from task2vec.fisher import closed_form, weight_scales
from task2vec.fisher.estimate import MAX_PRIOR_RATIO, kl_divergence
from task2vec.probe import FilterLayer


def make_layers(rng, count=3):
    return tuple(
        FilterLayer(f"layer {i}", "convolution", int(rng.integers(2, 6)), int(rng.integers(1, 30)), 10 ** rng.normal())
        for i in range(count)
    )


def filters_of(layers):
    """(filters,) weights per filter, mean square weight and number of its layer, without the code under test."""
    numbers = np.repeat(np.arange(len(layers)), [layer.filters for layer in layers])
    facts = torch.tensor([(layer.weights_per_filter, layer.mean_square_weight) for layer in layers])[numbers]
    return *facts.double().T, numbers


def paper_loss(s2, v, fisher, layers, beta):
    """sum over the weights of s^2 F / 2 + beta KL(N(w0, s^2) || N(0, v)): the second order of the paper's loss."""
    counts, squares, numbers = filters_of(layers)
    prior = v[numbers]
    kl = ((squares + s2) / prior - 1 - (s2 / prior).log()) / 2
    return (counts * (s2 * fisher / 2 + beta * kl)).sum()


def brute_minimum(fisher, layers, beta):
    """Variances of filters and layers by a general minimiser over their logarithms; v between its bounds."""
    filters, (counts, squares, _) = len(fisher), filters_of(layers)
    scales = torch.tensor([layer.mean_square_weight for layer in layers]).double()

    def value_and_gradient(logs):
        point = torch.from_numpy(logs).requires_grad_()
        s2, v = point.exp().split([filters, len(layers)])
        value = paper_loss(s2, v, fisher, layers, beta) / (beta * counts.sum())
        return value.item(), torch.autograd.grad(value, point)[0].numpy()

    start = torch.cat([(0.01 * squares).log(), (1.5 * scales).log()]).numpy()
    bounds = [(None, None)] * filters + [(math.log(s), math.log(MAX_PRIOR_RATIO * s)) for s in scales]
    options = {"maxiter": 10000, "maxfun": 100000, "ftol": 1e-17, "gtol": 1e-12}
    found = scipy.optimize.minimize(
        value_and_gradient, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options
    )
    return torch.from_numpy(found.x).exp().split([filters, len(layers)])


def random_setting(seed):
    rng = np.random.default_rng(seed)
    layers = make_layers(rng)
    fisher = np.exp(2 * rng.normal(size=sum(layer.filters for layer in layers)))
    fisher[rng.random(len(fisher)) < 0.2] = 0
    return layers, torch.from_numpy(fisher), float(10 ** rng.uniform(-2, 1))


@pytest.mark.parametrize("seed", range(3))
def test_closed_form_is_the_minimum_by_brute_force(seed):
    layers, fisher, beta = random_setting(seed)
    precision, v = closed_form(fisher, layers, beta=beta)
    s2, best_v = brute_minimum(fisher, layers, beta)
    assert torch.allclose(1 / precision, s2, rtol=1e-4)
    assert torch.allclose(v, best_v, rtol=1e-4)


def test_a_layer_without_fisher_has_the_widest_prior_and_nothing_else():
    layers = (FilterLayer("dead", "convolution", 3, 9, 0.2), FilterLayer("alive", "convolution", 2, 9, 0.2))
    fisher = torch.tensor([0.0, 0.0, 0.0, 50.0, 70.0])
    precision, v = closed_form(fisher, layers, beta=1e-3)
    assert v[0].item() == pytest.approx(MAX_PRIOR_RATIO * 0.2, rel=1e-12)
    assert torch.allclose(precision[:3], 1 / v[0].expand(3), rtol=1e-12)
    assert v[1].item() == pytest.approx(0.2, rel=1e-3)  # hardly any noise: nothing but the weights counts


# --- any numbers ---

sizes = st.one_of(st.just(0.0), st.floats(1e-30, 1e30))
some_layers = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5000), sizes), min_size=1, max_size=4).map(
    lambda rows: tuple(FilterLayer(str(i), "convolution", *row) for i, row in enumerate(rows))
)


@st.composite
def situations(draw):
    layers = draw(some_layers)
    filters = sum(layer.filters for layer in layers)
    return layers, torch.tensor(draw(st.lists(sizes, min_size=filters, max_size=filters)), dtype=torch.float64)


@settings(max_examples=50, deadline=None)
@given(situations(), st.floats(1e-20, 1e6))
def test_any_numbers_have_a_finite_posterior(situation, beta):
    layers, fisher = situation
    precision, v = closed_form(fisher, layers, beta=beta)
    scales = weight_scales(layers)
    assert torch.isfinite(precision).all() and bool((precision > 0).all())
    assert bool((v >= scales).all()) and bool((v <= MAX_PRIOR_RATIO * scales * (1 + 1e-12)).all())
    vector = beta * precision
    assert torch.isfinite(vector).all() and bool((vector >= fisher * (1 - 1e-12)).all())
    kl = float(kl_divergence(precision.log(), v, layers))
    # Where weights and filters differ by dozens of orders, the sum has no digits left below its largest part.
    assert math.isfinite(kl) and kl >= -1e-9 * sum(layer.filters * layer.weights_per_filter for layer in layers)


def test_kl_is_that_of_torch_summed_over_all_weights():
    rng = np.random.default_rng(0)
    shapes = [(3, 4), (2, 6)]
    weights = [torch.from_numpy(rng.normal(size=shape)) for shape in shapes]
    layers = tuple(FilterLayer(str(i), "linear", *w.shape, w.square().mean().item()) for i, w in enumerate(weights))
    log_precision = torch.from_numpy(rng.normal(size=5) + 1)
    v = torch.from_numpy(np.exp(rng.normal(size=2)))
    expected = 0.0
    for i, (w, part) in enumerate(zip(weights, log_precision.split([3, 2]), strict=True)):
        noisy = torch.distributions.Normal(w, (-part / 2).exp()[:, None].expand_as(w))
        prior = torch.distributions.Normal(torch.zeros_like(w), v[i].sqrt())
        expected += float(torch.distributions.kl_divergence(noisy, prior).sum())
    assert float(kl_divergence(log_precision, v, layers)) == pytest.approx(expected, rel=1e-12)
