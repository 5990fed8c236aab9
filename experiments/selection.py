"""Choosing an expert (Achille 2019, section 5): Tables 1 and 2, and figures 3, 4 and of the appendix, on a meta-task.

All of it is made from errors that were measured before: no images, no weights, no network. A strategy learns from the
errors of all other tasks (or of all tasks of other datasets) and ranks the experts for the one that is left out. The
optimum is chosen on other images or splits than it is measured on; where there is a single split it is the smallest
error, as in the paper. Intervals are of 95%, over tasks. Any meta-task will do, of one split, one protocol or one
family, without domains, scores or curves: what cannot be made from it is left out.

    python -m experiments.selection --out docs/results/selection
"""

import multiprocessing
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import task2vec as t2v
from experiments import primary, proposals, report
from experiments import selection_figures as figures
from experiments.report import FAILS, HOLDS, UNCLEAR, Claim, Row
from experiments.settings import (
    LEAVES,
    Setting,
    describe_experts,
    find_recipe,
    format_setting,
    list_leaves,
    list_settings,
    list_spaces,
)
from experiments.strategies import REPORTED, find_reported
from task2vec import plots
from task2vec.metatask import find_shots
from task2vec.select import ProposalEvaluation
from task2vec.select.evaluate import compare_paired, draw_weights, find_interval

PARTS = ("norms", "violins", "matrix", "curves", "tables", "primary", "proposals")
AVERAGE_BEST = "average_best"
# The rows of the paper's Table 1 with its own settings, which are always there, and the names that tell them from ours.
PAPERS = {
    "chance": "chance",
    "generic": "generic (ImageNet)",
    "symmetric": "symmetric (the paper's)",
    "asymmetric": "asymmetric (the paper's, alpha 0.15)",
    "model space published": "model space (the paper's)",
}
NAMES = PAPERS | {"model space": "model space (our weight decay)"}
RESAMPLES = 10_000
LEVEL = 0.05
# Table 2: the paper's choice, and what needs no probe.
CHOICES, BASELINES = ("asymmetric",), ("chance", "generic", AVERAGE_BEST)
ALL, LARGEST, _LARGEST_COUNT = "all tasks", "largest ten", 10
SMALLEST = "With a single split, the optimum is the smallest error, as in the paper; it is biased low."
P_NOTE = "p is two-sided, from flipping the signs of the tasks' gaps."
# What the paper claims is better than what.
PAIRS = (
    ("generic", "chance", "the generic expert is better than one at random"),
    ("asymmetric", "generic", "the asymmetric distance chooses better than the generic expert"),
    ("asymmetric", "symmetric", "the asymmetric distance chooses better than the symmetric one"),
    ("model space published", "asymmetric",
     "the model space chooses better than the asymmetric distance it starts from"),
    ("model space", "asymmetric", "our model space chooses better than the asymmetric distance it starts from"),
    ("asymmetric", AVERAGE_BEST, "the asymmetric distance chooses better than the average-best baseline"),
    (f"{AVERAGE_BEST} + symmetric", "asymmetric",
     "average-best baseline plus symmetric distance chooses better than the asymmetric one"),
)  # fmt: skip


Evaluations = Mapping[Setting, t2v.Evaluation]


# --- evaluations -----------------------------------------------------------------------------------------------------


def plan_evaluations(
    metatask: t2v.MetaTask, parts: Sequence[str], strategies: Sequence[str]
) -> dict[Setting, tuple[str, ...]]:
    """What the chosen parts need: the strategies of every setting, each of which is evaluated once."""
    main, *others = list_spaces(metatask)
    sizes = list_settings(metatask)
    few = [name for name in CHOICES if name in strategies]
    wanted: dict[Setting, dict[str, None]] = {}

    def want(settings: Iterable[Setting], names: Iterable[str]) -> None:
        for setting in settings:
            wanted.setdefault(setting, {}).update(dict.fromkeys(names))

    if "tables" in parts:
        want((Setting(main, leave, *size) for leave in list_leaves(metatask) for size in sizes), strategies)
    if "primary" in parts:
        want(primary.list_compared(metatask), primary.NAMES)
    if {"violins", "matrix"} & set(parts):
        want((Setting(main, "task", *size) for size in sizes if size[1] == sizes[0][1]), few)
    if "tables" in parts:
        want((Setting(space, "task", *size) for space in others for size in sizes), few)
    return {setting: tuple(names) for setting, names in wanted.items() if names}


# The file of a meta-task, and that of another one if it takes its embeddings from the first.
Files = tuple[Path | None, Path | None]
Job = tuple[Files, Setting]


def run_all(work: Mapping[Job, tuple[str, ...]], *, jobs: int) -> dict[Job, Any]:
    """An evaluation of strategies, or proposals, for each setting; the number of processes changes nothing."""
    if jobs == 1:
        return dict(zip(work, map(_measure, work.items()), strict=True))
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the workers
    results: dict[Job, Any] = {}
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for (job, names), evaluation in zip(work.items(), pool.map(_measure, work.items()), strict=True):
            results[job] = evaluation
            text = f"{job[1].words}, {LEAVES[job[1].leave]}, {job[1].space}: "
            report.say(f"{text}{f'{len(names)} strategies' if names else 'proposals'} ({len(results)} of {len(work)})")
    return results


def _measure(work: tuple[Job, tuple[str, ...]]) -> t2v.Evaluation | ProposalEvaluation:
    ((bundle, against), setting), names = work
    metatask = report.load_bundle(bundle) if against is None else primary.load_other(bundle, against)
    if isinstance(setting, proposals.ProposalSetting):
        return proposals.measure_proposals(metatask, setting)
    view = figures.keep_space(metatask, setting.space).select(setting.shots)
    strategies = [find_reported(name) for name in names]
    return t2v.evaluate(view, strategies, resamples=RESAMPLES, family=setting.family, leave=setting.leave)


def find_optimum(evaluation: t2v.Evaluation) -> np.ndarray:
    """The unbiased optimum, or the smallest error where that is not known."""
    return evaluation.smallest if evaluation.optimum is None else evaluation.optimum


# --- Table 1: ways of choosing ---------------------------------------------------------------------------------------


def make_table1(evaluations: Evaluations, main: str, folder: Path, note: str) -> list[Claim]:
    """The table as CSV with all numbers, and in Markdown."""
    evaluations = {setting: evaluation for setting, evaluation in evaluations.items() if setting.space == main}
    rows = [
        {"family": setting.family, "shots": setting.shots, "leave": setting.leave, **row}
        for setting, evaluation in evaluations.items()
        for row in evaluation.rows
    ]
    report.write_rows(rows, folder / "table1.csv")
    report.write_text(folder / "table1.md", f"{format_table1(evaluations)} {note}".rstrip())
    return judge_table(evaluations)


def format_strategy(name: str) -> str:
    """The name of a strategy in tables."""
    return NAMES.get(name, name.replace("_", "-"))


def format_table1(evaluations: Evaluations) -> str:
    """One table in Markdown for each way of leaving out: strategies down, settings across."""
    texts = []
    for leave, words in LEAVES.items():
        columns = {setting.words: evaluation for setting, evaluation in evaluations.items() if setting.leave == leave}
        if columns:
            rows = [{row["strategy"]: row for row in evaluation.rows} for evaluation in columns.values()]
            lines = [["optimum, error in %", *map(_format_optimum, columns.values())]]
            for name in dict.fromkeys([*PAPERS, *(name for column in rows for name in column)]):
                lines.append([format_strategy(name), *(_format_cell(column.get(name)) for column in rows)])
            texts.append(f"**{words}**\n\n{report.format_markdown(['', *columns], lines)}")
    notes = [
        "Error over the optimum in percent (ratio of means over tasks) with a 95% bootstrap interval over tasks. "
        "* better, ° worse than the average-best baseline (two-sided sign-flip test over tasks, p < 0.05). The paper's "
        "rows have its settings; of its model space, which leaves open how m stays positive, b moves logarithms."
    ]
    if any(evaluation.optimum is None for evaluation in evaluations.values()):
        notes.append(f"(smallest): {SMALLEST}")
    return "\n\n".join([*texts, *notes])


def _format_optimum(evaluation: t2v.Evaluation) -> str:
    """The mean optimum, and whether it is the smallest error."""
    if evaluation.optimum is None:
        return f"{100 * evaluation.smallest.mean():.1f} (smallest)"
    return f"{100 * evaluation.optimum.mean():.1f}"


def _format_cell(row: Row | None) -> str:
    """How far above the unbiased optimum the mean error is; above the smallest error where that is not known."""
    if row is None:
        return "-"
    text = format_bar(row, "increase" if row["increase"] is not None else "smallest_increase")
    return text if row["p"] is None or row["p"] >= LEVEL else f"{text} *" if row["gap"] < 0 else f"{text} °"


def judge_table(evaluations: Evaluations) -> list[Claim]:
    """All claims that the strategies at hand allow."""
    claims = []
    for better, worse, words in PAIRS:
        for setting, evaluation in evaluations.items():
            if setting.leave == "task" and {better, worse} <= set(evaluation.outcomes):
                gaps = 100 * (evaluation.outcomes[better].errors - evaluation.outcomes[worse].errors)
                claims.append(_claim_gap("table 1", f"{setting.words}: {words}", gaps))
    return claims


def _claim_gap(table: str, claim: str, gaps: np.ndarray) -> Claim:
    """Whether errors are smaller, task by task; `gaps` are negative where they are."""
    p = compare_paired(gaps)
    verdict = UNCLEAR if p >= LEVEL else HOLDS if gaps.mean() < 0 else FAILS
    return Claim(table, claim, f"{gaps.mean():+.1f} points, p = {p:.2g}", verdict)


# --- scores of features, which need every candidate's ----------------------------------------------------------------


def make_scores(evaluations: Evaluations, metatask: t2v.MetaTask, main: str, folder: Path, note: str) -> str:
    """What the candidate of the highest transferability score gives against average-best, as CSV and in Markdown.

    Both are judged on the first split alone: scores are of its training images, which are test images of the others.
    """
    rows: list[Row] = []
    for setting, evaluation in evaluations.items():
        if (setting.space, setting.leave) != (main, "task"):
            continue
        subset = metatask.subset(family=setting.family)
        subset = subset.only([row for row, task in enumerate(subset.tasks) if task.name in evaluation.tasks])
        number = [*map(find_shots, subset.protocols)].index(setting.shots)
        errors = 100 * subset.errors[:, :, number, 0]
        tasks = np.arange(len(errors))
        baseline = errors[tasks, evaluation.outcomes[AVERAGE_BEST].chosen]
        for kind, values in subset.scores.items():
            scores = np.where(subset.is_candidate & np.isfinite(errors), values[:, :, number], np.nan)
            gaps = errors[tasks, np.nan_to_num(scores, nan=-np.inf).argmax(1)] - baseline
            about = {"family": setting.family, "shots": setting.shots, "score": kind, "average_best": baseline.mean()}
            gap = {"gap": gaps.mean(), "gap_se": gaps.std(ddof=1) / len(gaps) ** 0.5, "p": compare_paired(gaps)}
            rows.append(about | {"error": (baseline + gaps).mean(), **gap})
    report.write_rows(rows, folder / "scores.csv")
    lines = [
        [format_setting(row["family"], row["shots"]), row["score"], f"{row['error']:.1f}", f"{row['average_best']:.1f}",
         f"{row['gap']:+.1f} ± {row['gap_se']:.1f} (p = {row['p']:.2g})"]
        for row in rows
    ]  # fmt: skip
    table = report.format_markdown(["", "score", "error in %", "average-best", "gap in points"], lines)
    words = "First split alone, one task left out; p is two-sided, from flipping the signs of the tasks' gaps."
    return report.write_text(folder / "scores.md", f"{table}\n\n{words} {note}".rstrip()).read_text()


# --- Table 2: the choice of the probe --------------------------------------------------------------------------------


def make_table2(evaluations: Evaluations, metatask: t2v.MetaTask, folder: Path, caption: str) -> list[Claim]:
    """The table as CSV and in Markdown: all tasks and the ten with the most images."""
    images = {task.name: task.images for task in metatask.tasks}
    rows: list[Row] = []
    claims: list[Claim] = []
    spaces = list_spaces(metatask)
    for family, shots in list_settings(metatask):
        by_space = {setting.space: evaluation for setting, evaluation in evaluations.items()
                    if (setting.family, setting.shots, setting.leave) == (family, shots, "task")}  # fmt: skip
        for space, evaluation in by_space.items():
            for name in (*CHOICES, *(BASELINES if space == spaces[0] else ())):
                if name in evaluation.outcomes:
                    about = {"family": family, "shots": shots, "strategy": name}
                    about["space"] = "" if name in BASELINES else space
                    rows.append(about | _measure_parts(evaluation, name, images))
        outcomes = {space: evaluation.outcomes[CHOICES[0]] for space, evaluation in by_space.items()
                    if CHOICES[0] in evaluation.outcomes}  # fmt: skip
        for space in spaces[1:]:
            if spaces[0] in outcomes and space in outcomes:
                setting = format_setting(family, shots)
                words = f"{setting}: {spaces[0]} chooses better than {space} (asymmetric distance)"
                gaps = 100 * (outcomes[spaces[0]].errors - outcomes[space].errors)
                claims.append(_claim_gap("table 2", words, gaps))
    report.write_rows(rows, folder / "table2.csv")
    columns = [(*size, part) for size in list_settings(metatask) for part in (ALL, LARGEST)]
    cells: dict[str, dict[tuple[str, str, str], str]] = {}
    for row in sorted(rows, key=lambda row: (*BASELINES, *CHOICES).index(row["strategy"])):
        line = cells.setdefault(format_strategy(row["strategy"]) + (f", {row['space']}" if row["space"] else ""), {})
        line |= {(row["family"], row["shots"], part): format_bar(row, part) for part in (ALL, LARGEST)}
    header = ["", *(f"{format_setting(*size)}: {part}" for *size, part in columns)]
    lines = [[name, *(line.get(column, "") for column in columns)] for name, line in cells.items()]
    note = "Error over the optimum in percent with a 95% bootstrap interval over tasks; leave-one-task-out."
    if any(evaluation.optimum is None for evaluation in evaluations.values()):
        note += f" {SMALLEST}"
    report.write_text(folder / "table2.md", f"{report.format_markdown(header, lines)}\n\n{note} {caption}".rstrip())
    return claims


def _measure_parts(evaluation: t2v.Evaluation, name: str, images: Mapping[str, int]) -> Row:
    """The increase of a strategy over the optimum, of all tasks and of those with the most images."""
    counts = np.array([images[task] for task in evaluation.tasks])
    parts = {ALL: np.arange(len(counts)), LARGEST: np.sort(np.argsort(-counts, kind="stable")[:_LARGEST_COUNT])}
    row: Row = {}
    for part, chosen in parts.items():
        errors, best = evaluation.outcomes[name].errors[chosen], find_optimum(evaluation)[chosen]
        low, high = find_interval(draw_weights(chosen, RESAMPLES), errors, best)
        numbers = {"": errors.sum() / best.sum(), "_low": low, "_high": high}
        row |= {f"{part}{end}": 100 * (float(value) - 1) for end, value in numbers.items()}
        smallest = evaluation.smallest[chosen]
        row[f"{part}, over smallest"] = 100 * float(errors.sum() / smallest.sum() - 1)
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
        list[str] | None,
        typer.Option(help="Table 1: only these beside the paper's; default: all."),
    ] = None,
    against: Annotated[Path | None, typer.Option(help="The same experts by another recipe, for `primary`.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.")] = None,
) -> None:
    """All tables and figures about choosing an expert."""
    metatask, folder = report.load_bundle(bundle), plots.make_folder(out)
    chosen = [find_reported(name).name for name in strategy or REPORTED]  # an unknown one is refused at once
    names = list(dict.fromkeys([*PAPERS, AVERAGE_BEST, *chosen]))
    parts = part or list(PARTS)
    if unknown := [name for name in parts if name not in PARTS]:
        raise t2v.errors.UsageError(f"--part {unknown[0]} is unknown. Choose among: {', '.join(PARTS)}")
    if metatask.halves is None and {"primary", "proposals"} & set(parts):
        report.say("primary comparisons and proposals are missing: no errors on halves of the test images are known")
        parts = [name for name in parts if name not in ("primary", "proposals")]
    if against is not None and "primary" not in parts:
        raise t2v.errors.UsageError(
            "--against compares two recipes by the primary comparisons, which are not made here. Add --part primary, "
            "and give a meta-task with errors on two halves of the test images"
        )
    spaces, settings, note = list_spaces(metatask), list_settings(metatask), describe_experts(metatask)
    planned = plan_evaluations(metatask, parts, names)
    every = proposals.list_proposal_settings(metatask)
    usual = proposals.find_usual(every)
    compared = primary.list_compared(metatask) if "primary" in parts else []
    proposed = every if "proposals" in parts else [usual[setting] for setting in compared]
    files: Files = (bundle, None)
    work: dict[Job, tuple[str, ...]] = {(files, setting): names for setting, names in planned.items()}
    work |= {(files, setting): () for setting in proposed}
    # The experts of this repository for whole datasets stand beside those for parts of them; those that the rule was
    # chosen on have a table of their own.
    whole, earlier = [], []
    if "proposals" in parts and bundle is None:
        whole = proposals.list_whole_settings(report.load_bundle(proposals.WHOLE))
        earlier = [setting for setting in every if setting.space == spaces[0] and setting.is_shown]
        work |= {((proposals.WHOLE, None), setting): () for setting in whole}
        work |= {((bundle, proposals.EARLIER), setting): () for setting in earlier}
    again = compared[: len(settings)] if against is not None else []  # the primary ones
    for setting in again:
        work |= {((bundle, against), setting): primary.NAMES, ((bundle, against), usual[setting]): ()}
    other = None if against is None else primary.load_other(bundle, against)  # one of other tasks is refused at once
    results = run_all(work, jobs=jobs or os.cpu_count() or 1)
    evaluations = {setting: results[files, setting] for setting in planned}

    def compare(files: Files, settings: Sequence[Setting]) -> list[Row]:
        return primary.list_comparisons(
            {setting: (results[files, setting], results[files, usual[setting]]) for setting in settings}
        )

    claims: list[Claim] = []
    if "norms" in parts:
        rows = [row for size in settings for row in figures.list_norms(metatask, *size, spaces)]
        claims += figures.make_norms(rows, spaces, folder)
    by_family = {setting.family: evaluation for setting, evaluation in evaluations.items()
                 if (setting.shots, setting.leave, setting.space) == (settings[0][1], "task", spaces[0])}  # fmt: skip
    for name, make in (("violins", figures.make_violins), ("matrix", figures.make_matrix)):
        for family, evaluation in by_family.items() if name in parts else ():
            selected = figures.select(metatask, settings[0][1], spaces[0], family)
            rows = [row for row, task in enumerate(selected.tasks) if task.name in evaluation.tasks]
            claims += make(selected.only(rows), evaluation, family or "tasks", folder)
    if "curves" in parts:
        claims += figures.make_curves(metatask, settings[0][1], spaces[0], folder)
    texts = []
    if "tables" in parts:
        claims += make_table1(evaluations, spaces[0], folder, note) + make_table2(evaluations, metatask, folder, note)
        texts += [(folder / f"table{number}.md").read_text() for number in (1, 2)]
        if metatask.scores:
            texts.append(make_scores(evaluations, metatask, spaces[0], folder, note))
    if "proposals" in parts:
        measured = {setting: results[files, setting] for setting in every}
        measured |= {setting: results[(proposals.WHOLE, None), setting] for setting in whole}
        texts.append(proposals.make_proposals(measured, folder, note))
        if earlier:
            measured = {setting: results[(bundle, proposals.EARLIER), setting] for setting in earlier}
            about = describe_experts(report.load_bundle(proposals.EARLIER))
            proposals.make_proposals(measured, folder, about, name="proposals_fast1")
    if "primary" in parts:
        rows = compare(files, compared)
        texts.append(primary.make_primary(rows, folder, note))
        if other is not None:
            changes = primary.list_changes(rows, compare((bundle, against), again))
            texts.append(primary.make_recipes(metatask, other, changes, folder, note))
    if recipe := find_recipe(metatask):
        claims = [replace(claim, verdict=f"{claim.verdict} (experts by {recipe})") for claim in claims]
    if "tables" in parts:
        report.write_claims(claims, folder, P_NOTE, *filter(None, [note]))
    print(*texts, sep="\n\n")
    report.print_claims(claims, [folder], P_NOTE, note)


app = report.make_app(selection)

if __name__ == "__main__":
    app()
