"""What is known of a task before any model is measured on it: its images, its embedding, and errors on other tasks."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.distance import check_comparable
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
from task2vec.library import Library, TaskEntry
from task2vec.metatask import (
    SYMMETRIC,
    Query,
    View,
    bundled_metatask,
    find_protocol,
    image_size,
    is_comparable,
    list_library_errors,
)
from task2vec.metatask.merge import add_library, find_embedding
from task2vec.metatask.metatask import RUN, SEEN
from task2vec.select.candidates import Candidate
from task2vec.select.history import PROTOCOL
from task2vec.select.propose import Proposal, match_models, order_candidates
from task2vec.tasks import Task, to_task

# So many nearest tasks are named.
NEIGHBOURS = 3
PROPOSALS = "proposals"


# --- the task --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KnownTask:
    """A task that a model is to be recommended for, with what is at hand of it.

    Attributes:
        name: of the task.
        fingerprint: what identifies its images and labels; None if that is not known.
        images: how many.
        classes: how many.
        data: its images and labels; None if there is only its embedding, or its entry in a library.
        embedding: its embedding, if it was given instead of images.
    """

    name: str
    fingerprint: str | None
    images: int | None
    classes: int | None
    data: Task | None = None
    embedding: Embedding | None = None


def find_task(given: Any, library: Library | None, *, measures: bool = True, progress: bool = False) -> KnownTask:
    """The task that is given by its images, its embedding, or its name in a library.

    The name of a task in the library stands for its images where they were read from, unless there is a path of that
    name; if no images are needed, for its embedding. If the images are gone, what was measured on them before is still
    in the library.

    Raises:
        DataError: They are not there any more, or others are, and nothing was measured on them.
    """
    entry = given if isinstance(given, TaskEntry) else None
    if isinstance(given, str) and library is not None and not Path(given).exists():
        with suppress(NotInLibraryError):
            entry = library.task(given)
    if entry is not None and library is not None:
        like = next(iter(bundled_metatask().spaces.values()))
        embedding = None if measures else find_embedding(library, entry, like)
        try:
            given = _read_entry(entry, progress=progress) if embedding is None else embedding
        except DataError:
            if not measures or all(error.task != entry.fingerprint for error in library.errors(PROTOCOL)):
                raise
            return KnownTask(entry.name, entry.fingerprint, entry.images, len(entry.classes))
    if isinstance(given, Embedding):
        counts = given.provenance.get("counts") or {}
        about = (given.provenance.get("task_fingerprint"), counts.get("images"), counts.get("classes"))
        return KnownTask(given.task, *about, embedding=given)
    task = to_task(given, progress=progress)
    return KnownTask(task.name, task.fingerprint, len(task), len(task.classes), data=task)


def _read_entry(entry: TaskEntry, *, progress: bool) -> Task:
    """The images of a task of a library, if they are still where they were."""
    reason = "no such folder or file is here"
    if entry.source and Path(entry.source).exists():
        try:
            task = to_task(entry.source, progress=progress)
            if task.fingerprint == entry.fingerprint:
                return replace(task, name=entry.name)
            reason = "its images or labels changed, or were chosen by options"
        except Task2VecError as error:
            reason = str(error).rstrip(".")
    raise DataError(
        f"the images of '{entry.name}' cannot be read from '{entry.source or 'memory'}' ({reason}), so nothing can be "
        f"measured on them. Name their folder or table instead of '{entry.name}'."
    )


def find_seen(task: KnownTask, candidates: Sequence[Candidate], library: Library | None) -> list[str]:
    """Names of the candidates that were trained on the task, or on its images, as error matrices found."""
    runs = [] if library is None else library.runs()
    pairs = [pair for run in runs if run.what == RUN for pair in run.details.get(SEEN, ())]
    names = {str(name) for fingerprint, name in pairs if fingerprint == task.fingerprint}
    is_source = {model.name for model in candidates if model.source_fingerprint == task.fingerprint is not None}
    return [model.name for model in candidates if model.name in names | is_source]


def embed_like(
    task: Task, like: Embedding, library: Library | None, *, device: str | None, progress: bool
) -> Embedding:
    """A new embedding of a task in the space of another one, which the library then has, too."""
    from task2vec.embedding import EmbedSettings, embed
    from task2vec.probe import load_probe

    probe = load_probe(like.probe, size=image_size(like))
    embedding = embed(task, probe, settings=EmbedSettings(), device=device, progress=progress)
    check_comparable(like, embedding)  # the weights on this machine may be others
    if library is not None and not library.is_read_only:
        library.add(embedding, source=task.source)
    return embedding


# --- the evidence ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """Errors on other tasks, and how far the task is from them.

    Attributes:
        view: the errors that are known.
        query: the task, if it is embedded.
        notes: what else is to be known, a sentence each.
    """

    view: View
    query: Query | None = None
    notes: tuple[str, ...] = ()

    @property
    def neighbours(self) -> tuple[tuple[str, float], ...]:
        """Names and distances of the nearest known tasks."""
        if self.query is None:
            return ()
        distances = self.query.distances[SYMMETRIC]
        nearest = np.argsort(distances, kind="stable")[:NEIGHBOURS].tolist()
        return tuple(
            (self.view.tasks[row].name, float(distances[row])) for row in nearest if np.isfinite(distances[row])
        )

    def order(self, candidates: Sequence[Candidate], strategy: str = PROPOSALS) -> tuple[Proposal, ...]:
        """All candidates, the most promising first."""
        if strategy == PROPOSALS or self.query is None:
            return order_candidates(candidates, self.view, self.query)
        return order_by_strategy(strategy, candidates, self.view, self.query)


def gather_evidence(
    task: KnownTask,
    candidates: Sequence[Candidate],
    library: Library | None,
    *,
    strategy: str = PROPOSALS,
    embeds: bool = True,
    device: str | None = None,
    progress: bool = False,
) -> Evidence:
    """What is known of other tasks, and the distances from them.

    The task is embedded only if that can change the order of the candidates, and `embeds` allows it; an embedding of
    the library is used in any case.
    """
    spaces = bundled_metatask().spaces
    space, embedding, notes = next(iter(spaces)), task.embedding, ()
    if embedding is not None:
        space = next((name for name, example in spaces.items() if is_comparable(embedding, example)), space)
        try:
            check_comparable(spaces[space], embedding)
        except (ProbeMismatchError, SettingsMismatchError) as error:
            if strategy != PROPOSALS:
                raise
            embedding, notes = None, (f"All known tasks count alike, for none is known to be similar: {error}",)
    view = find_errors(library, space, candidates)
    view = view.only([row for row, known in enumerate(view.tasks) if known.fingerprint != task.fingerprint])
    if task.data is not None:
        entries = [] if library is None else library.tasks()
        for entry in entries:
            if library is not None and entry.fingerprint == task.fingerprint:
                embedding = find_embedding(library, entry, spaces[space])
        can_change = any(model.source_task for model in candidates) or len(match_models(candidates, view, None)) > 1
        if embedding is None and embeds and (can_change or strategy != PROPOSALS):
            embedding = embed_like(task.data, spaces[space], library, device=device, progress=progress)
    return Evidence(view, None if embedding is None else view.ask(embedding), notes)


def find_errors(library: Library | None, space: str, candidates: Sequence[Candidate]) -> View:
    """The errors of the package and of a library, with distances in one of the spaces of the package.

    Of a library these are the errors that recommendations measured, and on other tasks those of error matrices.
    Candidates that were fine-tuned are among the models, with their distances if the library has their source tasks.
    """
    bundle = replace(bundled_metatask(), domains={})
    probe, _, method = space.rpartition(" ")
    errors, known = [], set()
    if library is not None:
        errors = library.errors(PROTOCOL)
        measured = {error.task for error in errors}
        errors += [error for error in list_library_errors(library, "half") if error.task not in measured]
        known = {expert.location for expert in library.experts() if expert.name in {error.expert for error in errors}}
    experts = [model for model in candidates if model.source_fingerprint and model.location not in known]
    if not errors and not experts:
        return bundle.select(probe=probe, method=method)
    protocol = bundle.protocols[find_protocol(bundle.protocols, None, of="the bundle")]
    return add_library(bundle, library, errors, protocol=protocol, space=space, models=experts)


def order_by_strategy(name: str, candidates: Sequence[Candidate], view: View, query: Query) -> tuple[Proposal, ...]:
    """The candidates that the evidence knows, in the order of a strategy of the paper; others come last.

    Raises:
        UsageError: There is no such strategy, it cannot be fitted here, or no candidate is known to it.
    """
    from task2vec.select.evaluate import find_strategy

    strategy = find_strategy(name)
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
    numbers = [by_column[column] for column in ranked]
    known = [
        Proposal(candidates[number].name, f"{name}: {rank} of {len(numbers)}") for rank, number in enumerate(numbers, 1)
    ]
    unknown = [candidate for number, candidate in enumerate(candidates) if number not in numbers]
    return (*known, *(Proposal(candidate.name, f"not known to {name}") for candidate in unknown))
