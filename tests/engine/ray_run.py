"""All that is asked of Ray, with one start of it: prints what came of each question as one line of JSON.

A process of its own, for the tests reach no network, and Ray speaks to itself by it.
"""

import json
import os
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch

from task2vec.engine import Engine, Unit, open_engine
from task2vec.errors import ResourceError, UsageError
from tests.engine.cases import (
    CASES,
    Broken,
    Locking,
    Remembering,
    Threads,
    check_case,
    check_deaths,
    check_laziness,
    check_warmth,
    gather,
)
from tests.engine.embedded import embed_bytes


def ask_travel(engine: Engine, folder: Path) -> None:
    """What cannot travel is a failure of its unit, or refused."""
    import threading

    with pytest.raises(UsageError, match="this work has no handle"):
        list(engine.run(Broken(), [Unit("a", 1)]))
    with pytest.raises(UsageError, match="cannot be sent"):
        list(engine.run(Locking(threading.Lock()), [Unit("a", 1)]))
    values, ends = gather(engine, Locking(), [Unit("a", 1), Unit("b", threading.Lock())])
    assert values == {"a": [1], "b": []}
    assert ends["a"] is not None and ends["a"].kind == "TypeError"
    assert ends["b"] is not None and ends["b"].kind == "UsageError"


def ask_threads(engine: Engine, folder: Path) -> None:
    """Workers compute with as many threads as they were told."""
    assert gather(engine, Threads(), [Unit("a", None)])[0] == {"a": [(1, "1")]}


def ask_abandoned(engine: Engine, folder: Path) -> None:
    """Whoever stops listening leaves nobody at work."""
    results = engine.run(Remembering(), [Unit(str(number), 0.05 if number < 2 else 60.0) for number in range(6)])
    processes = {result.value[0] for _, result in zip(range(4), results, strict=False) if result.value is not None}
    assert processes
    del results
    end = time.monotonic() + 20
    while any(map(is_running, processes)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(is_running, processes))


def is_running(process: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def ask_bytes(engine: Engine, folder: Path) -> None:
    """Embeddings have the same bytes, here and there."""
    assert embed_bytes(engine) == embed_bytes(None)


def ask_manners(engine: Engine, folder: Path) -> None:
    """Ray tells nobody of its use, shows no page, and another engine leaves it as it is."""
    import ray

    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert not ray._private.worker._global_node.webui_url
    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}
    with open_engine("ray", workers=1, threads=1) as other:
        check_case(other, CASES["values in their order"])
    assert ray.is_initialized()
    with pytest.raises(UsageError, match="need 4 GPUs, and Ray has 0"):
        open_engine("ray", workers=2, gpus=2)


def ask_end(engine: Engine, folder: Path) -> None:
    """A closed engine has ended its Ray; a cluster that is not there is said to be missing."""
    import ray

    engine.close()
    assert not ray.is_initialized()
    with pytest.raises(ResourceError, match=r"cannot be reached at '127.0.0.1:1'.*ray start"):
        open_engine("ray", address="127.0.0.1:1")


QUESTIONS = {
    **{f"the table: {name}": lambda engine, _, name=name: check_case(engine, CASES[name]) for name in CASES},
    "units are asked for when somebody is free": lambda engine, _: check_laziness(engine, most=4),
    "work stays open": lambda engine, _: check_warmth(engine, workers=2),
    "what cannot travel": ask_travel,
    "threads": ask_threads,
    "killed workers": lambda engine, folder: check_deaths(engine, folder, words="Ray: ", may_lose=True),
    "abandoned": ask_abandoned,
    "bytes": ask_bytes,
    "manners": ask_manners,
    "the end": ask_end,
}


def main(folder: Path) -> None:
    """Asks all questions in turn."""
    torch.set_num_threads(1)
    engine = open_engine("ray", workers=2, threads=1)
    for name, ask in QUESTIONS.items():
        begin, said = time.perf_counter(), "well"
        try:
            ask(engine, folder)
        except BaseException:
            said = traceback.format_exc()
        print(json.dumps({"question": name, "said": said, "seconds": time.perf_counter() - begin}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
