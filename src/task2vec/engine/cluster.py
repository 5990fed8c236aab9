"""Ray: actors that keep the work open, on this machine or on all machines of a cluster.

Values are fetched by one plain call each, and not through Ray's generators: a call that was lost with its actor or its
machine raises in one place, at once, and leaves nothing that Ray might rebuild on its own. Ray restarts and retries
nothing here; units that were lost are given out again in the same way as with processes.
"""

import os
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

from task2vec.engine.connection import connect, import_ray, share_cards, shorten
from task2vec.engine.dispatch import Staff
from task2vec.engine.messages import DIED, OPEN, VALUE, Message, pack, unpack
from task2vec.engine.units import Engine, Result, Unit, Work
from task2vec.errors import ResourceError


class RayEngine(Engine):
    """An engine of Ray's actors. If no cluster is named, Ray is started on this machine, without a dashboard."""

    def __init__(
        self,
        *,
        workers: int | None = None,
        threads: int | None = None,
        address: str | None = None,
        gpus: float | None = None,
    ):
        """`workers` actors, one per GPU or, where there is none, per core, with `threads` and `gpus` each.

        If these are None, cores and GPUs are shared out.
        """
        self.ray = import_ray(is_alone=address is None)
        self.is_ours = connect(self.ray, address, cores=workers)
        found = self.ray.cluster_resources()
        cores, cards = int(found.get("CPU", 1)), found.get("GPU", 0)
        workers = workers or int(cards) or max(1, cores)
        cards_each = share_cards(cards, workers, gpus)
        # Cores are counted where others may want them; whoever finds none free waits.
        options = {"num_cpus": 0 if self.is_ours or workers > cores else 1, "num_gpus": cards_each}
        self.crew = _Crew(self.ray, threads or max(1, cores // workers), options)
        self.staff = Staff(self.crew, workers)
        self._end = weakref.finalize(self, _end, self.ray, self.crew, self.is_ours)

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Result]:
        """See `Engine.run`; an actor that is lost, or its machine, is replaced, and its unit tried three times."""
        yield from self.staff.run(work, units)  # which keeps the engine for as long as somebody listens

    def close(self) -> None:
        """Ends all actors, and Ray if it was started here; the cluster of an address is left as it was."""
        self.staff.idle.clear()
        self._end()


def _end(ray: ModuleType, crew: "_Crew", is_ours: bool) -> None:
    """Ends actors, and Ray with them if it is ours."""
    if ray.is_initialized():
        crew.dismiss(crew.hands)
        if is_ours:
            ray.shutdown()


class _Hand:
    """An actor, and the calls whose answers have not been heard."""

    def __init__(self, actor: Any, crew: "_Crew"):
        self.actor, self.crew = actor, crew
        self.calls: deque[Any] = deque()

    def give(self, told: Message) -> None:
        """Tells the actor something."""
        if told.word == OPEN:
            self.calls.append(self.actor.tell.remote(self.crew.share(told)))
            return
        self.calls.append(self.actor.tell.remote(pack(told)))
        self.go_on()  # beyond the first answer, so that the actor need not wait for us between two

    def go_on(self) -> None:
        """Asks for one more answer."""
        self.calls.append(self.actor.go_on.remote())


class _Crew:
    """The actors of an engine."""

    def __init__(self, ray: ModuleType, threads: int, options: dict[str, Any]):
        self.ray, self.threads = ray, threads
        self.actor = ray.remote(_make_actor()).options(
            max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD", **options
        )
        self.hands: set[_Hand] = set()
        self.shared: tuple[Message, Any] | None = None

    def hire(self) -> _Hand:
        """One more actor."""
        hand = _Hand(self.actor.remote(_own_paths(), self.threads), self)
        self.hands.add(hand)
        return hand

    def share(self, told: Message) -> Any:
        """A message that all actors are told, kept by Ray once."""
        if self.shared is None or self.shared[0].content is not told.content:
            self.shared = (told, self.ray.put(pack(told)))
        return self.shared[1]

    def hear(self, hands: Sequence[_Hand]) -> Iterator[tuple[_Hand, Message]]:
        """What some of them say next."""
        calls = {hand.calls[0]: hand for hand in hands}
        ready, _ = self.ray.wait(list(calls), num_returns=len(calls), timeout=0)
        if not ready:
            ready, _ = self.ray.wait(list(calls), num_returns=1)
        for call in ready:
            hand = calls[call]
            hand.calls.popleft()
            message = self._fetch(call)
            if message is None:  # asked for beyond the end of a unit
                continue
            if message.word == VALUE:
                hand.go_on()
            if message.word == DIED:
                self.dismiss([hand])
            yield hand, message

    def _fetch(self, call: Any) -> Message | None:
        """The answer to a call; that the actor or its machine is lost is one, too."""
        errors = self.ray.exceptions
        try:
            answer = self.ray.get(call)
        except errors.RayTaskError as error:  # what goes wrong in the work is an answer, so this is the cluster's
            raise ResourceError(
                f"a worker of Ray cannot begin ({shorten(error)}), so nothing can be done there. All machines of the "
                "cluster need the same Python, Ray and task2vec. Install them there: pip install 'task2vec[ray]'"
            ) from error
        except errors.RayError as error:
            return Message(DIED, f"Ray: {type(error).__name__}")
        return None if answer is None else unpack(answer)

    def dismiss(self, hands: Iterable[_Hand]) -> None:
        """Ends these actors; what they were doing is lost."""
        for hand in list(hands):
            self.ray.kill(hand.actor, no_restart=True)
            self.hands.discard(hand)


def _own_paths() -> list[str]:
    """Where this process finds modules that are not installed: workers on the same disk find them there, too."""
    paths = [os.path.abspath(path) for path in sys.path]
    return [path for path in paths if not path.startswith((sys.prefix, sys.base_prefix))]


def _make_actor() -> type:
    """What runs in the cluster; a class within a function travels whole, so it is there before task2vec is found."""

    class Worker:
        def __init__(self, paths: list[str], threads: int):
            self.paths, self.threads = paths, threads
            self.bench, self.answers = None, iter(())

        def tell(self, told: bytes) -> bytes | None:
            import sys

            sys.path[:0] = [path for path in self.paths if path not in sys.path]
            from task2vec.engine.bench import Bench
            from task2vec.engine.messages import unpack
            from task2vec.engine.threads import use_threads

            if self.bench is None:
                use_threads(self.threads)
                self.bench = Bench()
            self.answers = self.bench.answer(unpack(told))
            return self.go_on()

        def go_on(self) -> bytes | None:
            from task2vec.engine.messages import pack

            message = next(self.answers, None)
            return None if message is None else pack(message)

    return Worker
