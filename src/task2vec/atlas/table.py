"""Numbers behind a picture, as CSV that a spreadsheet may open."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from task2vec.atlas.canvas import save_picture, write_whole
from task2vec.text import escape_formula

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Writes the rows as CSV and returns its path: six significant digits, strangers' words never as formulas.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print(write_table(Path(folder) / "t.csv", ["task", "norm"], [["=cats", 1 / 3]]).read_text().strip())
        task,norm
        '=cats,0.333333
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(word) for word in header])
    writer.writerows([_cell(value) for value in row] for row in rows)
    # Half a surrogate pair has no bytes of its own; it is spelled out.
    write_whole(path, text.getvalue().encode("utf-8", errors="backslashreplace"))
    return path


def save_drawing(
    figure: "Figure", out: str | Path, *, header: Sequence[str], rows: Iterable[Sequence[Any]]
) -> list[Path]:
    """The figure as `out`.png and `out`.pdf, and the numbers behind it as `out`.csv."""
    out = Path(out)
    png, pdf, table = (out.parent / f"{out.name}{suffix}" for suffix in (".png", ".pdf", ".csv"))
    return [save_picture(figure, png), save_picture(figure, pdf), write_table(table, header, rows)]


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, str):
        return escape_formula(value)
    if isinstance(value, float) or hasattr(value, "dtype"):
        number = float(value)
        return f"{number:.6g}" if math.isfinite(number) else ""
    return value
