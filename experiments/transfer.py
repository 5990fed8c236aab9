"""The paper's transfer distance (Achille 2019, section 3) against the distances between embeddings.

    D_ft(a -> b) = (E[l_ab] - E[l_b]) / E[l_b]

l_ab is the error on task b of an expert for task a that was fine-tuned on b as a whole, l_b that of the generic network
after the same fine-tuning; expectations are means over seeds. Below 0 the expert is the better start. Models are chosen
for a task, so correlations are within a task, over the experts that have not seen it, and averaged over tasks: what
tasks differ in does not count. The baseline knows no distance: it is the mean D_ft of the expert on the other tasks.

    python -m experiments.transfer --bundle FILE --out DIR
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from scipy.stats import rankdata

import task2vec as t2v
from experiments import report
from experiments.figures import style_axes
from experiments.report import MIN_TASKS, Row
from experiments.selection_figures import SYMMETRIC, shorten_name
from experiments.settings import list_settings, list_spaces
from task2vec import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = {"d_sym": "symmetric distance", "d_asym": "asymmetric distance", "average": "average on the other tasks"}
DRAWS, RESAMPLES = 10_000, 1_000


def find_transfers(metatask: t2v.MetaTask) -> list[Mapping[str, Any]]:
    """The errors of fine-tuned networks by expert, task and seed."""
    if not (points := metatask.info.get("transfers")):
        raise t2v.errors.DataError(
            f"the meta-task '{metatask.name}' has no errors of experts that were fine-tuned on its tasks "
            "(info['transfers']), so no transfer distance is known. Measure them: python -m experiments.metatask.build"
        )
    return points


def list_transfers(metatask: t2v.MetaTask, points: Sequence[Mapping[str, Any]], space: str) -> list[Row]:
    """D_ft and the distances from every expert's source task (a) to every task (b) that it was fine-tuned on."""
    probe, _, method = space.rpartition(" ")
    selected = metatask.select(list_settings(metatask)[0][1], probe=probe, method=method)
    assert selected.trivial_distances is not None, "every space has them"
    symmetric = selected.to_sources(SYMMETRIC)
    asymmetric = symmetric - t2v.distance.ALPHA * selected.pick_sources(selected.trivial_distances)
    errors: dict[tuple[str, str], list[float]] = {}
    for point in points:
        errors.setdefault((point["expert"], point["task"]), []).append(point["error"])
    sources = {task.fingerprint: task.name for task in (*selected.tasks, *selected.source_tasks)}
    numbers = {task.name: number for number, task in enumerate(selected.tasks)}
    generic = "" if selected.generic is None else selected.models[selected.generic].name
    rows: list[Row] = []
    for column, model in enumerate(selected.models):
        for name in (name for expert, name in errors if expert == model.name and selected.source_rows[column] >= 0):
            loss, base = (float(np.mean(errors.get((expert, name), np.nan))) for expert in (model.name, generic))
            if not base > 0:
                raise t2v.errors.DataError(
                    f"the error of the generic network after fine-tuning on '{name}' is {base:g} (nan: not measured), "
                    "and the transfer distance is relative to it. Measure it, or leave the task out of `transfers`"
                )
            cell = numbers[name], column
            row: Row = {"expert": model.name, "a": sources[model.source_fingerprint or ""], "b": name}
            row |= {"d_ft": (loss - base) / base, "d_sym": symmetric[cell], "d_asym": asymmetric[cell]}
            rows.append(row | {"seen": int(selected.has_seen[cell])})
    for row in rows:
        others = [each["d_ft"] for each in rows
                  if each["expert"] == row["expert"] and each["b"] != row["b"] and not each["seen"]]  # fmt: skip
        row["average"] = float(np.mean(others)) if others else None
    return rows


def correlate_transfers(rows: Sequence[Row], measure: str) -> Row:
    """Spearman's correlation of D_ft and a measure within tasks, averaged over them.

    An expert is good or bad for all tasks alike, so tasks are no independent samples of it. Therefore p, which is
    two-sided, is from permuting the experts in the same way for all tasks, and the interval is of 95% over samples of
    tasks and of experts.
    """
    unseen = [row for row in rows if not row["seen"] and row["average"] is not None]
    by_task = {
        task: rows_of_task
        for task, rows_of_task in report.split_rows(unseen, "b").items()
        if len(rows_of_task) >= MIN_TASKS
    }
    summary: Row = {"measure": MEASURES[measure], "tasks": len(by_task)}
    summary["pairs"] = sum(map(len, by_task.values()))
    if not by_task:
        return summary | dict.fromkeys(("rho", "low", "high", "p")) | {"by_task": {}}
    numbers = {name: number for number, name in enumerate(dict.fromkeys(row["expert"] for row in unseen))}
    pairs = [
        (
            np.array([numbers[row["expert"]] for row in rows_of_task]),
            _scale_ranks([row[measure] for row in rows_of_task]),
            _scale_ranks([row["d_ft"] for row in rows_of_task]),
        )
        for rows_of_task in by_task.values()
    ]
    rng = np.random.default_rng(0)
    order = rng.permuted(np.tile(np.arange(len(numbers)), (DRAWS, 1)), axis=1)
    rhos = np.array([ranks @ others for _, ranks, others in pairs])
    drawn = np.mean([_permute(others, experts, order) @ ranks for experts, ranks, others in pairs], axis=0)
    hits = int((np.abs(drawn) >= abs(rhos.mean()) - 1e-12).sum())
    low, high = np.quantile([_resample(pairs, len(numbers), rng) for _ in range(RESAMPLES)], [0.025, 0.975])
    summary |= {"rho": float(rhos.mean()), "low": float(low), "high": float(high), "p": (1 + hits) / (1 + DRAWS)}
    return summary | {"by_task": dict(zip(by_task, rhos.tolist(), strict=True))}


def _permute(values: np.ndarray, experts: np.ndarray, order: np.ndarray) -> np.ndarray:
    """(draws, n) the values of n experts, each that of the expert in whose place a permutation of all puts it.

    From experts that are none of the n the permutation is followed further: so it permutes the n, too.
    """
    known = np.full(order.shape[1], np.nan)
    known[experts] = values
    places = order[:, experts]
    while (is_unknown := np.isnan(known[places])).any():
        places = np.where(is_unknown, np.take_along_axis(order, places, axis=1), places)
    return known[places]


def _resample(pairs: Sequence[tuple[np.ndarray, ...]], experts: int, rng: np.random.Generator) -> float:
    """The mean correlation of as many tasks and experts, drawn with replacement."""
    counts = np.bincount(rng.integers(experts, size=experts), minlength=experts)
    rhos = []
    for number in rng.integers(len(pairs), size=len(pairs)):
        names, ranks, others = pairs[number]
        repeats = counts[names]
        rhos.append(_scale_ranks(ranks.repeat(repeats)) @ _scale_ranks(others.repeat(repeats)))
    return float(np.mean(rhos))


def _scale_ranks(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Ranks with mean 0 and length 1: the product of two is Spearman's correlation; 0 if all are equal."""
    ranks = rankdata(values)
    ranks -= ranks.mean()
    length = float(np.linalg.norm(ranks))
    return ranks / length if length else ranks


def format_transfers(results: Sequence[Row]) -> str:
    """The correlations in Markdown, averaged and task by task."""
    lines = []
    for row in results:
        p = "-" if row["p"] is None else f"{row['p']:.2g}"
        rhos = (f"{rho:.2f}" for rho in row["by_task"].values())
        lines.append([row["measure"], _format_rho(row), p, str(row["tasks"]), str(row["pairs"]), *rhos])
    note = (
        "Spearman's correlation with D_ft within a task, over the experts that have not seen it, averaged over tasks, "
        "with a 95% bootstrap interval over tasks and experts; two-sided p from permuting the experts, in all tasks "
        "alike. Positive: "
        "experts of near source tasks are the better start."
    )
    header = ["D_ft against", "rho", "p", "tasks", "pairs", *map(shorten_name, results[0]["by_task"])]
    return f"{report.format_markdown(header, lines)}\n\n{note}"


def _format_rho(row: Row) -> str:
    return "-" if row["rho"] is None else f"{row['rho']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"


def draw_transfers(rows: Sequence[Row], results: Sequence[Row]) -> "Figure":
    """A panel for each measure: it to the right, D_ft up, a colour for each task."""
    figure = report.open_figure(2.9)
    panels = figure.subplots(1, len(MEASURES), sharey=True)
    unseen = report.split_rows((row for row in rows if not row["seen"] and row["average"] is not None), "b")
    looks = plots.choose_looks(list(unseen))
    for axes, measure, result in zip(panels, MEASURES, results, strict=True):
        for task, rows_of_task in unseen.items():
            x, y = ([row[key] for row in rows_of_task] for key in (measure, "d_ft"))
            style: dict[str, Any] = {"color": looks[task].colour, "marker": looks[task].mark, "alpha": 0.8}
            label = shorten_name(task) if axes is panels[0] else None
            axes.scatter(x, y, s=12, linewidths=0.3, edgecolors="white", label=label, **style)
        axes.axhline(0, color=plots.GREY, linewidth=0.8)
        style_axes(axes, MEASURES[measure], "transfer distance D_ft" if axes is panels[0] else "")
        axes.set_title(f"within tasks: ρ = {_format_rho(result)}", fontsize=7.5, color=plots.INK, loc="left")
    figure.legend(loc="outside lower center", ncols=7, fontsize=7, frameon=False, handletextpad=0.1)
    return figure


def transfer(
    out: Annotated[Path, typer.Option(help="Folder for the tables and the figure.")] = Path("task2vec-transfer"),
    bundle: Annotated[Path | None, typer.Option(help="Another meta-task; default: that of experts.")] = None,
) -> None:
    """The transfer distance D_ft against the distances between embeddings."""
    metatask = report.load_bundle(bundle)
    rows = list_transfers(metatask, find_transfers(metatask), list_spaces(metatask)[0])
    folder = plots.make_folder(out)
    results = [correlate_transfers(rows, measure) for measure in MEASURES]
    report.write_rows(rows, folder / "transfer.csv")
    summary = [{name: value for name, value in row.items() if name != "by_task"} | row["by_task"] for row in results]
    report.write_rows(summary, folder / "transfer_rho.csv")
    text = format_transfers(results)
    report.write_text(folder / "transfer.md", text)
    plots.save_picture(draw_transfers(rows, results), folder / "transfer.png")
    report.print_claims([], [folder], text)


app = report.make_app(transfer)

if __name__ == "__main__":
    app()
