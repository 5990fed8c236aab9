"""The application: the JSON API, and the page that uses nothing else."""

import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from task2vec import __version__
from task2vec.errors import Task2VecError
from task2vec.metatask import MetaTask
from task2vec.web.errors import respond_to_error
from task2vec.web.routes import router
from task2vec.web.schemas import ErrorResponse
from task2vec.web.security import SecureApp
from task2vec.web.settings import ServeSettings
from task2vec.web.state import State

BASE = "/api/v1"


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

    async def explain(_: Request, error: Exception) -> Response:
        return respond_to_error(error, state.names)

    api = FastAPI(
        title="task2vec",
        version=__version__,
        description="Tasks, their distances, and which model to start from. Ids are opaque; errors are fractions.",
        openapi_url=f"{BASE}/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=live,
        redirect_slashes=False,
        responses={status: {"model": ErrorResponse} for status in (401, 403, 404, 405, 422, 500, 503)},
        exception_handlers=dict.fromkeys((Task2VecError, RequestValidationError, HTTPException, Exception), explain),
    )
    api.state.served = state
    api.include_router(router, prefix=BASE)
    mimetypes.add_type("text/javascript", ".js")  # the registry of Windows may have another type, which browsers refuse
    api.mount("/", StaticFiles(packages=[("task2vec.web", "static"), ("task2vec.plots", "static")], html=True))
    return SecureApp(api, settings, state=state)
