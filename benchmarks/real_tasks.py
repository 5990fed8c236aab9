"""43 real tasks, by hand: do the norm and the distances make sense, and how much does the prior matter?

    python benchmarks/real_tasks.py [--shared DIR] [--device cuda] [--out FILE]

Embeds every task of the shared folder's tasks.csv (bird orders and families, flower orders, dog groups) with ResNet-34
and the default probe. Prints, for several weights of the prior, the rank correlation of norm and cross-validated error,
how often the nearest task is of the same dataset, and the prior's size against the median Fisher of its layer.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
from scipy.stats import spearmanr  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks.material import load_probes  # noqa: E402
from benchmarks.measure import Plan, show_table  # noqa: E402
from experiments.collection import read_collection  # noqa: E402

BETAS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)


def main() -> int:
    """Prints one table per probe and writes them."""
    arguments = _parse()
    tasks = read_tasks(arguments.shared / "data")
    results = []
    for probe in load_probes(Plan(shared=arguments.shared)):
        embeddings = [t2v.embed(task, probe, device=arguments.device) for _, task in tasks]
        datasets = [dataset for dataset, _ in tasks]
        rows = [row_of(beta, embeddings, datasets) for beta in BETAS]
        print(f"\n{probe.name}, {len(tasks)} tasks, {probe.size[0]} px")
        show_table(list(rows[0]), [tuple(row.values()) for row in rows])
        results.append({"probe": probe.name, "tasks": len(tasks), "rows": rows})
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0


def read_tasks(data: Path) -> list[tuple[str, t2v.Task]]:
    """Dataset and task of every row of tasks.csv."""
    return [(member.dataset, member.task) for member in read_collection(data).members]


def row_of(beta: float, embeddings: list[t2v.Embedding], datasets: list[str]) -> dict[str, float]:
    """What a prior of weight `beta` makes of the embeddings; their Fisher is the same for all of them."""
    moved = [replace(e, prior=e.prior * (beta / e.provenance["settings"]["beta"])) for e in embeddings]
    distances = np.array([[t2v.distance.symmetric(a, b) for b in moved] for a in moved])
    np.fill_diagonal(distances, np.inf)
    nearest = distances.argmin(1)
    errors = [e.provenance["head"]["cv_error"] for e in embeddings]
    shares = [
        np.median(e.prior[s]) / max(np.median(e.fisher[s]), 1e-30) for e in moved for s in e.layer_slices().values()
    ]
    return {
        "beta": beta,
        "prior / median Fisher": float(np.median(shares)),
        "nearest in the same dataset": float(np.mean([datasets[i] == datasets[j] for i, j in enumerate(nearest)])),
        "median distance": float(np.median(distances[np.isfinite(distances)])),
        "norm ~ error (Spearman)": float(spearmanr([e.norm() for e in embeddings], errors)[0]),
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shared", type=Path, default=_ROOT.parent / "shared", help="folder of real images and weights"
    )
    parser.add_argument("--device", help="cpu or cuda; a GPU if there is one")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
