"""Are simulated tasks like real ones, what finds neighbours best among them, and where does it become hard?"""

from collections.abc import Sequence

import numpy as np

from benchmarks.library_truth import find_neighbours
from benchmarks.simulated_library import RESULTS, Simulation
from experiments.embeddings import read_committed
from task2vec.distance import make_row, symmetric_to_rows
from task2vec.library.search import SIZE, fit_sketcher, make_block

NEAREST = 10
_SAMPLE, _CHUNK, _NUMBERS = 1000, 250, 130
_HARD = 5000


def compare_with_real() -> list[dict[str, object]]:
    """Distances within a dataset, between datasets and from the nearest of 43 tasks: real ones and simulated ones."""
    tasks, names = read_committed(RESULTS / "embeddings.safetensors")
    rows = [("real", np.stack([make_row(one) for one in tasks]), np.array(names))]
    simulation, rng = Simulation(20_000), np.random.default_rng(0)
    sizes = sorted((names.count(name) for name in set(names)), reverse=True)
    large = np.flatnonzero(np.bincount(simulation.dataset) >= max(sizes))
    drawn = []
    for _ in range(5):
        datasets = zip(rng.choice(large, len(sizes), replace=False), sizes, strict=True)
        chosen = [rng.choice(np.flatnonzero(simulation.dataset == one), size, replace=False) for one, size in datasets]
        drawn.append(np.concatenate(chosen))
    made = [(simulation.rows(some), simulation.dataset[some]) for some in drawn]
    found = [_describe("real", [(rows[0][1], rows[0][2])]), _describe("simulated", made)]
    twice = Simulation(100, copies=2).rows(range(100))
    same = [symmetric_to_rows(twice[at], twice[at + 1 : at + 2])[0] for at in range(0, 100, 2)]
    return [*found, {"tasks": "one simulated task twice", "nearest": _quantiles(same), "within": "", "between": ""}]


def _describe(name: str, libraries: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, object]:
    within, between, nearest = [], [], []
    for rows, datasets in libraries:
        table = np.stack([symmetric_to_rows(row, rows) for row in rows])
        upper, is_same = np.triu_indices(len(rows), 1), datasets[:, None] == datasets
        within += table[upper][is_same[upper]].tolist()
        between += table[upper][~is_same[upper]].tolist()
        nearest += (table + np.eye(len(rows))).min(1).tolist()
    return {"tasks": name, "nearest": _quantiles(nearest), "within": _quantiles(within), "between": _quantiles(between)}


def _quantiles(values: Sequence[float]) -> str:
    return " ".join(f"{value:.3f}" for value in np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95]))


def compare_methods(size: int, queries: int, candidates: Sequence[int], device: str) -> list[dict[str, object]]:
    """Recall of our sketches, and of other ways to make candidates, most of them with as many numbers per task."""
    simulation = Simulation(size)
    asked = np.sort(np.random.default_rng(1).choice(size, queries, replace=False))
    true, _ = find_neighbours(simulation, asked, NEAREST, device=device)
    sample = np.random.default_rng(0).choice(size, _SAMPLE, replace=False)
    some, wanted = simulation.rows(sample), np.abs(simulation.rows(asked))
    sketcher, principal = fit_sketcher(some), fit_sketcher(some, principal=SIZE)
    rng = np.random.default_rng(2)
    random = [rng.standard_normal((simulation.filters, _NUMBERS), dtype=np.float32) for _ in range(2)]
    sketches, components, raw, projected_raw, projected_logs = [], [], [], [], []
    for start in range(0, size, _CHUNK):
        rows = simulation.rows(range(start, min(start + _CHUNK, size)))
        sketches.append(sketcher.project(rows))
        components.append(principal.project(rows)[:, :SIZE])
        values = np.abs(rows)
        units = values / np.linalg.norm(values, axis=1, keepdims=True)
        logs = np.log(values)
        raw.append(1 - units @ (wanted / np.linalg.norm(wanted, axis=1, keepdims=True)).T)
        projected_raw.append(units @ random[0])
        projected_logs.append((logs - logs.mean(1, keepdims=True)) @ random[1])
    sketches = np.concatenate(sketches)
    scores = {
        "sketches": np.stack([_score(sketches, sketches[number]) for number in asked]),
        f"{SIZE} principal components, centred logs": _euclid(np.concatenate(components), asked),
        f"{_NUMBERS} random directions, centred logs": _euclid(np.concatenate(projected_logs), asked),
        f"{_NUMBERS} random directions, unit Fisher": _euclid(np.concatenate(projected_raw), asked),
        "cosine of the Fisher, all 21,008 numbers": np.concatenate(raw).T,
    }
    return [{"method": name, **_recalls(score, asked, true, candidates)} for name, score in scores.items()]


def _score(sketches: np.ndarray, sketch: np.ndarray) -> np.ndarray:
    """The library's own estimate."""
    return make_block([(number, one.tobytes()) for number, one in enumerate(sketches)], sketches.shape[1]).score(sketch)


def _euclid(points: np.ndarray, asked: np.ndarray) -> np.ndarray:
    return np.square(points).sum(1) - 2 * points[asked] @ points.T


def _recalls(scores: np.ndarray, asked: np.ndarray, true: np.ndarray, candidates: Sequence[int]) -> dict[str, float]:
    scores = scores.copy()
    scores[np.arange(len(asked)), asked] = np.inf
    order = np.argsort(scores, axis=1)
    return {f"{count}": find_recall(true, order[:, :count]) for count in (NEAREST, *candidates)}


def find_recall(true: np.ndarray, found: np.ndarray) -> float:
    """The mean share of the true neighbours that are among the found."""
    return float(np.mean([np.isin(one, other).mean() for one, other in zip(true, found, strict=True)]))


def try_hard_cases(queries: int, candidates: Sequence[int]) -> list[dict[str, object]]:
    """Recall where it is hard to find neighbours, or where the basis knows little; libraries of 5,000."""
    cases = {
        "as above": [Simulation(_HARD)],
        "50 embeddings of each task": [Simulation(_HARD, copies=50)],
        "all tasks of one dataset": [Simulation(_HARD, per_dataset=(_HARD, _HARD + 1))],
        "a fifth of the filters dead": [Simulation(_HARD, dead=0.2)],
        "a fifth dead, in half of the tasks": [Simulation(_HARD // 2), Simulation(_HARD // 2, dead=0.2, seed=1)],
        "half dead, in half of the tasks": [Simulation(_HARD // 2), Simulation(_HARD // 2, dead=0.5, seed=1)],
    }
    found = [{"library": name, **_try(parts, queries, candidates)} for name, parts in cases.items()]
    worlds = [Simulation(_HARD // 2), Simulation(_HARD // 2, world=1, seed=1)]
    strangers = _try(worlds, queries, candidates, basis_of=1, asked_of=1)
    return [*found, {"library": "datasets that the basis never saw", **strangers}]


def _try(
    parts: list[Simulation], queries: int, candidates: Sequence[int], *, basis_of: int = 0, asked_of: int = 0
) -> dict[str, object]:
    """One library of several; the basis is fitted on the first `basis_of`, and the first `asked_of` are not asked."""
    rows = np.concatenate([part.rows(range(part.tasks)) for part in parts])
    rng, first = np.random.default_rng(3), sum(part.tasks for part in parts[:asked_of])
    known = sum(part.tasks for part in parts[:basis_of]) or len(rows)
    sketcher = fit_sketcher(rows[np.sort(rng.choice(known, _SAMPLE, replace=False))])
    asked = np.sort(first + rng.choice(len(rows) - first, queries, replace=False))
    sketches = sketcher.project(rows)
    measured = np.stack([symmetric_to_rows(rows[number], rows) for number in asked])
    measured[np.arange(len(asked)), asked] = np.inf
    order = np.argsort(measured, axis=1, kind="stable")
    scores = np.stack([_score(sketches, sketches[number]) for number in asked])
    nearest = np.take_along_axis(measured, order[:, :NEAREST], axis=1)
    return {
        "10th nearest": float(np.median(nearest[:, -1])),
        **_recalls(scores, asked, order[:, :NEAREST], candidates),
    }
