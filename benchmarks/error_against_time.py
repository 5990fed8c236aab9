"""How long the original algorithm and ours take to the same error, with feature pass and head fit on both sides.

The reference is the exact Fisher of the task: every image, every label. An estimate's error is the median over the
alive filters of |F - reference| / reference. Both take turns, so that they see the same machine.
"""

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice

import numpy as np
from torch import Tensor

import task2vec as t2v
from benchmarks.material import load_probes, task_readers
from benchmarks.measure import Plan, Verdict, show_table
from benchmarks.old_algorithm import BATCH, DRAWS, Progress, old_fisher
from benchmarks.stages import Fitted, distance, estimate, fit, median_error, start
from task2vec.embedding import EmbedSettings

TARGET = 15
_ALL_BATCHES = DRAWS // BATCH
_QUICK_BATCHES = 6
_LARGEST_BUDGET = 6_400


@dataclass(frozen=True)
class Point:
    """One estimate: how much was drawn, how far it is from the reference, and the seconds of the whole embedding."""

    algorithm: str
    draws: int
    error: float
    distance: float
    seconds: float
    is_extrapolated: bool = False


def measure(plan: Plan) -> tuple[dict[str, object], list[Verdict]]:
    """Curves and ratios of every probe and task."""
    results, verdicts = [], []
    readers = dict(islice(task_readers(plan).items(), 1 if plan.is_quick else None))
    for probe in load_probes(plan):
        for name, read in readers.items():
            print(f"\nerror against time: {probe.name} on {name}", flush=True)
            points, shared_seconds = compare(read(), probe, plan)
            show_table(
                ["algorithm", "draws", "error", "distance", "seconds", ""],
                [(p.algorithm, p.draws, p.error, p.distance, p.seconds, "*" * p.is_extrapolated) for p in points],
            )
            if any(point.is_extrapolated for point in points):
                print("  * extrapolated: seconds per batch as measured, error by its 1 / sqrt(draws) law")
            print(f"  of the seconds, features and head take {shared_seconds:.1f} on both sides")
            ratio, note = ratio_at_equal_error(points)
            print(f"  {ratio:.1f} times faster to the error of {DRAWS} old draws{note}", flush=True)
            label = f"{probe.name}, {name}: time of the original algorithm / ours at equal error{note}"
            verdicts.append(Verdict(label, ratio, TARGET, is_at_least=True))
            rows = [asdict(point) for point in points]
            results.append({"probe": probe.name, "task": name, "points": rows, "ratios": {"exact": ratio}})
    return {"error_against_time": results}, verdicts


def compare(task: t2v.Task, probe: t2v.Probe, plan: Plan) -> tuple[list[Point], float]:
    """Points of both algorithms, by draws, and the seconds that both sides share."""
    settings = EmbedSettings(method="direct", seeds="all")
    fits = [
        fit(start(task, probe, settings=settings, device=plan.device), plan.clock)
        for _ in range(2 if plan.is_quick else 4)
    ]
    fitted = fits[-1]
    shared_seconds = statistics.median(timed_fit.seconds for timed_fit in fits[1:])  # the first one warms up
    reference, _ = estimate(fitted, settings, plan.clock)
    truth = reference.fisher

    batches = _QUICK_BATCHES if plan.is_quick else min(plan.old_draws // BATCH, _ALL_BATCHES)
    old = old_fisher(fitted, batches=batches, clock=plan.clock)
    budgets = [b for b in (25, 50, 100, 200, 400, 800) if not plan.is_quick or b <= 100]
    stride = -(-batches // len(budgets))
    old_points, ours = [], []
    for budget in budgets:
        ours.append(_our_point(fitted, truth, budget, shared_seconds, plan))
        old_points += _advance(old, stride, fitted, truth, shared_seconds)
    if old_points[-1].draws < _ALL_BATCHES * BATCH:
        old_points.append(_extrapolate(old_points, shared_seconds))
    budget = budgets[-1]
    while budget < _LARGEST_BUDGET and min(point.error for point in ours) > old_points[-1].error:
        budget *= 2
        ours.append(_our_point(fitted, truth, budget, shared_seconds, plan))
    return [*old_points, *ours], shared_seconds


def _our_point(fitted: Fitted, truth: Tensor, budget: int, shared_seconds: float, plan: Plan) -> Point:
    """Mean error and median seconds of several seeds; fewer where the budget is large and seeds hardly differ."""
    seeds = 2 if plan.is_quick else max(2, min(8, 1600 // budget))
    settings = EmbedSettings(method="direct", max_samples=budget)
    estimates = [estimate(fitted, replace(settings, seed=seed), plan.clock) for seed in range(seeds)]
    return Point(
        algorithm="exact",
        draws=budget,
        error=statistics.fmean(median_error(result.fisher, truth) for result, _ in estimates),
        distance=statistics.fmean(distance(result.fisher, truth, fitted) for result, _ in estimates),
        seconds=shared_seconds + statistics.median(seconds for _, seconds in estimates),
    )


def _advance(
    old: Iterator[Progress], batches: int, fitted: Fitted, truth: Tensor, shared_seconds: float
) -> list[Point]:
    """The old algorithm a few batches further: its new point, if it had not finished before."""
    steps = list(islice(old, batches))
    if not steps:
        return []
    last = steps[-1]
    error, apart = median_error(last.fisher, truth), distance(last.fisher, truth, fitted)
    return [Point("old", last.draws, error, apart, shared_seconds + last.seconds)]


def _extrapolate(points: list[Point], shared_seconds: float) -> Point:
    """The old algorithm's last point, from the second half of those that were measured.

    Its squared error falls like 1 / draws. After few draws its rare large gradients have not shown up yet and the error
    looks smaller than it is, so this flatters the old algorithm.
    """
    late = points[len(points) // 2 :]
    draws = _ALL_BATCHES * BATCH
    error = statistics.fmean(point.error**2 * point.draws for point in late) / draws
    apart = statistics.fmean(point.distance * point.draws for point in late) / draws  # a distance is a squared error
    seconds = (points[-1].seconds - shared_seconds) * draws / points[-1].draws
    return Point("old", draws, error**0.5, apart, shared_seconds + seconds, is_extrapolated=True)


def ratio_at_equal_error(points: list[Point]) -> tuple[float, str]:
    """Seconds of the original algorithm's last point over ours at the same error, and a remark."""
    last = [point for point in points if point.algorithm == "old"][-1]
    note = " (original extrapolated)" if last.is_extrapolated else ""
    curve = [point for point in points if point.algorithm == "exact"]
    errors = np.minimum.accumulate([point.error for point in curve])[::-1].clip(1e-9)
    seconds = np.array([point.seconds for point in curve])[::-1]
    ours = float(np.exp(np.interp(np.log(last.error), np.log(errors), np.log(seconds))))
    outside = "" if errors[0] <= last.error <= errors[-1] else ", beyond the measured errors"
    return last.seconds / ours, note + outside
