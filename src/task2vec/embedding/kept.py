"""Embeddings that are there already: where, under which name, and whether they are what a run would make again."""

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Protocol

from task2vec.embedding.settings import RECIPE
from task2vec.embedding.store import load_embedding
from task2vec.errors import EmbeddingFileError, ResourceError

if TYPE_CHECKING:
    from task2vec.embedding.domain import DomainEmbedding
    from task2vec.embedding.settings import EmbedSettings
    from task2vec.embedding.value import Embedding
    from task2vec.probe import Probe
    from task2vec.tasks import Task

SUFFIX = ".t2v.safetensors"
_LONGEST_NAME = 120
# What is being written is younger than this.
_ORPHAN_SECONDS = 3600


class Shelf(Protocol):
    """Where embeddings are asked for before they are made, and put when they are: a library, for instance."""

    def find(self, task: "Task", probe: "Probe", *, settings: "EmbedSettings") -> "Embedding | None":
        """The embedding that embedding this task by this probe with these settings would give again, if it is here."""
        ...

    def keep(self, embedding: "Embedding", *, source: str) -> None:
        """Takes an embedding in; `source` is where its task was read from."""
        ...


def is_same(
    known: "Embedding | DomainEmbedding", task: "Task", probe: "Probe", *, settings: "EmbedSettings | None" = None
) -> bool:
    """Whether embedding the task by this probe with these settings would give the known embedding again, today."""
    told = known.provenance
    wanted: dict[str, object] = {"task_fingerprint": task.fingerprint, "probe_fingerprint": probe.fingerprint}
    if settings is not None:
        wanted["settings"] = json.loads(json.dumps(settings.as_dict()))
        wanted["recipe"] = RECIPE
    return all(told.get(key) == value for key, value in wanted.items())


def name_file(task: "Task", suffix: str = SUFFIX) -> str:
    """The file of a task: its name, where that can be one, else what can be of it and the task's fingerprint."""
    clean = re.sub(r"[^\w.-]", "_", task.name, flags=re.ASCII).lstrip(".")[:_LONGEST_NAME]
    return f"{clean if clean == task.name else f'{clean}-{task.fingerprint[:8]}'}{suffix}"


def open_folder(folder: Path) -> Path:
    """The folder, made if it is not there, without what writers left in it that were killed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        for orphan in folder.glob(f".*{SUFFIX}.*.partial"):
            if time() - orphan.stat().st_mtime > _ORPHAN_SECONDS:
                orphan.unlink(missing_ok=True)
    except OSError as error:
        raise ResourceError(
            f"embeddings cannot be kept in '{folder}': {error.strerror}. They would be lost. Choose another folder."
        ) from error
    return folder


def find_kept(folder: Path, task: "Task", probe: "Probe", *, settings: "EmbedSettings") -> "Embedding | None":
    """The embedding of `task` in `folder`, if a run would give it again; a damaged file is none."""
    places = _places(folder, task, probe, settings)
    return next((known for place in places if (known := _load(place, task, probe, settings)) is not None), None)


def find_place(folder: Path, task: "Task", probe: "Probe", *, settings: "EmbedSettings") -> Path:
    """Where the embedding of `task` lies, or is to be written: under its name, if nothing else has that.

    Otherwise the name gets a hash of all that makes the embedding, so that nothing but itself is ever overwritten.
    """
    first, second = _places(folder, task, probe, settings)
    known = next((place for place in (first, second) if _load(place, task, probe, settings) is not None), None)
    return known or (second if os.path.lexists(first) else first)


def _places(folder: Path, task: "Task", probe: "Probe", settings: "EmbedSettings") -> tuple[Path, Path]:
    """Where the embedding may lie."""
    name = name_file(task)
    own = _hash([task.fingerprint, probe.fingerprint, settings.as_dict(), RECIPE])[:16]
    return folder / name, folder / f"{name.removesuffix(SUFFIX)}-{own}{SUFFIX}"


def _load(place: Path, task: "Task", probe: "Probe", settings: "EmbedSettings") -> "Embedding | None":
    """The embedding at `place`, if there is one and it is the one that a run would give."""
    try:
        known = load_embedding(place) if place.exists() else None
    except EmbeddingFileError:
        return None
    return known if known is not None and is_same(known, task, probe, settings=settings) else None


def _hash(content: list) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
