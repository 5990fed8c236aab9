"""The errors of a library as a meta-task, alone or beside those of another one."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from task2vec.embedding import Embedding
from task2vec.errors import LibraryError, NotInLibraryError
from task2vec.library import EmbeddingEntry, Expert, Library, MeasuredError, TaskEntry
from task2vec.metatask.info import ModelInfo, TaskInfo, deduplicate_names, find_free_name
from task2vec.metatask.metatask import RUN, SEEN, MetaTask, build_metatask, find_shots, hide_test
from task2vec.metatask.spaces import find_method, is_comparable
from task2vec.metatask.view import SYMMETRIC, View, measure_all

# Classifier and measure of the errors that are comparable.
_USUAL = "logistic, usual"


def metatask_from_library(library: Library, *, probe: str | None = None, method: str | None = None) -> MetaTask:
    """The errors of a library, with the embeddings of its tasks in one space.

    Tasks that came from one place (a folder or a table) are of one dataset. Tasks that are not embedded in that space
    are left out; if none is embedded at all, there are no distances. Tasks with test images of their own share their
    protocols; of a task with several such sets, the one that was measured last counts.

    Args:
        library: with errors, see `task2vec metatask measure`.
        probe: that tasks were embedded with; by default the one that most tasks with errors were.
        method: by which they were embedded.

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
    errors = _share_protocols(library.errors())
    if not errors:
        raise NotInLibraryError(
            "the library has no measured errors, so there is nothing to select models by. Measure some: task2vec "
            "metatask measure PATH --expert MODEL"
        )
    measured = {error.task for error in errors}
    like = _choose_space(library, [task for task in library.tasks() if task.fingerprint in measured], probe, method)
    protocols = sorted({error.protocol for error in errors})
    return _add(build_metatask("your library", (), (), protocols, ()), library, errors, like)


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
    number, count = metatask.protocols.index(protocol), len(metatask.tasks)
    base = replace(metatask, protocols=(protocol,), **metatask.take(P=[number]))
    errors = [replace(error, protocol=protocol) for error in _share_protocols(errors)]
    merged = _add(base, library, errors, metatask.embeddings[space][0], models=models)
    rows = merged.embeddings[space]
    known, gaps = base.view(0, space).between(SYMMETRIC), measure_all(rows[count:], rows[:count])
    distances = np.block([[known, gaps.T], [gaps, measure_all(rows[count:], rows[count:])]])
    return replace(merged, distances={space: distances}).view(0, space)


def _add(
    base: MetaTask,
    library: Library | None,
    errors: Sequence[MeasuredError],
    like: Embedding | None,
    *,
    models: Sequence[ModelInfo] = (),
) -> MetaTask:
    """A meta-task, errors of a library on other tasks, and other models beside those that it has errors of.

    Tasks that are not embedded in the space of `like` are left out, unless that is None.
    """
    entries = {} if library is None else {task.fingerprint: task for task in library.tasks()}
    experts = [] if library is None else library.experts()
    measured = {error.expert for error in errors}
    described = [describe_entry(expert, entries) for expert in experts if expert.name in measured]
    infos = {model.name: model for model in base.models}
    known = {model.key: model.name for model in base.models if model.key is not None}
    names: dict[str, str] = {}
    for model in (*described, *models):
        name = (model.key and known.get(model.key)) or find_free_name(model.name, infos, size=model.size)
        names.setdefault(model.name, name)
        infos.setdefault(name, replace(model, name=name))
        known |= {} if model.key is None else {model.key: name}
    old = [task.fingerprint for task in (*base.tasks, *base.source_tasks)]
    has_errors = {error.task for error in errors}.difference(old)
    is_source = {model.source_fingerprint for model in infos.values()}.difference(old)
    embeddings: dict[str, Embedding] = {}
    space = ""
    if like is not None:
        space = f"{like.probe} {find_method(like) or 'robust'}"
        embeddings = dict(zip(old, base.embeddings.get(space, ()), strict=False))
        for key in entries.keys() & (has_errors | is_source):
            embedding = None if library is None else find_embedding(library, entries[key], like)
            embeddings |= {} if embedding is None else {key: embedding}
    added = [task for key, task in entries.items() if key in has_errors and (like is None or key in embeddings)]
    others = [task for key, task in entries.items() if key in (is_source - has_errors) & embeddings.keys()]
    tasks = [*base.tasks, *map(_describe_task, added)]
    sources = [*base.source_tasks, *map(_describe_task, others)]
    seen = {(expert.task or "", expert.name) for expert in experts}
    for run in [] if library is None else library.runs():
        seen |= {(pair[0], pair[1]) for pair in run.details.get(SEEN, ())} if run.what == RUN else set()
    unique = deduplicate_names(task.name for task in tasks)
    rows = [embeddings[task.fingerprint] for task in (*tasks, *sources)] if embeddings else []
    return build_metatask(
        base.name,
        [replace(task, name=name) for task, name in zip(tasks, unique, strict=True)],
        [*infos.values()],
        base.protocols,
        sorted({*base.seeds, *(error.seed for error in errors)}),
        errors=[
            *base.list_errors(),
            *(replace(error, expert=names.get(error.expert, "")) for error in errors if error.task in has_errors),
        ],
        has_seen=base.list_seen() | {(task, names[name]) for task, name in seen if name in names},
        source_tasks=tuple(sources),
        embeddings={space: rows} if rows else {},
    )


# --- parts of a library ----------------------------------------------------------------------------------------------


def _share_protocols(errors: Iterable[MeasuredError]) -> list[MeasuredError]:
    """The errors by protocols that do not name the test images of a task, on one set of them for each task."""
    tests: dict[str, str] = {}
    for error in sorted(errors, key=lambda error: error.measured or ""):
        if error.protocol != hide_test(error.protocol):
            tests[error.task] = error.protocol.rpartition(", ")[2]
    return [
        replace(error, protocol=hide_test(error.protocol))
        for error in errors
        if error.protocol == hide_test(error.protocol) or error.protocol.endswith(tests[error.task])
    ]


def _describe_task(task: TaskEntry) -> TaskInfo:
    return TaskInfo(task.name, "", task.source or task.name, task.fingerprint, task.images, len(task.classes))


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
    spaces: dict[tuple[str, str, str], list[EmbeddingEntry]] = {}
    for entry in (entry for task in tasks for entry in task.embeddings):
        spaces.setdefault((entry.probe, entry.settings.get("method", ""), entry.probe_fingerprint), []).append(entry)
    fit = [entries for name, entries in spaces.items() if probe in (None, name[0]) and method in (None, name[1])]
    if not fit and (probe or method):
        known = "; ".join(dict.fromkeys(f"{name[0]} {name[1]}" for name in spaces)) or "none"
        raise NotInLibraryError(
            f"no task with errors was embedded by the probe '{probe or 'any'}' and the method '{method or 'any'}', so "
            f"no distances are known; they were embedded by: {known}. Embed them: task2vec embed --probe PROBE FOLDER"
        )
    return library.get(max(fit, key=len)[0].key) if fit else None


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
