"""Experts and tasks in one space: model2vec of Achille 2019, fitted on known errors.

Expert j lies at m_j = F_j + b_j, where F_j is the embedding of its lesson and b_j is learned, so that
softmax(-gamma d_asym(m_j -> t_i)) over the candidates of task i comes near to soft labels

    p_ij = softmax_j(-20 (error_ij - mean_i) / std_i)

in cross-entropy: Adam, learning rate 0.05, weight decay 5e-4, 81 epochs of all tasks at once. What the paper leaves
open and what we do:

* Positive: m_j = F_j exp(b_j), so b_j moves logarithms. Filters differ by orders of magnitude, and one step of Adam is
  of the same size in all of them: in logarithms 0.05 means 5 % everywhere. (`form="additive"` adds b_j in units of each
  filter's typical value, held above a thousandth of it.)
* Unknown lesson: the paper says F_j = 0. Literally that is the trivial embedding (`unknown="trivial"`), which is far
  from every task and counts against the expert. By default it is the mean of all tasks in logarithms: no evidence for
  or against any.
* Mean and standard deviation of the labels are over the candidates of each task: the paper's index is the task's.
* Weight decay pulls b_j back by itself, as in AdamW. Added to the gradient, as Adam's own is, it would outweigh a
  gradient that thousands of filters share after a single step, and little would be fitted: of 49 taxa known in full,
  the best expert was first for 18 % and not for over 90 %.
* gamma = exp(g) is learned without decay, and starts where distances within a task have a spread of one.
* Experts that have seen a task, or whose error is not known, are not in its softmax.

These were compared on the first bundle (ResNet-34, half of the images, each task left out in turn), by the mean error
of the choices in percent. Taxa: decay by itself 25.2, in the gradient 30.5 (static 26.6, asymmetric 33.1). Labels: 33.5
and 31.9 (static 36.3, asymmetric 36.6); from the trivial embedding 33.7; additive with decay in the gradient 34.2. The
22 labels tell none of these apart; the taxa decided, and that what is known must be fitted.

It is fitted on some filters, evenly spread (`filters`): a step of Adam moves each by as much, whatever their number, so
losses are those of all filters, and rankings of tasks that were left out correlate with those of all by 0.94 to 0.99
(512 of 8,512, Spearman, one task of each family of the bundle), in a fifteenth of the time. What the distance of the
lesson from a task is on all filters more than on these is added, so that before the first step the ranking is that of
the asymmetric distance.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from task2vec.distance import ALPHA
from task2vec.errors import UndefinedScoreError, UsageError
from task2vec.select.evidence import SYMMETRIC, Answer, Evidence, Question
from task2vec.select.strategies.effects import find_errors
from task2vec.select.strategies.static import fit_static


@dataclass(frozen=True)
class ModelSpaceSettings:
    """What changes the numbers of a model space; the paper's where it says so.

    Attributes:
        alpha: weight of complexity in the asymmetric distance.
        sharpness: of the soft labels; the paper's alpha = 20.
        epochs: steps of Adam on all tasks.
        learning_rate: of Adam.
        weight_decay: of b, per step and learning rate.
        form: "log" multiplies by exp(b), "additive" adds b.
        unknown: where experts of unknown lesson start: the "mean" of the tasks, or the "trivial" embedding.
        filters: how many are fitted at most; None takes all, which is slow.
    """

    alpha: float = ALPHA
    sharpness: float = 20.0
    epochs: int = 81
    learning_rate: float = 0.05
    weight_decay: float = 5e-4
    form: Literal["log", "additive"] = "log"
    unknown: Literal["mean", "trivial"] = "mean"
    filters: int | None = 512

    def __post_init__(self):
        """Refuse what cannot be fitted."""
        if self.form not in ("log", "additive") or self.unknown not in ("mean", "trivial"):
            raise UsageError(
                f"form={self.form!r} and unknown={self.unknown!r} name no model space. Use form='log' or 'additive' "
                "and unknown='mean' or 'trivial'."
            )
        if self.epochs < 0 or (self.filters is not None and self.filters < 1):
            raise UsageError(
                f"epochs={self.epochs} and filters={self.filters} leave nothing to fit. Give epochs of 0 or more and "
                "filters of 1 or more."
            )


@dataclass(frozen=True, eq=False, repr=False)
class ModelSpace:
    """Experts as points among tasks.

    Attributes:
        places: (E, filters) logarithms of the experts' vectors.
        start: the same before the first step.
        filters: which these are.
        simplicity: (E) symmetric distance of each from its trivial embedding.
        gamma: how sharply distances become chances.
        loss: cross-entropy at the end.
        settings: how it was fitted.
        static: (E) mean effects, to order experts at the same distance.
    """

    places: np.ndarray
    start: np.ndarray
    filters: np.ndarray
    simplicity: np.ndarray
    gamma: float
    loss: float
    settings: ModelSpaceSettings
    static: np.ndarray

    def __repr__(self) -> str:
        """The space in one line."""
        return f"ModelSpace({len(self.places)} experts, {len(self.filters)} filters, loss {self.loss:.3f})"

    def rank(self, question: Question) -> Answer:
        """The nearest expert first, by the asymmetric distance from where it lies now."""
        if question.vector is None:
            raise UndefinedScoreError(
                f"'{question.name}' has no embedding, so it has no place among the experts. Embed it first."
            )
        log_task = np.log(question.vector[self.filters])
        distances = measure(self.places, log_task)
        known = question.to_lessons.get(SYMMETRIC)
        if known is not None:
            distances = distances + np.nan_to_num(known - measure(self.start, log_task))
        badness = distances - self.settings.alpha * self.simplicity
        exponents = np.where(question.is_candidate, -self.gamma * badness, -np.inf)
        chances = np.exp(exponents - exponents.max()) if question.is_candidate.any() else np.zeros(len(badness))
        return Answer(badness, chances=chances / max(chances.sum(), 1e-300), fallback=self.static)


def measure(log_models: np.ndarray, log_tasks: np.ndarray) -> np.ndarray:
    """(E) symmetric distances of rows of log-embeddings from one, or each from its own."""
    q = 1 / (1 + np.exp(np.clip(log_tasks - log_models, -60, 60)))
    s, v = q.sum(1), np.square(q).sum(1)
    return 1 - (s - v) / np.sqrt((q.shape[1] - 2 * s + v) * v)


def fit_model_space(evidence: Evidence, *, settings: ModelSpaceSettings | None = None) -> ModelSpace:
    """Places experts among tasks so that the near ones are those of small error (the paper's model2vec).

    Args:
        evidence: with embeddings of the tasks, and of lessons where they are known.
        settings: the paper's by default.

    Raises:
        UndefinedScoreError: No task has an embedding, or no error is known.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> tasks, lessons = rng.random((3, 50)) + 0.1, rng.random((2, 50)) + 0.1
        >>> errors = np.array([[0.1, 0.3], [0.4, 0.3], [0.2, 0.5]])[:, :, None]
        >>> names = ("birds", "dogs", "cars")
        >>> about = (names, (None, None), (None, None))
        >>> known = Evidence(
        ...     names, ("a", "b"), errors, errors[..., 0] < 1, *about, vectors=tasks, lesson_vectors=lessons
        ... )
        >>> fit_model_space(known).rank(known.ask(1)).order(np.ones(2, dtype=bool))
        array([1, 0])
    """
    from task2vec.select.strategies.model_space_training import train

    settings = settings or ModelSpaceSettings()
    if evidence.vectors is None or not np.isfinite(evidence.vectors).all():
        raise UndefinedScoreError(
            "not every task of the evidence has an embedding, so experts have no space to lie in. Give embeddings, or "
            "leave the model space out."
        )
    errors, count = find_errors(evidence), evidence.vectors.shape[1]
    size = count if settings.filters is None else min(settings.filters, count)
    filters = np.linspace(0, count - 1, size).round().astype(int)
    log_tasks = np.log(evidence.vectors[:, filters])
    lessons = _look_up(evidence.lesson_vectors, filters, len(evidence.experts))
    trivials = _look_up(evidence.lesson_trivials, filters, len(evidence.experts))
    has_trivial = np.all(np.isfinite(trivials), axis=1)
    mean_trivial = trivials[has_trivial].mean(0) if has_trivial.any() else np.full(size, np.nan)
    trivials = np.where(has_trivial[:, None], trivials, mean_trivial)
    is_trivial = settings.unknown == "trivial" and has_trivial.any()
    is_known = np.all(np.isfinite(lessons), axis=1, keepdims=True)
    start = np.where(is_known, lessons, mean_trivial if is_trivial else log_tasks.mean(0))
    # What distances on all filters are more than on these; unknown is none.
    near = np.stack([measure(start, task) for task in log_tasks])
    offsets = np.nan_to_num(evidence.to_lessons.get(SYMMETRIC, near) - near)
    places, gamma, loss = train(
        log_tasks,
        start,
        errors,
        offsets=offsets,
        trivials=trivials if has_trivial.any() else None,
        settings=settings,
    )
    before, after = (measure(each, trivials) if has_trivial.any() else np.zeros(len(each)) for each in (start, places))
    wanted = before if evidence.simplicity is None else evidence.simplicity
    simplicity = after + np.where(np.isfinite(wanted), wanted - before, 0)
    return ModelSpace(places, start, filters, simplicity, gamma, loss, settings=settings, static=fit_static(evidence))


def _look_up(vectors: np.ndarray | None, filters: np.ndarray, experts: int) -> np.ndarray:
    """Logarithms of some filters; NaN where nothing is known."""
    return np.full((experts, len(filters)), np.nan) if vectors is None else np.log(vectors[:, filters])


@dataclass(frozen=True)
class InModelSpace:
    """The expert that lies nearest to the task in a model space, see `fit_model_space`."""

    settings: ModelSpaceSettings = ModelSpaceSettings()
    name: str = "model space"
    looks_at_images: bool = False

    def fit(self, evidence: Evidence) -> ModelSpace:
        """Places the experts."""
        return fit_model_space(evidence, settings=self.settings)
