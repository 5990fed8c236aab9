"""What a library holds, as plain values: their types, their checks, and what identifies them.

Embeddings, exported files and damaged tables come from outside, so every value is checked.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from task2vec.distance import SCALING
from task2vec.embedding import RECIPE, Embedding
from task2vec.errors import DataError, UsageError

if TYPE_CHECKING:
    from task2vec.embedding import EmbedSettings
    from task2vec.probe import Probe
    from task2vec.tasks import Task

SOURCES = ("timm", "hub", "file")
MAX_TEXT = 1 << 16  # characters
MAX_DEPTH = 20  # of nested lists
_LARGEST_INTEGER = (1 << 63) - 1  # of SQLite

Text = TypeVar("Text", str, str | None)


@dataclass(frozen=True, repr=False)
class EmbeddingEntry:
    """One embedding of a task in a library.

    Attributes:
        id: its number in this library.
        key: SHA-256 of all that determines it: the task's content, the probe, the settings, the recipe.
        probe: name of the probe.
        probe_fingerprint: of its weights and preprocessing.
        settings: of `embed`.
        recipe: the version of the algorithm; None if unknown.
        norm: L1 norm of the Fisher.
        cv_error: cross-validated error of the head; None if unknown.
        has_halves: whether the noise of its distances can be estimated.
        sha256: of its content.
        bytes: length of its content.
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

    def __repr__(self) -> str:
        """The embedding in one line."""
        return (
            f"EmbeddingEntry({self.key[:8]}, probe {self.probe!r}, {self.settings.get('method')}, norm {self.norm:.4g})"
        )


@dataclass(frozen=True, repr=False)
class TaskEntry:
    """A task in a library, with its embeddings.

    Attributes:
        id: its number in this library.
        fingerprint: SHA-256 of its images and their partition.
        name: the name it was added or renamed to.
        images: how many it has.
        classes: their names.
        counts: images of each class.
        is_multilabel: whether an image may have any number of classes.
        taxon: its place in a taxonomy, if known.
        source: the folder or table that it was read from, as it was given.
        added: when, in UTC.
        tags: in alphabetical order.
        embeddings: by id.
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

    def __repr__(self) -> str:
        """The task in one line."""
        counts = f"{self.images} images, {len(self.classes)} classes, {len(self.embeddings)} embeddings"
        return f"TaskEntry({self.name!r}, {counts})"


@dataclass(frozen=True, repr=False)
class Expert:
    """A feature extractor, and where to load it from; nothing is loaded here.

    Attributes:
        name: unique in a library.
        source: "timm" (a name that timm knows), "hub" (an id of a model hub) or "file" (weights on a disk).
        location: that name, id or path.
        task: fingerprint of the task it was trained on; None if unknown.
        recipe: how it was trained.
        parameters: how many it has.
        input_size: side of the images it takes, in pixels.
        cost: of one image, in billions of multiplications.
        sha256: of its file of weights.

    Example:
        >>> Expert("generic", "timm", "resnet34", parameters=21_284_672, input_size=224)
        Expert('generic', timm 'resnet34')
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
        """Refuses values that no expert can have."""
        for name in ("name", "location"):
            if not check_text(getattr(self, name), name):
                raise UsageError(f"an expert without a {name} could not be found again. Give a text that is not empty.")
        for name in ("task", "sha256"):
            check_text(getattr(self, name), name, may_be_none=True)
        if self.source not in SOURCES or not isinstance(self.recipe, Mapping):
            raise UsageError(
                f"the expert '{self.name}' has the source {self.source!r} and the recipe {self.recipe!r:.80}, so it "
                f"could not be loaded. The source must be one of {', '.join(SOURCES)}, and the recipe a dictionary."
            )
        for name, limit in (("parameters", _LARGEST_INTEGER), ("input_size", _LARGEST_INTEGER), ("cost", 1e300)):
            if getattr(self, name) is not None:
                check_number(getattr(self, name), name, 0, limit)
        to_json(dict(self.recipe), f"recipe of the expert '{self.name}'")

    def __repr__(self) -> str:
        """The expert in one line."""
        return f"Expert({self.name!r}, {self.source} {self.location!r})"


@dataclass(frozen=True, repr=False)
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
        measured_by: by whom.

    Example:
        >>> MeasuredError("3f2a91c0", "generic", 0.125, "linear-2, train half")
        MeasuredError(12.5% on task 3f2a91c0, expert 'generic', 'linear-2, train half', seed 0)
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
        """Refuses values that no error can have."""
        for name in ("task", "expert", "protocol", "measured_by"):
            check_text(getattr(self, name), name)
        check_text(self.measured, "measured", may_be_none=True)
        check_number(self.seed, "seed", -_LARGEST_INTEGER, _LARGEST_INTEGER)
        for name in ("error", "low", "high"):
            if getattr(self, name) is not None or name == "error":
                check_number(getattr(self, name), f"{name} of the expert '{self.expert}'", 0, 1.0)

    def __repr__(self) -> str:
        """The error in one line."""
        cell = f"task {self.task[:8]}, expert {self.expert!r}, {self.protocol!r}, seed {self.seed}"
        return f"MeasuredError({self.error:.1%} on {cell})"


@dataclass(frozen=True, repr=False)
class RunEntry:
    """A run that was recorded; `ended` is None if it is still going on or was killed."""

    id: int
    what: str
    details: Mapping[str, Any]
    started: str
    ended: str | None
    outcome: str | None

    def __repr__(self) -> str:
        """The run in one line."""
        return f"RunEntry({self.id}, {self.what!r}, started {self.started}, {self.outcome or 'not ended'})"


@dataclass(frozen=True)
class Added:
    """The outcome of adding one thing.

    Attributes:
        kind: "task", "embedding", "expert" or "error".
        name: of the task or expert in the library, which may differ from the one given.
        key: of the embedding, fingerprint of the task, or name of the expert.
        is_new: False if the very same was there already.
    """

    kind: str
    name: str
    key: str
    is_new: bool


@dataclass(frozen=True, repr=False)
class Neighbour:
    """A task near another one, and the symmetric distance between their embeddings."""

    task: TaskEntry
    embedding: EmbeddingEntry
    distance: float

    def __repr__(self) -> str:
        """The neighbour in one line."""
        return f"Neighbour({self.task.name!r}, distance {self.distance:.3f})"


# --- checks of values from outside -----------------------------------------------------------------------------------


def check_text(value: Text, name: str, *, may_be_none: bool = False) -> Text:
    """The text itself.

    Raises:
        UsageError: It is not a text, is longer than any name, or has lone surrogates, as names of files that are not
            UTF-8 do.

    Example:
        >>> check_text("Vögel", "name")
        'Vögel'
    """
    if value is None and may_be_none:
        return value
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise UsageError(
            f"{name}={value!r:.80} is not a text of at most {MAX_TEXT} characters, so it cannot be listed. Give one."
        )
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise UsageError(f"the {name} {value[:80]!r} is not valid Unicode, so it cannot be saved. Rename it.")
    return value


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """The tags as a tuple; a single text is one tag, not its letters."""
    checked = (tags,) if isinstance(tags, str) else tuple(tags)
    for tag in checked:
        if not check_text(tag, "tag").strip():
            raise UsageError(f"the tag {tag!r} is empty and could not be searched for. Give a text that is not empty.")
    return checked


def check_number(value: object, name: str, lowest: float, highest: float) -> None:
    """Raises an error unless it is a finite number within the limits, and whole if these are."""
    kind = int | float if isinstance(highest, float) else int
    if not isinstance(value, kind) or isinstance(value, bool) or not lowest <= value <= highest:
        noun = "a number" if isinstance(highest, float) else "a whole number"
        raise UsageError(
            f"{name}={value!r:.80} is not {noun} from {lowest} to {highest}, so it cannot be saved. Give one; errors "
            "are fractions, not percentages."
        )


def to_json(content: object, name: str) -> str:
    """Plain values as JSON, of limited length and depth.

    Raises:
        UsageError: It has other types, NaN or infinities, or is nested so deeply that it might not be read again.

    Example:
        >>> to_json({"epochs": 3}, "recipe")
        '{"epochs": 3}'
    """
    try:
        text = json.dumps(content, sort_keys=True, allow_nan=False)
        depth = _measure_depth(content)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"the {name} cannot be saved as JSON ({error}). Use texts, finite numbers, lists and dictionaries."
        ) from error
    if len(text) > MAX_TEXT or depth > MAX_DEPTH:
        raise UsageError(
            f"the {name} has {len(text)} characters at a depth of {depth}, which is too much to list. Give at most "
            f"{MAX_TEXT} characters and {MAX_DEPTH} nested lists."
        )
    return text


def _measure_depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    return 0 if inner is None else 1 + max(map(_measure_depth, inner), default=0)


# --- identity --------------------------------------------------------------------------------------------------------


def identify(embedding: Embedding) -> EmbeddingEntry:
    """The entry that `embedding` would be in a library, without its number, bytes and moment.

    Raises:
        DataError: It lacks its task, probe or settings.
    """
    return identify_with_task(embedding)[1]


def identify_with_task(embedding: Embedding) -> tuple[TaskEntry, EmbeddingEntry]:
    """The task of `embedding`, and its own entry; see `identify`."""
    provenance = embedding.provenance
    try:
        settings = provenance["settings"]
        recipe = provenance.get("recipe")
        probe = provenance["probe_fingerprint"]
        fields = {name: provenance[name] for name in ("classes", "is_multilabel")}
        fields |= {"images": provenance["counts"]["images"], "counts": provenance["counts"]["per_class"]}
        task = read_task(fields | {"fingerprint": provenance["task_fingerprint"], "name": embedding.task})
        _require(
            settings=isinstance(settings, dict),
            recipe=recipe is None or _is_count(recipe),
            probe_fingerprint=is_hash(probe),
            layers=bool(embedding.layers) and all(_is_count(layer.filters) for layer in embedding.layers),
        )
        to_json(settings, "settings")
        check_text(embedding.probe, "probe")
        groups = [str(provenance["groups"])] if provenance.get("groups") else []
        key = hash_values([task.fingerprint, probe, settings, recipe, *groups])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"the provenance of the embedding of '{embedding.task}' is incomplete ({type(error).__name__}: {error}), "
            "so a library could not distinguish it from others. Embed the task again: task2vec embed FOLDER"
        ) from error
    head = provenance.get("head")
    error = head.get("cv_error") if isinstance(head, dict) else None
    cv_error = float(error) if isinstance(error, int | float) and 0 <= error <= 1 else None
    entry = EmbeddingEntry(
        id=0,
        key=key,
        probe=embedding.probe,
        probe_fingerprint=probe,
        settings=settings,
        recipe=recipe,
        norm=embedding.norm(),
        cv_error=cv_error,
        has_halves=embedding.halves is not None,
        sha256="",
        bytes=0,
        added="",
    )
    return task, entry


def describe_space(embedding: Embedding) -> tuple[str, str]:
    """The key of the space that `embedding` can be compared in, and the settings that define it, as JSON.

    Embeddings of one probe with its weights, and with the same values of all settings that change the scale, are
    comparable; the name of the probe does not matter.
    """
    settings = embedding.provenance.get("settings")
    chosen = {name: settings.get(name) for name in SCALING} if isinstance(settings, dict) else {}
    text = json.dumps(chosen, sort_keys=True, allow_nan=False)
    return hash_values([embedding.probe_fingerprint, len(embedding), text]), text


def key_of(task: "Task", probe: "Probe", settings: "EmbedSettings") -> str:
    """The key of the embedding that `embed` would give for these today."""
    groups = [task.groups_key] if task.groups_key else []
    values = json.loads(json.dumps(settings.as_dict()))
    return hash_values([task.fingerprint, probe.fingerprint, values, RECIPE, *groups])


def describe_task(task: "Task") -> TaskEntry:
    """The entry that `task` would be in a library."""
    lists = {"classes": list(task.classes), "counts": [int(count) for count in task.counts]}
    names = ("fingerprint", "name", "is_multilabel", "source")
    return read_task({name: getattr(task, name) for name in names} | lists | {"images": len(task)})


def is_same_vector(first: Embedding, second: Embedding) -> bool:
    """Whether two embeddings hold the same numbers, whatever their tasks are called and whoever made them."""
    pairs = [(getattr(first, name), getattr(second, name)) for name in ("fisher", "stderr", "prior", "halves")]
    return all((a is None and b is None) or (a is not None and np.array_equal(a, b, equal_nan=True)) for a, b in pairs)


def read_task(fields: Mapping[str, Any]) -> TaskEntry:
    """A task from plain values, each checked.

    Raises:
        KeyError, TypeError, ValueError: One is missing or is not what it should be.
    """
    classes, counts, tags = fields["classes"], fields["counts"], fields.get("tags", [])
    _require(
        fingerprint=is_hash(fields["fingerprint"]),
        classes=isinstance(classes, list),
        counts=isinstance(counts, list) and len(counts) == len(classes) and all(map(_is_count, counts)),
        images=_is_count(fields["images"]),
        tags=isinstance(tags, list),
    )
    for text in (fields["name"], *classes):
        check_text(text, "name")
    return TaskEntry(
        id=0,
        fingerprint=fields["fingerprint"],
        name=fields["name"],
        images=fields["images"],
        classes=tuple(classes),
        counts=tuple(counts),
        is_multilabel=fields["is_multilabel"] is True,
        taxon=check_text(fields.get("taxon"), "taxon", may_be_none=True),
        source=check_text(fields.get("source"), "source", may_be_none=True) or "",
        added=check_text(fields.get("added"), "added", may_be_none=True) or "",
        tags=check_tags(tags),
    )


def hash_values(content: Sequence[Any]) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def is_hash(value: object, *, digits: int = 8) -> bool:
    """Whether it is a hash in hexadecimal digits, or at least so many of its first digits."""
    return isinstance(value, str) and digits <= len(value) <= 128 and set(value) <= set("0123456789abcdef")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


def _require(**claims: bool) -> None:
    """Raises a ValueError that names the claims that do not hold."""
    invalid = [name for name, holds in claims.items() if not holds]
    if invalid:
        raise ValueError(f"not valid: {', '.join(invalid)}")
