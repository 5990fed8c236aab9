"""What is known of the task itself moves what is foretold: errors that were measured on it, and its own head.

The head that an embedding was made with is a linear classifier, too, and its cross-validated error tells how hard the
task is. So the heads of all known tasks become one more expert, which nobody can choose, and the asked task one more
row of the evidence, of which only that cell is known, and those that were measured.

Heads miss by more than experts do (they are regularised for the embedding, and judged by the mean over classes), which
the model does not know. Left alone, its intervals held 98 and 92 of 100 errors with half of the images, leaving out
tasks or datasets, but 83 and 82 with 5 per class; widened by a quarter they hold 98, 98, 91 and 92.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from task2vec.embedding import Embedding
from task2vec.select.confirming import Measured
from task2vec.select.evidence import SYMMETRIC, Answer, Evidence, Question
from task2vec.select.knowledge import Knowledge
from task2vec.select.strategies.combined import Combined, Predictor
from task2vec.select.strategies.combined_model import scale_errors, unscale

HEAD = "the probe's own head"
# By which intervals are widened, on the scale of the model: see above.
WIDER = 1.25


@dataclass(frozen=True, eq=False)
class Conditioned:
    """Evidence with the asked task in it, and the question."""

    evidence: Evidence
    question: Question


def predict(knowledge: Knowledge, embedding: Embedding, question: Question, measured: Mapping[str, Measured]) -> Answer:
    """What the combined strategy says of the experts when it knows the asked task's own head and measured errors."""
    heads = np.array([_read_head(one) for one in knowledge.embeddings[: len(knowledge.fingerprints)]])
    own = _read_head(embedding)
    scales = _fit(knowledge).scales
    asked = add_asked(knowledge, question, heads, own, measured)
    answer = Combined(scales=scales).fit(asked.evidence).rank(asked.question)
    assert answer.errors is not None and answer.low is not None and answer.high is not None
    middle = scale_errors(answer.errors)
    low, high = (unscale(middle + WIDER * (scale_errors(end) - middle)) for end in (answer.low, answer.high))
    told = {"badness": answer.badness, "errors": answer.errors, "low": low, "high": high, "chances": answer.chances}
    count = len(knowledge.offers)
    return replace(answer, **{name: None if each is None else each[:count] for name, each in told.items()})


@lru_cache(maxsize=4)
def _fit(knowledge: Knowledge) -> Predictor:
    """The strategy on what is known, without the asked task: its scales are learned once for many questions."""
    heads = np.array([_read_head(one) for one in knowledge.embeddings[: len(knowledge.fingerprints)]])
    return Combined().fit(_add_heads(knowledge.evidence, heads))


def add_asked(
    knowledge: Knowledge, question: Question, heads: np.ndarray, own: float, measured: Mapping[str, Measured]
) -> Conditioned:
    """The evidence with a column of heads and a row for the asked task."""
    evidence = _add_heads(knowledge.evidence, heads)
    names = [offer.name for offer in knowledge.offers]
    splits = max([evidence.errors.shape[2], *(len(one.by_split) for one in measured.values())])
    row = np.full((1, len(evidence.experts), splits), np.nan)
    row[0, -1, 0] = own
    for name, one in measured.items():
        if name in names:
            row[0, names.index(name), : len(one.by_split)] = list(one.by_split.values())
    gap = splits - evidence.errors.shape[2]
    errors = np.concatenate([np.pad(evidence.errors, ((0, 0), (0, 0), (0, gap)), constant_values=np.nan), row])
    near = question.distances[SYMMETRIC]
    apart = np.zeros((len(near) + 1, len(near) + 1))
    apart[:-1, :-1], apart[-1, :-1], apart[:-1, -1] = evidence.distances[SYMMETRIC], near, near
    group = f"asked: {question.name}"
    classes = 1 if question.classes is None else question.classes
    whole = replace(
        evidence,
        tasks=(*evidence.tasks, question.name),
        errors=errors,
        is_candidate=np.concatenate([evidence.is_candidate, np.ones((1, errors.shape[1]), dtype=bool)]),
        groups=(*evidence.groups, group),
        classes=None if evidence.classes is None else np.append(evidence.classes, classes),
        distances={SYMMETRIC: apart},
    )
    is_candidate = np.append(question.is_candidate, False)
    near = np.append(near, 0)
    return Conditioned(
        whole, replace(question, is_candidate=is_candidate, group=group, distances={SYMMETRIC: near}, to_lessons={})
    )


def _add_heads(evidence: Evidence, heads: np.ndarray) -> Evidence:
    """What the combined strategy goes by, with one more expert: the head of each task's embedding."""
    tasks, _, splits = evidence.errors.shape
    column = np.full((tasks, 1, splits), np.nan)
    column[:, 0, 0] = heads  # once: it is not measured on several splits, and tells nothing about their noise
    return Evidence(
        evidence.tasks,
        (*evidence.experts, HEAD),
        np.concatenate([evidence.errors, column], axis=1),
        np.concatenate([evidence.is_candidate, np.ones((tasks, 1), dtype=bool)], axis=1),
        evidence.groups,
        (*evidence.lessons, None),
        (*evidence.lesson_groups, None),
        classes=evidence.classes,
        distances={SYMMETRIC: evidence.distances[SYMMETRIC]},
    )


def _read_head(embedding: Embedding) -> float:
    """The cross-validated error of the head, NaN if it is not told."""
    head = embedding.provenance.get("head")
    error = head.get("cv_error") if isinstance(head, Mapping) else None
    return float(error) if isinstance(error, int | float) and 0 <= error <= 1 else np.nan
