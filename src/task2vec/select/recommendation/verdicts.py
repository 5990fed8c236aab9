"""What is said of a recommendation: whom to choose and why, and what to know before believing it."""

from collections.abc import Sequence

import numpy as np

from task2vec.embedding import Embedding
from task2vec.select.evidence import SYMMETRIC
from task2vec.select.knowledge.offers import MEASURED_SIZE
from task2vec.select.knowledge.regimes import find_training
from task2vec.select.recommendation import Recommended
from task2vec.select.recommendation.scales import Scales, Weighed
from task2vec.text import pluralize

# Known tasks that are named as neighbours, and that a reason is taken from.
NEIGHBOURS = 5
MORE = "more errors"
# With fewer images of its median class, a task tells too little of itself to leave the static choice for.
FEWEST = 3


def choose(told: Weighed, scales: Scales, rows: tuple[Recommended, ...]) -> tuple[str, bool, str]:
    """The expert to start from, whether there is reason to leave the static choice, and that in words."""
    first = rows[0]
    measured = [row for row in rows if row.measured is not None]
    if measured:
        return _choose_measured(told, scales, measured, rows)
    static = next((row for row in rows if row.is_static), None)
    if static is None:
        words = (
            f"No error of any candidate is known, so nothing speaks for one of them: {first.expert} is only the first. "
            "Measure them on your images: --confirm K."
        )
        return first.expert, False, words
    if len(rows) == 1:
        words = f"{first.expert} is the only candidate, so there is nothing to choose:{_expect(first)}"
        return first.expert, False, words
    if scales.is_sure:
        assert first.gain is not None
        sureness = scales.answer.sureness
        chance = "" if sureness is None else f" (better with a chance of {100 * sureness:.0f} %)"
        words = (
            f"Start from {first.expert}:{_expect(first)} That is {_points(first.gain)} fewer than {static.expert}, "
            f"the static choice, would leave{chance}. {_hedge(first.why)}"
        )
        return first.expert, True, words
    tasks = pluralize(len(told.knowledge.evidence.tasks), "known task")
    is_cut = len(rows) < sum(offer.is_loadable for offer in told.knowledge.offers)
    best = "the best of these candidates" if is_cut else "the best"
    reason = f"Start from {static.expert}, {best} on average over {tasks}:{_expect(static)}"
    ahead = max(rows, key=lambda row: -1 if row.gain is None else row.gain)
    if ahead.gain is None or ahead.gain <= 0:
        return static.expert, False, f"{reason} The evidence about this task speaks for no other."
    words = f"{reason} The evidence does not beat this static choice ({ahead.expert} is predicted to be "
    words += f"{_points(ahead.gain)} better)."
    return static.expert, False, words


def _choose_measured(
    told: Weighed, scales: Scales, measured: list[Recommended], rows: tuple[Recommended, ...]
) -> tuple[str, bool, str]:
    """The same where errors on the task itself are known: these move what is expected of all."""
    first, best = rows[0], min(measured, key=lambda row: row.measured or 0)
    static = next((row for row in rows if row.is_static), None)
    count = "the only one that was" if len(measured) == 1 else f"the best of {len(measured)} that were"
    words = f"Start from {first.expert}:{_expect(first)}"
    if first is best:
        words = f"Start from {best.expert}: measured on your images it leaves {_span(best)}, {count} measured."
        if first.error is not None and first.error != first.measured:
            words += f" With all else that is known, expect {_percent(first.error)}{_ends(first)}."
    else:
        words += "" if first.measured is None else f" Measured on your images it leaves {_span(first)}."
        words += f" {best.expert}, {count} measured on your images, leaves {_span(best)}."
    if static is None or static is first or static.best_guess is None:
        return first.expert, False, words
    chance = scales.answer.sureness if scales.knows_measured else None
    better = "" if chance is None else f" ({first.expert} is better with a chance of {100 * chance:.0f} %)"
    if static.measured is None or first.measured is None:
        words += f" The static choice, {static.expert}, is expected to leave {_percent(static.best_guess)}{better}."
        return first.expert, chance is not None and scales.is_sure, words
    ahead, shared = _count_ahead(told, first.expert, static.expert)
    words += (
        f" The static choice, {static.expert}, leaves {_percent(static.measured)}; {first.expert} is ahead of it on "
        f"{ahead} of {shared} splits{better}."
    )
    return first.expert, 0 < shared == ahead if chance is None else scales.is_sure, words


def _span(row: Recommended) -> str:
    """What was measured, in words."""
    splits = "1 split" if row.splits == 1 else f"{row.splits} splits"
    return f"{_percent(row.measured)} errors ({_percent(row.measured_low)} to {_percent(row.measured_high)}, {splits})"


def _ends(row: Recommended) -> str:
    """The interval of what is expected, in words."""
    return "" if row.low is None else f" ({_percent(row.low)} to {_percent(row.high)} in nine of ten cases)"


def _count_ahead(told: Weighed, one: str, other: str) -> tuple[int, int]:
    """On how many splits an expert has fewer errors than another, and how many both were measured on."""
    own, others = (told.measured[name].by_split for name in (one, other))
    shared = own.keys() & others.keys()
    return sum(own[seed] < others[seed] for seed in shared), len(shared)


def _hedge(why: str) -> str:
    """The reason for an expert; where the nearest tasks speak against it, that it is a close call."""
    return f"Yet it is a close call: {why[:1].lower()}{why[1:]}" if MORE in why else why


def _expect(row: Recommended) -> str:
    """What error to expect, in words."""
    if row.error is None:
        return " its error cannot be foretold."
    return f" it is predicted to leave {_percent(row.error)} errors{_ends(row)}."


def word_reason(told: Weighed, scales: Scales, number: int) -> str:
    """What speaks for an expert: the static prior, or what it did on the nearest known tasks."""
    evidence = told.knowledge.evidence
    known = np.isfinite(evidence.mean) & evidence.is_candidate
    if scales.static is None or not known[:, number].any():
        return "Nothing is known of it."
    if number == scales.static:
        return f"Best on average over {pluralize(int(known[:, number].sum()), 'known task')}."
    apart = scales.question.distances[SYMMETRIC]
    both = np.flatnonzero(known[:, number] & known[:, scales.static] & np.isfinite(apart))
    if not len(both):
        return "It was never measured beside the static choice."
    near = both[np.argsort(apart[both], kind="stable")][:NEIGHBOURS]
    gap = float((evidence.mean[near, scales.static] - evidence.mean[near, number]).mean())
    word = "fewer errors" if gap >= 0 else MORE
    where = "task" if len(near) == 1 else f"{len(near)} tasks"
    if _points(abs(gap)) == _points(0):
        return f"On the nearest {where} it left as many errors as the static choice."
    return f"On the nearest {where} it left {_points(abs(gap))} {word} than the static choice."


def note(told: Weighed, scales: Scales, *, is_multilabel: bool) -> list[str]:
    """What should be known before the recommendation is believed."""
    notes = []
    apart, tasks = scales.question.distances[SYMMETRIC], told.knowledge.evidence.distances.get(SYMMETRIC)
    if tasks is not None and len(tasks) > 2 and np.isfinite(apart).any():
        own = np.nanmin(tasks + np.where(np.eye(len(tasks), dtype=bool), np.inf, 0), axis=1)
        if np.nanmin(apart) > np.nanmax(own):
            notes.append(
                f"Nothing like this task is known: the nearest is {np.nanmin(apart):.3f} away, and no known task is "
                f"farther than {np.nanmax(own):.3f} from its nearest. Predictions lean on the average task."
            )
    if is_multilabel:
        notes.append(
            "The task has several labels per image, and most that is known is about one label per image: take the "
            "predicted errors for an order, not for figures, and measure: --confirm K."
        )
    sizes = {told.knowledge.offers[number].size for number in scales.order.tolist()}
    if MEASURED_SIZE in sizes:
        notes.append(
            f"Errors are those of images of {MEASURED_SIZE} pixels, as they were measured; larger ones mostly "
            "leave fewer."
        )
    known = np.asarray(np.isfinite(told.knowledge.evidence.mean).any(axis=0))
    news = [told.knowledge.offers[number].name for number in scales.order.tolist() if not known[number]]
    news = [name for name in news if name not in told.measured]
    counts = _count_images(told.embedding)
    if is_scarce(told.embedding) and not told.measured:
        notes.append(
            f"Most classes have fewer than {FEWEST} images. The embedding of so few is mostly noise: tasks that look "
            "near may not be, so the static choice is kept. More images, or --confirm K, would tell."
        )
    training = find_training(told.knowledge.protocol)
    if len(counts) and training.isdigit() and np.median(counts) < int(training):
        notes.append(
            f"Most classes have {np.median(counts):g} images or fewer, and errors are those of classifiers trained on "
            f"{training} of each: expect more, and do not lean on the order."
        )
    if news:
        notes.append(
            f"No error is known of {', '.join(news)}: what is predicted there is the average of others with a wide "
            "interval. Measure on your images: --confirm K."
        )
    if scales.shift:
        way = "harder" if scales.shift > 0 else "easier"
        notes.append(
            f"What was measured shows that the task is {_points(abs(scales.shift))} {way} than foretold: all "
            "predictions were moved by so much."
        )
    return notes


def is_scarce(embedding: Embedding) -> bool:
    """Whether most classes have so few images that nearness to other tasks is luck."""
    counts = _count_images(embedding)
    return len(counts) > 0 and float(np.median(counts)) < FEWEST


def _count_images(embedding: Embedding) -> Sequence[int]:
    return embedding.provenance.get("counts", {}).get("per_class") or ()


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _points(gap: float) -> str:
    return f"{100 * gap:.1f} points"
