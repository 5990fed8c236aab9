"""An evaluation as rows of plain numbers, as text, and as files.

The columns of a row; errors and what is made of them in percent:

* strategy, tasks: its name, and how many tasks were asked about.
* error: mean error of its choices.
* increase: how much more that is than the honest optimum, sum over tasks by sum over tasks ("ratio of means").
* mean_increase: the same for each task, averaged over tasks ("mean of ratios"); tasks of optimum 0 are left out.
* smallest_increase, smallest_mean_increase: both against the smallest error, as in the paper: too much is asked there.
* regret, smallest_regret: points above the two optima.
* ..._low, ..._high: 95 % of samples of tasks; ..._group_low, ..._group_high: of samples of whole datasets, where there
  are several: the more tasks are alike, the less they tell.
* tau, top1, top3, fidelity: see `Outcome`.
* coverage, width, brier: of strategies that give intervals or chances.
* gap, gap_low, gap_high, p: points above the static choice, with an interval over samples of tasks, and Wilcoxon's p.
* gap_group_low, gap_group_high, p_group: the same over whole datasets, which is fairer and shows less: the interval
  over samples of datasets, and the p of flipping the signs of the datasets' means, exact where there are few.
* seconds: to fit and to rank, per task.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.errors import ResourceError
from task2vec.select.evaluation.measures import compare_groups, compare_paired, draw_weights, find_interval
from task2vec.storage import write_whole

if TYPE_CHECKING:
    from task2vec.select.evaluation import Evaluation, Outcome

STATIC = "static"
# More strategies than these are left out without their reasons.
_FEW = 2
# Up to so many datasets, the smallest p that they can have is worth a word.
_COARSE = 8


def summarise(evaluation: "Evaluation") -> list[dict[str, Any]]:
    """A row for each strategy."""
    groups = np.array(evaluation.groups)
    draws = {"": draw_weights(np.arange(len(groups)), evaluation.resamples, evaluation.seed)}
    if len(set(evaluation.groups)) > 1:
        draws["_group"] = draw_weights(groups, evaluation.resamples, evaluation.seed)
    static = evaluation.outcomes.get(STATIC)
    return [_tell(evaluation, outcome, static, draws) for outcome in evaluation.outcomes.values()]


def _tell(
    evaluation: "Evaluation", outcome: "Outcome", static: "Outcome | None", draws: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "strategy": outcome.name,
        "tasks": len(outcome.errors),
        "error": 100 * float(outcome.errors.mean()),
    }
    if evaluation.optimum is not None:
        row |= _compare(outcome.errors, evaluation.optimum, draws, "")
    row |= _compare(outcome.errors, evaluation.smallest, draws, "smallest_")
    row |= {name: float(getattr(outcome, name).mean()) for name in ("tau", "top1", "top3", "fidelity")}
    for name, values, factor in (
        ("coverage", outcome.covered, 100),
        ("width", outcome.widths, 100),
        ("brier", outcome.brier, 1),
    ):
        row[name] = None if values is None else factor * float(values.mean())
    row |= dict.fromkeys(("gap", "gap_low", "gap_high", "p", "gap_group_low", "gap_group_high", "p_group"))
    if static is not None and outcome.name != STATIC:
        gaps = 100 * (outcome.errors - static.errors)
        low, high = find_interval(draws[""], gaps, np.ones(len(gaps)))
        row |= {"gap": float(gaps.mean()), "gap_low": low, "gap_high": high, "p": compare_paired(gaps)}
        if "_group" in draws:
            low, high = find_interval(draws["_group"], gaps, np.ones(len(gaps)))
            told = compare_groups(gaps, np.array(evaluation.groups))
            row |= {"gap_group_low": low, "gap_group_high": high, "p_group": told}
    return row | {"seconds": outcome.seconds}


def _compare(
    errors: np.ndarray, optimum: np.ndarray, draws: Mapping[str, np.ndarray], prefix: str
) -> dict[str, float | None]:
    """Increases and regret over one optimum, with their intervals."""
    row: dict[str, float | None] = {}
    ratios = np.divide(errors, optimum, out=np.full(len(errors), np.nan), where=optimum > 0)
    ones = np.ones(len(errors))
    for name, above, below, less in (
        ("increase", errors, optimum, 1),
        ("mean_increase", ratios, ones, 1),
        ("regret", errors - optimum, ones, 0),
    ):
        known = np.isfinite(above)
        total = below[known].sum()
        row[prefix + name] = 100 * float(above[known].sum() / total - less) if total > 0 else None
        for kind, weights in draws.items():
            for end, value in zip(("low", "high"), find_interval(weights, above, below), strict=True):
                row[f"{prefix}{name}{kind}_{end}"] = 100 * (value - less) if np.isfinite(value) else None
    return row


def write_csv(evaluation: "Evaluation", path: str | Path) -> Path:
    """The rows as a table of a file, whole or not at all."""
    rows = evaluation.rows
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]) if rows else ["strategy"], lineterminator="\n")
    table.writeheader()
    for row in rows:
        table.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})
    try:
        write_whole(Path(path), text.getvalue().encode())
    except OSError as error:
        raise ResourceError(
            f"the table cannot be written to '{path}': {error.strerror}. Choose another place: --csv FILE"
        ) from error
    return Path(path)


def to_plain(evaluation: "Evaluation") -> dict[str, Any]:
    """All of it as plain values for JSON, the choice for every task included."""
    names = evaluation.experts
    choices = {
        outcome.name: [
            {"task": task, "expert": names[number], "error": float(error)}
            for task, number, error in zip(evaluation.tasks, outcome.chosen, outcome.errors, strict=True)
        ]
        for outcome in evaluation.outcomes.values()
    }
    return {
        "leave": evaluation.leave,
        "tasks": list(evaluation.tasks),
        "datasets": list(evaluation.groups),
        "smallest": evaluation.smallest.tolist(),
        "optimum": None if evaluation.optimum is None else evaluation.optimum.tolist(),
        "optimum_chosen_on": evaluation.chosen_on,
        "rows": json.loads(json.dumps(evaluation.rows, default=float)),
        "choices": choices,
        "left_out": dict(evaluation.left_out),
    }


def word_rows(evaluation: "Evaluation") -> list[dict[str, str]]:
    """The numbers that matter most, as words."""
    prefix = "" if evaluation.optimum is not None else "smallest_"
    return [
        {
            "strategy": row["strategy"],
            "error %": f"{row['error']:.1f}",
            "over optimum": _sign(row[f"{prefix}increase"], " %"),
            "95 %": _range(row[f"{prefix}increase_low"], row[f"{prefix}increase_high"]),
            "mean of ratios": _sign(row[f"{prefix}mean_increase"], " %"),
            "over smallest": _sign(row["smallest_increase"], " %"),
            "tau": f"{row['tau']:.2f}",
            "top-1": f"{row['top1']:.2f}",
            "top-3": f"{row['top3']:.2f}",
            "fidelity": f"{row['fidelity']:.2f}",
            "covered": "" if row["coverage"] is None else f"{row['coverage']:.0f} %",
            "over static": _sign(row["gap"], ""),
            "p": "" if row["p"] is None else f"{row['p']:.2g}",
            "p datasets": "" if row["p_group"] is None else f"{row['p_group']:.2g}",
            "ms": f"{1000 * row['seconds']:.1f}",
        }
        for row in evaluation.rows
    ]


def write_table(evaluation: "Evaluation") -> str:
    """The table as text, with what it means below."""
    rows = word_rows(evaluation)
    heads = list(rows[0]) if rows else ["strategy"]
    lines: list[Sequence[str]] = [heads, *([row[head] for head in heads] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    text = [
        "  ".join(
            cell.rjust(wide) if place else cell.ljust(wide)
            for place, (cell, wide) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    return "\n".join([*(line.rstrip() for line in text), "", *explain(evaluation)])


def explain(evaluation: "Evaluation") -> list[str]:
    """What the table's numbers are, in sentences."""
    left = {"task": "each task", "dataset": "each dataset", "domain": "each dataset with the experts taught on it"}
    count = len(evaluation.tasks)
    told = [f"{count} task{'s' * (count != 1)}, {left[evaluation.leave]} left out in turn."]
    smallest = 100 * evaluation.smallest.mean()
    if evaluation.optimum is None:
        told.append(
            f"Optimum: the smallest error, {smallest:.1f} % on average. With one split it cannot be chosen honestly."
        )
    else:
        on = "one half of the test images" if evaluation.chosen_on == "halves" else "other splits"
        told.append(
            f"Optimum: {100 * evaluation.optimum.mean():.1f} % on average, chosen on {on} and measured on the rest; "
            f"the smallest error, {smallest:.1f} %, is chosen with its noise."
        )
    datasets = len(set(evaluation.groups))
    if STATIC in evaluation.outcomes and 1 < datasets < count and len(evaluation.outcomes) > 1:
        least = f"; with {datasets} of them it cannot be below {2 / 2**datasets:.2g}" if datasets <= _COARSE else ""
        told.append(f"p takes tasks for independent; 'p datasets' counts each dataset once{least}.")
    if len(evaluation.left_out) > _FEW:
        first = next(iter(evaluation.left_out))
        return [
            *told,
            f"Left out: {len(evaluation.left_out)} strategies, '{first}' and others, for the evidence lacks what they "
            "go by (`left_out`, or --json, says what each needs).",
        ]
    return [*told, *(f"Left out: {name} ({reason.split('. ')[0]})" for name, reason in evaluation.left_out.items())]


def _sign(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:+.1f}{unit}"


def _range(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:+.1f} to {high:+.1f}"
