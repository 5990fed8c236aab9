"""The command line of the experiments: results on standard output, progress and errors on standard error."""

import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

import task2vec as t2v
from task2vec.text import printable

if TYPE_CHECKING:
    from rich.console import Console


def make_app(*commands: Callable[..., None]) -> typer.Typer:
    """An application of these commands; a single command needs no name on the command line."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False, no_args_is_help=True)
    for command in commands:
        app.command(command.__name__.removeprefix("make_"))(_report_errors(command))
    if len(commands) == 1:
        app.info.no_args_is_help = False
    return app


def _report_errors(command: Callable[..., None]) -> Callable[..., None]:
    """The command; a deliberate error of the package ends it with a message and the error's exit code."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except t2v.errors.Task2VecError as error:
            say(f"error: {printable(error, keep_lines=True)}")
            raise typer.Exit(error.exit_code) from error

    return run


def say(message: str) -> None:
    """Prints a message to standard error."""
    print(message, file=sys.stderr, flush=True)


def check_device(device: str | None) -> None:
    """Refuses a device that is not there before any image is read."""
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise t2v.errors.UsageError(
            f"--device {device} cannot be used here ({str(error).splitlines()[0]}). Leave it out, or use --device cpu."
        ) from error


@contextmanager
def watch_steps(total: int) -> Iterator[Callable[[str], None]]:
    """A function to call at the start of each step: it moves a bar, or prints a line where there is no terminal.

    Steps of the same name in a row are printed once.
    """
    if not sys.stderr.isatty():
        printed = [""]

        def print_step(step: str) -> None:
            if step != printed[-1]:
                say(printable(step))
                printed[-1] = step

        yield print_step
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("", total=total)
        steps = iter(range(total + 1))
        yield lambda step: bar.update(line, completed=next(steps), description=printable(step))


def open_page() -> "Console":
    """A console on standard output that takes text literally and fits the terminal."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)


def print_json(document: dict[str, Any]) -> None:
    """Prints one JSON document; claims become plain values."""
    if "claims" in document:
        document = {**document, "claims": [asdict(claim) for claim in document["claims"]]}
    print(json.dumps(document, indent=2, allow_nan=False, default=_make_plain))


def _make_plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def print_claims(report: dict[str, Any], *, how_to_read: str, missing: Sequence[str], cost: str) -> None:
    """The table of claims, how to read it, what is missing, the files, and last what it took."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("claim", "measured", ""):
        table.add_column(column, overflow="fold")
    for claim in report["claims"]:
        table.add_row(printable(claim.claim), printable(claim.measured), claim.verdict)
    page = open_page()
    page.print(table)
    page.print(how_to_read + "\n")
    for words in missing:
        page.print(printable(words) + "\n")
    for path in report["files"]:
        page.print(printable(path), soft_wrap=True)
    page.print(printable(cost), soft_wrap=True)
