"""What `recommend` is worth on an unknown source of images: `python -m benchmarks.recommend [--json FILE]`.

Every whole dataset of the bundle is a task; all tasks of its source are left out in turn. The labelled images of a user
are one half of the test images (on which models are measured, on three splits), and what is chosen is judged on the
other half; then the other way round. Shown are points of error over the network that is the best on average over all
sources, the asked one included, and over the one with the best ImageNet accuracy: means over sources, with standard
errors and two-sided p-values of a sign-flip test over sources. LogME is of the training images of the first split, so
what it chooses is judged, and compared, on that split alone, the only one whose test images it has not seen. Then how
far predictions miss, how many errors the 90% intervals cover and how wide they are, by thirds of difficulty and with
both probes; and the seconds of a recommendation (`--time`).
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy.special import ndtri

import task2vec as t2v
from benchmarks.measure import show_table
from task2vec.experts.metatask import SYMMETRIC, MetaTask, Query
from task2vec.plots import COLOURS, GREY, import_figure, save_picture
from task2vec.select import compare_paired
from task2vec.select.combined import COVERAGE, binomial_noise, predict_conditioned, read_head, scale_errors, unscale
from task2vec.select.strategies import Prediction

PROBES, METHOD, SCORE = ("tf_efficientnet_lite0", "resnet34"), "robust", "logme"
PROBE = PROBES[0]
WHOLE = ("cub200", "flowers102", "dogs", "clothing10", "dtd10", "cifar10")
# Processor seconds on one x86 core for 100 images: features of a network at its own size (`--time IMAGES WEIGHTS`), a
# classifier, an embedding (docs/how-to/scale.md).
SECONDS = {"tf_efficientnet_lite0": 6.9, "tf_efficientnet_lite1": 9.0, "tf_efficientnet_lite2": 14.4, "resnet34": 7.1,
           "mobilenet_v2": 5.7, "resnet50_keras": 13.4, "vgg16_features": 33.2}  # fmt: skip
CLASSIFIER, EMBEDDING = 1.4, 27.0
# Top-1 accuracy on ImageNet: of timm's results, torchvision's first weights and Keras' documentation.
IMAGENET = {"tf_efficientnet_lite0": 74.8, "tf_efficientnet_lite1": 76.6, "tf_efficientnet_lite2": 77.5,
            "resnet34": 73.3, "mobilenet_v2": 71.9, "resnet50_keras": 74.9, "vgg16_features": 71.6}  # fmt: skip


def make_query(known: MetaTask, embedding: t2v.Embedding, is_candidate: np.ndarray, **more) -> Query:
    """The query of `recommend` for the task of an embedding, whose dataset is not known."""
    distances = known.distances_from(embedding)[: len(known.tasks)]
    counts = embedding.provenance["counts"]
    return Query(embedding.task, is_candidate, distances={SYMMETRIC: distances}, classes=counts["classes"], **more)


def choose(whole: MetaTask, row: int, half: int, is_candidate: np.ndarray) -> dict[str, int]:
    """What every strategy chooses for a task without its source."""
    datasets = np.array(whole.datasets)
    known = whole.only(np.flatnonzero(datasets != datasets[row]))
    embedding = whole.embeddings[f"{PROBE} {METHOD}"][row]
    blind = t2v.Embedding(embedding.task, embedding.probe, embedding.fisher, embedding.stderr, embedding.prior,
                          embedding.layers, {**embedding.provenance, "head": None})  # fmt: skip
    scores = np.where(is_candidate, whole.scores[SCORE][row, :, 0], np.nan)
    query = make_query(known, embedding, is_candidate)
    nothing = Query(query.name, is_candidate, classes=query.classes)
    scored = Query(query.name, is_candidate, classes=query.classes, scores={SCORE: scores})
    names = [whole.models[one].name for one in np.flatnonzero(is_candidate)]
    measured = {name: own for name, own in whole.query(row, half=half).measured.items() if name in names}
    means = [np.mean([one.error for one in measured[model.name]]) if model.name in measured else np.inf
             for model in whole.models]  # fmt: skip
    before = predict_conditioned(known, embedding, query, {})
    top = [whole.models[one].name for one in before.order(is_candidate)[:2]]

    def first(found: Prediction) -> int:
        return int(found.order(is_candidate)[0])

    assert before.average_best is not None
    return {
        "average-best of the other sources": before.average_best,
        "LogME": int(np.nanargmax(scores)),
        "embedding: combined": first(before),
        "smallest measured error": int(np.argmin(means)),
        "all measured, posterior": first(predict_conditioned(known, blind, nothing, measured)),
        "the same with LogME (--budget)": first(predict_conditioned(known, blind, scored, measured)),
        "embedding, two measured": first(
            predict_conditioned(known, embedding, query, {name: measured[name] for name in top})
        ),
    }


def time_networks(folder: Path, weights: Path) -> dict[str, float]:
    """Processor seconds on one core for the features of 100 images of a folder, by network: the `SECONDS` above."""
    import torch

    from experiments.metatask.measure import load_network
    from experiments.metatask.plan import NETWORKS

    torch.set_num_threads(1)
    task, found = t2v.read_folder(folder), {}
    for name in NETWORKS:
        probe, begin = load_network(name, weights), time.process_time()
        for start in range(0, 100, 20):
            pixels = torch.stack([probe.preprocess(task.images.load(row)) for row in range(start, start + 20)])
            with torch.inference_mode():
                probe.network(probe.preprocess.normalise(pixels, torch.float32))
        found[name] = time.process_time() - begin
    return found


def count_seconds(strategy: str, models: Sequence[str]) -> float:
    """Processor seconds of a strategy for 100 images."""
    features = sum(SECONDS[name] for name in models)
    found = EMBEDDING if "embedding" in strategy else 0.0
    if "two measured" in strategy:
        return found + 2 * (features / len(models) + CLASSIFIER)
    if "measured" in strategy or "--budget" in strategy:
        return found + features + CLASSIFIER * len(models)
    return found + (features if "LogME" in strategy else 0.0)


def draw(tables: Sequence[dict], path: Path) -> None:
    """Points over the average-best network against processor seconds, of the networks that anybody can load."""
    figure = import_figure()(figsize=(7.2, 3.2), dpi=110, layout="constrained")
    both = figure.subplots(1, 2, sharey=True)
    for axes, shots in zip(both, ("5", "half"), strict=True):
        rows = [row for row in tables if row["shots"] == shots and row["candidates"] == 5]
        rows = [row for row in rows if row["strategy"] != "embedding: combined" and "always" not in row["strategy"]]
        for row in rows:
            gain, error = row["over average-best"], row["± average-best"]
            axes.errorbar(row["seconds"], gain, error, fmt="o", color=COLOURS[0], ms=4, lw=1)
            side = {"ha": "right", "va": "baseline"} if row["seconds"] else {"ha": "left", "va": "top"}
            where = {"textcoords": "offset points", "fontsize": 6.5, **side}
            axes.annotate(row["strategy"], (row["seconds"], gain), (-6, -2), **where)
        axes.axhline(0, color=GREY, lw=0.8)
        axes.set_title("5 per class" if shots == "5" else "half of the images", fontsize=9)
        axes.set_xlabel("processor seconds for 100 images", fontsize=8)
        axes.tick_params(labelsize=7)
    both[0].set_ylabel("points over the average-best", fontsize=8)
    save_picture(figure, path)


def find_common_noise(shots: str) -> float:
    """The share of the noise between splits that models have in common: `_COMMON` of the combined strategy."""
    values = scale_errors(t2v.bundled_metatask().select(shots).errors[:, :, 0].astype(float))  # (T, M, S)
    noise, count = values - values.mean(2, keepdims=True), values.shape[1]
    every, shared = np.square(noise).mean(), np.square(noise.mean(1)).mean()  # of a mean: common + (every - common) / M
    return float((shared - every / count) / (1 - 1 / count) / every)


def list_rows(whole: MetaTask) -> list[int]:
    """The whole datasets."""
    return [row for row, task in enumerate(whole.tasks) if task.family == "sources" or task.name in WHOLE]


def judge_intervals(shots: str, probe: str) -> list[dict]:
    """How far predictions miss and how many errors intervals cover, before anything is measured, of unknown sources.

    Errors are on the images of the head itself ("same images"), which is not what intervals are for. So they are also
    judged on new ones: the head is that of one half of the images, the errors are those on the other. The error of such
    a head was not measured: it is taken to move like that of the probe's own network. The errors have the noise of half
    of the images, so that intervals are for that: their variance and that of a binomial.
    """
    whole = t2v.bundled_metatask().select(shots, probe=probe, method=METHOD)
    assert whole.halves is not None
    datasets, names = np.array(whole.datasets), [model.name for model in whole.models]
    is_candidate = np.array([model.is_named for model in whole.models])
    rows, width, parts = list_rows(whole), ndtri((1 + COVERAGE) / 2), []
    for row in rows:
        known, embedding = whole.only(np.flatnonzero(datasets != datasets[row])), whole.embeddings[whole.space][row]
        query, true = make_query(known, embedding, is_candidate), whole.mean[row]
        found = predict_conditioned(known, embedding, query, {})
        covered = (found.low <= true) & (true <= found.high)
        halves, count = whole.halves[row, :, 0].mean(1), embedding.provenance["counts"]["images"] / 2
        noise, news = np.array([binomial_noise(one, count) for one in halves.mean(1)]), []
        for half in (0, 1):
            own = halves[names.index(probe)]
            head, moved, usual = scale_errors(np.array([read_head(embedding), own[half], own.mean()]))
            counts = embedding.provenance["counts"] | {"images": count}
            more = {"counts": counts, "head": {"cv_error": float(unscale(head + moved - usual))}}
            new = predict_conditioned(known, replace(embedding, provenance=embedding.provenance | more), query, {})
            level, low, high, judged = map(scale_errors, (new.errors, new.low, new.high, halves[:, 1 - half]))
            reach = np.where(judged < level, level - low, high - level)
            news.append((judged - level) ** 2 <= reach**2 + width**2 * noise)
        values = (true, (found.errors - true) ** 2, covered, np.mean(news, axis=0), found.high - found.low)
        parts.append([each[is_candidate].mean() for each in values])
    table, lines = np.array(parts), []
    order = np.argsort(table[:, 0])
    for label, some in (("all", order), *zip(("easy", "middle", "hard"), np.array_split(order, 3), strict=True)):
        _, square, same, new, _ = (100 * table[some].mean(0)).tolist()
        lines.append({"shots": shots, "probe": probe, "third": label, "tasks": len(some), "RMSE": 10 * square**0.5,
                      "same images": same, "new images": new,
                      "median width": 100 * float(np.median(table[some, 4]))})  # fmt: skip
    return lines


def compare(shots: str, is_loadable: bool) -> list[dict]:
    """The table of strategies by one training size."""
    whole = t2v.bundled_metatask().select(shots, probe=PROBE, method=METHOD)
    assert whole.halves is not None
    is_candidate = np.array([model.is_named or not is_loadable for model in whole.models])
    rows = list_rows(whole)
    sources = np.array([whole.tasks[row].dataset for row in rows])
    names = list(dict.fromkeys(sources))

    def average(values: Sequence[float] | np.ndarray) -> np.ndarray:
        return np.array([np.asarray(values)[sources == name].mean() for name in names])

    by_source = np.array([average(whole.mean[rows, column]) for column in range(len(whole.models))])
    fixed = int(np.argmin(np.where(is_candidate, by_source.mean(1), np.inf)))
    top1 = np.array([IMAGENET[model.name] for model in whole.models])
    imagenet = int(np.argmax(np.where(is_candidate, top1, 0)))
    found: dict[str, list[np.ndarray]] = {}
    for row in rows:
        judged = []
        for half in (0, 1):
            chosen = choose(whole, row, half, is_candidate)
            by_split, gains = 100 * whole.halves[row, :, 0, :, 1 - half], {}
            for name, model in chosen.items():
                errors = by_split[:, 0] if "LogME" in name else by_split.mean(1)
                gains[name] = errors[model] - np.array([errors[fixed], errors[imagenet], errors[is_candidate].min()])
            judged.append(gains)
        for name in judged[0]:
            found.setdefault(name, []).append(np.mean([each[name] for each in judged], axis=0))
    found[f"always {whole.models[imagenet].name} (ImageNet)"] = [
        100 * (whole.mean[row, imagenet] - np.array([whole.mean[row, fixed], *[whole.mean[row, imagenet]] * 2]))
        for row in rows
    ]
    table = []
    for name, values in found.items():
        own = np.array([average(column) for column in np.array(values).T])
        line = {"shots": shots, "candidates": int(is_candidate.sum()), "strategy": name}
        for label, gains in zip(("average-best", "ImageNet"), own, strict=False):
            line[f"over {label}"] = float(gains.mean())
            line[f"± {label}"] = float(gains.std(ddof=1) / np.sqrt(len(gains)))
            line[f"two-sided p {label}"] = compare_paired(gains)
        line["seconds"] = count_seconds(name, [whole.models[one].name for one in np.flatnonzero(is_candidate)])
        table.append(line | {"worst source": float(own[0].max()), "over the best": float(own[2].mean())})
    return table


# What a fresh process does after its imports. Some of these happen at first use, and count.
FRESH = """
import sys, time, task2vec as t2v
new, recommend = t2v.load_embedding(sys.argv[1]), t2v.recommend
for _ in range(2):
    begin, used = time.perf_counter(), time.process_time()
    recommend(new)
    print(time.perf_counter() - begin, time.process_time() - used)
"""


def time_recommendation(*, processes: int = 9) -> dict[str, list[float]]:
    """Seconds of the first recommendation of a fresh process, the bundle read, and of the next: medians."""
    known = t2v.bundled_metatask().embeddings[f"{PROBE} {METHOD}"][0]
    parts = (known.fisher * 1.01, known.stderr, known.prior, known.layers)
    new = t2v.Embedding("mine", known.probe, *parts, known.provenance | {"task_fingerprint": "0" * 64})
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-c", FRESH, str(new.save(Path(folder) / "mine.t2v"))]
        texts = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(processes)]
    spent = np.median(np.array([text.split() for text in texts], dtype=float).reshape(processes, 2, 2), axis=0)
    return dict(zip(("wall clock", "processor"), spent.T.tolist(), strict=True))


def main() -> None:
    """Prints the tables and the seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--draw", type=Path, help="draw gains against seconds there")
    parser.add_argument("--time", type=Path, nargs="*", metavar=("IMAGES", "WEIGHTS"),
                        help="only time recommendations, or the networks on a folder of images")  # fmt: skip
    arguments = parser.parse_args()
    if arguments.time:
        return show_table(["network", "seconds"], list(time_networks(*arguments.time).items()))
    seconds = time_recommendation()
    for name, (first, later) in seconds.items():
        print(f"one recommendation: {first:.2f} s the first time, {later:.3f} s after that, by the {name}")
    if arguments.time is not None:
        return None
    tables = [row for shots in ("5", "half") for is_loadable in (True, False) for row in compare(shots, is_loadable)]
    intervals = [row for shots in ("5", "20", "half") for probe in PROBES for row in judge_intervals(shots, probe)]
    for rows in (tables, intervals):
        cells = [[f"{one:.3g}" if isinstance(one, float) else str(one) for one in row.values()] for row in rows]
        show_table(list(rows[0]), cells)
    common = {shots: find_common_noise(shots) for shots in ("5", "half")}
    print(
        f"share of the noise that models have in common: {common['5']:.2f} (5 per class), {common['half']:.2f} (half)"
    )
    if arguments.draw is not None:
        draw(tables, arguments.draw)
    if arguments.json is not None:
        found = {"strategies": tables, "intervals": intervals, "seconds": seconds, "common noise": common}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
