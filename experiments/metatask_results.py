"""The tables of all experts become one meta-task, and numbers that tell what it is worth."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import task2vec as t2v
from experiments.metatask_embeddings import Embedded
from experiments.metatask_plan import MetaTaskPlan, PlannedTask, share_labels
from experiments.metatask_quality import (
    compare_halves,
    compare_protocols,
    compare_recipes,
    compare_ways,
    count_parts,
    count_winners,
    judge,
)
from task2vec import distance
from task2vec.errors import DataError
from task2vec.experts.metatask import MetaTask, ModelInfo, TaskInfo
from task2vec.storage import write_whole

NAME = "birds, flowers and dogs"


def read_tables(folder: Path) -> list[dict[str, Any]]:
    """The tables of a folder by the names of their experts."""
    tables = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    if not tables:
        raise DataError(
            f"there are no tables of experts in {folder}, so there is nothing to gather. Measure them first."
        )
    return tables


def gather(
    plan: MetaTaskPlan,
    tables: Sequence[dict[str, Any]],
    embedded: Sequence[Embedded],
    *,
    whole: Sequence[str],
    story: Mapping[str, Any],
) -> MetaTask:
    """One meta-task of all that was measured; experts in the order of the plan.

    Args:
        plan: what was to be measured.
        tables: what was, by expert.
        embedded: by probe and method.
        whole: probes and methods whose embeddings are kept; of the others, distances and norms.
        story: what else to tell.
    """
    by_name = {table["name"]: table for table in tables}
    ordered = [by_name[expert.name] for expert in plan.experts if expert.name in by_name]
    names = [planned.task.name for planned in plan.tasks]
    # What was measured for all: the paper's own classifier was tried on some tasks and experts only.
    protocols = [
        key for key in ordered[0]["cells"][names[0]] if all(key in t["cells"][n] for t in ordered for n in names)
    ]
    seeds = [row[0] for row in ordered[0]["cells"][names[0]][protocols[0]]]
    cells = np.array([[[t["cells"][name][p] for p in protocols] for t in ordered] for name in names], dtype=np.float64)
    shares = np.array([[t["relations"].get(name, 0.0) for t in ordered] for name in names])
    lessons = [expert.lesson for expert in plan.experts if expert.name in by_name]
    knows = [[lesson is not None and share_labels(one, lesson) for lesson in lessons] for one in plan.tasks]
    kinds = list(ordered[0]["scores"][names[0]][protocols[0]])
    scores = {
        kind: np.array([[[_number(t["scores"][name][p][kind]) for p in protocols] for t in ordered] for name in names])
        for kind in kinds
    }
    told = {
        "code": sorted({table["code"] for table in tables} | {code for one in embedded for code in one.code}),
        "seconds": {table["name"]: table["seconds"] for table in tables},
        "embedding seconds": {one.name: one.seconds for one in embedded},
    }
    return MetaTask(
        NAME,
        tuple(_tell_task(one) for one in plan.tasks),
        tuple(_describe(table) for table in ordered),
        tuple(protocols),
        tuple(seeds),
        cells[..., 1],
        cells[..., 2],
        cells[..., 3],
        shares,
        np.array(knows),
        scores=scores,
        embeddings={one.name: one.embeddings for one in embedded if one.name in whole},
        domains={
            one.name.split(" ")[0]: np.stack([each.mean for each in one.domains]) for one in embedded if one.domains
        },
        source_tasks=tuple(_tell_task(one) for one in plan.lessons),
        distances={one.name: distance.pairwise(one.embeddings).values for one in embedded},
        trivial_distances={
            one.name: np.array([distance.symmetric(each, t2v.trivial(each)) for each in one.embeddings])
            for one in embedded
        },
        norms={one.name: np.array([each.norm() for each in one.embeddings]) for one in embedded},
        halves=cells[..., 4:],
        info={**story, **told},
    )


def _tell_task(one: PlannedTask) -> TaskInfo:
    task = one.task
    return TaskInfo(task.name, one.family, one.dataset, task.fingerprint, len(task), len(task.classes), one.question)


def _describe(table: dict[str, Any]) -> ModelInfo:
    names = {
        "lesson": "source_task",
        "lesson_fingerprint": "source_fingerprint",
        "parameters": "params",
        "cost": "gmacs",
    }
    wanted = ("name", "kind", "network", *names, "seed", "is_repeat")
    return ModelInfo(**{names.get(key, key): table[key] for key in wanted if key in table})


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def write_errors(metatask: MetaTask, path: Path) -> Path:
    """The error matrix as CSV: a row for each task, expert and protocol, a column for each seed.

    `low` and `high` are a 95 % interval of the mean over seeds that knows that splits overlap, see `_count_sure`.
    """
    seeds = len(metatask.seeds)
    parts = np.array([[count_parts(task, protocol) for protocol in metatask.protocols] for task in metatask.tasks])
    widening = np.sqrt(1 / seeds + parts[..., 1] / parts[..., 0])[:, None]
    half = stats.t.ppf(0.975, seeds - 1) * metatask.errors.std(3, ddof=1) * widening
    means = metatask.errors.mean(3)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    names = ["task", "expert", "protocol", "shares_images", "shares_labels", "mean", "low", "high"]
    rows.writerow(names + [f"seed_{seed}" for seed in metatask.seeds])
    for place in np.ndindex(means.shape):
        task, expert, protocol = (metatask.tasks[place[0]], metatask.models[place[1]], metatask.protocols[place[2]])
        shares = (f"{metatask.shares_images[place[:2]]:g}", int(metatask.shares_labels[place[:2]]))
        ends = np.clip([means[place] - half[place], means[place] + half[place]], 0, 1)
        numbers = [f"{value:.4f}" for value in (means[place], *ends, *metatask.errors[place])]
        rows.writerow([task.name, expert.name, protocol, *shares, *numbers])
    write_whole(path, text.getvalue().encode())
    return path


def _tell_model(model: ModelInfo) -> dict[str, Any]:
    dropped = ("location", "size", "source_dataset", "entry")
    return {name: value for name, value in asdict(model).items() if name not in dropped}


def write_results(
    metatask: MetaTask, tables: Sequence[dict[str, Any]], curves: Sequence[dict[str, Any]], folder: Path
) -> None:
    """All tables as CSV: errors, experts, tasks, quality, rankings by both classifiers, and errors by training size."""
    folder.mkdir(parents=True, exist_ok=True)
    write_errors(metatask, folder / "errors.csv")
    _write_rows(folder / "tasks.csv", [asdict(task) for task in metatask.tasks])
    seconds = {table["name"]: table["seconds"] for table in tables}
    kinds = sorted({kind for each in seconds.values() for kind in each})
    _write_rows(
        folder / "experts.csv",
        [
            _tell_model(expert) | {f"seconds, {kind}": seconds[expert.name].get(kind, "") for kind in kinds}
            for expert in metatask.models
        ],
    )
    families = dict.fromkeys(task.family for task in metatask.tasks)
    worth = [judge(metatask, family, number) for family in families for number in range(len(metatask.protocols))]
    # Their photographs are ImageNet's, which all networks were trained on.
    worth += [judge(metatask, "taxa", number, without="dogs") for number in range(len(metatask.protocols))]
    _write_rows(folder / "quality.csv", [_round(asdict(one)) for one in worth])
    winners = [row for f in families for n in range(len(metatask.protocols)) for row in count_winners(metatask, f, n)]
    _write_rows(folder / "winners.csv", [_round(row) for row in winners])
    domains = (("cub200",), ("flowers102",), ("dogs",), ("cub200", "flowers102"))
    halves = [compare_halves(metatask, each, recipe=recipe) for recipe in ("fast-1", "achille2019") for each in domains]
    _write_rows(folder / "halves.csv", [_round(asdict(one)) for one in halves])
    _write_rows(folder / "ways.csv", [_round(row) for row in compare_ways(metatask, curves)])
    _write_rows(folder / "classifiers.csv", [_round(asdict(one)) for one in compare_protocols(tables)])
    recipes = [compare_recipes(metatask, f, n) for f in families for n in range(len(metatask.protocols))]
    _write_rows(folder / "recipes.csv", [_round(asdict(one)) for one in recipes])
    _write_rows(folder / "curves.csv", [_round(point) for point in curves])


def _round(row: dict[str, Any]) -> dict[str, Any]:
    return {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Dictionaries of the same keys as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())
