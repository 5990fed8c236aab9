"""How errors change with the image size: `python -m benchmarks.sizes [--json FILE]`.

Three networks were measured at 112 and 160 pixels (`experiments.metatask.build sizes`) on the whole datasets that the
bundle has at 224 pixels, with the same splits. First by how much errors are higher per halving of the size, on the
scale of the combined strategy, and how far that differs between tasks and between the networks of a task: `SIZE_SHIFT`
and what follows it. Then what errors at small images are worth to `recommend`: how far predictions for five networks at
their own size miss, how many errors the 90% intervals cover, how wide they are, and points of the network with the
lowest predicted error over the average-best one. The source of the task is left out of all but the three constants.
"""

import csv
from pathlib import Path

import numpy as np

import task2vec as t2v
from benchmarks.measure import make_parser, show_table, write_json
from benchmarks.recommend import METHOD, PROBE, make_query
from task2vec.experts.metatask import MetaTask
from task2vec.library import MeasuredError
from task2vec.select import compare_paired
from task2vec.select.combined import predict_conditioned, scale_errors, unscale

FILE = Path(__file__).resolve().parents[1] / "docs/results/networks/sizes.csv"
SPLITS = 3


def read_errors(whole: MetaTask, size: int, shots: str) -> tuple[list[int], list[int], np.ndarray, np.ndarray]:
    """Tasks and networks by number in the bundle, (tasks, networks) errors at a size, and those at the own sizes."""
    with FILE.open() as file:
        cells = {(row["task"], row["network"]): float(row["error"]) / 100 for row in csv.DictReader(file)
                 if row["size"] == str(size) and row["training images"] == shots}  # fmt: skip
    names = ([task.name for task in whole.tasks], [model.name for model in whole.models])
    tasks, models = ([each.index(name) for name in dict.fromkeys(keys)]
                     for each, keys in zip(names, zip(*cells, strict=True), strict=True))  # fmt: skip
    found = np.array([[cells[names[0][task], names[1][model]] for model in models] for task in tasks])
    return tasks, models, found, whole.errors[np.ix_(tasks, models)][:, :, 0, :SPLITS].mean(2)


def count_halvings(whole: MetaTask, models: list[int], size: int) -> np.ndarray:
    """How often the own sizes of networks are halved."""
    return np.log2([(whole.models[model].size or 0) / size for model in models])


def measure_shift(shots: str, size: int) -> dict[str, object]:
    """By how much errors move per halving, and the RMSE of errors predicted from them by the shift of other sources."""
    whole = t2v.bundled_metatask().select(shots, probe=PROBE, method=METHOD)
    tasks, models, small, own = read_errors(whole, size, shots)
    halvings = count_halvings(whole, models, size)
    moved = (scale_errors(small) - scale_errors(own)) / halvings
    each = moved.var(1, ddof=1).mean()
    common = max(0.0, float(moved.mean(1).var(ddof=1) - each / moved.shape[1]))
    sources = np.array([whole.tasks[task].dataset for task in tasks])
    others = np.array([moved[sources != source].mean() for source in sources])
    predicted = unscale(scale_errors(small) - others[:, None] * halvings)
    misses = [100 * float(np.sqrt(np.square(one - own).mean())) for one in (small, predicted)]
    return {"shots": shots, "pixels": size, "shift per halving": float(moved.mean()), "common sd": common**0.5,
            "own sd": float(each**0.5), "RMSE unmoved": misses[0], "RMSE moved": misses[1]}  # fmt: skip


def fit_shift(rows: list[dict[str, object]]) -> dict[str, float]:
    """The constants of `recommend`: least squares over all tables, and the standard deviations of a whole halving."""
    halvings = np.log2([224 / row["pixels"] for row in rows])  # type: ignore[operator]
    values = {name: np.array([row[name] for row in rows]) for name in ("shift per halving", "common sd", "own sd")}
    squares = {name: (each**2)[halvings == 1].mean() for name, each in values.items()}
    shift = (values["shift per halving"] * halvings**2).sum() / (halvings**2).sum()
    return {"shift": float(shift), "common": squares["common sd"] ** 0.5, "own": squares["own sd"] ** 0.5}


def judge(shots: str, size: int) -> list[dict[str, object]]:
    """What `recommend` knows of unknown sources without and with errors of three networks at small images."""
    whole = t2v.bundled_metatask().select(shots, probe=PROBE, method=METHOD)
    tasks, models, small, _ = read_errors(whole, size, shots)
    datasets, is_candidate = np.array(whole.datasets), np.array([model.is_named for model in whole.models])
    found: dict[str, list[list[float]]] = {"head": [], "head, small images": []}
    for place, row in enumerate(tasks):
        known, embedding = (
            whole.only(np.flatnonzero(datasets != datasets[row])),
            whole.embeddings[f"{PROBE} {METHOD}"][row],
        )
        own = embedding.provenance["task_fingerprint"]
        smaller = {
            whole.models[model].name: ([MeasuredError(own, "small", float(error), whole.protocols[0])], float(halvings))
            for model, error, halvings in zip(models, small[place], count_halvings(whole, models, size), strict=True)
        }
        query, true = make_query(known, embedding, is_candidate), whole.mean[row]
        for name, told in (("head", {}), ("head, small images", smaller)):
            one = predict_conditioned(known, embedding, query, {}, smaller=told)
            assert one.average_best is not None and one.low is not None and one.high is not None
            values = ((one.errors - true) ** 2, (one.low <= true) & (true <= one.high), one.high - one.low)
            lowest = np.where(is_candidate, one.errors, np.inf).argmin()
            gap = true[lowest] - true[one.average_best]
            found[name].append([*(each[is_candidate].mean() for each in values), gap])
    lines = []
    for name, rows in found.items():
        square, covered, _, _ = np.mean(rows, axis=0)
        gaps = np.array(rows)[:, 3]
        means = np.array([gaps[datasets[tasks] == source].mean() for source in dict.fromkeys(datasets[tasks])])
        lines.append({"shots": shots, "pixels": size, "from": name, "RMSE": 100 * square**0.5,
                      "coverage": 100 * covered, "median width": 100 * float(np.median([row[2] for row in rows])),
                      "lowest predicted over average-best": 100 * means.mean(),
                      "two-sided p": compare_paired(means)})  # fmt: skip
    return lines


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    given = parser.parse_args()
    both = [(shots, size) for shots in ("5", "half") for size in (112, 160)]
    shifts, judged = [measure_shift(*one) for one in both], [row for one in both for row in judge(*one)]
    fitted = fit_shift(shifts)
    print("of all:", ", ".join(f"{name} {value:.3f}" for name, value in fitted.items()))
    for rows in (shifts, judged):
        show_table(list(rows[0]), [list(row.values()) for row in rows])
    write_json(given.json, {"shifts": shifts, "of all": fitted, "recommend": judged}, indent=1)


if __name__ == "__main__":
    main()
