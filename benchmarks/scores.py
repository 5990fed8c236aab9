"""Transferability scores: do they tell a network from noise, and what do they take?

    python benchmarks/scores.py [--only textures|seconds] [--shared DIR] [--quick] [--out FILE]

Prints both tables of docs/explanation/selection.md.
(1) 600 textures, EfficientNet-lite0 at 128 pixels: the network, the network with
noise of three times its own spread, noise alone, and the network with shuffled labels; skipped without the shared
folder. (2) Processor seconds of each score alone and of all together on one thread, for float32 features with a
decaying spectrum.
"""

import argparse
import json
import sys
import time
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks.material import SIZE, missing_material  # noqa: E402
from benchmarks.measure import MEASURED, describe_machine, make_parser, show_table, write_json  # noqa: E402
from task2vec.experts.error_matrix import compute_features  # noqa: E402
from task2vec.select import SCORES, SOURCE_SCORES  # noqa: E402

SHAPES = (
    (300, 512, 10),
    (300, 1280, 200),
    (2000, 512, 10),
    (2000, 1280, 200),
    (6000, 512, 10),
    (6000, 1280, 10),
    (6000, 1280, 200),
)
TIMED = ("knn", "logme", "h_score_shrunk", "leep")
SOURCES, ROUNDS = 1000, 3


def judge_noise(shared: Path) -> dict[str, dict[str, float]]:
    """Scores of textures: by the network, with noise, of noise, and of shuffled labels."""
    task = t2v.read_folder(shared / "data" / "dtd10" / "images", name="dtd10")
    features = compute_features(t2v.load_probe(size=SIZE), task.images, device="cpu")
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(features.shape, generator=generator) * features.std()  # the same in all directions
    labels = torch.from_numpy(task.targets.astype("int64"))
    shuffled = labels[torch.randperm(len(labels), generator=generator)]
    cases = {
        "network": (features, labels),
        "with noise": (features + 3 * noise, labels),
        "noise": (noise, labels),
        "shuffled labels": (features, shuffled),
    }
    names = [name for name in SCORES if name not in SOURCE_SCORES]
    found = {
        case: t2v.score_features(some, own, classes=len(task.classes), which=names)
        for case, (some, own) in cases.items()
    }
    return {name: {case: scores[name] for case, scores in found.items()} for name in names}


def make_features(images: int, width: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features around class means with a spectrum that decays, their labels, and probabilities of source classes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(images) % classes
    scale = torch.arange(1, width + 1) ** -0.5
    means = torch.randn(classes, width, generator=generator)
    features = (means[labels] + torch.randn(images, width, generator=generator)) * scale
    theta = torch.randn(images, SOURCES, generator=generator).softmax(1)
    return features, labels, theta


def time_scores(shape: tuple[int, int, int], rounds: int) -> dict[str, float]:
    """Processor seconds of all scores together, and of some alone: the least of the rounds."""
    features, labels, theta = make_features(*shape)
    found: dict[str, float] = {}
    for name in ("all", *TIMED):
        which = None if name == "all" else [name]
        taken = []
        for _ in range(rounds if shape[0] < 6000 else 1):
            begin = time.process_time()
            t2v.score_features(features, labels, classes=shape[2], source_probabilities=theta, which=which)
            taken.append(time.process_time() - begin)
        found[name] = min(taken)
    return found


def main() -> int:
    """Measures, prints both tables and writes them."""
    arguments = _parse()
    torch.set_num_threads(1)
    is_known = arguments.out.exists() and arguments.only is not None  # the other part stays
    found = json.loads(arguments.out.read_text(encoding="utf-8")) if is_known else {}
    found["machine"] = describe_machine()
    reason = missing_material(arguments.shared)
    if arguments.only != "seconds" and reason:
        print(f"textures skipped: {reason}")
    elif arguments.only != "seconds":
        rows = judge_noise(arguments.shared)
        show_table(["score", *next(iter(rows.values()))], [[name, *row.values()] for name, row in rows.items()])
        found["textures"] = rows
    if arguments.only != "textures":
        times = {}
        for shape in SHAPES[: 2 if arguments.quick else None]:
            times[" x ".join(map(str, shape[:2])) + f", {shape[2]}"] = time_scores(shape, ROUNDS)
        heads = ["images x features, classes", "all", *TIMED]
        show_table(heads, [[name, *row.values()] for name, row in times.items()])
        found["seconds"] = times
    write_json(arguments.out, found)
    return 0


def _parse() -> argparse.Namespace:
    parser = make_parser(__doc__, has_shared=True)
    parser.add_argument("--only", choices=("textures", "seconds"), help="one of both parts")
    parser.add_argument("--quick", action="store_true", help="small features only, to see that it runs")
    parser.add_argument("--out", type=Path, default=MEASURED / "scores.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
