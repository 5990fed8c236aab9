"""Small probes and small tasks for the tests of this room."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from task2vec.embedding import batching
from task2vec.embedding.batching import Passes, Pixels
from task2vec.fisher import PerSampleFisher
from task2vec.probe import Preprocess, make_probe
from task2vec.tasks import Task, from_dataset, read_folder


class Tiny(nn.Module):
    """Two convolutions and a batch-norm, for training by the hundred steps."""

    def __init__(self, second=nn.Conv2d):
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.second = second(6, 8, 2)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(torch.relu(self.second(torch.relu(self.norm(self.first(x))))).mean((2, 3)))


def make_tiny(*, size=8, kind=Tiny, **options):
    torch.manual_seed(0)
    module = kind(**options).eval()
    module.norm.running_var.fill_(0.5)
    return make_probe("tiny", module, ("fc",), Preprocess(size=(size, size), resize=size), source="test")


@pytest.fixture(scope="session")
def probe():
    """The smallest probe, at 8 x 8 pixels."""
    return make_tiny()


def paint(pixels):
    """Images of (n, h, w, 3) numbers."""
    return [Image.fromarray(x.clip(0, 255).astype(np.uint8)) for x in pixels]


def pictures(counts=(9, 7, 6), *, seed=0, side=10):
    """Noisy pictures whose classes differ a little in colour, with their labels."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    noise, colours = rng.normal(size=(len(labels), side, side, 3)), rng.normal(size=(len(counts), 1, 1, 3))
    return paint(128 + 50 * noise + 25 * colours[labels]), labels.tolist()


def ask(images, labels, name, **options) -> Task:
    """A task of pictures and whatever labels."""
    return from_dataset(list(zip(images, labels, strict=True)), name=name, **options)


def make_task(counts=(9, 7, 6), *, seed=0, name="colours") -> Task:
    """A task of pictures whose classes differ in colour."""
    return ask(*pictures(counts, seed=seed), name)


def write_folder(root, images, labels, *, suffix="png") -> Task:
    """A task of pictures in a folder."""
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = root / f"class {label}" / f"{number}.{suffix}"
        place.parent.mkdir(parents=True, exist_ok=True)
        image.save(place)
    return read_folder(root)


def make_attributes(count=20, *, seed=1) -> Task:
    """A multi-label task: attributes that shift the colour, independent of one another."""
    rng = np.random.default_rng(seed)
    rows = (rng.random((count, 3)) < 0.4).astype(int)
    rows[:2] = [[0, 0, 0], [1, 1, 1]]
    pixels = 110 + 40 * rng.normal(size=(count, 10, 10, 3)) + 30 * rows[:, None, None, :]
    return ask(paint(pixels), map(torch.tensor, rows), "attributes")


@pytest.fixture(scope="session")
def task():
    """Three classes, twenty-two images."""
    return make_task()


class Counts:
    """How often images are decoded, run forward and run back."""

    def __init__(self, monkeypatch):
        self.decoded, self.features, self.forward, self.backward = [], 0, 0, 0
        load, features, rows = Pixels.load, Passes._features, PerSampleFisher.rows_by_seed

        def counted_load(pixels, index):
            self.decoded.append(pixels.images.name(index))
            return load(pixels, index)

        def counted_features(passes, pixels):
            self.features += len(pixels)
            return features(passes, pixels)

        def counted_rows(engine, images, seeds, keys=None):
            self.forward += len(images)
            self.backward += 0 if callable(seeds) else seeds.shape[0] * seeds.shape[1]
            return rows(engine, images, seeds, keys)

        monkeypatch.setattr(Pixels, "load", counted_load)
        monkeypatch.setattr(Passes, "_features", counted_features)
        monkeypatch.setattr(PerSampleFisher, "rows_by_seed", counted_rows)


# What a forward pass costs, and how many images go for nothing: a CPU, a GPU, and a column for every pair that fits.
COSTS = {"cpu": (1.5, 0), "cuda": (0.3, 32), "pairs": (0.0, 10_000)}


@pytest.fixture(params=list(COSTS))
def costs(request, monkeypatch):
    """Every layout of batches."""
    for table, cost in zip((batching._FORWARD, batching._IDLE), COSTS[request.param], strict=True):
        monkeypatch.setitem(table, batching.choose_device(None).type, cost)
    return request.param
