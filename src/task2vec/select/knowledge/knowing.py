"""Where knowledge comes from: a measured meta-task, a library, or both."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np

from task2vec.embedding import Embedding
from task2vec.errors import LibraryError
from task2vec.experts.matrix import arrange
from task2vec.experts.measured import MeasuredMetaTask, bundled_metatask
from task2vec.library import Library, MeasuredError, TaskEntry
from task2vec.select.evidence import SYMMETRIC, Evidence, tell_apart
from task2vec.select.evidence.sources import from_measured
from task2vec.select.evidence.spaces import find_space, is_comparable, list_spaces
from task2vec.select.knowledge import Knowledge, pick
from task2vec.select.knowledge.offers import offer_entry, offer_measured
from task2vec.select.knowledge.regimes import find_training

# Classifier and measure that errors are compared by.
_USUAL = ("logistic", "usual")


def know_measured(measured: MeasuredMetaTask, regime: str, embedding: Embedding) -> Knowledge:
    """What a measured meta-task tells by one way of training, in the space of an embedding."""
    name = find_space(embedding, list_spaces(measured))
    return _know_bundle(regime, name) if measured is bundled_metatask() else _know(measured, regime, name)


@cache
def _know_bundle(regime: str, name: str) -> Knowledge:
    return _know(bundled_metatask(), regime, name)


def _know(measured: MeasuredMetaTask, regime: str, name: str) -> Knowledge:
    probe, _, method = name.rpartition(" ")
    protocol = next(key for key in measured.protocols if find_training(key) == regime)
    experts = [expert for expert in measured.experts if not expert.is_repeat]
    embeddings = tuple(measured.embeddings[name])
    everything = (*measured.tasks, *measured.lessons)[: len(embeddings)]
    rows = {task.fingerprint: row for row, task in enumerate(everything)}
    return Knowledge(
        from_measured(measured, protocol, probe=probe, method=method),
        tuple(offer_measured(expert) for expert in experts),
        tuple(task.fingerprint for task in measured.tasks),
        embeddings,
        np.array([rows.get(expert.lesson_fingerprint or "", -1) for expert in experts], dtype=int),
        protocol,
        f"'{measured.name}'",
    )


def know_library(library: Library, regime: str, embedding: Embedding) -> tuple[Knowledge | None, int]:
    """What a library tells, or None if no error is in it that helps; and how many tasks lie in other spaces."""
    errors = list_errors(library, regime)
    if not errors:
        return None, 0
    entries = {task.fingerprint: task for task in library.tasks()}
    matrix = arrange(library, errors, [errors[0].protocol])
    lying = {own: find_embedding(library, entries[own], embedding) for own in matrix.fingerprints}
    rows = [row for row, own in enumerate(matrix.fingerprints) if lying[own] is not None]
    strangers = len(matrix.fingerprints) - len(rows)
    if not rows:
        return None, strangers
    own = [matrix.fingerprints[row] for row in rows]
    known = {expert.name: expert for expert in library.experts()}
    names = {task.fingerprint: task.name for task in entries.values()}
    offers = tuple(offer_entry(known[name], names) for name in matrix.experts)
    lessons = _find_lessons(library, entries, embedding, {one.lesson_fingerprint for one in offers} - set(own))
    embeddings = (*(one for own_ in own if (one := lying[own_]) is not None), *lessons.values())
    places = {fingerprint: place for place, fingerprint in enumerate([*own, *lessons])}
    where = np.array([places.get(one.lesson_fingerprint or "", -1) for one in offers], dtype=int)
    evidence = _gather(matrix.errors[rows][:, :, 0], ~matrix.is_trivial[rows], [entries[one] for one in own], offers)
    vectors = np.stack([one.vector for one in embeddings])
    knowledge = Knowledge(evidence, offers, tuple(own), embeddings, where, errors[0].protocol, "your library")
    return _place(knowledge, vectors), strangers


def _gather(errors: np.ndarray, is_candidate: np.ndarray, tasks: list[TaskEntry], offers: tuple) -> Evidence:
    return Evidence(
        tell_apart([task.name for task in tasks]),
        tuple(offer.name for offer in offers),
        errors,
        is_candidate,
        tuple(f"library: {task.name}" for task in tasks),
        tuple(offer.lesson for offer in offers),
        tuple(f"library: {offer.lesson}" if offer.lesson else None for offer in offers),
        parameters=np.array([offer.parameters or np.nan for offer in offers], dtype=np.float64),
        images=np.array([task.images for task in tasks]),
        classes=np.array([len(task.classes) for task in tasks]),
    )


def _place(known: Knowledge, vectors: np.ndarray) -> Knowledge:
    """The knowledge with the distances between its tasks, and all that comes from their embeddings."""
    count = len(known.fingerprints)
    apart = np.array([known.measure(one) for one in known.embeddings[:count]])
    table = (apart[:, :count] + apart[:, :count].T) / 2
    np.fill_diagonal(table, 0)
    lessons = np.where(known.places[:, None] < 0, np.nan, vectors[known.places])
    evidence = replace(
        known.evidence,
        distances={SYMMETRIC: table},
        to_lessons={SYMMETRIC: np.array([pick(row, known.places) for row in apart])},
        vectors=vectors[:count],
        lesson_vectors=lessons,
        norms=np.array([one.norm() for one in known.embeddings[:count]]),
    )
    return replace(known, evidence=evidence)


def list_errors(library: Library, regime: str) -> list[MeasuredError]:
    """The errors of a library by one way of training; of several protocols the one that most are of."""
    found = [
        error
        for error in library.errors()
        if find_training(error.protocol) == regime and error.protocol.endswith(", ".join(_USUAL))
    ]
    counts = Counter(error.protocol for error in found)
    return [error for error in found if error.protocol == counts.most_common(1)[0][0]]


def find_embedding(library: Library, task: TaskEntry, like: Embedding) -> Embedding | None:
    """The embedding of a task in the space of another one, if the library has it."""
    for entry in reversed(task.embeddings):
        if entry.probe_fingerprint == like.probe_fingerprint:
            with suppress(LibraryError):  # damaged: `library verify` names it
                found = library.get(entry.key)
                if is_comparable(found, like):
                    return found
    return None


def _find_lessons(
    library: Library, entries: dict[str, TaskEntry], like: Embedding, wanted: set[str | None]
) -> dict[str, Embedding]:
    """Embeddings of what experts were taught, by fingerprint."""
    found = {own: find_embedding(library, entries[own], like) for own in wanted if own is not None and own in entries}
    return {own: one for own, one in found.items() if one is not None}
