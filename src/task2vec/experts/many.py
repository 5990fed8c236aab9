"""Experts for many tasks, trained one by one or side by side."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from task2vec.embedding.kept import name_file
from task2vec.embedding.progress import watch
from task2vec.engine import Engine, Unit, borrow_engine
from task2vec.errors import Task2VecError, UsageError
from task2vec.experts.files import SUFFIX
from task2vec.experts.recipes import Recipe, find_recipe
from task2vec.experts.training import train_expert
from task2vec.library import Expert
from task2vec.probe import Probe, load_probe
from task2vec.tasks import Task


@dataclass(frozen=True)
class ExpertResult:
    """How the training of one of many experts came out.

    Attributes:
        number: the place of its task among those given.
        task: the name of that.
        entry: what a library keeps of the expert, with the file that it lies in; if all went well.
        error: why there is none, if not.
        is_found: whether it lay there already.
    """

    number: int
    task: str
    entry: Expert | None = None
    error: Task2VecError | None = None
    is_found: bool = False


@dataclass(frozen=True)
class Training:
    """The work of a worker: the network stays with it, tasks come and experts go."""

    base: Probe
    recipe: Recipe
    options: dict[str, Any] = field(default_factory=dict)

    def open(self) -> Callable[[tuple[Task, Path]], Iterator[tuple[Expert, bool]]]:
        """What trains one expert."""

        def train(payload: tuple[Task, Path]) -> Iterator[tuple[Expert, bool]]:
            task, file = payload
            expert = train_expert(task, self.base, self.recipe, out=file, **self.options)
            yield expert.entry(), expert.is_found

        return train


def train_experts(
    tasks: Sequence[Task],
    base: Probe | None = None,
    recipe: str | Recipe = "fast",
    *,
    folder: str | Path,
    engine: str | Engine = "serial",
    replace_other: bool = False,
    seed: int = 0,
    device: str | None = None,
    progress: bool = False,
) -> Iterator[ExpertResult]:
    """An expert for each of many tasks as they are finished, in `folder`; what lies there is not trained again.

    A task that fails is told with its error, and the others go on.

    Args:
        tasks: in any order, of different names; results come as they are finished.
        base: what `load_probe` gives; the default probe if None.
        recipe: see `train_expert`.
        folder: where the experts go, one file each. Workers on other machines must see it, too.
        engine: "serial" trains here, "pool" in several processes, "ray" on a cluster; or one that is open.
        replace_other: overwrite what else lies under these names.
        seed: of draws, crops and mirror images.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        progress: show a progress bar on standard error.
    """
    base, recipe = base or load_probe(), find_recipe(recipe)
    files = _name_files(tasks, Path(folder))
    work = Training(base, recipe, {"seed": seed, "device": device, "replace_other": replace_other})
    units = [Unit(str(number), (task, file)) for number, (task, file) in enumerate(zip(tasks, files, strict=True))]

    def run() -> Iterator[ExpertResult]:
        with borrow_engine(engine) as open_engine, watch(progress) as report:
            step, settled = report("experts", len(units)), set()
            for result in open_engine.run(work, units):
                number = int(result.key)
                if result.value is not None and number not in settled:  # one whose process died may come again
                    settled.add(number)
                    entry, is_found = result.value
                    yield ExpertResult(number, tasks[number].name, entry, is_found=is_found)
                elif result.failure is not None and number not in settled:
                    yield ExpertResult(number, tasks[number].name, error=result.failure.error())
                step(result.is_last)

    return run()


def _name_files(tasks: Sequence[Task], folder: Path) -> list[Path]:
    """A file for each task; two that would share one are refused."""
    names = [name_file(task, SUFFIX) for task in tasks]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UsageError(
            f"two tasks would have their experts in one file, '{twice[0]}', and one be lost. Give each task a name of "
            "its own: dataclasses.replace(task, name=...)."
        )
    return [folder / name for name in names]
