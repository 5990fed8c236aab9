"""What is known about a case becomes a recommendation: experts ranked, a choice, and the words for it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from task2vec.errors import UsageError
from task2vec.select.evidence import SYMMETRIC, Answer
from task2vec.select.evidence.spaces import word_space
from task2vec.select.knowledge.offers import Offer
from task2vec.select.knowledge.regimes import find_training
from task2vec.select.recommendation import Recommendation, Recommended
from task2vec.select.recommendation.conditioning import find_static, predict
from task2vec.select.recommendation.scales import Scales, Weighed
from task2vec.select.recommendation.verdicts import NEIGHBOURS, choose, is_scarce, note, word_reason
from task2vec.select.strategies import find_strategy
from task2vec.text import pluralize

# By which errors are predicted where nobody asks for another way.
COMBINED = "combined"
# By how much lower an error must be predicted for an expert to be worth training.
WORTH = 0.01


def weigh(told: Weighed, strategy: str | None = None, *, is_multilabel: bool = False) -> Recommendation:
    """The recommendation for a task, from what is known."""
    name = strategy or COMBINED
    offers = told.knowledge.offers
    is_loadable = np.array([offer.is_loadable for offer in offers], dtype=bool) & told.is_allowed
    if not is_loadable.any():
        figures = [offer.name for offer, one in zip(offers, told.is_allowed, strict=True) if one]
        raise UsageError(
            f"none of the candidates can be loaded ({', '.join(figures[:3]) or 'there are none'}): their errors are "
            "known, but nobody has their weights. Name models of timm or torchvision, or files of experts: --candidates"
        )
    scales = _weigh(told, name, is_loadable)
    rows = tuple(_tell(told, scales, number, rank) for rank, number in enumerate(scales.order.tolist(), start=1))
    counts = told.embedding.provenance.get("counts", {})
    evidence = told.knowledge.evidence
    near = np.argsort(scales.question.distances[SYMMETRIC], kind="stable")[:NEIGHBOURS].tolist()
    choice, is_sure, verdict = choose(told, scales, rows)
    return Recommendation(
        told.embedding.task,
        choice,
        verdict,
        is_sure,
        "" if scales.static is None else offers[scales.static].name,
        rows,
        _tell_others(told, scales, rows),
        tuple((evidence.tasks[row], float(scales.question.distances[SYMMETRIC][row])) for row in near),
        find_training(told.knowledge.protocol),
        told.knowledge.protocol,
        name,
        word_space(told.embedding),
        f"{pluralize(len(evidence.tasks), 'task')} on {pluralize(_count_known(told), 'expert')}, of {told.knowledge.source}",
        counts.get("images"),
        counts.get("classes"),
        (*told.notes, *note(told, scales, is_multilabel=is_multilabel)),
    )


def _weigh(told: Weighed, name: str, is_loadable: np.ndarray) -> Scales:
    """Predictions, the static choice, and both moved by what was measured on the task itself."""
    evidence, offers = told.knowledge.evidence, told.knowledge.offers
    question = told.knowledge.ask(told.embedding, is_loadable)
    is_conditioned = name == COMBINED and SYMMETRIC in evidence.distances
    static = find_static(evidence, question)
    if is_conditioned:
        answer, is_sure = predict(told.knowledge, told.embedding, question, told.measured)
        is_sure = is_sure and (bool(told.measured) or not is_scarce(told.embedding))
    else:
        answer = find_strategy(name).fit(evidence).rank(question)
        is_sure = answer.abstains is False
    nothing = np.full(len(offers), np.nan)
    errors, low, high = (nothing if one is None else one for one in (answer.errors, answer.low, answer.high))
    shift = 0.0 if is_conditioned else _find_shift(told, errors)
    errors, low, high = (np.clip(one + shift, 0, 1) for one in (errors, low, high))
    is_foretold = np.isfinite(errors).any()
    if told.measured and not is_conditioned:
        errors, low, high = _take_measured(told, errors, low, high)
        answer = replace(answer, chances=None)
    badness = answer.badness.copy()
    if static is not None and is_conditioned and not is_sure:
        badness[static] = np.nanmin(badness[is_loadable]) - 1e-6
    is_tried = np.isfinite(evidence.mean).any(0)
    if told.measured and is_foretold:
        badness = errors.copy()
        is_tried |= np.array([offer.name in told.measured for offer in offers], dtype=bool)
    if (is_tried & is_loadable).any():  # who was never tried is not put before all others
        best = np.nanmin(badness[is_tried & is_loadable])
        badness = np.where(is_tried, badness, np.maximum(badness, best + 1e-9))
    order = _prefer_here(offers, Answer(badness, fallback=answer.fallback), is_loadable)
    return Scales(question, answer, static, is_sure, errors, low, high, shift, is_conditioned, order)


def _prefer_here(offers: Sequence[Offer], answer: Answer, is_loadable: np.ndarray) -> np.ndarray:
    """Numbers of those that can be loaded, the best first; of equals those whose weights are on this machine."""
    places = answer.places()
    return np.array(sorted(answer.order(is_loadable).tolist(), key=lambda one: (places[one], not offers[one].is_here)))


def _take_measured(told: Weighed, *foretold: np.ndarray) -> list[np.ndarray]:
    """Errors and the ends of their intervals as they were measured, where they were.

    For strategies that know no noise: there what was measured is all that can be said.
    """
    found = []
    for name, values in zip(("error", "low", "high"), foretold, strict=True):
        own = [getattr(told.measured.get(offer.name), name, np.nan) for offer in told.knowledge.offers]
        found.append(np.where(np.isnan(own), values, own))
    return found


def _find_shift(told: Weighed, errors: np.ndarray) -> float:
    """How much harder the task is than foretold, by the experts that were measured."""
    gaps = [
        told.measured[offer.name].error - errors[number]
        for number, offer in enumerate(told.knowledge.offers)
        if offer.name in told.measured and np.isfinite(errors[number])
    ]
    return float(np.mean(gaps)) if gaps else 0.0


def _tell(told: Weighed, scales: Scales, number: int, rank: int) -> Recommended:
    """One expert as plain values."""
    offer, evidence = told.knowledge.offers[number], told.knowledge.evidence
    apart = scales.question.distances[SYMMETRIC]
    known = np.isfinite(evidence.mean[:, number]) & evidence.is_candidate[:, number]
    nearest = int(np.argmin(np.where(known, apart, np.inf))) if known.any() else None
    measured = told.measured.get(offer.name)
    chances = scales.answer.chances
    lesson = scales.question.to_lessons[SYMMETRIC][number]
    return Recommended(
        rank,
        offer.name,
        _number(scales.errors[number]),
        _number(scales.low[number]),
        _number(scales.high[number]),
        None if chances is None or not offer.is_loadable else _number(chances[number]),
        None if measured is None else measured.error,
        None if measured is None else measured.low,
        None if measured is None else measured.high,
        0 if measured is None else len(measured.by_split),
        _find_gain(scales, number),
        offer.lesson,
        _number(lesson),
        None if nearest is None else evidence.tasks[nearest],
        None if nearest is None else float(apart[nearest]),
        offer.parameters,
        offer.cost,
        told.seconds.get(offer.name),
        offer.is_here,
        number == scales.static,
        offer.load,
        word_reason(told, scales, number),
    )


def _find_gain(scales: Scales, number: int) -> float | None:
    """How much lower the error is than that of the static choice."""
    return None if scales.static is None else _number(scales.errors[scales.static] - scales.errors[number])


def _tell_others(told: Weighed, scales: Scales, rows: tuple[Recommended, ...]) -> tuple[Recommended, ...]:
    """Experts that nobody has the weights of, and that would be predicted to be better than all that can be loaded.

    What they were taught must be no farther than known tasks mostly are from each other: else it is luck.
    """
    guesses = [row.best_guess for row in rows if row.best_guess is not None]
    if not guesses:
        return ()
    offers = told.knowledge.offers
    is_taught = [offer.location is None and offer.lesson is not None for offer in offers]
    is_other = np.array(is_taught, dtype=bool) & told.is_allowed
    apart = told.knowledge.evidence.distances.get(SYMMETRIC, np.zeros((0, 0)))
    between = apart[~np.eye(len(apart), dtype=bool)]
    lessons = scales.question.to_lessons[SYMMETRIC]
    if np.isfinite(between).any():
        is_other &= ~(lessons > np.nanmedian(between))
    better = np.flatnonzero(is_other & (scales.errors < min(guesses) - WORTH))
    better = better[np.argsort(scales.errors[better], kind="stable")]
    return tuple(_tell(told, scales, number, rank) for rank, number in enumerate(better.tolist(), start=1))


def _count_known(told: Weighed) -> int:
    return int(np.isfinite(told.knowledge.evidence.mean).any(0).sum())


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
