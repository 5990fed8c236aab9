"""The paper's optimisation on a task: a head trained for two epochs, then head and noise together."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from task2vec.errors import ResourceError
from task2vec.fisher import Minimum, NoisyNetwork, mean_loss, minimise
from task2vec.head import Head
from task2vec.progress import Report

if TYPE_CHECKING:
    from task2vec.embedding.single import Job

# Above this change of L from epoch to epoch or between the halves of what is reported (root mean square over the
# filters), or this part of the optimiser's top speed, a run has not converged; the speed catches short epochs.
MOST_DRIFT, MOST_SPEED = 0.1, 0.1


def find_minimum(job: "Job", features: Tensor, head: Head, report: Report) -> Minimum:
    """The minimum of the variational loss of the task; `head` is the converged one, used if it is to stay fixed."""
    settings = job.settings.variational
    network = NoisyNetwork(job.passes.network, job.passes.probe.layers)
    # What is trained is at least single precision, whatever the probe runs in: small steps would be lost.
    dtype, device = torch.promote_types(job.passes.dtype, torch.float32), job.pixels.device
    weight, bias = head.weight.to(device, dtype), head.bias.to(device, dtype)
    if settings.head == "joint":
        weight, bias = train_head(job, features, report)
    total = settings.epochs * settings.steps_per_epoch
    generator = torch.Generator(device).manual_seed(job.settings.seed + 2)
    step = report("noise", total)
    try:
        return minimise(
            network,
            draw_batches(job, total + 1),
            weight=weight.to(dtype),
            bias=bias.to(dtype),
            beta=job.settings.beta / len(job.task),
            steps=total,
            steps_per_epoch=settings.steps_per_epoch,
            generator=generator,
            rate=settings.rate,
            head_rate=settings.head_rate if settings.head == "joint" else 0.0,
            watch=lambda number, log_precision: step(1),
        )
    except torch.cuda.OutOfMemoryError as error:
        raise ResourceError(
            f"the GPU has not enough memory for {settings.batch} noisy images at a time. The batch size changes the "
            f"numbers and is not reduced automatically: use VariationalSettings(batch={max(1, settings.batch // 2)})."
        ) from error


def _draw(job: "Job", count: int, *, seed: int) -> Tensor:
    """Indices of images, with replacement, uniformly over classes (over images if attributes)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(job.weights, count, replacement=True, generator=generator)


def train_head(job: "Job", features: Tensor, report: Report) -> tuple[Tensor, Tensor]:
    """Weight and bias after the epochs of the head alone: from zero, by Adam, on the features as they are."""
    settings = job.settings.variational
    total = settings.head_epochs * settings.steps_per_epoch
    drawn = _draw(job, total * settings.batch, seed=job.settings.seed + 3).to(features.device)
    classes = len(job.task.classes)
    weight = torch.zeros(classes, features.shape[1], dtype=features.dtype, device=features.device, requires_grad=True)
    bias = torch.zeros(classes, dtype=features.dtype, device=features.device, requires_grad=True)
    optimiser = torch.optim.Adam([weight, bias], lr=settings.head_rate)
    step = report("head", total)
    for some in drawn.split(settings.batch):
        optimiser.zero_grad()
        mean_loss(functional.linear(features[some], weight, bias), job.targets[some]).backward()
        optimiser.step()
        step(1)
    return weight.detach(), bias.detach()


def draw_batches(job: "Job", total: int) -> Iterator[tuple[Tensor, Tensor]]:
    """`total` batches of images as the network takes them, and their targets."""
    size = job.settings.variational.batch
    drawn = _draw(job, total * size, seed=job.settings.seed + 4)
    targets = drawn.to(job.targets.device)
    for start, pixels in zip(range(0, len(drawn), size), job.pixels.draws(drawn.tolist(), size), strict=True):
        # Less what fills up a batch on a GPU: it would have no targets.
        yield job.passes.input(pixels)[: len(pixels)], job.targets[targets[start : start + size]]
