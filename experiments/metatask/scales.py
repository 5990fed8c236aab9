"""Learns the scales of the combined strategy on the bundled meta-task: `python -m experiments.metatask.scales`.

They are a function of the meta-task, and learning them takes most of the time of a first recommendation, so they ship
in `src/task2vec/select/data/scales.json`, for every training size, space and score that `recommend` may ask for.
"""

import json
from importlib.resources import files
from pathlib import Path

from task2vec.select import learn_bundled_scales

if __name__ == "__main__":
    path = Path(str(files("task2vec.select"))) / "data" / "scales.json"
    path.write_text(json.dumps(learn_bundled_scales(), indent=1) + "\n", encoding="utf-8")
