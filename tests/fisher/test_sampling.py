"""The draw of pairs: probabilities that add up, frequencies that match them, totals without bias."""

import pytest
import torch

from task2vec.fisher import draw_pairs, mix_with_uniform
from task2vec.fisher.sampling import UNIFORM_PART, inclusion_probabilities


def chances(images=17, terms=4, seed=0, spread=2.0):
    """Drawing probabilities of very different size; one pair cannot be drawn at all."""
    generator = torch.Generator().manual_seed(seed)
    found = (spread * torch.randn(images, terms, generator=generator, dtype=torch.float64)).exp()
    found[3, 1] = 0
    return found / found.sum()


def draws(probabilities, budget, count):
    return [draw_pairs(probabilities, budget, generator=torch.Generator().manual_seed(seed)) for seed in range(count)]


@pytest.mark.parametrize("budget", [2, 5, 20, 40, 66])
def test_inclusion_probabilities_sum_to_the_budget(budget):
    inclusion = inclusion_probabilities(chances(), budget)
    assert inclusion.sum().item() == pytest.approx(budget, rel=1e-12)
    assert bool((inclusion <= 1).all()) and inclusion[3, 1] == 0
    free = (inclusion < 1) & (inclusion > 0)
    ratio = (inclusion / chances().clamp_min(1e-300))[free]
    assert torch.allclose(ratio, ratio[0].expand_as(ratio))  # what is not certain stays in proportion


@pytest.mark.parametrize("budget", [67, 68, 1000])
def test_a_large_budget_takes_everything_that_can_be_drawn(budget):
    inclusion = inclusion_probabilities(chances(), budget)
    assert torch.equal(inclusion, (chances() > 0).double())
    draw = draw_pairs(chances(), budget, generator=torch.Generator().manual_seed(0))
    assert len(draw) == 17 * 4 - 1 and bool((draw.image_inclusion == 1).all())


@pytest.mark.parametrize("budget", [5, 20])
def test_frequencies_match_the_inclusion_probabilities(budget):
    probabilities, count = chances(), 2000
    inclusion = inclusion_probabilities(probabilities, budget)
    pairs, images = torch.zeros(17, 4).double(), torch.zeros(17).double()
    for draw in draws(probabilities, budget, count):
        keys = draw.images * 4 + draw.terms
        assert len(keys.unique()) == len(keys)  # at most once each
        assert bool((draw.images.diff() >= 0).all())  # sorted by image
        assert budget - 1 <= len(draw) <= budget + 1
        pairs[draw.images, draw.terms] += 1 / count
        images[draw.images.unique()] += 1 / count
        assert torch.equal(draw.inclusion, inclusion[draw.images, draw.terms])
    deviation = 5 * (inclusion * (1 - inclusion) / count).sqrt() + 1e-9
    assert bool(((pairs - inclusion).abs() <= deviation).all())
    expected = inclusion.sum(1).clamp_max(1)
    assert bool(((images - expected).abs() <= 5 * (expected * (1 - expected) / count).sqrt() + 1e-9).all())
    assert bool((pairs[inclusion == 1] > 1 - 1e-9).all()) and pairs[3, 1] == 0


def test_image_inclusion_is_that_of_the_image():
    probabilities = chances()
    expected = inclusion_probabilities(probabilities, 12).sum(1).clamp_max(1)
    for draw in draws(probabilities, 12, 20):
        assert torch.allclose(draw.image_inclusion, expected[draw.images])


def test_weighted_totals_are_unbiased_for_any_values():
    probabilities, count = chances(spread=1.0), 4000
    values = (
        torch.randn(17, 4, generator=torch.Generator().manual_seed(9), dtype=torch.float64) + 1
    )  # nothing to do with them
    values[3, 1] = 0
    totals = torch.stack([(values[d.images, d.terms] / d.inclusion).sum() for d in draws(probabilities, 12, count)])
    standard_error = totals.std() / count**0.5
    assert abs(totals.mean() - values.sum()) < 4 * standard_error
    # Without the weights the total is somewhere else altogether.
    bare = torch.stack([values[d.images, d.terms].sum() * (68 / 12) for d in draws(probabilities, 12, 500)])
    assert abs(bare.mean() - values.sum()) > 10 * standard_error


def test_proportional_values_have_no_variance():
    probabilities = chances(spread=0.3)
    totals = [float((probabilities[d.images, d.terms] / d.inclusion).sum()) for d in draws(probabilities, 10, 50)]
    assert max(totals) - min(totals) < 1e-9


def test_the_mixture_keeps_a_floor_and_sums_to_one():
    generator = torch.Generator().manual_seed(2)
    shares = torch.rand(9, 3, generator=generator, dtype=torch.float64) ** 8
    shares[4] = 0
    shares[5, 0] = 0
    labels = torch.rand(9, 3, generator=generator, dtype=torch.float64).softmax(1)
    found = mix_with_uniform(shares, labels)
    assert found.sum().item() == pytest.approx(1)
    per_image = found.sum(1)
    expected = (1 - UNIFORM_PART) * shares.sum(1) / shares.sum() + UNIFORM_PART / 9
    assert torch.allclose(per_image, expected)  # 0.9 t + 0.1 mean(t)
    assert bool((found >= UNIFORM_PART**2 * labels / 9 - 1e-15).all())  # positive wherever a label is possible
    assert torch.allclose(found[4], UNIFORM_PART * labels[4] / 9)


def test_no_shares_at_all_means_the_labels():
    labels = torch.tensor([[0.2, 0.8], [0.5, 0.5]]).double()
    assert torch.allclose(mix_with_uniform(torch.zeros(2, 2).double(), labels), labels / 2)
