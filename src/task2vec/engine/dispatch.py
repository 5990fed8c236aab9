"""Units shared out among workers that may fail or die: the same for processes of this machine and of a cluster."""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from task2vec.engine.messages import BEGIN, BROKEN, DIED, FAILED, OPEN, READY, VALUE, Message, pack, unpack
from task2vec.engine.units import Failure, Result, Unit, Work
from task2vec.errors import ResourceError, UsageError

# A unit whose process has died so often is given up; so is a run whose workers die before they have begun.
MOST_ATTEMPTS = 3


class Hand(Hashable, Protocol):
    """One worker, as it looks from here."""

    def give(self, told: Message) -> None:
        """Tells it something; if it has died, that is heard later."""
        ...


class Crew(Protocol):
    """How workers are had."""

    def hire(self) -> Hand:
        """One more."""
        ...

    def hear(self, hands: Sequence[Any]) -> Iterator[tuple[Hand, Message]]:
        """What some of these say next, as soon as one of them says something or dies."""
        ...

    def dismiss(self, hands: Iterable[Any]) -> None:
        """Ends these, whatever they are doing."""
        ...


@dataclass(eq=False)
class Attempt:
    """A unit on its way, and how often its process has died."""

    key: str
    payload: bytes
    deaths: int = 0


@dataclass
class Staff:
    """The workers of an engine that have nothing to do, each with the work that it has open."""

    crew: Crew
    size: int
    idle: dict[Hand, bytes] = field(default_factory=dict)

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Result]:
        """See `Engine.run`."""
        try:
            packed = pack(work)
        except Exception as error:
            raise _cannot_travel("the work", error) from error
        yield from _Run(self, packed, iter(units)).results()

    def dismiss(self) -> None:
        """Ends those who have nothing to do."""
        self.crew.dismiss(self.idle)
        self.idle.clear()


@dataclass
class _Run:
    """The units of one call: those that wait, and who does which."""

    staff: Staff
    work: bytes
    units: Iterator[Unit]
    waiting: deque[Attempt] = field(default_factory=deque)
    busy: dict[Hand, Attempt | None] = field(default_factory=dict)  # None: it opens the work
    is_exhausted: bool = False
    false_starts: int = 0

    def results(self) -> Iterator[Result]:
        """All of them; whoever stops listening before the end leaves no worker behind."""
        is_done = False
        try:
            while not is_done:
                yield from self._hand_out()
                is_done = self.is_exhausted and not self.waiting and not any(self.busy.values())
                for hand, message in () if is_done else self.staff.crew.hear(list(self.busy)):
                    yield from self._take(hand, message)
        finally:
            self.staff.crew.dismiss(self.busy)
            if not is_done:
                self.staff.dismiss()

    def _hand_out(self) -> Iterator[Result]:
        """Gives units to those who are free, and hires while there are units for more.

        Who still opens the work has no unit yet: on a cluster it may wait long for its turn, or for ever.
        """
        while len(self.busy) < self.staff.size:
            ready = next((hand for hand, work in self.staff.idle.items() if work == self.work), None)
            opening = sum(attempt is None for attempt in self.busy.values())
            needed = 1 if ready is not None else opening + 1
            yield from self._fetch(needed)
            if len(self.waiting) < needed:
                return
            if ready is not None:
                del self.staff.idle[ready]
                attempt = self.busy[ready] = self.waiting.popleft()
                ready.give(Message(BEGIN, attempt.payload))
            else:
                hand = self.staff.idle.popitem()[0] if self.staff.idle else self.staff.crew.hire()
                self.busy[hand] = None
                hand.give(Message(OPEN, self.work))

    def _fetch(self, count: int) -> Iterator[Result]:
        """Asks for units until so many wait; tells those that cannot leave this process."""
        while len(self.waiting) < count and not self.is_exhausted:
            unit = next(self.units, None)
            if unit is None:
                self.is_exhausted = True
                return
            try:
                self.waiting.append(Attempt(unit.key, pack(unit.payload)))
            except Exception as error:
                yield Result(unit.key, failure=Failure.of(_cannot_travel(f"'{unit.key}'", error)), is_last=True)

    def _take(self, hand: Hand, message: Message) -> Iterator[Result]:
        """What a message means."""
        attempt = self.busy[hand]
        if message.word == DIED:
            del self.busy[hand]
            yield from self._bury(attempt, message.content)
        elif message.word == BROKEN:
            raise message.content.error()
        elif message.word == READY:
            self.false_starts = 0
            self._release(hand)
        elif attempt is None:
            raise AssertionError(f"{message.word} from a worker without a unit")
        elif message.word == VALUE:
            yield Result(attempt.key, unpack(message.content))
        else:
            self._release(hand)
            failure = replace(message.content, attempts=attempt.deaths + 1) if message.word == FAILED else None
            yield Result(attempt.key, failure=failure, is_last=True)

    def _release(self, hand: Hand) -> None:
        """Notes that a worker has nothing to do."""
        del self.busy[hand]
        self.staff.idle[hand] = self.work

    def _bury(self, attempt: Attempt | None, words: str) -> Iterator[Result]:
        """Has the unit of a worker that died tried again, first of all, unless that happened too often."""
        if attempt is None:
            self.false_starts += 1
            if self.false_starts == MOST_ATTEMPTS:
                raise ResourceError(
                    f"{MOST_ATTEMPTS} worker processes in a row died before they could begin ({words}), so nothing can "
                    "be done by others. In a script, call it under `if __name__ == '__main__':`, for each one reads "
                    "the script again; if memory is short, use fewer workers (--jobs) or engine='serial'."
                )
            return
        attempt.deaths += 1
        if attempt.deaths < MOST_ATTEMPTS:
            self.waiting.appendleft(attempt)
            return
        reason = ResourceError(
            f"'{attempt.key}' was given up: its process died {attempt.deaths} times ({words}), so nothing is known of "
            "the rest of it. Memory may have run out: use fewer workers (--jobs), or see it alone with engine='serial'."
        )
        yield Result(attempt.key, failure=replace(Failure.of(reason), attempts=attempt.deaths), is_last=True)


def _cannot_travel(what: str, error: Exception) -> UsageError:
    """The error for what cannot be sent to another process."""
    return UsageError(
        f"{what} cannot be sent to another process ({type(error).__name__}: {error}), so only this one can work on it. "
        "Use engine='serial' (--engine serial), or make it of plain values, files and classes of a module."
    )
