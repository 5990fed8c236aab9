"""Noise by box sums against noise by a second full convolution, draw by draw; pairs; and that nothing stays behind."""

import copy
import functools

import pytest
import torch
from timm.layers.std_conv import StdConv2d
from torch import nn

from task2vec.errors import ProbeError
from task2vec.fisher import NoisyNetwork
from task2vec.fisher.reductions import patch_energy
from task2vec.probe import Preprocess, make_probe
from tests.cases import CASES, make_case
from tests.oracles.full_noise import noisy_features


@functools.cache
def probe_of(name):
    """A case, made once: nothing here may change it."""
    return make_case(name)


def random_images(probe, count=2):
    return torch.randn(count, 3, *probe.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def random_deviations(probe, part=0.1):
    """A deviation per filter, about `part` of the weights of its layer, each its own."""
    generator = torch.Generator().manual_seed(5)
    sizes = torch.tensor([layer.mean_square_weight for layer in probe.layers for _ in range(layer.filters)]).double()
    return part * sizes.sqrt() * (0.5 + torch.rand(len(sizes), generator=generator, dtype=torch.float64))


def draw(seed=7):
    return torch.Generator().manual_seed(seed)


def reference(probe, images, deviations, *, is_batched, sign=1):
    """What the oracle gives: in one pass, or image by image where the network runs so."""
    network = copy.deepcopy(probe.network).double().requires_grad_(False)
    generator = draw()
    parts = [images] if is_batched else images.split(1)
    return torch.cat(
        [noisy_features(network, probe.layers, part, deviations, generator=generator, sign=sign) for part in parts]
    )


def with_gradients(function, images, deviations):
    """Features, and the gradients of a fixed mixture of them with respect to the images and the deviations."""
    images, deviations = images.clone().requires_grad_(), deviations.clone().requires_grad_()
    features = function(images, deviations)
    mixture = torch.randn(features.shape, generator=draw(1), dtype=torch.float64)
    gradients = torch.autograd.grad(features, (images, deviations), mixture)
    return features.detach(), *gradients


def gap(found, expected):
    """Largest difference, as a part of the largest number."""
    return float((found - expected).abs().max() / expected.abs().max())


# Slow ones that have no kind of layer, and no way to be folded, that the others have not.
LEFT_OUT = ("resnet18", "vgg13_bn", "densenet121", "mobilenet_v2", "convnext_tiny", "mixer")


@pytest.mark.parametrize("name", [name for name in CASES if name not in LEFT_OUT])
def test_box_sums_equal_a_second_convolution(name):
    probe = probe_of(name)
    images, deviations = random_images(probe), random_deviations(probe)
    network = probe.prepare(dtype=torch.float64)
    expected = with_gradients(lambda x, s: reference(probe, x, s, is_batched=network.is_batched), images, deviations)
    clean = network.module(images) if network.is_batched else torch.cat([network.module(x) for x in images.split(1)])
    assert gap(expected[0], clean) > 1e-3  # there is noise to compare
    folds = [(True, True), (False, False)] if network.scales else [(True, True)]
    for fold, turned in folds:
        noisy = NoisyNetwork(probe.prepare(dtype=torch.float64, fold=fold, turned=turned), probe.layers)
        found = with_gradients(
            lambda x, s, noisy=noisy: noisy.features(x, s, generator=draw(), is_paired=False), images, deviations
        )
        for what, one, other in zip(("features", "images", "deviations"), found, expected, strict=True):
            assert gap(one, other) < 1e-8, (fold, what)
        # Filter by filter too, where a filter's gradient is not a sum that cancels.
        far = expected[2].abs() > 1e-4 * expected[2].abs().max()
        assert float((found[2] / expected[2] - 1).abs()[far].max()) < 1e-5


@pytest.mark.parametrize("name", ["odd", "shared", "encoder", "swin_v2"])
def test_a_pair_sees_the_same_noise_with_opposite_signs(name):
    probe = probe_of(name)
    images, deviations = random_images(probe), random_deviations(probe)
    network = probe.prepare(dtype=torch.float64)
    assert network.is_batched == (name != "swin_v2")
    expected = [
        with_gradients(
            lambda x, s, sign=sign: reference(probe, x, s, is_batched=network.is_batched, sign=sign), images, deviations
        )[0]
        for sign in (1, -1)
    ]
    noisy = NoisyNetwork(network, probe.layers)
    pair = noisy.features(images, deviations, generator=draw())
    assert gap(pair, torch.cat(expected)) < 1e-9
    assert gap(pair[: len(images)], noisy.features(images, deviations, generator=draw(), is_paired=False)) < 1e-12


@pytest.mark.parametrize("name", ["odd", "shared", "swin_v2"])
def test_gradients_of_a_pair_are_those_of_its_two_passes(name):
    probe = probe_of(name)
    images, deviations = random_images(probe), random_deviations(probe)
    network = probe.prepare(dtype=torch.float64)
    noisy = NoisyNetwork(network, probe.layers)
    found = with_gradients(lambda x, s: noisy.features(x, s, generator=draw()), images, deviations)
    expected = with_gradients(
        lambda x, s: torch.cat([reference(probe, x, s, is_batched=network.is_batched, sign=sign) for sign in (1, -1)]),
        images,
        deviations,
    )
    for one, other in zip(found, expected, strict=True):
        assert gap(one, other) < 1e-9


@pytest.mark.parametrize("name", ["encoder", "vit_tiny", "swin_v2"])  # smooth enough for an order to be seen
def test_in_the_mean_of_a_pair_the_first_order_is_gone(name):
    probe = probe_of(name)
    images = random_images(probe, 1)
    network = probe.prepare(dtype=torch.float64)
    noisy, clean = NoisyNetwork(network, probe.layers), network.module(images)
    alone, paired = [], []
    for part in (1e-3, 5e-4):
        pair = noisy.features(images, random_deviations(probe, part), generator=draw())
        alone.append(float((pair[:1] - clean).norm()))
        paired.append(float((pair.mean(0) - clean).norm()))
    assert alone[0] / alone[1] == pytest.approx(2, rel=0.05)
    assert paired[0] / paired[1] == pytest.approx(4, rel=0.2)
    assert paired[0] < 0.05 * alone[0]


def noisy_outputs(probe, layer, images, deviations, *, is_paired=False):
    """Clean output of one layer, its energy, and its output when it alone is noisy."""
    network = probe.prepare(dtype=torch.float64)
    start = sum(other.filters for other in probe.layers[: probe.layers.index(layer)])
    only = torch.zeros_like(deviations)
    only[start : start + layer.filters] = deviations[start : start + layer.filters]
    module, seen = network.layers[layer.name], []
    images = torch.cat([images, images]) if is_paired else images
    for noise in (torch.zeros_like(only), only):
        with NoisyNetwork(network, probe.layers).noise(noise, draw(), is_paired=is_paired):
            handle = module.register_forward_hook(lambda m, i, out: seen.append((i[0].detach(), out.detach())))
            network.module(images)
            handle.remove()
    scale = network.scales.get(layer.name, torch.ones(layer.filters).double())
    sigma = (only[start : start + layer.filters] * scale).view(-1, *[1] * (seen[0][1].ndim - 2))
    energy = patch_energy(module, seen[0][0])
    energy = energy.repeat_interleave(layer.filters // energy.shape[1], dim=1)
    return seen[0][1], energy, sigma, seen[1][1]


def test_outputs_have_the_variance_of_the_weights_times_the_energy():
    probe = probe_of("odd")
    deviations = random_deviations(probe)
    images = random_images(probe, 1).expand(40, -1, -1, -1)
    for layer in probe.layers:
        clean, energy, sigma, noisy = noisy_outputs(probe, layer, images, deviations)
        assert torch.equal((energy == 0).expand_as(clean), noisy == clean)
        standard = (noisy - clean) / (sigma.abs() * energy.sqrt())
        standard = standard[:, (energy > 0).flatten(2).all(2)[0]]  # less the filters that see dead patches
        count = standard.numel()
        assert abs(float(standard.mean())) < 5 / count**0.5, layer.name
        assert abs(float(standard.square().mean()) - 1) < 5 * (2 / count) ** 0.5, layer.name
        # Every filter and every place by itself, and neither two images nor two places nor two filters share a draw.
        for axes in ((0, 2, 3), (0, 1)):
            squares = standard.square().mean(axes)
            size = count / squares.numel()
            assert float((squares - 1).abs().max()) < 6 * (2 / size) ** 0.5, layer.name
        for axis in (0, 1, 2):
            if standard.shape[axis] > 1:
                product = standard * standard.roll(1, axis)
                assert abs(float(product.mean())) < 5 / count**0.5, (layer.name, axis)


def test_signs_are_opposite_at_every_output():
    probe = probe_of("odd")
    images, deviations = random_images(probe, 3), random_deviations(probe)
    for layer in probe.layers:
        clean, energy, _, noisy = noisy_outputs(probe, layer, images, deviations, is_paired=True)
        one, other = (noisy - clean).chunk(2)
        assert torch.allclose(one, -other, rtol=1e-9, atol=1e-12)
        assert torch.equal(one != 0, (energy > 0).expand_as(clean)[: len(one)])


def test_dead_patches_have_no_noise_and_a_finite_gradient():
    conv = nn.Conv2d(3, 4, 3, padding=1)
    module = nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
    probe = make_probe("dead", module, ("4",), Preprocess(size=(6, 6), resize=6), source="test")
    noisy = NoisyNetwork(probe.prepare(dtype=torch.float64), probe.layers)
    images = torch.zeros(2, 3, 6, 6, dtype=torch.float64)
    images[1, :, 2, 2] = 1
    found = with_gradients(lambda x, s: noisy.features(x, s, generator=draw()), images, random_deviations(probe))
    assert all(torch.isfinite(part).all() for part in found)
    with torch.no_grad():
        assert torch.allclose(found[0][0], noisy.network.module(images)[0], rtol=1e-12)
    assert torch.allclose(found[0][0], found[0][2], rtol=1e-12) and not torch.allclose(found[0][1], found[0][3])


def test_without_noise_nothing_changes():
    probe = probe_of("odd")
    images = random_images(probe)
    network = probe.prepare(dtype=torch.float64)
    pair = NoisyNetwork(network, probe.layers).features(images, torch.zeros(probe.n_filters).double(), generator=draw())
    assert torch.equal(pair, network.module(images).repeat(2, 1))


def test_the_same_generator_gives_the_same_noise_and_another_another():
    probe = probe_of("shared")
    noisy = NoisyNetwork(probe.prepare(dtype=torch.float64), probe.layers)
    images, deviations = random_images(probe), random_deviations(probe)
    one, same, other = (noisy.features(images, deviations, generator=draw(seed)) for seed in (7, 7, 8))
    assert torch.equal(one, same) and not torch.allclose(one, other)


@pytest.mark.parametrize("name", ["odd", "swin_v2"])
def test_weights_statistics_and_hooks_are_as_before(name):
    probe = probe_of(name)
    for fold in (True, False):
        network = probe.prepare(dtype=torch.float64, fold=fold)
        before = {k: v.clone() for k, v in network.module.state_dict().items()}
        modes = [m.training for m in network.module.modules()]
        noisy = NoisyNetwork(network, probe.layers)
        deviations = random_deviations(probe).requires_grad_()
        noisy.features(random_images(probe), deviations, generator=draw()).sum().backward()
        with pytest.raises(RuntimeError):
            noisy.features(torch.zeros(1, 5, *probe.size).double(), deviations, generator=draw())
        with pytest.raises(KeyError), noisy.noise(deviations, draw()):
            raise KeyError("inside")
        after = network.module.state_dict()
        assert list(after) == list(before) and all(torch.equal(after[k], before[k]) for k in before)
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.module.modules())
        assert not any(p.requires_grad or p.grad is not None for p in network.module.parameters())
        assert [m.training for m in network.module.modules()] == modes


def test_a_layer_whose_noise_is_not_known_is_refused_by_name():
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), StdConv2d(4, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 2)
    ).eval()
    probe = make_probe("standardised", module, ("4",), Preprocess(size=(8, 8), resize=8), source="test")
    with pytest.raises(ProbeError, match=r"layer '1'.*StdConv2d.*--method robust"):
        NoisyNetwork(probe.prepare(), probe.layers)
