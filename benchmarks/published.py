"""Do distances between datasets help to choose among published models? Each dataset is left out in turn.

    python benchmarks/published.py --cells public_cells.csv [--json docs/measured/published.json]

CELLS are published accuracies: columns source, model, dataset, protocol, metric, value. Distances are those between
samples of the datasets that could be had, or of near relatives of them (docs/measured/published_distances.csv, the
symmetric distances of `task2vec embed` with default settings and of the bundled cifar10, dtd10 and flowers102; lung
histology stands for PatchCamelyon, 15 scenes for SUN397, 15 aerial classes for RESISC45, objects for VOC 2007, ten
textures for DTD). For a dataset that is left out, the average-best model is that with the best mean of -log(error +
0.03) over the others, after the mean of each dataset. The distances add a Gaussian process to it: what is left of each
model on the others is smoothed by exp(-distance / length), with the length and the noise of the highest likelihood
without the dataset. Regret is what the chosen model lacks of the best accuracy, in points. For comparison: the model
that is best on the nearest dataset, and distances that belong to other datasets (mean over permutations).
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT)]

import numpy as np  # noqa: E402

from benchmarks.measure import make_parser, show_table, write_json  # noqa: E402

DISTANCES = _ROOT / "docs" / "measured" / "published_distances.csv"
# Our name of a dataset, and how the tables spell it, in lower case and without blanks and hyphens.
NAMES = {
    "aerial15": "resisc45",
    "caltech101": "caltech101",
    "cars196": "stanfordcars cars",
    "cifar10": "cifar10",
    "dtd10": "dtd describabletextures",
    "emotions": "fer2013",
    "flowers102": "oxfordflowersclassification oxfordflowers102 flowers102 flowers",
    "food101": "food101classification food101 food",
    "lung_histology": "patchcamelyon camelyon",
    "objects20": "voc2007 pascalvoc2007",
    "pets37": "oxfordpets oxfordiiitpet pets",
    "scenes15": "sun397",
    "traffic_signs": "gtsrb",
}
OURS = {spelling: name for name, spellings in NAMES.items() for spelling in spellings.split()}
LENGTHS, NOISES = (0.03, 0.1, 0.3, 1.0), (0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
PERMUTATIONS, FEWEST = 60, 5


def read_tables(path: Path) -> dict[str, tuple[list[str], np.ndarray]]:
    """Of every table of accuracies: its datasets, and (models, datasets) accuracies without gaps."""
    cells: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["metric"] == "accuracy" and not row["source"].startswith("V-PETL"):  # that one compares tunings
                cells[f"{row['source']}, {row['protocol']}"][row["model"], row["dataset"]] = float(row["value"])
    tables = {}
    for name, values in cells.items():
        models, datasets = (sorted({pair[side] for pair in values}) for side in (0, 1))
        table = np.array([[values.get((model, one), np.nan) for one in datasets] for model in models])
        table /= 100 if np.nanmax(table) > 1.5 else 1
        table = table[np.isfinite(table).mean(1) > 0.6]
        is_kept = np.isfinite(table).mean(0) > 0.8
        table = table[:, is_kept]
        tables[name] = (
            [one for one, kept in zip(datasets, is_kept, strict=True) if kept],
            table[np.isfinite(table).all(1)],
        )
    return tables


def choose(
    scores: np.ndarray, embedded: list[int], target: int, distances: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(models,) what the average and what the distances predict for the target; distances are of the embedded ones."""
    rows = [at for at, column in enumerate(embedded) if column != target]
    others = np.delete(scores, target, axis=1)
    others = others - others.mean(0)
    mean = others.mean(1)
    left = scores[:, [embedded[at] for at in rows]]
    left = left - left.mean(0) - mean[:, None]
    best, weights = np.inf, np.zeros(len(rows))
    for length in LENGTHS:
        likeness = np.exp(-distances / length)
        for noise in NOISES:
            kernel = likeness[np.ix_(rows, rows)] + noise * np.eye(len(rows))
            scale = (left * np.linalg.solve(kernel, left.T).T).mean()
            loss = len(left) * np.linalg.slogdet(kernel)[1] + left.size * np.log(scale)
            if loss < best:
                best, weights = loss, np.linalg.solve(kernel, likeness[rows, embedded.index(target)])
    return mean, mean + left @ weights


def find_known(datasets: list[str], known: dict[str, int]) -> dict[int, int]:
    """The columns of the datasets that distances are known of, with their places among the distances."""
    names = [OURS.get(one.lower().replace(" ", "").replace("-", ""), "") for one in datasets]
    return {column: known[name] for column, name in enumerate(names) if name in known}


def judge(accuracy: np.ndarray, embedded: list[int], distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Regrets (embedded, 4) in points: average-best, distances, nearest, full-sample average-best; correlations."""
    scores = -np.log(1 - accuracy + 0.03)
    whole = (scores - scores.mean(0)).mean(1)
    regrets, correlations = [], []
    for at, target in enumerate(embedded):
        mean, predicted = choose(scores, embedded, target, distances)
        near = embedded[int(np.argsort(distances[at], kind="stable")[1])]
        own = accuracy[:, target]
        picks = [mean, predicted, scores[:, near], whole]
        regrets.append([100 * (own.max() - own[pick.argmax()]) for pick in picks])
        rest = scores[:, target] - mean
        correlations.append(np.corrcoef(rest, predicted - mean)[0, 1] if np.ptp(predicted - mean) > 1e-9 else 0.0)
    return np.array(regrets), np.array(correlations)


def main() -> int:
    """Prints a row for every table with enough datasets that are embedded, and writes them."""
    parser = make_parser(__doc__)
    parser.add_argument("--cells", type=Path, required=True, help="CSV file of published accuracies")
    parser.add_argument("--json", type=Path, help="where to write the table")
    arguments = parser.parse_args()
    with DISTANCES.open(encoding="utf-8") as file:
        (_, *names), *rows = csv.reader(file)
    distances = np.array([[float(cell) for cell in row[1:]] for row in rows])
    known, random, found = {name: at for at, name in enumerate(names)}, np.random.default_rng(0), []
    for name, (datasets, accuracy) in read_tables(arguments.cells).items():
        columns = find_known(datasets, known)
        if min(len(accuracy), len(columns)) < FEWEST:
            continue
        embedded, places = list(columns), np.array([*columns.values()])
        regrets, correlations = judge(accuracy, embedded, distances[np.ix_(places, places)])
        orders = (random.permutation(places) for _ in range(PERMUTATIONS))
        others = [judge(accuracy, embedded, distances[np.ix_(order, order)])[0][:, 1].mean() for order in orders]
        heads = ("average-best", "distances", "nearest dataset", "average-best, full sample")
        row = {"table": name, "models": len(accuracy), "datasets": len(datasets), "embedded": len(regrets)}
        row |= dict(zip(heads, regrets.mean(0).tolist(), strict=True)) | {"permuted distances": float(np.mean(others))}
        row |= {"other choice": int((regrets[:, 0] != regrets[:, 1]).sum()), "correlation": float(correlations.mean())}
        found.append(row)
    show_table(list(found[0]) if found else [], [list(row.values()) for row in found])
    write_json(arguments.json, found, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
