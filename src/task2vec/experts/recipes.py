"""How experts are trained: recipes by name, and the metrics of an epoch."""

import dataclasses
from dataclasses import dataclass, fields
from math import cos, pi
from typing import Any, Literal

from task2vec.errors import UsageError


@dataclass(frozen=True)
class EpochMetrics:
    """Loss and error of one epoch.

    Attributes:
        epoch: from 1.
        loss: mean over the images drawn, at the time the network saw them.
        error: share of them that were wrong; of all attributes, for multi-label tasks.
        rate: learning rate at the end.
        images_per_second: of training alone.
    """

    epoch: int
    loss: float
    error: float
    rate: float
    images_per_second: float

    @classmethod
    def read(cls, values: dict[str, Any]) -> "EpochMetrics":
        """Those of a file; earlier versions wrote a validation error as well.

        Example:
            >>> values = {"epoch": 1, "loss": 0.5, "error": 0.2, "rate": 0.1, "images_per_second": 9.0}
            >>> EpochMetrics.read(values | {"validation_error": None}).loss
            0.5
        """
        return cls(**{metric.name: values[metric.name] for metric in fields(cls)})


@dataclass(frozen=True)
class Recipe:
    """How a network is fine-tuned on a task.

    First the head is fitted on the features of the pretrained network, then head and network are trained together by
    stochastic gradient descent. An epoch is `draws` images with replacement, uniformly over classes, whatever the size
    of the task.

    Attributes:
        name: its name.
        head: "adam" trains the head for `head_epochs`; "exact" solves for it, with the penalty of embeddings.
        head_epochs: epochs of Adam.
        head_rate: learning rate of Adam.
        epochs: epochs of head and network together.
        draws: images per epoch.
        batch: images per step.
        rate: learning rate at its highest.
        momentum: of the gradients.
        weight_decay: of all weights.
        schedule: "steps" multiplies the rate by a tenth at the epochs `drops`; "cosine" lets it rise over the first
            twentieth of all steps and then fall to zero.
        drops: epochs of the schedule "steps".
        crops: whether images are cropped at random.
        mirrors: whether every second image is mirrored; not for tasks where left and right differ.

    Example:
        >>> find_recipe("achille2019").epochs
        60
    """

    name: str
    head: Literal["adam", "exact"] = "exact"
    head_epochs: int = 0
    head_rate: float = 1e-3
    epochs: int = 5
    draws: int = 10_000
    batch: int = 128
    rate: float = 0.005
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Literal["steps", "cosine"] = "cosine"
    drops: tuple[int, ...] = ()
    crops: bool = True
    mirrors: bool = True

    def __post_init__(self):
        """Refuse numbers that no training can have."""
        is_valid = {
            "a head of 'adam' or 'exact'": self.head in ("adam", "exact"),
            "a schedule of 'steps' or 'cosine'": self.schedule in ("steps", "cosine"),
            "epochs, draws and batch of at least 1": min(self.epochs, self.draws, self.batch) >= 1,
            "head_epochs of at least 1 for 'adam'": self.head != "adam" or self.head_epochs >= 1,
            "positive rates": self.rate > 0 and self.head_rate > 0,
            "a momentum from 0 to below 1": 0 <= self.momentum < 1,
            "a weight decay of 0 or more": self.weight_decay >= 0,
        }
        for needed, is_given in is_valid.items():
            if not is_given:
                raise UsageError(
                    f"the recipe '{self.name}' cannot train a network: it needs {needed}. Correct it with "
                    "dataclasses.replace(recipe, ...)."
                )

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch; its last batch may be smaller."""
        return -(-self.draws // self.batch)

    @property
    def steps(self) -> int:
        """Steps of head and network together."""
        return self.epochs * self.steps_per_epoch

    def rate_at(self, step: int) -> float:
        """The learning rate of a step.

        Example:
            >>> recipe = find_recipe("achille2019")
            >>> [f"{recipe.rate_at(epoch * recipe.steps_per_epoch):g}" for epoch in (0, 39, 40, 59)]
            ['0.001', '0.001', '0.0001', '0.0001']
        """
        if self.schedule == "steps":
            return self.rate * 0.1 ** sum(step >= drop * self.steps_per_epoch for drop in self.drops)
        rise = max(1, self.steps // 20)
        if step < rise:
            return self.rate * (step + 1) / rise
        return self.rate * (1 + cos(pi * (step - rise + 1) / (self.steps - rise + 1))) / 2

    def to_dict(self) -> dict[str, Any]:
        """All numbers by name, as plain values."""
        return dataclasses.asdict(self) | {"drops": list(self.drops)}


# The paper's, from its appendix. It does not give Adam's rate (here PyTorch's default), the momentum, the batch size
# and the augmentation (here what was usual at the time).
ACHILLE2019 = Recipe(
    "achille2019", head="adam", head_epochs=10, epochs=60, batch=64, rate=1e-3, schedule="steps", drops=(40,)
)

# Ours: a twelfth of the gradients. The head needs no epochs, a larger rate that falls smoothly does the rest.
FAST = Recipe("fast")

# That of the experts in the bundled meta-task. Four times the rate: they forget more of their pretraining.
FAST_1 = Recipe("fast-1", rate=0.02)

RECIPES = {recipe.name: recipe for recipe in (FAST, FAST_1, ACHILLE2019)}


def find_recipe(recipe: str | Recipe) -> Recipe:
    """The recipe of that name, or the recipe itself."""
    if isinstance(recipe, Recipe):
        return recipe
    if recipe not in RECIPES:
        raise UsageError(
            f"there is no recipe '{recipe}'. Choose one of: {', '.join(RECIPES)}; or pass a Recipe of your own."
        )
    return RECIPES[recipe]
