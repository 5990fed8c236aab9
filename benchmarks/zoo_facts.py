"""What published tables say beyond the quality of models: zero-shot errors of a new dataset, and seconds of training.

    python benchmarks/zoo_facts.py [--json docs/measured/zoo_facts.json]

Zero-shot: the error of the best CLIP-like model (and of the best with at most 100 million parameters) on each dataset
of OpenCLIP's table but ImageNet's variants, left out in turn, is predicted by least squares on the scale of log-odds,
from what might be known of a new dataset: nothing (a constant), the number of classes, the linear error of DINOv2 on
the same images (MIEB, 16 per class), and the linear error of our own default network on a sample of them or of a near
relative (`benchmarks.published.NAMES`). The last line is what `task2vec recommend` could do: the line fitted on MIEB,
applied to our own error, moved by what the zoo says of the two networks. RMSE is in points, beside that of a constant
on the same datasets; coverage and median width are those of the 90% interval.

Seconds: docs/measured/fastai_seconds.csv has the seconds of fine-tuning on Planet that tcapelle/fastai_timm published
(fastai_timm.csv at fc5034c, median of the first three runs, of models of the zoo). Spearman correlations with them.
"""

import csv
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT)]

import numpy as np  # noqa: E402
from scipy.stats import spearmanr  # noqa: E402
from scipy.stats import t as student_t  # noqa: E402

from benchmarks.measure import MEASURED, make_parser, show_table, write_json  # noqa: E402
from benchmarks.published import NAMES  # noqa: E402
from task2vec.select.combined import COVERAGE, scale_errors, unscale  # noqa: E402
from task2vec.select.zoo import Zoo, load_zoo  # noqa: E402

DINO, OURS = "vit_base_patch14_dinov2.lvd142m", "tf_efficientnet_lite0.in1k"
CLASSES = {
    "caltech101": 102, "camelyon17": 2, "cifar10": 10, "cifar100": 100, "clevrcounts": 8, "clevrdistance": 6,
    "country211": 211, "dollarstreet": 58, "dtd": 47, "eurosat": 10, "fgvcaircraft": 100, "flowers102": 102,
    "food101": 101, "geode": 40, "gtsrb": 43, "kitti": 4, "mnist": 10, "objectnet": 113, "patchcamelyon": 2,
    "pets": 37, "renderedsst2": 2, "resisc45": 45, "stanfordcars": 196, "stl10": 10, "sun397": 397, "svhn": 10,
    "voc2007": 20,
}  # fmt: skip
SPEEDS = ("params", "gmacs", "gpu_speed", "cpu_speed")
Line = tuple[np.ndarray, np.ndarray]


def read_column(zoo: Zoo, source: str, way: str, model: str) -> dict[str, float]:
    """Errors of a model by dataset in a table, on the scale of log-odds."""
    cells = [cell for cell in zoo.cells if (cell.source, cell.model) == (source, model) and way in cell.protocol]
    return {cell.dataset: float(scale_errors(np.array(cell.error))) for cell in cells}


def find_best(zoo: Zoo, most: float) -> str:
    """The model with the lowest mean zero-shot error, on that scale, with at most so many parameters."""
    names = {cell.model for cell in zoo.cells if cell.protocol == "zero-shot"}
    names = {name for name in names if (zoo.find(name).params or np.inf) <= most}
    columns = {name: read_column(zoo, "OpenCLIP", "zero-shot", name) for name in names}
    means = {name: np.mean(list(own.values())) for name, own in columns.items() if own.keys() >= CLASSES.keys()}
    return min(means, key=lambda name: means[name])


def fit_line(known: Line, new: np.ndarray) -> np.ndarray:
    """Prediction at (P) new covariates and ends of its interval, by least squares on (N, P) known ones."""
    covariates, values = known
    slopes = np.linalg.lstsq(covariates, values, rcond=None)[0]
    free = len(values) - len(slopes)
    noise = ((values - covariates @ slopes) ** 2).sum() / free
    spread = noise * (1 + new @ np.linalg.inv(covariates.T @ covariates) @ new)
    return new @ slopes + np.array([0, -1, 1]) * student_t.ppf((1 + COVERAGE) / 2, free) * np.sqrt(spread)


def judge(truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """RMSE, coverage and median width of (N, 3) predictions with ends, in points of error."""
    truth, (middle, low, high) = unscale(truth), unscale(predicted).T
    inside = (low <= truth) & (truth <= high)
    return {
        "RMSE": 100 * float(np.sqrt(((truth - middle) ** 2).mean())),
        "coverage": float(inside.mean()),
        "width": 100 * float(np.median(high - low)),
    }


def leave_out(truth: np.ndarray, *covariates: np.ndarray) -> dict[str, float]:
    """How well each value is predicted by the others."""
    design = np.column_stack([np.ones(len(truth)), *covariates])
    others = [np.arange(len(truth)) != at for at in range(len(truth))]
    return judge(truth, np.array([fit_line((design[on], truth[on]), design[~on][0]) for on in others]))


def judge_zero_shot(zoo: Zoo, model: str) -> list[dict[str, Any]]:
    """A row for every way to predict the zero-shot error of a model."""
    truth = read_column(zoo, "OpenCLIP", "zero-shot", model)
    dino, measured = read_column(zoo, "MIEB", "linear", DINO), read_column(zoo, "task2vec", "linear", OURS)
    ours = {dataset: measured[name] for name, all_names in NAMES.items() for dataset in all_names.split()}
    counts = {dataset: float(np.log(count)) for dataset, count in CLASSES.items()}
    rows = []
    for what, known in (("classes", counts), ("DINOv2, linear", dino), ("ours, linear", ours)):
        names = [dataset for dataset in CLASSES if dataset in known]
        values, covariate = (np.array([each[name] for name in names]) for each in (truth, known))
        row = {"model": model, "from": what, "datasets": len(names), "constant": leave_out(values)["RMSE"]}
        row |= leave_out(values, covariate)
        rows.append(row | {"correlation": float(np.corrcoef(values, covariate)[0, 1])})
    shift = float(zoo.compare([DINO], [OURS], "linear")[0][0])
    found = []
    for name in names:
        others = [dataset for dataset in CLASSES if dataset in dino and dataset != name]
        design = np.array([[1, dino[dataset]] for dataset in others])
        line = (design, np.array([truth[dataset] for dataset in others]))
        found.append(fit_line(line, np.array([1, ours[name] + shift])))
    rows.append(rows[-1] | {"from": "line of DINOv2 on ours"} | judge(values, np.array(found)))
    return rows


def correlate_seconds(zoo: Zoo) -> list[dict[str, Any]]:
    """Spearman correlation of published seconds of fine-tuning with what the zoo knows of the models."""
    with (MEASURED / "fastai_seconds.csv").open(encoding="utf-8", newline="") as file:
        seconds = {row["model"]: float(row["seconds"]) for row in csv.DictReader(file)}
    rows = []
    for what in SPEEDS:
        known = {name: getattr(zoo.find(name), what) for name in seconds}
        names = [name for name, value in known.items() if value is not None]
        found = spearmanr([known[name] for name in names], [seconds[name] for name in names])
        rows.append({"what": what, "models": len(names), "Spearman": float(found.statistic)})  # type: ignore[attr-defined]
    return rows


def main() -> int:
    """Prints both tables."""
    parser = make_parser(__doc__)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    zoo = load_zoo()
    found = {
        "zero-shot": [row for most in (100e6, np.inf) for row in judge_zero_shot(zoo, find_best(zoo, most))],
        "seconds": correlate_seconds(zoo),
    }
    for rows in found.values():
        show_table(list(rows[0]), [list(row.values()) for row in rows])
    write_json(arguments.json, found, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
