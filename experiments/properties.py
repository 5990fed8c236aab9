"""What the embedding shows of a task (Achille 2019, section 2): difficulty, labels, number of classes, sample size.

Every experiment is a list of cases: a changed task, a description of the change, and one embedding. The reference of
"no information" is `t2v.trivial(embedding)`, with the prior of that very embedding. The paper's estimator is a
precision, (N / beta) F + 1 / v, and its trivial embedding 1 / v; ours is the same times beta / N, and the distance
depends on ratios only, so the factor cancels. Compared with the prior of another number of images, a small task would
have to lie where no embedding of its size can. `prior_share` shows how far the prior alone goes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import task2vec as t2v
from experiments import report
from experiments.collection import Collection, Member, read_collection
from experiments.figures import draw_norms
from experiments.report import FAILS, HOLDS, PARTLY, UNCLEAR, Claim, Row
from task2vec import plots
from task2vec.text import pluralize

# An embedding has landed on the trivial one when it went at least this part of the way there.
LANDED = 0.9
# A difference counts when it is more than so many of its standard errors.
STANDARD_ERRORS = 2.0


# Random subsets or shuffles of each kind; the error bars are over these.
REPEATS = 5
# Fractions of the images whose labels are shuffled; numbers of classes; images per class. As far as a task has them.
SHARES, CLASSES, SIZES = (0.0, 0.25, 0.5, 0.75, 1.0), (2, 3, 5, 8, 13, 21, 34), (1, 2, 5, 10, 20, 50, 100)
# Rich tasks that are shuffled and thinned, the classes that they are cut to, and the images of each class.
MOST_TASKS, MOST_CLASSES, MOST_IMAGES = 3, 10, 20

# The description of a task, and the task.
Case = tuple[Row, t2v.Task]


def plan_cases(collection: Collection) -> dict[str, list[Case]]:
    """The cases of all experiments."""
    rich = pick_rich(collection.members)
    return {
        "labels": _plan_labels(rich),
        "classes": _plan_classes(rich[0]),
        "sample_size": _plan_sample_size(rich),
        "norm_error": [
            ({"dataset": member.dataset, "task": member.task.name}, member.task) for member in collection.members
        ],
    }


def pick_rich(members: Sequence[Member]) -> list[t2v.Task]:
    """The richest task of every dataset (most images with all classes equal, then most classes), richest first."""

    def count_images(task: t2v.Task) -> tuple[int, int]:
        return int(task.counts.min()) * len(task.classes), len(task.classes)

    richest: dict[str, t2v.Task] = {}
    for member in members:
        richest[member.dataset] = max(richest.get(member.dataset, member.task), member.task, key=count_images)
    return sorted(richest.values(), key=count_images, reverse=True)


def _plan_labels(rich: Sequence[t2v.Task]) -> list[Case]:
    """Tasks with the labels of a growing part of their images shuffled."""
    cases = []
    for number, task in enumerate(_cut_rich(rich)):
        task = cut_images(task, MOST_IMAGES, rng=np.random.default_rng([0, 2, number]))
        for share in SHARES:
            for repeat in range(REPEATS if share else 1):
                rng = np.random.default_rng([0, 3, number, repeat])
                about = {"task": task.name, "shuffled": share, "repeat": repeat}
                cases.append((about, shuffle_labels(task, share, rng=rng)))
    return cases


def _plan_classes(task: t2v.Task) -> list[Case]:
    """Random classes of the richest task, few to all, equally many images of each."""
    images = min(MOST_IMAGES, int(task.counts.min()))
    cases = []
    for count in sorted({*(count for count in CLASSES if count < len(task.classes)), len(task.classes)}):
        for repeat in range(REPEATS):
            rng = np.random.default_rng([0, 4, count, repeat])
            about = {"task": task.name, "images_per_class": images, "repeat": repeat}
            cases.append((about, cut_images(cut_classes(task, count, rng=rng), images, rng=rng)))
    return cases


def _plan_sample_size(rich: Sequence[t2v.Task]) -> list[Case]:
    """Few to many images per class.

    The subsets of one repeat are nested, so that steps from one size to the next can be compared pair by pair.
    """
    cases = []
    for number, task in enumerate(_cut_rich(rich)):
        # Subsets that differ from one another: at most two thirds of the images of a class.
        most = max(1, int(task.counts.min()) * 2 // 3)
        for size in [size for size in SIZES if size <= most]:
            for repeat in range(REPEATS):
                about = {"task": task.name, "images_per_class": size, "repeat": repeat}
                rng = np.random.default_rng([0, 5, number, repeat])
                cases.append((about, cut_images(task, size, rng=rng)))
    return cases


def _cut_rich(rich: Sequence[t2v.Task]) -> list[t2v.Task]:
    """The rich tasks that are shuffled and thinned, cut to equally many classes where they have more."""
    return [cut_classes(task, MOST_CLASSES, rng=np.random.default_rng([0, 0])) for task in rich[:MOST_TASKS]]


def relabel(task: t2v.Task, *, rng: np.random.Generator) -> t2v.Task:
    """The same task under other names and numbers of its classes, its images in another order."""
    shuffled = task.subset(rng.permutation(len(task)))
    numbers = rng.permutation(len(task.classes))
    names = tuple(f"class {number}" for number in range(len(task.classes)))
    return replace(shuffled, targets=numbers[shuffled.targets], classes=names)


def shuffle_labels(task: t2v.Task, share: float, *, rng: np.random.Generator) -> t2v.Task:
    """The task with the labels of a random part of its images permuted among them; class sizes stay."""
    chosen = rng.permutation(len(task))[: round(share * len(task))]
    targets = task.targets.copy()
    targets[chosen] = rng.permutation(targets[chosen])
    return replace(task, targets=targets)


def cut_classes(task: t2v.Task, count: int, *, rng: np.random.Generator) -> t2v.Task:
    """The task of `count` random classes; all of them if there are no more."""
    kept = rng.permutation(len(task.classes))[:count]
    return task.subset(np.flatnonzero(np.isin(task.targets, kept)))


def cut_images(task: t2v.Task, count: int, *, rng: np.random.Generator) -> t2v.Task:
    """The task of `count` random images of every class; one draw with more images holds all of a draw with fewer."""
    orders = [rng.permutation(np.flatnonzero(task.targets == kind)) for kind in range(len(task.classes))]
    return task.subset(np.sort(np.concatenate([order[:count] for order in orders])))


# --- embeddings ------------------------------------------------------------------------------------------------------


def measure(embedding: t2v.Embedding) -> Row:
    """The numbers of an embedding: size, error, norm, and how far it is from the trivial one."""
    counts, head = embedding.provenance["counts"], embedding.provenance["head"]
    return {
        "images": counts["images"],
        "classes": counts["classes"],
        "error": head["cv_error"],
        "norm": embedding.norm(),
        "distance": t2v.distance.symmetric(embedding, t2v.trivial(embedding)),
        "prior_share": float(np.mean(embedding.prior / embedding.vector)),
    }


def run_experiments(collection: Collection, embed: Callable[[t2v.Task], t2v.Embedding]) -> dict[str, list[Row]]:
    """The rows of every experiment by its name: what a case is, then what was measured. Every task is embedded once."""
    cases = plan_cases(collection)
    untouched = next(task for about, task in cases["labels"] if not about["shuffled"])
    given = embed(untouched)
    other = embed(relabel(untouched, rng=np.random.default_rng([0, 1])))
    difference = np.abs(given.vector - other.vector)
    moved = {"task": untouched.name, "filters": len(given), "filters_changed": int((difference > 0).sum())}
    moved |= {"largest_difference": float(difference.max())}
    moved |= {"largest_relative_difference": float((difference / given.vector).max())}
    rows = {"relabelled": [moved]}
    known = {untouched.fingerprint: measure(given)}
    for name, each in cases.items():
        report.say(f"{name}: {len(each)} embeddings")
        for _, task in each:
            if task.fingerprint not in known:
                known[task.fingerprint] = measure(embed(task))
        rows[name] = [{**about, **known[task.fingerprint]} for about, task in each]
    return rows


# --- claims ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """Mean of a number over the repeats of one kind of case, its standard error, and the numbers themselves."""

    at: float
    mean: float
    stderr: float
    values: tuple[float, ...]


def summarise(rows: Sequence[Row], by: str, value: str) -> list[Point]:
    """One point per distinct `by`, in its order.

    Example:
        >>> [point.mean for point in summarise([{"n": 1, "d": 2.0}, {"n": 1, "d": 4.0}], "n", "d")]
        [3.0]
    """
    points = []
    for at, group in sorted(report.split_rows(rows, by).items()):
        values = np.array([row[value] for row in group])
        stderr = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
        points.append(Point(at, float(values.mean()), stderr, tuple(values.tolist())))
    return points


def find_rise(a: Point, b: Point) -> float:
    """How much the mean rises from one point to the next beyond its error; 0 where it is within it.

    Points with the same repeats are compared repeat by repeat: their subsets are nested.
    """
    difference = b.mean - a.mean
    if len(a.values) == len(b.values) > 1:
        steps = np.subtract(b.values, a.values)
        error = float(steps.std(ddof=1) / math.sqrt(len(steps)))
    else:
        error = math.hypot(a.stderr, b.stderr)
    return difference if abs(difference) > STANDARD_ERRORS * error else 0.0


def make_claims(rows: dict[str, list[Row]]) -> list[Claim]:
    """All claims, in the order of the figures."""
    tasks = rows["norm_error"]
    rho = report.correlate([row["norm"] for row in tasks], [row["error"] for row in tasks])
    measured = f"rho {rho}, {pluralize(rho.count, 'task')}"
    claims = [Claim("norm_error", "the norm ranks tasks by error", measured, rho.verdict)]
    claims += [_claim_relabelling(rows["relabelled"][0]), _claim_shuffling(rows["labels"])]
    for name in ("error", "norm"):
        rho = report.correlate([row["classes"] for row in rows["classes"]], [row[name] for row in rows["classes"]])
        measured = f"rho {rho}, {pluralize(rho.count, 'subset')}"
        claims.append(Claim("classes", f"more classes, more {name}", measured, rho.verdict))
    return [*claims, *_claim_sample_size(rows["sample_size"])]


def _claim_relabelling(row: Row) -> Claim:
    """To the bit is the claim; a GPU, which sums in any order, may miss it by rounding."""
    relative = row["largest_relative_difference"]
    measured = f"{row['filters_changed']} of {row['filters']} filters move"
    measured += f", {relative:.0e} at most" if row["filters_changed"] else ""
    verdict = HOLDS if row["filters_changed"] == 0 else PARTLY if relative < 1e-3 else FAILS
    return Claim("labels", "names and order change no bit", measured, verdict)


def _claim_shuffling(rows: Sequence[Row]) -> Claim:
    """Of the way from the true labels to the trivial embedding, how much do shuffled labels go?"""
    ends = [summarise(group, "shuffled", "distance") for group in report.split_rows(rows, "task").values()]
    ways = [_way(points[0], points[-1]) for points in ends]
    measured = f"{100 * np.mean(ways):.0f}% of the way, {pluralize(len(ways), 'task')}"
    verdict = _judge_ways(ways, is_nearer=all(find_rise(points[0], points[-1]) < 0 for points in ends))
    return Claim("labels", "shuffled labels are trivial", measured, verdict)


def _claim_sample_size(rows: Sequence[Row]) -> list[Claim]:
    """Every step from fewer to more images, and the smallest size by itself."""
    curves = [summarise(group, "images_per_class", "distance") for group in report.split_rows(rows, "task").values()]
    steps = sum(len(points) - 1 for points in curves)
    falls = sum(find_rise(a, b) < 0 for points in curves for a, b in pairwise(points))
    rises = all(find_rise(points[0], points[-1]) > 0 for points in curves)
    verdict = FAILS if falls else HOLDS if rises else UNCLEAR
    measured = f"no fall at {steps - falls} of {pluralize(steps, 'step')}"
    claims = [Claim("sample_size", "fewer images, nearer to trivial", measured, verdict)]
    ways = [_way(points[-1], points[0]) for points in curves]
    measured = f"{100 * np.mean(ways):.0f}% of the way, {pluralize(len(ways), 'task')}"
    verdict = _judge_ways(ways, is_nearer=rises) if steps else UNCLEAR
    claim = f"{pluralize(int(curves[0][0].at), 'image')} per class is trivial"
    return [*claims, Claim("sample_size", claim, measured, verdict)]


def _judge_ways(ways: Sequence[float], *, is_nearer: bool) -> str:
    return HOLDS if min(ways) >= LANDED else PARTLY if is_nearer else FAILS


def _way(start: Point, end: Point) -> float:
    """The fraction of the distance from `start` to the trivial embedding that `end` has covered."""
    return 1 - end.mean / start.mean if start.mean > 0 else 0.0


# --- command line ---------------------------------------------------------------------------------------------------


def write_properties(rows: dict[str, list[Row]], claims: Sequence[Claim], folder: Path) -> list[Path]:
    """The figure of norms, and the numbers of all properties."""
    tasks = [row | {"family": "all tasks"} for row in rows["norm_error"]]
    files = [plots.save_picture(draw_norms(tasks, ["norm"], error="error", what="error"), folder / "norm_error.png")]
    files += [report.write_rows(table, folder / f"{name}.csv") for name, table in rows.items()]
    return files + report.write_claims(claims, folder)


def properties(
    data: Annotated[Path, typer.Option(help="Folder with a tasks.csv by taxon, and taxonomies.")],
    out: Annotated[Path, typer.Option(help="Folder for figures and tables.")] = Path("task2vec-paper"),
    probe: Annotated[str, typer.Option(help="A timm or torchvision model.")] = "tf_efficientnet_lite0",
    weights: Annotated[Path | None, typer.Option(help="A local file of weights for the probe.")] = None,
    size: Annotated[int, typer.Option(min=1, help="Side of the images in pixels.")] = 64,
    max_samples: Annotated[int, typer.Option(min=1, help="(Image, label) pairs per embedding.")] = 24,
    device: str | None = None,
) -> None:
    """What the embedding shows of a task: difficulty, labels, number of classes, sample size."""
    folder = plots.make_folder(out)
    settings = t2v.EmbedSettings(max_samples=max_samples)
    network = t2v.load_probe(probe, weights=weights, size=size)
    rows = run_experiments(read_collection(data), partial(t2v.embed, probe=network, settings=settings, device=device))
    claims = make_claims(rows)
    files = write_properties(rows, claims, folder)
    report.print_claims(claims, files, "100% of the way is on the embedding of a task without information.")


app = report.make_app(properties)

if __name__ == "__main__":
    app()
