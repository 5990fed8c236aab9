"""Strategies in closed form, each beside a slow transcription; none of them sees the task that it is asked about."""

from dataclasses import replace

import numpy as np
import pytest

from task2vec.distance import ALPHA
from task2vec.errors import UndefinedScoreError, UsageError
from task2vec.select import SCORES
from task2vec.select.evidence import SYMMETRIC, Evidence
from task2vec.select.strategies import (
    STRATEGIES,
    Generic,
    InModelSpace,
    Kernel,
    Nearest,
    NearestAsymmetric,
    Scored,
    Size,
    Static,
    StaticWithDistance,
    find_strategy,
)
from task2vec.select.strategies.effects import find_errors, take_apart
from task2vec.select.strategies.kernel import WIDTHS, choose_width
from task2vec.select.strategies.model_space import ModelSpaceSettings
from task2vec.select.strategies.nearest import ALPHAS
from task2vec.select.strategies.scored import SCORED
from tests.oracles.slow_choosing import slow_adjusted, slow_effects, slow_kernel
from tests.select.evidence_making import make_evidence


def ask(strategy, evidence, row=0):
    """What a strategy says of one task, fitted on the others."""
    others = [other for other in range(len(evidence.tasks)) if other != row]
    return strategy.fit(evidence.only(others)).rank(evidence.ask(row).among(others))


@pytest.mark.parametrize("shape", [(9, 5), (5, 9)])
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_effects_are_least_squares(shape, missing):
    rng = np.random.default_rng(3)
    errors = rng.random(shape)
    errors[rng.random(shape) < missing] = np.nan
    found, (tasks, experts) = take_apart(errors), slow_effects(errors)
    np.testing.assert_allclose(found.tasks, tasks, atol=1e-10)
    np.testing.assert_allclose(found.experts, experts, atol=1e-10)
    np.testing.assert_allclose(found.rest, errors - tasks[:, None] - experts, atol=1e-10)


def test_missing_cells_favour_nobody():
    tasks, experts = np.array([0.1, 0.2, 0.7, 0.8]), np.array([0.0, 0.05, 0.1])
    errors = tasks[:, None] + experts
    errors[:2, 0] = np.nan  # the best one is known on hard tasks only
    assert take_apart(errors).experts.argmin() == 0
    assert np.nanmean(errors, axis=0).argmin() != 0


def test_effects_without_the_own_task_are_those_of_the_others():
    errors = np.random.default_rng(0).random((6, 4))
    effects = take_apart(errors)
    for row in range(6):
        others = np.delete(errors - effects.tasks[:, None], row, axis=0).mean(0)
        np.testing.assert_allclose(effects.without_own()[row], others, atol=1e-12)


def test_static_is_the_best_mean_of_what_may_be_learned():
    evidence = make_evidence()
    errors = np.where(evidence.is_candidate, evidence.mean, np.nan)
    answer = Static().fit(evidence).rank(evidence.ask(0))
    np.testing.assert_allclose(answer.badness, slow_effects(errors)[1], atol=1e-10)
    assert abs(np.mean(answer.errors) - take_apart(errors).level) < 1e-9
    seen = evidence.errors.copy()
    seen[1, 1] = 0.0  # where the expert has seen the task
    assert np.array_equal(Static().fit(replace(evidence, errors=seen)).rank(evidence.ask(0)).badness, answer.badness)


def test_chance_cannot_tell_anybody_from_anybody():
    evidence = make_evidence()
    assert set(ask(find_strategy("chance"), evidence).places()) == {0}


def test_generic_and_size_fall_back_on_static():
    evidence = make_evidence()
    static = ask(Static(), evidence).badness
    generic = ask(Generic(), evidence)
    everybody = np.ones(6, dtype=bool)
    assert generic.order(everybody)[0] == 0
    assert generic.order(everybody)[1:].tolist() == [n for n in np.argsort(static) if n != 0]
    size = ask(Size(), evidence)
    wanted = sorted(range(6), key=lambda n: (-evidence.parameters[n], static[n]))
    assert size.order(everybody).tolist() == wanted


def test_nearest_ranks_by_distance_and_the_unknown_by_static():
    evidence = make_evidence(unknown=3)
    answer = ask(Nearest(SYMMETRIC), evidence)
    static = ask(Static(), evidence).badness
    gaps = evidence.to_lessons[SYMMETRIC][0]
    order = answer.order(np.ones(6, dtype=bool)).tolist()
    assert order == [*sorted((3, 4, 5), key=lambda n: gaps[n]), *sorted((0, 1, 2), key=lambda n: static[n])]


def test_asymmetric_grants_complexity_its_share():
    evidence = make_evidence()
    answer = ask(NearestAsymmetric(0.3), evidence)
    wanted = evidence.to_lessons[SYMMETRIC][0] - 0.3 * evidence.simplicity
    np.testing.assert_allclose(answer.badness, wanted)
    assert np.isnan(answer.badness[0]) and not np.isnan(answer.badness[1:]).any()


def test_alpha_is_the_best_for_the_others():
    evidence = make_evidence(4, tasks=12, experts=8)
    others = list(range(1, 12))
    known = evidence.only(others)
    errors = find_errors(known) - take_apart(find_errors(known)).tasks[:, None]
    losses = []
    for alpha in ALPHAS:
        total = 0.0
        for row in range(11):
            allowed = [j for j in range(1, 8) if np.isfinite(errors[row, j])]
            far = [known.to_lessons[SYMMETRIC][row, j] - alpha * known.simplicity[j] for j in allowed]
            total += errors[row, allowed[int(np.argmin(far))]]
        losses.append(total / 11)
    chosen = NearestAsymmetric(None).fit(known).grants[1] / known.simplicity[1]
    assert losses[int(np.argmin(np.abs(np.array(ALPHAS) - chosen)))] == pytest.approx(min(losses))
    assert min(losses) < max(losses)


@pytest.mark.parametrize("lacking", ["lessons of candidates", "simplicity"])
def test_alpha_is_the_papers_where_nothing_speaks_for_another(lacking):
    evidence = make_evidence()
    if lacking == "simplicity":
        evidence = replace(evidence, simplicity=np.full(6, np.nan))
    else:  # each lesson is known to be near to the one task that its expert has seen
        is_candidate = ~np.eye(9, 6, dtype=bool)
        gaps = np.where(is_candidate, np.nan, 0.1)
        evidence = replace(evidence, is_candidate=is_candidate, to_lessons={SYMMETRIC: gaps})
    chosen, papers = (NearestAsymmetric(alpha).fit(evidence).grants for alpha in (None, ALPHA))
    np.testing.assert_array_equal(chosen, papers)


def test_static_with_distance_is_the_joint_fit():
    evidence = make_evidence(2, unknown=0)
    gaps = evidence.to_lessons[SYMMETRIC].copy()
    errors = np.where(evidence.is_candidate[:, :, None], evidence.errors + 0.8 * gaps[:, :, None], evidence.errors)
    evidence = replace(evidence, errors=errors)
    fitted = StaticWithDistance().fit(evidence)
    weight, experts = slow_adjusted(np.where(evidence.is_candidate, evidence.mean, np.nan), gaps)
    assert fitted.weight == pytest.approx(weight, rel=1e-6) and weight > 0.3
    badness = fitted.rank(evidence.ask(3)).badness
    wanted = experts + weight * gaps[3]
    np.testing.assert_allclose(badness - badness.mean(), wanted - wanted.mean(), atol=1e-8)


def test_nearer_is_never_worse_and_the_unknown_keep_their_static_place():
    evidence = make_evidence(2)
    worse = replace(evidence, errors=evidence.errors - 0.8 * np.nan_to_num(evidence.to_lessons[SYMMETRIC])[:, :, None])
    fitted = StaticWithDistance().fit(worse)
    assert fitted.weight == 0
    np.testing.assert_allclose(fitted.rank(worse.ask(0)).badness, fitted.effects.experts)


def test_a_task_that_is_far_from_all_lessons_favours_nobody():
    evidence = make_evidence(2)
    errors = evidence.errors + 0.8 * np.nan_to_num(evidence.to_lessons[SYMMETRIC])[:, :, None]
    fitted = StaticWithDistance().fit(replace(evidence, errors=errors))
    question = evidence.ask(1)
    far = replace(question, to_lessons={SYMMETRIC: question.to_lessons[SYMMETRIC] + 5})
    assert fitted.weight > 0
    np.testing.assert_allclose(fitted.rank(far).badness, fitted.rank(question).badness)
    seen = question.to_lessons[SYMMETRIC].copy()
    seen[1] = 0  # no candidate there, so what is usual does not move
    moved = fitted.rank(replace(question, to_lessons={SYMMETRIC: seen})).badness
    np.testing.assert_allclose(moved[2:], fitted.rank(question).badness[2:])


def test_a_kernel_is_a_weighted_mean_over_tasks():
    evidence = make_evidence(1, missing=0.2)
    for width in (0.05, 0.5):
        answer = ask(Kernel(SYMMETRIC, width), evidence)
        errors = np.where(evidence.is_candidate, evidence.mean, np.nan)[1:]
        wanted = slow_kernel(errors, evidence.distances[SYMMETRIC][0, 1:], width)
        np.testing.assert_allclose(answer.badness, wanted, atol=1e-10)


def test_a_kernel_of_datasets_is_the_mean_over_the_own_one():
    evidence = make_evidence(1)
    answer = ask(Kernel("dataset"), evidence)
    same = [0.0 if group == "set 0" else 1e6 for group in evidence.groups[1:]]
    errors = np.where(evidence.is_candidate, evidence.mean, np.nan)[1:]
    np.testing.assert_allclose(answer.badness, slow_kernel(errors, same, 1.0), atol=1e-10)
    alone = evidence.only([0, 1, 2, 4, 5]).ask(0).among([1, 2, 3, 4])
    others = evidence.only([1, 2, 4, 5])
    static = Static().fit(others).rank(alone).badness
    np.testing.assert_allclose(Kernel("dataset").fit(others).rank(alone).badness, static, atol=1e-12)


def test_the_width_predicts_each_known_task_from_the_others_best():
    evidence = make_evidence(1, tasks=12)
    near = np.exp(-np.square(np.subtract.outer(np.arange(12), np.arange(12))) / 8)
    rest = near @ np.random.default_rng(0).normal(size=(12, 6)) * 0.1
    distances = np.abs(np.subtract.outer(np.arange(12.0), np.arange(12.0)))
    effects = take_apart(0.5 + rest)
    width = choose_width(effects, distances)
    own, losses = effects.rest + effects.experts, {}
    median = np.median(distances[~np.eye(12, dtype=bool)])
    for part in WIDTHS:
        total = 0.0
        for row in range(12):
            weights = np.array([np.exp(-distances[row, k] / (part * median)) if k != row else 0 for k in range(12)])
            total += np.square(own[row] - weights @ own / weights.sum()).sum()
        losses[part * median] = total
    assert width == pytest.approx(min(losses, key=losses.get)) and width < median
    assert evidence.tasks  # the shape above has as many tasks


def test_a_score_ranks_the_highest_first():
    evidence = make_evidence()
    scores = evidence.scores["logme"].copy()
    scores[0, 2] = np.nan
    answer = ask(Scored("logme"), replace(evidence, scores={"logme": scores}))
    order = answer.order(np.ones(6, dtype=bool))
    assert order[-1] == 2 and (np.diff(scores[0, order[:-1]]) <= 0).all()


def test_every_score_is_a_strategy():
    assert tuple(SCORES) == SCORED
    assert set(SCORED) <= set(STRATEGIES)


QUICK = ModelSpaceSettings(epochs=3, filters=20)


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_strategy_sees_the_errors_of_the_task_that_it_is_asked_about(name):
    evidence = make_evidence()
    strategy = InModelSpace(QUICK) if name == "model space" else find_strategy(name)
    errors = evidence.errors.copy()
    errors[0] = errors[0, ::-1] * 0.5
    changed = replace(evidence, errors=errors)
    one, other = ask(strategy, evidence), ask(strategy, changed)
    for part in ("badness", "errors", "low", "high", "chances", "fallback"):
        assert (getattr(one, part) is None) == (getattr(other, part) is None)
        if getattr(one, part) is not None:
            assert getattr(one, part).tobytes() == getattr(other, part).tobytes()


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_answers_or_says_what_is_missing(name):
    strategy = InModelSpace(QUICK) if name == "model space" else find_strategy(name)
    assert strategy.name == name and isinstance(strategy.looks_at_images, bool)
    bare = Evidence(
        ("a", "b"),
        ("x", "y"),
        np.array([[[0.1], [0.2]], [[0.3], [np.nan]]]),
        np.ones((2, 2), dtype=bool),
        ("a", "b"),
        (None, None),
        (None, None),
    )
    try:
        answer = strategy.fit(bare).rank(bare.ask(0))
    except UndefinedScoreError as error:
        assert len(str(error)) > 60
    else:
        assert len(answer.order(np.ones(2, dtype=bool))) == 2


def test_without_any_error_static_says_so():
    evidence = make_evidence()
    nothing = replace(evidence, errors=np.full(evidence.errors.shape, np.nan))
    with pytest.raises(UndefinedScoreError, match="no error is known"):
        Static().fit(nothing)
    assert ask(Nearest(), nothing).order(np.ones(6, dtype=bool))[0] == np.nanargmin(evidence.to_lessons[SYMMETRIC][0])


def test_an_unknown_strategy_is_refused_with_the_names_of_all():
    with pytest.raises(UsageError, match="static; size"):
        find_strategy("clairvoyance")
