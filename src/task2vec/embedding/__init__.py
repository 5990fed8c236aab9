"""Task and probe become an embedding.

Names are resolved on first use: a saved embedding is read and shown without importing torch.
"""

from typing import TYPE_CHECKING

from task2vec.lazy import lazy_names

if TYPE_CHECKING:
    from task2vec.embedding.domain import DomainEmbedding, embed_domain
    from task2vec.embedding.embedding import (
        RECIPE,
        Embedding,
        EmbedSettings,
        VariationalSettings,
        load_embedding,
        name_file,
        trivial,
    )
    from task2vec.embedding.many import TaskResult, embed_batches, embed_many
    from task2vec.embedding.single import embed

__all__ = [
    "RECIPE",
    "DomainEmbedding",
    "EmbedSettings",
    "Embedding",
    "TaskResult",
    "VariationalSettings",
    "embed",
    "embed_batches",
    "embed_domain",
    "embed_many",
    "load_embedding",
    "name_file",
    "trivial",
]

__getattr__ = lazy_names(__name__)
