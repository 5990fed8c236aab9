"""The paper's optimisation on a task: a head trained for two epochs, then head and noise together."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from task2vec.errors import ResourceError
from task2vec.fisher import FisherEstimate, NoisyNetwork, mean_loss, minimise, spread_over_filters
from task2vec.head import Head
from task2vec.progress import Report

if TYPE_CHECKING:
    from task2vec.embedding.single import Job

# Above this change of L from epoch to epoch or between the halves of what is reported (root mean square over the
# filters), or this part of the optimiser's top speed, a run has not converged; the speed catches short epochs.
_MOST_DRIFT, _MOST_SPEED = 0.1, 0.1


def measure_noise(
    job: "Job", features: Tensor, head: Head, report: Report
) -> tuple[FisherEstimate, Tensor, list[str], dict[str, Any]]:
    """The Fisher behind the noise that the weights tolerate, the prior, warnings, and further provenance.

    `head` is the converged one, used if it is to stay fixed.
    """
    settings, layers = job.settings.variational, job.passes.probe.layers
    # What is trained is at least single precision, whatever the probe runs in: small steps would be lost.
    dtype, is_joint = torch.promote_types(job.passes.dtype, torch.float32), settings.head == "joint"
    weight, bias = train_head(job, features, report) if is_joint else (head.weight, head.bias)
    beta, total = job.settings.beta / len(job.task), settings.epochs * settings.steps_per_epoch
    step = report("noise", total)
    try:
        found = minimise(
            NoisyNetwork(job.passes.network, layers),
            draw_batches(job, total + 1),
            weight=weight.to(job.device, dtype),
            bias=bias.to(job.device, dtype),
            beta=beta,
            steps=total,
            steps_per_epoch=settings.steps_per_epoch,
            generator=torch.Generator(job.device).manual_seed(job.settings.seed + 2),
            rate=settings.rate,
            head_rate=settings.head_rate if is_joint else 0.0,
            watch=lambda number, log_precision: step(1),
        )
    except torch.cuda.OutOfMemoryError as error:
        raise ResourceError(
            f"the GPU has not enough memory for {settings.batch} noisy images at a time. The batch size changes the "
            f"numbers and is not reduced automatically: use VariationalSettings(batch={max(1, settings.batch // 2)})."
        ) from error
    prior = beta / spread_over_filters(found.prior_variances, layers)
    vector = beta * found.log_precision.exp()
    fisher, stderr, images = (vector - prior).clamp_min(0), vector * found.stderr, len(job.task)
    estimate = FisherEstimate(fisher.cpu(), stderr.cpu(), images, total * settings.batch, float(images))
    has_converged = max(found.drift, found.trend) <= _MOST_DRIFT and found.speed <= _MOST_SPEED
    story = {"loss": found.loss, "kl": found.kl, "drift": found.drift, "trend": found.trend}
    warning = (
        "the variational training has not converged: the precisions still changed by a factor of "
        f"{math.exp(found.drift):.2f} from epoch to epoch and of {math.exp(found.trend):.2f} between the halves of "
        f"what is reported (root mean square over filters), at {100 * found.speed:.0f} % of the optimiser's top "
        "speed: raise epochs= (--epochs)"
    )
    more = {"variational": story | {"has_converged": has_converged}}
    return estimate, prior.cpu(), [] if has_converged else [warning], more


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
    batches = job.passes.pixels.draws(job.places[drawn].tolist(), size)
    for pixels, some in zip(batches, drawn.to(job.device).split(size), strict=True):
        # Less what fills up a batch on a GPU: it would have no targets.
        yield job.passes.input(pixels)[: len(pixels)], job.targets[some]
