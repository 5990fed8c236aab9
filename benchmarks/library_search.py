"""The nearest of 100,000 simulated tasks: by comparing all of them, and among the candidates of sketches.

    python benchmarks/library_search.py [--tasks 100000] [--queries 5] [--folder DIR] [--out FILE]

benchmarks/simulated_library.py says how the tasks are made; 100,000 take 8.5 GB. A query is a task of the library that
is left out of its own answer, and is answered in both ways in turn; the ratio is the median over the queries. Recall is
the fraction of the ten nearest that the sketches find. `hard` measures it in libraries of 5,000 in which it is harder:
where all tasks are of one dataset, or a fifth of the filters is dead.
"""

import sqlite3
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402

from benchmarks.measure import MEASURED, describe_machine, make_parser, show_table, write_json  # noqa: E402
from benchmarks.simulated_library import Simulation  # noqa: E402
from task2vec.embedding import Embedding  # noqa: E402
from task2vec.library import search  # noqa: E402
from task2vec.library.database import FILE, Database  # noqa: E402
from task2vec.probe import FilterLayer  # noqa: E402

NEAREST, CHUNK, HARD_TASKS = 10, 500, 5000
HARD = {
    "as above": {},
    "all tasks of one dataset": {"per_dataset": (HARD_TASKS, HARD_TASKS + 1)},
    "a fifth dead": {"dead": 0.2},
}


def make_embedding(row: np.ndarray) -> Embedding:
    """An embedding that has this row."""
    sizes = np.abs(row.astype(np.float64))
    fisher = np.where(row > 0, sizes, 0)
    prior = np.where(row > 0, 1e-12 * sizes, sizes)
    layers = (FilterLayer("conv", "convolution", len(row), 9, 0.1),)
    return Embedding("task", "net", fisher, np.zeros(len(row)), prior, layers, {"probe_fingerprint": "p"})


def open_library(folder: Path) -> sqlite3.Connection:
    """A connection that lets rows and sketches be without the embeddings themselves."""
    if not (folder / FILE).exists():
        Database(folder / FILE, read_only=False).close()
    connection = sqlite3.connect(folder / FILE, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def fill(connection: sqlite3.Connection, simulation: Simulation) -> None:
    """Writes the row and sketch of every task that is not there; a task's id is its number + 1."""
    (count,) = connection.execute("SELECT count(*) FROM embeddings").fetchone()
    for start in range(count, simulation.tasks, CHUNK):
        connection.execute("BEGIN")
        numbers = range(start, min(start + CHUNK, simulation.tasks))
        for number, row in zip(numbers, simulation.rows(numbers), strict=True):
            add(connection, number, make_embedding(row))
        connection.execute("COMMIT")


def add(connection: sqlite3.Connection, number: int, embedding: Embedding) -> None:
    """Adds what a search reads of one embedding."""
    connection.execute(
        "INSERT INTO embeddings VALUES (?, ?, 1, 1, '', 2, '', 0, 0, NULL, 0, '')", (number + 1, str(number))
    )
    search.add_to_search(connection, 1, number + 1, embedding)


def measure(connection: sqlite3.Connection, simulation: Simulation, queries: int) -> dict[str, float]:
    """Times of both ways, their ratio, and how much the sketches miss."""
    seconds = {"exact": [], "sketch": []}
    recalls = []
    for number in np.random.default_rng(1).choice(simulation.tasks, queries, replace=False).tolist():
        (row,) = simulation.rows([number])
        nearest = partial(search.find_nearest, connection, 1, make_embedding(row), k=NEAREST, load=lambda _: None)
        ids = {}
        for way, is_exact in (("sketch", False), ("exact", True)):
            begin = time.perf_counter()
            ids[way] = {other for other, _ in nearest(exact=is_exact, without=[number + 1])}
            seconds[way].append(time.perf_counter() - begin)
        recalls.append(len(ids["exact"] & ids["sketch"]) / NEAREST)
    ratios = [exact / sketch for exact, sketch in zip(seconds["exact"], seconds["sketch"], strict=True)]
    return {
        "tasks": simulation.tasks,
        "queries": queries,
        "exact seconds": statistics.median(seconds["exact"]),
        "sketch seconds": statistics.median(seconds["sketch"]),
        "exact / sketch": statistics.median(ratios),
        "recall at 10": statistics.mean(recalls),
    }


def measure_add(connection: sqlite3.Connection, simulation: Simulation) -> float:
    """Median milliseconds of one addition, with its flushing to the disk; nothing stays."""
    seconds = []
    for number, row in enumerate(Simulation(20, seed=99).rows(range(20)), start=simulation.tasks):
        embedding = make_embedding(row)
        begin = time.perf_counter()
        connection.execute("BEGIN")
        add(connection, number, embedding)
        connection.execute("COMMIT")
        seconds.append(time.perf_counter() - begin)
    for table, column in (("embeddings", "id"), ("rows", "embedding"), ("sketches", "embedding")):
        connection.execute(f"DELETE FROM {table} WHERE {column} > ?", (simulation.tasks,))
    return 1000 * statistics.median(seconds)


def read_memory(field: str) -> float:
    """Megabytes of this process: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024 / 1e6


def main() -> None:
    """Measures, and writes the results beside earlier ones."""
    parser = make_parser(__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the library is kept for the next run")
    parser.add_argument("--out", type=Path, default=MEASURED / "library_search.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="task2vec-search-") as temporary:
        folder = arguments.folder or Path(temporary)
        simulation = Simulation(arguments.tasks)
        connection = open_library(folder)
        fill(connection, simulation)
        before = read_memory("VmRSS")
        result: dict[str, object] = dict(measure(connection, simulation, arguments.queries))
        result["memory grown by MB"] = read_memory("VmHWM") - before
        result["add ms"] = measure_add(connection, simulation)
        connection.close()
        hard = []
        for name, options in HARD.items():
            simulation = Simulation(HARD_TASKS, **options)
            (Path(temporary) / name).mkdir()
            connection = open_library(Path(temporary) / name)
            fill(connection, simulation)
            hard.append({"library": name, **measure(connection, simulation, arguments.queries)})
            connection.close()
    show_table(("", ""), list(result.items()))
    show_table(list(hard[0]), [list(row.values()) for row in hard])
    write_json(arguments.out, {"machine": describe_machine(), "search": result, "hard": hard})


if __name__ == "__main__":
    main()
