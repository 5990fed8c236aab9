"""Distances between tasks of few images: how much of them is noise, and does the correction take it off?

    python benchmarks/noise_floor.py gather --out DIR [--shared DIR] [--images 100] [--device cuda]
    python benchmarks/noise_floor.py report DIR [--json docs/measured/noise_floor.json]

`gather` embeds every task of the shared folder as a whole, and twice from few images: two disjoint draws A and B with
heads of their own, and the halves of each (A1, A2, B1, B2) with heads of their own, at the penalty of the whole draw.
`report` asks whether the corrected distance of A and B is near zero, and whether neighbours among the small draws are
those of the whole tasks.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402

import task2vec as t2v  # noqa: E402
import task2vec.embedding.steps as steps_room  # noqa: E402
from benchmarks.material import load_probes  # noqa: E402
from benchmarks.measure import Plan  # noqa: E402
from benchmarks.real_tasks import read_tasks  # noqa: E402
from benchmarks.robust import save  # noqa: E402
from task2vec.fisher import Accumulator  # noqa: E402


class Halving(Accumulator):
    """Also keeps what every second image brings: two halves of the images under one head."""

    last: "Halving"

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.halves = torch.zeros(2, 1, dtype=torch.float64)
        Halving.last = self

    def add(self, rows, inclusion, **options):
        """As ever, and the sums of even and odd images."""
        first = self.images % 2
        super().add(rows, inclusion, **options)
        z = (rows.double() / inclusion.to(rows.device).double()[:, None]).cpu()
        self.halves = self.halves + torch.stack([z[first::2].sum(0), z[1 - first :: 2].sum(0)]) * (2 / self.total)


def gather(arguments: argparse.Namespace) -> int:
    """One file per probe: logarithms of all Fishers."""
    steps_room.Accumulator = Halving
    arguments.out.mkdir(parents=True, exist_ok=True)
    tasks = read_tasks(arguments.shared / "data")
    for probe in load_probes(Plan(shared=arguments.shared)):
        found: dict[str, dict[str, list]] = {}
        for dataset, task in tasks:
            for name, row in rows_of(task, probe, arguments):
                story, place = row.provenance, found.setdefault(name, {})
                add(place, fisher=row.fisher, images=story["counts"]["images"], l2=story["head"]["l2"])
                if name in ("whole", "A", "B"):
                    add(place, stderr=row.stderr, halves=np.array(Halving.last.halves))
                    add(place, task=task.name, dataset=dataset)
            print(task.name, flush=True)
        for name, values in found.items():
            columns = {key: shrink(np.array(rows)) for key, rows in values.items()}
            save(arguments.out / f"noise-{probe.name}-{name}.safetensors", columns)
    return 0


def rows_of(task: t2v.Task, probe: t2v.Probe, arguments: argparse.Namespace) -> Iterator[tuple[str, t2v.Embedding]]:
    """The whole task, its two small draws, and their halves."""
    settings = t2v.EmbedSettings(images=arguments.pairs, seed=arguments.seed)
    yield "whole", t2v.embed(task, probe, settings=settings, device=arguments.device)
    for name, own in zip("AB", split(task, np.arange(len(task)), arguments.images, arguments.seed), strict=True):
        drawn = t2v.embed(task.subset(own), probe, settings=settings, device=arguments.device)
        yield name, drawn
        fixed = replace(settings, l2=drawn.provenance["head"]["l2"])
        for number, half in enumerate(split(task, own, len(own) // 2, arguments.seed)):
            yield f"{name}{number + 1}", t2v.embed(task.subset(half), probe, settings=fixed, device=arguments.device)


def split(task: t2v.Task, among: np.ndarray, size: int, seed: int) -> list[np.ndarray]:
    """Two disjoint draws of at most `size` images each, in which all classes have their share."""
    rng = np.random.default_rng(seed)
    parts = [rng.permutation(among[task.targets[among] == label]) for label in range(len(task.classes))]
    share = min(0.5, size / len(among))
    ends = [max(1, round(share * len(part))) for part in parts]
    return [
        np.sort(np.concatenate([part[start * end : (start + 1) * end] for part, end in zip(parts, ends, strict=True)]))
        for start in (0, 1)
    ]


def add(place: dict[str, list], **values: object) -> None:
    """Appends each value to its column."""
    for key, value in values.items():
        place.setdefault(key, []).append(value)


def shrink(values: np.ndarray) -> np.ndarray:
    """Long rows as logarithms in half precision: 0.4 % of rounding, far below the noise in question."""
    if values.ndim < 2 or values.dtype.kind != "f":
        return values
    return np.log(np.maximum(values, 1e-28)).astype(np.float16)


def main() -> int:
    """Runs one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    one = parts.add_parser("gather")
    one.add_argument("--shared", type=Path, default=_ROOT.parent / "shared", help="folder of real images and weights")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--images", type=int, default=100, help="of a small draw")
    one.add_argument("--pairs", type=int, default=400)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--device")
    one.set_defaults(run=gather)
    arguments = parser.parse_args()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
