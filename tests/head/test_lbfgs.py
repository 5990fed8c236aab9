"""The solver on problems whose answer is known in closed form, many at once."""

import pytest
import torch

from task2vec.head import lbfgs
from task2vec.head.lbfgs import minimise


def quadratics(*, problems=4, size=12, condition=100.0, scale=1.0, device="cpu"):
    """Convex bowls x^T A x / 2 - b^T x of very different steepness, their minima, and which bowls were asked for."""
    generator, asked = torch.Generator().manual_seed(0), []
    axes = torch.linalg.qr(torch.randn(problems, size, size, generator=generator, dtype=torch.float64))[0]
    values = torch.logspace(0, torch.tensor(condition).log10().item(), size, dtype=torch.float64)
    matrices = axes * values @ axes.mT * torch.logspace(-1, 1, problems, dtype=torch.float64)[:, None, None]
    targets = torch.randn(problems, size, generator=generator, dtype=torch.float64)
    matrices, targets = matrices.to(device), targets.to(device)

    def loss_and_gradient(point, which):
        asked.append(which)
        x = point.double()
        product = torch.einsum("pij,pj->pi", matrices[which], x)
        loss, gradient = (x * product).sum(1) / 2 - (targets[which] * x).sum(1), product - targets[which]
        return (scale * loss).to(point), (scale * gradient).to(point)

    return loss_and_gradient, torch.linalg.solve(matrices, targets), asked


def test_every_problem_ends_by_itself_and_is_not_evaluated_again():
    loss_and_gradient, expected, asked = quadratics()
    start = torch.zeros_like(expected)
    start[:2] = expected[:2]  # already there: they must not move while the others go on
    point, loss, converged = minimise(loss_and_gradient, start, tolerance=1e-6, max_steps=500)
    first, *rest = [which.tolist() for which in asked]
    assert first == [0, 1, 2, 3] and all(set(some) <= {2, 3} for some in rest) and rest[-1] != [2, 3]
    assert torch.equal(point[:2], expected[:2])
    assert bool(converged.all()) and torch.allclose(point, expected, rtol=0, atol=1e-4)
    alone, _, _ = minimise(lambda x, _: loss_and_gradient(x, [2]), start[2:3], tolerance=1e-6, max_steps=500)
    assert torch.allclose(point[2:3], alone, rtol=1e-10, atol=1e-12)  # the very steps that it takes alone
    assert torch.allclose(loss, loss_and_gradient(expected, torch.arange(4))[0], rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_problem_ends_where_its_precision_allows_no_step(dtype):
    loss_and_gradient, expected, asked = quadratics()
    start = torch.zeros_like(expected, dtype=dtype)
    point, _, converged = minimise(loss_and_gradient, start, tolerance=0.0, max_steps=5000)
    assert len(asked) < 2000 and not bool(converged.all())
    assert torch.allclose(point.double(), expected, rtol=0, atol=1e-7 if dtype == torch.float64 else 1e-2)


@pytest.mark.parametrize("max_steps", [1, 3])
def test_no_more_steps_are_taken_than_allowed_and_too_few_are_reported(max_steps):
    loss_and_gradient, expected, asked = quadratics()
    start = torch.zeros_like(expected)
    _, loss, converged = minimise(loss_and_gradient, start, tolerance=1e-9, max_steps=max_steps)
    assert len(asked) < 20  # some for a step that is too long at first
    assert not bool(converged.any())
    assert bool((loss < 0).all())  # and yet lower than at the start


# --- the inverse Hessian ---


def two_loops(gradient, steps):
    """The textbook's recursion for one problem; a step without curvature is left out."""
    kept = [(s, y) for s, y in steps[-lbfgs.HISTORY :] if s @ y > 0]
    q, alphas = gradient.clone(), []
    for s, y in reversed(kept):
        alphas.append(s @ q / (s @ y))
        q -= alphas[-1] * y
    s, y = steps[-1]
    q *= s @ y / (y @ y) if s @ y > 0 else 1.0
    for (s, y), alpha in zip(kept, reversed(alphas), strict=True):
        q += (alpha - y @ q / (s @ y)) * s
    return q


def random_steps(seed, *, count, problems=5, size=14):
    """Steps in bowls and the changes of gradient along them; some go nowhere, or as if the bowl were upside down."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(problems, size, size, generator=generator, dtype=torch.float64)
    bowls = root @ root.mT + torch.eye(size)
    for _ in range(count):
        step, gradient = torch.randn(2, problems, size, generator=generator, dtype=torch.float64)
        step *= torch.rand(problems, 1, generator=generator) > 0.2
        turned = 1 - 2 * (torch.rand(problems, 1, generator=generator) > 0.8).double()
        yield step, torch.einsum("pij,pj->pi", bowls, step) * turned, gradient


def test_directions_are_those_of_the_textbook():
    history = []
    steps_of = [[] for _ in range(5)]
    for step, change, gradient in random_steps(0, count=2 * lbfgs.HISTORY):
        history.append(lbfgs._Step.between((torch.ones_like(step), 1 + step), (gradient - change, gradient)))
        padding = [lbfgs._Step(*map(torch.zeros_like, history[0]))] * (lbfgs.HISTORY - len(history))
        directions = lbfgs._apply_inverse_hessian(gradient, [*padding, *history[-lbfgs.HISTORY :]])
        for direction, steps, *last in zip(directions, steps_of, step, change, gradient, strict=True):
            steps.append(last[:2])
            wanted = two_loops(last[2], steps)
            assert torch.allclose(direction, wanted, rtol=0, atol=1e-9 * wanted.abs().max())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need an NVIDIA GPU")
@pytest.mark.parametrize("large", [1 << 20, 1])  # without and with dropping those that are done
def test_a_recorded_step_is_that_of_the_processor(monkeypatch, large):
    monkeypatch.setattr(lbfgs, "_MIN_DROPPED_SIZE", large)
    wanted = minimise(quadratics()[0], torch.zeros(4, 12, dtype=torch.float64), tolerance=1e-6, max_steps=500)
    loss_and_gradient, expected, asked = quadratics(device="cuda")
    found = minimise(loss_and_gradient, torch.zeros_like(expected), tolerance=1e-6, max_steps=500)
    assert len(asked) <= 3 if large > 1 else 3 < len(asked) < 10  # start, step, recording; the others are replayed
    assert bool(found[2].all())
    assert torch.allclose(found[0].cpu(), wanted[0], rtol=1e-6) and torch.allclose(found[1].cpu(), wanted[1], rtol=1e-9)


# --- an end that is relative to the start ---


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_a_relative_end_does_not_depend_on_the_unit(scale):
    loss_and_gradient, expected, _ = quadratics(scale=scale)
    start = torch.zeros_like(expected)
    point, _, converged = minimise(loss_and_gradient, start, tolerance=1e-6, max_steps=500)
    assert bool(converged.all()) and torch.allclose(point, expected, rtol=0, atol=1e-3)
    gradient, at_start = (loss_and_gradient(x, torch.arange(4))[1].norm(dim=1) for x in (point, start))
    assert bool((gradient <= 1e-6 * at_start).all())


# --- the kernels for a GPU: see tests/test_kernels.py ---


def compare_kernels() -> dict[str, float]:
    """How far problems are from those that took the same steps in torch's operations, relative to the farthest."""
    from task2vec.head import kernels

    kernels._CHUNK = 8  # the vectors of a problem are several chunks
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loss_and_gradient, expected, _ = quadratics(problems=3, size=9, condition=10.0, device=device)
    start = torch.zeros_like(expected)
    start[0] = expected[0]
    options = {"tolerance": 1e-6, "max_steps": 4, "history": 2}
    runs = [kind(loss_and_gradient, start, **options) for kind in (lbfgs._Run, lbfgs._RecordedRun)]
    errors = {}
    for number in range(9):  # steps are refused at first, and at the end because none is left
        for run in runs:
            run.step()
        for name in ("point", "loss", "gradient", "length", "left", "done"):
            plain, recorded = (getattr(run, name).double() for run in runs)
            errors[f"{name} {number}"] = float((plain - recorded).abs().max() / plain.abs().max().clamp_min(1e-9))
    assert bool(runs[0].done.all()) and int(runs[0].left.min()) == 0
    return errors
