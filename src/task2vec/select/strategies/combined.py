"""Static prior and task evidence in one: predicted errors with intervals, chances of being best, and when to abstain.

The model stands in `combined_model`. What it learns from: errors of all known tasks (also of experts that have seen the
task, with a shift and a noise of their own), the distances between tasks, their datasets and numbers of classes, and
the experts' transferability scores if one is named. Everything is learned on the known tasks, nothing on the asked one.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from task2vec.errors import UndefinedScoreError
from task2vec.select.evidence import SYMMETRIC, Answer, Evidence, Question
from task2vec.select.strategies.combined_cells import Means, find_means, gather
from task2vec.select.strategies.combined_model import (
    Cells,
    Likeness,
    Scales,
    Solution,
    learn_scales,
    liken,
    place_hardness,
    solve,
    spread_hardness,
    unscale,
)
from task2vec.select.strategies.effects import find_errors
from task2vec.select.strategies.static import fit_static

# Part of the errors that intervals are to hold.
COVERAGE = 0.9
# Similar is what is nearer than this many times the median distance of known tasks from their nearest.
REACH = 1.5
# How sure the choice must be to be preferred to the static one where nothing similar is known.
SURE = 0.6
_DRAWS = 200_000


@dataclass(frozen=True, eq=False)
class Forecast:
    """What the model says about all experts on a new task, on its scale.

    Attributes:
        mean: (E) of the errors.
        lean: (E, T + D) how each leans on the shared effects, which are uncertain.
        spread: (T + D, T + D) covariance of these.
        common: variance of what all experts share on this task.
        between: (E) the part of the variance that stands for an unknown dataset.
        own: (E) variance of what each has for itself.
        noise: variance of a measured error around the true one.
    """

    mean: np.ndarray
    lean: np.ndarray
    spread: np.ndarray
    common: float
    between: np.ndarray
    own: np.ndarray
    noise: float

    def widths(self, datasets: int) -> np.ndarray:
        """(E) half widths of intervals for measured errors.

        How much datasets differ is learned from the few that are known, so that part has the tails of Student's t.
        """
        level = (1 + COVERAGE) / 2
        normal, student = ndtri(level), stdtrit(max(datasets - 1, 2), level)
        shared = np.einsum("ei,ij,ej->e", self.lean, self.spread, self.lean)
        every = shared + self.common + self.own + self.noise
        return np.sqrt(normal**2 * every + (student**2 - normal**2) * self.between)

    def chances(self, is_candidate: np.ndarray) -> np.ndarray:
        """(E) of having the smallest error of the candidates, from joint draws; always the same ones."""
        numbers = np.flatnonzero(is_candidate)
        chances = np.zeros(len(self.mean))
        if not len(numbers):
            return chances
        generator = np.random.default_rng(0)
        draws = int(np.clip(_DRAWS // len(numbers), 500, 4000))
        values, vectors = np.linalg.eigh(self.spread)
        roots = self.lean[numbers] @ (vectors * np.sqrt(np.maximum(values, 0)))
        errors = generator.standard_normal((draws, roots.shape[1])) @ roots.T
        errors += generator.standard_normal((draws, len(numbers))) * np.sqrt(self.own[numbers])
        best = (errors + self.mean[numbers]).argmin(1)
        chances[numbers] = np.bincount(best, minlength=len(numbers)) / draws
        return chances

    def learn(self, numbers: np.ndarray, values: np.ndarray, noise: np.ndarray) -> "Forecast":
        """The forecast once errors on the asked task itself are known: the exact posterior.

        What all experts share moves with every one of them. Given that, the own part of a measured expert is drawn to
        what was measured by own / (own + noise), and that of the others stays.

        Args:
            numbers: (K) of the experts that were measured.
            values: (K) their errors on the scale of the model.
            noise: (K) variances of these around the true ones.
        """
        if not len(numbers):
            return self
        lean = np.hstack([self.lean, np.ones((len(self.mean), 1))])  # the last: what all share on this task
        spread = np.zeros((lean.shape[1], lean.shape[1]))
        spread[:-1, :-1], spread[-1, -1] = self.spread, self.common
        told, left = lean[numbers], values - self.mean[numbers]
        alone = self.own[numbers] + noise
        crossed = spread @ told.T
        pull = np.linalg.solve(told @ crossed + np.diag(alone), crossed.T)
        shared = left @ pull
        trust = np.zeros(len(self.mean))
        trust[numbers] = self.own[numbers] / alone
        mean = self.mean + lean @ shared
        mean[numbers] += trust[numbers] * (left - told @ shared)
        spread = spread - crossed @ pull
        lean = (1 - trust)[:, None] * lean
        left_over = float(spread[-1, -1]) / self.common if self.common > 0 else 1.0
        between = (1 - trust) ** 2 * self.between * left_over
        return Forecast(mean, lean, spread, common=0.0, between=between, own=(1 - trust) * self.own, noise=self.noise)

    def compare(self, first: int, second: int) -> float:
        """The chance that one expert has a smaller error than another."""
        lean = self.lean[first] - self.lean[second]
        variance = lean @ self.spread @ lean + self.own[first] + self.own[second]
        gap = float(self.mean[second] - self.mean[first])
        return float(ndtr(gap / np.sqrt(variance))) if variance > 0 else 0.5 + 0.5 * float(np.sign(round(gap, 12)))


@dataclass(frozen=True, eq=False)
class Predictor:
    """The model, fitted."""

    strategy: "Combined"
    means: Means
    evidence: Evidence
    cells: Cells
    centre: float
    classes: float
    scales: Scales
    likeness: Likeness
    solution: Solution

    def rank(self, question: Question) -> Answer:
        """Predicted errors, intervals for the mean error over as many splits as in the evidence, and chances."""
        if self.strategy.score and not _has_score(question, self.strategy.score):
            return self._plain.rank(question)
        return self.tell(question, self.forecast(question))

    def tell(self, question: Question, forecast: Forecast) -> Answer:
        """A forecast as an answer: errors, intervals, chances, and whether it beats the static choice."""
        widths = forecast.widths(len(set(self.evidence.groups)))
        level = forecast.mean + self.centre
        answer = Answer(
            forecast.mean,
            errors=unscale(level),
            low=unscale(level - widths),
            high=unscale(level + widths),
            chances=forecast.chances(question.is_candidate),
        )
        static = Answer(self._static).order(question.is_candidate)
        return answer if not len(static) else self._heed(question, forecast, answer, int(static[0]))

    def _heed(self, question: Question, forecast: Forecast, answer: Answer, static: int) -> Answer:
        """The static choice first, where the evidence does not beat it: always if it is the best one anyway."""
        first = int(answer.order(question.is_candidate)[0])
        sureness = 0.5 if first == static else forecast.compare(first, static)
        abstains = first == static or (sureness < SURE and not self.is_near(question))
        badness = answer.badness.copy()
        if abstains:
            badness[static] = badness[question.is_candidate].min() - 1e-6
        return replace(answer, badness=badness, static=static, sureness=sureness, abstains=abstains)

    def is_near(self, question: Question) -> bool:
        """Whether something similar is known: a task no farther than known tasks mostly are from their nearest."""
        distances = self.means.read_distances(question, len(self.cells.noise))
        return bool(distances.min(initial=np.inf) <= self._reach)

    @cached_property
    def _reach(self) -> float:
        nearest = (self.cells.distances + np.diag(np.full(len(self.cells.noise), np.inf))).min(1, initial=np.inf)
        return REACH * float(np.median(nearest)) if np.isfinite(np.median(nearest)) else 0.0

    def forecast(self, question: Question) -> Forecast:
        """Posterior of all experts' errors on the asked task."""
        cells, scales, solution = self.cells, self.scales, self.solution
        _, known, drifts = cells.masked
        tasks = len(cells.noise)
        near = np.exp(-self.means.read_distances(question, tasks) / scales.width)
        height = 1 + self.likeness.lift
        own = known * (scales.good + scales.suit * near)
        taken = np.einsum("eij,ej->ei", solution.inverses, own)
        is_same = np.array([group == question.group for group in self.evidence.groups], dtype=np.float64)
        classes = 0.0 if question.classes is None else np.log(max(question.classes, 1)) - self.classes
        hard, variance = place_hardness(cells, scales, classes=classes, near=near, is_same=is_same)
        variance += scales.near * self.likeness.lift
        weights = np.linalg.solve(spread_hardness(cells, scales, self.likeness), hard)
        drift = np.stack([np.zeros(len(known)), *self.means.measure(question)], axis=1)
        lean = np.concatenate([weights - taken, drift - np.einsum("etd,et->ed", drifts, taken)], axis=1)
        alone = scales.good + scales.suit * height - (own * taken).sum(1)
        return Forecast(
            weights @ solution.shared[:tasks] + drift @ solution.shared[tasks:] + (own * solution.weights).sum(1),
            lean,
            solution.spread,
            common=max(float(variance - hard @ weights), scales.own),
            between=np.full(len(known), 0.0 if is_same.any() else scales.dataset),
            own=np.maximum(alone, 0) + scales.rest,
            noise=float(cells.noise[cells.noise > 0].mean()) if (cells.noise > 0).any() else 0.0,
        )

    @cached_property
    def _static(self) -> np.ndarray:
        return fit_static(self.evidence)

    @cached_property
    def _plain(self) -> "Predictor":
        return replace(self.strategy, score=None).fit(self.evidence)


@dataclass(frozen=True)
class Combined:
    """The static prior, moved by errors on similar tasks as far as they are similar, and by a score if one is named.

    Attributes:
        kind: of the distance between tasks. Without the symmetric one they have nothing in common, and static is left.
        score: a transferability score that every candidate earns by looking at the task's images; None does without.
        lessons: whether nearness of the task to what an expert was taught counts by itself.
        scales: of the model, where they were learned before; None learns them, which takes most of the time.

    Example:
        >>> from task2vec.experts.measured import bundled_metatask
        >>> from task2vec.select.evidence.sources import from_measured
        >>> evidence = from_measured(bundled_metatask(), "half", family="labels")
        >>> others = np.arange(1, len(evidence.tasks))
        >>> answer = Combined().fit(evidence.only(others)).rank(evidence.ask(0).among(others))
        >>> bool((answer.low <= answer.errors).all() and (answer.errors <= answer.high).all())
        True
    """

    kind: str = SYMMETRIC
    score: str | None = None
    lessons: bool = False
    scales: Scales | None = None

    @property
    def name(self) -> str:
        """As tables show it."""
        kind = "" if self.kind == SYMMETRIC else f" {self.kind}"
        return f"combined{kind}" + (f" + {self.score}" if self.score else "") + (" + lessons" if self.lessons else "")

    @property
    def looks_at_images(self) -> bool:
        """Whether a score is used."""
        return self.score is not None

    def fit(self, evidence: Evidence) -> Predictor:
        """Learns the scales of the model, and solves it.

        Raises:
            UndefinedScoreError: No error is known, or not the score or the kind of distance that was asked for.
        """
        find_errors(evidence)
        self._check(evidence)
        means = find_means(evidence, self.kind, self.score, lessons=self.lessons)
        cells, centre, classes = gather(evidence, means)
        scales = learn_scales(cells) if self.scales is None else self.scales
        likeness = liken(cells.distances, scales.width)
        solution = solve(cells, scales, likeness)
        return Predictor(self, means, evidence, cells, centre, classes, scales, likeness, solution)

    def _check(self, evidence: Evidence) -> None:
        """Refuses evidence without what the name promises: a table would show another strategy under it."""
        if self.score and not np.isfinite(evidence.scores.get(self.score, np.nan)).any():
            raise UndefinedScoreError(
                f"the score '{self.score}' of these tasks and experts is not known (known: "
                f"{', '.join(evidence.scores) or 'none'}), so '{self.name}' cannot go by it. Compute it with "
                "score_features, or use 'combined'."
            )
        if self.kind != SYMMETRIC and self.kind not in evidence.distances:
            raise UndefinedScoreError(
                f"no {self.kind} distance between tasks is known (known kinds: "
                f"{', '.join(evidence.distances) or 'none'}), so '{self.name}' cannot go by it. Give the evidence one, "
                "or use 'combined'."
            )


def _has_score(question: Question, score: str) -> bool:
    scores = question.scores.get(score)
    return scores is not None and bool(np.isfinite(scores[question.is_candidate]).any())
