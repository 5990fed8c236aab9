"""How far the per-sample Fisher is from a bare forward and input-gradient pass."""

import statistics
from collections.abc import Callable

import torch

import task2vec as t2v
from benchmarks.bare_pass import passes
from benchmarks.material import load_probes
from benchmarks.measure import Plan, Verdict, interleave, ratio, show_table
from task2vec.fisher import Design, Ledger, check_rows

TARGET = 1.5
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
        print(f"\n{probe.name} at {probe.size[0]} px, batches of {BATCH}", flush=True)
        milliseconds = {name: statistics.median(taken) / BATCH * 1e3 for name, taken in seconds.items()}
        show_table(["pass", "ms per image", "times bare"], [(n, milliseconds[n], ratios[n]) for n in works])
        label = f"{probe.name}: exact Fisher / bare pass"
        verdicts.append(Verdict(label, ratios["exact"], TARGET, is_at_least=False))
        results.append({"probe": probe.name, "ms_per_image": milliseconds, "ratios": ratios})
    return {"distance_from_limit": results}, verdicts


def _with_sums(rows: Callable, probe: t2v.Probe) -> Callable[[], None]:
    """`rows`, and what `embed` does with them: the check for NaN and the sums for the standard errors."""
    ledger = Ledger([Design(BATCH, BATCH, float(BATCH))], filters=probe.n_filters, device=torch.device("cpu"))
    owners, ones = torch.zeros(BATCH, dtype=torch.long), torch.ones(BATCH, dtype=torch.float64)

    def work() -> None:
        fisher = rows()
        check_rows(fisher, probe.layers)
        ledger.add(fisher, owners, inclusion=ones, terms=ones, weights=ones)

    return work
