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

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FILE = DOCS / "measured" / "derived.json"


def derive_all() -> dict:
    """All of them, by what they describe."""
    experts = t2v.load_metatask(ROOT / "experiments" / "metatask" / "experts.safetensors")
    zoo = t2v.load_zoo()
    zoo_errors = [(cell.model, cell.source == "task2vec") for cell in zoo.cells]
    return {
        "bundled meta-task": _count(t2v.bundled_metatask()),
        "meta-task of experts": _count(experts),
        "pairs of experts and datasets of other sources": _count_pairs(),
        "zoo": {
            "models": len(zoo.models),
            "errors": len(zoo_errors),
            "models with errors": len({model for model, _ in zoo_errors}),
            "our own errors": sum(is_own for _, is_own in zoo_errors),
        },
        "norm and error, Spearman": _correlate_within(DOCS / "properties" / "norm_error.csv", "dataset"),
        "toy tasks, Jaccard": _summarise_toy(),
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
    return int(np.isfinite(metatask.errors[:, is_expert]).any(axis=(2, 3)).sum())


def _read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _correlate_within(path: Path, group: str) -> dict[str, float]:
    rows = defaultdict(list)
    for row in _read_csv(path):
        rows[row[group]].append((float(row["norm"]), float(row["error"])))
    return {name: round(float(spearmanr(np.array(pairs)).statistic), 4) for name, pairs in rows.items()}


def _summarise_toy() -> dict[str, dict[str, float]]:
    """Mean over seeds and its standard error."""
    rows, summary = _read_csv(DOCS / "measured" / "toy_neighbours.csv"), {}
    for probe in ("ReLU", "polynomial"):
        for neighbour in ("random", "domain", "nearest", "best"):
            values = np.array([float(row[neighbour]) for row in rows if row["probe"] == probe])
            stderr = values.std(ddof=1) / len(values) ** 0.5
            summary[f"{probe}, {neighbour}"] = {"mean": round(values.mean(), 4), "stderr": round(stderr, 4)}
    return summary


if __name__ == "__main__":
    FILE.write_text(json.dumps(derive_all(), indent=1) + "\n", encoding="utf-8")
