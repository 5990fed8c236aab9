"""Judged labels against slow versions in float64; neighbours against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.neighbors import NearestNeighbors

from task2vec.audit.labels import (
    LEAST_CHANCE,
    NEIGHBOURS,
    PENALTY,
    SHARPNESS,
    _compare_with_planted,
    _estimate_chances,
    find_outliers,
    judge_labels,
    measure_isolation,
    predict_by_neighbours,
)
from task2vec.head.fit import REPETITIONS, assign_folds, image_weights, to_onehot


def blobs(*, seed=0, images=40, classes=5, spread=3.0, width=12):
    """Features around one centre per class, and the classes."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(classes), images)
    centres = spread * rng.normal(size=(classes, width)) / np.sqrt(2)
    return centres[truth] + rng.normal(size=(len(truth), width)), truth


def mislabel(truth, *, seed=0, rate=0.06):
    """Labels of which some are any other class."""
    rng, given = np.random.default_rng(seed), truth.copy()
    rows = rng.permutation(len(truth))[: round(rate * len(truth))]
    given[rows] = (given[rows] + rng.integers(1, truth.max() + 1, len(rows))) % (truth.max() + 1)
    return given


def heads_by_hand(x, given, groups, classes):
    """(n, c) probabilities of heads in float64, fold by fold, by scikit-learn."""
    y = torch.from_numpy(given)
    onehot = to_onehot(y, classes, is_multilabel=False)
    weights = image_weights(onehot, is_multilabel=False, balance=True).numpy()
    squares = weights @ ((x - weights @ x) ** 2).sum(1)
    folds, _ = assign_folds(onehot[None], is_multilabel=False, groups=torch.from_numpy(groups), repetitions=REPETITIONS)
    p = np.zeros((len(x), classes))
    for fold in folds[0].numpy():
        for held in np.unique(fold):
            train = fold != held
            head = LogisticRegression(C=1 / (PENALTY * squares), max_iter=5000, tol=1e-9)
            head.fit(x[train], given[train], sample_weight=weights[train] / weights[train].sum())
            p[~train] += head.predict_proba(x[~train]) / len(folds[0])
    return p


def neighbours_by_hand(x, onehot, groups):
    """(n, c) probabilities of the nearest images in float64, image by image, by the inverse of the smoothed moment."""
    x = x - x.mean(0)
    moment = x.T @ x / len(x)
    inverse = np.linalg.inv(moment + np.trace(moment) / min(x.shape) * np.eye(len(moment)))
    p = np.zeros(onehot.shape)
    for i, a in enumerate(x):
        cosines = {
            j: a @ inverse @ b / np.sqrt((a @ inverse @ a) * (b @ inverse @ b))
            for j, b in enumerate(x)
            if groups[j] != groups[i]
        }
        nearest = sorted(cosines, key=lambda j: -cosines[j])[:NEIGHBOURS]
        weights = np.array([np.exp(SHARPNESS * (cosines[j] - 1)) for j in nearest])
        p[i] = weights @ onehot[nearest] / weights.sum()
    return p


def test_scores_are_those_of_heads_and_neighbours_by_hand():
    x, truth = blobs(images=20, classes=3, spread=2)
    given, groups = mislabel(truth), np.arange(60)
    groups[[1, 2]], groups[40:43] = 0, 40
    groups = np.unique(groups, return_inverse=True)[1]
    p = (heads_by_hand(x, given, groups, 3) + neighbours_by_hand(x, np.eye(3)[given], groups)) / 2
    found = judge_labels(x, given, classes=3, groups=groups)
    for i in range(60):
        others = [k for k in range(3) if k != given[i]]
        best = max(others, key=lambda k: p[i, k])
        assert found.score[i] == pytest.approx(np.sqrt(p[i, best]) - np.sqrt(p[i, given[i]]), abs=0.01)
        assert found.suggested[i] == best or abs(p[i, best] - p[i, found.suggested[i]]) < 0.01
    assert np.isfinite(found.score).all() and found.suspects == tuple(np.argsort(-found.score)[: len(found.suspects)])


@pytest.mark.parametrize("width", [7, 90])  # fewer and more directions than images
def test_neighbours_are_those_by_hand_and_never_copies(width, monkeypatch):
    monkeypatch.setattr("task2vec.audit.labels._CHUNK", 32)
    x, truth = blobs(images=14, width=width)
    groups = np.unique(np.where(np.arange(70) % 9 < 3, np.arange(70) // 9, 100 + np.arange(70)), return_inverse=True)[1]
    arguments = torch.from_numpy(x), torch.from_numpy(groups)
    for onehot in (np.eye(5)[truth], (np.random.default_rng(0).random((70, 4)) < 0.4).astype(float)):
        p = predict_by_neighbours(arguments[0], torch.from_numpy(onehot), arguments[1]).numpy()
        assert np.allclose(p, neighbours_by_hand(x, onehot, groups), atol=1e-4)
        own = groups == groups[0]
        other = np.where(own[:, None], 1 - onehot, onehot)
        again = predict_by_neighbours(arguments[0], torch.from_numpy(other), arguments[1]).numpy()
        assert own.sum() == 3 and np.array_equal(again[own], p[own]) and not np.array_equal(again, p)


def test_copies_do_not_vouch_for_a_wrong_label():
    x, truth = blobs(images=15, classes=3)
    x = np.concatenate([x, x[:1] + 1e-3 * np.random.default_rng(1).normal(size=(6, 12))])
    given = np.concatenate([truth, [0] * 6])
    given[[0, *range(45, 51)]] = 1
    alone, groups = np.arange(51), np.arange(51)
    groups[45:] = 0
    assert (judge_labels(x, given, classes=3, groups=alone).score[[0, 45]] < 0).all()
    found = judge_labels(x, given, classes=3, groups=groups)
    assert (found.score[[0, 45]] > 0.3).all() and (found.suggested[[0, 45]] == 0).all()


def test_planted_errors_are_found_as_often_as_expected():
    expected = hits = errors = shown = 0
    for seed in range(6):
        x, truth = blobs(seed=seed)
        given = mislabel(truth, seed=seed)
        found = judge_labels(x, given, classes=5, groups=np.arange(200))
        suspects = np.array(found.suspects)
        right = suspects[given[suspects] != truth[suspects]]
        assert found.expected is not None
        assert found.expected == pytest.approx(found.chance[suspects].mean()) and found.expected >= LEAST_CHANCE
        assert (np.diff(found.score[suspects]) <= 0).all() and (np.diff(found.chance[suspects]) <= 1e-12).all()
        assert (found.suggested[right] == truth[right]).mean() > 0.8
        expected, hits = expected + found.expected * len(suspects), hits + len(right)
        errors, shown = errors + (given != truth).sum(), shown + len(suspects)
    assert hits >= 0.75 * errors and expected / 1.5 <= hits <= 1.5 * expected and hits >= 0.5 * shown


def test_right_labels_give_no_suspects_where_classes_are_apart_and_few_where_they_overlap():
    x, truth = blobs(spread=8)
    found = judge_labels(x, truth, classes=5, groups=np.arange(200))
    assert found.suspects == () and found.expected is None and (found.chance == 0).all()
    shown = [
        len(judge_labels(*blobs(seed=seed, spread=1.2), classes=5, groups=np.arange(200)).suspects) for seed in range(5)
    ]
    assert np.mean(shown) <= 2  # 1% of the images, of which a third is wrong for the heads


def test_classes_of_one_image_are_not_judged_and_of_two_are():
    x, truth = blobs(images=12, classes=3, spread=6)
    x = np.concatenate([x, [[50.0] * 12], [[-50.0] * 12], [[-50.1] * 12]])
    given = np.concatenate([truth, [3, 4, 4]])
    found = judge_labels(x, given, classes=6, groups=np.arange(39))
    assert np.isnan(found.score[36]) and np.isnan(found.chance[36]) and 36 not in found.suspects
    assert np.isfinite(found.score[:36]).all() and np.isfinite(found.score[37:]).all()
    nothing = judge_labels(x[:3], np.arange(3), classes=3, groups=np.arange(3))
    assert np.isnan(nothing.score).all() and nothing.suspects == () and nothing.expected is None


def test_features_that_say_nothing_raise_no_suspicion():
    found = judge_labels(np.ones((30, 4)), np.arange(30) % 2, classes=2, groups=np.arange(30))
    assert found.suspects == () and np.isfinite(found.score).all()


def test_wrong_attributes_are_found_and_named_by_heads_and_neighbours():
    rng = np.random.default_rng(0)
    truth = (rng.random((240, 4)) < [0.5, 0.4, 0.3, 0.2]).astype(np.int64)
    x = (2 * truth - 1) @ rng.normal(size=(4, 16)) + 0.6 * rng.normal(size=(240, 16))
    given, wrong = truth.copy(), rng.permutation(240)[:14]
    attributes = rng.integers(0, 4, 14)
    given[wrong, attributes] = 1 - given[wrong, attributes]
    found = judge_labels(x, given, classes=4, groups=np.arange(240))
    is_wrong = (given != truth).any(1)
    suspects = np.array(found.suspects)
    assert average_precision_score(is_wrong, found.score) > 0.9 and is_wrong[suspects].sum() >= 11
    assert found.expected is not None
    assert found.expected / 1.5 <= is_wrong[suspects].mean() <= 1.5 * found.expected
    hits = np.isin(wrong, suspects)
    assert (found.suggested[wrong] == attributes)[hits].all()


def test_the_same_labels_are_judged_in_the_same_way_as_arrays_and_as_tensors():
    x, truth = blobs()
    given, groups = mislabel(truth), np.arange(200)
    first, again = (judge_labels(x, given, classes=5, groups=groups) for _ in range(2))
    tensors = judge_labels(*map(torch.from_numpy, (x, given)), classes=5, groups=torch.from_numpy(groups))
    for other in (again, tensors):
        assert other.suspects == first.suspects and other.expected == first.expected
        for name in ("suggested", "score", "chance", "is_lookalike"):
            assert np.array_equal(getattr(other, name), getattr(first, name))


def test_planted_errors_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), size=50)
    given = p.argmax(1)
    confusion = [[p[given == a, b].sum() if a != b else -1 for b in range(4)] for a in range(4)]
    planted = []
    for i in range(50):
        for label in range(4):
            if label != given[i]:
                rival = max(p[i, k] for k in range(4) if k != label)
                weight = 1 / 3 + (label == np.argmax(confusion[given[i]]))
                planted.append((np.sqrt(rival) - np.sqrt(p[i, label]), weight))
    total = sum(weight for score, weight in planted if score > 0)
    scores = np.array([0.01, 0.1, 0.33, 0.6, 2.0])
    expected = [sum(weight for score, weight in planted if score >= limit) / total for limit in scores]
    assert np.allclose(_compare_with_planted(scores, p, given), expected)
    attributes = (p > 0.5).astype(np.int64)
    planted = []
    for i in range(50):
        for flipped in range(4):
            values = np.where(np.arange(4) == flipped, 1 - attributes[i], attributes[i])
            own = np.where(values == 1, p[i], 1 - p[i])
            weight = 1 / 4 + attributes[i, flipped] / max(attributes[i].sum(), 1)
            planted.append(((np.sqrt(1 - own) - np.sqrt(own)).max(), weight))
    total = sum(weight for score, weight in planted if score > 0)
    expected = [sum(weight for score, weight in planted if score >= limit) / total for limit in scores]
    assert np.allclose(_compare_with_planted(scores, p, attributes), expected)


def test_chances_are_those_of_the_mixture():
    rng = np.random.default_rng(0)
    v = np.ceil(np.concatenate([rng.random(30), rng.beta(9, 1, 50)]) * 1000) / 1000
    terms = []
    for shape in np.geomspace(1.25, 32, 14):
        for share in np.geomspace(0.002, 1, 26):
            rate, images = share * 80 / 400, (1 - share) * 80 + 0.5
            densities = [(1 - share) * shape * x ** (shape - 1) + share for x in v]
            deviation = np.log(shape * images / 400 / 1.5)
            evidence = np.log(densities).sum() + np.log(rate) - rate / 0.02
            evidence -= deviation**2 / 2 / (0.25 + 1 / images)
            terms.append((evidence, np.array([share / density for density in densities]) * rate / (rate + 0.005)))
    weights = np.exp([evidence - max(terms, key=lambda term: term[0])[0] for evidence, _ in terms])
    expected = np.average([chances for _, chances in terms], axis=0, weights=weights)
    chances = _estimate_chances(v, 400)
    assert np.allclose(chances, expected)
    assert 0.7 * 30 < chances.sum() < 1.2 * 30  # of the 30, those near 1 look like hard images
    assert _estimate_chances(rng.beta(9, 1, 80), 400).sum() < 8


def test_look_alikes_are_classes_that_are_confused_without_being_suspects():
    x, truth = blobs(images=40, classes=4, spread=8)
    rng = np.random.default_rng(5)
    x[truth == 1] = x[truth == 0].mean(0) + 0.35 * rng.normal(size=12) + rng.normal(size=(40, 12))
    given = truth.copy()
    given[90:93] = 3
    found = judge_labels(x, given, classes=4, groups=np.arange(160))
    confused = (found.score > 0) & (truth < 2)
    assert confused.sum() >= 4 and found.is_lookalike[confused].all()
    assert {90, 91, 92} <= {*found.suspects} and not found.is_lookalike[90:93].any()


def test_isolation_is_the_distance_to_the_nearest_neighbours(monkeypatch):
    monkeypatch.setattr("task2vec.audit.labels._CHUNK", 32)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(90, 5)) + 1
    near = NearestNeighbors(n_neighbors=10, metric="cosine").fit(features).kneighbors()[0]
    assert np.allclose(measure_isolation(features), near.mean(1), atol=1e-5)


def test_images_of_another_world_are_outliers():
    rng = np.random.default_rng(0)
    centre, other = rng.random((2, 40))
    features = np.concatenate([centre + 0.2 * rng.random((200, 40)), other + 0.2 * rng.random((3, 40))])
    is_outlier = find_outliers(measure_isolation(features))
    assert is_outlier[200:].all() and is_outlier.sum() <= 8
    assert not find_outliers(measure_isolation(np.ones((20, 4)))).any()
