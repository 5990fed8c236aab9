"""A meta-task by one protocol and in one embedding space: what strategies are fitted on, and what they are asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from task2vec.embedding import Embedding, trivial
from task2vec.metatask.table import Table, array_field, average_known

# Kinds of distance between tasks that strategies know.
SYMMETRIC, DOMAIN = "symmetric", "domain"


@dataclass(frozen=True, eq=False)
class Query:
    """A task that a model is to be selected for. It holds none of its errors.

    Attributes:
        name: name of the task.
        is_candidate: (M) which models may be selected.
        dataset: its dataset, if known.
        distances: (T) from the known tasks, by kind.
        to_sources: (M) from the models' source tasks, by kind.
        vector: (F) its embedding.
    """

    name: str
    is_candidate: np.ndarray
    dataset: str | None = None
    distances: Mapping[str, np.ndarray] = field(default_factory=dict)
    to_sources: Mapping[str, np.ndarray] = field(default_factory=dict)
    vector: np.ndarray | None = None


@dataclass(frozen=True, eq=False, repr=False)
class View(Table):
    """Errors by one protocol and distances in one space; NaN stands for what was not measured.

    Attributes:
        protocol: the key of the protocol.
        seeds: of the splits.
        errors: (T, M, S) test errors.
        halves: (T, M, S, 2) errors on two disjoint halves of the test images, the same for all models and seeds: a
            model can be selected on one and measured on the other.
        distances: (N, N) by kind: "symmetric", "domain".
        space: probe and method of the embeddings ("resnet34 robust"); empty without any.
        embeddings: (N) in that space, of all images, test images included; empty if not all are known.
        vectors: (N, F) of these.
        trivial_vectors: (N, F) trivial embeddings beside them.
        trivial_distances: (N) symmetric distances from their own trivial embeddings.
        norms: (N) L1 norms of the Fisher.
    """

    protocol: str
    seeds: tuple[int, ...]
    errors: np.ndarray = field(metadata=array_field("TMS"))
    halves: np.ndarray | None = field(default=None, metadata=array_field("TMSH"))
    space: str = ""
    embeddings: Sequence[Embedding] = field(default=(), metadata=array_field("N"))
    vectors: np.ndarray | None = field(default=None, metadata=array_field("NF"))
    trivial_vectors: np.ndarray | None = field(default=None, metadata=array_field("NF"))
    trivial_distances: np.ndarray | None = field(default=None, metadata=array_field("N"))
    norms: np.ndarray | None = field(default=None, metadata=array_field("N"))

    def __repr__(self) -> str:
        """The view in one line."""
        shape = f"{len(self.tasks)} tasks, {len(self.models)} models, {len(self.seeds)} seeds"
        return f"View({self.name}, {shape}{f', {self.space}' if self.space else ''})"

    @cached_property
    def mean(self) -> np.ndarray:
        """(T, M) errors, averaged over the seeds that were measured; NaN where none was."""
        return average_known(self.errors, 2)

    def query(self, row: int, *, known: Sequence[int] | np.ndarray | None = None) -> Query:
        """One of the tasks without its errors, as strategies are asked that were fitted on the tasks `known`."""
        known = np.arange(len(self.tasks)) if known is None else np.asarray(known, dtype=int)
        return Query(
            self.tasks[row].name,
            self.is_candidate[row],
            dataset=self.tasks[row].dataset,
            distances={kind: matrix[row, known] for kind, matrix in self.distances.items()},
            to_sources={kind: self.pick_sources(matrix[row]) for kind, matrix in self.distances.items()},
            vector=None if self.vectors is None else self.vectors[row],
        )

    def ask(self, embedding: Embedding) -> Query:
        """A new task, by its embedding in the space of the view."""
        distances = measure_all([embedding], self.embeddings)[0]
        distances = distances if len(distances) else np.full(len(self.tasks) + len(self.source_tasks), np.nan)
        return Query(
            embedding.task,
            np.ones(len(self.models), dtype=bool),
            distances={SYMMETRIC: distances[: len(self.tasks)]},
            to_sources={SYMMETRIC: self.pick_sources(distances)},
            vector=embedding.vector,
        )


def measure_all(rows: Sequence[Embedding], columns: Sequence[Embedding]) -> np.ndarray:
    """(rows, columns) symmetric distances, without torch; symmetric and 0 on the diagonal where both are the same."""
    from task2vec.distance import make_row, symmetric, symmetric_to_rows

    distances = np.empty((len(rows), len(columns)))
    known = [make_row(embedding) for embedding in columns]
    is_stackable = all(row is not None for row in known)  # none is beyond float32
    stacked = np.array(known) if is_stackable else np.empty(0)
    for number, embedding in enumerate(rows):
        row = make_row(embedding)
        if row is None or not is_stackable:
            distances[number] = [symmetric(embedding, column) for column in columns]
        elif len(columns):
            distances[number] = symmetric_to_rows(row, stacked)
    if rows is columns:
        distances = (distances + distances.T) / 2
        np.fill_diagonal(distances, 0)
    return distances


def measure_rows(embeddings: Sequence[Embedding]) -> dict[str, Any]:
    """What a view has of embeddings in one space but distances between them, as fields; nothing if there are none."""
    from task2vec.distance import symmetric

    if not len(embeddings):
        return {}
    fishers = np.stack([embedding.fisher for embedding in embeddings])
    priors = np.stack([embedding.prior for embedding in embeddings])
    return {
        "embeddings": embeddings,
        "vectors": np.add(fishers, priors, out=fishers),
        "trivial_vectors": priors,
        "trivial_distances": np.array([symmetric(embedding, trivial(embedding)) for embedding in embeddings]),
        "norms": np.array([embedding.norm() for embedding in embeddings]),
    }
