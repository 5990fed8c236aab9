"""Proposals: which models to measure first for a new task, in four orders, and the error after k of them.

For each task that is left out, an order of its candidates is made from the errors on the known tasks and from
distances. The first k are measured on one half of the task's test images, the one with the lowest error is kept, and
it is judged on the other half; then the other way round. With all candidates measured this is the unbiased optimum of
`task2vec.select.evaluate`. The orders:

* average-best: by the models' effects on the log-odds of the errors, whatever the task is;
* nearest: by the symmetric distance of the task from the experts' source tasks; models without one come last;
* rule: two of a portfolio that is weighted by similarity, one nearest expert, repeated (`propose`);
* domain: the rule with distances of domain embeddings in the place of Task2Vec's.

`python -m experiments.selection --part proposals` draws the tables and the figure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit

import task2vec as t2v
from experiments import report
from experiments.figures import style_axes
from experiments.report import Row
from experiments.selection_figures import SYMMETRIC, find_candidates, keep_space
from experiments.settings import LEAVES, Setting, format_setting, list_leaves, list_settings, list_spaces
from task2vec import plots
from task2vec.select import compare_paired, fit_effects, unbiased_optimum

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Numbers of models measured: of the curves, and of the tables.
COUNTS, SHOWN = range(1, 9), (1, 2, 3, 4, 5, 8)
# The paper's space and the offline one.
SPACES = 2
AVERAGE_BEST, ALL, DOMAIN = "average-best", "all", "domain"
ORDERS = (AVERAGE_BEST, "nearest", DOMAIN, "rule")
# Known tasks are those of the same family, or all.
KNOWN = {"family": "tasks of the same family known", "all": "tasks of all families known"}


# --- the proposer: arrays of T known tasks and M models --------------------------------------------------------------

# Every third proposal is the nearest expert.
CYCLE = 3
# Widths that are tried, in parts of the median distance of known tasks from their nearest; of equals the widest.
WIDTHS = (np.inf, 3.0, 1.0, 0.5, 0.25, 0.1)
# Widths are judged by the errors after 1 to so many proposals. The description of the rule does not give a number:
# with four, as many as it is compared at, its published table is reproduced most closely.
DEPTH = 4
# Added to shares of errors and of hits before their logarithms are taken.
OFFSET = 0.005


def propose(
    errors: np.ndarray,
    distances: np.ndarray,
    to_sources: np.ndarray,
    is_candidate: np.ndarray,
    *,
    width: float,
    count: int,
) -> np.ndarray:
    """Numbers of the models to measure for a new task: two of the weighted portfolio, one nearest expert, repeated.

    Args:
        errors: (T, M) on the known tasks; NaN where not known, or where the model has seen the task.
        distances: (T) of the new task from the known ones.
        to_sources: (M) of the new task from the models' source tasks; NaN where not known.
        is_candidate: (M) which models may be proposed.
        width: by which weights fall with the distance, see `choose_width`.
        count: how many, at most.

    Example:
        >>> errors = np.array([[0.1, 0.2, 0.5], [0.5, 0.4, 0.1]])  # a portfolio of 0 and 2 is best on both
        >>> unknown, everything = np.full(3, np.nan), np.ones(3, dtype=bool)
        >>> propose(errors, np.array([0.1, 0.9]), unknown, everything, width=1, count=2).tolist()
        [0, 2]
    """
    filled, effects = fill_errors(errors)
    weights = weigh_tasks(distances, width)
    return order_portfolio(filled, effects, weights, is_candidate, count=count, nearest=to_sources)


def fill_errors(errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(T, M) errors, unknown ones by the two-way effects of task and model on the log-odds; (M) effects of the models.

    A model without any error has an effect of NaN, and errors of 1: it is no reason to measure it.
    """
    effects = fit_effects(np.log(errors + OFFSET) - np.log(1 + OFFSET - errors))
    expected = (1 + 2 * OFFSET) * expit(effects.tasks[:, None] + effects.models) - OFFSET
    expected = np.nan_to_num(np.clip(expected, 0, 1), nan=1.0)
    return np.where(np.isnan(errors), expected, errors), effects.models


def weigh_tasks(distances: np.ndarray, width: float) -> np.ndarray:
    """(T) weights of the known tasks: exp(-(d - d_min) / width); the nearest has 1, and all have if it is infinite."""
    return np.exp(-(distances - distances.min(initial=np.inf)) / width)


def order_portfolio(
    filled: np.ndarray,
    effects: np.ndarray,
    weights: np.ndarray,
    is_candidate: np.ndarray,
    *,
    count: int,
    nearest: np.ndarray | None = None,
) -> np.ndarray:
    """Models, each of which lowers the weighted mean over tasks of the smallest error among the chosen the most.

    Of those that lower it alike the best on average comes first. Where distances `nearest` are given, every third model
    is the nearest of those that are left.
    """
    is_left, smallest, chosen = is_candidate.copy(), np.ones(len(filled)), []
    for place in range(min(count, int(is_candidate.sum()))):
        if nearest is not None and place % CYCLE == CYCLE - 1:
            model = rank_models(is_left, nearest, effects)[0]
        else:
            # What is gained and not what remains: gains on far tasks are lost in the digits of the nearest one's error.
            gains = weights @ np.maximum(smallest[:, None] - filled, 0)
            model = rank_models(is_left, -gains, effects)[0]
        chosen.append(model)
        is_left[model] = False
        smallest = np.minimum(smallest, filled[:, model])
    return np.array(chosen, dtype=int)


def rank_models(is_candidate: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """Numbers of the candidates by the first key, the smallest first, equal ones by the next; NaN comes last.

    Example:
        >>> rank_models(np.array([True, True, True, False]), np.array([np.nan, 2, np.nan, 1]), np.array([2, 3, 1, 4]))
        array([1, 2, 0])
    """
    return np.lexsort((*reversed(keys), ~is_candidate))[: is_candidate.sum()]


def choose_width(errors: np.ndarray, between: np.ndarray) -> float:
    """The width whose portfolios are best for the known tasks, each left out and proposed for by the others.

    Portfolios are judged by the mean of the smallest errors after 1, 2, ... `DEPTH` models. Unknown errors are filled
    once, with the errors of the task that is left out among those that they are filled by.
    """
    filled, effects = fill_errors(errors)
    tasks = np.arange(len(errors))
    apart = np.where(np.eye(len(errors), dtype=bool), np.inf, between)
    median = float(np.median(apart.min(1))) or 1.0  # 0 where most tasks have a copy
    losses = dict.fromkeys((part * median for part in WIDTHS), 0.0)
    for width in losses:
        for task in tasks[np.isfinite(errors).any(1)]:
            others = tasks != task
            weights = weigh_tasks(between[task, others], width)
            chosen = order_portfolio(filled[others], effects, weights, np.isfinite(errors[task]), count=DEPTH)
            losses[width] += float(np.minimum.accumulate(errors[task, chosen]).mean())
    return min(losses, key=lambda width: losses[width])


# --- measuring what is proposed --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProposalSetting(Setting):
    """A setting and the tasks whose errors are known."""

    known: str

    @property
    def setting(self) -> Setting:
        """That of strategies."""
        return Setting(self.space, self.leave, self.family, self.shots)


@dataclass(frozen=True, eq=False)
class Proposals:
    """Errors on the T tasks of a setting.

    Attributes:
        tasks: their names.
        datasets: (T) of the tasks.
        errors: by order: (C, T) after each number of `COUNTS` models measured; of `ALL` (1, T).
    """

    tasks: tuple[str, ...]
    datasets: np.ndarray
    errors: Mapping[str, np.ndarray]


def list_proposal_settings(metatask: t2v.MetaTask) -> list[ProposalSetting]:
    """All settings; with its dataset left out, a family of one dataset has no known tasks of its own."""
    datasets = {task.family: {other.dataset for other in metatask.tasks if other.family == task.family}
                for task in metatask.tasks}  # fmt: skip
    return [
        ProposalSetting(space, leave, family, shots, known)
        for space in list_spaces(metatask)[:SPACES]
        for leave in list_leaves(metatask)
        for known in KNOWN
        for family, shots in list_settings(metatask)
        if (leave, known) != ("dataset", "family") or len(datasets[family]) > 1
    ]


def find_usual(settings: Sequence[ProposalSetting]) -> dict[Setting, ProposalSetting]:
    """By setting those that know what strategies do: the family, or all tasks if its only dataset is left out."""
    return {each.setting: each for each in reversed(settings)}


def measure_proposals(metatask: t2v.MetaTask, setting: ProposalSetting) -> Proposals:
    """The errors of what each order proposes, for all tasks of the family that have two candidates.

    The groups that are left out in turn are single tasks or datasets; all others are known.
    """
    family = setting.family if setting.known == "family" else None
    selected = keep_space(metatask, setting.space).select(setting.shots, family=family)
    if selected.halves is None:
        raise t2v.errors.DataError(
            f"the meta-task '{metatask.name}' has no errors on two halves of the test images (`halves`), so a model "
            "cannot be measured on one and judged on the other. Measure them: python -m experiments.metatask.build"
        )
    halves = selected.halves[:, :, 0]
    allowed = selected.is_candidate & np.isfinite(halves).all((2, 3))
    datasets = np.array(selected.datasets)
    groups = np.arange(len(datasets)) if setting.leave == "task" else datasets
    rows = [row for row, task in enumerate(selected.tasks) if task.family == setting.family and allowed[row].sum() > 1]
    orders: dict[str, dict[int, np.ndarray]] = {}
    for group in dict.fromkeys(groups[rows].tolist()):
        propose_for = learn_orders(selected, np.flatnonzero(groups != group))
        for row in (row for row in rows if groups[row] == group):
            for name, order in propose_for(row, allowed[row]).items():
                orders.setdefault(name, {})[row] = order
    firsts = {name: [[each[row][:count] for row in rows] for count in COUNTS] for name, each in orders.items()}
    firsts[ALL] = [[np.flatnonzero(allowed[row]) for row in rows]]
    errors = {name: np.array([judge_chosen(halves[rows], each) for each in firsts[name]]) for name in firsts}
    return Proposals(tuple(selected.tasks[row].name for row in rows), datasets[rows], errors)


def learn_orders(selected: t2v.MetaTask, known: np.ndarray) -> Callable[[int, np.ndarray], dict[str, np.ndarray]]:
    """What maps a task and its candidates to their orders, from errors on the tasks `known` and no others."""
    learned = selected.only(known)
    errors = find_candidates(learned)
    effects = fill_errors(errors)[1]
    kinds = {name: kind for name, kind in ((DOMAIN, DOMAIN), ("rule", SYMMETRIC)) if kind in learned.distances}
    widths = {kind: choose_width(errors, learned.between(kind)) for kind in kinds.values()}

    def order(row: int, allowed: np.ndarray) -> dict[str, np.ndarray]:
        query = selected.query(row, known=known)
        return {
            AVERAGE_BEST: rank_models(allowed, effects),
            "nearest": rank_models(allowed, query.to_sources[SYMMETRIC], effects),
        } | {
            name: propose(errors, query.distances[kind], query.to_sources[kind], allowed,
                          width=widths[kind], count=COUNTS[-1])
            for name, kind in kinds.items()
        }  # fmt: skip

    return order


def judge_chosen(halves: np.ndarray, chosen: Sequence[np.ndarray]) -> np.ndarray:
    """(T) the error of the best of the chosen models on each half of the test images, judged on the other.

    Args:
        halves: (T, M, S, 2) errors of all models by split, on both halves.
        chosen: (T) numbers of the models that are measured.

    Example:
        >>> judge_chosen(np.array([[[[0.1, 0.4]], [[0.3, 0.3]]]]), [np.array([0, 1])])
        array([0.35])
    """
    is_chosen = np.array([np.isin(np.arange(halves.shape[1]), numbers) for numbers in chosen])
    optimum, _ = unbiased_optimum(halves.mean(3), is_chosen, halves)
    assert optimum is not None, "candidates are known on both halves"
    return optimum.mean(1)


# --- tables and the figure -------------------------------------------------------------------------------------------


def list_rows(setting: ProposalSetting, proposals: Proposals) -> Iterator[Row]:
    """Mean errors in percent, and gaps to average-best at the same number of models in points."""
    baseline = proposals.errors[AVERAGE_BEST]
    for order, errors in proposals.errors.items():
        for number, values in enumerate(errors):
            row: Row = asdict(setting) | {"order": order, "measured": ALL if order == ALL else COUNTS[number]}
            row |= {"tasks": len(proposals.tasks), "error": 100 * values.mean(), "gap": None, "gap_se": None, "p": None}
            row["p_datasets"] = None
            if order not in (AVERAGE_BEST, ALL):
                gaps = 100 * (values - baseline[number])
                row |= {"gap": gaps.mean(), "gap_se": find_standard_error(gaps), "p": compare_paired(gaps)}
                if len(set(proposals.datasets)) > 1:
                    row["p_datasets"] = compare_paired(gaps, proposals.datasets)
            yield row


def find_standard_error(values: np.ndarray) -> float:
    """The standard error of a mean over tasks; NaN of a single one."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def format_proposals(rows: Sequence[Row]) -> str:
    """Two tables in Markdown for each space and way of leaving out: errors, and gaps to average-best."""
    texts = []
    for key, group in report.split_rows(({**row, "key": _name_table(row)} for row in rows), "key").items():
        settings = report.split_rows(({**row, "setting": _name_setting(row)} for row in group), "setting")
        orders = [order for order in (*ORDERS, ALL) if any(row["order"] == order for row in group)]
        errors = [
            [name, *(_join_errors(row for row in own if row["order"] == order) for order in orders)]
            for name, own in settings.items()
        ]
        gaps = [
            [name, order, *(_format_gap(row) for row in own if row["order"] == order and row["measured"] in SHOWN)]
            for name, own in settings.items()
            for order in orders
            if order not in (AVERAGE_BEST, ALL)
        ]
        texts += [f"**{key}**", report.format_markdown(["", *orders], errors)]
        texts.append(report.format_markdown(["", "order", *(f"{count} measured" for count in SHOWN)], gaps))
    note = (
        f"First tables: mean test error in percent after {', '.join(map(str, SHOWN))} models measured. Second tables: "
        "points above average-best at the same number, ± standard error over tasks; in brackets the p of a two-sided "
        "sign-flip test over tasks, and over datasets where there are several."
    )
    return "\n\n".join([*texts, note])


def _name_table(row: Row) -> str:
    return f"{row['space']}, {LEAVES[row['leave']]}, {KNOWN[row['known']]}"


def _name_setting(row: Row) -> str:
    return format_setting(row["family"], row["shots"])


def _join_errors(rows: Iterator[Row]) -> str:
    return " ".join(f"{row['error']:.1f}" for row in rows if row["measured"] in (*SHOWN, ALL))


def _format_gap(row: Row) -> str:
    chances = [f"{row[key]:.2g}" for key in ("p", "p_datasets") if row[key] is not None]
    return f"{row['gap']:+.1f} ± {row['gap_se']:.1f} ({', '.join(chances)})"


def draw_proposals(rows: Sequence[Row]) -> "Figure":
    """Error against the number of models measured: settings side by side, ways of leaving out one below the other."""
    tables = report.split_rows(({**row, "key": _name_table(row)} for row in rows), "key")
    settings = list(dict.fromkeys(map(_name_setting, rows)))
    figure = report.open_figure(0.4 + 1.9 * len(tables))
    panels = figure.subplots(len(tables), len(settings), squeeze=False, sharex=True)
    looks = plots.choose_looks(ORDERS)
    for line, (key, group) in zip(panels, tables.items(), strict=True):
        curves = report.split_rows(({**row, "setting": _name_setting(row)} for row in group), "setting")
        for axes, setting in zip(line, settings, strict=True):
            if setting not in curves:  # nothing is known
                axes.set_axis_off()
                continue
            for order, curve in report.split_rows(curves[setting], "order").items():
                errors = [row["error"] for row in curve]
                if order == ALL:
                    axes.axhline(errors[0], color=plots.GREY, linewidth=0.9, linestyle="--")
                else:
                    style = {"color": looks[order].colour, "marker": looks[order].mark}
                    axes.plot(COUNTS, errors, markersize=2.8, linewidth=1.1, **style)
            style_axes(axes, "models measured" if key == list(tables)[-1] else "", "")
            axes.set_title(setting, fontsize=7, color=plots.INK, loc="left")
            axes.set_xticks(COUNTS)
        line[0].set_ylabel("test error (%)", fontsize=8, color=plots.INK)
        heading = line[0].annotate(key.partition(", ")[2], (0, 1.18), xycoords="axes fraction", fontsize=7.5)
        heading.set_in_layout(False)  # it is wider than its panel
    for order, look in looks.items():
        panels[0, 0].plot([], [], color=look.colour, marker=look.mark, markersize=2.8, linewidth=1.1, label=order)
    panels[0, 0].plot([], [], color=plots.GREY, linewidth=0.9, linestyle="--", label="all measured")
    figure.legend(loc="outside lower center", ncols=len(looks) + 1, fontsize=7, frameon=False)
    figure.get_layout_engine().set(hspace=0.12, rect=(0, 0, 1, 0.98))  # type: ignore[union-attr]  # for the headings
    return figure


def make_proposals(measured: Mapping[ProposalSetting, Proposals], folder: Path, note: str) -> str:
    """The numbers as CSV and in Markdown, which is returned, and the figure of the first space."""
    rows = [row for setting, proposals in measured.items() for row in list_rows(setting, proposals)]
    report.write_rows(rows, folder / "proposals.csv")
    main = [row for row in rows if row["space"] == rows[0]["space"]]
    plots.save_picture(draw_proposals(main), folder / "proposals.png")
    return report.write_text(folder / "proposals.md", f"{format_proposals(rows)}\n\n{note}".rstrip()).read_text()
