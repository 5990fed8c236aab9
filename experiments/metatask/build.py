"""Builds our meta-task of experts: trains them, tries each on all tasks, embeds the tasks by several probes.

    python -m experiments.metatask.build --data DIR --weights DIR --out DIR

So `experts.safetensors` was made, which is evaluated by `experiments.selection`; the package ships that of `networks`.
See `measure` for how a run is resumed or shared.
"""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import typer

import task2vec as t2v
from experiments.metatask.measure import SIZE, Space, Studio, Units, describe, load_network, make_all
from experiments.metatask.plan import (
    CANVAS,
    MetaTaskPlan,
    PlannedExpert,
    PlannedTask,
    plan_metatask,
    share_labels,
)
from experiments.metatask.quality import write_results
from experiments.report import Row, make_app, say
from task2vec import plots
from task2vec.experts import find_recipe

NAME = "birds, flowers and dogs"
PROTOCOLS = (t2v.ErrorProtocol(shots="half"), t2v.ErrorProtocol(shots=5))
# The paper's own classifier, on some tasks and some experts: does it rank experts as ours does?
PAPER_PROTOCOL = t2v.ErrorProtocol(shots="half", classifier="achille2019")
PAPER_TASKS = ("cub_Icteridae", "cub_Piciformes", "flowers_Asterales", "flowers_Malvales", "dogs_toy", "clothing10",
               "dtd10")  # fmt: skip
PAPER_KINDS = ("generic", "network", "half", "whole")
# Errors by training size: of these tasks, by the generic expert and by halves of each domain.
CURVE_TASKS, CURVE_KINDS = ("cub_Icteridae", "flowers_Asterales", "dogs_toy", "clothing10"), ("generic", "half")
CURVE_SEEDS = (0, 1)
CURVE_SHOTS: tuple[int | Literal["half"], ...] = (2, 5, 10, 20, "half")
# What others compare their own tasks with has the size of the default probe.
SPACES: dict[str, Space] = {
    "tf_efficientnet_lite0 robust": ("tf_efficientnet_lite0", "robust", SIZE),
    **{f"{probe} {method}": (probe, method, CANVAS) for probe, method in (
        ("resnet34", "robust"), ("resnet34", "direct"), ("resnet34", "variational"), ("mobilenet_v2", "robust"),
        ("vgg16_features", "robust"))},
    **{f"tf_efficientnet_lite0 at {CANVAS} {method}": ("tf_efficientnet_lite0", method, CANVAS)
       for method in ("robust", "direct", "variational")},
}  # fmt: skip


def train(studio: Studio, expert: PlannedExpert) -> tuple[t2v.Probe, t2v.TrainedExpert | None]:
    """The network of an expert, fine-tuned if it has a source task; its weights are not written."""
    base = load_network(expert.network, studio.weights, size=expert.size, resize=CANVAS)
    if expert.source is None:
        return base, None
    recipe = replace(find_recipe(expert.recipe), mirrors=expert.mirrors)
    options: Row = {"name": expert.name, "seed": expert.seed, "device": studio.device}
    trained = t2v.train_expert(expert.source.task, base, recipe, **options)
    return trained.probe, trained


def try_expert(studio: Studio, expert: PlannedExpert, tasks: tuple[PlannedTask, ...]) -> Row:
    """The errors and scores of an expert on all tasks, and what they cost."""
    begun, (probe, trained) = time.monotonic(), train(studio, expert)
    seconds = {"training": time.monotonic() - begun}
    about = {name: getattr(expert, name) for name in ("name", "kind", "network", "seed", "is_repeat")}
    if expert.source is not None:
        source, dataset = expert.source.task, expert.source.dataset
        about |= {"source_task": source.name, "source_fingerprint": source.fingerprint, "source_dataset": dataset}

    def choose_protocols(one: PlannedTask) -> tuple[t2v.ErrorProtocol, ...]:
        is_paper = one.task.name in PAPER_TASKS and expert.kind in PAPER_KINDS and not expert.is_repeat
        return (*PROTOCOLS, PAPER_PROTOCOL) if is_paper else PROTOCOLS

    found = studio.try_model(about, probe, tasks, choose_protocols, PROTOCOLS, trained)
    return found | {"seconds": {kind: round(value, 3) for kind, value in (seconds | found["seconds"]).items()}}


def measure_curves(studio: Studio, expert: PlannedExpert, tasks: tuple[PlannedTask, ...]) -> Row:
    """Errors by training size: of linear classifiers on frozen features, and of the whole network tuned."""
    probe, own = train(studio, expert)[0], [one for one in tasks if one.task.name in CURVE_TASKS]
    features, points = studio.compute_features(probe, own), []
    for task in (one.task for one in own):
        fewest = int(task.counts.min()) // 2
        protocols = [t2v.ErrorProtocol(shots=each) for each in CURVE_SHOTS if each == "half" or each < fewest]
        points += studio.tune(expert.name, probe, task, protocols, CURVE_SEEDS, features[task.name])
    return {"points": points}


def embed_space(studio: Studio, space: str, plan: MetaTaskPlan) -> None:
    """Embeds all tasks and source tasks by one probe and method, with their domains as the experts' images are."""
    network, method, size = SPACES[space]
    resize = None if network == "tf_efficientnet_lite0" else CANVAS
    probe, tasks = load_network(network, studio.weights, size=size, resize=resize), (*plan.tasks, *plan.source_tasks)
    studio.embed(space, probe, method, tasks, has_domains=method == "robust" and size == CANVAS)


def find_shares(plan: MetaTaskPlan) -> dict[str, np.ndarray]:
    """(tasks, experts) the share of the task's images that an expert was trained on, and whether of its labels."""
    images, labels = np.zeros((2, len(plan.tasks), len(plan.experts)))
    for column, source in enumerate(expert.source for expert in plan.experts):
        seen = set() if source is None else set(source.task.digests)
        for row, one in enumerate(plan.tasks):
            images[row, column] = round(np.mean([digest in seen for digest in one.task.digests]), 4)
            labels[row, column] = source is not None and share_labels(one, source)
    return {"shares_images": images, "shares_labels": labels.astype(bool)}


def renew(studio: Studio, base: t2v.MetaTask, plan: MetaTaskPlan) -> t2v.MetaTask:
    """The errors of a meta-task with the embeddings of a folder; what that lacks is kept."""
    found = studio.gather_embeddings([*plan.tasks, *plan.source_tasks], SPACES)
    new = {name: {**getattr(base, name), **each} for name, each in found.items()}
    tasks, sources = (tuple(map(describe, each)) for each in (plan.tasks, plan.source_tasks))
    prints = {one.name: one.fingerprint for one in (*tasks, *sources)}
    models = tuple(replace(one, source_fingerprint=prints.get(one.source_task or "")) for one in base.models)
    return replace(base, tasks=tasks, source_tasks=sources, models=models, **new)


def build(
    data: Annotated[Path, typer.Option(help="Folder with a tasks.csv by taxon, taxonomies, and datasets.")],
    weights: Annotated[Path, typer.Option(help="Folder with the weights of the pretrained networks.")],
    out: Annotated[Path, typer.Option(help="Folder for tables and embeddings.")] = Path("task2vec-metatask"),
    note: Annotated[str, typer.Option(help="Where, when and by which commit it was measured.")] = "",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: a GPU if there is one.")] = None,
    base: Annotated[Path | None, typer.Option(help="Keep the errors of this meta-task; only embed.")] = None,
) -> None:
    """Train experts, try each on all tasks, embed the tasks, and write the meta-task and its tables."""
    studio, plan = Studio(weights, out, device or ("cuda" if torch.cuda.is_available() else "cpu")), plan_metatask(data)
    units: Units = [
        (studio.name_file("embeddings", space, ".done"), partial(embed_space, studio, space, plan))
        for space, (_, method, _) in SPACES.items()
        if base is None or method != "variational"
    ]
    for expert in plan.experts if base is None else ():
        units.append((studio.name_file("tables", expert.name), partial(try_expert, studio, expert, plan.tasks)))
        if expert.kind in CURVE_KINDS and not expert.is_repeat:
            units.append((studio.name_file("curves", expert.name), partial(measure_curves, studio, expert, plan.tasks)))
    if not make_all(units):
        return
    path = plots.make_folder(out / "results") / "metatask.safetensors"
    if base is not None:
        renew(studio, t2v.load_metatask(base), plan).save(path)
        return say(f"the embeddings of {base} are new in {path}")
    tables, names = studio.read_tables("tables"), [expert.name for expert in plan.experts]
    info = {"note": note, "seconds": {table["info"]["name"]: table["seconds"] for table in tables}}
    info["curves"] = [point for table in studio.read_tables("curves") for point in table["points"]]
    more = {"source_tasks": plan.source_tasks, **find_shares(plan)}
    studio.gather(NAME, plan.tasks, names, PROTOCOLS, SPACES, info, **more).save(path)
    write_results(t2v.load_metatask(path), path.parent, tables)  # the tables are of what others will have
    say(f"{NAME} in {path}")


app = make_app(build)

if __name__ == "__main__":
    app()
