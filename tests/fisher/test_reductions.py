"""Routes and kernels that only a GPU takes, and the energies of patches: each against a plain version, in float64."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.std_conv import StdConv2d
from torch import Tensor, nn
from torch.nn import functional

from task2vec.fisher import reductions
from task2vec.fisher.reductions import Geometry, geometry_of, is_plain, patch_energy, reduce_untied
from tests.command import run_command
from tests.oracles.fisher import patch_norms, single_output_norms

# torch warns of the cost of an even kernel, once.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")

GEOMETRIES = {
    "3x3": (Geometry((3, 3), (1, 1), (1, 1), (1, 1)), (9, 7)),
    "strided": (Geometry((3, 5), (2, 2), (1, 1), (1, 2)), (5, 4)),
    "dilated": (Geometry((3, 3), (1, 1), (2, 2), (2, 2)), (9, 7)),
    "larger than the map": (Geometry((7, 7), (4, 4), (1, 1), (3, 3)), (3, 2)),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_all_routes_agree_and_depthwise_is_the_weight_gradient_of_a_grouped_convolution(name):
    geometry, out = GEOMETRIES[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 9, 7, generator=generator, dtype=torch.float64)
    d = torch.randn(3, 4, *out, generator=generator, dtype=torch.float64)
    expected = reductions.direct(x, d, geometry)
    assert torch.allclose(reductions.pixelwise(x, d, geometry), expected, rtol=1e-10)
    gram = reductions.patch_gram(x, out, geometry)
    assert torch.allclose(reductions.quadratic(gram, d.flatten(2)), expected, rtol=1e-10)
    for i in range(len(x)):
        weight = torch.zeros(4, 1, *geometry.kernel, dtype=torch.float64, requires_grad=True)
        padded = geometry.padded(x[i : i + 1], out)
        result = functional.conv2d(padded, weight, None, geometry.stride, 0, geometry.dilation, 4)
        (gradient,) = torch.autograd.grad(result[:, :, : out[0], : out[1]], weight, d[i : i + 1])
        expected = gradient.flatten(1).square().sum(1)
        assert torch.allclose(reductions.depthwise(x, d[:, :, None], geometry)[i, :, 0], expected, rtol=1e-10)


# --- the energy of patches ---

LAYERS = {
    "1x1": (nn.Conv2d(4, 6, 1), (4, 5, 6)),
    "1x1 strided": (nn.Conv2d(4, 6, 1, stride=2), (4, 5, 6)),
    "strided": (nn.Conv2d(4, 6, 3, stride=(2, 3), padding=1), (4, 7, 8)),
    "stride beyond the kernel": (nn.Conv2d(3, 4, 2, stride=3), (3, 8, 8)),
    "dilated and strided": (nn.Conv2d(4, 6, 3, dilation=2, stride=2, padding=1), (4, 8, 9)),
    "grouped and dilated": (nn.Conv2d(6, 9, 3, groups=3, dilation=2, padding=2), (6, 5, 4)),
    "depthwise, two per channel": (nn.Conv2d(3, 6, (3, 5), groups=3, padding=(1, 2)), (3, 6, 7)),
    "reflect, grouped": (nn.Conv2d(4, 4, 3, padding=2, groups=2, padding_mode="reflect"), (4, 5, 6)),
    "circular, oblong": (nn.Conv2d(3, 4, (3, 5), padding=(1, 2), padding_mode="circular"), (3, 5, 6)),
    "same, even kernel": (nn.Conv2d(3, 4, (2, 4), padding="same"), (3, 5, 6)),
    "1x1 grouped and padded": (nn.Conv2d(4, 4, 1, padding=1, groups=2), (4, 5, 6)),
    "same, reflect": (nn.Conv2d(3, 4, (2, 3), padding="same", padding_mode="reflect"), (3, 5, 6)),
    "tensorflow same, depthwise": (Conv2dSame(3, 3, 5, stride=2, groups=3), (3, 6, 7)),
    "1-d, strided": (nn.Conv1d(4, 6, 3, padding=1, stride=2), (4, 9)),
    "3-d, strided": (nn.Conv3d(2, 4, (2, 3, 1), padding=(0, 1, 0), stride=(1, 2, 1)), (2, 4, 5, 3)),
    "3-d, dilated, grouped": (nn.Conv3d(2, 4, 2, dilation=(1, 2, 1), groups=2), (2, 4, 5, 3)),
    "linear, tokens": (nn.Linear(5, 3, bias=False), (4, 5)),
    "linear, map with channels last": (nn.Linear(5, 3), (2, 3, 5)),
}


@pytest.fixture(params=list(LAYERS))
def layer(request):
    module, shape = LAYERS[request.param]
    module = module.double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=generator)
    return module, torch.randn(2, *shape, generator=generator, dtype=torch.float64)


def test_energy_is_the_squared_gradient_of_every_single_output(layer):
    module, x = layer
    assert is_plain(module)
    expected, energy = single_output_norms(module, x), patch_energy(module, x)
    if not isinstance(module, nn.Linear):  # one for each group, which its filters share
        assert energy.shape == (len(x), module.groups, *expected.shape[2:])
        energy = energy.repeat_interleave(expected.shape[1] // module.groups, dim=1)
    assert torch.allclose(energy.expand_as(expected), expected, rtol=1e-12, atol=1e-14)
    assert torch.allclose(patch_norms(module, x), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("large", [1, reductions._LARGE])
def test_untied_sums_squares_times_energies_image_by_image_or_all_at_once(layer, large, monkeypatch):
    module, x = layer
    monkeypatch.setattr(reductions, "_LARGE", large)
    out, norms = module(x), single_output_norms(module, x)
    d = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = d.square() * norms
    if isinstance(module, nn.Linear):
        expected = expected.movedim(-1, 1)
    expected = expected.flatten(2).sum(2)
    assert torch.allclose(reduce_untied(module, x, d, range(len(x))), expected, rtol=1e-12, atol=1e-14)


def test_layers_that_change_their_weights_are_not_plain():
    assert not is_plain(StdConv2d(3, 4, 3)) and not is_plain(nn.BatchNorm2d(3))
    assert is_plain(type("Renamed", (nn.Linear,), {})(3, 4))


@pytest.mark.parametrize(
    ("answer", "wanted"), [({"return_value": "high"}, "high"), ({"side_effect": RuntimeError}, "mixed")]
)
def test_flags_that_contradict_each_other_are_no_error(monkeypatch, answer, wanted):
    monkeypatch.setattr(torch, "get_float32_matmul_precision", Mock(**answer))
    assert reductions.matmul_precision() == wanted


# --- kernels, on a GPU or else in Triton's interpreter ---

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Kernel, stride, dilation and padding, which may be other ones down than across.
WINDOWS = [Geometry((3, 3), (1, 1), (1, 1), (1, 1)), Geometry((5, 3), (2, 1), (1, 2), (2, 0))]


def make_layer(geometry: Geometry, channels: int, filters: int, groups: int = 1) -> tuple[nn.Conv2d, Tensor, Tensor]:
    """A convolution, inputs of two images, and gradients at its outputs with the channels innermost, as on a GPU."""
    torch.manual_seed(0)
    where = (geometry.kernel, geometry.stride, geometry.padding, geometry.dilation, groups)
    conv = nn.Conv2d(channels, filters, *where).to(DEVICE)
    x = torch.randn(2, channels, 9, 9, device=DEVICE).contiguous(memory_format=torch.channels_last)
    d = torch.randn_like(conv(x)).contiguous(memory_format=torch.channels_last)
    return conv, x, d


def measure() -> dict[str, float]:
    """The largest relative error of each kernel in each case. The interpreter has no products in bfloat16."""
    from task2vec.fisher import kernels

    found, several = {}, 64  # positions of one program, where several share them
    for number, (geometry, run, multiplier) in enumerate(zip(WINDOWS, (several, kernels._RUN), (1, 2), strict=True)):
        kernels._RUN = run
        conv, x, d = make_layer(geometry, 5, 5 * multiplier, groups=5)
        rows = kernels.depthwise(x, d, geometry_of(conv, x)[1])
        wanted = reductions.reduce_layer(conv.double(), x.double(), d.double(), len(x))
        found[f"depthwise {number}"] = _differ(rows, wanted)
        conv, x, d = make_layer(geometry, 6, 66, groups=1 + 2 * number)
        energy = patch_energy(conv.double(), x.double())
        rows = kernels.untied(energy.float().flatten(2), d.flatten(2))
        found[f"untied {number}"] = _differ(rows, reductions.untied(energy, d.double()))
        conv, x, d = make_layer(geometry, 16, 70)
        rows = kernels.tied(x, d, geometry_of(conv, x)[1], dtype=torch.float32)
        found[f"tied {number}"] = _differ(rows, reductions.direct(x.double(), d.double(), geometry))
    return found


def _differ(found: Tensor, wanted: Tensor) -> float:
    return float(((found.double() - wanted).abs() / wanted).max())


# A process of its own, for kernels are interpreted if a variable is set when Triton is imported.
SCRIPT = """
import json
from tests.fisher.test_reductions import measure
print(json.dumps(measure()))
"""


def test_kernels_agree_with_float64():
    pytest.importorskip("triton", reason="torch has brought no Triton here")
    environment = {"TRITON_INTERPRET": "1"} if DEVICE == "cpu" else {}
    done = run_command(python=SCRIPT, cwd=Path(__file__).parents[2], **environment)
    assert done.returncode == 0, done.stderr[-2000:]
    errors = json.loads(done.stdout)
    assert len(errors) == 6 and max(errors.values()) < 1e-5, errors


def test_without_a_compiler_torch_reduces(monkeypatch):
    kernels = pytest.importorskip("task2vec.fisher.kernels", reason="torch has brought no Triton here")
    monkeypatch.setattr(kernels, "untied", Mock(side_effect=RuntimeError("Failed to find C compiler")))
    assert reductions._load_kernels.__wrapped__() is None
