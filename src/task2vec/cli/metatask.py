"""`task2vec paper metatask`: which expert is the best for which task, measured."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from task2vec.cli.device import check_device
from task2vec.cli.speech import open_page, say, visible
from task2vec.errors import UsageError

PARTS = ("experts", "curves", "embeddings", "results")


def metatask(
    data: Annotated[Path, typer.Option(help="Folder with a tasks.csv by taxon, taxonomies, and datasets.")],
    weights: Annotated[Path, typer.Option(help="Folder with the weights of the pretrained networks.")],
    out: Annotated[Path, typer.Option(help="Folder for the tables.")] = Path("task2vec-metatask"),
    part: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[experts|curves|embeddings|results]",
            help="The error matrix, errors by training size, embeddings, tables of all; default: everything.",
        ),
    ] = None,
    probe: Annotated[list[str] | None, typer.Option(help="Embeddings: only by these probes.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Embeddings: only by these methods.")] = None,
    minutes: Annotated[float, typer.Option(help="Stop before this time is over; the next run goes on.")] = 1e9,
    share: Annotated[
        str,
        typer.Option(metavar="I/N", help="This is run number I (from 0) of N at once: each takes every N-th expert."),
    ] = "0/1",
    note: Annotated[str, typer.Option(help="Results: where, when and by which commit they were measured.")] = "",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: what is there.")] = None,
    workers: Annotated[int | None, typer.Option(help="How many threads decode images.")] = None,
) -> None:
    """Train experts, try each on all tasks, and keep a small table of each; made for a GPU, and for several goes.

    What is in --out already is not made again.
    """
    begun = time.monotonic()
    check_device(device)
    import torch

    from task2vec.paper.metatask_run import Run

    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    parts = part or list(PARTS)
    unknown = [each for each in parts if each not in PARTS]
    if unknown:
        raise UsageError(f"the meta-task has no part '{unknown[0]}' (--part). Choose among: {', '.join(PARTS)}")
    run = Run(
        data,
        weights,
        out,
        device=where,
        workers=workers or os.cpu_count() or 1,
        say=lambda text: say(visible(text)),
        share=_read_share(share),
    )
    for each in parts:
        left = 60 * minutes - (time.monotonic() - begun)
        if left <= 0:
            break
        if each == "embeddings":
            for name, spent in run.embed(probe, method, seconds=left).items():
                say(f"{visible(name)}: {spent}")
            continue
        if each == "results":
            open_page().print(f"{run.gather(note)}", soft_wrap=True)
            continue
        piece = run.try_experts(seconds=60 * minutes) if each == "experts" else run.draw_curves(seconds=60 * minutes)
        open_page().print(f"{each}: {len(piece.made)} made, {len(piece.left)} left")


def _read_share(text: str) -> tuple[int, int]:
    """The number of this run and how many there are."""
    number, _, runs = text.partition("/")
    if not (number.isdecimal() and runs.isdecimal() and int(number) < int(runs)):
        raise UsageError(f"--share {text} does not say which of how many runs this is. Give for instance 0/2 and 1/2.")
    return int(number), int(runs)
