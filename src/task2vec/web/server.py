"""A socket, and the server on it."""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from task2vec.errors import MissingExtraError, ResourceError
from task2vec.web.settings import ServeSettings

if TYPE_CHECKING:
    import uvicorn

    from task2vec.web.guards import Guards

USUAL_PORT, MORE_PORTS = 8765, 50
CONNECTIONS = 512


def check_extra() -> None:
    """Raise if what a server needs is not installed."""
    try:
        import fastapi
        import uvicorn  # noqa: F401 - is it there?
    except ImportError as error:
        raise MissingExtraError(
            "a page in the browser needs FastAPI and uvicorn, which are not installed here. Install them: "
            "pip install 'task2vec[web]'"
        ) from error
    assert fastapi


def take_port(host: str, port: int | None) -> tuple[socket.socket, bool]:
    """A socket that listens on the wanted port, or without a wish on the first free one from 8765 on.

    Returns:
        The socket, and whether it is another port than the usual one because that is in use.

    Raises:
        ResourceError: The wanted port, or each of those tried, is in use, or the host is none of this machine.
    """
    tried = [port] if port is not None else [*range(USUAL_PORT, USUAL_PORT + MORE_PORTS), 0]
    for number in tried:
        try:
            return _listen(host, number), port is None and number != USUAL_PORT
        except (OSError, UnicodeError) as error:  # the latter of a host that no name can be
            if port is None and number and isinstance(error, OSError) and _is_taken(error):
                continue
            said = getattr(error, "strerror", None) or error
            mend = "Choose another one: --port N, or leave it out" if port else "Choose another one: --host NAME"
            raise ResourceError(
                f"cannot listen on {host} port {number}: {said}. Nobody could open the page. {mend}"
            ) from error
    raise AssertionError("the last port is chosen by the machine")


def _is_taken(error: OSError) -> bool:
    import errno

    return error.errno in (errno.EADDRINUSE, errno.EACCES)


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(CONNECTIONS)
    except BaseException:
        listening.close()
        raise
    return listening


def word_address(settings: ServeSettings, port: int, *, code: str | None = None) -> str:
    """The address to open in a browser; with a code that `Guards.issue_code` gave, it lets in once.

    Example:
        >>> word_address(ServeSettings(host="::1"), 8765)
        'http://[::1]:8765/'
    """
    host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(settings.host, settings.host)  # noqa: S104
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}/" + (f"?code={code}" if code else "")


def configure(app: "Guards") -> "uvicorn.Config":
    """How uvicorn serves an application: quietly, on so many connections, and with patience that has an end."""
    import uvicorn

    from task2vec.web.connections import Connection

    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        http=Connection,
        ws="none",
        lifespan="on",
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=3,
    )


def run(app: "Guards", listening: socket.socket, *, when_ready: Callable[[], None] = lambda: None) -> None:
    """Serves until it is interrupted.

    Args:
        app: what `make_app` gives.
        listening: what `take_port` gives.
        when_ready: called once, when the first request can be answered.
    """
    import uvicorn
    from threadpoolctl import threadpool_limits

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            app.served.warm()
            when_ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.served.is_closing = True  # listeners to events are told, and leave
            await super().shutdown(sockets)

    with threadpool_limits(1):  # answers run side by side; threads of their own would only get in each other's way
        Server(configure(app)).run(sockets=[listening])
