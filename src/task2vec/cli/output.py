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
# The library that the user named for this command, if any.
named_library: ContextVar[Path | None] = ContextVar("named_library", default=None)


# --- how a command ends ----------------------------------------------------------------------------------------------


def guard(command: Callable[..., None]) -> Callable[..., None]:
    """The command, ending with one of our exit codes whatever happens in it."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        before = named_library.set(kwargs.get("library"))
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except typer.Exit:
            raise
        except Task2VecError as error:
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
            named_library.reset(before)

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


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document, in ASCII so that any reader can take it."""
    print(json.dumps(document, indent=2, allow_nan=False, default=_to_plain))


def _to_plain(value: Any) -> Any:
    """A plain value for what JSON does not know: numpy's scalars and arrays, paths."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def print_text(text: str) -> None:
    """Print a paragraph, wrapped at words to the width of the terminal."""
    for line in _fold(printable(name_library(text)), find_width()):
        print(line)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns, with long values wrapped."""
    rows = [(name, printable(value)) for name, value in facts]
    width = max((len(name) for name, _ in rows), default=0) + GAP
    for name, value in rows:
        first, *others = _fold(value, max(find_width() - width, LEAST_TEXT))
        print(f"{name:{width}}{first}".rstrip())
        for line in others:
            print(" " * width + line)


# --- tables ----------------------------------------------------------------------------------------------------------


def find_width() -> int:
    """The width of the terminal; unlimited where the output is a pipe or a file."""
    is_free = not sys.stdout.isatty() and not os.environ.get("COLUMNS")
    return sys.maxsize if is_free else shutil.get_terminal_size().columns


def print_table(
    rows: Sequence[Mapping[str, object]], *, text: Sequence[str] = ("task",), drop: Sequence[str] = ()
) -> None:
    """Print rows as a table that fits the terminal; a column that is empty in all rows is left out.

    Args:
        rows: all with the same keys, which are the headings; None is printed as a dash.
        text: columns of text, aligned to the left and shortened to two lines where they do not fit.
        drop: the columns that are left out one by one where the table is too wide. They are named below it.
    """
    cells = {
        head: ["-" if row[head] is None else printable(row[head]) for row in rows]
        for head in (rows[0] if rows else ())
        if any(row[head] not in (None, "") for row in rows)
    }
    width, dropped = find_width(), []
    for head in drop:
        if sum(_least(head, cells[head], head in text) + GAP for head in cells) - GAP <= width:
            break
        if cells.pop(head, None) is not None:
            dropped.append(head)
    widths = _share_width(cells, width, text)
    for line in ({head: head for head in cells}, *_transpose(cells)):
        parts = {head: _shorten(cell, widths[head]) if head in text else [cell] for head, cell in line.items()}
        for number in range(max(map(len, parts.values()), default=0)):
            row = [(part[number] if number < len(part) else "", head) for head, part in parts.items()]
            print((" " * GAP).join(_pad(cell, widths[head], head in text) for cell, head in row).rstrip())
    if dropped:
        print_text(f"not shown: {', '.join(dropped)} (use a wider terminal, or --json)")


def _transpose(cells: Mapping[str, Sequence[str]]) -> Iterable[dict[str, str]]:
    return (dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True))


def _least(head: str, cells: Sequence[str], is_text: bool) -> int:
    most = _measure(head, cells)
    return min(most, LEAST_TEXT) if is_text else most


def _measure(head: str, cells: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, (head, *cells)))


def _share_width(cells: Mapping[str, Sequence[str]], width: int, text: Sequence[str]) -> dict[str, int]:
    """The width of every column: as wide as its cells, or where that is too much, the widest texts give way first."""
    widths = {head: _measure(head, column) for head, column in cells.items()}
    least = {head: _least(head, column, head in text) for head, column in cells.items()}
    while sum(widths.values()) + GAP * (len(widths) - 1) > width:
        spare = [head for head in widths if widths[head] > least[head]]
        if not spare:
            break
        widths[max(spare, key=lambda head: widths[head])] -= 1
    return widths


def _fold(text: str, width: int) -> list[str]:
    """The text in lines that are not wider; words stay whole where they can."""
    from rich.cells import cell_len, chop_cells

    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(joined) <= width:
            lines[-1] = joined
        else:
            pieces = chop_cells(word, width)
            lines = [*lines, *pieces] if lines[-1] else pieces
    return lines


def _shorten(name: str, width: int) -> list[str]:
    """The text in two lines at most: of a longer one its beginning and its end."""
    from rich.cells import cell_len, chop_cells

    lines = _fold(name, width)
    if len(lines) <= 2:
        return lines
    dots = "…" if (sys.stdout.encoding or "").lower().startswith("utf") else "..."
    start, *_ = chop_cells(name, max(width - cell_len(dots), 1))
    end, *_ = chop_cells(name[::-1], width)
    return [start + dots, end[::-1]]


def _pad(cell: str, width: int, is_text: bool) -> str:
    from rich.cells import cell_len

    space = " " * (width - cell_len(cell))
    return cell + space if is_text else space + cell


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
