"""Tables of distances: every pair of many embeddings.

The symmetric distance is computed in float32 from values scaled by the filter's geometric mean
(`symmetric_in_float32`); a pair for which that does not suffice, and a task with a filter that is more than e^80 away
from the mean, by the formula itself in float64. The other distances are computed by their formulas in blocks of pairs.
Memory is that of input, result and one block per thread.
"""

import csv
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.distance.distances import (
    Distance,
    check_comparable,
    find_dead,
    find_kind,
    scale_to_float32,
    symmetric,
    symmetric_from_logs,
    symmetric_in_float32,
)
from task2vec.embedding import Embedding, trivial
from task2vec.errors import DataError, UsageError
from task2vec.progress import Report, silent
from task2vec.storage import write_file
from task2vec.text import escape_formula

# Entries of a block of pairs in float64: as many as fit into a processor's cache, or keep a GPU busy.
_BLOCK, _GPU_BLOCK, _GPU_ROWS = 1 << 18, 1 << 25, 16


@dataclass(frozen=True, eq=False, repr=False)
class DistanceMatrix:
    """Distances of tasks (rows) from tasks (columns).

    NumPy, SciPy and scikit-learn take it where they take an array, the latter as metric="precomputed".

    Attributes:
        values: (rows, columns) in float64, read-only.
        rows: names of the tasks; the sources, where the distance has a direction.
        columns: names of the tasks; the targets.
        kind: name of the distance.

    Example:
        >>> import numpy as np
        >>> table = DistanceMatrix(np.array([[0.0, 0.2], [0.2, 0.0]]), ("cats", "dogs"), ("cats", "dogs"), "symmetric")
        >>> table, table.nearest("cats", 1)
        (DistanceMatrix(symmetric, 2 x 2 tasks), [('dogs', 0.2)])
    """

    values: np.ndarray
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    kind: str

    def __post_init__(self):
        """Refuse names that do not fit the numbers, and make the numbers read-only."""
        values = np.array(self.values, dtype=np.float64, order="C")
        object.__setattr__(self, "rows", tuple(self.rows))
        object.__setattr__(self, "columns", tuple(self.columns))
        if values.shape != self.shape:
            raise DataError(
                f"a matrix of shape {values.shape} cannot hold the distances of {len(self.rows)} tasks from "
                f"{len(self.columns)}: each row and each column needs one name."
            )
        values.setflags(write=False)
        object.__setattr__(self, "values", values)

    def __repr__(self) -> str:
        """The table in one line."""
        return f"DistanceMatrix({self.kind}, {len(self.rows)} x {len(self.columns)} tasks)"

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.rows), len(self.columns)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The values, for NumPy: a copy unless that is forbidden, since some libraries write into what they get."""
        return np.array(self.values, dtype=dtype, copy=copy is not False)

    def nearest(self, name: str, k: int = 5) -> list[tuple[str, float]]:
        """The `k` columns closest to the row `name`, the closest first; among the rows' own tasks, without itself.

        Ties are in the order of the columns. Where the distance has a direction rows are sources.
        """
        if self.rows.count(name) != 1 or k < 1:
            raise UsageError(
                f"{self.rows.count(name)} rows are called '{name}' in {self!r}, and k={k} neighbours are asked for; it "
                f"must be one row and at least one neighbour. Rows are: {', '.join(self.rows[:8])}, ..."
            )
        own = self.rows.index(name)
        row, is_square = self.values[own], self.rows == self.columns
        order = [index for index in np.argsort(row, kind="stable") if not (is_square and index == own)]
        return [(self.columns[index], float(row[index])) for index in order[:k]]

    def save_csv(self, path: str | Path) -> Path:
        """Writes the table to `path`, whole or not at all, and returns it; the numbers keep all their digits."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([self.kind, *map(escape_formula, self.columns)])
        rows = zip(self.rows, self.values.tolist(), strict=True)
        writer.writerows([escape_formula(name), *map(repr, row)] for name, row in rows)
        return write_file(Path(path), text.getvalue().encode())


def pairwise(
    embeddings: Sequence[Embedding],
    kind: str | Distance = "symmetric",
    *,
    others: Sequence[Embedding] | None = None,
    device: str | None = None,
    report: Report = silent,
) -> DistanceMatrix:
    """The distances of all embeddings from each other, or from `others`.

    They equal those of `kind` called on each pair: within 1e-6 for the symmetric and the asymmetric distance, which are
    computed in float32 where that suffices, and to rounding for the others.

    Args:
        embeddings: the rows; sources, if the distance has a direction.
        kind: a name from `KINDS`, or a distance: `replace(asymmetric, alpha=0.3)`.
        others: the columns, if they are not the rows.
        device: "cpu", "cuda"; None uses a GPU if there is one.
        report: opens a progress bar, see `task2vec.progress`.

    Example:
        >>> from task2vec.probe import FilterLayer
        >>> layers, provenance = (FilterLayer("conv", "convolution", 2, 9, 0.1),), {"probe_fingerprint": "p"}
        >>> fishers = {"cats": [1.0, 2.0], "dogs": [1.0, 2.5], "cars": [2.0, 1.0]}
        >>> prior = np.full(2, 1e-9)
        >>> made = [Embedding(n, "net", np.array(f), prior, prior, layers, provenance) for n, f in fishers.items()]
        >>> pairwise(made, device="cpu").nearest("cats", 1)
        [('dogs', 0.00...)]
    """
    kind, embeddings = find_kind(kind), list(embeddings)
    columns = embeddings if others is None else list(others)
    if not embeddings or not columns:
        raise UsageError("the list of embeddings is empty, so there is nothing to compare. Pass at least one.")
    for one in (*embeddings, *columns):
        check_comparable(embeddings[0], one)
    (logs, dead), (other_logs, other_dead) = stack_logs(embeddings), (None, None)
    if others is not None:
        other_logs, other_dead = stack_logs(columns)
    sides = {"others": other_logs, "dead": dead, "others_dead": other_dead}
    values = pairwise_from_logs(logs, replace(kind, alpha=0.0), **sides, device=device, report=report)
    if kind.alpha:
        values = values - kind.alpha * np.array([[symmetric(one, trivial(one))] for one in embeddings])
    names, other_names = (tuple(one.task for one in side) for side in (embeddings, columns))
    return DistanceMatrix(values, names, other_names, kind.name)


def stack_logs(embeddings: Sequence[Embedding]) -> tuple[np.ndarray, np.ndarray]:
    """(tasks, filters) logs of the vectors, and where they are dead."""
    return np.log(np.stack([one.vector for one in embeddings])), np.stack([find_dead(one) for one in embeddings])


def pairwise_from_logs(
    logs: np.ndarray,
    kind: str | Distance = "symmetric",
    *,
    others: np.ndarray | None = None,
    dead: np.ndarray | None = None,
    others_dead: np.ndarray | None = None,
    device: str | None = None,
    report: Report = silent,
) -> np.ndarray:
    """The distances (rows, columns) of log-embeddings (tasks, filters), without names or provenance.

    Whether the rows are comparable is not checked. `dead` marks filters without Fisher information (None: there are
    none); those that are dead in both tasks do not count. The asymmetric distance needs priors and is not available.

    Example:
        >>> pairwise_from_logs(np.log([[1.0, 2.0], [2.0, 1.0]]), device="cpu").round(6)
        array([[0. , 0.2],
               [0.2, 0. ]])
    """
    import torch

    from task2vec.embedding.batching import choose_device

    kind = find_kind(kind)
    if kind.alpha:
        raise UsageError(
            "the asymmetric distance needs the prior of every source, which logs do not contain. Use "
            "pairwise(embeddings, 'asymmetric'), or subtract alpha times each row's distance from its prior."
        )
    rows, row_dead = _check_logs(logs, dead)
    columns, column_dead = (rows, row_dead) if others is None else _check_logs(others, others_dead)
    if rows.shape[1] != columns.shape[1]:
        raise DataError(
            f"log-embeddings of {rows.shape[1]} and of {columns.shape[1]} filters cannot be compared: they come from "
            "different probes. Embed all tasks with one."
        )
    is_once = others is None and kind.is_symmetric
    has_shared_dead = bool((row_dead.any(0) & column_dead.any(0)).any())
    where, a, b, a_dead, b_dead = choose_device(device), rows, columns, row_dead, column_dead
    is_cpu, is_fast = where.type == "cpu", kind.from_logs is symmetric_from_logs
    if not is_cpu:
        a, b, a_dead, b_dead = (torch.from_numpy(side).to(where) for side in (a, b, a_dead, b_dead))
    if is_fast:
        middle = (a.sum(0) + b.sum(0)) / (len(a) + len(b))
        a, b = scale_to_float32(a - middle, a_dead), scale_to_float32(b - middle, b_dead)
    height, block = (1, _BLOCK) if is_cpu else (_GPU_ROWS, _GPU_BLOCK)
    width = len(columns) if is_cpu and is_fast else max(1, block // (height * rows.shape[1]))
    values = np.zeros((len(rows), len(columns)))

    def measure(row: int) -> None:
        for at in range(row + 1 if is_once else 0, len(columns), width):
            some = slice(at, at + width)
            own, other = (row, some) if is_cpu else ((slice(row, row + height), None), (None, some))
            with np.errstate(all="ignore"):  # a pair without any filter that counts has no number yet
                if is_fast:
                    found = symmetric_in_float32(a[own], b[other])
                else:
                    counted = ~(a_dead[own] & b_dead[other]) if has_shared_dead else None
                    found = kind.from_logs(a[own], b[other], counted)
            values[row : row + height, some] = found if is_cpu else found.cpu()

    step, starts = report("distances", len(rows)), range(0, len(rows), height)
    # One thread per row: blocks are small, and threads that shared one would wait for each other most of the time.
    with ThreadPoolExecutor(torch.get_num_threads() if is_cpu else 1) as pool:
        for row, _ in zip(starts, pool.map(measure, starts), strict=True):
            step(min(height, len(rows) - row))
    values = np.triu(values, 1) if is_once else values
    for row, column in np.argwhere(np.isnan(values)):
        counted = ~(row_dead[row] & column_dead[column])
        values[row, column] = kind.from_counted(rows[row], columns[column], counted)
    return values + values.T if is_once else values


def _check_logs(logs: np.ndarray, dead: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The logs and where they are dead, as contiguous arrays of one shape."""
    logs = np.ascontiguousarray(logs, dtype=np.float64)
    if logs.ndim != 2 or 0 in logs.shape or not np.isfinite(logs).all():
        raise DataError(
            f"log-embeddings must be a finite matrix (tasks, filters); this one has shape {logs.shape}"
            f"{'' if np.isfinite(logs).all() else ' and contains NaN or infinity'}. Take the log of Embedding.vector, "
            "which is positive."
        )
    dead = np.zeros(logs.shape, dtype=bool) if dead is None else np.ascontiguousarray(dead, dtype=bool)
    if dead.shape != logs.shape:
        raise DataError(f"'dead' has shape {dead.shape} and the logs {logs.shape}: one entry per filter is needed.")
    return logs, dead
