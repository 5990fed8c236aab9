"""Distances between domains: how different the images of two tasks look to a probe, whatever their labels.

* cosine: between the mean features, the paper's domain baseline;
* standardised: Euclidean between the (mean, standard deviation) of the features, each in units of its standard
  deviation s over the two domains mixed half and half, s^2 = (std_a^2 + std_b^2) / 2 + (mean_a - mean_b)^2 / 4, and
  averaged over the features: sqrt(mean((Δmean^2 + Δstd^2) / s^2)), between 0 and 2. As s belongs to the pair, the
  triangle inequality is not promised.
"""

from typing import TYPE_CHECKING

import numpy as np

from task2vec.errors import DataError, ProbeMismatchError, SettingsMismatchError, UsageError

if TYPE_CHECKING:
    from task2vec.embedding.domain import DomainEmbedding

KINDS = ("cosine", "standardised")
# A feature whose spread is this part of its size or less (of squares: 1e-5 of the values) is constant but for rounding.
_ROUNDING = 1e-10


def domain(a: "DomainEmbedding", b: "DomainEmbedding", *, kind: str = "cosine") -> float:
    """Distance between the domains of two tasks, 0 for a domain with itself; those of different probes are refused.

    Example:
        >>> from task2vec.embedding.domain import DomainEmbedding
        >>> story = {"probe_fingerprint": "p"}
        >>> a = DomainEmbedding("a", "net", [3.0, 0.0], [10.0, 1.0], story)
        >>> b = DomainEmbedding("b", "net", [3.0, 4.0], [10.0, 17.0], story)
        >>> round(domain(a, b), 6), round(domain(a, b, kind="standardised"), 6)
        (0.4, 1.264911)
    """
    if kind not in KINDS:
        raise UsageError(f"kind={kind!r} is no distance between domains. Choose one of {', '.join(KINDS)}.")
    check_same_probe(a, b)
    return _cosine(a, b) if kind == "cosine" else _standardised(a, b)


def check_same_probe(a: "DomainEmbedding", b: "DomainEmbedding") -> None:
    """Refuses domains whose features mean different things."""
    if a.probe_fingerprint != b.probe_fingerprint or a.probe_fingerprint == "unknown":
        raise ProbeMismatchError(
            f"cannot compare the domain of '{a.task}' with that of '{b.task}': they were seen by different probes "
            f"({a.probe} and {b.probe}) or at different image sizes, so their features mean different things. Embed "
            f"one again with the probe of the other."
        )
    one, other = (domain.provenance.get("settings", {}).get("dtype") for domain in (a, b))
    if one != other:
        raise SettingsMismatchError(
            f"cannot compare the domain of '{a.task}' with that of '{b.task}': they were embedded with dtype={one} and "
            f"dtype={other}, which changes the numbers themselves. Embed one again with the dtype of the other."
        )


def _cosine(a: "DomainEmbedding", b: "DomainEmbedding") -> float:
    """1 - cos of the means, as |x - y|^2 / 2 of the unit vectors: no cancellation for domains nearly the same."""
    return float(np.square(_direction(a) - _direction(b)).sum() / 2)


def _direction(domain: "DomainEmbedding") -> np.ndarray:
    largest = np.abs(domain.mean).max()
    if not largest > 0:
        raise DataError(
            f"every mean feature of '{domain.task}' is 0, so its domain has no direction to compare. Look at its "
            "images, or take kind='standardised'."
        )
    scaled = domain.mean / largest
    return scaled / np.linalg.norm(scaled)


def _standardised(a: "DomainEmbedding", b: "DomainEmbedding") -> float:
    """Root mean square over the features of the differences of mean and standard deviation, in units of s."""
    mean_gap, std_gap = a.mean - b.mean, a.std - b.std
    mixed = (np.square(a.std) + np.square(b.std)) / 2 + np.square(mean_gap) / 4
    size = (a.second_moment + b.second_moment) / 2
    varies = mixed > _ROUNDING * size
    ratios = (np.square(mean_gap) + np.square(std_gap))[varies] / mixed[varies]
    return float(np.sqrt(ratios.sum() / len(mixed)))
