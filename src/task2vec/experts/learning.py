"""A network and its head in training: steps of gradient descent, and all that is needed to go on after a pause."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from task2vec.embedding.batching import Pixels
from task2vec.errors import NotFiniteError
from task2vec.experts.recipes import Recipe
from task2vec.experts.sampling import Epoch, crop, draw_epoch, mix_seed
from task2vec.progress import Report

_MOMENTUM, _SUMS = "momentum.", "sums"
Validate = Callable[[], float] | None


@dataclass(frozen=True)
class EpochMetrics:
    """How one epoch went.

    Attributes:
        epoch: from 1.
        loss: mean over the images drawn, as the network was when it saw them.
        error: share of them that it got wrong; of all answers, for attributes.
        rate: learning rate at the end.
        images_per_second: of training alone.
        validation_error: on images that are not trained on, if there are any.
    """

    epoch: int
    loss: float
    error: float
    rate: float
    images_per_second: float
    validation_error: float | None = None


class Learner(nn.Module):
    """A network with a linear head on its pooled features."""

    def __init__(self, network: nn.Module, head: nn.Linear):
        super().__init__()
        self.network, self.head = network, head

    def forward(self, images: Tensor) -> Tensor:
        """(n, c) logits."""
        return self.head(self.network(images))


@dataclass(frozen=True)
class Lessons:
    """The images that a network learns from.

    Attributes:
        pixels: 8-bit images, somewhat larger than what the network sees.
        targets: of each image: class numbers, or a row of zeros and ones.
        size: height and width of what the network sees.
        normalise: from 8-bit pixels to the network's input.
    """

    pixels: Pixels
    targets: np.ndarray
    size: tuple[int, int]
    normalise: Callable[[Tensor, torch.dtype], Tensor]


class Training:
    """Head and network trained together by a recipe; `step` counts what is done."""

    def __init__(self, learner: Learner, recipe: Recipe, *, device: torch.device, seed: int):
        self.device, self.recipe, self.seed = device, recipe, seed
        self.learner = learner.to(device=device)
        if device.type == "cuda":
            self.learner = self.learner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.learner.requires_grad_(True).train()
        self.optimiser = torch.optim.SGD(
            self.learner.parameters(),
            lr=recipe.rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            fused=device.type == "cuda",
        )
        self.has_chance = any(_is_random(module) for module in learner.modules())
        self.step = 0
        self.sums, self.seen = torch.zeros(2, device=device), 0  # of the epoch so far: losses and errors, images
        self.metrics: list[EpochMetrics] = []

    def run(
        self, lessons: Lessons, report: Report, *, pause: Callable[["Training"], None], validate: Validate = None
    ) -> None:
        """Trains from `step` to the end; `pause` is called after every step, and may keep what there is."""
        targets = torch.from_numpy(lessons.targets.astype(np.int64)).to(self.device)
        per_epoch = self.recipe.steps_per_epoch
        ended, done = report("epochs", self.recipe.epochs), report("training", self.recipe.steps)
        ended(self.step // per_epoch)
        done(self.step)
        for epoch in range(self.step // per_epoch, self.recipe.epochs):
            drawn = draw_epoch(lessons.targets, draws=self.recipe.draws, seed=self.seed, epoch=epoch)
            begun, before = time.perf_counter(), self.step
            for images, own in self._batches(lessons, drawn, self.step - epoch * per_epoch):
                self._learn(images, targets[own])
                done(1)
                if self.step == (epoch + 1) * per_epoch:  # before a pause, which must not forget how the epoch went
                    self._close_epoch(epoch, (self.step - before) * self.recipe.batch, begun, validate)
                    ended(1)
                pause(self)

    def _batches(self, lessons: Lessons, drawn: Epoch, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        """What the network takes, and the numbers of the images, from the batch number `first` on."""
        size = self.recipe.batch
        images, corners, mirrored = (
            part[first * size :].to(self.device) for part in (drawn.images, drawn.corners, drawn.is_mirrored)
        )
        pixels = lessons.pixels.draws(drawn.images[first * size :].tolist(), size)
        for some, own, corner, mirror in zip(
            pixels, images.split(size), corners.split(size), mirrored.split(size), strict=True
        ):
            corner = corner if self.recipe.crops else torch.full_like(corner, 0.5)
            part = crop(some, corner, mirror & self.recipe.mirrors, lessons.size)
            yield lessons.normalise(part, torch.float32), own

    def _learn(self, images: Tensor, targets: Tensor) -> None:
        """One step."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rate_at(self.step)
        is_cuda = self.device.type == "cuda"
        if is_cuda:
            images = images.contiguous(memory_format=torch.channels_last)
        # Dropout draws from the common generator: it gets a seed of its own for every step, and is put back.
        with torch.random.fork_rng(devices=[self.device] if is_cuda and self.has_chance else []):
            if self.has_chance:
                torch.manual_seed(mix_seed(self.seed, self.step))
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=is_cuda):
                logits = self.learner(images)
        loss, wrong = judge(logits.float(), targets)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        with torch.no_grad():
            self.sums += torch.stack([loss.detach() * len(images), wrong])
        self.seen += len(images)
        self.step += 1

    def _close_epoch(self, epoch: int, images: int, begun: float, validate: Validate) -> None:
        loss, wrong = (float(total) / self.seen for total in self.sums)  # waits for the GPU
        seconds = max(time.perf_counter() - begun, 1e-9)
        if not np.isfinite(loss):
            raise NotFiniteError(
                f"the training by the recipe '{self.recipe.name}' came to a loss that is not finite in epoch "
                f"{epoch + 1}, so the network is lost. Try a smaller learning rate: dataclasses.replace(recipe, "
                f"rate={self.recipe.rate / 10:g})"
            )
        rate = self.recipe.rate_at(self.step - 1)
        judged = validate() if validate else None
        self.metrics.append(EpochMetrics(epoch + 1, loss, wrong, rate, images / seconds, judged))
        self.sums.zero_()
        self.seen = 0

    # --- pauses ----------------------------------------------------------------------------------------------------

    def keep(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain values from which the training can go on."""
        tensors = dict(self.learner.state_dict())
        for name, weight in self.learner.named_parameters():
            momentum = self.optimiser.state[weight].get("momentum_buffer") if weight in self.optimiser.state else None
            if momentum is not None:
                tensors[_MOMENTUM + name] = momentum
        tensors[_SUMS] = self.sums
        return tensors, {"step": self.step, "seen": self.seen, "metrics": [asdict(one) for one in self.metrics]}

    def restore(self, tensors: dict[str, Tensor], story: dict[str, Any]) -> None:
        """Goes back to what `keep` gave."""
        self.learner.load_state_dict({name: tensors[name] for name in self.learner.state_dict()})
        for name, weight in self.learner.named_parameters():
            if _MOMENTUM + name in tensors:
                momentum = torch.empty_like(weight).copy_(tensors[_MOMENTUM + name])
                self.optimiser.state[weight]["momentum_buffer"] = momentum
        self.sums = tensors[_SUMS].to(self.device)
        self.step, self.seen = int(story["step"]), int(story["seen"])
        self.metrics = [EpochMetrics(**one) for one in story["metrics"]]


def _is_random(module: nn.Module) -> bool:
    """Whether a layer draws numbers in training: dropout and stochastic depth of any kind, by their names."""
    name = type(module).__name__.lower()
    return "drop" in name or "stochastic" in name


def judge(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of a batch, and how many images it gets wrong; for attributes the mean over them of both."""
    if targets.ndim == 1:
        return functional.cross_entropy(logits, targets), (logits.argmax(1) != targets).sum().float()
    loss = functional.binary_cross_entropy_with_logits(logits, targets.float())
    return loss, ((logits > 0) != targets.bool()).float().mean(1).sum()
