"""Would another head make embeddings steadier, and what would it cost? With an estimator that is not the product's.

    python benchmarks/softened.py gather OUT [--temperature 4] [--penalty 8] [--enough 0.2] [--smoothing 0.5] ...
    python benchmarks/steadiness.py report OUT
    python benchmarks/softened.py select OUT [the same options]

The head's penalty is multiplied, and its probabilities are softmax(z / T), so that every image counts about as much,
and not mostly those of which the head is least certain. The size of the Fisher stays that of the product's head: it is
multiplied by the ratio of the traces at the pooled features, which are known for all images. The labels of every image
are passed in an order of its own, since equal steps through nearly equal probabilities would take the same labels of
all images. Filters may be moved further towards the mean of their layer.

`gather` is that of `steadiness.py`. `select` embeds the tasks of the experts' meta-task, and prints how many points the
error of the chosen expert is above that of the best one (the regret of `task2vec.evaluate`), the task left out.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial, partialmethod
from itertools import product
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks import steadiness  # noqa: E402
from benchmarks.measure import make_parser, show_table  # noqa: E402
from experiments.metatask.plan import plan_experts  # noqa: E402
from experiments.report import Row, load_bundle  # noqa: E402
from task2vec.embedding import single  # noqa: E402
from task2vec.fisher import FisherEstimate, sampling, smooth  # noqa: E402
from task2vec.head import Head, fit_head  # noqa: E402
from task2vec.progress import Report  # noqa: E402

_fisher = single.Job.fisher


def use_softened(temperature: float, enough: float, penalty: float = 1.0, smoothing: float = 0.1) -> None:
    """Lets `embed` soften its heads in this process."""
    single.probabilities = partial(soft_probabilities, temperature)
    single.draw_pairs = draw_shuffled
    single.Job.fisher = partialmethod(scale_fisher, temperature, penalty, smoothing)  # type: ignore[method-assign]
    sampling.ENOUGH = enough


def soft_probabilities(temperature: float, logits: Tensor, *, is_multilabel: bool) -> Tensor:
    """(n, c) probabilities at the temperature."""
    return sampling.probabilities(logits / temperature, is_multilabel=is_multilabel)


def scale_fisher(
    job: single.Job,
    temperature: float,
    penalty: float,
    smoothing: float,
    features: Tensor,
    head: Head,
    report: Report,
) -> FisherEstimate:
    """The Fisher of the softened head, as large as that of the head, and smoothed so that `embed` completes it."""
    kind, settings = {"is_multilabel": job.task.is_multilabel}, job.settings
    how = {"classes": len(job.task.classes), "balance": settings.balance, "groups": job.groups}
    soft = head if penalty == 1 else fit_head(features, job.targets, l2=penalty * settings.l2, **how)

    def trace(head: Head, temperature: float) -> float:
        p = soft_probabilities(temperature, head.logits(features).cpu(), **kind)
        return float(job.weights.double() @ sampling.term_shares(p, head.weight.cpu(), **kind).sum(1))

    scale = trace(head, 1.0) / trace(soft, temperature)
    estimate = _fisher(job, features, soft, report)
    further = 1 - (1 - smoothing) / (1 - settings.smoothing)
    fisher, stderr = smooth(torch.stack([estimate.fisher, estimate.stderr]), job.passes.probe.layers, further) * scale
    return replace(estimate, fisher=fisher, stderr=stderr)


def draw_shuffled(probabilities: Tensor, budget: Tensor, *, generator: torch.Generator) -> sampling.Draw:
    """As `draw_pairs`, with the terms of every image in a random order."""
    turns = torch.rand(probabilities.shape, dtype=torch.float64, generator=generator).argsort(-1)
    draw = sampling.draw_pairs(probabilities.gather(-1, turns), budget, generator=generator)
    return replace(draw, terms=turns[draw.tasks, draw.images, draw.terms])


def select(arguments: argparse.Namespace, initializer: partial) -> int:
    """Embeds what is not there yet, and selects experts by it."""
    folder, metatask = arguments.out / f"{arguments.probe}-{arguments.size}", load_bundle(None)
    tasks = plan_experts(arguments.shared / "data").all_tasks
    parts = [(f"experts/{task.fingerprint}.safetensors", task) for task in tasks]
    steadiness.embed_parts(arguments, folder, parts, initializer)
    embeddings = [t2v.load_embedding(folder / place) for place, _ in parts]
    space = f"{arguments.probe} robust"
    moved = replace(
        metatask,
        embeddings=metatask.embeddings | {space: embeddings},
        distances=metatask.distances | {space: steadiness.measure(embeddings)},
        trivial_distances=metatask.trivial_distances
        | {space: np.array([t2v.distance.symmetric(one, t2v.trivial(one)) for one in embeddings])},
        norms=metatask.norms | {space: np.array([one.norm() for one in embeddings])},
    )
    rows: list[tuple] = []
    for family, shots in product(("taxa", "labels"), ("half", "5")):
        row = [f"{family}, {shots}"]
        for one in (metatask, moved):
            how: Row = {
                "shots": shots,
                "probe": arguments.probe,
                "method": "robust",
                "family": family,
                "resamples": 100,
            }
            found = t2v.evaluate(one, ["asymmetric", "symmetric"], **how)
            row += [f"{each['regret']:.2f}" for each in found.rows]
        rows.append(tuple(row))
    columns = [f"{way}, {what}" for what in ("recipe 4", "here") for way in ("asymmetric", "symmetric")]
    show_table(["regret", *columns], rows)
    return 0


def main() -> int:
    """Runs one part."""
    parser = make_parser(__doc__)
    parts = parser.add_subparsers(required=True)
    for run in (steadiness.gather, select):
        part = parts.add_parser(run.__name__)
        steadiness.add_options(part)
        part.add_argument("--temperature", type=float, default=4.0)
        part.add_argument("--penalty", type=float, default=1.0, help="times that of the product")
        part.add_argument(
            "--enough", type=float, default=sampling.ENOUGH, help="pairs, as a part of the effective ones"
        )
        part.add_argument("--smoothing", type=float, default=t2v.EmbedSettings().smoothing)
        part.set_defaults(run=run)
    arguments = parser.parse_args()
    initializer = partial(use_softened, arguments.temperature, arguments.enough, arguments.penalty, arguments.smoothing)
    return arguments.run(arguments, initializer)


if __name__ == "__main__":
    sys.exit(main())
