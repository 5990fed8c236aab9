"""R9 and R10: a large library opens quickly, a long-lived process does not grow. S10: no test reaches the network."""

import json
import socket
import sys

import pytest
from pytest_socket import SocketBlockedError

from task2vec.library import Library
from tests.command import run_python
from tests.failures import refuse
from tests.library.material import make

# --- R9 ---------------------------------------------------------------------------------------------------------------


TASKS, FILTERS = 5000, 2000
SCRIPT = """
import json, sys, time
from task2vec.library import Library
from tests.hostile.peak_memory import read_memory
found = {}
def clock(name, ask):
    began = time.perf_counter()
    answer = ask()
    found[name] = time.perf_counter() - began
    return answer
library = clock("open", lambda: Library.open(sys.argv[1]))
tasks = clock("tasks", library.tasks)
one = clock("task", lambda: library.task("task 77"))
near = clock("first nearest", lambda: library.nearest("task 77"))
assert clock("second nearest", lambda: library.nearest("task 78"))
assert len(tasks) == 5000 and one.name == "task 77" and len(near) == 10
library.close()
found["megabytes"] = read_memory()
print(json.dumps(found))
"""


CRASH = """
import os, sys
from task2vec.library import Library
from tests.library.material import make
library = Library.open(sys.argv[1])
library.add(*(make(f"late {seed}", seed, filters=2000) for seed in range(5000)), tags=["again"])
os._exit(0)
"""


@pytest.mark.long
def test_five_thousand_tasks_before_and_after_a_crash(tmp_path):
    """Opening recovers what a killed process left in the WAL."""
    large = tmp_path / "library"
    with Library.open(large) as library:
        for start in range(0, TASKS, 500):
            seeds = range(start, start + 500)
            library.add(*(make(f"task {seed}", seed, filters=FILTERS) for seed in seeds), tags=["many"])
        library.nearest("task 0")  # makes the sketches
    runs = [json.loads(run_python(SCRIPT, large)) for _ in range(3)]
    best = {name: min(run[name] for run in runs) for name in runs[0]}
    assert best["open"] < 1 and best["megabytes"] < 1000
    assert best["tasks"] < 3 and best["task"] < 0.5 and best["first nearest"] < 5 and best["second nearest"] < 1
    run_python(CRASH, large)
    assert (large / "library.sqlite-wal").stat().st_size
    assert json.loads(run_python(SCRIPT, large))["open"] < 2


# --- R10 and S10 ------------------------------------------------------------------------------------------------------


# Tells the memory in use (not its peak) again and again: what is kept of a task shows as a slope.
THOUSAND = """
import gc, sys
from task2vec.embedding import EmbedSettings, embed
from tests.embedding.conftest import make_task
from tests.hostile.peak_memory import read_memory
from tests.tiny_probe import make_tiny

runs, warm = int(sys.argv[1]), int(sys.argv[2])
probe, settings = make_tiny(), EmbedSettings(max_samples=12, l2=0.1)
for number in range(runs):
    embedding = embed(make_task(counts=(6, 6), seed=number), probe, settings=settings)
    if number + 1 in (warm, runs):
        gc.collect()
        print(read_memory("VmRSS"), flush=True)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_r10_a_thousand_embeddings_in_one_process():
    warm, end = map(float, run_python(THOUSAND, 1000, 50, timeout=3000).split())
    assert end < 1.05 * warm


@pytest.mark.filterwarnings("ignore:A test tried to use")
def test_s10_all_tests_run_with_sockets_blocked_and_one_that_reaches_out_fails(pytestconfig):
    refuse(SocketBlockedError, None, socket.socket, socket.AF_INET, socket.SOCK_STREAM)
    assert pytestconfig.getoption("--disable-socket") and not pytestconfig.getoption("--force-enable-socket")
