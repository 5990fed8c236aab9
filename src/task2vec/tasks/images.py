"""Where the pixels of a task come from, and what is said of a picture that gives none."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
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


@dataclass(frozen=True)
class JoinedImages:
    """The pictures of several sources one after the other; `labels` tell in messages which source is meant."""

    parts: tuple[Images, ...]
    labels: tuple[str, ...]

    @property
    def is_threadsafe(self) -> bool:
        """Whether all sources are."""
        return all(part.is_threadsafe for part in self.parts)

    def __len__(self) -> int:
        """The number of pictures of all sources together."""
        return self._ends[-1]

    def load(self, index: int) -> Image.Image:
        """The picture at `index`, as its source loads it."""
        part, within = self._find(index)
        return self.parts[part].load(within)

    def name(self, index: int) -> str:
        """The label of the source and what the source calls the picture."""
        part, within = self._find(index)
        return f"{self.labels[part]}: {self.parts[part].name(within)}"

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(len(part) for part in self.parts))

    def _find(self, index: int) -> tuple[int, int]:
        """The source that holds picture `index`, and its place there."""
        part = bisect_right(self._ends, index)
        return part, index - (self._ends[part - 1] if part else 0)


def choose_images(images: Images, indices: Sequence[int]) -> ChosenImages:
    """The pictures at `indices`; a choice from a choice refers to the first source, so that calls do not pile up."""
    if isinstance(images, ChosenImages):
        return ChosenImages(images.source, [images.indices[index] for index in indices])
    return ChosenImages(images, list(indices))
