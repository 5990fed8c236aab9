"""Every way to the Fisher against the paper's analytic formula for a network of two layers."""

import numpy as np
import torch
from torch import nn

from task2vec.fisher import NoisyNetwork, PerSampleFisher, closed_form, minimise, probabilities, term_vectors
from task2vec.probe import Preprocess, make_probe
from tests.oracles.fisher import filter_fisher, sigmoid

BETA, COPIES, STEPS = 1e-5, 6, 400


class TwoLayer(nn.Module):
    """z = sigmoid(U x) on the pixels of an image, one logit on top."""

    def __init__(self, pixels=12, hidden=7):
        super().__init__()
        self.hidden = nn.Linear(pixels, hidden, bias=False)
        self.fc = nn.Linear(hidden, 1, bias=False)

    def forward(self, images):
        return self.fc(torch.sigmoid(self.hidden(images.flatten(1))))


def make_setting(seed, count):
    """The probe, U, w, the images as rows and as the network takes them, and the head with p_1 = sigmoid(w^T z)."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    module = TwoLayer().eval()
    with torch.no_grad():
        module.hidden.weight.normal_(std=0.7)
    probe = make_probe("two layers", module, ("fc",), Preprocess(size=(2, 2), resize=2), source="test")
    x, w = rng.normal(size=(count, 12)), 3 * rng.normal(size=7)
    head = torch.stack([torch.zeros(7).double(), torch.from_numpy(w)])
    return probe, module.hidden.weight.detach().double().numpy(), w, x, torch.from_numpy(x).view(-1, 3, 2, 2), head


def test_rows_equal_the_formula_of_the_paper():
    probe, u, w, x, images, head = make_setting(0, 9)

    def seeds(features):
        p = probabilities(features @ head.T, is_multilabel=False)
        return (term_vectors(p, torch.arange(9), torch.zeros(9).long(), is_multilabel=False) @ head)[None]

    for is_untied in (False, True):  # a linear layer on pixels has one output per filter
        fisher = PerSampleFisher(probe.prepare(dtype=torch.float64), probe.layers, is_untied=is_untied)
        found = fisher.rows(images, seeds).mean(0).numpy()
        assert np.allclose(found, filter_fisher(u, w, x), rtol=1e-8, atol=0)


def test_the_variational_minimum_is_the_formula():
    probe, u, w, x, images, head = make_setting(4, 64)
    expected = filter_fisher(u, w, x)
    generator = torch.Generator().manual_seed(0)
    p = torch.from_numpy(sigmoid(sigmoid(x @ u.T) @ w)).repeat(COPIES)
    images = images.repeat(COPIES, 1, 1, 1)
    found = minimise(
        NoisyNetwork(probe.prepare(dtype=torch.float64), probe.layers),
        # Labels y ~ p, drawn anew for every batch: the mean Hessian is then the Fisher.
        iter(lambda: (images, torch.bernoulli(p, generator=generator).long()), None),
        weight=head,
        bias=torch.zeros(2).double(),
        beta=BETA,
        steps=STEPS,
        steps_per_epoch=STEPS // 10,
        generator=torch.Generator().manual_seed(1),
        rate=1e-2,
        head_rate=0,
    )
    fisher = (BETA * found.log_precision.exp() - BETA / found.prior_variances).numpy()
    # Twice or half of it, the constants of the appendix and of the old code, are far outside.
    assert np.abs(fisher / expected - 1).max() < 0.05 and expected.max() / expected.min() > 5
    precision, variances = closed_form(torch.from_numpy(expected), probe.layers, beta=BETA)
    assert torch.allclose(found.log_precision, precision.log(), atol=0.05)
    assert torch.allclose(found.prior_variances, variances, rtol=0.01)
