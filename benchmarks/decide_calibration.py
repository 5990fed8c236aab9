"""How often the intervals, ties and learning curves of measured models hold, on real images.

Every dataset is divided into two halves, by class and with near copies on one side. Each half is measured as a user
would measure it (held-out losses of linear heads on it, in folds), and the other half is the truth: the error there of
a head that was fitted to the whole measured half.

- Interval: the truth is a sample, too, so a case holds if the two errors differ by no more than the reach of the
  interval and that of the truth's own sampling (1.96 standard errors), added in squares. "literal" ignores the latter:
  a perfect interval for the error on all images like these would then hold in about 83 of 100 cases.
- Tie: whether it contains the model with the lowest error on the other half.
- Learning curve: the drop of the error that is predicted for twice the images, from a half of them, beside the drop
  from a half to all that is measured with all of them.

It also prints errors by the heads' penalty, for all images and for a third.

Networks see images of 48 to 112 pixels, so that it takes minutes; features are kept in --cache.

    python -m benchmarks.decide_calibration [--shared FOLDER] [--cache FOLDER] [--json docs/measured/decide.json]
"""

import argparse
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file

from benchmarks.measure import make_parser, write_json
from task2vec.errors import DataError
from task2vec.head import predict_held_out, to_onehot
from task2vec.head.problem import compress, make_problem
from task2vec.probe import Preprocess, Probe
from task2vec.select.decide import decide, find_interval, find_spread
from task2vec.select.learning_curve import FADING, describe, measure_losses
from task2vec.select.measure import PENALTY, Folds, Measurements
from task2vec.tasks.images import find_near_copies, make_signature
from task2vec.tasks.sampling import rank_within

NETWORKS = (
    ("tf_efficientnet_lite0", 112),
    ("tf_efficientnet_lite0", 64),
    ("resnet34", 64),
    ("mobilenet_v2", 112),
    ("mobilenet_v2", 64),
    ("vgg16_features", 48),
)
SIX = ("cub200", "flowers102", "dogs", "clothing10", "dtd10", "cifar10")
PENALTIES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
# Of each dataset so many classes, drawn at random, and so many images in all.
CLASSES, IMAGES = 20, 320


@dataclass(frozen=True)
class Dataset:
    """Labels, groups of near copies and the features of each network."""

    name: str
    targets: np.ndarray
    groups: np.ndarray
    features: dict[str, np.ndarray]

    @property
    def half(self) -> np.ndarray:
        """(n,) which half each image is in: every other group of a class."""
        first = np.unique(self.groups, return_index=True)[1]
        return (rank_within(self.targets[first]) % 2)[self.groups]

    def choose(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Targets, groups and the number of classes of some images, numbered from 0 on."""
        targets, groups = (np.unique(a[rows], return_inverse=True)[1] for a in (self.targets, self.groups))
        return targets, groups, int(targets.max()) + 1


def load_networks(weights: Path) -> dict[str, Probe]:
    """The networks that are here, at small sizes."""
    from experiments.metatask.measure import load_network

    probes = {}
    for name, size in NETWORKS:
        is_fixed = name == "vgg16_features"
        probe = load_network(name, weights, size=None if is_fixed else size)
        look = probe.preprocess
        assert isinstance(look, Preprocess)
        if is_fixed:
            probe = replace(probe, preprocess=replace(look, size=(size, size), resize=round(size * 8 / 7)))
        probes[f"{name} {size}"] = probe
    return probes


def read_datasets(shared: Path, cache: Path) -> Iterator[Dataset]:
    """The datasets with their features, computed if they are not in the cache."""
    data, probes = shared / "data", {}
    folders = [path for kind in ("domains", "public") for path in sorted((data / kind).iterdir()) if path.is_dir()]
    named = {path.name: path for path in folders} | {name: data / name / "images" for name in SIX}
    for name, folder in named.items():
        file = cache / f"{name}.safetensors"
        if not file.exists():
            probes = probes or load_networks(shared / "weights")
            save_file(extract(folder, probes), file)
        arrays = load_file(file)
        targets, groups = arrays.pop("targets"), np.unique(arrays.pop("groups"), return_inverse=True)[1]
        order = np.random.default_rng(1).permutation(len(targets))  # files of a class are often in a row
        groups = np.unique(groups[order], return_inverse=True)[1]
        yield Dataset(name, targets[order], groups, {key: a[order].astype(np.float32) for key, a in arrays.items()})


@torch.inference_mode()
def extract(folder: Path, probes: dict[str, Probe]) -> dict[str, np.ndarray]:
    """Labels, near copies and features of the images of a folder."""
    kinds = sorted(path for path in folder.iterdir() if path.is_dir())
    if len(kinds) > CLASSES:
        kinds = [kinds[row] for row in sorted(np.random.default_rng(0).choice(len(kinds), CLASSES, replace=False))]
    most = max(12, IMAGES // len(kinds))
    files = [(file, row) for row, kind in enumerate(kinds) for file in sorted(kind.iterdir())[:most]]
    images, groups = [Image.open(file).convert("RGB") for file, _ in files], np.arange(len(files))
    for first, *others in find_near_copies(np.stack([make_signature(image) for image in images])):
        groups[others] = groups[first]
    arrays = {"targets": np.array([row for _, row in files]), "groups": groups}
    for name, probe in probes.items():
        network, features = probe.prepare().module, []
        for start in range(0, len(images), 4):
            pixels = torch.stack([probe.preprocess(image) for image in images[start : start + 4]])
            features.append(network(probe.preprocess.normalise(pixels, torch.float32)))
        arrays[name] = torch.cat(features).numpy().astype(np.float16)
    return arrays


def find_truth(dataset: Dataset, name: str, is_train: np.ndarray) -> np.ndarray:
    """(images,) whether a head fitted to some images is wrong about the others."""
    classes = int(dataset.targets.max()) + 1
    onehot = to_onehot(torch.from_numpy(dataset.targets), classes, is_multilabel=False)[None]
    weights = torch.from_numpy(is_train / is_train.sum())[None]
    problem, _ = compress(make_problem(torch.from_numpy(dataset.features[name]), onehot, weights, is_multilabel=False))
    task = torch.zeros(1, dtype=torch.long)
    solution = problem.solve(weights, torch.tensor([PENALTY]), task, tolerance=1e-4, max_steps=300)[0]
    predicted = problem.logits(solution, task)[0].argmax(1).numpy()
    return (predicted != dataset.targets)[~is_train].astype(float)


def count_images(groups: np.ndarray) -> float:
    """How many images there are, where copies count once."""
    sizes = np.unique(groups, return_counts=True)[1]
    return len(groups) ** 2 / float(np.square(sizes).sum())


def judge_half(dataset: Dataset, is_train: np.ndarray) -> tuple[list[dict], dict]:
    """Whether the interval of each model holds, and the tie, measured on some images and judged on the others."""
    targets, groups, classes = dataset.choose(is_train)
    folds = Folds(targets, groups, classes=classes)
    names = tuple(dataset.features)
    losses = np.stack([folds.judge(torch.from_numpy(dataset.features[name][is_train])) for name in names], axis=1)
    truth = np.stack([find_truth(dataset, name, is_train) for name in names], axis=1)
    measured = Measurements(np.arange(len(losses)), groups, names, losses, len(losses))
    decision, rows, is_judged = decide(measured, {}), [], measured.is_judged
    for column, name in enumerate(names):
        error, low, high = find_interval(losses[is_judged, column], groups[is_judged])
        true = truth[:, column].mean()
        noise = 1.96 * math.sqrt(max(true * (1 - true), 1e-3) / count_images(dataset.groups[~is_train]))
        reach = math.hypot(noise, high - error if true > error else error - low)
        case = {"dataset": dataset.name, "model": name, "error": error, "true": true}
        rows.append(case | {"holds": bool(abs(true - error) <= reach), "literal": bool(low <= true <= high)})
    means = truth.mean(0)
    best = {name for name, mean in zip(names, means, strict=True) if mean == means.min()}
    regret = float(means[names.index(decision.tie[0])] - means.min())
    has_best = bool(best & set(decision.tie))
    return rows, {"dataset": dataset.name, "has_best": has_best, "size": len(decision.tie), "regret": regret}


def judge_curve(dataset: Dataset, name: str, is_train: np.ndarray, whole: np.ndarray) -> dict:
    """The predicted drop from some images to twice as many, and the measured one."""
    targets, groups, classes = dataset.choose(is_train)
    losses = measure_losses(torch.from_numpy(dataset.features[name][is_train]), Folds(targets, groups, classes=classes))
    is_judged = ~np.isnan(losses).any(0)
    losses, measured = losses[:, is_judged], np.nanmean(whole, axis=1)
    drop, spread = float((losses[1] - losses[2]).mean()), find_spread(losses[1] - losses[2], groups[is_judged])
    has_number = describe(drop, spread).startswith("Still falling")
    true = float(measured[0] - measured[1])
    return {"predicted": FADING * drop, "true": true, "has_number": has_number, "images": int(is_train.sum())}


def compare_penalties(dataset: Dataset, share: float) -> list[list[tuple[float, float]]]:
    """For three networks, the held-out error and loss by penalty, on a share of the images."""
    is_chosen = (np.random.default_rng(0).random(dataset.groups.max() + 1) < share)[dataset.groups]
    targets, groups, classes = dataset.choose(is_chosen)
    labels, rows = torch.from_numpy(targets), []
    for name in list(dataset.features)[::2]:
        features, row = torch.from_numpy(dataset.features[name][is_chosen]), []
        for penalty in PENALTIES:
            options = {"classes": classes, "penalty": penalty, "balance": False, "groups": torch.from_numpy(groups)}
            p, votes, is_judged = predict_held_out(features, labels, **options)
            true, right = (a.gather(1, labels[:, None])[is_judged, 0] for a in (p, votes))
            row.append((1 - float(right.mean()), -float(true.clamp_min(1e-6).log().mean())))
        rows.append(row)
    return rows


def summarise(cases: list[dict], ties: list[dict], curves: list[dict], penalties: dict[float, list]) -> dict:
    """The figures that count."""
    numbers = [curve for curve in curves if curve["has_number"]]
    ratios = np.array([curve["predicted"] / max(curve["true"], 1e-9) for curve in numbers])
    by_penalty = {}
    for share, rows in penalties.items():
        errors, losses = np.moveaxis(np.array(rows), -1, 0)
        chosen = errors[np.arange(len(errors)), losses.argmin(1)].mean()
        means = {str(penalty): round(mean, 4) for penalty, mean in zip(PENALTIES, errors.mean(0).tolist(), strict=True)}
        by_penalty[str(share)] = means | {"chosen by held-out loss": round(float(chosen), 4)}
    return {
        "datasets": len({case["dataset"] for case in cases}),
        "cases": len(cases),
        "interval holds": round(float(np.mean([case["holds"] for case in cases])), 3),
        "interval holds, literally": round(float(np.mean([case["literal"] for case in cases])), 3),
        "measured above true": round(float(np.mean([case["error"] - case["true"] for case in cases])), 4),
        "ties": len(ties),
        "tie has the best": round(float(np.mean([tie["has_best"] for tie in ties])), 3),
        "models in a tie": round(float(np.mean([tie["size"] for tie in ties])), 2),
        "regret of the lowest error": round(float(np.mean([tie["regret"] for tie in ties])), 4),
        "curves": len(curves),
        "curves with a number": round(len(numbers) / len(curves), 3),
        "number within a factor of two": round(float(np.mean((ratios >= 0.5) & (ratios <= 2))), 3),
        "errors by penalty": by_penalty,
    }


def main(arguments: argparse.Namespace) -> None:
    """All datasets, both ways round."""
    torch.set_num_threads(1)
    cases, ties, curves = [], [], []
    penalties: dict[float, list] = {1.0: [], 0.3: []}
    arguments.cache.mkdir(parents=True, exist_ok=True)
    for dataset in read_datasets(arguments.shared, arguments.cache):
        whole, groups, classes = dataset.choose(np.ones(len(dataset.targets), dtype=bool))
        folds, half = Folds(whole, groups, classes=classes), dataset.half
        larger = {
            name: measure_losses(torch.from_numpy(dataset.features[name]), folds, (2, 1))
            for name in list(dataset.features)[::2]
        }
        for side in (0, 1):
            try:
                rows, tie = judge_half(dataset, half == side)
                curves += [judge_curve(dataset, name, half == side, losses) for name, losses in larger.items()]
            except DataError as error:
                print(f"{dataset.name}: {error}")
                continue
            cases, ties = cases + rows, [*ties, tie]
        for share, rows_of_share in penalties.items():
            rows_of_share += compare_penalties(dataset, share)
        print(dataset.name, f"{np.mean([case['holds'] for case in cases]):.3f} of intervals hold so far", flush=True)
    summary = summarise(cases, ties, curves, penalties)
    for name, value in summary.items():
        print(f"{name}: {value}")
    write_json(arguments.json, summary)


if __name__ == "__main__":
    parser = make_parser(__doc__, has_shared=True)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "task2vec-calibration")
    parser.add_argument("--json", type=Path)
    main(parser.parse_args())
