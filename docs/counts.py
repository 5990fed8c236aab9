"""Counts that the documentation mentions, from the files that ship: `python docs/counts.py` writes them.

They are in docs/measured/counts.json, where the test of documented numbers finds them.
"""

import json
from pathlib import Path

import numpy as np

import task2vec as t2v

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "measured" / "counts.json"


def count_all() -> dict:
    """Tasks, models and errors of the bundled meta-task, of that of experts, and of the zoo."""
    experts = t2v.load_metatask(ROOT / "experiments" / "metatask" / "experts.safetensors")
    return {"bundled": _count(t2v.bundled_metatask()), "experts": _count(experts), "zoo": _count_zoo()}


def _count(metatask) -> dict:
    return {
        "tasks": len(metatask.tasks),
        "models": len(metatask.models),
        "errors": int(np.isfinite(metatask.errors).sum()),
    }


def _count_zoo() -> dict:
    zoo = t2v.load_zoo()
    return {}


if __name__ == "__main__":
    FILE.write_text(json.dumps(count_all(), indent=1) + "\n", encoding="utf-8")
