"""The ten distances between task embeddings. Every formula exists once.

A formula takes two log-embeddings (filters,) in float64 and returns a number. Logarithms keep extreme scales finite.

Two embeddings are compared on the filters that have Fisher information in at least one of them. A filter that is dead
in both holds only the priors, which depend on the number of images and not on the task: counted in, such filters would
change the distance of any two tasks. The paper's formula has 0 / 0 there.

The symmetric distance of Achille 2019 is the cosine distance between a / (a + b) and b / (a + b); with
u = log a - log b these are sigmoid(u) and sigmoid(-u). It is no metric: from (1, 1) over (1, 3) to (1, 9) it is 0.264,
directly 0.352.

The asymmetric distance is d(source -> target) = d_sym(source, target) - alpha d_sym(source, t0). The trivial task t0 is
the source's own prior: a source far from it is complex, and models of complex tasks are good starting points. It may be
negative.

Example:
    >>> import numpy as np
    >>> from task2vec.embedding import Embedding
    >>> from task2vec.probe import FilterLayer
    >>> layers, prior = (FilterLayer("conv", "convolution", 2, 9, 0.1),), np.full(2, 1e-9)
    >>> provenance = {"probe_fingerprint": "p", "settings": {}}
    >>> a = Embedding("a", "net", np.array([1.0, 2.0]), np.zeros(2), prior, layers, provenance)
    >>> b = Embedding("b", "net", np.array([2.0, 1.0]), np.zeros(2), prior, layers, provenance)
    >>> round(symmetric(a, b), 6), symmetric(a, a)
    (0.2, 0.0)
    >>> asymmetric(a, b) < replace(asymmetric, alpha=0)(a, b)
    True
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from task2vec.embedding import DomainEmbedding, Embedding, trivial
from task2vec.errors import ProbeMismatchError, SettingsMismatchError, UsageError

ALPHA = 0.15
# Settings that change the scale of the numbers: embeddings that differ in one of them are not compared.
SCALING = ("method", "dtype", "beta", "balance", "head")
# The symmetric distance of positive vectors is below one; rounding must not exceed it.
BELOW_ONE = float(np.nextafter(1, 0))
# exp of more than 709 is infinite; this leaves room for a sum.
_LARGEST_LOG_RATIO = 690.0
# Entries compared at once in float32, as many as fit into a processor's cache, and filters that are summed in it.
_BLOCK = 1 << 16
_FILTERS = 2048
# The sum of squares and the distance below which float32 has lost its digits.
_SMALLEST_SQUARES = 1e-20
_SMALLEST_DISTANCE = 1e-4

# Within these, neither a sum of two nor its reciprocal leaves the normal numbers of float32.
_LOWEST = 1e-37
_HIGHEST = 1e37


@dataclass(frozen=True)
class Distance:
    """A distance between tasks: call it with two embeddings.

    Attributes:
        name: its key in `task2vec.distance.KINDS`.
        from_logs: the formula, of the logarithms of the filters that count.
        is_symmetric: d(a, b) equals d(b, a), to the last bit.
        is_metric: it obeys the triangle inequality among tasks without dead filters (a filter that is left out for one
            pair and counted for another can break it).
        highest: the largest possible value. The smallest is 0, except for the asymmetric distance.
        alpha: weight of the source's complexity, subtracted; to change it: `replace(asymmetric, alpha=0.3)`.
    """

    name: str
    from_logs: Callable[[np.ndarray, np.ndarray], float]
    is_symmetric: bool = True
    is_metric: bool = False
    highest: float = math.inf
    alpha: float = 0.0

    def __post_init__(self):
        """Refuse a weight that would favour simple sources."""
        if not 0 <= self.alpha < math.inf:
            why = "a negative weight would rank the simplest model first, and an infinite one would hide the tasks"
            raise UsageError(f"alpha={self.alpha} is not valid: {why}. Use 0 or more; the paper uses {ALPHA}.")

    def __call__(self, a: Embedding, b: Embedding) -> float:
        """The distance from `a`, the source, to `b`; embeddings of different probes or settings are refused."""
        counted = find_counted(a, b)
        value = self.from_counted(np.log(a.vector), np.log(b.vector), counted)
        return value - self.alpha * replace(self, alpha=0.0)(a, trivial(a)) if self.alpha else value

    def from_counted(self, log_a: np.ndarray, log_b: np.ndarray, counted: np.ndarray) -> float:
        """The formula for one pair, over the filters that count; 0 if there are none."""
        return self.from_logs(log_a[counted], log_b[counted]) if counted.any() else 0.0


def find_counted(a: Embedding, b: Embedding) -> np.ndarray:
    """Which filters count for a pair of comparable embeddings: those that are not dead in both."""
    check_comparable(a, b)
    return (a.fisher > 0) | (b.fisher > 0)


def check_comparable(a: Embedding, b: Embedding) -> None:
    """Raises an error if the coordinates or scales of two embeddings have different meanings."""
    for embedding in (a, b):
        if not isinstance(embedding, Embedding):
            raise UsageError(
                f"a {type(embedding).__name__} is not a task embedding. Pass what embed() or load_embedding() returns."
            )
    check_provenance(a, b, "task2vec embed")


def check_provenance(a: Embedding | DomainEmbedding, b: Embedding | DomainEmbedding, command: str) -> None:
    """Refuses what was embedded by different probes or with different settings; `command` embeds one again."""
    if a.probe_fingerprint != b.probe_fingerprint or a.probe_fingerprint == "unknown":
        same_name = " under the same name but with other weights or another image size" if a.probe == b.probe else ""
        size = a.provenance.get("image_size")
        at = f" --size {size[0]}" if isinstance(size, list) and size and size != b.provenance.get("image_size") else ""
        raise ProbeMismatchError(
            f"cannot compare '{a.task}' with '{b.task}': they were embedded by different probes, or by unknown "
            f"ones ({a.probe} and {b.probe}{same_name}), so their coordinates mean different filters. Embed one again: "
            f"{command} --probe {a.probe}{at} {b.task}"
        )
    for name in SCALING:
        first, second = (e.provenance.get("settings", {}).get(name) for e in (a, b))
        if first != second:
            classes = {"balance": "EmbedSettings", "head": "VariationalSettings"}
            fix = f"{classes[name]}({name}={first!r})" if name in classes else f"{command} --{name} {first} {b.task}"
            raise SettingsMismatchError(
                f"cannot compare '{a.task}' with '{b.task}': they were embedded with {name}={first} and "
                f"{name}={second}, which changes the numbers themselves. Embed one again: {fix}"
            )


# --- formulas ---------------------------------------------------------------------------------------------------------


def _direction(logs: np.ndarray) -> np.ndarray:
    """The unit vector along exp(logs), scaled by the largest value first."""
    values = np.exp(logs - logs.max())
    return values / np.sqrt((values * values).sum())


def _half_square(difference: np.ndarray, highest: float) -> float:
    """1 - cos of two unit vectors is |x - y|^2 / 2: no cancellation for vectors that are nearly the same."""
    return min(float((difference * difference).sum()) / 2, highest)


def _split_shares(log_a: np.ndarray, log_b: np.ndarray) -> np.ndarray:
    """Difference of the unit vectors along a / (a + b) and b / (a + b): half of its squares sum to the distance."""
    u = log_a - log_b
    return _direction(-np.logaddexp(0, -u)) - _direction(-np.logaddexp(0, u))


def symmetric_from_logs(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """The cosine distance between a / (a + b) and b / (a + b)."""
    return _half_square(_split_shares(log_a, log_b), BELOW_ONE)


def _cosine(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """1 - cos(a, b), between 0 and 1 since all entries are positive."""
    return _half_square(_direction(log_a) - _direction(log_b), 1.0)


def _euclidean(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """|a - b|. The largest filters dominate; the paper warns of it for that reason."""
    largest = max(log_a.max(), log_b.max())
    difference = np.exp(log_a - largest) - np.exp(log_b - largest)
    scale = np.abs(difference).max()
    return float(np.sqrt(np.square(difference / scale).sum()) * scale * np.exp(largest)) if scale else 0.0


def _kl(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """KL(N(0, 1/a) || N(0, 1/b)) = (b/a - 1 - log(b/a)) / 2: an embedding holds precisions. Mean over the filters."""
    ratio = np.minimum(log_b - log_a, _LARGEST_LOG_RATIO)
    return max(float(np.mean(np.expm1(ratio) - ratio)) / 2, 0.0)


def _jeffreys(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """KL in both directions, cosh(u) - 1 with u = log a - log b. Mean over the filters."""
    half = np.sinh(np.clip(log_a - log_b, -_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO) / 2)
    return float(np.mean(2 * half * half))


def _jensen_shannon(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """Root of the Jensen-Shannon divergence in bits between a / sum(a) and b / sum(b): between 0 and 1.

    The root, and not the divergence, is a metric (Endres and Schindelin 2003).
    """
    log_p, log_q = (logs - logs.max() - np.log(np.exp(logs - logs.max()).sum()) for logs in (log_a, log_b))
    v = np.abs(log_p - log_q)
    # With t = (p - q) / (p + q) a filter adds (p + q) / 4 ((1 + t) log(1 + t) + (1 - t) log(1 - t)). In v = 2 atanh(t)
    # this is (p + q) / 4 (v t - 2 log cosh(v / 2)), whose first form does not cancel for small v.
    t = np.tanh(v / 2)
    near = np.log1p(-np.square(np.minimum(t, 0.5)))
    far = 2 * math.log(2) - v - 2 * np.log1p(np.exp(-v))
    parts = (np.exp(log_p) + np.exp(log_q)) / 4 * (v * t + np.where(t < 0.5, near, far))
    return math.sqrt(min(max(float(parts.sum()) / math.log(2), 0.0), 1.0))


def _correlation(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """1 - Pearson's correlation of the logs, between 0 and 2.

    A constant embedding has no shape to correlate: it is at 0 from another constant one and at 1 from all others.
    """
    are_flat = [np.ptp(logs) == 0 for logs in (log_a, log_b)]
    if any(are_flat):
        return 0.0 if all(are_flat) else 1.0
    shapes = []
    for logs in (log_a, log_b):
        centred = logs - logs.mean()
        scaled = centred / np.abs(centred).max()
        shapes.append(scaled / np.sqrt(np.square(scaled).sum()))
    return _half_square(shapes[0] - shapes[1], 2.0)


def _log_euclidean(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """Root mean square of u = log a - log b: by how many e-folds a typical filter differs."""
    return math.sqrt(np.square(log_a - log_b).mean())


def _centred_log_euclidean(log_a: np.ndarray, log_b: np.ndarray) -> float:
    """Standard deviation of u = log a - log b, blind to a common factor; its square is 2 d_sym for near tasks."""
    u = log_a - log_b
    return float(u.std()) if np.ptp(u) else 0.0


symmetric = Distance("symmetric", symmetric_from_logs, highest=1.0)
asymmetric = Distance("asymmetric", symmetric_from_logs, is_symmetric=False, highest=1.0, alpha=ALPHA)
cosine = Distance("cosine", _cosine, highest=1.0)
euclidean = Distance("euclidean", _euclidean, is_metric=True)
kl = Distance("kl", _kl, is_symmetric=False)
jeffreys = Distance("jeffreys", _jeffreys)
jensen_shannon = Distance("jensen_shannon", _jensen_shannon, is_metric=True, highest=1.0)
correlation = Distance("correlation", _correlation, highest=2.0)
log_euclidean = Distance("log_euclidean", _log_euclidean, is_metric=True)
centred_log_euclidean = Distance("centred_log_euclidean", _centred_log_euclidean, is_metric=True)

KINDS = {kind.name: kind for kind in list(globals().values()) if isinstance(kind, Distance)}


def find_kind(kind: str | Distance) -> Distance:
    """The distance of that name."""
    if isinstance(kind, Distance):
        return kind
    if kind not in KINDS:
        raise UsageError(f"there is no distance called '{kind}'. Choose one of: {', '.join(KINDS)}")
    return KINDS[kind]


def split_symmetric(a: Embedding, b: Embedding) -> np.ndarray:
    """(filters,) the part of every filter in the symmetric distance of two tasks; 0 where it is dead in both.

    The distance is half of the squared distance of two unit vectors, so the parts sum to it.
    """
    counted = find_counted(a, b)
    parts = np.zeros(len(a))
    if counted.any():
        parts[counted] = np.square(_split_shares(np.log(a.vector[counted]), np.log(b.vector[counted]))) / 2
    return parts


# --- sums for many pairs ----------------------------------------------------------------------------------------------


def make_row(embedding: Embedding) -> np.ndarray | None:
    """The vector in float32, negative where a filter has no Fisher; None if float32 cannot hold it.

    Example:
        >>> from task2vec.probe import FilterLayer
        >>> layer, prior = FilterLayer("conv", "convolution", 2, 9, 0.1), np.full(2, 0.25)
        >>> make_row(Embedding("birds", "net", np.array([1.0, 0.0]), prior, prior, (layer,)))
        array([ 1.25, -0.25], dtype=float32)
    """
    signed = sign_vector(embedding)
    sizes = np.abs(signed)
    return signed.astype(np.float32) if sizes.min() >= _LOWEST and sizes.max() <= _HIGHEST else None


def sign_vector(embedding: Embedding) -> np.ndarray:
    """Fisher + prior in float64, negative where a filter has no Fisher."""
    vector = embedding.vector
    return np.where(embedding.fisher == 0, -vector, vector)


def symmetric_to_rows(query: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The symmetric distance of `query` (filters,) from each of `rows` (n, filters), float32, within 1e-6.

    An entry is Fisher + prior, negative where the filter is dead, with a size between 1e-37 and 1e37: then no logarithm
    is needed, and with p = a / (a + b) and q = b / (a + b) the sums of p^2, q^2 and p q are enough. Equal rows are at
    exactly 0.

    Example:
        >>> symmetric_to_rows(np.float32([1, 2]), np.float32([[2, 1], [1, 2]])).round(6)
        array([0.2, 0. ])
    """
    sizes = np.abs(query)
    dead = np.flatnonzero(query < 0)
    sums = np.zeros((3, len(rows)))
    step = max(1, _BLOCK // len(query))
    for at in range(0, len(rows), step):
        block = rows[at : at + step]
        p = sizes
        q = np.abs(block)
        share = 1 / (p + q)
        share[:, dead] *= block[:, dead] > 0
        p, q = p * share, q * share
        for start in range(0, len(query), _FILTERS):  # in float64 over some thousand filters each
            p_block, q_block = p[:, start : start + _FILTERS], q[:, start : start + _FILTERS]
            sums[:, at : at + step] += (
                np.vecdot(p_block, p_block),
                np.vecdot(q_block, q_block),
                np.vecdot(p_block, q_block),
            )
    pp, qq, pq = sums
    with np.errstate(invalid="ignore", divide="ignore"):
        distances = np.minimum(1 - pq / np.sqrt(pp * qq), BELOW_ONE)
    is_exact = (np.minimum(pp, qq) > _SMALLEST_SQUARES) & (distances > _SMALLEST_DISTANCE)
    for at in np.flatnonzero(~is_exact):
        log_a, log_b = (np.log(np.abs(row.astype(np.float64))) for row in (query, rows[at]))
        distances[at] = symmetric.from_counted(log_a, log_b, (query > 0) | (rows[at] > 0))
    return distances
