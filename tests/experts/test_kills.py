"""R2 and N4 for cells, in a process of its own: no kill loses a cell or repeats one, and Ray finds the same errors.

A cell is a task on a model by a protocol with a seed, and it is kept when its transaction is committed. What was under
way at the kill, or computed and not yet committed, is computed again: that is no loss and no repetition.
"""

import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from task2vec.experts.error_matrix import error_matrix
from task2vec.library import Library
from task2vec.metatask import metatask_from_library
from tests.experts.material import make_many

RUN = """
import os, sys, time
from task2vec.parallel import open_backend
from task2vec.experts import error_matrix as work
from task2vec.library import Library
from tests.experts.material import make_many

computed = work.measure_cells

def measure(features, plan, *, model, only):
    lines = [f"{plan.task.fingerprint}\\t{model}\\t{protocol}\\t{seed}\\n" for protocol, seed in only]
    with open(os.environ["CELL_LOG"], "ab", buffering=0) as log:
        log.write("".join(lines).encode())
    time.sleep(0.02)  # so that a signal comes while there is still something to do
    return computed(features, plan, model=model, only=only)

if __name__ == "__main__":
    folder, name = sys.argv[1:]
    if name == "serial":
        work.measure_cells = measure
    tasks, experts = make_many()
    jobs = None if name == "serial" else 2
    with Library.open(folder) as library, open_backend(name, jobs=jobs, threads=1) as backend:
        print("begun", flush=True)
        how = {"device": "cpu", "num_workers": 1, "seeds": (0, 1), "on_cell": lambda _: print("cell", flush=True)}
        work.error_matrix(tasks, experts, **how, library=library, backend=backend)
"""
CELLS = 5 * 4 * 2


def list_known(folder):
    if not (folder / "library.sqlite").exists():
        return set()
    with Library.open(folder) as library:
        return {(error.task, error.expert, error.protocol, str(error.seed)) for error in library.errors()}


def run_script(tmp_path, backend, number, stop=None, after=0):
    """Which cells were begun, until the run was stopped by a signal a moment after so many were reported."""
    script, root, log = tmp_path / "run.py", Path(__file__).parents[2], tmp_path / f"log {number}"
    script.write_text(RUN)
    env = os.environ | {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "OMP_NUM_THREADS": "1", "CELL_LOG": str(log)}
    command = [sys.executable, str(script), str(tmp_path / "library"), backend]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        for reported, _ in enumerate(process.stdout):
            if stop is not None and reported == after:
                time.sleep(random.Random(number).random() * 0.1)
                process.send_signal(stop)
    assert process.returncode in (0, -(stop or 0)), "it failed by itself"
    return [tuple(line.split("\t")) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals to end a process by")
@pytest.mark.parametrize("backend", ["serial", "ray"])
def test_killed_many_times_and_run_again(tmp_path, backend):
    if backend == "ray" and importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: task2vec[ray]")
    folder, stops = tmp_path / "library", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
    for number, stop in enumerate([] if backend == "ray" else stops):
        known = list_known(folder)
        begun = run_script(tmp_path, backend, number, stop, after=number + 1)
        assert len(set(begun)) == len(begun), "a cell was computed twice in one run"
        assert known.isdisjoint(begun), "a cell that was kept was computed again"
        assert known <= list_known(folder), "a cell was lost"
    known = list_known(folder)
    begun = run_script(tmp_path, backend, "last")
    assert backend == "ray" or (known.isdisjoint(begun) and len(begun) == CELLS - len(known))
    with Library.open(folder) as library:
        found = metatask_from_library(library)
        assert library.verify().is_sound
    tasks, experts = make_many()
    wanted = error_matrix(tasks, experts, device="cpu", num_workers=1, seeds=(0, 1))
    order = [[one.name for one in found.tasks].index(task.name) for task in tasks]
    assert np.array_equal(found.errors[order], wanted.errors)  # and none is missing
