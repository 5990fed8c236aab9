"""Work for the backends, and one table of what must come of it, whichever backend does it."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import task2vec as t2v
from task2vec.errors import DataError, UsageError
from task2vec.parallel import Backend, Failure, Unit, Work


class OddDataError(DataError):
    """An error of ours that `task2vec.errors` does not contain."""


@dataclass(frozen=True)
class Counting:
    """Counts to the payload; a text is raised as an error after two values."""

    def open(self) -> Callable[[Any], Any]:
        return self.count

    def count(self, payload: Any):
        if isinstance(payload, str):
            yield from (0, 1)
            raise {"ours": DataError, "odd": OddDataError}.get(payload, ZeroDivisionError)(f"{payload} went wrong")
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


@dataclass(frozen=True)
class Dying:
    """Notes every attempt in a file of its unit, and dies in the first ones, between two values."""

    folder: Path
    leaves_child: bool = False

    def open(self) -> Callable[[Any], Any]:
        return self.try_once

    def try_once(self, payload: tuple[str, int]):
        name, deaths = payload
        child = 0
        if self.leaves_child:  # it has all files of its parent open
            child = os.fork()
            if child == 0:
                time.sleep(20)
                os._exit(0)
        with open(self.folder / name, "a") as file:
            file.write(f"{child}\n")
        yield "first"
        if count_attempts(self.folder, name) <= deaths:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        yield "second"


def count_attempts(folder: Path, name: str) -> int:
    return len((folder / name).read_text().splitlines())


@dataclass(frozen=True)
class Broken:
    """Cannot be opened; or ends its process when it is opened."""

    is_fatal: bool = False

    def open(self) -> Callable[[Any], Any]:
        if self.is_fatal:
            os._exit(7)
        raise UsageError("this work has no handle")


@dataclass(frozen=True)
class Locking:
    """A value, then one that cannot travel."""

    key: object = None

    def open(self) -> Callable[[Any], Any]:
        return lambda payload: [payload, threading.Lock()]


@dataclass(frozen=True)
class Threads:
    """Returns the number of threads of a process."""

    def open(self) -> Callable[[Any], Any]:
        import torch

        return lambda payload: [(torch.get_num_threads(), os.environ["OMP_NUM_THREADS"])]


class Unopened:
    """A payload that travels and cannot be put together again."""

    def __init__(self, needed: object):
        self.needed = needed

    def __reduce__(self):
        return Unopened, ()


# Units by their payloads, and for each of them its values and the kind of its failure.
LARGE = bytes(range(256)) * 20_000
CASES: dict[str, list[tuple[Any, list, str | None]]] = {
    "values in their order": [(3, [0, 1, 2], None), (0, [], None), (7, list(range(7)), None)],
    "nothing to do": [],
    "errors": [
        (2, [0, 1], None),
        ("bad", [0, 1], "ZeroDivisionError"),
        ("ours", [0, 1], "DataError"),
        ("odd", [0, 1], "DataError"),
        (0.5, [], "TypeError"),
    ],
    "one poisoned among fifty": [
        ("poison", [0, 1], "ZeroDivisionError") if n == 23 else (n % 4, list(range(n % 4)), None) for n in range(50)
    ],
}
EXIT_CODES = {"DataError": 3, "ZeroDivisionError": 1, "TypeError": 1}


def gather(backend: Backend, work: Work, units: Sequence[Unit]) -> tuple[dict[str, list], dict[str, Failure | None]]:
    """The values and the end of every unit, each of which ends once, after its values."""
    values: dict[str, list] = {unit.key: [] for unit in units}
    ends: dict[str, Failure | None] = {}
    for result in backend.run(work, units):
        assert result.key not in ends, f"{result.key} goes on after its end"
        if result.is_last:
            assert result.value is None
            ends[result.key] = result.failure
        else:
            assert result.failure is None
            values[result.key].append(result.value)
    assert set(ends) == {unit.key for unit in units}
    return values, ends


def check_case(backend: Backend, name: str) -> None:
    """Asserts that a backend makes of a case what it must."""
    units = [Unit(f"unit {number}", payload) for number, (payload, _, _) in enumerate(CASES[name])]
    values, ends = gather(backend, Counting(), units)
    for unit, (payload, wanted, kind) in zip(units, CASES[name], strict=True):
        failure = ends[unit.key]
        assert (values[unit.key], failure and failure.kind) == (wanted, kind)
        if failure is not None:
            assert failure.exit_code == EXIT_CODES[failure.kind]
            assert isinstance(payload, float) or failure.message == f"{payload} went wrong"
            assert "parallel_work.py" in failure.traceback


def check_large(backend: Backend) -> None:
    """Asserts that what does not fit into a pipe at once travels."""

    values, _ = gather(backend, Echo(), [Unit(key, LARGE + key.encode()) for key in "abc"])
    assert values == {key: [LARGE + key.encode()] for key in "abc"}


@dataclass(frozen=True)
class Echo:
    """Returns the payload."""

    def open(self) -> Callable[[Any], Any]:
        return lambda payload: [payload]


def check_deaths(backend: Backend, folder: Path, *, cause: str) -> None:
    """Asserts that units whose process dies are tried again, three times in all, and others not."""
    deaths = {"never": 0, "once": 1, "always": 99, "also never": 0}
    values, ends = gather(backend, Dying(folder), [Unit(name, (name, count)) for name, count in deaths.items()])
    wanted_attempts = {"never": 1, "once": 2, "always": 3, "also never": 1}
    assert {name: count_attempts(folder, name) for name in deaths} == wanted_attempts
    assert values == {name: [] if name == "always" else ["first", "second"] for name in deaths}
    failure = ends.pop("always")
    assert failure is not None and (failure.kind, failure.exit_code) == ("ResourceError", 5)
    assert f"'always' was given up: its process died 3 times ({cause}" in failure.message
    assert set(ends.values()) == {None}


def check_laziness(backend: Backend, *, most: int) -> None:
    """Asserts that units are requested when a worker is free, not before."""
    asked: list[int] = []

    def ask():
        for number in range(30):
            asked.append(number)
            yield Unit(str(number), 1)

    seen = 0
    for result in backend.run(Counting(), ask()):
        seen += result.is_last
        assert len(asked) - seen <= most
    assert seen == len(asked) == 30


def check_warmth(backend: Backend, *, jobs: int) -> None:
    """Asserts that work is opened once by each worker, also for a second run, and other work by itself."""
    units = [Unit(str(number), 0.02) for number in range(8)]
    for name in ("one", "one", "other"):
        values, _ = gather(backend, Remembering(name), units)
        found = [value for own in values.values() for value in own]
        assert len({process for process, _ in found}) <= jobs
        assert {opened for _, opened in found} == {1}, name


def check_travel(backend: Backend) -> None:
    """Asserts that what cannot travel is a failure of its unit, or refused."""
    for work, words in ((Broken(), "this work has no handle"), (Locking(threading.Lock()), "the work cannot be sent")):
        try:
            list(backend.run(work, [Unit("a", 1)]))
        except UsageError as error:
            assert words in str(error)
        else:
            raise AssertionError(words)
    units = [Unit("a", 1), Unit("locked", threading.Lock()), Unit("odd", Unopened(1)), Unit("b", 2)]
    values, ends = gather(backend, Counting(), units)
    assert values == {"a": [0], "locked": [], "odd": [], "b": [0, 1]} and ends["a"] is ends["b"] is None
    for key, words in (("locked", "'locked' cannot be sent"), ("odd", "cannot be opened in another process")):
        failure = ends[key]
        assert failure is not None and (failure.kind, failure.exit_code) == ("UsageError", 2)
        assert words in failure.message and "backend='serial'" in failure.message
    values, ends = gather(backend, Locking(), [Unit("a", 1)])
    assert values == {"a": [1]} and ends["a"] is not None
    assert ends["a"].kind == "UsageError" and "the result cannot be sent" in ends["a"].message


@cache
def load_small_probe():
    return t2v.load_probe(size=32)


def to_bytes(one) -> bytes:
    """All that an embedding is."""
    numbers = b"".join(array.tobytes() for array in (one.fisher, one.stderr, one.prior))
    return numbers + json.dumps(one.provenance, sort_keys=True).encode()


def embed_bytes(backend: Backend | str | None) -> list[bytes]:
    """Small embeddings by whichever backend; two of the three tasks share their images."""
    tasks, settings = t2v.sample_tasks(images_per_task=20)[:3], t2v.EmbedSettings(max_samples=6, l2=0.1)
    found = {}
    for result in t2v.embed_many(tasks, load_small_probe(), settings=settings, backend=backend):
        assert result.embedding is not None, result.error
        found[result.number] = to_bytes(result.embedding)
    return [found[number] for number in range(len(found))]
