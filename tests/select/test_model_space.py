"""The model space: where it starts, what it learns, and that its quick distances and gradients are the slow ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from task2vec.distance import ALPHA
from task2vec.errors import UndefinedScoreError, UsageError
from task2vec.select.evidence import SYMMETRIC
from task2vec.select.strategies import NearestAsymmetric
from task2vec.select.strategies import model_space_training as training
from task2vec.select.strategies.model_space import ModelSpaceSettings, fit_model_space, measure
from task2vec.select.strategies.model_space_training import (
    cross_entropy,
    make_labels,
    measure_all,
    measure_rows,
    move,
)
from tests.oracles.slow_choosing import slow_loss, slow_symmetric
from tests.select.evidence_making import make_evidence

EVERYBODY = np.ones(6, dtype=bool)


def test_distances_are_the_slow_ones():
    rng = np.random.default_rng(0)
    tasks, models = rng.normal(size=(7, 60)), rng.normal(size=(4, 60))
    quick = measure_all(torch.from_numpy(tasks).exp(), torch.from_numpy(models)).numpy()
    slow = np.array([[slow_symmetric(np.exp(model), np.exp(task)) for model in models] for task in tasks])
    np.testing.assert_allclose(quick, slow, atol=1e-12)
    np.testing.assert_allclose([measure(models, task) for task in tasks], slow, atol=1e-12)
    rows = measure_rows(torch.from_numpy(models), torch.from_numpy(tasks[:4]))
    np.testing.assert_allclose(rows, np.diag(slow[:4]), atol=1e-12)


def test_the_gradient_is_the_same_in_blocks_of_any_size(monkeypatch):
    rng = np.random.default_rng(2)
    tasks, models = torch.from_numpy(rng.normal(size=(4, 9))).exp(), torch.from_numpy(rng.normal(size=(5, 9)))
    found = []
    for size in (1, 80, 1 << 20):
        monkeypatch.setattr(training, "_BLOCK", size)
        places = models.clone().requires_grad_(True)
        (measure_all(tasks, places) * torch.arange(20.0).reshape(4, 5)).sum().backward()
        found.append(places.grad)
    plain = models.clone().requires_grad_(True)
    q = torch.sigmoid(plain - tasks.log()[:, None])
    s, v = q.sum(-1), q.square().sum(-1)
    ((1 - (s - v) / torch.sqrt((9 - 2 * s + v) * v)) * torch.arange(20.0).reshape(4, 5)).sum().backward()
    for each in found:
        torch.testing.assert_close(each, plain.grad)


def test_labels_are_sharp_and_blind_to_scale():
    errors = np.array([[0.1, 0.2, np.nan, 0.4], [0.3, 0.3, 0.3, np.nan]])
    labels = make_labels(errors, 2.0)
    values = np.array([0.1, 0.2, 0.4])
    wanted = np.exp(-2 * (values - values.mean()) / values.std())
    np.testing.assert_allclose(labels[0, [0, 1, 3]], wanted / wanted.sum())
    assert labels[0, 2] == 0 and labels[1].tolist() == [1 / 3, 1 / 3, 1 / 3, 0]
    np.testing.assert_allclose(make_labels(errors / 2 + 0.1, 2.0), labels, atol=1e-12)


def test_loss_and_gradient_are_those_of_the_slow_formula():
    rng = np.random.default_rng(1)
    tasks, models, trivials = rng.normal(size=(5, 12)), rng.normal(size=(3, 12)), rng.normal(size=(3, 12)) - 2
    errors = rng.random((5, 3))
    errors[0, 1] = np.nan
    how = {"alpha": 0.3, "sharpness": 20.0}
    bias = torch.zeros(3, 12, dtype=torch.float64, requires_grad=True)
    places = move(torch.from_numpy(models), bias, "log")
    distances = measure_all(torch.from_numpy(tasks).exp(), places)
    distances = distances - 0.3 * measure_rows(places, torch.from_numpy(trivials))
    counted, labels = torch.from_numpy(np.isfinite(errors)), torch.from_numpy(make_labels(errors, 20.0))
    loss = cross_entropy(distances, labels, counted, torch.tensor(4.0, dtype=torch.float64))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(slow_loss(tasks, models, trivials, errors, 4.0, **how), abs=1e-10)
    for place in ((0, 0), (1, 7), (2, 11)):
        step = np.zeros_like(models)
        step[place] = 1e-4
        ends = [slow_loss(tasks, models + sign * step, trivials, errors, 4.0, **how) for sign in (1, -1)]
        assert float(bias.grad[place]) == pytest.approx((ends[0] - ends[1]) / 2e-4, abs=1e-8)


@pytest.mark.parametrize("filters", [None, 10])
def test_it_starts_as_the_asymmetric_distance(filters):
    evidence = make_evidence()
    space = fit_model_space(evidence, settings=ModelSpaceSettings(epochs=0, filters=filters))
    wanted = NearestAsymmetric(ALPHA).fit(evidence)
    for row in range(9):
        found = space.rank(evidence.ask(row)).badness
        np.testing.assert_allclose(found[1:], wanted.rank(evidence.ask(row)).badness[1:], atol=1e-6)


def test_experts_of_unknown_lesson_start_at_the_mean_or_at_the_trivial_embedding():
    evidence = make_evidence()
    start = fit_model_space(evidence, settings=ModelSpaceSettings(epochs=0)).start
    np.testing.assert_allclose(start[0], np.log(evidence.vectors).mean(0))
    np.testing.assert_allclose(start[1], np.log(evidence.lesson_vectors[1]))
    trivial = fit_model_space(evidence, settings=ModelSpaceSettings(epochs=0, unknown="trivial"))
    np.testing.assert_allclose(trivial.start[0], np.log(1e-2))
    assert trivial.simplicity[0] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("form", ["log", "additive"])
def test_with_all_errors_known_it_fits(form):
    evidence = make_evidence(3, tasks=8, filters=300)
    space = fit_model_space(evidence, settings=ModelSpaceSettings(form=form))
    before = fit_model_space(evidence, settings=ModelSpaceSettings(form=form, epochs=0))
    errors = np.where(evidence.is_candidate, evidence.mean, np.inf)
    hits = [space.rank(evidence.ask(row)).order(evidence.is_candidate[row])[0] for row in range(8)]
    assert (np.array(hits) == errors.argmin(1)).mean() >= 0.8
    assert space.loss < 0.7 * before.loss and np.isfinite(space.places).all() and space.gamma > 0


def test_chances_are_of_the_candidates_and_follow_the_distance():
    evidence = make_evidence()
    question = evidence.ask(1)
    answer = fit_model_space(evidence, settings=ModelSpaceSettings(epochs=5)).rank(question)
    assert answer.chances[1] == 0 and answer.chances.sum() == pytest.approx(1)
    assert answer.chances.argmax() == answer.order(question.is_candidate)[0]


def test_the_same_evidence_gives_the_same_bytes():
    evidence = make_evidence()
    one, two = (fit_model_space(evidence, settings=ModelSpaceSettings(epochs=5)) for _ in range(2))
    assert one.places.tobytes() == two.places.tobytes() and one.gamma == two.gamma


def test_without_trivial_embeddings_complexity_is_held_as_it_is():
    evidence = make_evidence()
    bare = replace(evidence, lesson_trivials=None)
    space = fit_model_space(bare, settings=ModelSpaceSettings(epochs=4))
    np.testing.assert_allclose(space.simplicity[1:], evidence.simplicity[1:])
    assert space.simplicity[0] == 0
    nothing = replace(bare, simplicity=None, to_lessons={}, lesson_vectors=None)
    found = fit_model_space(nothing, settings=ModelSpaceSettings(epochs=4)).rank(nothing.ask(0))
    assert np.isfinite(found.badness).all()


def test_one_expert_alone_stays_where_it_is():
    space = fit_model_space(make_evidence(experts=1, unknown=0))
    np.testing.assert_allclose(space.places, space.start, atol=1e-6)
    assert np.isfinite(space.gamma) and space.loss == 0
    assert np.isfinite(space.rank(make_evidence(experts=1, unknown=0).ask(0)).badness).all()


def test_what_cannot_be_fitted_is_said():
    evidence = make_evidence()
    with pytest.raises(UndefinedScoreError, match="not every task of the evidence has an embedding"):
        fit_model_space(replace(evidence, vectors=None))
    space = fit_model_space(evidence, settings=ModelSpaceSettings(epochs=0))
    with pytest.raises(UndefinedScoreError, match="'task 0' has no embedding"):
        space.rank(replace(evidence.ask(0), vector=None))
    for wrong in ({"form": "cubic"}, {"unknown": "far"}, {"epochs": -1}, {"filters": 0}):
        with pytest.raises(UsageError):
            ModelSpaceSettings(**wrong)
    assert "ModelSpace(6 experts, 40 filters" in repr(space)
    assert SYMMETRIC in evidence.to_lessons
