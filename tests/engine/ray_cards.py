"""A Ray with one pretended GPU: two workers with half of it each work side by side, and a third waits for its turn.

Prints what came of them as one line of JSON.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task2vec.engine import Unit, open_engine
from task2vec.engine.connection import import_ray

PATIENCE = 60.0


@dataclass(frozen=True)
class Meeting:
    """Tells which cards a worker sees once all that it waits for are there, and stays until it may go."""

    folder: Path

    def open(self) -> Callable[[tuple[str, list[str]]], Iterator[Any]]:
        """A function from a name, and those that it waits for."""
        return self.meet

    def meet(self, payload: tuple[str, list[str]]) -> Iterator[Any]:
        """The cards, and whether the others came."""
        name, others = payload
        (self.folder / name).touch()
        yield os.environ.get("CUDA_VISIBLE_DEVICES"), wait_for(self.folder / other for other in others)
        wait_for([self.folder / "go"])


def wait_for(files: Any) -> bool:
    """Whether all of these come to be in time."""
    end, wanted = time.monotonic() + PATIENCE, list(files)
    while not (are_there := all(file.exists() for file in wanted)) and time.monotonic() < end:
        time.sleep(0.02)
    return are_there


def main(folder: Path) -> None:
    """Two engines on one card."""
    ray = import_ray()
    ray.init(address="local", num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False)
    told: dict[str, Any] = {}
    with open_engine("ray", workers=2, threads=1) as both:  # which shares the card out
        results = both.run(Meeting(folder), [Unit("a", ("a", ["b"])), Unit("b", ("b", ["a"]))])
        told["met"] = [next(results).value for _ in range(2)]
        told["left"] = ray.available_resources().get("GPU", 0)
        with open_engine("ray", workers=1, threads=1, gpus=0.5) as third:
            found: list[Any] = []
            late = threading.Thread(
                target=lambda: found.extend(third.run(Meeting(folder), [Unit("c", ("c", []))])), daemon=True
            )
            late.start()
            time.sleep(2)  # more than it takes to begin where there is room
            told["third_waits"] = not (folder / "c").exists()
            (folder / "go").touch()
            told["ended"] = sum(result.is_last for result in results)
            both.close()
            late.join(PATIENCE)
            told["third"] = [result.value for result in found]
    ray.shutdown()
    print(json.dumps(told))


if __name__ == "__main__":
    from tests.engine import ray_cards  # by a name that workers know

    ray_cards.main(Path(sys.argv[1]))
