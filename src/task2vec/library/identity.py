"""What an embedding says of itself that an index must know; embeddings come from strangers, so nothing is believed."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.distance import SCALING
from task2vec.embedding import Embedding
from task2vec.embedding.settings import RECIPE
from task2vec.errors import DataError
from task2vec.library.texts import check_text, write_plain

if TYPE_CHECKING:
    from task2vec.embedding import EmbedSettings
    from task2vec.probe import Probe
    from task2vec.tasks import Task

_HEX = set("0123456789abcdef")


@dataclass(frozen=True)
class TaskFacts:
    """The task of an embedding, as far as the index lists it; see `TaskEntry`."""

    fingerprint: str
    name: str
    images: int
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    is_multilabel: bool


@dataclass(frozen=True)
class Space:
    """Where embeddings can be compared: one probe with its weights, and one choice of all settings that scale."""

    probe: str
    probe_fingerprint: str
    filters: int
    settings: str

    @property
    def key(self) -> str:
        """SHA-256 of what decides; the name of the probe does not."""
        return _hash([self.probe_fingerprint, self.filters, self.settings])


@dataclass(frozen=True)
class Identity:
    """What makes an embedding this one and no other, and what is told of it in a list."""

    key: str
    task: TaskFacts
    space: Space
    settings: str
    recipe: int | None
    norm: float
    cv_error: float | None


def identify(embedding: Embedding) -> Identity:
    """What `embedding` is.

    Raises:
        DataError: It does not say which task, probe or settings it comes from.
    """
    story = embedding.provenance
    try:
        settings = story["settings"]
        if not isinstance(settings, dict):
            raise TypeError("settings")
        recipe = story.get("recipe")
        if recipe is not None and not _is_count(recipe):
            raise TypeError("recipe")
        task = _read_task(embedding.task, story)
        probe = _check_hash(story["probe_fingerprint"], "probe_fingerprint")
        text = write_plain(settings, "settings")
        key = _hash([task.fingerprint, probe, settings, recipe])
        head = story.get("head")
        error = head.get("cv_error") if isinstance(head, dict) else None
        check_text(embedding.probe, "probe")
        _check_layers(embedding)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"the embedding of '{embedding.task}' does not say how it was made ({type(error).__name__}: {error}), so a "
            "library could not tell it from others. Embed the task again: task2vec embed FOLDER"
        ) from error
    return Identity(
        key=key,
        task=task,
        space=space_of(embedding),
        settings=text,
        recipe=recipe,
        norm=embedding.norm(),
        cv_error=float(error) if isinstance(error, int | float) and 0 <= error <= 1 else None,
    )


def space_of(embedding: Embedding) -> Space:
    """The space that `embedding` can be compared in."""
    settings = embedding.provenance.get("settings")
    chosen = {name: settings.get(name) for name in SCALING} if isinstance(settings, dict) else {}
    return Space(embedding.probe, embedding.probe_fingerprint, len(embedding), _write(chosen))


def key_of(task: "Task", probe: "Probe", settings: "EmbedSettings") -> str:
    """The key of the embedding that a run with these would give today."""
    return _hash([task.fingerprint, probe.fingerprint, json.loads(json.dumps(settings.as_dict())), RECIPE])


def describe_task(task: "Task") -> TaskFacts:
    """The facts of a task that is at hand."""
    counts = tuple(int(count) for count in task.counts)
    return TaskFacts(task.fingerprint, task.name, len(task), task.classes, counts, task.is_multilabel)


def is_same_vector(one: Embedding, other: Embedding) -> bool:
    """Whether two embeddings hold the same numbers, whatever their tasks are called and whoever made them."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("fisher", "stderr", "prior", "halves")]
    return all((a is None and b is None) or (a is not None and np.array_equal(a, b)) for a, b in pairs)


def read_facts(told: Mapping[str, Any]) -> TaskFacts:
    """The facts of a task from plain values, each checked.

    Raises:
        KeyError, TypeError, ValueError: One is missing or is not what it should be.
    """
    classes, counts = told["classes"], told["counts"]
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise TypeError("classes")
    if not isinstance(counts, list) or len(counts) != len(classes) or not all(_is_count(count) for count in counts):
        raise TypeError("counts")
    if not _is_count(told["images"]):
        raise TypeError("images")
    for text in (told["name"], *classes):
        check_text(text, "name")
    fingerprint = _check_hash(told["fingerprint"], "fingerprint")
    return TaskFacts(
        fingerprint, told["name"], told["images"], tuple(classes), tuple(counts), told["is_multilabel"] is True
    )


def _read_task(name: str, story: Mapping[str, Any]) -> TaskFacts:
    counts = story["counts"]
    return read_facts(
        {
            "fingerprint": story["task_fingerprint"],
            "name": name,
            "images": counts["images"],
            "classes": story["classes"],
            "counts": counts["per_class"],
            "is_multilabel": story["is_multilabel"],
        }
    )


def _check_layers(embedding: Embedding) -> None:
    if not len(embedding) or not all(_is_count(layer.filters) for layer in embedding.layers):
        raise ValueError("layers")


def _check_hash(value: object, name: str) -> str:
    if not isinstance(value, str) or not 8 <= len(value) <= 128 or not set(value) <= _HEX:
        raise ValueError(name)
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


def _hash(content: Sequence[Any]) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(_write(content).encode()).hexdigest()


def _write(content: Any) -> str:
    return json.dumps(content, sort_keys=True, allow_nan=False)
