"""Embedding spaces: which of them an embedding is in, and how to embed a task in one."""

from collections.abc import Mapping

from task2vec.distance import check_comparable
from task2vec.embedding import Embedding
from task2vec.errors import ProbeMismatchError, SettingsMismatchError


def find_space(embedding: Embedding, spaces: Mapping[str, Embedding]) -> str:
    """The name of the space that an embedding is in: one probe, its image size, and all settings that scale.

    Raises:
        ProbeMismatchError: It is by a probe, or of images of a size, that nothing is known for.
        SettingsMismatchError: It is by other settings.
    """
    for name, one in spaces.items():
        if is_comparable(embedding, one):
            return name
    for one in spaces.values():
        if one.probe_fingerprint == embedding.probe_fingerprint:
            check_comparable(one, embedding)  # raises: some setting differs
    known = "; ".join(dict.fromkeys(map(format_space, spaces.values()))) or "none"
    command = format_embed_command(next(iter(spaces.values()))) if spaces else "task2vec embed FOLDER"
    raise ProbeMismatchError(
        f"'{embedding.task}' was embedded by {format_space(embedding)}, but errors are known for tasks embedded by: "
        f"{known}. Distances between embeddings of different probes mean nothing. Embed it again: {command}; or pass "
        "the folder itself (in Python: the task), which is then embedded in the right space."
    )


def is_comparable(one: Embedding, other: Embedding) -> bool:
    """Whether two embeddings are in one space."""
    try:
        check_comparable(one, other)
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


def format_embed_command(like: Embedding) -> str:
    """The command that embeds a folder in the same space."""
    size, method = image_size(like), find_method(like)
    command = f"task2vec embed FOLDER --probe {like.probe}" + (f" --size {size}" if size else "")
    return command + (f" --method {method}" if method not in (None, "robust") else "")


def image_size(embedding: Embedding) -> int | None:
    """The side of the images in pixels, if the embedding has it."""
    size = embedding.provenance.get("image_size")
    return int(size[0]) if isinstance(size, list | tuple) and size and isinstance(size[0], int) else None


def find_method(embedding: Embedding) -> str | None:
    """The method of an embedding, if it has it."""
    settings = embedding.provenance.get("settings")
    return settings.get("method") if isinstance(settings, Mapping) else None
