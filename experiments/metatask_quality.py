"""What a measured meta-task is worth: how much there is to choose, how well it is known, and who wins."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy import stats

from experiments.metatask_plan import GENERIC
from task2vec.experts.metatask import MetaTask, TaskInfo

SECOND, PAPER = " (second seed)", " (achille2019)"
# In percent: errors this near are the same number of wrong images.
_TIE = 1e-3


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
        by_seeds: chosen on all seeds but one and measured on that, averaged over the seeds. Still biased low, if less:
            the splits are of the same images, and an expert that is lucky with an image is so in every split.
        optimum: the same, but chosen on one half of the test images and measured on the other: no image is in both.
        ahead: tasks whose best candidate, chosen in that way, is better than the generic expert at all, on average.
        beaten: tasks whose best candidate, chosen in that way, beats the generic expert beyond the noise (see
            `_count_sure`).
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
    by_seeds: float
    optimum: float
    ahead: int
    beaten: int


def judge(metatask: MetaTask, family: str, protocol: int, *, without: str | None = None) -> Quality:
    """How much there is to choose in one family, perhaps without a dataset, and how well it is known."""
    part = metatask.subset(family=family, without=without)
    errors = 100 * part.errors[:, :, protocol]
    candidates = part.is_candidate
    generic = [expert.name for expert in part.models].index(GENERIC)
    means = np.where(candidates, errors.mean(2), np.nan)
    halves = None if part.halves is None else 100 * part.halves[:, :, protocol]
    honest = _choose_honestly(errors, candidates, halves)
    gains = errors[:, generic] - honest
    return Quality(
        family=family if without is None else f"{family} without {without}",
        protocol=part.protocols[protocol],
        tasks=len(part.tasks),
        experts=float(candidates.sum(1).mean()),
        noise=float(np.sqrt(errors.var(2, ddof=1)[candidates].mean())),
        retraining=_compare_trainings(metatask.subset(family=family, without=without, repeats=True), protocol),
        spread=float(np.nanstd(means, axis=1).mean()),
        generic=float(means[:, generic].mean()),
        static=float(_choose_static(means).mean()),
        chance=float(np.nanmean(means, axis=1).mean()),
        biased_optimum=float(np.nanmin(means, axis=1).mean()),
        by_seeds=float(_choose_honestly(errors, candidates).mean()),
        optimum=float(honest.mean()),
        ahead=int((gains.mean(1) > 0).sum()),
        beaten=_count_sure(gains, [count_parts(task, part.protocols[protocol]) for task in part.tasks]),
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


def _choose_honestly(errors: np.ndarray, candidates: np.ndarray, halves: np.ndarray | None = None) -> np.ndarray:
    """(tasks, seeds) the error of the best candidate, chosen on all other seeds; of several, their mean.

    With `halves` it is chosen on one half of the test images and measured on the other, and the other way round.
    """
    found = np.empty((len(errors), errors.shape[2]))
    pairs = [(errors, errors)] if halves is None else [(halves[..., a], halves[..., 1 - a]) for a in (0, 1)]
    for seed in range(errors.shape[2]):
        each = []
        for chosen_on, measured_on in pairs:
            others = np.where(candidates, np.delete(chosen_on, seed, axis=2).mean(2), np.inf)
            is_best = others <= others.min(1, keepdims=True) + _TIE
            each.append(np.where(is_best, measured_on[:, :, seed], 0).sum(1) / is_best.sum(1))
        found[:, seed] = np.mean(each, axis=0)
    return found


def count_parts(task: TaskInfo, protocol: str) -> tuple[float, float]:
    """About how many images of a task are trained on and tested by a protocol."""
    size = protocol.split("train ")[1].split(",")[0]
    half = task.images / 2
    return half if size == "half" else min(half, int(size) * task.classes), half


def _count_sure(gains: np.ndarray, parts: Sequence[tuple[float, float]]) -> int:
    """How many rows of (tasks, seeds) gains are above zero beyond the noise, at a level of 2.5 %.

    Splits of the same images overlap, so their errors are not independent, and five of them tell less than a plain
    t-test believes. Nadeau and Bengio (2003) put (1 / seeds + test / train) in the place of 1 / seeds.
    """
    seeds = gains.shape[1]
    ratio = np.array([test / train for train, test in parts])
    error = gains.std(1, ddof=1) * np.sqrt(1 / seeds + ratio)
    return int((gains.mean(1) > stats.t.ppf(0.975, seeds - 1) * error).sum())


def _compare_trainings(part: MetaTask, protocol: int) -> float:
    """Standard deviation of the mean error of a cell over trainings of the same expert, in percent."""
    unseen = (part.shares_images == 0) & ~part.shares_labels
    names = [expert.name for expert in part.models]
    means = 100 * part.errors[:, :, protocol].mean(2)
    gaps = []
    for column, expert in enumerate(part.models):
        first = expert.name.removesuffix(SECOND)
        if first != expert.name and first in names:
            rows = unseen[:, column]
            gaps.append((means[rows, column] - means[rows, names.index(first)]) ** 2 / 2)
    return float(np.sqrt(np.concatenate(gaps).mean())) if gaps else float("nan")


@dataclass(frozen=True)
class DomainGain:
    """What an expert for half of a dataset saves on tasks of that dataset whose classes it never saw; in percent.

    Attributes:
        datasets: of the tasks.
        recipe: of the experts.
        tasks: how many.
        generic_few: mean error of the generic expert with few images of each class.
        gain_few: how much less the half leaves.
        generic_half: mean error of the generic expert with half of the images.
        gain_half: how much less the half leaves.
        p: of equal gains (Wilcoxon's signed ranks over tasks).
    """

    datasets: str
    recipe: str
    tasks: int
    generic_few: float
    gain_few: float
    generic_half: float
    gain_half: float
    p: float


def compare_halves(metatask: MetaTask, datasets: Sequence[str], *, recipe: str = "fast-1") -> DomainGain:
    """The gains on the tasks of some datasets, by both training sizes, of experts by one recipe."""
    part = metatask.subset(family="taxa", repeats=True)
    ending = PAPER if recipe == "achille2019" else ""
    names = [expert.name for expert in part.models]
    half = next(i for i, key in enumerate(part.protocols) if "train half" in key)
    means, unseen = 100 * part.errors.mean(3), (part.shares_images == 0) & ~part.shares_labels
    pairs = [
        (row, names.index(name))
        for row, task in enumerate(part.tasks)
        for name in (f"{task.dataset} half A{ending}", f"{task.dataset} half B{ending}")
        if task.dataset in datasets and name in names and unseen[row, names.index(name)]
    ]
    rows, columns = (np.array(side) for side in zip(*pairs, strict=True))
    generic = means[rows, names.index(GENERIC)]
    gains = generic - means[rows, columns]
    few = 1 - half
    p: Any = stats.wilcoxon(gains[:, few], gains[:, half])[1]
    return DomainGain(
        datasets=" and ".join(datasets),
        recipe=recipe,
        tasks=len(pairs),
        generic_few=float(generic[:, few].mean()),
        gain_few=float(gains[:, few].mean()),
        generic_half=float(generic[:, half].mean()),
        gain_half=float(gains[:, half].mean()),
        p=float(p),
    )


def count_winners(metatask: MetaTask, family: str, protocol: int) -> list[dict[str, Any]]:
    """For each kind of expert: the mean error of its candidates, and how often one is best, alone or with others."""
    part = metatask.subset(family=family)
    means = np.where(part.is_candidate, 100 * part.errors[:, :, protocol].mean(2), np.nan)
    is_best = means <= np.nanmin(means, axis=1, keepdims=True) + _TIE
    kinds = np.array([expert.kind for expert in part.models])
    found = []
    for kind in dict.fromkeys(kinds.tolist()):
        own, others = is_best[:, kinds == kind].any(1), is_best[:, kinds != kind].any(1)
        error = float(np.nanmean(means[:, kinds == kind]))
        told = {"family": family, "protocol": part.protocols[protocol], "kind": kind, "mean error": error}
        found.append(told | {"best alone": int((own & ~others).sum()), "best": int(own.sum())})
    return found


@dataclass(frozen=True)
class Ranking:
    """How the paper's classifier ranks experts for a task, beside ours.

    Attributes:
        task: its name.
        experts: how many were compared.
        paper: mean error in percent by Adam.
        ours: mean error in percent by the exact classifier.
        spearman: rank correlation of the experts' mean errors.
        same_split: the same of one split by both classifiers, averaged over splits.
        other_split: the same of two splits by ours: what the noise of the splits leaves.
    """

    task: str
    experts: int
    paper: float
    ours: float
    spearman: float
    same_split: float
    other_split: float


def compare_protocols(tables: Sequence[dict[str, Any]]) -> list[Ranking]:
    """Every task and all experts that both classifiers were tried on."""
    found = []
    for task, cells in tables[0]["cells"].items():
        paper_key = next((key for key in cells if "achille2019" in key), None)
        both = [table["cells"][task] for table in tables if paper_key in table["cells"][task]]
        if paper_key is None or len(both) < 3:
            continue
        key = paper_key.replace("achille2019", "logistic")
        paper, ours = (np.array([[row[1] for row in each[k]] for each in both]) for k in (paper_key, key))
        same = [_rank_alike(a, b) for a, b in zip(paper.T, ours.T, strict=True)]
        other = [_rank_alike(a, b) for a, b in combinations(ours.T, 2)]
        means = (float(100 * paper.mean()), float(100 * ours.mean()))
        agreement = _rank_alike(paper.mean(1), ours.mean(1))
        found.append(Ranking(task, len(both), *means, agreement, sum(same) / len(same), sum(other) / len(other)))
    return found


def _rank_alike(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation."""
    return float(np.corrcoef(stats.rankdata(a), stats.rankdata(b))[0, 1])


@dataclass(frozen=True)
class Recipes:
    """Experts by our recipe and by the paper's, over the tasks of a family that none of them has seen.

    Attributes:
        family: of the tasks.
        protocol: of the errors.
        experts: that were trained by both.
        fast: mean error in percent by our recipe.
        paper: by the paper's.
        p: of equal errors (Wilcoxon's signed ranks over tasks).
        alike: rank correlation of the experts' errors by both recipes, averaged over tasks.
        by_seed: the same of two seeds by our recipe: what the noise of training leaves.
    """

    family: str
    protocol: str
    experts: int
    fast: float
    paper: float
    p: float
    alike: float
    by_seed: float


def compare_recipes(metatask: MetaTask, family: str, protocol: int) -> Recipes:
    """What the paper's longer recipe changes."""
    part = metatask.subset(family=family, repeats=True)
    names = [expert.name for expert in part.models]
    firsts = [n for n in names if n + SECOND in names and n + PAPER in names]
    unseen = (part.shares_images == 0) & ~part.shares_labels
    means = 100 * part.errors[:, :, protocol].mean(2)
    columns = [[names.index(name + end) for name in firsts] for end in ("", SECOND, PAPER)]
    fast, second, paper = (np.where(unseen[:, each], means[:, each], np.nan) for each in columns)
    rows = np.flatnonzero((~np.isnan(fast)).sum(1) >= 3)
    known = [~np.isnan(fast[row]) for row in rows]

    def agree(other: np.ndarray) -> float:
        each = [_rank_alike(fast[row, k], other[row, k]) for row, k in zip(rows, known, strict=True)]
        return float(np.nanmean(each))

    by_task = np.nanmean(fast[rows], axis=1), np.nanmean(paper[rows], axis=1)
    p: Any = stats.wilcoxon(*by_task)[1]
    errors = (float(by_task[0].mean()), float(by_task[1].mean()))
    key = part.protocols[protocol]
    return Recipes(family, key, len(firsts), *errors, float(p), agree(paper), agree(second))


def compare_ways(metatask: MetaTask, curves: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By task and training size: for how many experts that have not seen the task frozen features beat tuning."""
    tasks, experts = ([one.name for one in side] for side in (metatask.tasks, metatask.models))
    errors: dict[tuple[str, str], dict[str, dict[str, list[float]]]] = {}
    for point in curves:
        if metatask.shares_images[tasks.index(point["task"]), experts.index(point["expert"])] == 0:
            both = errors.setdefault((point["task"], point["train"]), {}).setdefault(point["expert"], {})
            both.setdefault(point["way"], []).append(100 * point["error"])
    found = []
    for (task, train), by_expert in errors.items():
        pairs = {name: (np.mean(both["linear"]), np.mean(both["tuned"])) for name, both in by_expert.items()}
        row = {"task": task, "train": train, "experts": len(pairs), "frozen": 0, "tuned": 0}
        row["frozen"] = sum(bool(frozen < tuned) for frozen, tuned in pairs.values())
        row["tuned"] = sum(bool(tuned < frozen) for frozen, tuned in pairs.values())
        generic = pairs.get(GENERIC, (np.nan, np.nan))
        found.append(row | {"generic, frozen": float(generic[0]), "generic, tuned": float(generic[1])})
    return found
