"""Small probes and small tasks for the tests of this room."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from task2vec.probe import Preprocess, make_probe
from task2vec.tasks import Task, from_dataset
from tests.cases import make_case


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


def make_tiny(**options):
    torch.manual_seed(0)
    module = Tiny(**options).eval()
    module.norm.running_var.fill_(0.5)
    return make_probe("tiny", module, ("fc",), Preprocess(size=(8, 8), resize=8), source="test")


@pytest.fixture(scope="session")
def probe():
    """The smallest probe, at 8 x 8 pixels."""
    return make_tiny()


@pytest.fixture(scope="session")
def odd():
    """A small convolutional probe with batch-norm, groups and dilation, at 50 x 50 pixels."""
    return make_case("odd")


def pictures(counts=(9, 7, 6), *, seed=0, side=10):
    """Noisy pictures whose classes differ a little in colour, with their labels."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    pixels = (
        128 + 50 * rng.normal(size=(len(labels), side, side, 3)) + 25 * rng.normal(size=(len(counts), 1, 1, 3))[labels]
    )
    return [Image.fromarray(x.clip(0, 255).astype(np.uint8)) for x in pixels], labels.tolist()


def make_task(counts=(9, 7, 6), *, seed=0, **options) -> Task:
    """A task of such pictures."""
    images, labels = pictures(counts, seed=seed)
    return from_dataset(list(zip(images, labels, strict=True)), **{"name": "colours", **options})


def make_attributes(count=20, *, seed=1) -> Task:
    """A multi-label task: attributes that shift the colour, independent of one another."""
    rng = np.random.default_rng(seed)
    rows = (rng.random((count, 3)) < 0.4).astype(int)
    rows[:2] = [[0, 0, 0], [1, 1, 1]]
    pixels = 110 + 40 * rng.normal(size=(count, 10, 10, 3)) + 30 * rows[:, None, None, :]
    images = [Image.fromarray(x.clip(0, 255).astype(np.uint8)) for x in pixels]
    return from_dataset(
        [(image, torch.tensor(row)) for image, row in zip(images, rows, strict=True)], name="attributes"
    )


@pytest.fixture(scope="session")
def task():
    """Three classes, twenty-two images."""
    return make_task()
