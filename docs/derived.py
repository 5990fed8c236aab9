"""Numbers of the documentation that no other file has: `python docs/derived.py` writes docs/measured/derived.json.

Counts, and means and correlations of committed tables, so that no number in the documentation is computed by hand.
"""

import csv
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

import task2vec as t2v
from task2vec.select import read_models

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FILE = DOCS / "measured" / "derived.json"


def derive_all() -> dict:
    """All of them, by what they describe."""
    experts = t2v.load_metatask(ROOT / "experiments" / "metatask" / "experts.safetensors")
    return {
        "bundled meta-task": _count(t2v.bundled_metatask()),
        "meta-task of experts": _count(experts),
        "pairs of experts and datasets of other sources": _count_pairs(),
        "pretrained networks with known facts": len(read_models()),
        "norm and error, Spearman": _correlate_within(DOCS / "properties" / "norm_error.csv", "dataset"),
        "toy tasks, Jaccard": _summarise_toy(),
        "gains over the generic network, points and percent of its error": _derive_gains(),
        "experts for half of a domain, percent of the error and errors": _derive_halves(),
        "seconds of the meta-task of experts": _add_seconds(),
        "speed of experts relative to a plain loop": _divide_speeds(),
        "ratio of optimum to closed form": _read_ratios(),
    }


def _count(metatask: t2v.MetaTask) -> dict[str, int]:
    return {
        "tasks": len(metatask.tasks),
        "models": len(metatask.models),
        "errors": int(np.isfinite(metatask.errors).sum()),
        "errors of fine-tuning": sum(point["way"] == "tuned" for point in metatask.info["curves"]),
    }


def _count_pairs() -> int:
    metatask = t2v.load_metatask(ROOT / "experiments" / "metatask" / "domain_experts.safetensors")
    is_expert = np.array([model.kind != "network" for model in metatask.models])
    is_measured = np.isfinite(metatask.errors).any(axis=(2, 3)) & metatask.is_candidate
    return int(is_measured[:, is_expert].sum())


def _read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _correlate_within(path: Path, group: str) -> dict[str, float]:
    rows = defaultdict(list)
    for row in _read_csv(path):
        rows[row[group]].append((float(row["norm"]), float(row["error"])))
    correlations = {}
    for name, pairs in rows.items():
        norms, errors = zip(*pairs, strict=True)
        correlations[name] = round(float(spearmanr(norms, errors)[0]), 4)
    return correlations


def _summarise_toy() -> dict[str, dict[str, float]]:
    """Mean over seeds and its standard error."""
    rows, summary = _read_csv(DOCS / "measured" / "toy_neighbours.csv"), {}
    for probe in ("ReLU", "polynomial"):
        for neighbour in ("random", "domain", "nearest", "best"):
            values = np.array([float(row[neighbour]) for row in rows if row["probe"] == probe])
            stderr = values.std(ddof=1) / len(values) ** 0.5
            summary[f"{probe}, {neighbour}"] = {"mean": round(values.mean(), 4), "stderr": round(stderr, 4)}
    return summary


def _derive_gains() -> dict[str, dict[str, float]]:
    """Of average-best and both optima, by family and protocol."""
    gains = {}
    for row in _read_csv(DOCS / "results" / "metatask" / "quality.csv"):
        generic = float(row["generic"])
        points = {name: generic - float(row[name]) for name in ("average_best", "biased_optimum", "optimum")}
        percent = {f"{name}, percent": 100 * gain / generic for name, gain in points.items()}
        rounded = {name: round(value, 3) for name, value in {**points, **percent}.items()}
        gains[f"{row['family']}, {row['protocol'].split(', ')[1]}"] = rounded
    return gains


def _derive_halves() -> dict[str, dict[str, float]]:
    derived = {}
    for row in _read_csv(DOCS / "results" / "metatask" / "halves.csv"):
        values = {}
        for shots in ("few", "half"):
            generic, gain = float(row[f"generic_{shots}"]), float(row[f"gain_{shots}"])
            values |= {f"{shots}, percent": 100 * gain / generic, f"{shots}, error": generic - gain}
        derived[f"{row['datasets']}, {row['recipe']}"] = {name: round(value, 3) for name, value in values.items()}
    return derived


def _add_seconds() -> dict[str, float]:
    """Over experts, of all processes that shared the GPU."""
    rows = _read_csv(DOCS / "results" / "metatask" / "experts.csv")
    columns = ("errors and scores", "features", "training")
    return {name: round(sum(float(row[f"seconds, {name}"] or 0) for row in rows), 1) for name in columns}


def _divide_speeds() -> dict[str, float]:
    ratios = {}
    for size in (112, 224):
        speeds = json.loads((DOCS / "measured" / f"expert_speed_{size}.json").read_text())["images per second"]
        ratios |= {
            f"{work}, {size} px": round(speeds[work] / speeds[f"bare {work}"], 3) for work in ("training", "features")
        }
    return ratios


def _read_ratios() -> dict[str, dict[str, float]]:
    """Of the median filter, by probe and task."""
    measured = json.loads((DOCS / "measured" / "robust.json").read_text())
    return {
        probe: {row["task"]: round(float(np.exp(row["median log ratio"])), 3) for row in measured[probe]["tasks"]}
        for probe in ("resnet34", "tf_efficientnet_lite0")
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(derive_all(), indent=1) + "\n", encoding="utf-8")
