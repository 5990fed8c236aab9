"""What is known of a task before any model is measured on it: its images, its embedding, and errors on other tasks."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.embedding import Embedding
from task2vec.errors import (
    DataError,
    NotInLibraryError,
    ProbeMismatchError,
    SettingsMismatchError,
    Task2VecError,
    UndefinedScoreError,
    UsageError,
)
from task2vec.library import Library, MeasuredError, TaskEntry
from task2vec.metatask import (
    SYMMETRIC,
    ModelInfo,
    Query,
    View,
    add_models,
    bundled_metatask,
    choose_shots,
    find_embedding,
    find_space,
    format_space,
    image_size,
    list_library_errors,
    metatask_from_library,
)
from task2vec.metatask.merge import merge
from task2vec.metatask.metatask import RUN, SEEN
from task2vec.select.candidates import Candidate
from task2vec.select.history import PROTOCOL
from task2vec.select.propose import Proposal, match_models, order_candidates
from task2vec.tasks import Task, to_task

NEIGHBOURS = 3
PROPOSALS = "proposals"
# Names and distances of tasks.
Neighbours = tuple[tuple[str, float], ...]
# What is known of a task: its images, its embedding, or what a library has of it.
Given = Task | Embedding | TaskEntry


# --- the task --------------------------------------------------------------------------------------------------------


def find_task(given: Any, library: Library | None, *, measures: bool = True, progress: bool = False) -> Given:
    """The images of a task; or its embedding, if that is what was given, or if no images are needed.

    The name of a task in the library stands for its images where they were read from, unless there is a path of that
    name. If they are gone, what was measured on them before is still in the library, and its entry stands for it.

    Raises:
        DataError: They are not there any more, or others are, and nothing was measured on them.
    """
    if isinstance(given, Task | Embedding):
        return given
    entry = given if isinstance(given, TaskEntry) else None
    if isinstance(given, str) and library is not None and not Path(given).exists():
        with suppress(NotInLibraryError):
            entry = library.task(given)
    if entry is None or library is None:
        return to_task(given, progress=progress)
    known = None if measures else find_embedding(library, entry, choose_space())
    if known is not None:
        return known
    try:
        return _read_entry(entry, progress=progress)
    except DataError:
        if measures and any(error.task == entry.fingerprint for error in library.errors(PROTOCOL)):
            return entry
        raise


def _read_entry(entry: TaskEntry, *, progress: bool) -> Task:
    """The images of a task of a library, if they are still where they were."""
    why, advice = "", f"Name their folder or table instead of '{entry.name}'"
    if not entry.source or not Path(entry.source).exists():
        why = f"were read from '{entry.source}', which does not exist here" if entry.source else "were read from memory"
    else:
        try:
            task = to_task(entry.source, progress=progress)
            if task.fingerprint == entry.fingerprint:
                return replace(task, name=entry.name)
            why = f"are not those that '{entry.source}' has now: images or labels changed, or were chosen by options"
        except Task2VecError as error:
            why = f"cannot be read from '{entry.source}' ({str(error).rstrip('.')})"
    raise DataError(f"the images of '{entry.name}' {why}, so nothing can be measured on them. {advice}.")


def fingerprint_of(given: Given) -> str | None:
    """What identifies the images and labels of a task; None if that is not known."""
    return given.provenance.get("task_fingerprint") if isinstance(given, Embedding) else given.fingerprint


def find_seen(library: Library, fingerprint: str) -> set[str]:
    """Names of the models of a library that have seen images of a task in their training, as error matrices found."""
    pairs = [pair for run in library.runs() if run.what == RUN for pair in run.details.get(SEEN, ())]
    return {str(name) for task, name in pairs if task == fingerprint}


def embed_like(
    task: Task, like: Embedding, library: Library | None, *, device: str | None, progress: bool
) -> Embedding:
    """The embedding of a task in the space of another one: that of the library, or a new one, which it then has."""
    if (known := find_known_embedding(task, like, library)) is not None:
        return known
    from task2vec.embedding import EmbedSettings, embed
    from task2vec.probe import load_probe

    probe = load_probe(like.probe, size=image_size(like))
    if probe.fingerprint != like.probe_fingerprint:
        raise ProbeMismatchError(
            f"errors are known for tasks embedded by {format_space(like)}, and the weights of '{like.probe}' on this "
            "machine are different, so distances would mean nothing. Install the versions that were tested: pip "
            "install -c constraints.txt; or embed the task with the weights that were used."
        )
    made = embed(task, probe, settings=EmbedSettings(), device=device, progress=progress)
    if library is not None and not library.is_read_only:
        library.add(made, source=task.source)
    return made


def find_known_embedding(task: Task, like: Embedding, library: Library | None) -> Embedding | None:
    """The embedding of a task that the library has in the space of another one."""
    entries = [] if library is None else [entry for entry in library.tasks() if entry.fingerprint == task.fingerprint]
    return find_embedding(library, entries[0], like) if library is not None and entries else None


# --- the evidence ----------------------------------------------------------------------------------------------------


def choose_space(embedding: Embedding | None = None) -> Embedding:
    """A bundled embedding in the space of a given one, or in the first that errors are known in."""
    spaces = bundled_metatask().spaces
    return next(iter(spaces.values())) if embedding is None else spaces[find_space(embedding, spaces)]


def gather_evidence(
    library: Library | None, like: Embedding, candidates: Sequence[Candidate], *, task: str | None
) -> View:
    """Errors on tasks other than `task` in the space of an embedding: those of the package and of a library.

    Candidates that were fine-tuned are among its models, with their distances if the library has their source tasks.
    """
    bundle = bundled_metatask()
    name = next(name for name, each in bundle.spaces.items() if each is like)
    probe, _, method = name.rpartition(" ")
    view = replace(bundle, domains={}).select(choose_shots((), bundle.protocols), probe=probe, method=method)
    for errors in _list_errors(library):
        if library is not None and errors:
            known = metatask_from_library(library, errors=errors, like=like)
            view = merge(view, known.select(known.protocols[0])) if known.tasks else view
    known = {model.location for model in view.models}
    experts = [_describe(each) for each in candidates if each.source_fingerprint and each.location not in known]
    view = add_models(view, experts, library, like)
    return view.only([row for row, each in enumerate(view.tasks) if each.fingerprint != task])


def _list_errors(library: Library | None) -> list[list[MeasuredError]]:
    """The errors that recommendations measured, and those of error matrices on other tasks."""
    if library is None:
        return []
    measured = library.errors(PROTOCOL)
    having = {error.task for error in measured}
    return [measured, [error for error in list_library_errors(library, "half") if error.task not in having]]


def _describe(candidate: Candidate) -> ModelInfo:
    return ModelInfo(
        candidate.name,
        "expert",
        source_task=candidate.source_task,
        source_fingerprint=candidate.source_fingerprint,
        location=candidate.location,
        size=candidate.size,
    )


def list_neighbours(view: View, query: Query) -> tuple[tuple[str, float], ...]:
    """Names and distances of the nearest known tasks."""
    distances = query.distances[SYMMETRIC]
    order = np.argsort(distances, kind="stable")[:NEIGHBOURS]
    return tuple((view.tasks[row].name, float(distances[row])) for row in order.tolist() if np.isfinite(distances[row]))


# --- strategies of the paper -----------------------------------------------------------------------------------------


def order_by_strategy(name: str, candidates: Sequence[Candidate], view: View, query: Query) -> tuple[Proposal, ...]:
    """The candidates that the evidence knows, in the order of a strategy of the paper; others come last.

    Raises:
        UsageError: There is no such strategy, it needs the images, or no candidate is known to it.
    """
    from task2vec.select.evaluate import find_strategy

    strategy = find_strategy(name)
    if strategy.uses_scores:
        raise UsageError(
            f"the strategy '{name}' needs the images, and a strategy selects from the embedding alone. Leave it out "
            "to measure models on the images, or choose another one, such as asymmetric."
        )
    columns = match_models(candidates, view, query)
    if not columns:
        raise UsageError(
            f"none of the candidates has known errors or a source task in the library, so '{name}' cannot order them. "
            f"Name others, such as {view.models[0].name}, or leave out the strategy."
        )
    is_candidate = np.zeros(len(view.models), dtype=bool)
    is_candidate[[*columns.values()]] = True
    try:
        ranked = strategy.fit(view)(query).order(is_candidate).tolist()
    except UndefinedScoreError as error:
        raise UsageError(f"the strategy '{name}' cannot be used here: {error}") from error
    by_column = {column: number for number, column in columns.items()}
    places = [by_column[column] for column in ranked]
    known = [
        Proposal(candidates[number].name, f"{name}: {place} of {len(places)}") for place, number in enumerate(places, 1)
    ]
    rest = [each for number, each in enumerate(candidates) if number not in places]
    return (*known, *(Proposal(each.name, f"not known to {name}") for each in rest))


# --- propose ---------------------------------------------------------------------------------------------------------


def propose_models(
    given: Given,
    candidates: Sequence[Candidate],
    library: Library | None,
    *,
    strategy: str | None = None,
    embeds: bool = True,
    device: str | None = None,
    progress: bool = False,
) -> tuple[tuple[Proposal, ...], Neighbours, tuple[str, ...]]:
    """All candidates, the most promising first; the nearest known tasks, if the task is embedded; and notes.

    It is embedded only if that can change the order, and `embeds` allows it; an embedding of the library is used in
    any case.
    """
    if not candidates or isinstance(given, TaskEntry):
        return (), (), ()
    embedding, like, notes = given if isinstance(given, Embedding) else None, choose_space(), ()
    try:
        like = choose_space(embedding)
    except (ProbeMismatchError, SettingsMismatchError) as error:
        if strategy != PROPOSALS:
            raise
        embedding, notes = None, (f"All known tasks count alike, for none is known to be similar: {error}",)
    view = gather_evidence(library, like, candidates, task=fingerprint_of(given))
    if isinstance(given, Task):
        embedding = find_known_embedding(given, like, library)
        can_change = any(each.source_task for each in candidates) or len(match_models(candidates, view, None)) > 1
        if embedding is None and embeds and (can_change or strategy not in (None, PROPOSALS)):
            embedding = embed_like(given, like, library, device=device, progress=progress)
    query = None if embedding is None else view.ask(embedding)
    near = () if query is None else list_neighbours(view, query)
    if strategy in (None, PROPOSALS) or query is None:
        return order_candidates(candidates, view, query), near, notes
    return order_by_strategy(strategy, candidates, view, query), near, notes
