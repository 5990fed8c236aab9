"""What identifies an embedding: its task, its probe, its settings. Embeddings come from outside, so all is checked."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.distance import SCALING
from task2vec.embedding import RECIPE, Embedding
from task2vec.errors import DataError
from task2vec.library.entries import EmbeddingEntry, TaskEntry, check_text, to_json

if TYPE_CHECKING:
    from task2vec.embedding import EmbedSettings
    from task2vec.probe import Probe
    from task2vec.tasks import Task

_HEX = set("0123456789abcdef")


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
        settings, recipe, counts = provenance["settings"], provenance.get("recipe"), provenance["counts"]
        if not isinstance(settings, dict):
            raise TypeError("settings")
        if recipe is not None and not _is_count(recipe):
            raise TypeError("recipe")
        task = read_task(
            {
                "fingerprint": provenance["task_fingerprint"],
                "name": embedding.task,
                "images": counts["images"],
                "classes": provenance["classes"],
                "counts": counts["per_class"],
                "is_multilabel": provenance["is_multilabel"],
            }
        )
        probe = _check_hash(provenance["probe_fingerprint"], "probe_fingerprint")
        to_json(settings, "settings")
        key = hash_values([task.fingerprint, probe, settings, recipe])
        head = provenance.get("head")
        error = head.get("cv_error") if isinstance(head, dict) else None
        check_text(embedding.probe, "probe")
        if not len(embedding) or not all(_is_count(layer.filters) for layer in embedding.layers):
            raise ValueError("layers")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"the provenance of the embedding of '{embedding.task}' is incomplete ({type(error).__name__}: {error}), "
            "so a library could not tell it from others. Embed the task again: task2vec embed FOLDER"
        ) from error
    cv_error = float(error) if isinstance(error, int | float) and 0 <= error <= 1 else None
    has_halves = embedding.halves is not None
    own = (key, embedding.probe, probe, settings, recipe, embedding.norm(), cv_error, has_halves)
    return task, EmbeddingEntry(0, *own, sha256="", bytes=0, added="")


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
    return hash_values([task.fingerprint, probe.fingerprint, json.loads(json.dumps(settings.as_dict())), RECIPE])


def describe_task(task: "Task") -> TaskEntry:
    """The entry that `task` would be in a library."""
    counts = tuple(int(count) for count in task.counts)
    entry = (task.fingerprint, task.name, len(task), task.classes, counts, task.is_multilabel, None, task.source, "")
    return TaskEntry(0, *entry)


def is_same_vector(one: Embedding, other: Embedding) -> bool:
    """Whether two embeddings hold the same numbers, whatever their tasks are called and whoever made them."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("fisher", "stderr", "prior", "halves")]
    return all((a is None and b is None) or (a is not None and np.array_equal(a, b)) for a, b in pairs)


def read_task(fields: Mapping[str, Any]) -> TaskEntry:
    """A task from plain values, each checked.

    Raises:
        KeyError, TypeError, ValueError: One is missing or is not what it should be.
    """
    classes, counts, tags = fields["classes"], fields["counts"], fields.get("tags", [])
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise TypeError("classes")
    if not isinstance(counts, list) or len(counts) != len(classes) or not all(_is_count(count) for count in counts):
        raise TypeError("counts")
    if not _is_count(fields["images"]):
        raise TypeError("images")
    if not isinstance(tags, list) or any(not check_text(tag, "tag").strip() for tag in tags):
        raise TypeError("tags")
    for text in (fields["name"], *classes):
        check_text(text, "name")
    taxon, added = (check_text(fields.get(name), name, may_be_none=True) for name in ("taxon", "added"))
    return TaskEntry(
        0, _check_hash(fields["fingerprint"], "fingerprint"), fields["name"], fields["images"], tuple(classes),
        tuple(counts), fields["is_multilabel"] is True, taxon, "", added or "", tuple(tags),
    )  # fmt: skip


def hash_values(content: Sequence[Any]) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _check_hash(value: object, name: str) -> str:
    if not isinstance(value, str) or not 8 <= len(value) <= 128 or not set(value) <= _HEX:
        raise ValueError(name)
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
