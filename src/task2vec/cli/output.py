"""What commands print, and how they end.

Results go to standard output, everything else to standard error. Names of files and classes are untrusted: they
are printed as text and nothing else, without escape sequences, markup or right-to-left overrides.

Exit codes: 0 done, 1 a bug of ours, 2 bad usage, 3 bad data, 4 a damaged or incompatible library or file, 5 the
environment, 130 interrupted. Codes 2 to 5 come with a message and without a traceback, unless `--debug` is given.
"""

import contextlib
import dataclasses
import functools
import json
import os
import re
import shlex
import shutil
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn, TextIO

import typer

from task2vec.errors import Task2VecError
from task2vec.text import format_percent, format_table, printable

BUG, ENVIRONMENT, INTERRUPTED = 1, 5, 130
# Digits of a fingerprint or key that are printed; they are enough to refer to an entry.
DIGITS = 8
# Lines of one kind (unreadable images, failures) that are printed; `--json` has all of them.
MOST_LINES = 10
GAP = 2
# The least width of a column of text that does not fit.
LEAST_TEXT = 12
# The heading of a column of bars.
BAR = " "

# Commands that act on a library, with the placeholders after them. A map of files takes no library.
_USES_LIBRARY = re.compile(
    r"\btask2vec (?:embed|report|nearest|distance|show|recommend|map(?! DIR)|train-expert|error-matrix|"
    r"library (?:ls|show|add|rm|tag|rename|verify|repair|export|import|experts|errors))"
    r"(?![\w`-])(?: [A-Z]+(?=[\s,;:)]|\.?$|\.\s))*+(?! --(?:no-)?library)"
)

is_debugging: ContextVar[bool] = ContextVar("is_debugging", default=False)
# Of the running command: the library that the user named, whether it prints JSON, and when it began.
named_library: ContextVar[Path | None] = ContextVar("named_library", default=None)
_is_json: ContextVar[bool] = ContextVar("is_json", default=False)
_begin: ContextVar[float] = ContextVar("begin", default=0.0)


# --- how a command ends ----------------------------------------------------------------------------------------------


def guard(command: Callable[..., None]) -> Callable[..., None]:
    """The command, ending with one of our exit codes whatever happens in it."""

    @functools.wraps(command)
    def run(as_json: bool = False, **given: Any) -> None:
        before = named_library.set(given.get("library"))
        _is_json.set(as_json)
        _begin.set(time.perf_counter())
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(sys.stdout.flush)  # a reader that has gone is noticed here
                command(**given)
        except typer.Exit:
            raise
        except Task2VecError as error:
            say_all("unreadable", (f"{bad.path}: {bad.reason}" for bad in getattr(error, "bad", ())))
            _exit(error.exit_code, f"error: {error}")
        except KeyboardInterrupt:
            _exit(INTERRUPTED, "interrupted; no incomplete file was left behind")
        except BrokenPipeError:  # results are printed last, so nothing is lost
            detach(sys.stdout)
            sys.exit(0)
        except Exception as error:
            kind = type(error).__name__
            if kind in ("MemoryError", "OutOfMemoryError") or "can't allocate memory" in str(error):  # also torch's own
                _exit(ENVIRONMENT, "error: out of memory. Use a smaller --batch-size or --size.")
            advice = "This is a bug in task2vec. Run `task2vec --debug ...` for the traceback, and please report it."
            _exit(BUG, f"error: {kind}: {error}\n{advice}")
        finally:
            named_library.reset(before)

    return run


def _exit(code: int, message: str) -> NoReturn:
    if is_debugging.get() and code != INTERRUPTED:
        traceback.print_exc()
    say(printable(message, keep_lines=True))
    sys.exit(code)


def detach(stream: TextIO) -> None:
    """Send what is printed from now on nowhere: its reader has gone, as `head` does."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def count_seconds() -> float:
    """The seconds since the command began."""
    return round(time.perf_counter() - _begin.get(), 3)


# --- messages and documents ------------------------------------------------------------------------------------------


def name_library(text: str) -> str:
    """The text, with the commands in it acting on the library that the user named.

    Example:
        >>> before = named_library.set(Path("my tasks"))
        >>> name_library("See: task2vec library ls")
        "See: task2vec library ls --library 'my tasks'"
        >>> named_library.reset(before)
    """
    folder = named_library.get()
    if folder is None:
        return text
    option = f" --library {shlex.quote(printable(folder))}"
    return _USES_LIBRARY.sub(lambda found: found[0] + option, text)


def say(message: str) -> None:
    """Print a message to standard error; a closed standard error is no reason to stop working."""
    with contextlib.suppress(BrokenPipeError):
        print(name_library(message), file=sys.stderr, flush=True)


def say_all(prefix: str, lines: Iterable[str]) -> None:
    """Print the first lines of a list to standard error, and how many more there are."""
    lines = list(lines)
    for line in lines[:MOST_LINES]:
        say(f"{prefix}: {printable(line)}")
    if len(lines) > MOST_LINES:
        say(f"and {len(lines) - MOST_LINES} more; --json lists all of them")


def is_watched() -> bool:
    """Whether standard error is a terminal, so that progress is worth drawing."""
    return sys.stderr.isatty()


def wants_json() -> bool:
    """Whether `--json` was given."""
    return _is_json.get()


def print_json(document: Mapping[str, Any]) -> bool:
    """With `--json`, print one JSON document, in ASCII so that any reader can take it; whether it was printed."""
    if wants_json():
        print(json.dumps(document, indent=2, allow_nan=False, default=_to_plain))
    return wants_json()


def _to_plain(value: Any) -> Any:
    """A plain value for what JSON does not know: dataclasses, numpy's scalars and arrays, paths."""
    if hasattr(value, "__dataclass_fields__"):
        return dataclasses.asdict(value)
    return value.tolist() if hasattr(value, "tolist") else str(value)


def print_report(report: dict[str, Any], show: str | Callable[[dict[str, Any]], None]) -> None:
    """Print a report: as JSON with `--json`, else as this text, or as `show` does."""
    if not print_json(report):
        print(show) if isinstance(show, str) else show(report)


def print_text(text: str) -> None:
    """Print a paragraph, wrapped at words to the width of the terminal."""
    print(textwrap.fill(printable(name_library(text)), find_width(), break_on_hyphens=False))


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns, with long values wrapped."""
    rows = [(name, printable(value)) for name, value in facts]
    indent = max((len(name) for name, _ in rows), default=0) + GAP
    for name, value in rows:
        lines = textwrap.wrap(value, max(find_width() - indent, LEAST_TEXT), break_on_hyphens=False) or [""]
        print(f"{name:{indent}}" + f"\n{' ' * indent}".join(lines))


def print_line(text: str) -> None:
    """Print a line at once; a reader that has gone is no reason to stop working."""
    page = sys.stdout
    try:
        # A progress bar on standard error would catch what is printed to a file.
        print(text.rstrip(), file=page if not page.isatty() else None, flush=True)
    except BrokenPipeError:
        detach(page)


# --- tables ----------------------------------------------------------------------------------------------------------


def find_width() -> int:
    """The width of the terminal; unlimited where the output is a pipe or a file."""
    is_free = not sys.stdout.isatty() and not os.environ.get("COLUMNS")
    return 1_000_000 if is_free else shutil.get_terminal_size().columns


def format_bytes(size: int) -> str:
    """A number of bytes for a person.

    Example:
        >>> format_bytes(999), format_bytes(21_008), format_bytes(3_200_000_000)
        ('999 bytes', '21.0 kB', '3.2 GB')
    """
    from rich.filesize import decimal

    return decimal(size)


# Columns of text, by their headings: aligned to the left, and shortened in the middle where they do not fit.
TEXT = {BAR, "task", "expert", "stage", "dataset", "strategy", "kind", "group", "tags", "probe", "method", "embedding"}
TEXT |= {"best", "state", "trained on", "protocol", "location", "nearest (distance)", "model", "evidence", "source"}


def _count(what: Any) -> str:
    """A count as it is, of splits their sum, of names their number."""
    if isinstance(what, Mapping):
        return str(sum(what.values())) if what else "-"
    return str(what if isinstance(what, int) else len(what))


# How values that are not text yet are printed, by the headings of their columns.
FORMATS: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(("error", "train error", "median", "share of norm", "ImageNet"), format_percent),
    **dict.fromkeys(("images", "classes", "positive"), _count),
    **dict.fromkeys(("distance", "noise", "loss"), "{:.3f}".format),
    "embeddings": lambda entries: str(len(entries)) if len(entries) > 1 else "-",
    **dict.fromkeys(("norm", "GMACs"), "{:.3g}".format),
    "size": format_bytes,
    "params": lambda count: f"{count / 1e6:.1f} M",
    "images/s": "{:.0f}".format,
    "local": lambda is_local: "yes" if is_local else "no",
    **dict.fromkeys(("tags", "evidence"), ", ".join),
}
# Of hashes and dates the beginning is printed.
LENGTHS = {"embedding": DIGITS, "task id": DIGITS, "added": 10}


def print_table(rows: Iterable[Any], columns: str, *, drop: str = "") -> None:
    """Print rows as a table that fits the terminal; a column that is empty in all rows is left out.

    Args:
        rows: mappings or dataclasses; None is printed as a dash.
        columns: the headings, separated by commas; `noise=noise.floor` if the field is called otherwise.
        drop: the columns that are left out one by one where the table is too wide. They are named below it.
    """
    pairs = (column.partition("=") for column in columns.split(", "))
    fields = {head: field or head for head, _, field in pairs}
    table = [{head: _format_cell(head, row, field) for head, field in fields.items()} for row in rows]
    empty = [head for head in fields if all(cells[head] in ("-", "") for cells in table)]
    table = [{head: cell for head, cell in cells.items() if head not in empty} for cells in table]
    lines, dropped = format_table(table, width=find_width(), text=TEXT, shorten=TEXT - {"model"}, drop=drop.split(", "))
    has_dots = (sys.stdout.encoding or "").lower().startswith("utf")
    for line in lines:
        print(line if has_dots else line.replace("…", "."))
    if dropped:
        print_text(f"not shown: {', '.join(dropped)} (use a wider terminal, or --json)")


def _format_cell(head: str, row: Any, field: str) -> str:
    for name in field.split("."):
        row = row.get(name) if isinstance(row, Mapping) else getattr(row, name, None)
    if isinstance(row, str):
        return printable(row[: LENGTHS.get(head)])
    return "-" if row is None else printable(FORMATS.get(head, str)(row))
