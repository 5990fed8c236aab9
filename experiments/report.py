"""What every experiment reports: claims with verdicts, tables as CSV and Markdown, figures, and a command line."""

import functools
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

import task2vec as t2v
from task2vec import plots
from task2vec.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOLDS, PARTLY, FAILS, UNCLEAR = "holds", "partly", "fails", "unclear"
# A rank correlation of fewer tasks means nothing.
MIN_TASKS = 5
_RESAMPLES = 2000

Row = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """A claim about the embedding, the measured numbers, and the verdict, which can be negative."""

    property: str
    claim: str
    measured: str
    verdict: str


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation with a 95% bootstrap interval; None where there is too little to rank."""

    count: int
    rho: float | None = None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """The number and its interval."""
        return "-" if self.rho is None else f"{self.rho:.2f} [{self.low:.2f}, {self.high:.2f}]"

    @property
    def verdict(self) -> str:
        """Whether it is surely positive, surely not, or neither."""
        if self.low is None or self.high is None:
            return UNCLEAR
        return HOLDS if self.low > 0 else FAILS if self.high <= 0 else UNCLEAR


def correlate(x: Sequence[float], y: Sequence[float]) -> Correlation:
    """Spearman's correlation of two columns; the interval is over resampled rows.

    Example:
        >>> correlate([1, 2, 3, 4, 5, 6], [1, 3, 2, 4, 6, 5]).verdict
        'holds'
    """
    pairs, count = np.array([x, y], dtype=np.float64), len(x)
    rho = spearman(x, y) if count >= MIN_TASKS else math.nan
    if math.isnan(rho):
        return Correlation(count)
    draws = np.random.default_rng(0).integers(count, size=(_RESAMPLES, count))
    low, high = np.nanquantile(_spearman(pairs[:, draws].swapaxes(0, 1)), [0.025, 0.975])
    return Correlation(count, rho, float(low), float(high))


def spearman(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """Spearman's rank correlation, ties with their mean rank; NaN if one side is constant.

    Example:
        >>> spearman([1, 2, 3], [10, 100, 1000]), spearman([1, 2, 3], [5, 5, 5])
        (1.0, nan)
    """
    return float(_spearman(np.array([[x, y]], dtype=np.float64))[0])


def _spearman(pairs: np.ndarray) -> np.ndarray:
    """(n,) rank correlations of (n, 2, m) pairs; NaN where a column has only one value."""
    from scipy.stats import rankdata

    ranks = rankdata(pairs, axis=2)
    ranks -= ranks.mean(2, keepdims=True)
    scale = np.sqrt(np.square(ranks).sum(2).prod(1))
    return np.divide((ranks[:, 0] * ranks[:, 1]).sum(1), scale, out=np.full(len(ranks), np.nan), where=scale > 0)


def split_rows(rows: Iterable[Row], by: str) -> dict[Any, list[Row]]:
    """The rows of each distinct value of a column, in the order of their first."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[by], []).append(row)
    return groups


# --- files -----------------------------------------------------------------------------------------------------------


def write_rows(rows: Sequence[Row], path: Path) -> Path:
    """The rows as CSV, numbers in six significant digits, foreign names never as formulas."""
    header = list(rows[0])
    assert all(row.keys() <= set(header) for row in rows), "a column that the first row lacks would be lost"
    return plots.write_rows(path, [header, *([row.get(key) for key in header] for row in rows)], digits=6)


def write_claims(claims: Sequence[Claim], folder: Path, *notes: str) -> list[Path]:
    """The claims as CSV and Markdown, with notes below."""
    rows = [asdict(claim) for claim in claims]
    table = format_markdown(["claim", "measured", "verdict"], [list(row.values())[1:] for row in rows])
    text = "\n\n".join([table, *notes])
    return [write_rows(rows, folder / "claims.csv"), write_text(folder / "claims.md", text)]


def write_text(path: Path, text: str) -> Path:
    """A text and a line end."""
    return plots.write_file(path, f"{text}\n".encode())


def write_json(path: Path, document: Mapping[str, Any]) -> Path:
    """Plain values as JSON, numbers in six significant digits."""
    rounded = json.loads(json.dumps(document, allow_nan=False), parse_float=lambda text: float(f"{float(text):.6g}"))
    return write_text(path, json.dumps(rounded, indent=1))


def format_markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown.

    Example:
        >>> print(format_markdown(["a", "b"], [["1", "2"]]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """
    lines = [f"| {' | '.join(row)} |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def open_figure(height: float, *, width: float = plots.PAPER_WIDTH, dpi: int = 300) -> "Figure":
    """An empty figure, as wide as two columns of a paper."""
    return plots.import_figure()(figsize=(width, height), dpi=dpi, layout="constrained")


@functools.cache
def load_bundle(path: Path | None) -> t2v.MetaTask:
    """The meta-task of experts fine-tuned on birds, flowers and dogs, or another."""
    return t2v.load_metatask(path or Path(__file__).parent / "metatask" / "experts.safetensors")


# --- command line ----------------------------------------------------------------------------------------------------


def make_app(*commands: Callable[..., None]) -> typer.Typer:
    """A command line of one command, or of several by their names.

    An error of task2vec ends it with a message and the error's exit code.
    """
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    for command in commands:
        app.command()(_end_with_message(command))
    return app


def _end_with_message(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except t2v.errors.Task2VecError as error:
            say(f"error: {error}")
            raise typer.Exit(error.exit_code) from error

    return run


def say(message: object) -> None:
    """Prints a message to standard error."""
    print(printable(message, keep_lines=True), file=sys.stderr, flush=True)


def print_claims(claims: Sequence[Claim], files: Sequence[Path], *notes: str) -> None:
    """Every claim with its verdict, then notes and files."""
    for claim in claims:
        print(printable(f"{claim.verdict:8} {claim.claim}: {claim.measured}"))
    for text in (*notes, *files):
        print(printable(text, keep_lines=True))
