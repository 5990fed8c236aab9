"""Proposals: tables and the figure of the error after k measured models, in four orders.

`task2vec.evaluate_proposals` has the orders and makes the errors; here they are collected in all settings: both
spaces, one task or its whole dataset left out, errors known on tasks of the same family or of all. With the experts of
this repository, the experts for whole datasets stand beside them.

`python -m experiments.selection --part proposals` draws the tables and the figure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import task2vec as t2v
from experiments import report
from experiments.figures import style_axes
from experiments.report import Row
from experiments.selection_figures import keep_space
from experiments.settings import LEAVES, Setting, format_setting, list_leaves, list_settings, list_spaces
from task2vec import plots
from task2vec.select import ProposalEvaluation
from task2vec.select.evaluate import ALL, COUNTS, ORDERS, RULE, Known

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Numbers of models measured in the tables.
SHOWN = (1, 2, 3, 4, 5, 8)
# The number of the first table, and its columns: what the rule is compared with, and the prefix of the numbers.
FEW, COMPARED = 4, {"average-best": "", "domain": "domain_", "all": "all_"}
# The paper's space and the offline one.
SPACES = 2
# Experts for whole datasets, which are one family here.
WHOLE, DATASETS = Path(__file__).parent / "metatask" / "domain_experts.safetensors", "datasets"
# Experts by our recipe of that time for the same tasks: the rule was chosen on their errors.
EARLIER = WHOLE.with_name("fast1_experts.safetensors")
# Known tasks are those of the same family, or all.
KNOWN: dict[Known, str] = {"family": "tasks of the same family known", "all": "tasks of all families known"}


@dataclass(frozen=True)
class ProposalSetting(Setting):
    """A setting and the tasks whose errors are known."""

    known: Known

    @property
    def is_shown(self) -> bool:
        """Whether it is in the first table: known are tasks of the family, or all where a dataset is left out."""
        return self.family == DATASETS or self.known == ("family" if self.leave == "task" else "all")

    @property
    def setting(self) -> Setting:
        """That of strategies."""
        return Setting(self.space, self.leave, self.family, self.shots)


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


def list_whole_settings(metatask: t2v.MetaTask) -> list[ProposalSetting]:
    """The settings of experts for whole datasets: every task is known but the one that is left out."""
    shots = dict.fromkeys(shots for _, shots in list_settings(metatask))
    return [
        ProposalSetting(space, "task", DATASETS, each, "all")
        for space in list_spaces(metatask)[:SPACES]
        for each in shots
    ]


def find_usual(settings: Sequence[ProposalSetting]) -> dict[Setting, ProposalSetting]:
    """By setting those that know what strategies do: the family, or all tasks if its only dataset is left out."""
    return {each.setting: each for each in reversed(settings)}


def measure_proposals(metatask: t2v.MetaTask, setting: ProposalSetting) -> ProposalEvaluation:
    """The errors of what each order proposes, for all tasks of the setting."""
    view = keep_space(metatask, setting.space).select(setting.shots)
    family = None if setting.family == DATASETS else setting.family
    return t2v.evaluate_proposals(view, family=family, known=setting.known, leave=setting.leave)


def find_standard_error(values: np.ndarray) -> float:
    """The standard error of a mean over tasks; NaN of a single one."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


# --- tables and the figure -------------------------------------------------------------------------------------------


def list_rows(setting: ProposalSetting, evaluation: ProposalEvaluation) -> Iterator[Row]:
    """The rows of an evaluation with their setting."""
    for row in evaluation.rows:
        yield asdict(setting) | row


def list_main(rows: Sequence[Row]) -> list[Row]:
    """The rows of the first space and of the settings that are shown."""
    names = [field.name for field in fields(ProposalSetting)]
    return [
        row
        for row in rows
        if row["space"] == rows[0]["space"] and ProposalSetting(*(row[name] for name in names)).is_shown
    ]


def format_few(rows: Sequence[Row]) -> str:
    """What measuring a few models gives, in Markdown: the errors of the rule, and gaps to what it is compared with."""
    lines = []
    for row in list_main(rows):
        if row["order"] == RULE and row["measured"] == FEW:
            line = [f"{_name_setting(row)}, {LEAVES[row['leave']]}", f"{row['error']:.1f}"]
            for prefix in COMPARED.values():
                gap, p = row[f"{prefix}gap"], row[f"p_{prefix}".rstrip("_")]
                line.append("" if gap is None else f"{gap:+.1f} ± {row[f'{prefix}gap_se']:.1f} (p = {p:.2g})")
            lines.append(line)
    header = ["", f"the rule, {FEW} measured", "against average-best", "against domain distances", "against all"]
    return report.format_markdown(header, lines)


def format_proposals(rows: Sequence[Row]) -> str:
    """What few measured models give, then for each space and way of leaving out errors, and gaps to average-best."""
    texts = [format_few(rows)]
    for key, group in report.split_rows(({**row, "key": _name_table(row)} for row in rows), "key").items():
        settings = report.split_rows(({**row, "setting": _name_setting(row)} for row in group), "setting")
        orders = [order for order in (*ORDERS, ALL) if any(row["order"] == order for row in group)]
        errors = [
            [name, *(_join_errors(row for row in lines if row["order"] == order) for order in orders)]
            for name, lines in settings.items()
        ]
        gaps = [
            [name, order, *(_format_gap(row) for row in lines if row["order"] == order and row["measured"] in SHOWN)]
            for name, lines in settings.items()
            for order in orders
            if order not in (ORDERS[0], ALL)
        ]
        texts += [f"**{key}**", report.format_markdown(["", *orders], errors)]
        texts.append(report.format_markdown(["", "order", *(f"{count} measured" for count in SHOWN)], gaps))
    note = (
        f"The first table: error in percent after {FEW} models measured, and points above the same number in other "
        "orders, or above all candidates, ± standard error over tasks, with the p of a two-sided sign-flip test over "
        "tasks. Other tables, by turns: mean test error in percent after "
        f"{', '.join(map(str, SHOWN))} models measured; points above average-best at the same number, with p over "
        "tasks, and over datasets where there are several."
    )
    return "\n\n".join([*texts, note])


def _name_table(row: Row) -> str:
    return f"{row['space']}, {LEAVES[row['leave']]}, {KNOWN[row['known']]}"


def _name_setting(row: Row) -> str:
    return format_setting(row["family"], row["shots"])


def _join_errors(rows: Iterator[Row]) -> str:
    return " ".join(f"{row['error']:.1f}" for row in rows if row["measured"] in (*SHOWN, ALL))


def _format_gap(row: Row) -> str:
    chances = [f"{row[key]:.2g}" for key in ("p", "p_group") if row[key] is not None]
    return f"{row['gap']:+.1f} ± {row['gap_se']:.1f} ({', '.join(chances)})"


def draw_proposals(rows: Sequence[Row]) -> "Figure":
    """Error against the number of models measured: settings side by side, ways of leaving out one below the other."""
    tables = report.split_rows(rows, "leave")
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
            axes.set_title(setting.removesuffix(" of the images"), fontsize=6.3, color=plots.INK, loc="left")
            axes.set_xticks(COUNTS)
        line[0].set_ylabel("test error (%)", fontsize=8, color=plots.INK)
        heading = line[0].annotate(LEAVES[key], (0, 1.18), xycoords="axes fraction", fontsize=7.5)
        heading.set_in_layout(False)  # it is wider than its panel
    for order, look in looks.items():
        panels[0, 0].plot([], [], color=look.colour, marker=look.mark, markersize=2.8, linewidth=1.1, label=order)
    panels[0, 0].plot([], [], color=plots.GREY, linewidth=0.9, linestyle="--", label="all measured")
    figure.legend(loc="outside lower center", ncols=len(looks) + 1, fontsize=7, frameon=False)
    figure.get_layout_engine().set(hspace=0.12, rect=(0, 0, 1, 1 - 0.1 / len(tables)))  # type: ignore[union-attr]  # for the headings
    return figure


def make_proposals(
    measured: Mapping[ProposalSetting, ProposalEvaluation], folder: Path, note: str, *, name: str = "proposals"
) -> str:
    """The numbers as CSV and in Markdown, which is returned, and the figure of the first space."""
    rows = [row for setting, proposals in measured.items() for row in list_rows(setting, proposals)]
    report.write_rows(rows, folder / f"{name}.csv")
    plots.save_picture(draw_proposals(list_main(rows)), folder / f"{name}.png")
    return report.write_text(folder / f"{name}.md", f"{format_proposals(rows)}\n\n{note}".rstrip()).read_text()
