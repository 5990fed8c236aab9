"""Experts for many tasks, trained one by one or side by side."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from task2vec.embedding import name_file
from task2vec.errors import Task2VecError, UsageError
from task2vec.experts.files import SUFFIX
from task2vec.experts.pauses import check_place
from task2vec.experts.recipes import Recipe, find_recipe
from task2vec.experts.training import describe, train_expert
from task2vec.library import Expert
from task2vec.parallel import Backend, SerialBackend, Unit, borrow_backend
from task2vec.probe import Probe, load_probe
from task2vec.progress import show_progress
from task2vec.tasks import Task


@dataclass(frozen=True)
class ExpertResult:
    """How the training of one of many experts came out.

    Attributes:
        number: the place of its task among those given.
        task: the name of that.
        name: of the expert.
        entry: what a library keeps of the expert, with the file that it lies in; if all went well.
        error: why there is none, if not.
        is_found: whether it lay there already.
    """

    number: int
    task: str
    name: str
    entry: Expert | None = None
    error: Task2VecError | None = None
    is_found: bool = False


# A task, the name of its expert, and the file for it.
Order = tuple[Task, str, Path]


@dataclass(frozen=True)
class Training:
    """The work of a worker: the network stays with it, tasks come and experts go."""

    base: Probe
    recipe: Recipe
    options: dict[str, Any] = field(default_factory=dict)

    def open(self) -> Callable[[Order], Iterator[tuple[Expert, bool]]]:
        """What trains one expert."""

        def train(order: Order) -> Iterator[tuple[Expert, bool]]:
            task, name, file = order
            expert = train_expert(task, self.base, self.recipe, name=name, out=file, **self.options)
            yield expert.entry(), expert.is_found

        return train


def train_experts(
    tasks: Sequence[Task],
    base: Probe | None = None,
    recipe: str | Recipe = "fast",
    *,
    folder: str | Path,
    names: Sequence[str] | None = None,
    backend: str | Backend = "serial",
    replace_other: bool = False,
    seed: int = 0,
    device: str | None = None,
    progress: bool = False,
) -> Iterator[ExpertResult]:
    """An expert for each of many tasks as they are finished, in `folder`; what lies there is not trained again.

    A task that fails is told with its error, and the others go on. Those whose file is something else already are told
    first, before anything is trained.

    Args:
        tasks: in any order; results come as they are finished.
        base: what `load_probe` gives; the default probe if None.
        recipe: see `train_expert`.
        folder: where the experts go, one file each. Workers on other machines must see it, too.
        names: of the experts, which are those of their files, too; the names of the tasks if None. One task may be
            there several times, under different names, in calls with different recipes or seeds.
        backend: "serial" trains here, "processes" in several processes, "ray" on a cluster; or one that is open.
        replace_other: overwrite what else lies under these names.
        seed: of draws, crops and mirror images.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        progress: show a progress bar on standard error; if they are trained here, also epochs and steps of each.
    """
    base, recipe = base or load_probe(), find_recipe(recipe)
    called = [task.name for task in tasks] if names is None else list(names)
    orders = list(zip(tasks, called, _name_files(tasks, called, Path(folder)), strict=True))
    work = Training(base, recipe, {"seed": seed, "device": device, "replace_other": replace_other})

    def run() -> Iterator[ExpertResult]:
        units: list[Unit] = []
        for number, (task, name, file) in enumerate(orders):
            try:
                check_place(file, describe(task, base, recipe, seed=seed)["key"], replace_other)
                units.append(Unit(str(number), (task, name, file)))
            except Task2VecError as error:
                yield ExpertResult(number, task.name, name, error=error)
        with borrow_backend(backend) as opened, show_progress(progress) as report:
            step, settled = report("experts", len(units)), set()
            is_here = progress and isinstance(opened, SerialBackend)
            watched = replace(work, options=work.options | {"progress": report}) if is_here else work
            for result in opened.run(watched, units):
                number = int(result.key)
                if result.value is not None and number not in settled:  # one whose process died may come again
                    settled.add(number)
                    entry, is_found = result.value
                    yield ExpertResult(number, tasks[number].name, called[number], entry, is_found=is_found)
                elif result.failure is not None and number not in settled:
                    yield ExpertResult(number, tasks[number].name, called[number], error=result.failure.error())
                step(result.is_last)

    return run()


def _name_files(tasks: Sequence[Task], names: Sequence[str], folder: Path) -> list[Path]:
    """A file for each expert; two that would share one are refused."""
    if len(names) != len(tasks):
        raise UsageError(
            f"{len(names)} names for {len(tasks)} tasks leave it open which expert has which. Give one for each "
            "(--name), in their order, or none."
        )
    files = [name_file(replace(task, name=name), SUFFIX) for task, name in zip(tasks, names, strict=True)]
    twice = [file for file, count in Counter(files).items() if count > 1]
    if twice:
        raise UsageError(
            f"two experts would be in one file, '{twice[0]}', and one be lost. Give each a name of its own: names=, "
            "--name once for each."
        )
    return [folder / file for file in files]
