"""What is said of a recommendation: whom to choose and why, and what to know before believing it."""

import numpy as np

from task2vec.select.evidence import SYMMETRIC
from task2vec.select.offers import MEASURED_SIZE
from task2vec.select.recommendation import Recommended
from task2vec.select.scales import Scales, Weighed

# Known tasks that are named as neighbours, and that a reason is taken from.
NEIGHBOURS = 5
# From this chance on of being better than the static choice, an expert is recommended in its place.
SURE = 0.75


def choose(told: Weighed, scales: Scales, rows: tuple[Recommended, ...]) -> tuple[str, bool, str]:
    """The expert to start from, whether there is reason to leave the static choice, and that in words."""
    first = rows[0]
    measured = [row for row in rows if row.measured is not None]
    if measured:
        return _choose_measured(measured, rows)
    static = next((row for row in rows if row.is_static), None)
    if static is None:
        return (
            first.expert,
            False,
            (
                f"No error of any candidate is known, so nothing speaks for one of them: {first.expert} is only the "
                "first. Measure them on your images: --confirm K."
            ),
        )
    if len(rows) == 1:
        return (
            first.expert,
            False,
            f"{first.expert} is the only candidate, so there is nothing to choose.{_expect(first)}",
        )
    is_sure = first is not static and _is_sure(scales)
    if is_sure:
        assert first.gain is not None
        return (
            first.expert,
            True,
            (
                f"Start from {first.expert}:{_expect(first)} That is {_points(first.gain)} fewer than {static.expert}, "
                f"the static choice, would leave. {first.why}"
            ),
        )
    tasks = len(told.knowledge.evidence.tasks)
    reason = f"Start from {static.expert}, the best on average over {tasks} known tasks:{_expect(static)}"
    if first is static:
        return static.expert, False, f"{reason} The evidence about this task speaks for no other."
    gain = "" if first.gain is None else f" ({first.expert} is predicted to be {_points(first.gain)} better)"
    return static.expert, False, f"{reason} The evidence does not beat this static choice{gain}."


def _choose_measured(measured: list[Recommended], rows: tuple[Recommended, ...]) -> tuple[str, bool, str]:
    """The same where errors on the task itself are known: what was measured counts, and moves what was not."""
    best = min(measured, key=lambda row: row.measured or 0)
    static = next((row for row in rows if row.is_static), None)
    first = rows[0]
    count = "the only one" if len(measured) == 1 else f"the best of {len(measured)}"
    told = f"{_percent(best.measured)} errors ({_percent(best.measured_low)} to {_percent(best.measured_high)}"
    told += f", {best.splits} {'split' if best.splits == 1 else 'splits'})"
    if first is best:
        words = f"Start from {best.expert}: measured on your images it leaves {told}, {count} that was measured."
    else:
        words = (
            f"Start from {first.expert}:{_expect(first)} {best.expert}, {count} that was measured on your images, "
            f"leaves {told}. Measure more: --confirm K."
        )
    if static is not None and static not in (first, best) and static.best_guess is not None:
        how = "predicted" if static.measured is None else "measured"
        words += f" The static choice, {static.expert}, leaves {_percent(static.best_guess)} ({how})."
    return first.expert, static is not None and first is not static, words


def _is_sure(scales: Scales) -> bool:
    """Whether the evidence beats the static choice: only strategies that know how sure they are can say so."""
    return scales.answer.sureness is not None and scales.answer.sureness >= SURE


def _expect(row: Recommended) -> str:
    """What error to expect, in words."""
    if row.error is None:
        return ""
    span = "" if row.low is None else f" ({_percent(row.low)} to {_percent(row.high)} in nine of ten cases)"
    return f" it is predicted to leave {_percent(row.error)} errors{span}."


def word_reason(told: Weighed, scales: Scales, number: int) -> str:
    """What speaks for an expert: the static prior, or what it did on the nearest known tasks."""
    evidence = told.knowledge.evidence
    known = np.isfinite(evidence.mean) & evidence.is_candidate
    if scales.static is None or not known[:, number].any():
        return "Nothing is known of it."
    if number == scales.static:
        return f"Best on average over {int(known[:, number].sum())} known tasks."
    apart = scales.question.distances[SYMMETRIC]
    both = np.flatnonzero(known[:, number] & known[:, scales.static] & np.isfinite(apart))
    if not len(both):
        return "It was never measured beside the static choice."
    near = both[np.argsort(apart[both], kind="stable")][:NEIGHBOURS]
    gap = float((evidence.mean[near, scales.static] - evidence.mean[near, number]).mean())
    word = "fewer" if gap >= 0 else "more"
    where = "task" if len(near) == 1 else f"{len(near)} tasks"
    return f"On the nearest {where} it left {_points(abs(gap))} {word} errors than the static choice."


def note(told: Weighed, scales: Scales, *, is_multilabel: bool) -> list[str]:
    """What should be known before the recommendation is believed."""
    notes = []
    apart, tasks = scales.question.distances[SYMMETRIC], told.knowledge.evidence.distances.get(SYMMETRIC)
    if tasks is not None and len(tasks) > 2 and np.isfinite(apart).any():
        own = np.nanmin(tasks + np.where(np.eye(len(tasks), dtype=bool), np.inf, 0), axis=1)
        if np.nanmin(apart) > np.nanmax(own):
            notes.append(
                f"Nothing like this task is known: the nearest is {np.nanmin(apart):.2f} away, and no known task is "
                f"farther than {np.nanmax(own):.2f} from its nearest. Predictions lean on the average task."
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
    if scales.shift:
        way = "harder" if scales.shift > 0 else "easier"
        notes.append(
            f"What was measured shows that the task is {_points(abs(scales.shift))} {way} than foretold: all "
            "predictions were moved by so much."
        )
    return notes


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _points(gap: float) -> str:
    return f"{100 * gap:.1f} points"
