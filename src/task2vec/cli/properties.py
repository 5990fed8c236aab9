"""`task2vec paper properties`: what the embedding says of a task."""

from pathlib import Path
from typing import Annotated

import typer


def properties(
    out: Annotated[Path, typer.Option(help="Folder for figures and numbers.")] = Path("task2vec-paper"),
) -> None:
    """What the embedding says of a task: difficulty, labels, number of classes, sample size."""
    raise NotImplementedError
