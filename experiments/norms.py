"""How well the norm of an embedding ranks tasks by error: on all tasks of the package, and on some of them.

The paper shows it for tasks of one kind (Achille 2019, figure 2). Here it is computed for every kind of task in the
package, for all of them together, and for the 43 groups of birds, flowers and dogs that `experiments.properties`
measures. The error is that of the head of the embedding itself, cross-validated. No images are needed.

    python -m experiments.norms --out docs/properties
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import task2vec as t2v
from experiments import report
from experiments.report import Claim, Row
from task2vec import plots
from task2vec.metatask import TaskInfo

ALL, GROUPS = "all tasks", "groups of birds, flowers and dogs"
FILE = "norm_all_tasks.csv"


def list_kinds(tasks: tuple[TaskInfo, ...]) -> dict[str, np.ndarray]:
    """(tasks,) which tasks are of each kind: all, those of each family, and the groups within datasets."""
    families = np.array([task.family for task in tasks])
    is_group = np.array([task.family == "taxa" and task.name != task.dataset for task in tasks])
    return {ALL: np.ones(len(tasks), dtype=bool), GROUPS: is_group} | {
        family: families == family for family in dict.fromkeys(families.tolist())
    }


def correlate_norms(metatask: t2v.MetaTask) -> list[Row]:
    """A row for every kind of task and space: Spearman's correlation of norm and error, with its interval."""
    rows = []
    for kind, is_counted in list_kinds(metatask.tasks).items():
        for space, embeddings in metatask.embeddings.items():
            counted = [embeddings[number] for number in np.flatnonzero(is_counted).tolist()]
            errors = [embedding.provenance["head"]["cv_error"] for embedding in counted]
            result = report.correlate([embedding.norm() for embedding in counted], errors)
            row: Row = {"tasks": kind, "space": space, "count": result.count, "spearman": result.rho}
            rows.append(row | {"low": result.low, "high": result.high, "verdict": result.verdict})
    return rows


def norms(
    out: Annotated[Path, typer.Option(help="Folder for the table.")] = Path("task2vec-paper"),
    bundle: Annotated[Path | None, typer.Option(help="A meta-task; default: that of the package.")] = None,
) -> None:
    """How well the norm ranks tasks by error, on all tasks of a meta-task and on each kind of them."""
    metatask = t2v.bundled_metatask() if bundle is None else t2v.load_metatask(bundle)
    rows = correlate_norms(metatask)
    file = report.write_rows(rows, plots.make_folder(out) / FILE)
    claims = [
        Claim("norms", f"{row['tasks']}, {row['space']}: the norm ranks tasks by error",
              f"rho {row['spearman']:.2f} [{row['low']:.2f}, {row['high']:.2f}], {row['count']} tasks", row["verdict"])
        for row in rows if row["spearman"] is not None
    ]  # fmt: skip
    report.print_claims(claims, [file])


app = report.make_app(norms)

if __name__ == "__main__":
    app()
