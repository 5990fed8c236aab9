"""The error matrix: every task on top of every expert, by every protocol and seed."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from task2vec.errors import NotInLibraryError, ResourceError
from task2vec.library import Library, MeasuredError
from task2vec.storage import write_whole
from task2vec.text import escape_formula

# What a run notes of cells whose expert has seen the task, so that the library can tell them later.
RUN, TRIVIAL = "error-matrix", "trivial"
_HEADS = ("task", "fingerprint", "expert", "protocol", "seed", "error", "low", "high", "is_trivial")


@dataclass(frozen=True)
class CellFailure:
    """Why a task has no error on top of an expert.

    Attributes:
        task: name of the task.
        fingerprint: of the task.
        expert: name of the expert.
        kind: class of the error.
        message: its text.
        exit_code: what the command line would end with.
    """

    task: str
    fingerprint: str
    expert: str
    kind: str
    message: str
    exit_code: int = 1


@dataclass(frozen=True, eq=False, repr=False)
class ErrorMatrix:
    """Measured errors as arrays.

    Attributes:
        tasks: names of the tasks.
        fingerprints: of the tasks.
        experts: names of the experts.
        protocols: keys of the protocols.
        seeds: of the splits.
        errors: (tasks, experts, protocols, seeds); NaN where nothing was measured.
        low: lower ends of the confidence intervals.
        high: upper ends.
        is_trivial: (tasks, experts) whether the expert was trained on images of the task.
        failures: cells that failed in the run that made it.
    """

    tasks: tuple[str, ...]
    fingerprints: tuple[str, ...]
    experts: tuple[str, ...]
    protocols: tuple[str, ...]
    seeds: tuple[int, ...]
    errors: np.ndarray
    low: np.ndarray
    high: np.ndarray
    is_trivial: np.ndarray
    failures: tuple[CellFailure, ...] = field(default=())

    def __repr__(self) -> str:
        """The matrix in one line."""
        missing = int(np.isnan(self.errors).sum())
        told = f"{len(self.protocols)} protocols, {len(self.seeds)} seeds" + (f", {missing} missing" if missing else "")
        return f"ErrorMatrix({len(self.tasks)} tasks x {len(self.experts)} experts, {told})"

    def mean(self, *, is_whole: bool = False) -> np.ndarray:
        """(tasks, experts, protocols) errors, averaged over the seeds that were measured; NaN where none was.

        Means over different seeds compare badly, for splits are easy or hard: `count_seeds` tells them apart, and with
        `is_whole` all are NaN that lack a seed.
        """
        sums, counts = np.where(np.isnan(self.errors), 0, self.errors).sum(3), self.count_seeds()
        least = len(self.seeds) if is_whole else 1
        return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts >= max(least, 1))

    def count_seeds(self) -> np.ndarray:
        """(tasks, experts, protocols) how many seeds were measured."""
        return (~np.isnan(self.errors)).sum(3)

    def measured(self) -> list[MeasuredError]:
        """All errors, one by one."""
        found = []
        for place in zip(*np.nonzero(~np.isnan(self.errors)), strict=True):
            task, expert, protocol, seed = (int(number) for number in place)
            low, high = (None if np.isnan(end[place]) else float(end[place]) for end in (self.low, self.high))
            names = (self.fingerprints[task], self.experts[expert], float(self.errors[place]), self.protocols[protocol])
            found.append(MeasuredError(*names, self.seeds[seed], low, high))
        return found

    def to_csv(self, path: str | Path) -> Path:
        """Writes one row for every measured error, and returns the path."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(_HEADS)
        number = {name: place for place, name in enumerate(self.experts)}
        tasks = {fingerprint: place for place, fingerprint in enumerate(self.fingerprints)}
        for error in self.measured():
            task = tasks[error.task]
            ends = ["" if end is None else repr(end) for end in (error.low, error.high)]
            texts = map(escape_formula, (self.tasks[task], error.task, error.expert, error.protocol))
            is_trivial = int(self.is_trivial[task, number[error.expert]])
            rows.writerow([*texts, error.seed, repr(error.error), *ends, is_trivial])
        try:
            write_whole(Path(path), text.getvalue().encode())
        except OSError as error:
            raise ResourceError(
                f"the error matrix cannot be written to '{path}': {error.strerror}. Its errors are not lost if they "
                "are in the library. Choose another place: --csv FILE"
            ) from error
        return Path(path)

    @classmethod
    def from_library(cls, library: Library, *, protocols: Sequence[str] | None = None) -> "ErrorMatrix":
        """All errors of a library, or those of some protocols; tasks and experts without any are not in it.

        Example:
            >>> import tempfile
            >>> import task2vec as t2v
            >>> folder = tempfile.TemporaryDirectory()
            >>> with t2v.Library.open(folder.name) as library:
            ...     ErrorMatrix.from_library(library)
            ErrorMatrix(0 tasks x 0 experts, 0 protocols, 0 seeds)
            >>> folder.cleanup()
        """
        measured = [error for error in library.errors() if protocols is None or error.protocol in protocols]
        if protocols is not None and (unknown := set(protocols) - {error.protocol for error in measured}):
            raise NotInLibraryError(
                f"the library has no error by the protocol '{sorted(unknown)[0]}'. It has: "
                f"{', '.join(sorted({error.protocol for error in library.errors()})) or 'none'}"
            )
        keys = sorted({error.protocol for error in measured}) if protocols is None else list(protocols)
        return arrange(library, measured, keys)


def arrange(library: Library, measured: Sequence[MeasuredError], protocols: Sequence[str]) -> ErrorMatrix:
    """The matrix of some errors of a library, with the names and experts that it knows."""
    having = {error.task for error in measured}
    tasks = {task.fingerprint: task.name for task in library.tasks() if task.fingerprint in having}
    taught = {expert.name: expert.task for expert in library.experts()}
    experts = [name for name in taught if name in {error.expert for error in measured}]
    trivial = {(fingerprint, name) for name, fingerprint in taught.items() if fingerprint is not None}
    for run in library.runs():
        trivial |= {(pair[0], pair[1]) for pair in run.details.get(TRIVIAL, ())} if run.what == RUN else set()
    seeds = sorted({error.seed for error in measured})
    return gather_matrix(tasks, experts, protocols, seeds, measured=measured, trivial=trivial)


def gather_matrix(
    tasks: dict[str, str],
    experts: Sequence[str],
    protocols: Sequence[str],
    seeds: Sequence[int],
    *,
    measured: Iterable[MeasuredError],
    trivial: set[tuple[str, str]],
    failures: Sequence[CellFailure] = (),
) -> ErrorMatrix:
    """The matrix of those `measured` errors that belong to it.

    Args:
        tasks: names of tasks by their fingerprints.
        experts: names of experts.
        protocols: keys of protocols.
        seeds: of splits.
        measured: errors, which may be of others, too.
        trivial: fingerprints of tasks and names of experts that have seen them.
        failures: what is to be told beside it.
    """
    sides = [{name: number for number, name in enumerate(side)} for side in (tasks, experts, protocols, seeds)]
    values = np.full((3, *map(len, sides)), np.nan)
    for error in measured:
        names = (error.task, error.expert, error.protocol, error.seed)
        if all(name in side for name, side in zip(names, sides, strict=True)):
            place = tuple(side[name] for name, side in zip(names, sides, strict=True))
            values[:, *place] = [np.nan if end is None else end for end in (error.error, error.low, error.high)]
    is_trivial = np.array([[(task, expert) in trivial for expert in experts] for task in tasks], dtype=bool)
    errors, low, high = values
    return ErrorMatrix(
        tuple(tasks.values()),
        tuple(tasks),
        tuple(experts),
        tuple(protocols),
        tuple(seeds),
        errors,
        low,
        high,
        is_trivial.reshape(len(tasks), len(experts)),
        tuple(failures),
    )
