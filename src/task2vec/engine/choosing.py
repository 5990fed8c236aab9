"""An engine by its name."""

from collections.abc import Iterator
from contextlib import contextmanager

from task2vec.engine.units import Engine
from task2vec.errors import UsageError

ENGINES = ("serial", "pool", "ray")


def open_engine(
    name: str = "serial",
    *,
    workers: int | None = None,
    threads: int | None = None,
    address: str | None = None,
    gpus: float | None = None,
) -> Engine:
    """An engine; `with` it, so that its workers end. All give the same results.

    On a CPU the results of numerical work have the same bytes only if `threads` is the same, too: a sum that is shared
    out among threads is rounded otherwise. All else (engine, number of workers, order of units) changes nothing.

    Args:
        name: "serial" (this process), "pool" (processes of this machine) or "ray" (a Ray cluster).
        workers: how many work at a time; None takes one per core, on a Ray with GPUs one per GPU.
        threads: how many threads each computes with; None takes its share of the cores, and "serial" what is set.
        address: of a Ray cluster: "auto" for the one that this machine is part of, HOST:PORT, or ray://HOST:10001.
            None starts Ray on this machine, for as long as the engine is open.
        gpus: of Ray: how many GPUs each worker has, or which part of one; None shares out all there are.

    Example:
        >>> from task2vec.engine import Unit
        >>> class Squares:
        ...     def open(self):
        ...         return lambda count: (number**2 for number in range(count))
        >>> with open_engine("serial") as engine:
        ...     [result.value for result in engine.run(Squares(), [Unit("a", 3)]) if not result.is_last]
        [0, 1, 4]
    """
    _check(name, workers=workers, threads=threads, address=address, gpus=gpus)
    if name == "pool":
        from task2vec.engine.pool import PoolEngine

        return PoolEngine(workers=workers, threads=threads)
    if name == "ray":
        from task2vec.engine.cluster import RayEngine

        return RayEngine(workers=workers, threads=threads, address=address, gpus=gpus)
    from task2vec.engine.serial import SerialEngine

    return SerialEngine(threads=threads)


@contextmanager
def borrow_engine(engine: Engine | str) -> Iterator[Engine]:
    """The engine of that name, closed at the end of the block; one that is open already stays open."""
    if isinstance(engine, str):
        with open_engine(engine) as opened:
            yield opened
    else:
        yield engine


def _check(name: str, *, workers: int | None, threads: int | None, address: str | None, gpus: float | None) -> None:
    """Refuses what cannot be meant."""
    if name not in ENGINES:
        raise UsageError(
            f"there is no engine {name!r}, so nobody would do the work. Choose one of {', '.join(ENGINES)} (--engine)."
        )
    if any(count is not None and count < 1 for count in (workers, threads)):
        raise UsageError(
            f"workers={workers} (--jobs) and threads={threads} must be at least 1, or nothing gets done. Leave them "
            "out to have them chosen."
        )
    if name == "serial" and workers not in (None, 1):
        raise UsageError(
            f"workers={workers} (--jobs) needs others to work, and engine 'serial' is this process alone. Use "
            "engine='pool' (--engine pool)."
        )
    if name != "ray" and (address is not None or gpus is not None):
        what = f"address={address!r} (--address)" if address is not None else f"gpus={gpus}"
        raise UsageError(f"{what} is for Ray, and means nothing to engine '{name}'. Add engine='ray' (--engine ray).")
    if gpus is not None and not gpus >= 0:
        raise UsageError(f"gpus={gpus} is no number of GPUs. Give each worker 1, a part such as 0.5, or leave it out.")
