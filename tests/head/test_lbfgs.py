"""The solver on problems whose answer is known in closed form, many at once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from task2vec.head.lbfgs import minimise


def quadratics(seed, problems=4, size=12, condition=100.0):
    """Convex bowls x^T A x / 2 - b^T x of very different steepness, and their minima."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(problems, size, size, generator=generator, dtype=torch.float64))[0]
    values = torch.logspace(0, torch.tensor(condition).log10().item(), size, dtype=torch.float64)
    matrices = axes * values @ axes.mT * torch.logspace(-1, 1, problems, dtype=torch.float64)[:, None, None]
    targets = torch.randn(problems, size, generator=generator, dtype=torch.float64)

    def loss_and_gradient(x, which):
        product = torch.einsum("pij,pj->pi", matrices[which], x)
        return (x * product).sum(1) / 2 - (targets[which] * x).sum(1), product - targets[which]

    return loss_and_gradient, torch.linalg.solve(matrices, targets)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_quadratics(seed):
    loss_and_gradient, expected = quadratics(seed)
    point, loss, converged = minimise(loss_and_gradient, torch.zeros_like(expected), tolerance=1e-6, max_steps=500)
    assert bool(converged.all())
    assert torch.allclose(point, expected, rtol=0, atol=1e-4)
    assert torch.allclose(loss, loss_and_gradient(expected, torch.arange(4))[0], rtol=1e-9)


def test_every_problem_ends_by_itself():
    loss_and_gradient, expected = quadratics(0)
    start = torch.zeros_like(expected)
    start[1] = expected[1]  # already there: it must not move while the others go on
    point, _, converged = minimise(loss_and_gradient, start, tolerance=1e-6, max_steps=500)
    assert torch.equal(point[1], expected[1]) and bool(converged.all())

    alone, _, _ = minimise(lambda x, _: loss_and_gradient(x, [2]), start[2:3], tolerance=1e-6, max_steps=500)
    assert torch.allclose(point[2:3], alone, rtol=1e-10, atol=1e-12)  # the very steps that it takes alone


def test_what_is_done_is_not_asked_again():
    loss_and_gradient, expected = quadratics(0)
    start = torch.zeros_like(expected)
    start[:2] = expected[:2]
    asked = []

    def watched(x, which):
        asked.append(which.tolist())
        return loss_and_gradient(x, which)

    point, loss, converged = minimise(watched, start, tolerance=1e-6, max_steps=500)
    assert asked[0] == [0, 1, 2, 3] and all(set(some) <= {2, 3} for some in asked[1:]) and asked[-1] != [2, 3]
    assert bool(converged.all()) and torch.allclose(point, expected, rtol=0, atol=1e-4)
    assert torch.allclose(loss, loss_and_gradient(expected, torch.arange(4))[0], rtol=1e-9)


def test_too_few_steps_are_admitted():
    loss_and_gradient, expected = quadratics(0)
    _, loss, converged = minimise(loss_and_gradient, torch.zeros_like(expected), tolerance=1e-9, max_steps=2)
    assert not bool(converged.any())
    assert bool((loss < 0).all())  # and yet lower than at the start


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_steep_and_flat_starts(scale):
    def loss_and_gradient(x, _):  # log cosh: linear far out, quadratic near zero
        return scale * (x.abs() + torch.nn.functional.softplus(-2 * x.abs())).sum(1), scale * x.tanh()

    start = torch.full((1, 3), 3.0, dtype=torch.float64)
    point, _, converged = minimise(loss_and_gradient, start, tolerance=1e-7 * scale, max_steps=500)
    assert bool(converged.all()) and point.abs().max() < 1e-6
