"""The checks of Ray, with one start of it each: `python -m tests.parallel_ray CHECK FOLDER` prints JSON."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from task2vec.errors import ResourceError
from task2vec.parallel import Unit, import_ray, open_backend
from tests import parallel_work as works
from tests.parallel_work import Do, Remembering, gather, is_alive, wait_until


def meet(folder: Path, payload: tuple[str, list[str]]) -> Iterator[Any]:
    """Notes its process, and returns the GPUs that it sees once all files that it waits for exist."""
    name, others = payload
    (folder / f"{name}.part").write_text(str(os.getpid()))
    (folder / f"{name}.part").rename(folder / name)
    yield os.environ.get("CUDA_VISIBLE_DEVICES"), wait_for(folder / other for other in others)


def wait_for(files: Iterable[Path]) -> bool:
    """Whether all of these exist in time."""
    wanted = list(files)
    return wait_until(lambda: all(file.exists() for file in wanted))


def check_quick(folder: Path) -> dict[str, Any]:
    """One start: the table, units whose process dies, no usage reports, no dashboard, loopback, and the end."""
    backend = open_backend("ray", jobs=2, threads=1)
    import pytest  # here, since workers import this module
    import ray  # pyright: ignore[reportMissingImports]

    works.check_table(backend, jobs=2)
    works.check_deaths(backend, folder, {"never": 0, "once": 1, "always": 99}, cause="Ray: ")
    found = {
        "usage": os.environ["RAY_USAGE_STATS_ENABLED"],
        "dashboard": ray._private.worker._global_node.webui_url or None,
        "addresses": sorted({node["NodeManagerAddress"] for node in ray.nodes()}),
    }
    backend.close()
    assert not ray.is_initialized()
    with pytest.raises(ResourceError, match=r"cannot be reached at '127.0.0.1:1'.*ray start"):
        open_backend("ray", address="127.0.0.1:1")
    return found


def check_rest(folder: Path) -> dict[str, Any]:
    """What cannot travel; warm workers; threads; an abandoned run; a second backend; the bytes of embeddings."""
    from tests.parallel_ray import meet  # by a name that workers know

    with open_backend("ray", jobs=2, threads=1) as backend:
        import ray  # pyright: ignore[reportMissingImports]

        works.check_travel(backend)
        for name in ("first", "second"):
            values, _ = gather(backend, Remembering(name), [Unit(str(number), 0.02) for number in range(8)])
            assert {count for ((_, count),) in values.values()} == {1}, name
        assert gather(backend, Do(works.find_threads), [Unit("a", None)])[0] == {"a": [(1, "1")]}
        results = backend.run(Do(partial(meet, folder)), [Unit("a", ("a", [])), Unit("b", ("b", ["never"]))])
        assert next(results).value[1] and wait_for([folder / "b"])
        del results
        assert wait_until(lambda: not is_alive(int((folder / "b").read_text())))
        with open_backend("ray", jobs=1, threads=1) as other:
            assert gather(other, Remembering("third"), [Unit("a", 0.0)])[1] == {"a": None}
        assert ray.is_initialized()
        return {"has_same_bytes": works.embed_bytes(backend) == works.embed_bytes(open_backend("serial", threads=1))}


def check_gpus(folder: Path) -> dict[str, Any]:
    """A Ray with one pretended GPU: two jobs with half of it each run side by side."""
    from tests.parallel_ray import meet  # by a name that workers know

    ray = import_ray()
    ray.init(address="local", num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False)
    with open_backend("ray", jobs=2, threads=1) as backend:
        values, _ = gather(backend, Do(partial(meet, folder)), [Unit("a", ("a", ["b"])), Unit("b", ("b", ["a"]))])
    ray.shutdown()
    return values


def check_nodes(folder: Path) -> dict[str, Any]:
    """A cluster of two machines, pretended on this one, of which the larger is lost while units are being done."""
    ray = import_ray(is_alone=False)
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

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
    return found


if __name__ == "__main__":
    print(json.dumps(globals()[f"check_{sys.argv[1]}"](Path(sys.argv[2]))))
