"""Where the pixels of a task come from, and what is said of a picture that gives none."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from PIL import Image


@dataclass(frozen=True)
class BadImage:
    """A picture that could not be read: where it lies, and why it gives no pixels."""

    path: str
    reason: str


class Images(Protocol):
    """The pictures of a task, decoded one at a time so that memory does not grow with their number."""

    @property
    def is_threadsafe(self) -> bool:
        """Whether `load` may run in several threads at once: true for files, false for somebody else's dataset."""
        ...

    def __len__(self) -> int:
        """The number of pictures."""
        ...

    def load(self, index: int) -> Image.Image:
        """Picture `index`, upright, RGB, 8 bit; `DataChangedError` if it is not what it was when the task was read."""
        ...

    def name(self, index: int) -> str:
        """What to call picture `index` in a message: a path below the root, or "item 17"."""
        ...


@dataclass(frozen=True)
class ChosenImages:
    """Some pictures of `source`, in the order of `indices`."""

    source: Images
    indices: Sequence[int]

    @property
    def is_threadsafe(self) -> bool:
        """Whether the source is."""
        return self.source.is_threadsafe

    def __len__(self) -> int:
        """The number of chosen pictures."""
        return len(self.indices)

    def load(self, index: int) -> Image.Image:
        """The chosen picture at `index`, as its source loads it."""
        return self.source.load(self.indices[index])

    def name(self, index: int) -> str:
        """The name that the source gives to it."""
        return self.source.name(self.indices[index])
