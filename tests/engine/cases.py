"""Work for engines, and one table of what must come of it, whichever engine does it."""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task2vec.engine import Engine, Failure, Unit, Work
from task2vec.errors import DataError, UsageError


class OddDataError(DataError):
    """An error of ours that the room of errors does not know."""


@dataclass(frozen=True)
class Counting:
    """Counts to the payload; a text is a mistake, and what it says is raised after two values."""

    def open(self) -> Callable[[Any], Any]:
        """A function that counts."""
        return self.count

    def count(self, payload: Any):
        """The numbers below the payload."""
        if isinstance(payload, str):
            yield from (0, 1)
            raise {"ours": DataError, "odd": OddDataError}.get(payload, ZeroDivisionError)(f"{payload} went wrong")
        yield from range(payload)


@dataclass(frozen=True)
class Doubling:
    """Gives the payload back twice, as one list: large ones do not fit into a pipe at once."""

    def open(self) -> Callable[[Any], Any]:
        """A function that doubles."""
        return lambda payload: [payload, payload]


@dataclass(frozen=True)
class Remembering:
    """Tells the process, and how often the work was opened in it."""

    name: str = "work"

    def open(self) -> Callable[[Any], Any]:
        """A function that tells, and leaves a bit of time to others."""
        OPENED.append(self.name)
        return self.tell

    def tell(self, seconds: float):
        """Who and how often."""
        time.sleep(seconds)
        yield os.getpid(), OPENED.count(self.name)


OPENED: list[str] = []


@dataclass(frozen=True)
class Dying:
    """Notes every attempt in a file of its unit, and dies in the first ones, between two values."""

    folder: Path
    stop: int = signal.SIGKILL

    def open(self) -> Callable[[Any], Any]:
        """A function that dies."""
        return self.try_once

    def try_once(self, payload: tuple[str, int]):
        """Two values, if it lives."""
        name, deaths = payload
        with open(self.folder / name, "a") as file:
            file.write("tried\n")
        yield "first"
        if count_attempts(self.folder, name) <= deaths:
            os.kill(os.getpid(), self.stop)
            time.sleep(60)
        yield "second"


@dataclass(frozen=True)
class Forking:
    """Leaves a process behind that has all its files open, notes it, and dies."""

    folder: Path

    def open(self) -> Callable[[Any], Any]:
        """A function that dies."""
        return self.leave

    def leave(self, name: str):
        """Nothing."""
        heir = os.fork()
        if heir == 0:
            time.sleep(20)
            os._exit(0)
        with open(self.folder / name, "a") as file:
            file.write(f"{heir}\n")
        os.kill(os.getpid(), signal.SIGKILL)
        yield


def count_attempts(folder: Path, name: str) -> int:
    """How often a unit was tried."""
    return len((folder / name).read_text().splitlines())


@dataclass(frozen=True)
class Broken:
    """Cannot be opened."""

    def open(self) -> Callable[[Any], Any]:
        """Nothing."""
        raise UsageError("this work has no handle")


class Stillborn:
    """Ends its process when it is opened there."""

    def open(self) -> Callable[[Any], Any]:
        """Nothing, ever."""
        os._exit(7)


@dataclass(frozen=True)
class Locking:
    """A value, then one that cannot travel."""

    key: object = None

    def open(self) -> Callable[[Any], Any]:
        """A function to two values."""
        return lambda payload: [payload, threading.Lock()]


@dataclass(frozen=True)
class Threads:
    """Tells with how many threads a process computes."""

    def open(self) -> Callable[[Any], Any]:
        """A function that tells."""
        import torch

        return lambda payload: [(torch.get_num_threads(), os.environ["OMP_NUM_THREADS"])]


class Unopened:
    """A payload that travels and cannot be put together again."""

    def __init__(self, needed: object):
        self.needed = needed

    def __reduce__(self):
        return Unopened, ()


@dataclass(frozen=True)
class Case:
    """Units, and for each of them its values and the kind of its failure."""

    work: Work
    units: Sequence[Unit]
    wanted: dict[str, tuple[list, str | None]]


def _count(counts: Sequence[Any], wanted: Sequence[tuple[list, str | None]]) -> Case:
    units = [Unit(f"unit {number}", count) for number, count in enumerate(counts)]
    return Case(Counting(), units, {unit.key: (list(v), f) for unit, (v, f) in zip(units, wanted, strict=True)})


def _all_but(poisoned: int) -> Case:
    counts: list[Any] = [number % 4 for number in range(50)]
    counts[poisoned] = "poison"
    wanted = [([0, 1], "ZeroDivisionError") if c == "poison" else (list(range(c)), None) for c in counts]
    return _count(counts, wanted)


LARGE = bytes(range(256)) * 20_000

CASES = {
    "values in their order": _count([3, 0, 1, 7], [([0, 1, 2], None), ([], None), ([0], None), (range(7), None)]),
    "nothing to do": _count([], []),
    "a unit that raises": _count([2, "bad", 1], [([0, 1], None), ([0, 1], "ZeroDivisionError"), ([0], None)]),
    "an error of ours": _count(["ours", 1], [([0, 1], "DataError"), ([0], None)]),
    "an odd error of ours": _count(["odd"], [([0, 1], "DataError")]),
    "nothing that can be counted": _count([1, 0.5], [([0], None), ([], "TypeError")]),
    "one poisoned among fifty": _all_but(23),
    "more units than workers": _count([1] * 120, [([0], None)] * 120),
    "large values": Case(
        Doubling(),
        [Unit(key, LARGE + key.encode()) for key in "abc"],
        {k: ([LARGE + k.encode()] * 2, None) for k in "abc"},
    ),
}
FAILED_TEXTS = {"DataError": 3, "ZeroDivisionError": 1, "TypeError": 1}


def gather(engine: Engine, work: Work, units: Sequence[Unit]) -> tuple[dict[str, list], dict[str, Failure | None]]:
    """The values and the end of every unit, each of which ends once, after its values."""
    values: dict[str, list] = {unit.key: [] for unit in units}
    ends: dict[str, Failure | None] = {}
    for result in engine.run(work, units):
        assert result.key not in ends, f"{result.key} goes on after its end"
        if result.is_last:
            assert result.value is None
            ends[result.key] = result.failure
        else:
            assert result.failure is None
            values[result.key].append(result.value)
    assert set(ends) == {unit.key for unit in units}
    return values, ends


def check_case(engine: Engine, case: Case) -> None:
    """Asserts that an engine makes of a case what it must."""
    values, ends = gather(engine, case.work, case.units)
    assert {key: (values[key], end and end.kind) for key, end in ends.items()} == case.wanted
    for key, failure in ends.items():
        if failure is not None:
            assert failure.exit_code == FAILED_TEXTS[failure.kind] and failure.attempts == 1
            payload = next(unit.payload for unit in case.units if unit.key == key)
            assert isinstance(payload, float) or failure.message == f"{payload} went wrong"
            assert "cases.py" in failure.traceback


def check_deaths(engine: Engine, folder: Path, *, words: str, may_lose: bool = False) -> None:
    """Asserts that units whose process dies are tried again, three times in all, and others not.

    A cluster `may_lose` the last value of a process that died.
    """
    deaths = {"never": 0, "once": 1, "always": 99, "also never": 0}
    units = [Unit(name, (name, count)) for name, count in deaths.items()]
    values, ends = gather(engine, Dying(folder), units)
    wanted_attempts = {"never": 1, "once": 2, "always": 3, "also never": 1}
    assert {name: count_attempts(folder, name) for name in deaths} == wanted_attempts
    for name, count in deaths.items():
        wanted = ["first"] * min(count, 3) + ([] if count == 99 else ["first", "second"])
        assert values[name] == (wanted[len(wanted) - len(values[name]) :] if may_lose else wanted)
        assert count == 99 or values[name][-2:] == ["first", "second"]
    failure = ends.pop("always")
    assert failure is not None and (failure.kind, failure.exit_code, failure.attempts) == ("ResourceError", 5, 3)
    assert f"'always' was given up: its process died 3 times ({words}" in failure.message
    assert set(ends.values()) == {None}


def check_laziness(engine: Engine, *, most: int) -> None:
    """Asserts that units are asked for when somebody is free, not before."""
    asked: list[int] = []

    def ask():
        for number in range(100):
            asked.append(number)
            yield Unit(str(number), 1)

    seen = 0
    for result in engine.run(Counting(), ask()):
        seen += result.is_last
        assert len(asked) - seen <= most
    assert seen == len(asked) == 100


def check_warmth(engine: Engine, *, workers: int) -> None:
    """Asserts that work is opened once by each worker, also for a second run, and other work by itself."""
    units = [Unit(str(number), 0.02) for number in range(8)]
    for name, wanted in (("one", 1), ("one", 1), ("other", 1)):
        values, _ = gather(engine, Remembering(name), units)
        told = [value for own in values.values() for value in own]
        assert len({process for process, _ in told}) <= workers
        assert {opened for _, opened in told} == {wanted}, name
