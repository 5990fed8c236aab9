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
    for name, example in spaces.items():
        if is_comparable(embedding, example):
            return name
    for example in spaces.values():
        if example.probe_fingerprint == embedding.probe_fingerprint:
            check_comparable(example, embedding)  # raises: a setting differs
    known = "; ".join(dict.fromkeys(map(format_space, spaces.values()))) or "none"
    command = "task2vec embed FOLDER"
    for example in [*spaces.values()][:1]:
        size, method = image_size(example), find_method(example)
        command += f" --probe {example.probe}" + (f" --size {size}" if size else "")
        command += f" --method {method}" if method not in (None, "robust") else ""
    raise ProbeMismatchError(
        f"'{embedding.task}' was embedded by {format_space(embedding)}, but errors are known for tasks embedded by: "
        f"{known}. Distances between embeddings of different probes mean nothing. Embed it again: {command}; or pass "
        "the folder itself (in Python: the task), which is then embedded in the right space."
    )


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
