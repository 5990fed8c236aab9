"""(b) How far the per-sample Fisher is from a bare forward and input-gradient pass, and in which layers."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

import task2vec as t2v
from benchmarks.bare_pass import passes
from benchmarks.material import load_probes
from benchmarks.measure import Plan, Verdict, interleave, ratio, show_table
from task2vec.fisher import Design, Ledger, PerSampleFisher, check_rows, per_sample, reductions

TARGETS = {"exact": 1.5}
BATCH = 16


def measure(plan: Plan) -> tuple[dict[str, object], list[Verdict]]:
    """Ratios to the bare pass for every probe."""
    results, verdicts = [], []
    for probe in load_probes(plan):
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(BATCH, 3, *probe.size, generator=generator)
        seed = torch.randn(BATCH, probe.feature_dim, generator=generator)
        works = passes(probe, images, seed)
        works["exact with sums"] = _with_sums(works["exact"], probe)
        seconds = interleave(works, rounds=3 if plan.is_quick else 15, clock=plan.clock)
        ratios = {name: ratio(taken, seconds["bare"]) for name, taken in seconds.items()}
        print(f"\n(b) {probe.name} at {probe.size[0]} px, batches of {BATCH}", flush=True)
        milliseconds = {name: statistics.median(taken) / BATCH * 1e3 for name, taken in seconds.items()}
        show_table(["pass", "ms per image", "times bare"], [(n, milliseconds[n], ratios[n]) for n in works])
        layers = {"exact": by_layer(probe, images, seed, plan)}
        print(f"  reductions, the ten most expensive of {len(layers['exact'])} layers:")
        show_table(["layer", "route", "ms per image", "share"], layers["exact"][:10])
        verdicts += [
            Verdict(f"(b) {probe.name}: {name} Fisher / bare pass", ratios[name], target, is_at_least=False)
            for name, target in TARGETS.items()
        ]
        results.append({"probe": probe.name, "ms_per_image": milliseconds, "ratios": ratios, "layers": layers})
    return {"distance_from_limit": results}, verdicts


def _with_sums(rows: Callable, probe: t2v.Probe) -> Callable[[], None]:
    """`rows`, and what `embed` does with them: the check for NaN and the sums for the standard errors."""
    ledger = Ledger([Design(BATCH, BATCH, float(BATCH))], filters=probe.n_filters, device=torch.device("cpu"))
    owners, ones = torch.zeros(BATCH, dtype=torch.long), torch.ones(BATCH, dtype=torch.float64)

    def work() -> None:
        found = rows()
        check_rows(found, probe.layers)
        ledger.add(found, owners, inclusion=ones, terms=ones, weights=ones)

    return work


def by_layer(
    probe: t2v.Probe, images: torch.Tensor, seed: torch.Tensor, plan: Plan
) -> list[tuple[str, str, float, float]]:
    """(layer, route, milliseconds per image, share of all reductions), the most expensive first."""
    network = probe.prepare()
    names = {id(module): name for name, module in network.layers.items()}
    seconds: dict[str, float] = defaultdict(float)
    routes: dict[str, str] = {}
    rounds = 1 if plan.is_quick else 5
    with _watched_layers(names, seconds, routes, plan.clock):
        for _ in range(rounds):
            PerSampleFisher(network, probe.layers).rows(images, seed[None])
    total = sum(seconds.values())
    rows = [(name, routes[name], s / rounds / BATCH * 1e3, s / total) for name, s in seconds.items()]
    return sorted(rows, key=lambda row: -row[2])


@contextmanager
def _watched_layers(
    names: dict[int, str], seconds: dict[str, float], routes: dict[str, str], clock: Callable[[], float]
) -> Iterator[None]:
    """Within this context, notes time and route of every reduction."""
    reduce_layer, cheapest = per_sample.reduce_layer, reductions.cheapest_route
    chosen: list[str] = []

    def watch_route(*args) -> str:
        chosen.append(cheapest(*args))
        return chosen[-1]

    def watch_layer(module: torch.nn.Module, *args, **options) -> torch.Tensor:
        chosen.clear()
        name, start = names[id(module)], clock()
        norms = reduce_layer(module, *args, **options)
        seconds[name] += clock() - start
        routes[name] = chosen[-1] if chosen else "its own"  # depthwise layers and the like
        return norms

    per_sample.reduce_layer, reductions.cheapest_route = watch_layer, watch_route
    try:
        yield
    finally:
        per_sample.reduce_layer, reductions.cheapest_route = reduce_layer, cheapest
