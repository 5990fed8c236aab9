"""Every route to the squared filter gradients against the definition, in float64, over the shared table of networks."""

import pytest
import torch

from task2vec.fisher import Engine
from tests.cases import CASES, make_case
from tests.fisher.seeds import all_seeds, random_head, relative_error
from tests.oracles.naive_fisher import naive_rows

TASKS = {"2 classes": (2, False), "3 classes": (3, False), "10 classes": (10, False), "3 attributes": (3, True)}


@pytest.fixture(scope="module", params=list(CASES))
def case(request):
    probe = make_case(request.param)
    images = torch.randn(2, 3, *probe.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return probe, images


@pytest.mark.parametrize("kind", list(TASKS))
def test_engine_equals_definition(case, kind):
    probe, images = case
    classes, is_multilabel = TASKS[kind]
    weight, bias = random_head(probe, classes)
    names = tuple(layer.name for layer in probe.layers)
    reference = naive_rows(probe.network, names, images, weight, bias, is_multilabel=is_multilabel)
    assert (reference > 0).double().mean() > 0.5
    routes = [(True, None), (False, None)]
    if kind == "3 classes":  # the routes differ in the layers, not in the labels
        routes += [(True, "direct"), (True, "gram"), (True, "pixelwise"), (False, "gram")]
    for fold, route in routes:
        network = probe.prepare(dtype=torch.float64, fold=fold, turned=fold)
        with torch.no_grad():
            features = network.module(images)
        seeds = all_seeds(features, weight, bias, is_multilabel)
        rows = Engine(network, probe.layers, route=route).rows(images, seeds)
        assert relative_error(rows, reference, probe.layers) < 1e-6, (fold, route)


def test_sketch_is_unbiased_and_belongs_to_the_image(case):
    probe, images = case
    network = probe.prepare(dtype=torch.float64)
    seeds = torch.randn(1, 2, probe.feature_dim, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    exact = Engine(network, probe.layers).rows(images, seeds)
    fast = Engine(network, probe.layers, is_fast=True)
    sketches = torch.stack([fast.rows(images, seeds, keys=[10 + i, 1000 + i]) for i in range(8)])
    # The routes are proven unbiased in test_reductions; here every layer must have got its own scale.
    assert torch.allclose(sketches.sum(2).mean(0), exact.sum(1), rtol=0.2)
    sizes = [layer.filters for layer in probe.layers]
    for layer, found, wanted in zip(
        probe.layers, sketches.mean((0, 1)).split(sizes), exact.mean(0).split(sizes), strict=True
    ):
        assert wanted.sum() / 3 < found.sum() < wanted.sum() * 3, layer.name
    alone = fast.rows(images[1:], seeds[:, 1:], keys=[1000])
    assert torch.allclose(alone[0], sketches[0, 1], rtol=1e-9, atol=0)


def test_folding_happens_where_batch_norm_follows_a_convolution():
    folded = {
        name: len(make_case(name).prepare().scales)
        for name in ("resnet18", "odd", "densenet121", "tf_efficientnet_lite0")
    }
    # DenseNet normalises before most of its convolutions: only the stem and 58 bottlenecks come before a batch-norm.
    assert folded == {"resnet18": 20, "odd": 2, "densenet121": 59, "tf_efficientnet_lite0": 49}


def test_hooks_are_gone_and_weights_untouched():
    probe = make_case("odd")
    network = probe.prepare(dtype=torch.float64)
    before = {k: v.clone() for k, v in network.module.state_dict().items()}
    Engine(network, probe.layers).rows(
        torch.zeros(1, 3, *probe.size).double(), torch.ones(1, 1, probe.feature_dim).double()
    )
    assert not any(m._forward_hooks for m in network.module.modules())
    assert all(torch.equal(v, before[k]) for k, v in network.module.state_dict().items())
