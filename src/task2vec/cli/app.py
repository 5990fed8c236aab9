"""The application: which commands there are, where each is defined, and the options before them.

A command's module is imported when the command is run, so that `task2vec --help` imports none of them.
"""

import shutil
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperGroup

from task2vec.cli.options import AsJson, PlainCommand
from task2vec.cli.output import guard, is_debugging

# Help is never wider than the terminal; left to itself it would not go below 50 columns.
_WIDTH = min(shutil.get_terminal_size().columns, 80) - 2

# Each command: its module, its function, and its line in the list of commands.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": ("doctor", "demo", "Embed eight small tasks offline and compare them."),
    "embed": ("embed", "embed", "Embed folders of images, tables or published datasets."),
    "report": ("report", "report", "Write a report on a dataset: labels, copies, difficulty, models."),
    "show": ("compare", "show", "Show an embedding: task, error, norm, layers."),
    "nearest": ("compare", "nearest", "Find the most similar tasks in the library."),
    "distance": ("compare", "distance", "Compute the distance between two tasks."),
    "diversity": ("compare", "diversity", "Measure how diverse a dataset is."),
    "map": ("compare", "draw_map", "Draw a map of the embedded tasks."),
    "recommend": ("recommend", "recommend", "Recommend a pretrained model for a task."),
    "evaluate": ("recommend", "evaluate", "Compare model selection strategies."),
    "train-expert": ("experts", "train_expert", "Fine-tune a pretrained model on each task."),
    "error-matrix": ("experts", "error_matrix", "Measure the test error of every expert on every task."),
    "library": ("library", "", "Manage the library: list, edit, verify, share."),
    "serve": ("serve", "serve", "Open the library in the browser."),
    "tasks": ("embed", "tasks", "List the tasks of a dataset."),
    "models": ("doctor", "models", "List pretrained models: size, speed, accuracy, evidence."),
    "doctor": ("doctor", "doctor", "Check the installation, devices, folders and library."),
}
LIBRARY_COMMANDS: dict[str, tuple[str, str, str]] = {
    "ls": ("library", "ls", "List the tasks, and which can be compared."),
    "show": ("library", "show_task", "Show a task: classes, tags, embeddings, errors."),
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
_CONTEXT = {"help_option_names": ["-h", "--help"], "terminal_width": _WIDTH}
# Plain help texts: with rich they would take twice as long as everything else together.
_PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False, "add_completion": False}


class LazyGroup(TyperGroup):
    """A group that knows the names of its commands, and imports one when it is run or asked for help."""

    def __init__(self, *args: Any, **options: Any):
        """A group that has the names of its commands, for lists and suggestions."""
        super().__init__(*args, **options)
        self.table = LIBRARY_COMMANDS if self.name == "library" else COMMANDS
        self.commands = dict.fromkeys(self.table)  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or None; `library` is a group, which has no function of its own."""
        module, function, _ = self.table.get(cmd_name, ("", "", ""))
        if not function:
            return typer.main.get_command(library) if module else None
        call = getattr(import_module(f"task2vec.cli.{module}"), function)
        alone = typer.Typer(**_PLAIN)
        alone.command(cmd_name, cls=PlainCommand, context_settings=_CONTEXT)(guard(expand_groups(call)))
        return typer.main.get_command(alone)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, _, short) in self.table.items()])


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with every option of its groups (dataclasses of `options`) as a parameter of its own, and `--json`.

    A parameter `Annotated[Reading, "split allow_bad"]` has only these options of the group.
    """
    groups: dict[str, tuple[Any, list[str]]] = {}
    parameters = []
    for own in signature(command).parameters.values():
        group, *chosen = get_args(own.annotation) or (own.annotation,)
        if is_dataclass(group):
            hints = get_type_hints(group, include_extras=True)
            names = chosen[0].split() if chosen else [name for name in hints if get_origin(hints[name]) is Annotated]
            groups[own.name] = group, names
            parameters += [_make_parameter(name, hints[name], getattr(group, name)) for name in names]
        else:
            parameters.append(own.replace(kind=Parameter.KEYWORD_ONLY))
    if command.__name__ != "serve":
        parameters.append(_make_parameter("as_json", AsJson, False))

    @wraps(command)
    def run(**given: Any) -> None:
        made = {own: group(**{name: given.pop(name) for name in names}) for own, (group, names) in groups.items()}
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
