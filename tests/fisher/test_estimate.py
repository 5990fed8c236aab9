"""The standard error is the real one, and the estimate is right at every moment of the run."""

import math

import pytest
import torch

from task2vec.fisher import Accumulator, Ledger, draw_pairs


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
    order = torch.randperm(len(draw), generator=generator)[: stop or len(draw)]
    total = Accumulator(count, len(draw))
    for part in order.split(17):
        total.add(rows[draw.images[part]], draw.image_inclusion[part], terms=len(part))
    return total.estimate(), rows.mean(0)


def truth():
    """Mean of the distribution: E exp(0.8 a s) E exp(0.4 s) for powers a = 1, 1/2, 0."""
    return torch.tensor([math.exp((0.8 * a) ** 2 / 2 + 0.4**2 / 2) for a in (1, 0.5, 0)], dtype=torch.float64)


@pytest.mark.parametrize("stop", [None, 30])
def test_standard_error_is_the_true_one(stop):
    found = [estimate_once(seed, stop=stop)[0] for seed in range(600)]
    values, errors = torch.stack([e.fisher for e in found]), torch.stack([e.stderr for e in found])
    assert torch.allclose(values.mean(0), truth(), atol=4 * (values.std(0) / len(found) ** 0.5).max().item())
    assert torch.allclose(errors.square().mean(0), values.var(0), rtol=0.15)
    within = ((values - truth()).abs() < 2 * errors).double().mean(0)
    assert bool((within > 0.88).all())  # 0.95 but for the skew


def test_the_noise_of_drawn_labels_is_counted():
    # Three terms per image, guessed badly; some images are drawn with several of them, some with one, some not at all.
    found = []
    for seed in range(600):
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(100, 3, generator=generator, dtype=torch.float64).exp()
        chances = torch.rand(100, 3, generator=generator, dtype=torch.float64) + 0.3
        draw = draw_pairs(chances / chances.sum(), 80, generator=generator)
        parts = rows[draw.images, draw.terms] * draw.image_inclusion / draw.inclusion
        images, index = draw.images.unique(return_inverse=True)
        sums = torch.zeros(len(images)).double().index_add(0, index, parts)
        total = Accumulator(100, len(images))
        total.add(
            sums[:, None], torch.zeros(len(images)).double().index_copy(0, index, draw.image_inclusion), terms=len(draw)
        )
        found.append(total.estimate())
    values = torch.cat([e.fisher for e in found])
    assert values.mean().item() == pytest.approx(3 * math.exp(0.5), abs=4 * values.std().item() / len(found) ** 0.5)
    assert torch.cat([e.stderr for e in found]).square().mean().item() == pytest.approx(values.var().item(), rel=0.15)


def test_a_census_leaves_the_error_of_the_population():
    rows, _ = population(50, torch.Generator().manual_seed(0))
    total = Accumulator(50, 50)
    for part in torch.arange(50).split(8):
        total.add(rows[part], torch.ones(len(part)), terms=2 * len(part))
    estimate = total.estimate()
    assert torch.allclose(estimate.fisher, rows.mean(0), rtol=1e-12)
    assert torch.allclose(estimate.stderr, (rows.var(0) / 50).sqrt(), rtol=1e-9)  # S / sqrt(N)
    assert (estimate.images, estimate.terms) == (50, 100)


def test_effective_images_count_equal_images_fully():
    total = Accumulator(10, 10)
    total.add(torch.ones(10, 4), torch.ones(10), terms=10)
    assert total.estimate().effective_images == pytest.approx(10)
    lopsided = Accumulator(10, 10)
    lopsided.add(torch.tensor([[1.0]] + [[1e-9]] * 9), torch.ones(10), terms=10)
    assert lopsided.estimate().effective_images == pytest.approx(1, abs=1e-6)


def test_nothing_to_measure_is_no_error():
    total = Accumulator(4, 4)
    total.add(torch.zeros(4, 3), torch.ones(4), terms=4)
    estimate = total.estimate()
    assert not estimate.fisher.any() and not estimate.stderr.any()
    assert (estimate.relative_error, estimate.effective_images) == (0.0, 0.0)


def test_class_sizes_are_not_counted_as_noise():
    # 990 images of one class and 10 of another, each with the same Fisher: nothing is uncertain.
    weights = torch.cat([torch.full((990,), 1000 / 2 / 990), torch.full((10,), 1000 / 2 / 10)]).double()
    total = Accumulator(1000, 1000, square_weights=float(weights.square().sum()))
    total.add(weights[:, None] * 3.0, torch.ones(1000), terms=1000, weights=weights)
    found = total.estimate()
    assert torch.allclose(found.fisher, torch.tensor([3.0]).double())
    assert float(found.stderr) < 1e-6


# --- the accounts of many tasks ---


def mixed_rows(tasks=4, count=60):
    """Rows in no order of tasks, with their inclusions, terms and weights; the last task has a single one."""
    generator = torch.Generator().manual_seed(5)
    owners = torch.randint(tasks - 1, (count,), generator=generator)
    owners[17] = tasks - 1
    rows = torch.rand(count, 3, generator=generator, dtype=torch.float64)
    inclusion, weights = 0.1 + 0.9 * rows.mean(1), 0.5 + rows.square().sum(1)
    return rows, owners, inclusion, torch.randint(1, 5, (count,), generator=generator), weights


def make_accounts(tasks=4):
    return [Accumulator(100 + task, 40, square_weights=150.0 + task) for task in range(tasks)]


@pytest.mark.parametrize("way", ["_enter_one_by_one", "_enter_together"])
@pytest.mark.parametrize("size", [7])
def test_a_ledger_equals_one_account_per_task(monkeypatch, size, way):
    rows, owners, inclusion, terms, weights = mixed_rows()
    monkeypatch.setattr(Ledger, "_enter_one_by_one", getattr(Ledger, way))  # a CPU's way, or a GPU's
    ledger = Ledger(make_accounts(), filters=3, device=torch.device("cpu"))
    for part in torch.arange(60).split(size):
        ledger.add(rows[part], owners[part], inclusion=inclusion[part], terms=terms[part], weights=weights[part])
    for task, alone in enumerate(make_accounts()):
        own = owners == task
        alone.add(rows[own], inclusion[own], terms=int(terms[own].sum()), weights=weights[own])
        found, wanted = ledger.estimate(task), alone.estimate()
        assert ledger.count(task) == found.images == wanted.images == int(own.sum())
        assert found.terms == wanted.terms
        assert torch.allclose(found.fisher, wanted.fisher, rtol=1e-12, atol=0)
        assert torch.allclose(found.stderr, wanted.stderr, rtol=1e-9, atol=0)
        assert found.effective_images == pytest.approx(wanted.effective_images, rel=1e-12)


def test_rows_in_single_precision_are_summed_in_double():
    rows = torch.full((4000, 1), 0.1)
    ledger = Ledger([Accumulator(4000, 4000)], filters=1, device=torch.device("cpu"))
    one = torch.ones(4000)
    ledger.add(rows, torch.zeros(4000).long(), inclusion=one, terms=one.long(), weights=one)
    assert float(ledger.estimate(0).fisher) == pytest.approx(float(rows[0, 0]), rel=1e-12)


@pytest.mark.parametrize("name", ["stack", "ones_like"])
def test_a_ledger_adds_rows_as_a_whole_or_not_at_all(monkeypatch, name):
    rows, owners, inclusion, terms, weights = mixed_rows()
    ledger = Ledger(make_accounts(), filters=3, device=torch.device("cpu"))

    def fail(*_, **__):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory (pretended)")

    with monkeypatch.context() as patch:
        patch.setattr(torch, name, fail)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            ledger.add(rows, owners, inclusion=inclusion, terms=terms, weights=weights)
    assert not ledger.sums.any() and not ledger.facts.any()
