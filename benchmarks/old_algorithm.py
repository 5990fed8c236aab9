"""The Fisher as the first public Task2Vec code estimates it, for comparison.

10,000 images are drawn with replacement, uniformly over the classes, in batches of B = 64, with labels y ~ p from the
model. For every batch the gradient of the *mean* loss with respect to all filter weights is squared; the squares are
averaged over batches and over the weights of each filter. Scores have mean zero under y ~ p, so the cross terms of the
square vanish in expectation, E[(mean of B scores)^2] = F / B, and B times the average estimates the same F as ours.

Two faults of the original are corrected, so that both estimate the same quantity: the probe is in eval mode, and the
head is the converged one. The network is the probe as it came, batch-norm and all; both sides keep decoded images.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.stages import Fitted

DRAWS = 10_000
BATCH = 64


@dataclass(frozen=True)
class Progress:
    """The estimate after so many draws, and the seconds spent on them."""

    draws: int
    fisher: Tensor
    seconds: float


def old_fisher(fitted: Fitted, *, batches: int, clock: Callable[[], float], seed: int = 0) -> Iterator[Progress]:
    """The running estimate after every batch; seconds count only while the algorithm works, not while we look at it."""
    probe, head = fitted.run.passes.probe, fitted.head
    device = fitted.pixels.device
    network, weights = _with_free_filters(probe.network, [layer.name for layer in probe.layers], device)
    matrix, bias = head.weight.float(), head.bias.float()
    generator = torch.Generator().manual_seed(seed)
    totals = [torch.zeros(len(weight), dtype=torch.float64, device=device) for weight in weights]
    seconds = 0.0
    for batch in range(1, batches + 1):
        start = clock()
        images = probe.preprocess.normalise(_draw_images(fitted, generator), torch.float32)
        logits = network(images) @ matrix.T + bias
        labels = torch.multinomial(logits.detach().softmax(1).cpu(), 1, generator=generator).flatten().to(device)
        gradients = torch.autograd.grad(nn.functional.cross_entropy(logits, labels), weights)
        for total, gradient in zip(totals, gradients, strict=True):
            total += gradient.flatten(1).square().mean(1)
        seconds += clock() - start
        yield Progress(batch * BATCH, torch.cat(totals).cpu() * BATCH / batch, seconds)


def _with_free_filters(network: nn.Module, names: list[str], device: torch.device) -> tuple[nn.Module, list[Tensor]]:
    """A copy of `network` whose filter weights take gradients, and those weights."""
    network = copy.deepcopy(network).to(device)
    modules = dict(network.named_modules())
    return network, [modules[name].weight.requires_grad_() for name in names]


def _draw_images(fitted: Fitted, generator: torch.Generator) -> Tensor:
    """One batch of pixels: a class at random, then one of its images at random, with replacement."""
    targets = torch.from_numpy(fitted.task.targets.copy())
    weights = 1 / torch.bincount(targets)[targets].double()
    indices = torch.multinomial(weights, BATCH, replacement=True, generator=generator)
    [(_, pixels)] = fitted.pixels.batches(indices.tolist(), BATCH)
    return pixels
