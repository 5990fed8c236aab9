"""`task2vec serve`: the library in the browser."""

import os
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from task2vec.cli import options
from task2vec.cli.speech import say
from task2vec.errors import UsageError
from task2vec.text import printable

TOKEN = "TASK2VEC_TOKEN"  # noqa: S105 - the name of a variable


def serve(
    library: options.LibraryFolder = None,
    roots: Annotated[
        list[Path] | None,
        typer.Option(
            "--root", metavar="DIR", help="Offer this folder and those below it to be embedded; may be given often."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine a token is needed.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Default: 8765, or the next one that is free.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help=f"What visitors must know; better said by the variable {TOKEN}, which others cannot see.",
        ),
    ] = None,
    is_opened: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> None:
    """Show the library in the browser: the map of all tasks, who is near, and which model to start from.

    Only this machine can see it, unless --host says otherwise. Ctrl-C ends it.
    """
    from task2vec.web import check_extra, format_address, run, take_port

    check_extra()
    from task2vec.web import ServeSettings

    token = token or os.environ.get(TOKEN) or None  # looked up here: not every version of typer does
    settings = ServeSettings(library=library, roots=tuple(roots or ()), host=host, token=token)
    if library is not None and library.exists() and not library.is_dir():
        raise UsageError(f"'{library}' is a file, and a library is a folder. Name its folder: --library DIR")
    listening, is_another = take_port(host, port)
    from task2vec.web import make_app

    number = listening.getsockname()[1]
    app = make_app(settings)
    app.state.read_view()  # a damaged library is better reported now than to a visitor
    if is_another:
        say(f"port 8765 is in use, using {number}")

    def announce() -> None:
        print(f"serving '{printable(app.state.folder.name)}' on {format_address(settings, number)}", flush=True)
        if settings.token is not None:
            say(f"open it with the token: {format_address(settings, number)}?token=...")
        say("press Ctrl-C to stop")
        if is_opened and _has_screen():
            # Other users see the arguments of a browser's process: a code that works once, not the token.
            webbrowser.open(format_address(settings, number, code=app.issue_code()))

    run(app, listening, when_ready=announce)


def _has_screen() -> bool:
    """Whether a browser has somewhere to open a window; on a machine without a screen it would fill the terminal."""
    return os.name == "nt" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")) or _is_mac()


def _is_mac() -> bool:
    import sys

    return sys.platform == "darwin"
