"""How many threads a process computes with.

Sums of floating-point numbers depend on how they are shared out among threads. So the bytes of a result are the same
wherever it is computed only if the number of threads is the same, too.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Read by the libraries for linear algebra when they are loaded.
_NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def use_threads(count: int) -> None:
    """Computes with so many threads from now on: libraries yet to be loaded, and torch if it is loaded already."""
    os.environ.update(dict.fromkeys(_NAMES, str(count)))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


@contextmanager
def hand_on_threads(count: int) -> Iterator[None]:
    """Processes that are started in the block compute with so many threads."""
    before = {name: os.environ.pop(name, None) for name in _NAMES}
    os.environ.update(dict.fromkeys(_NAMES, str(count)))
    try:
        yield
    finally:
        for name in _NAMES:
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if value is not None})


@contextmanager
def limit_threads(count: int | None) -> Iterator[None]:
    """Computes with so many threads for as long as the block lasts; None leaves all as it is."""
    if count is None:
        yield
        return
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    with hand_on_threads(count):
        use_threads(count)
        try:
            yield
        finally:
            if torch is not None:
                torch.set_num_threads(before)
