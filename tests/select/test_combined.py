"""The combined strategy: exact against a dense solve, sane where little is known, and silent where nothing is near."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from task2vec.errors import UndefinedScoreError
from task2vec.experts import bundled_metatask
from task2vec.library import MeasuredError
from task2vec.select import combined, fit_combined, learn_bundled_scales
from task2vec.select.combined import scale_errors, unscale
from task2vec.select.evaluate import evaluate
from tests.oracles import combined as oracle
from tests.select.material import HALF, build, embed, with_errors


def draw(tasks=8, models=5, seeds=3, *, missing=0.25, seen=0.2, seed=0):
    """Tasks on a plane, models with a side each: errors are small on their side, and the plane shows which it is."""
    random = np.random.default_rng(seed)
    places = random.normal(size=(tasks, 2))
    sides = random.normal(size=(models, 2))
    level = -1 + 0.3 * random.normal(size=(tasks, 1)) + 0.2 * random.normal(size=models) - 0.5 * places @ sides.T
    rough = level[:, :, None] + 0.1 * random.normal(size=(tasks, models, seeds))
    errors = 1 / (1 + np.exp(-rough))
    errors[random.random((tasks, models)) < missing] = np.nan
    distances = ((places[:, None] - places) ** 2).sum(2)
    has_seen = random.random((tasks, models)) < seen
    classes = random.integers(2, 30, tasks)
    scores = {"logme": (-level + 0.1 * random.normal(size=level.shape))[:, :, None]}
    datasets = ["abc"[i % 3] for i in range(tasks)]
    known = {"datasets": datasets, "classes": classes, "seen": has_seen}
    return build(errors, **known, distances={"symmetric": distances}, scores=scores)


def draw_distances(count):
    """Distances of no space."""
    random = np.random.default_rng(1).random((count, count)) * 3
    return (random + random.T) * (1 - np.eye(count))


def ask(metatask, row, **options):
    others = np.delete(np.arange(len(metatask.tasks)), row)
    return fit_combined(metatask.only(others), **options), metatask.query(row, known=others)


def scales(**changed):
    values = {"good": 0.1, "rest": 0.02, "own": 0.05, "near": 0.3, "seen": 0.4, "dataset": 0.2, "suit": 0.15}
    return combined.Scales(**(values | {"width": 2.0} | changed))


def cover(posterior):
    """The whole covariance of the errors of all models."""
    return posterior.lean @ posterior.spread @ posterior.lean.T + posterior.common + np.diag(posterior.own)


def describe(fitted, query):
    """The query as the dense oracle takes it."""
    drifts = np.zeros_like(fitted.cells.drifts[:, 0])
    if drifts.shape[1] > 1:
        allowed = query.scores["logme"][query.is_candidate]
        drifts[:5, 1] = np.clip((query.scores["logme"] - allowed.mean()) / allowed.std(), -4, 4)
    return {
        "distances": query.distances["symmetric"],
        "classes": np.log(query.classes) - fitted.classes,
        "is_same": np.array([float(one == query.dataset) for one in fitted.metatask.datasets]),
        "drifts": drifts,
        "lift": fitted.solution.lift,
    }


@pytest.mark.parametrize(("score", "is_euclidean"), [(None, True), ("logme", True), (None, False)])
def test_predictions_and_likelihood_are_those_of_one_dense_solve(score, is_euclidean):
    """Where distances are of no Euclidean space, tasks are lifted apart until their similarities are covariances."""
    metatask = draw() if is_euclidean else replace(draw(12), distances={"symmetric": draw_distances(12)})
    fitted, query = ask(metatask, 3, score=score, scales=scales(width=2.0 if is_euclidean else 4.0))
    cells, posterior = fitted.cells, fitted.posterior(query)
    assert (fitted.solution.lift == 0) == is_euclidean and cells.seen.any() and not cells.known.all()
    np.testing.assert_array_equal(cells.seen, fitted.metatask.has_seen & cells.known)
    mean, spread, cost = oracle.predict(cells, fitted.scales, describe(fitted, query))
    np.testing.assert_allclose(posterior.mean, mean, atol=1e-9)
    np.testing.assert_allclose(cover(posterior), spread, atol=1e-9)
    np.testing.assert_allclose(fitted.solution.cost, cost, rtol=1e-9)
    gap = spread[0, 0] + spread[1, 1] - 2 * spread[0, 1]
    assert posterior.p_better(0, 1) == pytest.approx(norm.cdf((mean[1] - mean[0]) / np.sqrt(gap)))


@pytest.mark.parametrize("shared", [np.zeros(3), np.array([0.3, 0.0, 0.5])])
def test_measured_errors_are_conditioned_on_as_one_dense_solve_does(shared):
    (fitted, query), models = ask(draw(), 3, scales=scales()), [0, 3, 4]
    values, noise = np.linspace(-0.8, 0.4, 3), np.linspace(0.01, 0.2, 3)
    told = {"models": models, "values": values, "noise": np.diag(noise) + np.outer(shared, shared)}
    mean, spread, *_ = oracle.solve(fitted.cells, fitted.scales, describe(fitted, query), told)
    found = fitted.posterior(query).condition(np.array(models), values, noise, shared)
    np.testing.assert_allclose(found.mean, mean, atol=1e-9)
    np.testing.assert_allclose(cover(found), spread, atol=1e-9)
    widths = norm.ppf(0.95) * np.sqrt(np.diag(spread) + fitted.cells.noise.mean())
    np.testing.assert_allclose(found.half_widths(9), widths, atol=1e-9)
    exact = replace(fitted.posterior(query), own=np.full(5, 0.3))
    exact = exact.condition(np.arange(3), np.array([-0.5, -0.5, 0.2]), np.zeros(3))
    assert [exact.p_better(0, 1), exact.p_better(0, 2), exact.p_better(2, 0)] == [0.5, 1.0, 0.0]
    draws = np.random.default_rng(1).multivariate_normal(mean, spread, 40_000).argmin(1)
    np.testing.assert_allclose(found.p_best(np.ones(5, dtype=bool)), np.bincount(draws, minlength=5) / 4e4, atol=0.03)


@pytest.mark.parametrize("measured", [[], [1], [1, 3]])
def test_the_gain_of_a_measurement_is_that_of_choosing_after_it(measured):
    fitted, query = ask(draw(), 3)
    posterior = replace(fitted.posterior(query), noise=0.05)
    tried = np.isin(np.arange(5), measured) if measured else np.ones(5, dtype=bool)
    spread, random = cover(posterior), np.random.default_rng(0)
    for number in np.setdiff1d(np.arange(5), measured):
        rivals = measured or [one for one in range(5) if one != number]
        rival = min(rivals, key=lambda one: posterior.mean[one])
        gap = spread[number, number] + spread[rival, rival] - 2 * spread[number, rival]
        means = posterior.mean[rival] - posterior.mean[number] + random.normal(size=200_000) * gap / np.sqrt(gap + 0.05)
        gain = np.maximum(means, 0).mean() - (0 if measured else max(posterior.mean[rival] - posterior.mean[number], 0))
        found = posterior.expect_gain(number, tried, is_measured=bool(measured))
        assert found == pytest.approx(gain, abs=0.003) and found >= 0
    assert posterior.expect_gain(2, np.arange(5) == 2, is_measured=False) == 0  # there is no other to choose


def test_noise_is_that_of_test_images_or_of_seeds_on_the_scale_of_the_model():
    random, errors = np.random.default_rng(0), np.array([0.05, 0.3, 0.9])
    for images in (200, 2000):
        shares = random.binomial(images, errors, size=(20_000, 3)) / images
        np.testing.assert_allclose(combined.binomial_noise(errors, images), scale_errors(shares).var(0), rtol=0.15)
    assert combined.binomial_noise(np.zeros(1), 20)[0] > combined.binomial_noise(np.zeros(1), 200)[0] > 0
    seeds = np.array([[[0.1, 0.3], [0.2, np.nan]], [[0.5, 0.5], [np.nan, np.nan]]])  # noise by seeds
    expected = np.log([0.13 / 0.93, 0.33 / 0.73]).var(ddof=1) / 2
    np.testing.assert_allclose(combined.find_noise(build(seeds)), [expected, 0], atol=1e-12)
    everything = np.linspace(0, 1, 21)
    np.testing.assert_allclose(unscale(scale_errors(everything)), everything, atol=1e-12)


def test_a_dataset_keeps_its_share_of_what_is_left_unknown():
    fitted, query = ask(draw(), 3)
    posterior = fitted.posterior(replace(query, dataset="unheard of"))
    assert (posterior.between > 0).all()
    noise, numbers = np.array([0.05, 0.3]), np.array([0, 2])
    told = posterior.lean[numbers] @ posterior.spread @ posterior.lean[numbers].T + posterior.common
    pull = np.linalg.inv(told + np.diag(posterior.own[numbers] + noise)).sum()
    left = (1 - posterior.common * pull) * posterior.between
    left[numbers] *= (noise / (posterior.own[numbers] + noise)) ** 2
    found = posterior.condition(numbers, np.array([-0.5, 0.1]), noise)
    np.testing.assert_allclose(found.between, left, rtol=1e-9)


@pytest.mark.parametrize("is_euclidean", [True, False])
def test_the_gradient_is_that_of_differences(is_euclidean):
    cells = ask(draw(12, 6), 0, score="logme")[0].cells
    if not is_euclidean:
        cells = replace(cells, distances=draw_distances(11))
        found = combined.solve(cells, scales(width=4.0))
        assert found.lift > 0.1 and np.linalg.eigvalsh(found.similarity)[0] > -1e-9
    logs = combined._STARTS + np.random.default_rng(2).normal(size=8) * 0.3
    _, gradient = combined.weigh_scales(logs, cells, 2.0)
    steps = 1e-5 * np.eye(8)
    rise = [combined.weigh_scales(logs + step, cells, 2.0)[0] for step in steps]
    fall = [combined.weigh_scales(logs - step, cells, 2.0)[0] for step in steps]
    np.testing.assert_allclose(gradient, (np.array(rise) - fall) / 2e-5, atol=1e-6)


def test_the_spread_between_few_datasets_has_students_tails():
    known = combined.Posterior(np.zeros(1), np.array([[2.0]]), np.eye(1) * 0.25, 0.5, np.zeros(1), np.array([0.3]), 0.2)
    assert known.half_widths(3)[0] == pytest.approx(norm.ppf(0.95) * np.sqrt(1 + 0.5 + 0.3 + 0.2))
    unknown = replace(known, between=np.array([0.4]))
    expected = np.sqrt(norm.ppf(0.95) ** 2 * 1.6 + student.ppf(0.95, 4) ** 2 * 0.4)
    assert unknown.half_widths(5)[0] == pytest.approx(expected)
    assert unknown.half_widths(1)[0] == unknown.half_widths(3)[0]


def test_a_similar_task_is_learned_from_and_a_far_one_gets_the_average_best_model():
    metatask, everybody = draw(30, 6, missing=0, seen=0, seed=4), np.ones(6, dtype=bool)
    errors = []
    for row in range(0, 30, 3):
        fitted, query = ask(metatask, row)
        found = fitted.predict(query)
        errors.append(metatask.mean[row, [found.order(everybody)[0], found.average_best]])
    chosen, average = np.mean(errors, axis=0)
    assert chosen < 0.9 * average and chosen < 1.15 * metatask.mean[::3].min(1).mean()
    far = fitted.predict(replace(query, distances={"symmetric": np.full(29, 1e3)}, dataset=None))
    assert far.abstains and far.order(everybody)[0] == far.average_best
    assert (far.high - far.low > found.high - found.low).all()  # far away it knows less


def test_far_from_all_known_tasks_only_a_confident_choice_counts():
    metatask = replace(draw(20, 4, missing=0, seen=0, seed=5), distances={})
    fitted, far = ask(metatask, 0, score="logme")
    best = (fitted.predict(far).average_best + 1) % 4
    scores = np.zeros(4)
    scores[best] = 5.0
    found = fitted.predict(replace(far, scores={"logme": scores}))
    assert not fitted.is_near(far) and found.p_better >= combined.CONFIDENT and not found.abstains
    assert found.order(far.is_candidate)[0] == best
    plain, query = ask(metatask, 2)
    found = plain.predict(query)
    assert found.order(query.is_candidate)[0] == found.average_best and found.abstains


@pytest.mark.parametrize("shape", [{"tasks": 3, "models": 1}, {"seeds": 1}, {"tasks": 9}])
def test_little_or_extreme_evidence_gives_sane_predictions(shape):
    metatask = draw(**({"missing": 0, "seen": 0} | shape))
    metatask = replace(metatask, tasks=tuple(replace(one, dataset="a", classes=0) for one in metatask.tasks))
    if shape == {"tasks": 9}:
        metatask = with_errors(metatask, np.where(metatask.errors[:, :, 0] < 0.3, 0.0, 1.0))
    fitted, query = ask(metatask, 0)
    found = fitted.predict(query)
    assert np.isfinite(found.errors).all() and np.isfinite(found.loss).all() and (found.high >= found.low).all()
    assert found.low.min() >= 0 and found.high.max() <= 1 and found.p_best.sum() == pytest.approx(1)
    alone = replace(query, is_candidate=np.zeros(len(metatask.models), dtype=bool))
    assert fitted.predict(alone).average_best is None
    with pytest.raises(UndefinedScoreError, match="no error is known"):
        fit_combined(with_errors(metatask, np.full_like(metatask.errors[:, :, 0], np.nan)))


def test_scores_and_distances_that_are_odd_or_missing_are_borne():
    fitted, query = ask(draw(10, 5, missing=0), 0, score="logme")
    equal = replace(query, scores={"logme": np.ones(5)})
    np.testing.assert_array_equal(*(fitted.predict(one).errors for one in (replace(query, scores={}), equal)))
    assert not np.allclose(fitted.predict(query).errors, fitted.predict(equal).errors)
    odd = replace(query, scores={"logme": np.array([1.0, 3.0, 99.0, np.nan, -1e9])}, is_candidate=np.arange(5) < 2)
    np.testing.assert_allclose(combined._measure_drifts(odd, np.zeros(5), "logme")[:, 1], [-1, 1, 4, 0, -4])
    holes = np.full(9, np.nan)  # unknown distances are far ones
    far = replace(query, distances={"symmetric": holes})
    assert np.isfinite(fitted.predict(far).errors).all() and not fitted.is_near(far) and fitted.is_near(query)


def measure(errors):
    return [MeasuredError("t", "x", error, HALF, seed, error - 0.05, error + 0.05) for seed, error in enumerate(errors)]


def test_with_scores_of_the_features_the_prediction_is_that_of_one_dense_solve():
    metatask, others = draw(), np.delete(np.arange(8), 3)
    made = [embed(f"task {number}", number) for number in range(8)]
    embeddings = [replace(one, provenance=one.provenance | {"head": None}) for one in made]
    known = replace(metatask.only(others), embeddings={"": [embeddings[number] for number in others]})
    own, query = embeddings[3], metatask.query(3, known=others)
    bare = fit_combined(known, score="logme")
    plain = bare.describe(replace(bare.posterior(query), noise=0.0), query.is_candidate)
    found = combined.predict_conditioned(known, own, query, {})
    for name in ("errors", "low", "high"):
        np.testing.assert_allclose(getattr(found, name), getattr(plain, name), atol=1e-6)
    measured = {"model 0": measure([0.2, 0.25, 0.3]), "model 4": measure([0.4, 0.3])}
    fitted = combined.fit_with_heads(known, "logme")
    assert combined.fit_with_heads(known, "logme") is fitted is not combined.fit_with_heads(known)
    variances = combined.estimate_noise(fitted, list(measured.values()))
    values = scale_errors(np.array([0.25, 0.35])) - fitted.centre - 0.2  # on a sample errors are higher
    off = np.sqrt(combined._COMMON * variances + 0.1**2)
    noise = np.diag((1 - combined._COMMON) * variances) + np.outer(off, off)
    new, told = describe(fitted, query), {"models": [0, 4], "values": values, "noise": noise}
    mean, *_ = oracle.solve(fitted.cells, fitted.scales, new, told)
    found = combined.predict_conditioned(known, own, query, measured, shift=0.2)
    np.testing.assert_allclose(scale_errors(found.errors), mean[:5] + fitted.centre, atol=1e-6)
    # Of model 4 at images of half the size: lower by another shift, which differs by network, too.
    last = {"model 4": (measured.pop("model 4"), 2.0)}
    values[1] += 0.2 - 2 * combined.SIZE_SHIFT
    off[1] = np.sqrt(combined._COMMON * variances[1] + (2 * combined._SIZE_COMMON) ** 2)
    each = np.diag([0, (2 * combined._SIZE_OWN) ** 2])
    noise = np.diag((1 - combined._COMMON) * variances) + each + np.outer(off, off)
    mean, *_ = oracle.solve(fitted.cells, fitted.scales, new, told | {"values": values, "noise": noise})
    found = combined.predict_conditioned(known, own, query, measured, 0.2, last)
    np.testing.assert_allclose(scale_errors(found.errors), mean[:5] + fitted.centre, atol=1e-6)


def with_datasets(metatask, names):
    return replace(metatask, tasks=tuple(replace(one, dataset=n) for one, n in zip(metatask.tasks, names, strict=True)))


def test_how_far_heads_miss_is_learned_from_every_source_once():
    metatask = with_datasets(draw(60, 3, missing=0, seen=0), map(str, range(60)))
    errors, luck = metatask.errors[:, :, 0].copy(), 0.3 * np.random.default_rng(0).normal(size=60)
    errors[:, -1] = unscale(scale_errors(errors[:, -1]) + luck[:, None])
    metatask = with_errors(metatask, errors)
    fitted = fit_combined(metatask, scales=scales(rest=0.01))
    wider = fit_combined(metatask, scales=scales(rest=0.3))
    one = with_datasets(metatask, np.where(np.abs(luck) > 0.3, "a", np.arange(60).astype(str)))  # all that miss
    grouped = fit_combined(one, scales=scales(rest=0.01))
    for each in (fitted, wider, grouped):
        found = oracle.miss(each.cells, each.scales, combined._SOURCES)
        assert combined.find_head_miss(each) == pytest.approx(found, rel=1e-6)
    assert combined.find_head_miss(fitted) == pytest.approx(luck.var(), rel=0.3)
    assert combined.find_head_miss(wider) < 0  # closer than the model grants
    assert combined.find_head_miss(grouped) < combined.find_head_miss(fitted) / 2
    errors[:, -1] = np.nan
    assert combined.find_head_miss(fit_combined(with_errors(metatask, errors), scales=scales())) == 0


def test_the_noise_of_measured_errors_is_that_of_splits_with_common_images_and_of_few_test_images():
    fitted = fit_combined(draw(missing=0), scales=scales())
    splits, count = fitted.metatask.errors.shape[3], len(fitted.metatask.tasks)
    measured = ([0.2, 0.3, 0.4], [0.15, 0.25], [0.3])
    *apart, alone = ([MeasuredError("t", "x", one, HALF) for one in own] for own in measured)
    values = [scale_errors(np.array(own)) for own in measured]
    squares = sum(np.square(each - each.mean()).sum() for each in values)

    def estimate(noise, given):
        return combined.estimate_noise(replace(fitted, cells=replace(fitted.cells, noise=noise)), given)

    none = np.zeros(count)
    usual = np.where(np.arange(count) == 0, 0.002, 0)  # of a task with one split the noise is unknown, not zero
    assert estimate(usual, [alone]) == pytest.approx(2 * 0.002 * splits)
    between = (combined._SPLITS * 0.002 * splits + squares) / (combined._SPLITS + 3)
    assert estimate(usual, apart) == pytest.approx([between * (1 / 3 + 1), between * (1 / 2 + 1)])
    assert estimate(none, apart)[0] == pytest.approx(squares / 3 * (1 / 3 + 1)) and len(estimate(none, [])) == 0
    few = [MeasuredError("t", "x", 0.3, HALF, seed, 0.25, 0.5) for seed in range(3)]  # the same on all splits
    reach = np.diff(scale_errors(np.array([0.3, 0.5])))[0] / norm.ppf(0.975)
    assert estimate(none, [few[:1], few]) == pytest.approx(reach**2 * np.array([1, 2 / 3]))
    assert estimate(usual, [few]) == pytest.approx(reach**2 * 2 / 3)  # other tasks have more images


def test_the_scales_that_ship_are_those_learned_on_the_bundle():
    learned, known = learn_bundled_scales(), combined.read_scales()
    assert learned.keys() == known.keys() and len(known) == 14
    for key, values in learned.items():
        np.testing.assert_allclose(known[key], values, rtol=1e-3)


def test_other_evidence_than_the_bundle_has_scales_of_its_own():
    metatask = replace(bundled_metatask(), domains={}).select("half")
    whole, fewer = combined.fit_with_heads(metatask), combined.fit_with_heads(metatask.only(range(20, 60)))
    assert whole.scales in combined.read_scales().values() and fewer.scales == combined.learn_scales(fewer.cells)
    errors = metatask.errors.copy()
    errors[3, 2, 0, 1] += 1e-3
    changed = combined.fit_with_heads(replace(metatask, errors=errors))
    assert changed.scales not in combined.read_scales().values() and changed.scales != fewer.scales
    np.testing.assert_allclose(changed.scales, whole.scales, rtol=0.05)  # nearly the same evidence


# --- where the truth is known ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "seeds", "tail"),
    [(0.0, 3, 1000), (0.5, 3, 1000), (0.0, 1, 1000), (0.0, 3, 3)],
    ids=["usual", "half of the cells are missing", "one seed", "heavy tails"],
)
def test_intervals_cover_what_they_promise(missing, seeds, tail):
    """Of errors by another law than the model's: on test sets of 60 images, some models with a tail of their own."""
    covered, random = [], np.random.default_rng(0)
    for seed in range(2):
        metatask = draw(24, 10, 1, missing=0, seen=0, seed=seed)
        rough = scale_errors(metatask.mean)[:, :, None] + 0.15 * random.standard_t(tail, size=(24, 10, 1))
        errors = random.binomial(60, unscale(rough), size=(24, 10, seeds)) / 60
        errors[random.random((24, 10)) < missing] = np.nan
        asked = [f"task {row}" for row in range(8)]
        found = evaluate(with_errors(metatask, errors), ["combined"], tasks=asked, resamples=1)
        covered.append(found.outcomes["combined"].covered)
    assert 0.82 < np.mean(covered) < 0.98
