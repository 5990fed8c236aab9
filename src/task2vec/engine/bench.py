"""What a worker has before it: the work, opened once, and the unit that it is doing."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from task2vec.engine.messages import BEGIN, BROKEN, END, FAILED, OPEN, READY, VALUE, Message, pack, unpack
from task2vec.engine.units import Failure
from task2vec.errors import UsageError

Do = Callable[[Any], Iterable[Any]]


class Bench:
    """Answers what it is told, wherever it stands: in a process of a pool or of a cluster."""

    def __init__(self):
        self.do: Do | None = None

    def answer(self, told: Message) -> Iterator[Message]:
        """All that is to be said to one message, as it comes about."""
        if told.word == OPEN:
            yield self._open(told.content)
        elif told.word == BEGIN and self.do is not None:
            yield from perform(self._unpack_and_do, told.content, pack)

    def _open(self, work: bytes) -> Message:
        try:
            self.do = _unpack_here(work, "the work").open()
        except Exception as error:
            return Message(BROKEN, Failure.of(error))
        return Message(READY)

    def _unpack_and_do(self, payload: bytes) -> Iterable[Any]:
        assert self.do is not None
        return self.do(_unpack_here(payload, "this unit"))


def perform(do: Do, payload: Any, wrap: Callable[[Any], Any]) -> Iterator[Message]:
    """The wrapped values of a unit as they are finished, then its end or why it failed."""
    try:
        for value in do(payload):
            yield Message(VALUE, wrap(value))
    except Exception as error:
        yield Message(FAILED, Failure.of(error))
    else:
        yield Message(END)


def _unpack_here(content: bytes, what: str) -> Any:
    """What another process has packed, if all that it is made of can be imported here."""
    try:
        return unpack(content)
    except Exception as error:
        raise UsageError(
            f"{what} cannot be opened in another process ({type(error).__name__}: {error}): it may be made of classes "
            "that only one process knows. Define them in a module that can be imported, or use engine='serial' "
            "(--engine serial)."
        ) from error
