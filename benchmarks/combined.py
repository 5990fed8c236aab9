"""The combined strategy: what else was tried in its place, what its intervals hold, and when it abstains.

    python benchmarks/combined.py [--part candidates|abstaining|worlds|speed] [--out FOLDER]

Prints the tables of docs/explanation/selection.md and writes them as CSV.
Every figure is of tasks that were left out when it was
fitted, scales and widths included.
"""

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402

from benchmarks.measure import show_table  # noqa: E402
from task2vec.experts.metatask import SYMMETRIC, MetaTask, bundled_metatask  # noqa: E402
from task2vec.select.evaluate import Leave, evaluate  # noqa: E402
from task2vec.select.evidence import Answer, Question  # noqa: E402
from task2vec.select.strategies import Combined, Kernel, Static  # noqa: E402
from task2vec.select.strategies.combined_model import scale_errors  # noqa: E402
from task2vec.select.strategies.effects import find_errors, take_apart  # noqa: E402
from task2vec.select.strategies.kernel import choose_width, smooth, weigh  # noqa: E402

WORKERS = 2
SETTINGS: tuple[tuple[str, str, Leave], ...] = (
    ("taxa", "half", "task"),
    ("taxa", "half", "dataset"),
    ("taxa", "5", "task"),
    ("taxa", "5", "dataset"),
    ("labels", "half", "task"),
    ("labels", "5", "task"),
)


@dataclass(frozen=True)
class Spoken:
    """Another strategy under a name, perhaps without cells that experts have seen, perhaps never abstaining."""

    name: str
    base: Combined
    seen: bool = True
    abstains: bool = True
    looks_at_images: bool = False

    def fit(self, evidence: MetaTask):
        """Learns from known tasks."""
        if not self.seen:
            errors = np.where(evidence.is_candidate[:, :, None], evidence.errors, np.nan)
            evidence = replace(evidence, errors=errors)
        fitted = self.base.fit(evidence)
        return fitted if self.abstains else _Outspoken(fitted)


@dataclass(frozen=True, eq=False)
class _Outspoken:
    fitted: object

    def rank(self, question: Question) -> Answer:
        return replace(self.fitted.rank(question), badness=self.fitted.forecast(question).mean)


@dataclass(frozen=True)
class LowRank:
    """What is left of static by its first principal parts, smoothed over similar tasks."""

    rank: int = 3
    name: str = "low rank with distances"
    looks_at_images: bool = False

    def fit(self, evidence: MetaTask):
        """Learns from known tasks."""
        effects = take_apart(scale_errors(find_errors(evidence)))
        left, sizes, right = np.linalg.svd(np.nan_to_num(effects.rest), full_matrices=False)
        rest = (left[:, : self.rank] * sizes[: self.rank]) @ right[: self.rank]
        width = choose_width(effects, evidence.distances[SYMMETRIC])
        return _Smoothed(effects.experts, rest, width, np.zeros(0))


@dataclass(frozen=True)
class Ridge:
    """A ridge regression of errors on the static effect, errors of similar tasks, and the distance from the lesson."""

    name: str = "ridge on three features"
    looks_at_images: bool = False

    def fit(self, evidence: MetaTask):
        """Learns from known tasks."""
        effects = take_apart(scale_errors(find_errors(evidence)))
        distances = evidence.distances[SYMMETRIC]
        width = choose_width(effects, distances)
        weights = weigh(distances + np.diag(np.full(len(distances), np.inf)), width)
        static = effects.without_own()
        target = effects.rest + effects.experts
        features = np.stack([static, smooth(effects.rest, weights), _centre(evidence.to_lessons[SYMMETRIC])])
        known = np.isfinite(target) & np.isfinite(features).all(0)
        x, y = features[:, known].T, target[known]
        slopes = np.linalg.solve(x.T @ x + np.diag([1e-6, 1.0, 1.0]), x.T @ y)
        return _Smoothed(effects.experts, effects.rest, width, slopes)


@dataclass(frozen=True, eq=False)
class _Smoothed:
    experts: np.ndarray
    rest: np.ndarray
    width: float
    slopes: np.ndarray

    def rank(self, question: Question) -> Answer:
        moved = smooth(self.rest, weigh(question.distances[SYMMETRIC][None], self.width))[0]
        if not len(self.slopes):
            return Answer(self.experts + moved)
        lessons = _centre(question.to_lessons[SYMMETRIC][None])[0]
        return Answer(self.slopes @ np.stack([self.experts, moved, lessons]))


def _centre(distances: np.ndarray) -> np.ndarray:
    """Distances from the mean of each row; 0 for lessons that are not known."""
    known = np.isfinite(distances)
    means = np.where(known, distances, 0).sum(1, keepdims=True) / np.maximum(known.sum(1, keepdims=True), 1)
    return np.where(known, distances - means, 0)


CANDIDATES = (
    Static(),
    Kernel(),
    LowRank(),
    Ridge(),
    Spoken("process without seen cells", Combined(), seen=False),
    Spoken("process that never abstains", Combined(), abstains=False),
    Combined("domain"),
    Combined(lessons=True),
    Combined(),
    *(Combined(score=score) for score in ("knn", "parc", "logme")),
    Combined(score="logme", lessons=True),
)


def compare_candidates() -> Iterator[dict[str, object]]:
    """All candidates in all settings."""
    with ProcessPoolExecutor(WORKERS) as pool:
        for rows in pool.map(_compare, SETTINGS):
            yield from rows


def _compare(setting: tuple[str, str, Leave]) -> list[dict[str, object]]:
    family, protocol, leave = setting
    evidence = MetaTask(bundled_metatask(), protocol, family=family)
    found = evaluate(evidence, CANDIDATES, leave=leave, resamples=1)
    static, best = found.outcomes["static"].errors, found.optimum.mean()
    rows = []
    for name, one in found.outcomes.items():
        gaps = 100 * (one.errors - static)
        rows.append(
            {
                "setting": f"{family}, {protocol}, one {leave} left out",
                "strategy": name,
                "over the optimum %": f"{100 * (one.errors.mean() / best - 1):+.1f}",
                "points over static": f"{gaps.mean():+.2f} ± {gaps.std(ddof=1) / np.sqrt(len(gaps)):.2f}",
                "covered %": "" if one.covered is None else f"{100 * one.covered.mean():.1f}",
                "width": "" if one.widths is None else f"{100 * one.widths.mean():.0f}",
                "brier": "" if one.brier is None else f"{one.brier.mean():.2f}",
                "tau": f"{np.nanmean(one.tau):.2f}",
            }
        )
    return rows


def count_abstaining() -> Iterator[dict[str, object]]:
    """What the choice would have gained over the static one, where it speaks and where it abstains."""
    asked = [(strategy, setting) for strategy in (Combined(), Combined(score="logme")) for setting in SETTINGS]
    with ProcessPoolExecutor(WORKERS) as pool:
        yield from pool.map(_count, asked)


def _count(asked: tuple[Combined, tuple[str, str, Leave]]) -> dict[str, object]:
    strategy, (family, protocol, leave) = asked
    evidence = MetaTask(bundled_metatask(), protocol, family=family)
    mean, groups, fits = evidence.mean, np.array(evidence.groups), {}
    gains: dict[bool, list[float]] = {True: [], False: []}
    for row, group in enumerate(groups):
        known = np.flatnonzero(groups != group if leave == "dataset" else np.arange(len(groups)) != row)
        key = group if leave == "dataset" else row
        if key not in fits:
            fits[key] = strategy.fit(evidence.only(known))
        question = evidence.ask(row).among(known)
        answer = fits[key].rank(question)
        forecast = np.where(question.is_candidate, fits[key].forecast(question).mean, np.inf)
        gains[bool(answer.abstains)].append(mean[row, answer.static] - mean[row, int(forecast.argmin())])
    return {
        "strategy": strategy.name,
        "setting": f"{family}, {protocol}, one {leave} left out",
        "speaks": len(gains[False]),
        "gain when it speaks": _tell(gains[False]),
        "abstains": len(gains[True]),
        "gain it would have had": _tell(gains[True]),
    }


def _tell(gains: list[float]) -> str:
    points = 100 * np.array(gains)
    return "" if len(points) < 2 else f"{points.mean():+.2f} ± {points.std(ddof=1) / np.sqrt(len(points)):.2f}"


def try_worlds() -> Iterator[dict[str, object]]:
    """Simulated worlds, whose law is not the model's."""
    from tests.select.test_combined_simulated import CASES, draw_world

    for name, case in CASES.items():
        for leave in ("task", "dataset") if case.get("datasets", 4) > 1 else ("task",):
            worlds = [draw_world(seed, **case) for seed in range(10)]
            found = [evaluate(world, ["static", Combined()], leave=leave, resamples=1) for world in worlds]
            errors = {
                key: np.array([one.outcomes[key].errors.mean() for one in found]) for key in ("static", "combined")
            }
            gaps = 100 * (errors["combined"] - errors["static"])
            best = [np.nan if one.optimum is None else one.optimum.mean() for one in found]
            yield {
                "world": name,
                "left out": leave,
                "static": f"{100 * errors['static'].mean():.1f}",
                "combined": f"{100 * errors['combined'].mean():.1f}",
                "optimum": f"{100 * np.mean(best):.1f}",
                "points over static": f"{gaps.mean():+.2f} ± {gaps.std(ddof=1) / np.sqrt(len(gaps)):.2f}",
                "covered %": f"{100 * np.mean([one.outcomes['combined'].covered.mean() for one in found]):.0f}",
            }


def take_time() -> Iterator[dict[str, object]]:
    """Processor seconds to fit and to rank."""
    from tests.select.test_combined_simulated import draw_world

    for tasks, experts, missing in ((71, 84, 0.0), (71, 84, 0.3), (100, 1000, 0.0), (100, 1000, 0.5)):
        world = draw_world(0, reach=0.8, tasks=tasks + 1, experts=experts, missing=missing)
        known = np.arange(1, tasks + 1)
        evidence, question = world.only(known), world.ask(0).among(known)
        begin = time.process_time()
        fitted = Combined().fit(evidence)
        middle = time.process_time()
        fitted.rank(question)
        end = time.process_time()
        learned = Combined(scales=fitted.scales)
        learned.fit(evidence)
        seconds = {"fit": middle - begin, "rank": end - middle, "fit with known scales": time.process_time() - end}
        yield {"tasks": tasks, "experts": experts, "missing": missing} | {k: f"{v:.3f}" for k, v in seconds.items()}


PARTS = {"candidates": compare_candidates, "abstaining": count_abstaining, "worlds": try_worlds, "speed": take_time}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    for part in given.part or PARTS:
        rows = list(PARTS[part]())
        print(f"\n{part}")
        show_table(list(rows[0]), [list(row.values()) for row in rows])
        if given.out:
            given.out.mkdir(parents=True, exist_ok=True)
            with (given.out / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)


if __name__ == "__main__":
    main()
