"""How the error of a task on top of an expert is measured: every choice that changes the number."""

from dataclasses import dataclass
from typing import Literal

from task2vec.errors import UsageError

CLASSIFIERS = ("logistic", "achille2019")
MEASURES = ("usual", "balanced", "precision")
# "half", or how many images of each class.
Size = Literal["half"] | int
# Counted up when the same protocol gives other numbers than before, beyond rounding: what is kept is then made anew.
RECIPE = 2


@dataclass(frozen=True)
class AdamRecipe:
    """How the paper trains a linear classifier; the size of batches and the start, here 64 and zero, it does not tell.

    Attributes:
        epochs: of training.
        draws: images per epoch, with replacement, uniformly over classes.
        rate: learning rate of Adam.
        weight_decay: of all weights.
        batch: images per step.
    """

    epochs: int = 16
    draws: int = 10_000
    rate: float = 1e-4
    weight_decay: float = 5e-4
    batch: int = 64


ACHILLE2019 = AdamRecipe()


@dataclass(frozen=True)
class ErrorProtocol:
    """How a linear classifier on an expert's features is trained and judged; only errors of one protocol compare.

    The images of every class are halved by the seed: one half is for training, the other for the test. A smaller
    training set is drawn from the training half, so that all sizes are tested on the same images.

    Attributes:
        train: "half" trains on the whole half; a number, on so many images of each class, or on all where there are
            fewer. For attributes, on so many images of both answers to each.
        classifier: "logistic" is fitted to its optimum, with an L2 penalty chosen by cross-validation within the
            training images; "achille2019" is trained as in the paper, see `AdamRecipe`. Both give every class the same
            weight.
        measure: "usual" is the share of test images that are wrong, as in the paper, and for attributes "balanced".
            "balanced" is the mean over classes of the part that is wrong; for attributes, over both answers to each,
            then over attributes. "precision", for attributes alone, is one less the mean average precision.
        epochs: of "achille2019", where fewer than the paper's will do.

    Example:
        >>> ErrorProtocol(train=5).key
        'linear-2, train 5, logistic, usual'
    """

    train: Size = "half"
    classifier: str = "logistic"
    measure: str = "usual"
    epochs: int = ACHILLE2019.epochs

    def __post_init__(self):
        """Refuse what cannot be meant."""
        is_count = isinstance(self.train, int) and not isinstance(self.train, bool) and self.train >= 1
        if self.train != "half" and not is_count:
            raise UsageError(
                f"train={self.train!r} (--train) does not say what to train on. Give 'half', or how many images of "
                "each class, such as 5."
            )
        for name, allowed in (("classifier", CLASSIFIERS), ("measure", MEASURES)):
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name}={getattr(self, name)!r} is not known. Choose one of {', '.join(allowed)}.")
        if not isinstance(self.epochs, int) or self.epochs < 1:
            raise UsageError(f"epochs={self.epochs!r} trains nothing. Give a whole number, at least 1.")

    @property
    def key(self) -> str:
        """The protocol in one line, the same as long as the numbers are; errors are kept under it."""
        is_short = self.classifier == "achille2019" and self.epochs != ACHILLE2019.epochs
        parts = [f"linear-{RECIPE}", f"train {self.train}", self.classifier, self.measure]
        return ", ".join([*parts, *([f"{self.epochs} epochs"] if is_short else [])])
