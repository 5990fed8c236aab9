"""Every backend makes the same of the same units; processes that die are replaced, and none stays behind."""

import importlib.util
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from task2vec.errors import BadImagesError, DataError, ResourceError, UsageError, WorkError
from task2vec.parallel import Failure, Unit, connect_ray, open_backend, pack, unpack
from tests import parallel_work as works
from tests.cases import make_case
from tests.command import ENVIRONMENT, ROOT
from tests.failures import refuse
from tests.parallel_work import Do, Remembering, find_session, gather, is_alive, wait_until

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted in /proc")
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: task2vec[ray]")


# --- the same results -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "jobs"), [("serial", 1), ("processes", 2)])
def test_values_failures_and_requests_of_units(name, jobs):
    def request_units():
        yield Unit("a", 1)
        raise KeyError("no more units")

    with open_backend(name, jobs=jobs, threads=1) as backend:
        works.check_table(backend, jobs=jobs)
        refuse(KeyError, "no more units", list, backend.run(Do(works.count), request_units()))


def test_what_cannot_travel_fails_by_name_and_works_here():
    with open_backend("processes", jobs=1, threads=1) as processes:
        works.check_travel(processes)
    with open_backend("serial") as serial:
        assert gather(serial, Do(partial(works.count, lock=threading.Lock())), [Unit("a", "lock")])[1] == {"a": None}
        refuse(UsageError, "this work has no handle", list, serial.run(works.Broken(), [Unit("a", 1)]))


def test_what_travels_shares_no_memory_and_a_probe_leaves_behind_what_was_made_of_it():
    tensor = torch.arange(6.0)
    there = unpack(pack({"tensor": tensor, "view": tensor[2:4]}))
    there["tensor"][0] = 99
    assert not tensor.is_shared() and tensor[0] == 0
    assert torch.equal(there["view"], tensor[2:4])
    probe = make_case("odd")
    images = torch.zeros(2, 3, *probe.size)
    wanted = probe.prepare().module(images)
    there = unpack(pack(probe))
    assert (there.fingerprint, there._prepared) == (probe.fingerprint, {}) and probe._prepared
    assert torch.equal(there.prepare().module(images), wanted)


@pytest.mark.parametrize("name", ["serial", "processes"])
def test_threads_of_a_worker(name, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    before = torch.get_num_threads()
    with open_backend(name, threads=3) as backend:
        (((threads, variable),),) = gather(backend, Do(works.find_threads), [Unit("a", None)])[0].values()
    # MKL, on Intel's processors, takes no more threads than there are cores.
    assert variable == "3" and threads in (3, min(3, os.cpu_count() or 1), None)
    assert (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]) == (before, "7")


def test_a_failure_becomes_the_error_that_it_was():
    kinds = {DataError("a"): DataError, works.OddDataError("b"): DataError, KeyError("c"): WorkError}
    for error, kind in {**kinds, BadImagesError("d", ("x",)): BadImagesError}.items():
        failure = Failure.of(error)
        again = failure.error()
        assert type(again) is kind and str(error) in str(again)
        assert again.exit_code == failure.exit_code and again.__notes__ == [failure.traceback]


def test_invalid_arguments_are_refused():
    for name, options, words in [
        ("spark", {}, "no backend 'spark'.*serial, processes, ray"),
        ("processes", {"jobs": 0}, "jobs=0"),
        ("serial", {"threads": -1}, "threads=-1"),
        ("serial", {"jobs": 2}, "--backend processes"),
        ("processes", {"address": "auto"}, "--backend ray"),
    ]:
        refuse(UsageError, words, open_backend, name, **options)


# --- death ------------------------------------------------------------------------------------------------------------


@needs_proc
def test_units_of_processes_that_are_killed_are_tried_again(tmp_path):
    with open_backend("processes", jobs=2, threads=1) as backend:
        deaths = {"never": 0, "once": 1, "always": 99, "also never": 0}
        works.check_deaths(backend, tmp_path, deaths, cause="signal 9)")

        results = backend.run(Remembering(), [Unit(str(number), 0.01) for number in range(8)])
        first = next(results)
        os.kill(first.value[0], signal.SIGKILL)
        rest = list(results)
    assert len({one.key for one in rest if one.is_last and one.failure is None}) == 8
    assert {one.value[1] for one in (first, *rest) if not one.is_last} == {1}


@needs_proc
def test_death_is_noticed_though_a_child_holds_the_pipe(tmp_path):
    with open_backend("processes", jobs=1) as backend:
        values, _ = gather(backend, Do(partial(works.die, tmp_path, leaves_child=True)), [Unit("a", ("a", 1))])
    children = [int(line) for line in (tmp_path / "a").read_text().split()]
    assert values == {"a": ["first", "second"]} and len(children) == 2
    for child in filter(is_alive, children):
        os.kill(child, signal.SIGKILL)


def test_processes_that_die_before_they_begin_end_the_run():
    with open_backend("processes", jobs=1) as backend, pytest.raises(ResourceError, match=r"exit code 7.*__main__"):
        list(backend.run(works.Broken(is_fatal=True), [Unit("a", 1)]))
    assert not multiprocessing.active_children()


@needs_proc
def test_no_process_stays_behind():
    backend = open_backend("processes", jobs=2, threads=1)
    for end in ("abandoned", "closed"):
        results = backend.run(Remembering(), [Unit("short", 0.0), *(Unit(str(number), 60.0) for number in range(5))])
        next(results)
        own = {child.pid for child in multiprocessing.active_children()}
        assert own
        if end == "closed":
            backend.close()
        else:
            del results
        assert wait_until(lambda: not any(map(is_alive, own))), end  # noqa: B023


SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may hand on that interrupts are ignored
from task2vec.parallel import Unit, open_backend
from tests.parallel_work import Remembering
if __name__ == "__main__":
    with open_backend("processes", jobs=2, threads=1) as backend:
        seen = set()
        def ask():
            while len(seen) < 2:
                yield Unit(f"short", 0.02)
            yield from (Unit(f"long {n}", 60.0) for n in range(4))
        for result in backend.run(Remembering(), ask()):
            if result.value is not None and result.value[0] not in seen:
                seen.add(result.value[0])
                print(result.value[0], flush=True)
"""

UNCLOSED = """
from task2vec.parallel import Unit, open_backend
from tests.parallel_work import Remembering
if __name__ == "__main__":
    backend = open_backend("processes", jobs=1, threads=1)
    results = backend.run(Remembering(), [Unit("short", 0.1), Unit("long", 60.0)])
    print(next(results).value[0], flush=True)
"""


def start_python(*words, script=None):
    """A Python process, with a session of its own; tests reach no network, and Ray needs loopback."""
    if script is not None:
        words[0].write_text(script)
    command, pipe, env = [sys.executable, *words], subprocess.PIPE, {**os.environ, **ENVIRONMENT}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


@needs_proc
@pytest.mark.parametrize(
    ("whom", "stop"),
    [
        ("group", signal.SIGINT),
        ("parent", signal.SIGKILL),
        pytest.param("parent", signal.SIGINT, marks=pytest.mark.long),
        pytest.param("parent", signal.SIGTERM, marks=pytest.mark.long),
    ],
)
def test_workers_end_with_their_parent(tmp_path, stop, whom):
    with start_python(tmp_path / "script.py", script=SCRIPT) as process:
        workers = {int(process.stdout.readline()) for _ in range(2)}
        assert len(workers) == 2 and all(map(is_alive, workers))
        (os.killpg if whom == "group" else os.kill)(process.pid, stop)
        errors = process.communicate(timeout=60)[1]
    assert process.returncode != 0
    assert wait_until(lambda: not any(map(is_alive, workers)))
    assert errors.count("Traceback") == (stop == signal.SIGINT)  # of the script itself; workers print nothing


@needs_proc
def test_processes_that_nobody_closes_end_with_python_and_a_script_without_a_guard_is_explained(tmp_path):
    with start_python(tmp_path / "script.py", script=UNCLOSED) as process:
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert wait_until(lambda: not is_alive(int(out)))
    with start_python(tmp_path / "bare.py", script=UNCLOSED.replace('__name__ == "__main__"', "True")) as process:
        errors = process.communicate(timeout=100)[1]
    assert process.returncode == 1
    assert "put the call under `if __name__ == '__main__':`" in errors.splitlines()[-1]


# --- Ray --------------------------------------------------------------------------------------------------------------


def run_ray(what: str, tmp_path: Path) -> dict:
    """What `tests.parallel_ray` prints; nothing of it stays behind."""
    with start_python("-m", "tests.parallel_ray", what, str(tmp_path)) as process:
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


def test_ray_is_started_again_if_it_did_not_come_up():
    failure = RuntimeError("the agent did not start")
    slow = Mock(is_initialized=lambda: False, init=Mock(side_effect=[failure, failure, None, *3 * [failure]]))
    assert connect_ray(slow, None, cores=1)
    assert [name for name, _, _ in slow.mock_calls] == ["init", "shutdown", "init", "shutdown", "init"]
    refuse(ResourceError, "the agent did not start", connect_ray, slow, None, cores=1)
