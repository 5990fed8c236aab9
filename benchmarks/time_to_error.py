"""(a) How much sooner our engines reach the error that the old algorithm has after its 10,000 draws.

Errors do not depend on the machine, so they are taken from a measured table (docs/measured/errors.json, written by
`run.py --only errors`, which takes a GPU or many hours); seconds do, and are measured here, the old algorithm and ours
taking turns. Both sides count the feature pass with its decoding and the head fit. The old algorithm's batches all cost
the same, so some of them are timed and multiplied.
"""

import json
import statistics

import numpy as np

from benchmarks.material import load_probes, task_readers
from benchmarks.measure import Plan, Verdict, show_table
from benchmarks.old_algorithm import BATCH, DRAWS, old_fisher
from benchmarks.stages import estimate, fit, start
from task2vec.embedding import EmbedSettings

TARGET = 15
ENGINES = ("exact", "fast")
_OLD_BATCHES = 3
_TURNS = 3


def measure(plan: Plan) -> tuple[dict[str, object], list[Verdict]]:
    """The ratio of times at equal error, for every probe, task and engine."""
    known = {
        (row["probe"], row["task"]): row["points"] for row in json.loads(plan.errors.read_text())["error_against_time"]
    }
    results, verdicts = [], []
    for probe in load_probes(plan):
        for name, read in task_readers(plan).items():
            error, budgets = equal_error(known[probe.name, name])
            row = {"probe": probe.name, "task": name, "error": error, **seconds_of(read(), probe, budgets, plan)}
            for engine in ENGINES:
                row[f"{engine} ratio"] = row["old"] / row[engine]
                what = f"(a) {probe.name}, {name}, {engine} engine: time of the old algorithm / ours at equal error"
                verdicts.append(Verdict(what, row[f"{engine} ratio"], TARGET, is_at_least=True))
            print(f"\n(a) {probe.name} on {name}: seconds to an error of {error:.3f}", flush=True)
            show_table(
                ["algorithm", "draws", "seconds", "old / this"],
                [("old", DRAWS, row["old"], 1.0), *((e, budgets[e], row[e], row[f"{e} ratio"]) for e in ENGINES)],
            )
            print(f"  of the seconds, features and head take {row['shared']:.1f} on both sides", flush=True)
            results.append(row)
            if plan.is_quick:
                break
    return {"time_to_error": results}, verdicts


def equal_error(points: list[dict]) -> tuple[float, dict[str, int]]:
    """The old algorithm's last error, and how many pairs each engine draws to reach it (between measured points)."""
    error = [point["error"] for point in points if point["algorithm"] == "old"][-1]
    budgets = {}
    for engine in ENGINES:
        curve = sorted((p["error"], p["draws"]) for p in points if p["algorithm"] == engine)
        errors, draws = np.log(np.array(curve, dtype=float)).T
        budgets[engine] = int(np.ceil(np.exp(np.interp(np.log(error), errors, draws))))
    return error, budgets


def seconds_of(task, probe, budgets: dict[str, int], plan: Plan) -> dict[str, float]:
    """Seconds of a whole embedding by the old algorithm and by each engine; medians of several turns."""
    settings = EmbedSettings(method="direct")
    fits = [fit(start(task, probe, settings=settings, device=plan.device), plan.clock) for _ in range(2)]
    fitted = fits[-1]  # the first one warms up
    taken: dict[str, list[float]] = {name: [] for name in ("old", *ENGINES)}
    for turn in range(1 if plan.is_quick else _TURNS):
        *_, last = old_fisher(fitted, batches=_OLD_BATCHES, clock=plan.clock, seed=turn)
        taken["old"].append(last.seconds * DRAWS / (_OLD_BATCHES * BATCH))
        for engine in ENGINES:
            options = EmbedSettings(method="direct", max_samples=budgets[engine], seed=turn)
            taken[engine].append(estimate(fitted, options, plan.clock)[1])
    whole = {name: fitted.seconds + statistics.median(values) for name, values in taken.items()}
    return {**whole, "shared": fitted.seconds}
