"""The kernels for a GPU, on one or else in Triton's interpreter, against the same reductions in float64."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from task2vec.fisher import reductions
from task2vec.fisher.reductions import Geometry, geometry_of, patch_energy
from tests.command import run_command

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Kernel, stride, dilation and padding, which may be other ones down than across.
GEOMETRIES = [Geometry((3, 3), (1, 1), (1, 1), (1, 1)), Geometry((5, 3), (2, 1), (1, 2), (2, 0))]


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
    for number, (geometry, run, multiplier) in enumerate(zip(GEOMETRIES, (several, kernels._RUN), (1, 2), strict=True)):
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


# A process of its own, for kernels are interpreted if a variable is set when Triton is imported; without torch's
# compiler, which takes as long to import as all the rest.
SCRIPT = """
import json
from task2vec.cli.inputs import import_networks
import_networks()
from tests.fisher.test_kernels import measure
print(json.dumps(measure()))
"""


def test_kernels_agree_with_float64():
    pytest.importorskip("triton", reason="torch has brought no Triton here")
    environment = {"TRITON_INTERPRET": "1"} if DEVICE == "cpu" else {}
    done = run_command(python=SCRIPT, cwd=Path(__file__).parents[2], **environment)
    assert done.returncode == 0, done.stderr[-2000:]
    errors = json.loads(done.stdout)
    assert len(errors) == 6 and max(errors.values()) < 1e-5, errors
