"""The errors of a library as a meta-task, alone or beside those of another one."""

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
        like: an embedding of the space to take; tasks that have none there are left out.

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
            "metatask measure PATH --expert MODEL"
        )
    tasks = [task for task in library.tasks() if task.fingerprint in {error.task for error in errors}]
    space = like or _choose_space(library, tasks, probe, method)
    return _read_library(library, errors, space, is_complete=like is not None)


def _read_library(
    library: Library | None,
    errors: Sequence[MeasuredError],
    like: Embedding | None,
    *,
    models: Sequence[ModelInfo] = (),
    is_complete: bool,
) -> MetaTask:
    """Errors of a library, if there is one, and other models beside those that it has errors of.

    If it `is_complete`, tasks that are not embedded in the space of `like` are left out.
    """
    errors = _share_protocols(errors)
    entries = {} if library is None else {task.fingerprint: task for task in library.tasks()}
    experts = [] if library is None else library.experts()
    measured = {error.expert for error in errors}
    known = [describe_entry(expert, entries) for expert in experts if expert.name in measured]
    generic = next((model for model in known if "generic" in model.name.lower()), None)
    models = [*(replace(model, kind="generic") if model is generic else model for model in known), *models]
    model_names = deduplicate_names([model.name for model in models])
    models = [replace(model, name=name) for model, name in zip(models, model_names, strict=True)]
    has_errors = {error.task for error in errors}
    is_source = {model.source_fingerprint for model in models} - has_errors
    embeddings = {
        fingerprint: None if library is None or like is None else find_embedding(library, task, like)
        for fingerprint, task in entries.items()
        if fingerprint in has_errors | is_source
    }
    is_embedded = {fingerprint for fingerprint, embedding in embeddings.items() if embedding is not None}
    rows = [task for key, task in entries.items() if key in has_errors and (key in is_embedded or not is_complete)]
    sources = [task for key, task in entries.items() if key in is_source & is_embedded]
    names = deduplicate_names([task.name for task in rows])
    seen = {(expert.task, expert.name) for expert in experts if expert.task is not None}
    for run in [] if library is None else library.runs():
        seen |= {(pair[0], pair[1]) for pair in run.details.get(SEEN, ())} if run.what == RUN else set()
    return build_metatask(
        "your library",
        [_describe_task(task, name) for task, name in zip(rows, names, strict=True)],
        models,
        sorted({error.protocol for error in errors}),
        sorted({error.seed for error in errors}),
        errors=errors,
        has_seen=seen,
        source_tasks=tuple(_describe_task(task, task.name) for task in sources),
        **_describe_space([embeddings[task.fingerprint] for task in (*rows, *sources)]),
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


def describe_entry(expert: Expert, tasks: Mapping[str, TaskEntry] | None = None) -> ModelInfo:
    """The model of a library's entry; `tasks` are those of the library by fingerprint."""
    location: str | None = expert.location
    if expert.source != "file" and not location.startswith(("timm:", "torchvision:")):
        location = f"timm:{location.split('/')[-1]}"
    elif location.startswith("module "):  # kept for its errors: a custom network
        location = None
    task = (tasks or {}).get(expert.task or "")
    task_name = expert.recipe.get("task")
    source = task.name if task is not None else task_name if isinstance(task_name, str) else expert.task
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
        source_dataset=source if task is None else task.source or task.name,
    )


def _choose_space(
    library: Library, tasks: Sequence[TaskEntry], probe: str | None, method: str | None
) -> Embedding | None:
    """One embedding by the probe and method that most of the tasks have, among those that are wanted."""

    def name(entry: EmbeddingEntry) -> tuple[str, str]:
        return entry.probe, str(entry.settings.get("method", ""))

    entries = [entry for task in tasks for entry in task.embeddings]
    fit = [entry for entry in entries if probe in (None, name(entry)[0]) and method in (None, name(entry)[1])]
    if not fit and (probe or method):
        known = "; ".join(dict.fromkeys(" ".join(name(entry)) for entry in entries)) or "none"
        raise NotInLibraryError(
            f"no task with errors was embedded by the probe '{probe or 'any'}' and the method '{method or 'any'}', so "
            f"no distances are known; they were embedded by: {known}. Embed them: task2vec embed --probe PROBE FOLDER"
        )
    counts = Counter((entry.probe_fingerprint, name(entry)) for entry in fit)
    return library.get(max(fit, key=lambda entry: counts[entry.probe_fingerprint, name(entry)]).key) if fit else None


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
                embedding = library.get(entry.key)
                if is_comparable(embedding, like):
                    return embedding
    return None


def list_library_errors(library: Library, shots: str) -> list[MeasuredError]:
    """The errors of a library by so many shots; of several protocols the one that most are of."""
    errors = [error for error in library.errors() if find_shots(error.protocol) == shots]
    errors = [error for error in errors if error.protocol.endswith(_USUAL)]
    counts = Counter(error.protocol for error in errors)
    return [error for error in errors if error.protocol == counts.most_common(1)[0][0]]


def add_library(
    metatask: MetaTask,
    library: Library | None,
    errors: Sequence[MeasuredError],
    *,
    protocol: str,
    space: str,
    models: Sequence[ModelInfo] = (),
) -> View:
    """A meta-task by one protocol and in one space, with errors of a library on other tasks, whatever their protocol.

    Models that are the same network at the same size become one; errors of the tasks of one on the models of the other
    are unknown. Tasks of the library that are not embedded in that space are left out.

    Args:
        metatask: with embeddings in that space.
        library: has the tasks and their embeddings; None for other models only.
        errors: of the library, none without one.
        protocol: of the errors of the meta-task.
        space: its name.
        models: others, whose errors are not known but their source tasks may be.
    """
    added = _read_library(library, errors, metatask.embeddings[space][0], models=models, is_complete=True)
    infos = {model.name: model for model in metatask.models}
    known = {model.key: model.name for model in metatask.models if model.key is not None}
    names = {}
    for model in added.models:
        names[model.name] = (model.key and known.get(model.key)) or find_free_name(model.name, infos, size=model.size)
        infos.setdefault(names[model.name], replace(model, name=names[model.name]))
        known |= {} if model.key is None else {model.key: names[model.name]}
    fingerprints = {task.fingerprint for task in metatask.tasks}
    tasks = [*metatask.tasks, *(task for task in added.tasks if task.fingerprint not in fingerprints)]
    sources = [*metatask.source_tasks, *(task for task in added.source_tasks if task.fingerprint not in fingerprints)]
    embeddings: dict[str, Embedding] = {}
    for table, of_rows in ((added, next(iter(added.embeddings.values()), ())), (metatask, metatask.embeddings[space])):
        keys = [task.fingerprint for task in (*table.tasks, *table.source_tasks)]
        embeddings |= dict(zip(keys, of_rows, strict=True))
    merged = metatask.list_errors(protocol)
    for error in added.list_errors():
        if error.task not in fingerprints:
            merged.append(replace(error, expert=names[error.expert], protocol=protocol))
    rows = [embeddings[task.fingerprint] for task in (*tasks, *sources)]
    count, new_rows = len(metatask.tasks), rows[len(metatask.tasks) :]
    known, gaps = metatask.view(0, space).between(SYMMETRIC), measure_all(new_rows, rows[:count])
    distances = np.block([[known, gaps.T], [gaps, measure_all(new_rows, new_rows)]])
    unique = deduplicate_names([task.name for task in tasks])
    return build_metatask(
        f"{metatask.name} and {added.name}",
        [replace(task, name=name) for task, name in zip(tasks, unique, strict=True)],
        [*infos.values()],
        [protocol],
        sorted({error.seed for error in merged}),
        errors=merged,
        has_seen=metatask.list_seen() | {(task, names[model]) for task, model in added.list_seen()},
        source_tasks=tuple(sources),
        embeddings={space: rows},
        distances={space: distances},
    ).view(0, space)
