"""How often the 95% intervals of the Fisher hold, per filter, on real tasks.

    python benchmarks/coverage.py [--probe resnet34] [--shared DIR] [--device cuda] [--json docs/measured/coverage.json]

The images of a task are taken for the whole population, whose Fisher is computed exactly (all images, all terms) and
smoothed as `embed` does. Images are then drawn from it with replacement, and pairs from those, as `embed` does with the
head held fixed. The table has how often `Embedding.interval` and the plain fisher +- 1.96 stderr contain the
population's Fisher: overall, and in the worst tenth of the filters, sorted by their relative standard error in that
draw, or by rarity (the spread of the estimates over all draws, relative to the truth). Filters without any Fisher in
the population are left out.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks.measure import make_parser, show_table, write_json  # noqa: E402
from benchmarks.robust import load_probe  # noqa: E402
from experiments.collection import read_collection  # noqa: E402
from task2vec.embedding.batching import tensor_cores  # noqa: E402
from task2vec.embedding.single import prepare_job  # noqa: E402
from task2vec.fisher import (  # noqa: E402
    Design,
    FisherEstimate,
    Ledger,
    PerSampleFisher,
    draw_pairs,
    pair_chances,
    probabilities,
    smooth,
    term_vectors,
)
from task2vec.head import fit_head  # noqa: E402
from task2vec.progress import silent  # noqa: E402

MOST_CLASSES = 16
KINDS = ("plain", "interval")


@dataclass(frozen=True)
class Population:
    """All Fisher rows of a task at its head.

    Attributes:
        rows: (images, terms, filters) without the weights of the images.
        p: (images, classes) probabilities by the head.
        head: its weights.
        weights: (images,) relative weights, with mean one.
        targets: (images,) labels.
    """

    rows: Tensor
    p: Tensor
    head: Tensor
    weights: Tensor
    targets: Tensor

    @property
    def fisher(self) -> np.ndarray:
        """The Fisher of the population, exactly."""
        weights = self.weights.to(self.rows)
        return torch.einsum("ntf,n->f", self.rows, weights / len(weights)).double().cpu().numpy()


def main() -> int:
    """Prints the table and writes all figures."""
    arguments = _parse()
    probe, results = load_probe(arguments), []
    for task in choose_tasks(arguments):
        population = compute_rows(task, probe, arguments)
        results.append({"task": task.name, **measure(population, probe, arguments)})
        print(task.name, {kind: round(results[-1][kind]["overall"], 3) for kind in KINDS}, flush=True)
    rows = [summarise(kind, [result[kind] for result in results]) for kind in KINDS]
    print(f"\n{len(results)} tasks, {probe.name}, {arguments.sample} images and {arguments.pairs} pairs per draw")
    show_table(list(rows[0]), [tuple(row.values()) for row in rows])
    used = {name: getattr(arguments, name) for name in ("size", "images", "sample", "pairs", "draws", "seed")}
    found = {"probe": probe.name, **used, "summary": rows, "tasks": results}
    write_json(arguments.json, found, indent=1)
    return 0


def choose_tasks(arguments: argparse.Namespace) -> list[t2v.Task]:
    """Real tasks with enough images and not too many terms, cut to a random part of their images."""
    read = [member.task for member in read_collection(arguments.shared / "data").members]
    fitting = [task for task in read if len(task) >= arguments.images and len(task.classes) <= MOST_CLASSES]
    fitting.sort(key=lambda task: task.name)
    chosen = np.unique(np.linspace(0, len(fitting) - 1, arguments.tasks).astype(int))
    rng = np.random.default_rng(arguments.seed)
    return [fitting[i].subset(np.sort(rng.permutation(len(fitting[i]))[: arguments.images])) for i in chosen]


def compute_rows(task: t2v.Task, probe: t2v.Probe, arguments: argparse.Namespace) -> Population:
    """The Fisher of every image and term, by the robust method."""
    settings = t2v.EmbedSettings()
    job = prepare_job(task, probe, settings=settings, device=arguments.device, batch_size=None)
    features = job.features(silent)
    head = fit_head(features, job.targets, classes=len(job.task.classes), l2=settings.l2)
    p, weight = probabilities(head.logits(features), is_multilabel=False).cpu(), head.weight.cpu()
    terms = 1 if p.shape[1] == 2 else p.shape[1]
    engine = PerSampleFisher(job.passes.network, probe.layers, is_untied=True)
    rows = torch.zeros(len(p), terms, probe.n_filters, device=job.device)
    with tensor_cores(job.device):
        for numbers, pixels in job.passes.pixels.batches(range(len(p)), arguments.batch_size):
            images, inputs = torch.as_tensor(numbers), job.passes.input(pixels)
            seeds = torch.zeros(terms, len(inputs), probe.feature_dim, device=job.device)
            for term in range(terms):
                vectors = term_vectors(p, images, torch.full_like(images, term), is_multilabel=False)
                seeds[term, : len(images)] = (vectors @ weight.to(vectors)).to(seeds)
            for term, found in enumerate(engine.rows_by_seed(inputs, seeds, range(len(inputs)))):
                rows[images.to(job.device), term] = found[: len(images)].float()
    return Population(rows, p, weight, job.weights.cpu() / job.weights.mean().cpu(), job.targets.cpu())


def draw_once(population: Population, *, sample: int, pairs: int, seed: int) -> FisherEstimate:
    """The estimate from `sample` images, drawn with replacement, and about `pairs` pairs of those."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(len(population.p), (sample,), generator=generator)
    images = images[population.targets[images].argsort(stable=True)]
    weights = population.weights[images] / population.weights[images].mean()
    chances = pair_chances(population.p[images], population.head, weights, is_multilabel=False)
    draw = draw_pairs(chances, pairs, generator=generator)
    drawn, groups, terms = draw.images.unique(return_inverse=True, return_counts=True)
    device = population.rows.device
    factors = (weights[draw.images] * draw.image_inclusion / draw.inclusion).to(device)
    chosen = population.rows[images[draw.images].to(device), draw.terms.to(device)] * factors[:, None]
    rows = chosen.new_zeros(len(drawn), chosen.shape[1]).index_add_(0, groups.to(device), chosen)
    inclusion = torch.zeros(len(drawn), dtype=torch.float64)
    inclusion[groups] = draw.image_inclusion
    design = Design(sample, len(drawn), float(weights.square().sum()))
    ledger = Ledger([design], filters=rows.shape[1], device=device)
    ledger.add(rows, torch.zeros_like(drawn), inclusion=inclusion, terms=terms, weights=weights[drawn])
    return ledger.estimate(0)


def measure(population: Population, probe: t2v.Probe, arguments: argparse.Namespace) -> dict[str, dict]:
    """How often both intervals hold over many draws: overall, on which side they fail, and by tenths of filters."""
    share = t2v.EmbedSettings().smoothing
    truth = smooth(torch.from_numpy(population.fisher), probe.layers, share).numpy()
    is_alive = truth > 0
    fishers, errors, misses = [], [], {kind: [] for kind in KINDS}
    for number in range(arguments.draws):
        found = draw_once(population, sample=arguments.sample, pairs=arguments.pairs, seed=arguments.seed + number)
        fisher, stderr = (smooth(one, probe.layers, share).cpu().numpy() for one in (found.fisher, found.stderr))
        counts = {"counts": {"images_used": found.images}}
        own = t2v.Embedding("draw", probe.name, fisher, stderr, np.ones_like(fisher), probe.layers, counts).interval()
        for kind, (low, high) in zip(KINDS, ((fisher - 1.96 * stderr, fisher + 1.96 * stderr), own), strict=True):
            misses[kind].append((1 * (truth > high) - (truth < low))[is_alive])
        fishers.append(fisher[is_alive])
        errors.append((stderr / np.maximum(fisher, 1e-300))[is_alive])
    by_error = np.argsort(errors, axis=1)
    rarity = np.std(fishers, axis=0) / truth[is_alive]
    by_rarity = np.broadcast_to(np.argsort(rarity), by_error.shape)
    return {kind: summarise_misses(np.array(misses[kind]), by_error, by_rarity) for kind in KINDS}


def summarise_misses(misses: np.ndarray, by_error: np.ndarray, by_rarity: np.ndarray) -> dict[str, object]:
    """Coverage from (draws, filters) of 0, 1 above and -1 below the interval, with the filters in two orders."""

    def tenths(order: np.ndarray) -> list[float]:
        holds = np.take_along_axis(misses == 0, order, axis=1)
        return [round(float(part.mean()), 4) for part in np.array_split(holds, 10, axis=1)]

    return {
        "overall": float((misses == 0).mean()),
        "above": float((misses > 0).mean()),
        "below": float((misses < 0).mean()),
        "by relative error": tenths(by_error),
        "by rarity": tenths(by_rarity),
    }


def summarise(kind: str, results: list[dict]) -> dict[str, object]:
    """One row of the table: the mean over tasks, and the tenths of filters in which that is worst."""
    means = {name: np.mean([result[name] for result in results], axis=0) for name in results[0]}
    return {
        "95 % interval": "fisher +- 1.96 stderr" if kind == "plain" else "Embedding.interval",
        "holds": float(means["overall"]),
        "worst task": min(result["overall"] for result in results),
        "truth above": float(means["above"]),
        "truth below": float(means["below"]),
        "worst tenth by relative error": float(means["by relative error"].min()),
        "worst tenth by rarity": float(means["by rarity"].min()),
    }


def _parse() -> argparse.Namespace:
    parser = make_parser(__doc__, has_shared=True)
    parser.add_argument("--probe", default="resnet34")
    parser.add_argument("--size", type=int, default=128, help="side of the images")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--images", type=int, default=300, help="of a population")
    parser.add_argument("--sample", type=int, default=100, help="images per draw")
    parser.add_argument("--pairs", type=int, default=200, help="(image, label) pairs per draw")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
