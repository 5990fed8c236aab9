"""Our own strategies beside slow transcriptions of them; none sees the errors of the task that it predicts."""

from dataclasses import replace

import numpy as np
import pytest

from experiments import strategies
from experiments.strategies import REPORTED, find_reported, fit_adjusted, fit_best_alpha, fit_kernel
from task2vec.errors import UndefinedScoreError, UsageError
from task2vec.metatask import SYMMETRIC
from task2vec.select import STRATEGIES
from task2vec.select.strategies import find_known_errors, fit_asymmetric, fit_average_best, fit_effects
from tests.failures import refuse
from tests.oracles.selection import slow_adjusted, slow_kernel
from tests.select.material import build, make_metatask, with_errors

OURS = [name for name in REPORTED if name not in STRATEGIES]


def leave_out(fit, metatask, row=0):
    """The prediction for one task by a strategy that was fitted on the others."""
    others = [other for other in range(len(metatask.tasks)) if other != row]
    return fit(metatask.only(others))(metatask.query(row, known=others))


def test_alpha_is_the_best_for_the_others():
    known = make_metatask(4, tasks=12, models=8).only(range(1, 12))
    errors = find_known_errors(known) - fit_effects(find_known_errors(known)).tasks[:, None]
    distances = known.to_sources(SYMMETRIC)
    simplicity = known.pick_sources(known.trivial_distances)
    losses = []
    for alpha in strategies.ALPHAS:
        far = np.where(np.isfinite(errors), distances - alpha * simplicity, np.nan)
        losses.append(np.mean([errors[row, np.nanargmin(far[row])] for row in range(11)]))
    query = known.query(0)
    chosen = (query.to_sources[SYMMETRIC] - fit_best_alpha(known)(query).loss)[1] / simplicity[1]
    assert losses[int(np.argmin(np.abs(np.array(strategies.ALPHAS) - chosen)))] == pytest.approx(min(losses))
    assert min(losses) < max(losses)
    unknown = replace(known, trivial_distances=np.full(18, np.nan))
    both = [fit(unknown)(query).loss for fit in (fit_best_alpha, fit_asymmetric)]
    np.testing.assert_array_equal(*both)


def test_average_with_distance_is_the_joint_fit():
    metatask = make_metatask(2, unknown=0)
    gaps = metatask.to_sources(SYMMETRIC)
    metatask = with_errors(metatask, metatask.errors / 3 + 0.8 * (metatask.is_candidate * gaps)[:, :, None])
    weight, models = slow_adjusted(find_known_errors(metatask), gaps)
    assert weight > 0.3
    loss = fit_adjusted(metatask)(metatask.query(3)).loss
    wanted = models + weight * gaps[3]
    np.testing.assert_allclose(loss - loss.mean(), wanted - wanted.mean(), atol=1e-8)
    far = replace(metatask.query(3), to_sources={SYMMETRIC: gaps[3] + 5})  # far from all source tasks alike
    np.testing.assert_allclose(fit_adjusted(metatask)(far).loss, loss, atol=1e-12)
    # A negative weight of the distance is noise.
    worse = with_errors(metatask, (metatask.errors - 1.2 * gaps[:, :, None]).clip(0, 1))
    np.testing.assert_allclose(fit_adjusted(worse)(worse.query(0)).loss, fit_effects(find_known_errors(worse)).models)


def test_a_kernel_is_a_weighted_mean_over_tasks():
    metatask = make_metatask(1, missing=0.2)
    prediction = leave_out(lambda known: fit_kernel(known, width=0.05), metatask)
    wanted = slow_kernel(find_known_errors(metatask)[1:], metatask.between(SYMMETRIC)[0, 1:], 0.05)
    np.testing.assert_allclose(prediction.loss, wanted, atol=1e-10)
    metatask = make_metatask(1)  # and of datasets: the mean over the task's own
    same = [0.0 if dataset == "set 0" else 1e6 for dataset in metatask.datasets[1:]]
    prediction = leave_out(find_reported("kernel dataset").fit, metatask)
    np.testing.assert_allclose(prediction.loss, slow_kernel(find_known_errors(metatask)[1:], same, 1.0), atol=1e-10)
    others = [1, 2, 4, 5]  # of which none is of its dataset
    query, known = metatask.query(0, known=others), metatask.only(others)
    found = find_reported("kernel dataset").fit(known)(query).loss
    np.testing.assert_allclose(found, fit_average_best(known)(query).loss, atol=1e-12)


def test_the_width_predicts_each_known_task_from_the_others_best():
    near = np.exp(-np.square(np.subtract.outer(np.arange(12), np.arange(12))) / 8)
    rest = near @ np.random.default_rng(0).normal(size=(12, 6)) * 0.1
    distances = np.abs(np.subtract.outer(np.arange(12.0), np.arange(12.0)))
    effects = fit_effects(0.5 + rest)
    own, losses = effects.rest + effects.models, {}
    median = np.median(distances[~np.eye(12, dtype=bool)])
    for width in np.array(strategies.WIDTHS) * median:
        weights = np.exp(-distances / width) * (1 - np.eye(12))
        losses[width] = np.square(own - weights @ own / weights.sum(1, keepdims=True)).sum()
    best = min(losses, key=losses.get)
    assert strategies.choose_width(effects, distances) == pytest.approx(best) and best < median


@pytest.mark.parametrize("name", OURS)
def test_no_strategy_sees_the_errors_of_the_task_that_it_predicts(name):
    metatask = make_metatask()
    errors = metatask.errors.copy()
    errors[0] = errors[0, ::-1] * 0.5
    before, after = (leave_out(find_reported(name).fit, each) for each in (metatask, with_errors(metatask, errors)))
    assert before.loss.tobytes() == after.loss.tobytes()
    bare = build(np.array([[[0.1], [0.2]], [[0.3], [np.nan]]]))
    if name != "kernel dataset":
        refuse(UndefinedScoreError, "no (symmetric|domain) distance", find_reported(name).fit, bare)


def test_unknown_names_are_refused():
    refuse(UsageError, "no strategy called 'luck'", find_reported, "luck")
