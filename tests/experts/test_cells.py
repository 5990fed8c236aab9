"""Cells: the same errors as a plain loop, whatever the order of images and whatever else is measured beside."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import task2vec as t2v
from task2vec.errors import NotFiniteError, UsageError
from task2vec.experts.cells import answer_cells, judge, measure_cells, plan_cells
from task2vec.experts.protocols import ErrorProtocol
from task2vec.experts.splits import choose_test_half, choose_training
from task2vec.head.fit import SPLIT_L2_GRID
from tests.embedding.conftest import make_attributes, make_task

HALF, FIVE = ErrorProtocol(), ErrorProtocol(train=5)
QUICK = ErrorProtocol(classifier="achille2019", epochs=1)
EXACT = {"dtype": torch.float64}


def features_of(task, *, width=7, noise=1.0, seed=0):
    """Features that follow the labels, an image's own whatever its place."""
    rows = []
    for digest, target in zip(task.digests, task.targets, strict=True):
        own = np.random.default_rng([seed, int(digest[:8], 16)]).normal(size=width)
        centre = np.random.default_rng(99).normal(size=(10, width))
        rows.append(noise * own + (target @ centre[: len(target)] if task.is_multilabel else centre[target]))
    return torch.from_numpy(np.stack(rows))


@pytest.fixture(scope="module")
def task():
    return make_task((30, 20, 14))


@pytest.mark.parametrize("protocol", [HALF, FIVE], ids=["half", "5"])
def test_scikit_learn_finds_the_same_error_by_a_plain_loop(task, protocol):
    features = features_of(task)
    found = measure_cells(features, plan_cells(task, [protocol], (0, 1, 2)), expert="x", **EXACT)
    x, targets = features.numpy(), task.targets
    for error in found:
        is_test = choose_test_half(task, error.seed)
        train = choose_training(task, is_test, train=protocol.train, seed=error.seed)
        sizes = np.bincount(targets[train])
        omega = 1 / sizes[targets[train]] / len(sizes)
        mean = omega @ x[train]
        spread = float(omega @ np.square(x[train] - mean).sum(1))
        errors = set()
        for l2 in SPLIT_L2_GRID:  # which of them is chosen is told by the tests of heads
            solver = LogisticRegression(C=1 / (l2 * spread), tol=1e-8, max_iter=20000)
            solver.fit(x[train], targets[train], sample_weight=omega)
            errors.add(float((solver.predict(x[is_test]) != targets[is_test]).mean()))
        assert min(abs(error.error - one) for one in errors) < 1e-9
        assert error.error < 0.4 and error.low <= error.error <= error.high
        assert (error.task, error.expert, error.protocol) == (task.fingerprint, "x", protocol.key)


@pytest.mark.parametrize(
    "make", [lambda: make_task((30, 20, 14)), lambda: make_attributes(60)], ids=["single", "multi"]
)
def test_the_order_of_images_does_not_matter(make):
    task = make()
    protocols = [HALF, FIVE, QUICK]
    shuffled = task.subset(np.random.default_rng(0).permutation(len(task)))
    found, again = (
        measure_cells(features_of(one), plan_cells(one, protocols, (0, 3)), expert="x") for one in (task, shuffled)
    )
    assert found == again and len(found) == 6
    plan = plan_cells(task.canonical(), protocols, (0, 3))
    in_order = features_of(task)[torch.from_numpy(plan_cells(task, protocols).order)]
    assert measure_cells(in_order, plan, expert="x") == found


def test_what_else_is_measured_does_not_matter(task):
    features = features_of(task, noise=2.0)
    protocols = [HALF, FIVE, QUICK, replace(HALF, measure="balanced")]
    plan = plan_cells(task, protocols, (0, 1, 2))
    whole = {(error.protocol, error.seed): error for error in measure_cells(features, plan, expert="x", **EXACT)}
    assert list(whole) == [(protocol.key, seed) for protocol in protocols for seed in (0, 1, 2)]
    wanted = [(FIVE.key, 2), (QUICK.key, 1)]
    some = measure_cells(features, plan, expert="x", only=wanted, **EXACT)
    assert some == [whole[cell] for cell in wanted]
    alone = measure_cells(features, plan_cells(task, [FIVE], (2,)), expert="x", **EXACT)
    assert alone == [whole[FIVE.key, 2]]
    assert len({error.error for error in whole.values()}) > 3


def test_labels_of_test_images_are_not_used(task):
    features = features_of(task)
    is_test = choose_test_half(task, 0)
    noise = torch.randn(features.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plan = plan_cells(task, [HALF, QUICK], (0,))
    hidden = torch.where(torch.from_numpy(is_test)[:, None], noise, features)
    assert all(error.error > 0.4 for error in measure_cells(hidden, plan, expert="x"))
    assert all(error.error < 0.4 for error in measure_cells(features, plan, expert="x"))


@pytest.mark.parametrize("measure", ["usual", "balanced", "precision"])
@pytest.mark.parametrize("protocol", [HALF, FIVE, QUICK], ids=["half", "5", "adam"])
def test_attributes(protocol, measure):
    task = make_attributes(80)
    plan = plan_cells(task, [replace(protocol, measure=measure)], (0, 1))
    good, bad = (measure_cells(features_of(task, noise=noise), plan, expert="x") for noise in (0.3, 30.0))
    assert np.mean([error.error for error in good]) < 0.25 < 0.35 < np.mean([error.error for error in bad])
    assert all(error.low <= error.error <= error.high for error in good + bad)


def test_more_images_make_smaller_errors(task):
    features, sizes = features_of(task, noise=1.5), [1, 3, "half"]
    plan = plan_cells(task, [ErrorProtocol(train=size) for size in sizes], range(8))
    errors = np.reshape([error.error for error in measure_cells(features, plan, expert="x")], (3, 8)).mean(1)
    assert errors[0] > errors[1] > errors[2]


def test_single_precision_says_the_same(task):
    plan = plan_cells(task, [HALF, FIVE], range(5))
    features = features_of(task, width=40)
    single, double = (
        measure_cells(features, plan, expert="x", dtype=dtype) for dtype in (torch.float32, torch.float64)
    )
    apart = [abs(one.error - two.error) for one, two in zip(single, double, strict=True)]
    assert max(apart) < 0.04 and np.mean(apart) < 0.005


def test_what_cannot_be_measured_is_said(task):
    plan = plan_cells(task, [HALF])
    with pytest.raises(UsageError, match="one row per image"):
        measure_cells(features_of(task)[1:], plan, expert="x")
    broken = features_of(task)
    broken[3, 1] = torch.nan
    with pytest.raises(NotFiniteError, match=task.images.name(3)):
        measure_cells(broken, plan, expert="x")
    with pytest.raises(UsageError, match="precision"):
        plan_cells(task, [ErrorProtocol(measure="precision")])


def test_draws_are_training_images_uniformly_over_classes(task):
    plan = plan_cells(task, [HALF, FIVE], (0, 1))
    draws = [plan.draw(part, 2) for part in range(4)]
    for part, drawn in enumerate(draws):
        assert drawn.shape == (2, 10_000) and plan.parts.train[part][drawn].all()
        shares = np.bincount(plan.targets[drawn[0]]) / 10_000
        assert np.abs(shares - 1 / 3).max() < 0.03
        assert set(drawn.flatten().tolist()) == set(np.flatnonzero(plan.parts.train[part]).tolist())
    assert not torch.equal(draws[0], draws[1]) and not torch.equal(draws[0][0], draws[0][1])
    assert plan.draw(0, 2) is draws[0]


def test_errors_on_parts_of_the_test_images_make_up_the_whole():
    task = next(one for one in t2v.sample_tasks(images_per_task=60) if one.name == "cluttered shapes").canonical()
    plan = plan_cells(task, [ErrorProtocol()], (0, 1))
    features = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    some = np.arange(60) % 3 == 0
    for protocol, seed, answer in answer_cells(features, plan):
        whole = judge(answer, plan, protocol, seed).error
        parts = [judge(answer, plan, protocol, seed, among=mask).error for mask in (some, ~some)]
        counts = [int((plan.tests[seed] & mask).sum()) for mask in (some, ~some)]
        assert whole > 0.3 and parts[0] != parts[1]
        assert whole == pytest.approx(np.average(parts, weights=counts))
