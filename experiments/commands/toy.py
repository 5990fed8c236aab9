"""`python -m experiments.toy`: 64 small tasks on the unit square."""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.console import make_app, open_page, print_json, say, watch_steps
from task2vec.errors import UsageError
from task2vec.text import printable

if TYPE_CHECKING:
    from experiments.toy import ToyOutcome
    from experiments.toy_measures import Mean

# The measures in three groups; `None` begins another.
_ROWS: tuple[tuple[str | None, str], ...] = (
    (None, "similarity of decision regions to"),
    ("random", "a random task"),
    ("domain", "the nearest in the domain embedding"),
    ("nearest", "the nearest in task space"),
    ("best", "the most similar task"),
    ("way", "share of the way from random to best"),
    (None, "difference in number of clusters to"),
    ("apart_random", "a random task"),
    ("apart_nearest", "the nearest in task space"),
    (None, "rank correlation of number of clusters with"),
    ("clusters_and_error", "cross-validated error"),
    ("clusters_and_norm", "norm of the embedding"),
)


def toy(
    out: Annotated[Path, typer.Option(help="Folder for figures and numbers.")] = Path("task2vec-paper"),
    seeds: Annotated[int, typer.Option(help="How many times to repeat it with other tasks and features.")] = 5,
    seed: Annotated[int, typer.Option(help="The first seed, which is drawn; the others follow it.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """64 small tasks on the unit square: what the embedding sees and the domain does not.

    Each task cuts the same square in two, in its own way. Two probes embed it, and neighbours are compared.
    """
    if seeds < 1 or not 0 <= seed <= seed + seeds <= 1 << 63:
        raise UsageError(
            f"--seeds {seeds} --seed {seed} name no tasks: it takes at least one seed, and all lie from 0 to 2^63 - 1. "
            "Leave them out, or try --seeds 5 --seed 0."
        )
    begin = time.perf_counter()
    say("getting ready ...")
    from experiments.toy import count_steps, run_toy

    chosen = range(seed, seed + seeds)
    with watch_steps(count_steps(chosen)) as advance:
        outcome = run_toy(out, seeds=chosen, progress=advance)
    seconds = round(time.perf_counter() - begin, 1)
    if as_json:
        print_json(_describe(outcome, seconds))
    else:
        _print(outcome, seconds)


def _describe(outcome: "ToyOutcome", seconds: float) -> dict[str, Any]:
    means = {
        probe: {name: {"mean": _plain(mean.value), "stderr": mean.stderr} for name, mean in found.items()}
        for probe, found in outcome.means.items()
    }
    rows = [{name: _plain(value) for name, value in row.items()} for row in outcome.rows]
    files = [str(path) for path in outcome.files]
    return {"statement": outcome.statement, "means": means, "rows": rows, "files": files, "seconds": seconds}


def _plain(value: Any) -> Any:
    """The value; nothing where a measure could not be taken."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print(outcome: "ToyOutcome", seconds: float) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("mean ± standard error over seeds", overflow="fold")
    for probe in outcome.means:
        table.add_column(printable(probe), justify="right", overflow="fold")
    for name, words in _ROWS:
        if name is None:
            table.add_row(words)
        else:
            table.add_row(f"  {words}", *(_word(found[name]) for found in outcome.means.values()))
    page = open_page()
    page.print(table)
    page.print(outcome.statement + "\n")
    for path in outcome.files:
        page.print(printable(path), soft_wrap=True)
    page.print(f"({seconds:.0f} s)")


def _word(mean: "Mean") -> str:
    """Mean and standard error, with a digit more where the error would be rounded to nothing."""
    if not math.isfinite(mean.value):
        return "-"
    if mean.stderr is None:
        return f"{mean.value:.2f}"
    digits = 2 if mean.stderr >= 0.005 else 3
    return f"{mean.value:.{digits}f} ± {mean.stderr:.{digits}f}"


app = make_app(toy)
