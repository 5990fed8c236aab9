"""Label issues and near copies on real images: how many planted ones are found, and how many others?

    python benchmarks/report.py --data DIR [--size 112] [--json docs/measured/report.json]

DIR holds datasets (DATASET/images/CLASS/FILE or DATASET/CLASS/FILE), some of them in DIR/domains and DIR/public.

Labels: up to 40 classes and 800 images of each dataset, of which a part gets another label at random, three times. The
area under the precision-recall curve of the score, and precision and recall of what is suspected, beside those of
cleanlab on the same probabilities, if it is installed. "Suspected" is the part of all images; without wrong labels
(rate 0) it should be small.

Copies: of every dataset 300 images and 30 copies of each kind. Recall is the part of them that is found with their
original; precision is the part of them among all pairs that are found. The 300 have pairs of their own in some
datasets. By eye, nearly all are right, if not planted: slices of one scan (brain_mri), one fruit, leaf or tile
photographed again (fruits15, plant_disease, tile_defects), frames of one sign (traffic_signs), one piece of rubbish
(trash), one photograph twice (dogs); but also one in two styles (stylised16) and a drawing in two versions (objects20).
Hence precision is given with these pairs as wrong, and without them.
"""

import io
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image, ImageEnhance, ImageOps  # noqa: E402
from sklearn.metrics import average_precision_score  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks.measure import describe_machine, make_parser, show_table, write_json  # noqa: E402
from task2vec.audit.copies import find_copies, make_signature  # noqa: E402
from task2vec.audit.labels import find_label_issues  # noqa: E402
from task2vec.experts.error_matrix import compute_features  # noqa: E402
from task2vec.head import predict_held_out  # noqa: E402

DATASETS = ("flowers102", "dogs", "cub200", "clothing10", "dtd10", "cifar10", "pets37")
# They took no part in the choice of the formula and of its limit.
DATASETS += ("scenes15", "trash", "food15", "objects20", "plankton15", "aerial15")
RATES, SEEDS = (0, 0.05, 0.1), 3
MOST_CLASSES, MOST_IMAGES = 40, 800
SCORES = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")
FILTERS = ("prune_by_noise_rate", "low_self_confidence")  # the default, and the best here
ORIGINALS, COPIES = 300, 30
SUFFIXES = (".jpg", ".jpeg", ".png")


def find_folders(data: Path) -> dict[str, Path]:
    """The folder of classes of every dataset below `data`, by name."""
    places = [path for place in (data, data / "domains", data / "public") if place.is_dir() for path in place.iterdir()]
    folders = {path.name: path / "images" if (path / "images").is_dir() else path for path in sorted(places)}
    return {name: path for name, path in folders.items() if path.is_dir() and name not in ("domains", "public")}


# --- labels -----------------------------------------------------------------------------------------------------------


def measure_labels(data: Path, size: int, l2: float) -> list[dict[str, object]]:
    """A row for every dataset and rate; figures are means over the seeds."""
    rows, probe = [], t2v.load_probe(size=size)
    for name in DATASETS:
        folder = find_folders(data).get(name)
        if folder is None:
            print(f"{data} has no {name}: left out")
            continue
        features, truth = read_features(folder, probe)
        for rate in RATES:
            found = [judge_labels(features, truth, rate, seed, l2) for seed in range(SEEDS if rate else 1)]
            means = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
            rows.append({"dataset": name, "images": len(truth), "classes": int(truth.max()) + 1, "rate": rate, **means})
    return rows


def read_features(folder: Path, probe: t2v.Probe) -> tuple[torch.Tensor, np.ndarray]:
    """Features and labels of some images of some classes."""
    task, rng = t2v.read_folder(folder), np.random.default_rng(0)
    classes = np.sort(rng.permutation(len(task.classes))[:MOST_CLASSES])
    each = MOST_IMAGES // len(classes)
    rows = np.concatenate([rng.permutation(np.flatnonzero(task.targets == label))[:each] for label in classes])
    task = task.subset(rows)
    return compute_features(probe, task.images, device="cpu"), np.unique(task.targets, return_inverse=True)[1]


def judge_labels(features: torch.Tensor, truth: np.ndarray, rate: float, seed: int, l2: float) -> dict[str, float]:
    """The figures of one draw of wrong labels."""
    rng, classes = np.random.default_rng(seed), int(truth.max()) + 1
    given, wrong = truth.copy(), rng.permutation(len(truth))[: round(rate * len(truth))]
    given[wrong] = (given[wrong] + rng.integers(1, classes, len(wrong))) % classes
    p, _, is_judged = (
        a.numpy() for a in predict_held_out(features, torch.from_numpy(given), classes=classes, penalty=l2)
    )
    ours = find_label_issues(p, given, is_judged)
    scores, suspected = {"ours": ours.score}, {"ours": ours.is_suspected}
    if find_spec("cleanlab"):
        rank, filters = (import_module(f"cleanlab.{name}") for name in ("rank", "filter"))
        p = p.astype(np.float64) / p.sum(1, keepdims=True, dtype=np.float64)
        scores |= {name: rank.get_label_quality_scores(given, p, method=name) for name in SCORES}
        suspected |= {name: filters.find_label_issues(given, p, filter_by=name, n_jobs=1) for name in FILTERS}
    is_wrong, figures = given != truth, {}
    if rate:
        figures |= {f"area {name}": average_precision_score(is_wrong, -score) for name, score in scores.items()}
        for name, mask in suspected.items():
            figures[f"precision {name}"] = (mask & is_wrong).sum() / max(mask.sum(), 1)
            figures[f"recall {name}"] = (mask & is_wrong).sum() / is_wrong.sum()
    return figures | {f"suspected {name}": mask.mean() for name, mask in suspected.items()}


# --- copies -----------------------------------------------------------------------------------------------------------


def compress(image: Image.Image, quality: int) -> Image.Image:
    """`image` as a JPEG file shows it."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def plant(image: Image.Image, kind: str, rng: np.random.Generator) -> Image.Image:
    """A copy of `image`; all but the recompressed ones are saved at quality 90."""
    if kind == "recompressed":
        return compress(image, int(rng.integers(30, 91)))
    if kind == "resized":
        factor = float(np.exp(rng.uniform(np.log(0.3), np.log(2))))
        image = image.resize((max(1, round(image.width * factor)), max(1, round(image.height * factor))))
    elif kind == "mirrored":
        image = ImageOps.mirror(image)
    else:
        image = ImageEnhance.Brightness(image).enhance(float(rng.choice([0.85, 1.15])))
    return compress(image, 90)


def measure_copies(data: Path) -> list[dict[str, object]]:
    """A row for every dataset."""
    rows = []

    def sign(images: list[Image.Image]) -> np.ndarray:
        return np.stack([make_signature(image) for image in images])

    for name, folder in find_folders(data).items():
        rng = np.random.default_rng(0)
        files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
        files = [files[i] for i in rng.permutation(len(files))[:ORIGINALS]]
        images = [Image.open(file).convert("RGB") for file in files]
        originals, count = sign(images), len(images)
        own = {pair for group in find_copies(originals) for pair in list_pairs(group)}
        row: dict[str, object] = {"dataset": name, "images": count, "own pairs": len(own)}
        pairs = hits = known = 0
        for kind in ("recompressed", "resized", "mirrored", "brighter"):
            copies = sign([plant(image, kind, rng) for image in images[:COPIES]])
            found = [pair for g in find_copies(np.concatenate([originals, copies])) for pair in list_pairs(g)]
            right = sum(b - a == count for a, b in found)
            row[kind] = right / len(copies)
            # A copy is near all that its original is near.
            known += sum((min(a % count, b % count), max(a % count, b % count)) in own for a, b in found)
            pairs, hits = pairs + len(found), hits + right
        row["precision"] = hits / pairs
        row["precision without own pairs"] = hits / (pairs - known)
        rows.append(row)
    return rows


def list_pairs(group: list[int]) -> list[tuple[int, int]]:
    """All pairs of a group, the smaller number first."""
    return [(a, b) for i, a in enumerate(group) for b in group[i + 1 :]]


def main() -> int:
    """Prints both tables, and writes them."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of datasets")
    parser.add_argument("--size", type=int, default=112, help="side of the images whose labels are judged")
    parser.add_argument("--l2", type=float, default=1e-3, help="penalty of the heads that judge labels")
    parser.add_argument("--json", type=Path, help="where to write the tables")
    arguments = parser.parse_args()
    if not find_folders(arguments.data):
        sys.exit(f"{arguments.data} has no datasets, so nothing can be measured. Name a folder that has: --data DIR")
    tables = {
        "labels": measure_labels(arguments.data, arguments.size, arguments.l2),
        "copies": measure_copies(arguments.data),
    }
    for title, rows in tables.items():
        print(f"\n{title}")
        header = list(max(rows, key=len)) if rows else []
        show_table(header, [[row.get(key, "-") for key in header] for row in rows])
    story = {"machine": describe_machine(), "size": arguments.size, **tables}
    write_json(arguments.json, story, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
