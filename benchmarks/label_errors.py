"""Wrong labels on real images: are they found, and are as many suspects wrong as the report expects?

    python benchmarks/label_errors.py --data DIR [--cache DIR] [--cleanlab PYTHON] [--out FILE]

DIR holds datasets (DATASET/images/CLASS/FILE or DATASET/CLASS/FILE), some of them in DIR/domains and DIR/public. 300
images of each are judged, with the features of the default probe. The constants of `task2vec.audit.labels` were chosen
on those in DIR/domains ("in choice"), so the others check them: of these, which are larger, up to 400 images, the same
number of at most 20 classes.

2, 5 and 10% of the labels are replaced, by any other class ("random") or by the class whose mean features are most
similar ("similar"), three times each. cleanlab's scores are those of the heads' probabilities, on the same images;
PYTHON is an interpreter that has cleanlab, by default this one. Average precision and the share of wrong labels among
the first ten are means over the draws of a dataset; differences are tested over datasets, by 100,000 changes of their
signs. The labels of the datasets themselves count as right, so that their own errors make suspects look worse.
"""

import json
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402
from sklearn.metrics import average_precision_score  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks.measure import MEASURED, describe_machine, make_parser, show_table, write_json  # noqa: E402
from task2vec.audit.labels import PENALTY, LabelJudgement, judge_labels  # noqa: E402
from task2vec.experts.error_matrix import compute_features  # noqa: E402
from task2vec.head import predict_held_out  # noqa: E402
from task2vec.select.measure import DecodedImages  # noqa: E402

KINDS, RATES, SEEDS = ("random", "similar"), (0.02, 0.05, 0.1), 3
MOST_IMAGES, MOST_OF_LARGE, MOST_CLASSES = 300, 400, 20
FIRST = 10
SIGN_FLIPS = 100_000
FACTOR = 1.5
SCORES = ("normalized_margin", "confidence_weighted_entropy", "adjusted_self_confidence")
# Reads a line of probabilities and labels for every dataset, and writes one of cleanlab's scores.
CLEANLAB = """
import json, sys
import numpy as np
from cleanlab.rank import get_label_quality_scores as score
methods = [(name, name.removeprefix("adjusted_")) for name in sys.argv[1:]]
for line in sys.stdin:
    scores = []
    for p, given in json.loads(line):
        given, p = np.array(given), np.array(p)
        scores.append({name: score(given, p, method=m, adjust_pred_probs=m != name).tolist() for name, m in methods})
    print(json.dumps(scores), flush=True)
"""


def find_folders(data: Path) -> dict[str, Path]:
    """The folder of classes of every dataset below `data`, by name."""
    parents = [parent for parent in (data, data / "domains", data / "public") if parent.is_dir()]
    datasets = [path for parent in parents for path in sorted(parent.iterdir()) if path.is_dir()]
    datasets = [path for path in datasets if path.name not in ("domains", "public")]
    return {path.name: path / "images" if (path / "images").is_dir() else path for path in datasets}


def is_in_choice(folder: Path) -> bool:
    """Whether the constants were chosen on a dataset."""
    return "domains" in (folder.parent.name, folder.parents[1].name)


def choose_images(task: t2v.Task, is_small: bool) -> t2v.Task:
    """Some images of a task: any, or of a large one the same number of some classes."""
    rng = np.random.default_rng(0)
    if is_small:
        return task.subset(np.sort(rng.permutation(len(task))[:MOST_IMAGES]))
    classes = np.sort(rng.permutation(len(task.classes))[:MOST_CLASSES])
    of_class = [rng.permutation(np.flatnonzero(task.targets == label)) for label in classes]
    return task.subset(np.sort(np.concatenate([rows[: MOST_OF_LARGE // len(classes)] for rows in of_class])))


def read_features(folder: Path, cache: Path | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels and groups of copies of some images of a dataset, also kept in the folder `cache`."""
    file = None if cache is None else cache / f"{folder.parent.name}-{folder.name}.safetensors"
    if file is not None and file.exists():
        kept = load_file(file)
        return kept["features"], kept["labels"], kept["groups"]
    task = choose_images(t2v.read_folder(folder), is_in_choice(folder))
    features = compute_features(t2v.load_probe(), task.images, device="cpu").numpy()
    groups = DecodedImages(task.images).group(np.arange(len(task)), task.digests)
    labels = np.unique(task.targets, return_inverse=True)[1]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({"features": features, "labels": labels, "groups": groups}, file)
    return features, labels, groups


def replace_labels(features: np.ndarray, labels: np.ndarray, kind: str, rate: float, seed: int) -> np.ndarray:
    """The labels with a part of them wrong."""
    rng, given, classes = np.random.default_rng(seed), labels.copy(), int(labels.max()) + 1
    rows = rng.permutation(len(labels))[: round(rate * len(labels))]
    if kind == "random":
        given[rows] = (labels[rows] + rng.integers(1, classes, len(rows))) % classes
        return given
    means = np.stack([features[labels == label].mean(0) for label in range(classes)]) - features.mean(0)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    cosine = means @ means.T
    np.fill_diagonal(cosine, -2)
    given[rows] = cosine.argmax(1)[labels[rows]]
    return given


def judge(features: np.ndarray, given: np.ndarray, groups: np.ndarray) -> tuple[LabelJudgement, np.ndarray]:
    """What we say about the labels, and the (n, c) probabilities of the linear heads for cleanlab."""
    classes = int(given.max()) + 1
    x, y, copies = torch.from_numpy(features), torch.from_numpy(given), torch.from_numpy(groups)
    p, _, _ = predict_held_out(x, y, classes=classes, penalty=PENALTY, groups=copies)
    p = p.double().numpy()
    return judge_labels(features, given, classes=classes, groups=groups), p / p.sum(1, keepdims=True)


def score_by_cleanlab(process: subprocess.Popen[str], draws: list[Any]) -> list[dict[str, np.ndarray]]:
    """How suspicious cleanlab finds the labels, for the probabilities and labels of every draw."""
    assert process.stdin is not None and process.stdout is not None
    print(json.dumps(draws), file=process.stdin, flush=True)
    return [
        {name: -np.array(scores) for name, scores in found.items()} for found in json.loads(process.stdout.readline())
    ]


def measure_dataset(folder: Path, cache: Path | None, cleanlab: subprocess.Popen[str] | None) -> list[dict[str, Any]]:
    """A row for every kind of wrong labels and rate; sums and means over the draws."""
    features, labels, groups = read_features(folder, cache)
    cases = [("none", 0.0, 0)] + [(kind, rate, seed) for kind in KINDS for rate in RATES for seed in range(SEEDS)]
    given = [labels, *(replace_labels(features, labels, *case) for case in cases[1:])]
    judged = [judge(features, labels, groups) for labels in given]
    others = [{}] * len(cases)
    if cleanlab is not None:
        draws = [(p.tolist(), labels.tolist()) for (_, p), labels in zip(judged, given, strict=True)]
        others = score_by_cleanlab(cleanlab, draws)
    rows: dict[tuple[str, float], dict[str, Any]] = {}
    for (kind, rate, _), drawn, (judgement, _), scores in zip(cases, given, judged, others, strict=True):
        is_wrong, chosen = drawn != labels, list(judgement.suspects)
        figures = {"suspects": len(chosen), "expected": judgement.chance[chosen].sum(), "wrong": is_wrong[chosen].sum()}
        if is_wrong.any():
            is_judged = ~np.isnan(judgement.score)
            for score, values in ({"ours": judgement.score} | scores).items():
                values, wrong = values[is_judged], is_wrong[is_judged]
                figures[f"area {score}"] = average_precision_score(wrong, values) / SEEDS
                figures[f"first {score}"] = wrong[np.argsort(-values, kind="stable")[:FIRST]].mean() / SEEDS
        row = rows.setdefault((kind, rate), {"labels": kind, "rate": rate, "images": len(labels)})
        for key, value in figures.items():
            row[key] = row.get(key, 0) + float(value)
    return [{key: round(value, 6) if key != "labels" else value for key, value in row.items()} for row in rows.values()]


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over datasets, and differences from cleanlab: of each kind, at each rate and at all."""
    summary = []
    for is_choice, kind, rate in product((True, False), KINDS, (None, *RATES)):
        chosen = [row for row in rows if (row["is in choice"], row["labels"]) == (is_choice, kind)]
        chosen = [row for row in chosen if rate is None or row["rate"] == rate]
        names = sorted({str(row["dataset"]) for row in chosen})
        if not names:
            continue
        line: dict[str, Any] = {"is in choice": is_choice, "labels": kind, "rate": f"{rate:.0%}" if rate else "all"}
        line["datasets"] = len(names)
        keys = [key for key in chosen[0] if key.startswith(("area", "first"))]
        means = {
            key: np.array([np.mean([row[key] for row in chosen if row["dataset"] == name]) for name in names])
            for key in keys
        }
        line |= {key: round(float(values.mean()), 4) for key, values in means.items()}
        for key in [key for key in keys if not key.endswith("ours")]:
            lead = means[key.split()[0] + " ours"] - means[key]
            figures = lead.mean(), lead.std(ddof=1) / len(lead) ** 0.5, flip_signs(lead)
            named = zip(("lead", "error", "p"), figures, strict=True)
            line |= {f"{what} over {key}": round(float(figure), 5) for what, figure in named}
        summary.append(line | summarise_expected(chosen, names, rate is None))
    return summary


def summarise_unchanged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Suspects of the datasets as they are."""
    summary = []
    for is_choice in (True, False):
        chosen = [row for row in rows if (row["is in choice"], row["labels"]) == (is_choice, "none")]
        line: dict[str, Any] = {"is in choice": is_choice, "datasets": len(chosen)}
        line |= {key: round(sum(row[key] for row in chosen), 1) for key in ("images", "suspects", "expected")}
        summary.append(line | {"datasets with suspects": sum(row["suspects"] > 0 for row in chosen)})
    return summary


def flip_signs(differences: np.ndarray) -> float:
    """The two-sided p of a mean of `differences` that is zero, if their signs mean nothing."""
    signs = np.random.default_rng(0).choice([-1, 1], size=(SIGN_FLIPS, len(differences)))
    is_as_large = np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12
    return float((1 + is_as_large.sum()) / (1 + SIGN_FLIPS))


def summarise_expected(rows: list[dict[str, Any]], names: list[str], is_pooled: bool) -> dict[str, Any]:
    """How many suspects were expected to be wrong, how many are, and for which share of the datasets that agrees."""
    sums = {key: np.array([row[key] for row in rows], dtype=float) for key in ("suspects", "expected", "wrong")}
    if is_pooled:  # all rates of a dataset together
        of = np.array([names.index(str(row["dataset"])) for row in rows])
        sums = {key: np.bincount(of, values) for key, values in sums.items()}
    has_suspects = sums["suspects"] > 0
    expected, wrong = sums["expected"][has_suspects], sums["wrong"][has_suspects]
    is_near = (expected <= FACTOR * wrong) & (wrong <= FACTOR * expected)
    return {
        "precision expected": round(float(expected.sum() / sums["suspects"].sum()), 4),
        "precision": round(float(wrong.sum() / sums["suspects"].sum()), 4),
        "datasets with suspects": int(has_suspects.sum()),
        "within factor": round(float(is_near.mean()), 4),
        "too high": round(float((expected > FACTOR * wrong).mean()), 4),
        "too low": round(float((wrong > FACTOR * expected).mean()), 4),
    }


def measure_time(folders: dict[str, Path], cache: Path | None) -> dict[str, float]:
    """Seconds of one thread for 1,000 images of 20 classes, joined from all datasets, and for a pass over as many."""
    parts = [read_features(folder, cache)[:2] for folder in list(folders.values())[:4]]
    features = np.concatenate([features for features, _ in parts])[:1000]
    labels = np.concatenate([labels + 100 * number for number, (_, labels) in enumerate(parts)])[:1000]
    labels = np.unique(labels, return_inverse=True)[1] % 20
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    start = time.process_time()
    judge_labels(features, labels, classes=20, groups=np.arange(len(labels)))
    judging = time.process_time() - start
    task = t2v.read_folder(max(folders.values(), key=is_in_choice))
    task, probe = task.subset(np.linspace(0, len(task) - 1, 64).astype(int)), t2v.load_probe()
    start = time.process_time()
    compute_features(probe, task.images, device="cpu", num_workers=1)
    seconds = (time.process_time() - start) / len(task) * len(labels)
    torch.set_num_threads(threads)
    figures = {"images": len(labels), "judging": judging, "pass": seconds, "share": judging / seconds}
    return {key: round(value, 4) for key, value in figures.items()}


def main() -> int:
    """Prints the tables, and writes them."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of datasets")
    parser.add_argument("--cache", type=Path, help="folder where features are kept for the next run")
    parser.add_argument("--cleanlab", default=sys.executable, metavar="PYTHON", help="interpreter that has cleanlab")
    parser.add_argument("--out", type=Path, default=MEASURED / "label_errors.json", help="JSON file of the figures")
    arguments = parser.parse_args()
    folders = find_folders(arguments.data)
    if not folders:
        sys.exit(f"{arguments.data} has no datasets, so nothing can be measured. Name a folder that has: --data DIR")
    python, cleanlab = arguments.cleanlab, None
    if subprocess.run([python, "-c", "import cleanlab"], capture_output=True, check=False).returncode:
        print(f"{python} has no cleanlab, so nothing is compared with it. Name one that has: --cleanlab PYTHON")
    else:
        command = [python, "-c", CLEANLAB, *SCORES]
        cleanlab = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    rows = []
    for name, folder in folders.items():
        about = {"dataset": name, "is in choice": is_in_choice(folder)}
        rows += [about | row for row in measure_dataset(folder, arguments.cache, cleanlab)]
        print(name, flush=True)
    if cleanlab is not None:
        cleanlab.communicate()
    summary, unchanged = summarise(rows), summarise_unchanged(rows)
    for table in (summary, unchanged):
        header = [key for key in table[0] if " over " not in key and not key.startswith("first")]
        show_table(header, [[row[key] for key in header] for row in table])
    times = measure_time(folders, arguments.cache)
    story = {
        "machine": describe_machine(),
        "times": times,
        "summary": summary,
        "unchanged": unchanged,
        "datasets": rows,
    }
    write_json(arguments.out, story, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
