"""Splits, errors of linear classifiers and their intervals: only seed and content decide, and plain loops agree."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, balanced_accuracy_score

from task2vec import experts
from task2vec.errors import DataError, NotFiniteError, UsageError
from task2vec.experts import ErrorProtocol, measure_cells, plan_cells
from task2vec.experts.protocol import match_test, score_balanced, score_precision
from task2vec.head.fit import SPLIT_L2_GRID
from task2vec.tasks import from_dataset
from tests.experts.material import make_attributes, make_task, pictures
from tests.failures import refuse

HALF, FIVE = ErrorProtocol(), ErrorProtocol(shots=5)
PAPER = ErrorProtocol(classifier="achille2019")
SEEDS = range(4)


def features_of(task, targets=None, *, width=7, noise=1.0, seed=0):
    """Features that follow the labels, an image's own whatever its place."""
    rows = []
    for digest, target in zip(task.digests, task.targets if targets is None else targets, strict=True):
        own = np.random.default_rng([seed, int(digest[:8], 16)]).normal(size=width)
        centre = np.random.default_rng(99).normal(size=(10, width))
        rows.append(noise * own + (target @ centre[: len(target)] if task.is_multilabel else centre[target]))
    return torch.from_numpy(np.stack(rows))


def fit_plainly(x, targets, l2, *, is_attribute=False):
    """Logistic regression by scikit-learn, with the same weight for every class, or for every image."""
    sizes = np.bincount(targets)
    omega = np.full(len(x), 1 / len(x)) if is_attribute else 1 / sizes[targets] / len(sizes)
    spread = float(omega @ np.square(x - omega @ x).sum(1))
    return LogisticRegression(C=1 / (l2 * spread), tol=1e-8, max_iter=20000).fit(x, targets, sample_weight=omega)


@pytest.fixture(autouse=True)
def _one_epoch(monkeypatch):
    monkeypatch.setattr(experts.error_matrix, "EPOCHS", 1)


@pytest.fixture(scope="module")
def task():
    return make_task((30, 20, 14))


# --- protocols and splits ---------------------------------------------------------------------------------------------


def test_keys_have_all_that_moves_numbers_and_protocols_that_cannot_be_are_refused():
    assert ErrorProtocol(5, "achille2019", "balanced").key == "linear-2, train 5, achille2019, balanced"
    wrong = {"shots": [0, True, "most", 2.5], "classifier": ["svm"], "measure": ["plain"]}
    for name, values in wrong.items():
        for value in values:
            refuse(UsageError, name, ErrorProtocol, **{name: value})


def test_copies_are_on_one_side_and_drawn_once():
    images, labels = pictures((8, 7, 6))
    task = from_dataset([(images[row], labels[row]) for row in [*range(21), 0, 0, 9, 20]], name="copied")
    for seed in SEEDS:
        is_test = experts.choose_test_half(task, seed)
        assert len(set(zip(task.digests, is_test.tolist(), strict=True))) == len(set(task.digests))
        train = experts.choose_training(task, is_test, shots=3, seed=seed)
        drawn = [task.digests[row] for row in np.flatnonzero(train)]
        assert len(set(drawn)) == len(drawn) and not (train & is_test).any()


def test_so_many_of_each_class_and_smaller_draws_within_larger_ones():
    task = make_task((20, 9, 3, 1))
    is_test = experts.choose_test_half(task, 1)
    there = np.bincount(task.targets[~is_test])
    assert there.tolist() == [10, 5, 2, 1]  # halves
    before = np.zeros(len(task), dtype=bool)
    for train in (1, 2, 5, 100):
        mask = experts.choose_training(task, is_test, shots=train, seed=1)
        assert np.bincount(task.targets[mask]).tolist() == np.minimum(there, train).tolist()
        assert not (mask & is_test).any() and (before <= mask).all()
        before = mask
    assert np.array_equal(before, experts.choose_training(task, is_test, shots="half", seed=1))
    assert np.array_equal(before, ~is_test)


def test_attributes_have_both_answers_in_every_part():
    task = make_attributes(60)
    for seed in SEEDS:
        is_test = experts.choose_test_half(task, seed)
        mask = experts.choose_training(task, is_test, shots=2, seed=seed)
        for side in (is_test, ~is_test, mask):
            share = task.targets[side].mean(0)
            assert (share > 0).all() and (share < 1).all()
        for answer in (0, 1):
            assert ((task.targets[mask] == answer).sum(0) >= 2).all()
        assert mask.sum() < 20 and not (mask & is_test).any()


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [HALF, FIVE], ids=["half", "5"])
def test_scikit_learn_finds_the_same_error_by_a_plain_loop(task, protocol):
    features = features_of(task)
    found = measure_cells(features, plan_cells(task, [protocol], (0, 1, 2)), model="x")
    x, targets = features.numpy(), task.targets
    for error in found:
        is_test = experts.choose_test_half(task, error.seed)
        train = experts.choose_training(task, is_test, shots=protocol.shots, seed=error.seed)
        errors = set()
        for l2 in SPLIT_L2_GRID:  # the tests of heads check which of them is chosen
            predicted = fit_plainly(x[train], targets[train], l2).predict(x[is_test])
            errors.add(float((predicted != targets[is_test]).mean()))
        assert min(abs(error.error - one) for one in errors) < 1e-9
        assert error.error < 0.4 and error.low <= error.error <= error.high
        assert (error.task, error.expert, error.protocol) == (task.fingerprint, "x", protocol.key)


@pytest.mark.parametrize("make", [make_task, make_attributes], ids=["single", "multi"])
def test_the_order_of_images_does_not_matter(make):
    task = make()
    protocols = [HALF, ErrorProtocol(shots=2), PAPER]
    shuffled = task.subset(np.random.default_rng(0).permutation(len(task)))
    assert [list(one.digests) == list(task.digests) for one in (task, shuffled)] == [True, False]
    both = [measure_cells(features_of(one).float(), plan_cells(one, protocols), model="x") for one in (task, shuffled)]
    assert both[0] == both[1] and len(both[0]) == 3


def test_what_else_is_measured_does_not_matter(task):
    features = features_of(task, noise=2.0)
    protocols = [HALF, FIVE, PAPER, replace(HALF, measure="balanced")]
    plan = plan_cells(task, protocols, (0, 1, 2))
    whole = {(error.protocol, error.seed): error for error in measure_cells(features, plan, model="x")}
    assert list(whole) == [(protocol.key, seed) for protocol in protocols for seed in (0, 1, 2)]
    wanted = [(FIVE.key, 2), (PAPER.key, 1)]
    assert measure_cells(features, plan, model="x", only=wanted) == [whole[cell] for cell in wanted]
    assert measure_cells(features, plan_cells(task, [FIVE], (2,)), model="x") == [whole[FIVE.key, 2]]
    assert len({error.error for error in whole.values()}) > 3


def test_labels_of_test_images_are_not_used(task):
    features = features_of(task)
    is_test = experts.choose_test_half(task, 0)
    noise = torch.randn(features.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plan = plan_cells(task, [HALF, PAPER], (0,))
    hidden = torch.where(torch.from_numpy(is_test)[:, None], noise, features)
    assert all(error.error > 0.4 for error in measure_cells(hidden, plan, model="x"))
    assert all(error.error < 0.4 for error in measure_cells(features, plan, model="x"))


def test_what_cannot_be_measured_is_refused(task):
    plan = plan_cells(task, [HALF])
    refuse(UsageError, "one row per image", measure_cells, features_of(task)[1:], plan, model="x")
    broken = features_of(task)
    broken[3, 1] = torch.nan
    refuse(NotFiniteError, task.images.name(3), measure_cells, broken, plan, model="x")
    refuse(UsageError, "precision", plan_cells, task, [ErrorProtocol(measure="precision")])


def test_errors_on_parts_of_the_test_images_make_up_the_whole():
    plan = plan_cells(make_task((20, 20, 20)).canonical(), [HALF])
    ((_, _, answer),) = experts.predict_cells(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), plan)
    masks = [np.arange(60) % 3 == 0, np.arange(60) % 3 > 0]
    whole, *parts = (experts.score_cell(answer, plan, HALF, 0, among=mask).error for mask in (None, *masks))
    assert whole > 0.3 and parts[0] != parts[1]
    assert whole == pytest.approx(np.average(parts, weights=[(plan.tests[0] & mask).sum() for mask in masks]))


# --- test images that a task comes with -------------------------------------------------------------------------------


def split_shuffled(task, *, seed=3):
    """A training and a test part, the images and classes of the test part in another order."""
    train, test = task.split(seed, test=0.4)
    rng = np.random.default_rng(seed)
    rows, order = rng.permutation(len(test)), rng.permutation(len(test.classes)).tolist()
    test = test.subset(rows)
    return train, replace(test, targets=test.renumber(order), classes=tuple(test.classes[place] for place in order))


def of_both(train, test, **how):
    """Features of the training and then of the test images, which follow the names of their classes."""
    numbers = [train.classes.index(name) for name in test.classes]
    renamed = test.targets[:, np.argsort(numbers)] if test.is_multilabel else np.array(numbers)[test.targets]
    return torch.cat([features_of(train, **how), features_of(test, renamed, **how)])


@pytest.mark.parametrize("shots", ["all", 4])
def test_scikit_learn_finds_the_same_error_on_test_images_of_their_own(shots):
    train, test = split_shuffled(make_task((30, 20, 14)))
    assert train.classes != test.classes
    features = of_both(train, test)
    plan = plan_cells(train, [ErrorProtocol(shots)], (0, 1), test=test)
    found = measure_cells(features, plan, model="x")
    x, y = features[: len(train)].numpy(), features[len(train) :].numpy()
    truth = np.array([train.classes.index(test.classes[label]) for label in test.targets])
    canonical = train.canonical()
    for error in found:
        mask = experts.choose_training(canonical, np.zeros(len(train), bool), shots=shots, seed=error.seed)
        rows = np.array(train.canonical_order[0])[mask]
        assert np.bincount(train.targets[rows]).tolist() == ([4, 4, 4] if shots == 4 else train.counts.tolist())
        answers = [fit_plainly(x[rows], train.targets[rows], l2).predict(y) for l2 in SPLIT_L2_GRID]
        errors = [float((answer != truth).mean()) for answer in answers]
        assert min(abs(error.error - one) for one in errors) < 1e-9 and 0 < error.error < 0.5
        interval = experts.wilson_interval(round(error.error * len(test)), len(test))
        assert (error.low, error.high) == (interval.low, interval.high)
        assert error.task == train.fingerprint and error.protocol.startswith(
            f"linear-2, train {shots}, logistic, usual, test "
        )
    assert (found[0].error == found[1].error) == (shots == "all")


@pytest.mark.parametrize("make", [make_task, lambda: make_attributes(60)], ids=["single", "multi"])
def test_adam_finds_the_same_error_on_test_images_of_their_own(make):
    """The paper's classifier, by the layers and the optimiser of torch, on the training images alone."""
    train, test = split_shuffled(make())
    train = train.canonical()
    features = of_both(train, test).float() * 30  # one epoch of small steps gets somewhere
    (found,) = measure_cells(features, plan_cells(train, [replace(PAPER, shots="all")], (5,), test=test), model="x")
    layer, targets = torch.nn.Linear(7, len(train.classes)), torch.tensor(train.targets)
    for each in layer.parameters():
        torch.nn.init.zeros_(each)
    adam = torch.optim.Adam(layer.parameters(), lr=1e-4, weight_decay=5e-4)
    loss = torch.nn.BCEWithLogitsLoss() if train.is_multilabel else torch.nn.CrossEntropyLoss()
    draws = experts.error_matrix.draw_epoch(train.targets, draws=10_000, seed=5, epoch=0)[0]
    for some in draws.split(64):
        adam.zero_grad()
        wanted = targets[some].float() if train.is_multilabel else targets[some]
        loss(layer(features[some]), wanted).backward()
        adam.step()
    with torch.no_grad():
        logits = layer(features[len(train) :]).numpy()
    order = [test.classes.index(name) for name in train.classes]
    if train.is_multilabel:
        truth = test.targets[:, order]
        scores = [1 - balanced_accuracy_score(truth[:, n], logits[:, n] > 0) for n in range(len(order))]
        assert found.error == pytest.approx(np.mean(scores))
    else:
        assert found.error == pytest.approx((np.argsort(order)[test.targets] != logits.argmax(1)).mean())
    assert 0 < found.error < 0.5


@pytest.mark.parametrize("measure", ["usual", "precision"])
def test_attributes_on_test_images_of_their_own(measure):
    """Columns are matched by name; one that the test images lack is not measured, nor one that the task lacks."""
    train, test = split_shuffled(make_attributes(90))
    features = of_both(train, test, noise=2.0)
    train = train.select(train.classes[:2])
    test = test.select(train.classes[1:] + tuple(name for name in test.classes if name not in train.classes))
    (found,) = measure_cells(features, plan_cells(train, [ErrorProtocol("all", measure=measure)], test=test), model="x")
    x, y = features[: len(train)].numpy(), features[len(train) :].numpy()
    truth = test.targets[:, test.classes.index(train.classes[1])]
    models = [fit_plainly(x, train.targets[:, 1], l2, is_attribute=True) for l2 in SPLIT_L2_GRID]
    if measure == "precision":
        errors = [1 - average_precision_score(truth, model.decision_function(y)) for model in models]
    else:
        errors = [1 - balanced_accuracy_score(truth, model.predict(y)) for model in models]
    assert min(abs(found.error - error) for error in errors) < 1e-9 and 0 < found.error < 0.5
    matched = match_test(train, test)
    assert matched.tested.tolist() == [1] and len(matched.warnings) == 2
    assert "attributes without test images" in matched.warnings[0] and "left out of the test" in matched.warnings[1]


def test_neither_test_images_nor_their_labels_are_trained_on():
    train, test = split_shuffled(make_task((30, 20, 14)))
    features, relabelled = of_both(train, test), replace(test, targets=(test.targets + 1) % 3)
    moved = torch.cat([features[: len(train)], torch.full((len(test), 7), 1e3, dtype=torch.float64)])
    protocols = [ErrorProtocol("all"), replace(PAPER, shots="all")]
    for protocol in protocols:
        found = []
        for values, own in ((features, test), (features, relabelled), (moved, test)):
            ((*_, predicted),) = experts.predict_cells(values, plan_cells(train, [protocol], test=own))
            found.append(predicted[: len(train)].tolist())
        assert found[0] == found[1] == found[2]


def test_the_key_of_test_images_is_of_their_content_alone():
    train, test = split_shuffled(make_task((30, 20, 14)))
    train = train.canonical()
    key = match_test(train, test).key
    assert key == match_test(train, test.canonical()).key == match_test(train, replace(test, name="other")).key
    renamed = {name: f"the {name}" for name in train.classes}
    both = [replace(one, classes=tuple(renamed[name] for name in one.classes)) for one in (train, test)]
    assert match_test(*both).key == key
    swapped = replace(test, classes=test.classes[::-1])  # the same partition, but other classes
    assert swapped.fingerprint == test.fingerprint and match_test(train, swapped).key != key
    assert match_test(train, test.subset(range(1, len(test)))).key != key


def test_test_images_that_are_no_test_of_the_task_are_refused_and_odd_ones_counted():
    task = make_task((12, 10, 8))
    train, test = task.split(0, test=0.4)
    assert match_test(train, test).warnings == ()
    refuse(DataError, "1 class that the task lacks .'2'.", match_test, train.select(["0", "1"]), test)
    refuse(DataError, "2 classes of .* called '0'", match_test, replace(train, classes=("0", "0", "2")), test)
    refuse(DataError, "all training images", match_test, task, test)
    refuse(DataError, "one class per image, and the task has any number", match_test, make_attributes(20), test)
    (warning,) = match_test(train, test.select(["0", "1"])).warnings
    assert warning == "classes without test images: '2'; the error does not cover them"
    (warning,) = match_test(train, task).warnings
    assert f"exact copies of training images: {len(train)} of 30, such as '" in warning
    for shots, own in (("half", test), ("all", None)):
        refuse(UsageError, f"shots='{shots}'", plan_cells, train, [ErrorProtocol(shots)], test=own)
    broken = of_both(train, test)
    broken[len(train) + 2, 0] = torch.inf
    plan = plan_cells(train, [ErrorProtocol("all")], test=test)
    refuse(NotFiniteError, test.images.name(2), measure_cells, broken, plan, model="x")
    refuse(UsageError, "which has 30 images", measure_cells, broken[: len(train)], plan, model="x")


# --- intervals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wrong", "count"), [(0, 1), (0, 40), (3, 40), (40, 40), (1, 5000)])
def test_wilsons_interval(wrong, count):
    score = experts.wilson_interval(wrong, count)
    ends = binomtest(wrong, count).proportion_ci(method="wilson")
    assert score.error == wrong / count
    assert (score.low, score.high) == pytest.approx((ends.low, ends.high), abs=1e-6)
    assert 0 <= score.low <= score.error <= score.high <= 1


def test_balanced_errors_and_precision_with_ties():
    rng = np.random.default_rng(0)
    classes = rng.choice(4, size=200, p=[0.7, 0.2, 0.06, 0.04])
    is_wrong = rng.random(200) < 0.1 * (1 + classes)
    balanced = 1 - balanced_accuracy_score(classes, np.where(is_wrong, (classes + 1) % 4, classes))
    score = score_balanced(is_wrong, classes)
    assert score.error == pytest.approx(balanced) and score.low < score.error < score.high
    assert abs(score.error - is_wrong.mean()) > 0.01  # otherwise the test shows nothing
    targets = (rng.random((150, 3)) < [0.5, 0.1, 0.8]).astype(np.uint8)
    answers = np.where(rng.random((150, 3)) < 0.8, targets, 1 - targets)
    logits = np.round(targets + rng.normal(size=(150, 3)), 1)
    for score, oracle, given in (
        (score_balanced(answers != targets, targets), balanced_accuracy_score, answers),
        (score_precision(logits, targets), average_precision_score, logits),
    ):
        wanted = [1 - oracle(targets[:, column], given[:, column]) for column in range(3)]
        assert score.error == pytest.approx(np.mean(wanted)) and score.low < score.error < score.high


def test_nothing_wrong_is_no_proof_that_nothing_will_be():
    nothing, targets = np.zeros(90, dtype=bool), np.repeat([0, 1, 2], 30)
    score = score_balanced(nothing, targets)
    assert (score.error, score.low) == (0, 0) and score.high == pytest.approx(experts.wilson_interval(0, 90).high)
    uneven = score_balanced(nothing, np.repeat([0, 1, 2], [84, 3, 3]))
    assert score.high < uneven.high < experts.wilson_interval(0, 9).high  # a class of three weighs as much as one of 84
    one = np.repeat([0, 1], 45)[:, None]
    for columns in (1, 4):  # the same attribute four times is no more evidence than once
        score = score_balanced(np.zeros((90, columns), dtype=bool), np.repeat(one, columns, axis=1))
        assert score.low == 0 and score.high == pytest.approx(experts.wilson_interval(0, 90).high)
    perfect = score_precision(one * 2.0 - 1, one)
    assert perfect.error == perfect.low == 0 and perfect.high == pytest.approx(experts.wilson_interval(0, 45).high)
    worst = score_balanced(np.ones(90, dtype=bool), targets)
    assert (worst.error, worst.high) == (1, 1) and worst.low == pytest.approx(experts.wilson_interval(90, 90).low)


def test_intervals_contain_the_true_error_about_as_often_as_they_should():
    rng = np.random.default_rng(0)
    draws = [rng.choice(3, size=120, p=[0.6, 0.3, 0.1]) for _ in range(60)]
    scores = [score_balanced(rng.random(120) < np.array([0.1, 0.3, 0.5])[targets], targets) for targets in draws]
    assert 52 <= sum(score.low <= 0.3 <= score.high for score in scores) <= 60
