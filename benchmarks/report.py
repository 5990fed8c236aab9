"""Label issues and near copies on real images: how many planted ones are found, and how many others?

    python benchmarks/report.py --data DIR [--size 112] [--json docs/measured/report.json]

DIR holds datasets (DATASET/images/CLASS/FILE or DATASET/CLASS/FILE), some of them in DIR/domains and DIR/public.

Labels: up to 40 classes and 800 images of each dataset, of which a part gets another label, ten times: any, or one that
is drawn as the class is confused (by its mean held-out probabilities before). The area under the precision-recall curve
of the score, and precision and recall of what is suspected, beside those of cleanlab on the same probabilities, if it
is installed; of the images that can be judged. "Suspected" is the part of all images; without wrong labels (rate 0) it
should be small. Areas are compared draw by draw: a dataset counts as a tie if the mean difference is within two of its
standard errors. The formula was chosen on some datasets (`CHOICE`), so those of the others are the ones to trust.

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
from task2vec.audit.labels import find_label_issues  # noqa: E402
from task2vec.experts.error_matrix import compute_features  # noqa: E402
from task2vec.head import predict_held_out  # noqa: E402
from task2vec.tasks.images import find_near_copies, make_signature  # noqa: E402

# By these the formula and its limit were chosen: those of an older choice and its check, and every third of the others.
CHOICE = ("flowers102", "dogs", "cub200", "clothing10", "dtd10", "cifar10", "pets37", "scenes15", "trash", "food15")
CHOICE += ("objects20", "plankton15", "aerial15", "blood_cells", "cars196", "documents", "fruits15", "lung_histology")
CHOICE += ("plant_disease", "sketch7", "steel_defects", "traffic_signs")
RATES, SEEDS = (0.05, 0.1), 10
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
    """A row for every dataset, kind of wrong labels and rate; figures are means over the draws."""
    rows, probe = [], t2v.load_probe(size=size)
    for name, folder in find_folders(data).items():
        features, truth = read_features(folder, probe)
        classes = int(truth.max()) + 1
        about = {"dataset": name, "images": len(truth), "classes": classes, "is in choice": name in CHOICE}
        figures, p = judge_labels(features, truth, truth, l2)
        rows.append(about | {"labels": "right", "rate": 0} | shorten(figures))
        confusion = np.stack([p[truth == label].mean(0) for label in range(classes)])
        for kind, chances in {"any": np.ones_like(confusion), "confused": confusion}.items():
            for rate in RATES:
                draws = [replace_labels(truth, chances * (1 - np.eye(classes)), rate, seed) for seed in range(SEEDS)]
                draws_figures = [judge_labels(features, truth, given, l2)[0] for given in draws]
                means = {key: np.mean([figures[key] for figures in draws_figures]) for key in draws_figures[0]}
                for score in SCORES if "area self_confidence" in means else ():
                    leads = [figures["area ours"] - figures[f"area {score}"] for figures in draws_figures]
                    means[f"lead over {score}"] = np.mean(leads)
                    means[f"error over {score}"] = np.std(leads, ddof=1) / SEEDS**0.5
                rows.append(about | {"labels": kind, "rate": rate} | shorten(means))
        print(name, flush=True)
    return rows


def shorten(figures: dict[str, float]) -> dict[str, float]:
    """Figures with five digits: there are thousands."""
    return {name: round(float(figure), 5) for name, figure in figures.items()}


def replace_labels(truth: np.ndarray, chances: np.ndarray, rate: float, seed: int) -> np.ndarray:
    """`truth` with a part of the labels drawn anew, by (c, c) `chances` of the others."""
    rng, given = np.random.default_rng(seed), truth.copy()
    for image in rng.permutation(len(truth))[: round(rate * len(truth))]:
        others = chances[truth[image]]
        given[image] = rng.choice(len(others), p=others / others.sum())
    return given


def summarise(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Means over datasets, those of the choice and the others, and how often cleanlab's areas are smaller or larger."""
    summary = []
    group = ("is in choice", "labels", "rate")
    for key in sorted({tuple(row[name] for name in group) for row in rows}):
        selected = [row for row in rows if tuple(row[name] for name in group) == key]
        columns = {
            name: np.array([row[name] for row in selected]) for name in selected[0] if " " in name and name not in group
        }
        figures = shorten({name: column.mean() for name, column in columns.items()})
        for score in [score for score in SCORES if f"lead over {score}" in columns]:
            lead = columns[f"lead over {score}"]
            clear = np.abs(lead) > 2 * columns[f"error over {score}"]
            error = lead.std(ddof=1) / len(lead) ** 0.5
            figures |= shorten({f"error over {score}": error, f"worst over {score}": lead.min()})
            counts = {"larger than": clear & (lead > 0), "tie with": ~clear, "smaller than": clear & (lead < 0)}
            figures |= {f"{name} {score}": int(mask.sum()) for name, mask in counts.items()}
        summary.append(dict(zip(group, key, strict=True)) | {"datasets": len(selected)} | figures)
    return summary


def read_features(folder: Path, probe: t2v.Probe) -> tuple[torch.Tensor, np.ndarray]:
    """Features and labels of some images of some classes."""
    task, rng = t2v.read_folder(folder), np.random.default_rng(0)
    classes = np.sort(rng.permutation(len(task.classes))[:MOST_CLASSES])
    per_class = MOST_IMAGES // len(classes)
    rows = np.concatenate([rng.permutation(np.flatnonzero(task.targets == label))[:per_class] for label in classes])
    task = task.subset(rows)
    return compute_features(probe, task.images, device="cpu"), np.unique(task.targets, return_inverse=True)[1]


def judge_labels(
    features: torch.Tensor, truth: np.ndarray, given: np.ndarray, l2: float
) -> tuple[dict[str, float], np.ndarray]:
    """The figures of one draw of wrong labels, and (n, c) held-out probabilities."""
    targets, classes = torch.from_numpy(given), int(truth.max()) + 1
    held_out, _, is_judged = (a.numpy() for a in predict_held_out(features, targets, classes=classes, penalty=l2))
    p, given, is_wrong = held_out[is_judged], given[is_judged], (given != truth)[is_judged]
    ours = find_label_issues(p, given, np.ones(len(p), dtype=bool))
    scores, suspected = {"ours": ours.score}, {"ours": ours.is_suspected}
    if find_spec("cleanlab"):
        rank, filters = (import_module(f"cleanlab.{name}") for name in ("rank", "filter"))
        p = p.astype(np.float64) / p.sum(1, keepdims=True, dtype=np.float64)
        scores |= {name: rank.get_label_quality_scores(given, p, method=name) for name in SCORES}
        suspected |= {name: filters.find_label_issues(given, p, filter_by=name, n_jobs=1) for name in FILTERS}
    figures = {}
    if is_wrong.any():
        figures |= {f"area {name}": average_precision_score(is_wrong, -score) for name, score in scores.items()}
        for name, mask in suspected.items():
            figures[f"precision {name}"] = (mask & is_wrong).sum() / max(mask.sum(), 1)
            figures[f"recall {name}"] = (mask & is_wrong).sum() / is_wrong.sum()
    return figures | {f"suspected {name}": mask.mean() for name, mask in suspected.items()}, held_out


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
        known_pairs = {pair for group in find_near_copies(originals) for pair in list_pairs(group)}
        row: dict[str, object] = {"dataset": name, "images": count, "own pairs": len(known_pairs)}
        pairs = hits = known = 0
        for kind in ("recompressed", "resized", "mirrored", "brighter"):
            copies = sign([plant(image, kind, rng) for image in images[:COPIES]])
            pairs_here = [pair for g in find_near_copies(np.concatenate([originals, copies])) for pair in list_pairs(g)]
            right = sum(b - a == count for a, b in pairs_here)
            row[kind] = right / len(copies)
            # A copy is near all that its original is near.
            known += sum((min(a % count, b % count), max(a % count, b % count)) in known_pairs for a, b in pairs_here)
            pairs, hits = pairs + len(pairs_here), hits + right
        row["precision"] = hits / pairs
        row["precision without own pairs"] = hits / (pairs - known)
        rows.append(row)
    return rows


def list_pairs(group: list[int]) -> list[tuple[int, int]]:
    """All pairs of a group, the smaller number first."""
    return [(a, b) for i, a in enumerate(group) for b in group[i + 1 :]]


def main() -> int:
    """Prints the tables, and writes them."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of datasets")
    parser.add_argument("--size", type=int, default=112, help="side of the images whose labels are judged")
    parser.add_argument("--l2", type=float, default=1e-3, help="penalty of the heads that judge labels")
    parser.add_argument("--json", type=Path, help="where to write the tables")
    arguments = parser.parse_args()
    if not find_folders(arguments.data):
        sys.exit(f"{arguments.data} has no datasets, so nothing can be measured. Name a folder that has: --data DIR")
    labels = measure_labels(arguments.data, arguments.size, arguments.l2)
    tables = {"labels": labels, "summary": summarise(labels), "copies": measure_copies(arguments.data)}
    for title, rows in tables.items():
        print(f"\n{title}")
        header = list(max(rows, key=len)) if rows else []
        show_table(header, [[row.get(key, "-") for key in header] for row in rows])
    story = {"machine": describe_machine(), "size": arguments.size, **tables}
    write_json(arguments.json, story, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
