"""The Fisher by its definition: tied and untied, with noise, and in closed form for two layers."""

import copy
import itertools
from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from task2vec.probe import FilterLayer, Probe

# The Fisher by its definition: one weight gradient per image and label, squared, averaged over y ~ p.


def naive_rows(probe: Probe, images: Tensor, weight: Tensor, bias: Tensor, *, is_multilabel: bool = False) -> Tensor:
    """(images, filters): E_y |d log p(y|x) / d w_k|^2 / weights of filter k, every label enumerated, in float64."""
    network = copy.deepcopy(probe.network).double().eval().requires_grad_(True)
    weights = [network.get_submodule(layer.name).weight for layer in probe.layers]
    rows = []
    for image in images.double():
        logits = functional.linear(network(image[None])[0], weight.double(), bias.double())
        total = [torch.zeros(w.shape[0], dtype=torch.float64) for w in weights]
        for probability, log_likelihood in label_likelihoods(logits, is_multilabel):
            gradients = torch.autograd.grad(log_likelihood, weights, retain_graph=True)
            for sums, gradient in zip(total, gradients, strict=True):
                sums += probability.item() * gradient.flatten(1).square().mean(1)
        rows.append(torch.cat(total))
    return torch.stack(rows)


def label_likelihoods(logits: Tensor, is_multilabel: bool):
    """Probability and log-likelihood of every label, or of every row of attributes."""
    if not is_multilabel:
        log_p = logits.log_softmax(0)
        yield from ((p.detach().exp(), p) for p in log_p)
        return
    for labels in itertools.product((0.0, 1.0), repeat=len(logits)):
        log_p = -functional.binary_cross_entropy_with_logits(logits, torch.tensor(labels).to(logits), reduction="sum")
        yield log_p.detach().exp(), log_p


# The untied Fisher by its definition: every output of a layer has weights of its own, one gradient for each, squared.


def untied_rows(
    probe: Probe, images: Tensor, weight: Tensor, bias: Tensor, *, is_multilabel=False, by_autograd=False
) -> Tensor:
    """(images, filters): E_y sum over positions of |d log p(y|x) / d (own weights)|^2 / weights of a filter."""
    network = copy.deepcopy(probe.network).double().eval().requires_grad_(True)
    modules = [network.get_submodule(layer.name) for layer in probe.layers]
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def on_forward(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
        calls.append((module, inputs[0].detach(), out))
        return out.clone()  # what follows may work in place

    for module in modules:  # of a copy, which is gone at the end
        module.register_forward_hook(on_forward)
    measure = single_output_norms if by_autograd else patch_norms
    rows = []
    for image in images.double():
        calls.clear()
        logits = functional.linear(network(image[None])[0], weight.double(), bias.double())
        energies = [measure(module, x) for module, x, _ in calls]
        total = {module: torch.zeros(len(module.weight), dtype=torch.float64) for module in modules}
        for probability, log_likelihood in label_likelihoods(logits, is_multilabel):
            outputs = [out for _, _, out in calls]
            gradients = torch.autograd.grad(log_likelihood, outputs, retain_graph=True, materialize_grads=True)
            for (module, _, _), energy, gradient in zip(calls, energies, gradients, strict=True):
                channel = -1 if isinstance(module, nn.Linear) else 1
                squares = (gradient.square() * energy).movedim(channel, 0).flatten(1).sum(1)
                total[module] += probability.item() * squares / module.weight[0].numel()
        rows.append(torch.cat(list(total.values())))
    return torch.stack(rows)


def single_output_norms(module: nn.Module, x: Tensor) -> Tensor:
    """Like the output of any layer: the squared gradient of every single output with respect to the weights.

    The outputs of one place that belong to different filters have no weight in common, so they share a backward pass.
    """
    module = copy.deepcopy(module).requires_grad_(True)
    module._forward_hooks.clear()
    out = module(x)
    channel = out.ndim - 1 if isinstance(module, nn.Linear) else 1
    places = out.movedim(channel, -1).reshape(-1, out.shape[channel])
    norms = torch.zeros_like(places)
    for place in range(len(places)):
        (gradient,) = torch.autograd.grad(places[place].sum(), module.weight, retain_graph=True)
        norms[place] = gradient.flatten(1).square().sum(1)
    shape = out.movedim(channel, -1).shape
    return norms.reshape(shape).movedim(-1, channel).detach()


def patch_norms(module: nn.Module, x: Tensor) -> Tensor:
    """As `single_output_norms` for layers that apply their weights as they are: ones as weights, on squared inputs."""
    return with_weight(module, torch.ones_like(module.weight), x.square())


def with_weight(module: nn.Module, weight: Tensor, x: Tensor) -> Tensor:
    """The output of a layer with another weight, without bias and hooks."""
    module = copy.deepcopy(module).requires_grad_(False)
    module._forward_hooks.clear()
    biases = {"bias": torch.zeros_like(module.bias)} if module.bias is not None else {}
    return torch.func.functional_call(module, {"weight": weight} | biases, (x,))


# Noisy weights by the local reparametrisation trick as it stands in the books, with one variance per weight.


def noisy_features(
    network: nn.Module,
    layers: tuple[FilterLayer, ...],
    images: Tensor,
    deviations: Tensor,
    *,
    generator: torch.Generator,
) -> Tensor:
    """(n, d) in one pass; every weight of filter k has the deviation deviations[k]."""
    parts = deviations.split([layer.filters for layer in layers])
    with ExitStack() as hooks:
        for layer, deviation in zip(layers, parts, strict=True):
            module = network.get_submodule(layer.name)
            hooks.enter_context(module.register_forward_hook(_noise(module, deviation, generator)))
        return network(images)


def _noise(module: nn.Module, deviation: Tensor, generator: torch.Generator):
    variance = deviation.square().view(-1, *[1] * (module.weight.ndim - 1)).expand_as(module.weight)
    second = copy.deepcopy(module)  # without the hook

    def on_forward(_: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
        spread = with_weight(second, variance, inputs[0].square())
        eps = torch.empty_like(out).normal_(generator=generator)
        return out + spread.clamp_min(torch.finfo(out.dtype).tiny).sqrt() * eps

    return on_forward


# The Fisher of the two-layer sigmoid network of Achille 2019, in closed form.


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def filter_fisher(u: np.ndarray, w: np.ndarray, images: np.ndarray) -> np.ndarray:
    """(h,): the diagonal for the weights U (h, d), averaged over those of each hidden unit and the rows of `images`."""
    total = np.zeros(len(u))
    for x in images:
        z = sigmoid(u @ x)
        p = sigmoid(w @ z)
        total += p * (1 - p) * np.square(w * z * (1 - z)) * np.square(x).mean()
    return total / len(images)
