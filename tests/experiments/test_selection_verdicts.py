"""Verdicts about choosing that can go either way, from errors made for them."""

import numpy as np

from experiments.property_claims import FAILS, HOLDS, PARTLY, UNCLEAR
from experiments.selection_settings import Setting
from experiments.selection_verdicts import judge_table
from task2vec.select.evaluate import Evaluation, Outcome

TASKS = 30
HALF, FEW = Setting("taxa", "half"), Setting("taxa", "5")


def make(levels, *, covered=None, leave="task", optimum=0.2):
    """An evaluation in which every strategy has these errors, give or take the same noise for all."""
    rng = np.random.default_rng(0)
    base = 0.01 * rng.random(TASKS)
    outcomes = {}
    for name, level in levels.items():
        errors = base + level + 0.001 * rng.normal(size=TASKS)
        rest = [np.zeros(TASKS) for _ in range(4)]
        told = np.full(TASKS, covered) if covered is not None and name == "combined" else None
        outcomes[name] = Outcome(name, False, np.zeros(TASKS, int), errors, *rest, told, told, None, 0.0)
    names = tuple(f"t{n}" for n in range(TASKS))
    honest = base + optimum
    return Evaluation(names, names, ("e",), leave, honest - 0.01, honest, "seeds", outcomes)


def judge(levels, *, setting=HALF, leave="task", **options):
    claims = judge_table({(setting, leave): make(levels, leave=leave, **options)})
    return {claim.claim.split(": ", 1)[1]: claim for claim in claims}


def test_the_sentences_of_the_paper_can_hold_fail_or_stay_open():
    levels = {"chance": 0.4, "generic": 0.3, "symmetric": 0.32, "asymmetric": 0.25, "static": 0.22, "model space": 0.25}
    found = judge(levels)
    assert found["the generic expert is better than one at random"].verdict == HOLDS
    assert found["the asymmetric distance chooses better than the generic expert"].verdict == HOLDS
    assert found["the asymmetric distance chooses better than the symmetric one"].measured.startswith("-7.0 points")
    assert found["the asymmetric distance chooses better than the static prior"].verdict == FAILS
    assert found["the model space chooses better than the asymmetric distance it starts from"].verdict == UNCLEAR
    assert not any(words.startswith("static prior plus symmetric") for words in found)
    same = judge({"combined": 0.2, "combined domain": 0.3})
    assert same["combined chooses better by the task's distances than by those of its domain"].verdict == HOLDS
    assert not judge({"static": 0.2})


def test_goals_of_the_combined_strategy():
    goal = "combined is at most {} % over the optimum"
    assert judge({"combined": 0.203})[goal.format("+2")].verdict == HOLDS
    assert judge({"combined": 0.21})[goal.format("+2")].verdict == FAILS
    assert judge({"combined": 0.203}, setting=FEW)[goal.format("+0")].verdict == FAILS
    assert judge({"combined": 0.195}, setting=FEW)[goal.format("+0")].verdict == HOLDS
    beat = "combined is better than static, generic and every single score"
    assert judge({"combined": 0.2, "static": 0.22, "generic": 0.23, "logme": 0.3})[beat].verdict == HOLDS
    partly = judge({"combined": 0.2, "static": 0.22, "generic": 0.19, "logme": 0.2004})[beat]
    assert partly.verdict == PARTLY and partly.measured == (
        "surely better than 1 of 3; not surely: logme; worse than: generic"
    )
    assert judge({"combined": 0.2, "static": 0.19})[beat].verdict == FAILS
    both = judge({"combined": 0.3, "combined + logme": 0.2})
    assert [both[f"{name} is at most +2 % over the optimum"].verdict for name in ("combined", "combined + logme")] == [
        FAILS, HOLDS,
    ]  # fmt: skip


def test_with_its_dataset_left_out_combined_must_not_lose_to_static():
    words = "with its dataset left out, combined is not worse than static beyond the noise"
    assert judge({"combined": 0.25, "static": 0.22}, leave="dataset")[words].verdict == FAILS
    assert judge({"combined": 0.22, "static": 0.22}, leave="dataset")[words].verdict == HOLDS
    assert judge({"combined": 0.2, "static": 0.22}, leave="dataset")[words].verdict == HOLDS


def test_intervals_hold_what_they_promise_or_not():
    for rate, verdict in ((0.9, HOLDS), (0.86, HOLDS), (0.84, FAILS), (0.97, FAILS)):
        claims = judge_table({(HALF, "task"): make({"combined": 0.2}, covered=rate)})
        claim = next(claim for claim in claims if "intervals of combined hold 90 ± 5 %" in claim.claim)
        assert claim.verdict == verdict and claim.measured == f"{100 * rate:.1f} %"
