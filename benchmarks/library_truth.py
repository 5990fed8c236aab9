"""The true neighbours in a simulated library, by comparing everything: on all cores, or on a GPU."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from benchmarks.simulated_library import DATASET, TASK, Simulation
from task2vec.distance import symmetric_to_rows

Neighbours = tuple[np.ndarray, np.ndarray]
_CHUNK = {"cpu": 500, "cuda": 2048}


def find_neighbours(simulation: Simulation, queries: np.ndarray, k: int, *, device: str = "cpu") -> Neighbours:
    """The numbers (queries, k) of the nearest tasks of each query without itself, and their distances."""
    numbers, found = np.empty((len(queries), 0), dtype=np.int64), np.empty((len(queries), 0))
    starts = range(0, simulation.tasks, _CHUNK[device])
    wanted = simulation.rows(queries)
    parts = _on_gpu(simulation, wanted, starts) if device == "cuda" else _on_cores(simulation, wanted, starts)
    for start, measured in parts:
        here = np.arange(start, start + measured.shape[1])
        measured[here == queries[:, None]] = np.inf
        numbers = np.concatenate([numbers, np.broadcast_to(here, measured.shape)], axis=1)
        found = np.concatenate([found, measured], axis=1)
        order = np.argsort(found, axis=1, kind="stable")[:, :k]
        numbers, found = np.take_along_axis(numbers, order, axis=1), np.take_along_axis(found, order, axis=1)
    return numbers, found


def work_on_cores(work: Callable, arguments) -> list:
    """What `work` makes of each argument; the processes are forks, so they know all that was there before."""
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork")) as pool:
        return list(pool.map(work, arguments))


_HERE: dict[str, object] = {}


def _compare(start: int) -> tuple[int, np.ndarray]:
    simulation, wanted = _HERE["simulation"], _HERE["wanted"]
    rows = simulation.rows(range(start, min(start + _CHUNK["cpu"], simulation.tasks)))
    return start, np.stack([symmetric_to_rows(one, rows) for one in wanted])


def _on_cores(simulation: Simulation, wanted: np.ndarray, starts: range):
    _HERE.update(simulation=simulation, wanted=wanted)
    return work_on_cores(_compare, starts)


def _on_gpu(simulation: Simulation, wanted: np.ndarray, starts: range, device: str = "cuda"):
    import torch

    make = make_twin(simulation, device)
    some = np.arange(0, simulation.tasks, max(1, simulation.tasks // 50))
    assert np.allclose(make(some).cpu().numpy(), simulation.rows(some), rtol=1e-3), "the GPU makes other rows"
    asked = torch.from_numpy(wanted).to(device)
    for start in starts:
        rows = make(np.arange(start, min(start + _CHUNK["cuda"], simulation.tasks)))
        sizes, is_dead = rows.abs(), rows < 0
        measured = []
        for one in asked:
            share = (sizes + one.abs()).reciprocal_().masked_fill_(is_dead & (one < 0), 0)
            q = sizes * share
            p = share.mul_(one.abs())
            pp, qq, pq = (torch.linalg.vecdot(a, b).double() for a, b in ((p, p), (q, q), (p, q)))
            measured.append(1 - pq / (pp * qq).sqrt())
        yield start, torch.stack(measured).cpu().numpy()


def make_twin(simulation: Simulation, device: str) -> Callable:
    """A function that makes the rows of `simulation` on a GPU, to rounding; further dead filters it does not know."""
    import torch

    m = {
        name: torch.from_numpy(value).to(device) for name, value in vars(simulation.material).items() if name != "level"
    }
    facts = {name: torch.from_numpy(value).to(device) for name, value in simulation.facts.items()}
    filters = torch.arange(simulation.filters, device=device)

    def turn(real, turned):
        return m["residuals"][real[:, None], m["start"] + (turned[:, None] % m["sizes"])[:, m["layer"]]]

    def make(numbers: np.ndarray):
        at = torch.from_numpy(numbers).to(device)
        fact = {name: value[at] for name, value in facts.items() if not name.startswith("dataset_")}
        weights, mixed, dataset = fact["weights"].float(), fact["mixed"], fact["dataset"]
        dead = m["dead"][mixed.gather(1, weights.argmax(1, keepdim=True))[:, 0]]
        own = fact["noise"].float()[:, None] * m["profile"] * m["noise"][fact["noise_from"][:, None] + filters]
        own += TASK * turn(fact["task_residual"], fact["task_turn"])
        own += DATASET * turn(facts["dataset_residual"][dataset], facts["dataset_turn"][dataset])
        logs = own.masked_fill_(dead, 0) + m["mean"] + fact["level"].float()[:, None]
        for number in range(mixed.shape[1]):
            logs += weights[:, number, None] * m["deviations"][mixed[:, number]]
        values = logs.exp_()
        return torch.where(dead, -values, values)

    return make
