"""(e) What it costs to have work done by others: Ray against a pool of processes against this process.

    python benchmarks/engines.py [--quick] [--out FILE]

Empty units show what a unit costs beyond its work; units of about 50 ms of plain Python show what that means beside
real work, with as many workers as cores. Workers are started, and have the work open, before the clock runs; how long
that takes is printed, too. All ways alternate; ratios are medians over the rounds.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

from task2vec.parallel import Backend, Unit, open_backend  # noqa: E402

EMPTY, BUSY, ROUNDS, MILLISECONDS = 400, 40, 5, 50


@dataclass(frozen=True)
class Spinning:
    """Adds up numbers, as many as a unit says."""

    def open(self) -> Callable[[int], Any]:
        """A function to one sum."""
        return lambda count: [sum(number * number for number in range(count))]


def measure(plan) -> tuple[dict[str, object], list]:
    """Seconds of all engines for empty and for busy units, and what Ray takes more than the pool."""
    from benchmarks.measure import Verdict, show_table

    rounds, cores = 1 if plan.is_quick else ROUNDS, os.cpu_count() or 1
    names = ["serial", "pool", *(["ray"] if importlib.util.find_spec("ray") else [])]
    print(f"\n(e) engines: {cores} workers, {EMPTY} empty units, {BUSY} of about {MILLISECONDS} ms", flush=True)
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(open_backend(name, jobs=None if name == "serial" else cores, threads=1))
            for name in names
        }
        count = _calibrate()
        starts = {name: _run(engine, [count] * 2 * cores) for name, engine in engines.items()}
        taken = _measure_rounds(engines, count, rounds)
    rows = [_describe(name, starts[name], taken) for name in names]
    show_table(("engine", "start s", "ms per empty unit", "busy units s", "speed-up"), [list(r.values()) for r in rows])
    verdicts = [Verdict("busy units: pool against this process, per core", rows[1]["speed_up"] / cores, 0.7, True)]
    if "ray" in names:
        verdicts += [Verdict("busy units: Ray / pool", _ratio(taken["ray"]["busy"], taken["pool"]["busy"]), 1.2, False)]
        print(f"  Ray / pool, empty units: {_ratio(taken['ray']['empty'], taken['pool']['empty']):.1f}")
    else:
        print("  Ray is not installed, so it was not measured: pip install 'task2vec[ray]'")
    return {"engines": {"cores": cores, "rounds": rounds, "rows": rows}}, verdicts


def _describe(name: str, start: float, taken: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """One line of the table."""
    own = taken[name]
    return {
        "engine": name,
        "start": start,
        "empty_ms": 1000 * statistics.median(own["empty"]) / EMPTY,
        "busy": statistics.median(own["busy"]),
        "speed_up": _ratio(taken["serial"]["busy"], own["busy"]),
    }


def _measure_rounds(engines: dict[str, Backend], count: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of every engine in every round, for both kinds of units."""
    taken: dict[str, dict[str, list[float]]] = {name: {"empty": [], "busy": []} for name in engines}
    for _ in range(rounds):
        for name, engine in engines.items():
            taken[name]["empty"].append(_run(engine, [0] * EMPTY))
            taken[name]["busy"].append(_run(engine, [count] * BUSY))
    return taken


def _run(engine: Backend, counts: list[int]) -> float:
    """Seconds that an engine takes for units of so many numbers each."""
    units = [Unit(str(number), count) for number, count in enumerate(counts)]
    began = time.perf_counter()
    done = sum(result.is_last and result.failure is None for result in engine.run(Spinning(), units))
    assert done == len(units)
    return time.perf_counter() - began


def _calibrate() -> int:
    """How many numbers take as long as a busy unit should."""
    spin, count, fastest = Spinning().open(), 200_000, float("inf")
    for _ in range(9):
        began = time.perf_counter()
        spin(count)
        fastest = min(fastest, time.perf_counter() - began)
    return int(count * MILLISECONDS / 1000 / fastest)


def _ratio(some: list[float], others: list[float]) -> float:
    """Median over the rounds."""
    return statistics.median(one / other for one, other in zip(some, others, strict=True))


def main() -> None:
    """Measures by itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, to see that it runs")
    parser.add_argument("--out", type=Path, default=_ROOT / "docs" / "measured" / "engines.json")
    arguments = parser.parse_args()
    from benchmarks import engines  # by a name that workers know
    from benchmarks.measure import Plan, describe_machine

    found, verdicts = engines.measure(Plan(_ROOT.parent / "shared", arguments.quick))
    for verdict in verdicts:
        print(f"  {verdict}")
    arguments.out.write_text(json.dumps({"machine": describe_machine(), **found}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
