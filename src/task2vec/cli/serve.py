"""`task2vec serve`: the library in the browser."""

import os
import sys
import webbrowser
from typing import Annotated

from typer import Option

from task2vec.cli import app, inputs, options
from task2vec.text import printable

TOKEN = "TASK2VEC_TOKEN"  # noqa: S105 - the name of a variable


def serve(
    library: options.LibraryFolder = None,
    host: Annotated[str, Option(help="Address to listen on; any but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int | None, Option(min=1, max=65535, metavar="N", help="Default: 8765, or the next one.")] = None,
    token: Annotated[str | None, Option(help=f"Access token; {TOKEN} hides it from other users.")] = None,
    is_closed: Annotated[bool, Option("--no-open", help="Do not open a browser.")] = False,
) -> None:
    """Open the library in the browser: the map of all tasks, their neighbours, and recommended models.

    Only this machine can connect, unless --host is given. With a token, open the printed address yourself. Stop with
    Ctrl-C.
    """
    from task2vec import web

    web.check_extra()
    token = token or os.environ.get(TOKEN) or None  # looked up here: not every version of typer does
    library = inputs.find_library_folder(library)
    settings = web.ServeSettings(library=library, host=host, token=token)
    listening, is_another = web.take_port(host, port)
    number = listening.getsockname()[1]
    server = web.make_app(settings)
    server.state.read_view()  # a damaged library is reported now and not to a visitor
    if is_another:
        app.say(f"port 8765 is in use; using {number}")
    address = web.format_address(host, number)
    print(f"serving '{printable(server.state.folder.name)}' on {address}", flush=True)  # requests wait from now on
    if token is not None:  # not given to a browser: other users see the arguments of its process
        app.say(f"open it with the token: {address}?token=...")
    elif not is_closed and _has_screen():
        webbrowser.open(address)
    app.say("stop with Ctrl-C")
    web.run(server, listening)


def _has_screen() -> bool:
    """Whether a browser can open a window; a text browser would take over the terminal."""
    has_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return os.name == "nt" or sys.platform == "darwin" or has_display
