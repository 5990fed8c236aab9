"""A task and a pretrained network become an expert; many tasks become many, one by one or in parallel.

The images of an epoch, their crops and mirrorings are drawn at its start, on the CPU, from the seed and the number of
the epoch alone: training resumes after an interruption as if there had been none, and does not depend on the device.
"""

import copy
import hashlib
import json
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from task2vec.embedding import name_file
from task2vec.embedding.batching import Pixels, choose_device, tensor_cores
from task2vec.errors import NotFiniteError, Task2VecError, UsageError
from task2vec.experts.checkpoint import (
    SUFFIX,
    TrainedExpert,
    check_place,
    find_kept,
    name_architecture,
    unfinished,
    write_tensors,
)
from task2vec.experts.recipes import EpochMetrics, Recipe, find_recipe
from task2vec.head import fit_head
from task2vec.library import Expert
from task2vec.parallel import Backend, SerialBackend, Unit, borrow_backend
from task2vec.probe import Preprocess, Probe, load_probe
from task2vec.probe.probe import make_probe
from task2vec.progress import Report, show_progress, silent
from task2vec.tasks import Task, to_task, to_tasks

# Crops are chosen from a square larger by this factor, unless the network's preprocessing leaves a wider margin.
_MARGIN = 8 / 7
# Raised whenever the same arguments give other weights, so that older experts are not mistaken for new ones.
VERSION = 2
# A killed training loses what it did since the last checkpoint.
CHECKPOINT_SECONDS = 60.0
_MOMENTUM = "momentum."
_SUMS = "sums"


def train_expert(
    task: Any,
    base: Probe | None = None,
    recipe: str | Recipe = "fast",
    *,
    name: str | None = None,
    out: str | Path | None = None,
    replace_other: bool = False,
    seed: int = 0,
    device: str | None = None,
    num_workers: int | None = None,
    progress: bool | Report = False,
) -> TrainedExpert:
    """An expert for `task`: the network of `base`, fine-tuned.

    With `out`, it is written there, and interrupted training resumes from a checkpoint that is at most a minute old; an
    existing expert of the same task, base, recipe and seed is not trained again. On a CPU, the same arguments give the
    same bytes, with or without interruptions.

    Args:
        task: a task, or anything that `to_task` accepts: a folder, a table, a frame, a dataset, (paths, labels).
        base: what `load_probe` returns; the default probe if None. It is not changed.
        recipe: "fast", "achille2019", or a `Recipe` of your own.
        name: name of the expert; the task's name if None.
        out: file to write, by convention NAME.expert.safetensors.
        replace_other: overwrite another expert there.
        seed: of sampling, crops and mirroring.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        num_workers: threads that decode images; None takes one per core.
        progress: show progress bars on standard error, or a function that reports progress instead.

    Example:
        >>> from task2vec import sample_tasks
        >>> digits = sample_tasks(images_per_task=40)[0].select(["0", "1"])
        >>> brief = replace(find_recipe("fast"), epochs=1, draws=16, batch=8)
        >>> expert = train_expert(digits, load_probe(size=32), brief)
        >>> expert.name, len(expert.metrics), tuple(expert.weight.shape)
        ('digits', 1, (2, 1280))
    """
    if not isinstance(seed, int) or seed < 0:
        raise UsageError(f"seed={seed!r} (--seed) is not a valid seed. Use an integer of 0 or more.")
    base = base or load_probe()
    recipe = find_recipe(recipe)
    task = to_task(task, num_workers=num_workers, progress=progress is True)
    metadata = describe(task, base, recipe, seed=seed, name=name)
    path = None if out is None else Path(out)
    kept = None
    if path is not None:
        if not replace_other:
            check_place(path, metadata["key"])
        kept = find_kept(path, metadata["key"])
        if isinstance(kept, TrainedExpert):
            return kept
    with show_progress(progress) as report:
        images = prepare_images(task.canonical(), base, device=choose_device(device), num_workers=num_workers)
        training = Training(base, images, recipe, seed=seed, classes=len(task.classes), report=report)
        if kept is not None:
            training.restore(*kept)
        keep = None if path is None else partial(_write_checkpoint, unfinished(path), metadata)
        with tensor_cores(training.device):
            training.run(report, keep=keep)
    training.learner.cpu().to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
    probe = make_probe(base.name, training.network, (), base.preprocess, source=f"expert ({metadata['name']})")
    metadata |= {"metrics": [asdict(epoch) for epoch in training.metrics], "fingerprint": probe.fingerprint}
    weight, bias = training.head.weight.detach(), training.head.bias.detach()
    expert = TrainedExpert(metadata["name"], probe, weight, bias, metadata)
    return expert if path is None else expert.save(path)


def describe(task: Task, base: Probe, recipe: Recipe, *, seed: int, name: str | None = None) -> dict[str, Any]:
    """The metadata of an expert before its training; `key` is a hash of all that decides about its weights."""
    deciding = [task.fingerprint, base.fingerprint, recipe.to_dict() | {"name": ""}, seed, VERSION]
    return {
        "kind": "expert",
        "name": name or task.name,
        "key": hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest(),
        "task": task.name,
        "task_fingerprint": task.fingerprint,
        "classes": list(task.canonical().classes),
        "images": len(task),
        "is_multilabel": task.is_multilabel,
        "architecture": name_architecture(base),
        "network": type(base.network).__name__,
        "base_fingerprint": base.fingerprint,
        "size": list(base.size),
        "preprocess": base.preprocess.description,
        "recipe": recipe.to_dict(),
        "seed": seed,
    }


def _write_checkpoint(path: Path, metadata: dict[str, Any], training: "Training") -> None:
    tensors, state = training.state()
    write_tensors(path, tensors, metadata | state | {"kind": "checkpoint"})


# --- images and draws ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingImages:
    """The images that a network is trained on.

    Attributes:
        pixels: 8-bit images, somewhat larger than the network's input.
        targets: of each image: class numbers, or a row of zeros and ones.
        size: height and width of the network's input.
        normalise: from 8-bit pixels to the network's input.
    """

    pixels: Pixels
    targets: np.ndarray
    size: tuple[int, int]
    normalise: Callable[[Tensor, torch.dtype], Tensor]

    @property
    def labels(self) -> Tensor:
        """The targets on the device of the images."""
        return torch.from_numpy(self.targets.astype(np.int64)).to(self.pixels.device)


def prepare_images(task: Task, base: Probe, *, device: torch.device, num_workers: int | None = None) -> TrainingImages:
    """The images of a task in its order, as its expert will see them; none is decoded yet."""
    wide = replace(base, preprocess=_widen(base.preprocess)) if isinstance(base.preprocess, Preprocess) else base
    pixels = Pixels(task.images, wide, device=device, num_workers=num_workers or os.cpu_count() or 1)
    return TrainingImages(pixels, task.targets, base.size, base.preprocess.normalise)


def _widen(preprocess: Preprocess) -> Preprocess:
    """The same preprocessing with a margin around the last crop, from which crops are chosen."""
    if preprocess.squash is not None:
        sides = zip(preprocess.squash, preprocess.size, strict=True)
        height, width = (max(given, round(_MARGIN * wanted)) for given, wanted in sides)
        return replace(preprocess, size=(height, width), squash=(height, width))
    side = max(preprocess.resize, round(_MARGIN * max(preprocess.size)))
    return replace(preprocess, size=(side, side), resize=side)


class Draws(NamedTuple):
    """Images drawn for some steps, and how each is seen.

    Attributes:
        images: (n,) their numbers.
        corners: (n, 2) positions of the crops, from 0 to 1.
        is_mirrored: (n,) whether they are mirrored.
    """

    images: Tensor
    corners: Tensor
    is_mirrored: Tensor

    def take(self, rows: slice | Tensor) -> "Draws":
        """The given draws."""
        return Draws(*(values[rows] for values in self))


def draw_epoch(targets: np.ndarray, *, draws: int, seed: int, epoch: int) -> Draws:
    """`draws` images with replacement, uniformly over classes, with their crops and mirrorings.

    With one label per image, a class is drawn and then one of its images. With independent attributes, an attribute is
    drawn, then its value, then one of the images that have it; attributes that are the same in all images are left out.

    Example:
        >>> rare = np.array([0] * 90 + [1] * 10)
        >>> images, corners, is_mirrored = draw_epoch(rare, draws=1000, seed=0, epoch=0)
        >>> bool(0.45 < rare[images].mean() < 0.55)
        True
    """
    generator = torch.Generator().manual_seed(_mix_seed(seed, epoch))
    if targets.ndim == 1:
        groups = [np.flatnonzero(targets == label) for label in np.unique(targets)]
    else:
        pairs = [(np.flatnonzero(column > 0), np.flatnonzero(column <= 0)) for column in targets.T]
        groups = [group for pair in pairs if len(pair[0]) and len(pair[1]) for group in pair]
    chosen = torch.randint(len(groups), (draws,), generator=generator)
    positions = torch.rand(draws, generator=generator, dtype=torch.float64)
    sizes = torch.tensor([len(group) for group in groups])
    starts = sizes.cumsum(0) - sizes
    images = torch.from_numpy(np.concatenate(groups))[starts[chosen] + (positions * sizes[chosen]).long()]
    corners = torch.rand(draws, 2, generator=generator)
    return Draws(images, corners, torch.rand(draws, generator=generator) < 0.5)


def _mix_seed(seed: int, epoch: int) -> int:
    """A different seed for every epoch or step."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0] >> 1)


def crop(
    pixels: Tensor, corners: Tensor, is_mirrored: Tensor, size: tuple[int, int], *, numbers: Tensor | None = None
) -> Tensor:
    """(n, 3, *size) crops of (n, 3, height, width) `pixels`, each at its own corner, some of them mirrored.

    With `numbers` (n,), crops of the images with these numbers.
    """
    height, width = pixels.shape[2:]
    rows, columns = size
    top = (corners[:, 0] * (height - rows + 1)).long()
    left = (corners[:, 1] * (width - columns + 1)).long()
    down = top[:, None] + torch.arange(rows, device=top.device)
    across = torch.arange(columns, device=top.device)
    across = left[:, None] + torch.where(is_mirrored[:, None], columns - 1 - across, across)
    numbers = torch.arange(len(pixels), device=top.device) if numbers is None else numbers
    return pixels[numbers[:, None, None], :, down[:, :, None], across[:, None, :]].permute(0, 3, 1, 2)


# --- training --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def compute_features(
    network: nn.Module, images: TrainingImages, report: Report = silent, *, batch: int = 128
) -> Tensor:
    """(n, d) features of the centre crops of all images."""
    network.eval()
    step = report("features", len(images.pixels))
    parts = []
    for pixels in images.pixels.draws(range(len(images.pixels)), batch):
        top, left = ((side - wanted) // 2 for side, wanted in zip(pixels.shape[2:], images.size, strict=True))
        centre = pixels[:, :, top : top + images.size[0], left : left + images.size[1]]
        inputs = images.normalise(centre, torch.float32)
        parts.append(network(inputs.contiguous(memory_format=torch.channels_last) if inputs.is_cuda else inputs))
        step(len(pixels))
    return torch.cat(parts)


def compute_loss(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of a batch, and how many of its images are wrong; for attributes, means over the attributes."""
    if targets.ndim == 1:
        return functional.cross_entropy(logits, targets), (logits.argmax(1) != targets).sum().float()
    loss = functional.binary_cross_entropy_with_logits(logits, targets.float())
    return loss, ((logits > 0) != targets.bool()).float().mean(1).sum()


class Training:
    """The training of head and network by a recipe; `step` counts the steps done."""

    def __init__(
        self, base: Probe, images: TrainingImages, recipe: Recipe, *, seed: int, classes: int, report: Report = silent
    ):
        self.images = images
        self.recipe = recipe
        self.seed = seed
        self.device = images.pixels.device
        self.network = copy.deepcopy(base.network).to(self.device)
        with tensor_cores(self.device):
            features = compute_features(self.network, images, report)
        self.head = nn.Linear(features.shape[1], classes, device=self.device)
        if recipe.head == "exact":
            head = fit_head(features, images.labels, classes=classes)
            with torch.no_grad():
                self.head.weight.copy_(head.weight)
                self.head.bias.copy_(head.bias)
        else:
            self._train_head(features)
        self.learner = nn.Sequential(OrderedDict(network=self.network, head=self.head)).to(self.device)
        if self.device.type == "cuda":
            self.learner = self.learner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.learner.requires_grad_(True).train()
        is_cuda = self.device.type == "cuda"
        self.optimiser = torch.optim.SGD(
            self.learner.parameters(),
            # A tensor on a GPU, so that recorded steps follow its changes.
            lr=torch.tensor(recipe.rate, device=self.device) if is_cuda else recipe.rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            fused=is_cuda,
        )
        self.step = 0
        self.sums = torch.zeros(2, device=self.device)
        self.seen = 0  # of the epoch so far: losses and errors, images
        self.metrics: list[EpochMetrics] = []
        self.recorded: RecordedSteps | None = None
        self.is_recordable = True

    def _train_head(self, features: Tensor) -> None:
        """Trains the head by Adam from zero on fixed features."""
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        recipe = self.recipe
        labels = self.images.labels
        optimiser = torch.optim.Adam(self.head.parameters(), lr=recipe.head_rate)
        for epoch in range(recipe.head_epochs):
            # Epochs of the head have other numbers: the network will not see the same draws again.
            epoch += recipe.epochs
            drawn = draw_epoch(self.images.targets, draws=recipe.draws, seed=self.seed, epoch=epoch)
            for images in drawn.images.to(self.device).split(recipe.batch):
                loss, _ = compute_loss(self.head(features[images]), labels[images])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()

    def run(self, report: Report = silent, *, keep: Callable[["Training"], None] | None = None) -> None:
        """Trains from `step` to the end; `keep` is called once a minute to write a checkpoint."""
        per_epoch = self.recipe.steps_per_epoch
        ended = report("epochs", self.recipe.epochs)
        done = report("training", self.recipe.steps)
        ended(self.step // per_epoch)
        done(self.step)
        last = time.monotonic()
        for epoch in range(self.step // per_epoch, self.recipe.epochs):
            begun = time.perf_counter()
            before = self.step
            for _ in self._learn_epoch(epoch):
                done(1)
                if self.step == (epoch + 1) * per_epoch:  # before a checkpoint, which has the metrics of the epoch
                    self._close_epoch(epoch, (self.step - before) * self.recipe.batch, begun)
                    ended(1)
                is_due = time.monotonic() - last >= CHECKPOINT_SECONDS and self.step < self.recipe.steps
                if keep is not None and is_due:
                    keep(self)
                    last = time.monotonic()
        self.recorded = None  # frees the memory of the recordings, which refer to this training

    def _learn_epoch(self, epoch: int) -> Iterator[None]:
        """Learns from the rest of an epoch, batch by batch."""
        recipe = self.recipe
        size = self.recipe.batch
        first = (self.step - epoch * recipe.steps_per_epoch) * size
        draws = draw_epoch(self.images.targets, draws=recipe.draws, seed=self.seed, epoch=epoch)
        draws = draws.take(slice(first, None))
        corners = draws.corners if recipe.crops else torch.full_like(draws.corners, 0.5)
        draws = Draws(draws.images, corners, draws.is_mirrored & recipe.mirrors)
        if self.recorded is None and self.device.type == "cuda" and self.is_recordable:
            self.recorded = RecordedSteps.open(self)
            self.is_recordable = self.recorded is not None
        if self.recorded is not None:
            yield from self.recorded.learn(draws)
            return
        targets = self.images.labels
        on_device = Draws(*(values.to(self.device) for values in draws))
        pixels = self.images.pixels.draws(draws.images.tolist(), size)
        for start, batch in zip(range(0, len(draws.images), size), pixels, strict=True):
            chosen = on_device.take(slice(start, start + size))
            views = crop(batch, chosen.corners, chosen.is_mirrored, self.images.size)
            self._learn(self.images.normalise(views, torch.float32), targets[chosen.images])
            yield

    def _learn(self, images: Tensor, targets: Tensor) -> None:
        """One step."""
        self.set_rate()
        # Dropout draws from the global generator, which gets a new seed for every step and is restored.
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(_mix_seed(self.seed, self.step))
            self.update(images, targets)
        self.count(len(images))

    def set_rate(self) -> None:
        """Gives the optimiser the learning rate of this step."""
        rate = self.recipe.rate_at(self.step)
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def update(self, images: Tensor, targets: Tensor) -> None:
        """Takes a gradient step on a batch, and adds its loss and errors to those of the epoch."""
        is_cuda = self.device.type == "cuda"
        if is_cuda:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=is_cuda):
            logits = self.learner(images)
        loss, mistakes = compute_loss(logits.float(), targets)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        with torch.no_grad():
            self.sums += torch.stack([loss.detach() * len(images), mistakes])

    def count(self, images: int) -> None:
        """Counts one step on `images` images."""
        self.seen += images
        self.step += 1

    def _close_epoch(self, epoch: int, images: int, begun: float) -> None:
        loss, error = (float(total) / self.seen for total in self.sums)  # waits for the GPU
        seconds = max(time.perf_counter() - begun, 1e-9)
        if not np.isfinite(loss):
            raise NotFiniteError(
                f"the training loss with the recipe '{self.recipe.name}' is not finite in epoch {epoch + 1}, so the "
                "network is useless. Try a smaller learning rate: dataclasses.replace(recipe, "
                f"rate={self.recipe.rate / 10:g})"
            )
        rate = self.recipe.rate_at(self.step - 1)
        self.metrics.append(EpochMetrics(epoch + 1, loss, error, rate, images / seconds))
        self.sums.zero_()
        self.seen = 0

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and plain values from which the training can resume."""
        tensors = dict(self.learner.state_dict())
        for name, weight in self.learner.named_parameters():
            if weight in self.optimiser.state:  # after its first step
                tensors[_MOMENTUM + name] = self.optimiser.state[weight]["momentum_buffer"]
        tensors[_SUMS] = self.sums
        return tensors, {"step": self.step, "seen": self.seen, "metrics": [asdict(epoch) for epoch in self.metrics]}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Restores a `state`."""
        self.learner.load_state_dict({name: tensors[name] for name in self.learner.state_dict()})
        for name, weight in self.learner.named_parameters():
            if _MOMENTUM + name in tensors:
                momentum = torch.empty_like(weight).copy_(tensors[_MOMENTUM + name])
                self.optimiser.state[weight]["momentum_buffer"] = momentum
        self.sums = tensors[_SUMS].to(self.device)
        self.step = int(state["step"])
        self.seen = int(state["seen"])
        self.metrics = [EpochMetrics.read(values) for values in state["metrics"]]


# --- recorded steps --------------------------------------------------------------------------------------------------


class RecordedSteps:
    """Steps on a GPU that holds all images of a task.

    A step is some six hundred kernels, which take Python longer to start than a GPU to run. So a step is recorded once
    for each batch size, from the choice of its images to the update of the weights, and replayed.
    """

    def __init__(self, training: "Training", pixels: Tensor):
        self.training = training
        self.pixels = pixels
        self.targets = training.images.labels
        device = training.device
        draws = training.recipe.draws
        self.draws = Draws(
            torch.zeros(draws, dtype=torch.long, device=device),
            torch.zeros(draws, 2, device=device),
            torch.zeros(draws, dtype=torch.bool, device=device),
        )
        self.first = torch.zeros(1, dtype=torch.long, device=device)
        self.offsets = torch.arange(training.recipe.batch, device=device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.is_recordable = self.pixels.is_cuda

    @classmethod
    def open(cls, training: "Training") -> "RecordedSteps | None":
        """The steps of a training; None if they cannot be recorded: there are too many images, or dropout."""
        pixels = training.images.pixels.stack()
        if pixels is None:
            return None
        twice = torch.zeros(2, dtype=torch.long, device=pixels.device)
        size = training.images.size
        views = crop(pixels, torch.full((2, 2), 0.5, device=pixels.device), twice > 0, size, numbers=twice)
        is_random = draws_at_random(training.network, training.images.normalise(views, torch.float32))
        return None if is_random else cls(training, pixels)

    def learn(self, draws: Draws) -> Iterator[None]:
        """Learns from these draws, batch by batch."""
        training = self.training
        size = self.training.recipe.batch
        total = len(draws.images)
        for static, values in zip(self.draws, draws, strict=True):
            static[:total].copy_(values)
        self.first.zero_()
        for start in range(0, total, size):
            count = min(size, total - start)
            training.set_rate()
            if count in self.graphs:
                self.graphs[count].replay()
            else:
                (self._record if self.is_recordable else self._step)(count)
            training.count(count)
            yield

    def _step(self, count: int) -> None:
        """A step on the next `count` draws; everything that changes from step to step is on the GPU."""
        chosen = self.draws.take(self.first + self.offsets[:count])
        images = self.training.images
        views = crop(self.pixels, chosen.corners, chosen.is_mirrored, images.size, numbers=chosen.images)
        self.training.update(images.normalise(views, torch.float32), self.targets[chosen.images])
        self.first += count

    def _record(self, count: int) -> None:
        """Takes one step, and records the next ones.

        `torch.cuda.graph` would synchronise the device and release unused memory, which hinders other threads.
        """
        current, side = torch.cuda.current_stream(self.training.device), torch.cuda.Stream(self.training.device)
        side.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            self._step(count)
            side.synchronize()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                try:
                    self._step(count)
                finally:
                    graph.capture_end()
                self.graphs[count] = graph
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError:  # an operation that a graph cannot hold: slower, not wrong
                self.is_recordable = False
        current.wait_stream(side)


def draws_at_random(network: nn.Module, images: Tensor) -> bool:
    """Whether a training pass of `images` draws random numbers, as dropout and stochastic depth do.

    Example:
        >>> images = torch.zeros(2, 3)
        >>> draws_at_random(nn.Dropout(0.5), images), draws_at_random(nn.Dropout(0.0), images)
        (True, False)
    """
    devices = [images.device] if images.is_cuda else []

    def read_states() -> list[bytes]:
        states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
        return [state.numpy().tobytes() for state in states]

    with torch.random.fork_rng(devices=devices), torch.no_grad():
        before = read_states()
        copy.deepcopy(network).train()(images)  # a copy, as batch norm updates its statistics
        return read_states() != before


# --- many experts ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpertResult:
    """The result of training one of many experts.

    Attributes:
        number: index of its task among those given.
        task: name of the task.
        name: name of the expert.
        entry: the expert as a library keeps it, with its file; None if it failed.
        error: why it failed, if it did.
        is_found: whether it already existed.
    """

    number: int
    task: str
    name: str
    entry: Expert | None = None
    error: Task2VecError | None = None
    is_found: bool = False


@dataclass(frozen=True)
class ExpertWork:
    """The work of a process: it keeps the network; tasks, names and files come in, entries go out."""

    base: Probe
    recipe: Recipe
    options: dict[str, Any]

    def open(self) -> Callable[[tuple[Task, str, Path]], Iterator[tuple[Expert, bool]]]:
        """A function that trains one expert."""

        def train(unit: tuple[Task, str, Path]) -> Iterator[tuple[Expert, bool]]:
            task, name, file = unit
            expert = train_expert(task, self.base, self.recipe, name=name, out=file, **self.options)
            yield expert.entry(), expert.is_found

        return train


def train_experts(
    tasks: Iterable[Any],
    base: Probe | None = None,
    recipe: str | Recipe = "fast",
    *,
    folder: str | Path,
    names: Sequence[str] | None = None,
    backend: str | Backend = "serial",
    replace_other: bool = False,
    seed: int = 0,
    device: str | None = None,
    progress: bool = False,
) -> Iterator[ExpertResult]:
    """An expert for each of many tasks as they are finished, in `folder`; finished ones are not trained again.

    A task that fails is reported with its error, and the others continue. Tasks whose file is taken by another expert
    are reported first, before anything is trained.

    Args:
        tasks: tasks, or anything that `to_task` accepts; results come as they are finished.
        base: what `load_probe` returns; the default probe if None.
        recipe: see `train_expert`.
        folder: where the experts go, one file each. Processes on other machines must see it, too.
        names: of the experts and of their files; the names of the tasks if None. One task may be trained several times
            under different names, in calls with different recipes or seeds.
        backend: "serial" trains here, "ray" on all GPUs and machines of a cluster; or an open one.
        replace_other: overwrite other experts under these names.
        seed: of draws, crops and mirrorings.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        progress: show progress bars on standard error; of those trained here, also of epochs and steps.
    """
    base = base or load_probe()
    recipe = find_recipe(recipe)
    tasks = to_tasks(tasks, progress=progress)
    called = [task.name for task in tasks] if names is None else list(names)
    files = _name_files(tasks, called, Path(folder))
    work = ExpertWork(base, recipe, {"seed": seed, "device": device, "replace_other": replace_other})

    def run() -> Iterator[ExpertResult]:
        units: list[Unit] = []
        for number, (task, name, file) in enumerate(zip(tasks, called, files, strict=True)):
            try:
                if not replace_other:
                    check_place(file, describe(task, base, recipe, seed=seed)["key"])
                units.append(Unit(str(number), (task, name, file)))
            except Task2VecError as error:
                yield ExpertResult(number, task.name, name, error=error)
        with borrow_backend(backend) as opened, show_progress(progress) as report:
            step = report("experts", len(units))
            settled = set()
            is_here = progress and isinstance(opened, SerialBackend)
            watched = replace(work, options=work.options | {"progress": report}) if is_here else work
            for result in opened.run(watched, units):
                number = int(result.key)
                error = None if result.failure is None else result.failure.error()
                entry, is_found = result.value or (None, False)
                if (entry or error) and number not in settled:  # one whose process died may come again
                    settled.add(number)
                    yield ExpertResult(number, tasks[number].name, called[number], entry, error, is_found)
                step(result.is_last)

    return run()


def _name_files(tasks: Sequence[Task], names: Sequence[str], folder: Path) -> list[Path]:
    """A file for each expert; two that would share one are refused."""
    if len(names) != len(tasks):
        raise UsageError(
            f"{len(names)} names for {len(tasks)} tasks do not show which expert gets which. Give one name per task in "
            "the order of the tasks (--name), or none."
        )
    files = [name_file(replace(task, name=name), SUFFIX) for task, name in zip(tasks, names, strict=True)]
    for file, count in Counter(files).items():
        if count > 1:
            raise UsageError(
                f"{count} experts would be written to one file, '{file}', and all but one would be lost. Give each a "
                "name of its own: names=, or --name once per task."
            )
    return [folder / file for file in files]
