"""N4 for cells: a Ray cluster measures the same errors as this process."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import numpy as np
from task2vec.parallel import open_backend
from task2vec.experts.error_matrix import error_matrix
from tests.experts.material import make_many

if __name__ == "__main__":
    tasks, experts = make_many()
    how = {"device": "cpu", "num_workers": 1, "seeds": (0, 1)}
    with open_backend("serial", threads=1) as engine:
        wanted = error_matrix(tasks, experts, **how, backend=engine)
    with open_backend("ray", jobs=2, threads=1) as engine:
        found = error_matrix(tasks, experts, **how, backend=engine)
    assert not found.failures, found.failures
    for name in ("errors", "low", "high"):
        assert np.array_equal(getattr(found, name), getattr(wanted, name)), name
    print("the same", found.errors.size)
"""


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: task2vec[ray]")
def test_a_cluster_measures_the_same(tmp_path):
    # Ray needs sockets, which are closed here: it runs in a process of its own.
    script, root = tmp_path / "run.py", Path(__file__).parents[2]
    script.write_text(RUN)
    env = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "the same 40"
