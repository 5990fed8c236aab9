"""The combined strategy where the truth is known: intervals hold what they promise, and choices gain."""

import numpy as np
import pytest

from task2vec.select.evaluation import evaluate
from task2vec.select.evidence import Evidence
from task2vec.select.strategies.combined import Combined


def draw_world(seed, *, reach, seeds=3, missing=0.0, tail=np.inf, datasets=4, tasks=24, experts=10):
    """Errors by another law than the model's: logistic, of test sets of 60 images, with experts that have a home.

    `reach` is how much nearness to its home helps an expert; tasks of a dataset lie together.
    """
    random = np.random.default_rng(seed)
    groups = np.arange(tasks) % datasets
    places = 1.5 * random.normal(size=(datasets, 3))[groups] + random.normal(size=(tasks, 3))
    homes = 1.5 * random.normal(size=(experts, 3))
    gaps = ((places[:, None] - homes) ** 2).mean(2)
    rough = -0.5 + 0.5 * random.normal(size=(tasks, 1)) + 0.3 * random.normal(size=experts) + reach * np.sqrt(gaps)
    noise = random.normal(size=rough.shape) if np.isinf(tail) else random.standard_t(tail, size=rough.shape)
    truth = 1 / (1 + np.exp(0.8 - rough - 0.15 * noise))
    errors = random.binomial(60, truth[:, :, None], size=(tasks, experts, seeds)) / 60
    errors[random.random((tasks, experts)) < missing] = np.nan
    distances = ((places[:, None] - places) ** 2).mean(2)
    names = tuple(f"task {i}" for i in range(tasks))
    everybody = np.ones((tasks, experts), dtype=bool)
    labels = tuple(f"set {group}" for group in groups)
    return Evidence(
        names,
        tuple(f"expert {j}" for j in range(experts)),
        errors,
        everybody,
        labels,
        (None,) * experts,
        (None,) * experts,
        distances={"symmetric": distances},
    )


CASES = {
    "similar tasks tell": {"reach": 0.8},
    "nothing but the static prior": {"reach": 0.0},
    "half of the cells are missing": {"reach": 0.8, "missing": 0.5},
    "one seed": {"reach": 0.8, "seeds": 1},
    "heavy tails": {"reach": 0.4, "tail": 3},
    "one dataset": {"reach": 0.8, "datasets": 1},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_intervals_hold_what_they_promise(case):
    covered = []
    for seed in range(2):
        world = draw_world(seed, **case)
        found = evaluate(world, [Combined()], asked=world.tasks[:8], resamples=1).outcomes["combined"]
        covered.append(found.covered.mean())
    assert 0.82 < np.mean(covered) < 0.98


def test_where_similar_tasks_tell_choices_are_better_than_static_and_near_the_optimum():
    found = evaluate(draw_world(0, reach=1.5), ["static", Combined()], resamples=1)
    combined, static = (found.outcomes[name].errors.mean() for name in ("combined", "static"))
    assert combined < 0.93 * static and combined < 1.15 * found.optimum.mean()


def test_with_the_dataset_left_out_intervals_are_wider_and_still_hold():
    widths, covered = {"task": [], "dataset": []}, []
    for seed in range(3):
        for leave, each in widths.items():
            world = draw_world(seed, reach=0.8, datasets=6)
            asked = world.tasks[:6] if leave == "task" else None
            found = evaluate(world, [Combined()], leave=leave, asked=asked, resamples=1)
            each.append(found.outcomes["combined"].widths.mean())
            if leave == "dataset":
                covered.append(found.outcomes["combined"].covered.mean())
    assert np.mean(widths["dataset"]) > 1.1 * np.mean(widths["task"])
    assert 0.82 < np.mean(covered) <= 1


def test_a_thousand_experts_are_no_more_than_a_hundred_tasks_each():
    evidence = draw_world(0, reach=0.8, tasks=40, experts=1000, missing=0.3)
    others = np.arange(1, 40)
    fitted = Combined().fit(evidence.only(others))
    answer = fitted.rank(evidence.ask(0).among(others))
    # One inverse for each expert, of the size of the tasks: nothing of tasks times experts.
    assert fitted.solution.inverses.shape == (1000, 39, 39) and fitted.solution.spread.shape == (40, 40)
    known = np.isfinite(evidence.mean[0])
    assert np.corrcoef(answer.errors[known], evidence.mean[0][known])[0, 1] > 0.7
