"""How should experts be trained quickly? Candidates beside the paper's recipe, on the tasks of the meta-task.

    python benchmarks/recipes.py --data DIR --weights DIR --out DIR [--minutes M]    # a GPU, any number of runs at once
    python benchmarks/recipes.py --out DIR --tables DIR                              # the table of docs/experts.md

The ten experts that the meta-task has by both of its recipes, trained by each candidate and tried on all tasks. The
table has, by family of tasks and recipe: the mean error in percent on tasks that the expert has not seen, the mean
error on tasks of its own images or labels, the rank correlation of experts with the paper's recipe (mean over tasks),
and how many times fewer images are drawn. `--tables` is the folder `experts` of the meta-task.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from scipy.stats import spearmanr  # noqa: E402

from benchmarks.measure import show_table  # noqa: E402
from task2vec.experts import recipes  # noqa: E402
from task2vec.paper.metatask_run import Run  # noqa: E402

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
    run = Run(options.data, options.weights, options.out, device=device, workers=3, say=print)
    pairs = [one for one in run.plan.experts if one.recipe == PAPER]
    run.plan = replace(
        run.plan,
        experts=tuple(
            replace(one, name=one.name.replace(PAPER, name), recipe=name) for name in CANDIDATES for one in pairs
        ),
    )
    print(run.make(["experts"], seconds=60 * options.minutes))


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """All tables of a folder by the name of the expert."""
    tables = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    return {table["name"]: table for table in tables}


def average(table: dict[str, Any], tasks: list[str], train: str) -> np.ndarray:
    """(tasks,) mean errors in percent over seeds."""
    cells = [next(v for key, v in table["cells"][task].items() if f"train {train}, logistic" in key) for task in tasks]
    return 100 * np.array([[row[1] for row in cell] for cell in cells]).mean(1)


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of the table."""
    known = read(options.tables)
    made = {**known, **read(options.out / "experts")}
    names = [name.removesuffix(f" ({PAPER})") for name in known if name.endswith(f"({PAPER})")]
    every = list(next(iter(known.values()))["cells"])
    rows = []
    for family in ("taxa", "labels"):
        tasks = [task for task in every if task.startswith("birds: ") == (family == "labels")]
        for train in ("half", "5"):
            paper = np.stack([average(known[f"{name} ({PAPER})"], tasks, train) for name in names])
            shares = np.array([[known[name]["relations"].get(task, 0.0) for task in tasks] for name in names])
            for way, ending in WAYS.items():
                if any(f"{name}{ending}" not in made for name in names):
                    continue
                errors = np.stack([average(made[f"{name}{ending}"], tasks, train) for name in names])
                alike = [spearmanr(a, b)[0] for a, b in zip(errors.T, paper.T, strict=True) if np.ptp(a) and np.ptp(b)]
                table = made[f"{names[0]}{ending}"]
                drawn = table["recipe"]["epochs"] * table["recipe"]["draws"]
                rows.append(
                    {
                        "family": family,
                        "train": train,
                        "recipe": way,
                        "unseen": f"{errors[shares == 0].mean():.1f}",
                        "seen": f"{errors[shares > 0].mean():.1f}" if (shares > 0).any() else "",
                        "as the paper's": f"{np.mean(alike):.2f}",
                        "images": f"{drawn:,}",
                    }
                )
    return rows


def main() -> None:
    """Trains, or shows what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
