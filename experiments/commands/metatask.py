"""`python -m experiments.metatask`: which expert is the best for which task, measured."""

import math
import os
from pathlib import Path
from typing import Annotated

import typer

from experiments.console import check_device, make_app, open_page, say
from task2vec.errors import UsageError
from task2vec.text import printable

PARTS = ("embeddings", "experts", "curves", "variational", "results")


def metatask(
    data: Annotated[Path, typer.Option(help="Folder with a tasks.csv by taxon, taxonomies, and datasets.")],
    weights: Annotated[Path, typer.Option(help="Folder with the weights of the pretrained networks.")],
    out: Annotated[Path, typer.Option(help="Folder for the tables.")] = Path("task2vec-metatask"),
    part: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[embeddings|experts|curves|variational|results]",
            help="Embeddings, the error matrix, errors by training size, slow embeddings, tables; default: all.",
        ),
    ] = None,
    minutes: Annotated[float, typer.Option(help="Stop before this time is over; the next run goes on.")] = math.inf,
    note: Annotated[str, typer.Option(help="Results: where, when and by which commit they were measured.")] = "",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: what is there.")] = None,
    workers: Annotated[int | None, typer.Option(help="How many threads decode images.")] = None,
) -> None:
    """Train experts, try each on all tasks, and keep a small table of each; made for a GPU, and for several goes.

    What is in --out already is not made again. Any number of runs may share one --out at the same time.
    """
    check_device(device)
    import torch

    from experiments.metatask_run import Run

    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    parts = part or list(PARTS)
    unknown = [each for each in parts if each not in PARTS]
    if unknown:
        raise UsageError(f"the meta-task has no part '{unknown[0]}' (--part). Choose among: {', '.join(PARTS)}")
    threads = workers or os.cpu_count() or 1
    run = Run(data, weights, out, device=where, workers=threads, say=lambda text: say(printable(text)))
    piece = run.make([each for each in parts if each != "results"], seconds=60 * minutes)
    open_page().print(f"{len(piece.made)} made, {len(piece.left)} left")
    if "results" in parts and not piece.left:
        open_page().print(f"{run.gather(note)}", soft_wrap=True)


app = make_app(metatask)
