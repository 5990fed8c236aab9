"""The application: the JSON API, and the page that uses nothing else."""

import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from task2vec import __version__
from task2vec.errors import Task2VecError
from task2vec.experts import MetaTask
from task2vec.web.routes import router
from task2vec.web.schemas import ErrorResponse, Problem
from task2vec.web.security import SecureApp, ServeSettings, respond, respond_to_error
from task2vec.web.state import State

BASE = "/api/v1"
_ERRORS = {
    401: "The token is missing or wrong.",
    403: "Another site sent the request.",
    404: "The id is unknown.",
    422: "A parameter is invalid, or tasks cannot be compared.",
    500: "A part of the library is damaged.",
    503: "The disk or the memory is full, or too many requests wait.",
}
_DESCRIBED = f"The API is described in {BASE}/openapi.json"


def make_app(settings: ServeSettings, *, metatask: MetaTask | None = None) -> SecureApp:
    """The application behind all security checks, for any ASGI server; `.state` is what it holds.

    Args:
        settings: how it is started.
        metatask: instead of the bundled one.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     app = make_app(ServeSettings(library=Path(folder)))
        ...     app.state.close()
        >>> sorted(app.api.openapi()["paths"])[0]
        '/api/v1/compare'
    """
    state = State(settings, metatask=metatask)

    @asynccontextmanager
    async def live(_: FastAPI) -> AsyncIterator[None]:
        yield
        state.close()

    described: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorResponse, "description": text} for status, text in _ERRORS.items()
    }
    api = FastAPI(
        title="task2vec",
        version=__version__,
        description="Tasks, their distances, and which model to start from. Ids are opaque; errors are fractions.",
        openapi_url=f"{BASE}/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=live,
        redirect_slashes=False,
        responses=described,
    )
    api.state.served = state
    api.include_router(router, prefix=BASE)
    mimetypes.add_type("text/javascript", ".js")  # the registry of Windows may have another type, which browsers refuse
    packages: list[str | tuple[str, str]] = [("task2vec.web", "static"), ("task2vec.plots", "static")]
    api.mount("/", StaticFiles(packages=packages, html=True))

    @api.exception_handler(Task2VecError)
    async def explain_own(_: Request, error: Task2VecError) -> Response:
        return respond_to_error(error, state.names)

    @api.exception_handler(RequestValidationError)
    async def explain_invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0] if error.errors() else {"loc": ("request",), "msg": "is not valid"}
        where = ".".join(str(part) for part in first["loc"])[:100]
        problem = Problem(what=f"{where}: {first['msg']}.", why="The request is not valid.", fix=_DESCRIBED)
        return respond(problem, 422)

    @api.exception_handler(HTTPException)
    async def explain_http(_: Request, error: HTTPException) -> Response:
        why = "There is no such address, or not for this method."
        return respond(Problem(what=f"{error.detail}.", why=why, fix=_DESCRIBED), error.status_code, error.headers)

    @api.exception_handler(Exception)
    async def explain_bug(_: Request, __: Exception) -> Response:
        fix = "See the terminal of `task2vec serve` for details, and please report it."
        return respond(
            Problem(what="the server failed on this request.", why="This is a bug in task2vec.", fix=fix), 500
        )

    return SecureApp(api, settings, state=state)
