"""What becomes of many tasks, told one by one in a table and in the end all together."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from task2vec.cli.exits import let_go
from task2vec.cli.reading import MOST_NAMED
from task2vec.cli.speech import find_table_width, say
from task2vec.text import printable

# Longer names have a line of their own.
WIDEST_NAME = 60
# Of the columns of numbers, and of the notes behind them.
WIDTHS, NOTES_WIDTH = (6, 7, 7, 8), 16
# As many as a person would read; tasks of one kind have much the same ones.
MOST_WARNINGS = 5


def open_table(names: Sequence[str]) -> Callable[..., None]:
    """A function that prints a row of words under the last one at once; the first column is as wide as the names."""
    from rich.cells import cell_len

    room = find_table_width() - sum(2 + size for size in (*WIDTHS, NOTES_WIDTH))
    width = min(max(room, 12), WIDEST_NAME, max(cell_len(printable(name)) for name in ("task", *names)))
    page = sys.stdout  # a bar on standard error would catch what is printed, even for a file

    def tell(name: str, *cells: str) -> None:
        shown, start = printable(name), ""
        if cell_len(shown) > width:
            shown, start = "", f"{shown}\n"
        numbers, notes = cells[: len(WIDTHS)], cells[len(WIDTHS) :]
        columns = [f"{cell:>{size}}" for cell, size in zip(numbers, WIDTHS, strict=True)]
        line = "  ".join([shown + " " * (width - cell_len(shown)), *columns, *notes])
        try:
            print(start + line.rstrip(), file=sys.stdout if page.isatty() else page, flush=True)
        except BrokenPipeError:  # a reader that has gone is no reason to stop working
            let_go(page)

    return tell


def print_summary(report: dict[str, Any]) -> None:
    """How many came out, and why the others did not."""
    failed = report["failed"]
    told = f"{report['embedded']} embedded, {report['found']} found, {len(failed)} failed"
    print(f"{told}; in {printable(' and '.join(report['places']))} ({report['seconds']:.1f} s)")
    _say_warnings(report["tasks"])
    for failure in failed[:MOST_NAMED]:
        say(f"failed: {printable(failure['name'])}: {printable(failure['reason'])}")
    if len(failed) > MOST_NAMED:
        say(f"and {len(failed) - MOST_NAMED} more; --json lists them all")


def _say_warnings(rows: Sequence[dict[str, Any]]) -> None:
    """The different warnings of the tasks, those that most of them have first, each with a task that has it."""
    having: dict[str, list[str]] = {}
    for row in rows:
        for warning in dict.fromkeys(row["warnings"]):
            having.setdefault(warning, []).append(row["task"])
    ordered = sorted(having, key=lambda warning: -len(having[warning]))
    for warning in ordered[:MOST_WARNINGS]:
        first, *others = having[warning]
        also = f" and {len(others)} more" if others else ""
        say(f"warning: {printable(first)}{also}: {printable(warning)}")
    if len(ordered) > MOST_WARNINGS:
        say(f"and {len(ordered) - MOST_WARNINGS} more warnings; --json lists them all")
