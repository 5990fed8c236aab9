"""Small experts and tasks for error matrices."""

from dataclasses import replace

import torch

from task2vec.probe import Probe
from task2vec.probe.preprocess import Preprocess
from task2vec.probe.probe import make_probe
from task2vec.tasks import Task
from tests.embedding.conftest import make_attributes, pictures
from tests.embedding.families import ask, ask_binary, disjoint_family
from tests.embedding.test_methods import Tiny


def make_expert(name: str, *, seed: int = 0) -> Probe:
    """A small network with random weights."""
    torch.manual_seed(seed)
    module = Tiny().eval()
    module.norm.running_var.fill_(0.5)
    return make_probe(name, module, ("fc",), Preprocess(size=(8, 8), resize=8), source="test")


def make_tasks() -> list[Task]:
    """Two questions on the same pictures, colours, and attributes."""
    images, labels = pictures((9, 8), seed=5)
    attributes = make_attributes(24)
    return [*ask_binary(2, images=24), ask(images, labels, "colours"), replace(attributes, name="attributes")]


def make_many() -> tuple[list[Task], list[Probe]]:
    """Five tasks, four of them on the same pictures, and four experts."""
    tasks = [*ask_binary(4), *disjoint_family()[:1]]
    return tasks, [make_expert(f"expert-{seed}", seed=seed) for seed in range(4)]
