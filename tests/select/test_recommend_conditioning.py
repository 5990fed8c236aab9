"""What is known of the asked task itself: its head and what was measured, each believed as far as its noise allows."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from task2vec.select.evidence import SYMMETRIC, Evidence
from task2vec.select.knowledge.knowing import know_measured
from task2vec.select.recommendation import conditioning
from task2vec.select.recommendation.conditioning import (
    add_heads,
    find_miss,
    find_static,
    fit_heads,
    guess_noise,
    learn_own,
    predict,
)
from task2vec.select.recommendation.confirming import Measured
from task2vec.select.strategies import find_strategy
from task2vec.select.strategies.combined import Combined
from task2vec.select.strategies.combined_model import liken, scale_errors, solve
from tests.cli.material import make
from tests.oracles import combined as oracle
from tests.select.recommend_world import make_metatask
from tests.select.test_combined import ask as leave_out
from tests.select.test_combined import draw, scales


@pytest.fixture(scope="module")
def known():
    return know_measured(make_metatask(), "half", make("", 0))


def ask(known, own):
    return known.ask(own, np.array([offer.is_named for offer in known.offers]))


def measure(error, *, splits=2, spread=0.0):
    by_split = dict(enumerate(error + spread * np.linspace(-1, 1, splits)))
    return Measured(error, error - 0.1, error + 0.1, by_split)


@pytest.mark.parametrize("experts", [[1], [0, 3, 4]])
def test_what_was_measured_on_the_task_is_conditioned_on_as_one_dense_solve_does(experts):
    fitted, question = leave_out(draw(), 3)
    given = scales()
    likeness = liken(fitted.cells.distances, given.width)
    fitted = replace(fitted, scales=given, likeness=likeness, solution=solve(fitted.cells, given, likeness))
    new = {
        "distances": question.distances["symmetric"],
        "classes": np.log(question.classes) - fitted.classes,
        "group": {"a": 0, "b": 1, "c": 2}[question.group],
        "drifts": np.zeros((5, fitted.cells.drifts.shape[2])),
    }
    told = {
        "experts": experts,
        "values": np.linspace(-0.8, 0.4, len(experts)),
        "noise": np.linspace(0.01, 0.2, len(experts)),
    }
    mean, spread = oracle.learn(fitted.cells, given, new, told)
    found = fitted.forecast(question).learn(np.array(experts), told["values"], told["noise"])
    whole = found.lean @ found.spread @ found.lean.T + found.common + np.diag(found.own)
    np.testing.assert_allclose(found.mean, mean, atol=1e-9)
    np.testing.assert_allclose(whole, spread, atol=1e-9)
    # Intervals and comparisons are those of this posterior: the asked task counts once.
    widths = norm.ppf(0.95) * np.sqrt(np.diag(spread) + fitted.cells.noise.mean())
    np.testing.assert_allclose(found.widths(9), widths, atol=1e-9)
    gap = spread[0, 0] + spread[1, 1] - 2 * spread[0, 1]
    assert found.compare(0, 1) == pytest.approx(norm.cdf((mean[1] - mean[0]) / np.sqrt(gap)))
    draws = np.random.default_rng(1).multivariate_normal(mean, spread, 40_000).argmin(1)
    np.testing.assert_allclose(found.chances(np.ones(5, dtype=bool)), np.bincount(draws, minlength=5) / 4e4, atol=0.03)


def test_nothing_measured_changes_nothing():
    fitted, question = leave_out(draw(), 3)
    forecast = fitted.forecast(question)
    assert forecast.learn(np.zeros(0, dtype=int), np.zeros(0), np.zeros(0)) is forecast


def test_a_noisy_error_is_shrunk_and_a_sure_one_is_taken():
    fitted, question = leave_out(draw(), 3)
    forecast = fitted.forecast(question)
    error = forecast.mean[2] - 1.0
    found = [forecast.learn(np.array([2]), np.array([error]), np.array([noise])).mean for noise in (1e-9, 0.1, 1e9)]
    assert found[0][2] == pytest.approx(error, abs=1e-6) and found[2] == pytest.approx(forecast.mean, abs=1e-6)
    assert error < found[1][2] < forecast.mean[2]
    assert (found[0] < forecast.mean).all()  # the others move with it


def test_the_best_of_several_noisy_errors_is_not_expected_to_be_as_good(known):
    # All measured alike but for luck: who was lucky stays first, and is expected to be worse than it was measured.
    own = make("mine", 30)
    names = [offer.name for offer in known.offers if offer.is_named]
    answer = predict(known, own, ask(known, own), {name: measure(0.3, spread=0.1) for name in names})[0]
    lucky = {name: measure(0.3 if name != names[0] else 0.2, spread=0.1) for name in names}
    moved = predict(known, own, ask(known, own), lucky)[0]
    column = known.evidence.experts.index(names[0])
    assert 0.2 < moved.errors[column] < answer.errors[column]


def test_measured_errors_move_the_others_and_narrow_their_intervals(known):
    own = make("mine", 30)
    column = known.evidence.experts.index("tf_efficientnet_lite1")
    before = predict(known, own, ask(known, own), {})[0]
    for error in (0.1, 0.8):
        after = predict(known, own, ask(known, own), {"mobilenet_v2": measure(error)})[0]
        assert (after.errors[column] > before.errors[column]) == (error > 0.5)
        assert after.high[column] - after.low[column] < before.high[column] - before.low[column]
    assert len(after.errors) == len(after.chances) == len(known.offers)
    unknown = predict(known, own, ask(known, own), {"nobody": measure(0.1)})[0]
    np.testing.assert_array_equal(unknown.errors, before.errors)


def test_the_head_of_the_task_and_those_of_known_ones_are_one_more_expert(known):
    heads = np.linspace(0.2, 0.4, len(known.fingerprints))
    told = [
        replace(one, provenance=one.provenance | {"head": {"cv_error": float(error)}})
        for one, error in zip(known.embeddings, heads, strict=False)
    ]
    known = replace(known, embeddings=(*told, *known.embeddings[len(told) :]))
    evidence = add_heads(known)
    np.testing.assert_array_equal(evidence.mean[:, :-1], known.evidence.mean)
    np.testing.assert_allclose(evidence.mean[:, -1], heads)
    fitted = fit_heads(known)
    question = ask(known, make("mine", 30))
    asked = replace(question, to_lessons={SYMMETRIC: np.append(question.to_lessons[SYMMETRIC], np.nan)})
    forecast = fitted.forecast(asked)
    easy, hard = (learn_own(fitted, forecast, head, {}).mean for head in (0.05, 0.9))
    assert (easy < forecast.mean).all() and (hard > forecast.mean).all()
    assert learn_own(fitted, forecast, np.nan, {}) is forecast


def test_heads_that_miss_by_more_than_experts_are_believed_less():
    evidence = draw(30, 6, missing=0, seen=0)
    same = Combined(scales=scales(rest=0.01)).fit(evidence)
    errors = evidence.errors.copy()
    luck = 0.3 * np.random.default_rng(0).normal(size=30)
    errors[:, -1] = np.exp(scale_errors(errors[:, -1]) + luck[:, None]) - 0.03
    fitted = Combined(scales=scales(rest=0.01)).fit(replace(evidence, errors=errors))
    assert find_miss(fitted) == pytest.approx(oracle.miss(fitted.cells, fitted.scales), rel=1e-6)
    assert find_miss(fitted) == pytest.approx(luck.var(), rel=0.3) and find_miss(same) < 0.1
    unknown = evidence.errors.copy()
    unknown[:, -1] = np.nan
    assert find_miss(Combined(scales=scales()).fit(replace(evidence, errors=unknown))) == 0


def test_the_noise_of_a_split_is_that_of_the_task_and_of_known_ones(known):
    evidence = add_heads(known)
    splits = evidence.errors.shape[2]
    apart = [measure(0.3, splits=3, spread=0.1), measure(0.2, splits=2, spread=0.05)]
    squares = [np.square(v - v.mean()).sum() for v in (scale_errors(np.array([*m.by_split.values()])) for m in apart)]
    usual = np.full(len(evidence.tasks), 0.002)
    none = np.zeros(len(usual))
    assert guess_noise(evidence, usual, []) == pytest.approx(0.002 * splits)
    # Of a task with one split nothing is known, which is not that it has no noise.
    assert guess_noise(evidence, np.where(np.arange(len(usual)) == 0, 0.002, 0), []) == pytest.approx(0.002 * splits)
    expected = (conditioning._SPLITS * 0.002 * splits + sum(squares)) / (conditioning._SPLITS + 3)
    assert guess_noise(evidence, usual, apart) == pytest.approx(expected)
    assert guess_noise(evidence, none, apart) == pytest.approx(sum(squares) / 3)
    alone = Measured(0.3, 0.2, 0.4, {0: 0.3})
    width = np.diff(scale_errors(np.array([0.2, 0.4])))[0] / 3.92
    assert guess_noise(evidence, none, [alone]) == pytest.approx(width**2)
    assert guess_noise(evidence, none, []) == 0


def test_an_error_that_tells_nothing_leaves_students_tails():
    fitted, question = leave_out(draw(), 3)
    forecast = fitted.forecast(replace(question, group="unheard of"))
    assert (forecast.between > 0).all()
    blind, sure = (forecast.learn(np.array([2]), np.array([-0.5]), np.array([noise])) for noise in (1e9, 1e-9))
    np.testing.assert_allclose(blind.widths(3), forecast.widths(3), rtol=1e-6)
    assert sure.between[2] == pytest.approx(0, abs=1e-6) and (sure.between[:2] < forecast.between[:2]).all()
    # The dataset keeps its share of what is left unknown of the effect that all experts have in common.
    noise, numbers = np.array([0.05, 0.3]), np.array([0, 2])
    told = forecast.lean[numbers] @ forecast.spread @ forecast.lean[numbers].T + forecast.common
    pull = np.linalg.inv(told + np.diag(forecast.own[numbers] + noise)).sum()
    left = (1 - forecast.common * pull) * forecast.between
    left[numbers] *= (noise / (forecast.own[numbers] + noise)) ** 2
    found = forecast.learn(numbers, np.array([-0.5, 0.1]), noise)
    np.testing.assert_allclose(found.between, left, rtol=1e-9)


def test_two_experts_that_are_known_exactly_are_compared_without_a_warning():
    fitted, question = leave_out(draw(), 3)
    numbers = np.array([0, 1, 2])
    forecast = replace(fitted.forecast(question), own=np.full(5, 0.3))
    known = forecast.learn(numbers, np.array([-0.5, -0.5, 0.2]), np.zeros(3))
    assert [known.compare(0, 1), known.compare(0, 2), known.compare(2, 0)] == [0.5, 1.0, 0.0]


def add_expert(evidence, values):
    """The errors of the evidence, and those of one more expert, task by task."""
    tasks, _, splits = evidence.errors.shape
    column = np.repeat(np.asarray(values, dtype=float)[:, None, None], splits, axis=2)
    return Evidence(
        evidence.tasks,
        (*evidence.experts, "newcomer"),
        np.concatenate([evidence.errors, column], axis=1),
        np.hstack([evidence.is_candidate, np.ones((tasks, 1), dtype=bool)]),
        evidence.groups,
        (*evidence.lessons, None),
        (*evidence.lesson_groups, None),
    )


def test_the_static_choice_is_known_on_many_tasks_and_beside_others(known):
    evidence, question = known.evidence, ask(known, make("mine", 30))
    usual = find_static(evidence, question)
    question = replace(question, is_candidate=np.append(question.is_candidate, True))
    tasks = np.arange(len(evidence.tasks))
    newcomer = len(evidence.experts)
    for count, is_chosen in ((2, False), (len(tasks) // 2 - 1, False), (len(tasks) // 2, True)):
        few = add_expert(evidence, np.where(tasks < count, 0.01, np.nan))
        assert (find_static(few, question) == newcomer) == is_chosen
        assert is_chosen or find_static(few, question) == usual
    # On tasks that no other expert was measured on, nothing links it with them: easy tasks, or a good expert?
    alone = replace(evidence, errors=np.where((tasks < 7)[:, None, None], np.nan, evidence.errors))
    alone = add_expert(alone, np.where(tasks < 7, 0.01, np.nan))
    assert find_static(alone, question) == find_static(alone.only(tasks[7:]), question) != newcomer
    assert np.isnan(find_strategy("static").fit(alone).rank(question).badness[newcomer])
    only = np.zeros(newcomer + 1, dtype=bool)
    only[newcomer] = True
    assert find_static(alone, replace(question, is_candidate=only)) == newcomer  # if nobody else may be chosen


def test_the_static_choice_is_kept_where_nothing_similar_is_known(known):
    near = make("mine", 30, kind=0)
    question = ask(known, near)
    answer, is_sure = predict(known, near, question, {})
    assert is_sure and answer.sureness > 0.6
    apart, reach = question.distances[SYMMETRIC], fit_heads(known)._reach
    far = replace(question, distances={SYMMETRIC: apart - apart.min() + 1.01 * reach})
    answer, is_sure = predict(known, near, far, {})
    assert answer.sureness > 0.6 and not is_sure  # however good the chance is said to be
    measured = {known.offers[int(np.argmin(answer.errors))].name: measure(0.05, splits=3)}
    assert predict(known, near, far, measured)[1]  # but measuring counts


def test_heads_have_no_say_in_the_static_choice(known):
    # Where cells are missing, a head that is known everywhere moves what is taken for the hardness of tasks.
    random = np.random.default_rng(0)
    own, differing = make("mine", 30), 0
    for _ in range(20):
        errors = np.where(
            random.random(known.evidence.mean.shape) < 0.5, np.nan, random.random(known.evidence.mean.shape)
        )
        heads = random.random(len(known.embeddings))
        told = [
            replace(one, provenance=one.provenance | {"head": {"cv_error": float(error)}})
            for one, error in zip(known.embeddings, heads, strict=True)
        ]
        evidence = replace(known.evidence, errors=np.repeat(errors[..., None], 2, axis=2))
        case = replace(known, evidence=evidence, embeddings=tuple(told))
        static = find_static(evidence, ask(case, own))
        assert predict(case, own, ask(case, own), {})[0].static == static
        fitted = fit_heads(case)
        candidates = np.flatnonzero(ask(case, own).is_candidate)
        differing += static is not None and candidates[np.nanargmin(fitted._static[candidates])] != static
    assert differing
