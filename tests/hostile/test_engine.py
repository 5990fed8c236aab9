"""R2 and R3 with backends: a command is stopped again and again, tasks kill their process, a machine is lost.

Finished tasks stay, the rest goes on, and no process is left behind.
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
from PIL import Image

from task2vec.errors import ResourceError
from task2vec.library import Library
from task2vec.parallel import open_backend
from tests.command import START
from tests.embedding.test_many_backends import make_task, run, spoil
from tests.test_parallel import find_session, wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted in /proc")
ROOT = Path(__file__).resolve().parents[2]
TASKS = 20
SLOWLY = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may hand on that interrupts are ignored
import task2vec
import task2vec.embedding
from tests.tiny_probe import make_tiny
task2vec.load_probe = lambda *args, **options: make_tiny()
embed_many = task2vec.embed_many
def embed_slowly(*args, **options):  # so that a signal comes while there is still something to do
    for result in embed_many(*args, **options):
        time.sleep(0.03)
        yield result
task2vec.embed_many = embed_slowly
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Twenty small tasks, each with images of its own."""
    root, rng = tmp_path_factory.mktemp("tasks"), np.random.default_rng(0)
    for number in range(TASKS):
        for name, level in (("dark", 60), ("bright", 190)):
            place = root / f"task-{number}" / name
            place.mkdir(parents=True)
            for index in range(3):
                pixels = rng.normal(level, 30, (16, 16, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{index}.png")
    return sorted(root.iterdir())


def embed(folders, library, *, jobs, stop=None, after=0, seed=0):
    """What was told of each task until the command was stopped, a moment after so many had been made."""
    options = [*f"--backend processes --jobs {jobs} --max-samples 6 --l2 0.1 --library".split(), library]
    command = [sys.executable, "-c", SLOWLY + START, "embed", *map(str, [*folders, *options])]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "COLUMNS": "100"}
    told: dict[str, str] = {}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        is_stopped = False
        for line in process.stdout:
            name, *rest = line.split()
            if name.startswith("task-"):
                told[name] = "found" if rest[-1] == "found" else "made"
            if stop is not None and not is_stopped and list(told.values()).count("made") >= after and told:
                is_stopped = True
                time.sleep(random.Random(seed).random() * 0.05)
                process.send_signal(stop)
        errors = process.stderr.read()
        code = process.wait(timeout=100)
    assert code == {None: 0, signal.SIGINT: 130}.get(stop, -(stop or 0)), errors
    assert "Traceback" not in errors
    assert wait_until(lambda: not find_session(process.pid)), find_session(process.pid)
    return told


def stop_again_and_again(folders, library, stops, *, jobs):
    """Stops the command as often, then lets it come to its end; what was told as finished is there each time."""
    finished: set[str] = set()
    for number, (stop, after) in enumerate([*stops, (None, 0)]):
        told = embed(folders, library, jobs=jobs, stop=stop, after=after, seed=number)
        assert finished <= {name for name, how in told.items() if how == "found"}
        finished |= set(told)
        with Library.open(library) as opened:
            kept = {task.name for task in opened.tasks()}
            assert finished <= kept and len(kept) <= TASKS
            assert opened.verify().is_sound
    assert finished == {f"task-{number}" for number in range(TASKS)}
    return told


@pytest.mark.long
def test_a_command_that_is_stopped(folders, tmp_path):
    told = stop_again_and_again(folders, tmp_path, [(signal.SIGINT, 3)], jobs=1)
    assert 3 <= list(told.values()).count("found") < TASKS


@pytest.mark.long
def test_a_command_that_is_stopped_ten_times(folders, tmp_path):
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
    stop_again_and_again(folders, tmp_path, [(signals[number % 3], 1) for number in range(10)], jobs=2)


@pytest.mark.long
def test_a_task_that_kills_its_process_is_reported_and_the_rest_goes_on():
    tasks = [make_task(number) for number in range(4)]
    with open_backend("processes", jobs=2, threads=1) as processes:
        found = run([spoil(task, "kill") if task is tasks[1] else task for task in tasks], processes)
    assert [result.embedding is None for result in found] == [False, True, False, False]
    assert isinstance(found[1].error, ResourceError)
    assert "'task 1 (task 1)' was given up: its process died 3 times (signal 9)" in str(found[1].error)
