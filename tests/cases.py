"""The one table of networks that every fast path is tried on, with random weights, and small tasks to try them with."""

import numpy as np
import timm
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn

from task2vec.probe import Preprocess, Probe, make_probe
from task2vec.tasks import Task, from_dataset


class Odd(nn.Module):
    """Dilated, grouped, multiplied depthwise, strided, reflect-padded and 'same'-padded convolutions in one."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 5, stride=2, padding=2, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.dilated = nn.Conv2d(12, 16, 3, dilation=2, padding=2)
        self.grouped = nn.Conv2d(16, 24, 3, groups=4, padding=1, stride=2, bias=False)
        self.norm2 = nn.BatchNorm2d(24)
        self.multiplied = nn.Conv2d(24, 48, (3, 5), groups=24, padding=(1, 2))
        self.reflected = nn.Conv2d(48, 20, 3, padding=1, padding_mode="reflect")
        self.same = nn.Conv2d(20, 20, (3, 5), padding="same", dilation=(1, 2))
        self.strided = nn.Conv2d(20, 32, 1, stride=2)
        self.fc = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(self.dilated(x))
        x = torch.relu(self.norm2(self.grouped(x)))
        x = torch.tanh(self.multiplied(x))
        x = torch.relu(self.same(torch.relu(self.reflected(x))))
        return self.fc(torch.relu(self.strided(x)).mean((2, 3)))


class Shared(nn.Module):
    """One convolution used twice, a layer without a fast route, and branching that cannot be traced."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=4)
        self.again = nn.Conv2d(8, 8, 3, padding=1)
        self.line = nn.Conv1d(8, 6, 3)
        self.fc = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(self.again(torch.relu(self.again(x))))
        if x.mean() > -1:  # depends on the data: no tracer follows this
            x = x * 2
        return self.fc(torch.relu(self.line(x.flatten(2))).mean(2))


class Encoder(nn.Module):
    """A plain torch transformer, whose attention keeps its weights in bare parameters."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 16, stride=16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


def _tv(name: str) -> nn.Module:
    return torchvision.models.get_model(name, weights=None)


CASES = {
    "resnet18": (lambda: _tv("resnet18"), "fc", 64),
    "vgg13_bn": (lambda: _tv("vgg13_bn"), "classifier", 32),
    "densenet121": (lambda: _tv("densenet121"), "classifier", 48),
    "mobilenet_v2": (lambda: _tv("mobilenet_v2"), "classifier.1", 64),
    "tf_efficientnet_lite0": (lambda: timm.create_model("tf_efficientnet_lite0"), "classifier", 72),
    "convnext_tiny": (lambda: timm.create_model("convnext_tiny"), "head.fc", 64),
    "vit_tiny": (lambda: timm.create_model("vit_tiny_patch16_224", img_size=64), "head", 64),
    "mixer": (lambda: timm.create_model("mixer_s32_224", img_size=64), "head", 64),
    "swin_v2": (
        lambda: timm.create_model("swinv2_tiny_window8_256", img_size=64, window_size=2, depths=(1, 1, 2, 1)),
        "head.fc",
        64,
    ),
    "odd": (Odd, "fc", 50),
    "shared": (Shared, "fc", 48),
    "encoder": (Encoder, "head", 48),
}


def make_case(name: str) -> Probe:
    """The probe of a case, with seeded random weights and batch-norm statistics that are not the identity."""
    build, head, size = CASES[name]
    torch.manual_seed(0)
    module = build().eval()
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    for part in module.modules():  # some networks start with their residual branches switched off
        if isinstance(part, nn.LayerNorm):
            nn.init.uniform_(part.weight, 0.5, 1.5)
    if norms:
        _calibrate(module, norms, size)
    return make_probe(name, module, (head,), Preprocess(size=(size, size), resize=size), source="test")


def _calibrate(module: nn.Module, norms: list, size: int) -> None:
    """Statistics of real activations (or a deep random network fades to nothing), then moved away from the identity."""
    generator = torch.Generator().manual_seed(1)
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    with torch.no_grad():
        module(torch.randn(8, 3, size, size, generator=generator))
    for norm in norms:
        norm.eval()
        norm.weight.data.uniform_(0.5, 1.5, generator=generator)
        norm.bias.data.uniform_(-0.3, 0.3, generator=generator)


# --- the smallest network, for hundreds of steps ----------------------------------------------------------------------


class Tiny(nn.Module):
    """Two convolutions and a batch-norm; a dropout, if any, draws anew at every step of a training."""

    def __init__(self, second=nn.Conv2d, dropout: float = 0.0):
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.drop = nn.Dropout2d(dropout)
        self.second = second(6, 8, 2)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = self.drop(torch.relu(self.norm(self.first(x))))
        return self.fc(torch.relu(self.second(first)).mean((2, 3)))


def make_tiny(name: str = "tiny", *, seed: int = 0, size: int = 8, kind=Tiny, **options) -> Probe:
    """A tiny network with random weights as a probe."""
    torch.manual_seed(seed)
    module = kind(**options).eval()
    module.norm.running_var.fill_(0.5)
    return make_probe(name, module, ("fc",), Preprocess(size=(size, size), resize=size), source="test")


# --- tasks ------------------------------------------------------------------------------------------------------------


def paint(pixels: np.ndarray) -> list[Image.Image]:
    """Images of (n, h, w, 3) numbers."""
    return [Image.fromarray(x.clip(0, 255).astype(np.uint8)) for x in pixels]


def pictures(counts=(9, 7, 6), *, seed: int = 0, side: int = 10) -> tuple[list[Image.Image], list[int]]:
    """Noisy pictures whose classes differ a little in colour, with their labels."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    noise, colours = rng.normal(size=(len(labels), side, side, 3)), rng.normal(size=(len(counts), 1, 1, 3))
    return paint(128 + 50 * noise + 25 * colours[labels]), labels.tolist()


def ask(images, labels, name: str, **options) -> Task:
    """A task of pictures and whatever labels."""
    return from_dataset(list(zip(images, labels, strict=True)), name=name, **options)


def make_task(counts=(9, 7, 6), *, seed: int = 0, side: int = 10, name: str = "colours") -> Task:
    """A task of pictures whose classes differ in colour."""
    return ask(*pictures(counts, seed=seed, side=side), name)


def make_attributes(count: int = 20, *, seed: int = 1, side: int = 10) -> Task:
    """A multi-label task: attributes that shift the colour, independent of one another."""
    rng = np.random.default_rng(seed)
    rows = (rng.random((count, 3)) < 0.4).astype(int)
    rows[:2] = [[0, 0, 0], [1, 1, 1]]
    pixels = 110 + 40 * rng.normal(size=(count, side, side, 3)) + 30 * rows[:, None, None, :]
    return ask(paint(pixels), map(torch.tensor, rows), "attributes")


def ask_binary(count: int, *, images: int = 12, seed: int = 0, side: int = 10) -> list[Task]:
    """Questions on the same pictures, answered at random."""
    pool, _ = pictures((images,), seed=seed, side=side)
    rng = np.random.default_rng(seed)
    answers = [rng.permutation(np.arange(images) % (3 if number % 2 else 2) == 0) for number in range(count)]
    return [ask(pool, row.astype(int).tolist(), f"question-{number}") for number, row in enumerate(answers)]
