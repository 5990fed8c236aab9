"""The meta-task, in as many pieces and by as many runs at once as it takes: a small file per unit, none made twice."""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from experiments.collection import Say
from experiments.metatask_curves import draw_curves
from experiments.metatask_embeddings import PORTIONS, embed_portion, read_embedded
from experiments.metatask_plan import MetaTaskPlan, PlannedExpert, plan_metatask
from experiments.metatask_results import gather, read_tables, write_results
from experiments.metatask_studio import Studio
from task2vec.experts.metatask import BUNDLE, MetaTask, load_metatask
from task2vec.storage import write_whole

PARTS = ("embeddings", "experts", "curves", "variational")
# Experts whose errors are measured by training size, too: the generic one, and halves of each domain.
CURVES = ("generic", "half")
# Those that take the longest come first, so that all runs end together.
_LONGEST = ("achille2019", "label", "whole", "half")
LICENCE = "Figures measured by the project, under its licence; no image and no weight is in them."
# What is shipped whole: eight megabytes hold no more. Of the others, the distances.
BUNDLED = ("tf_efficientnet_lite0 robust", "resnet34 robust")


@dataclass(frozen=True)
class Unit:
    """Something to make, which is made when its file is there.

    Attributes:
        part: that it belongs to.
        name: to tell.
        file: its file.
        make: writes the file.
    """

    part: str
    name: str
    file: Path
    make: Callable[[], Any]


@dataclass(frozen=True)
class Piece:
    """How far a run came."""

    made: tuple[str, ...]
    left: tuple[str, ...]


class Run:
    """A folder of tables that grows; any number of runs may work on it at once, each unit is made by one of them."""

    def __init__(self, data: str | Path, weights: str | Path, out: str | Path, *, device: str, workers: int, say: Say):
        self.begun, self.say, self.out = time.monotonic(), say, Path(out)
        self.weights, self.device, self.workers = Path(weights), device, workers
        self.out.mkdir(parents=True, exist_ok=True)
        self.plan: MetaTaskPlan = plan_metatask(data, numbers=self.out / "pixels.json", say=say)
        say(f"{len(self.plan.tasks)} tasks, {len(self.plan.experts)} experts")

    @cached_property
    def studio(self) -> Studio:
        """All pictures, decoded when they are needed first."""
        studio = Studio(self.plan, self.weights, device=torch.device(self.device), workers=self.workers)
        self.say(f"{len(studio.pixels)} pictures after {time.monotonic() - self.begun:.0f} s")
        return studio

    def units(self, parts: Sequence[str] = PARTS) -> list[Unit]:
        """All there is to make, in order."""
        every = [*self._list_embeddings(), *self._list_experts()]
        return [unit for part in parts for unit in every if unit.part == part]

    def make(self, parts: Sequence[str] = PARTS, *, seconds: float) -> Piece:
        """Makes what nobody has made or is making, as long as there is time for another one."""
        units = self.units(parts)
        made: list[str] = []
        longest: dict[str, float] = {}
        for unit in units:
            start = time.monotonic()
            expected = 1.2 * longest.get(unit.part, max(longest.values(), default=0.0))
            if unit.file.exists() or start - self.begun + expected > seconds:
                continue
            with _claim(unit.file) as is_ours:
                if not is_ours or unit.file.exists():
                    continue
                unit.make()
            took = time.monotonic() - start
            longest[unit.part] = max(longest.get(unit.part, 0.0), took)
            made.append(unit.name)
            self.say(f"{unit.part}: {unit.name}, {took:.1f} s, at {time.monotonic() - self.begun:.0f} s")
        return Piece(tuple(made), tuple(unit.name for unit in units if not unit.file.exists()))

    def gather(self, note: str) -> MetaTask:
        """Brings all tables together: CSV in the folder `results`, and the meta-task as one file beside them."""
        tables = read_tables(self.out / "experts")
        curves = [point for table in read_tables(self.out / "curves") for point in table["points"]]
        embedded = read_embedded(self.plan, self.out / "embeddings")
        place = self.out / "results" / BUNDLE
        place.parent.mkdir(exist_ok=True)
        story = {"note": note, "licence": LICENCE, "curves": curves}
        gather(self.plan, tables, embedded, whole=BUNDLED, story=story).save(place)
        metatask = load_metatask(place)  # the tables are of what others will have
        write_results(metatask, tables, curves, place.parent)
        return metatask

    def _list_embeddings(self) -> Iterator[Unit]:
        folder = self.out / "embeddings"
        for portion in PORTIONS:
            part = "variational" if portion.method == "variational" else "embeddings"
            how = {"weights": self.weights, "device": self.device, "say": self.say}
            make = partial(embed_portion, self.plan, portion, folder, **how)
            yield Unit(part, f"{portion.name} {portion.number}", portion.place(folder), make)

    def _list_experts(self) -> Iterator[Unit]:
        for expert in sorted(self.plan.experts, key=_rank):
            file = name_table(self.out / "experts", expert.name)
            yield Unit("experts", expert.name, file, partial(self._write, file, self._try, expert))
        for expert in self.plan.experts:
            if expert.kind in CURVES and not expert.is_repeat:
                file = name_table(self.out / "curves", expert.name)
                yield Unit("curves", expert.name, file, partial(self._write, file, self._draw, expert))

    def _try(self, expert: PlannedExpert) -> dict[str, Any]:
        return self.studio.try_expert(expert)

    def _draw(self, expert: PlannedExpert) -> dict[str, Any]:
        return {"name": expert.name, "points": draw_curves(self.studio, expert)}

    def _write(self, file: Path, make: Callable[[PlannedExpert], dict[str, Any]], expert: PlannedExpert) -> None:
        write_whole(file, json.dumps(make(expert), sort_keys=True).encode())


def name_table(folder: Path, expert: str) -> Path:
    """The file of an expert's table."""
    return folder / f"{re.sub(r'[^a-z0-9]+', '-', expert.lower()).strip('-')}.json"


def _rank(expert: PlannedExpert) -> int:
    """Where an expert comes in the order."""
    kinds = (expert.recipe, expert.kind)
    return next((place for place, kind in enumerate(_LONGEST) if kind in kinds), len(_LONGEST))


@contextmanager
def _claim(file: Path) -> Iterator[bool]:
    """Whether this run may make a file: others may not until it is done, or dead."""
    import fcntl  # there is none on Windows, where nothing else of this package misses it

    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
