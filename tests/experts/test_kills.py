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
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from task2vec.experts.error_matrix import error_matrix
from task2vec.library import Library
from task2vec.select import metatask_from_library
from tests.experts.material import make_many

# Each run is a fork of one process that has everything imported: importing takes longer than the run.
RUN = """
import os, sys, time
from task2vec.parallel import open_backend
from task2vec.experts import error_matrix as work
from task2vec.experts.error_matrix import error_matrix
from task2vec.library import Library
from tests.experts.material import make_many

def measure(features, plan, *, model, only):
    lines = [f"{plan.task.fingerprint}\\t{model}\\t{protocol}\\t{seed}\\n" for protocol, seed in only]
    handle = os.open(os.environ["CELL_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, "".join(lines).encode())
    os.close(handle)
    time.sleep(0.02)  # so that a signal comes while there is still something to do
    return computed(features, plan, model=model, only=only)

class Watched(work.CellWork):
    def open(self):
        global computed
        if work.measure_cells is not measure:
            computed, work.measure_cells = work.measure_cells, measure
        return super().open()

def run(folder, log, name):
    os.environ["CELL_LOG"] = log
    tasks, experts = make_many()
    how = {"device": "cpu", "num_workers": 1, "seeds": (0, 1)}
    with Library.open(folder) as library, open_backend(name, threads=1) as engine:
        print("begun", flush=True)
        how |= {"library": library, "backend": engine, "on_cell": lambda _: print("cell", flush=True)}
        error_matrix(tasks, experts, **how)

if __name__ == "__main__":
    work.CellWork = Watched
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(*line.rstrip("\\n").split("\\t"))
            break
        print("pid", child, flush=True)
        print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
CELLS = 5 * 4 * 2

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no signals to end a process by")


def list_known(folder):
    if not (folder / "library.sqlite").exists():
        return set()
    with Library.open(folder) as library:
        return {(error.task, error.expert, error.protocol, str(error.seed)) for error in library.errors()}


class Runner:
    """A process whose forks do runs on one library, each with a log of its own.

    Workers whose parent was killed may write a line before they notice: then it is in the log of their own run.
    """

    def __init__(self, tmp_path, engine):
        self.folder, self.engine, self.logs = tmp_path / "library", engine, tmp_path
        script, root = tmp_path / "run.py", Path(__file__).parents[2]
        script.write_text(RUN)
        env = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "OMP_NUM_THREADS": "1"}
        pipe, command = subprocess.PIPE, [sys.executable, str(script)]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env)

    def run(self, number, *, stop=None, after=0):
        """Which cells were begun, until the run was stopped by a signal a moment after so many were told."""
        log, told, pid, code, is_stopped = self.logs / f"log {number}", -1, None, None, False
        self.process.stdin.write(f"{self.folder}\t{log}\t{self.engine}\n")
        self.process.stdin.flush()
        while code is None:
            word, *value = self.process.stdout.readline().split()
            told += word in ("begun", "cell")
            pid = int(value[0]) if word == "pid" else pid
            code = int(value[0]) if word == "ended" else None
            if stop is not None and pid is not None and told >= after and code is None:
                time.sleep(random.Random(number).random() * 0.1)
                with suppress(ProcessLookupError):
                    os.kill(pid, stop)
                stop, is_stopped = None, True
        assert code == 0 or is_stopped, code
        lines = log.read_text().splitlines() if log.exists() else []
        return [tuple(line.split("\t")) for line in lines]

    def close(self):
        self.process.communicate(timeout=100)


@pytest.fixture
def kill_again_and_again(tmp_path):
    """A function that does so, and then sees that nothing is missing."""
    opened = []

    def kill(stops, engine="serial"):
        runner = Runner(tmp_path, engine)
        opened.append(runner)
        for number, (stop, after) in enumerate(stops):
            known = list_known(runner.folder)
            begun = runner.run(number, stop=stop, after=after)
            assert len(set(begun)) == len(begun), "a cell was computed twice in one run"
            assert known.isdisjoint(begun), "a cell that was kept was computed again"
            assert known <= list_known(runner.folder), "a cell was lost"
        known = list_known(runner.folder)
        begun = runner.run("last")
        assert known.isdisjoint(begun) and len(begun) == CELLS - len(known)
        with Library.open(runner.folder) as library:
            found = metatask_from_library(library)
            assert library.verify().is_sound
        tasks, experts = make_many()
        wanted = error_matrix(tasks, experts, device="cpu", num_workers=1, seeds=(0, 1))
        order = [[one.name for one in found.tasks].index(task.name) for task in tasks]
        assert np.array_equal(found.errors[order], wanted.errors)  # and none is missing

    yield kill
    for runner in opened:
        runner.close()


def test_killed_and_run_again(kill_again_and_again):
    kill_again_and_again([(signal.SIGKILL, 3), (signal.SIGTERM, 4), (signal.SIGINT, 2), (signal.SIGKILL, 0)])


@pytest.mark.long
@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_killed_many_times_and_run_again(kill_again_and_again, engine):
    rng = random.Random(0)
    stops = [(rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]), rng.randrange(3)) for _ in range(10)]
    kill_again_and_again(stops, engine)
