"""Do distances between tasks agree with nature's own taxonomy (Achille 2019, figures 1 and 2)? The computing part.

Every embedding is saved the moment it is made, and taken up by the next run if task, probe and settings are the same.
So the work can be done on one machine in several goes, and the figures be drawn on another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import task2vec as t2v
from experiments.collection import Collection
from experiments.taxonomy_attributes import Family
from experiments.taxonomy_store import load_compact, method_of, save_compact
from experiments.taxonomy_tree import Forest
from task2vec.embedding import is_same, name_file
from task2vec.errors import DataError, EmbeddingFileError, Task2VecError

DOMAIN = "domain"
DOMAIN_KINDS = ("cosine", "standardised")
COMPACT = "embeddings.safetensors"
SUFFIX = ".safetensors"


@dataclass
class Shelf:
    """Embeds what was not embedded before, and keeps it.

    Attributes:
        folder: where embeddings lie: `embeddings/<method>/<task>.safetensors`, and all of them in one compact file.
        probe: of all embeddings.
        device: where to compute; None takes a GPU if there is one.
        report: called with a few words for each embedding, once it is there.
        warn: called with what is wrong with a file that cannot be taken up.
        found: how many were taken up.
        made: how many were computed.
    """

    folder: Path
    probe: t2v.Probe
    device: str | None = None
    report: Callable[[str], None] = lambda step: None
    warn: Callable[[str], None] = lambda message: None
    found: int = 0
    made: int = 0
    _kept: dict[tuple[str, str], t2v.Embedding] = field(default_factory=dict)
    _domains: dict[str, t2v.DomainEmbedding] = field(default_factory=dict)
    _datasets: dict[str, str] = field(default_factory=dict)
    _settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        """Takes up the compact file, if one of this probe lies there; a damaged one is said and left alone."""
        if not (self.folder / COMPACT).exists():
            return
        try:
            known = load_compact(self.folder / COMPACT)
        except EmbeddingFileError as error:
            self.warn(str(error))
            return
        whole = [one for group in known.embeddings.values() for one in group]
        mine = self.probe.fingerprint
        self._kept = {(method_of(one), one.task): one for one in whole if one.probe_fingerprint == mine}
        self._domains = {one.task: one for one in known.domains if one.probe_fingerprint == mine}
        self._datasets = known.datasets

    def embed(
        self, tasks: Sequence[t2v.Task], settings: t2v.EmbedSettings, *, dataset: str = ""
    ) -> list[t2v.Embedding]:
        """One embedding per task, saved at once where it is new; new ones about the same images share their passes.

        Where one fails, the others are made and saved first.
        """
        method = settings.method
        new = [task for task in tasks if not self._find(task, settings)]
        failed: list[Task2VecError] = []
        for result in t2v.embed_many(new, self.probe, settings=settings, device=self.device) if new else ():
            if result.embedding is None:
                failed += [result.error] if result.error else []
                continue
            self.report(f"{method}: {result.task}")
            result.embedding.save(self._place(new[result.number], method))
            self._kept[method, result.task] = result.embedding
            self.made += 1
        if failed:
            raise failed[0]
        for task in tasks:
            self._settings[method] = self._kept[method, task.name].provenance["settings"]
            self._datasets[task.name] = dataset
        return [self._kept[method, task.name] for task in tasks]

    def embed_domains(self, tasks: Sequence[t2v.Task]) -> list[t2v.DomainEmbedding]:
        """One domain embedding per task."""
        return [self._embed_domain(task) for task in tasks]

    def keep(self) -> Path:
        """Writes all of them into the compact file; what an earlier run made with other settings is left out."""
        kept = [
            one
            for (method, _), one in self._kept.items()
            if one.provenance["settings"] == self._settings.get(method, one.provenance["settings"])
        ]
        path = self.folder / COMPACT
        return save_compact(kept, list(self._domains.values()), path=path, datasets=self._datasets)

    def _place(self, task: t2v.Task, method: str) -> Path:
        return self.folder / "embeddings" / method / name_file(task, SUFFIX)

    def _find(self, task: t2v.Task, settings: t2v.EmbedSettings) -> bool:
        """Whether the task need not be embedded again; if so, its embedding is taken up."""
        known = self._load(self._place(task, settings.method)) or self._kept.get((settings.method, task.name))
        if known is None or not is_same(known, task, self.probe, settings=settings):
            return False
        self.found += 1
        self.report(f"{settings.method}: found")
        self._kept[settings.method, task.name] = known
        return True

    def _embed_domain(self, task: t2v.Task) -> t2v.DomainEmbedding:
        known = self._domains.get(task.name)
        if known is not None and is_same(known, task, self.probe):
            self.found += 1
            self.report(f"{DOMAIN}: found")
            return known
        self._domains[task.name] = t2v.embed_domain(task, self.probe, device=self.device)
        self.report(f"{DOMAIN}: {task.name}")
        self.made += 1
        return self._domains[task.name]

    def _load(self, path: Path) -> t2v.Embedding | None:
        """The embedding of a file, if there is one that can be trusted."""
        if not path.exists():
            return None
        try:
            return t2v.load_embedding(path)
        except EmbeddingFileError as error:
            self.warn(str(error))
            return None


@dataclass(frozen=True)
class Embedded:
    """Tasks by method, and their domains; the rows of all belong to the same tasks."""

    tasks: tuple[t2v.Task, ...]
    by_method: dict[str, list[t2v.Embedding]]
    domains: list[t2v.DomainEmbedding]

    @property
    def main(self) -> str:
        """The method that other distances are tried on: the first one."""
        return next(iter(self.by_method))


# The embedded collection, and the embedded families.
Found = tuple[Embedded | None, list[Embedded]]


@dataclass(frozen=True)
class Plan:
    """What is embedded: the tasks of a collection, and families of questions about one set of images each."""

    collection: Collection | None
    families: tuple[Family, ...]
    settings: tuple[t2v.EmbedSettings, ...]

    def __len__(self) -> int:
        """How many embeddings it takes, with those of domains."""
        count = len(self.collection.members) if self.collection else 0
        questions = sum(2 * len(family.attributes) for family in self.families)
        return count * (len(self.settings) + 1) + questions + 4 * len(self.families)

    def run(self, shelf: Shelf) -> "Found":
        """Everything, embedded: the collection, if there is one, and the families."""
        whole = self._embed_collection(shelf) if self.collection else None
        return whole, [self._embed_family(family, shelf) for family in self.families]

    def _embed_collection(self, shelf: Shelf) -> Embedded:
        assert self.collection is not None
        members = self.collection.members
        check_names([member.task.name for member in members])
        tasks = tuple(member.task for member in members)
        domains = shelf.embed_domains(tasks)
        shelf.keep()
        by_method = {}
        for settings in self.settings:
            by_method[settings.method] = [
                one for member in members for one in shelf.embed([member.task], settings, dataset=member.dataset)
            ]
            shelf.keep()
        return Embedded(tasks, by_method, domains)

    def _embed_family(self, family: Family, shelf: Shelf) -> Embedded:
        """All questions, by the first method; the domain of the first and the last one of each set: should be one."""
        tasks = (*family.first, *family.second)
        ends = [task for side in (family.first, family.second) for task in (side[0], side[-1])]
        domains = shelf.embed_domains(ends)
        settings = self.settings[0]
        by_method = {settings.method: shelf.embed(tasks, settings, dataset=family.name)}
        shelf.keep()
        return Embedded(tasks, by_method, domains)


def check_names(names: Sequence[str]) -> None:
    """Refuses two tasks of one name: their files and rows could not be told apart."""
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise DataError(
            f"two tasks are called {twice[0]!r}, so their embeddings could not be told apart. Give each row of "
            "tasks.csv its own name, in the column task."
        )


def measure_spaces(embedded: Embedded, *, device: str | None = None) -> dict[str, np.ndarray]:
    """Distances between all tasks: the symmetric one of every method, all others of the first, those of the domains.

    Kinds that have a direction are left out: a taxonomy has none.
    """
    spaces = {
        method: _square(t2v.distance.pairwise(group, "symmetric", device=device))
        for method, group in embedded.by_method.items()
    }
    group = embedded.by_method[embedded.main]
    for name, kind in t2v.distance.KINDS.items():
        if kind.is_symmetric and name != "symmetric":
            spaces[f"{embedded.main}, {name}"] = _square(t2v.distance.pairwise(group, kind, device=device))
    return spaces


def measure_domains(domains: Sequence[t2v.DomainEmbedding]) -> dict[str, np.ndarray]:
    """Distances between domains, by kind."""
    return {
        f"{DOMAIN}, {kind}": _square([[t2v.distance.domain(a, b, kind=kind) for b in domains] for a in domains])
        for kind in DOMAIN_KINDS
    }


def describe_tasks(embedded: Embedded, datasets: Sequence[str], forest: Forest) -> list[dict[str, Any]]:
    """One row per task: what it is, and how large and hard it is by the first method."""
    rows = []
    for one, dataset, group in zip(embedded.by_method[embedded.main], datasets, forest.groups, strict=True):
        counts, head = one.provenance["counts"], one.provenance["head"]
        told = {"images": counts["images"], "classes": counts["classes"], "error": head["cv_error"]}
        rows.append({"task": one.task, "dataset": dataset, "group": group.name, **told, "norm": one.norm()})
    return rows


def _square(values: Any) -> np.ndarray:
    """The same there and back, and zero from a task to itself, to the last bit."""
    values = np.array(values, dtype=np.float64)
    values = np.maximum((values + values.T) / 2, 0.0)
    np.fill_diagonal(values, 0.0)
    return values


if __name__ == "__main__":
    from experiments.commands.taxonomy import app

    app()
