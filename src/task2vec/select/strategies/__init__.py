"""The ways of choosing an expert, in the order in which tables list them."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from task2vec.errors import UsageError
from task2vec.select.evidence import DOMAIN, SYMMETRIC, TAXONOMIC
from task2vec.select.strategies.adjusted import StaticWithDistance
from task2vec.select.strategies.combined import Combined
from task2vec.select.strategies.kernel import DATASET, Kernel
from task2vec.select.strategies.model_space import InModelSpace
from task2vec.select.strategies.nearest import Nearest, NearestAsymmetric
from task2vec.select.strategies.scored import SCORED, Scored
from task2vec.select.strategies.static import Chance, Generic, Size, Static
from task2vec.select.strategies.strategy import Strategy


def _make_scored(name: str) -> Callable[[], Strategy]:
    return lambda: Scored(name)


_MAKERS: tuple[Callable[[], Strategy], ...] = (
    Chance,
    Generic,
    Static,
    Size,
    lambda: Nearest(SYMMETRIC),
    NearestAsymmetric,
    lambda: NearestAsymmetric(None),
    lambda: Nearest(DOMAIN),
    lambda: Nearest(TAXONOMIC),
    lambda: StaticWithDistance(SYMMETRIC),
    lambda: Kernel(SYMMETRIC),
    lambda: Kernel(DOMAIN),
    lambda: Kernel(DATASET),
    InModelSpace,
    *(_make_scored(name) for name in SCORED),
    Combined,
    lambda: Combined(DOMAIN),
    lambda: Combined(score="logme"),
)

STRATEGIES: Mapping[str, Callable[[], Strategy]] = MappingProxyType({make().name: make for make in _MAKERS})


def find_strategy(name: str) -> Strategy:
    """The strategy of that name.

    Example:
        >>> find_strategy("asymmetric")
        NearestAsymmetric(alpha=0.15, looks_at_images=False)
    """
    if name not in STRATEGIES:
        raise UsageError(f"there is no strategy called '{name}'. Choose one of: {'; '.join(STRATEGIES)}")
    return STRATEGIES[name]()


__all__ = [
    "STRATEGIES",
    "Chance",
    "Combined",
    "Generic",
    "InModelSpace",
    "Kernel",
    "Nearest",
    "NearestAsymmetric",
    "Scored",
    "Size",
    "Static",
    "StaticWithDistance",
    "find_strategy",
]
