"""Strategies in closed form, each beside a slow transcription; none of them sees the task that it predicts."""

import numpy as np
import pytest

from task2vec.errors import UndefinedScoreError
from task2vec.metatask import SYMMETRIC
from task2vec.select import STRATEGIES, Prediction, Strategy, strategies
from task2vec.select.evaluate import find_strategy
from task2vec.select.model_space import fit_model_space
from task2vec.select.strategies import fit_asymmetric, fit_average_best, fit_effects
from tests.failures import refuse
from tests.oracles.selection import slow_effects
from tests.select.material import build, make_metatask, with_errors

EVERYBODY = np.ones(6, dtype=bool)


def leave_out(strategy, metatask, row=0):
    """The prediction for one task by a strategy that was fitted on the others."""
    fit = strategy.fit if isinstance(strategy, Strategy) else strategy
    others = [other for other in range(len(metatask.tasks)) if other != row]
    return fit(metatask.only(others))(metatask.query(row, known=others))


def learned(metatask):
    return np.where(metatask.is_candidate, metatask.mean, np.nan)


def test_an_order_puts_the_unknown_last_and_equals_in_the_order_of_the_fallback():
    everybody, loss = np.ones(5, dtype=bool), np.array([2.0, np.nan, 1.0, 2.0, np.nan])
    assert Prediction(loss).order(everybody).tolist() == [2, 0, 3, 1, 4]
    prediction = Prediction(loss, fallback=np.array([0.3, 0.9, 0.5, 0.1, np.nan]))
    assert prediction.order(everybody).tolist() == [2, 3, 0, 1, 4]
    assert prediction.order(np.array([True, True, False, False, True])).tolist() == [0, 1, 4]
    assert Prediction(loss).places().tolist() == [1, 2, 0, 1, 2]


@pytest.mark.parametrize(("shape", "missing"), [((9, 5), 0.4), ((5, 9), 0.0)])
def test_effects_are_least_squares(shape, missing):
    rng = np.random.default_rng(3)
    errors = rng.random(shape)
    errors[rng.random(shape) < missing] = np.nan
    found, (tasks, models) = fit_effects(errors), slow_effects(errors)
    np.testing.assert_allclose(found.tasks, tasks, atol=1e-10)
    np.testing.assert_allclose(found.models, models, atol=1e-10)
    np.testing.assert_allclose(found.rest, errors - tasks[:, None] - models, atol=1e-10)


def test_average_best_is_the_best_mean_of_what_may_be_learned():
    metatask = make_metatask()
    prediction = fit_average_best(metatask)(metatask.query(0))
    np.testing.assert_allclose(prediction.loss, slow_effects(learned(metatask))[1], atol=1e-10)
    errors = metatask.errors.copy()
    errors[1, 1] = 0.0  # where the model has seen the task
    assert np.array_equal(fit_average_best(with_errors(metatask, errors))(metatask.query(0)).loss, prediction.loss)
    with pytest.raises(UndefinedScoreError, match="no error is known"):
        fit_average_best(with_errors(metatask, np.full((9, 6, 3), np.nan)))


def test_models_that_nothing_links_with_the_others_have_no_average():
    errors = np.tile([[[0.2], [0.3], [0.01]]], (12, 1, 1))
    errors[:6, :2] = np.nan
    errors[6:, 2] = np.nan  # easy tasks, or a good model?
    alone = build(errors)
    assert np.isnan(find_strategy("average_best").fit(alone)(alone.query(0)).loss).tolist() == [False, False, True]


def test_baselines_fall_back_on_the_average():
    metatask = make_metatask()
    assert set(leave_out(find_strategy("chance"), metatask).places()) == {0}
    average = leave_out(fit_average_best, metatask).loss
    generic = leave_out(find_strategy("generic"), metatask).order(EVERYBODY)
    assert generic.tolist() == [0, *(n for n in np.argsort(average) if n != 0)]
    refuse(UndefinedScoreError, "6 models is the generic one", find_strategy("generic").fit, make_metatask(unknown=0))


def test_nearest_ranks_by_distance_less_complexity_and_the_unknown_by_the_average():
    metatask = make_metatask(unknown=3)
    order = leave_out(strategies.fit_nearest, metatask).order(EVERYBODY).tolist()
    average, gaps = leave_out(fit_average_best, metatask).loss, metatask.to_sources(SYMMETRIC)[0]
    assert order == [*sorted((3, 4, 5), key=lambda n: gaps[n]), *sorted((0, 1, 2), key=lambda n: average[n])]
    loss = leave_out(lambda known: fit_asymmetric(known, 0.3), metatask).loss
    simplicity = metatask.pick_sources(metatask.trivial_distances)
    np.testing.assert_allclose(loss, gaps - 0.3 * simplicity)


def find_quick(name):
    if not name.startswith("model space"):
        return find_strategy(name)
    how = {"epochs": 3, "filters": 20, "as_published": name.endswith("published")}
    return Strategy(name, lambda known: fit_model_space(known, **how).predict)


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_strategy_sees_the_errors_of_the_task_that_it_predicts(name):
    metatask = make_metatask()
    errors = metatask.errors.copy()
    errors[0] = errors[0, ::-1] * 0.5
    one, other = (leave_out(find_quick(name), each) for each in (metatask, with_errors(metatask, errors)))
    for part in ("loss", "fallback"):
        assert (getattr(one, part) is None) == (getattr(other, part) is None)
        if getattr(one, part) is not None:
            assert getattr(one, part).tobytes() == getattr(other, part).tobytes()


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_predicts_or_says_what_is_missing(name):
    bare = build(np.array([[[0.1], [0.2]], [[0.3], [np.nan]]]))
    try:
        prediction = find_quick(name).fit(bare)(bare.query(0))
    except UndefinedScoreError as error:
        assert len(str(error)) > 60
    else:
        assert len(prediction.order(np.ones(2, dtype=bool))) == 2
