"""The engine against the paper's analytic formula."""

import numpy as np
import torch
from torch import nn

from task2vec.fisher import Engine, probabilities, term_vectors
from task2vec.probe.preprocess import Preprocess
from task2vec.probe.probe import make_probe
from tests.oracles.two_layer import diagonal_fisher, filter_fisher, full_fisher, sigmoid


class TwoLayer(nn.Module):
    """z = sigmoid(U x) on the pixels of an image, one logit on top."""

    def __init__(self, pixels=12, hidden=7):
        super().__init__()
        self.hidden = nn.Linear(pixels, hidden, bias=False)
        self.fc = nn.Linear(hidden, 1, bias=False)

    def forward(self, images):
        return self.fc(torch.sigmoid(self.hidden(images.flatten(1))))


def setting(seed=0, count=9):
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    module = TwoLayer().eval()
    with torch.no_grad():
        module.hidden.weight.normal_(std=0.7)
    probe = make_probe("two layers", module, ("fc",), Preprocess(size=(2, 2), resize=2), source="test")
    images = rng.normal(size=(count, 12))
    return probe, module.hidden.weight.detach().double().numpy(), 3 * rng.normal(size=7), images


def test_engine_equals_the_paper():
    probe, u, w, x = setting()
    images = torch.from_numpy(x).view(-1, 3, 2, 2)
    # Two classes with rows 0 and w have p_1 = sigmoid(w^T z).
    weight = torch.stack([torch.zeros(7).double(), torch.from_numpy(w)])
    network = probe.prepare(dtype=torch.float64)
    with torch.no_grad():
        p = probabilities(network.module(images) @ weight.T, is_multilabel=False)
    assert torch.allclose(p[:, 1], torch.from_numpy(sigmoid(sigmoid(x @ u.T) @ w)), atol=1e-12)
    everyone = torch.arange(len(x))
    seeds = (term_vectors(p, everyone, torch.zeros(len(x), dtype=torch.long), is_multilabel=False) @ weight)[None]
    fisher = Engine(network, probe.layers).rows(images, seeds).mean(0).numpy()
    assert np.allclose(fisher, filter_fisher(u, w, x), rtol=1e-8, atol=0)
    # One attribute with row w is the same model.
    seeds = (term_vectors(p[:, 1:], everyone, torch.zeros(len(x), dtype=torch.long), is_multilabel=True) @ weight[1:])[
        None
    ]
    assert np.allclose(
        Engine(network, probe.layers).rows(images, seeds).mean(0).numpy(), filter_fisher(u, w, x), rtol=1e-8, atol=0
    )


def test_the_formula_is_the_expectation_of_squared_scores():
    _, u, w, x = setting(count=3)
    expected = np.zeros((u.size, u.size))
    for image in x:
        z = sigmoid(u @ image)
        p = sigmoid(w @ z)
        for y, probability in ((1, p), (0, 1 - p)):
            score = ((y - p) * np.outer(w * z * (1 - z), image)).ravel()
            expected += probability * np.outer(score, score) / len(x)
    assert np.allclose(full_fisher(u, w, x), expected, rtol=1e-12, atol=1e-15)
    assert np.allclose(full_fisher(u, w, x).diagonal(), diagonal_fisher(u, w, x).ravel(), rtol=1e-12, atol=0)
