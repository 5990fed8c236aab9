"""Evidence becomes the cells of the combined model: errors on its scale, distances, drifts, and the noise of seeds."""

from dataclasses import dataclass

import numpy as np

from task2vec.select.evidence import Evidence, Question
from task2vec.select.strategies.combined_model import Cells, scale_errors

# Scores farther from the mean than so many standard deviations count as this far.
_STEEPEST = 4.0


@dataclass(frozen=True)
class Means:
    """What is measured about experts and a task beside errors.

    Attributes:
        kind: of the distance between tasks, and from a task to what an expert was taught.
        score: name of a transferability score; None does without.
        lessons: whether nearness to what an expert was taught counts.
        near_lesson: the distance that counts as near.
    """

    kind: str
    score: str | None
    lessons: bool
    near_lesson: float

    def measure(self, question: Question) -> list[np.ndarray]:
        """(E) each of the score and the nearness of lessons, as far as they count."""
        unknown = np.full(len(question.is_candidate), np.nan)
        measured = []
        if self.score:
            measured.append(standardise(question.scores.get(self.score, unknown), question.is_candidate))
        if self.lessons:
            distances = question.to_lessons.get(self.kind, unknown)
            measured.append(np.where(np.isnan(distances), 0, np.exp(-np.maximum(distances, 0) / self.near_lesson)))
        return measured

    def read_distances(self, question: Question, tasks: int) -> np.ndarray:
        """(T) from the known tasks; infinite where not known."""
        distances = question.distances.get(self.kind)
        if distances is None:
            return np.full(tasks, np.inf)
        return np.where(np.isnan(distances), np.inf, np.maximum(distances, 0))


def find_means(evidence: Evidence, kind: str, score: str | None, *, lessons: bool) -> Means:
    """The means; near a lesson is what is nearer than half of the median distance."""
    table = evidence.to_lessons.get(kind)
    finite = np.zeros(0) if table is None else table[np.isfinite(table) & (table > 0)]
    return Means(kind, score, lessons, 0.5 * float(np.median(finite)) if len(finite) else 1.0)


def gather(evidence: Evidence, means: Means) -> tuple[Cells, float, float]:
    """Cells of the evidence, their mean value, and the mean logarithm of the numbers of classes."""
    errors = evidence.mean
    known = np.isfinite(errors)
    values = scale_errors(np.where(known, errors, 0.5))
    centre = float(values[known].mean())
    counts = np.ones(len(errors)) if evidence.classes is None else np.maximum(evidence.classes, 1)
    classes = float(np.log(counts).mean())
    distances = evidence.distances.get(means.kind)
    distances = np.full((len(errors),) * 2, np.inf) if distances is None else np.array(distances, dtype=np.float64)
    distances = np.where(np.isnan(distances), np.inf, (distances + distances.T) / 2)
    np.fill_diagonal(distances, 0)
    seen = ~evidence.is_candidate & known
    measured = [means.measure(evidence.ask(row)) for row in range(len(errors))]
    drifts = np.stack([np.stack([has_seen, *each], axis=1) for has_seen, each in zip(seen, measured, strict=True)])
    cells = Cells(
        values - centre,
        known,
        seen,
        find_noise(evidence),
        np.maximum(distances, 0),
        np.log(counts) - classes,
        np.unique(evidence.groups, return_inverse=True)[1],
        drifts.transpose(1, 0, 2).astype(np.float64),
    )
    return cells, centre, classes


def find_noise(evidence: Evidence) -> np.ndarray:
    """(T) variance of a mean over seeds, on the model's scale; zero where there is one seed: then the rest holds it."""
    values = scale_errors(evidence.errors)
    counts = np.isfinite(values).sum(2)
    centred = values - np.nanmean(np.where(counts[:, :, None] > 0, values, 0), axis=2, keepdims=True)
    squares = np.where(np.isfinite(centred), centred, 0) ** 2
    usable = counts > 1
    freedom = np.where(usable, counts - 1, 0).sum(1)
    variance = np.where(usable[:, :, None], squares, 0).sum((1, 2)) / np.maximum(freedom, 1)
    seeds = np.where(usable, counts, 0).sum(1) / np.maximum(usable.sum(1), 1)
    return variance / np.maximum(seeds, 1)


def standardise(scores: np.ndarray, is_candidate: np.ndarray) -> np.ndarray:
    """Scores of one task over its candidates, in standard deviations; 0 for experts without one."""
    finite = scores[np.isfinite(scores) & is_candidate]
    if len(finite) < 2 or finite.std() == 0:
        return np.zeros(len(scores))
    ranked = (scores - finite.mean()) / finite.std()
    return np.where(np.isfinite(ranked), np.clip(ranked, -_STEEPEST, _STEEPEST), 0)
