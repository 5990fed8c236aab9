"""The standard error is the real one, and the estimate is right at every moment of the run."""

import math

import pytest
import torch

from task2vec.fisher import Design, Ledger, draw_pairs

CPU = torch.device("cpu")


def estimate_of(rows, inclusion=None, *, total=None, drawn=None, weights=None, terms=1):
    """The estimate of one task from one row per image."""
    ones = torch.ones(len(rows), dtype=torch.float64)
    weights = ones if weights is None else weights
    total = total or len(rows)
    square_weights = total if total > len(rows) else float(weights.square().sum())
    ledger = Ledger([Design(total, drawn or len(rows), square_weights)], filters=rows.shape[1], device=CPU)
    ledger.is_batched = True  # quicker for small rows; a test below compares the two ways
    for part in torch.arange(len(rows)).split(40):
        given = {"inclusion": (ones if inclusion is None else inclusion)[part], "terms": terms * ones[part]}
        ledger.add(rows[part], torch.zeros(len(part)).long(), weights=weights[part], **given)
    return ledger.estimate(0)


def population(count, generator, *, noise=0.4):
    """Fisher rows (count, 3) of images from a fixed distribution, and a guess of their size: good, poor and none."""
    size = torch.randn(count, generator=generator, dtype=torch.float64).mul(0.8).exp()
    own = torch.randn(count, 3, generator=generator, dtype=torch.float64).mul(noise).exp()
    return torch.stack([size, size.sqrt(), torch.ones_like(size)], 1) * own, size


def estimate_once(seed, *, count=300, budget=60, stop=None):
    generator = torch.Generator().manual_seed(seed)
    rows, size = population(count, generator)
    chances = (0.9 * size / size.sum() + 0.1 / count)[:, None]
    draw = draw_pairs(chances, budget, generator=generator)
    drawn = len(draw.images)
    order = torch.randperm(drawn, generator=generator)[: stop or drawn]
    return estimate_of(rows[draw.images[order]], draw.image_inclusion[order], total=count, drawn=drawn)


def truth():
    """Mean of the distribution: E exp(0.8 a s) E exp(0.4 s) for powers a = 1, 1/2, 0."""
    return torch.tensor([math.exp((0.8 * a) ** 2 / 2 + 0.4**2 / 2) for a in (1, 0.5, 0)], dtype=torch.float64)


@pytest.mark.parametrize("stop", [None, 30])
def test_standard_error_is_the_true_one(stop):
    found = [estimate_once(seed, stop=stop) for seed in range(400)]
    values, errors = torch.stack([e.fisher for e in found]), torch.stack([e.stderr for e in found])
    assert torch.allclose(values.mean(0), truth(), atol=4 * (values.std(0) / len(found) ** 0.5).max().item())
    assert torch.allclose(errors.square().mean(0), values.var(0), rtol=0.15)
    within = ((values - truth()).abs() < 2 * errors).double().mean(0)
    assert bool((within > 0.88).all())  # 0.95 but for the skew


def test_what_is_known_for_certain_has_no_error_and_a_census_that_of_the_population():
    rows, _ = population(50, torch.Generator().manual_seed(0))
    census, nothing = estimate_of(rows, terms=2), estimate_of(torch.zeros(4, 3))
    assert torch.allclose(census.fisher, rows.mean(0), rtol=1e-12) and (census.images, census.terms) == (50, 100)
    assert torch.allclose(census.stderr, (rows.var(0) / 50).sqrt(), rtol=1e-9)  # S / sqrt(N)
    assert not nothing.fisher.any() and not nothing.stderr.any()
    assert (nothing.relative_error, nothing.effective_images) == (0.0, 0.0)
    # 990 images of one class and 10 of another, each with the same Fisher: class sizes are no noise.
    weights = torch.cat([torch.full((990,), 1000 / 2 / 990), torch.full((10,), 1000 / 2 / 10)]).double()
    found = estimate_of(weights[:, None] * 3.0, weights=weights)
    assert float(found.fisher) == pytest.approx(3.0) and float(found.stderr) < 1e-6
    rows = torch.full((4000, 1), 0.1)  # in single precision, summed in double
    assert float(estimate_of(rows).fisher) == pytest.approx(float(rows[0, 0]), rel=1e-12)


# --- the accounts of many tasks ---


def mixed_rows(tasks=4, count=60):
    """Rows in no order of tasks, with their inclusions, terms and weights; the last task has a single one."""
    generator = torch.Generator().manual_seed(5)
    owners = torch.randint(tasks - 1, (count,), generator=generator)
    owners[17] = tasks - 1
    rows = torch.rand(count, 3, generator=generator, dtype=torch.float64)
    inclusion, weights = 0.1 + 0.9 * rows.mean(1), 0.5 + rows.square().sum(1)
    return rows, owners, inclusion, torch.randint(1, 5, (count,), generator=generator), weights


DESIGNS = [Design(100 + task, 40, 150.0 + task) for task in range(4)]


def book(design, rows, inclusion, weights):
    """Sums and formulas of the module's docstring for one task, written down one after the other."""
    n, m, part = design.total, len(rows), len(rows) / design.drawn
    pi, z = part * inclusion, rows / (part * inclusion)[:, None]
    fisher = z.sum(0) / n
    population = (z * rows).sum(0) - 2 * fisher * (weights[:, None] * z).sum(0) + fisher**2 * design.square_weights
    centre = ((1 - pi)[:, None] * z).sum(0) / (1 - pi).sum()
    left = ((1 - pi)[:, None] * (z - centre) ** 2).sum(0) * m / (m - 1) if m > 1 else 0.0
    mass = (rows / inclusion[:, None]).sum(1)
    stderr = ((population.clamp_min(0) * n / (n - 1) + left) / n**2).sqrt()
    return fisher, stderr, float(mass.sum() ** 2 / mass.square().sum())


@pytest.mark.parametrize("is_batched", [False, True], ids=["as a CPU does", "as a GPU does"])
def test_a_ledger_equals_the_formulas_task_by_task(is_batched):
    rows, owners, inclusion, terms, weights = mixed_rows()
    ledger = Ledger(DESIGNS, filters=3, device=CPU)
    ledger.is_batched = is_batched
    for part in torch.arange(60).split(7):
        ledger.add(rows[part], owners[part], inclusion=inclusion[part], terms=terms[part], weights=weights[part])
    for task, design in enumerate(DESIGNS):
        own = owners == task
        found = ledger.estimate(task)
        fisher, stderr, effective = book(design, rows[own], inclusion[own], weights[own])
        assert found.images == int(own.sum()) and found.terms == int(terms[own].sum())
        assert torch.allclose(found.fisher, fisher, rtol=1e-12, atol=0)
        assert torch.allclose(found.stderr, stderr, rtol=1e-9, atol=0)
        assert found.effective_images == pytest.approx(effective, rel=1e-12)


@pytest.mark.parametrize("name", ["stack", "ones_like"])
def test_a_ledger_adds_rows_as_a_whole_or_not_at_all(monkeypatch, name):
    rows, owners, inclusion, terms, weights = mixed_rows()
    ledger = Ledger(DESIGNS, filters=3, device=CPU)

    def fail(*_, **__):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory (pretended)")

    with monkeypatch.context() as patch:
        patch.setattr(torch, name, fail)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            ledger.add(rows, owners, inclusion=inclusion, terms=terms, weights=weights)
    assert not ledger.sums.any() and not ledger.facts.any()
