"""A socket, and the server on it."""

import errno
import socket
from asyncio import TimerHandle, Transport
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from task2vec.errors import MissingExtraError, ResourceError

if TYPE_CHECKING:
    import uvicorn

    from task2vec.web.security import SecureApp

USUAL_PORT, MORE_PORTS = 8765, 50
CONNECTIONS = 512


def check_extra() -> None:
    """Raise if the packages of the server are not installed."""
    try:
        import cachetools
        import fastapi
        import uvicorn
    except ImportError as error:
        raise MissingExtraError(
            "the server needs FastAPI, uvicorn and cachetools, which are not installed. Install them: "
            "pip install 'task2vec[web]'"
        ) from error
    assert fastapi and uvicorn and cachetools


def take_port(host: str, port: int | None) -> tuple[socket.socket, bool]:
    """A socket that listens on the given port, or without one on the first free port from 8765 on.

    Returns:
        The socket, and whether it is not on the usual port because that is in use.

    Raises:
        ResourceError: The given port is in use, or the host does not belong to this machine.
    """
    tried = [port] if port is not None else [*range(USUAL_PORT, USUAL_PORT + MORE_PORTS), 0]
    for number in tried:
        try:
            return _listen(host, number), port is None and number != USUAL_PORT
        except (OSError, UnicodeError) as error:  # the latter for an impossible host name
            if port is None and number and getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES):
                continue
            reason = getattr(error, "strerror", None) or error
            fix = "Choose another port: --port N, or leave it out" if port else "Choose another host: --host NAME"
            raise ResourceError(
                f"cannot listen on {host} port {number}: {reason}. No browser could open the page. {fix}"
            ) from error
    raise AssertionError("the last port is chosen by the system")


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


def format_address(host: str, port: int) -> str:
    """The address to open in a browser.

    Example:
        >>> format_address("::1", 8765)
        'http://[::1]:8765/'
    """
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared, not bound
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


def configure(app: "SecureApp") -> "uvicorn.Config":
    """The configuration of uvicorn: quiet, with limits on the number and patience of connections."""
    import uvicorn

    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        http=_make_protocol(),
        ws="none",
        lifespan="on",
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=3,
    )


def _make_protocol() -> Any:
    """Uvicorn's HTTP protocol with two time limits that it lacks.

    A client that opens all connections and never sends a request, or never reads the response, would lock out everybody
    else. So the head of a request must arrive, and a response be read, in time. `SecureApp` limits the time of a body.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        head: TimerHandle | None = None
        reading: TimerHandle | None = None

        def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.watch_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.watch_head()  # a byte now and then gains no time

        def pause_writing(self) -> None:
            super().pause_writing()
            # abort, not close: closing would wait until everything is read.
            self.reading = self.loop.call_later(self.config.app.limits.reading, self.transport.abort)  # type: ignore

        def resume_writing(self) -> None:
            super().resume_writing()
            self.reading = _cancel(self.reading)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self.head, self.reading = _cancel(self.head), _cancel(self.reading)

        def watch_head(self) -> None:
            if self.conn.their_state is not h11.IDLE:
                self.head = _cancel(self.head)
            elif self.head is None:
                self.head = self.loop.call_later(self.config.app.limits.seconds, self.transport.close)  # type: ignore

    return Connection


def _cancel(timer: TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def run(app: "SecureApp", listening: socket.socket, *, when_ready: Callable[[], None] = lambda: None) -> None:
    """Serves until it is interrupted.

    Args:
        app: from `make_app`.
        listening: from `take_port`.
        when_ready: called once, when the first request can be answered.
    """
    import uvicorn
    from threadpoolctl import threadpool_limits

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            when_ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.is_closing = True  # ends the streams of events
            await super().shutdown(sockets)

    with threadpool_limits(1):  # requests run in parallel; threads of NumPy would only compete with them
        Server(configure(app)).run(sockets=[listening])
