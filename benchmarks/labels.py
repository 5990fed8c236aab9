"""How many labels, and how to tune: `python -m benchmarks.labels [--out docs/measured/labels.json]`.

Every source of the bundled meta-task is left out in turn, with all its tasks; all figures are means over sources.

- Labels: from errors at 5 images per class (or at 5 and 10), or from their prediction alone, predict the training
  images per class at which the error is that measured at 20 per class or with half of the images. Within a factor of
  two is right. What is known comes from one half of the test images and the truth from the other, or both from the same
  images but different splits. `noise alone` is the share for one who knows the slope of the true curve: errors of so
  few test images allow no more. Where the error falls by less than 15%, the question is ill-posed: `flat` cases,
  listed apart. The truth is 13 to 20 in most cases, so a constant factor is right nearly always, and of no use for
  another target. So a second test asks whether the error at 20 per class is lower by a third than the known one.
- How to tune: from the linear error of a split, predict that of fine-tuning the whole network on the same split; and
  from the published error of fine-tuning ViT-B/16 that of LoRA, with each of its datasets left out in turn.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import resources
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy.special import ndtr

from benchmarks.recommend import make_query
from task2vec.experts.metatask import MetaTask, bundled_metatask, find_shots
from task2vec.select import compare_paired, curves, suggestions
from task2vec.select.combined import predict_conditioned, scale_errors
from task2vec.select.curves import Curves, count_train_images, fit_curves
from task2vec.select.strategies import Prediction
from task2vec.select.zoo import LORA, read_rows

SPACE = "tf_efficientnet_lite0 robust"
FLAT, WIDTH = 0.85, 1.645
Case = dict[str, Any]


def scale_by_factors(errors: np.ndarray | float, classes: np.ndarray | float) -> np.ndarray:
    """The scale of the combined strategy, whatever the number of classes."""
    return np.log(np.maximum(np.asarray(errors) + 0.03, 1e-9)) + 0 * np.asarray(classes)


def make_quadratic(images: np.ndarray) -> np.ndarray:
    """(..., 3) the basis of curves that bend."""
    steps = np.log(np.asarray(images, dtype=float) / 5)
    return np.stack([np.ones_like(steps), steps, steps**2], axis=-1)


VARIANTS: dict[str, dict[str, Callable]] = {
    "lines": {},
    "lines on log(error + 0.03)": {"scale_to_chance": scale_by_factors},
    "quadratic": {"_make_basis": make_quadratic},
}


class Sizes:
    """Errors of a meta-task by training size: those that are known, and others that are to be predicted."""

    def __init__(self, metatask: MetaTask, *, by_halves: bool):
        self.metatask = metatask
        shots = [find_shots(key) for key in metatask.protocols]
        counts = [one.provenance["counts"]["per_class"] for one in metatask.embeddings[SPACE]]
        self.images = np.array([[count_train_images(each, one) for one in shots] for each in counts])  # (T, P)
        assert metatask.halves is not None
        halves, errors = metatask.halves.mean(3), metatask.errors
        self.known = halves[..., 0] if by_halves else errors[..., :2].mean(3)  # (T, M, P)
        self.truth = halves[..., 1] if by_halves else errors[..., 2:].mean(3)
        self.part = 2 if by_halves else 1

    def noise(self, row: int, error: float) -> float:
        """The standard error of an error: that of the share of test images."""
        images = self.metatask.tasks[row].images / self.part
        return float(np.sqrt(max(error * (1 - error), 0.5 / images) / images))

    def know(self, row: int, column: int, given: list[int]) -> list[curves.Known]:
        """What is known of a curve."""
        errors = self.known[row, column, given].tolist()
        ends = [WIDTH * self.noise(row, error) for error in errors]
        zipped = zip(self.images[row, given].tolist(), errors, ends, strict=True)
        return [(size, error, error - end, error + end) for size, error, end in zipped]


def list_cases(
    sizes: Sizes, row: int, given: list[int], known: Curves, slope: float, predicted: Prediction | None = None
) -> Iterator[Case]:
    """All targets of a task at larger sizes by all models."""
    task, scale = sizes.metatask.tasks[row], curves.scale_to_chance
    classes, last = max(task.classes, 2), float(sizes.images[row, given[-1]])
    larger = [size for size in (3, 4) if sizes.images[row, size] > 1.3 * max(last, sizes.images[row, size - 1])]
    for column in range(len(sizes.metatask.models)):
        points = sizes.know(row, column, given)
        if predicted is not None:
            error, low, high = (float(getattr(predicted, name)[column]) for name in ("errors", "low", "high"))
            points = [(last, error, low, high)]
        for size in larger:
            truth, target = float(sizes.images[row, size]), float(sizes.truth[row, column, size])
            start, first = float(sizes.truth[row, column, given[-1]]), points[-1][1]
            found = known.labels_needed(target, points, classes)
            (mean,), (variance,) = known.predict(np.array([truth]), points, classes)

            def sample(error: float, row: int = row, classes: int = classes) -> float:
                end = sizes.noise(row, error)
                return float(scale(error + end, classes) - scale(error - end, classes)) ** 2 / 4

            sd, less = np.sqrt(variance + sample(target)), scale(first * 2 / 3, classes)
            own = max(float(scale(start, classes) - scale(target, classes)), 1e-3)
            yield {
                "source": task.dataset,
                "factor": truth / last,
                "truth": truth,
                "is_flat": target > FLAT * start,
                "curves": np.inf if found.images is None else found.images,
                "power law": last * (max(first, 1e-3) / max(target, 1e-3)) ** (1 / slope),
                "noise alone": truth
                * (truth / last) ** min(float(scale(first, classes) - scale(start, classes)) / own, 99),
                "is_covered": abs(scale(target, classes) - mean) <= WIDTH * sd,
                "is_within": (found.low or np.inf) - 0.5 <= truth <= (found.high or np.inf) + 0.5,
                "is_open": found.high is None,
                "width": np.nan if found.high is None or found.low is None else found.high / found.low,
                "is_third_less": target <= first * 2 / 3,
                "p_third_less": float(ndtr((less - mean) / np.sqrt(variance + sample(first * 2 / 3)))),
                "is_usual": size == 3 and truth > 12,
            }


def find_slope(sizes: Sizes, rows: np.ndarray) -> float:
    """The average power of known curves between 5 per class and the largest size."""
    errors, slopes = np.maximum(sizes.metatask.mean_errors(), 1e-3), {}
    for row in rows:
        size = int(np.argmax(sizes.images[row]))
        if (step := np.log(sizes.images[row, size] / sizes.images[row, 1])) > 0:
            fall = np.log(errors[row, :, 1] / errors[row, :, size]) / step
            slopes.setdefault(sizes.metatask.tasks[row].dataset, []).append(fall.mean())
    return float(np.mean([np.mean(each) for each in slopes.values()]))


def summarise(cases: list[Case]) -> dict[str, float]:
    """Shares within a factor of two, and coverage; every source has the same weight."""
    sources = [case["source"] for case in cases]
    weights = np.array([1 / sources.count(one) for one in sources])
    truth, factor = (np.array([case[name] for case in cases]) for name in ("truth", "factor"))
    constant = truth / factor * np.exp(np.average(np.log(factor), weights=weights))
    names = ("curves", "power law", "noise alone")
    guesses = {name: np.array([case[name] for case in cases]) for name in names} | {"constant factor": constant}
    found: dict[str, float] = {"cases": len(cases), "sources": len(set(sources))}
    for name, guess in guesses.items():
        is_right = np.abs(np.log2(np.maximum(guess, 1e-9) / truth)) <= 1 + 1e-9
        found[name] = float(np.average(is_right, weights=weights))
    parts = {"coverage": "is_covered", "coverage of the number": "is_within", "open upper ends": "is_open"}
    for name, key in parts.items():
        found[name] = float(np.average([case[key] for case in cases], weights=weights))
    widths = np.array([case["width"] for case in cases])
    return found | {"median high / low": float(np.nanmedian(widths)) if np.isfinite(widths).any() else -1}


def summarise_thirds(cases: list[Case]) -> dict[str, float]:
    """How well it is known whether the error at 20 per class is lower by a third."""
    cases = [case for case in cases if case["is_usual"]]
    sources = [case["source"] for case in cases]
    weights = np.array([1 / sources.count(one) for one in sources])
    true, chance = (np.array([case[name] for case in cases], dtype=float) for name in ("is_third_less", "p_third_less"))
    base = float(np.average(true, weights=weights))
    return {
        "cases": len(cases),
        "so many are": base,
        "mean probability": float(np.average(chance, weights=weights)),
        "right": float(np.average((chance > 0.5) == true, weights=weights)),
        "Brier score": float(np.average((chance - true) ** 2, weights=weights)),
        "Brier score of the base rate": base * (1 - base),
    }


def predict_row(metatask: MetaTask, known: MetaTask, row: int) -> Prediction:
    """What `recommend` predicts for a task, from others."""
    embedding = metatask.embeddings[SPACE][row]
    query = make_query(known, embedding, np.ones(len(metatask.models), dtype=bool))
    return predict_conditioned(known, embedding, query, {})


def measure_labels(metatask: MetaTask) -> dict[str, Any]:
    """The test of labels by what is known and by variant."""
    datasets, found = np.array(metatask.datasets), {}
    halves, same = (Sizes(metatask, by_halves=one) for one in (True, False))
    selected = {shots: metatask.select(shots, probe=SPACE.split()[0], method="robust") for shots in ("5", "10")}
    for source in sorted(set(datasets)):
        rows = np.flatnonzero(datasets != source)
        slope, others = find_slope(halves, rows), {shots: each.only(rows) for shots, each in selected.items()}
        for variant, changes in VARIANTS.items():
            with ExitStack() as stack:
                for name, other in changes.items():
                    stack.enter_context(patch.object(curves, name, other))
                known = fit_curves(metatask.only(rows), SPACE)
                assert known is not None
                for row in np.flatnonzero(datasets == source).tolist():
                    ways = {"5, other images": (halves, [1]), "5 and 10, other images": (halves, [1, 2])}
                    ways |= {"5, same images": (same, [1]), "5 and 10, same images": (same, [1, 2])}
                    for way, (sizes, given) in ways.items():
                        cases = list_cases(sizes, row, given, known, slope)
                        found.setdefault(f"{variant}: {way}", []).extend(cases)
                    for number, shots in enumerate(() if changes else others, start=1):
                        predicted = predict_row(metatask, others[shots], row)
                        cases = list_cases(halves, row, [number], known, slope, predicted)
                        found.setdefault(f"{variant}: predicted at {shots}, nothing measured", []).extend(cases)
    report = {}
    for name, cases in found.items():
        parts = {"all": cases}
        if name.startswith("lines:"):
            parts |= {
                f"{'' if flat else 'not '}flat": [one for one in cases if one["is_flat"] == flat] for flat in (0, 1)
            }
            parts["to more than 4 times"] = [one for one in cases if one["factor"] > 4]
        report[name] = {part: summarise(each) for part, each in parts.items()}
        report[name]["a third less at 20"] = summarise_thirds(cases)
    return report


def measure_tuned(metatask: MetaTask) -> dict[str, float]:
    """The test of fine-tuning: error, coverage and what following the advice costs."""
    datasets, points = np.array(metatask.datasets), []
    names, models = [task.name for task in metatask.tasks], [model.name for model in metatask.models]
    shots = [find_shots(key) for key in metatask.protocols]
    selected = {one: metatask.select(one, probe=SPACE.split()[0], method="robust") for one in ("5", "half")}
    for source in sorted({task.dataset for task in metatask.tasks}):
        rows = np.flatnonzero(datasets != source)
        known, others = fit_curves(metatask.only(rows), SPACE), {one: each.only(rows) for one, each in selected.items()}
        for one in metatask.info["curves"]:
            row = names.index(one["task"])
            if datasets[row] != source:
                continue
            assert known is not None and len(known.shifts)
            embedding, classes = metatask.embeddings[SPACE][row], metatask.tasks[row].classes
            column, true = models.index(one["expert"]), one["error"]
            linear = metatask.errors[row, column, shots.index(one["train"]), 0]
            tuned = known.tuned(embedding, one["expert"], linear, linear, linear, classes)
            found = predict_row(metatask, others[one["train"]], row)
            ends = [float(getattr(found, name)[column]) for name in ("errors", "low", "high")]
            guess = known.tuned(embedding, one["expert"], *ends, classes=classes)
            points.append(
                (
                    source,
                    linear,
                    true,
                    tuned.error,
                    tuned.p_better,
                    tuned.low <= true <= tuned.high,
                    tuned.high - tuned.low,
                    guess.error,
                    guess.low <= true <= guess.high,
                    guess.high - guess.low,
                    ends[0],
                )
            )
    sources, *values = zip(*points, strict=True)
    linear, true, predicted, p_better, is_in, width, guessed, is_guessed, guess_width, same = map(np.array, values)
    by_source = [np.array(sources) == one for one in sorted(set(sources))]

    def mean(each: np.ndarray) -> float:
        return float(np.mean([each[own].mean() for own in by_source]))

    advised, is_better = np.where(p_better > 0.5, true, linear), true < linear
    gains = np.array([(advised - true)[own].mean() for own in by_source])
    base = mean(is_better)
    return {
        "points": len(points),
        "sources": len(by_source),
        "rmse": mean((predicted - true) ** 2) ** 0.5,
        "rmse of the same error": mean((linear - true) ** 2) ** 0.5,
        "coverage": mean(is_in),
        "mean width": mean(width),
        "from a predicted linear error: rmse": mean((guessed - true) ** 2) ** 0.5,
        "from a predicted linear error: rmse of the same error": mean((same - true) ** 2) ** 0.5,
        "from a predicted linear error: coverage": mean(is_guessed),
        "from a predicted linear error: mean width": mean(guess_width),
        "Brier score of the probability": mean((p_better - is_better) ** 2),
        "Brier score of the base rate": base * (1 - base),
        "fine-tuning is better": base,
        "advice is right": mean((p_better > 0.5) == is_better),
        "error: always linear": mean(linear),
        "error: always fine-tuned": mean(true),
        "error: as advised": mean(advised),
        "error: the better of both": mean(np.minimum(linear, true)),
        "two-sided p over sources, advice against always fine-tuned": compare_paired(gains),
        "advice is to fine-tune": mean(p_better > 0.5),
        "sure (0.8 or more): share": mean(np.abs(p_better - 0.5) >= 0.3),
        "sure: right": float(((p_better > 0.5) == is_better)[np.abs(p_better - 0.5) >= 0.3].mean()),
    }


def measure_lora() -> dict[str, dict[str, float]]:
    """The test of LoRA, with 1,000 images and with all: each dataset is predicted from the others."""
    with resources.as_file(resources.files("task2vec.select") / "data") as folder:
        rows = read_rows(folder / LORA)
    found = {}
    for images, train in (("1000", 1000), ("all", 10_000)):
        pairs = [(float(row["full"]), float(row["lora"])) for row in rows if row["images"] == images]
        shifts, points = suggestions.read_lora_shifts()[images], []
        for number, (full, true) in enumerate(pairs):
            others = {images: np.delete(shifts, number)}
            with patch.object(suggestions, "read_lora_shifts", lambda others=others: others):
                lora = suggestions.predict_lora(float(scale_errors(np.array(full))), 0.0, train)
            inside = lora.low <= true <= lora.high
            points.append([(lora.error - true) ** 2, (full - true) ** 2, inside, lora.high - lora.low, true < full])
        square, same, coverage, width, better = np.mean(points, axis=0).tolist()
        report = {"datasets": len(pairs), "rmse": square**0.5, "rmse of the same error": same**0.5}
        report |= {"coverage": coverage, "mean width": width, "LoRA is better": better}
        means = dict(zip(("error: all weights", "error: LoRA"), np.mean(pairs, axis=0).tolist(), strict=True))
        found[f"{images} images"] = report | means
    return found


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a JSON file")
    out = parser.parse_args().out
    metatask = bundled_metatask()
    report = {"labels": measure_labels(metatask), "fine-tuning": measure_tuned(metatask), "LoRA": measure_lora()}
    text = json.dumps(report, indent=1, default=float)
    text = json.dumps(json.loads(text, parse_float=lambda one: round(float(one), 4)), indent=1)
    print(text)
    if out is not None:
        out.write_text(text + "\n")


if __name__ == "__main__":
    main()
