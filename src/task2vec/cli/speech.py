"""How the command line speaks: results to standard output, everything else to standard error.

Names of files and classes come from strangers. They are shown as text and nothing but text: no markup, no escape
sequences that move a cursor or colour a line, no right-to-left overrides that disguise a name.
"""

import contextlib
import json
import os
import re
import shlex
import sys
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from task2vec.text import printable

if TYPE_CHECKING:
    from rich.console import Console

# Joiners belong to how Persian and emoji are written, so they stay.
_KEPT = {"\u200c", "\u200d"}
_HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# Commands that act on a library, with the placeholders after them. A map of files takes none.
_ABOUT_LIBRARY = re.compile(
    r"\btask2vec (?:nearest|embed|embed-many|error-matrix|map(?! DIR)|"
    r"library (?:ls|show|stats|add|rm|tag|rename|verify|repair|compact|check-search|export|import|merge|"
    r"experts|errors|rm-expert))"
    r"(?![\w`-])(?: [A-Z]+(?=[\s,;:)]|\.?$|\.\s))*+(?! --(?:no-)?library)"
)

# The library that the user named for this command, if so.
named_library: ContextVar[Path | None] = ContextVar("named_library", default=None)


def name_library(text: str) -> str:
    """The text, its commands acting on the library that the user named: typed as they are, they would use another.

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
    return _ABOUT_LIBRARY.sub(lambda found: found[0] + option, text)


def say(message: str) -> None:
    """Print a message to standard error; nobody listening is no reason to stop working."""
    with contextlib.suppress(BrokenPipeError):
        print(name_library(message), file=sys.stderr, flush=True)


def is_watched() -> bool:
    """Whether somebody looks at standard error, so that progress is worth drawing."""
    return sys.stderr.isatty()


def open_page() -> "Console":
    """A console on standard output that takes text literally and fits the terminal."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)


def find_table_width() -> int:
    """How wide a table may be: as the page is, and where that is a pipe or a file, as wide as it likes."""
    is_free = not sys.stdout.isatty() and not os.environ.get("COLUMNS")
    return sys.maxsize if is_free else open_page().width


def print_facts(facts: list[tuple[str, str]]) -> None:
    """Print names and values in two columns, long values folded; text is expected to be `visible` already."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, value)
    open_page().print(table)


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document, in ASCII so that any reader can take it."""
    print(json.dumps(document, indent=2, allow_nan=False, default=_plain))


def _plain(value: Any) -> Any:
    """A plain value for what JSON does not know: numpy's scalars and arrays, paths."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
