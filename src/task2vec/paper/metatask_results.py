"""The tables of all experts become one meta-task, and numbers that tell what it is worth."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import task2vec as t2v
from task2vec.embedding.writing import write_whole
from task2vec.errors import DataError
from task2vec.experts.measured import MeasuredExpert, MeasuredMetaTask, MeasuredTask
from task2vec.paper.metatask_plan import GENERIC, MetaTaskPlan
from task2vec.paper.metatask_studio import PROTOCOLS

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
    *,
    embeddings: Mapping[str, Sequence[t2v.Embedding]],
    domains: Mapping[str, Sequence[t2v.DomainEmbedding]],
    story: Mapping[str, Any],
) -> MeasuredMetaTask:
    """One meta-task of all that was measured; experts in the order of the plan."""
    by_name = {table["name"]: table for table in tables}
    ordered = [by_name[expert.name] for expert in plan.experts if expert.name in by_name]
    names = [planned.task.name for planned in plan.tasks]
    protocols = [protocol.key for protocol in PROTOCOLS]
    seeds = [row[0] for row in ordered[0]["cells"][names[0]][protocols[0]]]
    cells = np.array([[[t["cells"][name][p] for p in protocols] for t in ordered] for name in names], dtype=np.float64)
    relations = np.array([[t["relations"].get(name, [0.0, 0.0]) for t in ordered] for name in names])
    kinds = list(ordered[0]["scores"][names[0]][protocols[0]])
    scores = {
        kind: np.array([[[_number(t["scores"][name][p][kind]) for p in protocols] for t in ordered] for name in names])
        for kind in kinds
    }
    return MeasuredMetaTask(
        NAME,
        tuple(
            MeasuredTask(
                one.task.name,
                one.family,
                one.dataset,
                one.task.fingerprint,
                len(one.task),
                len(one.task.classes),
                one.question,
            )
            for one in plan.tasks
        ),
        tuple(_describe(table) for table in ordered),
        tuple(protocols),
        tuple(seeds),
        cells[..., 1],
        cells[..., 2],
        cells[..., 3],
        relations[..., 0],
        relations[..., 1] > 0,
        scores=scores,
        embeddings={name: _in_order(each, names) for name, each in embeddings.items()},
        domains={name: np.stack([one.mean for one in _in_order(each, names)]) for name, each in domains.items()},
        story=story,
    )


def _describe(table: dict[str, Any]) -> MeasuredExpert:
    wanted = ("name", "kind", "network", "lesson", "lesson_fingerprint", "seed", "parameters", "cost", "is_repeat")
    return MeasuredExpert(**{key: table[key] for key in wanted if key in table})


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def _in_order(each: Sequence[Any], names: Sequence[str]) -> list[Any]:
    by_name = {one.task: one for one in each}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise DataError(
            f"there is no embedding of '{missing[0]}' and {len(missing) - 1} others. Embed all tasks first."
        )
    return [by_name[name] for name in names]


@dataclass(frozen=True)
class Quality:
    """What the error matrix of one family says by one protocol; errors in percent.

    Attributes:
        family: of the tasks.
        protocol: of the errors.
        tasks: how many.
        experts: how many may be chosen for a task, on average.
        noise: standard deviation of one cell over seeds, within a cell.
        retraining: standard deviation of an expert's mean error over trainings, where it was trained twice.
        spread: standard deviation over the candidates of one task, of means over seeds, averaged over tasks.
        generic: mean error of the generic expert.
        static: mean error of the expert that is best on average over the other tasks.
        chance: mean error over candidates.
        biased_optimum: mean over tasks of the smallest mean error: biased low, for the noise was chosen with it.
        optimum: chosen on all seeds but one and measured on that, averaged over the seeds.
        beaten: tasks whose best candidate, chosen on all seeds but one, beats the generic expert on the others by more
            than two standard errors of the paired difference over seeds.
        beaten_by_luck: the same for the generic expert against itself by other seeds: what noise alone gives.
    """

    family: str
    protocol: str
    tasks: int
    experts: float
    noise: float
    retraining: float
    spread: float
    generic: float
    static: float
    chance: float
    biased_optimum: float
    optimum: float
    beaten: int
    beaten_by_luck: int


def judge(metatask: MeasuredMetaTask, family: str, protocol: int) -> Quality:
    """How much there is to choose in one family, and how well it is known."""
    part = metatask.only(family=family)
    errors = 100 * part.errors[:, :, protocol]
    candidates = part.is_candidate
    generic = [expert.name for expert in part.experts].index(GENERIC)
    means = np.where(candidates, errors.mean(2), np.nan)
    honest, beaten, by_luck = _choose_honestly(errors, candidates, generic)
    return Quality(
        family=family,
        protocol=part.protocols[protocol],
        tasks=len(part.tasks),
        experts=float(candidates.sum(1).mean()),
        noise=float(np.sqrt(errors.var(2, ddof=1).mean())),
        retraining=_compare_trainings(metatask, family, protocol),
        spread=float(np.nanstd(means, axis=1).mean()),
        generic=float(means[:, generic].mean()),
        static=float(_choose_static(means).mean()),
        chance=float(np.nanmean(means, axis=1).mean()),
        biased_optimum=float(np.nanmin(means, axis=1).mean()),
        optimum=honest,
        beaten=beaten,
        beaten_by_luck=by_luck,
    )


def _choose_static(means: np.ndarray) -> np.ndarray:
    """(tasks,) the error of the candidate with the best mean over the other tasks, relative to each task's own mean."""
    centred = means - np.nanmean(means, axis=1, keepdims=True)
    found = np.empty(len(means))
    for row in range(len(means)):
        others = np.delete(centred, row, axis=0)
        known = ~np.isnan(means[row]) & (~np.isnan(others)).any(0)
        average = np.full(means.shape[1], np.inf)
        average[known] = np.nanmean(others[:, known], axis=0)
        found[row] = means[row, int(np.argmin(average))]
    return found


def _choose_honestly(errors: np.ndarray, candidates: np.ndarray, generic: int) -> tuple[float, int, int]:
    """The error of the best candidate, chosen on some seeds and measured on another; and how many tasks it is worth it.

    A gain is measured on every seed that was left out of the choice; it counts if its mean is two standard errors.
    """
    seeds = errors.shape[2]
    gains, lucks, honest = (
        np.empty((seeds, len(errors))),
        np.empty((seeds, len(errors))),
        np.empty((seeds, len(errors))),
    )
    for seed in range(seeds):
        others = np.delete(errors, seed, axis=2).mean(2)
        best = np.argmin(np.where(candidates, others, np.inf), axis=1)
        rows = np.arange(len(errors))
        honest[seed] = errors[rows, best, seed]
        gains[seed] = errors[:, generic, seed] - honest[seed]
        lucks[seed] = errors[:, generic, seed] - errors[:, generic, (seed + 1) % seeds]
    return float(honest.mean()), _count_sure(gains), _count_sure(lucks)


def _count_sure(gains: np.ndarray) -> int:
    """How many columns have a mean of over two standard errors."""
    error = gains.std(0, ddof=1) / np.sqrt(len(gains))
    return int((gains.mean(0) > 2 * error).sum())


def _compare_trainings(metatask: MeasuredMetaTask, family: str, protocol: int) -> float:
    """Standard deviation of the mean error of a cell over trainings of the same expert, in percent."""
    part = metatask.only(family=family, repeats=True)
    names = [expert.name for expert in part.experts]
    means = 100 * part.errors[:, :, protocol].mean(2)
    gaps = []
    for column, expert in enumerate(part.experts):
        first = expert.name.removesuffix(" (second seed)")
        if expert.is_repeat and first in names:
            rows = part.is_candidate[:, column]
            gaps.append((means[rows, column] - means[rows, names.index(first)]) ** 2 / 2)
    return float(np.sqrt(np.concatenate(gaps).mean())) if gaps else float("nan")


def write_errors(metatask: MeasuredMetaTask, path: Path) -> Path:
    """The error matrix as CSV: a row for each task, expert and protocol, a column for each seed.

    `low` and `high` are the 95 % interval of the mean over seeds: its standard error, by Student's t.
    """
    seeds = len(metatask.seeds)
    half = stats.t.ppf(0.975, seeds - 1) * metatask.errors.std(3, ddof=1) / np.sqrt(seeds)
    means = metatask.errors.mean(3)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    names = ["task", "expert", "protocol", "shares_images", "shares_labels", "mean", "low", "high"]
    rows.writerow(names + [f"seed_{seed}" for seed in metatask.seeds])
    for place in np.ndindex(means.shape):
        task, expert, protocol = (metatask.tasks[place[0]], metatask.experts[place[1]], metatask.protocols[place[2]])
        shares = (f"{metatask.shares_images[place[:2]]:g}", int(metatask.shares_labels[place[:2]]))
        ends = np.clip([means[place] - half[place], means[place] + half[place]], 0, 1)
        numbers = [f"{value:.4f}" for value in (means[place], *ends, *metatask.errors[place])]
        rows.writerow([task.name, expert.name, protocol, *shares, *numbers])
    write_whole(path, text.getvalue().encode())
    return path
