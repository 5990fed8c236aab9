"""Processes that die, and processes that must not stay behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from task2vec.engine import Unit, open_engine
from task2vec.errors import ResourceError
from tests.engine.cases import CASES, Dying, Forking, Remembering, Stillborn, check_case, check_deaths, gather

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no signals to end a process by")


def is_alive(process: int) -> bool:
    """Whether a process runs; one that has ended and waits to be noticed does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(is_so, seconds=20.0):
    """Whether it becomes so in time."""
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:
        time.sleep(0.02)
    return is_so()


@pytest.fixture
def own_pool():
    with open_engine("pool", workers=2, threads=1) as engine:
        yield engine


# --- death ---


def test_units_of_processes_that_are_killed_are_tried_again(pool, tmp_path):
    check_deaths(pool, tmp_path, words="signal 9)")
    check_case(pool, CASES["values in their order"])


def test_a_process_that_leaves_is_as_good_as_dead(tmp_path):
    with open_engine("pool", workers=1) as engine:
        _, ends = gather(engine, Dying(tmp_path, stop=signal.SIGTERM), [Unit("a", ("a", 9)), Unit("b", ("b", 0))])
    assert ends["b"] is None and "signal 15" in ends["a"].message


def test_a_worker_that_dies_while_nothing_is_to_do(pool):
    values, _ = gather(pool, Remembering(), [Unit(str(number), 0.01) for number in range(4)])
    for process in {told[0][0] for told in values.values()}:
        os.kill(process, signal.SIGKILL)
    check_case(pool, CASES["one poisoned among fifty"])


def test_death_is_noticed_though_somebody_else_holds_the_pipe(tmp_path):
    with open_engine("pool", workers=1) as engine:
        _, ends = gather(engine, Forking(tmp_path), [Unit("a", "a")])
    heirs = [int(line) for line in (tmp_path / "a").read_text().split()]
    assert "died 3 times" in ends["a"].message and len(heirs) == 3
    assert any(map(is_alive, heirs))
    for heir in filter(is_alive, heirs):
        os.kill(heir, signal.SIGKILL)


def test_processes_that_die_before_they_begin_end_the_run():
    before = set(multiprocessing.active_children())
    with open_engine("pool", workers=2) as engine, pytest.raises(ResourceError, match=r"exit code 7.*__main__"):
        list(engine.run(Stillborn(), [Unit("a", 1)]))
    assert set(multiprocessing.active_children()) == before


def test_an_interrupt_is_for_the_parent_alone(own_pool):
    results = own_pool.run(Remembering(), [Unit(str(number), 0.2) for number in range(8)])
    told = [result.value[0] for result in results if result.value is not None and not interrupt(result.value[0])]
    assert len(told) == 8 and len(set(told)) <= 2


def interrupt(process):
    """Sends an interrupt to a worker, which is about to begin with something else."""
    time.sleep(0.05)
    os.kill(process, signal.SIGINT)


# --- the end ---


def start_and_name(engine):
    """A run with both workers at work on something long."""
    processes: set[int] = set()

    def ask():
        while len(processes) < 2:
            yield Unit(f"short {next(numbers)}", 0.02)
        yield from (Unit(f"long {number}", 30.0) for number in range(4))

    numbers = count()
    results = engine.run(Remembering(), ask())
    for result in results:
        processes |= {result.value[0]} if result.value is not None else set()
        if len(processes) == 2 and result.is_last:
            break
    return results


@pytest.mark.parametrize("way", ["abandoned", "closed", "forgotten"])
def test_nobody_stays_behind(way):
    before = {child.pid for child in multiprocessing.active_children()}
    engine = open_engine("pool", workers=2, threads=1)
    results = start_and_name(engine)
    own = {child.pid for child in multiprocessing.active_children()} - before
    assert len(own) == 2
    if way == "abandoned":
        del results
    elif way == "closed":
        engine.close()
    else:
        del engine, results
    assert wait_until(lambda: not any(map(is_alive, own)))


def test_those_who_have_nothing_to_do_end_with_an_abandoned_run(own_pool):
    before = set(multiprocessing.active_children())
    gather(own_pool, Remembering(), [Unit(str(number), 0.2) for number in range(4)])
    assert len(set(multiprocessing.active_children()) - before) == 2
    results = own_pool.run(Remembering(), [Unit("short", 0.0), Unit("long", 30.0)])
    next(results)
    results.close()
    assert not set(multiprocessing.active_children()) - before


def test_a_run_keeps_its_engine():
    results = open_engine("pool", workers=1).run(Remembering(), [Unit(str(number), 0.01) for number in range(3)])
    processes = {result.value[0] for result in results if result.value is not None}
    assert len(processes) == 1
    del results
    assert wait_until(lambda: not any(map(is_alive, processes)))


def test_the_engine_goes_on_after_an_abandoned_run(own_pool):
    start_and_name(own_pool)
    check_case(own_pool, CASES["more units than workers"])


SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may hand on that interrupts are ignored
from task2vec.engine import Unit, open_engine
from tests.engine.cases import Remembering
if __name__ == "__main__":
    with open_engine("pool", workers=2, threads=1) as engine:
        seen = set()
        def ask():
            while len(seen) < 2:
                yield Unit("short", 0.02)
            yield from (Unit(f"long {n}", 60.0) for n in range(4))
        for result in engine.run(Remembering(), ask()):
            if result.value is not None and result.value[0] not in seen:
                seen.add(result.value[0])
                print(result.value[0], flush=True)
"""


UNCLOSED = """
import tempfile
kept = tempfile.TemporaryDirectory()  # ends by the same means as an engine might
from task2vec.engine import Unit, open_engine
from tests.engine.cases import Remembering
if __name__ == "__main__":
    engine = open_engine("pool", workers=2, threads=1)
    results = engine.run(Remembering(), [Unit("short", 0.1), Unit("long", 60.0)])
    print(next(results).value[0], flush=True)
"""


def start_script(tmp_path, text):
    place = tmp_path / "script.py"
    place.write_text(text)
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, place], stdout=pipe, stderr=pipe, text=True, env=env, start_new_session=True
    )


# Other signals end a whole group by themselves.
@pytest.mark.parametrize(
    ("whom", "stop"),
    [("parent", signal.SIGINT), ("parent", signal.SIGTERM), ("parent", signal.SIGKILL), ("group", signal.SIGINT)],
)
def test_workers_end_with_their_parent(tmp_path, stop, whom):
    with start_script(tmp_path, SCRIPT) as process:
        processes = {int(process.stdout.readline()) for _ in range(2)}
        assert len(processes) == 2 and all(map(is_alive, processes))
        (os.killpg if whom == "group" else os.kill)(process.pid, stop)
        told = process.communicate(timeout=60)[1]
    assert process.returncode != 0
    assert wait_until(lambda: not any(map(is_alive, processes)))
    assert told.count("Traceback") == (stop == signal.SIGINT)  # of the script itself; workers say nothing


def test_a_script_without_a_guard_is_told(tmp_path):
    bare = SCRIPT.replace('if __name__ == "__main__":', "if True:")
    with start_script(tmp_path, bare) as process:
        told = process.communicate(timeout=100)[1]
    assert process.returncode == 1
    assert "call it under `if __name__ == '__main__':`" in told.splitlines()[-1]


def test_a_pool_that_nobody_closes_ends_with_python(tmp_path):
    with start_script(tmp_path, UNCLOSED) as process:
        told, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert wait_until(lambda: not is_alive(int(told)))
