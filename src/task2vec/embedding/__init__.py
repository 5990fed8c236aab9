"""Task and probe become an embedding."""

from task2vec.embedding.value import Embedding, trivial
from task2vec.embedding.run import embed
from task2vec.embedding.settings import EmbedSettings
from task2vec.embedding.store import load_embedding

__all__ = ["EmbedSettings", "Embedding", "embed", "load_embedding", "trivial"]
