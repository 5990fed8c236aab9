"""The taxonomy experiment in pictures: maps, the tree, neighbourhood curves, norms, and questions found again."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.outcome import write_figure, write_rows
from experiments.property_claims import Claim, split
from experiments.taxonomy import DOMAIN
from experiments.taxonomy_rows import Agreements, Row, list_pairs
from task2vec import plots
from task2vec.errors import MissingExtraError
from task2vec.plots import GREY, INK, PAPER_WIDTH, choose_looks, format_legend, import_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEGEND: dict[str, Any] = {
    "fontsize": 6.5,
    "frameon": False,
    "loc": "lower left",
    "bbox_to_anchor": (0, 1.0),
    "handlelength": 1.2,
    "borderaxespad": 0.2,
}
_SAME, _BESIDE = "same question, other images", "other question, same images"


def write_agreements(agreements: Agreements, folder: Path, *, seed: int = 0) -> tuple[list[Path], list[str]]:
    """The figures and tables of a collection, and what could not be drawn, with how to get it."""
    main, names = agreements.methods[0], [row["task"] for row in agreements.tasks]
    groups = [f"{row['dataset']}: {row['group']}" for row in agreements.tasks]
    matrix = agreements.spaces[main]
    title = f"symmetric distance, {main}"
    files = plots.draw_matrix(matrix, names, out=folder / "tree", groups=groups, title=title)
    shown = {name: agreements.spaces[name] for name in _choose_curves(agreements)}
    files += plots.draw_neighbourhoods(shown, agreements.forest.distances["graph"], out=folder / "neighbourhoods")
    datasets = list(agreements.datasets)
    norms, errors = ([row[key] for row in agreements.tasks] for key in ("norm", "error"))
    if min(norms) > 0:
        files += plots.draw_norm_error(norms, errors, names=names, out=folder / "norm_error", groups=datasets)
    files += [
        write_rows(rows, folder, name)
        for name, rows in {
            "tasks": agreements.tasks,
            "distances": list_pairs(agreements),
            "measures": agreements.measures,
        }.items()
    ]
    try:
        return [*_write_maps(agreements, names, groups, folder, seed=seed), *files], []
    except MissingExtraError as error:
        return files, [f"The maps are missing: {error}, then run the same command again; the embeddings are kept."]


def write_questions(rows: Sequence[Row], pairs: Sequence[Row], asked: Sequence[Row], folder: Path) -> list[Path]:
    """The figure and tables of the questions about one set of images."""
    return [
        *write_figure(draw_questions(rows, pairs), folder, "attributes"),
        write_rows(rows, folder, "attributes"),
        write_rows(pairs, folder, "attribute_distances"),
        write_rows(asked, folder, "questions"),
    ]


def write_claims(claims: Sequence[Claim], folder: Path) -> Path:
    """The claims as a table."""
    return write_rows([asdict(claim) for claim in claims], folder, "claims")


def draw_questions(rows: Sequence[Row], pairs: Sequence[Row]) -> "Figure":
    """How often a question is found again, by space, and how far apart questions are."""
    figure = import_figure()(figsize=(PAPER_WIDTH, 3.0), dpi=300, layout="constrained")
    rates, distances = figure.subplots(1, 2, width_ratios=(1.0, 1.25))
    _draw_rates(rates, [row for row in rows if row["space"] in {pair["space"] for pair in pairs}])
    main = pairs[0]["space"]
    _draw_distances(distances, [pair for pair in pairs if pair["space"] in (main, f"{DOMAIN}, cosine")])
    for axes, letter in ((rates, "a"), (distances, "b")):
        axes.text(-0.13, 1.02, letter, fontsize=9, fontweight="bold", color=INK, transform=axes.transAxes)
    return figure


def _draw_rates(axes: "Axes", rows: Sequence[Row]) -> None:
    """Bars by family and space, and the rate of chance across each family."""
    families = split(rows, "family")
    looks = choose_looks([row["space"] for row in rows])
    width = 0.8 / len(looks)
    for number, (space, look) in enumerate(looks.items()):
        heights = [next(100 * row["rate"] for row in family if row["space"] == space) for family in families]
        places = np.arange(len(families)) - 0.4 + (number + 0.5) * width
        axes.bar(places, heights, 0.92 * width, color=look.colour, hatch=look.hatch, label=format_legend(space))
    for place, family in enumerate(families):
        chance = 100 * family[0]["chance"]
        label = "chance" if not place else None
        ends = [place - 0.45, place + 0.45]
        axes.plot(ends, [chance, chance], color=INK, linewidth=0.9, linestyle=(0, (2, 1.5)), label=label)
    style_axes(axes, "", "question found again (%)")
    axes.set_ylim(0, 105)
    names = [format_legend(f"{family[0]['family']} ({family[0]['questions']})") for family in families]
    axes.set_xticks(range(len(families)), names, fontsize=7, rotation=20, ha="right", rotation_mode="anchor")
    handles, words = axes.get_legend_handles_labels()
    order = sorted(range(len(words)), key=lambda entry: words[entry] == "chance")
    entries = [handles[entry] for entry in order], [words[entry] for entry in order]
    axes.legend(*entries, **_LEGEND, ncols=3)


def _draw_distances(axes: "Axes", pairs: Sequence[Row]) -> None:
    """Every pair as a dot, in units of the mean distance between different questions about different images."""
    rng = np.random.default_rng(0)
    labels: list[str] = []
    for family in split(pairs, "family"):
        for space in split(family, "space"):
            unit = np.mean([pair["distance"] for pair in space if pair["kind"] == "other"]) or 1.0
            for shift, kind, colour in ((-0.17, "same", "#d55e00"), (0.17, "beside", "#0072b2")):
                values = np.array([pair["distance"] for pair in space if pair["kind"] == kind]) / unit
                places = len(labels) + shift + rng.uniform(-0.1, 0.1, len(values))
                axes.scatter(places, values, s=7, color=colour, alpha=0.45, linewidths=0)
                axes.plot(len(labels) + shift + np.array([-0.14, 0.14]), [values.mean()] * 2, color=INK, linewidth=1.3)
            labels.append(format_legend(f"{space[0]['family']}, {space[0]['space'].split(',')[0]}"))
    for colour, words in (("#d55e00", _SAME), ("#0072b2", _BESIDE)):
        axes.scatter([], [], s=14, color=colour, label=words)
    axes.axhline(1.0, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)), label="other question, other images")
    style_axes(axes, "", "distance (mean of the dotted line = 1)")
    axes.set_ylim(bottom=-0.04)
    axes.set_xticks(range(len(labels)), labels, fontsize=6.5, rotation=20, ha="right", rotation_mode="anchor")
    axes.legend(**_LEGEND, ncols=2)


def _choose_curves(agreements: Agreements) -> list[str]:
    """The symmetric distance of every method, the cosine of the main one, and the domains."""
    rest = [name for name in agreements.spaces if name == f"{agreements.methods[0]}, cosine" or name.startswith(DOMAIN)]
    return [*agreements.methods, *rest]


def _write_maps(
    agreements: Agreements, names: Sequence[str], groups: Sequence[str], folder: Path, *, seed: int
) -> list[Path]:
    """Tasks beside their domains on paper, and the tasks on a page to walk about on."""
    main, domain = agreements.methods[0], f"{DOMAIN}, cosine"
    maps = [plots.lay_out(agreements.spaces[name], names, seed=seed) for name in (main, domain)]
    panels = {f"task embeddings ({main})": maps[0].positions, "domain embeddings": maps[1].positions}
    files = plots.draw_map(panels, names, out=folder / "maps", groups=groups)
    facts = [plots.TaskFacts(row["images"], row["classes"], row["error"], row["norm"]) for row in agreements.tasks]
    page = plots.write_page(
        maps[0].positions, names, path=folder / "map.html", distances=agreements.spaces[main], groups=groups,
        facts=facts, title=f"{len(names)} tasks", note=f"symmetric distance, {main}, {maps[0].describe()}",
    )  # fmt: skip
    return [page, *files]
