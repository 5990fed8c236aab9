"""What is known of the task itself moves what is foretold: errors that were measured on it, and its own head.

The head that an embedding was made with is a linear classifier, too, and its cross-validated error tells how hard the
task is. So the heads of all known tasks become one more expert, which nobody can choose, and the asked task one more
row of the evidence, of which only that cell is known, and those that were measured.

Heads miss by more than experts do (they are regularised for the embedding, and judged by the mean over classes), which
the model does not know. Left alone, its intervals held too few errors with 5 images per class, so they are widened by a
quarter: chosen by the coverage of every fourth task of the bundle's first edition, not on tasks of their own. What they
hold now, `python -m benchmarks.recommend` says. Once errors were measured on the task, nothing is widened.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from task2vec.embedding import Embedding
from task2vec.select.confirming import Measured
from task2vec.select.evidence import SYMMETRIC, Answer, Evidence, Question
from task2vec.select.knowledge import Knowledge
from task2vec.select.strategies import combined
from task2vec.select.strategies.combined import REACH, SURE, Combined
from task2vec.select.strategies.combined_model import Scales, scale_errors, unscale

HEAD = "the probe's own head"
# By which intervals are widened, on the scale of the model: see above.
WIDER = 1.25
# The smallest gain over the static choice that is worth a word.
LEAST = 0.005
SHIPPED = Path(__file__).parent / "scales.json"


@dataclass(frozen=True, eq=False)
class Conditioned:
    """Evidence with the asked task in it, and the question."""

    evidence: Evidence
    question: Question


def predict(
    knowledge: Knowledge, embedding: Embedding, question: Question, measured: Mapping[str, Measured]
) -> tuple[Answer, bool]:
    """What the combined strategy says when it knows the task's own head and measured errors; and whether it is sure.

    It is sure where another than the static choice has the smallest error by half a point, and either something similar
    is known or the chance that it is better is large enough: the rule of the strategy, which cannot apply it here
    itself, since the asked task's own row is always near.
    """
    heads, own = _read_heads(knowledge), _read_head(embedding)
    scales = find_scales(knowledge)
    asked = add_asked(knowledge, question, heads, own, measured)
    answer = Combined(scales=scales).fit(asked.evidence).rank(asked.question)
    assert answer.errors is not None and answer.low is not None and answer.high is not None
    middle = scale_errors(answer.errors)
    factor = 1.0 if measured else WIDER
    low, high = (unscale(middle + factor * (scale_errors(end) - middle)) for end in (answer.low, answer.high))
    # Of whom no error is known, the average is foretold: that is no reason to leave anybody for them.
    is_known = np.isfinite(knowledge.evidence.mean).any(0)
    order = Answer(answer.errors).order(np.append(question.is_candidate & is_known, False))
    is_sure = answer.static is not None and len(order) > 0 and int(order[0]) != answer.static
    is_sure = is_sure and ((answer.sureness or 0) >= SURE or _is_near(knowledge, question))
    is_sure = is_sure and float(answer.errors[answer.static or 0] - answer.errors[order[0]]) >= LEAST
    told = {"badness": middle, "errors": answer.errors, "low": low, "high": high, "chances": answer.chances}
    count = len(knowledge.offers)
    return replace(answer, **{name: None if each is None else each[:count] for name, each in told.items()}), is_sure


def _is_near(knowledge: Knowledge, question: Question) -> bool:
    """Whether something similar is known: a task no farther than known tasks mostly are from their nearest."""
    apart = knowledge.evidence.distances[SYMMETRIC]
    if len(apart) < 2:
        return False
    nearest = np.nanmin(apart + np.where(np.eye(len(apart), dtype=bool), np.inf, 0), axis=1)
    return bool(np.nanmin(question.distances[SYMMETRIC]) <= REACH * np.median(nearest))


@lru_cache(maxsize=4)
def find_scales(knowledge: Knowledge) -> Scales:
    """The scales of the model on what is known, without the asked task: learned once for many questions.

    Those of what ships are in a file beside this one, for learning them takes longer than all else. They are taken only
    if neither the evidence nor the model has changed since; `python -m benchmarks.recommend --ship` writes them.
    """
    evidence = _add_heads(knowledge.evidence, _read_heads(knowledge))
    told = json.loads(SHIPPED.read_text(encoding="utf-8")) if SHIPPED.is_file() else {}
    kept = told.get(hash_evidence(evidence))
    return Combined().fit(evidence).scales if kept is None else Scales(**kept)


def ship_scales(known: Sequence[Knowledge]) -> None:
    """Writes the scales that `find_scales` will find for each."""
    found = {}
    for one in known:
        evidence = _add_heads(one.evidence, _read_heads(one))
        found[hash_evidence(evidence)] = asdict(Combined().fit(evidence).scales)
    SHIPPED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def hash_evidence(evidence: Evidence) -> str:
    """SHA-256 of all that scales are learned from, and of the model itself."""
    digest = hashlib.sha256()
    for file in sorted(Path(combined.__file__ or "").parent.glob("combined*.py")):
        digest.update(file.read_bytes())
    classes = np.zeros(0) if evidence.classes is None else evidence.classes
    apart, lessons = evidence.distances[SYMMETRIC], evidence.to_lessons[SYMMETRIC]
    for values in (evidence.errors, evidence.is_candidate, apart, lessons, classes):
        digest.update(np.ascontiguousarray(values, dtype=np.float64).round(9).tobytes())
    digest.update("\n".join(evidence.groups).encode())
    return digest.hexdigest()


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
    lessons = np.append(question.to_lessons[SYMMETRIC], np.nan)
    group = f"asked: {question.name}"
    classes = _guess_classes(evidence) if question.classes is None else question.classes
    whole = replace(
        evidence,
        tasks=(*evidence.tasks, question.name),
        errors=errors,
        is_candidate=np.concatenate([evidence.is_candidate, np.ones((1, errors.shape[1]), dtype=bool)]),
        groups=(*evidence.groups, group),
        classes=None if evidence.classes is None else np.append(evidence.classes, classes),
        distances={SYMMETRIC: apart},
        to_lessons={SYMMETRIC: np.vstack([evidence.to_lessons[SYMMETRIC], lessons])},
    )
    asked = replace(
        question,
        is_candidate=np.append(question.is_candidate, False),
        group=group,
        distances={SYMMETRIC: np.append(near, 0)},
        to_lessons={SYMMETRIC: lessons},
    )
    return Conditioned(whole, asked)


def _guess_classes(evidence: Evidence) -> float:
    """The mean of the known tasks in logarithms: what the strategy itself takes where it is not told."""
    return 1.0 if evidence.classes is None else float(np.exp(np.log(np.maximum(evidence.classes, 1)).mean()))


def _add_heads(evidence: Evidence, heads: np.ndarray) -> Evidence:
    """What the combined strategy goes by, with one more expert: the head of each task's embedding."""
    tasks, _, splits = evidence.errors.shape
    column = np.full((tasks, 1, splits), np.nan)
    column[:, 0, 0] = heads  # once: it is not measured on several splits, and tells nothing about their noise
    unknown = np.full((tasks, len(evidence.experts)), np.nan)
    lessons = np.hstack([evidence.to_lessons.get(SYMMETRIC, unknown), np.full((tasks, 1), np.nan)])
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
        to_lessons={SYMMETRIC: lessons},
    )


def _read_heads(knowledge: Knowledge) -> np.ndarray:
    """(T) cross-validated errors of the heads of the known tasks."""
    return np.array([_read_head(one) for one in knowledge.embeddings[: len(knowledge.fingerprints)]])


def _read_head(embedding: Embedding) -> float:
    """The cross-validated error of the head, NaN if it is not told."""
    head = embedding.provenance.get("head")
    error = head.get("cv_error") if isinstance(head, Mapping) else None
    return float(error) if isinstance(error, int | float) and 0 <= error <= 1 else np.nan
