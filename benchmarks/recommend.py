"""How far `recommend` can be believed, and what it takes: `python -m benchmarks.recommend [--every 1]`.

Every task of the bundle is asked about as if nothing of it were known (leave one task out), or nothing of its dataset
(leave one dataset out); candidates are the networks that anybody can load. Told are how far predictions miss, how often
intervals hold the error and how wide they are, what following the recommendation gains over the static choice, and the
same after two candidates were measured; then how far the best of three that were measured once can be believed. Before
that the seconds of one recommendation. `--ship` writes what makes the
first one quick, to be done after the bundle or the combined strategy has changed.
"""

import argparse
import time
from collections.abc import Callable, Mapping

import numpy as np

import task2vec as t2v
from task2vec.select.evidence import Answer, list_spaces
from task2vec.select.knowledge import Knowledge
from task2vec.select.knowledge.knowing import _know_bundle, know_measured
from task2vec.select.recommendation.conditioning import find_scales, predict, ship_scales
from task2vec.select.recommendation.confirming import Measured


def leave_out(known: Knowledge, row: int, *, leave: str) -> Knowledge:
    """What is known without a task, or without all tasks of its dataset."""
    groups = known.evidence.groups
    gone = [row] if leave == "task" else [other for other, group in enumerate(groups) if group == groups[row]]
    for fingerprint in [known.fingerprints[other] for other in gone]:
        known = known.without(fingerprint)
    return known


def judge(told: tuple[Answer, bool], true: np.ndarray, columns: np.ndarray) -> dict[str, float]:
    """How one forecast of the candidates in `columns` came out."""
    answer, is_sure = told
    assert answer.errors is not None and answer.low is not None and answer.high is not None
    own = true[columns]
    first = int(answer.order(np.isin(np.arange(len(true)), columns))[0])
    static = first if answer.static is None else answer.static
    return {
        "square": float(np.square(answer.errors[columns] - own).mean()),
        "held": float(((answer.low[columns] <= own) & (own <= answer.high[columns])).mean()),
        "width": float((answer.high[columns] - answer.low[columns]).mean()),
        "sure": float(is_sure),
        "gain": float(true[static] - true[first]) if is_sure else 0.0,
        "regret": float((true[first] if is_sure else true[static]) - own.min()),
    }


def measure_all(protocol: str, leave: str, *, every: int) -> Mapping[str, list[dict[str, float]]]:
    """The outcomes of all tasks: before anything is measured, and for the other candidates after two were."""
    metatask = t2v.bundled_metatask()
    embeddings = next(each for name, each in metatask.embeddings.items() if name == "tf_efficientnet_lite0 robust")
    whole = know_measured(metatask, protocol, embeddings[0])
    columns = np.array([number for number, offer in enumerate(whole.offers) if offer.is_named])
    found: dict[str, list[dict[str, float]]] = {"before": [], "after two": []}
    for row in range(0, len(whole.fingerprints), every):
        known, true = leave_out(whole, row, leave=leave), whole.evidence.mean[row]
        question = known.ask(embeddings[row], np.isin(np.arange(len(true)), columns))
        answer = predict(known, embeddings[row], question, {})
        found["before"].append(judge(answer, true, columns))
        tried = answer[0].order(question.is_candidate)[:2]
        told = {
            known.offers[one].name: Measured(
                true[one], true[one], true[one], dict(enumerate(whole.evidence.errors[row, one]))
            )
            for one in tried
        }
        after = predict(known, embeddings[row], question, told)
        found["after two"].append(judge(after, true, np.setdiff1d(columns, tried)))
    return found


def judge_luck(protocol: str, *, every: int, count: int = 3) -> dict[str, float]:
    """What believing one split costs: `count` candidates are measured on the first, and the others tell the truth.

    By how much the error of the choice is foretold too good, and what the choice leaves, for whom the smallest measured
    error is chosen, and for whom the smallest error that follows from all that is known.
    """
    metatask = t2v.bundled_metatask()
    embeddings = metatask.embeddings["tf_efficientnet_lite0 robust"]
    whole = know_measured(metatask, protocol, embeddings[0])
    columns = np.array([number for number, offer in enumerate(whole.offers) if offer.is_named])
    found: dict[str, list[float]] = {"raw luck": [], "raw error": [], "luck": [], "error": []}
    for row in range(0, len(whole.fingerprints), every):
        known, splits = leave_out(whole, row, leave="task"), whole.evidence.errors[row]
        true = splits[:, 1:].mean(1)
        question = known.ask(embeddings[row], np.isin(np.arange(len(true)), columns))
        tried = predict(known, embeddings[row], question, {})[0].order(question.is_candidate)[:count]
        told = {known.offers[one].name: Measured(*[splits[one, 0]] * 3, {0: splits[one, 0]}) for one in tried}
        errors = predict(known, embeddings[row], question, told)[0].errors
        assert errors is not None
        raw, own = (int(tried[np.argmin(each[tried])]) for each in (splits[:, 0], errors))
        for name, value in (("raw luck", true[raw] - splits[raw, 0]), ("raw error", true[raw])):
            found[name].append(float(value))
        for name, value in (("luck", true[own] - errors[own]), ("error", true[own])):
            found[name].append(float(value))
    return {name: float(np.mean(values)) for name, values in found.items()}


def time_recommendation(clock: Callable[[], float]) -> tuple[float, float]:
    """Seconds of the first recommendation after import, and of the next ones."""
    find_scales.cache_clear()
    _know_bundle.cache_clear()
    embedding = t2v.bundled_metatask().embeddings["tf_efficientnet_lite0 robust"][0]
    stranger = t2v.Embedding(
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
        t2v.recommend(stranger)
        spent.append(clock() - begin)
    return spent[0], float(np.median(spent[1:]))


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take every so manyth task only")
    parser.add_argument("--ship", action="store_true", help="write the scales of what ships, and nothing else")
    asked = parser.parse_args()
    every = asked.every
    if asked.ship:
        metatask = t2v.bundled_metatask()
        spaces = list_spaces(metatask).values()
        ship_scales([know_measured(metatask, protocol, one) for one in spaces for protocol in ("half", "5")])
        return
    for name, clock in (("processor", time.process_time), ("wall clock", time.perf_counter)):
        first, later = time_recommendation(clock)
        print(f"one recommendation: {first:.2f} s the first time, {later:.3f} s after that, by the {name}")
    print()
    print("| training | left out | | misses by | intervals hold | width | sure | gain when sure | regret |")
    print("|---|---|---|---|---|---|---|---|---|")
    for protocol in ("half", "5"):
        for leave in ("task", "dataset"):
            for when, rows in measure_all(protocol, leave, every=every).items():
                mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
                told = (
                    f"| {protocol} | {leave} | {when} | {100 * mean['square'] ** 0.5:.1f} | {100 * mean['held']:.0f} % "
                )
                told += f"| {100 * mean['width']:.1f} "
                if when == "before":
                    gain = mean["gain"] / mean["sure"] if mean["sure"] else 0.0
                    told += f"| {100 * mean['sure']:.0f} % | {100 * gain:+.1f} | {100 * mean['regret']:.1f} |"
                else:  # about the candidates that were not measured: nothing is chosen among these alone
                    told += "| - | - | - |"
                print(told, flush=True)
    print("\nthree measured on one split, the others tell the truth; points")
    print("| training | chosen by | told too good by | leaves |")
    print("|---|---|---|---|")
    for protocol in ("half", "5"):
        luck = {name: f"{100 * value:+.1f}" for name, value in judge_luck(protocol, every=every).items()}
        print(f"| {protocol} | the smallest measured | {luck['raw luck']} | {luck['raw error'].lstrip('+')} |")
        print(f"| {protocol} | all that is known | {luck['luck']} | {luck['error'].lstrip('+')} |", flush=True)


if __name__ == "__main__":
    main()
