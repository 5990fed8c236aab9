"""Tables of a measured meta-task: how much there is to choose, how well it is known, and which experts win.

python -m experiments.metatask.quality --out docs/results/metatask
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from scipy import stats

import task2vec as t2v
from experiments.report import Row, load_bundle, make_app, say
from task2vec import plots
from task2vec.metatask import TaskInfo, find_shots
from task2vec.select.evaluate import compare_paired, unbiased_optimum

SECOND, PAPER = " (second seed)", " (achille2019)"
# In percent: errors this near are the same number of wrong images.
_TIE = 1e-3


def judge(metatask: t2v.MetaTask, family: str, protocol: int, *, without: str | None = None) -> Row:
    """How much there is to choose in one family, perhaps without a dataset, and how well it is known.

    Errors are in percent. `noise` is the standard deviation of a cell over seeds, `retraining` that of an expert's mean
    error over trainings, `spread` that over the candidates of one task. `biased_optimum` is the mean over tasks of the
    smallest mean error: biased low, for noise is chosen with it. `optimum` is that of `task2vec.select`: chosen on one
    half of the test images and measured on the other. `ahead` counts tasks where that is better than the generic
    expert, `beaten` those where it is so beyond the noise.
    """
    subset = metatask.subset(family=family, without=without)
    errors, candidates, generic = 100 * subset.errors[:, :, protocol], subset.is_candidate, subset.generic
    means = np.where(candidates, errors.mean(2), np.nan)
    assert subset.halves is not None, "a measured meta-task has them"
    optimum = unbiased_optimum(subset.halves[:, :, protocol], candidates)
    assert optimum is not None, "every task has a candidate"
    gains = errors[:, generic] - 100 * optimum
    repeated = metatask.subset(family=family, without=without, repeats=True)
    return {
        "family": family if without is None else f"{family} without {without}",
        "protocol": subset.protocols[protocol],
        "tasks": len(subset.tasks),
        "experts": float(candidates.sum(1).mean()),
        "noise": float(np.sqrt(errors.var(2, ddof=1)[candidates].mean())),
        "retraining": compare_trainings(repeated, protocol),
        "spread": float(np.nanstd(means, axis=1).mean()),
        "generic": float(means[:, generic].mean()),
        "average_best": float(choose_average_best(means).mean()),
        "chance": float(np.nanmean(means, axis=1).mean()),
        "biased_optimum": float(np.nanmin(means, axis=1).mean()),
        "optimum": 100 * float(optimum.mean()),
        "ahead": int((gains.mean(1) > 0).sum()),
        "beaten": count_sure(gains, [count_images(task, subset.protocols[protocol]) for task in subset.tasks]),
    }


def choose_average_best(means: np.ndarray) -> np.ndarray:
    """(tasks,) the error of the candidate with the best mean over the other tasks, relative to each task's own mean."""
    centred = means - np.nanmean(means, axis=1, keepdims=True)
    errors = np.empty(len(means))
    for row in range(len(means)):
        others = np.delete(centred, row, axis=0)
        known = ~np.isnan(means[row]) & (~np.isnan(others)).any(0)
        average = np.full(means.shape[1], np.inf)
        average[known] = np.nanmean(others[:, known], axis=0)
        errors[row] = means[row, int(np.argmin(average))]
    return errors


def count_images(task: TaskInfo, protocol: str) -> tuple[float, float]:
    """About how many images of a task are trained on and tested by a protocol."""
    size, half = find_shots(protocol), task.images / 2
    return half if size == "half" else min(half, int(size) * task.classes), half


def count_sure(gains: np.ndarray, images: Sequence[tuple[float, float]]) -> int:
    """How many rows of (tasks, seeds) gains are above zero beyond the noise: two-sided, at a level of 5%.

    `images` are the numbers of training and of test images of each task.

    Splits of the same images overlap, so their errors are not independent, and five of them carry less than a plain
    t-test assumes. Nadeau and Bengio (2003) put (1 / seeds + test / train) in the place of 1 / seeds.
    """
    seeds = gains.shape[1]
    error = gains.std(1, ddof=1) * np.sqrt(1 / seeds + np.array([test / train for train, test in images]))
    return int((gains.mean(1) > stats.t.ppf(0.975, seeds - 1) * error).sum())


def compare_trainings(metatask: t2v.MetaTask, protocol: int) -> float:
    """Standard deviation of the mean error of a cell over trainings of the same expert, in percent."""
    names = [model.name for model in metatask.models]
    means = 100 * metatask.errors[:, :, protocol].mean(2)
    gaps = []
    for column, name in enumerate(names):
        first = name.removesuffix(SECOND)
        if first != name and first in names:
            rows = ~metatask.has_seen[:, column]
            gaps.append((means[rows, column] - means[rows, names.index(first)]) ** 2 / 2)
    return float(np.sqrt(np.concatenate(gaps).mean())) if gaps else float("nan")


def compare_halves(metatask: t2v.MetaTask, datasets: Sequence[str], recipe: str) -> Row | None:
    """What experts for half of a dataset gain on tasks of that dataset whose classes they never saw, in points.

    By both training sizes, few images of each class and half of the images; p, two-sided, is of equal gains. None
    without such experts.
    """
    subset = metatask.subset(family="taxa", repeats=True)
    half = list(map(find_shots, subset.protocols)).index("half")
    experts = {
        model.name.removesuffix(PAPER): column
        for column, model in enumerate(subset.models)
        if model.kind == "half" and model.recipe == recipe
    }
    pairs = [
        (row, column)
        for row, task in enumerate(subset.tasks)
        for name in (f"{task.dataset} half A", f"{task.dataset} half B")
        if task.dataset in datasets and (column := experts.get(name)) is not None and not subset.has_seen[row, column]
    ]
    if not pairs:
        return None
    rows, columns = np.array(pairs).T
    means = 100 * subset.errors.mean(3)
    generic = means[rows, subset.generic]
    gains = generic - means[rows, columns]
    row: Row = {"datasets": " and ".join(datasets), "recipe": recipe, "tasks": len(pairs)}
    for name, number in (("few", 1 - half), ("half", half)):
        row |= {f"generic_{name}": float(generic[:, number].mean()), f"gain_{name}": float(gains[:, number].mean())}
    return row | {"p": compare_paired(gains[:, 1 - half] - gains[:, half])}


def count_winners(metatask: t2v.MetaTask, family: str, protocol: int) -> list[Row]:
    """For each kind of expert: the mean error of its candidates, and how often it is best, alone or with others."""
    subset = metatask.subset(family=family)
    means = np.where(subset.is_candidate, 100 * subset.errors[:, :, protocol].mean(2), np.nan)
    is_best = means <= np.nanmin(means, axis=1, keepdims=True) + _TIE
    kinds = np.array([model.kind for model in subset.models])
    rows = []
    for kind in dict.fromkeys(kinds.tolist()):
        has_best = is_best[:, kinds == kind].any(1)
        is_tied = is_best[:, kinds != kind].any(1)
        row = {"family": family, "protocol": subset.protocols[protocol], "kind": kind}
        row |= {"mean error": float(np.nanmean(means[:, kinds == kind]))}
        rows.append(row | {"best alone": int((has_best & ~is_tied).sum()), "best": int(has_best.sum())})
    return rows


def write_results(metatask: t2v.MetaTask, folder: Path) -> None:
    """All tables as CSV."""
    protocols = range(len(metatask.protocols))
    families = list(dict.fromkeys(task.family for task in metatask.tasks))
    seconds = metatask.info.get("seconds", {})
    kinds = sorted({kind for costs in seconds.values() for kind in costs})
    domains = (("cub200",), ("flowers102",), ("dogs",), ("cub200", "flowers102"))
    recipes = dict.fromkeys(model.recipe for model in metatask.models if model.kind == "half")
    halves = [compare_halves(metatask, datasets, recipe) for recipe in recipes for datasets in domains]
    task_columns = ("name", "family", "dataset", "fingerprint", "images", "classes", "label_set")
    columns = ("name", "kind", "network", "source_task", "source_fingerprint", "seed", "params", "gmacs", "is_repeat")
    tables: dict[str, list[Row]] = {
        "tasks": [{key: getattr(task, key) for key in task_columns} for task in metatask.tasks],
        "experts": [
            {key: getattr(model, key) for key in columns}
            | {f"seconds, {kind}": seconds.get(model.name, {}).get(kind, "") for kind in kinds}
            for model in metatask.models
        ],
        # The photographs of dogs are ImageNet's, which all networks were trained on.
        "quality": [judge(metatask, family, number) for family in families for number in protocols]
        + [judge(metatask, "taxa", number, without="dogs") for number in protocols],
        "winners": [
            row for family in families for number in protocols for row in count_winners(metatask, family, number)
        ],
        "halves": [row for row in halves if row is not None],
    }
    for name, rows in tables.items():
        if rows:
            shorten = str if name in ("tasks", "experts") else _round
            cells = ([shorten(v) if isinstance(v, float) else v for v in row.values()] for row in rows)
            plots.write_rows(folder / f"{name}.csv", [rows[0], *cells], digits=6)


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def quality(
    out: Annotated[Path, typer.Option(help="Folder for the tables.")] = Path("task2vec-metatask"),
    bundle: Annotated[Path | None, typer.Option(help="Another meta-task; default: that of experts.")] = None,
) -> None:
    """Write all tables of a meta-task."""
    metatask = load_bundle(bundle)
    write_results(metatask, plots.make_folder(out))
    say(f"tables of {metatask.name} in {out}")


app = make_app(quality)

if __name__ == "__main__":
    app()
