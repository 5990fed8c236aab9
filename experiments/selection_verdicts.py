"""What Table 1 says to the sentences of the paper, and to the goals that we set ourselves."""

from collections.abc import Mapping

import numpy as np

from experiments.property_claims import FAILS, HOLDS, PARTLY, UNCLEAR, Claim
from experiments.selection_settings import Setting
from task2vec.select.evaluate import Evaluation, Leave, compare_paired
from task2vec.select.strategies import SCORE_NAMES

LEVEL = 0.05
# In percent over the honest optimum, by training size; any smaller size has the goal of the last.
GOALS = {"half": 2.0}
FEW_GOAL = 0.0
# Of the intervals' nominal rate, in percent.
NOMINAL, TOLERANCE = 90.0, 5.0
COMBINED = ("combined", "combined + logme")
Table = Mapping[tuple[Setting, Leave], Evaluation]

# What the paper says is better than what.
PAIRS = (
    ("generic", "chance", "the generic expert is better than one at random"),
    ("asymmetric", "generic", "the asymmetric distance chooses better than the generic expert"),
    ("asymmetric", "symmetric", "the asymmetric distance chooses better than the symmetric one"),
    ("model space", "asymmetric", "the model space chooses better than the asymmetric distance it starts from"),
    ("asymmetric", "average_best", "the asymmetric distance chooses better than the static prior"),
    (
        "average_best + symmetric",
        "asymmetric",
        "average plus symmetric distance chooses better than the asymmetric one",
    ),
    ("combined", "combined domain", "combined chooses better by the task's distances than by those of its domain"),
)


def judge_table(table: Table) -> list[Claim]:
    """All claims that the strategies at hand allow, the paper's first."""
    claims = []
    for better, worse, words in PAIRS:
        for (setting, leave), found in table.items():
            if leave == "task" and {better, worse} <= set(found.outcomes):
                claims.append(_compare(found, better, worse, f"{setting}: {words}"))
    for name in COMBINED:
        for (setting, leave), found in table.items():
            if name in found.outcomes:
                claims += _judge_goals(name, setting, leave, found)
    return claims


def _compare(found: Evaluation, better: str, worse: str, words: str) -> Claim:
    """Whether one strategy's errors are smaller than another's, task by task."""
    gaps = 100 * (found.outcomes[better].errors - found.outcomes[worse].errors)
    p = compare_paired(gaps)
    verdict = UNCLEAR if p >= LEVEL else HOLDS if gaps.mean() < 0 else FAILS
    return Claim("table 1", words, f"{gaps.mean():+.1f} points, p = {p:.2g}", verdict)


def _judge_goals(name: str, setting: Setting, leave: Leave, found: Evaluation) -> list[Claim]:
    """The goals: near the optimum, better than all single strategies, intervals that hold what they promise."""
    claims = []
    increase = _increase(found, name)
    goal = GOALS.get(setting.protocol, FEW_GOAL)
    if leave == "task":
        words = f"{setting}: {name} is at most {goal:+g} % over the optimum"
        claims.append(Claim("goal", words, f"{increase:+.1f} %", HOLDS if increase <= goal else FAILS))
        claims.append(_beat_all(name, setting, found))
    elif "average_best" in found.outcomes:
        gaps = 100 * (found.outcomes[name].errors - found.outcomes["average_best"].errors)
        p = compare_paired(gaps)
        verdict = FAILS if gaps.mean() > 0 and p < LEVEL else HOLDS
        words = f"{setting}: with its dataset left out, {name} is not worse than static beyond the noise"
        claims.append(Claim("goal", words, f"{gaps.mean():+.1f} points, p = {p:.2g}", verdict))
    covered = found.outcomes[name].covered
    if covered is not None:
        rate = 100 * float(covered.mean())
        words = f"{setting}, one {leave} left out: intervals of {name} hold {NOMINAL:g} ± {TOLERANCE:g} % of the errors"
        verdict = HOLDS if abs(rate - NOMINAL) <= TOLERANCE else FAILS
        claims.append(Claim("goal", words, f"{rate:.1f} %", verdict))
    return claims


def _beat_all(chosen: str, setting: Setting, found: Evaluation) -> Claim:
    """One strategy against static, generic and every single score, task by task."""
    names = [name for name in ("average_best", "generic", *SCORE_NAMES) if name in found.outcomes]
    own, sure, behind = found.outcomes[chosen].errors, [], []
    for name in names:
        gaps = own - found.outcomes[name].errors
        if gaps.mean() >= 0:
            behind.append(name)
        elif compare_paired(gaps) < LEVEL:
            sure.append(name)
    unsure = [name for name in names if name not in sure and name not in behind]
    told = f"surely better than {len(sure)} of {len(names)}"
    told += f"; not surely: {', '.join(unsure)}" if unsure else ""
    told += f"; worse than: {', '.join(behind)}" if behind else ""
    verdict = HOLDS if len(sure) == len(names) else FAILS if not sure else PARTLY
    return Claim("goal", f"{setting}: {chosen} is better than static, generic and every single score", told, verdict)


def _increase(found: Evaluation, name: str) -> float:
    optimum = found.smallest if found.optimum is None else found.optimum
    return 100 * float(found.outcomes[name].errors.sum() / np.sum(optimum) - 1)
