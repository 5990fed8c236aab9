"""Builds a meta-task: trains its experts, tries each model on all tasks, embeds the tasks.

    python -m experiments.metatask.build experts --data DIR --weights DIR --out DIR

`experts` made `experts.safetensors`; `networks` the meta-task that ships with the package; `domains` the file
`domain_experts.safetensors` of experts for whole datasets beside the networks of the package, whose images, splits and
protocols are the same; `sizes` the errors from which `benchmarks/sizes.py` learns how they change with the image size.
See `plan` for what they are, and `measure` for how a run is resumed or shared.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import typer

import task2vec as t2v
from experiments.metatask.measure import Studio
from experiments.metatask.plan import MetaTaskPlan, plan_domains, plan_experts, plan_networks, plan_sizes
from experiments.metatask.quality import write_results
from experiments.report import Row, make_app, say, write_rows
from task2vec import plots
from task2vec.experts import find_shots

PLANS = {"experts": plan_experts, "networks": plan_networks, "domains": plan_domains, "sizes": plan_sizes}
BY_SEED = ("errors", "low", "high", "halves")


def choose_known(base: t2v.MetaTask, plan: MetaTaskPlan) -> t2v.MetaTask:
    """What a meta-task of networks knows of the tasks of a plan, by its protocols and seeds."""
    rows = {task.fingerprint: row for row, task in enumerate(base.tasks)}
    for one in plan.tasks:
        if one.task.fingerprint not in rows:
            raise t2v.errors.DataError(
                f"'{one.task.name}' is none of the tasks of '{base.name}', or has other images or labels there, so "
                "that experts would have nothing to be compared with. Use the images that it was measured on."
            )
    known = base.only(rows[one.task.fingerprint] for one in plan.tasks)
    keys, seeds = tuple(one.key for one in plan.protocols), [known.seeds.index(seed) for seed in plan.seeds]
    places = [known.protocols.index(key) for key in keys]
    scores = {kind: each[:, :, places] for kind, each in known.scores.items()}
    arrays: Row = {name: getattr(known, name)[:, :, places][:, :, :, seeds] for name in BY_SEED}
    return replace(known, protocols=keys, seeds=plan.seeds, scores=scores, **arrays)


def join(known: t2v.MetaTask, own: t2v.MetaTask) -> t2v.MetaTask:
    """The tasks and distances of one meta-task with the models of both, without embeddings, which the bundle has."""
    names = (*BY_SEED, "shares_images", "shares_labels")
    arrays: Row = {name: np.concatenate([getattr(one, name) for one in (known, own)], axis=1) for name in names}
    kinds = [kind for kind in known.scores if kind in own.scores]
    scores = {kind: np.concatenate([known.scores[kind], own.scores[kind]], axis=1) for kind in kinds}
    models = (*known.models, *own.models)
    empty: Row = {"embeddings": {}, "domains": {}}
    return replace(known, name=own.name, models=models, scores=scores, info=own.info, **empty, **arrays)


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
    known = choose_known(t2v.bundled_metatask(), plan) if which == "domains" else None
    studio = Studio(plan, weights, out / which, device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if studio.make_all():
        metatask, folder = studio.gather(note), plots.make_folder(out / which / "results")
        path = (metatask if known is None else join(known, metatask)).save(folder / "metatask.safetensors")
        write_tables(which, t2v.load_metatask(path), folder)  # the tables are of what others will have
        say(f"{metatask} in {path}")


app = make_app(build)

if __name__ == "__main__":
    app()
