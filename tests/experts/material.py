"""Small models and tasks."""

import pickle
from dataclasses import replace

import numpy as np
import torch
from PIL import Image
from torch import nn

from task2vec.parallel import open_backend
from task2vec.probe import Preprocess, Probe
from task2vec.probe.probe import make_probe
from task2vec.tasks import Task, from_dataset


def pictures(counts=(9, 7, 6), *, seed=0, side=40):
    """Noisy pictures whose classes differ a little in colour, with their labels."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    pixels = 128 + 50 * rng.normal(size=(len(labels), side, side, 3))
    pixels += 25 * rng.normal(size=(len(counts), 1, 1, 3))[labels]
    return [Image.fromarray(one.clip(0, 255).astype(np.uint8)) for one in pixels], labels.tolist()


def label_pictures(images, labels, name) -> Task:
    return from_dataset(list(zip(images, labels, strict=True)), name=name)


def make_task(counts=(9, 7, 6), *, seed=0, name="colours") -> Task:
    return label_pictures(*pictures(counts, seed=seed), name)


def make_attributes(count=20, *, seed=1) -> Task:
    """A multi-label task: attributes that shift the colour, independent of one another."""
    rng = np.random.default_rng(seed)
    rows = (rng.random((count, 3)) < 0.4).astype(int)
    rows[:2] = [[0, 0, 0], [1, 1, 1]]
    pixels = 110 + 40 * rng.normal(size=(count, 30, 30, 3)) + 30 * rows[:, None, None, :]
    images = [Image.fromarray(one.clip(0, 255).astype(np.uint8)) for one in pixels]
    return label_pictures(images, [torch.tensor(row) for row in rows], "attributes")


def label_binary(count, *, images=20, seed=0) -> list[Task]:
    """Random binary labels of the same pictures."""
    pool, _ = pictures((images,), seed=seed)
    rng = np.random.default_rng(seed)
    labels = [rng.permutation(np.arange(images) % (3 if number % 2 else 2) == 0) for number in range(count)]
    return [label_pictures(pool, own.astype(int).tolist(), f"labels-{number}") for number, own in enumerate(labels)]


class Tiny(nn.Module):
    """Two convolutions, a batch-norm, and a dropout, which draws anew at every step of a training."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.drop = nn.Dropout2d(0.1)
        self.second = nn.Conv2d(6, 8, 2)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        first = self.drop(torch.relu(self.norm(self.first(x))))
        return self.fc(torch.relu(self.second(first)).mean((2, 3)))


def make_model(name: str = "tiny", *, seed: int = 0, size: int = 8) -> Probe:
    """A small network with random weights."""
    torch.manual_seed(seed)
    module = Tiny().eval()
    module.norm.running_var.fill_(0.5)
    return make_probe(name, module, ("fc",), Preprocess(size=(size, size), resize=size), source="test")


def make_tasks() -> list[Task]:
    """Two label sets of the same pictures, colours, and attributes."""
    return [*label_binary(2, images=24), make_task((9, 8), seed=5), replace(make_attributes(24), name="attributes")]


def make_many() -> tuple[list[Task], list[Probe]]:
    """Five tasks, four of them on the same pictures, and four models."""
    tasks = [*label_binary(4), make_task((4, 4), seed=3, name="apart")]
    return tasks, [make_model(f"model-{seed}", seed=seed) for seed in range(4)]


class Packed:
    """A backend within this process that pickles work, units and results as they are for other processes.

    The results of each unit go through `change`, which returns those that arrive.
    """

    def __init__(self, change=iter):
        self.change = change

    def run(self, work, units):
        for unit in units:
            results = open_backend("serial", threads=1).run(self.copy(work), [self.copy(unit)])
            yield from self.change(map(self.copy, results))

    @staticmethod
    def copy(value):
        return pickle.loads(pickle.dumps(value))
