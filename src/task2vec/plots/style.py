"""What all figures share: colours, marks, short names, axes, and files that are whole or absent.

The colours stay apart for colour-blind readers (six of Okabe and Ito, six more chosen so that no two come near under
deuteranopia and protanopia), on paper and on a dark page. Marks differ too, for print without colour; colours repeat
after twelve groups with other marks, so that 96 groups look different.
"""

import csv
import io
import math
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from task2vec.errors import MissingExtraError, ResourceError, UsageError
from task2vec.storage import write_file
from task2vec.text import escape_formula

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, PALE = "#22313f", "#8a94a0", "#e7eaee"
PAPER_WIDTH = 7.2  # inches: two columns of a paper
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
    "#2f2a9c", "#773311", "#00505e", "#a8327d", "#d9cf3a", "#a9b1ba",
)  # fmt: skip
MARKS = ("o", "s", "^", "D", "v", "P", "X", "h")
HATCHES = ("", "//////", "......", "xxxxxx")  # of patches, when the colours repeat
NO_GROUP = ""
FORMATS = (".png", ".pdf", ".svg")


@dataclass(frozen=True)
class Look:
    """The colour of a group, its mark as points, and its hatch as a patch."""

    colour: str
    mark: str
    hatch: str = ""


def choose_looks(groups: Sequence[str]) -> dict[str, Look]:
    """The look of every group, in the order in which groups first appear.

    Example:
        >>> looks = choose_looks(["birds", "dogs", "birds"])
        >>> list(looks), looks["dogs"]
        (['birds', 'dogs'], Look(colour='#d55e00', mark='s', hatch=''))
    """
    looks = {}
    for number, group in enumerate(dict.fromkeys(groups)):
        lap, colour = divmod(number, len(COLOURS))
        looks[group] = Look(COLOURS[colour], MARKS[(number + lap) % len(MARKS)], HATCHES[lap % len(HATCHES)])
    return looks


def check_groups(groups: Sequence[str] | None, count: int) -> list[str]:
    """One group per task; by default all tasks are of one group without a name."""
    if groups is None:
        return [NO_GROUP] * count
    if len(groups) != count:
        raise UsageError(
            f"{len(groups)} groups do not match {count} tasks: every task has one colour. Pass one group per task, or "
            "leave them out."
        )
    return [str(group) for group in groups]


def shorten(name: str, longest: int = 28) -> str:
    r"""A short name in printable characters: names of tasks may contain anything.

    Example:
        >>> shorten("a\x1bb"), shorten("Passeriformes of North America", 12)
        ('a�b', 'Passeriform…')
    """
    printable = "".join(c if unicodedata.category(c)[0] != "C" else "\N{REPLACEMENT CHARACTER}" for c in name)
    return printable if len(printable) <= longest else printable[: longest - 1] + "…"


def format_legend(name: str, longest: int = 28) -> str:
    """The name as an entry of a legend: `$` starts no formula, and a leading underscore does not hide it."""
    short = shorten(name, longest)
    return f"{' ' if short[:1] == '_' else ''}{short}".replace("$", r"\$")


def style_axes(axes: "Axes", x: str, y: str) -> None:
    """Labels, a light grid, and a frame of two lines."""
    axes.set_xlabel(x, fontsize=8, color=INK)
    axes.set_ylabel(y, fontsize=8, color=INK)
    axes.tick_params(which="both", labelsize=7, color=GREY, labelcolor=INK)
    axes.grid(axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)


def scale_norms(axes: "Axes", which: str) -> None:
    """A logarithmic "x" or "y" axis: powers of ten, or plain numbers if the norms span less than two of them."""
    from matplotlib.ticker import LogLocator, NullFormatter

    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    low, high = axis.get_view_interval()
    if high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def import_figure() -> "type[Figure]":
    """The class of figures that needs no display and no pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "figures need matplotlib, which is not installed. Install it: pip install 'task2vec[plot]'"
        ) from error
    return Figure


@contextmanager
def missing_glyphs() -> Iterator[None]:
    """Drawing without a warning for a name in a script that has no font here: boxes are fine."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def save_figure(
    figure: "Figure", out: str | Path, *, header: Sequence[str] = (), rows: Iterable[Sequence[Any]] = ()
) -> list[Path]:
    """The figure as the file `out`, or without an extension as `out`.png, `out`.pdf, and its numbers as `out`.csv."""
    out = Path(out)
    if out.suffix.lower() in FORMATS:
        return [save_picture(figure, out)]
    png, pdf, table = (out.parent / f"{out.name}{suffix}" for suffix in (".png", ".pdf", ".csv"))
    return [save_picture(figure, png), save_picture(figure, pdf), write_table(table, header, rows)]


def save_picture(figure: "Figure", path: Path) -> Path:
    """Writes the picture in the format of its suffix; the same figure gives the same bytes."""
    picture = io.BytesIO()
    kind = path.suffix.lower().lstrip(".")
    with missing_glyphs():
        figure.savefig(picture, format=kind, metadata={"CreationDate": None} if kind == "pdf" else None)
    return write_file(path, picture.getvalue())


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Writes the rows as CSV with six significant digits; names never become formulas of a spreadsheet.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print(write_table(Path(folder) / "t.csv", ["task", "norm"], [["=cats", 1 / 3]]).read_text().strip())
        task,norm
        '=cats,0.333333
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_format_cell(word) for word in header])
    writer.writerows([_format_cell(value) for value in row] for row in rows)
    return write_file(path, text.getvalue().encode("utf-8", errors="backslashreplace"))  # half a surrogate pair


def _format_cell(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return escape_formula(value or "")
    if isinstance(value, float) or hasattr(value, "dtype"):
        return f"{float(value):.6g}" if math.isfinite(value) else ""
    return value


def make_folder(folder: str | Path) -> Path:
    """The folder, created if it does not exist."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(
            f"cannot create the folder '{folder}': {error.strerror}. The results go there. Choose another: --out DIR"
        ) from error
    return folder
