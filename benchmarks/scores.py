"""Transferability scores: do they tell a network from noise, and true labels from shuffled ones?

    python benchmarks/scores.py [--shared DIR] [--out FILE]

Prints the table of docs/explanation/selection.md: 600 textures, EfficientNet-lite0 at 128 pixels; the network, the
network with noise of three times its own spread, noise alone, and the network with shuffled labels. Needs the shared
folder.
"""

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import torch  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks.material import SIZE, missing_material  # noqa: E402
from benchmarks.measure import MEASURED, describe_machine, make_parser, show_table, write_json  # noqa: E402
from task2vec.experts.error_matrix import compute_features  # noqa: E402
from task2vec.select import SCORES, SOURCE_SCORES  # noqa: E402


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
    scores = {
        case: t2v.score_features(*material, classes=len(task.classes), which=names) for case, material in cases.items()
    }
    return {name: {case: scores[case][name] for case in cases} for name in names}


def main() -> None:
    """Print the table and write it."""
    parser = make_parser(__doc__, has_shared=True)
    parser.add_argument("--out", type=Path, default=MEASURED / "scores.json", help="JSON file of the figures")
    arguments = parser.parse_args()
    if reason := missing_material(arguments.shared):
        print(f"textures skipped: {reason}")
        return
    rows = judge_noise(arguments.shared)
    show_table(["score", *next(iter(rows.values()))], [[name, *row.values()] for name, row in rows.items()])
    write_json(arguments.out, {"machine": describe_machine(), "textures": rows})


if __name__ == "__main__":
    main()
