"""Values on their way between our own processes.

They are pickled, as all is that processes of Python say to each other. A pickle can run code, so nothing is ever
unpacked here but what our own process has packed: it comes through a pipe or a cluster of one's own, never from a file.
"""

import copyreg
import io
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

# What a worker is told: to open the work, to do a unit.
OPEN, BEGIN = "open", "begin"
# What it answers: the work is open, or cannot be opened; a value, the end of a unit, a failure; it answers no more.
READY, BROKEN, VALUE, END, FAILED, DIED = "ready", "broken", "value", "end", "failed", "died"


class Message(NamedTuple):
    """What a worker is told or answers: which of the words above, and what belongs to it."""

    word: str
    content: Any = None


class _WholePickler(ForkingPickler):
    """Packs tensors with their numbers, where torch would have both processes share the sender's memory."""

    def __init__(self, file: io.BytesIO):
        super().__init__(file, 5)
        self.dispatch_table = copyreg.dispatch_table


def pack(value: Any) -> bytes:
    """The value as bytes; whatever cannot be packed raises an error of its own.

    Example:
        >>> unpack(pack({"numbers": [1, 2]}))
        {'numbers': [1, 2]}
    """
    file = io.BytesIO()
    _WholePickler(file).dump(value)
    return file.getvalue()


def unpack(content: bytes) -> Any:
    """What `pack` has packed in one of our processes."""
    return ForkingPickler.loads(content)  # type: ignore[attr-defined]
