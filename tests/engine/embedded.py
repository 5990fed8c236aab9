"""Small embeddings by whichever engine, as bytes."""

import json
from functools import cache

from task2vec.embedding import Embedding, EmbedSettings, embed_many
from task2vec.engine import Engine
from task2vec.probe import load_probe
from task2vec.tasks import Task, sample_tasks

SETTINGS = EmbedSettings(images=6, l2=0.1)
load = cache(lambda: load_probe(size=32))


def small_tasks() -> list[Task]:
    """Three tasks; two of them share their images."""
    return list(sample_tasks(images_per_task=20)[:3])


def to_bytes(embedding: Embedding) -> bytes:
    """All that an embedding is."""
    numbers = [embedding.fisher, embedding.stderr, embedding.prior]
    return b"".join(array.tobytes() for array in numbers) + json.dumps(embedding.provenance, sort_keys=True).encode()


def embed_bytes(engine: Engine | str | None) -> list[bytes]:
    """The embeddings of the small tasks, in their order."""
    found = {}
    for result in embed_many(small_tasks(), load(), settings=SETTINGS, engine=engine):
        assert result.embedding is not None, result.error
        found[result.number] = to_bytes(result.embedding)
    return [found[number] for number in range(len(found))]
