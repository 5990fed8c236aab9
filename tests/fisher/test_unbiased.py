"""The sampled Fisher is right on average.

The reference enumerates every label of every image. The estimator of `embed`, drawn with many seeds, must meet it
within the error of its mean, which is so small that a missing weight could not hide.
"""

from dataclasses import replace

import pytest
import torch

from task2vec.embedding import EmbedSettings
from task2vec.embedding.single import prepare_job
from task2vec.head import fit_head
from task2vec.progress import silent
from tests.cases import make_task, make_tiny
from tests.oracles.fisher import naive_rows, untied_rows

DRAWS = 60


@pytest.fixture(scope="module")
def setting():
    """A run up to the draw, its head and features, and the exact Fisher of each method by enumeration."""
    probe = make_tiny()
    settings = EmbedSettings(method="direct", max_samples=24, l2=4e-3, dtype="float64")
    run = prepare_job(make_task((16, 10, 6, 4)), probe, settings=settings, device="cpu", num_workers=1, batch_size=16)
    features = run.features(silent)
    head = fit_head(features, run.targets, classes=4, l2=settings.l2)
    images = torch.cat([run.passes.input(pixels) for _, pixels in run.passes.pixels.batches(range(36), 36)])
    rows = {
        "direct": naive_rows(probe, images, head.weight, head.bias),
        "robust": untied_rows(probe, images, head.weight, head.bias, by_autograd=True),
    }
    return run, head, features, {name: (run.weights[:, None] * each).mean(0) for name, each in rows.items()}


def estimate(setting, seed, **changes):
    """The Fisher and its standard error for one seed."""
    run, head, features, _ = setting
    return replace(run, settings=replace(run.settings, seed=seed, **changes)).fisher(features, head, silent)


def estimate_often(setting, **changes):
    """(seeds, filters) Fishers and standard errors."""
    found = [estimate(setting, seed, **changes) for seed in range(DRAWS)]
    return torch.stack([one.fisher for one in found]), torch.stack([one.stderr for one in found])


def check_mean(found, exact, *, precision=0.06):
    """The mean over all seeds is `exact`, within its error, which is about as small as `precision`."""
    error = found.std(0) / DRAWS**0.5
    gaps = (found.mean(0) - exact).abs() / error
    assert gaps.max() < 4.5 and gaps.square().mean() < 3
    assert (error / exact).median() < precision


@pytest.fixture(scope="module")
def balanced(setting):
    return estimate_often(setting)


def test_plain_draws_are_unbiased_too_and_noisier(setting, balanced):
    plain, _ = estimate_often(setting, seeds="plain")
    check_mean(balanced[0], setting[-1]["direct"])
    check_mean(plain, setting[-1]["direct"], precision=0.15)
    assert (plain.var(0) / balanced[0].var(0)).median() > 1.5


@pytest.mark.parametrize("method", ["direct", "robust"])
def test_all_pairs_are_the_definition(setting, method):
    found, exact = estimate(setting, 0, seeds="all", method=method), setting[-1]
    assert found.terms == 36 * 4 and torch.allclose(found.fisher, exact[method], rtol=1e-9)
    assert (exact["direct"] / exact["robust"] - 1).abs().median() > 0.1  # they are two quantities


def test_robust_draws_are_unbiased(setting):
    check_mean(estimate_often(setting, method="robust")[0], setting[-1]["robust"])


def test_stated_errors_are_the_real_ones(setting, balanced):
    # Over the draws alone the variance must fit the design part of the stated one: what is stated, less var(y) / N.
    population = estimate(setting, 0, seeds="all").stderr.square()
    stated = balanced[1].square().mean(0) - population
    assert 0.6 < (stated / balanced[0].var(0)).median().item() < 1.7
