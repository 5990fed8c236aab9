"""A library of any number of tasks that looks like a real one, made again from a seed wherever a row is needed.

It is grown from the 43 real embeddings of docs/results/taxonomy (default probe, 21,008 filters; log-vectors, each
centred over its filters). What those say about libraries is kept in four parts:

- Tasks come in datasets of 5 to 500 tasks (log-uniform). A dataset mixes three real tasks, with weights of its own for
  every task in it, spread by 1.2 around the mean of all.
- A dataset has a direction of its own. Of what sets one of our three real datasets apart, 70% lies outside of all
  tasks of the other two, with a standard deviation of 0.9 to 1.05. Here it is what a real task has that the 42 others
  do not, turned round within each layer by a random number of filters (so its size, its layers and its outliers are
  real, and no two datasets share it), with a standard deviation of 0.8. Real libraries will repeat themselves more.
- A task has a direction of its own, made in the same way, of 0.37; and noise, per filter, as uneven as the real
  residuals are, of 0.3 to 0.55. Together they are what a real task has that no mix of the 42 others has (0.50 to 0.85,
  0.62 in the median); how much of it is noise was read off two embeddings of each task, from 100 images each.

And a size: datasets differ by a standard deviation of 0.8 in the mean logarithm, tasks of one by another 0.8. A filter
is dead where it is in the real task that weighs most.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.embeddings import read_committed

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "taxonomy" / "tf_efficientnet_lite0"
_TABLE = 1 << 22
SPREAD, DATASET, TASK, SIZES = 1.2, 0.8, 0.37, 0.8
NOISE = (0.3, 0.55)
PRIOR = -6.0  # of the real ones' logarithms, in the median, below the mean of the task


@dataclass(frozen=True)
class Material:
    """The real tasks in parts, in float32.

    Attributes:
        mean: of all tasks.
        deviations: of each from it, times SPREAD.
        residuals: what each has that the others do not, of standard deviation 1, every layer twice in a row.
        dead: filters without Fisher.
        noise: normal numbers, more than enough for one task.
        profile: how much of the noise each filter gets.
        start: where each filter's layer begins in `residuals`, plus its place in the layer.
        layer: the layer of each filter.
        sizes: of the layers.
        level: mean logarithm of all.
    """

    mean: np.ndarray
    deviations: np.ndarray
    residuals: np.ndarray
    dead: np.ndarray
    noise: np.ndarray
    profile: np.ndarray
    start: np.ndarray
    layer: np.ndarray
    sizes: np.ndarray
    level: float


def read_material() -> Material:
    """The 43 real tasks, taken apart."""
    real, _ = read_committed(RESULTS / "embeddings.safetensors")
    logs = np.log(np.stack([one.vector for one in real]))
    level = float(logs.mean())
    logs -= logs.mean(1, keepdims=True)
    residuals = np.stack([_leave_one_out(logs, number) for number in range(len(logs))])
    profile = np.sqrt(np.square(residuals).mean(0))
    residuals /= np.sqrt(np.square(residuals).mean(1, keepdims=True))
    sizes = np.array([layer.filters for layer in real[0].layers])
    ends = np.cumsum(sizes)
    twice = [part for end, size in zip(ends, sizes, strict=True) for part in [residuals[:, end - size : end]] * 2]
    return Material(
        mean=logs.mean(0).astype(np.float32),
        deviations=(SPREAD * (logs - logs.mean(0))).astype(np.float32),
        residuals=np.concatenate(twice, axis=1).astype(np.float32),
        dead=np.stack([one.fisher == 0 for one in real]),
        noise=np.random.default_rng(43).standard_normal(_TABLE + logs.shape[1], dtype=np.float32),
        profile=(profile / np.sqrt(np.square(profile).mean())).astype(np.float32),
        start=np.arange(logs.shape[1]) + np.repeat(ends - sizes, sizes),
        layer=np.repeat(np.arange(len(sizes)), sizes),
        sizes=sizes,
        level=level,
    )


def _leave_one_out(logs: np.ndarray, number: int) -> np.ndarray:
    """What a task has that no mix of the others has."""
    others = np.delete(logs, number, axis=0)
    mean = others.mean(0)
    others = others - mean
    gram = others @ others.T
    ridge = 1e-3 * np.trace(gram) / len(gram) * np.eye(len(gram))
    return logs[number] - mean - np.linalg.solve(gram + ridge, others @ (logs[number] - mean)) @ others


class Simulation:
    """The tasks of one simulated library."""

    def __init__(
        self,
        tasks: int,
        *,
        seed: int = 0,
        dead: float = 0.0,
        per_dataset: tuple[int, int] = (5, 500),
    ):
        """What is drawn here is a few numbers per task; rows are made when they are asked for.

        Args:
            tasks: how many.
            seed: of the tasks.
            dead: a further share of filters that have nothing but a prior, which every task has its own of: one half
                is the dataset's, the other the task's.
            per_dataset: the least and the most tasks of a dataset.
        """
        self.material, self.tasks, self.dead = read_material(), tasks, dead
        self.filters, real = len(self.material.mean), len(self.material.deviations)
        rng = np.random.default_rng((seed, 1, 0))
        sizes = np.exp(rng.uniform(*np.log(per_dataset), size=tasks)).astype(int)
        datasets = np.repeat(np.arange(tasks), sizes)[:tasks]
        own = np.random.default_rng((7, 0))
        count = int(datasets[-1]) + 1
        mixed = np.argsort(own.random((count, real)), axis=1)[:, :3]
        residual, turn = own.integers(real, size=count), own.integers(1 << 20, size=count)
        level = self.material.level + (SIZES * own.normal(size=count))[datasets] + SIZES * rng.normal(size=tasks)
        facts = {
            "dataset": datasets,
            "mixed": mixed[datasets],
            "weights": rng.dirichlet([1.0, 0.5, 0.3], size=tasks),
            "task_residual": rng.integers(real, size=tasks),
            "task_turn": rng.integers(1 << 20, size=tasks),
            "level": level,
        }
        self.facts = {name: fact[:tasks] for name, fact in facts.items()}
        noise = rng.uniform(*NOISE, size=tasks) * rng.choice([-1, 1], size=tasks)
        self.facts |= {"noise_from": rng.integers(_TABLE, size=tasks), "noise": noise, "prior": rng.normal(size=tasks)}
        self.facts |= {"dataset_residual": residual, "dataset_turn": turn}
        self.dataset = self.facts["dataset"]
        self._directions: dict[int, np.ndarray] = {}

    def rows(self, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
        """The rows (float32, dead filters negative) of some tasks."""
        made = np.empty((len(numbers), self.filters), dtype=np.float32)
        for into, number in zip(made, numbers, strict=True):
            self._make(int(number), into)
        return made

    def _make(self, number: int, into: np.ndarray) -> None:
        m, facts = self.material, self.facts
        begin, mixed, weights = (facts[name][number] for name in ("noise_from", "mixed", "weights"))
        np.multiply(m.noise[begin : begin + self.filters], m.profile, out=into)
        into *= np.float32(facts["noise"][number])
        into += np.float32(TASK) * self._turned(facts["task_residual"][number], facts["task_turn"][number])
        into += self._direction(int(self.dataset[number]))
        dead = m.dead[mixed[weights.argmax()]]
        into *= ~dead
        into += m.mean
        for real, weight in zip(mixed, weights, strict=True):
            into += np.float32(weight) * m.deviations[real]
        if self.dead:
            further = self._further_dead(number)
            into[further], dead = PRIOR + facts["prior"][number], dead | further
        into += np.float32(facts["level"][number])
        np.exp(into, out=into)
        np.negative(into, out=into, where=dead)

    def _direction(self, dataset: int) -> np.ndarray:
        """What a dataset has of its own; tasks of one dataset follow each other, so the last few are kept."""
        if dataset not in self._directions:
            if len(self._directions) > 64:
                self._directions.clear()
            residual, turn = (self.facts[name][dataset] for name in ("dataset_residual", "dataset_turn"))
            self._directions[dataset] = np.float32(DATASET) * self._turned(residual, turn)
        return self._directions[dataset]

    def _turned(self, real: int, turn: int) -> np.ndarray:
        """A real residual, turned round within each layer."""
        m = self.material
        return m.residuals[real].take(m.start + (turn % m.sizes)[m.layer])

    def _further_dead(self, number: int) -> np.ndarray:
        kinds = [(11, int(self.dataset[number])), (12, number)]
        draws = [np.random.default_rng(kind).random(self.filters, dtype=np.float32) for kind in kinds]
        return np.minimum(*draws) < self.dead / 2
