"""The combined strategy: what else was tried in its place, what its intervals cover, and when it abstains.

    python benchmarks/combined.py [--part candidates|abstaining|worlds|speed] [--out FOLDER]

Prints the tables of docs/explanation/selection.md and writes them as CSV.
Every figure is of tasks that were left out when it was
fitted, scales and widths included.
"""

import csv
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402

from benchmarks.measure import make_parser, show_table  # noqa: E402
from experiments.report import load_bundle  # noqa: E402
from task2vec.experts.metatask import DOMAIN, SYMMETRIC, MetaTask, Query  # noqa: E402
from task2vec.select.combined import fit_combined, scale_errors  # noqa: E402
from task2vec.select.evaluate import Leave, evaluate  # noqa: E402
from task2vec.select.strategies import (  # noqa: E402
    AVERAGE_BEST,
    Prediction,
    Strategy,
    _average_near,
    _choose_width,
    find_errors,
    find_strategy,
    fit_effects,
)

WORKERS = 2
SETTINGS: tuple[tuple[str, str, Leave], ...] = (
    ("taxa", "half", "task"),
    ("taxa", "half", "dataset"),
    ("taxa", "5", "task"),
    ("taxa", "5", "dataset"),
    ("labels", "half", "task"),
    ("labels", "5", "task"),
)


Predict = Callable[[Query], Prediction]


def fit_without_seen(metatask: MetaTask) -> Predict:
    """The combined strategy without the errors of models on tasks that they have seen."""
    errors = np.where(metatask.is_candidate[:, :, None, None], metatask.errors, np.nan)
    return fit_combined(replace(metatask, errors=errors)).predict


def fit_without_abstaining(metatask: MetaTask) -> Predict:
    """The combined strategy that always ranks by predicted errors, and never abstains."""
    fitted = fit_combined(metatask)
    return lambda query: replace(fitted.predict(query), loss=fitted.posterior(query).mean)


def fit_low_rank(metatask: MetaTask, rank: int = 3) -> Predict:
    """What the average leaves, by its first principal components, smoothed over similar tasks."""
    effects = fit_effects(scale_errors(find_errors(metatask)))
    left, sizes, right = np.linalg.svd(np.nan_to_num(effects.rest), full_matrices=False)
    rest = (left[:, :rank] * sizes[:rank]) @ right[:rank]
    width = _choose_width(effects, metatask.between(SYMMETRIC))

    def predict(query: Query) -> Prediction:
        return Prediction(effects.models + _smooth(rest, query.distances[SYMMETRIC][None], width)[0])

    return predict


def fit_ridge(metatask: MetaTask) -> Predict:
    """A ridge regression of errors on the average effect, errors of similar tasks, and distances to source tasks."""
    effects = fit_effects(scale_errors(find_errors(metatask)))
    distances = metatask.between(SYMMETRIC)
    width = _choose_width(effects, distances)
    target = effects.rest + effects.models
    near = _smooth(effects.rest, distances + np.diag(np.full(len(distances), np.inf)), width)
    features = np.stack([effects.leave_one_out(), near, _centre(metatask.to_sources(SYMMETRIC))])
    known = np.isfinite(target) & np.isfinite(features).all(0)
    x, y = features[:, known].T, target[known]
    slopes = np.linalg.solve(x.T @ x + np.diag([1e-6, 1.0, 1.0]), x.T @ y)

    def predict(query: Query) -> Prediction:
        near = _smooth(effects.rest, query.distances[SYMMETRIC][None], width)[0]
        to_sources = _centre(query.to_sources[SYMMETRIC][None])[0]
        return Prediction(slopes @ np.stack([effects.models, near, to_sources]))

    return predict


def _smooth(rest: np.ndarray, distances: np.ndarray, width: float) -> np.ndarray:
    """(rows of distances, M) means of what is known of similar tasks; 0 where nothing is."""
    return _average_near(distances, width, rest, np.zeros((len(distances), rest.shape[1])))


def _centre(distances: np.ndarray) -> np.ndarray:
    """Distances from the mean of each row; 0 for source tasks that are not known."""
    known = np.isfinite(distances)
    means = np.where(known, distances, 0).sum(1, keepdims=True) / np.maximum(known.sum(1, keepdims=True), 1)
    return np.where(known, distances - means, 0)


def make_combined(kind: str = SYMMETRIC, score: str | None = None) -> Strategy:
    """The combined strategy with these options, under a name that tells them."""
    name = ("combined" if kind == SYMMETRIC else f"combined {kind}") + (f" + {score}" if score else "")

    def fit(metatask: MetaTask) -> Predict:
        return fit_combined(metatask, kind, score=score).predict

    return Strategy(name, fit, uses_scores=score is not None)


CANDIDATES = (
    *(find_strategy(name) for name in (AVERAGE_BEST, "generic", "logme", f"kernel {SYMMETRIC}")),
    Strategy("low rank with distances", fit_low_rank),
    Strategy("ridge on three features", fit_ridge),
    Strategy("process without seen cells", fit_without_seen),
    Strategy("process that never abstains", fit_without_abstaining),
    make_combined(DOMAIN),
    make_combined(),
    *(make_combined(score=score) for score in ("knn", "parc", "logme")),
)


def compare_candidates() -> Iterator[dict[str, object]]:
    """All candidates in all settings."""
    with ProcessPoolExecutor(WORKERS) as pool:
        for rows in pool.map(_compare, SETTINGS):
            yield from rows


def _compare(setting: tuple[str, str, Leave]) -> list[dict[str, object]]:
    family, shots, leave = setting
    metatask = load_bundle(None).select(shots, family=family)
    found = evaluate(metatask, CANDIDATES, leave=leave, resamples=1)
    rows = []
    for name, one in found.outcomes.items():
        gaps, best = 100 * found.find_gaps(name, AVERAGE_BEST), found.find_references(name).optimum.mean()
        rows.append(
            {
                "setting": f"{family}, {shots}, one {leave} left out",
                "strategy": name,
                "over the optimum %": f"{100 * (one.errors.mean() / best - 1):+.1f}",
                "points over average-best": f"{gaps.mean():+.2f} ± {gaps.std(ddof=1) / np.sqrt(len(gaps)):.2f}",
                "covered %": "" if one.covered is None else f"{100 * one.covered.mean():.1f}",
                "width": "" if one.widths is None else f"{100 * one.widths.mean():.0f}",
                "brier": "" if one.brier is None else f"{one.brier.mean():.2f}",
                "tau": f"{np.nanmean(one.tau):.2f}",
            }
        )
    return rows


def count_abstaining() -> Iterator[dict[str, object]]:
    """What the choice would have gained over the average-best model, where it decides and where it abstains."""
    asked = [(score, setting) for score in (None, "logme") for setting in SETTINGS]
    with ProcessPoolExecutor(WORKERS) as pool:
        yield from pool.map(_count, asked)


def _count(asked: tuple[str | None, tuple[str, str, Leave]]) -> dict[str, object]:
    score, (family, shots, leave) = asked
    metatask = load_bundle(None).select(shots, family=family)
    # Scores are of the training images of the first split, which are test images of the others.
    mean = metatask.mean if score is None else metatask.errors[:, :, 0, 0]
    datasets, fits = np.array(metatask.datasets), {}
    gains: dict[bool, list[float]] = {True: [], False: []}
    for row, dataset in enumerate(datasets):
        known = np.flatnonzero(datasets != dataset if leave == "dataset" else np.arange(len(datasets)) != row)
        key = dataset if leave == "dataset" else row
        if key not in fits:
            fits[key] = fit_combined(metatask.only(known), score=score)
        query = metatask.query(row, known=known)
        prediction = fits[key].predict(query)
        predicted = np.where(query.is_candidate, fits[key].posterior(query).mean, np.inf)
        gain = mean[row, prediction.average_best] - mean[row, int(predicted.argmin())]
        gains[bool(prediction.abstains)].append(gain)
    return {
        "strategy": make_combined(score=score).name,
        "setting": f"{family}, {shots}, one {leave} left out",
        "decides": len(gains[False]),
        "gain when it decides": _format(gains[False]),
        "abstains": len(gains[True]),
        "gain it would have had": _format(gains[True]),
    }


def _format(gains: list[float]) -> str:
    points = 100 * np.array(gains)
    return "" if len(points) < 2 else f"{points.mean():+.2f} ± {points.std(ddof=1) / np.sqrt(len(points)):.2f}"


def try_worlds() -> Iterator[dict[str, object]]:
    """Simulated worlds, whose law is not the model's."""
    from tests.select.test_combined import CASES, draw_world

    for name, case in CASES.items():
        for leave in ("task", "dataset") if case.get("datasets", 4) > 1 else ("task",):
            worlds = [draw_world(seed, **case) for seed in range(10)]
            found = [evaluate(world, [AVERAGE_BEST, "combined"], leave=leave, resamples=1) for world in worlds]
            errors = {
                key: np.array([one.outcomes[key].errors.mean() for one in found]) for key in (AVERAGE_BEST, "combined")
            }
            gaps = 100 * (errors["combined"] - errors[AVERAGE_BEST])
            best = [np.nan if one.optimum is None else one.optimum.mean() for one in found]
            yield {
                "world": name,
                "left out": leave,
                "average-best": f"{100 * errors[AVERAGE_BEST].mean():.1f}",
                "combined": f"{100 * errors['combined'].mean():.1f}",
                "optimum": f"{100 * np.mean(best):.1f}",
                "points over average-best": f"{gaps.mean():+.2f} ± {gaps.std(ddof=1) / np.sqrt(len(gaps)):.2f}",
                "covered %": f"{100 * np.mean([one.outcomes['combined'].covered.mean() for one in found]):.0f}",
            }


def take_time() -> Iterator[dict[str, object]]:
    """Processor seconds to fit and to predict."""
    from tests.select.test_combined import draw_world

    for tasks, models, missing in ((71, 84, 0.0), (71, 84, 0.3), (100, 1000, 0.0), (100, 1000, 0.5)):
        world = draw_world(0, reach=0.8, tasks=tasks + 1, models=models, missing=missing)
        known = np.arange(1, tasks + 1)
        metatask, query = world.only(known), world.query(0, known=known)
        begin = time.process_time()
        fitted = fit_combined(metatask)
        middle = time.process_time()
        fitted.predict(query)
        end = time.process_time()
        fit_combined(metatask, scales=fitted.scales)
        seconds = {"fit": middle - begin, "predict": end - middle, "fit with known scales": time.process_time() - end}
        yield {"tasks": tasks, "models": models, "missing": missing} | {k: f"{v:.3f}" for k, v in seconds.items()}


PARTS = {"candidates": compare_candidates, "abstaining": count_abstaining, "worlds": try_worlds, "speed": take_time}


def main() -> None:
    parser = make_parser(__doc__)
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
