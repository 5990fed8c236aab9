"""The settings of an embedding: everything that changes its numbers, and nothing else."""

import math
from dataclasses import asdict, dataclass

from task2vec.errors import UsageError

ENGINES = ("exact", "fast")
SEEDS = ("balanced", "plain", "all")
DTYPES = ("float32", "float64", "bfloat16")


@dataclass(frozen=True)
class EmbedSettings:
    """How a task is embedded.

    Attributes:
        engine: "exact" norms of the filter gradients, or "fast" ones by an unbiased sketch.
        seeds: how labels and images are drawn: "balanced" by their share of the Fisher; "plain" images uniformly and
            labels y ~ p, for comparison; "all" of them, without any sampling.
        images: how many (image, label) pairs are back-propagated at most. Small tasks get several labels per image.
        precision: stop earlier, once the median relative standard error of the filters is below this.
        l2: penalty of the head; None chooses it by cross-validation.
        balance: weigh every class the same, as the paper does by drawing images uniformly over classes.
        beta: weight of the prior (see `task2vec.embedding.prior`).
        seed: of every random draw.
        dtype: arithmetic of the probe. "bfloat16" moves single filters by some 10 %: compare it with itself only.
    """

    engine: str = "exact"
    seeds: str = "balanced"
    images: int = 400
    precision: float | None = None
    l2: float | None = None
    balance: bool = True
    beta: float = 1e-7
    seed: int = 0
    dtype: str = "float32"

    def __post_init__(self):
        """Refuse values that cannot be meant."""
        for name, allowed in (("engine", ENGINES), ("seeds", SEEDS), ("dtype", DTYPES)):
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name}={getattr(self, name)!r} is not known. Choose one of {', '.join(allowed)}.")
        if self.images < 2:
            raise UsageError(
                f"images={self.images}: at least 2 are needed to tell how sure the estimate is. Try images=400."
            )
        if not 0 <= self.seed < 1 << 63:
            raise UsageError(
                f"seed={self.seed} must be a whole number from 0 to 2^63 - 1: the generators take no other."
            )
        for name in ("precision", "l2"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name}={value} must be a positive number, or None to leave the choice to us.")
        if not (math.isfinite(self.beta) and self.beta > 0):
            raise UsageError(
                f"beta={self.beta} must be positive: without a prior, filters that are dead for two tasks make their "
                "distance 0/0."
            )

    def as_dict(self) -> dict[str, object]:
        """Plain values for provenance."""
        return asdict(self)
