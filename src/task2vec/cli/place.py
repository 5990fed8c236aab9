"""Where an embedding goes, and what must not be overwritten."""

from pathlib import Path
from typing import TYPE_CHECKING

from task2vec.errors import EmbeddingFileError, UsageError
from task2vec.text import printable

if TYPE_CHECKING:
    from task2vec.embedding import EmbedSettings
    from task2vec.probe import Probe
    from task2vec.tasks import Task

SUFFIX = ".t2v.safetensors"


def default_place(task_name: str, out: Path | None) -> Path:
    """The file to write: `out`, or a file named after the task in `out` if that is a folder, or in this one.

    Example:
        >>> default_place("birds/of prey", None).name
        'birds_of prey.t2v.safetensors'
    """
    letters = "".join("_" if letter in '/\\:*?"<>|' else letter for letter in printable(task_name))
    name = (letters.strip(" .")[:120] or "task") + SUFFIX
    if out is None:
        return Path(name)
    if out.is_dir():
        return out / name
    return out


def check_place(place: Path, task: "Task", probe: "Probe", settings: "EmbedSettings") -> None:
    """Refuse to overwrite anything but an earlier run of the same thing, before minutes are spent on it."""
    if not place.exists():
        return
    import task2vec
    from task2vec.embedding import is_same

    mend = "Choose another --out, or overwrite it with --force."
    try:
        there = task2vec.load_embedding(place)
    except EmbeddingFileError as error:
        raise UsageError(
            f"'{place}' exists and is not a whole embedding, so it may be something of yours. {mend}"
        ) from error
    if is_same(there, task, probe, settings=settings):
        return
    if there.provenance.get("task_fingerprint") != task.fingerprint:
        other = f"of other images or labels (task '{there.task}')"
    elif not is_same(there, task, probe):
        other = f"by another probe, other weights or another size ({there.probe})"
    else:
        other = "with other settings, or by an older version"
    raise UsageError(f"'{place}' already holds an embedding {other}, which would be lost. {mend}")


def free_place(task_name: str) -> Path:
    """A file here for a task, not there yet, so that nothing is overwritten: with a number, if need be."""
    first = default_place(task_name, None)
    number, place = 2, first
    while place.exists():
        place = first.with_name(f"{first.name.removesuffix(SUFFIX)}-{number}{SUFFIX}")
        number += 1
    return place
