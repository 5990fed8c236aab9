"""Ray does what the other engines do: its table of questions, asked in one process of its own."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from task2vec.engine import open_engine
from task2vec.engine.connection import connect, share_cards
from task2vec.errors import MissingExtraError, ResourceError, UsageError
from tests.engine.ray_run import QUESTIONS
from tests.engine.test_pool import wait_until

ROOT = Path(__file__).parents[2]
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: task2vec[ray]")


def find_session(session: int) -> list[str]:
    """The processes of a session that are alive."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, own = place.read_text().rsplit(")", 1)[1].split()[:4]
            if int(own) == session and state != "Z":
                found.append((place.parent / "cmdline").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@needs_ray
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted in /proc")
def test_all_that_is_asked_of_ray(tmp_path):
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.engine.ray_run", str(tmp_path)]
    done = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    out, errors = done.communicate(timeout=400)
    told = {line["question"]: line["said"] for line in map(json.loads, out.splitlines())}
    assert {name: told.get(name, errors) for name in QUESTIONS} == dict.fromkeys(QUESTIONS, "well")
    assert done.returncode == 0
    assert wait_until(lambda: not find_session(done.pid)), find_session(done.pid)


def test_without_ray_there_is_one_line_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'task2vec\[ray\]'"):
        open_engine("ray")


class SlowRay:
    """A Ray that is up at the third try."""

    def __init__(self, failures):
        self.failures, self.calls = failures, []

    def is_initialized(self):
        return False

    def init(self, **options):
        self.calls.append("init")
        if len(self.calls) < 2 * self.failures + 1:
            raise RuntimeError("the agent did not start")

    def shutdown(self):
        self.calls.append("shutdown")


def test_a_ray_of_our_own_is_started_again_if_it_did_not_come_up():
    slow = SlowRay(2)
    assert connect(slow, None, cores=1)
    assert slow.calls == ["init", "shutdown", "init", "shutdown", "init"]
    with pytest.raises(ResourceError, match="the agent did not start"):
        connect(SlowRay(3), None, cores=1)


def test_cards_are_shared_out():
    assert share_cards(8, 8, None) == 1
    assert share_cards(8, 4, None) == 1
    assert share_cards(2, 5, None) == pytest.approx(1 / 3)  # three on one, two on the other
    assert share_cards(0, 5, None) == 0
    assert share_cards(2, 4, 0.5) == 0.5
    with pytest.raises(UsageError, match=r"5 workers with gpus=0\.5 each need 2\.5 GPUs, and Ray has 2"):
        share_cards(2, 5, 0.5)


@needs_ray
@pytest.mark.long
def test_two_workers_share_a_card_and_a_third_waits_for_its_turn(tmp_path):
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.engine.ray_cards", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["met"] == [["0", True]] * 2 and told["left"] == 0  # side by side, on the same card
    assert told["third_waits"] and told["ended"] == 2
    assert told["third"] == [["0", True], None]
