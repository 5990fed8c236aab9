"""Two bodies of knowledge become one: tasks and experts of both, and all distances between them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from task2vec.distance import symmetric
from task2vec.embedding import Embedding, trivial
from task2vec.select.evidence import SYMMETRIC, Evidence, tell_apart
from task2vec.select.evidence.arrays import _SHAPES as SHAPES
from task2vec.select.knowledge import Knowledge, pick
from task2vec.select.knowledge.offers import Offer


def add_offers(known: Knowledge, new: Sequence[Offer], lessons: Mapping[str, Embedding] | None = None) -> Knowledge:
    """What is known, and experts whose errors nobody knows.

    Args:
        known: what is known.
        new: the experts.
        lessons: embeddings of what they were taught, by fingerprint, where these lie in the same space.
    """
    if not new:
        return known
    prints = dict.fromkeys(offer.lesson_fingerprint for offer in new if offer.lesson_fingerprint in (lessons or {}))
    places = {own: place for place, own in enumerate(prints)}
    nobody = Evidence(
        (),
        tuple(offer.name for offer in new),
        np.empty((0, len(new), 0)),
        np.empty((0, len(new)), dtype=bool),
        (),
        tuple(offer.lesson for offer in new),
        (None,) * len(new),
        parameters=np.array([offer.parameters or np.nan for offer in new], dtype=np.float64),
    )
    taught = tuple((lessons or {})[own] for own in prints if own is not None)
    where = np.array([places.get(offer.lesson_fingerprint, -1) for offer in new], dtype=int)
    return join(known, Knowledge(nobody, tuple(new), (), taught, where, known.protocol, ""))


def join(one: Knowledge, other: Knowledge) -> Knowledge:
    """What both know together. Experts that are the same network at the same size become one, tasks stay apart.

    Errors of the tasks of one on the experts of the other are unknown; distances are measured. Other kinds of distance
    than the symmetric one are told only if `other` has no tasks.
    """
    keys = {offer.key: number for number, offer in enumerate(one.offers) if offer.key is not None}
    columns, new = [], []
    for offer in other.offers:
        known = keys.get(offer.key) if offer.key is not None else None
        columns.append(len(one.offers) + len(new) if known is None else known)
        new += [offer] if known is None else []
    offers = (*one.offers, *_rename(new, {offer.name for offer in one.offers}))
    own, count, total = len(one.fingerprints), len(other.fingerprints), len(one.embeddings)
    # Tasks of both, then lessons of both.
    order = [
        *range(own),
        *range(total, total + count),
        *range(own, total),
        *range(total + count, total + len(other.embeddings)),
    ]
    moved = np.argsort(order)
    places = np.full(len(offers), -1)
    places[: len(one.offers)] = np.where(one.places < 0, -1, moved[one.places])
    for column, place in zip(columns, other.places.tolist(), strict=True):
        places[column] = moved[total + place] if place >= 0 and places[column] < 0 else places[column]
    everything = (*one.embeddings, *other.embeddings)
    parts = [(one.evidence, range(own), range(len(one.offers))), (other.evidence, range(own, own + count), columns)]
    evidence = _assemble(parts, own + count, [offer.name for offer in offers])
    joined = Knowledge(
        evidence,
        offers,
        (*one.fingerprints, *other.fingerprints),
        tuple(everything[number] for number in order),
        places,
        one.protocol,
        " and ".join(filter(None, (one.source, other.source))),
    )
    return replace(joined, evidence=_measure_joined(joined, own=own, columns=len(one.offers)))


def _rename(new: Sequence[Offer], taken: set[str]) -> list[Offer]:
    """The offers under names of their own: another network under the same name is told by its size or its origin."""
    found = []
    for offer in new:
        name, number = offer.name, 2
        if name in taken and offer.size is not None:
            name = f"{offer.name} ({offer.size} px)"
        while name in taken:
            name, number = f"{offer.name} ({number})", number + 1
        taken.add(name)
        found.append(replace(offer, name=name))
    return found


def _assemble(
    parts: Sequence[tuple[Evidence, Sequence[int], Sequence[int]]], tasks: int, experts: Sequence[str]
) -> Evidence:
    """One evidence of several, each with its rows and columns in the whole; unknown cells are NaN."""
    fields: dict[str, Any] = {}
    sizes = {"T": tasks, "E": len(experts)}

    def place(values: Sequence[np.ndarray | None], axes: str) -> np.ndarray | None:
        given = [np.asarray(one) for one in values if one is not None and np.size(one)]
        if not given:
            return None
        kind = bool if given[0].dtype == bool else np.float64
        rest = np.max([one.shape[len(axes) :] for one in given], axis=0).astype(int).tolist()
        whole = np.full([*(sizes[axis] for axis in axes), *rest], True if kind is bool else np.nan, dtype=kind)
        for one, (_, rows, columns) in zip(values, parts, strict=True):
            if one is None or not np.size(one):
                continue
            cuts = np.ix_(
                *({"T": list(rows), "E": list(columns)}[axis] for axis in axes), *map(range, one.shape[len(axes) :])
            )
            known = np.asarray(one)
            whole[cuts] = known if kind is bool else np.where(np.isnan(known), whole[cuts], known)
        return whole

    for name, axes in SHAPES.items():
        values = [getattr(evidence, name) for evidence, _, _ in parts]
        if isinstance(values[0], tuple):
            fields[name] = _place_words(
                values, [rows if axes == "T" else columns for _, rows, columns in parts], sizes[axes]
            )
        elif isinstance(values[0], Mapping):
            kinds = dict.fromkeys(kind for value in values for kind in value)
            placed = {kind: place([value.get(kind) for value in values], axes) for kind in kinds}
            fields[name] = {kind: each for kind, each in placed.items() if each is not None}
        else:
            fields[name] = place(values, axes)
    fields |= {"experts": tuple(experts), "generic": parts[0][0].generic, "tasks": tell_apart(fields["tasks"])}
    if fields["errors"] is None:
        fields["errors"] = np.full((tasks, len(experts), 1), np.nan)
    if fields["is_candidate"] is None:
        fields["is_candidate"] = np.full((tasks, len(experts)), True)
    return Evidence(**fields)


def _place_words(values: Sequence[tuple], places: Sequence[Sequence[int]], size: int) -> tuple:
    whole: list[Any] = [None] * size
    for words, numbers in zip(values, places, strict=True):
        for word, number in zip(words, numbers, strict=True):
            whole[number] = word if whole[number] is None else whole[number]
    return tuple(whole)


def _measure_joined(joined: Knowledge, *, own: int, columns: int) -> Evidence:
    """The evidence of both with all distances between them, and between tasks and lessons."""
    evidence, count = joined.evidence, len(joined.fingerprints)
    is_wider = count > own
    kinds = [kind for kind in evidence.distances if kind == SYMMETRIC or not is_wider]
    apart = {kind: evidence.distances[kind] for kind in kinds}
    to_lessons = {kind: each.copy() for kind, each in evidence.to_lessons.items() if kind in kinds}
    table = np.full((count, count), np.nan) if SYMMETRIC not in apart else apart[SYMMETRIC].copy()
    lessons = to_lessons.get(SYMMETRIC, np.full((count, len(joined.offers)), np.nan))
    for row in range(own if SYMMETRIC in apart else 0, count):
        found = joined.measure(joined.embeddings[row])
        table[row, :], table[:, row] = found[:count], found[:count]
        table[row, row], lessons[row] = 0, pick(found, joined.places)
    simplicity = np.full(len(joined.offers), np.nan) if evidence.simplicity is None else evidence.simplicity.copy()
    for column in np.flatnonzero((joined.places >= 0) & np.isnan(lessons).any(0)).tolist():
        lesson = joined.embeddings[joined.places[column]]
        lessons[:, column] = joined.measure(lesson)[:count]
        simplicity[column] = symmetric(lesson, trivial(lesson))
    return replace(
        evidence,
        distances=apart | {SYMMETRIC: table},
        to_lessons=to_lessons | {SYMMETRIC: lessons},
        simplicity=simplicity,
    )
