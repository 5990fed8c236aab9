"""Proposals: the rule against slow obvious loops, the order of all candidates, and its reasons."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest

from task2vec.metatask import SYMMETRIC, ModelInfo, Query, TaskInfo, View, bundled_metatask
from task2vec.select import propose as module
from task2vec.select.propose import (
    choose_width,
    fill_errors,
    order_candidates,
    order_portfolios,
    propose,
    rank_by_accuracy,
    rank_models,
    weigh_tasks,
)


@dataclass(frozen=True)
class Network:
    """What an order reads of a candidate."""

    name: str
    location: str | None = None
    gmacs: float | None = None
    imagenet: float | None = None
    is_here: bool = True


def draw_case(seed, tasks=7, models=9):
    """Errors with holes, distances of points in a plane, and distances to source tasks that some models lack."""
    rng = np.random.default_rng(seed)
    errors = rng.uniform(0.05, 0.95, (tasks, models))
    errors[rng.random(errors.shape) < 0.15] = np.nan
    points = rng.random((tasks + 1, 2))
    between = np.linalg.norm(points[:, None] - points, axis=2)
    to_sources = np.where(rng.random(models) < 0.4, np.nan, rng.random(models))
    is_candidate = rng.random(models) < 0.8
    return errors, between[1:, 1:], between[0, 1:], to_sources, is_candidate


def order_portfolio(filled, effects, weights, is_candidate, *, count, nearest=None, costs=None):
    """One portfolio."""
    keys = [key for key in (effects, nearest, costs) if key is not None]
    count = min(count, int(is_candidate.sum()))
    return order_portfolios(filled, weights[None], is_candidate[None], keys, count=count, nearest=nearest)[0]


def order_slowly(filled, effects, weights, candidates, count, nearest=None):
    """The same by plain loops: the weighted mean of the smallest error is computed for every possible next model."""
    chosen = []
    while len(chosen) < count and len(chosen) < len(candidates):
        left = [model for model in candidates if model not in chosen]
        if nearest is not None and len(chosen) in (2, 5, 8):
            known = [model for model in left if not np.isnan(nearest[model])]
            keys = {model: (nearest[model],) for model in known} or {model: (effects[model],) for model in left}
        else:
            keys = {}
            for model in left:
                total = 0.0
                for task, weight in enumerate(weights):
                    total += weight * min(filled[task][other] for other in [*chosen, model])
                keys[model] = (round(total, 12), effects[model])
        chosen.append(min(keys, key=keys.get))
    return chosen


def choose_slowly(errors, between, left_out=None):
    """The width by plain loops over widths and tasks."""
    filled, effects = fill_errors(errors)
    count = len(errors)
    nearest = [min(between[task, other] for other in range(count) if other != task) for task in range(count)]
    losses = []
    for share in module.WIDTHS:
        loss = 0.0
        for task in range(count) if left_out is None else left_out:
            others = [other for other in range(count) if other != task]
            weights = weigh_tasks(between[task, others], share * np.median(nearest))
            known = np.flatnonzero(np.isfinite(errors[task])).tolist()
            if known:
                chosen = order_slowly(filled[others], effects, weights, known, 4)
                loss += np.mean([errors[task, chosen[:many]].min() for many in range(1, len(chosen) + 1)])
        losses.append(loss)
    return module.WIDTHS[np.argmin(losses)] * np.median(nearest)


# --- the rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_the_portfolio_is_that_of_plain_loops(seed):
    errors, _, distances, to_sources, is_candidate = draw_case(seed)
    filled, effects = fill_errors(errors)
    candidates = np.flatnonzero(is_candidate).tolist()
    for width, nearest in itertools.product((0.2, np.inf), (None, to_sources)):
        weights = weigh_tasks(distances, width)
        order = order_portfolio(filled, effects, weights, is_candidate, count=8, nearest=nearest)
        assert order.tolist() == order_slowly(filled, effects, weights, candidates, 8, nearest)
    order = propose(errors, distances, to_sources, is_candidate, width=0.2, count=6)
    weights = [np.exp(-(distance - min(distances)) / 0.2) for distance in distances]
    assert order.tolist() == order_slowly(filled, effects, weights, candidates, 6, to_sources)


def test_unknown_errors_are_filled_by_two_way_effects_on_the_log_odds():
    tasks, models = np.array([-1.0, 0.0, 1.5]), np.array([-0.5, 0.0, 0.2, 0.9])
    errors = 1.01 / (1 + np.exp(-(tasks[:, None] + models))) - 0.005  # the inverse of log((e + c) / (1 + c - e))
    holes = errors.copy()
    holes[0, 1] = holes[2, 3] = np.nan
    filled, effects = fill_errors(holes)
    assert filled == pytest.approx(errors, abs=1e-9)
    assert effects == pytest.approx(models - models.mean(), abs=1e-9)
    holes[:, 2] = np.nan  # of this model nothing is known: it is no reason to measure it, and comes last on average
    filled, effects = fill_errors(holes)
    assert (filled[:, 2] == 1).all() and np.isnan(effects[2])
    assert rank_models(np.ones(4, dtype=bool), effects).tolist() == [0, 1, 3, 2]


def test_a_portfolio_is_of_complementary_models():
    # Models 0 to 2 are copies of one idea, the best on average; 3 alone is good on the tasks where these fail.
    errors = np.array([[0.1, 0.11, 0.12, 0.9]] * 3 + [[0.6, 0.61, 0.62, 0.3]])
    filled, effects = fill_errors(errors)
    everything = np.ones(4, dtype=bool)
    assert order_portfolio(filled, effects, np.ones(4), everything, count=2).tolist() == [0, 3]
    assert rank_models(everything, effects).tolist() == [0, 1, 2, 3]
    near_the_last = weigh_tasks(np.array([5.0, 5, 5, 0]), 0.1)  # tiny weights still decide between the rest
    assert order_portfolio(filled, effects, near_the_last, everything, count=2).tolist() == [3, 0]
    nearest = np.array([np.nan, np.nan, 0.7, np.nan])
    order = order_portfolio(filled, effects, np.ones(4), everything, count=9, nearest=nearest)
    assert order.tolist() == [0, 3, 2, 1]


def test_of_models_that_are_alike_the_cheapest_comes_first():
    errors = np.array([[0.3, 0.1, 0.1, 0.1], [0.1, 0.4, 0.4, 0.4]])
    filled, effects = fill_errors(errors)
    weights, everything = np.ones(2), np.ones(4, dtype=bool)
    assert order_portfolio(filled, effects, weights, everything, count=3).tolist() == [0, 1, 2]
    order = order_portfolio(filled, effects, weights, everything, count=4, costs=np.array([1.0, 9, 3, 5]))
    assert order.tolist() == [0, 2, 3, 1]


def test_after_many_models_the_mean_error_decides(monkeypatch):
    errors, _, distances, _, is_candidate = draw_case(3, models=12)
    filled, effects = fill_errors(errors)
    weights = weigh_tasks(distances, 0.2)
    monkeypatch.setattr(module, "MAX_PORTFOLIO", 2)
    order = order_portfolio(filled, effects, weights, is_candidate, count=12)
    first = order_slowly(filled, effects, weights, np.flatnonzero(is_candidate).tolist(), 2)
    rest = sorted((model for model in np.flatnonzero(is_candidate) if model not in first), key=lambda m: effects[m])
    assert order.tolist() == [*first, *rest]


@pytest.mark.parametrize("seed", range(6))
def test_the_width_is_that_of_plain_loops(seed):
    errors, between, *_ = draw_case(seed, tasks=6, models=3 if seed == 5 else 9)
    if seed == 4:
        errors[2] = np.nan  # a task without errors is not left out in turn
    assert choose_width(errors, between) == pytest.approx(choose_slowly(errors, between))
    assert choose_width(errors, between, fill=fill_errors(errors)) == choose_width(errors, between)


@pytest.mark.parametrize("seed", range(4))
def test_of_many_tasks_some_that_are_evenly_spread_are_left_out(seed, monkeypatch):
    errors, between, *_ = draw_case(seed, tasks=13)
    monkeypatch.setattr(module, "MAX_PAIRS", 5 * 13)
    assert choose_width(errors, between) == pytest.approx(choose_slowly(errors, between, left_out=(0, 3, 6, 9, 12)))


def test_near_tasks_that_tell_make_a_narrow_width_and_others_none():
    first, second = np.array([0.1, 0.2, 0.6, 0.7]), np.array([0.7, 0.6, 0.2, 0.1])
    points = np.array([0, 1, 2, 50, 51, 52])
    between = np.abs(points[:, None] - points).astype(float)
    assert choose_width(np.array([first] * 3 + [second] * 3), between) < 10
    assert choose_width(np.array([first] * 6), between) == np.inf  # all alike: the widest
    assert choose_width(np.array([first]), np.zeros((1, 1))) == np.inf
    assert choose_width(np.full((3, 4), np.nan), between[:3, :3]) == np.inf


# --- all candidates --------------------------------------------------------------------------------------------------


def make_view(errors, *, between=None, sources=(), models=None):
    """A view of (T, M) errors whose tasks have the distances given; `sources` are rows of the models' source tasks."""
    count, width = errors.shape
    tasks = tuple(TaskInfo(f"task {row}", fingerprint=str(row)) for row in range(count))
    columns = [*sources, *[None] * (width - len(sources))]
    infos = models or tuple(
        ModelInfo(f"model {column}", source_fingerprint=None if row is None else str(row))
        for column, row in enumerate(columns)
    )
    return View(
        "small", tasks, infos, protocol="linear-2, train half, logistic, usual", seeds=(0,), errors=errors[:, :, None],
        shares_images=np.zeros(errors.shape), shares_labels=np.zeros(errors.shape, dtype=bool),
        distances={} if between is None else {SYMMETRIC: between},
    )  # fmt: skip


def ask(view, distances, to_sources=None):
    """A new task at these distances."""
    unknown = np.full(len(view.models), np.nan)
    sources = unknown if to_sources is None else np.array(to_sources, dtype=float)
    everything = np.ones(len(view.models), dtype=bool)
    return Query("new", everything, distances={SYMMETRIC: np.array(distances)}, to_sources={SYMMETRIC: sources})


ERRORS = np.array([[0.1, 0.11, 0.12, 0.9], [0.1, 0.11, 0.12, 0.9], [0.6, 0.61, 0.62, 0.3], [0.55, 0.5, 0.52, 0.2]])
POINTS = np.array([0.0, 0.1, 1.0, 1.1])


def test_without_evidence_the_order_is_by_accuracy_and_cost():
    networks = [
        Network("large", gmacs=60.0, imagenet=0.88),
        Network("tiny", gmacs=0.05, imagenet=0.6),
        Network("efficient", gmacs=4.0, imagenet=0.84),
        Network("self-supervised", gmacs=4.0),
        Network("dear", gmacs=8.0, imagenet=0.84),
    ]
    proposals = order_candidates(networks)
    names = [proposal.name for proposal in proposals]
    assert names == ["efficient", "dear", "self-supervised", "large", "tiny"]
    assert proposals[0].reason == "ImageNet accuracy 84.0 % at 4 GMACs"
    assert proposals[2].reason == "no ImageNet accuracy known at 4 GMACs"
    # An accuracy that is not known is that of networks of the same cost: between better and worse ones, small or large.
    pairs = [
        Network(f"{name} {cost}", gmacs=cost, imagenet=middle + gain if gain else None)
        for cost, middle in ((0.2, 0.7), (20.0, 0.85))
        for name, gain in (("worse", -0.05), ("unknown", 0), ("better", 0.05))
    ]
    names = [proposal.name for proposal in order_candidates(pairs)]
    for cost in (0.2, 20.0):
        assert [name for name in names if name.endswith(f" {cost}")] == [
            f"{name} {cost}" for name in ("better", "unknown", "worse")
        ]
    # Twice the cost has to raise the odds by 15 %: 15.1 % are enough, and 14.9 % are not.
    for factor, first in ((1.151, 1), (1.149, 0)):
        odds = 4 * factor
        pair = [Network("a", gmacs=1.0, imagenet=0.8), Network("b", gmacs=2.0, imagenet=odds / (1 + odds))]
        assert rank_by_accuracy(pair, [0, 1])[0] == first
    assert rank_by_accuracy([Network("a"), Network("b", gmacs=1.0), Network("c", gmacs=0.5)], [0, 1, 2]) == [2, 0, 1]


def test_weights_that_are_here_come_first():
    networks = [Network("far", gmacs=1.0, imagenet=0.9, is_here=False), Network("here", gmacs=1.0, imagenet=0.7)]
    assert [proposal.name for proposal in order_candidates(networks)] == ["here", "far"]
    view = make_view(ERRORS)
    models = [Network(f"model {number}", is_here=number in (1, 3)) for number in range(4)]
    names = [proposal.name for proposal in order_candidates(models, view)]
    assert set(names[:2]) == {"model 1", "model 3"} and names[2:] == ["model 0", "model 2"]


def test_what_the_evidence_knows_and_what_it_does_not_alternate():
    view = make_view(ERRORS, between=np.abs(POINTS[:, None] - POINTS))
    known = [Network(f"model {number}") for number in range(4)]
    others = [Network(f"new {number}", gmacs=1.0, imagenet=0.9 - number / 10) for number in range(2)]
    names = [proposal.name for proposal in order_candidates([*others, *known], view, ask(view, POINTS + 0.02))]
    assert names[:4] == ["model 0", "new 0", "model 3", "new 1"]
    assert sorted(names[4:]) == ["model 1", "model 2"]
    assert len(set(names)) == len(names) == 6


def test_reasons_name_the_tasks_that_speak_for_a_model():
    view = make_view(ERRORS, between=np.abs(POINTS[:, None] - POINTS), sources=(None, None, 3))
    networks = [Network(f"model {number}") for number in range(4)]
    near = ask(view, np.abs(POINTS - 0.02), [np.nan, np.nan, 0.14, np.nan])
    reasons = {proposal.name: proposal.reason for proposal in order_candidates(networks, view, near)}
    assert reasons == {
        "model 0": "best on these similar tasks: task 0 (0.02), task 1 (0.08)",
        "model 3": "covers what the first one misses: task 2 (0.98), task 3 (1.08)",
        "model 2": "nearest expert (0.14)",
        "model 1": "best on average of those that are left",
    }
    alike = [proposal.reason for proposal in order_candidates(networks, make_view(ERRORS))]
    assert alike[0] == "lowest mean error on known tasks, such as task 0, task 1"  # of model 1
    alike = [proposal.reason for proposal in order_candidates(networks[::3], make_view(ERRORS))]
    assert alike == ["best on these known tasks: task 0, task 1", "covers what the first one misses: task 3, task 2"]


def test_experts_without_errors_are_proposed_by_their_source_task():
    errors = np.c_[ERRORS, np.full(4, np.nan), np.full(4, np.nan)]
    view = make_view(errors, between=np.abs(POINTS[:, None] - POINTS), sources=(None, None, None, None, 0, 2))
    networks = [Network(f"model {number}") for number in range(6)]
    query = ask(view, np.abs(POINTS - 0.02), [np.nan] * 4 + [0.02, 0.98])
    proposals = order_candidates(networks, view, query)
    assert [proposal.name for proposal in proposals][2] == "model 4"
    assert proposals[2].reason == "nearest expert (0.02)"
    without = order_candidates(networks, view)  # nothing speaks for the two experts
    assert [proposal.name for proposal in without if "accuracy" in proposal.reason] == ["model 4", "model 5"]


def test_candidates_are_found_by_location_before_name():
    models = tuple(
        ModelInfo(name, location=location)
        for name, location in (("a", "timm:a"), ("b", "timm:b"), ("c", None), ("b at 64", "timm:b"))
    )
    errors = ERRORS.copy()
    errors[0, 3] = np.nan
    view = make_view(errors, models=models)
    # A name without a location may stand for other weights.
    candidates = [Network("mine", "timm:b"), Network("a", "timm:other"), Network("c"), Network("c", "timm:c")]
    assert module.match_models(candidates, view, None) == {0: 1, 2: 2}
    twice = [Network("mine", "timm:b"), Network("yours", "timm:b")]
    proposals = order_candidates(twice, view)
    assert [proposal.reason for proposal in proposals][1] == "the same model as mine"


def test_models_that_have_seen_a_task_do_not_learn_from_it():
    seen = np.zeros(ERRORS.shape, dtype=bool)
    seen[:2, 0] = True
    view = replace(make_view(ERRORS), shares_labels=seen)
    networks = [Network(f"model {number}") for number in range(4)]
    assert order_candidates(networks, view)[0].name == "model 1"


@pytest.mark.parametrize("seed", range(6))
def test_every_candidate_comes_once_and_no_error_is_named(seed):
    errors, between, distances, to_sources, is_candidate = draw_case(seed)
    rng = np.random.default_rng(seed)
    view = make_view(errors, between=between)
    networks = [
        Network(f"model {number}" if is_candidate[number] else f"new {number}", gmacs=float(rng.uniform(0.1, 9)),
                imagenet=float(rng.uniform(0.6, 0.9)) if number % 2 else None, is_here=bool(rng.random() < 0.5))
        for number in range(len(is_candidate))
    ]  # fmt: skip
    proposals = order_candidates(networks, view, ask(view, distances, to_sources))
    assert sorted(proposal.name for proposal in proposals) == sorted(network.name for network in networks)
    allowed = {f"({value:.2f})" for value in (*distances, *to_sources)}
    for proposal in proposals:
        named = [word.rstrip(",") for word in proposal.reason.split() if word.startswith("(")]
        assert set(named) <= allowed
        assert "error " not in proposal.reason.replace("lowest mean error on", "")


def test_proposals_on_the_bundle():
    """Golden: seven networks on the bundled tasks, for a task that is not one of them."""
    view = bundled_metatask().select("half")
    row = next(number for number, task in enumerate(view.tasks) if task.name == "cub_Parulidae")
    known = np.array([number for number in range(len(view.tasks)) if number != row])
    networks = [Network(model.name, model.location, gmacs=model.gmacs) for model in view.models]
    proposals = order_candidates(networks, view.only(known), view.query(row, known=known))
    assert [(proposal.name, proposal.reason) for proposal in proposals][:4] == GOLDEN
    assert len(proposals) == len(view.models)


GOLDEN = [
    ("tf_efficientnet_lite2", "best on these similar tasks: cub_Vireonidae (0.04), cub200 (0.05)"),
    ("tf_efficientnet_lite0", "covers what the first one misses: cub_Emberizidae (0.06), birds: hue (0.11)"),
    ("resnet50_keras", "covers what the ones before miss: birds: hue (0.11), birds: sharpness (0.11)"),
    ("tf_efficientnet_lite1", "covers what the ones before miss: cub_Troglodytidae (0.08), cub_Fringillidae (0.09)"),
]
