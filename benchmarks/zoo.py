"""Which model does the zoo choose for a dataset that no table knows, and how much does that lose?

    python benchmarks/zoo.py --cells public_cells.csv [--json docs/measured/zoo.json]

CELLS are published accuracies, as `experiments/zoo.py` reads them; models that cannot be loaded by name take part here,
too. Each dataset is left out of all tables, under all its names, variances are fitted without it, and the model is
chosen that `task2vec.select.zoo` predicts the lowest error for. Regret is what the choice lacks of the best accuracy in
the table, in points. For comparison: the model with the best ImageNet accuracy (in the table itself where it has one,
else as timm reports it), the model that is best on average over the other datasets of the table, by log-odds of errors,
by accuracy and by rank, and a random one. Coverage is the share of models whose value on the scale of log-odds, after
the mean of all, lies in the 90% interval.

Most of the zoo is in no table. So models are left out as well, an eighth at a time, everywhere: how well does the
predicted quality correlate with the measured mean of each in its table, and how well does ImageNet accuracy (of those
that have results)? Coverage is the share of their errors within the 90% interval, given how hard the datasets are.
Here only models that load by name take part.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT)]

import numpy as np  # noqa: E402

from benchmarks.measure import make_parser, show_table, write_json  # noqa: E402
from experiments.zoo import fit_variances, read_cells  # noqa: E402
from task2vec.select.combined import scale_errors  # noqa: E402
from task2vec.select.zoo import Cell, Zoo, ZooModel, find_way, load_zoo  # noqa: E402

FEWEST, SHARE, NORMAL, STEPS, PARTS = 5, 0.6, 1.645, 3, 8


def read_tables(path: Path) -> Zoo:
    """The zoo with all cells, and with all models that have some; its variances fitted on them."""
    zoo, cells = load_zoo(), defaultdict(list)
    known = set(zoo.numbers)
    for cell in read_cells(path, known, Counter()):
        model = cell["model"] or f"{cell['source'].partition(' group')[0]}/{cell['original']}"
        cells[cell["source"], cell["protocol"], cell["dataset"], model].append(cell["error"])
    every = tuple(Cell(*key, float(np.mean(errors))) for key, errors in cells.items())
    others = tuple(ZooModel(name) for name in sorted({cell.model for cell in every} - known))
    both = replace(zoo, models=zoo.models + others, cells=every)
    return replace(both, variances=fit_variances(both))


def average(cells: Sequence[Cell], names: Sequence[str], scores: np.ndarray) -> np.ndarray:
    """(models) mean scores of models over datasets, after the means of these; gaps are filled by both means."""
    datasets = sorted({cell.dataset for cell in cells})
    table = np.full((len(names), len(datasets)), np.nan)
    for cell, score in zip(cells, scores, strict=True):
        table[names.index(cell.model), datasets.index(cell.dataset)] = score
    means = np.zeros(len(names))
    for _ in range(30):
        means = np.nanmean(table - np.nanmean(table - means[:, None], axis=0), axis=1)
    return means


def judge(zoo: Zoo, dataset: str) -> list[dict[str, Any]]:
    """A row for every table that has the dataset."""
    left = tuple(cell for cell in zoo.cells if cell.dataset != dataset)
    without = replace(zoo, cells=left)
    without = replace(without, variances=fit_variances(without, zoo.variances, steps=STEPS))
    rows = []
    for table in sorted({cell.table for cell in zoo.cells if cell.dataset == dataset}):
        others = [cell for cell in left if cell.table == table]
        counts, datasets = Counter(cell.model for cell in others), {cell.dataset for cell in others}
        targets = [cell for cell in zoo.cells if (cell.table, cell.dataset) == (table, dataset)]
        targets = [cell for cell in targets if counts[cell.model] >= SHARE * len(datasets)]
        if min(len(targets), len(datasets) + 1) < FEWEST:
            continue
        names, errors = [cell.model for cell in targets], np.array([cell.error for cell in targets])
        others = [cell for cell in others if cell.model in set(names)]
        values = np.array([cell.error for cell in others])
        numbers, way = np.array([zoo.numbers[name] for name in names]), find_way(targets[0].protocol)
        mean, spread = without.posterior.predict(numbers, way, table)
        centre = np.eye(len(names)) - 1 / len(names)
        spread = centre @ (spread + without.variances.noise[table] * np.eye(len(names))) @ centre
        away = centre @ (scale_errors(errors) - mean)
        own = {cell.model: 1 - cell.error for cell in others if cell.dataset == "imagenet"}
        imagenet = np.array([own.get(name, zoo.find(name).imagenet) for name in names], dtype=float)
        choices = {
            "zoo": mean,
            "average-best": average(others, names, scale_errors(values)),
            "by accuracy": average(others, names, values),
            "by rank": average(others, names, _rank(others)),
            "ImageNet": np.where(np.isfinite(imagenet), -imagenet, np.inf),
        }
        regret = {how: 100 * float(errors[score.argmin()] - errors.min()) for how, score in choices.items()}
        if not np.isfinite(imagenet).any():
            del regret["ImageNet"]
        row = {"table": table, "dataset": dataset, "models": len(names), **regret}
        row |= {"random": 100 * float(errors.mean() - errors.min())}
        row |= {"coverage": float((np.abs(away) <= NORMAL * np.sqrt(np.diag(spread))).mean())}
        rows.append(row)
    return rows


def _rank(cells: Sequence[Cell]) -> np.ndarray:
    """(cells) places of models on the datasets of a table, from 0 for the best to 1."""
    ranks, datasets = np.empty(len(cells)), np.array([cell.dataset for cell in cells])
    errors = np.array([cell.error for cell in cells])
    for dataset in set(datasets.tolist()):
        own = np.flatnonzero(datasets == dataset)
        ranks[own] = errors[own].argsort(kind="stable").argsort() / max(len(own) - 1, 1)
    return ranks


def judge_models(zoo: Zoo) -> list[dict[str, Any]]:
    """A row for every table: how well the qualities of models are predicted whose cells are left out everywhere."""
    names = sorted({cell.model for cell in zoo.cells})
    parts = dict(zip(np.random.default_rng(0).permutation(names).tolist(), np.arange(len(names)) % PARTS, strict=True))
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    inside: dict[str, list[bool]] = defaultdict(list)
    for part in range(PARTS):
        left = replace(zoo, cells=tuple(cell for cell in zoo.cells if parts[cell.model] != part))
        left = replace(left, variances=fit_variances(left, zoo.variances, steps=STEPS))
        posterior = left.posterior
        hard = dict(zip(posterior.columns, posterior.shared, strict=False))
        own: dict[tuple[str, str], list[float]] = defaultdict(list)
        for cell in zoo.cells:
            if parts[cell.model] == part and (cell.table, cell.dataset) in hard:
                own[cell.table, cell.model].append(float(scale_errors(cell.error)) - hard[cell.table, cell.dataset])
        for (table, name), values in own.items():
            way = find_way(table.partition(", ")[2])
            mean, spread = posterior.predict(np.array([zoo.numbers[name]]), way, table)
            width = NORMAL * np.sqrt(spread[0, 0] + left.variances.noise[table])
            inside[table] += (np.abs(np.array(values) - mean[0]) <= width).tolist()
            found[table].append((np.mean(values), mean[0], -(zoo.find(name).imagenet or np.nan)))
    rows = []
    for table, each in sorted(found.items()):
        measured, predicted, imagenet = np.array(each).T
        has = np.isfinite(imagenet)
        row = {"table": table, "models": len(each), "zoo": float(np.corrcoef(measured, predicted)[0, 1])}
        row["coverage"] = float(np.mean(inside[table]))
        if has.sum() >= FEWEST:
            row |= {
                "with results": int(has.sum()),
                "zoo, of these": float(np.corrcoef(measured[has], predicted[has])[0, 1]),
            }
            row["ImageNet"] = float(np.corrcoef(measured[has], imagenet[has])[0, 1])
        rows.append(row)
    return rows


def main() -> int:
    """Prints the means of every table, and writes them with all rows."""
    parser = make_parser(__doc__)
    parser.add_argument("--cells", type=Path, required=True, help="CSV file of published accuracies")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    zoo = read_tables(arguments.cells)
    # Of ImageNet and its variants the ImageNet accuracy is the answer, or nearly so.
    datasets = sorted({cell.dataset for cell in zoo.cells if "imagenet" not in cell.dataset})
    rows = [row for dataset in datasets for row in judge(zoo, dataset)]
    heads = ["zoo", "average-best", "by accuracy", "by rank", "ImageNet", "random", "coverage"]
    means = []
    for table in sorted({row["table"] for row in rows}):
        own = [row for row in rows if row["table"] == table]
        mean = {head: float(np.mean([row[head] for row in own if head in row])) for head in heads if head in own[0]}
        means.append({"table": table, "models": max(row["models"] for row in own), "datasets": len(own), **mean})
    left_out = judge_models(load_zoo())
    for each in (means, left_out):
        head = list(dict.fromkeys(name for row in each for name in row))
        show_table(head, [[row.get(name, "") for name in head] for row in each])
    found = {"variances": zoo.variances._asdict(), "means": means, "models left out": left_out, "rows": rows}
    write_json(arguments.json, found, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
