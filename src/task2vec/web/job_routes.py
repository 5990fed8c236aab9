"""The routes that embed folders: the only ones that change anything."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from task2vec.web import answers
from task2vec.web.jobs import Job
from task2vec.web.problems import NotServedError
from task2vec.web.served import Served, served_by

router = APIRouter(tags=["embedding"])

JobId = Annotated[str, Path(description="Id of a job: 'j-...'.")]
_PAUSE, _KEEP_ALIVE = 0.2, 15.0  # seconds between two looks at a job, and between two signs of life
_BUSY: dict[int | str, dict[str, Any]] = {409: {"model": answers.ErrorAnswer, "description": "As many wait as may."}}


@router.get("/folders", response_model=answers.FoldersAnswer, summary="Folders that may be embedded")
async def list_folders(
    request: Request, root: Annotated[str | None, Query(description="Id of a root; all if left out.")] = None
) -> Response:
    """The real folders below the roots that `task2vec serve --root` named; links are not followed."""
    served = served_by(request)
    found = await served.answerer.run(lambda: served.folders.tell(root), is_slow=True)
    return _tell(found)


@router.post("/jobs", response_model=answers.JobAnswer, status_code=202, responses=_BUSY, summary="Embed a folder")
async def add_job(request: Request, wish: answers.JobWish) -> Response:
    """Embeds a folder of class folders into the library, after those that were asked for before."""
    served = served_by(request)
    place = await served.answerer.run(lambda: served.folders.find(wish.folder))
    if not served.can_embed():
        raise NotServedError(
            answers.Problem(
                what="nothing can be embedded into this library.",
                why="It may only be read.",
                mend="Start the server with a library of your own: task2vec serve --library DIR",
            ),
            status=409,
        )
    return _tell(served.jobs.add(place, name=wish.name).tell(), 202)


@router.get("/jobs", response_model=answers.JobsAnswer, summary="All jobs")
async def list_jobs(request: Request) -> Response:
    """What was asked for since the server was started, newest first."""
    return _tell(answers.JobsAnswer(jobs=served_by(request).jobs.tell()))


@router.get("/jobs/{job}", response_model=answers.JobAnswer, summary="A job")
async def tell_job(request: Request, job: JobId) -> Response:
    """How far a job is."""
    return _tell(served_by(request).jobs.find(job).tell())


@router.delete("/jobs/{job}", response_model=answers.JobAnswer, summary="Cancel a job")
async def cancel_job(request: Request, job: JobId) -> Response:
    """Ends a job; what is in the library already stays there."""
    return _tell(served_by(request).jobs.cancel(job).tell())


@router.get(
    "/jobs/{job}/events",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "Events `progress` (the job), then one `end`."},
        429: {"model": answers.ErrorAnswer, "description": "As many listen as may."},
    },
    summary="A job as it goes on",
)
async def follow_job(request: Request, job: JobId) -> Response:
    """Server-sent events: `progress` with the job whenever it has changed, and `end` when it has ended."""
    served = served_by(request)
    found = served.jobs.find(job)
    if served.listeners >= served.settings.limits.listeners:
        raise NotServedError(
            answers.Problem(
                what=f"{served.listeners} listeners are here already.",
                why="Each holds a connection open.",
                mend="Close some pages, or ask for the job itself from time to time.",
            ),
            status=429,
        )
    served.listeners += 1
    return _Events(served, found)


class _Events(StreamingResponse):
    """The events of a job; the place of a listener is given back whenever and however it leaves."""

    def __init__(self, served: Served, job: Job):
        super().__init__(_follow(served, job), media_type="text/event-stream")
        self.served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.served.listeners -= 1


async def _follow(served: Served, job: Job) -> AsyncIterator[str]:
    """What a job tells until it has ended."""
    version, last = -1, time.monotonic()
    while True:
        has_ended = job.has_ended and version == job.version
        if version != job.version:
            version, last = job.version, time.monotonic()
            yield f"event: progress\ndata: {job.tell().model_dump_json()}\n\n"
        elif has_ended or served.is_closing:
            yield f"event: end\ndata: {job.tell().model_dump_json()}\n\n"
            return
        elif time.monotonic() - last > _KEEP_ALIVE:
            last = time.monotonic()
            yield ": still here\n\n"
        else:
            await asyncio.sleep(_PAUSE)


def _tell(answer: answers.Answer, status: int = 200) -> Response:
    return Response(answer.model_dump_json(), status, media_type="application/json")
