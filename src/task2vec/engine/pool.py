"""Processes of this machine: each has a pipe of its own, so that one that dies takes nobody with it."""

import os
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.util import Finalize

from task2vec.engine.dispatch import Staff
from task2vec.engine.messages import DIED, Message
from task2vec.engine.processes import Worker, end_processes
from task2vec.engine.units import Engine, Result, Unit, Work

# Seconds. The end of a process shows in its pipe at once, unless it left children that hold the pipe open.
_GLANCE = 1.0


class PoolEngine(Engine):
    """An engine of processes, which are started when there are units for them, and stay until it is closed."""

    def __init__(self, *, workers: int | None = None, threads: int | None = None):
        """`workers` processes, one per core if None, with `threads` each, their share of the cores if None."""
        cores = os.cpu_count() or 1
        workers = workers or cores
        self.crew = _Crew(threads or max(1, cores // workers))
        self.staff = Staff(self.crew, workers)
        # Should nobody close it: at the latest when Python ends, before it waits for its processes.
        Finalize(self, self.crew.dismiss_all, exitpriority=10)

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Result]:
        """See `Engine.run`; a process that dies is replaced, and its unit tried three times in all."""
        yield from self.staff.run(work, units)  # which keeps the engine for as long as somebody listens

    def close(self) -> None:
        """Ends all processes, whatever they are doing."""
        self.staff.idle.clear()
        self.crew.dismiss_all()


class _Crew:
    """The processes of a pool."""

    def __init__(self, threads: int):
        self.threads = threads
        self.workers: set[Worker] = set()

    def hire(self) -> Worker:
        """One more process."""
        worker = Worker(self.threads)
        self.workers.add(worker)
        return worker

    def hear(self, hands: Sequence[Worker]) -> Iterator[tuple[Worker, Message]]:
        """What some of them say next. The end of one is looked for, too, should others hold its pipe open."""
        workers = {worker.pipe: worker for worker in hands}
        ready: list[Worker] = []
        while not ready:
            ready = [workers[pipe] for pipe in wait(list(workers), timeout=_GLANCE)]  # type: ignore[index]
            ready = ready or [worker for worker in hands if worker.process.exitcode is not None]
        for worker in ready:
            message = worker.hear()
            if message.word == DIED:
                self.dismiss([worker])
            yield worker, message

    def dismiss(self, hands: Iterable[Worker]) -> None:
        """Ends these processes; what they were doing is lost."""
        gone = list(hands)
        end_processes([worker.process for worker in gone])
        for worker in gone:
            worker.pipe.close()
        self.workers.difference_update(gone)

    def dismiss_all(self) -> None:
        """Ends all of them."""
        self.dismiss(list(self.workers))
