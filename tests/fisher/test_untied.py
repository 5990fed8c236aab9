"""The untied Fisher of the engine against its definition, in float64, over the shared table of networks."""

import functools

import pytest
import torch
from timm.layers.std_conv import StdConv2d
from torch import nn

from task2vec.fisher import PerSampleFisher
from task2vec.probe import Preprocess, make_probe
from tests.cases import CASES, make_case
from tests.fisher.seeds import all_seeds, random_head, relative_error
from tests.oracles.naive_fisher import naive_rows
from tests.oracles.untied_fisher import untied_rows

THREE = (3, False)
TASKS = {"2 classes": (2, False), "3 classes": THREE, "3 attributes": (3, True)}
# Where one backward pass per output is quick enough. Kinds of labels differ in the seeds, not in the layers.
SMALL = ("odd", "shared", "encoder")


@functools.cache
def probe_of(name):
    """A case, made once: nothing here may change it."""
    return make_case(name)


def random_images(probe, count):
    return torch.randn(count, 3, *probe.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def definition(probe, images, weight, bias, *, is_multilabel=False, **options):
    names = tuple(layer.name for layer in probe.layers)
    return untied_rows(probe.network, names, images, weight, bias, is_multilabel=is_multilabel, **options)


def engine_rows(probe, images, weight, bias, *, is_multilabel=False, keys=None, is_untied=True, **preparation):
    network = probe.prepare(dtype=torch.float64, **preparation)
    with torch.no_grad():
        features = torch.cat([network.module(image) for image in images.split(1)])
    seeds = all_seeds(features, weight, bias, is_multilabel)
    return PerSampleFisher(network, probe.layers, is_untied=is_untied).rows(images, seeds, keys)


# Slow ones that have no kind of layer, and no way to be folded, that the others have not.
LEFT_OUT = ("vgg13_bn", "densenet121", "mobilenet_v2", "convnext_tiny")


@pytest.mark.parametrize("name", [name for name in CASES if name not in LEFT_OUT])
def test_engine_equals_the_definition(name):
    probe = probe_of(name)
    images = random_images(probe, 2 if name in SMALL else 1)
    for classes, is_multilabel in TASKS.values() if name in SMALL else (THREE,):
        weight, bias = random_head(probe, classes)
        reference = definition(probe, images, weight, bias, is_multilabel=is_multilabel)
        assert (reference > 0).double().mean() > 0.5
        # Where nothing is folded, there is one network to try.
        for fold in (True, False) if probe.prepare(dtype=torch.float64, turned=True).scales else (True,):
            rows = engine_rows(probe, images, weight, bias, is_multilabel=is_multilabel, fold=fold, turned=fold)
            assert relative_error(rows, reference, probe.layers) < 1e-6, (classes, is_multilabel, fold)


@pytest.mark.parametrize("name", SMALL)
def test_engine_equals_one_backward_pass_per_output(name):
    probe = probe_of(name)
    images = random_images(probe, 1)
    weight, bias = random_head(probe, 3)
    reference = definition(probe, images, weight, bias, by_autograd=True)
    for fold in (True, False):
        assert relative_error(engine_rows(probe, images, weight, bias, fold=fold), reference, probe.layers) < 1e-6


class Twice(nn.Module):
    """One convolution used twice, or two of the same weights."""

    def __init__(self, *, is_shared):
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.second = self.first if is_shared else nn.Conv2d(3, 3, 3, padding=1)
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(torch.tanh(self.second(torch.tanh(self.first(x)))).mean((2, 3)))


def tiny_probe(module, size=6):
    return make_probe("tiny", module.eval(), ("fc",), Preprocess(size=(size, size), resize=size), source="test")


def test_a_layer_used_twice_adds_up():
    torch.manual_seed(0)
    apart = Twice(is_shared=False)
    apart.second.load_state_dict(apart.first.state_dict())
    shared = Twice(is_shared=True)
    shared.first.load_state_dict(apart.first.state_dict())
    apart, shared = tiny_probe(apart), tiny_probe(shared)
    images = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight, bias = random_head(shared, 3)
    both = engine_rows(apart, images, weight, bias).unflatten(1, (2, 3)).sum(1)
    assert torch.allclose(engine_rows(shared, images, weight, bias), both, rtol=1e-12)
    # The tied Fisher does not: there the gradients of the calls add up before they are squared.
    tied = [engine_rows(probe, images, weight, bias, is_untied=False) for probe in (shared, apart)]
    assert not torch.allclose(tied[0], tied[1].unflatten(1, (2, 3)).sum(1), rtol=1e-2)


class Places(nn.Module):
    """Layers that have one output per filter, then layers that have many."""

    def __init__(self):
        super().__init__()
        self.whole = nn.Conv2d(3, 8, 6)
        self.point = nn.Conv2d(8, 6, 3, padding=1)
        self.grouped = nn.Conv2d(6, 6, 1, groups=3)
        self.dense = nn.Linear(6, 5)
        self.map = nn.Conv2d(5, 4, 1)
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        x = torch.tanh(self.grouped(torch.tanh(self.point(torch.tanh(self.whole(x))))))
        x = torch.tanh(self.dense(x.flatten(1)))
        return self.fc(torch.tanh(self.map(x[:, :, None, None].expand(-1, -1, 3, 3))).mean((2, 3)))


def test_where_a_filter_has_one_place_it_is_not_shared_and_nothing_differs():
    torch.manual_seed(0)
    probe = tiny_probe(Places())
    images = torch.randn(3, 3, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight, bias = random_head(probe, 3)
    untied, tied = (engine_rows(probe, images, weight, bias, is_untied=u) for u in (True, False))
    one_place = sum(layer.filters for layer in probe.layers[:-1])
    assert torch.allclose(untied[:, :one_place], tied[:, :one_place], rtol=1e-12, atol=0)
    # Nine places that see and do the same: gradients add up to 9 g, so 81 g^2 tied and 9 g^2 untied.
    assert torch.allclose(9 * untied[:, one_place:], tied[:, one_place:], rtol=1e-12, atol=0)


# --- layers that are not plain ---


class Standardised(nn.Module):
    """timm's weight-standardised convolution between plain ones, with a linear layer that scales its weights."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=2)
        self.standard = StdConv2d(4, 6, 3, padding=1, groups=2)
        self.halved = Halved(6, 5)
        self.fc = nn.Linear(5, 2)

    def forward(self, x):
        x = torch.tanh(self.standard(torch.tanh(self.stem(x))))
        return self.fc(torch.tanh(self.halved(x.flatten(2).transpose(1, 2))).mean(1))


class Halved(nn.Linear):
    def forward(self, input):
        return nn.functional.linear(input, self.weight / 2, self.bias)


@pytest.fixture(scope="module")
def odd_layers():
    torch.manual_seed(0)
    probe = tiny_probe(Standardised(), 10)
    images = torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return probe, images, *random_head(probe, 3)


def test_layers_that_are_not_plain_are_estimated_without_bias(odd_layers):
    probe, images, weight, bias = odd_layers
    reference = definition(probe, images, weight, bias, by_autograd=True)
    draws = 400
    found = engine_rows(probe, images.repeat(draws, 1, 1, 1), weight, bias, keys=range(2 * draws)).unflatten(0, (-1, 2))
    plain = probe.layers[0].filters
    assert torch.allclose(found[:, :, :plain].std(0), torch.zeros(2, plain).double(), atol=1e-12)
    assert torch.allclose(found[0, :, :plain], reference[:, :plain], rtol=1e-8)
    error = found.std(0)[:, plain:] / draws**0.5
    gaps = (found.mean(0) - reference)[:, plain:].abs() / error
    assert gaps.max() < 4.5 and gaps.square().mean() < 2
    assert (error / reference[:, plain:]).max() < 0.1  # so that a wrong scale could not hide
    tied = naive_rows(
        probe.network, tuple(layer.name for layer in probe.layers), images, weight, bias, is_multilabel=False
    )
    assert ((tied - reference)[:, plain:].abs() / error).median() > 10  # nor the tied Fisher


def test_the_estimate_belongs_to_the_image(odd_layers):
    probe, images, weight, bias = odd_layers
    together = engine_rows(probe, images, weight, bias, keys=[11, 7])
    alone = [engine_rows(probe, images[i : i + 1], weight, bias, keys=[key]) for i, key in enumerate((11, 7))]
    swapped = engine_rows(probe, images.flip(0), weight, bias, keys=[7, 11]).flip(0)
    assert torch.allclose(torch.cat(alone), together, rtol=1e-10) and torch.allclose(swapped, together, rtol=1e-10)
    assert not torch.allclose(engine_rows(probe, images, weight, bias, keys=[12, 7])[0], together[0], rtol=1e-3)


# --- the rest of the engine, untied ---


def test_seeds_may_be_a_function_of_the_features():
    for name in ("odd", "swin_v2"):  # in batches, and one image at a time
        probe = probe_of(name)
        images = random_images(probe, 2)
        weight, bias = random_head(probe, 3)
        network = probe.prepare(dtype=torch.float64)
        engine = PerSampleFisher(network, probe.layers, is_untied=True)
        seen = []

        def seeds(features, weight=weight, bias=bias, seen=seen):
            seen.append(features)
            return all_seeds(features, weight, bias, False)

        rows = engine.rows(images, seeds)
        assert torch.allclose(rows, engine_rows(probe, images, weight, bias), rtol=1e-9, atol=1e-30)
        with torch.no_grad():
            expected = torch.cat([network.module(image) for image in images.split(1)])
        assert torch.allclose(torch.cat(seen), expected, rtol=1e-10) and not torch.cat(seen).requires_grad


def test_the_fast_engine_has_nothing_to_sketch():
    probe = probe_of("odd")
    images = random_images(probe, 2)
    seeds = torch.randn(2, 2, probe.feature_dim, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    network = probe.prepare(dtype=torch.float64)
    exact, fast = (PerSampleFisher(network, probe.layers, is_untied=True, is_fast=f) for f in (False, True))
    assert torch.equal(exact.rows(images, seeds), fast.rows(images, seeds, keys=[1, 2]))


def test_hooks_are_gone_and_weights_untouched_even_after_an_error():
    probe = probe_of("odd")
    network = probe.prepare(dtype=torch.float64)
    before = {k: v.clone() for k, v in network.module.state_dict().items()}
    images = torch.randn(1, 3, *probe.size, dtype=torch.float64)
    engine = PerSampleFisher(network, probe.layers, is_untied=True)
    engine.rows(images, torch.ones(1, 1, probe.feature_dim).double())
    with pytest.raises(ZeroDivisionError):
        engine.rows(images, lambda features: 1 / 0)
    assert not any(m._forward_hooks for m in network.module.modules())
    assert all(torch.equal(v, before[k]) for k, v in network.module.state_dict().items())
    assert not any(p.requires_grad or p.grad is not None for p in network.module.parameters())
