"""(s) The server under load: 50 clients on loopback ask a library of 5,000 tasks for neighbours and recommendations.

    python benchmarks/web_load.py [--quick] [--library DIR] [--out FILE]

The tasks are simulated (see simulated_library.py) and lie in the space of those that ship. The server is a process of
its own. Every client asks about a task drawn at random, first who is near, then which expert to start from, and
at once about the next one; no answer is known before (`first`). Then all ask again about tasks that were asked for
(`again`): those answers are kept. Memory is the resident set of the server, every few seconds.
"""

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402

from benchmarks.measure import MEASURED, SHARED, Plan, Verdict, describe_machine, make_parser, show_table, write_json  # noqa: E402
from benchmarks.simulated_library import Simulation  # noqa: E402
from task2vec.embedding import Embedding  # noqa: E402
from task2vec.library import Library  # noqa: E402
from task2vec.metatask import bundled_metatask  # noqa: E402

TASKS, CLIENTS, SECONDS, AGAIN = 5000, 50, 60.0, 15.0
_CHUNK, _EVERY = 50, 2.5
_START = "from task2vec.cli import main; main()"
KINDS = ("nearest", "recommendation")


@dataclass
class Found:
    """What clients and the scale beside them have seen."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    errors: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    took: float = 0.0


def measure(plan: Plan) -> tuple[dict[str, object], list[Verdict]]:
    """Times and memory of a whole run."""
    with tempfile.TemporaryDirectory(prefix="task2vec-bench-") as folder:
        return measure_at(Path(folder) / "library", is_quick=plan.is_quick)


def measure_at(folder: Path, *, is_quick: bool) -> tuple[dict[str, object], list[Verdict]]:
    """The same for a library in a folder, which is filled if it is not there."""
    tasks, clients = (200, 8) if is_quick else (TASKS, CLIENTS)
    seconds, again = (4.0, 2.0) if is_quick else (SECONDS, AGAIN)
    print(f"\n(s) {clients} clients of a server, {tasks} tasks, {seconds:.0f} s", flush=True)
    if not folder.exists():
        fill(folder, tasks)
    with serving(folder) as (process, port):
        ids = asyncio.run(list_ids(port, tasks))
        first = asyncio.run(load(port, process.pid, ids, clients=clients, seconds=seconds))
        second = asyncio.run(load(port, process.pid, first.asked, clients=clients, seconds=again))
        whole_map = asyncio.run(wait_for_map(port))
    summary = {"tasks": tasks, "clients": clients, "map_seconds": whole_map}
    summary |= {"first": summarize(first), "again": summarize(second)}
    _show(summary)
    memory = summary["first"]["memory"]
    growth = memory["end"] / memory["middle"]
    verdicts = [
        Verdict("failed requests", float(len(first.errors) + len(second.errors)), 0.0, False),
        Verdict("memory of the server, end over middle", growth, 1.1, False),
    ]
    return {"web_load": summary}, verdicts


def fill(folder: Path, tasks: int) -> None:
    """A library of simulated tasks, in the space of those that ship."""
    like = next(iter(bundled_metatask().spaces.values()))
    simulation = Simulation(tasks)
    begin = time.perf_counter()
    with Library.open(folder) as library:
        for at in range(0, tasks, _CHUNK):
            numbers = range(at, min(at + _CHUNK, tasks))
            rows = simulation.rows(numbers)
            library.add(*(make(number, row, like, simulation) for number, row in zip(numbers, rows, strict=True)))
    print(f"    {tasks} tasks were put into a library in {time.perf_counter() - begin:.0f} s", flush=True)


def make(number: int, row: np.ndarray, like: Embedding, simulation: Simulation) -> Embedding:
    """The embedding of a simulated row: negative where a filter is dead."""
    sizes = np.abs(row).astype(np.float64)
    prior = np.where(row < 0, sizes, 1e-3 * sizes)
    fisher = np.where(row < 0, 0.0, sizes - prior)
    story = {
        **like.provenance,
        "task_fingerprint": f"{number:064x}",
        "classes": [f"class {one}" for one in range(10)],
        "is_multilabel": False,
        "counts": {"images": 500, "classes": 10, "per_class": [50] * 10, "bad": 0},
    }
    name = f"task {number} of dataset {simulation.dataset[number]}"
    return Embedding(name, like.probe, fisher, fisher / 10, prior, like.layers, story)


@contextmanager
def serving(folder: Path):
    """The process of a server, and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": str(_ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _START, "serve", "--library", str(folder), "--port", str(port), "--no-open"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline().startswith("serving")
            yield process, port
        finally:
            process.terminate()


class Client:
    """One connection that is kept open: a request after the other."""

    def __init__(self, port: int):
        self.port, self._reader, self._writer = port, None, None

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of an answer."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        assert self._reader is not None
        self._writer.write(f"GET /api/v1{path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n".encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("content-length: ")[2].partition("\r")[0])
        return int(head.split()[1]), await self._reader.readexactly(length)

    def close(self) -> None:
        """Lets the connection go."""
        if self._writer is not None:
            self._writer.close()


async def list_ids(port: int, tasks: int) -> list[str]:
    """The ids of the library's tasks."""
    client, ids = Client(port), []
    for offset in range(0, tasks, 200):
        _, body = await client.get(f"/tasks?q=dataset&limit=200&offset={offset}")
        ids += [one["id"] for one in json.loads(body)["tasks"] if one["origin"] == "library"]
    client.close()
    assert len(ids) == tasks, len(ids)
    return ids


async def load(port: int, process: int, ids: list[str], *, clients: int, seconds: float) -> Found:
    """What so many clients see in so many seconds."""
    found, begin = Found(), time.perf_counter()
    end = begin + seconds

    async def weigh() -> None:
        while time.perf_counter() < end:
            found.memory.append(read_memory(process))
            await asyncio.sleep(min(_EVERY, seconds / 8))

    await asyncio.gather(weigh(), *(visit(port, ids, found, end, seed) for seed in range(clients)))
    found.memory.append(read_memory(process))
    found.took = time.perf_counter() - begin
    return found


async def visit(port: int, ids: list[str], found: Found, end: float, seed: int) -> None:
    """One client: a task after the other, until the time is over."""
    client, rng = Client(port), np.random.default_rng(seed)
    while time.perf_counter() < end:
        task = ids[int(rng.integers(len(ids)))]
        for kind in KINDS:
            begin = time.perf_counter()
            try:
                status, body = await client.get(f"/tasks/{task}/{kind}")
                if status != 200 or not body.startswith(b'{"task"'):
                    found.errors.append(f"{status} {body[:200]!r}")
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                found.errors.append(repr(error))
                client.close()
                client = Client(port)
            found.seconds[kind].append(time.perf_counter() - begin)
        found.asked.append(task)
    client.close()


async def wait_for_map(port: int) -> float:
    """Seconds until the map of all tasks is there."""
    client, begin = Client(port), time.perf_counter()
    while (await client.get("/map"))[0] == 202:
        await asyncio.sleep(0.2)
    client.close()
    return time.perf_counter() - begin


def read_memory(process: int) -> float:
    """The resident set of a process in MiB."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def summarize(found: Found) -> dict[str, object]:
    """The figures of one load."""
    memory = found.memory
    summary: dict[str, object] = {
        kind: {
            "requests": len(taken),
            "per_second": len(taken) / found.took,
            "median_ms": 1000 * statistics.median(taken),
            "p95_ms": 1000 * float(np.quantile(taken, 0.95)),
            "worst_ms": 1000 * max(taken),
        }
        for kind, taken in found.seconds.items()
    }
    summary["errors"], summary["examples"] = len(found.errors), found.errors[:3]
    summary["memory"] = {"start": memory[0], "middle": memory[len(memory) // 2], "end": memory[-1]}
    return summary


def _show(summary: dict[str, object]) -> None:
    rows = []
    for load_ in ("first", "again"):
        for kind in KINDS:
            one = summary[load_][kind]  # type: ignore[index]
            rows.append((f"{load_}: {kind}", one["per_second"], one["median_ms"], one["p95_ms"], one["worst_ms"]))
    show_table(("load", "per second", "median ms", "95 % ms", "worst ms"), rows)
    for load_ in ("first", "again"):
        memory = summary[load_]["memory"]  # type: ignore[index]
        errors = summary[load_]["errors"]  # type: ignore[index]
        sizes = ", ".join(f"{memory[at]:.0f}" for at in memory)
        print(f"    {load_}: {errors} errors; MiB at start, middle, end: {sizes}")
    print(f"    the map of {summary['tasks']} tasks was there after {summary['map_seconds']:.0f} s", flush=True)


def main() -> None:
    """Measures by itself."""
    parser = make_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="few tasks and seconds, to see that it runs")
    parser.add_argument("--library", type=Path, help="where the library is kept for the next run")
    parser.add_argument("--out", type=Path, default=MEASURED / "web_load.json")
    arguments = parser.parse_args()
    if arguments.library is None:
        found, verdicts = measure(Plan(SHARED, arguments.quick))
    else:
        found, verdicts = measure_at(arguments.library, is_quick=arguments.quick)
    for verdict in verdicts:
        print(f"  {verdict}")
    write_json(arguments.out, {"machine": describe_machine(), **found})


if __name__ == "__main__":
    main()
