"""Models of the zoo that are worth fine-tuning on a task, by what others published of them.

The error of fine-tuning a network that we measured is known for the task, with its interval (`task2vec.select.curves`);
how much better or worse another model is when it is fine-tuned, the zoo says (`task2vec.select.zoo`). On the scale of
log-odds both add up. Only models that somebody has fine-tuned and measured are suggested: beyond these the zoo would go
by size and ImageNet accuracy alone, and the best of a thousand such guesses is mostly luck. Models that a user names
are few, and all of them are predicted, with wider intervals where nobody fine-tuned them.

LoRA trains a few weights beside the frozen ones of a transformer. By how much that changes the error of fine-tuning all
of them is known of one network, ViT-B/16 (V-PETL, `lora.csv`): lower on most datasets with 1,000 images, higher with
many. A new dataset is like those: Student's t around their mean, on the scale of log-odds.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from task2vec.experts.metatask import has_weights
from task2vec.select.candidates import read_count
from task2vec.select.combined import COVERAGE, scale_errors, unscale
from task2vec.select.curves import Tuned
from task2vec.select.zoo import LORA, ZooModel, find_in_zoo, find_way, load_zoo, look_up, read_rows

BEST, WAY = 3, "fine-tuned"
# Parameters of models that are suggested without a limit, and of a small one.
USUAL, SMALL = 100e6, 10e6
# The table whose noise is that of a model on a task: how much better it is than usual.
_TABLE = "task2vec, fine-tuned, half"
# Fields that a suggestion copies from the model in the zoo.
_SAME = ("params", "size", "imagenet", "cpu_speed", "license", "tables", "load")
# Names of transformers, which LoRA is for, begin so. With more training images, whole datasets are the evidence.
_TRANSFORMERS, _FEW = ("vit", "deit", "beit", "eva", "swin", "cait", "xcit", "maxvit"), 2000


@dataclass(frozen=True)
class Suggestion:
    """A model of the zoo for a task.

    Attributes:
        model: its name.
        error: predicted test error of fine-tuning it.
        low: lower end of its 90% interval.
        high: upper end.
        p_better: the probability that it is better than fine-tuning the model that is recommended, or, where no error
            of that is known, the average-best network.
        params: number of parameters.
        size: side of its images, in pixels.
        imagenet: top-1 accuracy on ImageNet.
        cpu_speed: images per second on a CPU, one at a time, as measured by timm.
        license: of the weights.
        tables: the published tables that it is in.
        load: the line of Python that loads it.
        lora: of a transformer, the error of LoRA, and the probability that it is lower than that of fine-tuning.
        seconds: for 1,000 images on this machine, estimated where other networks were timed.
    """

    model: str
    error: float
    low: float
    high: float
    p_better: float
    params: int
    size: int | None
    imagenet: float | None
    cpu_speed: float | None
    license: str
    tables: tuple[str, ...]
    load: str
    lora: Tuned | None = None
    seconds: float | None = None


def suggest_models(
    tuned: Tuned,
    location: str,
    *,
    names: Collection[str] | None = None,
    train_images: float = 1000,
    max_params: str | float | None = None,
    max_time: float | None = None,
    timed: Mapping[str, float] | None = None,
    is_gpu: bool = False,
    license: str | Sequence[str] | None = None,
    offline: bool = False,
) -> tuple[Suggestion, ...]:
    """The best other models of the zoo with at most so many parameters, and the best small one; or those named.

    Args:
        tuned: the error of fine-tuning one network on the task.
        location: of that network, such as "torchvision:resnet34". If the zoo does not have it, nothing is suggested.
        names: locations of the models to predict, all of them; None takes the best that somebody has fine-tuned.
        train_images: training images of the task.
        max_params: limit of parameters, such as "10M"; None takes 100 million, or any number for named models.
        max_time: limit of seconds for 1,000 images on this machine, which are estimated from `timed`.
        timed: seconds that networks take for 1,000 images here, by location.
        is_gpu: whether they were timed on a GPU.
        license: licences that the weights may have, such as "permissive" or ["mit", "apache-2.0"]; None takes any.
        offline: only models whose weights are on this machine.

    Example:
        >>> found = suggest_models(Tuned(0.2, 0.1, 0.3, 0.5), "torchvision:resnet34", max_params="30M")
        >>> len(found), max(one.params for one in found) <= 30e6
        (4, True)
    """
    zoo, limit = load_zoo(), USUAL if names is None else np.inf
    limit = limit if max_params is None else read_count(max_params)
    allowed = None if license is None else zoo.read_licenses(license)
    if (anchor := find_in_zoo(zoo, location)) is None:
        return ()
    if names is None:
        wanted = {cell.model for cell in zoo.cells if find_way(cell.protocol) == WAY}
    else:
        wanted = {look_up(name).name for name in names}
    seconds = estimate_seconds(zoo.models, timed or {}, is_gpu=is_gpu)
    models = [
        model
        for model in zoo.models
        if model.name in wanted - {anchor.name}
        and 0 < (model.params or 0) <= limit
        and (allowed is None or model.license in allowed)
        and (not offline or has_weights(model.location))
        and (max_time is None or (seconds[model.name] or np.inf) <= max_time)
    ]
    if not models:
        return ()
    mean, covariance = zoo.compare([model.name for model in models], [anchor.name], WAY)
    apart = np.diag(covariance) + 2 * zoo.variances.noise[_TABLE]
    level, low, high = (float(scale_errors(np.array(one))) for one in (tuned.error, tuned.low, tuned.high))
    width = ndtri((1 + COVERAGE) / 2)
    half = np.hypot(width * np.sqrt(apart), (high - low) / 2)
    errors, lows, highs = (unscale(level + mean + step) for step in (0, -half, half))
    order = np.argsort(mean, kind="stable").tolist()
    small = [place for place in order if (models[place].params or 0) <= SMALL][:1]
    chances = ndtr(-mean / np.sqrt(apart))
    found = []
    for place in dict.fromkeys([*order[:BEST], *small]) if names is None else order:
        model, odds = models[place], (float(level + mean[place]), float(half[place]))
        predicted: Any = (float(each[place]) for each in (errors, lows, highs, chances))
        lora = predict_lora(*odds, train_images) if model.name.startswith(_TRANSFORMERS) else None
        same = {name: getattr(model, name) for name in _SAME}
        found.append(Suggestion(model.name, *predicted, **same, lora=lora, seconds=seconds[model.name]))
    return tuple(found)


def estimate_seconds(
    models: Sequence[ZooModel], timed: Mapping[str, float], *, is_gpu: bool = False
) -> dict[str, float | None]:
    """Seconds for 1,000 images by model: as timed here, or estimated from those and from the speeds of timm."""

    def speed(model: ZooModel) -> float | None:
        return model.gpu_speed if is_gpu else model.cpu_speed

    known = [(look_up(location), seconds) for location, seconds in timed.items()]
    measured = {model.name: seconds for model, seconds in known}
    images = [seconds * own for model, seconds in known if (own := speed(model)) is not None]
    middle = float(np.median(images)) if images else None
    estimated = {one.name: middle / own if middle and (own := speed(one)) else None for one in models}
    return estimated | {name: measured[name] for name in estimated if name in measured}


def predict_lora(level: float, half: float, train_images: float) -> Tuned:
    """The error of LoRA, given that of fine-tuning all weights and half its interval on the scale of log-odds."""
    shifts = read_lora_shifts()["1000" if train_images <= _FEW else "all"]
    mean, spread, freedom = shifts.mean(), shifts.std(ddof=1) * np.sqrt(1 + 1 / len(shifts)), len(shifts) - 1
    ends = np.hypot(half, stdtrit(freedom, (1 + COVERAGE) / 2) * spread)
    found = (float(unscale(level + mean + step)) for step in (0, -ends, ends))
    return Tuned(*found, p_better=float(stdtr(freedom, -mean / spread)))


@cache
def read_lora_shifts() -> dict[str, np.ndarray]:
    """By how much LoRA moves errors on the scale of log-odds, by images: "1000" or "all" of a dataset.

    Example:
        >>> {images: (len(shifts), int((shifts < 0).sum())) for images, shifts in read_lora_shifts().items()}
        {'all': (5, 1), '1000': (19, 15)}
    """
    with resources.as_file(resources.files("task2vec.select") / "data") as folder:
        rows = read_rows(folder / LORA)
    pairs = {
        number: [(row["lora"], row["full"]) for row in rows if row["images"] == number] for number in ("all", "1000")
    }
    return {images: -np.diff(scale_errors(np.array(each, dtype=float)))[:, 0] for images, each in pairs.items()}
