"""The robust Fisher as the paper measures it: by minimising the loss under noise, step by step.

Every step draws images uniformly over classes, passes them through the noisy network, and moves two things downhill:
the head, and the logarithm L of one precision per filter. The prior variance of a layer is put at its best value
for the noise of the moment, which is where training it would lead (see `posterior` for the loss and its minimum).

There are two ways to the gradient of E[H] with respect to the variances:

* "noise", the paper's: through the noise itself (`noise`; reparametrisation). Its signal is weak. A pair of opposite
  draws sees the curvature along the noise of *all* weights, of which the wanted filter holds n_k of n: one pair tells
  its part with a standard deviation of about sqrt(n / n_k) times the part, 70 to 380 for the filters of a ResNet-34.
* "curvature": the derivative of a Gaussian expectation by a variance is half the expected second derivative
  (Price's theorem), so the mean curvature at noisy points is the gradient. With the Fisher for the Hessian, as
  everywhere here, that is the squared gradient at the outputs for a label drawn from the noisy model: one pass tells a
  filter's part with a standard deviation of a few times the part. The minimum is the same but for that exchange.

What else differs from the paper does not move the minimum: the gradient of the KL is written down instead of drawn, and
what is reported is the mean of L over the last half of the run instead of its last value, which at a constant learning
rate never comes to rest.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from task2vec.errors import NotFiniteError
from task2vec.fisher.engine import Engine
from task2vec.fisher.noise import NoisyNetwork
from task2vec.fisher.posterior import (
    best_prior_variances,
    kl_divergence,
    spread_over_filters,
    weight_scales,
    weights_per_filter,
)
from task2vec.fisher.replay import Replay
from task2vec.fisher.terms import probabilities, term_shares, term_vectors
from task2vec.probe import FilterLayer

# Noise begins at a tenth of the weights of each layer: small enough for the network to work, the same for all filters.
_FIRST_NOISE = 0.1
# L stays within these powers of e of the layer's own weights; the optimum lies far inside.
_LOWEST, _HIGHEST = -2.0, 40.0
# The part of the run whose mean is reported, in blocks that tell how much it still varies.
_TAIL, _BLOCKS = 0.5, 8


@dataclass(frozen=True)
class Minimum:
    """Where the run ended: L and its standard error per filter, prior variance per layer, and how it came to rest.

    `drift` is the root mean square change of L between the means of the last two epochs, `trend` that between the two
    halves of the part that is reported, and `speed` the drift per step as a part of the learning rate: 1 is the fastest
    that Adam moves.
    """

    log_precision: Tensor
    stderr: Tensor
    prior_variances: Tensor
    weight: Tensor
    bias: Tensor
    loss: float
    kl: float
    drift: float
    trend: float
    speed: float


def minimise(
    network: NoisyNetwork,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    weight: Tensor,
    bias: Tensor,
    beta: float,
    steps: int,
    steps_per_epoch: int,
    generator: torch.Generator,
    gradient: str = "curvature",
    rate: float = 1e-2,
    head_rate: float = 1e-4,
    start: Tensor | None = None,
    watch: Callable[[int, Tensor], None] = lambda step, log_precision: None,
) -> Minimum:
    """The minimum of the loss over the precisions and, if `head_rate` is positive, the head.

    Args:
        network: the probe under noise.
        batches: more than `steps` pairs of normalised images and targets, drawn as they shall count.
        weight: of the head, (classes, features), where it begins.
        bias: of the head.
        beta: weight of the KL beside the mean loss.
        steps: how many batches to take.
        steps_per_epoch: how many of them make an epoch: drift is told by the epoch.
        generator: of the noise and the labels.
        gradient: "curvature" or "noise".
        rate: learning rate of L.
        head_rate: learning rate of the head; 0 holds it fixed.
        start: where L begins; None for the same noise in all filters of a layer, or with "curvature" for what the first
            batch tells.
        watch: told L after every step.
    """
    layers = network.layers
    scales = weight_scales(layers).to(weight)
    size = spread_over_filters(scales, layers).log()
    head = (weight.clone().requires_grad_(head_rate > 0), bias.clone().requires_grad_(head_rate > 0))
    supply = iter(batches)
    if start is None and gradient == "curvature":
        start = _first_guess(network, *next(supply), head, scales, beta, generator)
    log_precision = (-2 * math.log(_FIRST_NOISE) - size if start is None else start.to(weight)).clone()
    optimiser = _adam(log_precision, head, rate=rate, head_rate=head_rate)
    look = curvature_gradient if gradient == "curvature" else noise_gradient
    downhill = log_precision.grad
    assert downhill is not None

    def advance(images: Tensor, targets: Tensor) -> Tensor:
        optimiser.zero_grad(set_to_none=False)
        loss, slope = look(network, images, targets, log_precision, head, generator)
        variances = (-log_precision).exp()
        prior = spread_over_filters(best_prior_variances(variances, scales, layers), layers)
        # In units of beta times the weights of the filter all filters are alike, and Adam's epsilon is small.
        downhill.copy_(slope / beta + (1 - variances / prior) / 2)
        optimiser.step()
        torch.clamp(log_precision, _LOWEST - size, _HIGHEST - size, out=log_precision)
        return loss

    move = Replay(advance, generator, is_recordable=network.network.is_batched)
    record = _Record(steps, steps_per_epoch)
    for step in range(steps):
        loss = move(*next(supply))
        _check_gradient(downhill, loss, layers, step)
        record.add(log_precision, loss)
        watch(step, log_precision)
    mean, stderr = record.tail()
    prior = best_prior_variances((-mean).exp(), scales, layers)
    drift = record.drift()
    return Minimum(
        log_precision=mean,
        stderr=stderr,
        prior_variances=prior,
        weight=head[0].detach(),
        bias=head[1].detach(),
        loss=record.loss(),
        kl=float(kl_divergence(mean, prior, layers)),
        drift=drift,
        trend=record.trend(),
        speed=drift / (rate * record.length),
    )


def _adam(log_precision: Tensor, head: tuple[Tensor, Tensor], *, rate: float, head_rate: float) -> torch.optim.Adam:
    """The optimiser of L and, unless its rate is zero, of the head; gradients are made now, to be filled in place."""
    groups = [{"params": [log_precision], "lr": rate}]
    groups += [{"params": list(head), "lr": head_rate}] if head_rate > 0 else []
    for group in groups:
        for part in group["params"]:
            part.grad = torch.zeros_like(part)
    return torch.optim.Adam(groups, capturable=log_precision.is_cuda)


def noise_gradient(
    network: NoisyNetwork,
    images: Tensor,
    targets: Tensor,
    log_precision: Tensor,
    head: tuple[Tensor, Tensor],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Mean loss under pairs of opposite noise, and its derivative by L per weight of a filter; also of the head."""
    free = log_precision.detach().requires_grad_()
    features = network.features(images, (-free / 2).exp(), generator=generator)
    loss = mean_loss(functional.linear(features.to(head[0]), *head), torch.cat([targets, targets]))
    loss.backward()
    assert free.grad is not None
    return loss.detach(), free.grad / weights_per_filter(network.layers, free.device)


def curvature_gradient(
    network: NoisyNetwork,
    images: Tensor,
    targets: Tensor,
    log_precision: Tensor,
    head: tuple[Tensor, Tensor],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """As `noise_gradient`, by Price's theorem: - variance / 2 times the mean Fisher of the filter under noise."""
    variances = (-log_precision).exp()
    loss, fisher = fisher_under_noise(network, images, targets, variances.sqrt(), head, generator)
    return loss, -variances / 2 * fisher


def fisher_under_noise(
    network: NoisyNetwork,
    images: Tensor,
    targets: Tensor,
    deviations: Tensor,
    head: tuple[Tensor, Tensor],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Mean loss of noisy images and their untied Fisher, one label drawn for each; also the gradient of the head."""
    passed = []

    def seeds(features: Tensor) -> Tensor:
        passed.append(features)
        return _label_seeds(features, head, generator, is_multilabel=targets.ndim == 2)

    engine = Engine(network.network, network.layers, is_untied=True)
    with network.noise(deviations, generator):
        rows = engine.rows(images, seeds)
    loss = mean_loss(functional.linear(torch.cat(passed).to(head[0]), *head), targets)
    if loss.requires_grad:
        loss.backward()
    return loss.detach(), rows.mean(0)


def _first_guess(
    network: NoisyNetwork,
    images: Tensor,
    targets: Tensor,
    head: tuple[Tensor, Tensor],
    scales: Tensor,
    beta: float,
    generator: torch.Generator,
) -> Tensor:
    """L from the curvature of one batch without noise: the way from there is short."""
    precision = 1 / spread_over_filters(scales, network.layers)
    fixed = (head[0].detach(), head[1].detach())
    _, fisher = fisher_under_noise(network, images, targets, torch.zeros_like(precision), fixed, generator)
    return (fisher / beta + precision).log()


def _label_seeds(
    features: Tensor, head: tuple[Tensor, Tensor], generator: torch.Generator, *, is_multilabel: bool
) -> Tensor:
    """(1, n, d): gradient at the features for one term of each image, drawn by its share and weighted for it."""
    weight, bias = head[0].detach(), head[1].detach()
    p = probabilities(functional.linear(features.to(weight), weight, bias), is_multilabel=is_multilabel)
    shares = term_shares(p, weight, is_multilabel=is_multilabel) + 1e-300
    shares = shares / shares.sum(1, keepdim=True)
    # Of features that are not finite any term will do: what comes of it is refused by name (see `_check_gradient`).
    chances = torch.where(torch.isfinite(shares).all(1, keepdim=True), shares, 1.0)
    # The first of some exponential clocks: a multinomial draw that a CUDA graph can hold.
    terms = (chances / torch.empty_like(chances).exponential_(generator=generator)).argmax(1)
    everyone = torch.arange(len(p), device=p.device)
    vectors = term_vectors(p, everyone, terms, is_multilabel=is_multilabel) / shares[everyone, terms].sqrt()[:, None]
    return (vectors.to(weight) @ weight).to(features.dtype)[None]


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy averaged over images; for rows of attributes, the sum of the binary ones."""
    if targets.ndim == 2:
        losses = functional.binary_cross_entropy_with_logits(logits, targets.to(logits), reduction="none")
        return losses.sum(1).mean()
    return functional.cross_entropy(logits, targets)


def _check_gradient(gradient: Tensor, loss: Tensor, layers: tuple[FilterLayer, ...], step: int) -> None:
    if bool(torch.isfinite(gradient).all()):
        return
    parts = gradient.split([layer.filters for layer in layers])
    name = next(layer.name for layer, part in zip(layers, parts, strict=True) if not bool(torch.isfinite(part).all()))
    raise NotFiniteError(
        f"the gradient of the noise of layer '{name}' is not finite in step {step + 1} (loss {float(loss):.3g}), so "
        "the embedding would be meaningless and nothing was saved. Take a smaller beta (--beta) or learning rate, or "
        "higher precision: dtype='float64', --dtype float64."
    )


class _Record:
    """Running means of L: over the blocks of the tail, and over the last two epochs."""

    def __init__(self, steps: int, steps_per_epoch: int):
        self.steps, self.length = steps, min(steps_per_epoch, max(1, steps // 2))
        self.begin = steps - max(1, round(steps * _TAIL))
        self.block = max(1, (steps - self.begin) // _BLOCKS)
        self.blocks: list[tuple[Tensor, int]] = []
        self.epochs: dict[int, Tensor] = {}
        self.losses: list[Tensor] = []
        self.step = 0

    def add(self, log_precision: Tensor, loss: Tensor) -> None:
        now = log_precision.detach().double()
        if self.step >= self.begin:
            number = min((self.step - self.begin) // self.block, _BLOCKS - 1)
            if number == len(self.blocks):
                self.blocks.append((torch.zeros_like(now), 0))
            total, count = self.blocks[number]
            self.blocks[number] = (total + now, count + 1)
        ago = (self.steps - 1 - self.step) // self.length  # 0 in the last epoch, 1 in the one before
        if ago < 2:
            self.epochs[ago] = self.epochs.get(ago, torch.zeros_like(now)) + now / self.length
        if ago == 0:
            self.losses.append(loss.detach().clone())
        self.step += 1

    def tail(self) -> tuple[Tensor, Tensor]:
        """Mean of L over the tail, and its standard error from the spread of the blocks."""
        total = torch.stack([part for part, _ in self.blocks]).sum(0) / sum(count for _, count in self.blocks)
        if len(self.blocks) < 2:
            return total, torch.ones_like(total)  # a run too short to tell: a factor of e either way
        means = torch.stack([part / count for part, count in self.blocks])
        return total, means.std(0) / len(self.blocks) ** 0.5

    def trend(self) -> float:
        """Root mean square difference of L between the two halves of the tail; 1 if it is too short to have two."""
        if len(self.blocks) < 2:
            return 1.0
        means = torch.stack([part / count for part, count in self.blocks])
        first, second = means.tensor_split(2)
        return float((first.mean(0) - second.mean(0)).square().mean().sqrt())

    def drift(self) -> float:
        """Root mean square change of L between the means of the last two epochs (halves of a run of one)."""
        if len(self.epochs) < 2:
            return 1.0  # a single step tells nothing
        return float((self.epochs[0] - self.epochs[1]).square().mean().sqrt())

    def loss(self) -> float:
        return float(torch.stack(self.losses).double().mean())
