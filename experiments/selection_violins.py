"""The errors of all experts on every task, with the selected and the generic one marked; tasks by their norms."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.property_claims import FAILS, HOLDS, PARTLY, Claim, correlate
from experiments.selection_choices import Chosen, choose_experts
from experiments.selection_settings import (
    GENERIC,
    PAPERS,
    SELECTED,
    Made,
    Row,
    Setting,
    colour_datasets,
    gather,
    list_settings,
    word_task,
    write_outcome,
)
from task2vec.experts.metatask import MetaTask
from task2vec.plots import INK, PAPER_WIDTH, import_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from task2vec.experts.metatask import MetaTask

STRATEGIES = ("combined", "asymmetric")
_LOOKS: dict[str, dict[str, Any]] = {
    "asymmetric": {
        "marker": "o",
        "color": PAPERS,
        "markerfacecolor": "none",
        "markersize": 4.6,
        "markeredgewidth": 1.0,
    },
    "combined": {"marker": "x", "color": SELECTED, "markersize": 4.2, "markeredgewidth": 1.3},
}
# More tasks than this stand in two rows.
_MOST_COLUMNS = 26
# Within so many points of the best expert a choice is as good as it.
_NEAR = 0.01


def make_violins(measured: MetaTask, folder: Path) -> Made:
    """A figure for each family, with half of the images for training."""
    files: list[Path] = []
    claims: list[Claim] = []
    for setting in [each for each in list_settings(measured) if each.protocol == list_settings(measured)[0].protocol]:
        evidence = gather(measured, setting)
        chosen = choose_experts(evidence, STRATEGIES)
        rows = list_errors(evidence, chosen)
        numbers = _summarise(rows)
        figure = draw_violins(rows, chosen, evidence)
        files += write_outcome(folder, f"violins_{setting.family}", rows=rows, numbers=numbers, figure=figure)
        claims += _judge(numbers, setting)
    return Made(files, claims)


def list_errors(evidence: "MetaTask", chosen: Chosen) -> list[Row]:
    """One row for each task, in the order of their norms: who is chosen, and with which error."""
    norms = evidence.norms["symmetric"][: len(evidence.tasks)]
    rows = []
    for row in np.argsort(norms, kind="stable"):
        errors = chosen.means[row][np.isfinite(chosen.means[row])]
        told: Row = {"number": int(row), "task": evidence.tasks[row].name, "dataset": evidence.datasets[row]}
        told |= {"norm": float(norms[row]), "candidates": len(errors), "median": float(np.median(errors))}
        told |= {"best": evidence.models[chosen.optimum[row]].name, "best_error": float(errors.min())}
        if chosen.generic is not None:
            generic = float(chosen.means[row, chosen.generic])
            told |= {"generic_error": generic, "worse_than_generic": float((errors > generic).mean())}
        for name, found in chosen.by.items():
            told |= {name: evidence.models[found[row]].name, f"{name}_error": float(chosen.means[row, found[row]])}
            told |= {f"{name}_rank": int((errors < chosen.means[row, found[row]]).sum()) + 1}
        rows.append(told)
    return rows


def draw_violins(rows: Sequence[Row], chosen: Chosen, evidence: "MetaTask") -> "Figure":
    """Columns of errors: a shaded outline, dots for experts, and marks for what is chosen."""
    lines = 1 if len(rows) <= _MOST_COLUMNS else 2
    figure = import_figure()(figsize=(PAPER_WIDTH, 0.45 + 2.75 * lines), dpi=300, layout="constrained")
    panels = figure.subplots(lines, 1, squeeze=False)[:, 0]
    per_line = -(-len(rows) // lines)
    colours = colour_datasets(list(evidence.datasets))
    top = 100 * np.nanmax(chosen.means)
    for number, axes in enumerate(panels):
        part = rows[number * per_line : (number + 1) * per_line]
        _draw_columns(axes, part, chosen)
        style_axes(axes, "", "test error (%)")
        axes.set_xlim(-0.7, per_line - 0.3)
        axes.set_ylim(-0.02 * top, 1.04 * top)
        axes.set_xticks(range(len(part)), [word_task(row["task"]) for row in part], fontsize=6.5)
        for label, row in zip(axes.get_xticklabels(), part, strict=True):
            label.set(rotation=40, ha="right", rotation_mode="anchor", color=colours[row["dataset"]])
        axes.tick_params(axis="x", length=2, pad=1)
    _add_legend(figure, panels[0], colours, chosen)
    return figure


def _draw_columns(axes: "Axes", rows: Sequence[Row], chosen: Chosen) -> None:
    rng = np.random.default_rng(0)
    for place, row in enumerate(rows):
        errors = 100 * chosen.means[row["number"]]
        errors = errors[np.isfinite(errors)]
        if np.ptp(errors) > 0:
            shape = axes.violinplot([errors], [place], widths=0.92, showextrema=False)
            bodies: Any = shape["bodies"]
            bodies[0].set(facecolor="#d3dbe3", edgecolor="#b4bfca", linewidth=0.4, alpha=1.0)
        places = place + rng.uniform(-0.12, 0.12, len(errors))
        axes.scatter(places, errors, s=1.6, color="#6b7884", linewidths=0, alpha=0.75, zorder=2)
        if "generic_error" in row:
            axes.scatter([place], [100 * row["generic_error"]], s=17, marker="v", color=GENERIC, linewidths=0, zorder=3)
        for name, look in _LOOKS.items():
            if name in chosen.by:
                axes.plot([place], [100 * row[f"{name}_error"]], linestyle="none", zorder=4, **look)


def _add_legend(figure: "Figure", axes: "Axes", colours: dict[str, str], chosen: Chosen) -> None:
    """What the marks mean, and which colour of a name is which dataset."""
    words = {"combined": "combined", "asymmetric": "asymmetric distance"}
    names = [name for name in words if name in chosen.by]
    entries = [axes.plot([], [], linestyle="none", label=words[name], **_LOOKS[name])[0] for name in names]
    plain: dict[str, Any] = {"linestyle": "none", "markersize": 4.6}
    if chosen.generic is not None:
        entries.append(axes.plot([], [], marker="v", color=GENERIC, label="generic expert", **plain)[0])
    entries.append(axes.plot([], [], marker=".", color="#6b7884", label="any candidate", **plain)[0])
    looks: dict[str, Any] = {"fontsize": 6.5, "frameon": False, "handletextpad": 0.4, "columnspacing": 1.0}
    looks |= {"handlelength": 1.0, "borderpad": 0.1, "labelcolor": INK}
    figure.legend(handles=entries, loc="outside upper left", ncols=len(entries), **looks)
    if len(colours) > 1:
        names = [axes.plot([], [], color=colour, linewidth=3, label=name)[0] for name, colour in colours.items()]
        figure.legend(handles=names, loc="outside upper right", ncols=len(names), **looks)


def _summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """The numbers that the claims rest on."""
    best = np.array([row["best_error"] for row in rows])
    numbers: dict[str, Any] = {"tasks": len(rows)}
    for name in [name for name in STRATEGIES if name in rows[0]]:
        errors = np.array([row[f"{name}_error"] for row in rows])
        ranks = np.array([row[f"{name}_rank"] for row in rows])
        numbers[name] = {"near": int((errors - best <= _NEAR + 1e-9).sum()), "best": int((ranks == 1).sum())}
        numbers[name]["first three"] = int((ranks <= 3).sum())
    if all("generic_error" in row for row in rows):
        generic = np.array([row["generic_error"] for row in rows])
        gain = correlate([row["norm"] for row in rows], (generic - best).tolist())
        numbers["worse than generic"] = float(np.mean([row["worse_than_generic"] for row in rows]))
        numbers["best gains"] = {"median": float(np.median(generic - best)), "most": float((generic - best).max())}
        numbers["norm and gain"] = {"spearman": gain.rho, "low": gain.low, "high": gain.high, "words": str(gain)}
        numbers["norm and gain"]["verdict"] = gain.verdict
    return numbers


def _judge(numbers: dict[str, Any], setting: Setting) -> list[Claim]:
    """What the caption of the paper's figure says, and what is so here."""
    count, claims = numbers["tasks"], []
    if "worse than generic" in numbers:
        worse, gains = numbers["worse than generic"], numbers["best gains"]
        told = f"{100 * worse:.0f} % of the candidates are worse than it"
        claims.append(_claim(setting, "most experts are no better than the generic one", told, worse > 0.5))
        told = f"the best gains {100 * gains['median']:.1f} points in the median, {100 * gains['most']:.1f} at most"
        claims.append(_claim(setting, "a well chosen expert can beat it by much", told, gains["most"] > 0.1))
        told = f"rho of norm and the best one's gain {numbers['norm and gain']['words']}"
        verdict = numbers["norm and gain"]["verdict"]
        claims.append(Claim("violins", f"{setting.family}: tasks of larger norm gain more by it", told, verdict))
    for name in [name for name in STRATEGIES if name in numbers]:
        near, first = numbers[name]["near"], numbers[name]["first three"]
        told = f"{near} of {count} within {100 * _NEAR:g} point of the best, {first} among the first three"
        verdict = HOLDS if near > 0.5 * count else PARTLY if first > 0.25 * count else FAILS
        claims.append(Claim("violins", f"{setting.family}: {name} mostly finds the best, or nearly", told, verdict))
    return claims


def _claim(setting: Setting, claim: str, measured: str, is_so: bool) -> Claim:
    return Claim("violins", f"{setting.family}: {claim}", measured, HOLDS if is_so else FAILS)
