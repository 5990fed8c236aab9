"""Evidence from a library: the errors that were measured, and the embeddings of its tasks."""

from collections import Counter
from dataclasses import replace

import numpy as np

from task2vec.distance import pairwise, symmetric
from task2vec.embedding import Embedding, trivial
from task2vec.errors import NotInLibraryError, UsageError
from task2vec.experts.matrix import ErrorMatrix
from task2vec.library import EmbeddingEntry, Library, TaskEntry
from task2vec.select.evidence import SYMMETRIC, Evidence, tell_apart
from task2vec.select.evidence.spaces import is_comparable


def from_library(
    library: Library, *, protocol: str | None = None, probe: str | None = None, method: str | None = None
) -> Evidence:
    """What a library tells about choosing experts, by one way of measuring errors and one way of embedding.

    Tasks that came from one place (a folder or a table) are of one dataset. Tasks and lessons that are embedded
    otherwise than most, or not at all, are at no known distance.

    Args:
        library: with errors, see `task2vec error-matrix`.
        protocol: its whole name, or how many images were trained on ("half", "5"), where there are several.
        probe: that tasks were embedded with; by default the one that most tasks with errors were.
        method: by which they were embedded.

    Raises:
        NotInLibraryError: There are no errors in it, none by that protocol, or no embedding by that probe.
        UsageError: There are several protocols, and none was chosen.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> with Library.open(folder.name) as library:
        ...     from_library(library)
        Traceback (most recent call last):
        task2vec.errors.NotInLibraryError: the library has no errors of experts, ...
        >>> folder.cleanup()
    """
    matrix = ErrorMatrix.from_library(library)
    number = _find_protocol(matrix.protocols, protocol)
    known = np.isfinite(matrix.mean()[:, :, number])
    rows, columns = (np.flatnonzero(np.any(known, axis=axis)) for axis in (1, 0))
    entries = {task.fingerprint: task for task in library.tasks()}
    tasks = [entries[matrix.fingerprints[row]] for row in rows]
    experts = {expert.name: expert for expert in library.experts()}
    taught = [experts[matrix.experts[column]] for column in columns]
    lessons = [entries.get(expert.task or "") for expert in taught]
    evidence = Evidence(
        tell_apart([task.name for task in tasks]),
        tuple(expert.name for expert in taught),
        matrix.errors[np.ix_(rows, columns)][:, :, number],
        ~matrix.is_trivial[np.ix_(rows, columns)],
        tuple(task.source or task.name for task in tasks),
        tuple(lesson.name if lesson else None for lesson in lessons),
        tuple((lesson.source or lesson.name) if lesson else None for lesson in lessons),
        generic=next((place for place, expert in enumerate(taught) if "generic" in expert.name.lower()), None),
        parameters=np.array([expert.parameters or np.nan for expert in taught], dtype=np.float64),
        images=np.array([task.images for task in tasks]),
        classes=np.array([len(task.classes) for task in tasks]),
    )
    return _add_embeddings(evidence, library, tasks, lessons, (probe, method))


def _find_protocol(protocols: tuple[str, ...], protocol: str | None) -> int:
    if not protocols:
        raise NotInLibraryError(
            "the library has no errors of experts, so nothing is known about choosing one. Measure some: task2vec "
            "error-matrix PATH --expert EXPERT"
        )
    found = [place for place, name in enumerate(protocols) if protocol in (None, name)] or [
        place for place, name in enumerate(protocols) if f"train {protocol}" in name.split(", ")
    ]
    if not found:
        raise NotInLibraryError(
            f"the library has no error by the protocol '{protocol}'. It has: {'; '.join(protocols)}"
        )
    if len(found) > 1:
        raise UsageError(
            f"the library has errors by {len(found)} protocols, which are not to be mixed. Choose one of: "
            f"{'; '.join(protocols[place] for place in found)}"
        )
    return found[0]


def _add_embeddings(
    evidence: Evidence,
    library: Library,
    tasks: list[TaskEntry],
    lessons: list[TaskEntry | None],
    wanted: tuple[str | None, str | None],
) -> Evidence:
    """The evidence with distances in the space that most of its tasks lie in; as it is if none is embedded."""
    space = _choose_space(tasks, wanted)
    if space is None:
        return evidence
    like = library.get(space.key)
    found: dict[str, Embedding] = {}
    for task in (*tasks, *(lesson for lesson in lessons if lesson)):
        for entry in reversed(task.embeddings):
            if task.fingerprint not in found and entry.probe_fingerprint == like.probe_fingerprint:
                one = library.get(entry.key)
                found |= {task.fingerprint: one} if is_comparable(one, like) else {}
    every = list(found.values())
    place_of = {fingerprint: place for place, fingerprint in enumerate(found)}
    rows = np.array([place_of.get(task.fingerprint, -1) for task in tasks])
    columns = np.array([place_of.get(lesson.fingerprint, -1) if lesson else -1 for lesson in lessons])
    gaps, vectors = pairwise(every, device="cpu").values, np.stack([one.vector for one in every])
    simple = np.array([symmetric(one, trivial(one)) for one in every])
    return replace(
        evidence,
        distances={SYMMETRIC: _pick(_pick(gaps, rows).T, rows).T},
        to_lessons={SYMMETRIC: _pick(_pick(gaps, rows).T, columns).T},
        simplicity=_pick(simple, columns),
        vectors=_pick(vectors, rows),
        lesson_vectors=_pick(vectors, columns),
        lesson_trivials=_pick(np.stack([one.prior for one in every]), columns),
        norms=_pick(np.array([one.norm() for one in every]), rows),
    )


def _choose_space(tasks: list[TaskEntry], wanted: tuple[str | None, str | None]) -> EmbeddingEntry | None:
    """One embedding by the probe and method that most tasks have, among those that are wanted."""
    every = [entry for task in tasks for entry in task.embeddings]
    fit = [entry for entry in every if all(one in (None, own) for one, own in zip(wanted, _name(entry), strict=True))]
    if not fit and wanted != (None, None):
        known = "; ".join(dict.fromkeys(" ".join(_name(entry)) for entry in every)) or "none"
        raise NotInLibraryError(
            f"no task with errors was embedded by the probe '{wanted[0] or 'any'}' and the method "
            f"'{wanted[1] or 'any'}'; they were by: {known}. Embed them so: task2vec embed --probe PROBE FOLDER"
        )
    if not fit:
        return None
    most = Counter((entry.probe_fingerprint, _name(entry)) for entry in fit).most_common(1)[0][0]
    return next(entry for entry in fit if (entry.probe_fingerprint, _name(entry)) == most)


def _name(entry: EmbeddingEntry) -> tuple[str, str]:
    return entry.probe, str(entry.settings.get("method", ""))


def _pick(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Rows of `values`; NaN for the place -1."""
    found = values[places].astype(np.float64)
    found[places < 0] = np.nan
    return found
