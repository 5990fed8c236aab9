"""What the embedding says of a task (Achille 2019, section 2): difficulty, labels, number of classes, sample size.

Every experiment is a list of cases, which are tasks with what was done to them, and one embedding per case. The
yardstick of "no information" is `t2v.trivial(embedding)`, with the prior of that very embedding. The paper's estimator
is a precision, (N / beta) F + 1 / v, and its trivial embedding 1 / v; ours is the same times beta / N, and the distance
looks at ratios only, so the factor drops out. Held against the prior of another number of images, a small task would be
asked to lie where no embedding of its size can. How much of the way the prior alone goes is told by two more numbers:
its share of the vector, and the distance that the same Fisher would have beside the prior of `REFERENCE` images.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import task2vec as t2v
from experiments.collection import Collection, Member

REFERENCE = 1000
TRUE, SHUFFLED, ALL_BUT_ONE = "true labels", "shuffled labels", "all but one image alike"

Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        repeats: random subsets or shuffles of each kind; the error bars are over these.
        shuffled: parts of the images whose labels are shuffled.
        classes: numbers of classes, as far as the task has them.
        sizes: images per class, as far as the task has them.
        tasks: how many rich tasks are shuffled and thinned.
        most_classes: rich tasks are cut to so many classes where neither classes nor tasks are compared by them.
        most_images: images per class where the sample size is not the question.
        seed: of every subset and shuffle.
    """

    repeats: int = 5
    shuffled: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    classes: tuple[int, ...] = (2, 3, 5, 8, 13, 21, 34)
    sizes: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100)
    tasks: int = 3
    most_classes: int = 10
    most_images: int = 20
    seed: int = 0


@dataclass(frozen=True)
class Case:
    """A task to embed, and what its row says besides."""

    about: Row
    task: t2v.Task


@dataclass
class Embedder:
    """Embeds every task once, whoever asks for it, and keeps the numbers.

    Attributes:
        probe: of all embeddings.
        settings: of all embeddings.
        device: where to compute; None takes a GPU if there is one.
        report: called with a few words before each embedding.
        known: what was measured, by the fingerprint of the task.
    """

    probe: t2v.Probe
    settings: t2v.EmbedSettings
    device: str | None = None
    report: Callable[[str], None] = lambda step: None
    known: dict[str, Row] = field(default_factory=dict)

    def embed(self, task: t2v.Task, why: str) -> t2v.Embedding:
        """The embedding, computed now."""
        self.report(f"{why}: {task.name}")
        embedding = t2v.embed(task, self.probe, settings=self.settings, device=self.device)
        self.known[task.fingerprint] = measure(embedding)
        return embedding

    def rows(self, cases: Iterable[Case], why: str) -> list[Row]:
        """One row per case: what it is, then what was measured."""
        rows = []
        for case in cases:
            if case.task.fingerprint not in self.known:
                self.embed(case.task, why)
            rows.append({**case.about, **self.known[case.task.fingerprint]})
        return rows


def measure(embedding: t2v.Embedding) -> Row:
    """The numbers of an embedding: size, error, norm, and how far it is from the trivial one."""
    counts, head = embedding.provenance["counts"], embedding.provenance["head"]
    at_reference = replace(embedding, prior=embedding.prior * (counts["images"] / REFERENCE))
    return {
        "images": counts["images"],
        "classes": counts["classes"],
        "error": head["cv_error"],
        "chance": 1 - 1 / counts["classes"],
        "l2": head["l2"],
        "norm": embedding.norm(),
        "distance": t2v.distance.symmetric(embedding, t2v.trivial(embedding)),
        "distance_with_prior_of_1000": t2v.distance.symmetric(at_reference, t2v.trivial(at_reference)),
        "prior_share": float(np.mean(embedding.prior / embedding.vector)),
        "relative_error": embedding.provenance["relative_error"],
    }


def plan_norm_error(members: Sequence[Member]) -> list[Case]:
    """Every task as it is."""
    return [Case({"dataset": member.dataset, "task": member.task.name}, member.task) for member in members]


def plan_labels(rich: Sequence[Member], plan: Plan) -> list[Case]:
    """Tasks with the labels of a growing part of their images shuffled."""
    cases = []
    for number, task in enumerate(_bases(rich, plan)):
        task = cut_images(task, plan.most_images, rng=np.random.default_rng([plan.seed, 2, number]))
        for share in plan.shuffled:
            for repeat in range(plan.repeats if share else 1):
                rng = np.random.default_rng([plan.seed, 3, number, repeat])
                about = {"task": task.name, "shuffled": share, "repeat": repeat}
                cases.append(Case(about, shuffle_labels(task, share, rng=rng)))
    return cases


def plan_classes(rich: Sequence[Member], plan: Plan) -> list[Case]:
    """Random classes of the richest task, few to all, equally many images of each."""
    task = rich[0].task
    images = min(plan.most_images, int(task.counts.min()))
    cases = []
    for count in sorted({*(count for count in plan.classes if count < len(task.classes)), len(task.classes)}):
        for repeat in range(plan.repeats):
            rng = np.random.default_rng([plan.seed, 4, count, repeat])
            about = {"task": task.name, "images_per_class": images, "repeat": repeat}
            cases.append(Case(about, cut_images(cut_classes(task, count, rng=rng), images, rng=rng)))
    return cases


def plan_sample_size(rich: Sequence[Member], plan: Plan) -> list[Case]:
    """Few to many images per class; the first task also with labels that say nothing.

    The subsets of one repeat are nested, so that steps from one size to the next can be compared pair by pair.
    """
    cases = []
    for number, task in enumerate(_bases(rich, plan)):
        for size in _fitting_sizes(task, plan):
            for repeat in range(plan.repeats):
                subset = cut_images(task, size, rng=np.random.default_rng([plan.seed, 5, number, repeat]))
                rng = np.random.default_rng([plan.seed, 6, repeat, size])
                kinds = {TRUE: subset}
                if number == 0:
                    kinds[SHUFFLED] = shuffle_labels(subset, 1.0, rng=rng)
                    kinds[ALL_BUT_ONE] = single_out(subset, rng=rng)
                about = {"task": task.name, "images_per_class": size, "repeat": repeat}
                cases += [Case({**about, "labels": kind}, cut) for kind, cut in kinds.items()]
    return cases


@dataclass(frozen=True)
class Experiments:
    """The cases of all experiments, planned before anything is embedded."""

    norm_error: list[Case]
    labels: list[Case]
    classes: list[Case]
    sample_size: list[Case]
    seed: int

    @classmethod
    def of(cls, collection: Collection, plan: Plan) -> "Experiments":
        """What is to be done with the tasks of a collection."""
        rich = collection.rich
        return cls(
            plan_norm_error(collection.members),
            plan_labels(rich, plan),
            plan_classes(rich, plan),
            plan_sample_size(rich, plan),
            plan.seed,
        )

    def __len__(self) -> int:
        """How many embeddings it takes: one for every task that is not another's twin, and one for the relabelled."""
        cases = (*self.norm_error, *self.labels, *self.classes, *self.sample_size)
        return len({case.task.fingerprint for case in cases}) + 1

    def run(self, embedder: Embedder) -> dict[str, list[Row]]:
        """The rows of every experiment, by its name."""
        untouched = next(case.task for case in self.labels if not case.about["shuffled"])
        return {
            "relabelled": [check_relabelling(untouched, embedder, seed=self.seed)],
            "labels": embedder.rows(self.labels, "labels"),
            "classes": embedder.rows(self.classes, "number of classes"),
            "sample_size": embedder.rows(self.sample_size, "sample size"),
            "norm_error": embedder.rows(self.norm_error, "norm and error"),
        }


def check_relabelling(task: t2v.Task, embedder: Embedder, *, seed: int) -> Row:
    """How far the embedding moves under other names and numbers of the classes and another order of the images."""
    given = embedder.embed(task, "as it is")
    other = embedder.embed(relabel(task, rng=np.random.default_rng([seed, 1])), "relabelled")
    difference = np.abs(given.vector - other.vector)
    return {
        "task": task.name,
        "filters": len(given),
        "filters_changed": int((difference > 0).sum()),
        "largest_difference": float(difference.max()),
        "largest_relative_difference": float((difference / given.vector).max()),
    }


def relabel(task: t2v.Task, *, rng: np.random.Generator) -> t2v.Task:
    """The same task under other names and numbers of its classes, its images in another order."""
    shuffled = task.subset(rng.permutation(len(task)))
    numbers = rng.permutation(len(task.classes))
    names = tuple(f"class {number}" for number in range(len(task.classes)))
    return replace(shuffled, targets=numbers[shuffled.targets], classes=names)


def shuffle_labels(task: t2v.Task, share: float, *, rng: np.random.Generator) -> t2v.Task:
    """The task with the labels of a random part of its images dealt out anew among them; class sizes stay."""
    chosen = rng.permutation(len(task))[: round(share * len(task))]
    targets = task.targets.copy()
    targets[chosen] = rng.permutation(targets[chosen])
    return replace(task, targets=targets)


def single_out(task: t2v.Task, *, rng: np.random.Generator) -> t2v.Task:
    """The same images with one label for all but one of them."""
    targets = np.zeros(len(task), dtype=np.int64)
    targets[rng.integers(len(task))] = 1
    return replace(task, targets=targets, classes=("the others", "one"))


def cut_classes(task: t2v.Task, count: int, *, rng: np.random.Generator) -> t2v.Task:
    """The task of `count` random classes; all of them if there are no more."""
    kept = rng.permutation(len(task.classes))[:count]
    return task.subset(np.flatnonzero(np.isin(task.targets, kept)))


def cut_images(task: t2v.Task, count: int, *, rng: np.random.Generator) -> t2v.Task:
    """The task of `count` random images of every class; one draw with more images holds all of a draw with fewer."""
    orders = [rng.permutation(np.flatnonzero(task.targets == kind)) for kind in range(len(task.classes))]
    return task.subset(np.sort(np.concatenate([order[:count] for order in orders])))


def _fitting_sizes(task: t2v.Task, plan: Plan) -> list[int]:
    """The sizes of subsets that differ from one another: at most two thirds of the images of a class."""
    most = max(1, int(task.counts.min()) * 2 // 3)
    return [size for size in plan.sizes if size <= most]


def _bases(rich: Sequence[Member], plan: Plan) -> list[t2v.Task]:
    """The rich tasks that are shuffled and thinned, cut to equally many classes where they have more."""
    tasks = [member.task for member in rich[: plan.tasks]]
    return [cut_classes(t, plan.most_classes, rng=np.random.default_rng([plan.seed, 0])) for t in tasks]


if __name__ == "__main__":
    from experiments.commands.properties import app

    app()
