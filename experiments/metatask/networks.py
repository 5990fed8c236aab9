"""Builds the meta-task that ships with the package: pretrained networks at their own image size, on many sources.

    python -m experiments.metatask.networks --data DIR --weights DIR --out DIR

Its tasks are those of `plan`, and every dataset below `domains/` and `public/`. Errors are of linear classifiers on
frozen features, by five training sizes; on whole datasets some networks are fine-tuned, too. See `measure` for how a
run is resumed or shared.
"""

from functools import cache, partial
from pathlib import Path
from typing import Annotated

import torch
import typer

import task2vec as t2v
from experiments.metatask.measure import SEEDS, SIZE, Space, Studio, Units, load_network, make_all
from experiments.metatask.plan import PlannedTask, plan_metatask
from experiments.report import Row, make_app, say
from task2vec import plots
from task2vec.experts import find_shots

NAME = "pretrained networks on many sources"
PROTOCOLS = tuple(t2v.ErrorProtocol(shots=shots) for shots in (2, 5, 10, 20, "half"))  # type: ignore[arg-type]
SCORED = (PROTOCOLS[1], PROTOCOLS[4])
NETWORKS = ("tf_efficientnet_lite0", "tf_efficientnet_lite1", "tf_efficientnet_lite2", "resnet34", "mobilenet_v2",
            "resnet50_keras", "vgg16_features")  # fmt: skip
# Where they can be loaded from; the others are not published in this form.
LOCATIONS = {name: f"timm:{name}" for name in NETWORKS[:3]} | {name: f"torchvision:{name}" for name in NETWORKS[3:5]}
# Fine-tuned as a whole by these protocols, with the first seed.
TUNED, TUNED_BY = ("tf_efficientnet_lite0", "resnet34"), SCORED
SPACES: dict[str, Space] = {f"{name} robust": (name, "robust", SIZE) for name in TUNED}
# Photographs of the same origin are one source, so that none is left out while its relatives are known.
SOURCES = {"food15": "food101", "objects20": "caltech101", "grocery_packages": "grocery", "grocery_fruit": "grocery"}
WHOLE = ("cub200", "flowers102", "dogs", "clothing10", "dtd10", "cifar10")


@cache
def plan_tasks(data: Path) -> tuple[PlannedTask, ...]:
    """The tasks of the older meta-task, then the other sources."""
    return (*plan_metatask(data).tasks, *read_sources(data))


def read_sources(data: Path) -> list[PlannedTask]:
    """Every dataset below `domains/` and `public/`."""
    folders = sorted(path for part in ("domains", "public") for path in (data / part).iterdir() if path.is_dir())
    return [PlannedTask("sources", SOURCES.get(path.name, path.name), t2v.read_folder(path), path.name)
            for path in folders]  # fmt: skip


def list_whole(tasks: tuple[PlannedTask, ...]) -> list[PlannedTask]:
    """Whole datasets, one task each."""
    return [one for one in tasks if one.family == "sources" or one.task.name in WHOLE]


def split(tasks: tuple[PlannedTask, ...]) -> dict[str, list[PlannedTask]]:
    """The tasks in groups that are measured at a time, those that take longest first."""
    groups: dict[str, list[PlannedTask]] = {}
    for one in (*list_whole(tasks), *tasks):
        group = "whole" if one.task.name in WHOLE else one.family
        if one not in groups.setdefault(group, []):
            groups[group].append(one)
    return groups


def try_network(studio: Studio, name: str, tasks: list[PlannedTask]) -> Row:
    """The errors and scores of a network on some tasks."""
    probe = load_network(name, studio.weights)
    about = {"name": name, "kind": "generic" if name == "resnet34" else "network", "network": name}
    about |= {"location": LOCATIONS.get(name), "size": probe.size[0]}
    return studio.try_model(about, probe, tasks, lambda _: PROTOCOLS, SCORED)


def tune_network(studio: Studio, name: str, one: PlannedTask) -> Row:
    """Errors of a network fine-tuned as a whole on part of a task."""
    return {"points": studio.tune(name, load_network(name, studio.weights), one.task, TUNED_BY, SEEDS[:1])}


def embed_space(studio: Studio, space: str, tasks: tuple[PlannedTask, ...]) -> None:
    """Embeds all tasks in one space, with their domains."""
    network, method, size = SPACES[space]
    studio.embed(space, load_network(network, studio.weights, size=size), method, tasks, True)


def write_tables(metatask: t2v.MetaTask, folder: Path) -> None:
    """Mean errors by task and training size, and those of fine-tuning, as CSV."""
    names, means = [model.name for model in metatask.models], metatask.mean_errors()
    rows = [
        (task.name, task.dataset, task.family, task.images, task.classes, find_shots(key),
         *(f"{100 * error:.2f}" for error in means[row, :, number]))
        for row, task in enumerate(metatask.tasks) for number, key in enumerate(metatask.protocols)
    ]  # fmt: skip
    heads = ["task", "source", "family", "images", "classes", "training images", *names]
    plots.write_rows(folder / "errors.csv", [heads, *rows], digits=6)
    points = metatask.info["curves"]
    plots.write_rows(folder / "tuned.csv", [points[0], *(point.values() for point in points)], digits=6)


def build(
    data: Annotated[Path, typer.Option(help="Folder with a tasks.csv, datasets, and the folders domains and public.")],
    weights: Annotated[Path, typer.Option(help="Folder with the weights of the pretrained networks.")],
    out: Annotated[Path, typer.Option(help="Folder for tables and embeddings.")] = Path("task2vec-networks"),
    note: Annotated[str, typer.Option(help="Where, when and by which commit it was measured.")] = "",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: a GPU if there is one.")] = None,
    part: Annotated[str, typer.Option(help="errors, tuned, embeddings or all.")] = "all",
) -> None:
    """Measure networks on all tasks, embed the tasks, and write the meta-task."""
    tasks = plan_tasks(data)
    studio = Studio(weights, out, device or ("cuda" if torch.cuda.is_available() else "cpu"))
    units: Units = []
    for space in SPACES if part in ("embeddings", "all") else ():
        units.append((studio.name_file("embeddings", space, ".done"), partial(embed_space, studio, space, tasks)))
    for group, own in split(tasks).items() if part in ("errors", "all") else ():
        for name in NETWORKS:
            units.append((studio.name_file("tables", f"{name} {group}"), partial(try_network, studio, name, own)))
    for one in list_whole(tasks) if part in ("tuned", "all") else ():
        for name in TUNED:
            units.append(
                (studio.name_file("tuned", f"{name} {one.task.name}"), partial(tune_network, studio, name, one))
            )
    if make_all(units) and part == "all":
        info = {"note": note, "curves": [point for table in studio.read_tables("tuned") for point in table["points"]]}
        metatask = studio.gather(NAME, tasks, NETWORKS, PROTOCOLS, SPACES, info)
        path = metatask.save(plots.make_folder(out / "results") / "metatask.safetensors")
        write_tables(t2v.load_metatask(path), path.parent)
        say(f"{metatask} in {path}")


app = make_app(build)

if __name__ == "__main__":
    app()
