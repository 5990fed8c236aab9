"""Builds a meta-task: trains its experts, tries each model on all tasks, embeds the tasks.

    python -m experiments.metatask.build experts --data DIR --weights DIR --out DIR

`experts` made `experts.safetensors`; `networks` the meta-task that ships with the package; `domains` the file
`domain_experts.safetensors` of experts for whole datasets beside the networks of the package; `sizes` the errors from
which `benchmarks/sizes.py` learns how they change with the image size. See `plan` for what they are, and `measure` for
how a run is resumed or shared.
"""

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import typer

import task2vec as t2v
from experiments.metatask.measure import Studio
from experiments.metatask.plan import plan_domains, plan_experts, plan_networks, plan_sizes
from experiments.metatask.quality import write_results
from experiments.report import make_app, say, write_rows
from task2vec import plots
from task2vec.experts import find_shots

PLANS = {"experts": plan_experts, "networks": plan_networks, "domains": plan_domains, "sizes": plan_sizes}


def write_tables(which: str, metatask: t2v.MetaTask, folder: Path) -> None:
    """The tables of a meta-task as CSV; mean errors in percent."""
    means = 100 * metatask.mean_errors()
    if which == "experts":
        write_results(metatask, folder)
    elif which == "networks":
        rows = []
        for row, number in np.ndindex(means.shape[0], means.shape[2]):
            task = metatask.tasks[row]
            about = {"task": task.name, "source": task.dataset, "family": task.family, "images": task.images}
            about |= {"classes": task.classes, "training images": find_shots(metatask.protocols[number])}
            errors = zip(metatask.models, means[row, :, number], strict=True)
            rows.append(about | {model.name: f"{error:.2f}" for model, error in errors})
        write_rows(rows, folder / "errors.csv")
        write_rows(metatask.info["curves"], folder / "tuned.csv")
    elif which == "sizes":
        rows = []
        for place in np.ndindex(means.shape):
            task, model, shots = metatask.tasks[place[0]], metatask.models[place[1]], metatask.protocols[place[2]]
            about = {"task": task.name, "source": task.dataset, "network": model.network, "size": model.size}
            rows.append(about | {"training images": find_shots(shots), "error": f"{means[place]:.2f}"})
        write_rows(rows, folder / "sizes.csv")


def build(
    which: Annotated[Literal["experts", "networks", "domains", "sizes"], typer.Argument(help="Which meta-task.")],
    data: Annotated[Path, typer.Option(help="Folder with a tasks.csv, datasets, and the folders domains and public.")],
    weights: Annotated[Path, typer.Option(help="Folder with the weights of the pretrained networks.")],
    out: Annotated[Path, typer.Option(help="Folder for tables and embeddings.")] = Path("task2vec-metatask"),
    note: Annotated[str, typer.Option(help="Where, when and by which commit it was measured.")] = "",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: a GPU if there is one.")] = None,
) -> None:
    """Train experts, try each model on all tasks, embed the tasks, and write the meta-task and its tables."""
    plan = PLANS[which](data)
    studio = Studio(plan, weights, out / which, device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if studio.make_all():
        metatask, folder = studio.gather(note), plots.make_folder(out / which / "results")
        path = metatask.save(folder / "metatask.safetensors")
        write_tables(which, t2v.load_metatask(path), folder)  # the tables are of what others will have
        say(f"{metatask} in {path}")


app = make_app(build)

if __name__ == "__main__":
    app()
