"""What a server is told when it is started, and the limits that it keeps."""

from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from task2vec.errors import UsageError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Limits:
    """How much one request, and all of them together, may ask for.

    Attributes:
        body: bytes of a request's body.
        depth: of nested lists and objects in it.
        query: bytes of a query.
        parameters: in a query.
        path: bytes of a path.
        seconds: that the head of a request, and then its body, may take to arrive.
        reading: seconds that an answer may wait to be read.
        jobs: embeddings that wait or run.
        kept_jobs: that are remembered after they have ended.
        listeners: to events, of all jobs together.
    """

    body: int = 1 << 16
    depth: int = 16
    query: int = 1 << 13
    parameters: int = 32
    path: int = 1 << 10
    seconds: float = 10.0
    reading: float = 30.0
    jobs: int = 4
    kept_jobs: int = 50
    listeners: int = 32


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class ServeSettings:
    """How a server is started.

    Attributes:
        library: its folder; None for the default one.
        roots: folders that may be embedded from the page, and folders below them.
        host: where it listens.
        token: that a visitor must know; None on loopback only.
        limits: what requests may ask for.

    Example:
        >>> ServeSettings(host="0.0.0.0")
        Traceback (most recent call last):
            ...
        task2vec.errors.UsageError: ...
    """

    library: Path | None = None
    roots: tuple[Path, ...] = ()
    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self):
        """Refuse to be seen by others without a token, and roots that are no folders."""
        if not is_loopback(self.host) and self.token is None:
            raise UsageError(
                f"--host {self.host} would show your library to whoever can reach this machine. Set a token of "
                f"{SHORTEST_TOKEN} characters or more in the environment, TASK2VEC_TOKEN=..., or leave out --host."
            )
        if self.token is not None and (len(self.token) < SHORTEST_TOKEN or not _is_plain(self.token)):
            raise UsageError(
                f"the token has {len(self.token)} characters or one that no address can hold: it could be guessed, or "
                f"not be sent. Take {SHORTEST_TOKEN} or more letters and digits, as from: "
                'python -c "import secrets; print(secrets.token_urlsafe())"'
            )
        for root in self.roots:
            if not root.is_dir():
                raise UsageError(
                    f"--root '{root}' is no folder, so nothing below it can be offered. Name a folder that is there."
                )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host.

    Example:
        >>> [is_loopback(host) for host in ("localhost", "127.0.0.2", "::1", "0.0.0.0", "example.org")]
        [True, True, True, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _is_plain(token: str) -> bool:
    return token.isascii() and all(letter.isalnum() or letter in "-._~" for letter in token)
