"""The robust Fisher as the paper measures it: by minimising the loss under noise, step by step.

Every step draws images uniformly over classes, passes them through the noisy network, and moves two things downhill:
the head, and the logarithm L of one precision per filter. The prior variance of a layer is put at its best value
for the current noise, which is where training it would lead (see `estimate` for the loss and its minimum).

Noise is added by the local reparametrisation trick: instead of the weights, the outputs of a layer are drawn, mean as
without noise, variance s_k^2 times the energy of the patch (see `reductions`), independently for every output. Since
every output has noise of its own, this measures the Fisher of filters that are not shared between positions
(`reductions.untied`), not that of the filter itself. The paper does the same.

The gradient of E[H] with respect to the variances is a mean curvature: the derivative of a Gaussian expectation by a
variance is half the expected second derivative (Price's theorem). With the Fisher for the Hessian, as everywhere here,
that is the squared gradient at the outputs for a label drawn from the noisy model. One pass measures a filter's part
with a standard deviation of a few times the part. The paper differentiates through the noise itself, where a pair of
opposite draws sees the curvature along the noise of *all* weights, and the standard deviation is about sqrt(n / n_k)
times the part for a filter with n_k of n weights: 70 to 380 for the filters of a ResNet-34.

What else differs from the paper does not move the minimum: the gradient of the KL is written down instead of drawn, and
the result is the mean of L over the last half of the run instead of its last value, which at a constant learning
rate never comes to rest.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from task2vec.errors import NotFiniteError, ProbeError
from task2vec.fisher.estimate import best_prior_variances, kl_divergence, spread_over_filters, weight_scales
from task2vec.fisher.per_sample import PerSampleFisher, find_infinite
from task2vec.fisher.reductions import is_plain, patch_energy
from task2vec.fisher.sampling import probabilities, term_shares, term_vectors
from task2vec.probe import FilterLayer, PreparedNetwork

# L stays within these powers of e of the layer's own weights; the optimum lies far inside.
_MIN_LOG_PRECISION = -2.0
_MAX_LOG_PRECISION = 40.0
# The part of the run whose mean is the result, in blocks whose spread gives its standard error.
_TAIL_SHARE = 0.5
_BLOCKS = 8
# Libraries choose their kernels and take their memory in the first steps, which cannot be recorded as a CUDA graph.
_WARM_UP_STEPS = 3


class NoisyNetwork:
    """The probe under noise; the gradient reaches the inputs of layers, never their weights, which stay as they are."""

    def __init__(self, network: PreparedNetwork, layers: tuple[FilterLayer, ...]):
        odd = [layer.name for layer in layers if not is_plain(network.layers[layer.name])]
        if odd:
            kind = type(network.layers[odd[0]]).__name__
            raise ProbeError(
                f"layer '{odd[0]}' of the probe is a {kind}, which transforms its weights before it applies them, so "
                "the variance of its output is not known and the variational method cannot run. Use method='robust' "
                "(--method robust)."
            )
        self.network = network
        self.layers = layers

    @contextmanager
    def noise(self, deviations: Tensor, generator: torch.Generator) -> Iterator[None]:
        """Within this context every pass through the network is noisy.

        `deviations` (filters,) are those of the probe's own weights, before batch-norm was folded into them.
        """
        blocks = deviations.split([layer.filters for layer in self.layers])
        with ExitStack() as hooks:
            for layer, deviation in zip(self.layers, blocks, strict=True):
                scale = self.network.scales.get(layer.name)
                module = self.network.layers[layer.name]
                sigma = deviation if scale is None else deviation * scale.abs()
                hook = partial(_add_noise, sigma.to(module.weight.dtype), generator)  # type: ignore[arg-type]
                hooks.callback(module.register_forward_hook(hook).remove)
            yield


def _add_noise(
    sigma: Tensor, generator: torch.Generator, module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor
) -> Tensor:
    """The output of a layer whose weights have the deviations `sigma` (filters,)."""
    # A patch of zeros has no noise, and the square root has no gradient there.
    std = patch_energy(module, inputs[0]).clamp_min(torch.finfo(out.dtype).tiny).sqrt()
    shape, spread = out, sigma
    if not isinstance(module, nn.Linear):
        groups = std.shape[1]
        after = [1] * (out.ndim - 2)
        if 1 < groups < out.shape[1]:
            shape = out.unflatten(1, (groups, -1))
            std = std.unsqueeze(2)
        spread = sigma.view(1, *shape.shape[1 : shape.ndim - len(after)], *after)
    # On a CPU the layout of a map depends on the network, and it decides which number is drawn where.
    layout = torch.preserve_format if out.is_cuda else torch.contiguous_format
    eps = torch.empty_like(shape, memory_format=layout).normal_(generator=generator)
    noisy = torch.addcmul(shape, std * spread, eps)  # of the maps, autograd keeps eps alone
    # No view where none is needed: an in-place ReLU after it would copy the whole map.
    return noisy if shape is out else noisy.flatten(1, 2)


@dataclass(frozen=True)
class Minimum:
    """The result of a run: L and its standard error per filter, prior variance per layer, the head, and convergence.

    `drift` is the root mean square change of L between the means of the last two epochs, `trend` that between the two
    halves of the tail, and `speed` the drift per step as a part of the learning rate: 1 is the fastest that Adam moves.
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
    rate: float = 1e-2,
    head_rate: float = 1e-4,
    watch: Callable[[int, Tensor], None] = lambda step, log_precision: None,
) -> Minimum:
    """The minimum of the loss over the precisions and, if `head_rate` is positive, the head.

    Args:
        network: the probe under noise.
        batches: more than `steps` pairs of normalised images and targets, drawn with the probability they count. L
            begins at the closed form of the curvature of the first.
        weight: of the head, (classes, features), where it begins.
        bias: of the head.
        beta: weight of the KL beside the mean loss.
        steps: how many batches to take.
        steps_per_epoch: how many of them make an epoch, the unit of the drift.
        generator: of the noise and the labels.
        rate: learning rate of L.
        head_rate: learning rate of the head; 0 keeps it fixed.
        watch: called with the number of the step and L after every step.
    """
    layers = network.layers
    scales = weight_scales(layers).to(weight)
    size = spread_over_filters(scales, layers).log()
    supply = iter(batches)
    _, fisher = fisher_under_noise(network, *next(supply), torch.zeros_like(size), (weight, bias), generator)
    log_precision = (fisher / beta + (-size).exp()).log().to(weight)
    head = (weight.clone().requires_grad_(head_rate > 0), bias.clone().requires_grad_(head_rate > 0))
    groups = [{"params": [log_precision], "lr": rate}]
    groups += [{"params": list(head), "lr": head_rate}] if head_rate > 0 else []
    downhill = torch.zeros_like(log_precision)
    log_precision.grad = downhill  # filled in place, as are those of the head
    head[0].grad, head[1].grad = (torch.zeros_like(values) for values in head)
    optimiser = torch.optim.Adam(groups, capturable=log_precision.is_cuda)

    def advance(images: Tensor, targets: Tensor) -> Tensor:
        optimiser.zero_grad(set_to_none=False)
        variances = (-log_precision).exp()
        loss, fisher = fisher_under_noise(network, images, targets, variances.sqrt(), head, generator)
        slope = -variances / 2 * fisher  # of the mean loss by L, per weight of a filter
        prior = spread_over_filters(best_prior_variances(variances, scales, layers), layers)
        # In units of beta times the number of weights, all filters have similar gradients, far above Adam's epsilon.
        downhill.copy_(slope / beta + (1 - variances / prior) / 2)
        optimiser.step()
        torch.clamp(log_precision, _MIN_LOG_PRECISION - size, _MAX_LOG_PRECISION - size, out=log_precision)
        return loss

    move = GraphedStep(advance, generator) if weight.is_cuda and network.network.is_batched else advance
    record = _Record(steps, steps_per_epoch)
    for step in range(steps):
        loss = move(*next(supply))
        if name := find_infinite(downhill, layers):
            raise NotFiniteError(
                f"the noise gradient of layer '{name}' is not finite in step {step + 1} (loss {float(loss):.3g}), so "
                "the embedding would be meaningless and nothing was saved. Use a smaller beta or learning rate "
                "(EmbedSettings), or higher precision: dtype='float64' (--dtype float64)."
            )
        record.add(log_precision, loss)
        watch(step, log_precision)
    mean, stderr, trend, drift, last_loss = record.summarise()
    prior = best_prior_variances((-mean).exp(), scales, layers)
    return Minimum(
        log_precision=mean,
        stderr=stderr,
        prior_variances=prior,
        weight=head[0].detach(),
        bias=head[1].detach(),
        loss=last_loss,
        kl=float(kl_divergence(mean, prior, layers)),
        drift=drift,
        trend=trend,
        speed=drift / (rate * record.length),
    )


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
    weight, bias = (values.detach() for values in head)
    is_multilabel = targets.ndim == 2

    def seeds(features: Tensor) -> Tensor:
        """(1, n, d): gradient at the features for one term of each image, drawn by its share and weighted for it."""
        passed.append(features)
        p = probabilities(functional.linear(features.to(weight), weight, bias), is_multilabel=is_multilabel)
        shares = term_shares(p, weight, is_multilabel=is_multilabel) + 1e-300
        shares = shares / shares.sum(1, keepdim=True)
        # For features that are not finite any term will do: `minimise` refuses the result and names the layer.
        chances = torch.where(torch.isfinite(shares).all(1, keepdim=True), shares, 1.0)
        # The smallest of exponential draws: a multinomial draw that a CUDA graph can record.
        terms = (chances / torch.empty_like(chances).exponential_(generator=generator)).argmax(1)
        everyone = torch.arange(len(p), device=p.device)
        vectors = term_vectors(p, everyone, terms, is_multilabel=is_multilabel)
        vectors = vectors / shares[everyone, terms].sqrt()[:, None]
        return (vectors.to(weight) @ weight).to(features.dtype)[None]

    fisher = PerSampleFisher(network.network, network.layers, is_untied=True)
    with network.noise(deviations, generator):
        rows = fisher.rows(images, seeds)
    loss = mean_loss(functional.linear(torch.cat(passed).to(weight), *head), targets)
    if loss.requires_grad:
        loss.backward()
    return loss.detach(), rows.mean(0)


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy averaged over images; for rows of attributes, the sum of the binary ones."""
    if targets.ndim == 2:
        losses = functional.binary_cross_entropy_with_logits(logits, targets.to(logits), reduction="none")
        return losses.sum(1).mean()
    return functional.cross_entropy(logits, targets)


class _Record:
    """Means of L and of the loss over the blocks of the tail and over the last two epochs, from one running sum."""

    def __init__(self, steps: int, steps_per_epoch: int):
        self.steps = steps
        self.length = min(steps_per_epoch, max(1, steps // 2))
        tail = max(1, round(steps * _TAIL_SHARE))
        starts = list(range(steps - tail, steps, max(1, tail // _BLOCKS)))
        self.blocks = [*starts[:_BLOCKS], steps]
        self.marks = {*self.blocks, steps - self.length, steps - 2 * self.length}
        self.step = 0
        self.total = torch.zeros(())
        self.sums = {0: self.total}  # by the number of steps that they are over

    def add(self, log_precision: Tensor, loss: Tensor) -> None:
        self.step += 1
        self.total = self.total + torch.cat([log_precision, loss.detach().reshape(1)]).double()
        if self.step in self.marks:
            self.sums[self.step] = self.total

    def _mean(self, first: int, last: int) -> Tensor:
        return (self.sums[last] - self.sums[first]) / (last - first)

    def summarise(self) -> tuple[Tensor, Tensor, float, float, float]:
        """Mean of L over the tail and its standard error, trend, drift, and the mean loss of the last epoch.

        A run too short for two blocks has an error and a trend of 1, a factor of e; a single step has a drift of 1.
        """
        means = torch.stack([self._mean(*ends) for ends in pairwise(self.blocks)])[:, :-1]
        total = self._mean(self.blocks[0], self.steps)[:-1]
        stderr = torch.ones_like(total)
        trend = 1.0
        drift = 1.0
        if len(means) > 1:
            first, second = means.tensor_split(2)
            stderr = means.std(0) / len(means) ** 0.5
            trend = _root_mean_square(first.mean(0) - second.mean(0))
        middle = self.steps - self.length
        last = self._mean(middle, self.steps)
        if self.steps > 1:
            drift = _root_mean_square((last - self._mean(middle - self.length, middle))[:-1])
        return total, stderr, trend, drift, float(last[-1])


def _root_mean_square(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


class GraphedStep:
    """Calls `step` on a GPU, which returns its loss; after the first times from a recording, with the same results.

    A step under noise is hundreds of small kernels, which Python takes four times as long to launch as the GPU to run.
    So the first steps run as written, then one is recorded as a CUDA graph, and from there on a step is one launch.
    The step must keep its state in tensors that it changes in place, and draw from `generator` only. One that cannot be
    recorded (it reads a value, or its batches change their size) runs as written.
    """

    def __init__(self, step: Callable[[Tensor, Tensor], Tensor], generator: torch.Generator):
        self.step = step
        self.generator = generator
        self.calls = 0
        self.is_recordable = True
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, images: Tensor, targets: Tensor) -> Tensor:
        """The loss of the step on this batch; overwritten by the next call."""
        self.calls += 1
        if self.calls <= _WARM_UP_STEPS:
            return self._warm_up(images, targets)
        if self.graph is None and self.is_recordable:
            self._record(images, targets)
        if self.graph is None or images.shape != self.images.shape or targets.shape != self.targets.shape:
            return self.step(images, targets)
        self.images.copy_(images)
        self.targets.copy_(targets)
        self.graph.replay()
        return self.loss

    def _warm_up(self, images: Tensor, targets: Tensor) -> Tensor:
        """A step on a stream beside the usual one, where it will be recorded."""
        side = torch.cuda.Stream(images.device)
        side.wait_stream(torch.cuda.current_stream(images.device))
        with torch.cuda.stream(side):
            loss = self.step(images, targets)
        torch.cuda.current_stream(images.device).wait_stream(side)
        return loss

    def _record(self, images: Tensor, targets: Tensor) -> None:
        self.images = images.clone()
        self.targets = targets.clone()
        graph, spare = torch.cuda.CUDAGraph(), self.generator.clone_state()
        graph.register_generator_state(self.generator)
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # others bring images meanwhile
                self.loss = self.step(self.images, self.targets)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError:  # a layer that a graph cannot hold: slower, not wrong
            self.generator.graphsafe_set_state(spare)
            self.is_recordable = False
            return
        self.graph = graph
