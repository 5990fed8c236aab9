"""A time budget of a recommendation: what is left of it, how long models take, and which are measured in it."""

import time
from collections.abc import Mapping, Sequence
from math import ceil, log
from typing import TYPE_CHECKING, Any

from task2vec.errors import Task2VecError
from task2vec.experts.metatask import ARCHITECTURES, ModelInfo
from task2vec.select.candidates import read_amount, time_models
from task2vec.select.evidence import image_size
from task2vec.select.report import Row
from task2vec.text import pluralize

if TYPE_CHECKING:
    from task2vec.select.recommend import Case
    from task2vec.tasks import Task

# Another measurement must lower the expected error by at least this: 0.1 points.
LEAST = 0.001
# Seconds of a measurement besides the features: it loads the weights and fits classifiers. Then, how long features
# take in comparison with timed passes, until the first model was measured.
_LOAD, _RATE = 2.0, 0.6
# An embedding takes as long as so many timed images, and so many for each of the task's, on two cores; on one, half.
_EMBEDDING, _PER_IMAGE = 450, 2.5
# A sample for measuring has at least so many images, and so many per class.
_FEWEST, _PER_CLASS = 100, 4
# With n times the training images, errors are lower by this times log(n) on the scale of the combined strategy: from 10
# to 20 per class by 0.30 on average over the bundle, give or take 0.18.
_LEARNING = 0.3
# Where not all candidates can be measured, there must be time for so many.
_FIRST = 3
# A measurement is stopped where all of the time is spent and so much of it again: the machine became busy.
_LATE = 0.15
clock = time.perf_counter


def read_seconds(text: str | float) -> float:
    """A time in seconds.

    Example:
        >>> read_seconds("60s"), read_seconds("1.5m"), read_seconds(90)
        (60.0, 90.0, 90.0)
    """
    refusal = f"budget={text!r} (--budget) is not a time above 0, so nothing could be measured in it. "
    refusal += "Write it like 60s, 2m or 90 (seconds)."
    return read_amount(text, {"": 1, "s": 1, "m": 60, "h": 3600}, refusal)


class OutOfTimeError(KeyboardInterrupt):
    """Stops a measurement that takes much longer than expected."""


class Budget:
    """Seconds that may be spent from now on, what they were `spent` on, and the number of images to measure on."""

    def __init__(self, seconds: float):
        self.seconds, self.images, self.spent, self._begin = seconds, 0, dict[str, float](), clock()
        self._rate, self.passes = _RATE, dict[str, float]()  # seconds of an image, by model

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds + self._begin - clock()

    def time(self, models: Sequence[ModelInfo], device: str | None) -> None:
        """Times models on a few images, each architecture once."""
        timed = time_models(models, device=device, passes=1)
        self.passes |= {name: (seconds or 1000) / 1000 for name, seconds in timed.items()}

    def expect(self, *models: str) -> float:
        """Seconds of measuring some models: those that were not timed take as long as the slowest that was."""
        slowest = max(self.passes.values(), default=0.1)
        return sum(_LOAD + self._rate * self.passes.get(model, slowest) * self.images for model in models)

    def suggest(self, more: float) -> str:
        """A budget that would be enough for so many seconds more."""
        return f"--budget {ceil(self.seconds - self.left + more)}s"

    def learn(self, model: str, seconds: float) -> None:
        """Corrects what is expected by what one model took; what took no time was known already."""
        if seconds > _LOAD:
            self._rate = (seconds - _LOAD) * self._rate / (self.expect(model) - _LOAD)

    def check(self, _: int = 0) -> None:
        """Raises `OutOfTimeError` where much more than the budget is spent."""
        if self.left < -_LATE * self.seconds:
            raise OutOfTimeError

    def choose_images(self, models: Sequence[str], task: "Task", shots: str) -> None:
        """Takes as many images as all models can be measured on: all, or a half, a quarter and so on."""
        per_class = 2 * int(shots) if shots.isdigit() else _PER_CLASS
        fewest, self.images = min(len(task), max(_FEWEST, per_class * len(task.classes))), len(task)
        while self.images > fewest and self.expect(*models) > self.left:
            self.images = max(self.images // 2, fewest)


def spend(budget: Budget, case: "Case", rows: Sequence[Row], seeds: int, run: Mapping[str, Any]) -> bool:
    """Measures candidates as long as there is time for one that is worth it; returns whether it was interrupted.

    If there is time for all whose weights are here, all are measured, on a sample if there are many images. Else the
    embedding comes first, and they are measured in the order of the probability of being the best per second, until
    another one would gain too little.
    """
    assert case.task is not None
    case.budget, task, is_interrupted, why, start = budget, case.task, False, "", clock()
    budget.spent = {"embedding": 0.0, "measuring": 0.0}
    models = {model.name: model for model in case.list_ready(rows, "--budget", download=run["download"])}
    ready = [name for name in models if name not in case.measured]
    budget.time([models[name] for name in ready], run["device"])
    budget.choose_images(ready, task, case.shots)
    is_enough = budget.expect(*ready) <= budget.left
    if ready and not is_enough:
        embed_in_time(budget, case, run, reserve=min(budget.expect(name) for name in ready))
        budget.choose_images(sorted(ready, key=lambda name: -case.promises[name][0])[:_FIRST], task, case.shots)
    if budget.images < len(task):
        case.shift = 0.0 if case.shots.isdigit() else _LEARNING * log(len(task) / budget.images)
        task = task.sample(budget.images)
    while ready and not is_interrupted:
        late = 0.0 if case.measured else _LATE * budget.seconds  # one is better than none
        fits = [name for name in ready if budget.expect(name) <= budget.left + late]
        if not fits:
            first = min(ready, key=budget.expect)
            why = f"the time left is not enough for {first}. Allow more: {budget.suggest(budget.expect(first))}"
        elif not is_enough and max(case.promises[name][1] for name in fits) < LEAST:
            why = "another measurement is expected to lower the error by less than 0.1 points."
        if why:
            case.notes.append(f"{pluralize(len(ready), 'candidate')} on this machine not measured: {why}")
            break
        name, begin = max(fits, key=lambda name: tuple(case.promises[name] / budget.expect(name))), clock()
        ready.remove(name)
        try:
            is_interrupted = case.measure([models[name]], task, seeds, run)
        except OutOfTimeError:
            late = f"Measuring {name} was stopped, because it took longer than expected and the time was used up."
            case.notes.append(f"{late} Allow more ({budget.suggest(clock() - begin)}), or measure on an idle machine.")
            break
        budget.learn(name, clock() - begin)
        case.rank()
    if case.measured and len(task) < len(case.task):
        worse = "higher and less certain" if case.shift else "less certain"
        what = f"Errors were measured on a sample of {len(task)} of {len(case.task)} images, so they are {worse}"
        kept = "" if case.library is None else " They are not kept in the library."
        case.notes.append(f"{what}.{kept} A longer --budget measures on more.")
    if all(row.model in case.measured for row in rows):
        case.notes += [] if case.is_embedded else ["The task was not embedded: nothing had to be predicted."]
    elif not is_interrupted:
        embed_in_time(budget, case, run)
    budget.spent["measuring"] = clock() - start - budget.spent["embedding"]
    return is_interrupted


def embed_in_time(budget: Budget, case: "Case", run: Mapping[str, Any], *, reserve: float = 0.0) -> None:
    """Embeds the task if there is time for that, and for `reserve` seconds more."""
    if case.is_embedded:
        return
    like, why = case.embedding, "no time was left."
    if budget.left > 0:
        where = ARCHITECTURES.get(like.probe, f"timm:{like.probe}")
        probe = ModelInfo(f"probe {like.probe}", location=where, size=image_size(like))
        budget.time([probe], run["device"])
        seconds = budget.passes[probe.name] * (_EMBEDDING + _PER_IMAGE * case.counts["images"])
        why = f"that takes about {seconds:.0f} s. Allow more time: {budget.suggest(seconds)}"
        if seconds + reserve <= budget.left:
            begin = clock()
            try:
                case.embed(run)
            except Task2VecError as error:  # what was measured is worth something without it
                why = str(error)
            case.rank()
            budget.spent["embedding"] += clock() - begin
    if not case.is_embedded and not reserve:
        more = "The task was not embedded, so models that were not measured are predicted by their average over tasks"
        case.notes.append(f"{more}: {why}")
