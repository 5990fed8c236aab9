"""(w) How fast a library takes embeddings in, against what the disk itself takes for the same bytes.

    python benchmarks/library_adds.py [--quick] [--out FILE]

Embeddings have the size of those of the default probe (21,008 filters, 0.5 MB). They are added one by one, a hundred in
one transaction, and one by one by eight processes at once. The limit is a file with the same bytes that is written and
flushed to the disk, and nothing else. All ways alternate; ratios are medians over the rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402

from task2vec.embedding import Embedding  # noqa: E402
from task2vec.embedding.embedding import encode_embedding  # noqa: E402
from task2vec.library import Library  # noqa: E402
from task2vec.probe import FilterLayer  # noqa: E402

FILTERS = 21_008
ONE_BY_ONE, TOGETHER, PROCESSES, OF_EACH, ROUNDS = 20, 100, 8, 10, 7
_LAYERS = (FilterLayer("conv", "convolution", FILTERS, 9, 0.1),)


def make(seed: int) -> Embedding:
    """A random embedding of the real size, with a story as long as a real one."""
    fisher = np.random.default_rng(seed).lognormal(size=FILTERS)
    story = {
        "task_fingerprint": f"{seed:064x}",
        "probe_fingerprint": "ab" * 32,
        "settings": {"method": "robust", "seed": 0},
        "recipe": 2,
        "classes": [f"class {number}" for number in range(10)],
        "is_multilabel": False,
        "counts": {"images": 100, "classes": 10, "per_class": [10] * 10},
        "head": {"cv_error": 0.1},
    }
    return Embedding(f"task {seed}", "net", fisher, fisher / 10, np.full(FILTERS, 1e-3), _LAYERS, story)


def measure(plan) -> tuple[dict[str, object], list]:
    """Adds per second of all ways, and how many times as long as the bare write each takes."""
    from benchmarks.measure import show_table

    rounds = 1 if plan.is_quick else ROUNDS
    print(f"\n(w) adds to a library: blobs of {len(encode_embedding(make(0))) / 1e6:.2f} MB", flush=True)
    with tempfile.TemporaryDirectory(prefix="task2vec-bench-") as folder:
        seconds = _measure_rounds(Path(folder), rounds)
    bare = seconds["bare writes"]
    rows = [
        (
            way,
            1 / statistics.median(taken),
            1000 * statistics.median(taken),
            statistics.median(one / limit for one, limit in zip(taken, bare, strict=True)),
        )
        for way, taken in seconds.items()
    ]
    show_table(("way", "per second", "ms each", "times the bare write"), rows)
    names = ("per_second", "milliseconds", "ratio")
    return {
        "library_adds": {
            "bytes": len(encode_embedding(make(0))),
            "rounds": rounds,
            "ways": {row[0]: dict(zip(names, row[1:], strict=True)) for row in rows},
        }
    }, []


def _measure_rounds(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds per embedding of every way in every round, after one that does not count."""
    numbers = count()
    seconds: dict[str, list[float]] = {}
    with Library.open(folder / "library") as library:
        for round_ in range(rounds + 1):
            found = {
                "bare writes": _write_bare(folder, [make(next(numbers)) for _ in range(ONE_BY_ONE)]),
                "one by one": _add(library, [[make(next(numbers))] for _ in range(ONE_BY_ONE)]),
                "100 in one transaction": _add(library, [[make(next(numbers)) for _ in range(TOGETHER)]]),
                "8 processes": _add_together(library.folder, 1_000_000 * (round_ + 1)),
            }
            for way, taken in found.items():
                seconds.setdefault(way, []).append(taken)
    return {way: taken[1:] for way, taken in seconds.items()}


def _write_bare(folder: Path, embeddings: list[Embedding]) -> float:
    contents = [encode_embedding(one) for one in embeddings]
    began = time.perf_counter()
    for number, content in enumerate(contents):
        with open(folder / f"{number}.bare", "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    taken = (time.perf_counter() - began) / len(contents)
    for path in folder.glob("*.bare"):
        path.unlink()
    return taken


def _add(library: Library, parts: list[list[Embedding]]) -> float:
    began = time.perf_counter()
    for part in parts:
        library.add(*part)
    return (time.perf_counter() - began) / sum(map(len, parts))


def _add_together(folder: Path, first: int) -> float:
    """Seconds from the moment that all processes may begin to the end of the last one, by embedding."""
    command = [sys.executable, __file__, "--worker", str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [
        subprocess.Popen([*command, str(first + 1000 * number)], env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)
        for number in range(PROCESSES)
    ]
    for worker in workers:
        worker.stdout.readline()
    began = time.perf_counter()
    for worker in workers:
        print("go", file=worker.stdin, flush=True)
    for worker in workers:
        assert worker.stdout.readline() == "done\n"
    taken = time.perf_counter() - began
    for worker in workers:
        worker.communicate()
    return taken / (PROCESSES * OF_EACH)


def _work(folder: str, first: int) -> None:
    embeddings = [make(first + number) for number in range(OF_EACH)]
    with Library.open(folder) as library:
        print("ready", flush=True)
        sys.stdin.readline()
        for embedding in embeddings:
            library.add(embedding)
        print("done", flush=True)


def main() -> None:
    """Measures by itself, or works for a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, to see that it runs")
    parser.add_argument("--out", type=Path, default=_ROOT / "docs" / "measured" / "library_adds.json")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        _work(arguments.worker[0], int(arguments.worker[1]))
        return
    from benchmarks.measure import Plan, describe_machine

    found, _ = measure(Plan(_ROOT.parent / "shared", arguments.quick))
    arguments.out.write_text(json.dumps({"machine": describe_machine(), **found}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
