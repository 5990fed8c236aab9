"""R2 for cells: a run that is killed at any moment, and the same again: no cell is lost, none is computed twice.

A cell is a task on an expert by a protocol with a seed, and it is kept when its transaction is committed. What was
under way at the kill, or computed and not yet committed, is computed again: that is no loss and no repetition. Cells of
another protocol are other cells: if the number of the protocol's recipe is changed while this runs, all are made anew.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from task2vec.experts import ErrorMatrix, error_matrix
from task2vec.library import Library
from tests.experts.making import make_many

RUN = """
import os, sys, time
from task2vec.engine import open_engine
from task2vec.experts import error_matrix, work
from task2vec.library import Library
from tests.experts.making import make_many

def measure(features, plan, *, expert, only):
    lines = [f"{plan.task.fingerprint}\\t{expert}\\t{protocol}\\t{seed}\\n" for protocol, seed in only]
    handle = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, "".join(lines).encode())
    os.close(handle)
    time.sleep(0.02)  # so that a signal comes while there is still something to do
    return computed(features, plan, expert=expert, only=only)

class Watched(work.CellWork):
    def open(self):
        global computed
        if work.measure_cells is not measure:
            computed, work.measure_cells = work.measure_cells, measure
        return super().open()

if __name__ == "__main__":
    from task2vec.experts import measuring
    measuring.CellWork = Watched
    tasks, experts = make_many()
    how = {"device": "cpu", "workers": 1, "seeds": (0, 1)}
    with Library.open(sys.argv[1]) as library, open_engine(sys.argv[3], threads=1) as engine:
        print("begun", flush=True)
        error_matrix(tasks, experts, **how, library=library, engine=engine, on_cell=lambda _: print("cell", flush=True))
"""
CELLS = 5 * 4 * 2

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no signals to end a process by")


def list_known(folder):
    if not (folder / "index.sqlite").exists():
        return set()
    with Library.open(folder) as library:
        return {(error.task, error.expert, error.protocol, str(error.seed)) for error in library.errors()}


def run(folder, log, script, *, engine="serial", stop=None, after=0, seed=0):
    """Which cells were begun, until the run was stopped by a signal a moment after so many were told."""
    command, root = [sys.executable, str(script), str(folder), str(log), engine], Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "OMP_NUM_THREADS": "1"}
    told, is_stopped = 0, False
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        for line in process.stdout:
            told += line == "cell\n"
            if stop is not None and not is_stopped and told == after:
                time.sleep(random.Random(seed).random() * 0.1)
                process.send_signal(stop)
                is_stopped = True
        code = process.wait(timeout=100)
    assert code == 0 or is_stopped, code
    lines = log.read_text().splitlines() if log.exists() else []
    return [tuple(line.split("\t")) for line in lines]


def kill_again_and_again(tmp_path, stops, *, engine="serial"):
    script, folder = tmp_path / "run.py", tmp_path / "library"
    script.write_text(RUN)
    for seed, (stop, after) in enumerate(stops):
        known = list_known(folder)
        # Each run has a log of its own: workers whose parent was killed may write a line before they notice.
        begun = run(folder, tmp_path / f"log {seed}", script, engine=engine, stop=stop, after=after, seed=seed)
        assert len(set(begun)) == len(begun), "a cell was computed twice in one run"
        assert known.isdisjoint(begun), "a cell that was kept was computed again"
        assert known <= list_known(folder), "a cell was lost"
    known = list_known(folder)
    begun = run(folder, tmp_path / "last log", script, engine=engine)
    assert known.isdisjoint(begun) and len(begun) == CELLS - len(known)
    with Library.open(folder) as library:
        found = ErrorMatrix.from_library(library)
        assert library.verify().is_sound
    tasks, experts = make_many()
    wanted = error_matrix(tasks, experts, device="cpu", workers=1, seeds=(0, 1))
    order = [found.tasks.index(task.name) for task in tasks]
    assert np.array_equal(found.errors[order], wanted.errors)  # and none is missing


def test_killed_and_run_again(tmp_path):
    kill_again_and_again(tmp_path, [(signal.SIGKILL, 3), (signal.SIGTERM, 4)])


@pytest.mark.long
@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_killed_many_times_and_run_again(tmp_path, engine):
    rng = random.Random(0)
    stops = [(rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]), rng.randrange(3)) for _ in range(10)]
    kill_again_and_again(tmp_path, stops, engine=engine)
