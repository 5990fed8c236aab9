"""Errors as responses: a status and three sentences, without paths of this machine."""

import re
from collections.abc import Mapping
from typing import TypeVar

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from task2vec.errors import Task2VecError
from task2vec.text import hide_paths
from task2vec.web.schemas import ErrorResponse, Problem

T = TypeVar("T")
# A sentence ends where the next one begins; "e.g. x" and "1.5" do not end one.
_SENTENCE_END = re.compile(r"(?<=[^A-Z.][.!?])\s+(?=[A-Z'`(])")
_SEE_DESCRIPTION = "The API is described in /api/v1/openapi.json"
_REFUSALS = {
    401: "the token is missing or wrong. This server is not public. Open the address with ?token=... that `task2vec "
    "serve` printed, or send 'Authorization: Bearer TOKEN'.",
    403: "another site sent this request. Any page could otherwise make this machine work, or measure how long a "
    "response takes. Open the address that `task2vec serve` printed.",
    405: "the server only reads, so it answers GET and HEAD and no other method. Nothing that a page sends can change "
    "your library. Use the command line: task2vec --help",
    414: "the path or the query is too long. Parsing it would take long. The limits are in docs/how-to/web.md",
    421: "the Host is not a name of this server. Another name may point here (DNS rebinding). Use the address that "
    "`task2vec serve` printed.",
}
_STATUS_BY_EXIT_CODE = {2: 422, 3: 422, 4: 500, 5: 503}


class RequestError(Task2VecError, ValueError):
    """A request for something that does not exist, or that is refused: its status, and three sentences."""

    def __init__(self, status: int, text: str | None = None):
        super().__init__(text or _REFUSALS[status])
        self.status = status


def look_up(known: Mapping[str, T], text: str, kind: str) -> T:
    """The value that has an id of this server.

    Raises:
        RequestError: The id was never issued, or is no longer valid.
    """
    if text not in known:
        why = "This server accepts only ids that it has issued."
        fix = "Get one from a list: /api/v1/status or /api/v1/tasks."
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
    first, *rest = _SENTENCE_END.split(text.strip())
    return Problem(what=first, why=" ".join(rest[:-1]), fix=rest[-1] if rest else "")


def respond_to_error(error: Exception, names: Mapping[str, str]) -> Response:
    """The response to a request that ended in an error; `names` are the public names of folders."""
    headers: Mapping[str, str] | None = None
    match error:
        case RequestError():
            status = error.status
            text = str(error)
            headers = {"Allow": "GET, HEAD"} if status == 405 else None
        case Task2VecError():
            status = _STATUS_BY_EXIT_CODE.get(error.exit_code, 500)
            text = hide_paths(str(error), names)
        case RequestValidationError():
            first = error.errors()[0]
            field = ".".join(str(name) for name in first["loc"])[:100]
            status = 422
            text = f"{field}: {first['msg']}. The request is not valid. {_SEE_DESCRIPTION}"
        case HTTPException():
            status = error.status_code
            headers = error.headers
            text = f"{error.detail}. There is no such address. {_SEE_DESCRIPTION}"
        case _:
            fix = "See the terminal of `task2vec serve` for details, and please report it."
            status = 500
            text = f"the server failed on this request. This is a bug in task2vec. {fix}"
    return JSONResponse(ErrorResponse(error=split_text(text)).model_dump(), status, headers)
