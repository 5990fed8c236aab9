"""All routes of the API. Only `POST /jobs` and `DELETE /jobs/{job}` change anything."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from task2vec import __version__
from task2vec.distance import ALPHA, split_symmetric, symmetric
from task2vec.distance.noise import find_floor, with_error
from task2vec.embedding import Embedding, trivial
from task2vec.experts import ModelInfo, find_shots, wilson_interval
from task2vec.plots.layout import link_tasks, order_leaves
from task2vec.select.evidence import choose_shots, describe_entry, image_size, list_library_errors
from task2vec.select.recommend import recommend
from task2vec.web import schemas
from task2vec.web.schemas import Job
from task2vec.web.security import RequestError, hide_file, hide_paths
from task2vec.web.state import Entry, State, View, compare_rows, describe_chart

router = APIRouter()
MOST_TASKS, USUAL_TASKS = 200, 60  # of a matrix
MOST_CLASSES, MOST_FILTERS = 500, 20
_PAUSE, _KEEP_ALIVE = 0.2, 15.0  # seconds between two looks at a job, and between two signs of life

TaskId = Annotated[str, Path(description="Id of a task: 'l-...' or 'm-...'.")]
JobId = Annotated[str, Path(description="Id of a job: 'j-...'.")]
SpaceId = Annotated[str | None, Query(description="Id of a space: 's-...'; by default the default one.")]
Shots = Annotated[
    Literal["half", "5"] | None,
    Query(description="Training images: 'half' of them, or 5 per class; by default chosen by the task."),
]
_BUSY: dict[int | str, dict[str, Any]] = {409: {"model": schemas.ErrorResponse, "description": "Too many jobs wait."}}


def state_of(request: Request) -> State:
    """The state of the application that serves a request."""
    return request.app.state.served


def _respond(content: schemas.Schema, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(content.model_dump_json(), status, headers, media_type="application/json")


# --- tasks ------------------------------------------------------------------------------------------------------------


@router.get("/status", response_model=schemas.Status, summary="What is served")
async def read_status(request: Request) -> Response:
    """Number of tasks, spaces, and whether folders can be embedded."""
    state = state_of(request)

    def make(view: View) -> schemas.Status:
        has_tsne = find_spec("openTSNE") is not None
        return schemas.Status(
            version=__version__,
            tasks=len({entry.fingerprint for entry in view.entries.values()}),
            spaces=list(view.spaces.values()),
            can_embed=state.can_embed(),
            roots=[schemas.Root(id=text, name=state.names[str(path)]) for text, path in state.folders.roots.items()],
            library=state.folder.name,
            revision=view.revision,
            layout="t-SNE" if has_tsne else "classical scaling, without openTSNE: pip install 'task2vec[map]'",
        )

    return await state.respond(("status",), make)


@router.get(
    "/map",
    response_model=schemas.Map,
    responses={202: {"model": schemas.MapProgress, "description": "The map is being made: ask again."}},
    summary="The map of a space",
)
async def read_map(request: Request, space: SpaceId = None) -> Response:
    """All tasks of a space on a plane, similar tasks side by side."""
    state = state_of(request)
    view = await state.look()
    wanted = view.find_space(space)
    chart = state.find_chart(view, wanted)
    if isinstance(chart, schemas.MapProgress):
        return _respond(chart, 202, {"Retry-After": "1"})
    return await state.respond(("map", wanted.id), lambda view: describe_chart(chart, view, view.spaces[wanted.id]))


@router.get("/tasks", response_model=schemas.TaskList, summary="A list of tasks")
async def list_tasks(
    request: Request,
    q: Annotated[str, Query(description="Words in names, datasets, tags or classes.", max_length=200)] = "",
    space: Annotated[str | None, Query(description="Id of a space; all spaces by default.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    """The tasks whose names, datasets, tags or classes contain all words, sorted by name."""

    def make(view: View) -> schemas.TaskList:
        words = q.casefold().split()
        among = view.entries.values() if space is None else view.members[view.find_space(space).id]
        found = [entry.summary for entry in among if entry.matches(words)]
        return schemas.TaskList(total=len(found), tasks=found[offset : offset + limit])

    return await state_of(request).respond(("tasks", q, space, limit, offset), make)


@router.get("/tasks/{task}", response_model=schemas.Task, summary="A task")
async def describe_task(request: Request, task: TaskId) -> Response:
    """All that is known about a task: classes and counts, head error, noise, settings."""
    state = state_of(request)

    def make(view: View) -> schemas.Task:
        entry = view.find_entry(task)
        embedding, one = state.load(entry), entry.summary
        names = entry.class_names or [f"class {number + 1}" for number in range(len(entry.counts))]
        counts = [schemas.ClassCount(name=name, count=count) for name, count in zip(names, entry.counts, strict=False)]
        interval = None
        if one.head_error is not None and one.images > 0:
            score = wilson_interval(one.head_error * one.images, one.images)
            interval = [score.low, score.high]
        probe = {
            "probe": embedding.probe,
            "probe_fingerprint": embedding.probe_fingerprint[:8],
            "image_size": image_size(embedding),
        }
        return schemas.Task(
            **dict(one),
            class_counts=counts[:MOST_CLASSES],
            is_multilabel=entry.is_multilabel,
            tags=list(entry.tags),
            head_error_interval=interval,
            noise=find_noise(embedding),
            added=entry.added,
            settings=probe | dict(embedding.provenance.get("settings") or {}),
        )

    return await state.respond(("task", task), make)


def find_noise(embedding: Embedding) -> float | None:
    """The noise floor of a task; None if the embedding has no standard errors, as the bundled ones."""
    return find_floor(embedding) if embedding.stderr.any() or embedding.halves is not None else None


@router.get("/tasks/{task}/nearest", response_model=schemas.Nearest, summary="The nearest tasks")
async def find_nearest(request: Request, task: TaskId, limit: Annotated[int, Query(ge=1, le=100)] = 10) -> Response:
    """The nearest tasks by the symmetric distance, among those that can be compared."""
    state = state_of(request)

    def make(view: View) -> schemas.Nearest:
        entry = view.find_entry(task)
        noise = find_noise(state.load(entry))
        near = [
            schemas.Neighbour(
                **dict(one.summary), distance=distance, is_within_noise=noise is not None and distance <= noise
            )
            for one, distance in state.find_near(view, entry, limit)[:limit]
        ]
        return schemas.Nearest(task=entry.id, noise=noise, neighbours=near)

    return await state.respond(("nearest", task, limit), make)


@router.get("/compare", response_model=schemas.Comparison, summary="Two tasks side by side")
async def compare(
    request: Request,
    first: Annotated[str, Query(description="Id of a task.")],
    second: Annotated[str, Query(description="Id of another task.")],
) -> Response:
    """The distance between two tasks, and the layers and filters that contribute most to it."""
    state = state_of(request)

    def make(view: View) -> schemas.Comparison:
        entries = [view.find_entry(text) for text in (first, second)]
        a, b = (state.load(entry) for entry in entries)
        parts, distance = split_symmetric(a, b), symmetric(a, b)
        shares = parts / (parts.sum() or 1.0)
        layers = [
            schemas.Layer(name=name, share=float(shares[own].sum()), filters=own.stop - own.start)
            for name, own in a.layer_slices().items()
        ]
        has_noise = all(find_noise(one) is not None for one in (a, b))
        there, back = (distance - ALPHA * symmetric(one, trivial(one)) for one in (a, b))
        return schemas.Comparison(
            first=entries[0].id,
            second=entries[1].id,
            distance=distance,
            noise=with_error(a, b).floor if has_noise else None,
            first_to_second=there,
            second_to_first=back,
            layers=sorted(layers, key=lambda layer: -layer.share),
            filters=_list_filters(a, b, shares),
        )

    return await state.respond(("compare", first, second), make)


def _list_filters(a: Embedding, b: Embedding, shares: np.ndarray) -> list[schemas.Filter]:
    """The filters with the largest shares."""
    slices = a.layer_slices()
    names, starts = list(slices), np.array([own.start for own in slices.values()])
    found = []
    for at in np.argsort(-shares, kind="stable")[:MOST_FILTERS].tolist():
        layer = int(np.searchsorted(starts, at, side="right")) - 1
        values = {"first": float(a.fisher[at]), "second": float(b.fisher[at]), "share": float(shares[at])}
        found.append(schemas.Filter(layer=names[layer], number=at - int(starts[layer]), **values))
    return found


@router.get("/matrix", response_model=schemas.Matrix, summary="Distances between tasks")
async def read_matrix(
    request: Request,
    space: SpaceId = None,
    ids: Annotated[str, Query(description="Ids of at most 200 tasks, comma-separated; by default the first 60.")] = "",
) -> Response:
    """The matrix of symmetric distances, and its tree by hierarchical clustering."""
    state, wanted = state_of(request), tuple(dict.fromkeys(one for one in ids.split(",") if one))

    def make(view: View) -> schemas.Matrix:
        entries: Sequence[Entry] = [view.find_entry(text) for text in wanted]
        own = entries[0].summary.space if wanted and space is None else view.find_space(space).id
        entries = entries or view.members[own][:USUAL_TASKS]
        if len(entries) > MOST_TASKS:
            what, why = f"{len(entries)} tasks are too many for a matrix.", "Its cells would be too small to see."
            raise RequestError(what, why, f"Name at most {MOST_TASKS}.", status=422)
        for entry in entries:
            if entry.summary.space != own:
                what = f"the task {entry.id!r} is not in the space {own!r}."
                why = "Embeddings by different probes, image sizes or methods are not comparable."
                raise RequestError(what, why, "Name tasks of one space.", status=422)
        values = compare_rows(np.stack([state.load_row(entry) for entry in entries]))
        merges = link_tasks(values) if len(entries) > 1 else np.empty((0, 4))
        return schemas.Matrix(
            space=own,
            ids=[entry.id for entry in entries],
            names=[entry.summary.name for entry in entries],
            values=values.tolist(),
            order=order_leaves(merges),
            merges=merges.tolist(),
        )

    return await state.respond(("matrix", space, wanted), make, is_slow=True)


# --- models -----------------------------------------------------------------------------------------------------------


@router.get("/tasks/{task}/recommendation", response_model=schemas.Recommendation, summary="Which model to start from")
async def recommend_model(request: Request, task: TaskId, shots: Shots = None) -> Response:
    """Models with their predicted test errors, and whether there is evidence for another than the average-best one."""
    state = state_of(request)

    def make(view: View) -> schemas.Recommendation:
        library = state.open_library() if view.has_errors else None  # without errors it adds nothing
        found = recommend(state.load(view.find_entry(task)), evidence=state.metatask, library=library, shots=shots)
        answer = schemas.Recommendation.model_validate(found).model_copy(update={"task": task})
        for row in (*answer.rows, *answer.others):
            row.load = hide_file(row.load)
        return answer

    return await state.respond(("recommendation", task, shots), make, is_slow=True)


@router.get("/models", response_model=schemas.ModelList, summary="Models with measured errors")
async def list_models(request: Request, shots: Shots = None) -> Response:
    """All models with measured errors, the lowest mean error first."""
    state = state_of(request)

    def make(view: View) -> schemas.ModelList:
        chosen = choose_shots((), state.metatask.protocols, shots)
        found = [*_list_bundled_models(state, chosen), *(_list_own_models(state, chosen) if view.has_errors else ())]
        found.sort(key=lambda model: (model.mean_error is None, model.mean_error or 0.0, model.name))
        return schemas.ModelList(shots=chosen, models=found)

    return await state.respond(("models", shots), make)


def _list_bundled_models(state: State, shots: str) -> Iterator[schemas.Model]:
    """The models of the meta-task; an error counts if the model has not seen the task."""
    metatask = state.metatask
    protocol = next(at for at, key in enumerate(metatask.protocols) if find_shots(key) == shots)
    errors = np.where(metatask.is_candidate, metatask.mean_errors()[:, :, protocol], np.nan)
    for column, model in enumerate(metatask.models):
        if not model.is_repeat:
            yield _describe_model(model, errors[np.isfinite(errors[:, column]), column].tolist(), "bundled")


def _list_own_models(state: State, shots: str) -> Iterator[schemas.Model]:
    """The models of the library."""
    library = state.open_library()
    if library is None:
        return
    cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for error in list_library_errors(library, shots):
        cells[error.expert][error.task].append(error.error)
    tasks = {task.fingerprint: task for task in library.tasks()}
    for expert in library.experts():
        means = [float(np.mean(values)) for values in cells[expert.name].values()]
        yield _describe_model(describe_entry(expert, tasks), means, "library")


def _describe_model(model: ModelInfo, errors: Sequence[float], origin: schemas.Origin) -> schemas.Model:
    return schemas.Model(
        name=model.name,
        kind=model.kind,
        network=hide_paths(model.network or model.name, {}),
        origin=origin,
        params=model.params,
        gmacs=model.gmacs,
        mean_error=float(np.mean(errors)) if errors else None,
        tasks=len(errors),
        source_task=model.source_task,
    )


# --- folders and jobs -------------------------------------------------------------------------------------------------


@router.get("/folders", response_model=schemas.FolderList, summary="Folders that may be embedded")
async def list_folders(
    request: Request, root: Annotated[str | None, Query(description="Id of a root; all roots by default.")] = None
) -> Response:
    """The real folders below the roots of `task2vec serve --root`; links are not followed."""
    state = state_of(request)
    return _respond(await state.run(lambda: state.folders.list_folders(root), is_slow=True))


@router.post("/jobs", response_model=Job, status_code=202, responses=_BUSY, summary="Embed a folder")
async def add_job(request: Request, wanted: schemas.JobRequest) -> Response:
    """Embeds a folder of class folders into the library, after all earlier jobs."""
    state = state_of(request)
    folder = await state.run(lambda: state.folders.find(wanted.folder))
    if not state.can_embed():
        fix = "Start the server with a library that you may write to: task2vec serve --library DIR"
        raise RequestError("nothing can be added to this library.", "It is read-only.", fix, status=409)
    return _respond(state.jobs.add(folder, name=wanted.name), 202)


@router.get("/jobs", response_model=schemas.JobList, summary="All jobs")
async def list_jobs(request: Request) -> Response:
    """All jobs since the server was started, newest first."""
    return _respond(schemas.JobList(jobs=state_of(request).jobs.list_jobs()))


@router.get("/jobs/{job}", response_model=Job, summary="A job")
async def read_job(request: Request, job: JobId) -> Response:
    """The progress of a job."""
    return _respond(state_of(request).jobs.find(job))


@router.delete("/jobs/{job}", response_model=Job, summary="Cancel a job")
async def cancel_job(request: Request, job: JobId) -> Response:
    """Ends a job; what is already in the library stays there."""
    return _respond(state_of(request).jobs.cancel(job))


@router.get(
    "/jobs/{job}/events",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "Events `progress` (the job), then one `end`."},
        429: {"model": schemas.ErrorResponse, "description": "Too many listeners."},
    },
    summary="The progress of a job as events",
)
async def follow_job(request: Request, job: JobId) -> Response:
    """Server-sent events: `progress` with the job whenever it changes, and `end` when it has ended."""
    state = state_of(request)
    found = state.jobs.find(job)
    if state.listeners >= state.settings.limits.listeners:
        what, why = f"{state.listeners} listeners are connected already.", "Each holds a connection open."
        raise RequestError(what, why, "Close some pages, or ask for the job itself now and then.", status=429)
    state.listeners += 1
    return _Events(state, found)


class _Events(StreamingResponse):
    """The events of a job; the listener's slot is released however it leaves."""

    def __init__(self, state: State, job: Job):
        super().__init__(_follow(state, job), media_type="text/event-stream")
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.state.listeners -= 1


async def _follow(state: State, job: Job) -> AsyncIterator[str]:
    """The events of a job until it has ended."""
    version, last = -1, time.monotonic()
    while True:
        if version != job.version:
            version, last = job.version, time.monotonic()
            yield f"event: progress\ndata: {job.model_dump_json()}\n\n"
        elif job.has_ended or state.is_closing:
            yield f"event: end\ndata: {job.model_dump_json()}\n\n"
            return
        elif time.monotonic() - last > _KEEP_ALIVE:
            last = time.monotonic()
            yield ": still here\n\n"
        else:
            await asyncio.sleep(_PAUSE)
