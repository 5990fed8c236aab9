"""A probe: a frozen network without its head, the preprocessing it was trained with, and a fingerprint of both."""

import copy
import hashlib
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from task2vec.errors import NotFiniteError, ProbeError
from task2vec.probe.layers import FilterLayer
from task2vec.probe.prepare import (
    PreparedNetwork,
    enumerate_filters,
    is_flip_faster,
    prepare,
    replace_module,
    trace,
    write_out_attention,
)
from task2vec.probe.preprocess import CustomPreprocess, Preprocess


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
        (`flip`, see `task2vec.probe.prepare`) on the CPUs where that is faster, unless given.
        """
        is_cuda = torch.device(device).type == "cuda"
        flip = is_flip_faster() and not is_cuda if flip is None else flip
        key = (str(device), dtype, fold, flip)
        if key not in self._prepared:
            names = tuple(layer.name for layer in self.layers)
            double = prepare(self.network, names, trial_images(self.size), fold=fold, flip=flip)
            module = double.module.to(device=device, dtype=dtype)
            if is_cuda:
                module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            scales = {name: scale.to(device=device, dtype=dtype) for name, scale in double.scales.items()}
            self._prepared[key] = PreparedNetwork(module, double.layers, scales, double.is_batched)
        return self._prepared[key]


def make_probe(
    name: str, module: nn.Module, heads: tuple[str, ...], preprocess: Preprocess | CustomPreprocess, *, source: str
) -> Probe:
    """`module` as a probe: copied, its head removed, frozen, tested and fingerprinted.

    The caller's module is never changed. Refused: train mode, randomness in the forward pass (active dropout), weights
    that are not finite, a head that is not there.
    """
    _refuse_train_mode(name, module)
    network = copy.deepcopy(module)
    write_out_attention(network)
    for head in heads:
        _remove_head(network, head, name)
    network.requires_grad_(False).float()
    images = trial_images(preprocess.size)
    try:
        seen = trace(network, images)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ProbeError(
            f"probe '{name}' cannot run on images of {preprocess.size[0]} x {preprocess.size[1]} pixels "
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__}). Its network may be made for "
            "one size only: leave out size= (--size), or check the transform."
        ) from error
    _check(network, images, seen.features, name)
    layers = enumerate_filters(network, seen)
    return Probe(
        name=name,
        source=source,
        network=network,
        preprocess=preprocess,
        layers=layers,
        feature_dim=seen.features.shape[1],
        fingerprint=_fingerprint(network, layers, preprocess.description),
    )


def trial_images(size: tuple[int, int]) -> Tensor:
    """Two fixed noise images for trial passes."""
    noise = np.random.default_rng(0).standard_normal((2, 3, *size))
    return torch.from_numpy(noise).float()


def _refuse_train_mode(name: str, module: nn.Module) -> None:
    training = [n or type(m).__name__ for n, m in module.named_modules() if m.training]
    if training:
        raise ProbeError(
            f"probe '{name}' is in train mode ({training[0]}{' and others' if len(training) > 1 else ''}): batch-norm "
            "would use the statistics of each batch and dropout would add noise, so embeddings would depend on the "
            "batch. Call module.eval() first."
        )


class _Pool(nn.Module):
    """Mean over the map: the replacement of a head that takes maps instead of vectors."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean(dim=(2, 3)) if maps.ndim == 4 else maps


def _remove_head(network: nn.Module, head: str, name: str) -> None:
    modules = dict(network.named_modules())
    if not head or head not in modules:
        linear = [n for n, m in modules.items() if isinstance(m, nn.Linear)]
        raise ProbeError(
            f"probe '{name}' has no layer '{head}' to remove as its head. The head is replaced for every task, so it "
            f"must be known. Its last linear layers are: {', '.join(linear[-3:]) or 'none'}. Name one: "
            f"load_probe(module, head='{(linear or ['fc'])[-1]}', ...)"
        )
    replace_module(network, head, _Pool())


def find_head_name(network: nn.Module) -> str:
    """The name of the layer that was removed from a probe's network as its head."""
    return next(name for name, module in network.named_modules() if isinstance(module, _Pool))


def _check(network: nn.Module, images: Tensor, features: Tensor, name: str) -> None:
    for key, tensor in network.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise NotFiniteError(
                f"probe '{name}' contains NaN or infinity in '{key}', which would spread to every number. Load its "
                "weights again."
            )
    if not bool(torch.isfinite(features).all()):
        raise NotFiniteError(
            f"probe '{name}' returns NaN or infinity for noise images. Check its weights and its transform."
        )
    with torch.no_grad():
        if not torch.allclose(network(images[:1])[0], features[0], rtol=1e-2, atol=1e-3 * float(features.abs().max())):
            raise ProbeError(
                f"the features of an image by probe '{name}' depend on the other images of its batch (batch-norm "
                "without running statistics?), so embeddings would depend on the order. Use another probe."
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
