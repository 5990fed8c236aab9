"""All routes of the API: each reads, and none changes anything or takes a path."""

import math
import shlex
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial, wraps
from importlib.util import find_spec
from typing import Annotated, Any, BinaryIO

import numpy as np
from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from task2vec import __version__
from task2vec.distance import asymmetric, split_symmetric, symmetric
from task2vec.distance.noise import find_floor, with_error
from task2vec.embedding import Embedding
from task2vec.experts import wilson_interval
from task2vec.metatask import ModelInfo, describe_entry, find_protocol, find_shots, image_size, list_library_errors
from task2vec.plots.layout import link_tasks, order_leaves
from task2vec.select.recommend import recommend
from task2vec.text import hide_paths
from task2vec.web import schemas
from task2vec.web.errors import RequestError
from task2vec.web.security import REPORT_HEADERS
from task2vec.web.state import Entry, State, View, compare_rows

router = APIRouter()
MAX_MATRIX, DEFAULT_MATRIX = 200, 60  # tasks
MAX_CLASSES, MAX_FILTERS = 500, 20
_CHUNK = 1 << 18  # bytes of a report that are read at a time


def find_state(request: Request) -> State:
    """The state of the application that serves a request."""
    return request.app.state.served


async def look(request: Request) -> View:
    """The current view."""
    return await find_state(request).look()


CurrentState = Annotated[State, Depends(find_state)]
CurrentView = Annotated[View, Depends(look)]
TaskId = Annotated[str, Path(description="Id of a task: 'l-...' or 'm-...'.")]
SpaceId = Annotated[str | None, Query(description="Id of a space: 's-...'; by default the default one.")]
_SHOTS = "Training images: 'half' of them, or a number per class; by default chosen for the task."
Shots = Annotated[str | None, Query(description=_SHOTS, pattern="^(half|[0-9]{1,4})$")]


def cached(*, is_slow: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A route that is computed in a thread, whose response is kept until the library changes."""

    def wrap(make: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(make)
        async def handle(state: State, view: View, **values: Hashable) -> Response:
            key = (view.revision, make.__name__, *values.values())
            return await state.respond(key, partial(make, state, view, **values), is_slow=is_slow)

        return handle

    return wrap


# --- tasks ------------------------------------------------------------------------------------------------------------


@router.get("/status", summary="What is served")
@cached()
def read_status(state: CurrentState, view: CurrentView) -> schemas.Status:
    """Number of tasks, spaces, and the name of the library."""
    has_tsne = find_spec("openTSNE") is not None
    return schemas.Status(
        version=__version__,
        tasks=len({entry.fingerprint for entry in view.entries.values()}),
        spaces=list(view.spaces.values()),
        library=state.folder.name,
        revision=view.revision,
        layout="t-SNE" if has_tsne else "classical scaling, without openTSNE: pip install 'task2vec[map]'",
    )


@router.get(
    "/map",
    response_model=schemas.Map,
    responses={202: {"model": schemas.MapProgress, "description": "The map is being computed: try again."}},
    summary="The map of a space",
)
async def read_map(state: CurrentState, view: CurrentView, space: SpaceId = None) -> Response:
    """All tasks of a space on a plane, similar tasks side by side."""
    shown = view.find_space(space)
    chart = state.find_chart(view, shown)
    if isinstance(chart, schemas.MapProgress):
        return Response(chart.model_dump_json(), 202, media_type="application/json")

    def make() -> schemas.Map:
        points = []
        for entry in view.members[shown.id]:
            x, y = chart.positions[entry.id]
            points.append(schemas.Point(**dict(entry), x=x, y=y))
        later = len(points) - len(chart.base)
        method = chart.base.describe() + (f"; {later} added later" if later > 0 else "")
        return schemas.Map(space=shown.id, revision=view.revision, method=method, points=points)

    return await state.respond((view.revision, "map", shown.id), make)


@router.get("/tasks", summary="Find tasks")
@cached()
def find_tasks(
    state: CurrentState,
    view: CurrentView,
    q: Annotated[str, Query(description="Words in names, datasets, tags or classes.", max_length=200)] = "",
    space: Annotated[str | None, Query(description="Id of a space; all spaces by default.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> schemas.TaskList:
    """The tasks whose names, datasets, tags or classes contain all words: those of the library first, by name."""
    words = q.casefold().split()
    entries = view.entries.values() if space is None else view.members[view.find_space(space).id]
    matches: list[schemas.TaskSummary] = [entry for entry in entries if entry.matches(words)]
    return schemas.TaskList(total=len(matches), tasks=matches[offset : offset + limit])


@router.get("/tasks/{task}", summary="A task")
@cached()
def describe_task(state: CurrentState, view: CurrentView, task: TaskId) -> schemas.Task:
    """All that is known about a task: classes and counts, head error, noise, settings."""
    entry = view.find_entry(task)
    embedding = state.load(entry)
    names = entry.class_names or [f"class {number + 1}" for number in range(len(entry.counts))]
    counts = [schemas.ClassCount(name=name, count=count) for name, count in zip(names, entry.counts, strict=False)]
    interval = None
    if entry.head_error is not None and entry.images > 0:
        score = wilson_interval(entry.head_error * entry.images, entry.images)
        interval = [score.low, score.high]
    settings = {"probe": embedding.probe, "probe_fingerprint": embedding.probe_fingerprint[:8]}
    return schemas.Task(
        **dict(entry),
        class_counts=counts[:MAX_CLASSES],
        head_error_interval=interval,
        noise=find_noise(embedding),
        settings={**settings, "image_size": image_size(embedding), **(embedding.provenance.get("settings") or {})},
    )


def find_noise(embedding: Embedding) -> float | None:
    """The noise floor of a task; None if it is unknown, as of the bundled ones."""
    return None if math.isnan(floor := find_floor(embedding)) else floor


@router.get("/tasks/{task}/report", response_class=HTMLResponse, summary="The report on a task")
async def read_report(state: CurrentState, view: CurrentView, task: TaskId) -> Response:
    """The page that `task2vec report` has made of a task, as it is now; scripts do not run in it."""
    file = await state.run(partial(state.open_report, view.find_entry(task)))
    return StreamingResponse(_read_chunks(file), media_type="text/html", headers=REPORT_HEADERS)


def _read_chunks(file: BinaryIO) -> Iterator[bytes]:
    """The content of a file, a chunk at a time: reports are large, and so are not cached."""
    with file:
        while chunk := file.read(_CHUNK):
            yield chunk


@router.get("/tasks/{task}/nearest", summary="The nearest tasks")
@cached()
def find_nearest(
    state: CurrentState, view: CurrentView, task: TaskId, limit: Annotated[int, Query(ge=1, le=100)] = 10
) -> schemas.Nearest:
    """The nearest tasks by the symmetric distance, among those that can be compared."""
    entry = view.find_entry(task)
    noise = find_noise(state.load(entry))
    neighbours = [
        schemas.Neighbour(**dict(near), distance=distance, is_within_noise=noise is not None and distance <= noise)
        for near, distance in state.find_near(view, entry, limit)[:limit]
    ]
    return schemas.Nearest(task=entry.id, noise=noise, neighbours=neighbours)


@router.get("/compare", summary="Two tasks side by side")
@cached()
def compare(
    state: CurrentState,
    view: CurrentView,
    first: Annotated[str, Query(description="Id of a task.")],
    second: Annotated[str, Query(description="Id of another task.")],
) -> schemas.Comparison:
    """The distance between two tasks, and the layers and filters that contribute most to it."""
    a, b = (state.load(view.find_entry(text)) for text in (first, second))
    contributions = split_symmetric(a, b)
    shares = contributions / (contributions.sum() or 1.0)
    layers = []
    filters = []
    top = set(np.argsort(-shares, kind="stable")[:MAX_FILTERS].tolist())
    for name, indices in a.layer_slices().items():
        layers.append(schemas.Layer(name=name, share=shares[indices].sum(), filters=indices.stop - indices.start))
        for index in sorted(top.intersection(range(indices.start, indices.stop))):
            values = {"first": a.fisher[index], "second": b.fisher[index], "share": shares[index]}
            filters.append(schemas.Filter(layer=name, number=index - indices.start, **values))
    noisy = with_error(a, b)
    return schemas.Comparison(
        first=first,
        second=second,
        distance=symmetric(a, b),
        noise=None if math.isnan(noisy.floor) else noisy.floor,
        first_to_second=asymmetric(a, b),
        second_to_first=asymmetric(b, a),
        layers=sorted(layers, key=lambda layer: -layer.share),
        filters=sorted(filters, key=lambda row: -row.share),
    )


@router.get("/matrix", summary="Distances between tasks")
@cached(is_slow=True)
def read_matrix(
    state: CurrentState,
    view: CurrentView,
    space: SpaceId = None,
    ids: Annotated[str, Query(description="Ids of at most 200 tasks, comma-separated; by default the first 60.")] = "",
) -> schemas.Matrix:
    """The matrix of symmetric distances, and its tree by hierarchical clustering."""
    entries: Sequence[Entry] = [view.find_entry(text) for text in dict.fromkeys(filter(None, ids.split(",")))]
    shown = entries[0].space if entries and space is None else view.find_space(space).id
    entries = entries or view.members[shown][:DEFAULT_MATRIX]
    if len(entries) > MAX_MATRIX:
        why = "The cells of a matrix would be too small to see."
        raise RequestError(422, f"{len(entries)} tasks are too many. {why} Name at most {MAX_MATRIX}.")
    for entry in entries:
        if entry.space != shown:
            why = "Embeddings by different probes, image sizes or methods are not comparable."
            raise RequestError(422, f"the task {entry.id!r} is not in space {shown!r}. {why} Name tasks of one space.")
    distances = compare_rows(state.load_rows(entries))
    merges = link_tasks(distances) if len(entries) > 1 else np.empty((0, 4))
    return schemas.Matrix(
        space=shown,
        ids=[entry.id for entry in entries],
        names=[entry.name for entry in entries],
        values=distances.tolist(),
        order=order_leaves(merges),
        merges=merges.tolist(),
    )


# --- models -----------------------------------------------------------------------------------------------------------


@router.get("/tasks/{task}/recommendation", summary="Which model to start from")
@cached(is_slow=True)
def recommend_model(state: CurrentState, view: CurrentView, task: TaskId) -> schemas.Advice:
    """The models that were measured on the task, the best first; if none was, those to measure, and why."""
    entry = view.find_entry(task)
    advice = recommend(state.load(entry), library=state.open_library() if view.has_errors else None)
    rows = [
        schemas.AdviceRow.model_validate(vars(row) | {"load": hide_paths(row.load), "failure": hide_paths(row.failure)})
        for row in advice.rows
    ]
    name = shlex.quote(entry.name) if entry.origin == "library" else "FOLDER"
    fields = {"task": task, "is_measured": bool(advice.measured), "command": f"task2vec recommend {name}", "rows": rows}
    return schemas.Advice.model_validate(vars(advice) | fields)


@router.get("/models", summary="Models with measured errors")
@cached()
def list_models(state: CurrentState, view: CurrentView, shots: Shots = None) -> schemas.ModelList:
    """All models with measured errors, the lowest mean error first; one counts if the model has not seen the task.

    Models measured on less than half as many tasks as others come last: their means are over other tasks.
    """
    metatask = state.metatask
    protocol = find_protocol(metatask.protocols, shots, of="the bundle")
    chosen = find_shots(metatask.protocols[protocol])
    means = np.where(metatask.is_candidate, metatask.mean_errors()[:, :, protocol], np.nan)
    models = [
        _describe_model(model, errors[np.isfinite(errors)].tolist(), "bundled")
        for model, errors in zip(metatask.models, means.T, strict=True)
        if not model.is_repeat
    ]
    library = state.open_library() if view.has_errors else None
    if library is not None:
        cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for error in list_library_errors(library, chosen):
            cells[error.expert][error.task].append(error.error)
        tasks = {task.fingerprint: task for task in library.tasks()}
        for expert in library.experts():
            errors = [float(np.mean(values)) for values in cells[expert.name].values()]
            models.append(_describe_model(describe_entry(expert, tasks), errors, "library"))
    most_tasks = max((model.tasks for model in models), default=0)
    for model in models:
        model.is_few = 2 * model.tasks < most_tasks
    models.sort(key=lambda model: (model.mean_error is None, model.is_few, model.mean_error or 0.0, model.name))
    return schemas.ModelList(shots=chosen, models=models)


def _describe_model(model: ModelInfo, errors: Sequence[float], origin: schemas.Origin) -> schemas.Model:
    network = hide_paths(model.network or model.name, {})
    mean = float(np.mean(errors)) if errors else None
    fields = {"network": network, "origin": origin, "mean_error": mean, "tasks": len(errors)}
    return schemas.Model.model_validate(vars(model) | fields)
