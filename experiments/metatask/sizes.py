"""Measures pretrained networks at other image sizes than their own, on whole datasets.

    python -m experiments.metatask.sizes --data DIR --weights DIR --out DIR

The tasks, splits and classifiers are those of `networks`, whose errors at the networks' own sizes are in the bundle.
`benchmarks/sizes.py` learns from both how errors change with the size. See `measure` for how a run is resumed.
"""

from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from experiments.collection import read_collection
from experiments.metatask.measure import Studio, Units, load_network, make_all
from experiments.metatask.networks import SCORED, read_sources
from experiments.metatask.plan import PlannedTask, read_whole
from experiments.report import Row, make_app, say
from task2vec import plots
from task2vec.experts import find_shots

NETWORKS, SIZES, SEEDS = ("tf_efficientnet_lite0", "resnet34", "mobilenet_v2"), (112, 160), (0, 1, 2)
HEADS = ("task", "source", "network", "size", "training images", "error")


def try_network(studio: Studio, name: str, size: int, tasks: tuple[PlannedTask, ...]) -> Row:
    """The errors of a network at an image size."""
    return studio.try_model({"name": name, "size": size}, load_network(name, studio.weights, size=size), tasks,
                            lambda _: SCORED, ())  # fmt: skip


def list_rows(table: Row, tasks: tuple[PlannedTask, ...]) -> list[tuple]:
    """The mean errors of a table over the splits, in percent."""
    about, rows = table["info"], []
    for one in tasks:
        for key, cells in table["cells"][one.task.name].items():
            error = 100 * sum(cell[1] for cell in cells) / len(cells)
            rows.append((one.task.name, one.dataset, about["name"], about["size"], find_shots(key), f"{error:.2f}"))
    return rows


def build(
    data: Annotated[Path, typer.Option(help="Folder with a tasks.csv, datasets, and the folders domains and public.")],
    weights: Annotated[Path, typer.Option(help="Folder with the weights of the pretrained networks.")],
    out: Annotated[Path, typer.Option(help="Folder for tables.")] = Path("task2vec-sizes"),
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: a GPU if there is one.")] = None,
) -> None:
    """Measure networks at other image sizes, and write a table."""
    studio = Studio(weights, out, device or ("cuda" if torch.cuda.is_available() else "cpu"), SEEDS)
    tasks = (*read_whole(data, read_collection(data)), *read_sources(data))
    units: Units = []
    for name in NETWORKS:
        for size in SIZES:
            work = partial(try_network, studio, name, size, tasks)
            units.append((studio.name_file("tables", f"{name} {size}"), work))
    if make_all(units):
        rows = [row for table in studio.read_tables("tables") for row in list_rows(table, tasks)]
        path = plots.make_folder(out / "results") / "sizes.csv"
        say(f"{len(rows)} errors in {plots.write_rows(path, [HEADS, *rows])}")


app = make_app(build)

if __name__ == "__main__":
    app()
