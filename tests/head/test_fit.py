"""The head sits at the minimum of its stated objective; cross-validation measures its error."""

import math

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax

from task2vec.head import fit_head, fit_heads, image_weights, is_small, predict_held_out
from task2vec.head.fit import FOLDS, assign_folds
from task2vec.head.problem import CHUNK, Problem, make_problem, whiten
from tests.head.material import KINDS, problem
from tests.oracles import heads

CASES = [(kind, 60, 8, True) for kind in KINDS] + [("4 classes", 60, 8, False)]
CASES += [(kind, 20, 40, True) for kind in KINDS]  # fewer images than features, which are separable
CASES += [("4 classes", 80, 8, True), ("4 classes", 80, 8, False), ("4 classes", 80, 120, True)]  # whitened


@pytest.mark.parametrize(("kind", "count", "features", "balance"), CASES)
def test_optimum_of_the_stated_objective(kind, count, features, balance):
    (x, targets, onehot), is_multilabel = problem(kind, count, features), KINDS[kind][1]
    head = fit_head(x, targets, classes=onehot.shape[1], l2=0.02, balance=balance)
    omega = heads.weights_of(onehot, is_multilabel=is_multilabel, balance=balance)
    penalty = heads.penalty_of(0.02, onehot, is_multilabel=is_multilabel) * heads.spread(x.numpy(), omega)
    weight, bias = heads.fit(x.numpy(), onehot, omega, penalty, is_multilabel=is_multilabel)
    assert head.has_converged and head.l2 == heads.penalty_of(0.02, onehot, is_multilabel=is_multilabel)
    assert torch.allclose(head.weight, weight, atol=2e-4 * weight.abs().max())
    expected, ours = x @ weight.T + bias, head.logits(x)
    if not is_multilabel:  # a shift of all logits is free
        expected, ours = expected.log_softmax(1), ours.log_softmax(1)
    assert torch.allclose(ours, expected, atol=3e-4)
    y, o = torch.from_numpy(onehot).double(), torch.from_numpy(omega)
    ours = heads.objective(head.weight, head.bias, x, y, o, penalty, is_multilabel=is_multilabel)
    least = heads.objective(weight, bias, x, y, o, penalty, is_multilabel=is_multilabel)
    assert abs(ours - least) < 1e-9
    loss = heads.losses(weight, bias, x, y, is_multilabel=is_multilabel) @ o
    assert head.train_loss == pytest.approx(loss.item(), abs=1e-5)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_whitened_problem_is_the_same_and_takes_half_of_the_steps(kind, monkeypatch):
    (x, _, onehot), (classes, is_multilabel) = problem(kind, 200, 20), KINDS[kind]
    x *= torch.linspace(0, 3, 20, dtype=torch.float64).exp()  # directions as unequal as those of a network's features
    targets, tasks = torch.from_numpy(onehot).double()[None], torch.tensor([0])
    weights = image_weights(targets, is_multilabel=is_multilabel, balance=True)
    plain, penalty = make_problem(x, targets, weights, is_multilabel=is_multilabel), 1e-3 / classes
    calls, slopes, found = [], Problem._slopes, []
    monkeypatch.setattr(Problem, "_slopes", lambda *args: (calls.append(args[0]), slopes(*args))[1])
    for one in (plain, whiten(plain, penalty)):
        solved, loss, converged = one.solve(weights, torch.tensor([penalty]), tasks, tolerance=1e-7, max_steps=1000)
        assert bool(converged)
        found.append((*one.to_heads(solved, tasks), loss, one.logits(solved, tasks)))
    for ours, expected in zip(found[1], found[0], strict=True):
        assert torch.allclose(ours, expected, rtol=1e-4, atol=1e-5)
    white = sum(one is not plain for one in calls)
    assert 0 < white <= (len(calls) - white) / 2


def test_a_penalty_too_small_for_rounding_is_not_whitened():
    x, targets, onehot = problem("2 classes", 60, 100)
    weights = torch.full((1, 60), 1 / 60, dtype=torch.float64)
    plain = make_problem(x, torch.from_numpy(onehot).double()[None], weights, is_multilabel=False)
    assert whiten(plain, 1e-9) is plain and whiten(plain, 1e-3) is not plain
    assert torch.isfinite(fit_head(x, targets, classes=2, l2=1e-9).weight).all()


@pytest.mark.parametrize("kind", list(KINDS))
def test_figures_and_held_out_probabilities_are_those_of_an_explicit_repeated_cross_validation(kind, monkeypatch):
    monkeypatch.setattr("task2vec.head.fit.REPETITIONS", 2)
    is_multilabel = KINDS[kind][1]
    x, targets, onehot = problem(kind, 40, 6, seed=2 if is_multilabel else 0)
    l2 = 0.01 / heads.penalty_of(1, onehot, is_multilabel=is_multilabel)
    head = fit_head(x, targets, classes=onehot.shape[1], l2=l2)
    held_out, votes, is_judged = predict_held_out(x, targets, classes=onehot.shape[1], penalty=0.01)
    found, probabilities = [], np.zeros(onehot.shape)
    for shuffle in (np.arange(40), torch.randperm(40, generator=torch.Generator().manual_seed(1)).numpy()):
        how, labels = {"folds": FOLDS, "is_multilabel": is_multilabel}, onehot[shuffle]
        ((loss, logits),) = heads.cross_validate(x.numpy()[shuffle], labels, [0.01], **how)
        wrong = (logits > 0) != labels.astype(bool) if is_multilabel else logits.argmax(1) != labels.argmax(1)
        found.append((loss, heads.balanced_error(wrong, labels, is_multilabel=is_multilabel)))
        probabilities[shuffle] += (expit(logits) if is_multilabel else softmax(logits, axis=1)) / 2
    (first, _), (second, _) = found
    assert abs(first / second - 1) > 5e-3, "the repetitions should differ, or the test shows nothing"
    loss, error = np.mean(found, axis=0)
    # Folds are solved in single precision and stopped early: a loss may move in its third digit, and one image of each.
    assert head.cv_loss == pytest.approx(loss, rel=3e-3)
    assert head.cv_error == pytest.approx(error, abs=1.01 / (onehot.shape[1] * onehot.sum(0).min()))
    assert is_judged.all() and np.allclose(held_out.numpy(), probabilities, atol=0.01)
    # The error is that of the votes: over all repetitions, not of the mean.
    wrong = (votes - targets).abs() if is_multilabel else 1 - votes[torch.arange(40), targets]
    error = heads.balanced_error(wrong.numpy(), onehot, is_multilabel=is_multilabel)
    assert 0.03 < error < 0.6 and head.cv_error == pytest.approx(error, abs=1e-6)


def test_all_images_of_a_large_task_get_probabilities_by_whitened_heads(monkeypatch):
    monkeypatch.setattr("task2vec.head.fit.MAX_VALIDATED", 30)
    x, targets, _ = problem("4 classes", 200, 12, noise=1.5)
    held_out, votes, _ = predict_held_out(x, targets, classes=4)
    assert torch.allclose(held_out.sum(1), torch.ones(200), atol=1e-5)
    monkeypatch.undo()
    error = float(((1 - votes[torch.arange(200), targets]) / targets.bincount()[targets]).sum() / 4)
    assert fit_head(x, targets, classes=4, l2=4e-3).cv_error == pytest.approx(error, abs=1e-6)


def test_coin_flips_cannot_be_learned_and_centres_can():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(200, 10, generator=generator, dtype=torch.float64)
    head = fit_head(x, torch.randperm(200, generator=generator) % 2, classes=2)
    assert 0.4 < head.cv_error < 0.6 and not head.beats_chance
    flips = torch.stack([torch.randperm(200, generator=generator) % 2 for _ in range(30)]).view(10, 200, 3)
    lucky = [head.beats_chance for head in fit_heads(x, flips, classes=3)]
    assert sum(lucky) <= 3  # one in six is more than a standard error below chance
    for kind in KINDS:
        x, targets, onehot = problem(kind, noise=0.1)
        head = fit_head(x, targets, classes=onehot.shape[1])
        assert head.cv_error < 0.02 and head.beats_chance


@pytest.mark.parametrize("kind", ["4 classes", "3 attributes"])
def test_folds_are_stratified_keep_groups_together_and_are_shuffled_by_repetition(kind):
    is_multilabel = KINDS[kind][1]
    onehot = torch.from_numpy(problem(kind, 60)[2]).double()
    onehot[7] = 1 - onehot[7] if is_multilabel else onehot[6].roll(1)  # a copy of 6 with another label
    groups = torch.arange(60)
    groups[7:] -= 1
    folds, is_judged = assign_folds(onehot[None], is_multilabel=is_multilabel, groups=groups, repetitions=3)
    assert folds.shape == (1, 3, 60) and is_judged.all()
    assert torch.equal(folds[..., 6], folds[..., 7])
    for one in folds[0]:
        sizes = torch.stack([onehot[one == k].sum(0) for k in range(FOLDS)])
        assert one.bincount().max() - one.bincount().min() <= 2
        assert is_multilabel or (sizes.max(0).values - sizes.min(0).values <= 2).all()
    assert len({tuple(one.tolist()) for one in folds[0]}) == 3
    order = onehot.argmax(1).argsort(stable=True) if not is_multilabel else torch.arange(60)
    plain = assign_folds(onehot[None], is_multilabel=is_multilabel)[0][0, 0]
    assert plain[order].tolist() == [k % FOLDS for k in range(60)]


def test_copies_in_one_fold_change_no_figure():
    generator = torch.Generator().manual_seed(3)
    x, targets = torch.randn(60, 100, generator=generator), torch.randperm(60, generator=generator) % 2
    once, numbers = fit_head(x, targets, classes=2), torch.arange(60).repeat_interleave(2)
    twice = fit_head(x[numbers], targets[numbers], classes=2, groups=numbers)
    assert torch.allclose(twice.logits(x), once.logits(x), atol=1e-4)
    assert twice.cv_loss == pytest.approx(once.cv_loss, rel=1e-3)
    assert twice.cv_error == pytest.approx(once.cv_error, abs=1 / 300)
    assert not twice.beats_chance and not once.beats_chance
    apart = fit_head(x[numbers], targets[numbers], classes=2)
    assert apart.cv_error < 0.2 and apart.beats_chance  # as if random labels could be learned


@pytest.mark.parametrize("value", [0.0, 1234.567])
def test_constant_features_leave_only_the_class_sizes(value):
    x = torch.full((60, 7), value, dtype=torch.float64)
    targets = torch.tensor([0] * 40 + [1] * 20)
    head = fit_head(x, targets, classes=2, balance=False)
    assert torch.allclose(head.logits(x).softmax(1), torch.tensor([2 / 3, 1 / 3], dtype=torch.float64), atol=1e-4)
    assert head.weight.abs().max() * max(value, 1) < 1e-3
    assert head.cv_error == pytest.approx(0.5)  # all are taken for the larger class, and classes count the same


def test_features_in_chunks_and_fewer_repetitions_of_many_images(monkeypatch):
    features, targets, _ = problem("4 classes", 90, 12)
    whole = fit_head(features, targets, classes=4)
    monkeypatch.setitem(CHUNK, "cpu", 32)
    monkeypatch.setattr("task2vec.head.problem._KEPT", {"cpu": 32})
    chunks = fit_head(features, targets, classes=4)
    assert torch.allclose(chunks.weight, whole.weight, rtol=1e-5, atol=1e-7)
    assert torch.allclose(chunks.logits(features), whole.logits(features), rtol=1e-5, atol=1e-6)
    monkeypatch.undo()
    with monkeypatch.context() as patch:
        patch.setattr("task2vec.head.fit.MAX_REPEATED", 90)
        large = fit_head(features, targets, classes=4)
    monkeypatch.setattr("task2vec.head.fit.REPETITIONS", 1)
    assert large.cv_loss == fit_head(features, targets, classes=4).cv_loss != whole.cv_loss


def test_many_classes_are_not_left_at_zero():
    """The entries of their gradients are small from the start: a limit on those would stop the folds at once."""
    generator, targets = torch.Generator().manual_seed(0), torch.arange(400) % 100
    features = 0.5 * torch.randn(100, 300, generator=generator)[targets] + torch.randn(400, 300, generator=generator)
    head = fit_head(features, targets, classes=100)
    assert head.cv_error < 0.5 and head.cv_loss < 0.95 * math.log(100) and head.beats_chance


def test_the_only_image_of_a_class_is_not_judged_and_where_none_is_the_head_knows_nothing():
    generator = torch.Generator().manual_seed(1)
    targets = torch.cat([torch.arange(40) % 2, torch.tensor([2])])
    features = torch.randn(41, 8, generator=generator) + 4 * targets[:, None]
    features[40] = 50 * torch.randn(8, generator=generator)
    # Its own held-out loss would be huge, and its error 100%, a third of the balanced error.
    head = fit_head(features, targets, classes=3)
    assert head.cv_loss < math.log(3) and head.cv_error < 0.05
    held_out, _, is_judged = predict_held_out(features, targets, classes=3)
    assert is_judged[:40].all() and not is_judged[40] and torch.isfinite(held_out).all()
    head = fit_head(features[:6], torch.arange(6), classes=6)
    assert head.cv_loss == pytest.approx(math.log(6)) and head.cv_error == pytest.approx(5 / 6)
    assert not head.beats_chance and head.train_loss < 0.1
    attributes = (features[:, :3] > 2).long()
    for groups, are_judged in (
        (None, True),
        (torch.zeros(41, dtype=torch.long), False),
    ):  # nobody is left to learn from
        assert (predict_held_out(features, attributes, classes=3, groups=groups)[2] == are_judged).all()


MANY = {
    "fewer images than features": ("2 classes", 12, 4000, 1 << 29),
    "a few heads at a time": ("4 classes", 40, 4000, 200_000),
    "a part of the images validated": ("4 classes", 60, 30, 1 << 29),
    "many enough to be whitened": ("4 classes", 100, 4000, 1 << 29),
    "a part of the images, attributes": ("3 attributes", 60, 30, 1 << 29),
}


@pytest.mark.parametrize(("kind", "count", "validated", "memory"), MANY.values(), ids=MANY)
def test_heads_of_several_tasks_are_those_that_each_has_alone(kind, count, validated, memory, monkeypatch):
    monkeypatch.setattr("task2vec.head.fit.MAX_VALIDATED", validated)
    monkeypatch.setattr(Problem.count_together, "__defaults__", (memory,))
    classes, is_multilabel = KINDS[kind]
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(count, 20, generator=generator) * 3 + 5
    shape = (3, count, classes) if is_multilabel else (3, count)
    targets = torch.randint(0, 2 if is_multilabel else classes, shape, generator=generator)
    signs = (features > 5).long()  # something to learn
    targets[0] = signs[:, :1] if is_multilabel else (2 * signs[:, 0] + signs[:, 1]) % classes
    together = fit_heads(features, targets, classes=classes)
    for own, head in zip(targets, together, strict=True):
        alone = fit_head(features, own, classes=classes)
        assert (head.cv_error, head.beats_chance, head.has_converged) == (alone.cv_error, alone.beats_chance, True)
        assert head.cv_loss == pytest.approx(alone.cv_loss, rel=1e-4)  # folds are solved to a part of the gradient
        assert head.train_loss == pytest.approx(alone.train_loss, rel=1e-9)
        assert torch.allclose(head.weight, alone.weight, rtol=1e-8, atol=1e-10)
        assert torch.allclose(head.bias, alone.bias, rtol=1e-8, atol=1e-9)
    assert len({head.cv_error for head in together}) == 3  # or the test would not see tasks mixed up


@pytest.mark.parametrize(("kind", "balance"), [("2 classes", False), ("4 classes", True)])
def test_small_tasks_on_other_images_fitted_together_are_as_alone(kind, balance):
    classes, rng = KINDS[kind][0], torch.Generator().manual_seed(0)
    counts = (15 * classes, 11 * classes, 7 * classes)
    assert all(is_small(count, classes) for count in counts)
    assert not is_small(16 * classes, classes) and not is_small(241, 100)
    how, alone = {"classes": classes, "balance": balance}, []
    members = [own.sort().values for own in torch.randperm(sum(counts), generator=rng).split(counts)]
    features, groups = torch.empty(sum(counts), 8, dtype=torch.float64), torch.empty(sum(counts), dtype=torch.long)
    targets = torch.zeros(3, sum(counts), dtype=torch.long)
    for number, own in enumerate(members):
        x, y, _ = problem(kind, len(own), seed=len(own))
        copies = torch.arange(len(own)) // 2  # of the images, two and two
        alone.append(fit_head(x, y, groups=copies, **how))
        features[own], targets[number, own], groups[own] = x, y, copies + 1000 * number
    groups = groups.unique(return_inverse=True)[1]
    for one, other in zip(fit_heads(features, targets, groups=groups, members=members, **how), alone, strict=True):
        torch.testing.assert_close((one.weight, one.bias), (other.weight, other.bias), rtol=1e-4, atol=1e-6)
        figures = [(head.cv_loss, head.cv_error, head.train_loss, head.l2) for head in (one, other)]
        assert figures[0] == pytest.approx(figures[1], rel=1e-4)
        assert (one.beats_chance, one.has_converged) == (other.beats_chance, other.has_converged)
