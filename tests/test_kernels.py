"""The Triton kernels of the Fisher and of the solver against torch in float64, on a GPU or in Triton's interpreter."""

import json
from pathlib import Path

import pytest
import torch

from tests.command import run_command

# A process for both, since Triton decides whether to interpret its kernels when it is imported.
SCRIPT = """
import json
from tests.fisher.test_reductions import compare_kernels as compare_reductions
from tests.head.test_lbfgs import compare_kernels as compare_steps
print(json.dumps([compare_reductions(), compare_steps()]))
"""


def test_kernels_agree_with_torch():
    pytest.importorskip("triton", reason="this torch came without Triton")
    environment = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    done = run_command(python=SCRIPT, cwd=Path(__file__).parents[1], **environment)
    assert done.returncode == 0, done.stderr[-2000:]
    reductions, steps = json.loads(done.stdout)
    assert len(reductions) == 6 and max(reductions.values()) < 1e-5, reductions
    assert len(steps) == 54 and max(steps.values()) < 1e-7, steps
