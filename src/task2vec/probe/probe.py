"""A probe: a frozen network without its head, the preprocessing it was trained with, and a fingerprint of both."""

import copy
import hashlib
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from task2vec.errors import NotFiniteError, ProbeError
from task2vec.probe.attention import write_out_attention
from task2vec.probe.filters import FilterLayer, enumerate_filters, trace
from task2vec.probe.folding import PreparedNetwork, prepare
from task2vec.probe.preprocess import CustomPreprocess, Preprocess
from task2vec.probe.turning import turns_here


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
        """What travels to another process: networks that were made ready for a device of this one stay here."""
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
        turned: bool | None = None,
    ) -> PreparedNetwork:
        """The network ready to run on `device` in `dtype`, made once.

        Batch-norm is folded where that is exact; convolutions are `turned` on CPUs where that pays, if not said.
        """
        is_cuda = torch.device(device).type == "cuda"
        turned = turns_here() and not is_cuda if turned is None else turned
        key = (str(device), dtype, fold, turned)
        if key not in self._prepared:
            names = tuple(layer.name for layer in self.layers)
            double = prepare(self.network, names, trial_images(self.size), fold=fold, turned=turned)
            module = double.module.to(device=device, dtype=dtype)
            if is_cuda:
                module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            scales = {name: scale.to(device=device, dtype=dtype) for name, scale in double.scales.items()}
            self._prepared[key] = PreparedNetwork(module, double.layers, scales, double.is_batched)
        return self._prepared[key]


def make_probe(
    name: str, module: nn.Module, heads: tuple[str, ...], preprocess: Preprocess | CustomPreprocess, *, source: str
) -> Probe:
    """`module` as a probe: copied, its head taken off, frozen, tried out and fingerprinted.

    The caller's module is never touched. Refused: train mode, randomness in the forward pass (active dropout), weights
    that are not finite, a head that is not there.
    """
    _refuse_train_mode(name, module)
    network = copy.deepcopy(module)
    write_out_attention(network)
    for head in heads:
        _take_off(network, head, name)
    network.requires_grad_(False).float()
    images = trial_images(preprocess.size)
    try:
        seen = trace(network, images)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ProbeError(
            f"probe '{name}' cannot run on images of {preprocess.size[0]} x {preprocess.size[1]} pixels "
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__}). Its network may be made for "
            "one size only: "
            f"leave out size= (--size), or check the transform."
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
            f"probe '{name}' is in train mode ({training[0]}{' and others' if len(training) > 1 else ''}): "
            "batch-norm would use the "
            "statistics of each batch and dropout would add noise, so embeddings would depend on the batch. Call "
            "module.eval() first."
        )


class _Pool(nn.Module):
    """Mean over the map: what stands in for a head that takes maps instead of vectors."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean(dim=(2, 3)) if maps.ndim == 4 else maps


def _take_off(network: nn.Module, head: str, name: str) -> None:
    modules = dict(network.named_modules())
    if not head or head not in modules:
        linear = [n for n, m in modules.items() if isinstance(m, nn.Linear)]
        raise ProbeError(
            f"probe '{name}' has no layer '{head}' to take off as its head. The head is replaced for every task, so "
            "it must be known. "
            f"Its last linear layers are: {', '.join(linear[-3:]) or 'none'}. Name one: load_probe(module, "
            f"head='{(linear or ['fc'])[-1]}', ...)"
        )
    parent, _, child = head.rpartition(".")
    setattr(network.get_submodule(parent), child, _Pool())


def _check(network: nn.Module, images: Tensor, features: Tensor, name: str) -> None:
    for key, tensor in network.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise NotFiniteError(
                f"probe '{name}' holds NaN or infinity in '{key}', which would spread to every number. Load its "
                "weights again."
            )
    if not bool(torch.isfinite(features).all()):
        raise NotFiniteError(
            f"probe '{name}' gives NaN or infinity on plain noise images. Check its weights and its transform."
        )
    with torch.no_grad():
        if not torch.allclose(network(images[:1])[0], features[0], rtol=1e-2, atol=1e-3 * float(features.abs().max())):
            raise ProbeError(
                f"the features that probe '{name}' gives for an image depend on the other images of its batch "
                f"(batch-norm without running statistics?), so embeddings would depend on the order. Use another."
            )
        if not all(torch.equal(network(images), features) for _ in range(2)):
            raise ProbeError(
                f"probe '{name}' gives other features for the same images each time, so something in it is random "
                f"(dropout that is always on?). Embeddings would not be reproducible. Switch it off in the module."
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


def find_head_place(network: nn.Module) -> str:
    """The name of the layer that was taken off a probe's network as its head."""
    return next(name for name, module in network.named_modules() if isinstance(module, _Pool))
