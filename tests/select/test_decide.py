"""Intervals, ties and choices against plain loops, and how often they hold on data whose truth is known."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from task2vec.select.decide import compare, count_needed, decide, find_interval, find_spread
from task2vec.select.measure import Folds, Measurements, weigh_attributes


def make(losses, *, names=None, groups=None, earlier=None, answer=1.0):
    """Measurements with (n, m) losses."""
    losses = np.asarray(losses, dtype=float)
    count, models = losses.shape
    return Measurements(
        images=np.arange(count),
        groups=np.arange(count) if groups is None else np.asarray(groups),
        models=tuple(names or (f"model {number}" for number in range(models))),
        losses=losses,
        total_images=count,
        answer=answer,
        earlier=earlier,
    )


def draw_losses(random, images, errors, *, share=0.6):
    """(n, m) zeros and ones with these expectations; models err together on a share of the images."""
    common = random.random((images, 1))
    is_common = random.random((images, 1)) < share
    return (np.where(is_common, common, random.random((images, len(errors)))) < errors).astype(float)


def test_the_interval_is_wilsons_a_little_wider():
    losses, z = np.array([1.0] * 7 + [0.0] * 43), 1.1 * NormalDist().inv_cdf(0.975)
    roots = np.roots([1 + z * z / 50, -(2 * 0.14 + z * z / 50), 0.14**2])  # (e - p)^2 = z^2 p (1 - p) / n
    assert find_interval(losses, np.arange(50)) == pytest.approx((0.14, *sorted(roots)))


@pytest.mark.parametrize("error", [0.02, 0.1, 0.3, 0.5])
@pytest.mark.parametrize("images", [40, 200])
def test_the_interval_holds_in_at_least_95_of_100_cases(images, error):
    random = np.random.default_rng(0)
    draws = random.binomial(images, error, 2000)
    ends = [
        find_interval((np.arange(images) < wrong).astype(float), np.arange(images))[1:] for wrong in range(images + 1)
    ]
    is_held = [ends[wrong][0] <= error <= ends[wrong][1] for wrong in draws]
    assert 0.94 <= np.mean(is_held) <= 0.995


def test_the_interval_is_wide_where_few_images_count_for_many():
    random = np.random.default_rng(0)
    targets = (np.arange(200) < 16).astype(np.uint8)[:, None]
    weights, rates, held = weigh_attributes(targets, np.arange(200))[:, 0], np.where(targets[:, 0], 0.4, 0.1), []
    for _ in range(1000):
        losses = weights * (random.random(200) < rates)
        low, high = find_interval(losses, np.arange(200))[1:]
        held.append(low <= 0.25 <= high)
    assert 0.93 <= np.mean(held) <= 0.99


def test_copies_count_once():
    random = np.random.default_rng(0)
    first, second = (random.random((2, 60)) < 0.3).astype(float)
    groups = np.arange(60)
    twice = np.repeat(groups, 2)
    alone, copied = find_interval(first, groups), find_interval(first.repeat(2), twice)
    assert copied == pytest.approx(alone)
    assert find_interval(first.repeat(2), np.arange(120))[2] < alone[2]  # had they been different images
    gaps = compare(first, second, groups, 2), compare(first.repeat(2), second.repeat(2), twice, 2)
    assert gaps[0][0] == gaps[1][0] and gaps[0][1] == pytest.approx(gaps[1][1], rel=0.03)


def test_a_gap_is_compared_with_its_spread_over_groups():
    random = np.random.default_rng(1)
    groups = random.integers(0, 25, 80)
    groups = np.unique(groups, return_inverse=True)[1]
    losses, best = random.random((2, 80))
    total = 1.0
    for group in range(groups.max() + 1):
        total += sum(losses[row] - best[row] for row in range(80) if groups[row] == group) ** 2
    gap, reach = compare(losses, best, groups, 6)
    assert gap == pytest.approx(sum(losses - best) / 80)
    assert reach == pytest.approx(1.1 * NormalDist().inv_cdf(1 - 0.05 / 5) * total**0.5 / 80)


@pytest.mark.parametrize("errors", [(0.2, 0.2), (0.1, 0.11, 0.12, 0.4), (0.3,) * 8, (0.02,) * 16, (0.2, *[0.21] * 30)])
@pytest.mark.parametrize("images", [40, 300])
def test_the_tie_has_the_truly_best_model(errors, images):
    random, held = np.random.default_rng(0), []
    for _ in range(300):
        decision = decide(make(draw_losses(random, images, errors)), {})
        held.append("model 0" in decision.tie)
    assert np.mean(held) >= 0.95


def draw_attributes(random, images, rates, *, shares, together):
    """(n, m) losses on attributes of these shares, and what a wrong answer adds to one.

    Models err more on the rarer value, and on a share `together` of the images in all attributes at once.
    """
    targets = (random.random((images, len(shares))) < shares).astype(np.uint8)
    folds, common, losses = Folds(targets, np.arange(images), classes=len(shares)), random.random(targets.shape), []
    is_common = random.random(targets.shape) < 0.6
    for rate in rates:
        alone = np.where(is_common, common, random.random(targets.shape))
        alone = np.where(random.random((images, 1)) < together, random.random((images, 1)), alone)
        votes = targets ^ (alone < np.where(targets, min(0.9, 4 * rate), rate))
        losses.append(folds.find_losses(votes.astype(float), np.ones(images, dtype=bool)))
    return np.stack(losses, axis=1), folds.answer


@pytest.mark.parametrize("together", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("images", [40, 300])
@pytest.mark.parametrize(
    ("shares", "rates"), [(np.full(40, 0.5), (0.01,) * 2), (np.geomspace(0.1, 0.5, 12), (0.05,) * 8)]
)
def test_the_tie_has_the_truly_best_model_with_attributes(images, shares, rates, together):
    random, held = np.random.default_rng(0), []
    for _ in range(200):
        losses, answer = draw_attributes(random, images, rates, shares=shares, together=together)
        held.append("model 0" in decide(make(losses, answer=answer), {}).tie)
    assert np.mean(held) >= 0.95


def test_models_are_told_apart_by_attributes():
    random, sizes = np.random.default_rng(0), []
    for _ in range(20):
        losses, answer = draw_attributes(random, 100, (0.004, 0.012), shares=np.full(40, 0.5), together=0.0)
        sizes.append([len(decide(make(losses, answer=size), {}).tie) for size in (answer, 1.0)])
    tie, hidden = np.mean(sizes, axis=0)
    assert tie < 1.1 and hidden > 1.4  # as if a wrong answer were a wrong image


def test_an_answer_counts_what_it_adds_to_a_loss():
    groups = np.arange(40)
    one_label = Folds(groups % 2, groups, classes=2)
    half = np.tile([[0, 1], [1, 0]], (20, 1)).astype(np.uint8)
    rare = np.stack([groups < 4, groups < 4], axis=1).astype(np.uint8)
    lonely = np.stack([groups % 2, groups < 1], axis=1).astype(np.uint8)  # nothing can be said of the second
    answers = [Folds(targets, groups, classes=2).answer for targets in (half, rare, lonely)]
    assert one_label.answer == 1 and answers == pytest.approx([0.5, ((4 * 2.5**2 + 36 * (5 / 18) ** 2) / 40) ** 0.5, 1])


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3])
def test_one_label_has_a_difference_of_one_image_more_than_was_seen(share):
    random = np.random.default_rng(0)
    values, groups = (
        random.choice([-1.0, 0.0, 0.25, 1.0], p=[share / 2, 1 - share, 0, share / 2], size=90),
        np.arange(90),
    )
    assert find_spread(values, groups // 2) == np.sqrt(np.square(np.bincount(groups // 2, values)).sum() + 1) / 90
    assert find_spread(values, groups, answer=0.1) <= find_spread(values, groups)


def test_the_tie_leaves_out_what_is_worse():
    random, sizes = np.random.default_rng(0), []
    for _ in range(50):
        sizes.append(len(decide(make(draw_losses(random, 300, (0.1, 0.12, 0.3, 0.3, 0.4))), {}).tie))
    assert 1 < np.mean(sizes) < 2.2


def test_the_cheapest_of_the_tie_is_recommended():
    losses = np.zeros((60, 4))
    losses[:2, 1] = losses[:3, 2] = losses[:50, 3] = 1
    measured = make(losses, names=("large", "small", "middle", "poor"))
    costs = {"large": (4.0, 30), "small": (0.5, 5), "middle": (0.5, 9), "poor": (0.1, 1)}
    decision = decide(measured, costs)
    assert decision.tie[0] == "large" and decision.choice == "small" and decision.tie == ("large", "small", "middle")
    assert [each.name for each in decision.judgements] == ["large", "small", "middle", "poor"]
    assert not decision.judgements[3].is_tied and decision.judgements[3].gap_low > 0
    assert decide(measured, costs, prefer="error").choice == "large"
    assert decide(measured, {"large": (4.0, 30)}).choice == "large"  # what has no cost is not cheap
    assert decide(measured, {}).choice == "large"


def test_one_model_or_none():
    one = decide(make([[0.0], [1.0]]), {})
    assert one.tie == ("model 0",) and one.choice == "model 0" and one.images_needed is None
    none = decide(make(np.empty((5, 0))), {})
    assert none.judgements == () and none.tie == () and none.choice is None


def test_images_that_cannot_be_judged_do_not_count():
    losses = np.array([[0.0, 1.0], [1.0, 1.0]] * 20)
    more = np.vstack([losses, [[np.nan, np.nan]] * 9])
    first, second = decide(make(losses), {}), decide(make(more), {})
    assert first == second and first.judgements[0].images == 40


def test_images_needed_separate_the_first_two():
    random, errors = np.random.default_rng(0), (0.1, 0.14)
    # Over many measurements on few images, most say about how many images are enough: some too many, some too few.
    needed = [decide(make(draw_losses(random, 150, errors)), {}).images_needed for _ in range(200)]
    typical = int(np.median([images for images in needed if images is not None]))
    far = [len(decide(make(draw_losses(random, 4 * typical, errors)), {}).tie) == 1 for _ in range(50)]
    assert 150 < typical < 1500 and np.mean(far) > 0.8


def test_no_number_of_images_separates_equals():
    losses = np.tile([[0.0, 0.0], [1.0, 1.0]], (30, 1))
    decision = decide(make(losses), {})
    assert decision.tie == ("model 0", "model 1") and decision.images_needed is None
    assert decide(make(np.eye(2)[np.zeros(80, dtype=int)]), {}).images_needed is None  # they are separate already
    assert count_needed(()) is None


def test_models_of_an_earlier_round_are_compared_there():
    random = np.random.default_rng(0)
    first = draw_losses(random, 100, (0.2, 0.2, 0.22, 0.7))
    later = draw_losses(random, 400, (0.05, 0.1))  # heads are better with more images
    earlier = make(first, names=("a", "b", "dropped", "poor"))
    decision = decide(make(later, names=("a", "b"), earlier=earlier), {"dropped": 0.1, "a": 2.0, "b": 1.0})
    assert [each.name for each in decision.judgements] == ["a", "b", "dropped", "poor"]
    assert [each.images for each in decision.judgements] == [400, 400, 100, 100]
    dropped = decision.judgements[2]
    assert dropped.gap == pytest.approx(first[:, 2].mean() - first[:, 0].mean()) and dropped.is_tied
    assert decision.choice != "dropped" and "poor" not in decision.tie
    assert decide(replace(make(later, names=("a", "b"))), {}).judgements[0].error == decision.judgements[0].error
