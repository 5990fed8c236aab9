"""The application: the JSON API, and the page that uses nothing else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from task2vec import __version__
from task2vec.errors import Task2VecError
from task2vec.experts.metatask import MetaTask
from task2vec.web import job_routes, routes
from task2vec.web.answers import ErrorAnswer, Problem
from task2vec.web.files import Files
from task2vec.web.guards import Guards
from task2vec.web.problems import tell_error, tell_problem
from task2vec.web.served import Served
from task2vec.web.settings import ServeSettings

BASE = "/api/v1"
ROUTERS = (routes.router, job_routes.router)
_ERRORS = {
    401: "The token is missing or wrong.",
    403: "A change was asked for by another page.",
    404: "There is nothing of that id.",
    422: "A value cannot be meant, or tasks cannot be compared.",
    500: "A part of the library is damaged.",
    503: "The disk or the memory said no, or too many answers are waited for.",
}


def make_app(settings: ServeSettings, *, measured: MetaTask | None = None) -> Guards:
    """The application behind its guards, ready for a server; `.served` is what it has in hand.

    Args:
        settings: how it is started.
        measured: stands in for the meta-task that comes with the package.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     app = make_app(ServeSettings(library=Path(folder)))
        ...     app.served.close()
        >>> sorted(app.api.openapi()["paths"])[0]
        '/api/v1/compare'
    """
    served = Served.open(settings, measured=measured)

    @asynccontextmanager
    async def live(_: FastAPI) -> AsyncIterator[None]:
        yield
        served.close()

    described: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorAnswer, "description": words} for status, words in _ERRORS.items()
    }
    api = FastAPI(
        title="task2vec",
        version=__version__,
        description="Tasks, who is near whom, and which model to start from. Ids are opaque; errors are shares.",
        openapi_url=f"{BASE}/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=live,
        redirect_slashes=False,
        responses=described,
    )
    api.state.served = served
    for group in ROUTERS:
        api.include_router(group, prefix=BASE)
    _serve_files(api, Files())
    _explain_errors(api, served)
    return Guards(api, settings, served=served)


def _serve_files(api: FastAPI, files: Files) -> None:
    """The page's files at the root; below /api there are none."""

    @api.get("/{name:path}", include_in_schema=False)
    def tell_file(name: str) -> Response:
        return files.answer(name)


def _explain_errors(api: FastAPI, served: Served) -> None:
    """Every error is told in three parts."""

    @api.exception_handler(Task2VecError)
    async def tell_own(_: Request, error: Task2VecError) -> Response:
        return tell_error(error, served.names)

    @api.exception_handler(RequestValidationError)
    async def tell_invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0] if error.errors() else {"loc": ("request",), "msg": "is not valid"}
        where = ".".join(str(part) for part in first["loc"])[:100]
        mend = f"The API is described in {BASE}/openapi.json"
        return tell_problem(Problem(what=f"{where}: {first['msg']}.", why="It cannot be meant.", mend=mend), 422)

    @api.exception_handler(HTTPException)
    async def tell_http(_: Request, error: HTTPException) -> Response:
        mend = f"The API is described in {BASE}/openapi.json"
        problem = Problem(what=f"{error.detail}.", why="There is no such route, or not by this method.", mend=mend)
        return tell_problem(problem, error.status_code, error.headers)
