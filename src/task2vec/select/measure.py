"""Pretrained models on the images of a task: which images each one's linear head gets wrong, held out.

Every model sees the same images once, its head is a linear classifier on its frozen features, and all models are
judged on the same folds, with near copies of an image in one fold. What an image contributes to the error of a model is
its loss:

- With one label per image, whether the predicted class is wrong, as a share of the repetitions of cross-validation
  (small tasks are repeated with other folds). The error is the plain share of wrong images, not one balanced over
  classes: that is what a user will see on images like these, what published tables and the recommended script report,
  and its intervals do not hang on the two images of a rare class.
- With attributes, the share of them that is wrong, where both values of an attribute count the same in all. An
  attribute that is rare would otherwise be right nearly always by never being predicted.

An image of a class that no other fold has cannot be judged: no head can predict what it has never seen. The same holds
for an attribute one of whose values has a single image.

Within a budget the first model sees a stratified sample of at least 200 images and 10 per class. If its speed says that
there is time for all models on all images, they see all. Otherwise all see the sample, as far as the time lasts, and
what is left of it goes into successive halving: the better half of the models, or all if there is time, see twice as
many images, and so on. Of more than 16 models the first round may take half of the budget. Images are the first ones of
each class in an order that depends on their content alone, so a model sees only those again that are new to it.

A CPU runs a batch on each of its cores instead of one batch on all of them: for batches of a few images torch's threads
spend as long waiting for each other as computing.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from threading import RLock, Thread
from typing import Any, Protocol

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from task2vec.embedding import EmbedSettings
from task2vec.embedding.batching import BATCH_SIZE, Passes, choose_device, refuse_infinite
from task2vec.errors import (
    DataChangedError,
    DataError,
    MissingExtraError,
    NotFiniteError,
    ResourceError,
    Task2VecError,
    UsageError,
    WeightsError,
    WeightsNotFoundError,
)
from task2vec.head import predict_held_out, to_onehot
from task2vec.head.fit import assign_folds
from task2vec.probe import Probe
from task2vec.progress import Report, show_progress
from task2vec.tasks import Images, Task
from task2vec.tasks.images import choose_images, find_near_copies, make_signature

# Beside a mean loss. Choosing one of six for each model by its held-out loss takes six times as long and lowers errors
# by 0.0 to 0.2 points over 38 datasets (benchmarks/decide_calibration.py).
PENALTY = 3e-4
# What is needed to judge a model: so many images in all, and so many per class on average.
FEWEST, PER_CLASS = 200, 10
# Of more candidates than this the first round of a budget takes a half of it.
POOL = 16
# Decoded images are kept for the next model up to this many bytes; a pixel of Pillow's takes four.
_DECODED = 1 << 30
# Near copies are sought among so many images at most, which takes seconds; among more, identical ones.
_MOST_COMPARED = 10_000
# Models with n times the multiply-adds take about this power of n as long: small ones wait for memory.
_GROWTH = 0.75
# That is right to within this factor: what may fit is timed.
_UNSURE = 3.0
# Estimates are multiplied by this before they are believed; a pass is timed from so many images on.
_CAUTION, _TIMED = 1.2, 12
# A pass goes on past the deadline by this part of the budget: most of it is done.
_LATE = 0.1
# Heads of more images than this are worth all threads.
MANY = 2000
# Seconds between two lines of progress where there is no terminal.
_PAUSE = 10.0
clock = time.monotonic


class Measurable(Protocol):
    """What is read of a candidate here."""

    @property
    def name(self) -> str:
        """Its name, different from those of the others."""
        ...

    @property
    def gmacs(self) -> float | None:
        """Billions of multiply-adds of one image, if known."""
        ...


@dataclass(frozen=True)
class Failure:
    """A candidate that was not measured.

    Attributes:
        model: Its name.
        kind: "memory", "weights", "features", "package", "model", "time" or "interrupted".
        message: The reason, as a sentence.
    """

    model: str
    kind: str
    message: str


@dataclass(frozen=True, eq=False)
class Measurements:
    """What was measured on a task: images x models.

    Attributes:
        images: (n,) the numbers of the images in the canonical order of the task.
        targets: (n,) class of each, or (n, c) zeros and ones, in canonical numbers.
        groups: (n,) a number for each, the same for near copies.
        models: names, in the order in which they were measured.
        probability: (n, m) held-out probability of the true class; the mean over attributes for multi-label.
        losses: (n, m) what an image contributes to the error of a model, which is their mean; see the module. NaN, for
            all models alike, where an image cannot be judged.
        seconds: what each model took in all: loading, its passes and heads.
        features: (n, d) of each model, where they were computed.
        failures: the candidates that were not measured, with the reason.
        is_interrupted: whether Ctrl-C ended it; what was measured until then is here.
        total_images: images of the task.
        earlier: the same on the fewer images of the round before, with the models that did not go on.
    """

    images: np.ndarray
    targets: np.ndarray
    groups: np.ndarray
    models: tuple[str, ...]
    probability: np.ndarray
    losses: np.ndarray
    seconds: tuple[float, ...]
    features: tuple[Tensor, ...] = field(repr=False)
    failures: tuple[Failure, ...]
    is_interrupted: bool
    total_images: int
    earlier: "Measurements | None" = None

    @property
    def is_judged(self) -> np.ndarray:
        """(n,) which images count."""
        return np.asarray(np.isfinite(self.losses).all(axis=1))

    @property
    def is_correct(self) -> np.ndarray:
        """(n, m) whether a model is right about an image, in most repetitions and attributes."""
        return self.losses < 0.5

    @property
    def errors(self) -> dict[str, float]:
        """The error of each model on these images."""
        means = self.losses[self.is_judged].mean(0) if len(self.models) else np.empty(0)
        return dict(zip(self.models, means.tolist(), strict=True))


def measure_models(
    task: Task,
    candidates: Sequence[Measurable],
    *,
    load: Callable[[Any], Probe],
    budget: float | None = None,
    device: str | None = None,
    progress: bool | Report = False,
) -> Measurements:
    """The held-out losses of the candidates on the images of a task, each model loaded and run in the given order.

    A candidate that cannot be measured, or not in time, is a failure in the result and never the end of the run. The
    end of the budget and Ctrl-C keep what was measured.

    Args:
        task: its images, each of which is decoded once for all models, as far as memory allows.
        candidates: the most promising first; their names differ.
        load: the probe of a candidate.
        budget: seconds in all; None measures all candidates on all images.
        device: "cpu", "cuda"; None uses a GPU if there is one.
        progress: show a progress bar, or a line every ten seconds; or a function that reports it.

    Example:
        >>> from types import SimpleNamespace
        >>> from task2vec import load_probe, sample_tasks
        >>> task = sample_tasks(images_per_task=40)[0]
        >>> small, large = (SimpleNamespace(name=f"{side} pixels", gmacs=None, side=side) for side in (32, 64))
        >>> measured = measure_models(task, [small, large], load=lambda candidate: load_probe(size=candidate.side))
        >>> measured.models, measured.losses.shape
        (('32 pixels', '64 pixels'), (40, 2))
    """
    if len({candidate.name for candidate in candidates}) < len(candidates):
        raise UsageError("two candidates have the same name, so their rows could not be told apart. Pass each once.")
    if budget is not None and not budget > 0:
        raise UsageError(f"budget={budget} (--budget) is not a time above 0. Give seconds, or leave it out.")
    where = choose_device(device)
    threads = 1 if where.type == "cpu" else torch.get_num_threads()
    with show_progress(progress, pause=_PAUSE) as report, use_threads(threads) as workers:
        return _Run(task.canonical(), tuple(candidates), load, budget, where, workers, report).measure()


class _TooSlowError(Exception):
    """A model needs so many seconds, which it does not have."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds


class _Run:
    """Candidates under way.

    Attributes:
        loading: by model, what is loaded while another one runs.
        deadline: when the budget ends, by the clock.
        features: by model, the features of the images that it has seen, and their numbers.
        speeds: by model, seconds of an image.
        extras: of each model measured, the seconds besides its pass: loading, preparing and heads.
        seconds: by model, all that it took.
        failures: by model.
    """

    def __init__(
        self,
        task: Task,
        candidates: tuple[Measurable, ...],
        load: Callable[[Any], Probe],
        budget: float | None,
        device: torch.device,
        workers: int,
        report: Report,
    ):
        self.task, self.candidates, self.load, self.report = task, candidates, load, report
        self.device, self.workers = device, workers
        self.loading: dict[str, _Loading] = {}
        self.images = DecodedImages(task.images)
        self.begun, self.budget = clock(), math.inf if budget is None else budget
        self.deadline = self.begun + self.budget
        self.features: dict[str, tuple[np.ndarray, Tensor]] = {}
        self.speeds: dict[str, float] = {}
        self.extras: list[float] = []
        self.seconds: dict[str, float] = {}
        self.failures: dict[str, Failure] = {}

    # --- rounds -----------------------------------------------------------------------------------------------------

    def measure(self) -> Measurements:
        """The rounds, as the module describes them."""
        self.make_folds(np.arange(len(self.task)), np.unique(self.task.digests, return_inverse=True)[1])
        fewest = min(len(self.task), max(FEWEST, PER_CLASS * len(self.task.classes)))
        images = self.sample(len(self.task) if math.isinf(self.budget) else fewest)
        share = 0.5 if len(self.candidates) > POOL and len(images) < len(self.task) else 1.0
        result = self.run_round(images, self.candidates, self.begun + share * self.budget, may_widen=True)
        while not result.is_interrupted and (planned := self.plan_round(result)):
            images, survivors = planned
            later = self.run_round(images, survivors, self.deadline)
            if len(later.models) < len(survivors):  # those that are left are on fewer images
                return replace(result, is_interrupted=later.is_interrupted)
            result = replace(later, earlier=replace(result, features=()))
        return result

    def make_folds(self, images: np.ndarray, groups: np.ndarray) -> "Folds":
        """The folds of some images."""
        return Folds(self.task.targets[images], groups, classes=len(self.task.classes), name=self.task.name)

    def sample(self, count: int) -> np.ndarray:
        """The numbers of a stratified sample of so many images, in the order of the task."""
        whole = np.arange(len(self.task))
        return whole if count >= len(whole) else whole[self.task.choose_sample(count, 0)]

    def plan_round(self, last: Measurements) -> tuple[np.ndarray, tuple[Measurable, ...]] | None:
        """The images and models of the next round; None where there is nothing to gain, or no time."""
        seen, total, left = len(last.images), len(self.task), self.deadline - clock()
        if seen >= total or len(last.models) < 2:
            return None
        ranked = sorted(last.models, key=last.errors.__getitem__)
        better = ranked[: max(2, (len(ranked) + 1) // 2)]
        every, half = ([each for each in self.candidates if each.name in names] for names in (ranked, better))
        twice = min(2 * seen, total)
        for count, survivors, part in ((total, every, 1.0), (twice, every, 0.5), (twice, half, 1.0)):
            if self.expect(survivors, count - seen) <= part * left:
                return self.sample(count), tuple(survivors)
        return None

    def run_round(
        self, images: np.ndarray, candidates: Sequence[Measurable], deadline: float, *, may_widen: bool = False
    ) -> Measurements:
        """Measures candidates on the same images until the deadline; on all, if there is time and they `may_widen`."""
        columns: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        folds, is_interrupted = None, False
        step = self.report("measuring", len(images) * len(candidates))
        for place, candidate in enumerate(candidates):
            name, begun, later = candidate.name, clock(), candidates[place + 1 :]
            try:
                needed = self.expect([candidate], len(images))
                if begun + needed / (1 if name in self.speeds else _UNSURE) > deadline:
                    raise _TooSlowError(needed)
                probe = self.begin(candidate).wait()
                self.extras.append(clock() - begun)
                if later and clock() + self.expect([candidate, later[0]], len(images)) <= deadline:
                    self.begin(later[0])
                self.see(name, probe, images, deadline, step)
                if folds is None and may_widen and len(images) < len(self.task):
                    more = len(self.task) - len(images)
                    needed = _CAUTION * more * self.speeds[name] + self.expect(later, len(self.task))
                    if clock() + needed <= deadline:
                        images = self.sample(len(self.task))
                        step = self.report("measuring", more * (1 + len(later)))
                        self.see(name, probe, images, deadline, step)
                seen = clock()
                if folds is None:
                    folds = self.make_folds(images, self.images.group(images, self.task.digests))
                with use_threads(self.workers if len(images) > MANY else 1):
                    columns[name] = folds.judge(self.pick(name, images))
                self.extras[-1] += clock() - seen
                self.seconds[name] = self.seconds.get(name, 0.0) + clock() - begun
            except KeyboardInterrupt:
                is_interrupted = True
                for each in candidates[place:]:
                    self.failures.setdefault(each.name, Failure(each.name, "interrupted", "It was interrupted."))
                break
            except (DataChangedError, _HopelessError):
                raise
            except Exception as error:  # whatever a model does wrong ends its own measurement only
                self.failures[name] = explain(name, error, left=deadline - begun)
            finally:
                probe = None  # the next one needs the memory
                self.loading.pop(name, None)
        return self.gather(images, columns, folds, is_interrupted)

    def gather(
        self,
        images: np.ndarray,
        columns: Mapping[str, tuple[np.ndarray, np.ndarray]],
        folds: "Folds | None",
        is_interrupted: bool,
    ) -> Measurements:
        """The result of a round."""
        empty = np.empty((len(images), 0))
        probability, losses = map(np.column_stack, zip(*columns.values(), strict=True)) if columns else (empty, empty)
        return Measurements(
            images=images,
            targets=self.task.targets[images],
            groups=np.arange(len(images)) if folds is None else folds.groups,
            models=tuple(columns),
            probability=probability,
            losses=losses,
            seconds=tuple(self.seconds[name] for name in columns),
            features=tuple(self.pick(name, images) for name in columns),
            failures=tuple(self.failures[each.name] for each in self.candidates if each.name in self.failures),
            is_interrupted=is_interrupted,
            total_images=len(self.task),
        )

    # --- time -------------------------------------------------------------------------------------------------------

    def expect(self, candidates: Sequence[Measurable], images: int) -> float:
        """Seconds that candidates will probably take for so many images each; none where nothing is known yet."""
        extra = float(np.median(self.extras)) if self.extras else 0.0
        return _CAUTION * sum(extra + images * self.guess_speed(candidate) for candidate in candidates)

    def guess_speed(self, candidate: Measurable) -> float:
        """Seconds of an image: as measured, or by the multiply-adds of others; 0 where its pass has to tell."""
        if candidate.name in self.speeds:
            return self.speeds[candidate.name]
        known = [(self.speeds[each.name], each.gmacs) for each in self.candidates if each.name in self.speeds]
        if not candidate.gmacs or not all(gmacs for _, gmacs in known) or not known:
            return 0.0
        return float(np.median([speed * (candidate.gmacs / gmacs) ** _GROWTH for speed, gmacs in known if gmacs]))

    # --- a model ----------------------------------------------------------------------------------------------------

    def begin(self, candidate: Measurable) -> "_Loading":
        """Starts to load a candidate, unless that is under way."""
        if candidate.name not in self.loading:
            self.loading[candidate.name] = _Loading(self.load, candidate, self.device)
        return self.loading[candidate.name]

    def see(self, name: str, probe: Probe, images: np.ndarray, deadline: float, step: Callable[[int], None]) -> None:
        """Computes the features of the images that are new to a model; gives up where that would take too long."""
        numbers, known = self.features.get(name, (images[:0], None))
        new, begun, done = np.setdiff1d(images, numbers), clock(), 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            total = (clock() - begun) / done * len(new)
            if done >= _TIMED and begun + total > deadline + _LATE * self.budget and done < len(new):
                raise _TooSlowError(total)
            step(count)

        how = {"device": self.device, "workers": self.workers, "step": advance}
        features = compute_features(probe, self.images, new.tolist(), **how)
        refuse_infinite(features, lambda row: self.images.name(int(new[row])))
        self.speeds[name] = (clock() - begun) / max(1, len(new))
        whole = features if known is None else torch.cat([known, features])
        self.features[name] = np.concatenate([numbers, new]), whole

    def pick(self, name: str, images: np.ndarray) -> Tensor:
        """The features of these images by a model that has seen them."""
        numbers, features = self.features[name]
        order = np.argsort(numbers)
        return features[torch.from_numpy(order[np.searchsorted(numbers, images, sorter=order)]).to(features.device)]


def explain(name: str, error: Exception, *, left: float) -> Failure:
    """Why a candidate was not measured."""
    message = str(error).strip() or type(error).__name__
    if isinstance(error, _TooSlowError):
        text = f"It needs about {error.seconds:.0f} s and {max(0.0, left):.0f} s are left. Allow more time: --budget"
        return Failure(name, "time", text)
    if isinstance(error, (MemoryError, ResourceError, torch.cuda.OutOfMemoryError)) or "allocate memory" in message:
        return Failure(name, "memory", f"Memory ran out: {message.splitlines()[0]}")
    kinds = {
        "weights": (WeightsNotFoundError, WeightsError),
        "features": NotFiniteError,
        "package": (MissingExtraError, ImportError),
    }
    kind = next((kind for kind, classes in kinds.items() if isinstance(error, classes)), "model")
    return Failure(name, kind, message if isinstance(error, Task2VecError) else f"{type(error).__name__}: {message}")


# --- images and features ---------------------------------------------------------------------------------------------


class DecodedImages:
    """The images of a task, which stay decoded for the next model up to so many bytes, and their signatures."""

    is_threadsafe = True

    def __init__(self, images: Images, *, room: int = _DECODED):
        self.images, self.room = images, room
        self.kept: dict[int, Image] = {}
        self.signatures: dict[int, np.ndarray] = {}
        self.lock, self.reading = RLock(), nullcontext() if images.is_threadsafe else RLock()

    def __len__(self) -> int:
        """The number of images."""
        return len(self.images)

    def name(self, index: int) -> str:
        """The name that its source gives to an image."""
        return self.images.name(index)

    def load(self, index: int) -> Image:
        """Image `index`, decoded now or before."""
        image = self.kept.get(index)
        if image is None:
            with self.reading:
                image = self.images.load(index)
            if index not in self.signatures:
                self.signatures[index] = make_signature(image)
            size = 4 * image.width * image.height
            with self.lock:
                if size <= self.room and index not in self.kept:
                    self.kept[index] = image
                    self.room -= size
        return image

    def group(self, numbers: np.ndarray, digests: Sequence[str]) -> np.ndarray:
        """(n,) a number for each of these images, from 0 on, the same for near copies and identical ones."""
        names = [digests[int(number)] for number in numbers]
        groups = np.unique(names, return_inverse=True)[1]
        if len(numbers) <= _MOST_COMPARED:
            for number in numbers.tolist():
                if number not in self.signatures:
                    self.load(number)
            signatures = np.stack([self.signatures[number] for number in numbers.tolist()])
            for first, *others in find_near_copies(signatures, digests=names):
                groups[others] = groups[first]
        return np.unique(groups, return_inverse=True)[1]


def compute_features(
    probe: Probe,
    images: Images,
    numbers: Sequence[int],
    *,
    device: torch.device,
    workers: int = 1,
    step: Callable[[int], None] = lambda done: None,
) -> Tensor:
    """(n, d) features of the images with these numbers, on the device; `step` is called with how many are done."""
    passes = Passes(choose_images(images, numbers), probe, settings=EmbedSettings(), device=str(device))
    if device.type != "cpu":
        return passes.features(lambda stage, total: step)
    size = BATCH_SIZE["cpu"] if passes.network.is_batched else 1
    batches = [range(start, min(start + size, len(numbers))) for start in range(0, len(numbers), size)]

    @torch.inference_mode()
    def run(batch: range) -> Tensor:
        pixels = torch.stack([probe.preprocess(passes.pixels.load(place)) for place in batch])
        return passes.network.module(passes.input(pixels))

    features = torch.empty(len(numbers), probe.feature_dim)
    pool = ThreadPoolExecutor(workers, "task2vec-pass")
    try:
        for batch, future in [(batch, pool.submit(run, batch)) for batch in batches]:
            features[batch.start : batch.stop] = future.result()
            step(len(batch))
    finally:
        pool.shutdown(cancel_futures=True)
    return features


@contextmanager
def use_threads(count: int) -> Iterator[int]:
    """Lets torch compute with so many threads in the block, and in threads that begin in it; hands in the usual number.

    Workers and batches are many: a second thread of torch's own gains little on small networks and heads, and where the
    machine is busy it spends all of its time waiting.
    """
    usual = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield usual
    finally:
        torch.set_num_threads(usual)


class _Loading:
    """A probe that is loaded and prepared in a thread of its own, which the end of the program does not wait for."""

    def __init__(self, load: Callable[[Any], Probe], candidate: Measurable, device: torch.device):
        self.load, self.candidate, self.device = load, candidate, device
        self.probe: Probe | None = None
        self.error: BaseException | None = None
        self.thread = Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        """Loads it, or notes why that failed."""
        try:
            probe = self.load(self.candidate)
            probe.prepare(device=self.device)
            self.probe = probe
        except BaseException as error:  # raised again where the probe is wanted
            self.error = error

    def wait(self) -> Probe:
        """The probe."""
        self.thread.join()
        if self.probe is None:
            raise self.error or RuntimeError("loading ended without a probe")
        return self.probe


# --- heads -----------------------------------------------------------------------------------------------------------


class _HopelessError(DataError):
    """No image of a task can be judged, whatever the model."""


class Folds:
    """What is the same for all models: targets, groups, and what a wrong answer counts.

    Example:
        >>> folds = Folds(np.array([0, 0, 0, 1, 1, 1, 2]), np.arange(7), classes=3)
        >>> folds.judge(torch.tensor([[0.0], [1.0], [2.0], [7.0], [8.0], [9.0], [99.0]]))[1].tolist()
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, nan]
    """

    def __init__(self, targets: np.ndarray, groups: np.ndarray, *, classes: int, name: str = "task"):
        """`groups` are numbers from 0 on, the same for copies. Refuses images of which none can be judged."""
        self.targets, self.groups, self.classes = targets, groups, classes
        self.weights = weigh_attributes(targets, groups) if targets.ndim == 2 else None
        if self.weights is None:
            onehot = to_onehot(torch.from_numpy(targets), classes, is_multilabel=False)
            is_hopeful = bool(assign_folds(onehot[None], is_multilabel=False, groups=torch.from_numpy(groups))[1].any())
            fewer = "fewer than two of its classes have two different images"
        else:
            is_hopeful, fewer = (
                bool(self.weights.any()),
                "none of its attributes has two different images of each value",
            )
        if not is_hopeful:
            raise _HopelessError(
                f"no model can be measured on '{name}': {fewer}, near copies aside, so no head could be tested on an "
                "image that it was not fitted to. Add images, or look for copies: task2vec report"
            )

    def judge(self, features: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """(n,) held-out probabilities of the true classes, and losses."""
        targets, groups = (
            torch.from_numpy(a.astype(np.int64)).to(features.device) for a in (self.targets, self.groups)
        )
        how = {"classes": self.classes, "penalty": PENALTY, "balance": False, "groups": groups}
        probabilities, votes, is_judged = (a.cpu().numpy() for a in predict_held_out(features, targets, **how))
        if self.weights is None:
            true = probabilities[np.arange(len(votes)), self.targets]
        else:
            true = np.where(self.targets, probabilities, 1 - probabilities)[:, self.weights.any(0)].mean(1)
        return np.where(is_judged, true, np.nan), self.find_losses(votes, is_judged)

    def find_losses(self, votes: np.ndarray, is_judged: np.ndarray) -> np.ndarray:
        """(n,) losses for (n, c) shares of the repetitions that predict a class or attribute; NaN if not judged."""
        if self.weights is None:
            losses = 1.0 - votes[np.arange(len(votes)), self.targets].astype(np.float64)
        else:
            losses = (self.weights * np.abs(votes - self.targets)).sum(1)
        return np.where(is_judged, losses.round(6), np.nan)


def weigh_attributes(targets: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """(n, c) what a wrong answer adds to the loss of an image: both values of an attribute count the same in all.

    Nothing for attributes one of whose values no second group of copies has. The mean of the losses is the mean over
    attributes and values of the share that is wrong.

    Example:
        >>> weigh_attributes(np.array([[1, 0], [1, 0], [0, 0], [0, 1]]), np.arange(4)).tolist()
        [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
    """
    weights = np.zeros(targets.shape)
    for value in (0, 1):
        weights += (targets == value) * len(targets) / np.maximum(1, (targets == value).sum(0)) / 2
    is_known = [min(len(np.unique(groups[column == value])) for value in (0, 1)) > 1 for column in targets.T]
    return weights * is_known / max(1, sum(is_known))


# --- the learning curve ----------------------------------------------------------------------------------------------
