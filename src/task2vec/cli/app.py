"""The commands in one place, and the two options that stand before them."""

import shutil
from collections.abc import Callable
from typing import Annotated

import typer

from task2vec.cli import exits
from task2vec.cli.demo import demo
from task2vec.cli.diversity import diversity
from task2vec.cli.doctor import doctor
from task2vec.cli.embed import embed
from task2vec.cli.errors import error_matrix
from task2vec.cli.evaluate import evaluate
from task2vec.cli.helping import PlainCommand
from task2vec.cli.library import ls, show_entry, stats
from task2vec.cli.library_care import check_search, compact, repair, verify
from task2vec.cli.library_changes import add, rename, rm, tag
from task2vec.cli.library_exchange import export, import_tasks
from task2vec.cli.library_experts import errors, experts, rm_expert
from task2vec.cli.many import embed_many
from task2vec.cli.map import draw_map
from task2vec.cli.nearest import nearest
from task2vec.cli.probes import probes
from task2vec.cli.recommend import recommend
from task2vec.cli.serve import serve
from task2vec.cli.show import show
from task2vec.cli.tasks import tasks
from task2vec.cli.train_expert import train_expert

# Help is never wider than the terminal; left to itself it would not go below 50 columns.
_WIDTH = min(shutil.get_terminal_size().columns, 80) - 2

# For lists of commands, where the first sentence of their help would be cut.
SHORT = {
    embed: "Embed a folder of class folders, or a table of images.",
    embed_many: "Embed many tasks; those on the same images share the work.",
    nearest: "Find the tasks of the library that are nearest to one.",
    recommend: "Recommend a network to start from.",
    evaluate: "Compare ways of choosing an expert.",
    diversity: "Measure how diverse a collection is.",
    serve: "Show the library in the browser.",
    train_expert: "Fine-tune a pretrained network on each task.",
    doctor: "Tell versions, devices and places, and what is wrong.",
    errors: "List the errors that were measured.",
}

# Plain help texts: drawing them with rich would take twice as long as everything else together.
app = typer.Typer(
    name="task2vec",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "terminal_width": _WIDTH},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from task2vec import __version__

        print(f"task2vec {__version__}")
        raise typer.Exit


def _add(group: typer.Typer, command: Callable[..., None], name: str | None = None, help: str | None = None) -> None:
    group.command(name, cls=PlainCommand, help=help, short_help=SHORT.get(command))(exits.guarded(command))


@app.callback()
def start(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A folder of images becomes a vector: see which tasks are alike and which are hard.

    Begin with `task2vec demo`, then `task2vec embed FOLDER`.
    """
    exits.is_debugging.set(debug)


for command in (
    demo,
    embed,
    embed_many,
    show,
    nearest,
    recommend,
    evaluate,
    diversity,
    serve,
    probes,
    tasks,
    train_expert,
    error_matrix,
    doctor,
):
    _add(app, command)
_add(app, draw_map, "map")

library = typer.Typer(
    name="library",
    help="What was embedded is kept: list it, look at it, change it, check it, share it.",
    short_help="List, show, change, check and share what was embedded.",
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings=app.info.context_settings,
)
_add(library, ls)
_add(library, show_entry, "show")
for command in (stats, add, rm, tag, rename, verify, repair, compact, check_search, export, experts, errors, rm_expert):
    _add(library, command)
_add(library, import_tasks, "import")
_add(library, import_tasks, "merge", "The same as import.")
app.add_typer(library)
