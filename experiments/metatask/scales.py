"""Learns the scales of the combined strategy on the bundled meta-task: `python -m experiments.metatask.scales`.

They are a function of the meta-task, and learning them takes most of the time of a first recommendation, so they ship
in `src/task2vec/select/data/scales.json`, for every training size, space and score that `recommend` may ask for.
"""

import json
from importlib.resources import files
from pathlib import Path

import numpy as np

from task2vec.experts import bundled_metatask
from task2vec.experts.metatask import find_shots
from task2vec.select.combined import Scales, fingerprint_evidence, fit_with_heads, learn_scales
from task2vec.select.recommend import SCORE, select_space


def learn_bundled_scales() -> dict[str, Scales]:
    """Scales for all that `recommend` may ask for, by what they are learned from."""
    whole, found = bundled_metatask(), {}
    for space in whole.spaces:
        for protocol in whole.protocols:
            known = select_space(whole, find_shots(protocol), space)
            for score in (None, SCORE) if np.isfinite(known.scores[SCORE]).any() else (None,):
                found[fingerprint_evidence(known, score)] = learn_scales(fit_with_heads(known, score).cells)
    return found


if __name__ == "__main__":
    path = Path(str(files("task2vec.select"))) / "data" / "scales.json"
    path.write_text(json.dumps(learn_bundled_scales(), indent=1) + "\n", encoding="utf-8")
