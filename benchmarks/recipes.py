"""How should experts be trained quickly? Candidates beside the paper's recipe, on the tasks of the meta-task.

    python benchmarks/recipes.py --data DIR --weights DIR --out DIR [--minutes M]    # a GPU, any number of runs at once
    python benchmarks/recipes.py --out DIR --tables DIR                              # table in how-to/library.md

The ten experts that the meta-task has by both of its recipes, trained by each candidate and tried on all tasks. The
table has, by family of tasks and recipe: the mean error in percent on tasks of which the expert has seen neither images
nor labels, that on tasks with images of its own, the rank correlation of the former with the paper's recipe and with a
second seed of `fast-1` (means over tasks), and how many images are drawn. `--tables` is the folder `experts` of the
meta-task.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from scipy.stats import spearmanr  # noqa: E402

from benchmarks.measure import make_parser, show_table  # noqa: E402
from experiments.metatask.measure import Studio, make_once  # noqa: E402
from experiments.metatask.plan import plan_experts  # noqa: E402
from experiments.report import load_bundle  # noqa: E402
from task2vec.experts import recipes  # noqa: E402

GRID = [(rate, epochs) for epochs in (5, 10) for rate in (0.005, 0.002, 0.001)]
CANDIDATES = {
    name: replace(recipes.FAST, name=name, rate=rate, epochs=epochs)
    for rate, epochs in GRID
    for name in [f"rate {rate:g}, {epochs} epochs"]
}
PAPER = "achille2019"
WAYS = {"fast-1": "", **{name: f" ({name})" for name in ("second seed", *CANDIDATES, PAPER)}}


def train(options: argparse.Namespace) -> None:
    """Trains and tries what is left, for so many minutes."""
    recipes.RECIPES.update(CANDIDATES)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plan, end = plan_experts(options.data), time.monotonic() + 60 * options.minutes
    pairs = [one for one in plan.experts if one.recipe == PAPER]
    studio = Studio(plan, options.weights, options.out, device)
    for name in CANDIDATES:
        for one in pairs:
            expert = replace(one, name=one.name.replace(PAPER, name), recipe=name)
            if time.monotonic() < end:
                make_once(studio.name_file("tables", expert.name), partial(studio.measure, expert))


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """All tables of a folder by the name of the expert."""
    tables = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    return {table["name"]: table for table in tables}


def average(table: dict[str, Any], tasks: list[str], train: str) -> np.ndarray:
    """(tasks,) mean errors in percent over seeds."""
    cells = [next(v for key, v in table["cells"][task].items() if f"train {train}, logistic" in key) for task in tasks]
    return 100 * np.array([[row[1] for row in cell] for cell in cells]).mean(1)


def find_unseen(experts: list[str], tasks: list[str]) -> np.ndarray:
    """(experts, tasks) whether an expert was trained on neither images nor labels of a task."""
    metatask = load_bundle(None)
    rows, columns = ([one.name for one in side] for side in (metatask.tasks, metatask.models))
    places = np.ix_([rows.index(task) for task in tasks], [columns.index(expert) for expert in experts])
    return ((metatask.shares_images[places] == 0) & ~metatask.shares_labels[places]).T


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of the table; means over tasks of what experts that have not seen them leave, as in recipes.csv."""
    known = read(options.tables)
    made = {**known, **read(options.out / "experts")}
    names = [name.removesuffix(f" ({PAPER})") for name in known if name.endswith(f"({PAPER})")]
    every = list(next(iter(known.values()))["cells"])
    rows = []
    for family, train in product(("taxa", "labels"), ("half", "5")):
        tasks = [task for task in every if task.startswith("birds: ") == (family == "labels")]
        unseen = find_unseen(names, tasks)
        judged = np.flatnonzero(unseen.sum(0) >= 3)
        shares = np.array([[known[name]["relations"].get(task, 0.0) for task in tasks] for name in names])
        errors = {
            way: np.stack([average(made[f"{name}{ending}"], tasks, train) for name in names])
            for way, ending in WAYS.items()
            if all(f"{name}{ending}" in made for name in names)
        }
        for way, each in errors.items():
            table = made[f"{names[0]}{WAYS[way]}"]
            row = {"family": family, "train": train, "recipe": way}
            row["unseen"] = f"{np.mean([each[unseen[:, task], task].mean() for task in judged]):.1f}"
            row["own images"] = f"{each[shares > 0].mean():.1f}"
            for other in (PAPER, "second seed"):
                pairs = [(each[unseen[:, t], t], errors[other][unseen[:, t], t]) for t in judged]
                alike = [spearmanr(a, b)[0] for a, b in pairs if np.ptp(a) and np.ptp(b)]
                row[f"as {other}"] = f"{np.mean(alike):.2f}"
            row["images"] = f"{table['recipe']['epochs'] * table['recipe']['draws']:,}"
            rows.append(row)
    return rows


def main() -> None:
    """Trains, or shows what came of it."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--tables", type=Path)
    options = parser.parse_args()
    if options.tables is None:
        train(options)
    else:
        rows = compare(options)
        show_table(list(rows[0]), [list(row.values()) for row in rows])


if __name__ == "__main__":
    main()
