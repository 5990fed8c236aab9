"""How much sooner we reach the error that the original algorithm has after its 10,000 draws.

Errors do not depend on the machine, so they are read from a measured table (docs/measured/errors.json, written by
`run.py --only error_against_time`, which takes a GPU or many hours). Seconds do, and are measured here in turns. Both
sides include the feature pass with its decoding and the fit of the head. All batches of the original algorithm cost the
same, so a few of them are timed and multiplied.
"""

import json
import statistics
from dataclasses import replace

import numpy as np

import task2vec as t2v
from benchmarks.material import load_probes, task_readers
from benchmarks.measure import Plan, Verdict, show_table
from benchmarks.old_algorithm import BATCH, DRAWS, old_fisher
from benchmarks.stages import estimate, fit, start
from task2vec.embedding import EmbedSettings

TARGET = 15
_OLD_BATCHES = 3
_TURNS = 3


def measure(plan: Plan) -> tuple[dict[str, object], list[Verdict]]:
    """The ratio of times at equal error, for every probe and task."""
    known = {
        (row["probe"], row["task"]): row["points"] for row in json.loads(plan.errors.read_text())["error_against_time"]
    }
    results, verdicts = [], []
    for probe in load_probes(plan):
        for name, read in task_readers(plan).items():
            error, samples = equal_error(known[probe.name, name])
            row = {"probe": probe.name, "task": name, "error": error, **seconds_of(read(), probe, samples, plan)}
            row["exact ratio"] = row["old"] / row["exact"]
            label = f"{probe.name}, {name}: time of the original algorithm / ours at equal error"
            verdicts.append(Verdict(label, row["exact ratio"], TARGET, is_at_least=True))
            print(f"\n{probe.name} on {name}: seconds to an error of {error:.3f}", flush=True)
            rows = [("original", DRAWS, row["old"], 1.0), ("ours", samples, row["exact"], row["exact ratio"])]
            show_table(["algorithm", "draws", "seconds", "original / this"], rows)
            print(f"  of the seconds, features and head take {row['shared']:.1f} on both sides", flush=True)
            results.append(row)
            if plan.is_quick:
                break
    return {"time_to_error": results}, verdicts


def equal_error(points: list[dict]) -> tuple[float, int]:
    """The original algorithm's last error, and how many pairs ours draws to reach it (between measured points)."""
    error = [point["error"] for point in points if point["algorithm"] == "old"][-1]
    curve = sorted((point["error"], point["draws"]) for point in points if point["algorithm"] == "exact")
    errors, draws = np.log(np.array(curve, dtype=float)).T
    return error, int(np.ceil(np.exp(np.interp(np.log(error), errors, draws))))


def seconds_of(task: t2v.Task, probe: t2v.Probe, samples: int, plan: Plan) -> dict[str, float]:
    """Seconds of a whole embedding by both algorithms; medians of several turns."""
    settings = EmbedSettings(method="direct")
    fits = [fit(start(task, probe, settings=settings, device=plan.device), plan.clock) for _ in range(2)]
    fitted = fits[-1]  # the first one warms up
    old_seconds, our_seconds = [], []
    for turn in range(1 if plan.is_quick else _TURNS):
        *_, last = old_fisher(fitted, batches=_OLD_BATCHES, clock=plan.clock, seed=turn)
        old_seconds.append(last.seconds * DRAWS / (_OLD_BATCHES * BATCH))
        our_seconds.append(estimate(fitted, replace(settings, max_samples=samples, seed=turn), plan.clock)[1])
    return {
        "old": fitted.seconds + statistics.median(old_seconds),
        "exact": fitted.seconds + statistics.median(our_seconds),
        "shared": fitted.seconds,
    }
