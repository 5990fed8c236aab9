"""Errors of linear classifiers: those of a plain loop, whatever the order of images and whatever else is measured."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from task2vec import experts
from task2vec.errors import NotFiniteError, UsageError
from task2vec.experts import ErrorProtocol, measure_cells, plan_cells
from task2vec.head.fit import SPLIT_L2_GRID
from tests.experts.material import make_attributes, make_task
from tests.library.making import refuse

HALF, FIVE = ErrorProtocol(), ErrorProtocol(shots=5)
PAPER = ErrorProtocol(classifier="achille2019")


def features_of(task, *, width=7, noise=1.0, seed=0):
    """Features that follow the labels, an image's own whatever its place."""
    rows = []
    for digest, target in zip(task.digests, task.targets, strict=True):
        own = np.random.default_rng([seed, int(digest[:8], 16)]).normal(size=width)
        centre = np.random.default_rng(99).normal(size=(10, width))
        rows.append(noise * own + (target @ centre[: len(target)] if task.is_multilabel else centre[target]))
    return torch.from_numpy(np.stack(rows))


@pytest.fixture(autouse=True)
def _one_epoch(monkeypatch):
    monkeypatch.setattr(experts.error_matrix, "EPOCHS", 1)


@pytest.fixture(scope="module")
def task():
    return make_task((30, 20, 14))


@pytest.mark.parametrize("protocol", [HALF, FIVE], ids=["half", "5"])
def test_scikit_learn_finds_the_same_error_by_a_plain_loop(task, protocol):
    features = features_of(task)
    found = measure_cells(features, plan_cells(task, [protocol], (0, 1, 2)), model="x")
    x, targets = features.numpy(), task.targets
    for error in found:
        is_test = experts.choose_test_half(task, error.seed)
        train = experts.choose_training(task, is_test, shots=protocol.shots, seed=error.seed)
        sizes = np.bincount(targets[train])
        omega = 1 / sizes[targets[train]] / len(sizes)
        mean = omega @ x[train]
        spread = float(omega @ np.square(x[train] - mean).sum(1))
        errors = set()
        for l2 in SPLIT_L2_GRID:  # the tests of heads check which of them is chosen
            solver = LogisticRegression(C=1 / (l2 * spread), tol=1e-8, max_iter=20000)
            solver.fit(x[train], targets[train], sample_weight=omega)
            errors.add(float((solver.predict(x[is_test]) != targets[is_test]).mean()))
        assert min(abs(error.error - one) for one in errors) < 1e-9
        assert error.error < 0.4 and error.low <= error.error <= error.high
        assert (error.task, error.expert, error.protocol) == (task.fingerprint, "x", protocol.key)


@pytest.mark.parametrize("make", [make_task, make_attributes], ids=["single", "multi"])
def test_the_order_of_images_does_not_matter(make):
    task = make()
    protocols = [HALF, ErrorProtocol(shots=2), PAPER]
    shuffled = task.subset(np.random.default_rng(0).permutation(len(task)))
    assert [list(one.digests) == list(task.digests) for one in (task, shuffled)] == [True, False]
    both = [measure_cells(features_of(one).float(), plan_cells(one, protocols), model="x") for one in (task, shuffled)]
    assert both[0] == both[1] and len(both[0]) == 3


def test_what_else_is_measured_does_not_matter(task):
    features = features_of(task, noise=2.0)
    protocols = [HALF, FIVE, PAPER, replace(HALF, measure="balanced")]
    plan = plan_cells(task, protocols, (0, 1, 2))
    whole = {(error.protocol, error.seed): error for error in measure_cells(features, plan, model="x")}
    assert list(whole) == [(protocol.key, seed) for protocol in protocols for seed in (0, 1, 2)]
    wanted = [(FIVE.key, 2), (PAPER.key, 1)]
    assert measure_cells(features, plan, model="x", only=wanted) == [whole[cell] for cell in wanted]
    assert measure_cells(features, plan_cells(task, [FIVE], (2,)), model="x") == [whole[FIVE.key, 2]]
    assert len({error.error for error in whole.values()}) > 3


def test_labels_of_test_images_are_not_used(task):
    features = features_of(task)
    is_test = experts.choose_test_half(task, 0)
    noise = torch.randn(features.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plan = plan_cells(task, [HALF, PAPER], (0,))
    hidden = torch.where(torch.from_numpy(is_test)[:, None], noise, features)
    assert all(error.error > 0.4 for error in measure_cells(hidden, plan, model="x"))
    assert all(error.error < 0.4 for error in measure_cells(features, plan, model="x"))


@pytest.mark.parametrize(("measure", "protocol"), [("usual", HALF), ("balanced", FIVE), ("precision", PAPER)])
def test_attributes(protocol, measure):
    task = make_attributes(80)
    plan = plan_cells(task, [replace(protocol, measure=measure)], (0, 1))
    good, bad = (measure_cells(features_of(task, noise=noise).float(), plan, model="x") for noise in (0.3, 30.0))
    assert np.mean([error.error for error in good]) < 0.25 < 0.35 < np.mean([error.error for error in bad])


def test_what_cannot_be_measured_is_refused(task):
    plan = plan_cells(task, [HALF])
    refuse(UsageError, "one row per image", measure_cells, features_of(task)[1:], plan, model="x")
    broken = features_of(task)
    broken[3, 1] = torch.nan
    refuse(NotFiniteError, task.images.name(3), measure_cells, broken, plan, model="x")
    refuse(UsageError, "precision", plan_cells, task, [ErrorProtocol(measure="precision")])


def test_errors_on_parts_of_the_test_images_make_up_the_whole():
    plan = plan_cells(make_task((20, 20, 20)).canonical(), [HALF])
    ((_, _, answer),) = experts.predict_cells(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), plan)
    masks = [np.arange(60) % 3 == 0, np.arange(60) % 3 > 0]
    whole, *parts = (experts.score_cell(answer, plan, HALF, 0, among=mask).error for mask in (None, *masks))
    assert whole > 0.3 and parts[0] != parts[1]
    assert whole == pytest.approx(np.average(parts, weights=[(plan.tests[0] & mask).sum() for mask in masks]))
