"""`task2vec paper toy`: 64 small tasks on the unit square."""

from pathlib import Path
from typing import Annotated

import typer


def toy(
    out: Annotated[Path, typer.Option(help="Folder for figures and numbers.")] = Path("task2vec-paper"),
) -> None:
    """64 small tasks on the unit square: what the embedding sees and the domain does not."""
    raise NotImplementedError
