"""Embeddings of tasks by a probe, and their files.

Names are resolved on first use: a saved embedding is read and shown without importing torch.
"""

from typing import TYPE_CHECKING

from task2vec.lazy import lazy_names

if TYPE_CHECKING:  # `as` makes a name public for type checkers (PEP 484)
    from task2vec.embedding.domain import DomainEmbedding as DomainEmbedding
    from task2vec.embedding.domain import embed_domain as embed_domain
    from task2vec.embedding.embedding import RECIPE as RECIPE
    from task2vec.embedding.embedding import Embedding as Embedding
    from task2vec.embedding.embedding import EmbedSettings as EmbedSettings
    from task2vec.embedding.embedding import TaskResult as TaskResult
    from task2vec.embedding.embedding import VariationalSettings as VariationalSettings
    from task2vec.embedding.embedding import load_embedding as load_embedding
    from task2vec.embedding.embedding import name_file as name_file
    from task2vec.embedding.embedding import trivial as trivial
    from task2vec.embedding.many import embed_batches as embed_batches
    from task2vec.embedding.many import embed_many as embed_many
    from task2vec.embedding.single import embed as embed

__getattr__ = lazy_names(__name__)
