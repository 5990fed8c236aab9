"""A library's file, filled with rows and sketches of simulated tasks, and queries to it with a clock beside."""

import hashlib
import json
import os
import sqlite3
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save, save_file

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

from task2vec.embedding import Embedding  # noqa: E402
from task2vec.library.database import FILE, Database  # noqa: E402
from task2vec.library.search import Search, find_candidates, fit_sketcher  # noqa: E402
from task2vec.probe import FilterLayer  # noqa: E402

NEAREST = 10
# Up to so many tasks, all rows are written.
MOST_ROWS = 100_000
_CHUNK, _SAMPLE, _NEW = 500, 1000, 20
_HERE: dict[str, object] = {}


def build(folder: Path, simulation, asked: np.ndarray, *, most: int) -> dict[str, object]:
    """Fills the library in the folder; the tasks have their number + 1 as id. Returns how long it took."""
    database, search = Database(folder / FILE, read_only=False), Search()
    with database.write() as connection:
        columns = "id, key, probe, probe_fingerprint, settings, filters"
        values = (1, "5".zfill(64), "net", "p", "{}", simulation.filters)
        connection.execute(f"INSERT INTO spaces({columns}) VALUES (?, ?, ?, ?, ?, ?)", values)
    starts = range(0, simulation.tasks, _CHUNK)
    _HERE.update(simulation=simulation)
    save_file(
        {"asked": asked, "queries": simulation.rows(asked), "new": type(simulation)(_NEW, seed=99).rows(range(_NEW))},
        folder / "questions.safetensors",
    )
    begin = time.perf_counter()
    connection = _connect(folder)
    if simulation.tasks <= MOST_ROWS:
        _write_all(connection, starts)
        connection.execute("BEGIN IMMEDIATE")
        search.fit(connection, 1)
        connection.execute("COMMIT")
    else:
        _write_sketches(connection, starts)
        _write_candidates(connection, search, asked, most)
    connection.close()
    database.close()
    return {"seconds to build": time.perf_counter() - begin}


def _write_all(connection: sqlite3.Connection, starts: range) -> None:
    """All rows, without sketches."""
    from benchmarks.library_truth import work_on_cores

    for at in range(0, len(starts), 20):
        some = starts[at : at + 20]
        connection.execute("BEGIN IMMEDIATE")
        for start, rows in zip(some, work_on_cores(_make_rows, some), strict=True):
            _insert(connection, range(start + 1, start + 1 + len(rows)), rows)
        connection.execute("COMMIT")


def _make_rows(start: int) -> np.ndarray:
    simulation = _HERE["simulation"]
    return simulation.rows(range(start, min(start + _CHUNK, simulation.tasks)))


def _insert(connection: sqlite3.Connection, ids, rows: np.ndarray) -> None:
    pairs = zip(ids, rows, strict=True)
    connection.executemany("INSERT INTO rows VALUES (?, ?)", ((number, row.tobytes()) for number, row in pairs))
    connection.executemany("INSERT OR IGNORE INTO sketches VALUES (?, 1, NULL)", ((number,) for number in ids))


def _write_sketches(connection: sqlite3.Connection, starts: range) -> None:
    """All sketches, without rows."""
    from benchmarks.library_truth import work_on_cores

    simulation = _HERE["simulation"]
    sample = np.random.default_rng(0).choice(simulation.tasks, _SAMPLE, replace=False)
    _HERE["sketcher"] = fit_sketcher(simulation.rows(sample))
    basis = save(vars(_HERE["sketcher"]))
    connection.execute("BEGIN IMMEDIATE")
    values = (basis, hashlib.sha256(basis).hexdigest())
    connection.execute("UPDATE spaces SET basis = ?, basis_sha256 = ?", values)
    for start, sketches in zip(starts, work_on_cores(_make_sketches, starts), strict=True):
        pairs = ((start + at + 1, one.tobytes()) for at, one in enumerate(sketches))
        connection.executemany("INSERT INTO sketches VALUES (?, 1, ?)", pairs)
    connection.execute("COMMIT")


def _make_sketches(start: int) -> np.ndarray:
    simulation = _HERE["simulation"]
    return _HERE["sketcher"].project(simulation.rows(range(start, min(start + _CHUNK, simulation.tasks))))


def _write_candidates(connection: sqlite3.Connection, search: Search, asked: np.ndarray, most: int) -> None:
    """The rows that the queries will be compared with."""
    simulation, known = _HERE["simulation"], search.look(connection, 1)
    sketches = _HERE["sketcher"].project(simulation.rows(asked))
    found = [find_candidates(known.blocks, sketch, most + 2) for sketch in sketches]
    connection.execute("BEGIN IMMEDIATE")
    for number in np.unique(np.concatenate(found)).tolist():
        _insert(connection, [number], simulation.rows([number - 1]))
    connection.execute("COMMIT")


def ask(folder: Path, candidates: list[int]) -> dict[str, object]:
    """Asks all questions; milliseconds are medians, memory is that of this process, which does nothing else."""
    connection, search = _connect(folder), Search()
    questions = load_file(folder / "questions.safetensors")
    numbers = (questions["asked"] + 1).tolist()
    asked = list(zip(map(_make_embedding, questions["queries"]), numbers, strict=True))
    bare, begin = _read_memory(), time.perf_counter()
    entries = len(search.look(connection, 1).ids)
    loaded = time.perf_counter() - begin

    def nearest(query: Embedding, own: int, **how) -> tuple[list[tuple[int, float]], float]:
        begin = time.perf_counter()
        found = search.nearest(connection, 1, query, k=NEAREST, without={own}, **how)
        return found, 1000 * (time.perf_counter() - begin)

    _forget_rows(folder)
    first = [nearest(*pair)[1] for pair in asked]
    answers = {count: [nearest(*pair, candidates=count) for pair in asked] for count in candidates}
    warm = [nearest(*pair)[1] for pair in asked]
    summary = {
        "query ms": statistics.median(warm),
        "query ms, slowest of 20": float(np.quantile(warm, 0.95)),
        "query ms, rows not in memory": statistics.median(first),
        **{f"query ms, {count} candidates": _median(answers[count]) for count in candidates},
        "exact ms": nearest(*asked[0], exact=True)[1] if entries <= MOST_ROWS // 10 else None,
        "load s": loaded,
        "memory before MB": bare,
        "memory MB": _read_memory(),
        "peak memory MB": _read_memory("VmHWM"),
        "add ms": _add(connection, search, [_make_embedding(row) for row in questions["new"]], entries),
        "file MB": (folder / FILE).stat().st_size / 1e6,
    }
    numbers, apart = (
        {count: [[pair[which] for pair in found] for found, _ in answers[count]] for count in candidates}
        for which in (0, 1)
    )
    return {**summary, "found": numbers, "distances": apart}


def _median(answers: list[tuple[list, float]]) -> float:
    return statistics.median(taken for _, taken in answers)


def _add(connection: sqlite3.Connection, search: Search, new: list[Embedding], entries: int) -> float:
    """Median milliseconds of one addition, with its flushing to the disk."""
    taken = []
    for number, one in enumerate(new):
        begin = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        search.enter(connection, 1, entries + number + 1, one)
        connection.execute("COMMIT")
        taken.append(1000 * (time.perf_counter() - begin))
    found = search.nearest(connection, 1, new[-1], k=1)
    assert found == [(entries + len(new), 0.0)], "a new task is not found"
    return statistics.median(taken)


def _make_embedding(row: np.ndarray) -> Embedding:
    """An embedding that has this row."""
    sizes = np.abs(row.astype(np.float64))
    layers = (FilterLayer("conv", "convolution", len(row), 9, 0.1),)
    fisher, prior = np.where(row > 0, sizes, 0), np.where(row > 0, 1e-12 * sizes, sizes)
    return Embedding("task", "net", fisher, np.zeros(len(row)), prior, layers, {"probe_fingerprint": "p"})


def _forget_rows(folder: Path) -> None:
    """Drops the file from the system's memory, where that is possible."""
    if hasattr(os, "posix_fadvise"):
        with (folder / FILE).open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_memory(name: str = "VmRSS") -> float:
    """Megabytes of this process now, or at most (VmHWM); not a number where the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return float("nan")
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024 / 1e6


def _connect(folder: Path) -> sqlite3.Connection:
    """A connection that lets rows be without embeddings."""
    connection = sqlite3.connect(folder / FILE, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


if __name__ == "__main__":
    print(json.dumps(ask(Path(sys.argv[1]), [int(count) for count in sys.argv[2:]])))
