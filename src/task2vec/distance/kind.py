"""What every distance has in common: it is called on two embeddings, and says of itself what a caller must know.

Two embeddings are compared on the filters that are alive in at least one of them. A filter without any Fisher in both
says nothing about either task: there the vectors hold only the priors, which know the number of images and not the
task. Counted in, such filters would draw tasks together (or, by the priors, apart) the more the probe is too large for
both. The paper's formula has 0 / 0 there.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from task2vec.embedding import Embedding
from task2vec.errors import ProbeMismatchError, SettingsMismatchError, UsageError

# Settings that change the scale of the numbers: embeddings that differ in one of them are not compared.
SCALING = ("method", "dtype", "beta", "balance", "gradient", "head")


@dataclass(frozen=True)
class Distance:
    """A distance between tasks: call it with two embeddings.

    Attributes:
        name: its key in `task2vec.distance.KINDS`.
        from_logs: the pure function behind it, of two log-embeddings in float64.
        is_symmetric: the way back is as long as the way there, to the last bit.
        is_metric: it obeys the triangle inequality, among tasks without dead filters (a filter that is left out for one
            pair and counted for another can break it).
        highest: nothing is farther apart; infinity if there is no such number. Nothing is closer than
            0, but for the asymmetric distance.
        lower_is_closer: true of every distance here, and there for who handles similarities as well.
    """

    name: str
    from_logs: Callable[..., float]
    is_symmetric: bool
    is_metric: bool
    highest: float = float("inf")
    lower_is_closer: bool = True

    def __call__(self, a: Embedding, b: Embedding) -> float:
        """How far `a` is from `b`; embeddings of different probes or settings are refused."""
        check_comparable(a, b)
        counted = ~(find_dead(a) & find_dead(b))
        if not counted.any():
            return 0.0
        return self.from_logs(np.log(a.vector[counted]), np.log(b.vector[counted]))


def find_dead(embedding: Embedding) -> np.ndarray:
    """True for every filter without any Fisher."""
    return embedding.fisher == 0


def check_comparable(a: Embedding, b: Embedding) -> None:
    """Refuses embeddings whose coordinates or scales mean different things."""
    for one in (a, b):
        if not isinstance(one, Embedding):
            raise UsageError(
                f"a {type(one).__name__} is no embedding of a task, so it has no distance to one. Pass what embed() or "
                "load_embedding() returns (distance.domain compares domains)."
            )
        if one.probe_fingerprint == "unknown":
            raise ProbeMismatchError(
                f"'{one.task}' does not say which probe it is from, so its coordinates may mean anything. "
                f"Embed it again: task2vec embed {one.task}"
            )
    if a.probe_fingerprint != b.probe_fingerprint:
        same_name = " under the same name but with other weights or another image size" if a.probe == b.probe else ""
        raise ProbeMismatchError(
            f"cannot compare '{a.task}' with '{b.task}': they were embedded by different probes ({a.probe} and "
            f"{b.probe}{same_name}), "
            f"so their coordinates mean different filters. Embed one again: task2vec embed --probe {a.probe} {b.task}"
        )
    for name in SCALING:
        one, other = (e.provenance.get("settings", {}).get(name) for e in (a, b))
        if one != other:
            mends = {"balance": "EmbedSettings", "gradient": "VariationalSettings", "head": "VariationalSettings"}
            mend = f"{mends[name]}({name}={one!r})" if name in mends else f"task2vec embed --{name} {one} {b.task}"
            raise SettingsMismatchError(
                f"cannot compare '{a.task}' with '{b.task}': they were embedded with {name}={one} and {name}={other}, "
                f"which changes the numbers themselves. Embed one again: {mend}"
            )
