"""(s) Neighbours in libraries of 10,000, 100,000 and 1,000,000 simulated tasks: time, memory, and what is missed.

    python benchmarks/library_search.py [--sizes 10000,100000,1000000] [--queries 50] [--truth FILE] [--out FILE]
    python benchmarks/library_search.py --only truth --sizes 1000000 --device cuda --truth FILE

benchmarks/simulated_library.py says how the tasks are made, and the first table here compares them with the real ones.
A query is a task of the library, which is left out of its own answer. Up to 100,000 tasks all rows lie in a file
(8.4 GB); above, the index has all sketches, and the file has the rows of those that the queries will be compared with,
at their places, and holes elsewhere. Questions are asked by a process that has imported nothing else. The truth comes
from comparing everything; one that was found before, on a GPU perhaps, is read from FILE, and a new one is added to it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402

from benchmarks import library_cases, library_folder  # noqa: E402
from benchmarks.library_truth import Neighbours, find_neighbours  # noqa: E402
from benchmarks.measure import Plan, Verdict, describe_machine, make_parser, show_table  # noqa: E402
from benchmarks.simulated_library import Simulation  # noqa: E402
from task2vec.library.search import count_candidates  # noqa: E402

OUT = _ROOT / "docs" / "measured" / "library_search.json"
PARTS = ("realism", "methods", "hard", "sizes")
SIZES = (10_000, 100_000, 1_000_000)
QUERIES, NEAREST = 50, 10
CANDIDATES = (25, 50, 100, 200, 400)
# What was promised: recall at 10, and milliseconds of one query by the number of tasks.
RECALL, MILLISECONDS = 0.98, {100_000: 20.0, 1_000_000: 150.0}


def measure(plan: Plan) -> tuple[dict[str, object], list[Verdict]]:
    """What `make bench` runs: one library of 10,000, which takes a few minutes."""
    sizes, queries = ((3000,), 5) if plan.is_quick else (SIZES[:1], QUERIES)
    return measure_all(("realism", "sizes"), sizes, queries=queries, device=plan.device)


def measure_all(
    parts: Sequence[str],
    sizes: Sequence[int],
    *,
    queries: int,
    truth: Path | None = None,
    device: str = "cpu",
    cores: int = 2,
) -> tuple[dict[str, object], list[Verdict]]:
    """The wanted parts."""
    found: dict[str, object] = {}
    verdicts: list[Verdict] = []
    if "realism" in parts:
        found["realism"] = library_cases.compare_with_real()
        _show("(s) simulated tasks beside the real ones (symmetric distance)", found["realism"])
    if "methods" in parts:
        found["methods"] = library_cases.compare_methods(min(sizes), queries, CANDIDATES, device)
        _show("what finds the 10 nearest, re-ranked exactly, by the number of candidates", found["methods"])
    if "hard" in parts:
        found["hard"] = library_cases.try_hard_cases(queries, CANDIDATES)
        _show("hard cases", found["hard"])
    for size in sizes if {"sizes", "truth"} & set(parts) else ():
        simulation = Simulation(size)
        asked = np.sort(np.random.default_rng(size).choice(size, queries, replace=False))
        true = read_truth(truth, simulation, asked, device)
        if "sizes" in parts:
            row = measure_size(simulation, asked, true, cores)
            found.setdefault("sizes", []).append(row)
            _show(f"a library of {size:,} tasks", [row])
            verdicts += judge(size, row)
    return found, verdicts


def read_truth(file: Path | None, simulation: Simulation, asked: np.ndarray, device: str) -> Neighbours:
    """The true neighbours of the queries: from the file if it has them, else computed and added to it."""
    known = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.exists() else {}
    summary = known.get(str(simulation.tasks))
    if summary is None or summary["queries"] != asked.tolist():
        print(f"comparing {len(asked)} tasks with {simulation.tasks:,} others ...", flush=True)
        numbers, distances = find_neighbours(simulation, asked, NEAREST, device=device)
        summary = {"queries": asked.tolist(), "nearest": numbers.tolist(), "distances": distances.round(7).tolist()}
        if file is not None:
            file.write_text(json.dumps(known | {str(simulation.tasks): summary}) + "\n", encoding="utf-8")
    return np.array(summary["nearest"]), np.array(summary["distances"])


def measure_size(simulation: Simulation, asked: np.ndarray, true: Neighbours, cores: int) -> dict[str, object]:
    """Time, memory and recall of one library, which is made for it and removed; it is asked on some cores only."""
    folder = Path(tempfile.mkdtemp(prefix="task2vec-search-"))
    try:
        built = library_folder.build(folder, simulation, asked, most=max(CANDIDATES))
        command = [sys.executable, library_folder.__file__, str(folder), *map(str, CANDIDATES)]
        # The many processes that build may have been given one thread each; the one that asks has its cores.
        free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
        asking = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, env=free, preexec_fn=lambda: _keep_to(cores)
        )
        answer = json.loads(asking.stdout)
    finally:
        shutil.rmtree(folder)
    found, distances = answer.pop("found"), answer.pop("distances")
    recall = {
        f"recall, {count} candidates": library_cases.find_recall(true[0], np.array(numbers) - 1)
        for count, numbers in found.items()
    }
    farther = np.array(distances[str(count_candidates(simulation.tasks))]).mean(1) / true[1].mean(1) - 1
    return {"tasks": simulation.tasks, **built, **recall, "found farther by": float(farther.mean()), **answer}


def _keep_to(cores: int) -> None:
    """Lets this process use so many of the cores that it has."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def judge(size: int, row: dict[str, object]) -> list[Verdict]:
    """What was promised for a library of this size."""
    recall = row[f"recall, {count_candidates(size)} candidates"]
    verdicts = [Verdict(f"recall at 10 among {size:,} tasks", recall, RECALL, is_at_least=True)]
    if size in MILLISECONDS:
        verdicts.append(
            Verdict(f"milliseconds per query, {size:,} tasks", row["query ms"], MILLISECONDS[size], is_at_least=False)
        )
    return verdicts


def _show(title: str, rows: list[dict[str, object]]) -> None:
    print(f"\n{title}", flush=True)
    if len(rows) == 1:
        show_table(("", ""), list(rows[0].items()))
    else:
        show_table(list(rows[0]), [list(row.values()) for row in rows])


def main() -> int:
    """Measures the wanted parts; 1 if a promise was missed, 0 otherwise."""
    parser = make_parser(__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of tasks")
    parser.add_argument("--queries", type=int, default=QUERIES)
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}; or truth")
    parser.add_argument("--truth", type=Path, help="file of true neighbours, read and added to")
    parser.add_argument("--device", default="cpu", help="where the truth is computed: cpu or cuda")
    parser.add_argument("--cores", type=int, default=2, help="cores of the process that asks")
    parser.add_argument("--out", type=Path, help=f"where the JSON goes: {OUT.relative_to(_ROOT)} for instance")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")]
    found, verdicts = measure_all(
        arguments.only.split(","),
        sizes,
        queries=arguments.queries,
        truth=arguments.truth,
        device=arguments.device,
        cores=arguments.cores,
    )
    for verdict in verdicts:
        print(f"  {verdict}")
    if arguments.out:
        before = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {}
        summary = [verdict.to_dict() for verdict in verdicts]
        results = (
            before
            | {"machine": describe_machine() | {"cores that ask": arguments.cores}}
            | found
            | ({"verdicts": summary} if summary else {})
        )
        arguments.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0 if all(verdict.is_met for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
