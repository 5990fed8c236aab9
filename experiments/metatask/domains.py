"""Builds the meta-task of experts for whole datasets, beside the pretrained networks of the bundle.

    python -m experiments.metatask.domains --data DIR --weights DIR --out DIR

Every whole dataset of `networks` gets an expert, a ResNet-34 fine-tuned on it at 224 pixels, which is tried on all
whole datasets of other sources. Errors of the pretrained networks, embeddings and distances are those of the bundle,
which has the same images, splits and protocols. See `measure` for how a run is resumed or shared.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

import task2vec as t2v
from experiments.collection import read_collection
from experiments.metatask.build import PROTOCOLS, find_shares, try_expert
from experiments.metatask.measure import Studio, Units, make_all
from experiments.metatask.networks import read_sources
from experiments.metatask.plan import MetaTaskPlan, PlannedExpert, PlannedTask, read_whole
from experiments.report import Row, make_app, say
from task2vec import plots

NAME = "experts for whole datasets"
NETWORK, RECIPE, SEEDS = "resnet34", "fast", (0, 1, 2)
# Mirror images of text, hands and signs have other labels, or none.
SIDED = ("documents", "signs_hand", "traffic_signs")
BY_SEED = ("errors", "low", "high", "halves")


def plan_experts(data: Path) -> MetaTaskPlan:
    """Whole datasets, and an expert for each."""
    tasks = (*read_whole(data, read_collection(data)), *read_sources(data))
    return MetaTaskPlan(tasks, tuple(map(plan_expert, tasks)))


def plan_expert(source: PlannedTask) -> PlannedExpert:
    """The expert for a dataset."""
    name, mirrors = source.task.name, source.task.name not in SIDED
    how: Row = {"network": NETWORK, "mirrors": mirrors, "recipe": RECIPE, "size": None}
    return PlannedExpert(f"{NETWORK} on {name}", "domain", source, **how)


def choose_known(base: t2v.MetaTask, tasks: tuple[PlannedTask, ...]) -> t2v.MetaTask:
    """What a meta-task of networks knows of these tasks, by the protocols and seeds of the experts."""
    rows = {task.fingerprint: row for row, task in enumerate(base.tasks)}
    for one in tasks:
        if one.task.fingerprint not in rows:
            raise t2v.errors.DataError(
                f"'{one.task.name}' is none of the tasks of '{base.name}', or has other images or labels there, so "
                "that experts would have nothing to be compared with. Use the images that it was measured on, or "
                "another meta-task: --base"
            )
    known = base.only(rows[one.task.fingerprint] for one in tasks)
    keys, seeds = tuple(one.key for one in PROTOCOLS), [known.seeds.index(seed) for seed in SEEDS]
    places = [known.protocols.index(key) for key in keys]
    scores = {kind: each[:, :, places] for kind, each in known.scores.items()}
    arrays: Row = {name: getattr(known, name)[:, :, places][:, :, :, seeds] for name in BY_SEED}
    return replace(known, protocols=keys, seeds=SEEDS, scores=scores, **arrays)


def join(known: t2v.MetaTask, own: t2v.MetaTask) -> t2v.MetaTask:
    """The tasks and distances of one meta-task with the models of both, without embeddings, which the bundle has."""
    names = (*BY_SEED, "shares_images", "shares_labels")
    arrays: Row = {name: np.concatenate([getattr(one, name) for one in (known, own)], axis=1) for name in names}
    kinds = [kind for kind in known.scores if kind in own.scores]
    scores = {kind: np.concatenate([known.scores[kind], own.scores[kind]], axis=1) for kind in kinds}
    models = (*known.models, *own.models)
    empty: Row = {"embeddings": {}, "domains": {}}
    return replace(known, name=own.name, models=models, scores=scores, info=own.info, **empty, **arrays)


def build(
    data: Annotated[Path, typer.Option(help="Folder with a tasks.csv, datasets, and the folders domains and public.")],
    weights: Annotated[Path, typer.Option(help="Folder with the weights of the pretrained networks.")],
    out: Annotated[Path, typer.Option(help="Folder for tables.")] = Path("task2vec-domains"),
    note: Annotated[str, typer.Option(help="Where, when and by which commit it was measured.")] = "",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: a GPU if there is one.")] = None,
    base: Annotated[Path | None, typer.Option(help="Errors of the networks; default: the package's own.")] = None,
) -> None:
    """Train an expert for every whole dataset, try it on the others, and write the meta-task."""
    studio = Studio(weights, out, device or ("cuda" if torch.cuda.is_available() else "cpu"), SEEDS, ("logme",))
    plan = plan_experts(data)
    known = choose_known(t2v.bundled_metatask() if base is None else t2v.load_metatask(base), plan.tasks)
    units: Units = []
    for expert, source in zip(plan.experts, plan.tasks, strict=True):
        others = tuple(one for one in plan.tasks if one.dataset != source.dataset)
        units.append((studio.name_file("tables", expert.name), partial(try_expert, studio, expert, others)))
    if make_all(units):
        seconds = {table["info"]["name"]: table["seconds"] for table in studio.read_tables("tables")}
        names, info = [expert.name for expert in plan.experts], {"note": note, "seconds": seconds}
        shares: Row = {**find_shares(plan)}
        metatask = join(known, studio.gather(NAME, plan.tasks, names, PROTOCOLS, {}, info, **shares))
        path = metatask.save(plots.make_folder(out / "results") / "metatask.safetensors")
        say(f"{metatask} in {path}")


app = make_app(build)

if __name__ == "__main__":
    app()
