"""Embeddings that are on disk already: under which name, and whether they are what a run would make again."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from task2vec.embedding.store import load_embedding
from task2vec.errors import EmbeddingFileError

if TYPE_CHECKING:
    from task2vec.embedding.domain import DomainEmbedding
    from task2vec.embedding.settings import EmbedSettings
    from task2vec.embedding.value import Embedding
    from task2vec.probe import Probe
    from task2vec.tasks import Task

SUFFIX = ".t2v.safetensors"
_LONGEST_NAME = 120


def is_same(
    known: "Embedding | DomainEmbedding", task: "Task", probe: "Probe", *, settings: "EmbedSettings | None" = None
) -> bool:
    """Whether embedding the task by this probe with these settings would give the known embedding again."""
    told = known.provenance
    wanted = {"task_fingerprint": task.fingerprint, "probe_fingerprint": probe.fingerprint}
    if settings is not None:
        wanted["settings"] = json.loads(json.dumps(settings.as_dict()))
    return all(told.get(key) == value for key, value in wanted.items())


def name_file(task: "Task", suffix: str = SUFFIX) -> str:
    """The file of a task: its name, where that can be one, else what can be of it and the task's fingerprint."""
    clean = re.sub(r"[^\w.-]", "_", task.name, flags=re.ASCII).lstrip(".")[:_LONGEST_NAME]
    return f"{clean if clean == task.name else f'{clean}-{task.fingerprint[:8]}'}{suffix}"


def find_kept(folder: Path, task: "Task", probe: "Probe", *, settings: "EmbedSettings") -> "Embedding | None":
    """The embedding of `task` in `folder`, if a run would give it again; a damaged file is none."""
    place = folder / name_file(task)
    try:
        known = load_embedding(place) if place.exists() else None
    except EmbeddingFileError:
        return None
    return known if known is not None and is_same(known, task, probe, settings=settings) else None
