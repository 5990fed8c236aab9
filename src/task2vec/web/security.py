"""Who may use the server, what a request may contain, and what a response reveals.

The server only reads: every method but GET and HEAD is refused here, so no route can change anything. A page from
anywhere can make a browser on this machine send requests to us. So the Host must be a name of this server (another name
may point here: DNS rebinding), and beyond loopback every client needs the token. All of this is checked before routing,
so that no route can forget it. Starlette's TrustedHostMiddleware is not enough: it ignores a second Host header,
everything after the first colon, and all IPv6 addresses.
"""

import hmac
import re
import secrets
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from task2vec.web.errors import RequestError, respond_to_error
from task2vec.web.settings import ServeSettings, is_loopback

if TYPE_CHECKING:
    from fastapi import FastAPI

    from task2vec.web.state import State

API = "/api/"
COOKIE = "task2vec"
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


class SecureApp:
    """The application behind all checks."""

    def __init__(self, api: "FastAPI", settings: ServeSettings, *, state: "State"):
        """The cookie that replaces the token is new for every server: a stolen one dies with it."""
        self.api = api
        self.settings = settings
        self.state = state
        self._session = secrets.token_urlsafe(32)
        self._listens_everywhere = settings.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
        machine = "localhost" if is_loopback(settings.host) else socket.gethostname().lower()
        self._names = {"localhost", settings.host.lower(), machine} - {""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a bad request, and hands on the rest."""
        if scope["type"] == "lifespan":
            await self.api(scope, receive, send)
        if scope["type"] != "http":
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers["Cache-Control"] = "no-store" if scope["path"].startswith(API) else "no-cache"
            await send(message)

        headers = Headers(scope=scope)
        try:
            self._check(scope, headers)
            answer = self._authenticate(scope, headers)
        except RequestError as error:
            answer = respond_to_error(error, {})
        await (answer or self.api)(scope, receive, send_safely)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raise for a request that is too long, that would change something, or that another site may have sent."""
        limits = self.settings.limits
        query = scope["query_string"]
        if len(query) > limits.query or query.count(b"&") >= limits.parameters:
            raise RequestError(414)
        if len(scope.get("raw_path") or scope["path"].encode()) > limits.path:
            raise RequestError(414)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_our_name(hosts[0]):
            raise RequestError(421)
        if scope["path"].startswith(API) and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise RequestError(403)
        if scope["method"] not in ("GET", "HEAD"):
            raise RequestError(405)

    def _is_our_name(self, host: str) -> bool:
        """Whether a Host header names this server; one that listens everywhere accepts every IP address."""
        match = re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*)(:\d+)?", host.lower(), re.ASCII)
        name = match[1].strip("[]") if match else ""
        try:
            return name in self._names or ip_address(name).is_loopback or self._listens_everywhere
        except ValueError:
            return False

    def _authenticate(self, scope: Scope, headers: Headers) -> Response | None:
        """Raise for a client without the token; a redirect with a cookie for one who opened the link with it."""
        if self.settings.token is None:
            return None
        cookie = COOKIE if not scope.get("server") else f"{COOKIE}-{scope['server'][1]}"  # one jar for all ports
        token = QueryParams(scope["query_string"]).get("token", "")
        if scope["path"] == "/" and scope["method"] == "GET" and _is_same(token, self.settings.token):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(cookie, self._session, httponly=True, samesite="strict", path="/")
            return answer
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _is_same(bearer.strip(), self.settings.token):
            return None
        if _is_same(cookie_parser(headers.get("cookie", "")).get(cookie, ""), self._session):
            return None
        raise RequestError(401)


def _is_same(text: str, secret: str) -> bool:
    return bool(text) and hmac.compare_digest(text.encode(), secret.encode())
