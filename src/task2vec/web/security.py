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
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request, cookie_parser
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from task2vec.errors import Task2VecError, UsageError
from task2vec.text import hide_paths
from task2vec.web.schemas import ErrorResponse, Problem

if TYPE_CHECKING:
    from fastapi import FastAPI

    from task2vec.web.state import State

T = TypeVar("T")
SHORTEST_TOKEN = 16
API = "/api/"
COOKIE = "task2vec"
SAFE_METHODS = ("GET", "HEAD")
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# A report contains names and images of anybody: it runs nothing, loads nothing, and only our page may frame it.
REPORT_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'; sandbox",
    "X-Frame-Options": "SAMEORIGIN",
    "Cross-Origin-Opener-Policy": "unsafe-none",  # HTML, 7.4.5: a window with a sandbox and another is an error
}
# A sentence ends where the next one begins; "e.g. x" and "1.5" do not end one.
_SENTENCE = re.compile(r"(?<=[^A-Z.][.!?])\s+(?=[A-Z'`(])")
_DESCRIBED = "The API is described in /api/v1/openapi.json"
_REFUSALS = {
    401: "the token is missing or wrong. This server is not public. Open the address with ?token=... that `task2vec "
    "serve` printed, or send 'Authorization: Bearer TOKEN'.",
    403: "another site sent this request. Any page could otherwise make this machine work, or measure how long a "
    "response takes. Open the address that `task2vec serve` printed; a program sends it as Origin, or only a token.",
    408: "the body did not arrive. A slow sender would occupy a connection forever. Send it at once.",
    413: "the body is too large. No request needs more. The limits are in docs/how-to/web.md",
    414: "the path or the query is too long. Parsing it would take long. The limits are in docs/how-to/web.md",
    415: "the body is not JSON. A form of another site could send it. Send 'Content-Type: application/json'.",
    421: "the Host is not a name of this server. Another name may point here (DNS rebinding). Use the address that "
    "`task2vec serve` printed.",
}
_STATUS = {2: 422, 3: 422, 4: 500, 5: 503}  # by the exit code that the command line would end with


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
    """

    body: int = 1 << 16
    query: int = 1 << 13
    parameters: int = 32
    path: int = 1 << 10
    seconds: float = 10.0
    reading: float = 30.0
    jobs: int = 4
    kept_jobs: int = 50


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
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self):
        """Refuse a public server without a token, weak tokens, and roots that are not folders."""
        if not is_loopback(self.host) and self.token is None:
            raise UsageError(
                f"--host {self.host} would show your library to everyone who can reach this machine. Set a token of "
                f"at least {SHORTEST_TOKEN} characters in the environment, TASK2VEC_TOKEN=..., or leave out --host."
            )
        if self.token is not None and not re.fullmatch(rf"[\w.~-]{{{SHORTEST_TOKEN},}}", self.token, re.ASCII):
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


class RequestError(Task2VecError, ValueError):
    """A request for something that does not exist, or that is refused: its status, and three sentences."""

    def __init__(self, status: int, text: str | None = None):
        super().__init__(text or _REFUSALS[status])
        self.status = status


def look_up(known: Mapping[str, T], text: str, kind: str) -> T:
    """What has an id of this server.

    Raises:
        RequestError: The id was never issued, or is no longer valid.
    """
    if text not in known:
        why = "This server accepts only ids that it has issued."
        fix = "Get one from a list: /api/v1/status, /api/v1/tasks, /api/v1/folders or /api/v1/jobs."
        raise RequestError(404, f"there is no {kind} {text[:64]!r}. {why} {fix}")
    return known[text]


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


def respond_to_error(error: Exception, names: Mapping[str, str]) -> Response:
    """The response to a request that ended in an error: three parts, without paths of this machine."""
    headers: Mapping[str, str] | None = None
    match error:
        case RequestError():
            status, text = error.status, str(error)
            headers = {"Connection": "close"} if status in (408, 413) else None  # the rest of the body is not read
        case Task2VecError():
            status, text = _STATUS.get(error.exit_code, 500), hide_paths(str(error), names)
        case RequestValidationError():
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])[:100]
            status, text = 422, f"{where}: {first['msg']}. The request is not valid. {_DESCRIBED}"
        case HTTPException():
            status, headers = error.status_code, error.headers
            text = f"{error.detail}. There is no such address, or not for this method. {_DESCRIBED}"
        case _:
            fix = "See the terminal of `task2vec serve` for details, and please report it."
            status, text = 500, f"the server failed on this request. This is a bug in task2vec. {fix}"
    return JSONResponse(ErrorResponse(error=split_text(text)).model_dump(), status, headers)


class SecureApp:
    """The application behind all checks."""

    def __init__(self, api: "FastAPI", settings: ServeSettings, *, state: "State"):
        """The cookie that replaces the token is new for every server: a stolen one dies with it."""
        self.api, self.settings, self.limits, self.state = api, settings, settings.limits, state
        self._session = secrets.token_urlsafe(32)
        self._is_open = settings.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
        machine = "localhost" if is_loopback(settings.host) else socket.gethostname().lower()
        self._names = {"localhost", settings.host.lower(), machine} - {""}

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
                for name, value in HEADERS.items():
                    sent.setdefault(name, value)
                sent["Cache-Control"] = "no-store" if scope["path"].startswith(API) else "no-cache"
            await send(message)

        try:
            self._check(scope, headers)
            answer = self._authenticate(scope, headers)
            if answer is None and scope["method"] not in SAFE_METHODS:
                receive = await self._read_body(scope, headers, receive)
        except RequestError as error:
            answer = respond_to_error(error, {})
        await (answer or self.api)(scope, receive, send_safely)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raise for a request that is too long, or that another site may have sent."""
        limits, query, hosts = self.limits, scope["query_string"], headers.getlist("host")
        is_long = len(query) > limits.query or query.count(b"&") >= limits.parameters
        if is_long or len(scope.get("raw_path") or scope["path"].encode()) > limits.path:
            raise RequestError(414)
        if len(hosts) != 1 or not self._is_own_name(hosts[0]):
            raise RequestError(421)
        if scope["path"].startswith(API) and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise RequestError(403)
        if scope["method"] not in SAFE_METHODS and not self._is_same_origin(headers, hosts[0].lower()):
            raise RequestError(403)

    def _is_own_name(self, host: str) -> bool:
        """Whether a Host header names this server; one that listens everywhere accepts every IP address."""
        found = re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*)(:\d+)?", host.lower(), re.ASCII)
        name = found[1].strip("[]") if found else ""
        try:
            return name in self._names or ip_address(name).is_loopback or self._is_open
        except ValueError:
            return False

    def _is_same_origin(self, headers: Headers, host: str) -> bool:
        """Whether the request comes from a page of this server, or from a program that has the token."""
        origins = [origin.lower() for origin in headers.getlist("origin")]
        return origins in ([f"http://{host}"], [f"https://{host}"]) or (not origins and self._has_bearer(headers))

    def _authenticate(self, scope: Scope, headers: Headers) -> Response | None:
        """Raise for a client without the token; a redirect with a cookie for one who opened the link with it."""
        if self.settings.token is None:
            return None
        name = COOKIE if not scope.get("server") else f"{COOKIE}-{scope['server'][1]}"  # one jar for all ports
        given = QueryParams(scope["query_string"]).get("token", "")
        if scope["path"] == "/" and scope["method"] == "GET" and _is_same(given, self.settings.token):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(name, self._session, httponly=True, samesite="strict", path="/")
            return answer
        if self._has_bearer(headers) or _is_same(cookie_parser(headers.get("cookie", "")).get(name, ""), self._session):
            return None
        raise RequestError(401)

    def _has_bearer(self, headers: Headers) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and _is_same(token.strip(), self.settings.token or "")

    async def _read_body(self, scope: Scope, headers: Headers, receive: Receive) -> Receive:
        """The body, already read as a whole; raise if it is long, slow, or not declared as JSON."""
        most, length, body = self.limits.body, headers.get("content-length", "0"), bytearray()
        if not (length.isascii() and length.isdigit()) or int(length) > most:
            raise RequestError(413)
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for part in Request(scope, receive).stream():
                    body += part
                    if len(body) > most:
                        raise RequestError(413)
        except (TimeoutError, ClientDisconnect):
            raise RequestError(408) from None
        if body and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError(415)
        parts = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return parts.pop() if parts else await receive()

        return replay


def _is_same(given: str, secret: str) -> bool:
    return bool(given) and hmac.compare_digest(given.encode(), secret.encode())
