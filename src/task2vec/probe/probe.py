"""A probe: a frozen network without its head, the preprocessing it was trained with, and a fingerprint of both.

A filter is one output channel of a convolution or one output unit of a linear layer. Scales and shifts of batch-norm
and layer-norm, position embeddings and class tokens are not filters; the head has been removed before. A layer that the
forward pass never reaches (an auxiliary classifier in eval mode) has no Fisher and is left out.

Preprocessing has two steps. The first (resize and crop, `Preprocess.__call__`) ends in 8-bit pixels, which are small to
keep and exact; the second (`Preprocess.normalise`) turns a batch of them into floats where the network runs. A caller's
own transform is treated as one opaque first step.

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
import hashlib
import platform
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torchvision.transforms import functional as transforms

from task2vec.errors import NotFiniteError, ProbeError
from task2vec.probe.layers import FilterLayer

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
INTERPOLATIONS = ("bilinear", "bicubic", "nearest", "lanczos")
# Beyond this ratio of the sides only the middle of an image can be seen through a square crop, so the rest is cut off
# before resizing: a 10000 x 2 image would otherwise be enlarged to 1,280,000 x 256.
_MAX_RATIO = 8
# Side of the images of trial passes that need no more.
_TRIAL_SIDE = 64
# How names of random transforms start: some seldom change an image.
_RANDOM = ("Random", "AutoAugment", "AugMix", "TrivialAugment", "ColorJitter")


@dataclass(frozen=True)
class Preprocess:
    """Resize the short side (or both, to `squash`), crop the centre, scale to [0, 1] and normalise."""

    size: tuple[int, int]
    resize: int
    interpolation: str = "bicubic"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    squash: tuple[int, int] | None = None

    def __call__(self, image: Image.Image) -> Tensor:
        """8-bit pixels (3, height, width) of the part of `image` that the probe sees."""
        # torchvision takes images as well, but declares tensors only
        picture: Any = image if image.mode == "RGB" else image.convert("RGB")
        interpolation = transforms.InterpolationMode(self.interpolation)
        if self.squash is not None:
            picture = transforms.resize(picture, list(self.squash), interpolation)
        else:
            picture = transforms.resize(_trim(picture), [self.resize], interpolation)
        return torch.from_numpy(np.array(transforms.center_crop(picture, list(self.size)))).permute(2, 0, 1)

    def can_resample(self, width: int, height: int) -> bool:
        """Whether `resample` takes images of this size: not if they are padded, squashed, long or large.

        From 13.0 on Pillow resamples the rows of some images first that are higher than twice their width.
        """
        is_long = width > _MAX_RATIO * height or height > 2 * width
        is_padded = self.resize < max(self.size)
        is_squashed = self.squash is not None
        is_large = height * width > _MAX_RESAMPLED_PIXELS
        return not (is_long or is_padded or is_squashed or is_large) and self.interpolation in _KERNELS

    def resample(self, images: Tensor) -> Tensor:
        """What a call returns, to the last bit, for (n, height, width, 3) 8-bit images, computed where they are."""
        sides = images.shape[1:3]
        whole = [self.resize if side == min(sides) else int(self.resize * side / min(sides)) for side in sides]
        pixels = images.permute(0, 3, 1, 2).double()
        for axis in (1, 0):  # columns, rounded, then rows
            weights = _resampling(sides[axis], whole[axis], self.size[axis], self.interpolation, pixels.device)
            pixels = pixels @ weights.T if axis else weights @ pixels
            pixels = pixels.add_(1 << (_PRECISION - 1)).div_(1 << _PRECISION).floor_().clamp_(0, 255)
        return pixels.to(torch.uint8)

    def normalise(self, pixels: Tensor, dtype: torch.dtype) -> Tensor:
        """The batch of 8-bit `pixels` as the network's input."""
        return (pixels.to(dtype) - _levels(self.mean, pixels.device, dtype)) / _levels(self.std, pixels.device, dtype)

    @property
    def description(self) -> str:
        """Everything that changes the pixels, as text for the fingerprint."""
        return repr(self)


@dataclass(frozen=True)
class CustomPreprocess:
    """A caller's own transform, from a PIL image to a float tensor (3, height, width)."""

    transform: Callable[[Image.Image], Any]
    size: tuple[int, int]
    description: str

    def __call__(self, image: Image.Image) -> Tensor:
        """The transform's tensor for `image`."""
        tensor = torch.as_tensor(self.transform(image.convert("RGB")))
        if tensor.shape != (3, *self.size):
            raise ProbeError(
                f"the transform turns an image of {image.width} x {image.height} pixels into shape "
                f"{tuple(tensor.shape)} and others into {(3, *self.size)}; the probe needs one size for all. End it "
                f"with a crop: torchvision's CenterCrop({self.size[0]})."
            )
        return tensor

    def normalise(self, pixels: Tensor, dtype: torch.dtype) -> Tensor:
        """The batch as it is: the transform has already normalised it."""
        return pixels.to(dtype)


def check_transform(transform: Callable[[Image.Image], Any]) -> CustomPreprocess:
    """`transform` as a preprocessing step, or a refusal if it is random or yields no image tensor.

    Randomness is found by class name (anywhere inside a composition) and by running the transform several times on one
    image; its fingerprint is its output for that image, so two spellings of one transform are the same.
    """
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (96, 128, 3), dtype=np.uint8))
    outputs = []
    with torch.random.fork_rng(devices=[]):
        for seed in range(8):
            torch.manual_seed(seed)
            outputs.append(torch.as_tensor(transform(image.copy())))
    first = outputs[0]
    names = [type(step).__name__ for step in _list_steps(transform)]
    random = [name for name in names if name.startswith(_RANDOM)]
    if random or any(not torch.equal(first, output) for output in outputs[1:]):
        raise ProbeError(
            f"the transform is random ('{(random or names)[0]}'), so the same images would get another embedding every "
            "time. Pass the transform used for evaluation, without augmentation."
        )
    if first.ndim != 3 or first.shape[0] != 3 or not first.is_floating_point():
        raise ProbeError(
            f"the transform turns an image into {first.dtype} of shape {tuple(first.shape)}; the probe needs floats "
            "of shape (3, height, width). End it with torchvision's ToTensor() and Normalize(...)."
        )
    digest = hashlib.sha256(first.contiguous().numpy().tobytes()).hexdigest()
    return CustomPreprocess(transform, (first.shape[1], first.shape[2]), f"custom transform {digest}")


@lru_cache(maxsize=32)
def _levels(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Values per channel on the scale of 8-bit pixels, brought to a device once: a GPU would wait for each copy."""
    return torch.tensor(values, device=device, dtype=dtype)[:, None, None] * 255


@lru_cache(maxsize=16)
def _resampling(size: int, whole: int, kept: int, interpolation: str, device: torch.device) -> Tensor:
    """(kept, size) weights of the middle of Pillow's resampling to `whole` pixels: integers of 22 bits, as float64."""
    kernel, support = _KERNELS[interpolation]
    step = size / whole
    start = round((whole - kept) / 2)
    scale = max(step, 1.0)
    reach = support * scale
    centres = (np.arange(start, start + kept)[:, None] + 0.5) * step
    first, last = ((centres + side * reach + 0.5).astype(int).clip(0, size) for side in (-1, 1))
    columns = first + np.arange(int(2 * reach) + 2)
    weights = kernel(np.abs((columns - centres + 0.5) * (1.0 / scale))) * (columns < last)
    weights *= 1.0 / weights.sum(1, keepdims=True)
    matrix = np.zeros((kept, size + columns.shape[1]))
    np.put_along_axis(matrix, columns, np.trunc(weights * (1 << _PRECISION) + np.copysign(0.5, weights)), axis=1)
    return torch.from_numpy(matrix[:, :size]).to(device)


def _cubic(x: np.ndarray) -> np.ndarray:
    near = (1.5 * x - 2.5) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * -0.5
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


# Kernels of Pillow by distance, and how far they reach.
_KERNELS = {"bilinear": (lambda x: np.maximum(1 - x, 0.0), 1.0), "bicubic": (_cubic, 2.0)}
_PRECISION = 22  # bits of Pillow's weights
_MAX_RESAMPLED_PIXELS = 1 << 18  # of larger images decoding takes longer than resampling


def _list_steps(transform: Any) -> list[Any]:
    inner = getattr(transform, "transforms", None)
    return [transform] + [step for child in inner or () for step in _list_steps(child)]


def _trim(image: Any) -> Any:
    """`image` without what lies outside of every square crop."""
    width, height = image.size
    kept = [min(height, _MAX_RATIO * width), min(width, _MAX_RATIO * height)]
    return image if kept == [height, width] else transforms.center_crop(image, kept)


# --- the probe --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreparedNetwork:
    """The network that runs, its filter layers by name, and the factor of each folded layer's score.

    `is_batched` is False if some layer mixes the images of a batch or has no image axis (a table of relative positions
    that all images share): such a network is run one image at a time. `recorded` are passes that the Fisher has
    recorded on a GPU.
    """

    module: nn.Module
    layers: dict[str, nn.Module]
    scales: dict[str, Tensor]
    is_batched: bool
    recorded: dict = field(default_factory=dict, repr=False)


@dataclass(frozen=True, eq=False)
class Probe:
    """A frozen pretrained network from images to pooled features, and the coordinates (`layers`) of our space."""

    name: str
    source: str
    network: nn.Module = field(repr=False)
    preprocess: Preprocess | CustomPreprocess = field(repr=False)
    layers: tuple[FilterLayer, ...] = field(repr=False)
    feature_dim: int
    fingerprint: str
    _prepared: dict = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict:
        """The state without networks that were prepared for a device of this process, for other processes."""
        return {**self.__dict__, "_prepared": {}}

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images the network sees."""
        return self.preprocess.size

    @property
    def n_filters(self) -> int:
        """Number of coordinates."""
        return sum(layer.filters for layer in self.layers)

    def prepare(
        self,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        fold: bool = True,
        flip: bool | None = None,
    ) -> PreparedNetwork:
        """The network ready to run on `device` in `dtype`, made once.

        Batch-norm is folded where that is exact. Convolutions compute their input gradient with a flipped kernel
        (`flip`, see above) on the CPUs where that is faster, unless given.
        """
        is_cuda = torch.device(device).type == "cuda"
        if flip is None:
            flip = platform.machine().lower() in ("aarch64", "arm64") and not is_cuda
        key = (str(device), dtype, fold, flip)
        if key in self._prepared:
            return self._prepared[key]
        plain = copy.deepcopy(self.network).double()
        images, seen = _trace_small(plain, self.size, torch.float64)
        module, scales = _fold(plain, seen) if fold else (plain, {})
        # One image alone gives the same features as in a batch if folding is exact and no image changes another's.
        alone = trace(module, images[:1])
        if scales and not _is_same(alone.features, seen.features[:1]):
            if not _is_same(trace(module, images).features, seen.features):
                module, scales = plain, {}
            alone = trace(plain, images[:1])
        module.requires_grad_(False)
        modules = dict(module.named_modules())
        layers = {layer.name: modules[layer.name] for layer in self.layers}
        for name in layers if flip else ():
            if seen.calls[name] == 1:
                flip_input_gradient(layers[name])
        # Every layer must see k rows per image, whatever the batch.
        is_batched = all(rows == len(images) * alone.leading[name] for name, rows in seen.leading.items())
        is_batched = is_batched and _is_same(alone.features, seen.features[:1])
        module = module.to(device=device, dtype=dtype)
        if is_cuda or not flip:  # faster in both directions; not measured on ARM
            module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        scales = {name: scale.to(device=device, dtype=dtype) for name, scale in scales.items()}
        return self._prepared.setdefault(key, PreparedNetwork(module, layers, scales, is_batched))


def make_probe(
    name: str, module: nn.Module, heads: tuple[str, ...], preprocess: Preprocess | CustomPreprocess, *, source: str
) -> Probe:
    """`module` as a probe: copied, its head removed, frozen, tested and fingerprinted.

    The caller's module is never changed; the copy is in eval mode. Refused: randomness that stays in eval mode, weights
    that are not finite, a head that is not there.
    """
    network = copy.deepcopy(module)
    write_out_attention(network)
    for head in heads:
        _remove_head(network, head, name)
    network.requires_grad_(False).float().eval()
    images = trial_images(preprocess.size)
    try:
        seen = trace(network, images)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ProbeError(
            f"probe '{name}' cannot run on images of {preprocess.size[0]} x {preprocess.size[1]} pixels "
            f"({(str(error) or type(error).__name__).splitlines()[0]}). Its network may be made for one size only: "
            "leave out size= (--size), or check the transform."
        ) from error
    _check(network, preprocess.size, seen.features, name)
    layers = enumerate_filters(network, seen)
    fingerprint = _fingerprint(network, layers, preprocess.description)
    return Probe(name, source, network, preprocess, layers, seen.features.shape[1], fingerprint)


def trial_images(size: tuple[int, int]) -> Tensor:
    """Two fixed noise images for trial passes."""
    return torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, *size))).float()


def _trace_small(network: nn.Module, size: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, "Trace"]:
    """A trial pass whose numbers are only compared with those of others: on small images, if the network takes them.

    What is compared (a batch-norm before and after it was folded, an image alone and in a batch) does not depend on
    the size, and at full size these passes would take as long as those of a dozen images.
    """
    small = trial_images((min(size[0], _TRIAL_SIDE), min(size[1], _TRIAL_SIDE))).to(dtype)
    try:
        seen = trace(network, small)
        if bool(torch.isfinite(seen.features).all()) and bool(seen.features.any()):
            return small, seen
    except Exception:  # noqa: S110  # made for one size, which its own code says in its own way
        pass
    images = trial_images(size).to(dtype)
    return images, trace(network, images)


class _Pool(nn.Module):
    """Mean over the map: the replacement of a head that takes maps instead of vectors."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean(dim=(2, 3)) if maps.ndim == 4 else maps


def _remove_head(network: nn.Module, head: str, name: str) -> None:
    modules = dict(network.named_modules())
    if not head or head not in modules:
        linear = [n for n, m in modules.items() if isinstance(m, nn.Linear)]
        raise ProbeError(
            f"probe '{name}' has no layer '{head}' to remove as its head, which is replaced for every task. Its last "
            f"linear layers are: {', '.join(linear[-3:]) or 'none'}. Name one: load_probe(module, "
            f"head='{(linear or ['fc'])[-1]}', ...)"
        )
    replace_module(network, head, _Pool())


def find_head_name(network: nn.Module) -> str:
    """The name of the layer that was removed from a probe's network as its head."""
    return next(name for name, module in network.named_modules() if isinstance(module, _Pool))


def _check(network: nn.Module, size: tuple[int, int], features: Tensor, name: str) -> None:
    """Refuses numbers that are not finite (`features` are of full images), mixed images, and randomness."""
    for key, tensor in {**network.state_dict(), "features of noise images": features}.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise NotFiniteError(
                f"probe '{name}' has NaN or infinity in '{key}', which would spread to every number. Load its weights "
                "again, or check its transform."
            )
    with torch.no_grad():
        images, small = _trace_small(network, size, torch.float32)
        features = small.features
        if not torch.allclose(network(images[:1])[0], features[0], rtol=1e-2, atol=1e-3 * float(features.abs().max())):
            raise ProbeError(
                f"with probe '{name}', the features of an image depend on the others in its batch (batch-norm without "
                "running statistics?), so embeddings would depend on the order. Use another probe."
            )
        if not all(torch.equal(network(images), features) for _ in range(2)):
            raise ProbeError(
                f"probe '{name}' returns different features for the same images, so something in it is random "
                "(dropout that is always on?). Embeddings would not be reproducible. Switch it off in the module."
            )


def _fingerprint(network: nn.Module, layers: tuple[FilterLayer, ...], preprocessing: str) -> str:
    """SHA-256 of the weights (names, shapes, bytes), of how the filter layers are applied, and of the preprocessing."""
    digest = hashlib.sha256()
    for key, tensor in sorted(network.state_dict().items()):
        if not key.endswith("num_batches_tracked"):
            digest.update(f"{key} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    modules = dict(network.named_modules())
    for layer in layers:
        geometry = [str(getattr(modules[layer.name], a, "")) for a in ("stride", "padding", "dilation", "groups")]
        digest.update(f"{layer.name} {layer.kind} {layer.filters} {' '.join(geometry)};".encode())
    digest.update(preprocessing.encode())
    return digest.hexdigest()


# --- preparation ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trace:
    """What a trial pass saw: calls per layer, producer of each batch-norm's input, rows that each layer took in."""

    calls: dict[str, int]
    feeds: dict[str, str]
    leading: dict[str, int]
    features: Tensor


def trace(network: nn.Module, images: Tensor) -> Trace:
    """Runs `images` through `network` once and notes how its layers are used."""
    calls: Counter[str] = Counter()
    feeds, leading, producer = {}, {}, {}
    alive: list[Tensor] = []  # a tensor's id means nothing once the tensor is gone

    def note(name: str, module: nn.Module, inputs: tuple, output: object) -> None:
        is_filter_layer = isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)
        if is_filter_layer and isinstance(output, Tensor):
            calls[name] += 1
            leading[name] = inputs[0].shape[0]
            producer[id(output)] = name
            alive.append(output)
        elif inputs and isinstance(inputs[0], Tensor) and id(inputs[0]) in producer:
            feeds.setdefault(name, producer[id(inputs[0])])

    with ExitStack() as hooks, torch.no_grad():
        for name, module in network.named_modules():
            hooks.enter_context(module.register_forward_hook(partial(note, name)))
        features = network(images)
    if not isinstance(features, Tensor) or features.ndim != 2 or features.shape[0] != images.shape[0]:
        raise ProbeError(
            f"without its head the probe returns {getattr(features, 'shape', type(features).__name__)}; one feature "
            "vector per image is needed. Name the last linear layer as the head: load_probe(module, head='fc', ...)"
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
        raise ProbeError("the probe has no convolution or linear layer, so it has no filters. Use another network.")
    return tuple(layers)


def _is_same(features: Tensor, reference: Tensor) -> bool:
    return torch.allclose(features, reference, rtol=1e-8, atol=1e-10)


def _fold(plain: nn.Module, seen: Trace) -> tuple[nn.Module, dict[str, Tensor]]:
    """A copy of `plain` whose batch-norms are folded into the convolutions before them, and the scales of these."""
    network = copy.deepcopy(plain)
    modules = dict(network.named_modules())
    scales: dict[str, Tensor] = {}
    for name, source in seen.feeds.items():
        norm, conv = modules[name], modules[source]
        if not isinstance(norm, _BatchNorm) or norm.running_var is None or type(conv) is nn.Linear:
            continue
        if seen.calls[source] != 1 or source in scales:
            continue
        statistics: Any = (norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
        conv.weight, conv.bias = fuse_conv_bn_weights(conv.weight, conv.bias, *statistics)  # type: ignore[arg-type]
        replace_module(network, name, getattr(norm, "act", None) or nn.Identity())  # timm's carries the activation
        scale = torch.rsqrt(norm.running_var + norm.eps)
        scales[source] = (scale if norm.weight is None else scale * norm.weight).detach()
    return network, scales


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
                "filters. Use a network that projects with nn.Linear, such as timm's vision transformers."
            )
        width = attention.embed_dim
        self.heads, self.batch_first = attention.num_heads, attention.batch_first
        self.in_proj, self.out_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.in_proj.weight, self.in_proj.bias = attention.in_proj_weight, attention.in_proj_bias
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
    for name, module in list(network.named_modules()):
        if type(module) is nn.MultiheadAttention:
            replace_module(network, name, ExplicitAttention(module).eval())
