"""Would a softer head make embeddings steadier? As `steadiness.py gather`, with an estimator that is not the product's.

    python benchmarks/softened.py OUT --temperature 4 [--enough 0.2] [--probe resnet34] [--size 128] [--shared DIR]
    python benchmarks/steadiness.py report OUT

The probabilities of the head are softmax(z / T), so that every image counts about as much, and not mostly those of
which the head is least certain. The size of the Fisher stays that of T = 1: it is multiplied by the ratio of the traces
at the pooled features, which are known for all images. The labels of every image are passed in an order of its own,
since equal steps through nearly equal probabilities would take the same labels of all images.
"""

import sys
from dataclasses import replace
from functools import partial, partialmethod
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from benchmarks import steadiness  # noqa: E402
from benchmarks.measure import make_parser  # noqa: E402
from task2vec.embedding import single  # noqa: E402
from task2vec.fisher import FisherEstimate, sampling  # noqa: E402
from task2vec.head import Head  # noqa: E402
from task2vec.progress import Report  # noqa: E402

_fisher = single.Job.fisher


def use_softened(temperature: float, enough: float) -> None:
    """Lets `embed` soften its heads in this process."""
    single.probabilities = partial(soft_probabilities, temperature)
    single.draw_pairs = draw_shuffled
    single.Job.fisher = partialmethod(scale_fisher, temperature)  # type: ignore[method-assign]
    sampling.ENOUGH = enough


def soft_probabilities(temperature: float, logits: Tensor, *, is_multilabel: bool) -> Tensor:
    """(n, c) probabilities at the temperature."""
    return sampling.probabilities(logits / temperature, is_multilabel=is_multilabel)


def scale_fisher(job: single.Job, temperature: float, features: Tensor, head: Head, report: Report) -> FisherEstimate:
    """The Fisher of the softened head, as large as that of the head."""
    logits, kind = head.logits(features).cpu(), {"is_multilabel": job.task.is_multilabel}
    probabilities = [sampling.probabilities(logits / t, **kind) for t in (1.0, temperature)]
    shares = [sampling.term_shares(p, head.weight.cpu(), **kind).sum(1) for p in probabilities]
    plain, soft = (float(job.weights.double() @ share) for share in shares)
    estimate = _fisher(job, features, head, report)
    return replace(estimate, fisher=estimate.fisher * plain / soft, stderr=estimate.stderr * plain / soft)


def draw_shuffled(probabilities: Tensor, budget: Tensor, *, generator: torch.Generator) -> sampling.Draw:
    """As `draw_pairs`, with the terms of every image in a random order."""
    turns = torch.rand(probabilities.shape, dtype=torch.float64, generator=generator).argsort(-1)
    draw = sampling.draw_pairs(probabilities.gather(-1, turns), budget, generator=generator)
    return replace(draw, terms=turns[draw.tasks, draw.images, draw.terms])


def main() -> int:
    """Embeds what is not there yet."""
    parser = make_parser(__doc__)
    steadiness.add_options(parser)
    parser.add_argument("--temperature", type=float, default=4.0)
    parser.add_argument("--enough", type=float, default=sampling.ENOUGH, help="pairs, as a part of the effective ones")
    arguments = parser.parse_args()
    return steadiness.gather(arguments, partial(use_softened, arguments.temperature, arguments.enough))


if __name__ == "__main__":
    sys.exit(main())
