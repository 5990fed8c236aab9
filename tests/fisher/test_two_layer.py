"""Every way to the Fisher against the paper's analytic formula for a network of two layers."""

import numpy as np
import torch
from torch import nn

from task2vec.fisher import NoisyNetwork, PerSampleFisher, closed_form, minimise, probabilities, term_vectors
from task2vec.head import fit_head
from task2vec.probe import Preprocess, make_probe
from tests.oracles.fisher import filter_fisher, full_fisher, sigmoid


class TwoLayer(nn.Module):
    """z = sigmoid(U x) on the pixels of an image, one logit on top."""

    def __init__(self, pixels=12, hidden=7):
        super().__init__()
        self.hidden = nn.Linear(pixels, hidden, bias=False)
        self.fc = nn.Linear(hidden, 1, bias=False)

    def forward(self, images):
        return self.fc(torch.sigmoid(self.hidden(images.flatten(1))))


def setting(seed=0, count=9, *, is_apart=False):
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    module = TwoLayer().eval()
    with torch.no_grad():
        module.hidden.weight.normal_(std=0.7)
        if is_apart:  # the last unit sees pixels of its own
            module.hidden.weight[:6, 6:] = 0
            module.hidden.weight[6, :6] = 0
    probe = make_probe("two layers", module, ("fc",), Preprocess(size=(2, 2), resize=2), source="test")
    images = rng.normal(size=(count, 12))
    return probe, module.hidden.weight.detach().double().numpy(), 3 * rng.normal(size=7), images


def as_images(x):
    return torch.from_numpy(x).view(-1, 3, 2, 2)


def two_class_head(w):
    """Rows 0 and w: p_1 = sigmoid(w^T z)."""
    return torch.stack([torch.zeros(len(w)).double(), torch.from_numpy(w)])


def fisher_rows(probe, weight, x, *, bias=0.0, **options):
    """(n, h): the Fisher of every image for the two classes."""
    network, images = probe.prepare(dtype=torch.float64), as_images(x)
    shift = torch.tensor([0.0, bias]).double()
    first = torch.zeros(len(x), dtype=torch.long)

    def seeds(features):
        p = probabilities(features @ weight.T + shift, is_multilabel=False)
        return (term_vectors(p, torch.arange(len(x)), first, is_multilabel=False) @ weight)[None]

    return PerSampleFisher(network, probe.layers, **options).rows(images, seeds)


def test_rows_equal_the_formula_of_the_paper():
    probe, u, w, x = setting()
    weight = two_class_head(w)
    for is_untied in (False, True):  # a linear layer on pixels has one output per filter
        found = fisher_rows(probe, weight, x, is_untied=is_untied).mean(0).numpy()
        assert np.allclose(found, filter_fisher(u, w, x), rtol=1e-8, atol=0)


# --- the variational method ---

BETA, COPIES, STEPS = 1e-5, 6, 400


def train(probe, w, x, labels):
    """The Fisher behind the noise at the minimum: `labels` gives those of a batch of `COPIES` times all images."""
    images = as_images(x).repeat(COPIES, 1, 1, 1)
    found = minimise(
        NoisyNetwork(probe.prepare(dtype=torch.float64), probe.layers),
        iter(lambda: (images, labels()), None),
        weight=two_class_head(w),
        bias=torch.zeros(2).double(),
        beta=BETA,
        steps=STEPS,
        steps_per_epoch=STEPS // 10,
        generator=torch.Generator().manual_seed(1),
        rate=1e-2,
        head_rate=0,
    )
    return (BETA * found.log_precision.exp() - BETA / found.prior_variances).numpy(), found


def labels_of_the_model(u, w, x):
    """Labels y ~ p, drawn anew for every batch: the mean Hessian is then the Fisher."""
    generator = torch.Generator().manual_seed(0)
    p = torch.from_numpy(sigmoid(sigmoid(x @ u.T) @ w)).repeat(COPIES)
    return lambda: torch.bernoulli(p, generator=generator).long()


def test_the_variational_minimum_is_the_formula():
    probe, u, w, x = setting(seed=4, count=64)
    expected = filter_fisher(u, w, x)
    found, minimum = train(probe, w, x, labels_of_the_model(u, w, x))
    assert np.abs(found / expected - 1).max() < 0.05
    # Twice or half of it, the constants of the appendix and of the old code, are far outside.
    assert expected.max() / expected.min() > 5
    precision, variances = closed_form(torch.from_numpy(expected), probe.layers, beta=BETA)
    assert torch.allclose(minimum.log_precision, precision.log(), atol=0.05)
    assert torch.allclose(minimum.prior_variances, variances, rtol=0.01)


# --- properties of tasks ---


def test_a_feature_that_is_uncorrelated_with_the_label_has_a_block_near_zero():
    """Unit 6 sees pixels that nobody else sees and that the labels do not depend on; a head is fitted to the labels."""
    rng = np.random.default_rng(0)
    probe, u, _, x = setting(count=4000, is_apart=True)
    features = sigmoid(x @ u.T)
    truth = np.array([4.0, -4.0, 3.0, 4.0, -5.0, 3.0, 0.0])
    labels = rng.random(len(x)) < sigmoid((features - features.mean(0)) @ truth)
    head = fit_head(torch.from_numpy(features), torch.from_numpy(labels).long(), classes=2, l2=2e-6)
    weight = head.weight.double()
    found = fisher_rows(probe, weight, x, bias=float(head.bias[1] - head.bias[0]), is_untied=True).mean(0)
    assert float(found[6]) < 0.02 * float(found[:6].min())
    w = (weight[1] - weight[0]).numpy()
    blocks = full_fisher(u, w, x[:200]).reshape(7, 12, 7, 12)
    sizes = [np.linalg.norm(blocks[i, :, i]) for i in range(7)]
    assert sizes[6] < 0.02 * min(sizes[:6])


def test_confident_images_contribute_less_than_those_at_the_boundary():
    probe, u, w, x = setting(count=200)
    weight = two_class_head(w)
    # One image, its logit moved away from zero: every filter's part falls, step by step.
    logit = float(sigmoid(x[:1] @ u.T)[0] @ w)
    for sign in (1, -1):
        parts = torch.cat([fisher_rows(probe, weight, x[:1], bias=sign * away - logit) for away in (0, 1, 2, 4, 8)])
        assert bool((parts.diff(dim=0) < 0).all())
        assert torch.allclose(parts[4] / parts[0], torch.full((7,), 4 * sigmoid(8) * sigmoid(-8)).double(), rtol=1e-6)
