"""The model space: where it starts, what it learns, and that its quick distances and gradients are the slow ones."""

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch

from task2vec.distance import ALPHA
from task2vec.errors import UndefinedScoreError
from task2vec.select import fit_model_space, model_space
from task2vec.select.model_space import ShareSums, cross_entropy, make_labels, measure_shares
from task2vec.select.strategies import fit_asymmetric
from tests.failures import refuse
from tests.oracles.selection import slow_loss, slow_symmetric
from tests.select.material import make_metatask


def test_loss_and_gradient_are_those_of_the_slow_formula():
    rng = np.random.default_rng(1)
    tasks, models, trivials = rng.normal(size=(5, 12)), rng.normal(size=(3, 12)), rng.normal(size=(3, 12)) - 2
    errors = rng.random((5, 3))
    errors[0, 1] = np.nan
    options = {"alpha": 0.3, "sharpness": 20.0}
    bias = torch.zeros(3, 12, dtype=torch.float64, requires_grad=True)
    places = torch.from_numpy(models) + bias
    between = measure_shares(*ShareSums.apply(places.exp(), torch.from_numpy(tasks).exp()), 12)
    q = torch.sigmoid(torch.from_numpy(trivials) - places)
    distances = between - 0.3 * measure_shares(q.sum(1), q.square().sum(1), 12)
    counted, labels = torch.from_numpy(np.isfinite(errors)), torch.from_numpy(make_labels(errors))
    loss = cross_entropy(distances, labels, counted, torch.tensor(4.0, dtype=torch.float64))
    loss.backward()
    slow = np.array([[slow_symmetric(np.exp(model), np.exp(task)) for model in models] for task in tasks])
    np.testing.assert_allclose(between.detach(), slow, atol=1e-12)
    assert float(loss.detach()) == pytest.approx(slow_loss(tasks, models, trivials, errors, 4.0, **options), abs=1e-10)
    assert make_labels(np.array([[0.3, 0.3, np.nan]])).tolist() == [[0.5, 0.5, 0]]
    for place in ((0, 0), (1, 7), (2, 11)):
        step = np.zeros_like(models)
        step[place] = 1e-4
        ends = [slow_loss(tasks, models + sign * step, trivials, errors, 4.0, **options) for sign in (1, -1)]
        assert float(bias.grad[place]) == pytest.approx((ends[0] - ends[1]) / 2e-4, abs=1e-8)


def test_as_published_it_has_the_papers_numbers_and_its_adam():
    """Softmax of -20 errors, Adam with rate 0.05 and weight decay 5e-4 in the gradient, 81 epochs, F = 0 if unknown."""
    assert (model_space._SHARPNESS, model_space._LEARNING_RATE, model_space._WEIGHT_DECAY) == (20, 0.05, 5e-4)
    assert inspect.signature(fit_model_space).parameters["epochs"].default == 81 and ALPHA == 0.15
    metatask = make_metatask(filters=12)
    found = fit_model_space(metatask, as_published=True)
    np.testing.assert_allclose(found.start[0], np.log(1e-2))  # model 0 has no source task: its prior alone
    np.testing.assert_allclose(found.start[1:], np.log(metatask.vectors[9:]))
    tasks, start = torch.from_numpy(np.log(metatask.vectors[:9])), torch.from_numpy(found.start)
    errors = np.where(metatask.is_candidate, metatask.mean, np.nan)
    known, labels = torch.from_numpy(np.isfinite(errors)), torch.from_numpy(make_labels(errors))
    trivial = torch.full((1, 12), np.log(1e-2))

    def measure_slowly(rows, others):  # the cosine distance of m / (m + t) and t / (m + t)
        q = torch.sigmoid(rows[:, None] - others[None])
        return 1 - torch.nn.functional.cosine_similarity(q, 1 - q, dim=2)

    def find_distances():
        return measure_slowly(tasks, start + bias) - 0.15 * measure_slowly(start + bias, trivial)[:, 0]

    bias = torch.zeros_like(start, requires_grad=True)
    spread = find_distances().detach().std(1).mean()
    log_gamma = (-torch.log(spread)).requires_grad_(True)
    first, second = torch.zeros_like(start), torch.zeros_like(start)
    moments = [0.0, 0.0]
    for step in range(1, 82):
        logits = (-log_gamma.exp() * find_distances()).masked_fill(~known, -torch.inf)
        loss = -(labels * torch.log_softmax(logits, 1).masked_fill(~known, 0)).sum(1).mean()
        slope, along = torch.autograd.grad(loss, [bias, log_gamma])
        slope = slope + 5e-4 * bias.detach()  # decay that is part of the gradient
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        moments = [0.9 * moments[0] + 0.1 * along, 0.999 * moments[1] + 0.001 * along**2]
        ends = 1 - 0.9**step, 1 - 0.999**step
        with torch.no_grad():
            bias -= 0.05 * (first / ends[0]) / ((second / ends[1]).sqrt() + 1e-8)
            log_gamma -= 0.05 * (moments[0] / ends[0]) / ((moments[1] / ends[1]).sqrt() + 1e-8)
    np.testing.assert_allclose(found.places, (start + bias).detach(), atol=0.02)
    ours = fit_model_space(metatask)
    assert np.abs(ours.places[1:] - found.places[1:]).max() > 0.1


@pytest.mark.parametrize("filters", [512, 10])
def test_it_starts_as_the_asymmetric_distance_and_unknown_source_tasks_at_the_mean(filters):
    metatask = make_metatask()
    space = fit_model_space(metatask, epochs=0, filters=filters)
    wanted = fit_asymmetric(metatask)
    for row in range(9):
        query = metatask.query(row)
        np.testing.assert_allclose(space.predict(query).loss[1:], wanted(query).loss[1:], atol=1e-6)

    start = fit_model_space(metatask, epochs=0).start
    np.testing.assert_allclose(start[0], np.log(metatask.vectors[:9]).mean(0))
    np.testing.assert_allclose(start[1], np.log(metatask.vectors[9]))


def test_with_all_errors_known_it_fits():
    metatask = make_metatask(3, tasks=8, filters=300)
    space = fit_model_space(metatask)
    before = fit_model_space(metatask, epochs=0)
    errors = np.where(metatask.is_candidate, metatask.mean, np.inf)
    hits = [space.predict(metatask.query(row)).order(metatask.is_candidate[row])[0] for row in range(8)]
    assert (np.array(hits) == errors.argmin(1)).mean() >= 0.8
    assert space.loss < 0.7 * before.loss and np.isfinite(space.places).all() and space.gamma > 0


def test_the_same_meta_task_gives_the_same_bytes_and_needs_embeddings():
    metatask = make_metatask()
    one, two = (fit_model_space(metatask, epochs=5) for _ in range(2))
    assert one.places.tobytes() == two.places.tobytes() and one.gamma == two.gamma
    query = metatask.query(1)
    refuse(UndefinedScoreError, "'task 1' has no embedding", one.predict, replace(query, vector=None))
    with pytest.raises(UndefinedScoreError, match="not every task of the meta-task has an embedding"):
        fit_model_space(replace(metatask, vectors=None))


def test_trivial_embeddings_may_be_far_away_or_missing_and_one_model_alone_stays_where_it_is():
    metatask = make_metatask()
    far = fit_model_space(replace(metatask, trivial_vectors=np.full_like(metatask.vectors, 1e-12)), epochs=1)
    assert np.isfinite(far.places).all() and np.isfinite(far.loss)
    metatask = replace(metatask, trivial_vectors=None, trivial_distances=None, distances={})
    space = fit_model_space(metatask, epochs=4)
    assert not space.simplicity.any() and np.isfinite(space.predict(metatask.query(0)).loss).all()
    metatask = make_metatask(models=1, unknown=0)
    alone = fit_model_space(metatask, epochs=5)
    np.testing.assert_allclose(alone.places, alone.start, atol=1e-6)
    assert np.isfinite(alone.gamma) and alone.loss == 0
    assert np.isfinite(alone.predict(metatask.query(0)).loss).all()
