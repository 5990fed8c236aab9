"""Every route to the squared filter gradients against the definition, in float64, over the shared table of networks."""

import copy
from dataclasses import replace

import pytest
import torch

from task2vec.fisher import PerSampleFisher
from tests.cases import CASES, make_case
from tests.fisher.seeds import all_seeds, random_head, relative_error
from tests.oracles.naive_fisher import naive_rows

TASKS = {"2 classes": (2, False), "3 classes": (3, False), "5 classes": (5, False), "3 attributes": (3, True)}


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
    with torch.no_grad():
        logits = copy.deepcopy(probe.network).double().eval()(images) @ weight.T
    weight = weight / logits.abs().amax().clamp_min(1)  # where p is 1 to ten digits, 1 - p has six of them left
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
        rows = PerSampleFisher(network, probe.layers, route=route).rows(images, seeds)
        assert relative_error(rows, reference, probe.layers) < 1e-6, (fold, route)


def test_sketch_is_unbiased_and_belongs_to_the_image(case):
    probe, images = case
    network = probe.prepare(dtype=torch.float64)
    seeds = torch.randn(1, 2, probe.feature_dim, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    exact = PerSampleFisher(network, probe.layers).rows(images, seeds)
    fast = PerSampleFisher(network, probe.layers, is_fast=True)
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
    PerSampleFisher(network, probe.layers).rows(
        torch.zeros(1, 3, *probe.size).double(), torch.ones(1, 1, probe.feature_dim).double()
    )
    assert not any(m._forward_hooks for m in network.module.modules())
    assert all(torch.equal(v, before[k]) for k, v in network.module.state_dict().items())


# --- seed by seed ---


def rows_of_seed(probe, images, seed):
    """(images, filters) by the definition: the gradient of seed . features, image by image, squared."""
    network = copy.deepcopy(probe.network).double().eval().requires_grad_(True)
    modules = dict(network.named_modules())
    weights = [modules[layer.name].weight for layer in probe.layers]
    rows = []
    for image, own in zip(images, seed, strict=True):
        gradients = torch.autograd.grad(network(image[None])[0] @ own, weights, allow_unused=True)
        rows.append(torch.cat([g.flatten(1).square().mean(1) for g in gradients if g is not None]))
    return torch.stack(rows)


def random_seeds(probe, count):
    generator = torch.Generator().manual_seed(6)
    return torch.randn(count, 2, probe.feature_dim, generator=generator, dtype=torch.float64)


def test_rows_by_seed_equal_the_definition_seed_by_seed(case):
    probe, images = case
    seeds = random_seeds(probe, 2)
    seeds[1, 0] = 0  # an image that has fewer seeds than the other
    found = list(PerSampleFisher(probe.prepare(dtype=torch.float64), probe.layers).rows_by_seed(images, seeds))
    assert len(found) == 2
    for rows, seed in zip(found, seeds, strict=True):
        assert relative_error(rows, rows_of_seed(probe, images, seed), probe.layers) < 1e-6
    assert not found[1][0].any() and found[1][1].any()


@pytest.mark.parametrize("way", [{"is_untied": True}, {"is_fast": True}, {"route": "gram"}])
def test_seeds_do_not_know_of_one_another(case, way):
    probe, images = case
    if "route" in way and probe.n_filters > 1000:
        pytest.skip("the matrices of every layer of a large network take minutes")
    network = probe.prepare(dtype=torch.float64)
    engine, seeds, keys = PerSampleFisher(network, probe.layers, **way), random_seeds(probe, 2), [11, 12]
    together = list(engine.rows_by_seed(images, seeds, keys))
    alone = [next(engine.rows_by_seed(images, seed[None], keys)) for seed in seeds]
    for one, other in zip(together, alone, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12 * float(other.max()))
    total = engine.rows(images, seeds, keys)
    assert torch.allclose(torch.stack(together).sum(0), total, rtol=1e-9, atol=1e-12 * float(total.max()))


def test_all_seeds_share_one_forward_pass_per_image(case):
    probe, images = case
    network = probe.prepare(dtype=torch.float64)
    seen = []
    handle = network.module.register_forward_hook(lambda module, inputs, out: seen.append(len(out)))
    try:
        each = PerSampleFisher(network, probe.layers).rows_by_seed(images, random_seeds(probe, 4))
        assert seen == []  # nothing is done before it is asked for
        next(each)
        before = sum(seen)
        assert len(list(each)) == 3
    finally:
        handle.remove()
    assert before == sum(seen) == len(images)


@pytest.mark.parametrize("way", [{}, {"is_untied": True}, {"is_fast": True}])
def test_a_network_that_takes_images_one_by_one_gives_the_same_rows(way):
    probe = make_case("shared")  # which could take them together, so that there is something to compare with
    batched = probe.prepare(dtype=torch.float64)
    images, seeds = torch.randn(2, 3, *probe.size).double(), random_seeds(probe, 3)
    wanted = list(PerSampleFisher(batched, probe.layers, **way).rows_by_seed(images, seeds, [11, 12]))
    seen = []
    handle = batched.module.register_forward_hook(lambda module, inputs, out: seen.append(len(out)))
    single = PerSampleFisher(replace(batched, is_batched=False), probe.layers, **way)
    found = list(single.rows_by_seed(images, seeds, [11, 12]))
    handle.remove()
    assert seen == [1, 1] and len(found) == 3
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=0)


def test_a_run_that_ends_between_seeds_leaves_no_hooks():
    probe = make_case("odd")
    network = probe.prepare(dtype=torch.float64)
    images = torch.zeros(2, 3, *probe.size).double()
    each = PerSampleFisher(network, probe.layers).rows_by_seed(images, random_seeds(probe, 3))
    next(each)
    assert not any(m._forward_hooks for m in network.module.modules())
    each.close()
    assert list(PerSampleFisher(network, probe.layers).rows_by_seed(images, random_seeds(probe, 1)))
