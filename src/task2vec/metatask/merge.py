"""Meta-tasks from several sources: the errors of a library, and views merged into one."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from task2vec.embedding import Embedding
from task2vec.errors import LibraryError, NotInLibraryError
from task2vec.library import EmbeddingEntry, Expert, Library, MeasuredError, TaskEntry
from task2vec.metatask.info import ModelInfo, TaskInfo, deduplicate_names, find_free_name
from task2vec.metatask.metatask import RUN, SEEN, MetaTask, build_metatask, find_shots, hide_test
from task2vec.metatask.spaces import find_method, is_comparable
from task2vec.metatask.view import SYMMETRIC, View, measure_all, measure_rows

# Classifier and measure of the errors that are comparable.
_USUAL = "logistic, usual"

# --- a library -------------------------------------------------------------------------------------------------------


def metatask_from_library(
    library: Library,
    *,
    errors: Sequence[MeasuredError] | None = None,
    probe: str | None = None,
    method: str | None = None,
    like: Embedding | None = None,
) -> MetaTask:
    """The errors of a library, with the embeddings of its tasks in one space.

    Tasks that came from one place (a folder or a table) are of one dataset. Tasks and source tasks without an embedding
    in that space have no distances. Tasks with test images of their own share their protocols; of a task with several
    such sets, the one that was measured last counts.

    Args:
        library: with errors, see `task2vec metatask measure`.
        errors: some of its errors; all by default. Tasks and models without any are left out.
        probe: that tasks were embedded with; by default the one that most tasks with errors were.
        method: by which they were embedded.
        like: an embedding of the space to take; tasks that have none there are left out, and counted in `info`.

    Raises:
        NotInLibraryError: It has no errors, or no embedding by that probe and method.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> with Library.open(folder.name) as library:
        ...     metatask_from_library(library)
        Traceback (most recent call last):
        task2vec.errors.NotInLibraryError: the library has no measured errors, ...
        >>> folder.cleanup()
    """
    errors = library.errors() if errors is None else errors
    if not errors:
        raise NotInLibraryError(
            "the library has no measured errors, so there is nothing to select models by. Measure some: task2vec "
            "error-matrix PATH --expert MODEL"
        )
    errors = _share_protocols(errors)
    having, measured = {error.task for error in errors}, {error.expert for error in errors}
    entries, experts = {task.fingerprint: task for task in library.tasks()}, library.experts()
    tasks = [task for own, task in entries.items() if own in having]
    space = like or choose_library_space(library, tasks, probe, method)
    seen = {(expert.task, expert.name) for expert in experts if expert.task is not None}
    for run in library.runs():
        seen |= {(pair[0], pair[1]) for pair in run.details.get(SEEN, ())} if run.what == RUN else set()
    models = mark_generic([describe_entry(one, entries) for one in experts if one.name in measured])
    wanted = {model.source_fingerprint for model in models} - having
    every = [task for own, task in entries.items() if own in having | wanted]
    found = {task.fingerprint: space and find_embedding(library, task, space) for task in every}
    kept = [task for task in tasks if like is None or found[task.fingerprint] is not None]
    sources = [task for task in every if task.fingerprint in wanted and found[task.fingerprint] is not None]
    names = deduplicate_names([task.name for task in kept])
    return build_metatask(
        "your library",
        [_describe_task(task, name) for task, name in zip(kept, names, strict=True)],
        models,
        sorted({error.protocol for error in errors}),
        sorted({error.seed for error in errors}),
        errors=errors,
        has_seen=seen,
        source_tasks=tuple(_describe_task(task, task.name) for task in sources),
        info={"other_spaces": len(tasks) - len(kept)},
        **_describe_space([found[task.fingerprint] for task in (*kept, *sources)]),
    )


def _share_protocols(errors: Iterable[MeasuredError]) -> list[MeasuredError]:
    """The errors by protocols that do not name the test images of a task, on one set of them for each task."""
    pairs = [(error, hide_test(error.protocol)) for error in errors]
    latest: dict[str, str] = {}
    for error, shared in sorted(pairs, key=lambda pair: pair[0].measured or ""):
        if shared != error.protocol:
            latest[error.task] = error.protocol.rpartition(", ")[2]
    return [
        replace(error, protocol=shared)
        for error, shared in pairs
        if shared == error.protocol or error.protocol.endswith(latest[error.task])
    ]


def _describe_task(task: TaskEntry, name: str) -> TaskInfo:
    return TaskInfo(name, "", task.source or task.name, task.fingerprint, task.images, len(task.classes))


def mark_generic(models: Sequence[ModelInfo]) -> list[ModelInfo]:
    """The models, of which the first with "generic" in its name is of that kind."""
    generic = next((model for model in models if "generic" in model.name.lower()), None)
    return [replace(model, kind="generic") if model is generic else model for model in models]


def describe_entry(expert: Expert, tasks: Mapping[str, TaskEntry] | None = None) -> ModelInfo:
    """The model of a library's entry; `tasks` are those of the library by fingerprint."""
    location: str | None = expert.location
    if expert.source != "file" and not location.startswith(("timm:", "torchvision:")):
        location = f"timm:{location.split('/')[-1]}"
    elif location.startswith("module "):  # kept for its errors: a custom network
        location = None
    entry = (tasks or {}).get(expert.task or "")
    named = expert.recipe.get("task")
    source = entry.name if entry is not None else named if isinstance(named, str) else expert.task
    return ModelInfo(
        expert.name,
        "expert" if expert.task else "network",
        str(expert.recipe.get("architecture") or location or "") or None,
        source,
        expert.task,
        params=expert.parameters,
        gmacs=expert.cost,
        location=location,
        size=expert.input_size,
        source_dataset=(entry.source or entry.name) if entry is not None else source,
        entry=expert,
    )


def choose_library_space(
    library: Library, tasks: Sequence[TaskEntry], probe: str | None = None, method: str | None = None
) -> Embedding | None:
    """One embedding by the probe and method that most of the tasks have, among those that are wanted."""

    def name(entry: EmbeddingEntry) -> tuple[str, str]:
        return entry.probe, str(entry.settings.get("method", ""))

    every = [entry for task in tasks for entry in task.embeddings]
    fit = [one for one in every if probe in (None, name(one)[0]) and method in (None, name(one)[1])]
    if not fit and (probe or method):
        known = "; ".join(dict.fromkeys(" ".join(name(entry)) for entry in every)) or "none"
        raise NotInLibraryError(
            f"no task with errors was embedded by the probe '{probe or 'any'}' and the method '{method or 'any'}', so "
            f"no distances are known; they were embedded by: {known}. Embed them: task2vec embed --probe PROBE FOLDER"
        )
    counts = Counter((entry.probe_fingerprint, name(entry)) for entry in fit)
    return library.get(max(fit, key=lambda one: counts[one.probe_fingerprint, name(one)]).key) if fit else None


def _describe_space(rows: Sequence[Embedding | None]) -> dict[str, Any]:
    """Embeddings in one space, as fields of a meta-task; if rows have none, only what is measured, NaN in these."""
    known = [row for row in rows if row is not None]
    if not known:
        return {}
    space = f"{known[0].probe} {find_method(known[0]) or 'robust'}"
    if len(known) == len(rows):
        return {"embeddings": {space: known}}
    is_known, measured = np.array([row is not None for row in rows]), measure_rows(known)

    def spread(values: np.ndarray) -> np.ndarray:
        whole = np.full((len(rows), *values.shape[1:]), np.nan)
        whole[is_known] = values
        return whole

    fields: dict[str, Any] = {name: {space: spread(measured[name])} for name in ("trivial_distances", "norms")}
    return fields | {"distances": {space: spread(spread(measure_all(known, known)).T)}}


def find_embedding(library: Library, task: TaskEntry, like: Embedding) -> Embedding | None:
    """The embedding of a task in the space of another one, if the library has it."""
    for entry in reversed(task.embeddings):
        if entry.probe_fingerprint == like.probe_fingerprint:
            with suppress(LibraryError):  # damaged: `library verify` names it
                found = library.get(entry.key)
                if is_comparable(found, like):
                    return found
    return None


def list_library_errors(library: Library, shots: str) -> list[MeasuredError]:
    """The errors of a library by so many shots; of several protocols the one that most are of."""
    found = [error for error in library.errors() if find_shots(error.protocol) == shots]
    found = [error for error in found if error.protocol.endswith(_USUAL)]
    counts = Counter(error.protocol for error in found)
    return [error for error in found if error.protocol == counts.most_common(1)[0][0]]


# --- merging ---------------------------------------------------------------------------------------------------------


def merge(first: View, second: View) -> View:
    """Two views in one space as one. Models that are the same network at the same size become one.

    Errors of the tasks of one on the models of the other are unknown; symmetric distances are measured, other kinds,
    scores and errors on halves are dropped. `second` may have models and source tasks only.
    """
    keys = {model.key: number for number, model in enumerate(first.models) if model.key is not None}
    models, columns = list(first.models), []
    for model in second.models:
        column = len(models) if model.key is None else keys.setdefault(model.key, len(models))
        columns.append(column)
        if column == len(models):
            name = find_free_name(model.name, [known.name for known in models], size=model.size)
            models.append(replace(model, name=name))
    tasks, count = (*first.tasks, *second.tasks), len(first.tasks)
    seeds = max(first.seeds, second.seeds, key=len)

    def join(name: str, blank: float, *more: int) -> np.ndarray:
        values, others = np.asarray(getattr(first, name)), np.asarray(getattr(second, name))
        whole = np.full((len(tasks), len(models), *more), blank, dtype=values.dtype)
        whole[(slice(count), slice(len(first.models)), *map(slice, values.shape[2:]))] = values
        for number, column in enumerate(columns):
            whole[(slice(count, None), column, *map(slice, others.shape[2:]))] = others[:, number]
        return whole

    unique = deduplicate_names([task.name for task in tasks])
    return View(
        " and ".join(dict.fromkeys(filter(None, (first.name, second.name)))),
        tuple(replace(task, name=name) for task, name in zip(tasks, unique, strict=True)),
        tuple(models),
        first.protocol,
        seeds,
        join("errors", np.nan, len(seeds)),
        shares_images=join("shares_images", 0),
        shares_labels=join("shares_labels", 0),
        source_tasks=(*first.source_tasks, *second.source_tasks),
        space=first.space,
        **_join_rows(first, second),
    )


def _join_rows(first: View, second: View) -> dict[str, Any]:
    """Distances and embeddings, as fields of a view: tasks of both, then source tasks of both."""
    views = (first, second)
    counts = [len(view.tasks) + len(view.source_tasks) for view in views]
    whole = np.full((sum(counts), sum(counts)), np.nan)
    for start, view in zip((0, counts[0]), views, strict=True):
        if SYMMETRIC in view.distances:
            end = start + len(view.distances[SYMMETRIC])
            whole[start:end, start:end] = view.distances[SYMMETRIC]
    is_complete = all(len(view.embeddings) == count for view, count in zip(views, counts, strict=True))
    if is_complete:
        cross = measure_all(first.embeddings, second.embeddings)
        whole[: counts[0], counts[0] :], whole[counts[0] :, : counts[0]] = cross, cross.T
    is_source = [row >= len(view.tasks) for view, count in zip(views, counts, strict=True) for row in range(count)]
    order = np.argsort(is_source, kind="stable")
    embeddings = [*first.embeddings, *second.embeddings] if is_complete else []
    rows = measure_rows([embeddings[row] for row in order] if is_complete else [])
    return rows | {"distances": {SYMMETRIC: whole[np.ix_(order, order)]}}


def add_models(view: View, models: Sequence[ModelInfo], library: Library | None, like: Embedding) -> View:
    """The view and models whose errors are unknown, with those source tasks that the library has embedded."""
    if not models:
        return view
    wanted, sources = {model.source_fingerprint for model in models}, dict[TaskInfo, Embedding]()
    for task in [] if library is None else library.tasks():
        embedding = find_embedding(library, task, like) if library and task.fingerprint in wanted else None
        sources |= {} if embedding is None else {_describe_task(task, task.name): embedding}
    embeddings, shape = list(sources.values()), (0, len(models))
    added = View(
        "",
        (),
        tuple(models),
        view.protocol,
        view.seeds,
        np.empty((*shape, len(view.seeds))),
        shares_images=np.empty(shape),
        shares_labels=np.empty(shape, dtype=bool),
        source_tasks=tuple(sources),
        space=view.space,
        distances={SYMMETRIC: measure_all(embeddings, embeddings)},
        **measure_rows(embeddings),
    )
    return merge(view, added)
