"""Many embeddings become a table of distances."""

from collections.abc import Sequence

import numpy as np

from task2vec.distance.asymmetric import Asymmetric, asymmetric
from task2vec.distance.gaussian import jeffreys, kl
from task2vec.distance.kind import Distance, check_comparable, find_dead
from task2vec.distance.logs import centred_log_euclidean, correlation, log_euclidean
from task2vec.distance.matrix import DistanceMatrix
from task2vec.distance.symmetric import symmetric
from task2vec.distance.values import cosine, euclidean, jensen_shannon
from task2vec.embedding import Embedding, trivial
from task2vec.errors import DataError, UsageError
from task2vec.progress import Report, silent

KINDS: dict[str, Distance] = {
    kind.name: kind
    for kind in (
        symmetric,
        asymmetric,
        cosine,
        euclidean,
        kl,
        jeffreys,
        jensen_shannon,
        correlation,
        log_euclidean,
        centred_log_euclidean,
    )
}


def pairwise(
    embeddings: Sequence[Embedding],
    kind: str | Distance = "symmetric",
    *,
    others: Sequence[Embedding] | None = None,
    device: str | None = None,
    report: Report = silent,
) -> DistanceMatrix:
    """The distances of all embeddings from each other, or from `others`.

    They are those of `kind` called on each pair, within 1e-6 for the symmetric and the asymmetric distance, which are
    computed in float32 where that suffices, and to rounding for the others.

    Args:
        embeddings: the rows; sources, if the distance has a direction.
        kind: a name from `KINDS`, or a distance: `replace(asymmetric, alpha=0.3)`.
        others: the columns, if they are not the rows.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        report: opens a progress bar, see `task2vec.progress`.

    Example:
        >>> from task2vec.probe import FilterLayer
        >>> layers, story = (FilterLayer("conv", "convolution", 2, 9, 0.1),), {"probe_fingerprint": "p"}
        >>> fishers = {"cats": [1.0, 2.0], "dogs": [1.0, 2.5], "cars": [2.0, 1.0]}
        >>> prior = np.full(2, 1e-9)
        >>> made = [Embedding(n, "net", np.array(f), prior, prior, layers, story) for n, f in fishers.items()]
        >>> pairwise(made, device="cpu").nearest("cats", 1)
        [('dogs', 0.00...)]
    """
    kind, embeddings = find_kind(kind), list(embeddings)
    others = None if others is None else list(others)
    columns = embeddings if others is None else others
    if not embeddings or not columns:
        raise UsageError("there is nothing to compare: the list of embeddings is empty. Give at least one.")
    for one in (*embeddings, *(others or ())):
        check_comparable(embeddings[0], one)
    logs, dead = _stack(embeddings)
    other_logs, other_dead = (None, None) if others is None else _stack(others)
    base = symmetric if isinstance(kind, Asymmetric) else kind
    values = pairwise_from_logs(
        logs, base, others=other_logs, dead=dead, others_dead=other_dead, device=device, report=report
    )
    if isinstance(kind, Asymmetric):
        values = values - kind.alpha * np.array([[symmetric(one, trivial(one))] for one in embeddings])
    names = [tuple(one.task for one in side) for side in (embeddings, columns)]
    return DistanceMatrix(values, names[0], names[1], kind.name)


def cdist(
    rows: Sequence[Embedding],
    columns: Sequence[Embedding],
    kind: str | Distance = "symmetric",
    *,
    device: str | None = None,
    report: Report = silent,
) -> DistanceMatrix:
    """The distances of `rows` from `columns`: `pairwise` with `others`, by the name that SciPy gives it.

    Example:
        >>> from task2vec.probe import FilterLayer
        >>> layers, story = (FilterLayer("conv", "convolution", 2, 9, 0.1),), {"probe_fingerprint": "p"}
        >>> one = Embedding("cats", "net", np.ones(2), np.ones(2), np.ones(2), layers, story)
        >>> cdist([one], [one, one], device="cpu")
        DistanceMatrix(symmetric, 1 x 2 tasks)
    """
    return pairwise(rows, kind, others=columns, device=device, report=report)


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
    """The distances (rows, columns) of log-embeddings (tasks, filters), without their stories.

    Nobody checks here that the rows belong together. `dead` says which filters have no Fisher (none, if left out);
    those that are dead in both tasks do not count. The asymmetric distance needs priors as well and is not known here.

    Example:
        >>> pairwise_from_logs(np.log([[1.0, 2.0], [2.0, 1.0]]), device="cpu").round(6)
        array([[0. , 0.2],
               [0.2, 0. ]])
    """
    from task2vec.distance.blocks import measure_blocks

    kind = find_kind(kind)
    if isinstance(kind, Asymmetric):
        raise UsageError(
            "the asymmetric distance needs the prior of every source, which logs alone do not tell. Use "
            "pairwise(embeddings, 'asymmetric'), or subtract alpha times each row's distance from its prior."
        )
    rows, dead_rows = _check_side(logs, dead)
    columns, dead_columns = (None, dead_rows) if others is None else _check_side(others, others_dead)
    if columns is not None and columns.shape[1] != rows.shape[1]:
        raise DataError(
            f"log-embeddings of {rows.shape[1]} and of {columns.shape[1]} filters cannot be compared: they come from "
            "different probes. Embed all tasks with one."
        )
    return measure_blocks(rows, columns, kind, dead=(dead_rows, dead_columns), device=device, report=report)


def find_kind(kind: str | Distance) -> Distance:
    """The distance of that name."""
    if isinstance(kind, Distance):
        return kind
    if kind not in KINDS:
        raise UsageError(f"there is no distance called '{kind}'. Choose one of: {', '.join(KINDS)}")
    return KINDS[kind]


def _stack(embeddings: Sequence[Embedding]) -> tuple[np.ndarray, np.ndarray]:
    """Logs of the vectors, and where they are dead."""
    return np.log(np.stack([one.vector for one in embeddings])), np.stack([find_dead(one) for one in embeddings])


def _check_side(logs: np.ndarray, dead: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    logs = np.ascontiguousarray(logs, dtype=np.float64)
    if logs.ndim != 2 or 0 in logs.shape or not np.isfinite(logs).all():
        raise DataError(
            f"log-embeddings are a finite matrix (tasks, filters), and this one has shape {logs.shape}"
            f"{'' if np.isfinite(logs).all() else ' and holds NaN or infinity'}. Take the log of Embedding.vector, "
            "which is positive."
        )
    dead = np.zeros(logs.shape, dtype=bool) if dead is None else np.ascontiguousarray(dead, dtype=bool)
    if dead.shape != logs.shape:
        raise DataError(f"'dead' has shape {dead.shape} and the logs {logs.shape}: one entry per filter is needed.")
    return logs, dead
