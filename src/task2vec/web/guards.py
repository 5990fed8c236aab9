"""What a request must be before anything looks at it, and what every answer says to the browser.

A page from anywhere can make a browser on this machine ask us something. So the Host must be a name of ours (or another
name may point here: DNS rebinding), whatever changes something must come from a page of ours (Origin), and beyond
loopback every visitor must know the token. All is checked on the bare request, outside of routing: no route can forget.
"""

import asyncio
import hmac
import logging
import secrets
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from task2vec.web.answers import Problem
from task2vec.web.problems import tell_problem
from task2vec.web.settings import LOOPBACK, ServeSettings, is_loopback

if TYPE_CHECKING:
    from fastapi import FastAPI

    from task2vec.web.served import Served

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
_log = logging.getLogger("task2vec.web")


class Guards:
    """The application behind its guards."""

    def __init__(self, api: "FastAPI", settings: ServeSettings, *, served: "Served"):
        """The cookie that stands for the token is drawn anew by every server: a stolen one dies with it."""
        self.api, self.settings, self.limits, self.served = api, settings, settings.limits, served
        self._session, self._code = secrets.token_urlsafe(32), ""
        self._names = {*LOOPBACK, settings.host.lower()}
        if not is_loopback(settings.host):
            self._names.add(socket.gethostname().lower())
        self._is_open = settings.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound

    def issue_code(self) -> str | None:
        """A code that lets one visitor in, once: `/?code=...`; None where no token is needed."""
        self._code = secrets.token_urlsafe(32) if self.settings.token is not None else ""
        return self._code or None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers what must not go further, and hands on the rest."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.api(scope, receive, send)
            return
        sender = _Sender(send, is_api=scope["path"].startswith(API))
        headers = Headers(scope=scope)
        answer = self._refuse(scope, headers) or self._let_in(scope, headers)
        if answer is None and scope["method"] not in SAFE_METHODS:
            answer, receive = await self._read_body(headers, receive)
        try:
            await (answer or self.api)(scope, receive, sender)
        except Exception:
            _log.exception("a request failed")
            if sender.has_begun:
                raise
            await tell_problem(_BUG, 500)(scope, receive, sender)

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to a request that is too long, or from where none may come."""
        if len(scope.get("raw_path") or scope["path"].encode()) > self.limits.path:
            return _no(414, "the path is too long", "No address here is.", "Take one from the API's description.")
        query = scope["query_string"]
        if len(query) > self.limits.query or query.count(b"&") >= self.limits.parameters:
            many = f"Send at most {self.limits.parameters} parameters and {self.limits.query} bytes."
            return _no(414, "the query is too long", "Reading it would take long.", many)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            mend = "Use the address that `task2vec serve` printed; --host NAME makes NAME one of ours."
            return _no(421, "this is no name of this server", "Another name may point here (DNS rebinding).", mend)
        if scope["path"].startswith(API) and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            why = "A page from anywhere could make this machine work, or see how long it takes."
            return _no(403, "another page asked for this", why, f"Open http://{hosts[0]}/ and ask from there.")
        if scope["method"] not in SAFE_METHODS and not self._is_same_origin(headers):
            mend = f"Send 'Origin: http://{hosts[0]}' from a page of this server, or a bearer token and no Origin."
            return _no(403, "a change was asked for by another page", "A page from anywhere could do that.", mend)
        return None

    def _is_ours(self, host: str) -> bool:
        """Whether a Host header names this server; of one that listens everywhere, every number is one of ours."""
        name = host.lower()
        name, colon, port = name.rpartition(":") if not name.endswith("]") else (name, "", "")
        if not colon:
            name = host.lower()
        elif not port.isdigit():
            return False
        if name.startswith("["):
            name = name[1:].removesuffix("]")
        if name in self._names:
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return self._is_open or address.is_loopback

    def _is_same_origin(self, headers: Headers) -> bool:
        """Whether a page of ours asks, or a program that knows the token."""
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origins = headers.getlist("origin")
        if not origins:
            return self.settings.token is not None and self._knows_token(headers)
        return len(origins) == 1 and origins[0].lower() in (
            f"http://{headers['host'].lower()}",
            f"https://{headers['host'].lower()}",
        )

    def _let_in(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to a visitor who does not know the token, or who has just shown it."""
        if self.settings.token is None:
            return None
        if scope["path"] == "/" and scope["method"] == "GET":
            given = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=64)
            if self._is_token(given.get("token", [""])[0]) or self._take_code(given.get("code", [""])[0]):
                answer = RedirectResponse("/", 303)
                answer.set_cookie(_name_cookie(scope), self._session, httponly=True, samesite="strict", path="/")
                return answer
        if self._knows_token(headers) or self._has_session(scope, headers):
            return None
        mend = "Open the address with ?token=... that `task2vec serve` printed, or send 'Authorization: Bearer TOKEN'."
        return _no(401, "the token is missing or wrong", "This server is not for everybody.", mend)

    def _knows_token(self, headers: Headers) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self._is_token(token.strip())

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), (self.settings.token or "").encode()) and bool(text)

    def _take_code(self, text: str) -> bool:
        """Whether it is the code that was issued, which is none from now on."""
        is_code = hmac.compare_digest(text.encode(), self._code.encode()) and bool(text)
        if is_code:
            self._code = ""
        return is_code

    def _has_session(self, scope: Scope, headers: Headers) -> bool:
        found = cookie_parser(headers.get("cookie", "")).get(_name_cookie(scope), "")
        return hmac.compare_digest(found.encode(), self._session.encode())

    async def _read_body(self, headers: Headers, receive: Receive) -> tuple[Response | None, Receive]:
        """The body as a whole, if it is short, JSON and not deep; it is not read any further than that."""
        most = self.limits.body
        length = headers.get("content-length", "0")
        large = _no(413, "the body is too large", "No wish needs so much.", f"Send at most {most} bytes.", close=True)
        if not length.isdigit() or int(length) > most:
            return large, receive
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.seconds):
                while True:
                    message = await receive()
                    body += message.get("body", b"")
                    if len(body) > most:
                        return large, receive
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        break
        except TimeoutError:
            why = "A slow sender would hold a place for ever."
            return _no(408, "the body did not arrive", why, "Send it at once.", close=True), receive
        if body and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            mend = "Send 'Content-Type: application/json'."
            return _no(415, "the body is not said to be JSON", "A form of another page could send it.", mend), receive
        if find_depth(bytes(body)) > self.limits.depth:
            return _no(400, "the JSON is too deep", "Reading it would take long.", "Send a flat object."), receive
        return None, _replay(bytes(body), receive)


class _Sender:
    """Sends answers with our headers."""

    def __init__(self, send: Send, *, is_api: bool):
        self.send, self.is_api, self.has_begun = send, is_api, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers["Cache-Control"] = "no-store" if self.is_api else "no-cache"
        await self.send(message)


def find_depth(body: bytes) -> int:
    """How deep lists and objects are nested in a JSON text; brackets inside of strings do not count.

    Example:
        >>> find_depth(b'{"a": [1, "[[[["]}')
        2
    """
    depth = deepest = 0
    is_text = is_escaped = False
    for letter in body:
        if is_text:
            is_text = is_escaped or letter != 0x22
            is_escaped = letter == 0x5C and not is_escaped
        elif letter == 0x22:
            is_text = True
        elif letter in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in b"]}":
            depth -= 1
    return deepest


def _name_cookie(scope: Scope) -> str:
    """What our cookie is called: browsers keep one jar for all ports of a machine, and several servers may run."""
    port = (scope.get("server") or (None, None))[1]
    return COOKIE if port is None else f"{COOKIE}-{port}"


def _replay(body: bytes, receive: Receive) -> Receive:
    """A body that was read already, as if it came now."""
    is_sent = False

    async def again() -> Message:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _no(status: int, what: str, why: str, mend: str, *, close: bool = False) -> Response:
    return tell_problem(Problem(what=f"{what}.", why=why, mend=mend), status, {"Connection": "close"} if close else {})


_BUG = Problem(
    what="the server failed on this request.",
    why="This is a bug of task2vec.",
    mend="The terminal of `task2vec serve` shows where; please report it.",
)
