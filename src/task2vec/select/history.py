"""What a library knows of a task from earlier measurements, and what it learns from new ones.

Errors are stored as those of an error matrix are, by a protocol of their own, so that they are evidence for the next
task. Beside them the log has what each image contributes to the error of each model: two models are compared on the
same images, and nothing has to be measured twice.
"""

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.errors import ConflictError
from task2vec.library import Expert, Library, MeasuredError
from task2vec.metatask import find_free_name

if TYPE_CHECKING:
    from task2vec.select.candidates import Candidate
    from task2vec.select.decide import Decision
    from task2vec.select.learning_curve import LearningCurve
    from task2vec.select.measure import Measurements
    from task2vec.tasks import Task

# Errors by cross-validation on all images of a task; the number rises when the same images give other errors.
PROTOCOL = "heads-2, train folds, logistic, usual"
RUN, CURVE = "recommend", "learning curve"
# Characters of the texts of one record: the log takes some more.
MAX_CHARACTERS = 60_000


def find_protocol(task: "Task | None") -> str:
    """The protocol of errors on a task: other groups give other folds."""
    return PROTOCOL if task is None or not task.groups_key else f"{PROTOCOL}, groups {task.groups_key}"


def find_entry(library: Library, candidate: "Candidate") -> Expert | None:
    """The model as the library has it: the same network at the same size, the same file, or an entry itself."""
    if isinstance(candidate.model, Expert):
        return candidate.model
    for expert in library.experts():
        is_network = expert.source in ("timm", "hub") and expert.input_size == candidate.size
        if expert.location == candidate.location and (is_network or expert.name == candidate.name):
            return expert
    return None


def make_entry(library: Library, candidate: "Candidate") -> Expert | None:
    """The model as the library keeps it; None for one that lives in memory only and could not be told apart later."""
    known = find_entry(library, candidate)
    if known is not None or candidate.location is None:
        return known
    if not candidate.is_named:
        from task2vec.experts.checkpoint import load_trained

        return load_trained(candidate.location).entry()
    name = find_free_name(candidate.name, [expert.name for expert in library.experts()], size=candidate.size)
    facts: dict[str, Any] = {"parameters": candidate.params, "input_size": candidate.size, "cost": candidate.gmacs}
    return Expert(name, "hub", candidate.location, **facts)


def keep_measurements(
    library: Library,
    task: "Task",
    candidates: Sequence["Candidate"],
    measurements: "Measurements",
    decision: "Decision",
) -> None:
    """Stores the errors of models that were measured on all images of a task, and what each image contributes."""
    if library.is_read_only or not measurements.is_of_all_images:
        return
    library.add(task)
    by_name = {candidate.name: candidate for candidate in candidates}
    judgements = {judgement.name: judgement for judgement in decision.judgements}
    for name, losses in zip(measurements.models, measurements.losses.T, strict=True):
        expert, judgement = make_entry(library, by_name[name]), judgements[name]
        if expert is None:
            continue
        details = {"task": task.fingerprint, "expert": expert.name, "protocol": find_protocol(task)}
        details |= {"groups": pack(measurements.groups, "<i4"), "losses": pack(losses, "<f4")}
        details |= {} if measurements.answer == 1 else {"answer": repr(measurements.answer)}
        key = (task.fingerprint, expert.name)
        error = MeasuredError(*key, judgement.error, find_protocol(task), 0, judgement.low, judgement.high)
        with suppress(ConflictError):  # another run has measured it meanwhile
            library.add(expert, error)
            if sum(map(len, details.values())) < MAX_CHARACTERS:
                with library.record(RUN, details):
                    pass


def find_measurements(
    library: Library | None,
    fingerprint: str | None,
    candidates: Sequence["Candidate"],
    *,
    images: int | None = None,
    protocol: str = PROTOCOL,
) -> "Measurements | None":
    """What a library has of candidates on a task; None if it has nothing.

    Records of another number of `images` are not of this task, whatever they say, and are left out.
    """
    stored: dict[str, tuple[np.ndarray, np.ndarray, float]] = {}
    for details in _read_records(library, RUN, fingerprint, protocol):
        with suppress(LookupError, ValueError, TypeError, zlib.error):  # written by something else
            groups, losses = unpack(details["groups"], "<i4"), unpack(details["losses"], "<f4")
            answer = float(details.get("answer", 1))  # earlier versions have none
            if len(groups) == len(losses) > 0 and images in (None, len(groups)) and 0 < answer < np.inf:
                stored[str(details["expert"])] = groups, losses.astype(np.float64), answer
    if library is None or not stored:
        return None
    latest, _, answer = [*stored.values()][-1]
    columns = {}
    for candidate in candidates:
        expert = find_entry(library, candidate)
        if expert is not None and expert.name in stored and np.array_equal(stored[expert.name][0], latest):
            columns[candidate.name] = stored[expert.name][1]
    if not columns:
        return None
    from task2vec.select.measure import Measurements

    losses, count = np.column_stack([*columns.values()]), len(latest)
    seconds = (np.nan,) * len(columns)
    return Measurements(np.arange(count), latest, tuple(columns), losses, count, answer=answer, seconds=seconds)


def merge_measurements(
    library: Library | None,
    task: "Task",
    measured: "Measurements",
    candidate: "Candidate",
    others: Sequence["Candidate"],
) -> "Measurements":
    """What is known of all models on a task, one of which was measured now, on all images.

    What the library has of that model counts, so that there is one error; if it has nothing, it has the new one now.
    Others that were measured in other folds cannot be compared, and are left out.
    """
    from task2vec.select.decide import decide

    about = {"images": len(task), "protocol": find_protocol(task)}
    stored = find_measurements(library, task.fingerprint, [candidate, *others], **about)
    if stored is not None and not np.array_equal(stored.groups, measured.groups):
        stored = None
    if stored is not None and candidate.name in stored.models:
        return stored
    if library is not None and measured.models:
        keep_measurements(library, task, [candidate], measured, decide(measured, {}))
    return measured.add(stored)


def keep_curve(library: Library, task: "Task", candidate: "Candidate", curve: "LearningCurve") -> None:
    """Stores the learning curve of a model on all images of a task."""
    expert = find_entry(library, candidate)
    if expert is not None and not library.is_read_only:
        details = {"task": task.fingerprint, "expert": expert.name, "protocol": find_protocol(task)} | asdict(curve)
        with library.record(CURVE, details):
            pass


def find_curve(
    library: Library, fingerprint: str | None, candidate: "Candidate", *, protocol: str = PROTOCOL
) -> "LearningCurve | None":
    """The learning curve of a model on a task that was stored last."""
    from task2vec.select.learning_curve import LearningCurve

    expert = find_entry(library, candidate)
    curve = None
    for details in _read_records(library, CURVE, fingerprint, protocol):
        if expert is not None and details.get("expert") == expert.name:
            with suppress(LookupError, TypeError):  # written by something else
                columns = [tuple(details[name]) for name in ("images", "errors", "low", "high")]
                curve = LearningCurve(*columns, sentence=str(details["sentence"]))
    return curve


def _read_records(
    library: Library | None, kind: str, fingerprint: str | None, protocol: str
) -> Iterator[Mapping[str, Any]]:
    """The details of the records of one kind on a task, the oldest first."""
    for run in [] if library is None or fingerprint is None else library.runs():
        if (run.what, run.details.get("task"), run.details.get("protocol")) == (kind, fingerprint, protocol):
            yield run.details


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
