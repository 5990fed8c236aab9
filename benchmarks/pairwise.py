"""All distances between 1,460 embeddings of 8,512 filters against a double loop over the pairs.

    python benchmarks/pairwise.py [--device cuda] [--quick] [--out FILE] [--processor-time]

The loop is what one writes first: for every ordered pair, NumPy's a / (a + b) and b / (a + b) and SciPy's cosine. A
sample of its pairs is timed before and after ours, on the CPU, and multiplied: nobody waits for all of them. The
embeddings are drawn at random, as spread as real ones; their distances do not matter to the time.
"""

import json
import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from scipy.spatial.distance import cosine  # noqa: E402

from benchmarks.measure import (  # noqa: E402
    Plan,
    Verdict,
    choose_clock,
    describe_machine,
    make_parser,
    show_table,
    timed,
)
from task2vec.distance import (  # noqa: E402
    pairwise_from_logs,
    symmetric_from_logs,
)

TASKS, FILTERS = 1460, 8512
FASTER, MEMORY, ERROR = 200, 2.0, 1e-6
_LOOP_PAIRS, _CHECKED_PAIRS = 1000, 500
# Shares of dead filters: none, and as many as real tasks have, with a prior for each task.
CROWDS = {"all alive": 0.0, "3 % dead": 0.03}


def measure(plan: Plan) -> tuple[dict[str, object], list[Verdict]]:
    """Ratio, memory and error, without and with dead filters."""
    tasks = 150 if plan.is_quick else TASKS
    results, verdicts, rows = [], [], []
    for name, share in CROWDS.items():
        logs, dead = draw_logs(tasks, share)
        pairwise_from_logs(logs[:20], dead=dead[:20], device=plan.device)  # warms up
        before = loop_seconds(logs, plan.clock)
        with watched_memory(plan.device) as peak:
            ours, seconds = timed(lambda: pairwise_from_logs(logs, dead=dead, device=plan.device), plan.clock)  # noqa: B023
        loop = statistics.fmean([before, loop_seconds(logs, plan.clock)]) * tasks**2
        error = largest_error(ours, logs, dead)
        rows.append((name, loop, seconds, loop / seconds, peak[0], error))
        results.append(dict(zip(("crowd", "loop", "ours", "ratio", "gigabytes", "error"), rows[-1], strict=True)))
        label = f"{tasks} embeddings on {plan.device}, {name}"
        verdicts += [
            Verdict(f"{label}: double loop / pairwise", loop / seconds, FASTER, is_at_least=True),
            Verdict(f"{label}: peak memory in GB", peak[0], MEMORY, is_at_least=False),
            Verdict(f"{label}: largest error / 1e-6", error / ERROR, 1.0, is_at_least=False),
        ]
    print(f"\n{tasks} x {FILTERS} on {plan.device}; the loop by {2 * _LOOP_PAIRS} of its {tasks**2} pairs, on the CPU")
    show_table(["tasks", "loop s", "ours s", "loop / ours", "peak GB", "largest error"], rows)
    return {"pairwise": {"device": plan.device, "tasks": tasks, "filters": FILTERS, "crowds": results}}, verdicts


def draw_logs(tasks: int, dead_share: float) -> tuple[np.ndarray, np.ndarray]:
    """Log-embeddings, and which filters are dead: those hold the task's prior."""
    rng = np.random.default_rng(0)
    logs = rng.normal(size=(tasks, FILTERS)) + 2 * rng.normal(size=FILTERS) + rng.normal(size=(tasks, 1)) - 12
    # Some filters are dead for many tasks, most for none.
    dead = rng.random((tasks, FILTERS)) < np.minimum(dead_share * rng.exponential(size=FILTERS) ** 2 / 2, 1)
    return np.where(dead, rng.normal(size=(tasks, 1)) - 22, logs), dead


def loop_seconds(logs: np.ndarray, clock: Callable[[], float]) -> float:
    """Seconds of one pair in the double loop."""
    vectors = np.exp(logs[:40])
    pairs = [(i, j) for i in range(len(vectors)) for j in range(len(vectors))][:_LOOP_PAIRS]

    def work() -> None:
        for i, j in pairs:
            a, b = vectors[i], vectors[j]
            cosine(a / (a + b), b / (a + b))

    return timed(work, clock)[1] / len(pairs)


def largest_error(distances: np.ndarray, logs: np.ndarray, dead: np.ndarray) -> float:
    """How far `distances` are from float64 in a sample of pairs, half of them the nearest and the farthest."""
    count = min(_CHECKED_PAIRS // 4, len(logs))
    order = distances.ravel().argsort()
    sample = [*np.random.default_rng(1).integers(0, distances.size, 2 * count), *order[::-1][:count]]
    sample += list(order[len(logs) : len(logs) + count])
    errors = []
    for row, column in (divmod(int(index), distances.shape[1]) for index in sample):
        counted = ~(dead[row] & dead[column])
        exact = 0.0 if row == column else symmetric_from_logs(logs[row][counted], logs[column][counted])
        errors.append(abs(float(distances[row, column]) - exact))
    return max(errors)


@contextmanager
def watched_memory(device: str) -> Iterator[list[float]]:
    """The most memory in use while it lasts, in GB, as the only entry: resident on the CPU, allocated on a GPU."""
    peak, over = [0.0], threading.Event()
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        yield peak
        peak[0] = torch.cuda.max_memory_allocated() / 1e9
        return

    def watch() -> None:
        while not over.wait(0.02):
            peak[0] = max(peak[0], resident_gigabytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()
        peak[0] = max(peak[0], resident_gigabytes())


def resident_gigabytes() -> float:
    """What the whole process holds, its libraries included; 0 where the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith("VmRSS:")), 0.0)


def main() -> int:
    """Measures and prints; 1 if a promise was missed, 0 otherwise."""
    parser = make_parser(__doc__, has_clock=True)
    parser.add_argument("--device", default="cpu", help="where ours runs: cpu or cuda")
    parser.add_argument("--quick", action="store_true", help="a tenth of the tasks, to see that it runs")
    parser.add_argument("--out", type=Path, help="where the JSON goes, if it is wanted")
    arguments = parser.parse_args()
    clock_name, clock = choose_clock(arguments)
    results, verdicts = measure(Plan(_ROOT, arguments.quick, clock, arguments.device))
    for verdict in verdicts:
        print(f"  {verdict}")
    if arguments.out:
        results |= {"machine": describe_machine(), "clock": clock_name}
        results["verdicts"] = [verdict.to_dict() for verdict in verdicts]
        arguments.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0 if arguments.quick or all(verdict.is_met for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
