"""The sampled Fisher is right on average, where three tempting shortcuts are not.

The reference enumerates every label of every image. The estimator of `embed`, drawn with many seeds, must meet it
within the error of its mean; labels taken from the data, the square of a batch mean, and draws without their weights
must miss it by far more, or this test could not tell them apart.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from task2vec.embedding import EmbedSettings
from task2vec.embedding.single import prepare_job
from task2vec.fisher import Draw, probabilities
from task2vec.head import fit_head
from task2vec.probe import Preprocess, make_probe
from task2vec.progress import silent
from task2vec.tasks import from_dataset
from tests.oracles.naive_fisher import naive_rows
from tests.oracles.untied_fisher import untied_rows

DRAWS = 120


class Tiny(nn.Module):
    """Two convolutions, for Fishers by the thousand."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, stride=2)
        self.second = nn.Conv2d(6, 8, 2)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(torch.tanh(self.second(torch.tanh(self.first(x)))).mean((2, 3)))


def make_task():
    """Thirty-six images of four classes of unequal size, hard to tell apart."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), [16, 10, 6, 4])
    pixels = rng.normal(size=(36, 8, 8, 3)) * 60 + 128 + 25 * rng.normal(size=(4, 1, 1, 3))[labels]
    return from_dataset(
        [(Image.fromarray(x.clip(0, 255).astype(np.uint8)), int(y)) for x, y in zip(pixels, labels, strict=True)]
    )


@pytest.fixture(scope="module")
def setting():
    """A run up to the draw, and the exact Fisher by enumeration."""
    torch.manual_seed(0)
    probe = make_probe("tiny", Tiny().eval(), ("fc",), Preprocess(size=(8, 8), resize=8), source="test")
    settings = EmbedSettings(method="direct", max_samples=24, l2=1e-3, dtype="float64")
    run = prepare_job(make_task(), probe, settings=settings, device="cpu", num_workers=1, batch_size=16)
    features = run.features(silent)
    head = fit_head(features, run.targets, classes=4, l2=settings.l2)
    p = probabilities(head.logits(features), is_multilabel=False)
    images = torch.cat([run.passes.input(pixels) for _, pixels in run.pixels.batches(range(36), 36)])
    names = tuple(layer.name for layer in probe.layers)
    rows = naive_rows(probe.network, names, images, head.weight, head.bias, is_multilabel=False)
    exact = (run.weights[:, None] * rows).mean(0)
    return run, head, p, images, exact


def with_seed(run, seed, **changes):
    return replace(run, settings=replace(run.settings, seed=seed, **changes))


def distance(found, exact):
    """Median relative gap over the filters."""
    return ((found - exact).abs() / exact).median().item()


def estimates(setting, change=lambda draw: draw, **changes):
    """One estimate for every seed; `change` may spoil the draw."""
    run, head, p, _, _ = setting
    seeded = [with_seed(run, seed, **changes) for seed in range(DRAWS)]
    return [each.fisher(p, head, change(each.draw(p, head)), silent) for each in seeded]


def stack(found):
    return torch.stack([estimate.fisher for estimate in found])


def check_mean(found, exact):
    """The mean over all seeds is `exact`, within its error."""
    gaps = (found.mean(0) - exact).abs() / (found.std(0) / DRAWS**0.5)
    assert gaps.max() < 4.5 and gaps.square().mean() < 3


@pytest.fixture(scope="module")
def right(setting):
    """The estimator as it is, for every seed."""
    return estimates(setting)


def test_balanced_draws_are_unbiased(setting, right):
    check_mean(stack(right), setting[-1])
    assert distance(stack(right).mean(0), setting[-1]) < 0.03


def test_plain_draws_are_unbiased_and_noisier(setting, right):
    found = stack(estimates(setting, seeds="plain"))
    check_mean(found, setting[-1])
    assert (found.var(0) / stack(right).var(0)).median() > 1.5


def test_all_pairs_are_the_definition(setting):
    run, head, p, _, exact = setting
    everything = with_seed(run, 0, seeds="all")
    draw = everything.draw(p, head)
    assert len(draw) == 36 * 4
    assert torch.allclose(everything.fisher(p, head, draw, silent).fisher, exact, rtol=1e-9)


def test_all_pairs_are_the_definition_of_the_robust_fisher(setting):
    run, head, p, images, tied = setting
    names = tuple(layer.name for layer in run.passes.probe.layers)
    rows = untied_rows(
        run.passes.probe.network, names, images, head.weight, head.bias, is_multilabel=False, by_autograd=True
    )
    exact = (run.weights[:, None] * rows).mean(0)
    everything = with_seed(run, 0, seeds="all", method="robust")
    found = everything.fisher(p, head, everything.draw(p, head), silent).fisher
    assert torch.allclose(found, exact, rtol=1e-9) and distance(tied, exact) > 0.1


def test_robust_draws_are_unbiased(setting):
    run, head, p, _, _ = setting
    everything = with_seed(run, 0, seeds="all", method="robust")
    exact = everything.fisher(p, head, everything.draw(p, head), silent).fisher
    check_mean(stack(estimates(setting, method="robust")), exact)


def score_vectors(setting):
    """(n, c, weights): gradient of log p(y | x) for every image and label, and the filter of each weight."""
    run, head, _, images, _ = setting
    prepared = run.passes.probe.prepare(
        dtype=run.passes.dtype, flip=False
    )  # flipped convolutions have no weight gradient
    network, weights = prepared.module, [layer.weight for layer in prepared.layers.values()]
    for weight in weights:
        weight.requires_grad_(True)
    rows = []
    for image in images:
        log_p = head.logits(network(image[None]))[0].log_softmax(0)
        gradients = [torch.autograd.grad(label, weights, retain_graph=True) for label in log_p]
        rows.append(torch.stack([torch.cat([part.flatten() for part in parts]) for parts in gradients]))
    for weight in weights:
        weight.requires_grad_(False)
    return torch.stack(rows).detach(), [w[0].numel() for w in weights for _ in range(len(w))]


def per_filter(squares, sizes):
    return torch.stack([part.mean(-1) for part in squares.split(sizes, dim=-1)], dim=-1)


def test_labels_from_the_data_would_be_detected(setting, right):
    run, _, _, _, exact = setting
    scores, sizes = score_vectors(setting)
    own = scores[torch.arange(36), run.targets]
    wrong = (run.weights[:, None] * per_filter(own.square(), sizes)).mean(0)
    assert distance(wrong, exact) > 5 * distance(stack(right).mean(0), exact)


def test_the_square_of_a_batch_mean_would_be_detected(setting, right):
    run, head, p, _, exact = setting
    scores, sizes = score_vectors(setting)
    weights = run.weights
    batch_means, scaled = [], []
    for seed in range(DRAWS):
        draw = with_seed(run, seed).draw(p, head)
        # The drawn vectors themselves, importance weight included, averaged over the batch before they are squared.
        factor = (weights[draw.images] * p[draw.images, draw.terms] / draw.inclusion / 36).sqrt()
        total = (factor[:, None] * scores[draw.images, draw.terms]).sum(0)
        scaled.append(per_filter(total.square(), sizes))
        batch_means.append(per_filter((total / len(draw)).square(), sizes) * len(draw))
    for wrong in (scaled, batch_means):
        assert distance(torch.stack(wrong).mean(0), exact) > 5 * distance(stack(right).mean(0), exact)


def test_missing_importance_weights_would_be_detected(setting, right):
    run, *_, exact = setting
    share = run.settings.images / (36 * 4)

    def drop_all(draw):
        uniform = torch.full_like(draw.inclusion, share)
        return Draw(draw.images, draw.terms, uniform, uniform)

    def drop_labels(draw):  # images weighted and labels not: the smaller mistake
        return replace(draw, inclusion=draw.image_inclusion)

    for change in (drop_all, drop_labels):
        wrong = stack(estimates(setting, change)).mean(0)
        assert distance(wrong, exact) > 5 * distance(stack(right).mean(0), exact)


def test_stated_errors_are_the_real_ones(setting, right):
    # Over the draws alone the variance must fit the design part of the stated one: what is stated, less var(y) / N.
    run, head, p, _, _ = setting
    everything = with_seed(run, 0, seeds="all")
    population = everything.fisher(p, head, everything.draw(p, head), silent).stderr.square()
    stated = torch.stack([estimate.stderr for estimate in right]).square().mean(0) - population
    assert 0.6 < (stated / stack(right).var(0)).median().item() < 1.7
