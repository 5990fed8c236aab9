"""A process that does units: what it does, and how it is held from outside."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from task2vec.engine.bench import Bench
from task2vec.engine.messages import DIED, Message, pack, unpack
from task2vec.engine.threads import hand_on_threads

# A process that was asked to end and does not is killed after so many seconds.
_PATIENCE = 2.0


class Worker:
    """A process, and our end of its pipe."""

    def __init__(self, threads: int):
        context = multiprocessing.get_context("spawn")  # threads and GPUs do not survive a fork
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other,), name="task2vec-worker")
        with hand_on_threads(threads), _hold_interrupts():
            self.process.start()
        other.close()  # so that the pipe ends when the process does

    def give(self, told: Message) -> None:
        """Tells the process something; it is listening, so this does not wait for long."""
        with suppress(OSError):  # it died, which is heard next
            self.pipe.send_bytes(pack(told))

    def hear(self) -> Message:
        """The next message, or that the process died, and how."""
        with suppress(EOFError, OSError):
            if self.pipe.poll():
                return unpack(self.pipe.recv_bytes())
        self.process.join(_PATIENCE)
        code = self.process.exitcode or 0
        return Message(DIED, f"signal {-code}" if code < 0 else f"exit code {code}")


def end_processes(processes: Sequence[BaseProcess]) -> None:
    """Ends them all, whatever they are doing, and waits until they are gone."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(_PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()


def serve(pipe: Connection) -> None:
    """The life of such a process: it answers until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; ours ends the others
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    bench = Bench()
    with suppress(EOFError, OSError):  # the engine is gone; what goes wrong in the work is an answer
        while True:
            for message in bench.answer(unpack(pipe.recv_bytes())):
                pipe.send_bytes(pack(message))


def _end_with_parent() -> None:
    """Waits for the end of the process that started this one, which may be killed, and follows it at once."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        while parent.is_alive() and os.getppid() == parent.pid:  # the latter in case others hold its files open
            parent.join(1.0)
        os._exit(1)


@contextmanager
def _hold_interrupts() -> Iterator[None]:
    """A process started in the block hears no Ctrl-C until it wants to; one that comes meanwhile waits for us."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # started by the first process, it would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
