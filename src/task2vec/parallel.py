"""Units of work, done in this process or by Ray, with the same results.

Units are idempotent: one whose worker dies is done again, three times in all, and then fails by name; the others go
on. Values travel to Ray pickled. A pickle can run code, so only what our own processes have packed is unpacked.
"""

import importlib
import logging
import math
import os
import signal
import socket
import sys
import threading
import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from task2vec import errors
from task2vec.errors import MissingExtraError, ResourceError, Task2VecError, UsageError, WorkError

BACKENDS = ("serial", "ray")
MAX_ATTEMPTS = 3
MAX_STARTS = 3  # of Ray on this machine: while it is busy, the first may take too long
# Read by Ray when it is imported or started: no usage reports, no change of CUDA_VISIBLE_DEVICES, nothing printed among
# our results, and memory that runs out counts as a death.
_RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_task_oom_retries": str(MAX_ATTEMPTS - 1),
}
TRAVEL = (
    "cannot be sent to a Ray worker and back ({}). All machines need the same Python, Ray and task2vec, and what is "
    "sent is built from plain values, files, and classes that all of them have. Or use backend='serial' (--backend "
    "serial)."
)
# The work that this worker of Ray has open, by its key.
opened_work: dict[str, Callable[[Any], Iterable[Any]]] = {}


@dataclass(frozen=True)
class Unit:
    """One piece of work: its name in results and failures, and a value that describes what is to be done."""

    key: str
    payload: Any


class Work(Protocol):
    """How units are done. It travels to each worker once and is opened there."""

    def open(self) -> Callable[[Any], Iterable[Any]]:
        """A function from a payload to its values."""
        ...


@dataclass(frozen=True)
class Failure:
    """Why a unit failed, as plain values that travel; `kind` is the class of the error, in `task2vec.errors` if any."""

    kind: str
    message: str
    exit_code: int = 1
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """The failure for an error."""
        known = next((base for base in type(error).__mro__ if vars(errors).get(base.__name__) is base), type(error))
        frames = "".join(traceback.format_exception(error, limit=-8, chain=False))  # enough to find the line
        return cls(known.__name__, str(error), getattr(error, "exit_code", Task2VecError.exit_code), frames)

    def error(self) -> Task2VecError:
        """The error to raise or report: of its own class if it was raised on purpose, else `WorkError`.

        Example:
            >>> Failure("ZeroDivisionError", "division by zero").error()
            WorkError('ZeroDivisionError: division by zero')
        """
        known = vars(errors).get(self.kind)
        error = WorkError(f"{self.kind}: {self.message}") if known is None else known(self.message)
        error.add_note(self.traceback)
        return error


@dataclass(frozen=True)
class Result:
    """One value of a unit, or its end: `is_last`, without a value, and with a `failure` if it failed."""

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
        be opened ends the run with its error. Closing the iterator ends the run.
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
        name: "serial" (this process) or "ray" (all cores and GPUs of this machine, or a cluster).
        jobs: how many units are done at a time; None takes one per GPU or, without GPUs, one per core.
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
    check_backend(name, jobs=jobs, threads=threads, address=address)
    if name == "ray":
        return RayBackend(jobs=jobs, threads=threads, address=address)
    return SerialBackend(threads)


def check_backend(
    name: str, *, jobs: int | None = None, threads: int | None = None, address: str | None = None
) -> None:
    """Refuses arguments of `open_backend` that cannot be meant, without opening anything."""
    if name == "processes":
        raise UsageError("backend 'processes' no longer exists: Ray uses all cores of a machine. Use --backend ray.")
    if name not in BACKENDS:
        raise UsageError(f"there is no backend {name!r}. Choose one of {', '.join(BACKENDS)} (--backend).")
    if any(count is not None and count < 1 for count in (jobs, threads)):
        raise UsageError(f"jobs={jobs} (--jobs) and threads={threads} must be at least 1, or left out.")
    if name == "serial" and (jobs not in (None, 1) or address is not None):
        raise UsageError(f"jobs={jobs} and address={address!r} are for Ray, not 'serial'. Use --backend ray.")


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


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """So many threads of torch in the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class RayBackend(Backend):
    """Tasks of a Ray cluster, retried by Ray. If no cluster is named, Ray is started on this machine."""

    def __init__(self, *, jobs: int | None, threads: int | None, address: str | None):
        self.ray = import_ray(is_alone=address is None)
        self.is_ours = connect_ray(self.ray, address, cores=jobs)
        resources = self.ray.cluster_resources()
        cores, gpus = int(resources.get("CPU", 1)), resources.get("GPU", 0)
        self.jobs = jobs or int(gpus) or max(1, cores)
        self.threads = threads or max(1, cores // self.jobs)
        self.task = self.ray.remote(
            max_retries=MAX_ATTEMPTS - 1,
            max_calls=0,  # workers with a GPU stay warm, too
            num_cpus=0 if self.is_ours or self.jobs > cores else 1,  # cores are counted where others may want them
            num_gpus=1 / math.ceil(self.jobs / gpus) if gpus else 0,  # even shares, so that all jobs can run
            scheduling_strategy="SPREAD",
        )(_make_task())

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Result]:
        """See `Backend.run`; a unit whose worker or machine is lost is tried three times in all."""
        stored = self.ray.put(self._pack(work, "the work"))
        paths = [os.path.abspath(path) for path in sys.path]
        paths = [path for path in paths if not path.startswith((sys.prefix, sys.base_prefix))]
        waiting, busy = iter(units), dict[Any, Unit]()
        try:
            while True:
                while len(busy) < self.jobs and (unit := next(waiting, None)) is not None:
                    try:
                        payload = self._pack(unit.payload, f"'{unit.key}'")
                        busy[self.task.remote(paths, self.threads, [stored], payload)] = unit
                    except UsageError as error:
                        yield Result(unit.key, failure=Failure.of(error), is_last=True)
                if not busy:
                    return
                (call,), _ = self.ray.wait(list(busy), num_returns=1)
                unit = busy.pop(call)
                values, failure, is_open = self._fetch(call, unit)
                if failure is not None and not is_open:
                    raise failure.error()
                yield from (Result(unit.key, value) for value in values)
                yield Result(unit.key, failure=failure, is_last=True)
        finally:
            for call in busy if self.ray.is_initialized() else ():
                self.ray.cancel(call, force=True)

    def _pack(self, value: Any, name: str) -> bytes:
        try:
            return self.ray.cloudpickle.dumps(value)
        except Exception as error:
            raise UsageError(f"{name} {TRAVEL.format(error)}") from error

    def _fetch(self, call: Any, unit: Unit) -> tuple[list[Any], Failure | None, bool]:
        """The values of a unit, why it failed if it did, and whether the work could be opened."""
        try:
            return self.ray.cloudpickle.loads(self.ray.get(call))
        except self.ray.exceptions.RayTaskError as error:
            reason: Task2VecError = UsageError(f"'{unit.key}' {TRAVEL.format(str(error).splitlines()[-1])}")
        except self.ray.exceptions.RayError as error:
            reason = ResourceError(
                f"'{unit.key}' was abandoned: its process died {MAX_ATTEMPTS} times (Ray: {type(error).__name__}). "
                "Memory may have run out: use fewer jobs (--jobs), or run it alone with backend='serial'."
            )
        return [], Failure.of(reason), True

    def close(self) -> None:
        """Ends Ray if it was started here; the cluster of an address is left as it was."""
        if self.is_ours:
            self.is_ours = False  # a Ray that is started after this one is not ours
            self.ray.shutdown()


def _make_task() -> Callable[..., bytes]:
    """What runs in the cluster; a function within a function travels whole, so it exists before task2vec is found."""
    # Read by the linear algebra libraries when they are loaded.
    variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

    def do_unit(paths: list[str], threads: int, stored: list[Any], payload: bytes) -> bytes:
        import os
        import sys

        import ray.cloudpickle  # pyright: ignore[reportMissingImports]

        sys.path[:0] = [path for path in paths if path not in sys.path]
        os.environ.update(dict.fromkeys(variables, str(threads)))
        from task2vec.parallel import Failure, limit_threads, opened_work

        key, values, failure = stored[0].hex(), [], None
        with limit_threads(threads):
            description = ray.cloudpickle.loads(payload)
            try:
                if key not in opened_work:
                    opened_work.clear()
                    opened_work[key] = ray.cloudpickle.loads(ray.get(stored[0])).open()
                for value in opened_work[key](description):
                    values.append(value)
            except Exception as error:
                failure = Failure.of(error)
        return ray.cloudpickle.dumps((values, failure, key in opened_work))  # pyright: ignore[reportPrivateImportUsage]

    return do_unit


def import_ray(*, is_alone: bool = True) -> Any:
    """Ray, if it is installed; one that is alone on this machine listens on loopback only."""
    for name, value in (_RAY_ENVIRONMENT | ({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} if is_alone else {})).items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError(
            "backend 'ray' needs Ray, which is not installed, so the work cannot be shared. Install it: "
            "pip install 'task2vec[ray]'; or use this process alone: --backend serial"
        ) from error


def connect_ray(ray: Any, address: str | None, *, cores: int | None) -> bool:
    """Joins the cluster at an address, or starts Ray on this machine; returns whether it was started."""
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "address": address or "local"}
    if address is None:
        options |= {"include_dashboard": False, "num_cpus": max(cores or 0, os.cpu_count() or 1)}
    handler = signal.getsignal(signal.SIGTERM)  # Ray installs one that prints pages of addresses
    for attempts_left in reversed(range(MAX_STARTS if address is None else 1)):
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
                    f"Ray cannot be {'started here' if address is None else f'reached at {address!r}'} ({error}). "
                    "Start a cluster with `ray start --head`; if it requires a token, set RAY_AUTH_MODE=token. Or: "
                    "--backend serial"
                ) from error
        finally:
            if threading.current_thread() is threading.main_thread() and handler is not None:
                signal.signal(signal.SIGTERM, handler)
    return address is None
