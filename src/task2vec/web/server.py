"""A socket, and the server on it."""

import errno
import socket
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from task2vec.errors import MissingExtraError, ResourceError
from task2vec.web.settings import Limits

if TYPE_CHECKING:
    import uvicorn

    from task2vec.web.security import SecureApp

DEFAULT_PORT, FURTHER_PORTS = 8765, 50
MAX_CONNECTIONS = 512


def check_extra() -> None:
    """Raise if the packages of the server are not installed."""
    if any(find_spec(name) is None for name in ("fastapi", "uvicorn", "cachetools")):
        problem = "the server needs FastAPI, uvicorn and cachetools, which are not installed"
        raise MissingExtraError(f"{problem}. Install them: pip install 'task2vec[web]'")


def take_port(host: str, port: int | None) -> tuple[socket.socket, bool]:
    """A socket that listens on the given port, or without one on the first free port from 8765 on.

    Returns:
        The socket, and whether it is not on the usual port because that is in use.

    Raises:
        ResourceError: The given port is in use, or the host does not belong to this machine.
    """
    tried = [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + FURTHER_PORTS), 0]
    for number in tried:
        try:
            family, *_, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
            is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
            listening = socket.create_server(address, family=family, backlog=MAX_CONNECTIONS, dualstack_ipv6=is_dual)
            return listening, port is None and number != DEFAULT_PORT
        except (OSError, UnicodeError) as error:  # the latter for an impossible host name
            if port is None and number and getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES):
                continue
            reason = getattr(error, "strerror", None) or error
            fix = "Choose another port: --port N, or leave it out" if port else "Choose another host: --host NAME"
            problem = f"cannot listen on {host} port {number}: {reason}"
            raise ResourceError(f"{problem}. No browser could open the page. {fix}") from error
    raise AssertionError("the last port is chosen by the system")


def format_address(host: str, port: int) -> str:
    """The address to open in a browser.

    Example:
        >>> format_address("::1", 8765)
        'http://[::1]:8765/'
    """
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared, not bound
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


def make_server(app: "SecureApp", limits: Limits) -> "uvicorn.Server":
    """Uvicorn, quiet, with limits on the number of connections and on their idleness.

    A client that opens all connections and never ends a request, or never reads the response, would lock out everybody
    else. So the head of a request must arrive in time, then a body that nobody wants, and a response be read in time; a
    byte now and then gains none.
    """
    import h11
    import uvicorn

    stalled: dict[tuple[Any, ...], float] = {}  # what waits for its client, and since when

    class Server(uvicorn.Server):
        async def on_tick(self, counter: int) -> bool:
            """Ten times a second: end connections that have waited for their client too long."""
            nonlocal stalled
            now = time.monotonic()
            before = stalled
            stalled = {}
            connections: list[Any] = list(self.server_state.connections)
            for connection in connections:
                unread = connection.transport.get_write_buffer_size()
                if unread or connection.conn.their_state in (h11.IDLE, h11.SEND_BODY):
                    wait = (connection, connection.cycle, unread)
                    stalled[wait] = before.get(wait, now)
                    if now - stalled[wait] > (limits.reading if unread else limits.seconds):
                        connection.transport.abort()  # closing would wait until everything is read
            return await super().on_tick(counter)

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        http="h11",
        ws="none",
        lifespan="on",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=3,
    )
    return Server(config)


def run(app: "SecureApp", listening: socket.socket) -> None:
    """Serves on a socket from `take_port` until it is interrupted."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # requests run in parallel; threads of NumPy would only compete with them
        make_server(app, app.settings.limits).run(sockets=[listening])
