"""What the runs of benchmarks/robust.py say: does the closed form agree with the optimisation, and which is better?

    python benchmarks/robust_report.py DIR [--json docs/measured/robust.json]

For each probe: rank correlation and cosine of the closed form (and of the direct Fisher) with the minimum that the
optimisation found, the symmetric distances over all pairs of tasks, the paper's gradient at that minimum, and time.
Then, over all tasks of the shared folder, robust against direct embeddings as users get them.
"""

import argparse
import json
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors import safe_open  # noqa: E402
from scipy.stats import spearmanr  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks.material import load_probes  # noqa: E402
from benchmarks.measure import Plan, make_parser, show_table, write_json  # noqa: E402
from task2vec.distance import symmetric_from_logs  # noqa: E402
from task2vec.embedding.single import fitted_prior, fixed_prior  # noqa: E402

BETA = 1e-7


def main() -> int:
    """Prints the tables and writes them."""
    arguments = _parse()
    results: dict[str, object] = {}
    distances: dict[str, dict[str, np.ndarray]] = {}
    for probe in load_probes(Plan(shared=arguments.shared)):
        runs = [
            load(file)
            for file in sorted(arguments.folder.glob(f"run-{probe.name}-*-curvature-fixed-b1e-07-s0.safetensors"))
        ]
        if runs:
            rows = [compare(run, probe) for run in runs]
            print(f"\n{probe.name}: closed form against the minimum, {len(runs)} tasks")
            show_table(list(rows[0]), [tuple(row.values()) for row in rows])
            distances_off, slopes = compare_distances(runs, probe), [slope_ratio(run) for run in runs]
            print(distances_off)
            print("paper's gradient over the curvature's, whole network:", slopes)
            results[probe.name] = {"tasks": rows, "distances": distances_off, "slopes": slopes}
        file = arguments.folder / f"both-{probe.name}.safetensors"
        if file.exists():
            found = load(file)
            distances[probe.name] = {m: distance_matrix(vectors_of(found, probe, m)) for m in ("direct", "robust")}
            rows = [judge(found, method, distances[probe.name][method]) for method in ("direct", "robust")]
            print(f"\n{probe.name}: as users get them, {len(found['error'])} tasks")
            show_table(list(rows[0]), [tuple(row.values()) for row in rows])
            results[f"{probe.name}, all tasks"] = rows
    if len(distances) == 2:
        one, other = distances.values()
        results["agreement of the two probes"] = {m: rank(upper(one[m]), upper(other[m])) for m in one}
        print("\nrank correlation of the two probes' distances", results["agreement of the two probes"])
    write_json(arguments.json, results)
    return 0


def load(file: Path) -> dict[str, np.ndarray]:
    """Arrays of a run, words included, and its task from the name of the file."""
    with safe_open(file, "numpy") as opened:
        found = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        found |= {key: np.array(json.loads(text)) for key, text in (opened.metadata() or {}).items()}
    return found | {"name": np.array(file.stem.split("-")[2])} if file.name.startswith("run") else found


def compare(run: dict[str, np.ndarray], probe: t2v.Probe) -> dict[str, object]:
    """How near the closed form and the direct Fisher are to the minimum of one task."""
    minimum, closed, direct = logs_of(run, probe)
    return {
        "task": str(run["name"]),
        "rank": rank(minimum, closed),
        "cosine": cosine(np.exp(minimum), np.exp(closed)),
        "median log ratio": float(np.median(minimum - closed)),
        "spread of it": float((minimum - closed).std()),
        "rank of direct": rank(minimum, direct),
        "drift": float(run["drift"]),
        "seconds, optimised": float(run["seconds_variational"]),
        "seconds, closed": float(run["seconds_robust"]),
    }


def logs_of(run: dict[str, np.ndarray], probe: t2v.Probe) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log-embeddings by the optimisation, the closed form and the direct Fisher."""
    beta = float(run["beta"])
    direct = run["direct"] + fixed_prior(probe.layers, beta=beta).numpy()
    return run["log_precision"].astype(float) + np.log(beta), run["closed"].astype(float), np.log(direct)


def compare_distances(runs: list[dict[str, np.ndarray]], probe: t2v.Probe) -> dict[str, float]:
    """Relative difference of distances over all pairs, closed and direct against the minimum."""
    minimum, closed, direct = (
        upper(distance_matrix(logs)) for logs in zip(*(logs_of(r, probe) for r in runs), strict=True)
    )
    off, off_direct = np.abs(closed / minimum - 1), np.abs(direct / minimum - 1)
    return {
        "pairs": len(minimum),
        "closed, median": float(np.median(off)),
        "closed, 90 %": float(np.quantile(off, 0.9)),
        "closed, largest": float(off.max()),
        "closed, rank": rank(minimum, closed),
        "direct, median": float(np.median(off_direct)),
        "direct, rank": rank(minimum, direct),
    }


def slope_ratio(run: dict[str, np.ndarray]) -> str | None:
    """The data's pull on the noise, measured through the noise over that by curvature, with its standard error."""
    if "slope_noise" not in run:
        return None
    total, error = run["slope_noise"].sum(), np.sqrt(np.square(run["slope_noise_error"]).sum())
    return f"{run['name']}: {total / run['slope_curvature'].sum():.2f} +- {error / run['slope_curvature'].sum():.2f}"


def vectors_of(found: dict[str, np.ndarray], probe: t2v.Probe, method: str) -> list[np.ndarray]:
    """Log-embeddings of all tasks by a method, with its own prior."""
    vectors = []
    for fisher, images in zip(found[method].astype(float), found["images"], strict=True):
        beta = BETA / float(images)
        values = torch.from_numpy(fisher)
        prior = (
            fitted_prior(values, probe.layers, beta=beta)
            if method == "robust"
            else fixed_prior(probe.layers, beta=beta)
        )
        vectors.append(np.log(fisher + prior.numpy()))
    return vectors


def judge(found: dict[str, np.ndarray], method: str, distances: np.ndarray) -> dict[str, object]:
    """What a method makes of all tasks: difficulty, neighbours, noise and time."""
    fisher, datasets = found[method].astype(float), found["dataset"]
    others = distances + 9 * np.eye(len(distances))
    relative = [np.median(s[f > 0] / f[f > 0]) for s, f in zip(found[f"{method}_stderr"], fisher, strict=True)]
    same = upper(datasets[:, None] == datasets[None, :])
    near, far = upper(distances)[same], upper(distances)[~same]
    return {
        "method": method,
        "norm ~ error": rank(fisher.sum(1), found["error"]),
        "nearest in the dataset": float((datasets[others.argmin(1)] == datasets).mean()),
        "same dataset is nearer": float((near[:, None] < far[None, :]).mean()),
        "relative error": float(np.median(relative)),
        "seconds of the Fisher": float(np.median(found[f"seconds_{method}"])),
    }


def distance_matrix(logs) -> np.ndarray:
    """Symmetric distances of all pairs."""
    return np.array([[symmetric_from_logs(a, b) for b in logs] for a in logs])


def upper(matrix: np.ndarray) -> np.ndarray:
    """Every pair once."""
    return matrix[np.triu_indices(len(matrix), 1)]


def rank(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation."""
    return float(spearmanr(a, b)[0])


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of the angle."""
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def _parse() -> argparse.Namespace:
    parser = make_parser(__doc__, has_shared=True)
    parser.add_argument("folder", type=Path, help="what benchmarks/robust.py wrote")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
