"""What a library knows of a task from earlier measurements, and what it learns from new ones.

Errors are stored as those of an error matrix are, by a protocol of their own, so that they are evidence for the next
task. Beside them the log has what each image contributes to the error of each model: two models are compared on the
same images, and nothing has to be measured twice.
"""

import base64
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.embedding import Embedding
from task2vec.errors import ConflictError
from task2vec.library import Expert, Library, MeasuredError, TaskEntry
from task2vec.metatask import find_free_name

if TYPE_CHECKING:
    from task2vec.select.candidates import Candidate
    from task2vec.select.decide import Decision
    from task2vec.select.learning_curve import LearningCurve
    from task2vec.select.measure import Measurements
    from task2vec.tasks import Task

# Errors by cross-validation on all images of a task; the number rises when the same images give other errors.
PROTOCOL = "heads-1, train folds, logistic, usual"
RUN, CURVE = "recommend", "learning curve"
# Characters of a text in the log, less some for what is beside it.
_LONGEST = 60_000


def find_entry(library: Library, candidate: "Candidate") -> Expert | None:
    """The model as the library has it: the same network at the same size, the same file, or an entry itself."""
    if isinstance(candidate.model, Expert):
        return candidate.model
    wanted = candidate.location, candidate.size
    for expert in library.experts():
        is_network = expert.source in ("timm", "hub") and (expert.location, expert.input_size) == wanted
        if is_network or (expert.name, expert.location) == (candidate.name, candidate.location):
            return expert
    return None


def make_entry(library: Library, candidate: "Candidate") -> Expert | None:
    """The model as the library keeps it; None for one that lives in memory only and could not be told apart later."""
    known = find_entry(library, candidate)
    if known is not None or candidate.location is None:
        return known
    if not candidate.location.startswith(("timm:", "torchvision:")):
        from task2vec.experts.checkpoint import load_trained

        return load_trained(candidate.location).entry()
    taken = [expert.name for expert in library.experts()]
    name = find_free_name(candidate.name, taken, size=candidate.size)
    facts: dict[str, Any] = {"parameters": candidate.params, "input_size": candidate.size, "cost": candidate.gmacs}
    return Expert(name, "hub", candidate.location, **facts)


def keep_measurements(
    library: Library,
    task: "Task | Embedding | TaskEntry",
    candidates: Sequence["Candidate"],
    measurements: "Measurements",
    decision: "Decision",
) -> None:
    """Stores the errors of models that were measured on all images of a task, and what each image contributes."""
    if library.is_read_only or isinstance(task, Embedding | TaskEntry) or len(measurements.images) < len(task):
        return
    library.add(task)
    by_name = {candidate.name: candidate for candidate in candidates}
    judged = {judgement.name: judgement for judgement in decision.judgements}
    for column, name in enumerate(measurements.models):
        expert, judgement = make_entry(library, by_name[name]), judged[name]
        if expert is None:
            continue
        details = {"task": task.fingerprint, "expert": expert.name, "protocol": PROTOCOL}
        details |= {"groups": pack(measurements.groups, "<i4"), "losses": pack(measurements.losses[:, column], "<f4")}
        error = MeasuredError(
            task.fingerprint, expert.name, judgement.error, PROTOCOL, 0, judgement.low, judgement.high
        )
        with suppress(ConflictError):  # another run has measured it meanwhile
            library.add(expert, error)
            if sum(map(len, details.values())) < _LONGEST:
                with library.record(RUN, details):
                    pass


def find_measurements(
    library: Library | None, fingerprint: str | None, candidates: Sequence["Candidate"], *, images: int | None = None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Groups and losses of the images of a task, in its canonical order, by the name of the candidate.

    Records of another number of `images` are not of this task, whatever they say, and are left out.
    """
    if library is None or fingerprint is None:
        return {}
    stored: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for run in library.runs():
        known = run.details
        if run.what == RUN and (known.get("task"), known.get("protocol")) == (fingerprint, PROTOCOL):
            with suppress(LookupError, ValueError, TypeError, zlib.error):  # written by something else
                groups, losses = unpack(known["groups"], "<i4"), unpack(known["losses"], "<f4")
                if len(groups) == len(losses) > 0 and images in (None, len(groups)):
                    stored[str(known["expert"])] = groups, losses.astype(np.float64)
    latest = [groups for groups, _ in stored.values()][-1:]
    stored = {name: pair for name, pair in stored.items() if np.array_equal(pair[0], latest[0])}
    entries = {candidate.name: find_entry(library, candidate) for candidate in candidates} if stored else {}
    return {name: stored[entry.name] for name, entry in entries.items() if entry is not None and entry.name in stored}


def keep_curve(library: Library, fingerprint: str | None, candidate: "Candidate", curve: "LearningCurve") -> None:
    """Stores the learning curve of a model on all images of a task."""
    expert = find_entry(library, candidate)
    if expert is not None and not library.is_read_only:
        details = {"task": fingerprint, "expert": expert.name, "protocol": PROTOCOL} | asdict(curve)
        with library.record(CURVE, details):
            pass


def find_curve(library: Library | None, fingerprint: str | None, candidate: "Candidate") -> "LearningCurve | None":
    """The learning curve of a model on a task that was stored last."""
    from task2vec.select.learning_curve import LearningCurve

    expert = None if library is None else find_entry(library, candidate)
    if library is None or expert is None:
        return None
    key = (fingerprint, expert.name, PROTOCOL)
    for run in reversed(library.runs()):
        known = run.details
        if run.what == CURVE and (known.get("task"), known.get("expert"), known.get("protocol")) == key:
            with suppress(LookupError, TypeError):  # written by something else
                columns = [tuple(known[name]) for name in ("images", "errors", "low", "high")]
                return LearningCurve(*columns, sentence=str(known["sentence"]))
    return None


def pack(values: np.ndarray, kind: str) -> str:
    """Numbers as text.

    Example:
        >>> unpack(pack(np.array([0.0, 1.0, 0.5]), "<f4"), "<f4").tolist()
        [0.0, 1.0, 0.5]
    """
    return base64.b64encode(zlib.compress(values.astype(kind).tobytes(), 9)).decode()


def unpack(text: str, kind: str) -> np.ndarray:
    """The numbers that `pack` has written."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=kind)
