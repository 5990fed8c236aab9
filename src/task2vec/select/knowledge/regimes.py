"""With how many images errors are to be foretold: with few of each class experts rank in another way than with many."""

from collections.abc import Iterable, Sequence

import numpy as np

from task2vec.errors import UsageError

# With so many images of a class or fewer, a task is one of few images: between the 5 that the scarce errors of the
# bundle were trained on and the 20 or so that half of a class has there, in the middle of the logarithms.
FEW = 10
HALF = "half"


def choose_regime(per_class: Sequence[int], known: Iterable[str], *, wanted: str | int | None = None) -> str:
    """What errors should have been trained on: "half" of the images, or so many of each class.

    By itself it goes by the median class: up to ten images, the scarcest training that is known; else half.

    Args:
        per_class: images of each class; may be empty where that is not known.
        known: keys of the protocols that errors are known by.
        wanted: "half", "few", or a number of images of each class; None chooses.

    Example:
        >>> keys = ["linear-2, train 5, logistic, usual", "linear-2, train half, logistic, usual"]
        >>> choose_regime([4, 6, 90], keys), choose_regime([40, 60], keys), choose_regime([40, 60], keys, wanted=5)
        ('5', 'half', '5')
    """
    trainings = list(dict.fromkeys(find_training(key) for key in known))
    numbers = sorted((one for one in trainings if one.isdigit()), key=int)
    asked = None if wanted in (None, "auto") else str(wanted)
    if asked == "few" and numbers:
        return numbers[0]
    if asked is not None:
        if asked not in trainings:
            raise UsageError(
                f"no error is known of classifiers trained on '{asked}' (--regime): what is known would be taken for "
                f"something else. Choose one of: {', '.join(trainings) or 'none'}"
            )
        return asked
    is_scarce = len(per_class) > 0 and float(np.median(per_class)) <= FEW
    if is_scarce and numbers:
        return numbers[0]
    return HALF if HALF in trainings or not trainings else trainings[-1]


def find_training(key: str) -> str:
    """What the classifiers of a protocol are trained on, by its key.

    Example:
        >>> find_training("linear-2, train 5, logistic, usual")
        '5'
    """
    return next((part.removeprefix("train ") for part in key.split(", ") if part.startswith("train ")), key)


def is_alike(key: str, other: str) -> bool:
    """Whether two protocols are the same but for the number of their recipe, so that errors are near each other."""
    return key.split(", ")[1:] == other.split(", ")[1:]
