"""The combined strategy: exact against a dense solve, sane where little is known, and silent where nothing is near."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from task2vec.errors import UndefinedScoreError
from task2vec.select.evidence import Answer, Evidence
from task2vec.select.strategies import combined, combined_cells, combined_model, find_strategy
from task2vec.select.strategies.combined import Combined
from task2vec.select.strategies.static import Static
from tests.oracles import combined as oracle


def draw(tasks=8, experts=5, seeds=3, *, missing=0.25, seen=0.2, seed=0, apart=1.0):
    """Tasks on a plane, experts with a side each: errors are small on their side, and the plane tells which it is."""
    random = np.random.default_rng(seed)
    places = random.normal(size=(tasks, 2)) * apart
    sides = random.normal(size=(experts, 2))
    level = -1 + 0.3 * random.normal(size=(tasks, 1)) + 0.2 * random.normal(size=experts) - 0.5 * places @ sides.T
    rough = level[:, :, None] + 0.1 * random.normal(size=(tasks, experts, seeds))
    errors = 1 / (1 + np.exp(-rough))
    errors[random.random((tasks, experts)) < missing] = np.nan
    distances = ((places[:, None] - places) ** 2).sum(2)
    return Evidence(
        tuple(f"task {i}" for i in range(tasks)),
        tuple(f"expert {j}" for j in range(experts)),
        errors,
        random.random((tasks, experts)) >= seen,
        tuple("abc"[i % 3] for i in range(tasks)),
        (None,) * experts,
        (None,) * experts,
        classes=random.integers(2, 30, tasks),
        distances={"symmetric": distances},
        scores={"logme": -level + 0.1 * random.normal(size=level.shape)},
    )


def ask(evidence, row, strategy=None):
    others = np.delete(np.arange(len(evidence.tasks)), row)
    fitted = (strategy or Combined()).fit(evidence.only(others))
    return fitted, evidence.ask(row).among(others)


def scales(**changed):
    values = {"good": 0.1, "rest": 0.02, "own": 0.05, "near": 0.3, "seen": 0.4, "dataset": 0.2, "suit": 0.15}
    return combined_model.Scales(**(values | {"width": 2.0} | changed))


@pytest.mark.parametrize("score", [None, "logme"])
def test_predictions_and_likelihood_are_those_of_one_dense_solve(score):
    evidence = draw()
    fitted, question = ask(evidence, 3, Combined(score=score))
    cells, given = fitted.cells, scales()
    likeness = combined_model.liken(cells.distances, given.width)
    solution = combined_model.solve(cells, given, likeness)
    assert likeness.lift == 0 and cells.seen.any() and not cells.known.all()
    fitted = replace(fitted, scales=given, likeness=likeness, solution=solution)
    forecast = fitted.forecast(question)
    drifts = np.zeros((5, cells.drifts.shape[2]))
    if score:
        allowed = question.scores["logme"][question.is_candidate]
        drifts[:, 1] = np.clip((question.scores["logme"] - allowed.mean()) / allowed.std(), -4, 4)
    new = {
        "distances": question.distances["symmetric"],
        "classes": np.log(question.classes) - fitted.classes,
        "group": {"a": 0, "b": 1, "c": 2}[question.group],
        "drifts": drifts,
    }
    mean, spread, cost = oracle.predict(cells, given, new)
    found = forecast.lean @ forecast.spread @ forecast.lean.T + forecast.common + np.diag(forecast.own)
    np.testing.assert_allclose(forecast.mean, mean, atol=1e-9)
    np.testing.assert_allclose(found, spread, atol=1e-9)
    np.testing.assert_allclose(solution.cost, cost, rtol=1e-9)
    gap = spread[0, 0] + spread[1, 1] - 2 * spread[0, 1]
    assert forecast.compare(0, 1) == pytest.approx(norm.cdf((mean[1] - mean[0]) / np.sqrt(gap)))


@pytest.mark.parametrize("is_euclidean", [True, False])
def test_the_gradient_is_that_of_differences(is_euclidean):
    cells = ask(draw(12, 6), 0, Combined(score="logme"))[0].cells
    if not is_euclidean:
        random = np.random.default_rng(1).random((11, 11)) * 3
        cells = replace(cells, distances=(random + random.T) * (1 - np.eye(11)))
        assert combined_model.liken(cells.distances, 4.0).lift > 0.1
    logs = combined_model._STARTS + np.random.default_rng(2).normal(size=8) * 0.3
    _, gradient = combined_model.weigh_scales(logs, cells, 2.0)
    steps = 1e-5 * np.eye(8)
    rise = [combined_model.weigh_scales(logs + step, cells, 2.0)[0] for step in steps]
    fall = [combined_model.weigh_scales(logs - step, cells, 2.0)[0] for step in steps]
    np.testing.assert_allclose(gradient, (np.array(rise) - fall) / 2e-5, atol=1e-6)


def test_the_lifted_likeness_has_no_eigenvalue_below_zero():
    random = np.random.default_rng(1).random((11, 11)) * 3
    likeness = combined_model.liken((random + random.T) * (1 - np.eye(11)), 4.0)
    assert np.linalg.eigvalsh(likeness.raw)[0] < -0.1 and np.linalg.eigvalsh(likeness.whole)[0] > -1e-9


def test_experts_with_the_same_cells_are_inverted_together_and_all_the_same():
    cells = ask(draw(8, 5), 0)[0].cells
    twice = replace(
        cells,
        **{name: np.tile(getattr(cells, name), (1, 2)) for name in ("values", "known", "seen")},
        drifts=np.tile(cells.drifts, (2, 1, 1)),
    )
    likeness = combined_model.liken(cells.distances, 2.0)
    once, found = (combined_model.solve(each, scales(), likeness).inverses for each in (cells, twice))
    np.testing.assert_allclose(found, np.tile(once, (2, 1, 1)))


def test_the_errors_of_the_asked_task_are_never_looked_at():
    evidence = draw(10, 6, missing=0)
    errors = evidence.errors.copy()
    errors[4] = np.random.default_rng(9).random(errors[4].shape)
    answers = []
    for each in (evidence, replace(evidence, errors=errors)):
        fitted, question = ask(each, 4, Combined(score="logme"))
        answers.append(fitted.rank(question))
    for name in ("badness", "errors", "low", "high", "chances"):
        assert getattr(answers[0], name).tobytes() == getattr(answers[1], name).tobytes()


def test_answers_have_intervals_and_chances_of_candidates():
    fitted, question = ask(draw(12, 6, seed=2), 1)
    answer = fitted.rank(question)
    assert (answer.low < answer.errors).all() and (answer.errors < answer.high).all()
    assert answer.chances.sum() == pytest.approx(1) and not answer.chances[~question.is_candidate].any()
    assert answer.chances.tobytes() == fitted.rank(question).chances.tobytes()
    assert answer.static in np.flatnonzero(question.is_candidate)


def test_chances_are_those_of_independent_experts():
    forecast = combined.Forecast(
        np.array([0.0, 0.5, -9.0]), np.zeros((3, 2)), np.eye(2), 1.0, np.zeros(3), np.full(3, 0.5), 0.1
    )
    chances = forecast.chances(np.array([True, True, False]))
    assert chances[0] == pytest.approx(norm.cdf(0.5), abs=0.03) and chances[2] == 0
    assert chances[0] == pytest.approx(forecast.compare(0, 1), abs=0.03)
    assert not forecast.chances(np.zeros(3, dtype=bool)).any()


def test_the_spread_between_few_datasets_has_students_tails():
    known = combined.Forecast(np.zeros(1), np.array([[2.0]]), np.eye(1) * 0.25, 0.5, np.zeros(1), np.array([0.3]), 0.2)
    assert known.widths(3)[0] == pytest.approx(norm.ppf(0.95) * np.sqrt(1 + 0.5 + 0.3 + 0.2))
    unknown = replace(known, between=np.array([0.4]))
    expected = np.sqrt(norm.ppf(0.95) ** 2 * 1.6 + student.ppf(0.95, 4) ** 2 * 0.4)
    assert unknown.widths(5)[0] == pytest.approx(expected) and unknown.widths(1)[0] == unknown.widths(3)[0]


def test_a_similar_task_is_learned_from_and_a_far_one_gets_the_static_choice():
    evidence = draw(30, 6, missing=0, seen=0, seed=4)
    near = [ask(evidence, row) for row in range(len(evidence.tasks))]
    asked = [(row, fitted.rank(question)) for row, (fitted, question) in enumerate(near)]
    chosen = np.mean([evidence.mean[row, answer.order(np.ones(6, dtype=bool))[0]] for row, answer in asked])
    static = np.mean([evidence.mean[row, answer.static] for row, answer in asked])
    assert chosen < 0.9 * static
    assert sum(not answer.abstains for _, answer in asked) > 15
    fitted, question = near[0]
    far = fitted.rank(replace(question, distances={"symmetric": np.full(29, 1e3)}, group=None))
    first = Answer(Static().fit(fitted.evidence).rank(question).badness).order(question.is_candidate)[0]
    assert far.abstains and far.order(question.is_candidate)[0] == first == far.static
    # Far away it knows less.
    assert (far.high - far.low > asked[0][1].high - asked[0][1].low).all()


def test_what_is_not_near_counts_only_where_the_choice_is_sure():
    evidence = replace(draw(20, 4, missing=0, seen=0, seed=5), distances={})
    fitted, far = ask(evidence, 0, Combined(score="logme"))
    static = fitted.rank(far).static
    best = (static + 1) % 4
    scores = np.zeros(4)
    scores[best] = 5.0
    answer = fitted.rank(replace(far, scores={"logme": scores}))
    assert not fitted.is_near(far) and answer.sureness >= combined.SURE and not answer.abstains
    assert answer.order(far.is_candidate)[0] == best


def test_the_static_choice_is_put_first_where_another_is_predicted_to_be_a_little_better():
    evidence = replace(draw(15, 5, missing=0, seen=0), distances={})
    fitted, question = ask(evidence, 2)
    worst = int(fitted.forecast(question).mean.argmax())
    answer = fitted._heed(question, fitted.forecast(question), fitted.rank(question), worst)
    assert answer.sureness > 0.5 and answer.static == worst
    assert (answer.order(question.is_candidate)[0] == worst) == answer.abstains == (answer.sureness < combined.SURE)


def test_without_distances_the_static_order_is_left():
    evidence = replace(draw(15, 5, missing=0, seen=0), distances={})
    fitted, question = ask(evidence, 2)
    answer = fitted.rank(question)
    assert answer.order(question.is_candidate)[0] == answer.static and answer.abstains


def test_unknown_distances_are_far_ones():
    evidence = draw(10, 5, missing=0)
    holes = evidence.distances["symmetric"].copy()
    holes[:, 4] = holes[4] = np.nan
    fitted, question = ask(replace(evidence, distances={"symmetric": holes}), 0)
    assert np.isfinite(fitted.rank(question).errors).all()
    fitted, question = ask(replace(evidence, distances={"symmetric": holes}), 4)
    assert not fitted.is_near(question) and np.isfinite(fitted.rank(question).errors).all()


def test_an_expert_without_errors_is_between_the_others_and_uncertain():
    evidence = draw(14, 6, missing=0, seen=0)
    errors = evidence.errors.copy()
    errors[:, 2] = np.nan
    fitted, question = ask(replace(evidence, errors=errors), 3)
    forecast, answer = fitted.forecast(question), fitted.rank(question)
    others = np.delete(np.arange(6), 2)
    assert forecast.own[2] > 1.5 * forecast.own[others].max()
    assert answer.errors[others].min() < answer.errors[2] < answer.errors[others].max()
    assert answer.high[2] - answer.low[2] > 0 and answer.static != 2


@pytest.mark.parametrize(
    "shape", [{"tasks": 3, "experts": 1}, {"tasks": 3, "experts": 4}, {"tasks": 2, "experts": 2}, {"seeds": 1}]
)
def test_little_evidence_gives_sane_answers(shape):
    evidence = draw(**({"missing": 0, "seen": 0} | shape))
    evidence = replace(evidence, groups=("one",) * len(evidence.tasks), classes=None)
    fitted, question = ask(evidence, 0)
    answer = fitted.rank(question)
    assert np.isfinite(answer.errors).all() and (answer.high > answer.low).all()
    assert answer.low.min() >= 0 and answer.high.max() <= 1 and answer.chances.sum() == pytest.approx(1)
    alone = replace(question, is_candidate=np.zeros(len(evidence.experts), dtype=bool))
    assert fitted.rank(alone).static is None


def test_nothing_known_is_said():
    evidence = draw()
    with pytest.raises(UndefinedScoreError, match="no error is known"):
        Combined().fit(replace(evidence, errors=np.full_like(evidence.errors, np.nan)))


def test_errors_of_none_and_of_all_stay_between_zero_and_one():
    evidence = draw(8, 4, missing=0)
    errors = np.where(evidence.errors < 0.3, 0.0, 1.0)
    fitted, question = ask(replace(evidence, errors=errors), 0)
    answer = fitted.rank(question)
    assert answer.low.min() >= 0 and answer.high.max() <= 1 and np.isfinite(answer.badness).all()


def test_a_question_without_the_score_is_answered_without_it():
    evidence = draw(10, 5, missing=0)
    fitted, question = ask(evidence, 0, Combined(score="logme"))
    silent = replace(question, scores={})
    plain, _ = ask(evidence, 0)
    np.testing.assert_array_equal(fitted.rank(silent).errors, plain.rank(silent).errors)
    assert not np.allclose(fitted.rank(question).errors, plain.rank(question).errors)


def test_scores_count_in_standard_deviations_over_the_candidates():
    found = combined_cells.standardise(np.array([1.0, 3.0, 99.0, np.nan, -1e9]), np.array([1, 1, 0, 1, 0], dtype=bool))
    np.testing.assert_allclose(found, [-1, 1, 4, 0, -4])
    assert not combined_cells.standardise(np.array([2.0, 2.0]), np.ones(2, dtype=bool)).any()


def test_noise_is_that_of_the_seeds():
    errors = np.array([[[0.1, 0.3], [0.2, np.nan]], [[0.5, 0.5], [np.nan, np.nan]]])
    evidence = replace(draw(2, 2, 2), errors=errors)
    expected = np.log([0.13, 0.33]).var(ddof=1) / 2
    np.testing.assert_allclose(combined_cells.find_noise(evidence), [expected, 0], atol=1e-12)


def test_cells_that_the_expert_has_seen_have_a_shift_of_their_own():
    evidence = draw(24, 8, missing=0, seen=0.3, seed=3)
    errors = np.where(evidence.is_candidate[:, :, None], evidence.errors, evidence.errors / 4)
    fitted, question = ask(replace(evidence, errors=errors), 0)
    shift = fitted.solution.shared[len(fitted.cells.noise)]
    assert shift < -0.6
    honest, _ = ask(evidence, 0)
    assert np.abs(fitted.rank(question).errors - honest.rank(question).errors).mean() < 0.08


def test_an_expert_without_errors_is_judged_by_its_lesson():
    random = np.random.default_rng(7)
    evidence = draw(20, 8, missing=0, seen=0, seed=7)
    to_lessons = random.random((20, 8)) * 2
    errors = np.clip(0.1 + 0.3 * to_lessons[:, :, None] + 0.02 * random.normal(size=(20, 8, 3)), 0, 1)
    errors[:, [2, 3]] = np.nan
    to_lessons[0, [2, 3, 4]] = 0.0, 2.0, np.nan
    evidence = replace(evidence, errors=errors, distances={}, to_lessons={"symmetric": to_lessons})
    answer = (lambda fitted, question: fitted.rank(question))(*ask(evidence, 0, Combined(lessons=True)))
    plain = (lambda fitted, question: fitted.rank(question))(*ask(evidence, 0))
    assert answer.errors[2] < 0.7 * answer.errors[3] and plain.errors[2] == pytest.approx(plain.errors[3])
    assert np.isfinite(answer.errors).all()


def test_names():
    assert Combined().name == "combined" and not Combined().looks_at_images
    assert find_strategy("combined + logme") == Combined(score="logme")
    assert find_strategy("combined domain").kind == "domain" and Combined(score="knn").looks_at_images


def test_a_new_task_is_lifted_as_the_known_ones_are():
    evidence = draw(12, 6)
    random = np.random.default_rng(1).random((12, 12)) * 3
    evidence = replace(evidence, distances={"symmetric": (random + random.T) * (1 - np.eye(12))})
    fitted, question = ask(evidence, 3)
    given = scales(width=4.0)
    likeness = combined_model.liken(fitted.cells.distances, given.width)
    assert likeness.lift > 0.1
    fitted = replace(
        fitted, scales=given, likeness=likeness, solution=combined_model.solve(fitted.cells, given, likeness)
    )
    question = replace(question, distances={"symmetric": np.full(11, np.inf)}, group="elsewhere", classes=None)
    forecast = fitted.forecast(question)
    level = combined_model._LEVEL
    known = combined_model.spread_hardness(fitted.cells, given, likeness)
    variance = level + given.own + given.near * (1 + likeness.lift) + given.dataset
    crossed = np.full(11, level)
    assert forecast.common == pytest.approx(variance - crossed @ np.linalg.solve(known, crossed))
    taken = np.einsum("eij->e", fitted.solution.inverses) * given.good**2
    np.testing.assert_allclose(
        forecast.own, given.good + given.suit * (1 + likeness.lift) - taken + given.rest, atol=1e-12
    )


def test_a_distance_with_a_direction_counts_as_the_mean_of_both_ways():
    evidence = draw(6, 4)
    there = np.random.default_rng(0).random((6, 6))
    cells, *_ = combined_cells.gather(
        replace(evidence, distances={"symmetric": there}), combined_cells.Means("symmetric", None, False, 1.0)
    )
    for one, other in ((0, 1), (4, 2)):
        assert cells.distances[one, other] == cells.distances[other, one] == (there[one, other] + there[other, one]) / 2
    assert (np.diag(cells.distances) == 0).all()
