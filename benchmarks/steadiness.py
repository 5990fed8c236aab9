"""Real tasks: do norms and distances make sense, and how far do other images of the same task move them?

    python benchmarks/steadiness.py gather OUT [--probe resnet34] [--size 128] [--shared DIR] [--workers 8]
    python benchmarks/steadiness.py report OUT [--before DIR] [--json docs/measured/steadiness.json]

`gather` embeds with the default settings: the tasks of tasks.csv; candidates for separable binary tasks; two disjoint
draws of about 100 images of each task with at least 200; and random halves of 200 images of tasks with at least 300, of
which only the norm is kept. Each has a file below OUT/PROBE-SIZE, and what is there is not embedded again. `report`
prints a table for every probe.

Only the public API is used, so this file can be copied to a checkout of an earlier version and run there. Versions may
differ in vectors and distances as well, so each has to report its own OUT; `--before DIR` shows beside it what an
earlier version has reported for DIR.
"""

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from scipy.stats import spearmanr  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks.material import RESNET, SIZE, resnet_weights  # noqa: E402
from benchmarks.measure import SHARED, make_parser, show_table, write_json  # noqa: E402
from experiments.collection import Member, read_collection  # noqa: E402

# Datasets of the binary tasks, how many pairs of classes are tried in each, and how many are used.
BINARY = ("cub200", "flowers102", "dogs", "clothing10", "dtd10", "cifar10")
CANDIDATES, USED = 8, 4
DRAWS = ("A", "B")
HALVED, HALVES = 10, 20
BETAS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)

# Where an embedding is saved, or only its norm (.txt), and its task.
Part = tuple[str, t2v.Task]


def gather(arguments: argparse.Namespace, initializer: Callable[[], None] | None = None) -> int:
    """Embeds what is not there yet, in several processes, since a single one leaves a GPU idle.

    Each process calls `initializer` first.
    """
    data, folder = arguments.shared / "data", arguments.out / f"{arguments.probe}-{arguments.size}"
    collection = read_collection(data)
    known = {dataset.images.name: dataset.images for dataset in collection.datasets}
    datasets = [known.get(name) or t2v.read_folder(data / name / "images", name=name) for name in BINARY]
    parts = list_parts(collection.members, datasets)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "parts.json").write_text(json.dumps([place for place, _ in parts]), encoding="utf-8")
    embed_parts(arguments, folder, parts, initializer)
    return 0


def embed_parts(
    arguments: argparse.Namespace, folder: Path, parts: Sequence[Part], initializer: Callable[[], None] | None = None
) -> None:
    """Embeds the parts whose files are not below the folder yet."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.workers, mp_context=spawn, initializer=initializer) as pool:
        for place in pool.map(partial(_work, arguments, folder), parts):
            print(place, flush=True)


def list_parts(members: Sequence[Member], datasets: Sequence[t2v.Task], *, images: int = 100) -> list[Part]:
    """All that is embedded; `images` is the size of a draw and of a half."""
    parts: list[Part] = []
    large = [member.task for member in members if len(member.task) >= 3 * images]
    for number in np.unique(np.linspace(0, len(large) - 1, min(HALVED, len(large))).astype(int)):
        task, rng = large[number], np.random.default_rng(0)
        chosen = rng.permutation(len(task))[: 2 * images]
        for half in range(HALVES):
            parts.append((f"halves/{task.name}/{half:02}.txt", task.subset(rng.permutation(chosen)[:images])))
    for dataset, task in ((member.dataset, member.task) for member in members):
        parts.append((f"whole/{dataset}/{task.name}.safetensors", task))
        if len(task) >= 2 * images:
            for draw, own in zip(DRAWS, draw_twice(task, images), strict=True):
                parts.append((f"{draw}/{dataset}/{task.name}.safetensors", task.subset(own)))
    rng = np.random.default_rng(0)
    for task in datasets:
        order = rng.permutation(np.flatnonzero(task.counts >= images // 5)).tolist()
        for number, pair in enumerate(list(zip(order[::2], order[1::2], strict=False))[:CANDIDATES]):
            name = f"{task.name} {number}"
            parts.append((f"binary/{task.name}/{name}.safetensors", task.select(pair, name=name)))
    return parts


def draw_twice(task: t2v.Task, size: int) -> list[np.ndarray]:
    """Two disjoint draws of about `size` images each, in which all classes have their share."""
    rng = np.random.default_rng(0)
    parts = [rng.permutation(np.flatnonzero(task.targets == label)) for label in range(len(task.classes))]
    ends = [max(1, min(len(part) // 2, round(size / len(task) * len(part)))) for part in parts]
    return [
        np.concatenate([part[number * end : (number + 1) * end] for part, end in zip(parts, ends, strict=True)])
        for number in (0, 1)
    ]


def embed_part(file: Path, task: t2v.Task, probe: t2v.Probe, *, split_half: bool = False, **options: Any) -> None:
    """Writes the embedding of a part, or its norm, unless it is there; draws have halves if wanted."""
    if file.exists():
        return
    is_split = split_half and file.parts[-3] in DRAWS
    embedding = t2v.embed(task, probe, settings=t2v.EmbedSettings(split_half=is_split), **options)
    if file.suffix != ".txt":
        embedding.save(file)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(repr(embedding.norm()), encoding="utf-8")
    unfinished.replace(file)


def _work(arguments: argparse.Namespace, folder: Path, part: Part) -> str:
    """Embeds a part in one of the processes, with its share of the cores."""
    threads = max(1, (os.cpu_count() or 1) // arguments.workers)
    torch.set_num_threads(threads)
    probe = _load_probe(arguments.probe, arguments.size, arguments.shared)
    options = {"device": arguments.device, "num_workers": threads, "split_half": arguments.split_half}
    embed_part(folder / part[0], part[1], probe, **options)
    return part[0]


@cache
def _load_probe(name: str, size: int, shared: Path) -> t2v.Probe:
    return t2v.load_probe(name, weights=resnet_weights(shared) if name == RESNET else None, size=size)


def report(arguments: argparse.Namespace) -> int:
    """Prints a table of every probe, and writes them: to OUT for a later version, and to where they are wanted."""
    found = {file.parent.name: compute_figures(file.parent) for file in sorted(arguments.out.glob("*/parts.json"))}
    before = {}
    if arguments.before:
        file = arguments.before / "figures.json"
        if not file.exists():
            how = f"In the checkout that embedded it: python benchmarks/steadiness.py report {arguments.before}"
            sys.exit(f"{file} is missing: only the version that embedded its tasks can compare them. {how}")
        before = json.loads(file.read_text(encoding="utf-8"))
    (arguments.out / "figures.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    story = {}
    for probe, after in found.items():
        columns = {"before": before.get(probe, {}), "after": after}
        print(f"\n{probe}")
        show_table(["", *columns], [(key, columns["before"].get(key, "-"), value) for key, value in after.items()])
        rows = weigh_prior(read_embeddings(arguments.out / probe / "whole"))
        print("\nthe prior's weight")
        show_table(list(rows[0]), [tuple(row.values()) for row in rows])
        story[probe] = {**columns, "prior": rows}
    write_json(arguments.json, story, indent=1)
    return 0


def read_embeddings(folder: Path) -> dict[tuple[str, str], t2v.Embedding]:
    """The embeddings of one kind by their dataset and name."""
    return {(file.parent.name, file.stem): t2v.load_embedding(file) for file in sorted(folder.glob("*/*.safetensors"))}


def compute_figures(folder: Path) -> dict[str, object]:
    """What is asked of the embeddings by one probe."""
    places = json.loads((folder / "parts.json").read_text(encoding="utf-8"))
    missing = [place for place in places if not (folder / place).exists()]
    if missing:
        sys.exit(f"{folder} lacks {len(missing)} of {len(places)} parts, such as {missing[0]}: run gather again")
    whole, binary, *draws = (read_embeddings(folder / kind) for kind in ("whole", "binary", *DRAWS))
    errors = {key: one.provenance["head"]["cv_error"] for key, one in (whole | binary).items()}
    order = groupby(sorted(binary, key=lambda key: (key[0], errors[key], key[1])), key=lambda key: key[0])
    separable = [key for _, keys in order for key in list(keys)[:USED]]
    norms = [[float(file.read_text()) for file in task.glob("*.txt")] for task in (folder / "halves").iterdir()]
    pairs = [(one, draws[1][key]) for key, one in draws[0].items()]
    other = measure([whole[key] for key in draws[0]])
    near = np.median([measure(list(pair))[0, 1] for pair in pairs])
    far = np.median(other[np.triu_indices(len(other), 1)])
    figures = {
        "tasks": len(whole),
        "Spearman of norm and error": spearmanr([e.norm() for e in whole.values()], [errors[key] for key in whole])[0],
        "nearest task of the same dataset": count_same(list(whole), list(whole.values())),
        "separable tasks": len(separable),
        "nearest separable task of the same dataset": count_same(separable, [binary[key] for key in separable]),
        "sd of log norm, random halves": np.median([np.std(np.log(own), ddof=1) for own in norms]),
        "tasks drawn twice": len(pairs),
        "distance of two draws": near,
        "distance of two tasks": far,
        "ratio": near / far,
        "rank correlation of neighbours": np.mean([correlate(measure(list(draw.values())), other) for draw in draws]),
        "relative error": np.median([e.provenance["relative_error"] for e in whole.values()]),
        "relative error of a draw": np.median([e.provenance["relative_error"] for d in draws for e in d.values()]),
    }
    for own in ([[replace(one, halves=None) for one in pair] for pair in pairs], pairs):
        noisy = [t2v.distance.with_error(*pair) for pair in own]
        figures[f"noise floor of two draws, from {noisy[0].basis}"] = np.median([one.floor for one in noisy])
        figures[f"corrected distance of two draws, from {noisy[0].basis}"] = np.median([one.corrected for one in noisy])
    return {key: value if isinstance(value, int) else float(value) for key, value in figures.items()}


def measure(embeddings: list[t2v.Embedding]) -> np.ndarray:
    """Distances of all pairs."""
    return np.asarray(t2v.distance.pairwise(embeddings, device="cpu"))


def count_same(keys: list[tuple[str, str]], embeddings: list[t2v.Embedding]) -> int:
    """How many tasks have their nearest task in their own dataset."""
    apart = measure(embeddings)
    nearest = np.where(np.eye(len(apart), dtype=bool), np.inf, apart).argmin(1)
    return sum(keys[i][0] == keys[j][0] for i, j in enumerate(nearest))


def correlate(apart: np.ndarray, other: np.ndarray) -> float:
    """Spearman's correlation of the distances from a task to all others in two matrices, averaged over the tasks."""
    return float(np.mean([spearmanr(np.delete(apart[i], i), np.delete(other[i], i))[0] for i in range(len(apart))]))


def weigh_prior(embeddings: dict[tuple[str, str], t2v.Embedding]) -> list[dict[str, float]]:
    """The prior's size against the median Fisher of its layer, and the neighbours that other weights would give."""
    rows = []
    for beta in BETAS:
        moved = [replace(e, prior=e.prior * (beta / e.provenance["settings"]["beta"])) for e in embeddings.values()]
        parts = [(e.prior[own], e.fisher[own]) for e in moved for own in e.layer_slices().values()]
        share = np.median([np.median(prior) / max(np.median(fisher), 1e-30) for prior, fisher in parts])
        nearest = count_same(list(embeddings), moved)
        rows.append({"beta": beta, "prior / median Fisher": float(share), "nearest of the same dataset": nearest})
    return rows


def add_options(one: argparse.ArgumentParser) -> None:
    """The options of `gather`."""
    one.add_argument("out", type=Path)
    one.add_argument("--probe", choices=(RESNET, "tf_efficientnet_lite0"), default=RESNET)
    one.add_argument("--size", type=int, default=SIZE, help="side of the images")
    one.add_argument("--shared", type=Path, default=SHARED, help="folder of real images and weights")
    one.add_argument("--device", help="cpu or cuda; a GPU if there is one")
    one.add_argument("--workers", type=int, default=1, help="processes")
    one.add_argument("--split-half", action="store_true", help="the noise of the draws by their halves, too")


def main() -> int:
    """Runs one part."""
    parser = make_parser(__doc__)
    parts = parser.add_subparsers(required=True)
    one = parts.add_parser("gather")
    add_options(one)
    one.set_defaults(run=gather)
    other = parts.add_parser("report")
    other.add_argument("out", type=Path)
    other.add_argument("--before", type=Path, help="what an earlier version has gathered and reported")
    other.add_argument("--json", type=Path, help="where to write the tables")
    other.set_defaults(run=report)
    arguments = parser.parse_args()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
