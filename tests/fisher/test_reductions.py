"""Routes that only a GPU takes by itself, on the CPU: each against the plain one, in float64."""

import itertools

import pytest
import torch
from torch.nn import functional

from task2vec.fisher.reductions import (
    Geometry,
    depthwise,
    depthwise_on_diagonals,
    direct,
    few_channels,
    few_channels_on_diagonals,
    mix,
    patches,
    pixelwise,
    strided_patches,
)

GEOMETRIES = {
    "3x3": (Geometry((3, 3), (1, 1), (1, 1), (1, 1)), (9, 7)),
    "strided": (Geometry((3, 5), (2, 2), (1, 1), (1, 2)), (5, 4)),
    "dilated": (Geometry((3, 3), (1, 1), (2, 2), (2, 2)), (9, 7)),
    "larger than the map": (Geometry((7, 7), (4, 4), (1, 1), (3, 3)), (3, 2)),
}


@pytest.fixture(params=list(GEOMETRIES))
def case(request):
    geometry, out = GEOMETRIES[request.param]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 9, 7, generator=generator, dtype=torch.float64)
    d = torch.randn(3, 4, *out, generator=generator, dtype=torch.float64)
    return geometry, out, x, d


def test_strided_patches_are_what_unfold_gives(case):
    geometry, out, x, _ = case
    padded = geometry.padded(x, out)
    assert torch.equal(strided_patches(padded, out, geometry), patches(x, out, geometry))


def test_depthwise_is_the_weight_gradient_of_a_grouped_convolution(case):
    geometry, out, x, d = case
    for i in range(len(x)):
        weight = torch.zeros(4, 1, *geometry.kernel, dtype=torch.float64, requires_grad=True)
        padded = geometry.padded(x[i : i + 1], out)
        result = functional.conv2d(padded, weight, None, geometry.stride, 0, geometry.dilation, 4)
        (gradient,) = torch.autograd.grad(result[:, :, : out[0], : out[1]], weight, d[i : i + 1])
        expected = gradient.flatten(1).square().sum(1)
        assert torch.allclose(depthwise(x, d[:, :, None], geometry)[i, :, 0], expected, rtol=1e-10)


def test_diagonals_make_up_the_kernel(case):
    geometry, _, x, d = case
    numbers = [torch.full((3,), k) for k in range(geometry.kernel[1])]
    whole = depthwise(x, d[:, :, None], geometry)
    parts = sum(depthwise_on_diagonals(x, d[:, :, None], geometry, k) for k in numbers)
    assert torch.allclose(parts, whole, rtol=1e-10)
    by_taps = sum(depthwise(x, d[:, :, None], geometry, geometry.diagonal(k)) for k in range(geometry.kernel[1]))
    assert torch.allclose(by_taps, whole, rtol=1e-10)


def test_few_channels_on_all_diagonals_are_the_direct_route(case):
    geometry, out, x, d = case
    whole = direct(patches(x, out, geometry), d.flatten(2))
    assert torch.allclose(pixelwise(x, d, geometry), whole, rtol=1e-10)
    assert torch.allclose(few_channels(x, d, geometry, geometry.all_taps()), whole, rtol=1e-10)
    numbers = [torch.full((3,), k) for k in range(geometry.kernel[1])]
    parts = sum(few_channels_on_diagonals(x, d, geometry, k) for k in numbers)
    assert torch.allclose(parts, whole, rtol=1e-10)


def test_each_image_has_its_own_diagonal(case):
    geometry, _, x, d = case
    numbers = torch.tensor([0, 1, 2])
    together = depthwise_on_diagonals(x, d[:, :, None], geometry, numbers)
    for i, k in enumerate(numbers.tolist()):
        alone = depthwise(x[i : i + 1], d[i : i + 1, :, None], geometry, geometry.diagonal(k))
        assert torch.allclose(together[i], alone[0], rtol=1e-10)


def test_sketch_is_exact_on_average_over_all_signs(case):
    geometry, out, x, d = case
    x = x[:, :3]
    exact = direct(patches(x, out, geometry), d.flatten(2))
    total = torch.zeros_like(exact)
    choices = list(itertools.product((-1.0, 1.0), repeat=2 * 3))
    for choice in choices:
        signs = torch.tensor(choice, dtype=torch.float64).view(1, 2, 3).expand(3, -1, -1)
        total += direct(patches(mix(x, signs), out, geometry), d.flatten(2))
    assert torch.allclose(total / len(choices), exact, rtol=1e-10)
