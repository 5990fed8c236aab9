"""Connections that are given up when they keep a place and do nothing with it.

There are places for some hundred connections. Whoever opens that many and never says what he wants, or wants much and
never reads it, would lock out everybody else; uvicorn waits for both without an end.
"""

from asyncio import TimerHandle, Transport
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """A connection that must tell the head of a request, and take an answer, within a time.

    How long a body may take is the guards' to say; between two requests uvicorn's own limit holds.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._limits = self.config.app.limits  # type: ignore[union-attr] - the guards
        self._until_head: TimerHandle | None = None
        self._until_read: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begins to wait."""
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Goes on waiting while the head is not whole; a byte now and then wins no time."""
        super().data_received(data)
        self._wait_for_head()

    def pause_writing(self) -> None:
        """Begins to wait for the other side to read."""
        super().pause_writing()
        # What is not read cannot be sent: closing would wait for it.
        self._until_read = self.loop.call_later(self._limits.reading, self.transport.abort)

    def resume_writing(self) -> None:
        """Waits no longer."""
        super().resume_writing()
        self._until_read = _cancel(self._until_read)

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits for nothing any more."""
        super().connection_lost(exc)
        self._until_head, self._until_read = _cancel(self._until_head), _cancel(self._until_read)

    def _wait_for_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._until_head = _cancel(self._until_head)
        elif self._until_head is None:
            self._until_head = self.loop.call_later(self._limits.seconds, self.transport.close)


def _cancel(timer: TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
