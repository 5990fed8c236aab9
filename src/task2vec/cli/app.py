"""The application: which commands there are, how they end, and what they print.

A command's module is imported when the command is run, so that `task2vec --help` imports none of them.

Results go to standard output, everything else to standard error. Names of files and classes are untrusted: they
are printed as text and nothing else, without escape sequences, markup or right-to-left overrides.

Exit codes: 0 success, 1 a bug in task2vec, 2 bad usage, 3 bad data, 4 a damaged or incompatible library or file, 5 the
environment, 6 `report --fail-on` found something, 130 interrupted. Codes 2 to 6 come with a message and without a
traceback, unless `--debug` is given.
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
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperGroup

from task2vec.cli.options import AsJson, PlainCommand
from task2vec.errors import Task2VecError
from task2vec.text import format_percent, format_table, printable

# --- commands ---------------------------------------------------------------------------------------------------------

# Help is never wider than the terminal; left to itself it would not go below 50 columns.
_WIDTH = min(shutil.get_terminal_size().columns, 80) - 2

# Each command: its module, its function (a group has none), and its line in the list of commands.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": ("doctor", "demo", "Embed eight small tasks offline and compare them."),
    "report": ("report", "report", "Write a report on a dataset: copies, labels, errors, models."),
    "apply": ("report", "apply", "Make a corrected table from the decisions on a report."),
    "recommend": ("recommend", "recommend", "Measure pretrained models on your images, and recommend one."),
    "embed": ("embed", "embed", "Embed folders of images, tables or published datasets."),
    "distance": ("compare", "distance", "Compute the distance between two tasks."),
    "nearest": ("compare", "nearest", "Find the most similar tasks in the library."),
    "map": ("compare", "draw_map", "Draw a map of the embedded tasks."),
    "serve": ("serve", "serve", "Open the library in the browser."),
    "library": ("", "", "Manage the library: list, edit, verify, share."),
    "doctor": ("doctor", "doctor", "Check the installation, devices, folders and library."),
    "metatask": ("", "", "Train experts, measure errors, evaluate strategies."),
    "tasks": ("embed", "tasks", "List the tasks of a dataset."),
    "models": ("doctor", "models", "List pretrained models: size, cost, accuracy, licence."),
}
LIBRARY_COMMANDS: dict[str, tuple[str, str, str]] = {
    "ls": ("library", "ls", "List the tasks, and which can be compared."),
    "show": ("library", "show_task", "Show a task: classes, tags, embeddings, errors."),
    "embedding": ("compare", "show", "Show an embedding: task, error, norm, layers."),
    "add": ("library", "add", "Add saved embeddings."),
    "rm": ("library", "rm", "Remove a task, an embedding, an expert or a tag."),
    "tag": ("library", "tag", "Add tags to a task."),
    "rename": ("library", "rename", "Rename a task."),
    "verify": ("library", "verify", "Check the library for damage."),
    "repair": ("library", "repair", "Rebuild the library from what can still be read."),
    "export": ("library", "export", "Write the library, or the tasks with a tag, to a file."),
    "import": ("library", "import_tasks", "Import an exported file or another library."),
    "experts": ("library", "experts", "List the experts."),
    "errors": ("library", "errors", "List the measured errors."),
}
METATASK_COMMANDS: dict[str, tuple[str, str, str]] = {
    "diversity": ("compare", "diversity", "Measure how diverse a dataset is."),
    "train": ("experts", "train_expert", "Fine-tune a pretrained model on each task."),
    "measure": ("experts", "error_matrix", "Measure the test error of every expert on every task."),
    "evaluate": ("recommend", "evaluate", "Compare model selection strategies."),
}
SUBCOMMANDS = {"library": LIBRARY_COMMANDS, "metatask": METATASK_COMMANDS}
SECTIONS = {
    "Your data": "demo report apply recommend embed",
    "Compare": "distance nearest map serve",
    "Library": "library doctor",
    "Research": "metatask tasks models",
}
# Former names, which work until version 0.2.
FORMER_NAMES = {
    "show": "library embedding",
    "train-expert": "metatask train",
    "error-matrix": "metatask measure",
    "evaluate": "metatask evaluate",
    "diversity": "metatask diversity",
}
_CONTEXT = {"help_option_names": ["-h", "--help"], "terminal_width": _WIDTH}
# Plain help texts: with rich they would take twice as long as everything else together.
_PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False, "add_completion": False}


class LazyGroup(TyperGroup):
    """A group that knows the names of its commands, and imports one when it is run or asked for help."""

    def __init__(self, *args: Any, **options: Any):
        """A group that has the names of its commands, for lists and suggestions."""
        super().__init__(*args, **options)
        self.table = SUBCOMMANDS.get(self.name or "", COMMANDS)
        self.commands = dict.fromkeys(self.table)  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or None; a former name says the new one."""
        if self.table is COMMANDS and cmd_name in FORMER_NAMES:
            new_name = FORMER_NAMES[cmd_name]
            group, subcommand = new_name.split()
            return _make_command(cmd_name, *SUBCOMMANDS[group][subcommand][:2], new_name=new_name)
        if cmd_name not in self.table:
            return None
        if self.table is COMMANDS and cmd_name in SUBCOMMANDS:
            return typer.main.get_command({"library": library, "metatask": metatask}[cmd_name])
        return _make_command(cmd_name, *self.table[cmd_name][:2])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the list of commands without importing them."""
        sections = SECTIONS if self.table is COMMANDS else {"Commands": " ".join(self.table)}
        for heading, names in sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.table[name][2]) for name in names.split()])


def _make_command(name: str, module: str, function: str, *, new_name: str = "") -> Any:
    """The command of a function, which says first that it has a new name if it has."""
    command = guard(expand_groups(getattr(import_module(f"task2vec.cli.{module}"), function)))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        if new_name:
            say(f"'task2vec {name}' is now 'task2vec {new_name}'; the old name works until version 0.2")
        command(**given)

    wrapper = typer.Typer(**_PLAIN)
    wrapper.command(name, cls=PlainCommand, context_settings=_CONTEXT)(run)
    return typer.main.get_command(wrapper)


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with every option of its groups (dataclasses of `options`) as a parameter of its own, and `--json`.

    A parameter `Annotated[Reading, "split allow_bad"]` has only these options of the group.
    """
    groups: dict[str, tuple[Any, list[str]]] = {}
    parameters = []
    for parameter in signature(command).parameters.values():
        group, *chosen = get_args(parameter.annotation) or (parameter.annotation,)
        if dataclasses.is_dataclass(group):
            hints = get_type_hints(group, include_extras=True)
            names = chosen[0].split() if chosen else [name for name in hints if get_origin(hints[name]) is Annotated]
            groups[parameter.name] = group, names
            parameters += [_make_parameter(name, hints[name], getattr(group, name)) for name in names]
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
    if command.__name__ != "serve":
        parameters.append(_make_parameter("as_json", AsJson, False))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        made = {key: group(**{name: given.pop(name) for name in names}) for key, (group, names) in groups.items()}
        command(**given, **made)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run


def _make_parameter(name: str, annotation: Any, default: object) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from task2vec import __version__

        print(f"task2vec {__version__}")
        raise typer.Exit


app = typer.Typer(name="task2vec", cls=LazyGroup, no_args_is_help=True, context_settings=_CONTEXT, **_PLAIN)
library = typer.Typer(name="library", cls=LazyGroup, no_args_is_help=True, context_settings=_CONTEXT, **_PLAIN)
metatask = typer.Typer(name="metatask", cls=LazyGroup, no_args_is_help=True, context_settings=_CONTEXT, **_PLAIN)


@app.callback()
def start(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Turn image datasets into vectors: compare tasks, and choose a pretrained model for a new one.

    Start with `task2vec demo`, then `task2vec embed FOLDER`.
    """
    is_debugging.set(debug)


@library.callback()
def start_library() -> None:
    """List, show, edit, verify and share the tasks, embeddings, experts and errors of the library."""


@metatask.callback()
def start_metatask() -> None:
    """Train experts, measure the test error of every expert on every task, and evaluate strategies on these errors."""


BUG, ENVIRONMENT, FOUND, INTERRUPTED = 1, 5, 6, 130
# Digits of a fingerprint or key that are printed; they are enough to refer to an entry.
DIGITS = 8
# Lines of one kind (unreadable images, failures) that are printed; `--json` has all of them.
MAX_LINES = 10
GAP = 2
# The least width of a column of text that does not fit.
MIN_TEXT_WIDTH = 12
# The heading of a column of bars.
BAR = " "

# Commands that act on a library, with the placeholders after them. A map of files takes no library.
_USES_LIBRARY = re.compile(
    r"\btask2vec (?:embed|report|nearest|distance|recommend|map(?! DIR)|metatask (?:train|measure|evaluate)|"
    rf"library (?:{'|'.join(LIBRARY_COMMANDS)}))"
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
    return _USES_LIBRARY.sub(lambda match: match[0] + option, text)


def say(message: str) -> None:
    """Print a message to standard error; a closed standard error is no reason to stop working."""
    with contextlib.suppress(BrokenPipeError):
        print(name_library(message), file=sys.stderr, flush=True)


def say_all(prefix: str, lines: Iterable[str]) -> None:
    """Print the first lines of a list to standard error, and how many more there are."""
    lines = list(lines)
    for line in lines[:MAX_LINES]:
        say(f"{prefix}: {printable(line)}")
    if len(lines) > MAX_LINES:
        say(f"and {len(lines) - MAX_LINES} more; --json lists all of them")


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
        lines = textwrap.wrap(value, max(find_width() - indent, MIN_TEXT_WIDTH), break_on_hyphens=False) or [""]
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
TEXT_COLUMNS = {
    BAR,
    "task",
    "expert",
    "stage",
    "dataset",
    "strategy",
    "kind",
    "group",
    "tags",
    "probe",
    "method",
    "embedding",
}
TEXT_COLUMNS |= {
    "best",
    "state",
    "trained on",
    "protocol",
    "location",
    "nearest (distance)",
    "model",
    "evidence",
    "source",
}


def _count(value: Any) -> str:
    """A count as it is, of splits their sum, of names their number."""
    if isinstance(value, Mapping):
        return str(sum(value.values())) if value else "-"
    return str(value if isinstance(value, int) else len(value))


# How values that are not text yet are printed, by the headings of their columns.
FORMATS: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(("error", "head error", "train error", "median", "share of norm", "ImageNet"), format_percent),
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
PRINTED_LENGTHS = {"embedding": DIGITS, "task id": DIGITS, "added": 10}


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
    lines, dropped = format_table(
        table, width=find_width(), text=TEXT_COLUMNS, shorten=TEXT_COLUMNS - {"model"}, drop=drop.split(", ")
    )
    has_dots = (sys.stdout.encoding or "").lower().startswith("utf")
    for line in lines:
        print(line if has_dots else line.replace("…", "."))
    if dropped:
        print_text(f"not shown: {', '.join(dropped)} (use a wider terminal, or --json)")


def _format_cell(head: str, row: Any, field: str) -> str:
    for name in field.split("."):
        row = row.get(name) if isinstance(row, Mapping) else getattr(row, name, None)
    if isinstance(row, str):
        return printable(row[: PRINTED_LENGTHS.get(head)])
    return "-" if row is None else printable(FORMATS.get(head, str)(row))
