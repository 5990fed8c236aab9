"""Proposals: how long it takes to order 100 candidates by their errors on many known tasks.

    python benchmarks/proposals.py [--processor-time] [--quick] [--out FILE]

Milliseconds of `choose_width`, which depends on the known tasks alone, of `propose` with eight models, and of
`order_candidates`, which does all of it and says why; for random tasks in five dimensions and models whose errors
depend on where a task is. The target is 50 ms for all of it with 1,000 known tasks.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402

from benchmarks.measure import Verdict, make_parser, show_table, timed, use_processor_time, write_json  # noqa: E402
from task2vec.metatask import SYMMETRIC, ModelInfo, Query, TaskInfo, View  # noqa: E402
from task2vec.select.candidates import Candidate  # noqa: E402
from task2vec.select.propose import choose_width, order_candidates, propose  # noqa: E402

KNOWN, MODELS, DIMENSIONS = (70, 200, 1000), 100, 5
ROUNDS, TARGET = 15, 50.0


def make_case(count: int, models: int, seed: int = 0) -> tuple[View, Query]:
    """Errors of `models` models on `count` known tasks, a tenth of them unknown, and a new task among these."""
    rng = np.random.default_rng(seed)
    points, directions = rng.random((count + 1, DIMENSIONS)), rng.normal(size=(DIMENSIONS, models))
    errors = 1 / (1 + np.exp(1 - 1.5 * points @ directions + rng.normal(0, 0.3, (count + 1, models))))
    errors[rng.random(errors.shape) < 0.1] = np.nan
    between = np.linalg.norm(points[:, None] - points, axis=2)
    to_sources = np.where(rng.random(models) < 0.5, rng.random(models), np.nan)
    view = View(
        "random", tuple(TaskInfo(f"task {row}") for row in range(count)),
        tuple(ModelInfo(f"model {column}") for column in range(models)),
        protocol="random", seeds=(0,), errors=errors[:count, :, None],
        shares_images=np.zeros((count, models)), shares_labels=np.zeros((count, models), dtype=bool),
        distances={SYMMETRIC: between[:count, :count]},
    )  # fmt: skip
    distances = {SYMMETRIC: between[count, :count]}
    return view, Query("new", np.ones(models, dtype=bool), distances=distances, to_sources={SYMMETRIC: to_sources})


def measure(count: int, models: int, clock: Callable[[], float]) -> dict[str, float]:
    """Milliseconds of each step with so many known tasks: the fewest of some rounds, for other work only adds to it."""
    view, query = make_case(count, models)
    errors, distances, to_sources = view.mean, query.distances[SYMMETRIC], query.to_sources[SYMMETRIC]
    candidates = [Candidate(model.name, gmacs=1.0, is_here=True) for model in view.models]
    width = choose_width(errors, view.between(SYMMETRIC))
    works: dict[str, Callable[[], object]] = {
        "choose_width": lambda: choose_width(errors, view.between(SYMMETRIC)),
        "propose, 8 models": lambda: propose(errors, distances, to_sources, query.is_candidate, width=width, count=8),
        "order_candidates": lambda: order_candidates(candidates, view, query),
    }
    return {name: 1000 * min(timed(work, clock)[1] for _ in range(ROUNDS)) for name, work in works.items()}


def main() -> None:
    """Print the table and write it."""
    parser = make_parser(__doc__, has_clock=True)
    parser.add_argument("--quick", action="store_true", help="a few known tasks and models")
    parser.add_argument("--out", type=Path, help="JSON file of the figures")
    arguments = parser.parse_args()
    clock = use_processor_time() if arguments.processor_time else time.perf_counter
    counts, models = ((10,), 8) if arguments.quick else (KNOWN, MODELS)
    found = {count: measure(count, models, clock) for count in counts}
    rows = [[str(count), *(f"{value:.1f}" for value in row.values())] for count, row in found.items()]
    show_table(["known tasks", *(f"{name} (ms)" for name in found[counts[0]])], rows)
    total = found[counts[-1]]["order_candidates"]
    verdict = Verdict(f"ms to order {models} candidates, {counts[-1]} known tasks", total, TARGET, is_at_least=False)
    print(verdict)
    write_json(arguments.out, {"models": models, "milliseconds": found, "verdict": verdict.to_dict()})


if __name__ == "__main__":
    main()
