"""What is known of the asked task itself: one more row, one more column, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from task2vec.select import conditioning
from task2vec.select.conditioning import add_asked, predict
from task2vec.select.confirming import Measured
from task2vec.select.evidence import SYMMETRIC
from task2vec.select.knowing import know_measured
from task2vec.select.strategies.combined_model import scale_errors
from tests.cli.material import make
from tests.select.recommend_world import make_metatask


@pytest.fixture(scope="module")
def known():
    return know_measured(make_metatask(), "half", make("", 0))


def ask(known, own):
    return known.ask(own, np.array([offer.is_named for offer in known.offers]))


def test_the_asked_task_is_one_more_row_of_which_little_is_known(known):
    own = make("mine", 30)
    question = ask(known, own)
    heads = np.linspace(0.2, 0.4, len(known.fingerprints))
    asked = add_asked(known, question, heads, 0.35, {"mobilenet_v2": Measured(0.3, 0.2, 0.4, {0: 0.2, 1: 0.4})})
    tasks, experts = known.evidence.mean.shape
    assert asked.evidence.mean.shape == (tasks + 1, experts + 1)
    np.testing.assert_array_equal(asked.evidence.mean[:-1, :-1], known.evidence.mean)
    np.testing.assert_allclose(asked.evidence.mean[:-1, -1], heads)
    row = asked.evidence.mean[-1]
    assert np.flatnonzero(np.isfinite(row)).tolist() == [known.evidence.experts.index("mobilenet_v2"), experts]
    assert row[-1] == 0.35 and row[known.evidence.experts.index("mobilenet_v2")] == pytest.approx(0.3)
    apart = asked.evidence.distances[SYMMETRIC]
    np.testing.assert_array_equal(apart[-1], np.append(question.distances[SYMMETRIC], 0))
    np.testing.assert_array_equal(apart, apart.T)
    assert not asked.question.is_candidate[-1] and asked.question.distances[SYMMETRIC][-1] == 0
    assert asked.evidence.groups[-1] == asked.question.group and asked.question.group not in known.evidence.groups


def test_intervals_are_wider_by_a_quarter_until_something_is_measured(known, monkeypatch):
    own = make("mine", 30)
    measured = {"mobilenet_v2": Measured(0.3, 0.2, 0.4, {0: 0.3})}
    before, after = (predict(known, own, ask(known, own), told)[0] for told in ({}, measured))
    monkeypatch.setattr(conditioning, "WIDER", 1.0)
    plain, same = (predict(known, own, ask(known, own), told)[0] for told in ({}, measured))
    middle = scale_errors(plain.errors)
    ends = (scale_errors(before.low) - middle) / (scale_errors(plain.low) - middle)
    np.testing.assert_allclose(ends, 1.25, rtol=0.02)
    np.testing.assert_array_equal(after.high, same.high)
    assert len(before.errors) == len(known.offers)


def test_measured_errors_move_the_others_and_narrow_their_intervals(known):
    own = make("mine", 30)
    column = known.evidence.experts.index("tf_efficientnet_lite1")
    before = predict(known, own, ask(known, own), {})[0]
    for error in (0.1, 0.8):
        told = {"mobilenet_v2": Measured(error, error, error, {0: error, 1: error})}
        after = predict(known, own, ask(known, own), told)[0]
        assert (after.errors[column] > before.errors[column]) == (error > 0.5)
        assert after.high[column] - after.low[column] < before.high[column] - before.low[column]


def test_a_task_of_unknown_classes_counts_as_the_mean_of_the_known(known):
    own = make("mine", 30)
    counts = np.geomspace(2, 200, len(known.fingerprints)).round().astype(int)
    known = replace(known, evidence=replace(known.evidence, classes=counts))
    question = ask(known, own)
    heads = np.full(len(counts), 0.3)
    asked = add_asked(known, replace(question, classes=None), heads, 0.3, {})
    assert np.log(asked.evidence.classes[-1]) == pytest.approx(np.log(counts).mean())
    np.testing.assert_array_equal(asked.evidence.classes[:-1], counts)
    assert add_asked(known, replace(question, classes=7), heads, 0.3, {}).evidence.classes[-1] == 7
