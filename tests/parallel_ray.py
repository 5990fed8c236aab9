"""The checks of Ray, with one start of it each: `python -m tests.parallel_ray checks|gpus|nodes FOLDER` prints JSON."""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from task2vec.errors import ResourceError, UsageError
from task2vec.parallel import Backend, Unit, import_ray, open_backend
from tests.parallel_work import (
    CASES,
    Remembering,
    Threads,
    check_case,
    check_deaths,
    check_large,
    check_laziness,
    check_travel,
    check_warmth,
    embed_bytes,
    gather,
)

PATIENCE = 60.0


def check_threads(backend: Backend, folder: Path) -> None:
    assert gather(backend, Threads(), [Unit("a", None)])[0] == {"a": [(1, "1")]}


@dataclass(frozen=True)
class Sleeping:
    """Notes its process, and sleeps."""

    note: Path

    def open(self) -> Callable[[float], Iterator[Any]]:
        return self.sleep

    def sleep(self, seconds: float) -> Iterator[Any]:
        if seconds:
            self.note.with_suffix(".part").write_text(str(os.getpid()))
            self.note.with_suffix(".part").rename(self.note)
            time.sleep(seconds)
        yield seconds


def check_abandoned(backend: Backend, folder: Path) -> None:
    """Closing the iterator ends the units that are running; idle processes stay warm."""
    from tests.parallel_ray import Sleeping  # by a name that workers know

    note = folder / "asleep"
    results = backend.run(Sleeping(note), [Unit("short", 0.0), Unit("long", 600.0)])
    assert next(results).value == 0.0 and wait_for([note])
    process, end = int(note.read_text()), time.monotonic() + PATIENCE
    assert is_running(process)
    del results
    while is_running(process) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_running(process)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def check_bytes(backend: Backend, folder: Path) -> None:
    assert embed_bytes(backend) == embed_bytes(None)


def check_manners(backend: Backend, folder: Path) -> None:
    """Ray reports no usage, shows no dashboard, and another backend leaves it as it is."""
    import ray

    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert not ray._private.worker._global_node.webui_url
    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}
    with open_backend("ray", jobs=1, threads=1) as other:
        check_case(other, "values in their order")
    assert ray.is_initialized()
    try:
        open_backend("ray", jobs=2, gpus=2)
    except UsageError as error:
        assert "need 4 GPUs, and Ray has 0" in str(error)
    else:
        raise AssertionError


def check_end(backend: Backend, folder: Path) -> None:
    """A closed backend has ended its Ray; a cluster that does not exist is named."""
    import ray

    backend.close()
    assert not ray.is_initialized()
    try:
        open_backend("ray", address="127.0.0.1:1")
    except ResourceError as error:
        assert "cannot be reached at '127.0.0.1:1'" in str(error) and "ray start" in str(error)
    else:
        raise AssertionError


CHECKS: dict[str, Callable[[Backend, Path], None]] = {
    **{f"the table: {name}": lambda backend, _, name=name: check_case(backend, name) for name in CASES},
    "large values": lambda backend, _: check_large(backend),
    "units are requested when a worker is free": lambda backend, _: check_laziness(backend, most=2),
    "work stays open": lambda backend, _: check_warmth(backend, jobs=4),
    "what cannot travel": lambda backend, _: check_travel(backend),
    "threads": check_threads,
    "killed workers": lambda backend, folder: check_deaths(backend, folder, cause="Ray: "),
    "abandoned": check_abandoned,
    "bytes": check_bytes,
    "manners": check_manners,
    "the end": check_end,
}


def run_checks(folder: Path) -> None:
    torch.set_num_threads(1)
    backend = open_backend("ray", jobs=2, threads=1)
    for name, check in CHECKS.items():
        begin, error = time.perf_counter(), None
        try:
            check(backend, folder)
        except BaseException:
            error = traceback.format_exc()
        print(json.dumps({"check": name, "error": error, "seconds": time.perf_counter() - begin}), flush=True)


@dataclass(frozen=True)
class Meeting:
    """Returns the GPUs a worker sees once all that it waits for are there."""

    folder: Path

    def open(self) -> Callable[[tuple[str, list[str]]], Iterator[Any]]:
        return self.meet

    def meet(self, payload: tuple[str, list[str]]) -> Iterator[Any]:
        name, others = payload
        (self.folder / name).touch()
        came = wait_for(self.folder / other for other in others)
        (self.folder / f"{name} met").touch()
        wait_for([self.folder / "go"])
        yield os.environ.get("CUDA_VISIBLE_DEVICES"), came


def wait_for(files: Any) -> bool:
    """Whether all of these come to be in time."""
    end, wanted = time.monotonic() + PATIENCE, list(files)
    while not (are_there := all(file.exists() for file in wanted)) and time.monotonic() < end:
        time.sleep(0.02)
    return are_there


def run_gpus(folder: Path) -> None:
    """A Ray with one pretended GPU: two jobs with half of it each run side by side, and a third waits for its turn."""
    from tests.parallel_ray import Meeting  # by a name that workers know

    ray = import_ray()
    ray.init(address="local", num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False)
    with open_backend("ray", jobs=2, threads=1) as both, open_backend("ray", jobs=1, threads=1, gpus=0.5) as third:
        found: dict[str, list[Any]] = {"both": [], "third": []}

        def run(name: str, backend: Backend, units: list[Unit]) -> threading.Thread:
            work = Meeting(folder)
            thread = threading.Thread(target=lambda: found[name].extend(backend.run(work, units)), daemon=True)
            thread.start()
            return thread

        first = run("both", both, [Unit("a", ("a", ["b"])), Unit("b", ("b", ["a"]))])
        wait_for([folder / "a met", folder / "b met"])
        left = ray.available_resources().get("GPU", 0)
        second = run("third", third, [Unit("c", ("c", []))])
        time.sleep(2)  # more than it takes to begin where there is room
        third_waits = not (folder / "c").exists()
        (folder / "go").touch()
        first.join(PATIENCE)
        second.join(PATIENCE)
        met, (late,) = ([r.value for r in found[name] if not r.is_last] for name in ("both", "third"))
    ray.shutdown()
    print(json.dumps({"met": met, "left": left, "third_waits": third_waits, "third": late}))


def run_nodes(folder: Path) -> None:
    """A cluster of two machines, pretended on this one, of which the larger is lost while units are being done."""
    ray = import_ray(is_alone=False)
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    machine = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    done, failures, is_lost = set(), 0, False
    with open_backend("ray", address=cluster.address, jobs=3, threads=1) as backend:
        for result in backend.run(Remembering(), [Unit(str(number), 1.0) for number in range(12)]):
            if result.is_last:
                failures += result.failure is not None
                done.add(result.key)
            if len(done) >= 2 and not is_lost:
                is_lost = True
                cluster.remove_node(machine, allow_graceful=False)
    found = {"units": len(done), "failures": failures, "is_left_running": ray.is_initialized()}
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    {"checks": run_checks, "gpus": run_gpus, "nodes": run_nodes}[sys.argv[1]](Path(sys.argv[2]))
