"""The rank-one terms add up to the Fisher at the logits; draws of pairs have the stated probabilities and no bias."""

import pytest
import torch

from task2vec.fisher import draw_pairs, probabilities, term_vectors
from task2vec.fisher.sampling import UNIFORM_PART, inclusion_probabilities, mix_with_uniform, term_shares
from tests.fisher.seeds import normal, seeded

KINDS = [(2, False), (3, False), (1, True), (4, True)]


def everything(p, is_multilabel):
    """(n, t, c): all vectors of all images."""
    terms = 1 if p.shape[1] == 2 and not is_multilabel else p.shape[1]
    images = torch.arange(len(p)).repeat_interleave(terms)
    return term_vectors(p, images, torch.arange(terms).repeat(len(p)), is_multilabel=is_multilabel).view(
        len(p), terms, -1
    )


@pytest.mark.parametrize(("classes", "is_multilabel"), KINDS)
def test_terms_add_up_to_the_fisher_and_shares_are_their_squared_lengths(classes, is_multilabel):
    p = probabilities(2 * normal(6, classes, seed=classes), is_multilabel=is_multilabel)
    vectors = everything(p, is_multilabel)
    expected = torch.diag_embed(p * (1 - p)) if is_multilabel else torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    assert torch.allclose(torch.einsum("ntc,ntd->ncd", vectors, vectors), expected, atol=1e-14)
    weight = normal(classes, 13)
    shares = term_shares(p, weight, is_multilabel=is_multilabel)
    assert torch.allclose(shares, (vectors @ weight).square().sum(2), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("classes", "is_multilabel"), KINDS)
@pytest.mark.parametrize("scale", [800.0, 1e-12])
def test_extreme_logits_stay_finite(classes, is_multilabel, scale):
    signs = torch.ones(classes).double()
    signs[::2] = -1
    logits = torch.stack([scale * signs, -scale * signs, torch.zeros(classes).double()]).float()
    p = probabilities(logits, is_multilabel=is_multilabel)
    weight = 1e3 * normal(classes, 5)
    vectors, shares = everything(p, is_multilabel), term_shares(p, weight, is_multilabel=is_multilabel)
    assert p.dtype == torch.float64
    assert torch.isfinite(vectors).all() and torch.isfinite(shares).all() and bool((shares >= 0).all())
    assert vectors[2].abs().max() > 0.1 if classes > 1 or is_multilabel else True


def test_confident_two_class_terms_do_not_cancel():
    # At a gap of 30 the probability of the other class is 1e-13: 1 - p in single precision would make it 0.
    p = probabilities(torch.tensor([[30.0, 0.0]]), is_multilabel=False)
    vector = term_vectors(p, torch.tensor([0]), torch.tensor([0]), is_multilabel=False)
    exact = torch.tensor(-30.0, dtype=torch.float64).exp().sqrt()
    assert vector[0, 0].item() == pytest.approx(exact.item(), rel=1e-6)
    assert vector[0, 1] == -vector[0, 0]


# --- draws ---


def chances(images=17, terms=4, seed=0, spread=2.0):
    """Drawing probabilities of very different size; one pair cannot be drawn at all."""
    found = (spread * normal(images, terms, seed=seed)).exp()
    found[3, 1] = 0
    return found / found.sum()


@pytest.mark.parametrize("budget", [2, 20, 66])
def test_inclusion_probabilities_sum_to_the_budget(budget):
    inclusion = inclusion_probabilities(chances(), budget)
    assert inclusion.sum().item() == pytest.approx(budget, rel=1e-12)
    assert bool((inclusion <= 1).all()) and inclusion[3, 1] == 0
    ratio = (inclusion / chances().clamp_min(1e-300))[(inclusion < 1) & (inclusion > 0)]
    assert torch.allclose(ratio, ratio[0].expand_as(ratio))  # what is not certain stays in proportion
    assert torch.equal(inclusion_probabilities(chances(), 67), (chances() > 0).double())  # all that can be drawn


@pytest.mark.parametrize("budget", [5, 20])
def test_frequencies_match_the_inclusion_probabilities(budget):
    probabilities, count = chances(), 500
    inclusion = inclusion_probabilities(probabilities, budget)
    pairs, images = torch.zeros(17, 4).double(), torch.zeros(17).double()
    for seed in range(count):
        draw = draw_pairs(probabilities, budget, generator=seeded(seed))
        keys = draw.images * 4 + draw.terms
        assert len(keys.unique()) == len(keys)  # at most once each
        assert bool((draw.images.diff() >= 0).all())  # sorted by image
        assert budget - 1 <= len(draw.images) <= budget + 1
        pairs[draw.images, draw.terms] += 1 / count
        images[draw.images.unique()] += 1 / count
        assert torch.equal(draw.inclusion, inclusion[draw.images, draw.terms])
        assert torch.allclose(draw.image_inclusion, inclusion.sum(1).clamp_max(1)[draw.images])
    for found, expected in ((pairs, inclusion), (images, inclusion.sum(1).clamp_max(1))):
        assert bool(((found - expected).abs() <= 5 * (expected * (1 - expected) / count).sqrt() + 1e-9).all())


def test_several_tasks_draw_what_each_draws_alone():
    stack, budgets = torch.stack([chances(seed=seed, spread=3.0) for seed in range(4)]), [2, 20, 40, 67]
    together = draw_pairs(stack, torch.tensor(budgets), generator=seeded())
    assert ((together.inclusion == 1).int() * together.tasks).unique().tolist() == [0, 1, 2, 3]  # some are certain
    for task, (own, budget) in enumerate(zip(stack, budgets, strict=True)):
        alone, is_own = draw_pairs(own, budget, generator=seeded()), together.tasks == task
        for name in ("images", "terms", "inclusion", "image_inclusion"):
            assert torch.equal(getattr(together, name)[is_own], getattr(alone, name))


def test_the_mixture_keeps_a_floor_and_sums_to_one():
    generator = seeded(2)
    shares = torch.rand(9, 3, generator=generator, dtype=torch.float64) ** 8
    shares[4] = 0
    shares[5, 0] = 0
    labels = torch.rand(9, 3, generator=generator, dtype=torch.float64).softmax(1)
    found = mix_with_uniform(shares, labels)
    assert found.sum().item() == pytest.approx(1)
    assert torch.allclose(mix_with_uniform(torch.zeros(9, 3).double(), labels), labels / 9)  # no share at all
    per_image = found.sum(1)
    expected = (1 - UNIFORM_PART) * shares.sum(1) / shares.sum() + UNIFORM_PART / 9
    assert torch.allclose(per_image, expected)  # 0.9 t + 0.1 mean(t)
    assert bool((found >= UNIFORM_PART**2 * labels / 9 - 1e-15).all())  # positive wherever a label is possible
    assert torch.allclose(found[4], UNIFORM_PART * labels[4] / 9)
