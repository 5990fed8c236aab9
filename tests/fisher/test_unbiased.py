"""The sampled Fisher is right on average, and draws without their importance weights are not.

The reference enumerates every label of every image. The estimator of `embed`, drawn with many seeds, must meet it
within the error of its mean; draws without their weights must miss it by far more, or this test had no power.
"""

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from task2vec.embedding import EmbedSettings, single
from task2vec.embedding.single import prepare_job
from task2vec.head import fit_head
from task2vec.progress import silent
from tests.embedding.conftest import make_task, make_tiny
from tests.oracles.fisher import naive_rows, untied_rows

DRAWS = 60


@pytest.fixture(scope="module")
def setting():
    """A run up to the draw, and the exact Fisher by enumeration."""
    probe = make_tiny()
    settings = EmbedSettings(method="direct", max_samples=24, l2=4e-3, dtype="float64")
    run = prepare_job(make_task((16, 10, 6, 4)), probe, settings=settings, device="cpu", num_workers=1, batch_size=16)
    features = run.features(silent)
    head = fit_head(features, run.targets, classes=4, l2=settings.l2)
    images = torch.cat([run.passes.input(pixels) for _, pixels in run.passes.pixels.batches(range(36), 36)])
    exact = (run.weights[:, None] * naive_rows(probe, images, head.weight, head.bias)).mean(0)
    return run, head, features, images, exact


def with_seed(run, seed, **changes):
    return replace(run, settings=replace(run.settings, seed=seed, **changes))


def distance(found, exact):
    """Median relative gap over the filters."""
    return ((found - exact).abs() / exact).median().item()


def estimates(setting, **changes):
    """The Fisher and its standard error for every seed."""
    run, head, features, _, _ = setting
    found = [with_seed(run, seed, **changes).fisher(features, head, silent) for seed in range(DRAWS)]
    return torch.stack([one.fisher for one in found]), torch.stack([one.stderr for one in found])


def check_mean(found, exact):
    """The mean over all seeds is `exact`, within its error."""
    gaps = (found.mean(0) - exact).abs() / (found.std(0) / DRAWS**0.5)
    assert gaps.max() < 4.5 and gaps.square().mean() < 3


@pytest.fixture(scope="module")
def right(setting):
    """The estimator as it is, for every seed."""
    return estimates(setting)


def test_balanced_draws_are_unbiased(setting, right):
    check_mean(right[0], setting[-1])
    assert distance(right[0].mean(0), setting[-1]) < 0.03


def test_plain_draws_are_unbiased_and_noisier(setting, right):
    found, _ = estimates(setting, seeds="plain")
    check_mean(found, setting[-1])
    assert (found.var(0) / right[0].var(0)).median() > 1.5


@pytest.mark.parametrize("method", ["direct", "robust"])
def test_all_pairs_are_the_definition(setting, method):
    run, head, features, images, exact = setting
    if method == "robust":
        rows = untied_rows(run.passes.probe, images, head.weight, head.bias, by_autograd=True)
        tied, exact = exact, (run.weights[:, None] * rows).mean(0)
        assert distance(tied, exact) > 0.1
    found = with_seed(run, 0, seeds="all", method=method).fisher(features, head, silent)
    assert found.terms == 36 * 4 and torch.allclose(found.fisher, exact, rtol=1e-9)


def test_robust_draws_are_unbiased(setting):
    run, head, features, _, _ = setting
    exact = with_seed(run, 0, seeds="all", method="robust").fisher(features, head, silent).fisher
    check_mean(estimates(setting, method="robust")[0], exact)


def drop_weights(draw):
    uniform = torch.full_like(draw.inclusion, 24 / (36 * 4))
    return replace(draw, inclusion=uniform, image_inclusion=uniform)


def drop_label_weights(draw):  # images weighted and labels not: the smaller mistake
    return replace(draw, inclusion=draw.image_inclusion)


@pytest.mark.parametrize("mutant", [drop_weights, drop_label_weights])
def test_missing_importance_weights_would_be_detected(setting, right, monkeypatch, mutant):
    draw_right = single.draw_pairs
    monkeypatch.setattr(single, "draw_pairs", lambda *given, **options: mutant(draw_right(*given, **options)))
    wrong = estimates(setting)[0].mean(0)
    assert distance(wrong, setting[-1]) > 5 * distance(right[0].mean(0), setting[-1])


def score_rows(setting, labels, *, is_averaged=False):
    """(images, filters) squared scores by autograd for given labels; or the square of the score of their mean."""
    run, head, _, images, _ = setting
    network = copy.deepcopy(run.passes.probe.network).double().requires_grad_(True)
    modules = dict(network.named_modules())
    weights = [modules[layer.name].weight for layer in run.passes.probe.layers]
    losses = functional.cross_entropy(network(images) @ head.weight.T + head.bias, labels, reduction="none")
    losses = (losses * run.weights).mean()[None] if is_averaged else losses
    each = [torch.autograd.grad(loss, weights, retain_graph=True) for loss in losses]
    return torch.stack([torch.cat([g.flatten(1).square().mean(1) for g in gradients]) for gradients in each])


def test_labels_of_the_data_or_the_square_of_a_batch_mean_would_be_detected(setting, right):
    """Two common mistakes: the empirical Fisher, and squaring after averaging; both lie far from the definition."""
    run, head, features, _, exact = setting
    p, u = head.logits(features).softmax(1), run.weights[:, None]
    by_model = sum(p[:, y, None] * score_rows(setting, torch.full((36,), y)) for y in range(4))
    assert torch.allclose((u * by_model).mean(0), exact, rtol=1e-9)  # so the mutants differ in one thing only
    drawn = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(0))[:, 0]
    error = distance(right[0].mean(0), exact)
    assert distance((u * score_rows(setting, run.targets)).mean(0), exact) > 5 * error
    assert distance(score_rows(setting, drawn, is_averaged=True)[0], exact) > 5 * error


def test_stated_errors_are_the_real_ones(setting, right):
    # Over the draws alone the variance must fit the design part of the stated one: what is stated, less var(y) / N.
    run, head, features, _, _ = setting
    population = with_seed(run, 0, seeds="all").fisher(features, head, silent).stderr.square()
    stated = right[1].square().mean(0) - population
    assert 0.6 < (stated / right[0].var(0)).median().item() < 1.7
