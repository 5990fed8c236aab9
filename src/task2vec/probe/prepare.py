"""Networks made ready to run: attention written out, filters found, batch-norm folded, input gradients made fast.

A filter is one output channel of a convolution or one output unit of a linear layer. Scales and shifts of batch-norm
and layer-norm, position embeddings and class tokens are not filters; the head has been removed before. A layer that the
forward pass never reaches (an auxiliary classifier in eval mode) has no Fisher and is left out.

Folding. In eval mode a batch-norm is a fixed scale s and shift per channel, so conv and batch-norm are one convolution
with weights sW. The score with respect to the original weights is s times the score with respect to the folded ones,
hence F(original) = s^2 F(folded): folding is exact for the Fisher, and saves a pass over every map in both directions.
Which batch-norm follows which convolution is seen in a trial pass rather than in a traced graph, so networks that
cannot be traced fold too. A fold is kept only if the features stay the same in float64.

Input gradients. With stride 1 the gradient at the input is the gradient at the output convolved with the flipped
kernel. oneDNN on ARM computes this three times faster than its own input gradient, up to thirteen times for depthwise
layers. The choice depends on platform and layer alone, never on a measurement, so that results repeat.
"""

import copy
import platform
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from task2vec.errors import ProbeError
from task2vec.probe.layers import FilterLayer


@dataclass(frozen=True)
class PreparedNetwork:
    """The network that runs, its filter layers by name, and the factor of each folded layer's score.

    `is_batched` is False if some layer mixes the images of a batch or has no image axis (a table of relative positions
    that all images share): such a network is run one image at a time.
    """

    module: nn.Module
    layers: dict[str, nn.Module]
    scales: dict[str, Tensor]
    is_batched: bool


@dataclass(frozen=True)
class Trace:
    """What a trial pass saw: calls per layer, producer of each batch-norm's input, rows that each layer took in."""

    calls: dict[str, int]
    feeds: dict[str, str]
    leading: dict[str, int]
    features: Tensor


def trace(network: nn.Module, images: Tensor) -> Trace:
    """Runs `images` through `network` once and notes how its layers are used."""
    calls: dict[str, int] = {}
    feeds: dict[str, str] = {}
    leading: dict[str, int] = {}
    producer: dict[int, str] = {}
    alive: list[Tensor] = []  # a tensor's id means nothing once the tensor is gone

    def note(name: str, module: nn.Module, inputs: tuple, output: object) -> None:
        is_filter_layer = isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)
        if is_filter_layer and isinstance(output, Tensor):
            calls[name] = calls.get(name, 0) + 1
            leading[name] = inputs[0].shape[0]
            producer[id(output)] = name
            alive.append(output)
        elif inputs and isinstance(inputs[0], Tensor) and id(inputs[0]) in producer:
            feeds.setdefault(name, producer[id(inputs[0])])

    handles = [
        module.register_forward_hook(lambda m, i, o, n=name: note(n, m, i, o))
        for name, module in network.named_modules()
    ]
    try:
        with torch.no_grad():
            features = network(images)
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(features, Tensor) or features.ndim != 2 or features.shape[0] != images.shape[0]:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ProbeError(
            f"without its head the probe returns {shape} for {images.shape[0]} images; one feature vector per image is "
            "needed. Name the last linear layer as the head: load_probe(module, head='fc', ...)"
        )
    return Trace(calls, feeds, leading, features)


def enumerate_filters(network: nn.Module, seen: Trace) -> tuple[FilterLayer, ...]:
    """The filter layers of `network` in the order of its modules, those that the trial pass reached."""
    layers = []
    for name, module in network.named_modules():
        if name in seen.calls:
            weight: Tensor = module.weight  # type: ignore[assignment]
            kind = "linear" if isinstance(module, nn.Linear) else "convolution"
            square = weight.detach().double().square().mean().item()
            layers.append(FilterLayer(name, kind, weight.shape[0], weight[0].numel(), square))
    if not layers:
        raise ProbeError(
            "the probe has no convolution and no linear layer besides its head, so there are no filters to measure. "
            "Use another network."
        )
    return tuple(layers)


def prepare(
    network: nn.Module, names: tuple[str, ...], images: Tensor, *, fold: bool = True, flip: bool = False
) -> PreparedNetwork:
    """A folded float64 copy of `network`, checked on `images` against the original.

    With `flip`, convolutions of stride 1 compute their input gradient as a forward convolution.
    """
    plain = copy.deepcopy(network).double()
    images = images.double()
    seen = trace(plain, images)
    module, scales = plain, {}
    if fold:
        folded = copy.deepcopy(plain)
        scales = _fold(folded, seen)
        if scales and torch.allclose(trace(folded, images).features, seen.features, rtol=1e-8, atol=1e-10):
            module = folded
        else:
            scales = {}
    module.requires_grad_(False)
    modules = dict(module.named_modules())
    for name in names if flip else ():
        if seen.calls[name] == 1:
            flip_input_gradient(modules[name])
    is_batched = _keeps_image_axis(plain, images, seen)
    return PreparedNetwork(module, {name: modules[name] for name in names}, scales, is_batched)


def _keeps_image_axis(network: nn.Module, images: Tensor, seen: Trace) -> bool:
    """Whether every layer sees k rows per image, whatever the batch, and no image changes another's features."""
    alone = trace(network, images[:1])
    count = images.shape[0]
    if any(count * alone.leading[name] != rows for name, rows in seen.leading.items()):
        return False
    return torch.allclose(alone.features[0], seen.features[0], rtol=1e-8, atol=1e-10)


def _fold(network: nn.Module, seen: Trace) -> dict[str, Tensor]:
    """Folds every batch-norm of `network` that directly follows a convolution, in place; the scales by convolution."""
    modules = dict(network.named_modules())
    scales: dict[str, Tensor] = {}
    for name, source in seen.feeds.items():
        norm, conv = modules[name], modules[source]
        if not isinstance(norm, _BatchNorm) or norm.running_var is None or type(conv) is nn.Linear:
            continue
        if seen.calls[source] != 1 or source in scales:
            continue
        scale = torch.rsqrt(norm.running_var + norm.eps)
        scale = scale * norm.weight if norm.weight is not None else scale
        shift = -norm.running_mean * scale  # type: ignore[operator]
        shift = shift + norm.bias if norm.bias is not None else shift
        weight, bias = conv.weight.detach(), conv.bias  # type: ignore[union-attr]
        conv.weight = nn.Parameter(weight * scale.view(-1, *[1] * (weight.ndim - 1)))  # type: ignore[operator]
        conv.bias = nn.Parameter(shift if bias is None else shift + bias.detach() * scale)  # type: ignore[operator]
        replace_module(network, name, getattr(norm, "act", None) or nn.Identity())  # timm's carries the activation
        scales[source] = scale.detach()
    return scales


def replace_module(network: nn.Module, name: str, module: nn.Module) -> None:
    """Puts `module` in the place of the submodule `name` of `network`."""
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, module)


class _FlippedConvolution(torch.autograd.Function):
    """A convolution with stride 1 that computes its input gradient only: the weights are frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, conv: "FlippedConv2d") -> Tensor:
        ctx.conv = conv
        return functional.conv2d(x, conv.weight, conv.bias, 1, conv.padding, 1, conv.groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        conv = ctx.conv
        return functional.conv2d(gradients[0], conv.flipped, None, 1, conv.reach, 1, conv.groups), None


class FlippedConv2d(nn.Conv2d):
    """A frozen convolution of stride 1 together with its flipped kernel."""

    flipped: Tensor
    reach: tuple[int, int]

    def forward(self, input: Tensor) -> Tensor:
        """The convolution."""
        return _FlippedConvolution.apply(input, self)  # type: ignore[return-value]


def is_flip_faster() -> bool:
    """Whether this platform computes input gradients faster as forward convolutions."""
    return platform.machine().lower() in ("aarch64", "arm64")


def flip_input_gradient(conv: nn.Module) -> None:
    """Turns a plain convolution of stride 1 (dense or depthwise, our own copy) into a flipped one; ignores others."""
    if type(conv) is not nn.Conv2d or conv.stride != (1, 1) or conv.dilation != (1, 1) or conv.padding_mode != "zeros":
        return
    is_depthwise = conv.groups == conv.in_channels == conv.out_channels
    if isinstance(conv.padding, str) or not (conv.groups == 1 or is_depthwise):
        return
    reach = tuple(k - 1 - int(p) for k, p in zip(conv.kernel_size, conv.padding, strict=True))
    if min(reach) < 0:
        return
    weight = conv.weight.detach().flip(2, 3)
    conv.__class__ = FlippedConv2d
    conv.reach = reach  # type: ignore[attr-defined]
    conv.register_buffer("flipped", (weight if is_depthwise else weight.transpose(0, 1)).contiguous(), persistent=False)


class ExplicitAttention(nn.Module):
    """Self-attention with the weights of an `nn.MultiheadAttention`, through two `nn.Linear` layers that have filters.

    The original keeps its query, key and value weights in one bare parameter and calls a fused function, so no hook
    sees what enters and leaves them.
    """

    # Read by nn.TransformerEncoderLayer, which then leaves its fused shortcut aside and calls us.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, attention: nn.MultiheadAttention):
        super().__init__()
        if not attention._qkv_same_embed_dim or attention.bias_k is not None or attention.add_zero_attn:
            raise ProbeError(
                "the probe has an nn.MultiheadAttention with separate key sizes or extra biases, whose weights are not "
                "filters. Use a network whose attention projects with nn.Linear, such as timm's vision transformers."
            )
        width = attention.embed_dim
        self.heads, self.batch_first = attention.num_heads, attention.batch_first
        self.in_proj = nn.Linear(width, 3 * width, bias=attention.in_proj_bias is not None)
        self.in_proj.weight = attention.in_proj_weight
        if attention.in_proj_bias is not None:
            self.in_proj.bias = attention.in_proj_bias
        self.out_proj = nn.Linear(width, width, bias=attention.out_proj.bias is not None)
        self.out_proj.weight, self.out_proj.bias = attention.out_proj.weight, attention.out_proj.bias

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, None]:
        """The attended values and no attention weights; `options` are those of `nn.MultiheadAttention`."""
        has_mask = any(options.get(name) is not None for name in ("key_padding_mask", "attn_mask"))
        if query is not key or key is not value or has_mask or options.get("is_causal"):
            raise ProbeError(
                "the probe uses cross-attention or attention masks, which have no meaning for single images. Use a "
                "network with self-attention alone."
            )
        tokens = query if self.batch_first else query.transpose(0, 1)
        count, length, width = tokens.shape
        split = self.in_proj(tokens).view(count, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(split[0], split[1], split[2])
        out = self.out_proj(mixed.transpose(1, 2).reshape(count, length, width))
        return (out if self.batch_first else out.transpose(0, 1)), None


def write_out_attention(network: nn.Module) -> None:
    """Replaces every `nn.MultiheadAttention` of `network` (our own copy) by its explicit form."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.MultiheadAttention:
                setattr(module, name, ExplicitAttention(child).eval())
