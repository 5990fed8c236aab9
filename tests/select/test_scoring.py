"""All scores at once: what is shared, what is undefined and why, and attributes."""

import math

import numpy as np
import pytest
import torch

import task2vec
from task2vec.errors import DataError, UsageError
from task2vec.select import SCORES, score_features
from task2vec.select.scores import spectrum
from tests.select.scores.material import draw, draw_probabilities, tensors


def material():
    theta, y = draw_probabilities(60)
    x, _ = draw(60, 5, 3)
    x = x + np.eye(3, 5)[y]
    return (*tensors(x, y), torch.from_numpy(theta))


def test_every_score_is_the_one_of_its_function():
    x, y, theta = material()
    found = score_features(x, y, source_probabilities=theta, classes=3)
    assert list(found) == list(SCORES) and not found.reasons
    for name, score in SCORES.items():
        assert score.name == name and score.is_higher_better
        assert found[name] == score.function(theta if score.needs_source else x, y)
        assert found.seconds[name] >= 0
    assert task2vec.score_features is score_features


def test_without_source_probabilities_two_scores_say_why_they_are_missing():
    x, y, _ = material()
    found = score_features(x, y, classes=3)
    assert set(found.reasons) == {"leep", "nce"} == {name for name, value in found.items() if math.isnan(value)}
    assert "source_probabilities" in found.reasons["nce"]


def test_probabilities_of_attributes_leave_the_two_undefined_and_the_others_be():
    x, y, theta = material()
    sigmoids = torch.sigmoid(theta.log() + 2)
    for targets, how in (
        (y, {"classes": 3}),
        (torch.stack([y == 0, y == 1], 1), {"classes": 2, "is_multilabel": True}),
    ):
        found, without = (score_features(x, targets, source_probabilities=p, **how) for p in (sigmoids, None))
        assert (
            set(found.reasons) == {"leep", "nce"} and math.isnan(found["leep"]) and "attributes" in found.reasons["nce"]
        )
        assert {name: found[name] for name in SCORES if name not in found.reasons} == {
            name: without[name] for name in SCORES if name not in without.reasons
        }
        sound = score_features(x, targets, source_probabilities=theta, **how)
        assert not sound.reasons


def test_the_seed_reaches_the_mixture():
    x, y, _ = material()
    found = [score_features(x, y, classes=3, which=["nleep"], seed=seed)["nleep"] for seed in (0, 3)]
    assert found == [SCORES["nleep"].function(x, y, seed=seed) for seed in (0, 3)] and found[0] != found[1]


def test_only_what_is_asked_is_computed():
    x, y, _ = material()
    assert list(score_features(x, y, classes=3, which=["gbc", "knn"])) == ["gbc", "knn"]


def test_the_spectrum_is_computed_once(monkeypatch):
    calls = []
    eigh = torch.linalg.eigh
    monkeypatch.setattr(spectrum.torch.linalg, "eigh", lambda matrix: calls.append(matrix.shape) or eigh(matrix))
    x, y, _ = material()
    score_features(x, y, classes=3)
    assert len(calls) == 2  # centred, and as they are for LogME
    calls.clear()
    score_features(x, torch.stack([y == 0, y == 1], dim=1), classes=2, is_multilabel=True)
    assert len(calls) == 2


def test_attributes_score_the_mean_of_their_tasks():
    x, y, theta = material()
    attributes = torch.stack([y == 0, y > 3, y == 2], dim=1)
    found = score_features(x, attributes, source_probabilities=theta, classes=3, is_multilabel=True)
    assert found.left_out == (1,)
    parts = [score_features(x, attributes[:, a].long(), source_probabilities=theta, classes=2) for a in (0, 2)]
    for name in SCORES:
        assert found[name] == pytest.approx((parts[0][name] + parts[1][name]) / 2, rel=1e-12)


def test_nothing_to_tell_apart_is_said():
    x, _, _ = material()
    one = score_features(x, torch.zeros(60, dtype=torch.long), classes=3)
    assert all(math.isnan(value) for value in one.values())
    assert "one class" in one.reasons["knn"]
    same = score_features(x, torch.ones(60, 2), classes=2, is_multilabel=True)
    assert all(math.isnan(value) for value in same.values()) and same.left_out == (0, 1)
    alone = score_features(x[:3], torch.arange(3), classes=3)
    assert "no two of the 3 images" in alone.reasons["parc"] and alone["knn"] == 0


def test_bad_input_is_refused():
    x, y, theta = material()
    with pytest.raises(UsageError, match=r"'logm'.*logme"):
        score_features(x, y, classes=3, which=["logm"])
    with pytest.raises(DataError, match="from 0 to 2, and only 0 to 1"):
        score_features(x, y, classes=2)
    with pytest.raises(DataError, match="from -1 to"):
        score_features(x, y - 1, classes=3)
    with pytest.raises(DataError, match="not whole numbers"):
        score_features(x, y + 0.5, classes=4)
    with pytest.raises(UsageError, match="one class per image"):
        score_features(x, y[:, None], classes=3)
    with pytest.raises(UsageError, match="3 attributes per image"):
        score_features(x, y, classes=3, is_multilabel=True)
    with pytest.raises(UsageError, match="60 rows of features and 59 of targets"):
        score_features(x, y[1:], classes=3)
    with pytest.raises(UsageError, match="59 of source_probabilities"):
        score_features(x, y, classes=3, source_probabilities=theta[1:])
    with pytest.raises(DataError, match="only 0 to 1"):
        score_features(x, torch.full((60, 2), 2), classes=2, is_multilabel=True)


def test_arrays_of_numpy_are_told_how_to_become_tensors():
    with pytest.raises(UsageError, match=r"torch.as_tensor\(features\)"):
        score_features(np.zeros((4, 2)), torch.arange(4) % 2, classes=2)  # type: ignore[arg-type]
