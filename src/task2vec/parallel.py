"""Units of work, done in this process, by processes of this machine or by a Ray cluster, with the same results.

Units are idempotent: one whose process dies is done again, three times in all, and then fails by name; the others go
on. Values travel pickled, as they always do between Python processes. A pickle can run code, so only what our own
processes have packed is unpacked, from a pipe or a cluster of one's own, never from a file.
"""

import copyreg
import hashlib
import importlib
import io
import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
import threading
import traceback
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any, Protocol

from task2vec import errors
from task2vec.errors import MissingExtraError, ResourceError, Task2VecError, UsageError, WorkError

BACKENDS = ("serial", "processes", "ray")
MOST_ATTEMPTS = 3
# Read by the linear algebra libraries when they are loaded.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Read by Ray when it is imported or started: no usage reports, no change of CUDA_VISIBLE_DEVICES, nothing printed among
# our results, and memory that runs out counts as a death. Ray started here listens on loopback only.
_RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_task_oom_retries": str(MOST_ATTEMPTS - 1),
}
_RAY_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
_RAY_STARTS = 3  # on a busy machine the first may take too long


@dataclass(frozen=True)
class Unit:
    """One piece of work: its name in results and failures, and a value that describes what is to be done."""

    key: str
    payload: Any


class Work(Protocol):
    """How units are done. It travels to each worker once and is opened there, so that what it loads stays warm."""

    def open(self) -> Callable[[Any], Iterable[Any]]:
        """A function from a payload to its values."""
        ...


@dataclass(frozen=True)
class Failure:
    """Why a unit failed, as plain values that travel.

    Attributes:
        kind: the class of the error; of one that was raised on purpose, its name in `task2vec.errors`.
        message: its text.
        exit_code: of the command line.
        traceback: where it happened, for debugging.
    """

    kind: str
    message: str
    exit_code: int = 1
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """The failure for an error.

        Example:
            >>> Failure.of(KeyError("weights")).kind
            'KeyError'
        """
        known = next((base for base in type(error).__mro__ if vars(errors).get(base.__name__) is base), type(error))
        where = "".join(traceback.format_exception(error, limit=-8, chain=False))  # enough frames to find the place
        return cls(known.__name__, str(error), getattr(error, "exit_code", Task2VecError.exit_code), where)

    def error(self) -> Task2VecError:
        """The error to raise or report: of its own class if it was raised on purpose, else `WorkError`.

        Example:
            >>> Failure("DataError", "no images", exit_code=3).error()
            DataError('no images')
            >>> Failure("ZeroDivisionError", "division by zero").error()
            WorkError('ZeroDivisionError: division by zero')
        """
        own = vars(errors).get(self.kind)
        error = own(self.message) if own is not None else WorkError(f"{self.kind}: {self.message}")
        error.add_note(self.traceback)
        return error


@dataclass(frozen=True)
class Result:
    """One value of a unit, or its end.

    The values of a unit come in their order, from other processes all at once when it is finished. Its end comes once,
    without a value: `is_last`, with a `failure` if it failed.
    """

    key: str
    value: Any = None
    failure: Failure | None = None
    is_last: bool = False


class Backend(AbstractContextManager["Backend"]):
    """Does units of work; use it in a `with` block, so that its workers end."""

    @abstractmethod
    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Result]:
        """The values of all units as they are finished, and the end of each.

        A unit that fails is reported, and the others go on. Units are requested when a worker is free. Work that cannot
        be opened ends the run with its error. Closing the iterator ends the run and its workers.
        """

    def close(self) -> None:
        """Ends all workers, if there are any."""

    def __exit__(self, *_: object) -> None:
        """Closes the backend."""
        self.close()


def open_backend(
    name: str = "serial", *, jobs: int | None = None, threads: int | None = None, address: str | None = None
) -> Backend:
    """A backend; all of them give the same results.

    On a CPU, numerical results have the same bytes only if `threads` is the same, too: a sum that is split among
    threads is rounded differently. Backend, number of jobs and order of units change nothing.

    Args:
        name: "serial" (this process), "processes" (of this machine) or "ray" (a Ray cluster).
        jobs: how many units are done at a time; None takes one per core, on a Ray with GPUs one per GPU. The jobs of
            Ray share its GPUs evenly.
        threads: threads of each job; None divides the cores among the jobs, and leaves them as set for "serial".
        address: of a Ray cluster: "auto" for the one that this machine is part of, HOST:PORT, or ray://HOST:10001.
            None starts Ray on this machine, for as long as the backend is open.

    Example:
        >>> class Squares:
        ...     def open(self):
        ...         return lambda count: (number**2 for number in range(count))
        >>> with open_backend("serial") as backend:
        ...     [result.value for result in backend.run(Squares(), [Unit("a", 3)]) if not result.is_last]
        [0, 1, 4]
    """
    problem = None
    if name not in BACKENDS:
        problem = f"there is no backend {name!r}. Choose one of {', '.join(BACKENDS)} (--backend)."
    elif any(count is not None and count < 1 for count in (jobs, threads)):
        problem = f"jobs={jobs} (--jobs) and threads={threads} must be at least 1, or left out."
    elif name == "serial" and jobs not in (None, 1):
        problem = f"jobs={jobs} needs several processes, but 'serial' uses only this one. Use --backend processes."
    elif name != "ray" and address is not None:
        problem = f"address={address!r} is for Ray, not for backend '{name}'. Add backend='ray' (--backend ray)."
    if problem is not None:
        raise UsageError(problem)
    if name == "ray":
        return RayBackend(jobs=jobs, threads=threads, address=address)
    cores = os.cpu_count() or 1
    jobs = jobs or cores
    return SerialBackend(threads) if name == "serial" else ProcessBackend(jobs, threads or max(1, cores // jobs))


def borrow_backend(backend: Backend | str) -> AbstractContextManager[Backend]:
    """The backend of that name, closed at the end of the block; one that is open already stays open."""
    return open_backend(backend) if isinstance(backend, str) else nullcontext(backend)


@dataclass
class SerialBackend(Backend):
    """Units one after the other, in this process: nothing travels, so anything can be worked on."""

    threads: int | None = None

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Result]:
        """See `Backend.run`."""
        with nullcontext() if self.threads is None else limit_threads(self.threads):
            do = work.open()
            for unit in units:
                failure = None
                try:
                    for value in do(unit.payload):
                        yield Result(unit.key, value)
                except Exception as error:
                    failure = Failure.of(error)
                yield Result(unit.key, failure=failure, is_last=True)


# --- what happens in a worker -----------------------------------------------------------------------------------------


class _WholePickler(ForkingPickler):
    """Packs tensors with their numbers, where torch would let both processes share the sender's memory."""

    def __init__(self, file: io.BytesIO):
        super().__init__(file, 5)
        self.dispatch_table = copyreg.dispatch_table


def pack(value: Any, what: str = "the result") -> bytes:
    """The value as bytes."""
    file = io.BytesIO()
    with _explain_travel(f"{what} cannot be sent to"):
        _WholePickler(file).dump(value)
    return file.getvalue()


def unpack(content: bytes, what: str = "the result") -> Any:
    """What `pack` has packed in one of our processes."""
    with _explain_travel(f"{what} cannot be opened in"):
        return ForkingPickler.loads(content)  # type: ignore[attr-defined]


@contextmanager
def _explain_travel(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise UsageError(
            f"{what} another process ({type(error).__name__}: {error}). Use backend='serial' (--backend serial), or "
            "build it from plain values, files, and classes of a module that every process can import."
        ) from error


# The work that this worker process has open, by its key.
_opened: dict[str, Callable[[Any], Iterable[Any]]] = {}


def perform(key: str, fetch_work: Callable[[], bytes], payload: bytes | None) -> bytes:
    """Opens the work if it is not open yet, and does a unit: packed values, failure, and whether the work is open."""
    values: list[bytes] = []
    failure = None
    try:
        if key not in _opened:
            _opened.clear()
            _opened[key] = unpack(fetch_work(), "the work").open()
        for value in () if payload is None else _opened[key](unpack(payload, "this unit")):
            values.append(pack(value))
    except Exception as error:
        failure = Failure.of(error)
    return pack((values, failure, key in _opened))


def _run_units(
    units: Iterable[Unit],
    jobs: int,
    busy: dict[Any, Unit],
    begin: Callable[[bytes], Any],
    finish: Callable[[], Iterable[tuple[Any, bytes]]],
) -> Iterator[Result]:
    """The results of units, each packed and begun when a job is free; `finish` waits, and yields what has ended.

    `busy` holds the units that are being done, by their jobs. Work that cannot be opened raises its error.
    """
    fresh = iter(units)
    while True:
        while len(busy) < jobs and (unit := next(fresh, None)) is not None:
            try:
                busy[begin(pack(unit.payload, f"'{unit.key}'"))] = unit
            except UsageError as error:
                yield Result(unit.key, failure=Failure.of(error), is_last=True)
        if not busy:
            return
        for job, content in finish():
            unit = busy.pop(job)
            values, failure, is_open = unpack(content)
            if not is_open:
                raise failure.error()
            yield from (Result(unit.key, unpack(value)) for value in values)
            yield Result(unit.key, failure=failure, is_last=True)


def _give_up(unit: Unit, cause: str) -> bytes:
    """What `perform` would return for a unit whose process died too often."""
    error = ResourceError(
        f"'{unit.key}' was abandoned: its process died {MOST_ATTEMPTS} times ({cause}). Memory may have run out: "
        "use fewer jobs (--jobs), or run it alone with backend='serial'."
    )
    return pack(([], Failure.of(error), True))


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """So many threads in the block, in this process and in those that are started in it."""
    before, torch = {name: os.environ.get(name) for name in _THREADS}, sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else None
    use_threads(count)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})
        if torch is not None:
            torch.set_num_threads(threads)


def use_threads(count: int) -> None:
    """Computes with so many threads from now on: libraries yet to be loaded, and torch if it is loaded already."""
    os.environ.update(dict.fromkeys(_THREADS, str(count)))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


# --- processes of this machine ----------------------------------------------------------------------------------------


class _Worker:
    """A process and the pipe to it, started again when it dies. Python ends daemons itself."""

    def __init__(self, work: bytes, threads: int):
        self.work, self.threads = work, threads
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # threads and GPUs do not survive a fork
        self.pipe, far_end = context.Pipe()
        self.process = context.Process(target=_serve, args=(far_end, self.work), daemon=True)
        with limit_threads(self.threads), _hold_interrupts():
            self.process.start()
        far_end.close()

    def begin(self, payload: bytes) -> None:
        """Takes a unit."""
        self.payload, self.deaths, self.has_begun = payload, 0, False
        self._send()

    def _send(self) -> None:
        if not self.process.is_alive():
            self._start()
        with suppress(OSError):  # that the process is dead is noticed when its result is awaited
            self.pipe.send_bytes(self.payload)

    def advance(self, unit: Unit) -> bytes | None:
        """What came of the unit if it has ended; one whose process died is tried again."""
        with suppress(EOFError, OSError):
            if self.pipe.poll():
                content = self.pipe.recv_bytes()
                self.has_begun = True
                return content or None
        cause = self.end(patience=2.0)
        self.deaths += 1
        if self.deaths < MOST_ATTEMPTS:
            return self._send()
        if self.has_begun:
            return _give_up(unit, cause)
        raise ResourceError(
            f"{MOST_ATTEMPTS} workers in a row died before they could start ({cause}). Each imports the script, so "
            "put the call under `if __name__ == '__main__':`; if memory is short, use fewer jobs (--jobs)."
        )

    def end(self, *, patience: float = 0.0) -> str:
        """Ends the process, whatever it is doing, if it does not end within `patience` seconds; returns how it did."""
        self.process.join(patience)
        self.process.kill()
        self.process.join()
        self.pipe.close()
        code = self.process.exitcode or 0
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def _serve(pipe: connection.Connection, work: bytes) -> None:
    """The whole life of a worker: opens the work, and does units until the parent ends it.

    Each unit is answered twice: with nothing when the work is open, and with what came of it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal: it is for the parent
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):  # the parent is gone
        while True:
            payload = pipe.recv_bytes()
            perform("work", lambda: work, None)
            pipe.send_bytes(b"")
            pipe.send_bytes(perform("work", lambda: work, payload))


def _end_with_parent() -> None:
    """A parent that is killed cannot end its workers."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    while parent.is_alive() and os.getppid() == parent.pid:  # the latter if others hold the parent's files open
        parent.join(1.0)
    os._exit(1)


@contextmanager
def _hold_interrupts() -> Iterator[None]:
    """A process started in the block receives no Ctrl-C; in this one it waits for the end of the block."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # started by the first process, it would unblock interrupts again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ProcessBackend(Backend):
    """Processes of this machine, which are started when there are units for them and end with the run."""

    def __init__(self, jobs: int, threads: int):
        self.jobs, self.threads = jobs, threads
        self.workers: weakref.WeakSet[_Worker] = weakref.WeakSet()

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Result]:
        """See `Backend.run`; a process that dies is replaced, and its unit tried three times in all."""
        content, idle, busy = pack(work, "the work"), [], {}

        def begin(payload: bytes) -> _Worker:
            if not idle:
                idle.append(_Worker(content, self.threads))
                self.workers.add(idle[-1])
            idle[-1].begin(payload)
            return idle.pop()

        def finish() -> Iterator[tuple[_Worker, bytes]]:
            # A process that left a child with its pipe open is dead although the pipe is silent.
            ready = connection.wait([worker.pipe for worker in busy], timeout=1.0)
            for worker in [each for each in busy if each.pipe in ready or not each.process.is_alive()]:
                if (content := worker.advance(busy[worker])) is not None:
                    idle.append(worker)
                    yield worker, content

        try:
            yield from _run_units(units, self.jobs, busy, begin, finish)
        finally:
            for worker in (*idle, *busy):
                worker.end()

    def close(self) -> None:
        """Ends all processes, whatever they are doing."""
        for worker in list(self.workers):
            worker.end()


# --- Ray --------------------------------------------------------------------------------------------------------------


class RayBackend(Backend):
    """Tasks of a Ray cluster, retried by Ray. If no cluster is named, Ray is started here, without a dashboard."""

    def __init__(self, *, jobs: int | None, threads: int | None, address: str | None):
        self.ray = import_ray(is_alone=address is None)
        is_ours = connect_ray(self.ray, address, cores=jobs)
        found = self.ray.cluster_resources()
        cores, gpus = int(found.get("CPU", 1)), found.get("GPU", 0)
        self.jobs = jobs or int(gpus) or max(1, cores)
        self.threads = threads or max(1, cores // self.jobs)
        self.task = self.ray.remote(
            max_retries=MOST_ATTEMPTS - 1,
            max_calls=0,  # workers with a GPU stay warm, too
            # Cores are counted where others may want them.
            num_cpus=0 if is_ours or self.jobs > cores else 1,
            num_gpus=1 / math.ceil(self.jobs / gpus) if gpus else 0,  # even shares, so that all jobs can run
            scheduling_strategy="SPREAD",
        )(_make_task())
        self._end = weakref.finalize(self, self.ray.shutdown) if is_ours else None

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Result]:
        """See `Backend.run`; a task whose process or machine is lost is tried three times in all."""
        content = pack(work, "the work")
        key, stored = hashlib.sha256(content).hexdigest(), self.ray.put(content)
        paths = [os.path.abspath(path) for path in sys.path]
        paths = [path for path in paths if not path.startswith((sys.prefix, sys.base_prefix))]

        busy: dict[Any, Unit] = {}

        def begin(payload: bytes) -> Any:
            return self.task.remote(paths, self.threads, key, [stored], payload)

        def finish() -> Iterator[tuple[Any, bytes]]:
            for call in self.ray.wait(list(busy), num_returns=1)[0]:
                yield call, self._fetch(call, busy[call])

        try:
            yield from _run_units(units, self.jobs, busy, begin, finish)
        finally:
            for call in busy if self.ray.is_initialized() else ():
                self.ray.cancel(call, force=True)

    def _fetch(self, call: Any, unit: Unit) -> bytes:
        try:
            return self.ray.get(call)
        except self.ray.exceptions.RayTaskError as error:  # errors of the work are results, so this is the cluster's
            raise ResourceError(
                f"a Ray worker cannot start ({_shorten(error)}). All machines of the cluster need the same Python, "
                "Ray and task2vec. Install them there: pip install 'task2vec[ray]'"
            ) from error
        except self.ray.exceptions.RayError as error:
            return _give_up(unit, f"Ray: {type(error).__name__}")

    def close(self) -> None:
        """Ends Ray if it was started here; the cluster of an address is left as it was."""
        if self._end is not None:
            self._end()


def _make_task() -> Callable[..., bytes]:
    """What runs in the cluster; a function within a function travels whole, so it exists before task2vec is found."""

    def do_unit(paths: list[str], threads: int, key: str, stored: list[Any], payload: bytes) -> bytes:
        import sys

        import ray  # pyright: ignore[reportMissingImports]

        sys.path[:0] = [path for path in paths if path not in sys.path]
        from task2vec.parallel import perform, use_threads

        use_threads(threads)
        return perform(key, lambda: ray.get(stored[0]), payload)

    return do_unit


def import_ray(*, is_alone: bool = True) -> ModuleType:
    """Ray, if it is installed."""
    for name, value in (_RAY_ENVIRONMENT | (_RAY_LOOPBACK if is_alone else {})).items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError(
            "backend 'ray' needs Ray, which is not installed. Install it: pip install 'task2vec[ray]'; or use "
            "backend='processes' (--backend processes), which uses this machine."
        ) from error


def connect_ray(ray: ModuleType, address: str | None, *, cores: int | None) -> bool:
    """Joins the cluster at an address, or starts Ray on this machine; returns whether it was started."""
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "address": address or "local"}
    if address is None:
        options |= {"include_dashboard": False, "num_cpus": max(cores or 0, os.cpu_count() or 1)}
    handler = signal.getsignal(signal.SIGTERM)  # Ray installs one that prints pages of addresses
    for attempts_left in reversed(range(_RAY_STARTS if address is None else 1)):
        try:
            host, _, port = (address or "").removeprefix("ray://").rpartition(":")
            if host and port.isdecimal():  # Ray itself would try for minutes
                socket.create_connection((host, int(port)), timeout=10.0).close()
            ray.init(**options)
            break
        except Exception as error:
            ray.shutdown()
            if not attempts_left:
                raise ResourceError(
                    f"Ray cannot be started here ({_shorten(error)}). Use --backend processes instead."
                    if address is None
                    else f"Ray cannot be reached at '{address}' ({_shorten(error)}). Start a cluster with `ray start "
                    "--head`; if it requires a token, set RAY_AUTH_MODE=token. Or unset RAY_ADDRESS."
                ) from error
        finally:
            if threading.current_thread() is threading.main_thread() and handler is not None:
                signal.signal(signal.SIGTERM, handler)
    return address is None


def _shorten(error: Exception) -> str:
    """An error of Ray in one line; the last one of a traceback."""
    lines = str(error).strip().splitlines() or [""]
    return lines[-1] if "Traceback" in str(error) else f"{type(error).__name__}: {lines[0]}"
