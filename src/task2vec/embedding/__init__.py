"""Task and probe become an embedding.

Names are resolved on first use: a saved embedding is read and shown without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from task2vec.embedding.domain import DomainEmbedding, domain_of, embed_domain
    from task2vec.embedding.many import TaskResult, embed_many
    from task2vec.embedding.run import embed
    from task2vec.embedding.settings import EmbedSettings, VariationalSettings
    from task2vec.embedding.store import load_embedding
    from task2vec.embedding.value import Embedding, trivial

__all__ = [
    "DomainEmbedding",
    "EmbedSettings",
    "Embedding",
    "TaskResult",
    "VariationalSettings",
    "domain_of",
    "embed",
    "embed_domain",
    "embed_many",
    "load_embedding",
    "trivial",
]

_FILES = {
    "DomainEmbedding": "domain",
    "EmbedSettings": "settings",
    "Embedding": "value",
    "TaskResult": "many",
    "VariationalSettings": "settings",
    "domain_of": "domain",
    "embed": "run",
    "embed_domain": "domain",
    "embed_many": "many",
    "load_embedding": "store",
    "trivial": "value",
}


def __getattr__(name: str) -> object:
    """The public name, from its file."""
    if name not in _FILES:
        raise AttributeError(f"module 'task2vec.embedding' has no attribute {name!r}")
    return getattr(import_module(f"task2vec.embedding.{_FILES[name]}"), name)
