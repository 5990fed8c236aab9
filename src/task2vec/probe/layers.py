"""The coordinates of the space, as values: no network needed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FilterLayer:
    """One layer of the coordinate system: `filters` coordinates, each the mean over `weights_per_filter` weights."""

    name: str
    kind: str
    filters: int
    weights_per_filter: int
    mean_square_weight: float
