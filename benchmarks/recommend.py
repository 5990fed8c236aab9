"""How far `recommend` can be relied upon, and what it takes: `python -m benchmarks.recommend [--every 1]`.

Every task of the bundle is predicted as if nothing of it were known (leave one task out), or nothing of its dataset
(leave one dataset out); candidates are the networks that anybody can load. Shown are how far predictions miss, how many
errors the intervals cover and how wide they are, what following the recommendation gains over the average-best model,
and the same after two candidates were measured; then how far the best of three that were measured once can be relied
upon. Before that the seconds of one recommendation.
"""

import argparse
import time
from collections.abc import Callable, Mapping

import numpy as np

import task2vec as t2v
from task2vec.experts.metatask import SYMMETRIC, MetaTask, Query
from task2vec.library import MeasuredError
from task2vec.select.combined import fit_with_heads, predict_conditioned
from task2vec.select.recommend import select_space
from task2vec.select.strategies import Prediction

PROBE, METHOD = "tf_efficientnet_lite0", "robust"


def leave_out(whole: MetaTask, row: int, *, leave: str) -> MetaTask:
    """The meta-task without a task, or without all tasks of its dataset."""
    datasets = np.array(whole.datasets)
    is_gone = np.arange(len(datasets)) == row if leave == "task" else datasets == datasets[row]
    return whole.only(np.flatnonzero(~is_gone))


def make_query(known: MetaTask, embedding: t2v.Embedding, is_candidate: np.ndarray) -> Query:
    """The query of `recommend` for the task of an embedding, whose dataset is not known."""
    distances = known.distances_from(embedding)
    return Query(
        embedding.task,
        is_candidate,
        distances={SYMMETRIC: distances[: len(known.tasks)]},
        to_sources={SYMMETRIC: known.pick_sources(distances)},
        vector=embedding.vector,
        classes=embedding.provenance["counts"]["classes"],
    )


def list_measured(whole: MetaTask, row: int, column: int, seeds: slice = slice(None)) -> list[MeasuredError]:
    """The errors of a model on a task, as if they had just been measured."""
    task, model = whole.tasks[row].fingerprint, whole.models[column].name
    error, *ends = (each[row, column, 0, seeds].tolist() for each in (whole.errors, whole.low, whole.high))
    found = zip(error, whole.seeds[seeds], *ends, strict=True)
    return [MeasuredError(task, model, one, whole.protocols[0], *more) for one, *more in found]


def score(prediction: Prediction, true: np.ndarray, columns: np.ndarray) -> dict[str, float]:
    """How good one prediction for the candidates in `columns` is."""
    is_confident = prediction.abstains is False
    assert prediction.errors is not None and prediction.low is not None and prediction.high is not None
    own, low, high = true[columns], prediction.low[columns], prediction.high[columns]
    first = int(prediction.order(np.isin(np.arange(len(true)), columns))[0])
    average_best = first if prediction.average_best is None else prediction.average_best
    return {
        "square": float(np.square(prediction.errors[columns] - own).mean()),
        "covered": float(((low <= own) & (own <= high)).mean()),
        "width": float((high - low).mean()),
        "confident": float(is_confident),
        "gain": float(true[average_best] - true[first]) if is_confident else 0.0,
        "regret": float((true[first] if is_confident else true[average_best]) - own.min()),
    }


def measure_all(shots: str, leave: str, *, every: int) -> Mapping[str, list[dict[str, float]]]:
    """The scores of all tasks: before anything is measured, and for the other candidates after two were."""
    whole = t2v.bundled_metatask().select(shots, probe=PROBE, method=METHOD)
    is_candidate = np.array([model.is_named for model in whole.models])
    columns = np.flatnonzero(is_candidate)
    found: dict[str, list[dict[str, float]]] = {"nothing": [], "two models": []}
    for row in range(0, len(whole.tasks), every):
        known, true, embedding = leave_out(whole, row, leave=leave), whole.mean[row], _embedding(whole, row)
        query = make_query(known, embedding, is_candidate)
        before = predict_conditioned(known, embedding, query, {})
        found["nothing"].append(score(before, true, columns))
        tried = before.order(is_candidate)[:2]
        measured = {whole.models[one].name: list_measured(whole, row, one) for one in tried}
        after = predict_conditioned(known, embedding, query, measured)
        found["two models"].append(score(after, true, np.setdiff1d(columns, tried)))
    return found


def measure_one_split(shots: str, *, every: int, count: int = 3) -> dict[str, float]:
    """What relying on one split costs: `count` candidates are measured on the first, and compared on the others.

    By how much the error of the choice is larger than it was thought to be, and that error, where the smallest measured
    error is chosen, and where the smallest predicted one is, given all that is known.
    """
    whole = t2v.bundled_metatask().select(shots, probe=PROBE, method=METHOD)
    is_candidate = np.array([model.is_named for model in whole.models])
    found: dict[str, list[float]] = {"measured bias": [], "measured error": [], "bias": [], "error": []}
    for row in range(0, len(whole.tasks), every):
        known, splits, embedding = leave_out(whole, row, leave="task"), whole.errors[row, :, 0], _embedding(whole, row)
        true = splits[:, 1:].mean(1)
        query = make_query(known, embedding, is_candidate)
        tried = predict_conditioned(known, embedding, query, {}).order(is_candidate)[:count]
        measured = {whole.models[one].name: list_measured(whole, row, one, slice(1)) for one in tried}
        errors = predict_conditioned(known, embedding, query, measured).errors
        assert errors is not None
        for name, guesses in (("measured ", splits[:, 0]), ("", errors)):
            chosen = int(tried[np.argmin(guesses[tried])])
            found[f"{name}bias"].append(float(true[chosen] - guesses[chosen]))
            found[f"{name}error"].append(float(true[chosen]))
    return {name: float(np.mean(values)) for name, values in found.items()}


def _embedding(whole: MetaTask, row: int) -> t2v.Embedding:
    return whole.embeddings[f"{PROBE} {METHOD}"][row]


def time_recommendation(clock: Callable[[], float]) -> tuple[float, float]:
    """Seconds of the first recommendation after import, and of the next ones."""
    fit_with_heads.cache_clear()
    select_space.cache_clear()
    embedding = _embedding(t2v.bundled_metatask(), 0)
    new = t2v.Embedding(
        "mine",
        embedding.probe,
        embedding.fisher * 1.01,
        embedding.stderr,
        embedding.prior,
        embedding.layers,
        embedding.provenance | {"task_fingerprint": "0" * 64},
    )
    spent = []
    for _ in range(6):
        begin = clock()
        t2v.recommend(new)
        spent.append(clock() - begin)
    return spent[0], float(np.median(spent[1:]))


def main() -> None:
    """Prints the seconds and both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="predict only every N-th task", metavar="N")
    every = parser.parse_args().every
    for name, clock in (("processor", time.process_time), ("wall clock", time.perf_counter)):
        first, later = time_recommendation(clock)
        print(f"one recommendation: {first:.2f} s the first time, {later:.3f} s after that, by the {name}")
    print()
    print("| shots | left out | measured | RMSE | coverage | width | departs from average-best | gain then | regret |")
    print("|---|---|---|---|---|---|---|---|---|")
    for shots in ("half", "5"):
        for leave in ("task", "dataset"):
            for measured, rows in measure_all(shots, leave, every=every).items():
                mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
                cells = [shots, leave, measured, f"{100 * mean['square'] ** 0.5:.1f}", f"{100 * mean['covered']:.0f} %"]
                cells.append(f"{100 * mean['width']:.1f}")
                if measured == "nothing":
                    gain = mean["gain"] / mean["confident"] if mean["confident"] else 0.0
                    cells += [f"{100 * mean['confident']:.0f} %", f"{100 * gain:+.1f}", f"{100 * mean['regret']:.1f}"]
                else:  # about the candidates that were not measured: nothing is chosen among these alone
                    cells += ["-", "-", "-"]
                print(f"| {' | '.join(cells)} |", flush=True)
    print("\nthree measured on one split, compared on the others; points")
    print("| shots | chosen by | error underestimated by | error |")
    print("|---|---|---|---|")
    for shots in ("half", "5"):
        found = {name: 100 * value for name, value in measure_one_split(shots, every=every).items()}
        print(f"| {shots} | smallest measured | {found['measured bias']:+.1f} | {found['measured error']:.1f} |")
        print(f"| {shots} | all that is known | {found['bias']:+.1f} | {found['error']:.1f} |", flush=True)


if __name__ == "__main__":
    main()
