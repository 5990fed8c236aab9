"""The meta-task, in as many pieces as it takes: one small table per expert, none made twice."""

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import task2vec as t2v
from task2vec.embedding.writing import write_whole
from task2vec.experts.measured import BUNDLE, MeasuredMetaTask, load_metatask
from task2vec.experts.recipes import find_recipe
from task2vec.paper.collection import Say
from task2vec.paper.metatask_curves import draw_curves
from task2vec.paper.metatask_embeddings import METHODS, SIZE, embed_tasks
from task2vec.paper.metatask_plan import MetaTaskPlan, PlannedExpert, plan_metatask
from task2vec.paper.metatask_results import gather, read_tables, write_results
from task2vec.paper.metatask_studio import PRETRAINED, Studio
from task2vec.paper.taxonomy_store import load_compact

# Experts whose errors are measured by training size, too: the generic one, and halves of each domain.
CURVES = ("generic", "half")
PROBES = ("resnet34", "tf_efficientnet_lite0")
# What is shipped: eight megabytes hold no more.
LICENCE = "Figures measured by the project, under its licence; no image and no weight is in them."
BUNDLED = ("tf_efficientnet_lite0 robust", "resnet34 robust", "resnet34 direct")


@dataclass(frozen=True)
class Piece:
    """How far a run came."""

    made: tuple[str, ...]
    left: tuple[str, ...]


class Run:
    """Tables of experts in a folder: what is not there yet is made, as long as there is time."""

    def __init__(
        self,
        data: str | Path,
        weights: str | Path,
        out: str | Path,
        *,
        device: str,
        workers: int,
        say: Say,
        share: tuple[int, int] = (0, 1),
    ):
        """`share` is the number of this run among several at once, and how many they are: each takes every n-th."""
        self.begun, self.say, self.out, self.share = time.monotonic(), say, Path(out), share
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

    def embed(
        self, probes: Sequence[str] | None, methods: Sequence[str] | None, *, seconds: float
    ) -> dict[str, dict[str, float]]:
        """Embeds all tasks; seconds by probe and method, of what was made now."""
        begun, spent = time.monotonic(), {}
        for name in probes or PROBES:
            file = None if name not in PRETRAINED else self.weights / PRETRAINED[name][1]
            probe = t2v.load_probe(name, weights=file, size=SIZE)
            left = seconds - (time.monotonic() - begun)
            how = {"methods": methods or METHODS, "seconds": left, "device": self.device, "say": self.say}
            spent[name] = embed_tasks(self.plan, probe, self.out / "embeddings" / name, **how)
            write_whole(self.out / f"embedding-seconds-{name}.json", json.dumps(spent[name]).encode())
            if time.monotonic() - begun > seconds:
                break
        return spent

    def try_experts(self, *, seconds: float) -> Piece:
        """Trains the experts and tries each on all tasks."""
        recipe = find_recipe("fast")
        return self._make(self.plan.experts, "experts", lambda expert: self.studio.try_expert(expert, recipe), seconds)

    def draw_curves(self, *, seconds: float) -> Piece:
        """Measures errors by training size, for some of the experts."""
        recipe = find_recipe("fast")
        chosen = [one for one in self.plan.experts if one.kind in CURVES and one.seed == 0]

        def draw(expert: PlannedExpert) -> dict[str, Any]:
            return {"name": expert.name, "points": draw_curves(self.studio, expert, recipe)}

        return self._make(chosen, "curves", draw, seconds)

    def gather(self, note: str, *, bundled: Sequence[str] = BUNDLED) -> MeasuredMetaTask:
        """Brings all tables together: CSV in the folder `results`, and the meta-task as one file beside them."""
        tables = read_tables(self.out / "experts")
        curves = [point for table in read_tables(self.out / "curves") for point in table["points"]]
        embeddings, domains = {}, {}
        for name in bundled:
            probe, method = name.split(" ")
            store = load_compact(self.out / "embeddings" / probe / f"{method}.safetensors")
            embeddings[name] = store.embeddings[method]
            if store.domains:
                domains[probe] = store.domains
        story = {"note": note, "licence": LICENCE, "seconds": {table["name"]: table["seconds"] for table in tables}}
        place = self.out / "results" / BUNDLE
        place.parent.mkdir(exist_ok=True)
        gather(self.plan, tables, embeddings=embeddings, domains=domains, story=story).save(place)
        metatask = load_metatask(place)  # the tables are of what others will have
        write_results(metatask, tables, curves, place.parent)
        return metatask

    def _make(
        self, experts: Sequence[PlannedExpert], kind: str, make: Callable[[PlannedExpert], dict], seconds: float
    ) -> Piece:
        folder = self.out / kind
        folder.mkdir(exist_ok=True)
        number, runs = self.share
        waiting = [one for one in experts[number::runs] if not name_table(folder, one.name).exists()]
        made: list[str] = []
        longest = 0.0
        for expert in waiting:
            start = time.monotonic()
            if made and start - self.begun + 1.3 * longest > seconds:
                break
            table = make(expert)
            took = time.monotonic() - start
            write_whole(name_table(folder, expert.name), json.dumps(table, sort_keys=True).encode())
            made.append(expert.name)
            longest = max(longest, took)
            self.say(f"{kind}: {expert.name}, {took:.1f} s {table.get('seconds', '')}")
        return Piece(tuple(made), tuple(one.name for one in waiting[len(made) :]))


def name_table(folder: Path, expert: str) -> Path:
    """The file of an expert's table."""
    return folder / f"{re.sub(r'[^a-z0-9]+', '-', expert.lower()).strip('-')}.json"
