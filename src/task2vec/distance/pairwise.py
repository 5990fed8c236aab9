"""Tables of distances: every pair of many embeddings.

The symmetric distance of a pair needs two sums over the filters: s, of q = b / (a + b), and v, of q^2. With p = 1 - q
and n filters, p.p = n - 2 s + v, q.q = v, p.q = s - v and (p.p) (q.q) - (p.q)^2 = n v - s^2. That is one addition, one
division and two sums per filter, no exponential. Each q is computed in float32 from values scaled by the filter's
geometric mean; the sums over some thousand filters are added in float64. Rounding is about 1e-7 of q, and what is left
of p.p after subtracting is large if b is the smaller of the two: so tasks are taken in the order of their mean
logarithm. Exceptions:

- a table with a filter whose values spread over more than e^30 on either side is computed by the formula in float64;
- a filter that is dead in some tasks gets a term in its denominator that is huge when it is dead in both and zero
  otherwise: then it adds nothing to either sum, and is not counted;
- a pair for which p.p is still small, or q.q vanishes, or whose distance is less than rounding is computed by the
  formula itself in float64.

The other distances are computed pair by pair with NumPy. Memory is that of input, result and one block.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.distance.distances import BELOW_ONE, Distance, check_comparable, find_kind, symmetric
from task2vec.embedding import Embedding, trivial
from task2vec.errors import DataError, UsageError
from task2vec.storage import write_rows

if TYPE_CHECKING:
    from torch import Tensor

# Numbers in a block, which fit into a processor's cache or keep a GPU busy.
NUMBERS_PER_BLOCK = {"cpu": 1 << 19, "cuda": 1 << 24}
# Rows whose sums are held at a time, and rows of one block.
ROWS_PER_GROUP = 64
ROWS_PER_BLOCK = {"cpu": 1, "cuda": 16}
# Filters that are summed in float32 before the sums are added in float64.
FILTERS_PER_SUM = 2048
MAX_LOG_SPREAD = 30.0
# The product of two is the largest power of ten in float32.
HUGE = 1e19
SMALLEST_SHARE = 1 / 8
SMALLEST_SQUARES = 1e-25
SMALLEST_DISTANCE = 1e-6


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
        if values.shape != self.shape:
            why = "each row and each column needs one name"
            raise DataError(f"a matrix of shape {values.shape} cannot hold distances of shape {self.shape}: {why}.")
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
            known = ", ".join(self.rows[:8]) + (", ..." if len(self.rows) > 8 else "")
            raise UsageError(
                f"the k={k} nearest tasks of '{name}' are not defined: {self.rows.count(name)} rows of {self!r} have "
                f"that name. Ask for one row and at least one neighbour; rows are: {known}"
            )
        index = self.rows.index(name)
        row = self.values[index]
        is_square = self.rows == self.columns
        order = [column for column in np.argsort(row, kind="stable") if not (is_square and column == index)]
        return [(self.columns[column], float(row[column])) for column in order[:k]]

    def save_csv(self, path: str | Path) -> Path:
        """Writes the table to `path`, whole or not at all, and returns it; the numbers keep all their digits."""
        rows = ([name, *row] for name, row in zip(self.rows, self.values.tolist(), strict=True))
        return write_rows(path, [[self.kind, *self.columns], *rows])


def pairwise(
    embeddings: Sequence[Embedding],
    kind: str | Distance = "symmetric",
    *,
    others: Sequence[Embedding] | None = None,
    device: str | None = None,
) -> DistanceMatrix:
    """The distances of all embeddings from each other, or from `others`.

    They equal those of `kind` called on each pair: within 1e-6 for the symmetric and the asymmetric distance, which are
    computed in float32 where that suffices, and to rounding for the others.

    Args:
        embeddings: the rows; sources, if the distance has a direction.
        kind: a name from `KINDS`, or a distance: `replace(asymmetric, alpha=0.3)`.
        others: the columns, if they are not the rows.
        device: of the symmetric and the asymmetric distance: "cpu", "cuda"; None uses a GPU if there is one.

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
    for embedding in (*embeddings, *columns):
        check_comparable(embeddings[0], embedding)
    logs, dead = stack_logs(embeddings)
    other_logs, other_dead = (None, None) if others is None else stack_logs(columns)
    sides = {"others": other_logs, "dead": dead, "others_dead": other_dead}
    values = pairwise_from_logs(logs, replace(kind, alpha=0.0), **sides, device=device)
    if kind.alpha:
        complexities = np.array([[symmetric(embedding, trivial(embedding))] for embedding in embeddings])
        values = values - kind.alpha * complexities
    names, other_names = (tuple(embedding.task for embedding in side) for side in (embeddings, columns))
    return DistanceMatrix(values, names, other_names, kind.name)


def stack_logs(embeddings: Sequence[Embedding]) -> tuple[np.ndarray, np.ndarray]:
    """(tasks, filters) logs of the vectors, and where they are dead."""
    logs = np.log(np.stack([embedding.vector for embedding in embeddings]))
    return logs, np.stack([embedding.fisher == 0 for embedding in embeddings])


def pairwise_from_logs(
    logs: np.ndarray,
    kind: str | Distance = "symmetric",
    *,
    others: np.ndarray | None = None,
    dead: np.ndarray | None = None,
    others_dead: np.ndarray | None = None,
    device: str | None = None,
) -> np.ndarray:
    """The distances (rows, columns) of log-embeddings (tasks, filters), without names or provenance.

    Whether the rows are comparable is not checked. `dead` marks filters without Fisher information (None: there are
    none); those that are dead in both tasks do not count. The asymmetric distance needs priors and is not available.

    Example:
        >>> pairwise_from_logs(np.log([[1.0, 2.0], [2.0, 1.0]]), device="cpu").round(6)
        array([[0. , 0.2],
               [0.2, 0. ]])
    """
    kind = find_kind(kind)
    if kind.alpha:
        raise UsageError(
            "the asymmetric distance needs the prior of every source, which logs do not contain. Use "
            "pairwise(embeddings, 'asymmetric'), or subtract alpha times each row's distance from its prior."
        )
    sides = [_check_side(logs, dead)] + ([] if others is None else [_check_side(others, others_dead)])
    filters = sides[0][0].shape[1]
    other_filters = sides[-1][0].shape[1]
    if filters != other_filters:
        problem = f"log-embeddings of {filters} and of {other_filters} filters cannot be compared"
        raise DataError(f"{problem}: they come from different probes. Embed all tasks with one.")
    values = np.full((len(sides[0][0]), len(sides[-1][0])), np.nan)
    if kind.from_logs is symmetric.from_logs:
        values = _measure_by_sums(sides, device)
    is_once = others is None and kind.is_symmetric
    for row, column in np.argwhere(np.isnan(values)):
        if not is_once or row < column:
            counted = ~(sides[0][1][row] & sides[-1][1][column])
            values[row, column] = kind.from_counted(sides[0][0][row], sides[-1][0][column], counted)
    if others is None:
        np.fill_diagonal(values, 0)
    return np.where(np.isnan(values), values.T, values) if is_once else values


def _check_side(logs: np.ndarray, dead: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    logs = np.ascontiguousarray(logs, dtype=np.float64)
    if logs.ndim != 2 or 0 in logs.shape or not np.isfinite(logs).all():
        raise DataError(
            f"log-embeddings must be a finite matrix (tasks, filters); this one has shape {logs.shape}"
            f"{'' if np.isfinite(logs).all() else ' and contains NaN or infinity'}. Take the log of Embedding.vector, "
            "which is positive."
        )
    return logs, np.array(np.broadcast_to(False if dead is None else dead, logs.shape), dtype=bool)


def _measure_by_sums(tables: list[tuple[np.ndarray, np.ndarray]], device_name: str | None) -> np.ndarray:
    """The symmetric distance of all pairs on a device; NaN where float32 does not suffice.

    Args:
        tables: the rows, and the columns unless they are the rows: log-embeddings, and which filters are dead.
        device_name: the device; None uses a GPU if there is one.
    """
    import torch

    from task2vec.embedding.batching import choose_device

    device = choose_device(device_name)
    sides = [tuple(torch.from_numpy(array).to(device) for array in table) for table in tables]
    middle = torch.stack([logs.sum(0) for logs, _ in sides]).sum(0) / sum(len(logs) for logs, _ in sides)
    if max(float((logs - middle).abs_().max()) for logs, _ in sides) > MAX_LOG_SPREAD:
        return np.full((len(sides[0][0]), len(sides[-1][0])), np.nan)
    # Tasks are taken from the largest to the smallest.
    means = [logs.mean(1) for logs, _ in sides]
    orders = [mean.argsort(descending=True) for mean in means]
    sides = [(logs[order], dead[order]) for (logs, dead), order in zip(sides, orders, strict=True)]
    is_square = len(sides) == 1
    filters = sides[0][0].shape[1]
    # For every row, the columns before its place belong to larger tasks; of a square table they are mirrored.
    places = torch.searchsorted(-means[-1][orders[-1]], -means[0][orders[0]]).tolist()
    places = list(range(len(places))) if is_square else places
    is_shared = sides[0][1].any(0) & sides[-1][1].any(0)
    dead = [mask[:, is_shared].float() for _, mask in sides]
    # For each chunk of filters: the values of both sides in float32, and HUGE where filters are dead, if any are dead
    # on both sides.
    chunks: list[tuple[list[Tensor], list[Tensor]]] = []
    for chunk in is_shared.int().argsort(stable=True).split(FILTERS_PER_SUM):
        values = [(logs[:, chunk] - middle[chunk]).exp_().float() for logs, _ in sides]
        masks = [(mask[:, chunk] * HUGE).float() for _, mask in sides] if is_shared[chunk].any() else []
        chunks.append((values, masks))
    distances = torch.empty(len(means[0]), len(means[-1]), dtype=torch.float64, device=device)

    def fill(group: slice) -> None:
        """Writes the distances of some rows; in a square table, only those to smaller tasks."""
        buffer = torch.empty(
            NUMBERS_PER_BLOCK.get(device.type, NUMBERS_PER_BLOCK["cpu"]), dtype=torch.float32, device=device
        )
        totals = distances.new_zeros(2, group.stop - group.start, distances.shape[1])
        for values, masks in chunks:
            sums = torch.zeros_like(totals, dtype=torch.float32)
            for rows in _slices(group.start, group.stop, ROWS_PER_BLOCK.get(device.type, ROWS_PER_BLOCK["cpu"])):
                a = values[0][rows, None]
                target = slice(rows.start - group.start, rows.stop - group.start)
                first = places[rows.start if is_square else (rows.start + rows.stop) // 2]
                width = max(1, len(buffer) // a.numel())
                after = [(columns, False) for columns in _slices(first, distances.shape[1], width)]
                before = [(columns, True) for columns in _slices(0, 0 if is_square else first, width)]
                for columns, is_row_smaller in after + before:
                    b = values[-1][None, columns]
                    shape = (len(a), b.shape[1], a.shape[2])
                    q = torch.add(a, b, out=buffer[: math.prod(shape)].view(shape))
                    if masks:
                        q.addcmul_(masks[0][rows, None], masks[-1][None, columns])
                    torch.div(a if is_row_smaller else b, q, out=q)
                    torch.sum(q, -1, out=sums[0, target, columns])
                    torch.linalg.vector_norm(q, dim=-1, out=sums[1, target, columns])
            totals += torch.stack([sums[0].double(), sums[1].double().square()])
        shared = dead[0][group] @ dead[-1].T  # small whole numbers, exact in float32
        distances[group] = _finish(totals[0], totals[1], filters - shared.double())

    groups = _slices(0, len(distances), ROWS_PER_GROUP)
    if device.type == "cpu":
        # The blocks are small. If each one were shared between the threads, these would wait for each other most of the
        # time, and endlessly on a busy machine: so every group has one thread.
        with ThreadPoolExecutor(torch.get_num_threads(), initializer=_use_one_thread) as pool:
            list(pool.map(fill, groups))
    else:
        list(map(fill, groups))
    if is_square:
        distances = distances.triu_(1)
        distances += distances.T.clone()
    result = torch.empty_like(distances)
    result[orders[0][:, None], orders[-1]] = distances
    return result.cpu().numpy()


def _use_one_thread() -> None:
    import torch
    from threadpoolctl import threadpool_limits

    torch.get_num_threads()  # a thread's first call sets its number, so it comes before the limit
    threadpool_limits(1, "openmp")


def _finish(s: "Tensor", v: "Tensor", count: "Tensor") -> "Tensor":
    """The distances from the two sums and the number of filters that count; NaN where float32 does not suffice."""
    pp = count - 2 * s + v  # the smaller it is beside `count`, the less of it is left by rounding
    root = (pp * v).clip(0, None) ** 0.5
    distance = (count * v - s * s) / (root * (root + s - v))
    doubtful = (pp < SMALLEST_SHARE * count) | (v < SMALLEST_SQUARES * count) | (distance < SMALLEST_DISTANCE)
    return distance.clamp_max(BELOW_ONE).masked_fill(doubtful, float("nan")).masked_fill(count == 0, 0)


def _slices(start: int, stop: int, width: int) -> Iterator[slice]:
    """Slices from `start` to `stop` of at most `width`."""
    return (slice(at, min(at + width, stop)) for at in range(start, stop, width))
