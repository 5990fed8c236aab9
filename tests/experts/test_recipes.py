"""Recipes: the paper's numbers are the paper's, and rates fall when they should."""

from dataclasses import replace
from math import isclose

import pytest

from task2vec.errors import UsageError
from task2vec.experts.recipes import RECIPES, Recipe, find_recipe


def test_achille2019_is_the_paper_s():
    recipe = find_recipe("achille2019")
    told = {"head": "adam", "head_epochs": 10, "epochs": 60, "draws": 10_000, "rate": 1e-3, "weight_decay": 5e-4}
    assert {name: getattr(recipe, name) for name in told} == told
    assert (recipe.schedule, recipe.drops) == ("steps", (40,))
    steps = recipe.steps_per_epoch
    assert steps * recipe.batch >= 10_000 > (steps - 1) * recipe.batch
    rates = [recipe.rate_at(step) for step in (0, 40 * steps - 1, 40 * steps, 60 * steps - 1)]
    assert all(isclose(rate, wanted) for rate, wanted in zip(rates, (1e-3, 1e-3, 1e-4, 1e-4), strict=True))


def test_ours_takes_a_tenth_of_the_gradients_or_less():
    fast, paper = RECIPES["fast"], RECIPES["achille2019"]
    assert 10 * fast.epochs * fast.draws <= paper.epochs * paper.draws
    assert fast.draws == paper.draws  # epochs of one length, whatever the task


def test_a_cosine_rises_and_falls_to_zero():
    recipe = Recipe("r", epochs=10, draws=100, batch=10, rate=0.5)
    rates = [recipe.rate_at(step) for step in range(recipe.steps)]
    top = rates.index(max(rates))
    assert isclose(max(rates), 0.5) and top < 10 and rates[0] < 0.2
    assert all(a > b for a, b in zip(rates[top:], rates[top + 1 :], strict=False)) and rates[-1] < 1e-3 * 0.5


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": 0}, {"draws": 0}, {"batch": -1}, {"rate": 0.0}, {"momentum": 1.0}, {"weight_decay": -1.0},
     {"head": "magic"}, {"schedule": "never"}, {"head": "adam", "head_epochs": 0}],
)  # fmt: skip
def test_what_cannot_train_is_refused(wrong):
    with pytest.raises(UsageError, match="'fast'"):
        replace(RECIPES["fast"], **wrong)


def test_an_unknown_recipe_is_answered_with_those_there_are():
    with pytest.raises(UsageError, match="fast, fast-1, achille2019"):
        find_recipe("achille2018")
