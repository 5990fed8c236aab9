"""Pretrained models on the images of a task: which images each one's linear head gets wrong, held out.

Every model sees the same images once, its head is a linear classifier on its frozen features, and all models are
judged on the same folds, with copies, images of one scene, and images of one group in one fold. What an image
contributes to the error of a model is its loss:

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from threading import RLock, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL.Image import Image
from threadpoolctl import threadpool_limits
from torch import Tensor

from task2vec.embedding import EmbedSettings
from task2vec.embedding.batching import BATCH_SIZE, Passes, choose_device, refuse_infinite
from task2vec.errors import DataChangedError, DataError, ResourceError, Task2VecError
from task2vec.head import predict_held_out, to_onehot
from task2vec.head.fit import assign_folds
from task2vec.probe import Probe
from task2vec.progress import Report, show_progress
from task2vec.tasks import Images, Task
from task2vec.tasks.copies import find_copies, make_picture
from task2vec.tasks.images import choose_images
from task2vec.tasks.sampling import join_groups

if TYPE_CHECKING:
    from task2vec.select.candidates import Candidate

# Beside a mean loss. Choosing one of six for each model by its held-out loss takes six times as long and lowers errors
# by 0.0 to 0.2 points over 38 datasets (benchmarks/decide_calibration.py).
PENALTY = 3e-4
# A sample has at least so many images in all, and so many per class on average.
MIN_IMAGES, MIN_PER_CLASS = 200, 10
# Of more candidates than this the first round of a budget takes a half of it.
LARGE_POOL = 16
# Probes that load while another one runs, on a machine with a GPU: there a pass takes less time than loading.
MAX_LOADING_AHEAD = 4
# Decoded images are kept for the next model up to this many bytes; a pixel of Pillow's takes four.
MAX_DECODED_BYTES = 1 << 30
# Copies are sought among so many images at most; among more, identical ones.
MAX_COMPARED_IMAGES = 10_000
# Heads of more images than this are worth all threads.
MAX_IMAGES_FOR_ONE_THREAD = 2000
# The time of a model that has not run yet: models with n times the multiply-adds take about n to this power as long, to
# within this factor.
COST_EXPONENT, COST_UNCERTAINTY = 0.75, 3.0
# Estimates of time are multiplied by this before they are believed; a pass is timed from so many images on.
TIME_MARGIN, MIN_TIMED_IMAGES = 1.2, 12
# A pass goes on past the deadline by this share of the budget: most of it is done.
MAX_OVERTIME = 0.1
# Seconds between two lines of progress without a terminal.
PROGRESS_PAUSE = 10.0
clock = time.monotonic


@dataclass(frozen=True)
class Failure:
    """A candidate that was not measured.

    Attributes:
        model: its name.
        message: the reason, as a sentence.
        was_tried: whether it failed; otherwise there was no time.
    """

    model: str
    message: str
    was_tried: bool = True


@dataclass(frozen=True, eq=False)
class Measurements:
    """What was measured on a task: images x models.

    Attributes:
        images: (n,) the numbers of the images in the canonical order of the task.
        groups: (n,) a number for each, the same for copies and images of one scene.
        models: names, in the order in which they were measured.
        losses: (n, m) what an image contributes to the error of a model, which is their mean; see the module. NaN, for
            all models alike, if an image cannot be judged.
        total_images: images of the task.
        answer: what a wrong answer adds to a loss: 1, or the root mean square over the attributes of images.
        seconds: what each model took in all, loading, its passes and heads; NaN if it was measured in an earlier run.
        features: (n, d) of each model, if they were computed now.
        pictures: small pictures of the images, see `make_picture`, if they were read now.
        failures: the candidates that were not measured, with the reason.
        is_interrupted: whether Ctrl-C ended it; what was measured until then is here.
        earlier: the same on the fewer images of the round before, with the models that did not go on.
    """

    images: np.ndarray
    groups: np.ndarray
    models: tuple[str, ...]
    losses: np.ndarray
    total_images: int
    answer: float = 1.0
    seconds: tuple[float, ...] = ()
    features: tuple[Tensor, ...] = field(default=(), repr=False)
    pictures: np.ndarray | None = field(default=None, repr=False)
    failures: tuple[Failure, ...] = ()
    is_interrupted: bool = False
    earlier: "Measurements | None" = None

    @property
    def is_judged(self) -> np.ndarray:
        """(n,) which images count."""
        return np.asarray(np.isfinite(self.losses).all(axis=1))

    @property
    def is_of_all_images(self) -> bool:
        """Whether errors are those on all images of the task."""
        return len(self.images) == self.total_images

    @property
    def errors(self) -> dict[str, float]:
        """The error of each model on these images."""
        means = self.losses[self.is_judged].mean(0) if len(self.models) else np.empty(0)
        return dict(zip(self.models, means.tolist(), strict=True))

    def add(self, stored: "Measurements | None") -> "Measurements":
        """These and those that are stored of an earlier run on all images.

        Errors on other images cannot be compared: if these are of a sample, those of more models count.
        """
        if stored is None:
            return self
        if self.models and self.is_of_all_images:
            models = stored.models + self.models
            losses = np.column_stack([stored.losses, self.losses])
            return replace(self, models=models, losses=losses, seconds=stored.seconds + self.seconds, features=())
        if len(self.models) >= len(stored.models):
            return self
        return replace(stored, failures=self.failures, is_interrupted=self.is_interrupted)


def measure_models(
    task: Task,
    candidates: "Sequence[Candidate]",
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
    torch_device = choose_device(device)
    is_cpu = torch_device.type == "cpu"
    ahead = 1 if is_cpu else max(1, min(MAX_LOADING_AHEAD, torch.get_num_threads() // 2))
    threads = 1 if is_cpu else torch.get_num_threads() // ahead
    with show_progress(progress, pause=PROGRESS_PAUSE) as report, use_threads(threads) as workers:
        seconds = math.inf if budget is None else budget
        return _Run(task.canonical(), candidates, load, seconds, torch_device, workers, ahead, report).measure()


class _TooSlowError(Exception):
    """A model needs so many seconds, which it does not have."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds


@dataclass
class _Run:
    """Candidates while they are measured.

    Attributes:
        deadline: when the budget ends, by the clock.
        ahead: how many probes are loaded while another one runs.
        loading: by model, these probes.
        features: by model, the numbers of the images that it has seen, and their features.
        speeds: by model, seconds of an image.
        overheads: of each model measured, the seconds besides its pass: loading, preparing and heads.
        seconds: by model, all that it took.
        failures: by model.
    """

    task: Task
    candidates: "Sequence[Candidate]"
    load: Callable[[Any], Probe]
    budget: float
    device: torch.device
    workers: int
    ahead: int
    report: Report
    loading: dict[str, Future[Probe]] = field(default_factory=dict)
    features: dict[str, tuple[np.ndarray, Tensor]] = field(default_factory=dict)
    speeds: dict[str, float] = field(default_factory=dict)
    overheads: list[float] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)

    def __post_init__(self):
        """Starts the clock."""
        room = MAX_DECODED_BYTES if len(self.candidates) > 1 else 0  # a single model sees each image once
        self.images = DecodedImages(self.task.images, room=room)
        self.start = clock()
        self.deadline = self.start + self.budget

    # --- rounds -----------------------------------------------------------------------------------------------------

    def measure(self) -> Measurements:
        """The rounds, as the module describes them."""
        self.make_folds(np.arange(len(self.task)), self.task.fold_groups)
        sample_size = min(len(self.task), max(MIN_IMAGES, MIN_PER_CLASS * len(self.task.classes)))
        images = self.sample(len(self.task) if math.isinf(self.budget) else sample_size)
        share = 0.5 if len(self.candidates) > LARGE_POOL and len(images) < len(self.task) else 1.0
        result = self.run_round(images, self.candidates, self.start + share * self.budget, may_widen=True)
        while not result.is_interrupted and (planned := self.plan_round(result)):
            images, survivors = planned
            last = self.run_round(images, survivors, self.deadline)
            if len(last.models) < len(survivors):  # those that are left are on fewer images
                return replace(result, is_interrupted=last.is_interrupted)
            result = replace(last, earlier=replace(result, features=()))
        return result

    def make_folds(self, images: np.ndarray, groups: np.ndarray) -> "Folds":
        """The folds of some images."""
        return Folds(self.task.targets[images], groups, classes=len(self.task.classes), name=self.task.name)

    def sample(self, count: int) -> np.ndarray:
        """The numbers of a stratified sample of so many images, in the order of the task."""
        whole = np.arange(len(self.task))
        return whole if count >= len(whole) else whole[self.task.choose_sample(count, 0)]

    def plan_round(self, last: Measurements) -> "tuple[np.ndarray, list[Candidate]] | None":
        """The images and models of the next round; None if there is nothing to gain, or no time."""
        count, total, left = len(last.images), len(self.task), self.deadline - clock()
        if count >= total or len(last.models) < 2:
            return None
        ranked = sorted(last.models, key=last.errors.__getitem__)
        better = ranked[: max(2, (len(ranked) + 1) // 2)]
        double = min(2 * count, total)
        for names, next_count, share in ((ranked, total, 1.0), (ranked, double, 0.5), (better, double, 1.0)):
            survivors = [candidate for candidate in self.candidates if candidate.name in names]
            if self.expect(survivors, next_count - count) <= share * left:
                return self.sample(next_count), survivors
        return None

    def run_round(
        self, images: np.ndarray, candidates: "Sequence[Candidate]", deadline: float, *, may_widen: bool = False
    ) -> Measurements:
        """Measures candidates on the same images until the deadline; on all, if there is time and they `may_widen`."""
        losses: dict[str, np.ndarray] = {}
        folds, is_interrupted = None, False
        step = self.report("measuring", len(images) * len(candidates))
        for number, candidate in enumerate(candidates):
            name, start, waiting = candidate.name, clock(), candidates[number + 1 :]
            try:
                needed = self.expect([candidate], len(images))
                if start + needed / (1 if name in self.speeds else COST_UNCERTAINTY) > deadline:
                    raise _TooSlowError(needed)
                probe = self.begin_to_load(candidate).result()
                self.overheads.append(clock() - start)
                for count, upcoming in enumerate(waiting[: self.ahead], 1):
                    if clock() + self.expect([candidate, *waiting[:count]], len(images)) <= deadline:
                        self.begin_to_load(upcoming)
                self.run_model(name, probe, images, deadline, step)
                if folds is None and may_widen and len(images) < len(self.task):
                    more = len(self.task) - len(images)
                    needed = TIME_MARGIN * more * self.speeds[name] + self.expect(waiting, len(self.task))
                    if clock() + needed <= deadline:
                        images = self.sample(len(self.task))
                        step = self.report("measuring", more * (1 + len(waiting)))
                        self.run_model(name, probe, images, deadline, step)
                pass_end = clock()
                if folds is None:
                    near = self.images.group(images, self.task.digests)
                    folds = self.make_folds(images, join_groups(near, self.task.fold_groups[images]))
                with use_threads(self.workers if len(images) > MAX_IMAGES_FOR_ONE_THREAD else 1):
                    losses[name] = folds.judge(self.pick_features(name, images))
                self.overheads[-1] += clock() - pass_end
                self.seconds[name] = self.seconds.get(name, 0.0) + clock() - start
            except KeyboardInterrupt:
                is_interrupted = True
                for left_out in candidates[number:]:
                    failure = Failure(left_out.name, "It was interrupted.", was_tried=False)
                    self.failures.setdefault(left_out.name, failure)
                break
            except (DataChangedError, HopelessError):
                raise
            except Exception as error:  # whatever a model does wrong ends its own measurement only
                self.failures[name] = explain(name, error, left=deadline - start)
            finally:
                probe = None  # the next one needs the memory
                self.loading.pop(name, None)
        return Measurements(
            images,
            np.arange(len(images)) if folds is None else folds.groups,
            tuple(losses),
            np.column_stack([*losses.values()]) if losses else np.empty((len(images), 0)),
            len(self.task),
            answer=1.0 if folds is None else folds.answer,
            seconds=tuple(self.seconds[name] for name in losses),
            features=tuple(self.pick_features(name, images) for name in losses),
            pictures=None if folds is None else self.images.stack(images),
            failures=tuple(self.failures[model.name] for model in self.candidates if model.name in self.failures),
            is_interrupted=is_interrupted,
        )

    # --- time -------------------------------------------------------------------------------------------------------

    def expect(self, candidates: "Sequence[Candidate]", images: int) -> float:
        """Seconds that candidates will probably take for so many images each; none if nothing is known yet."""
        overhead = float(np.median(self.overheads)) if self.overheads else 0.0
        return TIME_MARGIN * sum(overhead + images * self.guess_speed(candidate) for candidate in candidates)

    def guess_speed(self, candidate: "Candidate") -> float:
        """Seconds of an image: as measured, or by the multiply-adds of others; 0 if its pass has to tell."""
        if candidate.name in self.speeds:
            return self.speeds[candidate.name]
        gmacs = {known.name: known.gmacs for known in self.candidates if known.name in self.speeds}
        if not candidate.gmacs or not gmacs or not all(gmacs.values()):
            return 0.0
        ratios = {name: (candidate.gmacs / (cost or math.inf)) ** COST_EXPONENT for name, cost in gmacs.items()}
        return float(np.median([self.speeds[name] * ratio for name, ratio in ratios.items()]))

    # --- a model ----------------------------------------------------------------------------------------------------

    def begin_to_load(self, candidate: "Candidate") -> "Future[Probe]":
        """The probe of a candidate, loaded and prepared in a thread that the end of the program does not wait for."""
        if (future := self.loading.get(candidate.name)) is None:
            future = self.loading[candidate.name] = Future[Probe]()

            def load() -> None:
                try:
                    probe = self.load(candidate)
                    probe.prepare(device=self.device)
                    future.set_result(probe)
                except BaseException as error:  # raised again when the probe is wanted
                    future.set_exception(error)

            Thread(target=load, daemon=True).start()
        return future

    def run_model(
        self, name: str, probe: Probe, images: np.ndarray, deadline: float, step: Callable[[int], None]
    ) -> None:
        """Computes the features of the images that are new to a model; gives up if that would take too long."""
        numbers, known = self.features.get(name, (images[:0], None))
        new, start, done = np.setdiff1d(images, numbers), clock(), 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            needed = (clock() - start) / done * len(new)
            is_late = start + needed > deadline + MAX_OVERTIME * self.budget
            if is_late and MIN_TIMED_IMAGES <= done < len(new):
                raise _TooSlowError(needed)
            step(count)

        options = {"device": self.device, "workers": self.workers, "step": advance}
        features = compute_features(probe, self.images, new.tolist(), **options)
        refuse_infinite(features, lambda row: self.images.name(int(new[row])))
        self.speeds[name] = (clock() - start) / max(1, len(new))
        self.features[name] = (
            np.concatenate([numbers, new]),
            features if known is None else torch.cat([known, features]),
        )

    def pick_features(self, name: str, images: np.ndarray) -> Tensor:
        """The features of these images by a model that has seen them."""
        numbers, features = self.features[name]
        order = np.argsort(numbers)
        return features[torch.from_numpy(order[np.searchsorted(numbers, images, sorter=order)]).to(features.device)]


def explain(name: str, error: Exception, *, left: float) -> Failure:
    """Why a candidate was not measured."""
    if isinstance(error, _TooSlowError):
        text = f"It needs about {error.seconds:.0f} s and {max(0.0, left):.0f} s are left. Allow more time: --budget"
        return Failure(name, text, was_tried=False)
    message = str(error).strip() or type(error).__name__
    if isinstance(error, (MemoryError, ResourceError, torch.cuda.OutOfMemoryError)) or "allocate memory" in message:
        return Failure(name, f"Memory ran out: {message.splitlines()[0]}")
    return Failure(name, message if isinstance(error, Task2VecError) else f"{type(error).__name__}: {message}")


# --- images and features ---------------------------------------------------------------------------------------------


class DecodedImages:
    """The images of a task, which stay decoded for the next model up to so many bytes, and a small picture of each."""

    is_threadsafe = True

    def __init__(self, images: Images, *, room: int = MAX_DECODED_BYTES):
        self.images, self.room = images, room
        self.kept: dict[int, Image] = {}
        self.pictures: dict[int, np.ndarray] = {}
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
            if index not in self.pictures:
                self.pictures[index] = make_picture(image)
            size = 4 * image.width * image.height
            with self.lock:
                if size <= self.room and index not in self.kept:
                    self.kept[index] = image
                    self.room -= size
        return image

    def group(self, numbers: np.ndarray, digests: Sequence[str]) -> np.ndarray:
        """(n,) numbers from 0 on, the same for images that are copies or show one scene, whatever the models."""
        names = [digests[int(number)] for number in numbers]
        if len(numbers) > MAX_COMPARED_IMAGES:
            return np.unique(names, return_inverse=True)[1]
        for number in numbers.tolist():
            if number not in self.pictures:
                self.load(number)
        return find_copies(self.stack(numbers), digests=names).fold_groups(len(numbers))

    def stack(self, numbers: np.ndarray) -> np.ndarray:
        """The small pictures of these images, which were loaded before; see `make_picture`."""
        return np.stack([self.pictures[number] for number in numbers.tolist()])


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
        pixels = torch.stack([probe.preprocess(passes.pixels.load(number)) for number in batch])
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
    """Lets torch and BLAS use so many threads in the block, and in threads that begin in it; hands in the usual number.

    Workers and batches are many: a second thread of torch's own gains little on small networks and heads, and where the
    machine is busy it spends all of its time waiting.
    """
    usual = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(count, user_api="blas"):
            yield usual
    finally:
        torch.set_num_threads(usual)


# --- heads -----------------------------------------------------------------------------------------------------------


class HopelessError(DataError):
    """No image of a task can be judged, whatever the model."""


class Folds:
    """What is the same for all models: targets, groups, and what a wrong answer counts.

    Example:
        >>> folds = Folds(np.array([0, 0, 0, 1, 1, 1, 2]), np.arange(7), classes=3)
        >>> folds.judge(torch.tensor([[0.0], [1.0], [2.0], [7.0], [8.0], [9.0], [99.0]])).tolist()
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, nan]
    """

    def __init__(self, targets: np.ndarray, groups: np.ndarray, *, classes: int, name: str = "task"):
        """`groups` are numbers from 0 on, the same for copies. Refuses images of which none can be judged."""
        self.targets, self.groups, self.classes = targets, groups, classes
        self.weights = weigh_attributes(targets, groups) if targets.ndim == 2 else None
        lacking = "fewer than two of its classes have two different images"
        if self.weights is not None:
            is_hopeful = self.weights.any()
            lacking = "none of its attributes has two different images of each value"
        else:
            onehot = to_onehot(torch.from_numpy(targets), classes, is_multilabel=False)
            is_hopeful = assign_folds(onehot[None], is_multilabel=False, groups=torch.from_numpy(groups))[1].any()
        if not is_hopeful:
            raise HopelessError(
                f"no model can be measured on '{name}': {lacking}, copies aside, so no head could be tested on an "
                "image that it was not fitted to. Add images, or look for copies: task2vec report"
            )

    @property
    def answer(self) -> float:
        """What a wrong answer adds to a loss: 1, or the root mean square over the attributes of images."""
        if self.weights is None:
            return 1.0
        return float(np.square(self.weights[:, self.weights.any(0)]).mean() ** 0.5)

    def judge(self, features: Tensor) -> np.ndarray:
        """(n,) losses of heads on (n, d) features; NaN if not judged."""
        return self.find_losses(*self.predict(features)[1:])

    def predict(self, features: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(n, c) probabilities by heads on (n, d) features, (n, c) shares of repetitions, and (n,) what is judged."""
        targets = torch.from_numpy(self.targets.astype(np.int64)).to(features.device)
        groups = torch.from_numpy(self.groups.astype(np.int64)).to(features.device)
        options = {"classes": self.classes, "penalty": PENALTY, "balance": False, "groups": groups}
        probabilities, votes, is_judged = predict_held_out(features, targets, **options)
        return probabilities.cpu().numpy(), votes.cpu().numpy(), is_judged.cpu().numpy()

    def find_losses(self, votes: np.ndarray, is_judged: np.ndarray) -> np.ndarray:
        """(n,) losses for (n, c) shares of the repetitions that predict a class or attribute; NaN if not judged."""
        if self.weights is None:
            losses = 1.0 - votes[np.arange(len(votes)), self.targets].astype(np.float64)
        else:
            losses = (self.weights * np.abs(votes - self.targets)).sum(1)
        stored = losses.round(6).astype(np.float32).astype(np.float64)  # exactly what a library keeps
        return np.where(is_judged, stored, np.nan)


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
