"""Each score against its definition, on tasks that are tall, wide, uneven, singular and repeated; and all at once."""

import math

import numpy as np
import pytest
import torch

from task2vec.errors import DataError, NotFiniteError, UndefinedScoreError, UsageError
from task2vec.select import SCORES, SOURCE_SCORES, score_features
from task2vec.select.scores import knn, leep, logme
from tests.failures import refuse
from tests.oracles import selection as slow_scores

# How far a score may be from its definition.
NEAR = {"knn": 1e-12, "h_score_shrunk": 1e-8}
ON_FEATURES = [name for name in SCORES if name not in SOURCE_SCORES]


def draw(images=40, width=6, classes=3, *, apart=1.0, seed=0):
    """Normal features whose classes have means `apart` from each other, and the labels; shifted, unlike columns."""
    rng = np.random.default_rng(seed)
    y = np.arange(images) % classes
    means = rng.normal(size=(classes, width)) * apart / np.sqrt(2)
    x = (means[y] + rng.normal(size=(images, width))) * np.exp(rng.normal(size=width) / 4) + 0.5
    return x, y


def with_dead_columns():
    """Two features that never vary, one of them large."""
    x, y = draw(40, 6, 3, seed=2)
    x[:, 1], x[:, 4] = 0, 1e3 / 3
    return x, y


def with_duplicates():
    """Every image twice, and one of them under two labels."""
    x, y = draw(20, 6, 3, seed=3)
    x, y = np.concatenate([x, x]), np.concatenate([y, y])
    y[3], y[23] = 0, 1
    return x, y


CASES = {
    "tall": lambda: draw(40, 6, 3),
    "wide": lambda: draw(24, 60, 4, seed=1),
    "uneven": lambda: (draw(33, 7, 4, seed=5)[0], np.repeat([2, 0, 3, 1], [1, 3, 9, 20])),
    "dead columns": with_dead_columns,
    "duplicates": with_duplicates,
    "a class missing": lambda: (draw()[0], draw()[1] * 2 + 1),
}


def prepare(x, y):
    """What scores of features are computed from."""
    return x, [np.unique(y, return_inverse=True)[1]]


def draw_probabilities(images=40, classes=3, sources=7, *, sure=2.0, seed=0):
    """Softmax outputs that know something about the labels, and the labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, images)
    y[:classes] = np.arange(classes)
    logits = rng.normal(size=(images, sources)) + sure * rng.normal(size=(classes, sources))[y]
    theta = np.exp(logits)
    return theta / theta.sum(1, keepdims=True), y


@pytest.mark.parametrize("case", CASES)
def test_equals_its_definition(case):
    x, y = CASES[case]()
    for name, near in NEAR.items():
        found = SCORES[name](*prepare(x, y))
        assert found == pytest.approx(getattr(slow_scores, name)(x, y), abs=near, rel=near), name


def test_one_very_long_vector_does_not_make_the_others_alike():
    rng, y = np.random.default_rng(0), np.arange(300) % 5
    x = rng.normal(size=(5, 16))[y] + 2 * rng.normal(size=(300, 16))
    before = knn(*prepare(x, y))
    assert 0.3 < before < 0.8
    x[0] *= 1e5
    assert abs(knn(*prepare(x, y)) - before) < 0.03


@pytest.mark.parametrize("case", ["tall", "uneven", "wide"])
def test_logme_is_the_largest_evidence(case):
    x, y = CASES[case]() if case != "wide" else draw(16, 400, 2, apart=8.0, seed=7)
    assert logme(*prepare(x, y)) == pytest.approx(slow_scores.logme(x, y), abs=1e-5 if case == "wide" else 1e-7)


@pytest.mark.parametrize(("sources", "sure"), [(60, 1.0), (2, 20.0)])
def test_leep_equals_its_definition(sources, sure):
    theta, y = draw_probabilities(sources=sources, sure=sure)
    assert leep(theta, [y]) == pytest.approx(slow_scores.leep(theta, y), abs=1e-12)


@pytest.mark.parametrize("name", ON_FEATURES)
def test_odd_features_are_borne(name):
    score, y = SCORES[name], np.arange(30) % 3
    usual = score(*prepare(*draw(30, 3, 3, apart=2.0)))
    for value in (0.0, 1 / 3) if name != "knn" else ():  # constant: they say nothing, and all are neighbours
        x = np.full((30, 5), value)
        found = score(*prepare(x, y))
        assert found == pytest.approx(score(*prepare(x, np.random.default_rng(0).permutation(y))), abs=1e-9)
        assert np.isfinite(found) and found <= usual
    perfect = score(*prepare(np.eye(3)[y], y))
    assert np.isfinite(perfect) and perfect >= usual
    x, y = draw()
    for factor in (1e-30, 1e30):
        assert score(*prepare(x * factor, y)) == pytest.approx(score(*prepare(x, y)), abs=2e-4)


# --- all at once -----------------------------------------------------------------------------------------------------


def make_scored():
    theta, y = draw_probabilities(60)
    x = draw(60, 5, 3)[0] + np.eye(3, 5)[y]
    return tuple(map(torch.from_numpy, (x, y, theta)))


def test_every_score_is_the_one_of_its_function():
    x, y, theta = make_scored()
    found = score_features(x, y, source_probabilities=theta, classes=3)
    assert list(found) == list(SCORES)
    for name, score in SCORES.items():
        assert found[name] == score((theta if name in SOURCE_SCORES else x).numpy(), [y.numpy()])
    arrays = score_features(x.numpy(), y.numpy(), source_probabilities=theta.half(), classes=3)
    assert dict(arrays) == pytest.approx(dict(found), rel=1e-2)


def test_what_is_no_probability_has_no_leep():
    x, y, theta = make_scored()
    assert list(score_features(x, y, classes=3)) == ON_FEATURES
    refuse(UsageError, "leep needs source_probabilities", score_features, x, y, classes=3, which=["leep"])
    for words, given in (
        ("attributes", torch.sigmoid(theta.log() + 2)),
        ("sum to 6.*not logits", torch.full((60, 3), 2.0)),
        ("below 0", theta * 2 - 1 / 7),
    ):
        refuse(UndefinedScoreError, words, score_features, x, y, source_probabilities=given, classes=3)


def test_attributes_score_the_mean_of_their_tasks():
    x, y, theta = make_scored()
    attributes = torch.stack([y == 0, y > 3, y == 2], dim=1)
    found = score_features(x, attributes, source_probabilities=theta, classes=3, is_multilabel=True)
    parts = [score_features(x, attributes[:, a].long(), source_probabilities=theta, classes=2) for a in (0, 2)]
    for name in SCORES:
        assert found[name] == pytest.approx((parts[0][name] + parts[1][name]) / 2, rel=1e-12)


def test_nothing_to_distinguish():
    x, _, _ = make_scored()
    refuse(UndefinedScoreError, "one class", score_features, x, torch.zeros(60, dtype=torch.long), classes=3)
    same = {"classes": 2, "is_multilabel": True}
    refuse(UndefinedScoreError, "nothing to distinguish", score_features, x, torch.ones(60, 2), **same)
    alone = score_features(x[:3], torch.arange(3), classes=3)
    assert alone["knn"] == 0 and all(map(math.isfinite, alone.values()))


def test_bad_input_is_refused():
    x, y, _ = make_scored()
    for error, words, change in (
        (UsageError, r"'logm'.*logme", {"which": ["logm"]}),
        (DataError, "is 2, not a class index, an integer from 0 to 1", {"classes": 2}),
        (DataError, "is -1, not a class index", {"targets": y - 1}),
        (DataError, r"\.5, not a class index", {"targets": y + 0.5, "classes": 4}),
        (UsageError, "not of the same images", {"targets": y[:, None]}),
        (UsageError, r"\(60, 5\), \(59,\) are not", {"targets": y[1:]}),
        (DataError, "3 values that are 0 or 1", {"targets": torch.full((60, 3), 2), "is_multilabel": True}),
        (UsageError, r"shapes \(60,\), \(60,\)", {"features": x[:, 0]}),
        (NotFiniteError, "image 7", {"features": x.index_fill(0, torch.tensor(7), torch.nan)}),
    ):
        given = {"features": x, "targets": y, "classes": 3} | change
        refuse(error, words, score_features, given.pop("features"), given.pop("targets"), **given)
