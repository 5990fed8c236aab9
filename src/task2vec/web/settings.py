"""How a server is started, and what one request may use."""

import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from task2vec.errors import UsageError

MIN_TOKEN_LENGTH = 16


@dataclass(frozen=True)
class Limits:
    """How much one request may use.

    Attributes:
        query: bytes of a query.
        parameters: in a query.
        path: bytes of a path.
        seconds: for the head of a request to arrive, and then for a body.
        reading: seconds for a client to read a response.
    """

    query: int = 1 << 13
    parameters: int = 32
    path: int = 1 << 10
    seconds: float = 10.0
    reading: float = 30.0


@dataclass(frozen=True)
class ServeSettings:
    """How a server is started.

    Attributes:
        library: its folder; None for the default one.
        host: where it listens.
        token: that every client must send; None on loopback only.
        limits: of requests.

    Example:
        >>> ServeSettings(host="0.0.0.0")
        Traceback (most recent call last):
            ...
        task2vec.errors.UsageError: ...
    """

    library: Path | None = None
    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self):
        """Refuse a public server without a token, and weak tokens."""
        if not is_loopback(self.host) and self.token is None:
            raise UsageError(
                f"--host {self.host} would show your library to everyone who can reach this machine. Set a token of "
                f"at least {MIN_TOKEN_LENGTH} characters in the environment, TASK2VEC_TOKEN=..., or leave out --host."
            )
        if self.token is not None and not re.fullmatch(rf"[\w.~-]{{{MIN_TOKEN_LENGTH},}}", self.token, re.ASCII):
            raise UsageError(
                f"the token has {len(self.token)} characters, or one that is not allowed in an address: it could be "
                f"guessed, or not be sent. Use {MIN_TOKEN_LENGTH} or more letters and digits, for example from: "
                'python -c "import secrets; print(secrets.token_urlsafe())"'
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host.

    Example:
        >>> [is_loopback(host) for host in ("localhost", "127.0.0.2", "::1", "0.0.0.0", "example.org")]
        [True, True, True, False, False]
    """
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
