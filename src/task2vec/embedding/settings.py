"""The settings of an embedding: everything that changes its numbers, and nothing else."""

import math
from dataclasses import asdict, dataclass

from task2vec.errors import UsageError

METHODS = ("robust", "direct", "variational")
SEEDS = ("balanced", "plain", "all")
DTYPES = ("float32", "float64", "bfloat16")
HEADS = ("joint", "fixed")
# Increased when the same settings give other numbers than before, beyond rounding: saved embeddings are then made anew.
# 1: the first. 2: heads whose cross-validation stops later, and chooses another penalty now and then.
RECIPE = 2
# How pairs are drawn and back-propagated: the variational method has its own sampling.
_SAMPLING = ("seeds", "max_samples", "rel_tol")


def _check_choice(settings: object, name: str, allowed: tuple[str, ...]) -> None:
    value = getattr(settings, name)
    if value not in allowed:
        raise UsageError(f"{name}={value!r} is not available. Choose one of {', '.join(allowed)}.")


@dataclass(frozen=True)
class VariationalSettings:
    """How the variational method trains; the numbers that the paper gives are the defaults.

    Attributes:
        epochs: of joint training of noise and head. The paper does not give the number; check the drift.
        head_epochs: of training the head alone before, on clean features.
        draws: images per epoch, drawn with replacement, uniformly over classes.
        batch: images per step.
        rate: learning rate (Adam) of the logarithm of the precisions.
        head_rate: learning rate (Adam) of the head.
        head: "joint" as in the paper, or "fixed": the converged head of the other methods, which does not change.
    """

    epochs: int = 10
    head_epochs: int = 2
    draws: int = 10_000
    batch: int = 64
    rate: float = 1e-2
    head_rate: float = 1e-4
    head: str = "joint"

    def __post_init__(self):
        """Refuse invalid values."""
        _check_choice(self, "head", HEADS)
        for name in ("epochs", "head_epochs", "draws", "batch"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name}={value} must be an integer, at least 1. Leave it out for the default.")
        for name in ("rate", "head_rate"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UsageError(
                    f"{name}={value} must be a positive number, such as 0.01. Leave it out for the default."
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
            "variational": the paper's optimisation itself, slow, as a reference (see docs/explanation/embedding.md).
        seeds: how labels and images are drawn: "balanced" by their share of the Fisher; "plain" images uniformly and
            labels y ~ p, for comparison; "all" of them, without any sampling.
        max_samples: how many (image, label) pairs are back-propagated at most. Small tasks get several per image.
        rel_tol: stop earlier, once the median relative standard error of the filters is below this.
        l2: penalty of the head; None chooses it by cross-validation.
        balance: weigh every class the same, as the paper does by drawing images uniformly over classes.
        beta: weight of the prior beside a loss that is summed over the images (see `task2vec.fisher.posterior`).
        split_half: also embed two halves of the task, each with a head of its own and half of the pairs. It costs
            another Fisher pass and two heads, and shows how far other images would have moved the embedding.
        seed: of every random draw.
        dtype: arithmetic of the probe. "bfloat16" changes single filters by some 10 %: compare it only with itself.
        variational: how the variational method trains; the other methods ignore it.
    """

    method: str = "robust"
    seeds: str = "balanced"
    max_samples: int = 400
    rel_tol: float | None = None
    l2: float | None = None
    balance: bool = True
    beta: float = 1e-7
    split_half: bool = False
    seed: int = 0
    dtype: str = "float32"
    variational: VariationalSettings = VariationalSettings()

    def __post_init__(self):
        """Refuse invalid values."""
        for name, allowed in (("method", METHODS), ("seeds", SEEDS), ("dtype", DTYPES)):
            _check_choice(self, name, allowed)
        if self.max_samples < 2:
            raise UsageError(
                f"max_samples={self.max_samples}: a standard error needs at least 2 samples. Try max_samples=400 "
                "(--max-samples 400)."
            )
        if not 0 <= self.seed < 1 << 63:
            raise UsageError(f"seed={self.seed} must be an integer from 0 to 2^63 - 1, as the generators require.")
        for name in ("rel_tol", "l2"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name}={value} must be a positive number, or None for the default.")
        if not (math.isfinite(self.beta) and self.beta > 0):
            raise UsageError(
                f"beta={self.beta} must be positive: without a prior, filters that are dead for two tasks make their "
                "distance 0/0. The default is 1e-7."
            )

    def as_dict(self) -> dict[str, object]:
        """Plain values for provenance: those that change the numbers of this method."""
        values = asdict(self)
        training = values.pop("variational")
        if self.method != "variational":
            return values
        return {key: value for key, value in values.items() if key not in _SAMPLING} | training
