"""Learning curves: exact posteriors, curves that are recovered, and what a recommendation says about them."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import multivariate_normal
from scipy.stats import t as student_t

from task2vec.distance import symmetric
from task2vec.experts import bundled_metatask
from task2vec.library import Library, MeasuredError
from task2vec.select.curves import _SHIFTS, count_train_images, fit_curves, fit_lines, scale_to_chance, unscale_chance
from task2vec.select.recommend import recommend
from task2vec.select.report import format_labels
from tests.oracles import curves as oracle
from tests.select.material import FIVE, HALF, embed, fill_library, fingerprint, make_world

SPACE = "net robust"
MEAN, SPREAD, REST = np.array([-0.3, -0.5]), np.array([[0.8, 0.03], [0.03, 0.02]]), 0.004


@pytest.fixture(scope="module")
def world():
    """The small world with errors of fine-tuning: far lower on tasks of the first kind, higher on the others."""
    whole, points = make_world(), []
    for row in range(8):
        for train, size in (("5", 0), ("half", 1)):
            linear = whole.errors[row, 1, size, 2]
            error = float(linear * (1.3 if row % 2 else 0.4))
            points.append({"task": f"task {row}", "expert": whole.models[1].name, "way": "tuned", "train": train})
            points[-1] |= {"seed": 2, "images": 10, "error": error}
    return replace(whole, info={"curves": points})


@pytest.fixture(scope="module")
def exact(world):
    """Curves with the mean and covariance above."""
    return replace(fit_curves(world, SPACE), mean=MEAN, spread=SPREAD, rest=REST)


def around(images, error, half=0.01):
    return (images, error, error - half, error + half)


def test_the_scale_can_be_undone_and_is_zero_in_the_middle():
    errors = np.array([0.0, 0.01, 0.2, 0.49, 0.7])
    for classes in (2, 5, 100):
        assert unscale_chance(scale_to_chance(errors, classes), classes) == pytest.approx(errors, abs=1e-12)
    assert scale_to_chance(0.4, 5) == pytest.approx(0) and unscale_chance(-9.0, 5) == 0


def test_small_classes_give_half_of_what_they_have():
    assert count_train_images([60, 41], "half") == 25.5
    assert count_train_images([60, 41, 6], "5") == pytest.approx(13 / 3)
    assert count_train_images([60, 5], "20") == 11.5


@pytest.mark.parametrize("known", [[around(5, 0.4)], [around(5, 0.4, 0.05), around(10, 0.3), around(3, 0.44, 0.2)]])
def test_predictions_are_the_dense_posterior(exact, known):
    wanted, classes = np.array([1.0, 8.0, 20.0, 300.0]), 7
    sizes, errors, low, high = np.array(known).T
    noise = ((scale_to_chance(high, classes) - scale_to_chance(low, classes)) / (2 * 1.6448536269514722)) ** 2
    values = scale_to_chance(errors, classes)
    expected = oracle.predict_curve(MEAN, SPREAD, REST, sizes, values, noise, wanted)
    found = exact.predict(wanted, known, classes)
    assert found[0] == pytest.approx(expected[0], abs=1e-8) and found[1] == pytest.approx(expected[1], abs=1e-8)


def test_the_number_is_where_a_known_curve_comes_down_to_the_target(exact):
    sure = replace(exact, spread=np.diag([4.0, 1e-8]), rest=1e-8)
    start = float(scale_to_chance(0.3, 10))
    target = float(unscale_chance(start - 0.5 * np.log(3), 10))
    labels = sure.labels_needed(target, [around(12, 0.3, 1e-5)], 10)
    assert labels.images == pytest.approx(36, abs=2) and labels.low == pytest.approx(36, abs=1) == labels.high
    assert (labels.present, labels.limit, labels.target) == (12, 80, target)
    beyond = sure.labels_needed(0.02, [around(12, 0.3, 1e-5)], 10)
    assert (beyond.images, beyond.low, beyond.high) == (None, None, None)
    assert sure.labels_needed(target, [around(100, 0.3, 1e-5)], 10).limit == 400


@pytest.mark.parametrize(("half", "target"), [(0.1, 0.24), (0.2, 0.24), (0.1, 0.32)])
def test_the_prior_is_students_t_and_the_number_is_most_probably_right_within_a_factor_of_two(exact, half, target):
    known, classes = [around(5, 0.4, half)], 10  # so little is known of the curve that the prior counts
    labels = exact.labels_needed(target, known, classes)
    images = np.geomspace(1, 80_000, 20_000)  # up to a thousand times the limit, and never
    mean, variance = exact.predict(images, known, classes)
    enough = np.maximum.accumulate(ndtr((scale_to_chance(target, classes) - mean) / np.sqrt(variance)))
    prior = student_t.pdf(np.log(images / 20), df=3)  # by what people ask for: about four times the five there are
    mass = np.append(np.diff(enough, prepend=0) * prior, (1 - enough[-1]) * prior[-1])
    enough = np.cumsum(mass)[:-1] / mass.sum()
    low, high = (images[np.searchsorted(enough, share)] for share in (0.05, 0.95))
    assert labels.low == pytest.approx(low, abs=1.1) and labels.high == pytest.approx(high, abs=1.1)
    within = np.interp(2 * images, images, enough) - np.interp(images / 2, images, enough)
    assert labels.low < labels.images < labels.high
    assert np.interp(labels.images, images, within) > 0.98 * within.max()


def test_lines_are_the_most_probable_and_weights_count_like_repeated_ones():
    rng, count = np.random.default_rng(1), 60
    bases = np.stack([np.ones(5), np.log(np.array([2, 5, 10, 20, 100]) / 5)], axis=1)
    noise, known = rng.uniform(0.001, 0.02, size=(count, 5)), rng.random((count, 5)) < 0.8
    values = rng.multivariate_normal(MEAN, SPREAD, size=count) @ bases.T
    values += rng.normal(size=noise.shape) * np.sqrt(noise + REST)
    parts = (np.repeat(bases[None], count, axis=0), np.where(known, values, 99), noise, known)

    def weigh(mean, spread, rest):
        return sum(
            multivariate_normal.logpdf(values[unit, own], bases[own] @ mean, bases[own] @ spread @ bases[own].T
                                       + np.diag(noise[unit, own] + rest))
            for unit, own in enumerate(known) if own.any()
        )  # fmt: skip

    mean, spread, rest = fit_lines(*parts, np.ones(count), rounds=1000)
    best = weigh(mean, spread, rest)
    for step in (0.99, 1.01):
        for other in ((mean * [step, 1], spread, rest), (mean * [1, step], spread, rest), (mean, spread * step, rest)):
            assert weigh(*other) < best
        assert weigh(mean, spread, rest * step) < best
    weighted = fit_lines(*parts, 1 + (np.arange(count) == 0), rounds=20)
    repeated = fit_lines(*(each[[0, *range(count)]] for each in parts), np.ones(count + 1), rounds=20)
    for one, other in zip(weighted, repeated, strict=True):
        assert one == pytest.approx(other, abs=1e-10)


def test_fine_tuning_is_predicted_by_the_dense_posterior(world):
    curves, own = fit_curves(world, SPACE), embed("mine", 30)
    known = [*world.embeddings[SPACE][:8], own]
    distances = np.array([[symmetric(one, other) * (one is not other) for other in known] for one in known])
    inside = distances[:8, :8]
    width = np.median(inside[inside > 0])
    points = [(row, "tf_efficientnet_lite0") for row in range(8) for _ in range(2)]
    values = []
    for one, (row, _) in zip(world.info["curves"], points, strict=True):
        linear = world.errors[row, 1, 0 if one["train"] == "5" else 1, 2]
        values.append(float(scale_to_chance(one["error"], 2) - scale_to_chance(linear, 2)))
    for network in ("tf_efficientnet_lite0", "another"):
        shift, variance = oracle.predict_shift(points, values, distances, width, _SHIFTS, network)
        found = curves.tuned(own, network, 0.3, 0.3, 0.3, 2)
        level, half = float(scale_to_chance(0.3, 2)) + shift, 1.6448536269514722 * variance**0.5
        expected = [float(unscale_chance(level + step, 2)) for step in (0, -half, half)]
        assert [found.error, found.low, found.high] == pytest.approx(expected, abs=1e-5)
        assert found.p_better == pytest.approx(float(ndtr(-shift / variance**0.5)), abs=1e-5)
        wide = curves.tuned(own, network, 0.3, 0.2, 0.4, 2)
        assert wide.low < found.low and wide.high > found.high and wide.error == found.error
    kinds = [embed("mine", 30, kind=kind) for kind in (0, 1)]
    near, far = (curves.tuned(one, "tf_efficientnet_lite0", 0.3, 0.2, 0.4, 2) for one in kinds)
    assert near.p_better > 0.7 > 0.4 > far.p_better and near.error < 0.3 < far.error


def test_curves_of_the_bundle_fall_and_one_size_gives_none(world):
    curves = fit_curves(bundled_metatask(), "tf_efficientnet_lite0 robust")
    assert -0.7 < curves.mean[1] < -0.3 and len(curves.shifts) == 152
    assert fit_curves(bundled_metatask(), "tf_efficientnet_lite0 robust") is curves
    assert fit_curves(replace(world, protocols=(HALF,), **world._take(P=[1])), SPACE) is None
    assert not len(fit_curves(make_world(), SPACE).shifts)


def test_a_recommendation_predicts_fine_tuning_without_the_errors_of_the_task_itself(world):
    advice = recommend(embed("mine", 30), evidence=world)
    assert advice.tuned.low < advice.tuned.error < advice.tuned.high and advice.labels is None
    assert "Fine-tuning the whole network: predicted test error" in advice.to_text()
    assert advice.to_dict()["tuned"]["p_better"] == advice.tuned.p_better > 0.5
    changed = [one | ({"error": 0.9} if one["task"] == "task 0" else {}) for one in world.info["curves"]]
    worlds = (world, replace(world, info={"curves": changed}))
    one, other = (recommend(world.embeddings[SPACE][0], evidence=each).tuned for each in worlds)
    assert one == other
    plain = recommend(embed("mine", 30), evidence=make_world())
    assert plain.tuned is None and "Fine-tuning" not in plain.to_text()


@pytest.mark.parametrize("protocol", [HALF, FIVE])
def test_labels_are_counted_once_the_model_was_measured(world, tmp_path, protocol):
    shots = "5" if protocol == FIVE else "half"
    with Library.open(tmp_path) as library:
        fill_library(library, protocol=protocol)
        options = {"evidence": world, "library": library, "shots": shots, "candidates": ["tf_efficientnet_lite0"]}
        advice = recommend(embed("own 3", 53), **options)
        row = advice.rows[0]
        assert advice.labels.target == pytest.approx(min(row.error, row.measured) * 2 / 3)
        assert advice.labels.present == (5 if shots == "5" else round((30 + np.ceil(93 / 2)) / 2))
        assert format_labels(advice.labels) in " ".join(advice.to_text(width=200).split())
        for seed in range(2):
            library.add(MeasuredError(fingerprint(53), "small", 0.106, protocol, seed, 0.1, 0.11), replace=True)
        near = recommend(embed("own 3", 53), **options)
        now = min(near.rows[0].error, near.rows[0].measured)
        assert 0.1 < now < 0.1 / 0.9 and near.labels.target == pytest.approx(now * 2 / 3)  # not 10%, which is near
        for seed in range(2):
            library.add(MeasuredError(fingerprint(50), "small", 0.01, protocol, seed, 0.0, 0.02), replace=True)
        easy = recommend(embed("own 0", 50), **options)
        assert easy.rows[0].measured == pytest.approx(0.01) and easy.labels is None
    attributes = embed("mine", 53)
    attributes = replace(attributes, provenance=attributes.provenance | {"is_multilabel": True})
    assert recommend(attributes, evidence=world).tuned is None
