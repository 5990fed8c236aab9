"""Choosing an expert (Achille 2019, section 5): Tables 1 and 2, and figures 3, 4 and of the appendix, on a meta-task.

All of it is made from errors that were measured before and come with the package: no images, no weights, no network. A
strategy learns from the errors of all other tasks (or of all tasks of other datasets) and ranks the experts for the one
that is left out. The optimum is chosen on other images or splits than it is measured on. Intervals are of 95%, over
tasks.

    python -m experiments.selection --out docs/results/selection
"""

import math
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

import task2vec as t2v
from experiments import report
from experiments import selection_figures as figures
from experiments.report import FAILS, HOLDS, PARTLY, UNCLEAR, Claim, Row
from task2vec import plots
from task2vec.experts import find_shots
from task2vec.select import SCORE_NAMES, STRATEGIES, compare_paired, draw_weights, find_interval, find_strategy

PARTS = ("norms", "violins", "matrix", "curves", "tables")
# The paper's probe first; the offline one beside it.
FIRST_SPACES = ("resnet34 robust", "tf_efficientnet_lite0 robust")
AVERAGE_BEST = "average_best"
RESAMPLES = 10_000
LEVEL = 0.05
# Table 2: the paper's choice and ours, and what needs no probe.
CHOICES, BASELINES = ("asymmetric", "combined"), ("chance", "generic", AVERAGE_BEST)
ALL, LARGEST, _LARGEST_COUNT = "all tasks", "largest ten", 10
LEAVES: dict[Literal["task", "dataset"], str] = {"task": "one task left out", "dataset": "its whole dataset left out"}
# Our goals: percent over the unbiased optimum with half of the images, and with fewer; the intervals' coverage.
GOAL, FEW_GOAL, NOMINAL, TOLERANCE = 2.0, 0.0, 90.0, 5.0
COMBINED = ("combined", "combined + logme")
# What the paper claims is better than what.
PAIRS = (
    ("generic", "chance", "the generic expert is better than one at random"),
    ("asymmetric", "generic", "the asymmetric distance chooses better than the generic expert"),
    ("asymmetric", "symmetric", "the asymmetric distance chooses better than the symmetric one"),
    ("model space", "asymmetric", "the model space chooses better than the asymmetric distance it starts from"),
    ("asymmetric", AVERAGE_BEST, "the asymmetric distance chooses better than the average-best baseline"),
    (f"{AVERAGE_BEST} + symmetric", "asymmetric",
     "average-best baseline plus symmetric distance chooses better than the asymmetric one"),
    ("combined", "combined domain", "combined chooses better by the task's distances than by those of its domain"),
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """One evaluation: the tasks of a family by one training size, in one space, with what is left out."""

    family: str
    shots: str
    leave: Literal["task", "dataset"]
    space: str
    strategies: tuple[str, ...]

    @property
    def setting(self) -> str:
        """The tasks and their training size."""
        return format_setting(self.family, self.shots)


Evaluations = Mapping[Comparison, t2v.Evaluation]


def format_setting(family: str, shots: str) -> str:
    """A family by one training size."""
    return f"{family}, {'half of the images' if shots == 'half' else f'{shots} per class'}"


def list_settings(metatask: t2v.MetaTask) -> list[tuple[str, str]]:
    """The families of a meta-task by its training sizes, the largest size first."""
    sizes = sorted(
        set(map(find_shots, metatask.protocols)), key=lambda size: -math.inf if size == "half" else -int(size)
    )
    return [(family, size) for family in dict.fromkeys(task.family for task in metatask.tasks) for size in sizes]


def list_spaces(metatask: t2v.MetaTask) -> list[str]:
    """The probes and methods ("resnet34 robust") that tasks have distances by, the paper's first."""
    names = dict.fromkeys([*metatask.distances, *metatask.embeddings])
    first = FIRST_SPACES
    return sorted(names, key=lambda name: (first.index(name) if name in first else len(first), name))


# --- evaluations -----------------------------------------------------------------------------------------------------


def plan_comparisons(metatask: t2v.MetaTask, parts: Sequence[str], strategies: Sequence[str]) -> list[Comparison]:
    """What the chosen parts need."""
    main, *others = list_spaces(metatask)
    settings = list_settings(metatask)
    few = tuple(name for name in CHOICES if name in strategies)
    if "tables" not in parts:
        needs_choices = few and {"violins", "matrix"} & set(parts)
        largest = [each for each in settings if each[1] == settings[0][1]]
        return [Comparison(*each, "task", main, few) for each in largest if needs_choices]
    found = [Comparison(*each, leave, main, tuple(strategies)) for each in settings for leave in LEAVES]
    return found + [Comparison(*each, "task", space, few) for each in settings for space in others if few]


def run_comparisons(comparisons: Sequence[Comparison], bundle: Path | None, *, jobs: int) -> Evaluations:
    """All evaluations, by so many processes; the slowest come first. The number of processes changes nothing."""
    found: dict[Comparison, t2v.Evaluation] = {}
    if jobs == 1:
        return {comparison: _evaluate(bundle, comparison) for comparison in comparisons}
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the workers
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for one, evaluation in zip(comparisons, pool.map(partial(_evaluate, bundle), comparisons), strict=True):
            found[one] = evaluation
            report.say(f"{one.setting}, {LEAVES[one.leave]}, {one.space} ({len(found)} of {len(comparisons)})")
    return found


def _evaluate(bundle: Path | None, one: Comparison) -> t2v.Evaluation:
    probe, _, method = one.space.rpartition(" ")
    where: Row = {"shots": one.shots, "probe": probe, "method": method, "family": one.family, "leave": one.leave}
    return t2v.evaluate(report.load_bundle(bundle), one.strategies, resamples=RESAMPLES, **where)


def find_optimum(found: t2v.Evaluation) -> np.ndarray:
    """The unbiased optimum, or the smallest error where that is not known."""
    return found.smallest if found.optimum is None else found.optimum


# --- Table 1: ways of choosing ---------------------------------------------------------------------------------------


def make_table1(evaluations: Evaluations, main: str, folder: Path) -> list[Claim]:
    """The table as CSV with all numbers, in Markdown, and its choices as JSON."""
    own = {one: found for one, found in evaluations.items() if one.space == main}
    rows = [
        {"family": one.family, "shots": one.shots, "leave": one.leave, **row}
        for one, found in own.items()
        for row in found.rows
    ]
    report.write_rows(rows, folder / "table1.csv")
    report.write_text(folder / "table1.md", format_table1(own))
    described = [{"family": one.family, "shots": one.shots, **found.to_dict()} for one, found in own.items()]
    report.write_json(folder / "table1.json", {"space": main, "comparisons": described})
    return judge_table(own)


def format_strategy(name: str) -> str:
    """The name of a strategy in tables."""
    return name.replace("_", "-")


def format_table1(evaluations: Evaluations) -> str:
    """One table in Markdown for each way of leaving out: strategies down, settings across."""
    parts = []
    for leave, words in LEAVES.items():
        own = {one.setting: found for one, found in evaluations.items() if one.leave == leave}
        optimum = ["optimum, error in %", *(f"{100 * find_optimum(found).mean():.1f}" for found in own.values())]
        rows = [{row["strategy"]: row for row in found.rows} for found in own.values()]
        lines = [optimum]
        for name in dict.fromkeys(name for each in rows for name in each):
            lines.append([format_strategy(name), *(_format_cell(each.get(name)) for each in rows)])
        parts.append(f"**{words}**\n\n{report.format_markdown(['', *own], lines)}")
    note = (
        "Error over the optimum in percent (ratio of means over tasks) with a 95% bootstrap interval over tasks. "
        "* better, ° worse than the average-best baseline (Wilcoxon's signed ranks over tasks, p < 0.05)."
    )
    return "\n\n".join([*parts, note])


def _format_cell(row: Row | None) -> str:
    """How far above the unbiased optimum the mean error is; above the smallest error where that is not known."""
    if row is None:
        return ""
    text = format_bar(row, "increase" if row["increase"] is not None else "smallest_increase")
    return text if row["p"] is None or row["p"] >= LEVEL else f"{text} *" if row["gap"] < 0 else f"{text} °"


def judge_table(evaluations: Evaluations) -> list[Claim]:
    """All claims that the strategies at hand allow, the paper's first, then our goals."""
    claims = []
    for better, worse, words in PAIRS:
        for one, found in evaluations.items():
            if one.leave == "task" and {better, worse} <= set(found.outcomes):
                gaps = 100 * (found.outcomes[better].errors - found.outcomes[worse].errors)
                claims.append(_claim_gap("table 1", f"{one.setting}: {words}", gaps))
    for name in COMBINED:
        for one, found in evaluations.items():
            if name in found.outcomes:
                claims += _judge_goals(name, one, found)
    return claims


def _claim_gap(table: str, claim: str, gaps: np.ndarray) -> Claim:
    """Whether errors are smaller, task by task; `gaps` are negative where they are."""
    p = compare_paired(gaps)
    verdict = UNCLEAR if p >= LEVEL else HOLDS if gaps.mean() < 0 else FAILS
    return Claim(table, claim, f"{gaps.mean():+.1f} points, p = {p:.2g}", verdict)


def _judge_goals(name: str, one: Comparison, found: t2v.Evaluation) -> list[Claim]:
    """The goals: near the optimum, better than all single strategies, intervals with their nominal coverage."""
    claims, outcome = [], found.outcomes[name]
    if one.leave == "task":
        increase = 100 * float(outcome.errors.sum() / np.sum(find_optimum(found)) - 1)
        goal = GOAL if one.shots == "half" else FEW_GOAL
        words = f"{one.setting}: {name} is at most {goal:+g}% over the optimum"
        claims.append(Claim("goal", words, f"{increase:+.1f}%", HOLDS if increase <= goal else FAILS))
        claims.append(_claim_best(name, one, found))
    elif AVERAGE_BEST in found.outcomes:
        gaps = 100 * (outcome.errors - found.outcomes[AVERAGE_BEST].errors)
        p = compare_paired(gaps)
        words = f"{one.setting}: with its dataset left out, {name} is not worse than average-best beyond the noise"
        verdict = FAILS if gaps.mean() > 0 and p < LEVEL else HOLDS
        claims.append(Claim("goal", words, f"{gaps.mean():+.1f} points, p = {p:.2g}", verdict))
    if outcome.covered is not None:
        rate = 100 * float(outcome.covered.mean())
        goal = f"intervals of {name} hold {NOMINAL:g} ± {TOLERANCE:g}% of the errors"
        verdict = HOLDS if abs(rate - NOMINAL) <= TOLERANCE else FAILS
        claims.append(Claim("goal", f"{one.setting}, one {one.leave} left out: {goal}", f"{rate:.1f}%", verdict))
    return claims


def _claim_best(chosen: str, one: Comparison, found: t2v.Evaluation) -> Claim:
    """One strategy against the baselines and every single score, task by task."""
    names = [name for name in (AVERAGE_BEST, "generic", *SCORE_NAMES) if name in found.outcomes]
    gaps = {name: found.outcomes[chosen].errors - found.outcomes[name].errors for name in names}
    behind = [name for name in names if gaps[name].mean() >= 0]
    sure = [name for name in names if name not in behind and compare_paired(gaps[name]) < LEVEL]
    unsure = [format_strategy(name) for name in names if name not in sure and name not in behind]
    measured = f"surely better than {len(sure)} of {len(names)}"
    measured += f"; not surely: {', '.join(unsure)}" if unsure else ""
    measured += f"; worse than: {', '.join(map(format_strategy, behind))}" if behind else ""
    verdict = HOLDS if len(sure) == len(names) else FAILS if not sure else PARTLY
    words = f"{one.setting}: {chosen} is better than average-best, generic and every single score"
    return Claim("goal", words, measured, verdict)


# --- Table 2: the choice of the probe --------------------------------------------------------------------------------


def make_table2(evaluations: Evaluations, metatask: t2v.MetaTask, folder: Path) -> list[Claim]:
    """The table as CSV and in Markdown: all tasks and the ten with the most images."""
    images = {task.name: task.images or 0 for task in metatask.tasks}
    rows: list[Row] = []
    claims: list[Claim] = []
    spaces = list_spaces(metatask)
    for family, shots in list_settings(metatask):
        own = {one.space: found for one, found in evaluations.items()
               if (one.family, one.shots, one.leave) == (family, shots, "task")}  # fmt: skip
        for space in spaces:
            for name in (*CHOICES, *(BASELINES if space == spaces[0] else ())):
                if space in own and name in own[space].outcomes:
                    about = {"family": family, "shots": shots, "strategy": name}
                    about["space"] = "" if name in BASELINES else space
                    rows.append(about | _measure_parts(own[space], name, images))
        setting, (first, *others) = format_setting(family, shots), [own[space].outcomes for space in spaces]
        for space, outcomes in zip(spaces[1:], others, strict=True):
            if CHOICES[0] in first and CHOICES[0] in outcomes:
                words = f"{setting}: {spaces[0]} chooses better than {space} (asymmetric distance)"
                gaps = 100 * (first[CHOICES[0]].errors - outcomes[CHOICES[0]].errors)
                claims.append(_claim_gap("table 2", words, gaps))
    report.write_rows(rows, folder / "table2.csv")
    columns = [(*each, part) for each in list_settings(metatask) for part in (ALL, LARGEST)]
    cells: dict[str, dict[tuple[str, str, str], str]] = {}
    for row in sorted(rows, key=lambda row: (*BASELINES, *CHOICES).index(row["strategy"])):
        own = cells.setdefault(format_strategy(row["strategy"]) + (f", {row['space']}" if row["space"] else ""), {})
        for part in (ALL, LARGEST):
            own[row["family"], row["shots"], part] = format_bar(row, part)
    header = ["", *(f"{format_setting(*each)}: {part}" for *each, part in columns)]
    lines = [[name, *(own.get(column, "") for column in columns)] for name, own in cells.items()]
    note = "Error over the optimum in percent with a 95% bootstrap interval over tasks; leave-one-task-out."
    report.write_text(folder / "table2.md", f"{report.format_markdown(header, lines)}\n\n{note}")
    return claims


def _measure_parts(found: t2v.Evaluation, name: str, images: Mapping[str, int]) -> Row:
    """The increase of a strategy over the optimum, of all tasks and of those with the most images."""
    counts = np.array([images[task] for task in found.tasks])
    parts = {ALL: np.arange(len(counts)), LARGEST: np.sort(np.argsort(-counts, kind="stable")[:_LARGEST_COUNT])}
    row: Row = {}
    for part, chosen in parts.items():
        errors, best = found.outcomes[name].errors[chosen], find_optimum(found)[chosen]
        low, high = find_interval(draw_weights(chosen, RESAMPLES, 0), errors, best)
        numbers = {"": errors.sum() / best.sum(), "_low": low, "_high": high}
        row |= {f"{part}{end}": 100 * (float(value) - 1) for end, value in numbers.items()}
        row[f"{part}, over smallest"] = 100 * float(errors.sum() / found.smallest[chosen].sum() - 1)
    return row


def format_bar(row: Row, key: str) -> str:
    """A number and its interval.

    Example:
        >>> format_bar({"increase": 2.04, "increase_low": -0.5, "increase_high": 5.13}, "increase")
        '+2.0 [-0.5, +5.1]'
    """
    return f"{row[key]:+.1f} [{row[f'{key}_low']:+.1f}, {row[f'{key}_high']:+.1f}]"


# --- command line ----------------------------------------------------------------------------------------------------


def selection(
    out: Annotated[Path, typer.Option(help="Folder for figures and tables.")] = Path("task2vec-selection"),
    part: Annotated[list[str] | None, typer.Option(help=f"Only some of: {', '.join(PARTS)}.")] = None,
    bundle: Annotated[Path | None, typer.Option(help="Another meta-task; default: that of experts.")] = None,
    strategy: Annotated[
        list[str] | None, typer.Option(help="Table 1: only these; default: all that measure nothing.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.")] = None,
) -> None:
    """All tables and figures about choosing an expert."""
    metatask, folder = report.load_bundle(bundle), plots.make_folder(out)
    usual = [name for name, one in STRATEGIES.items() if not one.measures]
    names = [find_strategy(name).name for name in strategy or usual]  # an unknown one is refused at once
    parts = part or list(PARTS)
    if unknown := [each for each in parts if each not in PARTS]:
        raise t2v.errors.UsageError(f"--part {unknown[0]} is unknown. Choose among: {', '.join(PARTS)}")
    comparisons = plan_comparisons(metatask, parts, names)
    evaluations = run_comparisons(comparisons, bundle, jobs=jobs or os.cpu_count() or 1)
    spaces, settings = list_spaces(metatask), list_settings(metatask)
    claims: list[Claim] = []
    if "norms" in parts:
        rows = [row for each in settings for row in figures.list_norms(metatask, *each, spaces)]
        claims += figures.make_norms(rows, spaces, folder)
    own = {one.family: found for one, found in evaluations.items()
           if (one.shots, one.leave, one.space) == (settings[0][1], "task", spaces[0])}  # fmt: skip
    for name, make in (("violins", figures.make_violins), ("matrix", figures.make_matrix)):
        for family, found in own.items() if name in parts else ():
            claims += make(figures.select(metatask, settings[0][1], spaces[0], family), found, family, folder)
    if "curves" in parts:
        claims += figures.make_curves(metatask, settings[0][1], spaces[0], folder)
    if "tables" in parts:
        claims += make_table1(evaluations, spaces[0], folder) + make_table2(evaluations, metatask, folder)
        report.write_claims(claims, folder)
        print((folder / "table1.md").read_text(), (folder / "table2.md").read_text(), sep="\n")
    report.print_claims(claims, [folder])


app = report.make_app(selection)

if __name__ == "__main__":
    app()
