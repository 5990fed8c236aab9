"""The routes that answer questions: everything here only reads."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from task2vec import __version__
from task2vec.web import advice, answers, questions, tables
from task2vec.web.maps import word_layout
from task2vec.web.served import Served, served_by
from task2vec.web.world import View

router = APIRouter(tags=["tasks"])

TaskId = Annotated[str, Path(description="Id of a task: 'l-...' or 'm-...'.")]
SpaceId = Annotated[str | None, Query(description="Id of a space: 's-...'; the default one if left out.")]
Training = Annotated[
    Literal["half", "5"] | None, Query(description="What classifiers were trained on; chosen by the task if left out.")
]


@router.get("/status", response_model=answers.StatusAnswer, summary="What is served")
async def tell_status(request: Request) -> Response:
    """How many tasks there are, in which spaces, and whether folders can be embedded."""
    served = served_by(request)
    return await served.answerer.answer(("status",), lambda view: _make_status(served, view))


def _make_status(served: Served, view: View) -> answers.StatusAnswer:
    spaces = [
        answers.SpaceAnswer(id=one.id, name=one.name, tasks=len(one.entries), is_default=one.is_default)
        for one in view.spaces.values()
    ]
    roots = [answers.RootAnswer(id=text, name=served.names[str(place)]) for text, place in served.folders.roots.items()]
    return answers.StatusAnswer(
        version=__version__,
        tasks=len({entry.fingerprint for entry in view.entries.values()}),
        spaces=spaces,
        can_embed=served.can_embed(),
        roots=roots,
        library=served.world.name,
        revision=view.revision,
        layout=word_layout(),
    )


@router.get(
    "/map",
    response_model=answers.MapAnswer,
    responses={202: {"model": answers.LayingOutAnswer, "description": "It is being laid out: ask again."}},
    summary="The map of a space",
)
async def tell_map(request: Request, space: SpaceId = None) -> Response:
    """All tasks of a space on a plane, near ones beside each other."""
    served = served_by(request)
    view = await served.look()
    found = served.maps.find(view, questions.find_space(view, space))
    if isinstance(found, answers.LayingOutAnswer):
        return Response(found.model_dump_json(), 202, {"Retry-After": "1"}, media_type="application/json")
    return await served.answerer.answer(("map", found.space), lambda _: found)


@router.get("/tasks", response_model=answers.TasksAnswer, summary="A list of tasks")
async def list_tasks(
    request: Request,
    q: Annotated[str, Query(description="Words in names, datasets, tags or classes.", max_length=200)] = "",
    space: Annotated[str | None, Query(description="Id of a space; all spaces if left out.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    """The tasks whose names, datasets, tags or classes hold all the words, by name."""
    asked = {"words": q, "space": space, "limit": limit, "offset": offset}
    key = ("tasks", *asked.values())
    return await served_by(request).answerer.answer(key, lambda view: questions.list_tasks(view, **asked))


@router.get("/tasks/{task}", response_model=answers.TaskAnswer, summary="A task")
async def describe_task(request: Request, task: TaskId) -> Response:
    """All that is known of a task: classes and counts, error of the head, noise, settings."""
    served = served_by(request)
    return await served.answerer.answer(("task", task), lambda view: questions.describe_task(served.world, view, task))


@router.get("/tasks/{task}/nearest", response_model=answers.NearestAnswer, summary="The nearest tasks")
async def find_nearest(request: Request, task: TaskId, limit: Annotated[int, Query(ge=1, le=100)] = 10) -> Response:
    """The tasks nearest by the symmetric distance, among those that can be compared."""
    served = served_by(request)
    return await served.answerer.answer(
        ("nearest", task, limit), lambda view: questions.find_nearest(served.world, view, task, limit=limit)
    )


@router.get(
    "/tasks/{task}/recommendation", response_model=answers.RecommendationAnswer, summary="Which expert to start from"
)
async def advise(request: Request, task: TaskId, train: Training = None) -> Response:
    """Experts with the error that each is predicted to leave; it says so where nothing beats the static choice."""
    served = served_by(request)
    return await served.answerer.answer(
        ("advice", task, train), lambda view: advice.advise(served.world, view, task, train=train), is_slow=True
    )


@router.get("/compare", response_model=answers.CompareAnswer, summary="Two tasks side by side")
async def compare(
    request: Request,
    first: Annotated[str, Query(description="Id of a task.")],
    second: Annotated[str, Query(description="Id of another one.")],
) -> Response:
    """The distance of two tasks, and which layers and filters make it."""
    served = served_by(request)
    return await served.answerer.answer(
        ("compare", first, second), lambda view: questions.compare_tasks(served.world, view, first, second)
    )


@router.get("/matrix", response_model=answers.MatrixAnswer, summary="Distances between some tasks")
async def tabulate(
    request: Request,
    space: SpaceId = None,
    ids: Annotated[str, Query(description="Ids of at most 200 tasks, with commas; the first 60 if left out.")] = "",
) -> Response:
    """The matrix of symmetric distances, and the tree of its hierarchical clustering."""
    served, wanted = served_by(request), tuple(one for one in ids.split(",") if one)
    return await served.answerer.answer(
        ("matrix", space, wanted),
        lambda view: tables.tabulate(served.world, view, space=space, ids=wanted),
        is_slow=True,
    )


@router.get("/experts", response_model=answers.ExpertsAnswer, summary="The experts that are known")
async def list_experts(request: Request, train: Training = None) -> Response:
    """All experts whose errors are known, with their mean over the tasks that they were measured on."""
    served = served_by(request)
    return await served.answerer.answer(
        ("experts", train), lambda view: advice.list_experts(served.world, view, train=train)
    )
