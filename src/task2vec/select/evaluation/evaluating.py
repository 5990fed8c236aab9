"""How well strategies choose: every task is asked about as if its errors, or those of its dataset, were not known."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from task2vec.errors import UndefinedScoreError, UsageError
from task2vec.experts.measured import MeasuredMetaTask
from task2vec.progress import Report, silent
from task2vec.select.evaluation.measures import choose_honestly, expect_first, find_brier, find_fidelity, hit, weigh_tau
from task2vec.select.evidence import Answer, Evidence, Question
from task2vec.select.evidence.sources import from_measured
from task2vec.select.strategies import STRATEGIES, find_strategy
from task2vec.select.strategies.strategy import Strategy

Leave = Literal["task", "dataset", "domain"]


@dataclass(frozen=True, eq=False, repr=False)
class Outcome:
    """What came of one strategy. Arrays have an entry for each task that was asked about.

    Attributes:
        name: of the strategy.
        looks_at_images: whether candidates had to look at the task's images first; that is not in `seconds`.
        chosen: number of the expert that it ranks first; of equals the one that is listed first.
        errors: of its choice; where several share the first place, the mean.
        tau: weighted Kendall's tau of its ranking and the errors.
        top1: the chance that its choice is a best expert.
        top3: the chance that a best expert is among its first three.
        fidelity: correlation of gaps in its ranking's numbers and gaps in errors.
        covered: part of the candidates whose error is in its interval; None if it gives none.
        widths: mean width of those intervals.
        brier: Brier's score of its chances; None if it gives none.
        seconds: to fit and to rank, per task.
    """

    name: str
    looks_at_images: bool
    chosen: np.ndarray
    errors: np.ndarray
    tau: np.ndarray
    top1: np.ndarray
    top3: np.ndarray
    fidelity: np.ndarray
    covered: np.ndarray | None
    widths: np.ndarray | None
    brier: np.ndarray | None
    seconds: float

    def __repr__(self) -> str:
        """The outcome in one line."""
        return f"Outcome({self.name}, mean error {self.errors.mean():.4f} on {len(self.errors)} tasks)"


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Strategies side by side.

    Attributes:
        tasks: names of the tasks that were asked about.
        groups: the dataset of each.
        experts: names of all experts.
        leave: what was unknown beside the task itself: nothing ("task"), its dataset's tasks ("dataset"), or these and
            the experts taught on its dataset ("domain").
        smallest: (T) the smallest mean error of a candidate: an optimum that is biased low, for noise is chosen too.
        optimum: (T) error of the best candidate where it was chosen on other images or splits than it is measured on;
            None where there is only one split.
        chosen_on: what that was chosen on: "halves" of the test images, or "seeds" of the splits.
        outcomes: of the strategies, by name.
        left_out: strategies that cannot be asked, and why.
        resamples: how many samples of tasks intervals are made of.
        seed: of these samples.
    """

    tasks: tuple[str, ...]
    groups: tuple[str, ...]
    experts: tuple[str, ...]
    leave: Leave
    smallest: np.ndarray
    optimum: np.ndarray | None
    chosen_on: Literal["halves", "seeds"] | None
    outcomes: Mapping[str, Outcome]
    left_out: Mapping[str, str] = field(default_factory=dict)
    resamples: int = 10_000
    seed: int = 0

    def __repr__(self) -> str:
        """The evaluation in one line."""
        return f"Evaluation({len(self.outcomes)} strategies, {len(self.tasks)} tasks, leave one {self.leave} out)"

    def __str__(self) -> str:
        """The table."""
        from task2vec.select.evaluation.summary import write_table

        return write_table(self)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row of plain numbers for each strategy; what each means stands in `select.evaluation.summary`."""
        from task2vec.select.evaluation.summary import summarise

        return summarise(self)


def evaluate(
    evidence: Evidence | MeasuredMetaTask,
    strategies: Sequence[str | Strategy] | None = None,
    *,
    leave: Leave = "task",
    asked: Sequence[str] | None = None,
    resamples: int = 10_000,
    seed: int = 0,
    report: Report = silent,
) -> Evaluation:
    """How well strategies choose experts for tasks whose errors they do not know.

    Every task is asked about once, and a strategy is fitted on the others only. Experts that have seen a task are never
    chosen for it, nor are those whose error on it is not known, for nobody could tell what the choice is worth.

    Args:
        evidence: tasks, experts and errors; of a measured meta-task, those with half of the images.
        strategies: names from `STRATEGIES` or your own; None takes all that the evidence has the means for.
        leave: "task" leaves out the task itself; "dataset" all tasks of its dataset, which is harder and fairer;
            "domain" also drops experts that were taught on its dataset.
        asked: names of the tasks to ask about; all by default.
        resamples: samples of tasks for the intervals.
        seed: of these samples.
        report: opens a progress bar, see `task2vec.progress`.

    Raises:
        UsageError: There is no such strategy, nothing is left to learn from, or no task to ask about.

    Example:
        >>> import numpy as np
        >>> names = ("birds", "dogs", "cars")
        >>> errors = np.array([[0.1, 0.3], [0.2, 0.3], [0.2, 0.5]])[:, :, None]
        >>> known = Evidence(names, ("a", "b"), errors, errors[..., 0] < 1, names, (None, None), (None, None))
        >>> found = evaluate(known, ["chance", "static"])
        >>> found.outcomes["static"].errors.tolist(), found.outcomes["chance"].errors.round(2).tolist()
        ([0.1, 0.2, 0.2], [0.2, 0.25, 0.35])
    """
    if isinstance(evidence, MeasuredMetaTask):
        evidence = from_measured(evidence)
    if leave not in get_args(Leave):
        raise UsageError(f"leave={leave!r} is unknown. Choose one of: {', '.join(get_args(Leave))}")
    chosen = [find_strategy(one) if isinstance(one, str) else one for one in strategies or list(STRATEGIES)]
    folds = list(_make_folds(evidence, leave, asked))
    rows = np.array([row for fold in folds for row in fold.rows])
    allowed = np.stack([question.is_candidate for fold in folds for question in fold.questions])
    answers, left_out = _ask_all(evidence, chosen, folds, report("choosing", len(folds) * len(chosen)))
    order = np.argsort(rows, kind="stable")
    rows, allowed = rows[order], allowed[order]
    errors = np.where(allowed, evidence.mean[rows], np.nan)
    optimum, chosen_on = _find_optimum(evidence, rows, allowed)
    return Evaluation(
        tuple(evidence.tasks[row] for row in rows),
        tuple(evidence.groups[row] for row in rows),
        evidence.experts,
        leave,
        np.nanmin(errors, axis=1),
        optimum,
        chosen_on,
        {one.name: _judge(one, [found[place] for place in order], errors, seconds) for one, found, seconds in answers},
        left_out,
        resamples,
        seed,
    )


@dataclass(frozen=True, eq=False)
class _Fold:
    """Tasks that are asked about together, for they have the same tasks to learn from."""

    rows: list[int]
    known: np.ndarray
    questions: list[Question]


def _make_folds(evidence: Evidence, leave: str, asked: Sequence[str] | None) -> Iterator[_Fold]:
    unknown = sorted(set(asked or ()) - set(evidence.tasks))
    if unknown:
        raise UsageError(
            f"'{unknown[0]}' is none of the {len(evidence.tasks)} tasks of the evidence, so nothing is known of it. "
            "Ask about one that `evidence.tasks` lists."
        )
    groups = np.array(evidence.groups)
    lessons = np.array([group or "" for group in evidence.lesson_groups])
    is_known = np.isfinite(evidence.mean) & evidence.is_candidate
    together: dict[object, list[tuple[int, np.ndarray]]] = {}
    for row, name in enumerate(evidence.tasks):
        allowed = is_known[row] & (lessons != groups[row]) if leave == "domain" else is_known[row]
        if allowed.sum() >= 2 and (asked is None or name in asked):
            together.setdefault(row if leave == "task" else groups[row], []).append((row, allowed))
    if not together:
        raise UsageError(
            "no task has two candidates with a known error, so there is nothing to choose. Measure more errors: "
            "task2vec error-matrix"
        )
    for members in together.values():
        row = members[0][0]
        known = np.flatnonzero(groups != groups[row] if leave != "task" else np.arange(len(groups)) != row)
        if not len(known) and leave == "task":
            raise UsageError(
                f"'{evidence.tasks[row]}' is the only task, so with it left out there is none to learn from. Add tasks "
                "whose errors are known: task2vec error-matrix"
            )
        if not len(known):
            raise UsageError(
                f"with the tasks of '{groups[row]}' left out no task is left to learn from, for all are of that "
                "dataset. Leave out one task at a time, or add tasks of other datasets."
            )
        questions = [replace(evidence.ask(row).among(known), is_candidate=allowed) for row, allowed in members]
        yield _Fold([row for row, _ in members], known, questions)


def _ask_all(
    evidence: Evidence, strategies: Sequence[Strategy], folds: Sequence[_Fold], step: Callable[[int], None]
) -> tuple[list[tuple[Strategy, list[Answer], float]], dict[str, str]]:
    """The answers of each strategy in the order of the folds, with its seconds per task, and who cannot answer."""
    answers: dict[int, list[Answer]] = {number: [] for number in range(len(strategies))}
    seconds = [0.0] * len(strategies)
    left_out: dict[str, str] = {}
    for fold in folds:
        known = evidence.only(fold.known)
        for number, strategy in enumerate(strategies):
            if number in answers:
                begin = time.perf_counter()
                try:
                    fitted = strategy.fit(known)
                    answers[number] += [fitted.rank(question) for question in fold.questions]
                except UndefinedScoreError as error:
                    left_out[strategy.name] = str(error)
                    del answers[number]
                seconds[number] += time.perf_counter() - begin
            step(1)
    return [(strategies[n], found, seconds[n] / len(found)) for n, found in answers.items()], left_out


def _find_optimum(
    evidence: Evidence, rows: np.ndarray, allowed: np.ndarray
) -> tuple[np.ndarray | None, Literal["halves", "seeds"] | None]:
    """The honest optimum, and what it was chosen on: halves of the test images if they are known, or else seeds."""
    if evidence.halves is not None:
        optimum = choose_honestly(evidence.halves[rows], allowed)
        if np.isfinite(optimum).all():
            return optimum, "halves"
    optimum = choose_honestly(evidence.errors[rows], allowed)
    return (optimum, "seeds") if np.isfinite(optimum).all() else (None, None)


def _judge(strategy: Strategy, answers: Sequence[Answer], errors: np.ndarray, seconds: float) -> Outcome:
    """What the answers are worth; `errors` are NaN for experts that may not be chosen."""
    found: dict[str, list[float]] = {}
    chosen = []
    for answer, row in zip(answers, errors, strict=True):
        allowed = np.isfinite(row)
        chosen.append(int(answer.order(allowed)[0]))
        places, row = answer.places()[allowed], row[allowed]
        told = {
            "errors": expect_first(places, row),
            "tau": weigh_tau(places, row),
            "top1": hit(places, row, 1),
            "top3": hit(places, row, 3),
            "fidelity": find_fidelity(answer.badness[allowed], row),
        }
        if answer.low is not None and answer.high is not None:
            low, high = answer.low[allowed], answer.high[allowed]
            told |= {"covered": float(((low <= row) & (row <= high)).mean()), "widths": float((high - low).mean())}
        if answer.chances is not None:
            told["brier"] = find_brier(np.nan_to_num(answer.chances[allowed]), row)
        for key, value in told.items():
            found.setdefault(key, []).append(value)
    arrays: dict[str, Any] = dict.fromkeys(("covered", "widths", "brier"))
    arrays |= {key: np.array(values) for key, values in found.items() if len(values) == len(answers)}
    return Outcome(strategy.name, strategy.looks_at_images, np.array(chosen), **arrays, seconds=seconds)
