"""Small embeddings as `embed` makes them, and the bytes of a folder."""

from pathlib import Path

import numpy as np
import pytest

from task2vec.distance import symmetric
from task2vec.embedding import Embedding
from task2vec.probe import FilterLayer

FILTERS = 50
PROBE, OTHER_PROBE = "ab" * 32, "cd" * 32
DIRECT = {"method": "direct", "seed": 0}


def fingerprint_of(seed):
    """The fingerprint of the task of that seed."""
    return f"{seed:064x}"


def make(name, seed, *, numbers=None, filters=FILTERS, fisher=None, prior=1e-3, probe="net", halves=None, **provenance):
    """The embedding of the task of that seed; `numbers` is the seed of its values, if they are to be others."""
    if fisher is None:
        fisher = np.exp(np.random.default_rng(seed if numbers is None else numbers).normal(size=filters))
    layers = (FilterLayer("conv", "convolution", len(fisher), 9, 0.1),)
    told = {
        "task_fingerprint": fingerprint_of(seed),
        "probe_fingerprint": PROBE,
        "settings": {"method": "robust", "seed": 0},
        "recipe": 2,
        "classes": ["a", "b"],
        "is_multilabel": False,
        "counts": {"images": 10, "classes": 2, "per_class": [5, 5]},
        "head": {"cv_error": 0.1},
        "versions": {"torch": "2.11"},
    }
    return Embedding(name, probe, fisher, fisher / 10, np.full(len(fisher), prior), layers, told | provenance, halves)


def read_bytes(folder):
    """The content of every file below a folder, but for the memory that processes share."""
    files = (path for path in sorted(Path(folder).rglob("*")) if path.is_file() and not path.name.endswith("-shm"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def change(library, statement, *values):
    """Runs a statement on the tables of a library."""
    with library._database.write() as connection:
        return connection.execute(statement, values).fetchall()


def describe(library):
    """What a library holds, without numbers of rows."""
    tasks = [(task.fingerprint, task.name, task.tags, task.taxon, task.added) for task in library.tasks()]
    embeddings = sorted((one.key, one.sha256, one.added) for task in library.tasks() for one in task.embeddings)
    return tasks, embeddings, library.experts(), library.errors()


def find_truth(library, embedding, k):
    """The names and distances of the nearest, from the embeddings themselves."""
    own = embedding.provenance["task_fingerprint"]
    others = [library.get(task.fingerprint) for task in library.tasks() if task.fingerprint != own]
    ranked = sorted((symmetric(embedding, one), one.task) for one in others)
    return [(name, pytest.approx(distance, abs=1e-6)) for distance, name in ranked[:k]]


def read_content(library, name):
    """The id and the bytes of the only embedding of a task."""
    (entry,) = library.task(name).embeddings
    ((content,),) = change(library, "SELECT content FROM contents WHERE embedding = ?", entry.id)
    return entry.id, content


def spoil(library, name, place=700, table="contents", column="content"):
    """Flips a bit of a BLOB of the only embedding of a task."""
    (entry,) = library.task(name).embeddings
    ((blob,),) = change(library, f"SELECT {column} FROM {table} WHERE embedding = ?", entry.id)
    damaged = bytearray(blob)
    damaged[place] ^= 0x40
    change(library, f"UPDATE {table} SET {column} = ? WHERE embedding = ?", bytes(damaged), entry.id)
