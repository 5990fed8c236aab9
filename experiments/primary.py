"""The comparisons of docs/results/selection/plan.md, as they were fixed before looking, with their tests and verdicts.

Every comparison is made in each setting (family and training size). Those with one task left out in the first space are
the primary ones: beside their p stands Holm's. Secondary are those with its whole dataset left out in that space, and
with one task left out in the second one. The same experts by another recipe can be compared, and the verdicts that
change with it. `python -m experiments.selection --part primary` makes the evaluations and hands them on.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

import task2vec as t2v
from experiments import report
from experiments.embeddings import share_embeddings
from experiments.proposals import find_standard_error
from experiments.report import FAILS, HOLDS, Row
from experiments.settings import LEAVES, Setting, format_setting, list_leaves, list_settings, list_spaces
from task2vec.metatask import find_shots
from task2vec.select import ProposalEvaluation
from task2vec.select.evaluate import compare_paired

# Better, if the paper is right, and than what.
COMPARISONS = (
    ("symmetric", "generic"),
    ("asymmetric", "generic"),
    ("asymmetric", "symmetric"),
    ("model space published", "asymmetric"),
    ("model space published", "generic"),
    ("symmetric", "average_best"),
    ("asymmetric", "average_best"),
    ("rule, 3 measured", "average-best, 3 measured"),
    ("rule, 5 measured", "average-best, 5 measured"),
)
# What has to be evaluated for them.
NAMES = tuple(dict.fromkeys(name for pair in COMPARISONS for name in pair if not name.endswith(" measured")))
INCONCLUSIVE = "inconclusive"
LEVEL = 0.05


def list_compared(metatask: t2v.MetaTask) -> list[Setting]:
    """The settings of the comparisons, the primary ones first."""
    main, *others = list_spaces(metatask)
    first = [Setting(main, leave, *each) for leave in list_leaves(metatask) for each in list_settings(metatask)]
    return first + [Setting(space, "task", *each) for space in others[:1] for each in list_settings(metatask)]


def list_comparisons(results: Mapping[Setting, tuple[t2v.Evaluation, ProposalEvaluation]]) -> list[Row]:
    """All comparisons, the primary ones first, with Holm's p beside theirs."""
    rows = [row for setting, pair in results.items() for row in compare_choices(setting, *pair)]
    primary = [row for row in rows if (row["space"], row["leave"]) == (rows[0]["space"], "task")]
    for row, p in zip(primary, adjust_holm([row["p"] for row in primary]), strict=True):
        row["p_holm"] = float(p)
    return rows


def compare_choices(setting: Setting, evaluation: t2v.Evaluation, proposals: ProposalEvaluation) -> list[Row]:
    """Every comparison in one setting: mean errors in percent, gaps in points, p over tasks and datasets, verdicts."""
    if left_out := [f"'{name}': {evaluation.left_out[name]}" for name in NAMES if name in evaluation.left_out]:
        raise t2v.errors.DataError(
            f"the plan compares what this meta-task lacks the data for ({'; '.join(left_out)}). A plan with holes is "
            "another plan: use a meta-task with all of it, or leave the part primary out"
        )
    assert proposals.tasks == evaluation.tasks, "tasks with candidates on halves of the test images, and on all of them"
    errors = {name: outcome.errors for name, outcome in evaluation.outcomes.items()}
    for order, by_count in proposals.errors.items():
        errors |= {f"{order}, {count} measured": values for count, values in enumerate(by_count, 1)}
    rows = []
    for number, (better, than) in enumerate(COMPARISONS, 1):
        gaps = 100 * (errors[better] - errors[than])
        row: Row = {"comparison": number, "better": better, "than": than, **asdict(setting), "tasks": len(gaps)}
        row |= {"better_error": 100 * errors[better].mean(), "than_error": 100 * errors[than].mean()}
        rows.append(row | judge_gaps(gaps, np.array(evaluation.datasets)))
    return rows


def judge_gaps(gaps: np.ndarray, datasets: np.ndarray) -> Row:
    """The mean gap, negative where the paper is right, its two-sided sign-flip p, and the verdict by p over tasks."""
    p = compare_paired(gaps)
    verdict = INCONCLUSIVE if p >= LEVEL else HOLDS if gaps.mean() < 0 else FAILS
    row: Row = {"gap": gaps.mean(), "gap_se": find_standard_error(gaps), "p": p, "p_holm": None}
    row["p_datasets"] = compare_paired(gaps, datasets) if len(set(datasets)) > 1 else None
    return row | {"verdict": verdict}


def adjust_holm(values: Sequence[float]) -> np.ndarray:
    """p-values as Holm corrects them for being several, in the order given.

    Example:
        >>> adjust_holm([0.01, 0.5, 0.02])
        array([0.03, 0.5 , 0.04])
    """
    p = np.asarray(values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    return adjusted


def format_comparisons(rows: Sequence[Row]) -> str:
    """One table in Markdown for each space and way of leaving out: comparisons down, settings across."""
    texts = []
    for space, by_space in report.split_rows(rows, "space").items():
        for leave, group in report.split_rows(by_space, "leave").items():
            settings = dict.fromkeys(format_setting(row["family"], row["shots"]) for row in group)
            lines = [
                [str(number), line[0]["better"], line[0]["than"], *map(_format_cell, line)]
                for number, line in report.split_rows(group, "comparison").items()
            ]
            kind = "primary" if group[0]["p_holm"] is not None else "secondary"
            texts.append(f"**{space}, {LEAVES[leave]} ({kind})**")
            texts.append(report.format_markdown(["", "better, if the paper is right", "than", *settings], lines))
    note = (
        "Mean gap in points ± standard error over tasks, negative where the paper is right; two-sided p from flipping "
        "the signs of tasks, in brackets of the means of datasets where there are several; Holm's p over all primary "
        f"comparisons. Holds or fails: p < {LEVEL} over tasks."
    )
    return "\n\n".join([*texts, note])


def _format_cell(row: Row) -> str:
    datasets = "" if row["p_datasets"] is None else f" ({row['p_datasets']:.2g})"
    holm = "" if row["p_holm"] is None else f", Holm {row['p_holm']:.2g}"
    return f"**{row['verdict']}** {row['gap']:+.1f} ± {row['gap_se']:.1f}, p = {row['p']:.2g}{datasets}{holm}"


# --- two recipes -----------------------------------------------------------------------------------------------------


def compare_recipes(metatask: t2v.MetaTask, other: t2v.MetaTask) -> list[Row]:
    """The same experts by two recipes on the tasks that they have not seen, by training size and kind of expert.

    Errors are means over these tasks in percent, `p` is over experts, and `rho` is the mean over tasks of Spearman's
    correlation of a task's experts by one recipe and by the other.
    """
    names = {model.name for model in other.models}
    names = [model.name for model in metatask.models if model.source_fingerprint and model.name in names]
    if len(names) < 2:
        raise t2v.errors.UsageError(
            f"'{metatask.name}' and '{other.name}' have {len(names)} experts of the same name, so their recipes cannot "
            "be compared. Give --against a meta-task that was built by the same plan"
        )
    pair = [_pick_models(whole, names) for whole in (metatask, other)]
    is_unseen = ~pair[0].has_seen
    of_kind = np.array([model.kind for model in pair[0].models])
    rows: list[Row] = []
    for protocol in metatask.protocols:
        errors = 100 * np.array([chosen.mean_errors()[:, :, chosen.protocols.index(protocol)] for chosen in pair])
        errors[:, ~is_unseen] = np.nan
        for kind in ("all", *dict.fromkeys(of_kind.tolist())):
            experts = errors[:, :, (of_kind == kind) | (kind == "all")]
            first, second = np.nanmean(experts, axis=1)
            gaps = first - second
            known = [task[:, np.isfinite(task).all(0)] for task in experts.swapaxes(0, 1)]
            rhos = [report.spearman(*task) for task in known if task.shape[1] > 1]
            rhos = [rho for rho in rhos if np.isfinite(rho)]
            row: Row = {"shots": find_shots(protocol), "kind": kind, "experts": len(gaps), "error": first.mean()}
            row |= {"other_error": second.mean(), "gap": gaps.mean(), "gap_se": find_standard_error(gaps)}
            row |= {"p": compare_paired(gaps), "rho": float(np.mean(rhos)) if rhos else None}
            rows.append(row)
    return rows


def _pick_models(metatask: t2v.MetaTask, names: Sequence[str]) -> t2v.MetaTask:
    columns = {model.name: column for column, model in enumerate(metatask.models)}
    return metatask.only(range(len(metatask.tasks)), [columns[name] for name in names])


@functools.cache
def load_other(bundle: Path | None, against: Path) -> t2v.MetaTask:
    """The meta-task of the other recipe with the embeddings of the first: they are of the same tasks."""
    return share_embeddings(report.load_bundle(bundle), report.load_bundle(against))


def list_changes(rows: Sequence[Row], others: Sequence[Row]) -> list[str]:
    """The primary comparisons, of which `others` has no more, whose verdict the other recipe changes, in words."""
    texts = []
    for row, other in zip((row for row in rows if row["p_holm"] is not None), others, strict=True):
        if row["verdict"] != other["verdict"]:
            setting = format_setting(row["family"], row["shots"])
            words = f"{row['better']} against {row['than']}, {setting}: {row['verdict']} {row['gap']:+.1f}"
            texts.append(f"{words}, by the other recipe {other['verdict']} {other['gap']:+.1f}")
    return texts


def format_recipes(rows: Sequence[Row], changes: Sequence[str]) -> str:
    """The comparison of recipes in Markdown, and the verdicts that change."""
    lines = []
    for row in rows:
        errors = (f"{row[key]:.1f}" for key in ("error", "other_error"))
        rho = "" if row["rho"] is None else f"{row['rho']:.2f}"
        gap = f"{row['gap']:+.1f} ± {row['gap_se']:.1f}"
        lines.append([row["shots"], row["kind"], str(row["experts"]), *errors, gap, f"{row['p']:.2g}", rho])
    header = ["train", "experts", "number", "error (%)", "other recipe", "gap", "p", "rank correlation"]
    listed = "\n".join(f"* {text}" for text in changes) or "None."
    return f"{report.format_markdown(header, lines)}\n\n**Primary verdicts that change**\n\n{listed}"


# --- files -----------------------------------------------------------------------------------------------------------


def make_primary(rows: Sequence[Row], folder: Path, note: str) -> str:
    """The comparisons as CSV and in Markdown, which is returned."""
    report.write_rows(rows, folder / "primary.csv")
    return report.write_text(folder / "primary.md", f"{format_comparisons(rows)}\n\n{note}".rstrip()).read_text()


def make_recipes(metatask: t2v.MetaTask, other: t2v.MetaTask, changes: Sequence[str], folder: Path, note: str) -> str:
    """Two recipes side by side as CSV and in Markdown, which is returned."""
    rows = compare_recipes(metatask, other)
    report.write_rows(rows, folder / "recipes.csv")
    text = format_recipes(rows, changes)
    return report.write_text(folder / "recipes.md", f"{text}\n\n{note}".rstrip()).read_text()
