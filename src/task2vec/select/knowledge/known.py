"""What is known when a task comes in: errors of experts on other tasks, where these lie, and how to get the experts."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from task2vec.distance import symmetric, symmetric_to_rows
from task2vec.embedding import Embedding
from task2vec.library.search import make_row
from task2vec.select.evidence import SYMMETRIC, Evidence, Question
from task2vec.select.knowledge.offers import Offer


@dataclass(frozen=True, eq=False)
class Knowledge:
    """Evidence, and what its tasks and experts are.

    Attributes:
        evidence: errors and distances.
        offers: the experts, in the order of the evidence.
        fingerprints: of the tasks.
        embeddings: of the tasks, then of lessons, all of one space.
        places: (experts) where the embedding of each one's lesson stands, -1 where it is not known.
        protocol: how the errors were measured.
        source: where all this comes from, in words.
    """

    evidence: Evidence
    offers: tuple[Offer, ...]
    fingerprints: tuple[str, ...]
    embeddings: tuple[Embedding, ...]
    places: np.ndarray
    protocol: str
    source: str

    @cached_property
    def rows(self) -> np.ndarray | None:
        """All embeddings as rows in single precision, if they fit into it."""
        rows = [make_row(one) for one in self.embeddings]
        found = [row for row in rows if row is not None]
        return np.stack(found) if found and len(found) == len(rows) else None

    def measure(self, embedding: Embedding) -> np.ndarray:
        """The symmetric distances of an embedding from those of tasks and lessons."""
        row = make_row(embedding)
        if row is None or self.rows is None:
            return np.array([symmetric(embedding, other) for other in self.embeddings])
        return symmetric_to_rows(row, self.rows)

    def ask(self, embedding: Embedding, is_candidate: np.ndarray) -> Question:
        """The question which expert suits the task of an embedding."""
        found, count = self.measure(embedding), len(self.evidence.tasks)
        counts = embedding.provenance.get("counts", {})
        return Question(
            embedding.task,
            is_candidate,
            distances={SYMMETRIC: found[:count]},
            to_lessons={SYMMETRIC: pick(found, self.places)},
            vector=embedding.vector,
            norm=embedding.norm(),
            images=counts.get("images"),
            classes=counts.get("classes"),
        )

    def without(self, fingerprint: str | None) -> "Knowledge":
        """What is known without the errors of a task; its embedding stays, for an expert may have been taught it."""
        rows = [row for row, own in enumerate(self.fingerprints) if own != fingerprint]
        count = len(self.fingerprints)
        if len(rows) == count:
            return self
        order = [*rows, *range(count, len(self.embeddings)), *sorted(set(range(count)) - set(rows))]
        return replace(
            self,
            evidence=self.evidence.only(rows),
            fingerprints=tuple(self.fingerprints[row] for row in rows),
            embeddings=tuple(self.embeddings[row] for row in order),
            places=np.where(self.places < 0, -1, np.argsort(order)[self.places]),
        )


def pick(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Values at places; NaN for the place -1."""
    return np.where(places < 0, np.nan, values[places]) if len(values) else np.full(len(places), np.nan)
