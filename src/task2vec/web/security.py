"""Who may use the server, what a request may contain, and what a response reveals.

A page from anywhere can make a browser on this machine send requests to us. So the Host must be a name of this server
(another name may point here: DNS rebinding), every change must come from a page of this server (Origin), and beyond
loopback every client needs the token. All of this is checked before routing, so that no route can forget it.
Starlette's TrustedHostMiddleware is not enough: it ignores a second Host header, everything after the first colon, and
all IPv6 addresses.
"""

import asyncio
import hmac
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path, PurePath
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from task2vec.errors import DataError, LibraryError, ResourceError, Task2VecError, UsageError
from task2vec.web.schemas import ErrorResponse, Problem

if TYPE_CHECKING:
    from fastapi import FastAPI

    from task2vec.web.state import State

LOOPBACK = ("localhost", "127.0.0.1", "::1")
SHORTEST_TOKEN = 16
API = "/api/"
COOKIE = "task2vec"
SAFE_METHODS = ("GET", "HEAD")
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# A sentence ends where the next one begins; "e.g. x" and "1.5" do not end one.
_SENTENCE = re.compile(r"(?<=[^A-Z.][.!?])\s+(?=[A-Z'`(])")
# An absolute path, in quotes or up to the next blank: its last part is the group "last".
_QUOTED = re.compile(r"""(?P<mark>['"])(?:/|[A-Za-z]:[/\\])[^'"\n]*?(?P<last>[^'"/\\\n]+)[/\\]?(?P=mark)""")
_BARE = re.compile(r"""(?<![\w.:/\\-])(?:/|[A-Za-z]:[/\\])(?:[^\s'"/\\]+[/\\])*(?P<last>[^\s'"/\\]+)[/\\]?""")
_STATUS = ((UsageError, 422), (DataError, 422), (LibraryError, 500), (ResourceError, 503))


@dataclass(frozen=True)
class Limits:
    """How much one request, and all of them together, may use.

    Attributes:
        body: bytes of a request's body.
        query: bytes of a query.
        parameters: in a query.
        path: bytes of a path.
        seconds: for the head of a request to arrive, and then for its body.
        reading: seconds for a client to read a response.
        jobs: that wait or run.
        kept_jobs: that are listed after they have ended.
        listeners: to events, of all jobs together.
    """

    body: int = 1 << 16
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
        roots: folders that may be embedded from the page, with all folders below.
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
    roots: tuple[Path, ...] = ()
    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self):
        """Refuse a public server without a token, weak tokens, and roots that are not folders."""
        if not is_loopback(self.host) and self.token is None:
            raise UsageError(
                f"--host {self.host} would show your library to everyone who can reach this machine. Set a token of "
                f"at least {SHORTEST_TOKEN} characters in the environment, TASK2VEC_TOKEN=..., or leave out --host."
            )
        if self.token is not None and (
            len(self.token) < SHORTEST_TOKEN or not re.fullmatch(r"[\w.~-]*", self.token, re.A)
        ):
            raise UsageError(
                f"the token has {len(self.token)} characters, or one that is not allowed in an address: it could be "
                f"guessed, or not be sent. Use {SHORTEST_TOKEN} or more letters and digits, for example from: "
                'python -c "import secrets; print(secrets.token_urlsafe())"'
            )
        for root in self.roots:
            if not root.is_dir():
                raise UsageError(f"--root '{root}' is not a folder, so it cannot be offered. Name an existing folder.")


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


class RequestError(Task2VecError, KeyError):
    """A request for something that does not exist, or that is refused; it has its own status."""

    def __init__(self, what: str, why: str, fix: str, *, status: int = 404):
        super().__init__(what)
        self.problem, self.status = Problem(what=what, why=why, fix=fix), status


def unknown(kind: str, text: str) -> RequestError:
    """The error for an id that was never issued, or is no longer valid."""
    return RequestError(
        f"there is no {kind} {text[:64]!r}.",
        "This server accepts only ids that it has issued.",
        "Get one from a list: /api/v1/status, /api/v1/tasks, /api/v1/folders or /api/v1/jobs.",
    )


def split_text(text: str) -> Problem:
    """The three parts of the text of an error.

    Example:
        >>> split_text("'x' is not a folder, so it is empty. The name was given. Create one: mkdir x").fix
        'Create one: mkdir x'
        >>> split_text("nothing is known").what
        'nothing is known'
    """
    first, *rest = _SENTENCE.split(text.strip())
    return Problem(what=first, why=" ".join(rest[:-1]), fix=rest[-1] if rest else "")


def hide_paths(text: str, names: Mapping[str, str]) -> str:
    """The text with known folders under their public names, and of every other absolute path only the last part.

    Example:
        >>> hide_paths("'/home/ada/photos/cats' is empty", {"/home/ada/photos": "photos"})
        "'photos/cats' is empty"
        >>> hide_paths("cannot read /usr/lib/x.so: see '/etc/my hosts'", {"/": "root"})
        "cannot read x.so: see 'my hosts'"
    """
    for path in sorted(names, key=len, reverse=True):
        if len(PurePath(path).parts) > 1:  # "/" is in every path
            text = re.sub(rf"{re.escape(path)}(?![\w-])", lambda _, name=names[path]: name, text)
    text = _QUOTED.sub(lambda found: found["mark"] + found["last"] + found["mark"], text)
    return _BARE.sub(lambda found: found["last"], text)


def hide_file(line: str) -> str:
    """The line that loads an expert, with the name of its file alone.

    Example:
        >>> hide_file('t2v.load_expert("/home/ada/birds.expert.safetensors")')
        't2v.load_expert("birds.expert.safetensors")'
    """
    start, end = 't2v.load_expert("', '")'
    if not (line.startswith(start) and line.endswith(end)):
        return line
    name = re.split(r"/|\\\\", line[len(start) : -len(end)])[-1]  # in a literal a backslash is written as two
    return f"{start}{name}{end}"


def respond(problem: Problem, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """The response for a problem."""
    return JSONResponse(ErrorResponse(error=problem).model_dump(), status, dict(headers or {}))


def respond_to_error(error: Task2VecError, names: Mapping[str, str]) -> Response:
    """The response to a request that ended in one of our errors, without paths of this machine."""
    if isinstance(error, RequestError):
        return respond(error.problem, error.status)
    status = next((number for kind, number in _STATUS if isinstance(error, kind)), 500)
    return respond(split_text(hide_paths(str(error), names)), status)


class SecureApp:
    """The application behind all checks."""

    def __init__(self, api: "FastAPI", settings: ServeSettings, *, state: "State"):
        """The cookie that replaces the token is new for every server: a stolen one dies with it."""
        self.api, self.settings, self.limits, self.state = api, settings, settings.limits, state
        self._session = secrets.token_urlsafe(32)
        self._names = {*LOOPBACK, settings.host.lower()}
        if not is_loopback(settings.host):
            self._names.add(socket.gethostname().lower())
        self._is_open = settings.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a bad request, and hands on the rest."""
        if scope["type"] == "lifespan":
            await self.api(scope, receive, send)
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = MutableHeaders(scope=message)
                sent.update(HEADERS)
                sent["Cache-Control"] = "no-store" if scope["path"].startswith(API) else "no-cache"
            await send(message)

        try:
            self._check(scope, headers)
            answer: Response | None = self._authenticate(scope, headers)
            if answer is None and scope["method"] not in SAFE_METHODS:
                receive = await self._read_body(headers, receive)
        except RequestError as error:
            closes = error.status in (408, 413)  # the rest of the body is not read
            answer = respond(error.problem, error.status, {"Connection": "close"} if closes else {})
        await (answer or self.api)(scope, receive, send_safely)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raise for a request that is too long, or that another site may have sent."""
        limits, query, hosts = self.limits, scope["query_string"], headers.getlist("host")
        if len(scope.get("raw_path") or scope["path"].encode()) > limits.path:
            raise RequestError("the path is too long.", "No path here is.", "See the API's description.", status=414)
        if len(query) > limits.query or query.count(b"&") >= limits.parameters:
            fix = f"Send at most {limits.parameters} parameters and {limits.query} bytes."
            raise RequestError("the query is too long.", "Parsing it would take long.", fix, status=414)
        if len(hosts) != 1 or not self._is_own_name(hosts[0]):
            why, fix = "Another name may point here (DNS rebinding).", "Use the address that `task2vec serve` printed."
            raise RequestError("the Host is not a name of this server.", why, fix, status=421)
        if scope["path"].startswith(API) and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            why = "A page from anywhere could make this machine work, or measure how long it takes."
            fix = f"Open http://{hosts[0]}/ instead."
            raise RequestError("another site sent this request.", why, fix, status=403)
        if scope["method"] not in SAFE_METHODS and not self._is_same_origin(headers):
            fix = f"Send 'Origin: http://{hosts[0]}' from a page of this server, or a bearer token and no Origin."
            raise RequestError("another site asked for a change.", "Any page could do that.", fix, status=403)

    def _is_own_name(self, host: str) -> bool:
        """Whether a Host header names this server; one that listens everywhere accepts every IP address."""
        found = re.fullmatch(r"(?P<name>\[[^\]]*\]|[^:\[\]]*)(:\d+)?", host.lower(), re.ASCII)
        if found is None:
            return False
        name = found["name"].removeprefix("[").removesuffix("]")
        if name in self._names:
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return self._is_open or address.is_loopback

    def _is_same_origin(self, headers: Headers) -> bool:
        """Whether the request comes from a page of this server, or from a program that has the token."""
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origins = headers.getlist("origin")
        if not origins:
            return self.settings.token is not None and self._has_bearer(headers)
        own = (f"http://{headers['host'].lower()}", f"https://{headers['host'].lower()}")
        return len(origins) == 1 and origins[0].lower() in own

    def _authenticate(self, scope: Scope, headers: Headers) -> Response | None:
        """Raise for a client without the token; a redirect with a cookie for one who opened the link with it."""
        if self.settings.token is None:
            return None
        name = COOKIE if not scope.get("server") else f"{COOKIE}-{scope['server'][1]}"  # one jar for all ports
        if scope["path"] == "/" and scope["method"] == "GET":
            given = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=64)
            if _is_same(given.get("token", [""])[0], self.settings.token):
                answer = RedirectResponse("/", 303)
                answer.set_cookie(name, self._session, httponly=True, samesite="strict", path="/")
                return answer
        if self._has_bearer(headers) or _is_same(cookie_parser(headers.get("cookie", "")).get(name, ""), self._session):
            return None
        fix = "Open the address with ?token=... that `task2vec serve` printed, or send 'Authorization: Bearer TOKEN'."
        raise RequestError("the token is missing or wrong.", "This server is not public.", fix, status=401)

    def _has_bearer(self, headers: Headers) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and _is_same(token.strip(), self.settings.token or "")

    async def _read_body(self, headers: Headers, receive: Receive) -> Receive:
        """The body, already read as a whole; raise if it is long, slow, or not declared as JSON."""
        most, length, body = self.limits.body, headers.get("content-length", "0"), bytearray()
        large = RequestError(
            "the body is too large.", "No request needs more.", f"Send at most {most} bytes.", status=413
        )
        if not (length.isascii() and length.isdigit()) or int(length) > most:
            raise large
        try:
            async with asyncio.timeout(self.limits.seconds):
                while True:
                    message = await receive()
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise large
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        break
        except TimeoutError:
            why = "A slow sender would occupy a connection forever."
            raise RequestError("the body did not arrive.", why, "Send it at once.", status=408) from None
        if body and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            why, fix = "A form of another site could send it.", "Send 'Content-Type: application/json'."
            raise RequestError("the body is not declared as JSON.", why, fix, status=415)
        parts = iter([{"type": "http.request", "body": bytes(body), "more_body": False}])

        async def replay() -> Message:
            return next(parts, None) or await receive()

        return replay


def _is_same(given: str, secret: str) -> bool:
    return bool(given) and hmac.compare_digest(given.encode(), secret.encode())
