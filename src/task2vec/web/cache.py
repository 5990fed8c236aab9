"""What was worked out once is kept, up to a number of bytes; what was not asked for longest goes first."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Cache(Generic[Value]):
    """Values by key, for any number of threads.

    Example:
        >>> cache = Cache(10)
        >>> for name in ("a", "b"):
        ...     cache.put(name, name.upper(), size=6)
        >>> cache.get("a"), cache.get("b")
        (None, 'B')
    """

    def __init__(self, most: int):
        """`most` is the sum of all sizes."""
        self.most, self.size = most, 0
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many values there are."""
        return len(self._values)

    def get(self, key: Hashable) -> Value | None:
        """The value of a key, which was asked for just now; None if it is not there."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Hashable, value: Value, *, size: int) -> None:
        """Keeps a value; one that is larger than all may be together is not kept."""
        with self._lock:
            if key in self._values:
                self.size -= self._values.pop(key)[1]
            if size > self.most:
                return
            self._values[key] = (value, size)
            self.size += size
            while self.size > self.most:
                _, (_, freed) = self._values.popitem(last=False)
                self.size -= freed
