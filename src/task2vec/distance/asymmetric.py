"""The asymmetric task distance of Achille 2019: how well a model of one task may serve another.

    d(source -> target) = d_sym(source, target) - alpha d_sym(source, t0)

The paper writes d(t_a -> t_b) with the t0 term on t_a, the task that the knowledge comes from: a source far from the
trivial task t0 is a complex one, and models of complex tasks are good starting points. So the first argument is the
source, the task of the expert, and the second the target, the task at hand. t0 is the source's own prior. The result
may be negative, and is so between a task and itself: the paper calls it a distance, improperly, and so do we.

Example:
    >>> import numpy as np
    >>> from task2vec.embedding import Embedding
    >>> from task2vec.probe import FilterLayer
    >>> layers = (FilterLayer("conv", "convolution", 2, 9, 0.1),)
    >>> story = {"probe_fingerprint": "p", "settings": {}}
    >>> hard, easy = np.array([1.0, 2.0]), np.array([0.2, 0.1])
    >>> hard = Embedding("hard", "net", hard, np.zeros(2), np.full(2, 0.1), layers, story)
    >>> easy = Embedding("easy", "net", easy, np.zeros(2), np.full(2, 0.1), layers, story)
    >>> asymmetric(hard, easy) < asymmetric(hard, easy, alpha=0)
    True
"""

from dataclasses import dataclass

from task2vec.distance.kind import Distance
from task2vec.distance.symmetric import symmetric, symmetric_from_logs
from task2vec.embedding import Embedding, trivial
from task2vec.errors import UsageError

ALPHA = 0.15


@dataclass(frozen=True)
class Asymmetric(Distance):
    """The asymmetric distance with its weight of complexity; another one: `replace(asymmetric, alpha=0.3)`.

    Attributes:
        alpha: how much the complexity of the source counts; 0.15 in the paper.
    """

    alpha: float = ALPHA

    def __post_init__(self):
        """Refuse a weight that would favour simple sources, or none at all."""
        _check_alpha(self.alpha)

    def __call__(self, a: Embedding, b: Embedding, *, alpha: float | None = None) -> float:
        """How far the source `a` is from serving the target `b`."""
        alpha = self.alpha if alpha is None else _check_alpha(alpha)
        return symmetric(a, b) - alpha * symmetric(a, trivial(a))


def asymmetric_from_logs(log_source, log_target, log_trivial, *, alpha: float = ALPHA) -> float:
    """The distance from the log-embeddings of source and target and the log-prior of the source."""
    return symmetric_from_logs(log_source, log_target) - alpha * symmetric_from_logs(log_source, log_trivial)


def _check_alpha(alpha: float) -> float:
    if not 0 <= alpha < float("inf"):
        raise UsageError(
            f"alpha={alpha} cannot weigh the complexity of a source: below 0 the simplest model would be the best, and "
            f"infinity hides the tasks. Use 0 or more; the paper's is {ALPHA}."
        )
    return alpha


asymmetric = Asymmetric("asymmetric", asymmetric_from_logs, is_symmetric=False, is_metric=False, highest=1.0)
