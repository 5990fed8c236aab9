"""Measuring three networks on a folder against a plain script that only runs them: processor time, side by side.

The plain script imports torch and timm, decodes each image once, and runs timm's forward pass of the three networks on
all of them in batches of 32: no folds, heads, intervals or near copies. Ours includes all of these. Both are commands
of their own; user and system time of each is counted, in turn, and the ratio is the median over rounds. Beside them,
what scikit-learn's cross-validated logistic regression takes for heads alone, which the plain script does not have.

Networks whose weights are not here get random ones, on both sides, which changes nothing about the time.

    python -m benchmarks.measure_speed FOLDER [--rounds 5] [--json FILE]
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import ROOT, Verdict, describe_machine, make_parser, ratio, write_json

NETWORKS = ("tf_efficientnet_lite0", "tf_efficientnet_lite1", "tf_efficientnet_lite2")
PLAIN = """
import sys
from pathlib import Path
import timm, torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

files = sorted(path for path in Path(sys.argv[1]).rglob("*") if path.is_file())
images = [Image.open(file).convert("RGB") for file in files]
for name in sys.argv[2:]:
    model = timm.create_model(name, num_classes=0).eval()
    transform = create_transform(**resolve_model_data_config(model))
    with torch.inference_mode():
        batches = [images[start : start + 32] for start in range(0, len(images), 32)]
        features = torch.cat([model(torch.stack([transform(image) for image in batch])) for batch in batches])
"""


def run_ours(folder: Path) -> None:
    """What the plain script does, and folds, heads, intervals and the choice."""
    import task2vec as t2v
    from task2vec.errors import WeightsNotFoundError
    from task2vec.select import Candidate
    from task2vec.select.decide import decide
    from task2vec.select.measure import measure_models

    def load(candidate: Candidate) -> t2v.Probe:
        try:
            return t2v.load_probe(candidate.name)
        except WeightsNotFoundError:
            import timm

            return t2v.load_probe(timm.create_model(candidate.name).eval())

    measured = measure_models(t2v.to_task(folder), [Candidate(name) for name in NETWORKS], load=load)
    decision = decide(measured, {name: rank for rank, name in enumerate(NETWORKS)})
    for model in decision.judgements:
        print(f"{model.name}: {model.error:.3f} ({model.low:.3f} to {model.high:.3f})")
    assert len(decision.judgements) == len(NETWORKS), measured.failures


def time_scikit_learn(folder: Path) -> float:
    """Processor seconds of scikit-learn's cross-validated logistic regression on the features of the networks."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    count = sum(path.is_file() for path in folder.rglob("*"))
    classes = [path for path in folder.iterdir() if path.is_dir()]
    targets = np.concatenate([np.full(sum(1 for _ in path.iterdir()), row) for row, path in enumerate(classes)])
    random, begun = np.random.default_rng(0), time.process_time()
    for _ in NETWORKS:
        features = random.standard_normal((count, 1280)) + 0.03 * targets[:, None]
        cross_val_predict(make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)), features, targets)
    return time.process_time() - begun


def spend(command: list[str]) -> float:
    """User and system seconds of a command."""
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main(arguments: argparse.Namespace) -> None:
    """Times both in turn."""
    folder = arguments.folder.resolve()
    commands = {
        "plain": [sys.executable, "-c", PLAIN, str(folder), *NETWORKS],
        "ours": [sys.executable, "-m", "benchmarks.measure_speed", str(folder), "--ours"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(arguments.rounds):
        for name, command in commands.items():
            seconds[name].append(spend(command))
        print("  ".join(f"{name} {values[-1]:.1f} s" for name, values in seconds.items()), flush=True)
    found = ratio(seconds["ours"], seconds["plain"])
    heads = time_scikit_learn(folder)
    print(Verdict("processor time of measuring three networks, by that of running them with timm", found, 0.9, False))
    print(f"scikit-learn's cross-validated logistic regression, alone: {heads:.1f} s")
    medians = {name: round(statistics.median(values), 2) for name, values in seconds.items()}
    about = {"seconds": medians, "scikit-learn": round(heads, 2), "ratio": round(found, 3), **describe_machine()}
    write_json(arguments.json, about)


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path, help="a folder of about 100 images, one folder per class")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ours", action="store_true", help="only ours, once: what is timed")
    given = parser.parse_args()
    run_ours(given.folder) if given.ours else main(given)
