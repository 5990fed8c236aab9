"""Distances between tasks of few images: how much of them is noise, and does the correction take it off?

    python benchmarks/noise_floor.py gather OUT [--probe resnet34] [--shared DIR] [--images 100] [--device cuda]
    python benchmarks/noise_floor.py report OUT [--json docs/measured/noise_floor.json]

`gather` embeds every task of the shared folder that has enough images: as a whole, and from two disjoint draws A and B
of few images, with their halves. `report` asks whether the corrected distance of A and B, which are the same task, is
near zero, and whether the neighbours among the draws are those of the whole tasks: with and without the correction, and
with the noise estimated from the halves or by the standard errors.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
from scipy.stats import spearmanr  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks.measure import show_table  # noqa: E402
from benchmarks.real_tasks import read_tasks  # noqa: E402
from benchmarks.robust import load_probe  # noqa: E402
from task2vec.distance import NoisyDistance, with_error  # noqa: E402
from task2vec.distance.noise import (  # noqa: E402
    find_directions,
    find_noise,
)

DRAWS = ("A", "B")


def gather(arguments: argparse.Namespace) -> int:
    """Embeds what is not there yet, one file each."""
    probe = load_probe(arguments)
    tasks = [task for _, task in read_tasks(arguments.shared / "data") if len(task) >= 2 * arguments.images]
    print(f"{len(tasks)} tasks of at least {2 * arguments.images} images", flush=True)
    for task in tasks:
        settings = t2v.EmbedSettings(max_samples=arguments.pairs, seed=arguments.seed)
        parts = [("whole", task, settings)]
        for name, own in zip(DRAWS, draw_twice(task, arguments.images, seed=arguments.seed), strict=True):
            parts.append((name, task.subset(own), replace(settings, halves=True)))
        for name, part, how in parts:
            place = arguments.out / name / f"{task.name}.safetensors"
            if not place.exists():
                t2v.embed(part, probe, settings=how, device=arguments.device).save(place)
        print(task.name, flush=True)
    return 0


def draw_twice(task: t2v.Task, size: int, *, seed: int) -> list[np.ndarray]:
    """Two disjoint draws of about `size` images each, in which all classes have their share."""
    rng = np.random.default_rng(seed)
    parts = [rng.permutation(np.flatnonzero(task.targets == label)) for label in range(len(task.classes))]
    ends = [max(1, min(len(part) // 2, round(size / len(task) * len(part)))) for part in parts]
    return [
        np.concatenate([part[number * end : (number + 1) * end] for part, end in zip(parts, ends, strict=True)])
        for number in (0, 1)
    ]


def report(arguments: argparse.Namespace) -> int:
    """Prints both tables and writes them."""
    names = sorted(file.stem for file in (arguments.out / "whole").glob("*.safetensors"))
    found = {
        part: [t2v.load_embedding(arguments.out / part / f"{name}.safetensors") for name in names]
        for part in ("whole", *DRAWS)
    }
    bare = {part: [replace(one, halves=None) for one in found[part]] for part in DRAWS}
    same = {
        basis: [with_error(a, b) for a, b in zip(*pair, strict=True)]
        for basis, pair in (("halves", (found["A"], found["B"])), ("stderr", (bare["A"], bare["B"])))
    }
    whole = np.asarray(t2v.distance.pairwise(found["whole"], device="cpu"))
    rows = [tell_same(basis, distances) for basis, distances in same.items()]
    print(f"\n{len(names)} tasks, {found['A'][0].probe}: two draws of one task; distances are medians")
    show_table(list(rows[0]), [tuple(row.values()) for row in rows])
    print(f"median distance of two different tasks: {np.median(whole[np.triu_indices(len(whole), 1)]):.3f}")
    agreements = []
    for part in DRAWS:
        for basis, embeddings in (("halves", found[part]), ("stderr", bare[part])):
            agreements.append(tell_ranks(part, basis, *measure(embeddings), whole))
        values = np.asarray(t2v.distance.pairwise(found[part], device="cpu"))
        for count in (0, 1, 2):
            shaped = t2v.distance.pairwise_corrected(found[part], directions=count, device="cpu")
            agreements.append(tell_ranks(part, f"halves of all, {count} directions", values, np.asarray(shaped), whole))
    print("\nneighbours of the draws against those of the whole tasks")
    show_table(list(agreements[0]), [tuple(row.values()) for row in agreements])
    shape = tell_shape(found["A"], found["B"])
    print("\nthe shape of the noise:", shape)
    if arguments.json:
        story = {
            "probe": found["A"][0].probe,
            "tasks": names,
            "same task": rows,
            "neighbours": agreements,
            "shape": shape,
        }
        arguments.json.write_text(json.dumps(story, indent=1) + "\n", encoding="utf-8")
    return 0


def tell_same(basis: str, distances: list[NoisyDistance]) -> dict[str, object]:
    """Two draws of one task: is the floor where their distance is, and the corrected one at zero?"""

    def median(take: Callable[[NoisyDistance], float]) -> float:
        return float(np.median([take(one) for one in distances]))

    corrected = np.array([one.corrected for one in distances])
    return {
        "noise from": basis,
        "distance": median(lambda one: one.value),
        "floor": median(lambda one: one.floor),
        "corrected": float(np.median(corrected)),
        "corrected, mean": float(corrected.mean()),
        "its standard error": float(corrected.std(ddof=1) / len(corrected) ** 0.5),
    }


def measure(embeddings: list[t2v.Embedding]) -> tuple[np.ndarray, np.ndarray]:
    """Distances of all pairs as they are, and corrected one by one."""
    noisy = [[with_error(a, b) for b in embeddings] for a in embeddings]
    return tuple(np.array([[getattr(one, name) for one in row] for row in noisy]) for name in ("value", "corrected"))


def tell_ranks(
    part: str, basis: str, values: np.ndarray, corrected: np.ndarray, whole: np.ndarray
) -> dict[str, object]:
    """How well every task's neighbours are ordered, with and without the correction, and for how many it helps."""
    before, after = (np.array([agree(m[i], whole[i], i) for i in range(len(whole))]) for m in (values, corrected))
    nearest = [np.mean(find_nearest(matrix) == find_nearest(whole)) for matrix in (values, corrected)]
    gain = after - before
    return {
        "draw": part,
        "noise from": basis,
        "rank correlation": float(before.mean()),
        "corrected": float(after.mean()),
        "tasks that gain": f"{int((gain > 0).sum())} of {int((gain != 0).sum())}",
        "nearest": float(nearest[0]),
        "nearest, corrected": float(nearest[1]),
    }


def find_nearest(matrix: np.ndarray) -> np.ndarray:
    """The other task that is nearest to each."""
    return np.where(np.eye(len(matrix), dtype=bool), np.inf, matrix).argmin(1)


def tell_shape(one: list[t2v.Embedding], other: list[t2v.Embedding]) -> dict[str, object]:
    """How much of the noise lies in one direction."""
    doses = np.stack([find_noise(e) for e in (*one, *other)])
    doses -= doses.mean(1, keepdims=True)
    (axis,) = find_directions(doses, 1)
    return {"share of the first direction": float(np.square(doses @ axis).sum() / np.square(doses).sum())}


def agree(row: np.ndarray, whole: np.ndarray, own: int) -> float:
    """Spearman's correlation of the distances from one task to all others."""
    return float(spearmanr(np.delete(row, own), np.delete(whole, own))[0])


def main() -> int:
    """Runs one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    one = parts.add_parser("gather")
    one.add_argument("out", type=Path)
    one.add_argument("--shared", type=Path, default=_ROOT.parent / "shared", help="folder of real images and weights")
    one.add_argument("--probe", default="resnet34")
    one.add_argument("--size", type=int, default=128, help="side of the images")
    one.add_argument("--images", type=int, default=100, help="of a small draw")
    one.add_argument("--pairs", type=int, default=400)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--device")
    one.set_defaults(run=gather)
    other = parts.add_parser("report")
    other.add_argument("out", type=Path)
    other.add_argument("--json", type=Path)
    other.set_defaults(run=report)
    arguments = parser.parse_args()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
