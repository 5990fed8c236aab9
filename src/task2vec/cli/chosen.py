"""One task of a published dataset, as the options of the command line ask for it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from task2vec.cli.reading import check_there
from task2vec.cli.speech import is_watched, say
from task2vec.text import printable

if TYPE_CHECKING:
    from task2vec.tasks import Task

Layout = Literal["cub200", "cub200-paper", "inaturalist", "imaterialist", "deepfashion"]


@dataclass(frozen=True)
class Request:
    """Which task of which dataset, and which of its images: a split, and a number to draw of it (None for all)."""

    folder: Path
    task: str
    kind: str | None = None
    layout: str | None = None
    split: str | None = None
    draw: int | None = None
    labels: Path | None = None
    seed: int = 0
    name: str | None = None


def read_task(request: Request, *, allow_bad: bool, workers: int | None) -> "Task":
    """The task of the request, under the name that was asked for or its own."""
    from task2vec.tasks import read_catalog

    check_there(request.folder)
    catalogue = read_catalog(request.folder, layout=request.layout, labels=request.labels, progress=is_watched())
    for warning in catalogue.warnings:
        say(f"warning: {printable(warning)}")
    task = catalogue.task(
        request.task,
        kind=request.kind,
        split=request.split,
        images=request.draw,
        seed=request.seed,
        allow_bad=allow_bad,
        num_workers=workers,
        progress=is_watched(),
    )
    return task if request.name is None else replace(task, name=request.name)
