"""A small untrained network as a probe, for tests that need some embedding and not a good one."""

import torch
from torch import nn

from task2vec.probe import Preprocess, make_probe


class Tiny(nn.Module):
    """Two convolutions and a head."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, stride=2)
        self.body = nn.Conv2d(12, 16, 3, stride=2)
        self.fc = nn.Linear(16, 4)

    def forward(self, x):
        return self.fc(torch.relu(self.body(torch.relu(self.stem(x)))).mean((2, 3)))


def make_tiny(seed=0):
    torch.manual_seed(seed)
    return make_probe("tiny", Tiny().eval(), ("fc",), Preprocess(size=(24, 24), resize=24), source="test")
