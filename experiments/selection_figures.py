"""The figures about choosing an expert: norms, errors of all experts, the error matrix, and errors by training size."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import task2vec as t2v
from experiments import report
from experiments.figures import choose_colours, draw_norms, style_axes
from experiments.report import FAILS, HOLDS, PARTLY, UNCLEAR, Claim, Row
from task2vec import plots
from task2vec.metatask import View
from task2vec.select.evaluate import find_strategy
from task2vec.select.strategies import find_known_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours for the colour-blind, the same for one thing in all pictures, as those of datasets are.
SELECTED, PAPERS, GENERIC = "#d55e00", "#e69f00", "#0072b2"
SYMMETRIC = "symmetric"


def shorten_name(name: str) -> str:
    """The name of a task or an expert in a picture: without the dataset, which its colour shows.

    Example:
        >>> shorten_name("cub_Icteridae"), shorten_name("birds: hue"), shorten_name("label: family Parulidae or not")
        ('Icteridae', 'hue', 'Parulidae or not')
    """
    for start in ("cub_", "flowers_", "dogs_", "birds: ", "label: "):
        name = name.removeprefix(start)
    if name.endswith(" or not"):
        name = name.removeprefix("family ").removeprefix("order ")
    return plots.shorten(name, 24)


def select(metatask: t2v.MetaTask, shots: str, space: str, family: str) -> View:
    """The tasks of a family by one training size and in one space."""
    return keep_space(metatask, space).select(shots, family=family)


def keep_space(metatask: t2v.MetaTask, space: str) -> t2v.MetaTask:
    """The meta-task with the embeddings, distances and norms of one space alone, whatever that is called."""
    fields: Row = {name: getattr(metatask, name) for name in ("embeddings", "distances", "trivial_distances", "norms")}
    return replace(metatask, **{name: {space: by[space]} if space in by else {} for name, by in fields.items()})


# --- norms: does the norm of an embedding show how hard a task is? ----------------------------------------------------

# Panels of so many spaces; the table has all.
_SHOWN = 2


def list_norms(metatask: t2v.MetaTask, family: str, shots: str, spaces: Sequence[str]) -> list[Row]:
    """The norms of every task in all spaces, and its errors."""
    selected = {name: select(metatask, shots, name, family) for name in spaces}
    first = selected[spaces[0]]
    means = find_known_errors(first)
    rows = []
    for number, task in enumerate(first.tasks):
        known = bool(np.isfinite(means[number]).any())
        row: Row = {"task": task.name, "family": family or "all tasks", "dataset": task.dataset, "shots": shots}
        row |= {"optimum": float(np.nanmin(means[number])) if known else np.nan}
        row |= {"generic": np.nan if first.generic is None else float(means[number, first.generic])}
        row |= {"classes": task.classes, "images": task.images}
        rows.append(row | {name: float(_get_norms(each)[number]) for name, each in selected.items()})
    return rows


def _get_norms(selected: View) -> np.ndarray:
    assert selected.norms is not None, "every space has norms"
    return selected.norms


def make_norms(rows: Sequence[Row], spaces: Sequence[str], folder: Path) -> list[Claim]:
    """The figure, the tasks behind it, and the correlations of all spaces."""
    correlations, claims = [], []
    for shots, own in report.split_rows(rows, "shots").items():
        families = report.split_rows(own, "family")
        for family, group in (families | ({"both families": own} if len(families) > 1 else {})).items():
            errors = [row["optimum"] for row in group]
            found = {by: report.correlate([row[by] for row in group], errors) for by in (*spaces, "classes", "images")}
            for by, one in found.items():
                row = {"shots": shots, "family": family, "by": by, "tasks": one.count}
                correlations.append(row | {"spearman": one.rho, "low": one.low, "high": one.high})
            if shots == rows[0]["shots"]:
                one, beside = found[spaces[0]], found["classes"]
                measured = f"rho {one}, {one.count} tasks; number of classes alone {beside}"
                claim = f"{family}: the norm goes with the error of the best expert"
                claims.append(Claim("norms", claim, measured, one.verdict))
    report.write_rows(rows, folder / "norms.csv")
    report.write_rows(correlations, folder / "norm_correlations.csv")
    shown = [row for row in rows if row["shots"] == rows[0]["shots"]]
    figure = draw_norms(shown, spaces[:_SHOWN], error="optimum", what="error of the best expert")
    plots.save_picture(figure, folder / "norms.png")
    return claims


# --- violins: the errors of all experts on every task, with the selected and the generic one marked -------------------

_LOOKS: dict[str, Row] = {
    "asymmetric": {"marker": "o", "color": PAPERS, "markerfacecolor": "none", "markersize": 4.6, "zorder": 4},
}
# More tasks than this are in two rows.
_MOST_COLUMNS = 26
# Within so many points of the best expert a choice is as good as it.
_NEAR = 0.01


def make_violins(selected: View, found: t2v.Evaluation, family: str, folder: Path) -> list[Claim]:
    """The figure of one family; tasks are in the order of their norms."""
    means, norms = find_known_errors(selected), _get_norms(selected)
    chosen = {name: found.outcomes[name].chosen for name in _LOOKS if name in found.outcomes}
    names = [model.name for model in selected.models]
    rows = []
    for number in np.argsort(norms[: len(selected.tasks)], kind="stable"):
        errors = means[number][np.isfinite(means[number])]
        task = selected.tasks[number]
        row: Row = {"number": int(number), "task": task.name, "dataset": task.dataset, "norm": float(norms[number])}
        row |= {"candidates": len(errors), "median": float(np.median(errors))}
        row |= {"best": names[int(np.nanargmin(means[number]))], "best_error": float(errors.min())}
        if selected.generic is not None:
            generic = float(means[number, selected.generic])
            row |= {"generic_error": generic, "worse_than_generic": float((errors > generic).mean())}
        for name, choice in chosen.items():
            error = float(means[number, choice[number]])
            row |= {name: names[choice[number]], f"{name}_error": error}
            row[f"{name}_rank"] = int((errors < error).sum()) + 1
        rows.append(row)
    report.write_rows(rows, folder / f"violins_{family}.csv")
    plots.save_picture(draw_violins(rows, means, list(chosen)), folder / f"violins_{family}.png")
    return _judge_violins(rows, family, list(chosen))


def draw_violins(rows: Sequence[Row], means: np.ndarray, strategies: Sequence[str]) -> "Figure":
    """Columns of errors: a shaded outline, dots for experts, and marks for the choices."""
    lines = 1 if len(rows) <= _MOST_COLUMNS else 2
    figure = report.open_figure(0.45 + 2.75 * lines)
    panels = figure.subplots(lines, 1, squeeze=False)[:, 0]
    per_line = -(-len(rows) // lines)
    colours = choose_colours([row["dataset"] for row in sorted(rows, key=lambda row: row["number"])])
    top = 100 * np.nanmax(means)
    for number, axes in enumerate(panels):
        part = rows[number * per_line : (number + 1) * per_line]
        _draw_columns(axes, part, means, strategies)
        style_axes(axes, "", "test error (%)")
        axes.set(xlim=(-0.7, per_line - 0.3), ylim=(-0.02 * top, 1.04 * top))
        axes.set_xticks(range(len(part)), [shorten_name(row["task"]) for row in part], fontsize=6.5)
        for label, row in zip(axes.get_xticklabels(), part, strict=True):
            label.set(rotation=40, ha="right", rotation_mode="anchor", color=colours[row["dataset"]])
        axes.tick_params(axis="x", length=2, pad=1)
    axes, plain = panels[0], {"linestyle": "none", "markersize": 4.6}
    entries = [axes.plot([], [], linestyle="none", label=name, **_LOOKS[name])[0] for name in strategies]
    entries.append(axes.plot([], [], marker="v", color=GENERIC, label="generic expert", **plain)[0])
    entries.append(axes.plot([], [], marker=".", color="#6b7884", label="any candidate", **plain)[0])
    looks: Row = {"fontsize": 6.5, "frameon": False, "handletextpad": 0.4, "columnspacing": 1.0, "handlelength": 1.0}
    figure.legend(handles=entries, loc="outside upper left", ncols=len(entries), **looks)
    if len(colours) > 1:
        names = [axes.plot([], [], color=colour, linewidth=3, label=name)[0] for name, colour in colours.items()]
        figure.legend(handles=names, loc="outside upper right", ncols=len(names), **looks)
    return figure


def _draw_columns(axes: "Axes", rows: Sequence[Row], means: np.ndarray, strategies: Sequence[str]) -> None:
    rng = np.random.default_rng(0)
    for place, row in enumerate(rows):
        errors = 100 * means[row["number"]]
        errors = errors[np.isfinite(errors)]
        if np.ptp(errors) > 0:
            bodies: Any = axes.violinplot([errors], [place], widths=0.92, showextrema=False)["bodies"]
            bodies[0].set(facecolor="#d3dbe3", edgecolor="#b4bfca", linewidth=0.4, alpha=1.0)
        places = place + rng.uniform(-0.12, 0.12, len(errors))
        axes.scatter(places, errors, s=1.6, color="#6b7884", linewidths=0, alpha=0.75, zorder=2)
        if "generic_error" in row:
            axes.scatter([place], [100 * row["generic_error"]], s=17, marker="v", color=GENERIC, linewidths=0, zorder=3)
        for name in strategies:
            axes.plot([place], [100 * row[f"{name}_error"]], linestyle="none", **_LOOKS[name])


def _judge_violins(rows: Sequence[Row], family: str, strategies: Sequence[str]) -> list[Claim]:
    """What the caption of the paper's figure claims."""
    claims, best = [], np.array([row["best_error"] for row in rows])
    if all("generic_error" in row for row in rows):
        worse = float(np.mean([row["worse_than_generic"] for row in rows]))
        gains = np.array([row["generic_error"] for row in rows]) - best
        trend = report.correlate([row["norm"] for row in rows], gains.tolist())
        middle, most = 100 * float(np.median(gains)), 100 * gains.max()
        median = f"the best gains {middle:.1f} points in the median, {most:.1f} at most"
        worse_than_it = f"{100 * worse:.0f}% of the candidates are worse than it"
        summary = (
            ("most experts are no better than the generic one", worse_than_it,
             HOLDS if worse > 0.5 else FAILS),
            ("a well chosen expert can beat it by much", median, HOLDS if gains.max() > 0.1 else FAILS),
            ("tasks of larger norm gain more by it", f"rho of norm and the best one's gain {trend}", trend.verdict),
        )  # fmt: skip
        claims += [Claim("violins", f"{family}: {claim}", measured, verdict) for claim, measured, verdict in summary]
    for name in strategies:
        near = int((np.array([row[f"{name}_error"] for row in rows]) - best <= _NEAR + 1e-9).sum())
        first = sum(row[f"{name}_rank"] <= 3 for row in rows)
        measured = f"{near} of {len(rows)} within {100 * _NEAR:g} point of the best, {first} among the first three"
        verdict = HOLDS if near > 0.5 * len(rows) else PARTLY if first > 0.25 * len(rows) else FAILS
        claims.append(Claim("violins", f"{family}: {name} mostly finds the best, or nearly", measured, verdict))
    return claims


# --- matrix: all errors, coloured by the asymmetric distance, with the choices framed ---------------------------------

# Seen on pale yellow as well as on dark blue.
_BEST = "#e0439f"
# Inches of a cell, and of the names beside them.
_WIDE, _HIGH, _NAMES = 0.155, 0.135, 1.15


def make_matrix(selected: View, found: t2v.Evaluation, family: str, folder: Path) -> list[Claim]:
    """The figure of one family: tasks down, experts across."""
    if "asymmetric" not in found.outcomes:
        report.say(f"the matrix of {family} is missing: {found.left_out['asymmetric']}")
        return []
    means = find_known_errors(selected)
    best, chosen = np.nanargmin(means, axis=1), found.outcomes["asymmetric"].chosen
    assert selected.trivial_distances is not None, "the asymmetric distance needs them"
    simplicity = selected.pick_sources(selected.trivial_distances)
    distances = selected.to_sources(SYMMETRIC) - t2v.distance.ALPHA * simplicity
    # Experts that may be chosen for some task, those of unknown source task last.
    allowed = [column for column in range(len(selected.models)) if selected.is_candidate[:, column].any()]
    columns = sorted(allowed, key=lambda column: bool(np.isnan(distances[:, column]).all()))
    rows = []
    for number, task in enumerate(selected.tasks):
        for column in columns:
            row = {"task": task.name, "expert": selected.models[column].name, "error": selected.mean[number, column]}
            row |= {"distance": distances[number, column], "is_candidate": int(selected.is_candidate[number, column])}
            rows.append(row | {"is_selected": int(chosen[number] == column), "is_best": int(best[number] == column)})
    report.write_rows(rows, folder / f"matrix_{family}.csv")
    figure = draw_matrix(selected, distances, columns, {_BEST: best, SELECTED: chosen})
    plots.save_picture(figure, folder / f"matrix_{family}.png")
    return [_judge_matrix(means, distances, family, int((chosen == best).sum()))]


def draw_matrix(
    selected: View, distances: np.ndarray, columns: Sequence[int], frames: Mapping[str, np.ndarray]
) -> "Figure":
    """Errors in percent as numbers; dark where the source task is near; pale numbers where an expert saw the task."""
    from matplotlib.patches import Patch, Rectangle

    tall, wide = len(selected.tasks), len(columns)
    size = (max(_NAMES + 0.45 + _WIDE * wide, 5.0), max(_NAMES + 0.5 + _HIGH * tall, 3.0))
    figure = report.open_figure(size[1], width=size[0], dpi=220)
    axes = figure.subplots()
    shown = np.where(selected.is_candidate, distances, np.nan)[:, columns]
    low, high = np.nanmin(shown), np.nanmax(shown)
    options: Row = {"vmin": low - 0.1 * (high - low), "vmax": high, "aspect": "auto", "interpolation": "nearest"}
    picture = axes.imshow(np.ma.masked_invalid(shown), cmap="YlGnBu_r", **options)
    bar = figure.colorbar(picture, ax=axes, fraction=0.012, pad=0.008, aspect=40)
    bar.set_label("asymmetric distance from the expert's source task", fontsize=7, color=plots.INK)
    bar.ax.tick_params(labelsize=6, color=plots.GREY, labelcolor=plots.INK)
    for row, place in np.ndindex(tall, wide):
        error, red_green_blue = selected.mean[row, columns[place]], picture.cmap(picture.norm(shown[row, place]))[:3]
        is_dark = np.isfinite(shown[row, place]) and np.dot(red_green_blue, (0.299, 0.587, 0.114)) < 0.55
        colour = "white" if is_dark else plots.INK
        colour = colour if selected.is_candidate[row, columns[place]] else "#c3cad1"
        words = axes.text(place, row, f"{100 * error:.0f}", fontsize=4.3, color=colour, ha="center", va="center")
        words.set_in_layout(False)  # thousands of them would be measured again and again
    for colour, chosen in frames.items():
        edge = 0.33 if colour == SELECTED else 0.47  # the inner one leaves room for another outside
        for row, expert in enumerate(chosen):
            corner, looks = (columns.index(expert) - edge, row - edge), {"edgecolor": colour, "linewidth": 1.0}
            axes.add_patch(Rectangle(corner, 2 * edge, 2 * edge, fill=False, clip_on=False, zorder=4, **looks))
    _name_sides(axes, selected, columns)
    labels = {_BEST: "best candidate", SELECTED: "nearest, and so selected", "none": "pale: has seen the task"}
    entries = [Patch(facecolor="none", edgecolor=colour, linewidth=1.2, label=text) for colour, text in labels.items()]
    figure.legend(handles=entries, loc="outside lower left", ncols=3, fontsize=7, frameon=False, handlelength=1.0)
    return figure


def _name_sides(axes: "Axes", selected: View, columns: Sequence[int]) -> None:
    """Names of tasks and experts in the colours of their datasets."""
    sources = [selected.models[column].source_dataset or "" for column in columns]
    colours = choose_colours([*selected.datasets, *filter(None, sources)])
    axes.set_xticks(range(len(columns)), [shorten_name(selected.models[c].name) for c in columns], fontsize=5.5)
    axes.set_yticks(range(len(selected.tasks)), [shorten_name(task.name) for task in selected.tasks], fontsize=5.5)
    axes.tick_params(length=0, pad=2, top=True, bottom=False, labeltop=True, labelbottom=False)
    for label, source in zip(axes.get_xticklabels(), sources, strict=True):
        label.set(rotation=90, color=colours.get(source, plots.INK))
    for label, dataset in zip(axes.get_yticklabels(), selected.datasets, strict=True):
        label.set_color(colours[dataset])
    for side in axes.spines.values():
        side.set_visible(False)


def _judge_matrix(means: np.ndarray, distances: np.ndarray, family: str, hits: int) -> Claim:
    """How far distance and error go together within a task, and how often the nearest is the best."""
    claim, found = f"{family}: experts whose task is near by the asymmetric distance have smaller errors", []
    for errors, row in zip(means, distances, strict=True):
        known = np.isfinite(errors) & np.isfinite(row)
        if known.sum() > 2:
            found.append(report.spearman(row[known], errors[known]))
    found = [rho for rho in found if np.isfinite(rho)]
    if not found:
        return Claim("matrix", claim, "no source task of a candidate has an embedding here", UNCLEAR)
    draws = np.random.default_rng(0).choice(found, (2000, len(found))).mean(1)
    low, high = np.quantile(draws, [0.025, 0.975])
    measured = f"mean rho within a task {np.mean(found):.2f} [{low:.2f}, {high:.2f}]"
    measured += f"; the nearest is the best for {hits} of {len(means)} tasks"
    return Claim("matrix", claim, measured, HOLDS if low > 0 else FAILS if high < 0 else UNCLEAR)


# --- curves: how much data a chosen expert saves ----------------------------------------------------------------------
#
# Candidates are the experts whose curves were measured and that have not seen the task. One is selected for a task from
# the errors of all other tasks with half of the images, not from its curve; the best is the smallest error at every
# size, and biased low.

WAYS = {"linear": "features frozen", "tuned": "whole network tuned"}
_WAY_COLOURS = {"linear": "#d55e00", "tuned": "#0072b2"}
# Drawn in this order: where the generic expert is selected, its broad line is still seen below.
_CHOICES: dict[str, Row] = {
    "generic": {"linestyle": (0, (2.2, 1)), "linewidth": 3.2, "alpha": 0.4},
    "best": {"linestyle": (0, (1, 1.5)), "linewidth": 1.2},
    "selected": {"linestyle": "-", "linewidth": 1.2, "marker": "o", "markersize": 2.4},
}


def make_curves(metatask: t2v.MetaTask, shots: str, space: str, folder: Path) -> list[Claim]:
    """The figure from the meta-task's errors by training size."""
    points = metatask.info.get("curves")
    if not points:
        report.say("the data-efficiency curves are missing: this meta-task has no errors by training size")
        return []
    picked = select_for_curves(metatask, points, shots, space)
    rows = list_curves(points, picked)
    gaps = compare_choices(rows)
    report.write_rows(rows, folder / "curves.csv")
    plots.save_picture(draw_curves(rows, gaps), folder / "curves.png")
    return _judge_curves(gaps, picked)


def select_for_curves(metatask: t2v.MetaTask, points: Sequence[Mapping[str, Any]], shots: str, space: str) -> Row:
    """For each task of the curves: its candidates among their experts, the selected and the generic one."""
    experts = {str(point["expert"]) for point in points}
    picked = {}
    for name in dict.fromkeys(str(point["task"]) for point in points):
        selected = select(metatask, shots, space, next(one.family for one in metatask.tasks if one.name == name))
        columns = [column for column, model in enumerate(selected.models) if model.name in experts]
        selected = selected.only(range(len(selected.tasks)), columns)
        row = next(number for number, task in enumerate(selected.tasks) if task.name == name)
        others, is_candidate = np.delete(np.arange(len(selected.tasks)), row), selected.is_candidate[row]
        predict = find_strategy("asymmetric").fit(selected.only(others))
        first = predict(selected.query(row, known=others)).order(is_candidate)[0]
        names = [model.name for model in selected.models]
        generic = None if selected.generic is None else names[selected.generic]
        candidates = [names[column] for column in np.flatnonzero(is_candidate)]
        picked[name] = {"selected": names[first], "generic": generic, "candidates": candidates}
    return picked


def list_curves(points: Sequence[Mapping[str, Any]], picked: Mapping[str, Row]) -> list[Row]:
    """The mean error over seeds of each choice for each task, way and training size, and the ends of its range."""
    cells: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    images: dict[tuple[str, str], float] = {}
    for point in points:
        key = str(point["task"]), str(point["way"]), str(point["train"])
        cells.setdefault(key, {}).setdefault(str(point["expert"]), []).append(float(point["error"]))
        images[key[0], key[2]] = float(point["images"])
    rows = []
    for task, way, shots in sorted(cells, key=lambda key: (key[0], key[1], images[key[0], key[2]])):
        errors, own = cells[task, way, shots], picked[task]
        means = {name: float(np.mean(errors[name])) for name in own["candidates"] if name in errors}
        best = min(means, key=lambda name: means[name])
        for choice, expert in (("selected", own["selected"]), ("generic", own["generic"]), ("best", best)):
            if expert in errors:
                values = np.array(errors[expert])
                row: Row = {"task": task, "way": way, "shots": shots, "images": images[task, shots], "choice": choice}
                row |= {"expert": expert, "error": float(values.mean()), "seeds": len(values)}
                rows.append(row | {"low": float(values.min()), "high": float(values.max())})
    return rows


def compare_choices(rows: Sequence[Row]) -> list[Row]:
    """For each way and training size that all tasks have: the mean over tasks of each choice's error."""
    found = []
    for way, own in report.split_rows(rows, "way").items():
        for shots, group in report.split_rows(own, "shots").items():
            by = {c: {row["task"]: row["error"] for row in group if row["choice"] == c} for c in _CHOICES}
            common = [task for task in by["best"] if all(task in each for each in by.values())]
            means = {choice: float(np.mean([by[choice][task] for task in common])) for choice in _CHOICES}
            found.append({"way": way, "shots": shots, "tasks": len(common), **means})
    return [row for row in found if row["tasks"] == max(other["tasks"] for other in found)]


def draw_curves(rows: Sequence[Row], gaps: Sequence[Row]) -> "Figure":
    """A panel for each task, and one for their mean above the best."""
    tasks = report.split_rows(rows, "task")
    lines = -(-(len(tasks) + 2) // 3)
    figure = report.open_figure(2.15 * lines)
    (*panels,) = figure.subplots(lines, 3, squeeze=False).flat
    for axes, (task, group) in zip(panels, tasks.items(), strict=False):
        for way, colour in _WAY_COLOURS.items():
            for choice, look in _CHOICES.items():
                own = [row for row in group if (row["way"], row["choice"]) == (way, choice)]
                at = [row["images"] for row in own]
                axes.plot(at, [100 * row["error"] for row in own], color=colour, **look)
                if choice == "selected":
                    low, high = ([100 * row[end] for row in own] for end in ("low", "high"))
                    axes.fill_between(at, low, high, color=colour, alpha=0.13, linewidth=0)
        style_axes(axes, "training images", "test error (%)")
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        counts = sorted({row["images"] for row in group})
        axes.set_xticks(counts, [f"{count:g}" for count in counts])
        axes.xaxis.minorticks_off()
        axes.set_title(plots.shorten(task.replace("_", ": ")), fontsize=8, color=plots.INK, loc="left")
    axes, order = panels[len(tasks)], list(dict.fromkeys(row["shots"] for row in gaps))
    for way, own in report.split_rows(gaps, "way").items():
        for choice in ("generic", "selected"):
            above = [100 * (row[choice] / row["best"] - 1) for row in own]
            axes.plot([order.index(row["shots"]) for row in own], above, color=_WAY_COLOURS[way], **_CHOICES[choice])
    axes.axhline(0, color=plots.INK, linewidth=0.8, linestyle=(0, (1, 1.5)))
    style_axes(axes, "training images of each class", "error above the best (%)")
    axes.set_xticks(range(len(order)), order)
    axes.set_title("mean of the tasks", fontsize=8, color=plots.INK, loc="left")
    for axes in panels[len(tasks) + 1 :]:
        axes.axis("off")
    axes, labels = panels[len(tasks) + 1], {"selected": "selected expert", "generic": "generic expert"}
    for way, text in WAYS.items():
        axes.plot([], [], color=_WAY_COLOURS[way], linewidth=4, label=text)
    for choice, text in (labels | {"best": "best at this size"}).items():
        axes.plot([], [], color=plots.INK, label=text, **_CHOICES[choice])
    axes.legend(loc="center left", fontsize=7.5, frameon=False, handlelength=2.6, labelspacing=0.9)
    return figure


def _judge_curves(gaps: Sequence[Row], picked: Mapping[str, Row]) -> list[Claim]:
    """The paper: selected is better than generic at all sizes and in both ways. Who is the generic one cannot be."""
    others, claims = sum(own["selected"] != own["generic"] for own in picked.values()), []
    for way, own in report.split_rows(gaps, "way").items():
        better = sum(row["selected"] < row["generic"] for row in own)
        measured = ", ".join(f"{100 * (row['generic'] - row['selected']):+.1f} ({row['shots']})" for row in own)
        measured = f"points gained on {own[0]['tasks']} tasks, by images of each class: {measured}"
        measured += f"; for {others} of them another one than the generic is selected"
        is_so = better == len(own) and others > len(picked) / 2
        claim = f"{WAYS[way]}: the selected expert is better than the generic one at all sizes"
        claims.append(Claim("curves", claim, measured, HOLDS if is_so else PARTLY if better else FAILS))
    return claims
