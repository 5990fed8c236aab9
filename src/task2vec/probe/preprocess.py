"""From an image to the tensor a probe was trained on, in two steps.

The first step (resize and crop, `Preprocess.__call__`) ends in 8-bit pixels, which are small to keep and exact; the
second (`Preprocess.normalise`) turns a batch of them into floats where the network runs. A caller's own transform is
treated as one opaque first step.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import functional as transforms

from task2vec.errors import ProbeError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
INTERPOLATIONS = ("bilinear", "bicubic", "nearest", "lanczos")
# Beyond this ratio of the sides only the middle of an image can be seen through a square crop, so the rest is cut off
# before resizing: a 10000 x 2 image would otherwise be enlarged to 1,280,000 x 256.
_WIDEST = 8
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
        picture: Any = image.convert("RGB")  # torchvision takes images as well, but declares tensors only
        interpolation = transforms.InterpolationMode(self.interpolation)
        if self.squash is not None:
            picture = transforms.resize(picture, list(self.squash), interpolation)
        else:
            picture = transforms.resize(_trim(picture), [self.resize], interpolation)
        return torch.from_numpy(np.array(transforms.center_crop(picture, list(self.size)))).permute(2, 0, 1)

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
    names = [type(part).__name__ for part in _parts(transform)]
    random = [name for name in names if name.startswith(_RANDOM)]
    if random or any(not torch.equal(first, other) for other in outputs[1:]):
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


def _parts(transform: Any) -> list[Any]:
    inner = getattr(transform, "transforms", None)
    return [transform] + [part for child in inner or () for part in _parts(child)]


def _trim(image: Any) -> Any:
    """`image` without what lies outside of every square crop."""
    width, height = image.size
    kept = [min(height, _WIDEST * width), min(width, _WIDEST * height)]
    return image if kept == [height, width] else transforms.center_crop(image, kept)
