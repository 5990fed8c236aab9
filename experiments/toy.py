"""The paper's toy experiment: 64 ways to cut the unit square in two, seen by two probes.

(Achille 2019, "Example toy task embedding".) All tasks have the same points, so the domain embedding (the mean
activation of the probe) is the same for all, and only an embedding that looks at the labels can tell them apart. The
paper shows it by a picture; here it is also measured, over several seeds, each with its own tasks and random features.

The head's penalty is the same for all tasks. Cross-validation, our default, asks for hardly any (in the median 1e-4 for
random features, and 1e-5, the least there is, for monomials), because labels without noise cannot be overfitted by
nine or ten features. But monomials are nearly collinear: without a penalty their weights grow large, of either sign,
and say little about the regions. `L2` was chosen by the closed formulas of `toy_probes` on seeds 100 to 111, which the
default run does not use. There, the way that neighbours come from chance to the best, and the rank correlation of the
number of clusters with the norm (a strong penalty leaves tasks that cannot be fitted with hardly any weights), are

    l2                        1e-5   1e-4   1e-3   1e-2   1e-1
    way, ReLU                 0.36   0.37   0.38   0.44   0.43
    way, polynomial           0.21   0.21   0.40   0.47   0.48
    correlation, ReLU        -0.02  -0.11  -0.31  -0.58  -0.49
    correlation, polynomial   0.60   0.53   0.17  -0.17  -0.55
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from experiments.outcome import write_figure, write_rows
from experiments.toy_figures import draw_neighbours, draw_spaces
from experiments.toy_measures import Mean, average_seeds, measure_space, region_similarity, word_statement
from experiments.toy_probes import make_polynomial_probe, make_random_probe, name_filters
from task2vec.distance import pairwise
from task2vec.embedding import Embedding, EmbedSettings, embed, embed_domain
from task2vec.errors import UsageError
from task2vec.plots import import_figure, make_folder
from task2vec.tasks.synthetic import Partition, draw_partitions, label_grid

if TYPE_CHECKING:
    from task2vec.probe import Probe
    from task2vec.tasks import Task

COUNT, SIDE, SEEDS = 64, 16, (0, 1, 2, 3, 4)
FEWEST_TASKS = 8
L2 = 1e-2
# Every pair, in double precision: nothing is sampled, so the numbers have no noise. Where maps are of one pixel, the
# direct and the robust Fisher are the same.
SETTINGS = EmbedSettings(method="direct", seeds="all", l2=L2, dtype="float64")
# Of t-SNE; and how many random starts it gets, of which the best is drawn.
PERPLEXITY, STARTS = 12, 4


@dataclass(frozen=True)
class Space:
    """The tasks of one seed as one probe sees them."""

    filters: tuple[str, ...]
    embeddings: tuple[Embedding, ...]
    distances: np.ndarray
    domain_distances: np.ndarray

    @property
    def errors(self) -> list[float]:
        """Cross-validated error of every task's head."""
        return [embedding.provenance["head"]["cv_error"] for embedding in self.embeddings]

    @property
    def norms(self) -> list[float]:
        """Norm of every embedding."""
        return [embedding.norm() for embedding in self.embeddings]


@dataclass(frozen=True)
class Trial:
    """One seed: how its tasks cut the square, and the space of each probe by name."""

    seed: int
    partitions: tuple[Partition, ...]
    spaces: dict[str, Space]

    @property
    def regions(self) -> np.ndarray:
        """(tasks, points) whether a point is positive."""
        return np.stack([partition.is_positive for partition in self.partitions])

    @property
    def clusters(self) -> list[int]:
        """Number of clusters of every task."""
        return [partition.clusters for partition in self.partitions]


@dataclass(frozen=True)
class ToyOutcome:
    """What the experiment found.

    Attributes:
        means: by probe and measure, over the seeds.
        rows: every measure for each seed and probe.
        statement: the finding in one sentence.
        files: what was written.
    """

    means: dict[str, dict[str, Mean]]
    rows: list[dict[str, Any]]
    statement: str
    files: list[Path]


def run_toy(
    folder: str | Path,
    *,
    seeds: Sequence[int] = SEEDS,
    count: int = COUNT,
    side: int = SIDE,
    progress: Callable[[str], None] = lambda step: None,
) -> ToyOutcome:
    """The toy experiment's numbers, with its figures and tables written to `folder`.

    Args:
        folder: made if it is not there.
        seeds: each draws other tasks and other random features; the first is the one that is drawn.
        count: tasks per seed.
        side: points along each side of the square.
        progress: called with a few words at the start of each of `count_steps(seeds)` steps.
    """
    _check(seeds, count)
    import_figure()  # what cannot be drawn should not be computed first
    folder = make_folder(folder)
    trials = [_run_trial(seed, count, side, progress) for seed in seeds]
    progress("drawing")
    rows = [row for trial in trials for row in _measure(trial)]
    means = {name: average_seeds([row for row in rows if row["probe"] == name]) for name in trials[0].spaces}
    drawn = trials[0]
    places = {name: place_tasks(space.distances, seed=drawn.seed) for name, space in drawn.spaces.items()}
    files = [
        *write_figure(draw_spaces(drawn.regions, drawn.clusters, places), folder, "toy"),
        *write_figure(draw_neighbours(rows), folder, "toy_neighbours"),
        write_rows(
            [row for trial in trials for row in _tabulate_tasks(trial, places if trial is drawn else {})],
            folder,
            "toy_tasks",
        ),
        write_rows(rows, folder, "toy_neighbours"),
        write_rows([row for trial in trials for row in _tabulate_filters(trial)], folder, "toy_embeddings"),
    ]
    return ToyOutcome(means, rows, word_statement(means, seeds=len(trials)), files)


def count_steps(seeds: Sequence[int]) -> int:
    """How often `run_toy` reports progress."""
    return 2 * len(seeds) + 1


def place_tasks(distances: np.ndarray, *, seed: int) -> np.ndarray:
    """(tasks, 2) places in the plane for a picture: the t-SNE of least divergence from several random starts."""
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(distances) - 1) / 3)
    states = np.random.default_rng(seed).integers(1 << 31, size=STARTS)
    # For so few points the exact gradient is faster than the approximate one, and it needs no threads.
    options = {"metric": "precomputed", "init": "random", "method": "exact", "perplexity": perplexity}
    maps = [TSNE(random_state=int(state), **options).fit(distances) for state in states]
    return min(maps, key=lambda found: found.kl_divergence_).embedding_


def _check(seeds: Sequence[int], count: int) -> None:
    if not seeds or min(seeds) < 0 or max(seeds) >= 1 << 63 or len(set(seeds)) < len(seeds):
        raise UsageError(
            f"seeds={seeds} do not say which tasks to draw: it takes one or more, each from 0 to 2^63 - 1, and none "
            "twice, which would make the standard errors too small. Try seeds=range(5)."
        )
    if count < FEWEST_TASKS:
        raise UsageError(
            f"count={count} tasks are too few to speak of neighbours. Ask for at least {FEWEST_TASKS}; the paper "
            f"has {COUNT}."
        )


def _run_trial(seed: int, count: int, side: int, progress: Callable[[str], None]) -> Trial:
    partitions = draw_partitions(count=count, side=side, seed=seed)
    tasks = label_grid(partitions, side=side)
    probes = {"ReLU": make_random_probe(side=side, seed=seed), "polynomial": make_polynomial_probe(side=side)}
    spaces = {}
    for name, probe in probes.items():
        progress(f"seed {seed}: embedding {count} tasks by {name} features")
        spaces[name] = _embed_all(tasks, probe)
    return Trial(seed, partitions, spaces)


def _embed_all(tasks: "Sequence[Task]", probe: "Probe") -> Space:
    with _single_thread():
        size = len(tasks[0])
        common: dict[str, Any] = {"device": "cpu", "num_workers": 1, "batch_size": size}
        embeddings = tuple(embed(task, probe, settings=SETTINGS, **common) for task in tasks)
        # The domain embedding knows the pictures and nothing else, so tasks that share them share it.
        domains = {task.digests: task for task in tasks}
        domains = {digests: embed_domain(task, probe, dtype="float64", **common) for digests, task in domains.items()}
    activations = np.stack([domains[task.digests].mean for task in tasks])
    distances = np.array(pairwise(embeddings, device="cpu"))
    apart = np.linalg.norm(activations[:, None] - activations[None, :], axis=2)
    return Space(name_filters(probe), embeddings, distances, apart)


@contextmanager
def _single_thread() -> Iterator[None]:
    """One thread: matrices as small as these lose more to handing work over than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _measure(trial: Trial) -> list[dict[str, Any]]:
    """One row per probe: see `toy_measures`."""
    similarity = region_similarity(trial.regions)
    rows = []
    for name, space in trial.spaces.items():
        measures = measure_space(
            space.distances,
            space.domain_distances,
            similarity,
            clusters=trial.clusters,
            errors=space.errors,
            norms=space.norms,
        )
        rows.append({"seed": trial.seed, "probe": name, **measures})
    return rows


def _tabulate_tasks(trial: Trial, places: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """One row per task; only tasks that are drawn have a place."""
    rows = []
    for number, partition in enumerate(trial.partitions):
        row: dict[str, Any] = {
            "seed": trial.seed,
            "task": number,
            "clusters": partition.clusters,
            "share_positive": partition.is_positive.mean(),
        }
        for name, space in trial.spaces.items():
            x, y = places[name][number] if name in places else (None, None)
            found = {"cv_error": space.errors[number], "norm": space.norms[number], "x": x, "y": y}
            row |= {f"{name.lower()}_{measure}": value for measure, value in found.items()}
        rows.append(row)
    return rows


def _tabulate_filters(trial: Trial) -> list[dict[str, Any]]:
    """One row per probe, task and filter."""
    return [
        {"seed": trial.seed, "probe": name, "task": number, "filter": feature, "fisher": fisher}
        for name, space in trial.spaces.items()
        for number, embedding in enumerate(space.embeddings)
        for feature, fisher in zip(space.filters, embedding.fisher, strict=True)
    ]


if __name__ == "__main__":
    from experiments.commands.toy import app

    app()
