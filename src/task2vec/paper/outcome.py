"""What an experiment leaves behind: figures as PNG and PDF, the numbers behind them as CSV."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from task2vec.atlas.canvas import save_picture, write_whole
from task2vec.errors import ResourceError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A spreadsheet takes a cell that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def make_folder(folder: str | Path) -> Path:
    """The folder, made if it is not there."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(
            f"cannot make the folder '{folder}': {error.strerror}. The figures go there. Choose another: --out DIR"
        ) from error
    return folder


def write_figure(figure: "Figure", folder: Path, name: str) -> list[Path]:
    """The figure as `name`.png and `name`.pdf."""
    return [save_picture(figure, folder / f"{name}{suffix}") for suffix in (".png", ".pdf")]


def write_rows(rows: Sequence[dict[str, Any]], folder: Path, name: str) -> Path:
    """The rows as `name`.csv, numbers in six significant digits, strangers' words never as formulas."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    path = folder / f"{name}.csv"
    write_whole(path, text.getvalue().encode())
    return path


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    if isinstance(value, float) or hasattr(value, "dtype"):
        number = float(value)
        return f"{number:.6g}" if math.isfinite(number) else ""
    return value
