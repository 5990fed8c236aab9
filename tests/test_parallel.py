"""Every backend makes the same of the same units; workers that die are replaced, and none stays behind."""

import importlib.util
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from task2vec.errors import BadImagesError, DataError, MissingExtraError, ResourceError, UsageError, WorkError
from task2vec.parallel import Failure, RayBackend, Unit, connect_ray, import_ray, open_backend
from tests import parallel_work as works
from tests.cases import make_case
from tests.command import ENVIRONMENT, ROOT
from tests.failures import refuse
from tests.parallel_work import Do, find_session, gather, is_alive, wait_until

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted in /proc")
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: task2vec[ray]")


def test_values_failures_and_requests_of_units():
    def request_units():
        yield Unit("a", 1)
        raise KeyError("no more units")

    with open_backend("serial") as backend:
        works.check_table(backend, jobs=1)
        refuse(KeyError, "no more units", list, backend.run(Do(works.count), request_units()))
        assert gather(backend, Do(partial(works.count, lock=threading.Lock())), [Unit("a", "lock")])[1] == {"a": None}
        refuse(UsageError, "this work has no handle", list, backend.run(works.Broken(), [Unit("a", 1)]))


def test_a_probe_leaves_behind_what_was_made_of_it():
    probe = make_case("odd")
    images = torch.zeros(2, 3, *probe.size)
    wanted = probe.prepare().module(images)
    copy = pickle.loads(pickle.dumps(probe))
    assert (copy.fingerprint, copy._prepared) == (probe.fingerprint, {}) and probe._prepared
    assert torch.equal(copy.prepare().module(images), wanted)


def test_threads_are_limited_for_as_long_as_the_work_is_done():
    before = torch.get_num_threads()
    with open_backend("serial", threads=3) as backend:
        values, _ = gather(backend, Do(works.find_threads), [Unit("a", None)])
    # MKL, on Intel's processors, takes no more threads than there are cores.
    assert values["a"][0][0] in (3, min(3, os.cpu_count() or 1)) and torch.get_num_threads() == before


def test_a_failure_becomes_the_error_that_it_was():
    kinds = {DataError("a"): DataError, works.OddDataError("b"): DataError, KeyError("c"): WorkError}
    for error, kind in {**kinds, BadImagesError("d", ("x",)): BadImagesError}.items():
        failure = Failure.of(error)
        again = failure.error()
        assert type(again) is kind and str(error) in str(again)
        assert again.exit_code == failure.exit_code and again.__notes__ == [failure.traceback]


def test_invalid_arguments_are_refused(monkeypatch):
    for name, options, words in [
        ("spark", {}, "no backend 'spark'.*serial, ray"),
        ("processes", {}, "'processes' no longer exists.*--backend ray"),
        ("ray", {"jobs": 0}, "jobs=0"),
        ("serial", {"threads": -1}, "threads=-1"),
        ("serial", {"jobs": 2}, "--backend ray"),
        ("serial", {"address": "auto"}, "--backend ray"),
    ]:
        refuse(UsageError, words, open_backend, name, **options)
    monkeypatch.setitem(sys.modules, "ray", None)
    refuse(MissingExtraError, r"task2vec\[ray\].*--backend serial", import_ray)


# --- Ray --------------------------------------------------------------------------------------------------------------


def start_python(*words):
    """A Python process, with a session of its own; tests reach no network, and Ray needs loopback."""
    command, pipe, env = [sys.executable, *words], subprocess.PIPE, {**os.environ, **ENVIRONMENT}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def run_ray(check: str, tmp_path: Path) -> dict:
    """What `tests.parallel_ray` prints; nothing of it stays behind."""
    with start_python("-m", "tests.parallel_ray", check, str(tmp_path)) as process:
        out, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    assert wait_until(lambda: not find_session(process.pid)), find_session(process.pid)
    return json.loads(out)


@needs_ray
@needs_proc
def test_ray_does_what_the_other_backends_do(tmp_path):
    assert run_ray("quick", tmp_path) == {"usage": "0", "dashboard": None, "addresses": ["127.0.0.1"]}


@needs_ray
@needs_proc
@pytest.mark.long
@pytest.mark.parametrize(
    ("check", "wanted"),
    [
        ("rest", {"has_same_bytes": True}),
        ("gpus", {"a": [["0", True]], "b": [["0", True]]}),
        ("nodes", {"units": 12, "failures": 0, "is_left_running": True}),
    ],
)
def test_ray_in_detail(tmp_path, check, wanted):
    assert run_ray(check, tmp_path) == wanted


SCRIPT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may hand on that interrupts are ignored
from task2vec.parallel import Unit, open_backend
from tests.parallel_work import Remembering
backend = open_backend("ray", jobs=2, threads=1)
for result in backend.run(Remembering(), [Unit("short", 0.1), *(Unit(f"long {n}", 60.0) for n in range(4))]):
    if result.value is not None:
        print(result.value[0], flush=True)
"""


@needs_ray
@needs_proc
@pytest.mark.long
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent(tmp_path, stop):
    (tmp_path / "script.py").write_text(SCRIPT)
    with start_python(tmp_path / "script.py") as process:
        worker = int(process.stdout.readline())
        assert is_alive(worker)
        process.send_signal(stop)
        errors = process.communicate(timeout=60)[1]
    assert process.returncode != 0
    assert wait_until(lambda: not is_alive(worker))
    assert errors.count("Traceback") == (stop == signal.SIGINT)  # of the script itself; workers print nothing


def test_ray_is_started_again_if_it_did_not_come_up():
    failure = RuntimeError("the agent did not start")
    slow = Mock(
        is_initialized=lambda: False, init=Mock(side_effect=[failure, failure, None, failure, failure, failure])
    )
    assert connect_ray(slow, None, cores=1)
    assert [name for name, _, _ in slow.mock_calls] == ["init", "shutdown"] * 2 + ["init"]
    refuse(ResourceError, "the agent did not start.*--backend serial", connect_ray, slow, None, cores=1)
    assert slow.init.call_count == 6 and slow.shutdown.call_count == 5
    gone = Mock(is_initialized=lambda: False, init=Mock(side_effect=failure))
    refuse(ResourceError, "reached at 'auto'", connect_ray, gone, "auto", cores=1)
    assert gone.init.call_count == 1  # a cluster that is not there is not waited for


def test_a_backend_that_is_closed_twice_leaves_what_was_started_meanwhile():
    backend = object.__new__(RayBackend)
    backend.ray, backend.is_ours = Mock(), True
    backend.close()
    backend.close()
    assert backend.ray.shutdown.call_count == 1
