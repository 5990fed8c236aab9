"""What a library keeps, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from task2vec.errors import UsageError
from task2vec.library.texts import check_text, check_whole, write_plain

SOURCES = ("timm", "hub", "file")
_LARGEST_COST = 1e300


@dataclass(frozen=True)
class EmbeddingEntry:
    """One embedding of a task in the index.

    Attributes:
        id: its number in this library.
        key: SHA-256 of all that makes it: the task's content, the probe, the settings, the recipe.
        probe: name of the probe.
        probe_fingerprint: of its weights and preprocessing.
        settings: how it was made.
        recipe: the number of the algorithm that made it; None if it does not say.
        norm: L1 norm of the Fisher.
        cv_error: cross-validated error of the head; None if it does not say.
        has_halves: whether the noise of its distances can be told.
        sha256: of its file.
        bytes: length of its file.
        added: when, in UTC.
    """

    id: int
    key: str
    probe: str
    probe_fingerprint: str
    settings: Mapping[str, Any]
    recipe: int | None
    norm: float
    cv_error: float | None
    has_halves: bool
    sha256: str
    bytes: int
    added: str


@dataclass(frozen=True)
class TaskEntry:
    """A task in the index, with its embeddings.

    Attributes:
        id: its number in this library.
        fingerprint: SHA-256 of its images and their partition.
        name: what it was called when it came in, or has been called since.
        images: how many it has.
        classes: their names.
        counts: images of each class.
        is_multilabel: whether an image may have any number of classes.
        taxon: its place in a taxonomy, if anybody said.
        source: the folder or table that it came from, as it was given.
        added: when, in UTC.
        tags: in alphabetical order.
        embeddings: oldest first.
    """

    id: int
    fingerprint: str
    name: str
    images: int
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    is_multilabel: bool
    taxon: str | None
    source: str
    added: str
    tags: tuple[str, ...] = ()
    embeddings: tuple[EmbeddingEntry, ...] = ()


@dataclass(frozen=True)
class Expert:
    """A feature extractor, and where to load it from; nothing is loaded here.

    Attributes:
        name: what to call it; no two experts of a library have one name.
        source: "timm" (a name that timm knows), "hub" (an id of a model hub) or "file" (weights on a disk).
        location: that name, id or path.
        task: fingerprint of the task it was trained on; None if unknown.
        recipe: how it was trained.
        parameters: how many weights it has.
        input_size: side of the images it takes, in pixels.
        cost: of one image, in billions of multiplications.
        sha256: of its file of weights.

    Example:
        >>> Expert("generic", "timm", "resnet34", parameters=21_284_672, input_size=224).location
        'resnet34'
    """

    name: str
    source: Literal["timm", "hub", "file"]
    location: str
    task: str | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    input_size: int | None = None
    cost: float | None = None
    sha256: str | None = None

    def __post_init__(self):
        """Refuse what cannot be an expert."""
        for name in ("name", "location", "task", "sha256"):
            if not check_text(getattr(self, name), name, may_be_none=True) and name in ("name", "location"):
                raise UsageError(f"an expert needs a {name}, or nobody could find it again. Give it as text.")
        if self.source not in SOURCES:
            raise UsageError(
                f"the expert '{self.name}' has the source {self.source!r}, and nothing could be loaded from there. "
                f"Choose one of: {', '.join(SOURCES)}"
            )
        check_whole(self.parameters, "parameters")
        check_whole(self.input_size, "input_size")
        for name in ("parameters", "input_size", "cost"):
            value = getattr(self, name)
            is_size = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LARGEST_COST
            if value is not None and not is_size:
                raise UsageError(f"the {name} of the expert '{self.name}' is no size. Give a number, or None.")
        if not isinstance(self.recipe, Mapping):
            raise UsageError(f"the recipe of the expert '{self.name}' has no names. Give a dictionary.")
        write_plain(dict(self.recipe), f"recipe of the expert '{self.name}'")


@dataclass(frozen=True)
class MeasuredError:
    """The test error of one task on top of one expert.

    Attributes:
        task: fingerprint of the task.
        expert: name of the expert.
        error: between 0 and 1.
        protocol: how it was measured; only equal ones can be compared.
        seed: of the split and of all randomness.
        low: lower end of its confidence interval, if known.
        high: upper end of it.
        measured: when, in UTC; the moment of adding, if left out.
        measured_by: who.
    """

    task: str
    expert: str
    error: float
    protocol: str
    seed: int = 0
    low: float | None = None
    high: float | None = None
    measured: str | None = None
    measured_by: str = ""

    def __post_init__(self):
        """Refuse numbers that no error can be, and texts that none is."""
        for name in ("task", "expert", "protocol", "measured_by"):
            check_text(getattr(self, name), name)
        check_text(self.measured, "measured", may_be_none=True)
        if self.seed is None:
            raise UsageError("an error needs the seed that it was measured with, or it could not be told from others.")
        check_whole(self.seed, "seed")
        for name in ("error", "low", "high"):
            value = getattr(self, name)
            if value is None and name != "error":
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
                raise UsageError(
                    f"{name}={value!r} of the task {self.task[:8]} on the expert '{self.expert}' is no error: errors "
                    "are shares of test images, from 0 to 1. Divide percentages by 100."
                )


@dataclass(frozen=True)
class RunEntry:
    """What was done with a library, and how it ended; `ended` is None if it still goes on or was killed."""

    id: int
    what: str
    story: Mapping[str, Any]
    begun: str
    ended: str | None
    outcome: str | None


@dataclass(frozen=True)
class Added:
    """What became of a thing that was added.

    Attributes:
        kind: "task", "embedding", "expert" or "error".
        name: of the task or expert in the library, which may have known it under another one.
        key: of the embedding, fingerprint of the task, or name of the expert.
        is_new: False if the very same was there already.
    """

    kind: str
    name: str
    key: str
    is_new: bool


@dataclass(frozen=True)
class Neighbour:
    """A task near another one, and the symmetric distance between their embeddings."""

    task: TaskEntry
    embedding: EmbeddingEntry
    distance: float
