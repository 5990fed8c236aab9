"""Heads trained together by Adam are those that torch trains one by one."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from task2vec.head import train_split_heads

SETTINGS = {"batch": 8, "rate": 0.02, "weight_decay": 0.03}


@pytest.mark.parametrize("is_multilabel", [False, True])
def test_torch_trains_the_same_heads_one_by_one(is_multilabel):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (30,), generator=generator)
    attributes = torch.randint(0, 2, (30, 3), generator=generator)
    onehot = attributes if is_multilabel else functional.one_hot(labels, 3)
    draws = torch.randint(0, 30, (2, 3, 20), generator=generator)  # 20 is no multiple of the batch
    found = train_split_heads(features, onehot, draws, **SETTINGS, is_multilabel=is_multilabel)
    for own, logits in zip(draws, found, strict=True):
        head = nn.Linear(5, 3).double()
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        optimiser = torch.optim.Adam(head.parameters(), lr=SETTINGS["rate"], weight_decay=SETTINGS["weight_decay"])
        for epoch in own:
            for some in epoch.split(SETTINGS["batch"]):
                said = head(features[some])
                if is_multilabel:
                    loss = functional.binary_cross_entropy_with_logits(said, attributes[some].double())
                else:
                    loss = functional.cross_entropy(said, labels[some])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        assert torch.allclose(logits, head(features), atol=1e-10)
