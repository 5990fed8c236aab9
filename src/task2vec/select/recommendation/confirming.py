"""Predictions are confirmed: the best candidates are measured on the task's own images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import TYPE_CHECKING, Any

from task2vec.errors import UsageError
from task2vec.experts.protocols import ErrorProtocol
from task2vec.library import Expert, Library, MeasuredError
from task2vec.select.knowledge.offers import Offer
from task2vec.select.knowledge.regimes import find_training

if TYPE_CHECKING:
    from task2vec.tasks import Task


@dataclass(frozen=True)
class Measured:
    """The error of an expert on a task, over some splits.

    Attributes:
        error: the mean.
        low: mean of the lower ends of the splits' intervals: wider than that of the mean, for splits overlap.
        high: mean of the upper ends.
        by_split: the error of each split.
    """

    error: float
    low: float
    high: float
    by_split: Mapping[int, float]


def sum_up(errors: Sequence[MeasuredError]) -> dict[str, Measured]:
    """What was measured, by the names of experts."""
    found: dict[str, list[MeasuredError]] = {}
    for error in errors:
        found.setdefault(error.expert, []).append(error)
    return {
        name: Measured(
            mean(one.error for one in own),
            mean(one.error if one.low is None else one.low for one in own),
            mean(one.error if one.high is None else one.high for one in own),
            {one.seed: one.error for one in own},
        )
        for name, own in found.items()
    }


def measure_offers(
    offers: Sequence[Offer],
    task: "Task",
    *,
    protocol: str,
    seeds: int,
    library: Library | None = None,
    progress: bool = False,
    on_error: Callable[[tuple[MeasuredError, ...]], None] | None = None,
    how: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Measured], dict[str, str]]:
    """The errors of experts on a task by the names of the offers, and the reasons of those that could not be measured.

    A cross-validated linear head on the features of each, as the evidence was measured: on the same share of images,
    and for named networks at the same size. Each expert goes into the library as soon as it is measured, so an
    interrupt loses none; what is there already is not measured again.
    """
    from task2vec.experts.measuring import error_matrix

    if seeds < 1:
        raise UsageError(f"seeds={seeds} (--seeds) measures nothing. Give 1 or more splits.")
    training = find_training(protocol)
    asked = ErrorProtocol(int(training) if training.isdigit() else "half")
    entries = {offer.name: name_entry(offer, library) for offer in offers}
    names = {entry.name: name for name, entry in entries.items()}

    def take(cell: Any) -> None:
        if isinstance(cell, tuple) and on_error is not None:
            on_error(tuple(replace(error, expert=names[error.expert]) for error in cell))

    matrix = error_matrix(
        [task],
        entries.values(),
        protocols=[asked],
        seeds=range(seeds),
        library=library,
        progress=progress,
        on_cell=take,
        **(how or {}),
    )
    told = [replace(error, expert=names[error.expert]) for error in matrix.measured()]
    return sum_up(told), {names[failure.expert]: failure.message for failure in matrix.failures}


def name_entry(offer: Offer, library: Library | None = None) -> Expert:
    """What a library keeps of an expert: the entry it has of that network at that size, or one under a free name."""
    if offer.entry is not None:
        return offer.entry
    if offer.location is None:
        raise UsageError(f"nobody has the weights of '{offer.name}', so it cannot be measured. {offer.load}")
    known = {} if library is None else {expert.name: expert for expert in library.experts()}
    if not offer.is_named:
        from task2vec.experts.loading import load_trained

        entry = load_trained(offer.location).entry()
        return next((one for one in known.values() if one.sha256 == entry.sha256), replace(entry, name=offer.name))
    for expert in known.values():
        if (expert.source, expert.location, expert.input_size) == ("hub", offer.location, offer.size):
            return expert
    name = offer.name
    if name in known and offer.size is not None:
        name = f"{offer.name} at {offer.size} px"
    number = 2
    while name in known:
        name, number = f"{offer.name} ({number})", number + 1
    made = {"parameters": offer.parameters, "input_size": offer.size, "cost": offer.cost}
    return Expert(name, "hub", offer.location, **made)
