"""Which distance finds the tasks of the same dataset, and which only those of the same difficulty?

    python benchmarks/kinds.py [--binary DIR] [--json docs/measured/kinds.json]

The tasks of the experts' meta-task that are one group of species or breeds; and, if given, separable binary tasks that
`benchmarks/steadiness.py gather` has embedded below DIR (DATASET/TASK.safetensors), the four with the lowest error of
the head of each dataset. For every kind of distance: how many tasks have their nearest neighbour in their own dataset;
the chance that two tasks of one dataset are nearer than two of different ones; and the rank correlation of the distance
with the difference of the log norms, which is all that a distance between difficulties would see.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
from scipy.stats import mannwhitneyu, spearmanr  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks.measure import make_parser, show_table, write_json  # noqa: E402
from experiments.report import load_bundle  # noqa: E402
from task2vec.distance import KINDS, pairwise  # noqa: E402

USED = 4
COLUMNS = ("same dataset", "of", "same before other", "rank correlation with norms")


def compare(embeddings: Sequence[t2v.Embedding], datasets: Sequence[str]) -> dict[str, dict[str, float]]:
    """The figures of every symmetric kind."""
    found, pairs = {}, np.triu_indices(len(datasets), 1)
    same = np.equal.outer(datasets, datasets)
    logs = np.log([embedding.norm() for embedding in embeddings])
    gaps = np.abs(np.subtract.outer(logs, logs))
    for kind in KINDS:
        values = np.array(pairwise(embeddings, kind).values)
        if not np.allclose(values, values.T):
            continue
        apart = np.where(np.eye(len(datasets), dtype=bool), np.inf, values)
        hits = int(same[np.arange(len(datasets)), apart.argmin(1)].sum())
        near, far = values[pairs][same[pairs]], values[pairs][~same[pairs]]
        chance = float(mannwhitneyu(far, near).statistic / (len(near) * len(far)))
        figures = (hits, len(datasets), chance, float(spearmanr(values[pairs], gaps[pairs]).statistic))
        found[kind] = dict(zip(COLUMNS, figures, strict=True))
    return found


def read_separable(folder: Path) -> tuple[list[t2v.Embedding], list[str]]:
    """The most separable binary tasks of every dataset, and their datasets."""
    embeddings, datasets = [], []
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        found = [t2v.load_embedding(file) for file in sorted(place.glob("*.safetensors"))]
        found = sorted(found, key=lambda one: one.provenance["head"]["cv_loss"])[:USED]
        embeddings += found
        datasets += [place.name] * len(found)
    return embeddings, datasets


def main() -> int:
    """Prints a table for every set of tasks, and writes them."""
    parser = make_parser(__doc__)
    parser.add_argument("--binary", type=Path, help="folder of separable binary tasks, by dataset")
    parser.add_argument("--json", type=Path, help="where to write the tables")
    arguments = parser.parse_args()
    bundle = load_bundle(None)
    own = [n for n, task in enumerate(bundle.tasks) if task.family == "taxa" and task.name != task.dataset]
    sets = {
        f"{len(own)} groups, {space}": (
            [every[number] for number in own],
            [bundle.tasks[number].dataset for number in own],
        )
        for space, every in bundle.embeddings.items()
    }
    if arguments.binary:
        embeddings, datasets = read_separable(arguments.binary)
        sets[f"{len(datasets)} separable binary tasks, {embeddings[0].probe}"] = embeddings, datasets
    results = {}
    for name, chosen in sets.items():
        results[name] = compare(*chosen)
        print(f"\n{name}")
        show_table(["distance", *COLUMNS], [(kind, *row.values()) for kind, row in results[name].items()])
    write_json(arguments.json, results, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
