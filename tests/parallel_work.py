"""Work for the backends, and what must come of it, whichever backend does it."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import task2vec as t2v
from task2vec.errors import DataError, UsageError
from task2vec.parallel import Backend, Failure, Unit, Work


class OddDataError(DataError):
    """An error of ours that `task2vec.errors` does not contain."""


@dataclass(frozen=True)
class Do:
    """Work that calls a function for each unit."""

    function: Callable[[Any], Iterable[Any]]

    def open(self) -> Callable[[Any], Iterable[Any]]:
        return self.function


def count(payload: Any, lock: object = None):
    """Counts to a number, returns bytes, and raises a text as an error after two values."""
    if isinstance(payload, bytes):
        yield payload
    elif payload == "lock":
        yield threading.Lock()
    elif isinstance(payload, str):
        yield from (0, 1)
        raise {"ours": DataError, "odd": OddDataError}.get(payload, ZeroDivisionError)(f"{payload} went wrong")
    else:
        yield from range(payload)


@dataclass(frozen=True)
class Remembering:
    """Returns the process, and how often the work was opened in it."""

    name: str = "work"

    def open(self) -> Callable[[Any], Any]:
        OPENED.append(self.name)
        return self.report

    def report(self, seconds: float):
        time.sleep(seconds)
        yield os.getpid(), OPENED.count(self.name)


OPENED: list[str] = []


def die(folder: Path, payload: tuple[str, int]):
    """Notes every attempt in a file of its unit, and dies in the first ones, between two values."""
    name, deaths = payload
    with open(folder / name, "a") as file:
        file.write("attempt\n")
    yield "first"
    if count_attempts(folder, name) <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    yield "second"


def count_attempts(folder: Path, name: str) -> int:
    return len((folder / name).read_text().splitlines())


class Broken:
    """Cannot be opened."""

    def open(self) -> Callable[[Any], Any]:
        raise UsageError("this work has no handle")


def find_threads(_: object):
    """The number of threads of torch, and of libraries that are loaded later."""
    yield torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")


class Unopened:
    """A payload that travels and cannot be put together again."""

    def __init__(self, needed: object):
        self.needed = needed

    def __reduce__(self):
        return Unopened, ()


# Units by their payloads, and for each of them its values and the kind and exit code of its failure.
LARGE = bytes(range(256)) * 20_000  # more than fits into a pipe at once
TABLE: list[tuple[Any, list, tuple[str, int] | None]] = [
    (3, [0, 1, 2], None),
    (LARGE, [LARGE], None),
    ("ours", [0, 1], ("DataError", 3)),
    ("odd", [0, 1], ("DataError", 3)),
    (0.5, [], ("TypeError", 1)),
    *[
        ("poison", [0, 1], ("ZeroDivisionError", 1)) if n == 23 else (n % 4, list(range(n % 4)), None)
        for n in range(50)
    ],
]


Ends = dict[str, Failure | None]


def gather(
    backend: Backend, work: Work, units: Iterable[Unit], ends: Ends | None = None
) -> tuple[dict[str, list], Ends]:
    """The values and the end of every unit, each of which ends once, after its values; `ends` is filled on the way."""
    values: dict[str, list] = {}
    ends = {} if ends is None else ends
    for result in backend.run(work, units):
        assert result.key not in ends, f"{result.key} goes on after its end"
        if result.is_last:
            assert result.value is None
            ends[result.key] = result.failure
            values.setdefault(result.key, [])
        else:
            assert result.failure is None
            values.setdefault(result.key, []).append(result.value)
    return values, ends


def check_table(backend: Backend, *, jobs: int) -> None:
    """Asserts values, failures, and that units are requested when a worker is free, not before."""
    ends: Ends = {}

    def request_units():
        for number, (payload, _, _) in enumerate(TABLE):
            assert number - len(ends) < jobs
            yield Unit(str(number), payload)

    values, _ = gather(backend, Do(count), request_units(), ends)
    for number, (payload, wanted, kind) in enumerate(TABLE):
        failure = ends[str(number)]
        assert (values[str(number)], failure and (failure.kind, failure.exit_code)) == (wanted, kind)
        if failure is not None:
            assert isinstance(payload, float) or failure.message == f"{payload} went wrong"
            assert "parallel_work.py" in failure.traceback
    assert len(ends) == len(TABLE) and list(backend.run(Do(count), [])) == []


def check_deaths(backend: Backend, folder: Path, deaths: dict[str, int], *, cause: str) -> None:
    """Asserts that units whose process dies so often are tried again, three times in all, and others not."""
    values, ends = gather(backend, Do(partial(die, folder)), [Unit(name, (name, deaths[name])) for name in deaths])
    assert {name: count_attempts(folder, name) for name in deaths} == {n: min(deaths[n] + 1, 3) for n in deaths}
    assert values == {name: ["first", "second"] if deaths[name] < 3 else [] for name in deaths}
    failure = ends.pop("always")
    assert failure is not None and (failure.kind, failure.exit_code) == ("ResourceError", 5)
    assert f"'always' was abandoned: its process died 3 times ({cause}" in failure.message
    assert set(ends.values()) == {None}


def check_travel(backend: Backend) -> None:
    """Asserts that what cannot travel is a failure of its unit, or refused."""
    import pytest  # here: every worker imports this module, and pytest takes half a second

    for work, words in (
        (Broken(), "this work has no handle"),
        (Do(partial(count, lock=threading.Lock())), "the work cannot be sent"),
    ):
        with pytest.raises(UsageError, match=words):
            list(backend.run(work, [Unit("a", 1)]))
    payloads = {"a": 1, "locked": threading.Lock(), "odd": Unopened(1), "returned": "lock", "b": 2}
    values, ends = gather(backend, Do(count), [Unit(key, payload) for key, payload in payloads.items()])
    assert values == {"a": [0], "locked": [], "odd": [], "returned": [], "b": [0, 1]}
    assert ends.pop("a") is ends.pop("b") is None
    for key in ("locked", "odd", "returned"):
        failure = ends[key]
        assert failure is not None and (failure.kind, failure.exit_code) == ("UsageError", 2)
        assert f"'{key}' cannot be sent to a Ray worker and back (" in failure.message
        assert "backend='serial'" in failure.message


def to_bytes(one) -> bytes:
    """All that an embedding is."""
    numbers = b"".join(array.tobytes() for array in (one.fisher, one.stderr, one.prior))
    return numbers + json.dumps(one.provenance, sort_keys=True).encode()


def embed_bytes(backend: Backend | str | None) -> list[bytes]:
    """Small embeddings by whichever backend; two of the three tasks share their images."""
    tasks, settings = t2v.sample_tasks(images_per_task=20)[:3], t2v.EmbedSettings(max_samples=6, l2=0.1)
    found = {}
    for result in t2v.embed_many(tasks, t2v.load_probe(size=32), settings=settings, backend=backend):
        assert result.embedding is not None, result.error
        found[result.number] = to_bytes(result.embedding)
    return [found[number] for number in range(len(found))]


def is_alive(process: int) -> bool:
    """Whether a process runs; one that has ended and waits to be noticed does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(is_so: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether it becomes so in time."""
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:
        time.sleep(0.02)
    return is_so()


def find_session(session: int) -> list[str]:
    """The processes of a session that are alive."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, _, own = place.read_text().rsplit(")", 1)[1].split()[:4]
            if int(own) == session and state != "Z":
                found.append((place.parent / "cmdline").read_text())
    return found
