"""What commands print, and how they end.

Results go to standard output, everything else to standard error. Names of files and classes come from strangers: they
are printed as text and nothing else, without escape sequences, markup or right-to-left overrides.

Exit codes: 0 done, 1 a bug of ours, 2 bad usage, 3 bad data, 4 a damaged or incompatible library or file, 5 the
environment, 130 interrupted. Codes 2 to 5 come with a message and without a traceback, unless `--debug` is given.
"""

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TextIO

import typer

from task2vec.errors import Task2VecError
from task2vec.text import printable

BUG, ENVIRONMENT, INTERRUPTED = 1, 5, 130
# Digits of a fingerprint or key that are printed; they are enough to refer to an entry.
DIGITS = 8
# Lines of one kind (unreadable images, failures) that are printed; `--json` has all of them.
MOST_LINES = 10
OUT_OF_MEMORY = "error: out of memory. Use a smaller --batch-size or --size."
GAP = 2
# The least width of a column of text that does not fit.
LEAST_TEXT = 12

# Commands that act on a library, with the placeholders after them. A map of files takes no library.
_USES_LIBRARY = re.compile(
    r"\btask2vec (?:embed|nearest|distance|show|recommend|map(?! DIR)|train-expert|error-matrix|"
    r"library (?:ls|show|stats|add|rm|tag|rename|verify|repair|export|import|experts|errors))"
    r"(?![\w`-])(?: [A-Z]+(?=[\s,;:)]|\.?$|\.\s))*+(?! --(?:no-)?library)"
)

is_debugging: ContextVar[bool] = ContextVar("is_debugging", default=False)
# Whether this command prints JSON.
_is_json: ContextVar[bool] = ContextVar("is_json", default=False)
# The library that the user named for this command, if any.
named_library: ContextVar[Path | None] = ContextVar("named_library", default=None)


# --- how a command ends ----------------------------------------------------------------------------------------------


def guard(command: Callable[..., None]) -> Callable[..., None]:
    """The command, ending with one of our exit codes whatever happens in it."""

    @functools.wraps(command)
    def run(as_json: bool = False, **given: Any) -> None:
        before = named_library.set(given.get("library")), _is_json.set(as_json)
        try:
            command(**given)
            sys.stdout.flush()
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
        except MemoryError:
            _exit(ENVIRONMENT, OUT_OF_MEMORY)
        except Exception as error:
            if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error):  # torch's own
                _exit(ENVIRONMENT, OUT_OF_MEMORY)
            advice = "This is a bug in task2vec. Run `task2vec --debug ...` for the traceback, and please report it."
            _exit(BUG, f"error: {type(error).__name__}: {error}\n{advice}")
        finally:
            named_library.reset(before[0])
            _is_json.reset(before[1])

    return run


def _exit(code: int, message: str) -> None:
    if is_debugging.get() and code != INTERRUPTED:
        traceback.print_exc()
    say(printable(message, keep_lines=True))
    sys.exit(code)


def detach(stream: TextIO) -> None:
    """Send what is printed from now on nowhere: its reader has gone, as `head` does."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


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
    """A plain value for what JSON does not know: numpy's scalars and arrays, paths."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


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


def print_table(
    rows: Sequence[Mapping[str, object]], *, text: Sequence[str] = ("task",), drop: Sequence[str] = ()
) -> None:
    """Print rows as a table that fits the terminal; a column that is empty in all rows is left out.

    Args:
        rows: all with the same keys, which are the headings; None is printed as a dash.
        text: columns of text, aligned to the left and shortened in the middle where they do not fit.
        drop: the columns that are left out one by one where the table is too wide. They are named below it.
    """
    from rich.cells import cell_len

    heads = [head for head in (rows[0] if rows else ()) if any(row[head] not in (None, "") for row in rows)]
    cells = {head: [head, *("-" if row[head] is None else printable(row[head]) for row in rows)] for head in heads}
    widths = {head: max(map(cell_len, column)) for head, column in cells.items()}
    least = {head: min(width, LEAST_TEXT) if head in text else width for head, width in widths.items()}
    page, dropped = find_width() + GAP, []
    for head in drop:
        if head in heads and sum(least[head] + GAP for head in heads) > page:
            heads.remove(head)
            dropped.append(head)
    while sum(widths[head] + GAP for head in heads) > page:
        spare = [head for head in heads if widths[head] > least[head]]
        if not spare:
            break
        widths[max(spare, key=lambda head: widths[head])] -= 1  # the widest text gives way first
    for number in range(len(rows) + 1):
        parts = [_fit(cells[head][number], widths[head], is_text=head in text) for head in heads]
        print((" " * GAP).join(parts).rstrip())
    if dropped:
        print_text(f"not shown: {', '.join(dropped)} (use a wider terminal, or --json)")


def _fit(cell: str, width: int, *, is_text: bool) -> str:
    """The cell in exactly that width: padded, or its beginning and its end."""
    from rich.cells import cell_len, set_cell_size

    if (spare := width - cell_len(cell)) >= 0:
        return cell + " " * spare if is_text else " " * spare + cell
    dots = "…" if (sys.stdout.encoding or "").lower().startswith("utf") else "."
    half = (width - 1) // 2
    return set_cell_size(cell, width - 1 - half) + dots + set_cell_size(cell[::-1], half)[::-1]


def format_bytes(size: int) -> str:
    """A number of bytes for a person.

    Example:
        >>> format_bytes(999), format_bytes(21_008), format_bytes(3_200_000_000)
        ('999 B', '21.0 kB', '3.2 GB')
    """
    if size < 1000:
        return f"{size} B"
    power, unit = next(((p, unit) for p, unit in ((3, "kB"), (6, "MB")) if size < 10 ** (p + 3)), (9, "GB"))
    return f"{size / 10**power:.1f} {unit}"
