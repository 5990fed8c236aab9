"""The rank-one terms add up to the Fisher at the logits, and their shares are the lengths they claim."""

import pytest
import torch

from task2vec.fisher import count_terms, label_probabilities, probabilities, term_shares, term_vectors

KINDS = [(2, False), (3, False), (10, False), (1, True), (4, True)]


def everything(p, is_multilabel):
    """(n, t, c): all vectors of all images."""
    terms = count_terms(p.shape[1], is_multilabel=is_multilabel)
    images = torch.arange(len(p)).repeat_interleave(terms)
    return term_vectors(p, images, torch.arange(terms).repeat(len(p)), is_multilabel=is_multilabel).view(
        len(p), terms, -1
    )


def logits_of(classes, count=6, scale=2.0):
    return scale * torch.randn(count, classes, generator=torch.Generator().manual_seed(classes), dtype=torch.float64)


@pytest.mark.parametrize(("classes", "is_multilabel"), KINDS)
def test_terms_add_up_to_the_fisher_at_the_logits(classes, is_multilabel):
    logits = logits_of(classes)
    p = probabilities(logits, is_multilabel=is_multilabel)
    vectors = everything(p, is_multilabel)
    found = torch.einsum("ntc,ntd->ncd", vectors, vectors)
    expected = torch.diag_embed(p * (1 - p)) if is_multilabel else torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    assert torch.allclose(found, expected, atol=1e-14)
    # ... which is what labels drawn from the model give: E_y of the outer product of d log p(y) / d logits.
    if not is_multilabel:
        scores = torch.eye(classes).double()[None] - p[:, None, :]
        assert torch.allclose(torch.einsum("ny,nyc,nyd->ncd", p, scores, scores), expected, atol=1e-14)


def test_two_classes_need_one_term():
    assert [count_terms(c, is_multilabel=m) for c, m in KINDS] == [1, 3, 10, 1, 4]
    assert count_terms(2, is_multilabel=True) == 2


@pytest.mark.parametrize(("classes", "is_multilabel"), KINDS)
def test_shares_are_squared_lengths_at_the_features(classes, is_multilabel):
    p = probabilities(logits_of(classes), is_multilabel=is_multilabel)
    weight = torch.randn(classes, 13, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    shares = term_shares(p, weight, is_multilabel=is_multilabel)
    assert torch.allclose(shares, (everything(p, is_multilabel) @ weight).square().sum(2), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("classes", "is_multilabel"), KINDS)
def test_label_probabilities_sum_to_one(classes, is_multilabel):
    p = probabilities(logits_of(classes), is_multilabel=is_multilabel)
    labels = label_probabilities(p, is_multilabel=is_multilabel)
    assert labels.shape == (6, count_terms(classes, is_multilabel=is_multilabel))
    assert torch.allclose(labels.sum(1), torch.ones(6).double())
    if classes == 3:
        assert torch.equal(labels, p)


@pytest.mark.parametrize(("classes", "is_multilabel"), KINDS)
@pytest.mark.parametrize("scale", [800.0, 40.0, 1e-12])
def test_extreme_logits_stay_finite(classes, is_multilabel, scale):
    signs = torch.ones(classes).double()
    signs[::2] = -1
    logits = torch.stack([scale * signs, -scale * signs, torch.zeros(classes).double()])
    p = probabilities(logits.float(), is_multilabel=is_multilabel)
    weight = 1e3 * torch.randn(classes, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
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
