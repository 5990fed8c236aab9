"""Small models and tasks."""

import pickle
from functools import partial

from task2vec.parallel import open_backend
from task2vec.probe import Probe
from task2vec.tasks import Task
from tests import cases

SIDE = 40
pictures = partial(cases.pictures, side=SIDE)
make_task = partial(cases.make_task, side=SIDE)
make_attributes = partial(cases.make_attributes, side=30)
make_model = partial(cases.make_tiny, dropout=0.1)


def make_tasks() -> list[Task]:
    """Two label sets of the same pictures, colours, and attributes."""
    return [*cases.ask_binary(2, images=24, side=SIDE), make_task((9, 8), seed=5), make_attributes(24)]


def make_many() -> tuple[list[Task], list[Probe]]:
    """Five tasks, four of them on the same pictures, and four models."""
    tasks = [*cases.ask_binary(4, images=20, side=SIDE), make_task((4, 4), seed=3, name="apart")]
    return tasks, [make_model(f"model-{seed}", seed=seed) for seed in range(4)]


class Packed:
    """A backend within this process that pickles work, units and results as they are for other processes.

    The results of each unit go through `change`, which returns those that arrive.
    """

    def __init__(self, change=iter):
        self.change = change

    def run(self, work, units):
        for unit in units:
            results = open_backend("serial", threads=1).run(self.copy(work), [self.copy(unit)])
            yield from self.change(map(self.copy, results))

    @staticmethod
    def copy(value):
        return pickle.loads(pickle.dumps(value))
