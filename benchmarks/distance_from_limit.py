"""(b) How far the engines are from a bare forward and input-gradient pass, and which layers make the difference."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

import task2vec as t2v
from benchmarks.bare_pass import passes
from benchmarks.material import load_probes
from benchmarks.measure import Plan, Verdict, interleave, ratio, show_table
from task2vec.fisher import Accumulator, Engine, check_rows, reductions
from task2vec.fisher import engine as engine_file

TARGETS = {"fast": 1.15, "exact": 1.5}
BATCH = 16


def measure(plan: Plan) -> tuple[dict[str, object], list[Verdict]]:
    """Ratios to the bare pass for every probe and engine."""
    results, verdicts = [], []
    for probe in load_probes(plan):
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(BATCH, 3, *probe.size, generator=generator)
        seed = torch.randn(BATCH, probe.feature_dim, generator=generator)
        works = passes(probe, images, seed)
        works["fast with sums"] = _with_sums(works["fast"], probe)
        seconds = interleave(works, rounds=3 if plan.is_quick else 15, clock=plan.clock)
        ratios = {name: ratio(taken, seconds["bare"]) for name, taken in seconds.items()}
        print(f"\n(b) {probe.name} at {probe.size[0]} px, batches of {BATCH}", flush=True)
        milliseconds = {name: statistics.median(taken) / BATCH * 1e3 for name, taken in seconds.items()}
        show_table(["pass", "ms per image", "times bare"], [(n, milliseconds[n], ratios[n]) for n in works])
        layers = {}
        for name, is_fast in (("exact", False), ("fast", True)):
            layers[name] = by_layer(Engine(probe.prepare(), probe.layers, is_fast=is_fast), images, seed, plan)
            print(f"  reductions of the {name} engine, the ten dearest of {len(layers[name])} layers:")
            show_table(["layer", "route", "ms per image", "share"], layers[name][:10])
        verdicts += [
            Verdict(f"(b) {probe.name}: {name} engine / bare pass", ratios[name], target, is_at_least=False)
            for name, target in TARGETS.items()
        ]
        results.append({"probe": probe.name, "ms_per_image": milliseconds, "ratios": ratios, "layers": layers})
    return {"distance_from_limit": results}, verdicts


def _with_sums(rows: Callable, probe: t2v.Probe) -> Callable[[], None]:
    """`rows`, and what `embed` does with them: the check for NaN and the sums for the standard errors."""

    def work() -> None:
        found = rows()
        check_rows(found, probe.layers)
        Accumulator(BATCH, BATCH).add(found, torch.ones(BATCH), terms=BATCH)

    return work


def by_layer(
    engine: Engine, images: torch.Tensor, seed: torch.Tensor, plan: Plan
) -> list[tuple[str, str, float, float]]:
    """(layer, route, milliseconds per image, share of all reductions), the dearest first."""
    seconds: dict[str, float] = defaultdict(float)
    routes: dict[str, str] = {}
    rounds = 1 if plan.is_quick else 5
    with _watched_layers(seconds, routes, plan.clock):
        for _ in range(rounds):
            engine.rows(images, seed[None], list(range(len(images))))
    total = sum(seconds.values())
    rows = [(name, routes[name], s / rounds / BATCH * 1e3, s / total) for name, s in seconds.items()]
    return sorted(rows, key=lambda row: -row[2])


@contextmanager
def _watched_layers(seconds: dict[str, float], routes: dict[str, str], clock: Callable[[], float]) -> Iterator[None]:
    """Notes time and route of every reduction while it lasts."""
    reduce_layer, cheapest = engine_file.reduce_layer, reductions.cheapest
    chosen: list[str] = []

    def watch_route(*args, **options) -> str:
        chosen.append(cheapest(*args, **options))
        return chosen[-1]

    def watch_layer(engine: Engine, name: str, *args) -> torch.Tensor:
        chosen.clear()
        start = clock()
        norms = reduce_layer(engine, name, *args)
        seconds[name] += clock() - start
        routes[name] = chosen[-1] if chosen else "its own"  # depthwise layers and the like
        return norms

    engine_file.reduce_layer, reductions.cheapest = watch_layer, watch_route
    try:
        yield
    finally:
        engine_file.reduce_layer, reductions.cheapest = reduce_layer, cheapest
