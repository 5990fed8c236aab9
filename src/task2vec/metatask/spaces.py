"""Embedding spaces: whether two embeddings are in the same one, and what it is called."""

from collections.abc import Mapping

from task2vec.distance import check_comparable
from task2vec.embedding import Embedding
from task2vec.errors import ProbeMismatchError, SettingsMismatchError


def is_comparable(first: Embedding, second: Embedding) -> bool:
    """Whether two embeddings are in one space."""
    try:
        check_comparable(first, second)
    except (ProbeMismatchError, SettingsMismatchError):
        return False
    return True


def format_space(embedding: Embedding) -> str:
    """Probe, image size and method as text.

    Example:
        >>> from task2vec.metatask import bundled_metatask
        >>> format_space(bundled_metatask().embeddings["tf_efficientnet_lite0 robust"][0])
        'tf_efficientnet_lite0 at 224 pixels (robust)'
    """
    size, method = image_size(embedding), find_method(embedding)
    return embedding.probe + (f" at {size} pixels" if size else "") + (f" ({method})" if method else "")


def image_size(embedding: Embedding) -> int | None:
    """The side of the images in pixels, if the embedding has it."""
    size = embedding.provenance.get("image_size")
    return int(size[0]) if isinstance(size, list | tuple) and size and isinstance(size[0], int) else None


def find_method(embedding: Embedding) -> str | None:
    """The method of an embedding, if it has it."""
    settings = embedding.provenance.get("settings")
    return settings.get("method") if isinstance(settings, Mapping) else None
