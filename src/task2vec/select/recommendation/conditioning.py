"""What is known of the task itself moves what is foretold: errors that were measured on it, and its own head.

The head that an embedding was made with is a linear classifier, too, and its cross-validated error tells how hard the
task is. So the heads of all known tasks become one more expert, which nobody can choose. What the model foretells for
the asked task is then conditioned on the cells of that task that are known: its head, and what was measured, each with
its noise. So a measured error is drawn to what was foretold as far as it is noisy (the best of several noisy ones is
too good), and experts that were not measured move with those that were.

Heads miss by more than experts do (they are regularised for the embedding, and judged by the mean over classes), which
the model does not know; and with 5 images per class more still, for heads are trained on all images. By how much is
learned from the heads of the known tasks, and added to the noise of the asked one's. So intervals need no factor: what
they hold, `python -m benchmarks.recommend` tells.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from task2vec.embedding import Embedding
from task2vec.errors import UndefinedScoreError
from task2vec.select.evidence import SYMMETRIC, Answer, Evidence, Question
from task2vec.select.knowledge import Knowledge
from task2vec.select.recommendation.confirming import Measured
from task2vec.select.strategies import combined
from task2vec.select.strategies.combined import SURE, Combined, Forecast, Predictor
from task2vec.select.strategies.combined_model import Scales, scale_errors
from task2vec.select.strategies.effects import find_comparable, find_errors, take_apart

HEAD = "the probe's own head"
# The smallest gain over the static choice that is worth a word.
LEAST = 0.005
# So many splits of the asked task weigh as much as what is known of others, when the noise of a split is guessed.
_SPLITS = 4
SHIPPED = Path(__file__).parent / "scales.json"


def predict(
    knowledge: Knowledge, embedding: Embedding, question: Question, measured: Mapping[str, Measured]
) -> tuple[Answer, bool]:
    """What the combined strategy says when it knows the task's own head and measured errors; and whether it is sure.

    It is sure where another than the static choice has the smallest error by half a point, and something similar is
    known. Once something was measured on the task itself, the chance that it is better counts instead.
    """
    fitted = fit_heads(knowledge)
    asked = replace(
        question,
        is_candidate=np.append(question.is_candidate, False),
        to_lessons={SYMMETRIC: np.append(question.to_lessons[SYMMETRIC], np.nan)},
    )
    names = [offer.name for offer in knowledge.offers]
    known = {names.index(name): one for name, one in measured.items() if name in names}
    forecast = learn_own(fitted, fitted.forecast(asked), read_head(embedding), known)
    static = find_static(knowledge.evidence, question)  # without heads, which are nobody's choice
    answer = replace(fitted.tell(asked, forecast), static=static, sureness=0.5)
    errors = answer.errors
    assert errors is not None
    # Of whom no error is known, the average is foretold: that is no reason to leave anybody for them.
    is_known = np.isfinite(knowledge.evidence.mean).any(0) | np.isin(np.arange(len(names)), list(known))
    order = Answer(errors).order(np.append(question.is_candidate & is_known, False))
    is_sure = False
    if static is not None and len(order) > 0 and int(order[0]) != static:
        first = int(order[0])
        answer = replace(answer, sureness=(sureness := forecast.compare(first, static)))
        is_sure = sureness >= SURE if known else fitted.is_near(asked)
        is_sure = is_sure and float(errors[static] - errors[first]) >= LEAST
    told = {name: getattr(answer, name) for name in ("errors", "low", "high", "chances")}
    told["badness"] = scale_errors(errors)  # its own order, whoever the static choice is
    return replace(answer, **{name: each[:-1] for name, each in told.items()}), is_sure


def find_static(evidence: Evidence, question: Question) -> int | None:
    """The number of the candidate that is the best on average over the known tasks; None if nothing is known.

    An average over few tasks is luck: a candidate counts if it is known on half as many as the one known on the most.
    """
    try:
        errors = find_errors(evidence)
    except UndefinedScoreError:
        return None
    known = np.isfinite(errors)
    allowed = question.is_candidate & known.any(0) & find_comparable(known, among=question.is_candidate)
    if not allowed.any():
        return None
    counts = known.sum(0)
    allowed &= counts >= counts[allowed].max() / 2
    return int(np.argmin(np.where(allowed, take_apart(errors).experts, np.inf)))


def learn_own(fitted: Predictor, forecast: Forecast, head: float, measured: Mapping[int, Measured]) -> Forecast:
    """The forecast of a task, conditioned on the error of its head and on what was measured, by numbers of experts."""
    noise = guess_noise(fitted.evidence, fitted.cells.noise, list(measured.values()))
    columns, errors = list(measured), [float(np.mean(list(one.by_split.values()))) for one in measured.values()]
    noises = [noise / len(one.by_split) for one in measured.values()]
    if np.isfinite(head):
        columns, errors = [*columns, len(forecast.mean) - 1], [*errors, head]
        noises.append(forecast.noise + find_miss(fitted))
    values = scale_errors(np.array(errors)) - fitted.centre
    return forecast.learn(np.array(columns, dtype=int), values, np.array(noises))


def find_miss(fitted: Predictor) -> float:
    """By which variance heads miss beyond what the model grants: each known one against what all the others tell."""
    solution = fitted.solution
    own = solution.inverses[-1]
    known = np.diag(own) > 0
    if not known.any():
        return 0.0
    both = np.concatenate([own, solution.pulled[-1]], axis=1)
    precision = np.diag(own) - ((both @ solution.spread) * both).sum(1)  # what all experts share is not known either
    left, granted = solution.weights[-1][known] / precision[known], 1 / precision[known]
    return max(0.0, float((left**2 - granted).mean()))


def guess_noise(evidence: Evidence, known: np.ndarray, measured: Sequence[Measured]) -> float:
    """The variance of an error on one split of the asked task, on the scale of the model.

    From how splits of the task differ and, since these are few, from the known tasks that have several (`known` is the
    variance of a mean over the splits of each). Where none has two splits, the interval over test images is all there
    is.
    """
    counts = np.isfinite(evidence.errors[:, :-1]).sum(2)
    splits = counts.sum(1) / np.maximum((counts > 0).sum(1), 1)
    usual = float((known * splits)[known > 0].mean()) if (known > 0).any() else 0.0
    values = [scale_errors(np.array(list(one.by_split.values()))) for one in measured]
    freedom = sum(len(each) - 1 for each in values)
    squares = sum(float(np.square(each - each.mean()).sum()) for each in values)
    if usual > 0:
        return (_SPLITS * usual + squares) / (_SPLITS + freedom)
    if freedom:
        return squares / freedom
    ends = [(scale_errors(np.array(one.low)), scale_errors(np.array(one.high))) for one in measured]
    return float(np.mean([((high - low) / (2 * 1.96)) ** 2 for low, high in ends])) if ends else 0.0


@lru_cache(maxsize=4)
def fit_heads(knowledge: Knowledge) -> Predictor:
    """The combined strategy on what is known and the heads of the known tasks, fitted once for many questions."""
    return Combined(scales=find_scales(knowledge)).fit(add_heads(knowledge))


@lru_cache(maxsize=4)
def find_scales(knowledge: Knowledge) -> Scales:
    """The scales of the model on what is known, without the asked task: learned once for many questions.

    Those of what ships are in a file beside this one, for learning them takes longer than all else. They are taken only
    if neither the evidence nor the model has changed since; `python -m benchmarks.recommend --ship` writes them.
    """
    evidence = add_heads(knowledge)
    told = json.loads(SHIPPED.read_text(encoding="utf-8")) if SHIPPED.is_file() else {}
    kept = told.get(hash_evidence(evidence))
    return Combined().fit(evidence).scales if kept is None else Scales(**kept)


def ship_scales(known: Sequence[Knowledge]) -> None:
    """Writes the scales that `find_scales` will find for each."""
    found = {}
    for evidence in map(add_heads, known):
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


def add_heads(knowledge: Knowledge) -> Evidence:
    """What the combined strategy goes by, with one more expert: the head of each task's embedding."""
    evidence = knowledge.evidence
    tasks, _, splits = evidence.errors.shape
    column = np.full((tasks, 1, splits), np.nan)
    heads = [read_head(one) for one in knowledge.embeddings[: len(knowledge.fingerprints)]]
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


def read_head(embedding: Embedding) -> float:
    """The cross-validated error of the head, NaN if it is not told."""
    head = embedding.provenance.get("head")
    error = head.get("cv_error") if isinstance(head, Mapping) else None
    return float(error) if isinstance(error, int | float) and 0 <= error <= 1 else np.nan
