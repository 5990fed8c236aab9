"""Where evidence comes from: a measured meta-task. Tables and libraries stand in `tables` and `shelves`."""

from dataclasses import dataclass

import numpy as np

from task2vec.distance import pairwise, symmetric
from task2vec.embedding import trivial
from task2vec.errors import UsageError
from task2vec.experts.measured import MeasuredMetaTask
from task2vec.select.evidence import DOMAIN, SYMMETRIC, TAXONOMIC, Evidence
from task2vec.select.evidence.taxa import measure_taxa


def from_measured(
    measured: MeasuredMetaTask,
    protocol: int | str = "half",
    *,
    probe: str = "tf_efficientnet_lite0",
    method: str = "robust",
    family: str | None = None,
) -> Evidence:
    """All that a measured meta-task tells about choosing experts, by one way of measuring errors and one embedding.

    Experts that were trained a second time are left out. Distances from lessons that the meta-task has no embedding of
    are NaN.

    Args:
        measured: such as `bundled_metatask()`.
        protocol: number of one, its whole name, or how many images were trained on: "half" or "5".
        probe: that tasks were embedded with.
        method: by which they were embedded.
        family: the tasks of one family only; lessons are found among all.

    Raises:
        UsageError: There is no such protocol, embedding or family.

    Example:
        >>> from task2vec.experts.measured import bundled_metatask
        >>> from_measured(bundled_metatask(), "half", family="labels")
        Evidence(22 tasks, 74 experts, 100 % of the errors known)
    """
    number = _find_protocol(measured, protocol)
    rows, columns = _find_family(measured, family), [not expert.is_repeat for expert in measured.experts]
    space = _measure_space(measured, probe, method)
    tasks, experts = measured.tasks, measured.experts
    places = _find_lessons(measured)
    kinds = {SYMMETRIC: space.distances, DOMAIN: _measure_domains(measured, probe)}
    kinds[TAXONOMIC] = measure_taxa((*tasks, *measured.lessons))
    count = len(tasks)
    whole = Evidence(
        tuple(task.name for task in tasks),
        tuple(expert.name for expert in experts),
        measured.errors[:, :, number],
        measured.is_candidate,
        tuple(task.dataset for task in tasks),
        tuple(expert.lesson for expert in experts),
        _find_groups(measured, places),
        generic=next((j for j, expert in enumerate(experts) if expert.kind == "generic"), None),
        parameters=np.array([expert.parameters or np.nan for expert in experts], dtype=np.float64),
        images=np.array([task.images for task in tasks]),
        classes=np.array([task.classes for task in tasks]),
        distances={kind: each[:count, :count] for kind, each in kinds.items() if each is not None},
        to_lessons={kind: _pick(each[:count].T, places).T for kind, each in kinds.items() if each is not None},
        simplicity=_pick(space.trivials, places),
        scores={name: scores[:, :, number] for name, scores in measured.scores.items()},
        vectors=None if space.vectors is None else space.vectors[:count],
        lesson_vectors=None if space.vectors is None else _pick(space.vectors, places),
        lesson_trivials=None if space.priors is None else _pick(space.priors, places),
        norms=space.norms[:count],
        halves=None if space.halves is None else space.halves[:, :, number].mean(2),
    )
    return whole.only(rows, np.flatnonzero(columns))


def _find_protocol(measured: MeasuredMetaTask, protocol: int | str) -> int:
    """The number of the protocol that is meant."""
    names = measured.protocols
    if isinstance(protocol, int) and -len(names) <= protocol < len(names):
        return protocol % len(names)
    found = [i for i, name in enumerate(names) if protocol == name] or [
        i for i, name in enumerate(names) if f"train {protocol}" in name.split(", ")
    ]
    if len(found) != 1:
        raise UsageError(
            f"protocol={protocol!r} is {'none' if not found else 'more than one'} of those that '{measured.name}' was "
            f"measured by, and errors of several ways of measuring are not to be mixed. Choose one of: "
            f"{'; '.join(names)}."
        )
    return found[0]


def _find_family(measured: MeasuredMetaTask, family: str | None) -> list[int]:
    rows = [i for i, task in enumerate(measured.tasks) if family in (None, task.family)]
    if not rows:
        known = ", ".join(dict.fromkeys(task.family for task in measured.tasks))
        raise UsageError(f"the meta-task '{measured.name}' has no family '{family}'. Choose one of: {known}")
    return rows


def _find_lessons(measured: MeasuredMetaTask) -> np.ndarray:
    """For each expert the row of its lesson among tasks and lessons, -1 if it is not there; names tell nothing."""
    rows = {each.fingerprint: i for i, each in enumerate((*measured.tasks, *measured.lessons))}
    return np.array([rows.get(expert.lesson_fingerprint or "", -1) for expert in measured.experts], dtype=int)


def _find_groups(measured: MeasuredMetaTask, places: np.ndarray) -> tuple[str | None, ...]:
    """The dataset of each expert's lesson: told by the lesson itself, or by the tasks whose images it shares."""
    known = (*measured.tasks, *measured.lessons)
    datasets = list(dict.fromkeys(task.dataset for task in measured.tasks))
    groups: list[str | None] = []
    for column, expert in enumerate(measured.experts):
        if places[column] >= 0:
            groups.append(known[places[column]].dataset)
            continue
        named = [dataset for dataset in datasets if (expert.lesson or "").startswith(dataset)]
        sharing = measured.shares_images[:, column] > 0
        sharing |= measured.shares_labels[:, column]
        told = named or [task.dataset for task, is_known in zip(measured.tasks, sharing, strict=True) if is_known]
        groups.append(told[0] if told and expert.lesson else None)
    return tuple(groups)


@dataclass(frozen=True, eq=False)
class _Space:
    """Tasks and then lessons in the space of one probe and method; NaN and None for what is not known."""

    distances: np.ndarray
    trivials: np.ndarray
    norms: np.ndarray
    vectors: np.ndarray | None
    priors: np.ndarray | None
    halves: np.ndarray | None


def _measure_space(measured: MeasuredMetaTask, probe: str, method: str) -> _Space:
    """What was measured when the meta-task was made, or can be measured from its embeddings now."""
    name = f"{probe} {method}"
    kept, embeddings = measured.distances, measured.embeddings.get(name)
    if name not in kept and embeddings is None:
        known = ", ".join(dict.fromkeys([*measured.embeddings, *kept]))
        raise UsageError(
            f"the tasks of '{measured.name}' were not embedded with the probe '{probe}' by the method '{method}', so "
            f"nothing is near to anything. Choose one of: {known}."
        )
    vectors, priors = None, None
    if embeddings is not None:
        vectors, priors = (np.stack([getattr(one, part) for one in embeddings]) for part in ("vector", "prior"))
    if name in kept:
        found = (kept[name], measured.trivials[name], measured.norms[name])
    else:
        assert embeddings is not None
        found = (
            pairwise(embeddings, device="cpu").values,
            np.array([symmetric(one, trivial(one)) for one in embeddings]),
            np.array([one.norm() for one in embeddings]),
        )
    return _Space(*found, vectors, priors, measured.halves)


def _measure_domains(measured: MeasuredMetaTask, probe: str) -> np.ndarray | None:
    """Cosine distances between mean features of images, as |x - y|^2 / 2 of unit vectors; see `distance.domain`."""
    means = measured.domains.get(probe)
    if means is None:
        return None
    units = means / np.linalg.norm(means, axis=1, keepdims=True)
    return np.array([np.square(units - one).sum(1) / 2 for one in units])


def _pick(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Rows of `values`; NaN for the place -1."""
    found = values[places].astype(np.float64)
    found[places < 0] = np.nan
    return found
