"""In which spaces tasks lie: one probe with its weights and its size of images, and all settings that scale."""

from collections.abc import Mapping

from task2vec.distance import SCALING
from task2vec.embedding import Embedding
from task2vec.errors import ProbeMismatchError, SettingsMismatchError
from task2vec.experts.measured import MeasuredMetaTask


def list_spaces(measured: MeasuredMetaTask) -> dict[str, Embedding]:
    """By name one embedding of every space that the tasks of a meta-task lie in; the default probe's comes first."""
    found = {name: each[0] for name, each in measured.embeddings.items() if len(each)}
    return dict(sorted(found.items(), key=lambda item: ("lite0" not in item[0], not item[0].endswith(" robust"))))


def find_space(embedding: Embedding, spaces: Mapping[str, Embedding]) -> str:
    """The name of the space that an embedding lies in.

    Raises:
        ProbeMismatchError: It is by a probe, or of images of a size, that nothing is known for.
        SettingsMismatchError: It is by other settings.
    """
    near = {name: one for name, one in spaces.items() if one.probe_fingerprint == embedding.probe_fingerprint}
    for name, one in near.items():
        if is_comparable(embedding, one):
            return name
    known = "; ".join(dict.fromkeys(word_space(one) for one in (near or spaces).values())) or "none"
    if near:
        first = next(iter(near.values()))
        own, told = _settings(embedding), _settings(first)
        other = next(key for key in SCALING if own.get(key) != told.get(key))
        raise SettingsMismatchError(
            f"'{embedding.task}' was embedded with {other}={own.get(other)}, and errors of experts are known for tasks "
            f"embedded with {other}={told.get(other)} ({known}): the numbers themselves differ, and distances would "
            f"mean nothing. Embed it again: {word_embedding(first)}"
        )
    mend = word_embedding(next(iter(spaces.values()))) if spaces else "task2vec embed FOLDER"
    raise ProbeMismatchError(
        f"'{embedding.task}' was embedded by {word_space(embedding)}, and errors of experts are known for tasks "
        f"embedded by: {known}. Distances between embeddings of different probes mean nothing. Embed it again: {mend}; "
        "or give the folder itself (in Python: the task), which is embedded as it should be."
    )


def is_comparable(one: Embedding, other: Embedding) -> bool:
    """Whether two embeddings lie in one space."""
    if one.probe_fingerprint != other.probe_fingerprint:
        return False
    return all(_settings(one).get(key) == _settings(other).get(key) for key in SCALING)


def word_space(embedding: Embedding) -> str:
    """Probe, size of the images, and method in words.

    Example:
        >>> from task2vec.experts.measured import bundled_metatask
        >>> word_space(bundled_metatask().embeddings["tf_efficientnet_lite0 robust"][0])
        'tf_efficientnet_lite0 at 224 pixels (robust)'
    """
    size, method = side_of(embedding), _settings(embedding).get("method")
    return embedding.probe + (f" at {size} pixels" if size else "") + (f" ({method})" if method else "")


def word_embedding(wanted: Embedding) -> str:
    """The command that embeds a folder in the same space."""
    size, method = side_of(wanted), _settings(wanted).get("method")
    parts = [f"task2vec embed FOLDER --probe {wanted.probe}", *([f"--size {size}"] if size else [])]
    return " ".join([*parts, *([f"--method {method}"] if method not in (None, "robust") else [])])


def side_of(embedding: Embedding) -> int | None:
    """The side of the images in pixels, if the embedding tells it."""
    told = embedding.provenance.get("image_size")
    return int(told[0]) if isinstance(told, list | tuple) and told and isinstance(told[0], int) else None


def _settings(embedding: Embedding) -> Mapping[str, object]:
    told = embedding.provenance.get("settings")
    return told if isinstance(told, Mapping) else {}
