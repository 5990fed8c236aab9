"""(v) One step of the variational Fisher: box sums against a second full convolution, and the curvature beside them."""

import statistics
from collections.abc import Callable

import torch
from torch.nn import functional

import task2vec as t2v
from benchmarks.material import load_probes
from benchmarks.measure import Plan, Verdict, interleave, ratio, show_table
from benchmarks.old_variational import FullNoise
from task2vec.fisher import NoisyNetwork, mean_loss
from task2vec.fisher.variational import fisher_under_noise

BATCH, CLASSES = 16, 10
TARGET = 2.0


def measure(plan: Plan) -> tuple[dict[str, object], list[Verdict]]:
    """Milliseconds per image of every kind of step, and how many times faster the box form is."""
    results, verdicts = [], []
    for probe in load_probes(plan):
        works = steps_of(probe)
        seconds = interleave(works, rounds=2 if plan.is_quick else 9, clock=plan.clock)
        gain = ratio(seconds["second convolution"], seconds["box sums"])
        milliseconds = {name: statistics.median(taken) / BATCH * 1e3 for name, taken in seconds.items()}
        against = {name: ratio(taken, seconds["box sums"]) for name, taken in seconds.items()}
        print(f"\n(v) {probe.name} at {probe.size[0]} px, batches of {BATCH}", flush=True)
        show_table(["step", "ms per image", "times box sums"], [(n, milliseconds[n], against[n]) for n in works])
        verdicts.append(Verdict(f"(v) {probe.name}: second convolution / box sums", gain, TARGET, is_at_least=True))
        results.append({"probe": probe.name, "ms_per_image": milliseconds, "times_box": against})
    return {"noisy_step": results}, verdicts


def steps_of(probe: t2v.Probe) -> dict[str, Callable[[], object]]:
    """A noisy forward and input-gradient pass over one batch in each way."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH, 3, *probe.size, generator=generator)
    targets = torch.arange(BATCH) % CLASSES
    head = (torch.randn(CLASSES, probe.feature_dim, generator=generator) * 0.05, torch.zeros(CLASSES))
    scales = [torch.full((layer.filters,), layer.mean_square_weight) for layer in probe.layers]
    log_precision = -(torch.cat(scales) * 1e-3).log()
    folded, plain = probe.prepare(), probe.prepare(fold=False, flip=False)
    noisy = NoisyNetwork(folded, probe.layers)

    def by_box() -> None:
        free = images.clone().requires_grad_()
        with noisy.noise((-log_precision / 2).exp(), generator):
            features = folded.module(free)
        mean_loss(functional.linear(features, *head), targets).backward()

    def by_convolution(full: FullNoise) -> None:
        free = images.clone().requires_grad_()
        mean_loss(functional.linear(full.features(free, (-log_precision).exp()), *head), targets).backward()

    return {
        "second convolution": lambda: by_convolution(FullNoise(folded, probe.layers, generator)),
        "the same, batch-norm not folded": lambda: by_convolution(FullNoise(plain, probe.layers, generator)),
        "box sums": by_box,
        "curvature": lambda: fisher_under_noise(noisy, images, targets, (-log_precision / 2).exp(), head, generator),
    }
