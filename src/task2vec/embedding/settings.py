"""The settings of an embedding: everything that changes its numbers, and nothing else."""

import math
from dataclasses import asdict, dataclass

from task2vec.errors import UsageError

METHODS = ("robust", "direct", "variational")
ENGINES = ("exact",)
SEEDS = ("balanced", "plain", "all")
DTYPES = ("float32", "float64", "bfloat16")
HEADS = ("joint", "fixed")
GRADIENTS = ("curvature",)
# Counted up when the same settings give other numbers than before, beyond rounding: what is kept is then made anew.
# 1: the first. 2: heads whose cross-validation stops later, and chooses another penalty now and then.
RECIPE = 2
# What says how pairs are drawn and back-propagated: the variational method has draws of its own.
_OF_THE_DRAW = ("engine", "seeds", "images", "precision")


@dataclass(frozen=True)
class VariationalSettings:
    """How the variational method trains; the numbers that the paper gives are the defaults.

    Attributes:
        epochs: of joint training of noise and head. The paper does not say how many; watch the drift.
        head_epochs: of training the head alone before, on clean features.
        draws: images per epoch, drawn with replacement, uniformly over classes.
        batch: images per step.
        gradient: of the noise: "curvature" at noisy points, or through the "noise" itself as in the paper, whose signal
            is hundreds of times weaker (see `task2vec.fisher.variational`). The minimum is the same where Fisher and
            Hessian are, which on a real probe they are not.
        rate: learning rate (Adam) of the logarithm of the precisions.
        head_rate: learning rate (Adam) of the head.
        head: "joint" as in the paper, or "fixed": the converged head of the other methods, which does not move.
    """

    epochs: int = 10
    head_epochs: int = 2
    draws: int = 10_000
    batch: int = 64
    rate: float = 1e-2
    head_rate: float = 1e-4
    head: str = "joint"
    gradient: str = "curvature"

    def __post_init__(self):
        """Refuse values that cannot be meant."""
        for name, allowed in (("head", HEADS), ("gradient", GRADIENTS)):
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name}={getattr(self, name)!r} is not known. Choose one of {', '.join(allowed)}.")
        for name in ("epochs", "head_epochs", "draws", "batch"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(
                    f"{name}={value} must be a whole number, at least 1, or nothing would be trained. "
                    "Leave it out for the default."
                )
        for name in ("rate", "head_rate"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UsageError(
                    f"{name}={value} must be a positive number, such as 0.01. Leave it out for the paper's."
                )

    @property
    def steps_per_epoch(self) -> int:
        """Batches that make an epoch."""
        return -(-self.draws // self.batch)


@dataclass(frozen=True)
class EmbedSettings:
    """How a task is embedded.

    Attributes:
        method: "robust": the paper's variational Fisher in closed form; "direct": the Fisher of the filters as such;
            "variational": the paper's optimisation itself, slow, as a reference (see docs/robust.md).
        engine: "exact" norms of the filter gradients, or "fast" ones by an unbiased sketch. Robust ones need no sketch.
        seeds: how labels and images are drawn: "balanced" by their share of the Fisher; "plain" images uniformly and
            labels y ~ p, for comparison; "all" of them, without any sampling.
        images: how many (image, label) pairs are back-propagated at most. Small tasks get several labels per image.
        precision: stop earlier, once the median relative standard error of the filters is below this.
        l2: penalty of the head; None chooses it by cross-validation.
        balance: weigh every class the same, as the paper does by drawing images uniformly over classes.
        beta: weight of the prior beside a loss that is summed over the images (see `task2vec.fisher.posterior`).
        halves: embed two halves of the task as well, each with a head of its own and half of the pairs. It costs
            another Fisher pass and two heads, and tells how far other images would have moved the whole.
        seed: of every random draw.
        dtype: arithmetic of the probe. "bfloat16" moves single filters by some 10 %: compare it with itself only.
        variational: how the variational method trains; the others do not look at it.
    """

    method: str = "robust"
    engine: str = "exact"
    seeds: str = "balanced"
    images: int = 400
    precision: float | None = None
    l2: float | None = None
    balance: bool = True
    beta: float = 1e-7
    halves: bool = False
    seed: int = 0
    dtype: str = "float32"
    variational: VariationalSettings = VariationalSettings()

    def __post_init__(self):
        """Refuse values that cannot be meant."""
        for name, allowed in (("method", METHODS), ("engine", ENGINES), ("seeds", SEEDS), ("dtype", DTYPES)):
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
        """Plain values for provenance: those that change the numbers of this method."""
        values = asdict(self)
        training = values.pop("variational")
        if self.method != "variational":
            return values
        return {key: value for key, value in values.items() if key not in _OF_THE_DRAW} | training
