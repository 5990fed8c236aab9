"""Do both linear classifiers rank experts the same way, and what does each take?

    python benchmarks/classifiers.py [--shared DIR] [--quick] [--out FILE]

Six networks (three kinds, at 128 and at 64 pixels) on five tasks of real photographs, by "logistic" and by
"achille2019", with half of the images and with 5 per class, three seeds. Prints the figures of
docs/how-to/library.md: rank correlations over the networks between the mean errors of both, and processor time of a
cell by each, on one thread.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from scipy.stats import spearmanr  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks.material import missing_material, read_taxon, resnet_weights  # noqa: E402
from benchmarks.measure import MEASURED, describe_machine, make_parser, show_table  # noqa: E402
from task2vec.experts import error_matrix  # noqa: E402
from task2vec.experts.error_matrix import compute_features, measure_cells, plan_cells  # noqa: E402

SIZES, SEEDS, MOST_IMAGES = (128, 64), (0, 1, 2), 300
TRAINS = ("half", 5)
CLASSIFIERS = ("logistic", "achille2019")


def read_tasks(data: Path) -> list[t2v.Task]:
    """Garments, birds, dogs, textures and flowers, 300 images of each at most."""
    tasks = [
        t2v.read_folder(data / "clothing10" / "images", name="clothing"),
        read_taxon(data / "cub200", "order", "Piciformes", name="birds, Piciformes"),
        read_taxon(data / "dogs", "breed_group", "toy", name="dogs, toy breeds", least_images=10),
        t2v.read_folder(data / "dtd10" / "images", name="textures"),
        read_taxon(data / "flowers102", "order", "Solanales", name="flowers, Solanales"),
    ]
    return [task.sample(MOST_IMAGES) if len(task) > MOST_IMAGES else task for task in tasks]


def load_networks(shared: Path) -> list[t2v.Probe]:
    """Three kinds of networks, at two sizes of images each."""
    known: dict[str, dict[str, Any]] = {
        "tf_efficientnet_lite0": {},
        "torchvision:mobilenet_v2": {"weights": shared / "weights" / "mobilenet_v2.fp16.safetensors"},
        "torchvision:resnet34": {"weights": resnet_weights(shared)},
    }
    probes = [(t2v.load_probe(name, size=size, **more), size) for size in SIZES for name, more in known.items()]
    return [replace(probe, name=f"{probe.name} {size}") for probe, size in probes]


def measure_task(task: t2v.Task, probes: list[t2v.Probe]) -> tuple[np.ndarray, np.ndarray]:
    """(classifiers, sizes of training, networks) mean errors, and (classifiers, networks) seconds of all cells."""
    shape = (len(CLASSIFIERS), len(TRAINS), len(probes))
    errors, seconds = np.zeros(shape), np.zeros((shape[0], shape[2]))
    for column, probe in enumerate(probes):
        features = compute_features(probe, task.images, device="cpu")
        for row, classifier in enumerate(CLASSIFIERS):
            protocols = [t2v.ErrorProtocol(shots=train, classifier=classifier) for train in TRAINS]
            begin = time.process_time()
            found = measure_cells(features, plan_cells(task, protocols, SEEDS), model=probe.name)
            seconds[row, column] = time.process_time() - begin
            for place, protocol in enumerate(protocols):
                own = [error.error for error in found if error.protocol == protocol.key]
                errors[row, place, column] = np.mean(own)
    return errors, seconds


def describe(task: t2v.Task, probes: list[t2v.Probe], errors: np.ndarray, seconds: np.ndarray) -> dict[str, Any]:
    """One line of the table, and all that it is made of."""
    summary: dict[str, Any] = {"task": task.name, "classes": len(task.classes), "images": len(task)}
    for place, train in enumerate(TRAINS):
        own, paper = errors[0, place], errors[1, place]
        summary[f"spearman {train}"] = float(spearmanr(own, paper)[0])
        summary[f"difference {train}"] = float((paper - own).mean())
        summary[f"same best {train}"] = bool(own.argmin() == paper.argmin())
        summary[f"errors {train}"] = {
            probe.name: dict(zip(CLASSIFIERS, pair, strict=True))
            for probe, pair in zip(probes, errors[:, place].T.tolist(), strict=True)
        }
    summary["times as long"] = (seconds[1] / seconds[0]).tolist()
    return summary


def main() -> int:
    """Measures, prints the table and writes it."""
    arguments = _parse()
    reason = missing_material(arguments.shared)
    if reason:
        print(f"skipped: {reason}")
        return 0
    torch.set_num_threads(1)
    if arguments.quick:
        error_matrix.EPOCHS = 1
    probes, rows = load_networks(arguments.shared), []
    found = {"machine": describe_machine(), "seeds": len(SEEDS), "networks": [probe.name for probe in probes]}
    for task in read_tasks(arguments.shared / "data")[: 1 if arguments.quick else None]:
        rows.append(describe(task, probes, *measure_task(task, probes)))
        print(json.dumps({key: value for key, value in rows[-1].items() if not key.startswith("errors")}), flush=True)
        arguments.out.write_text(json.dumps(found | {"rows": rows}, indent=2) + "\n", encoding="utf-8")  # runs are long
    show_rows(rows)
    print(f"written to {arguments.out}")
    return 0


def show_rows(rows: list[dict[str, Any]]) -> None:
    """The table of the page, and the means below it."""
    shown = [name for name in rows[0] if not name.startswith(("errors", "times"))]
    longer = [f"{min(row['times as long']):.1f} to {max(row['times as long']):.1f}" for row in rows]
    cells = [[*(row[name] for name in shown), times] for row, times in zip(rows, longer, strict=True)]
    show_table([*shown, "times as long"], cells)
    for train in TRAINS:
        print(f"mean Spearman, {train}: {np.mean([row[f'spearman {train}'] for row in rows]):.2f}")


def _parse() -> argparse.Namespace:
    parser = make_parser(__doc__, has_shared=True)
    parser.add_argument("--quick", action="store_true", help="one task and one epoch, to see that it runs")
    parser.add_argument("--out", type=Path, default=MEASURED / "classifiers.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
