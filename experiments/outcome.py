"""What an experiment leaves behind: figures as PNG and PDF, the numbers behind them as CSV."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from task2vec.plots import save_picture, write_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_figure(figure: "Figure", folder: Path, name: str) -> list[Path]:
    """The figure as `name`.png and `name`.pdf."""
    return [save_picture(figure, folder / f"{name}{suffix}") for suffix in (".png", ".pdf")]


def write_rows(rows: Sequence[dict[str, Any]], folder: Path, name: str) -> Path:
    """The rows as `name`.csv, numbers in six significant digits, strangers' words never as formulas."""
    header = list(rows[0])
    assert all(row.keys() <= set(header) for row in rows), "a column that the first row has not would be lost"
    return write_table(folder / f"{name}.csv", header, ([row.get(key) for key in header] for row in rows))
