"""The embeddings of all tasks and lessons of the meta-task by several probes and methods, and what each cost."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import task2vec as t2v
from experiments.collection import Say
from experiments.metatask_plan import MetaTaskPlan, PlannedTask
from experiments.metatask_studio import PRETRAINED, fingerprint_code, load_pretrained
from experiments.taxonomy_store import load_compact, save_compact
from task2vec.errors import DataError
from task2vec.storage import write_whole

# Embeddings see more of the pictures than the experts do: as large as they are. What others compare their own tasks
# with is embedded as anybody's are, at the size of the default probe.
SIZE, USUAL_SIZE = 128, 224
Method = Literal["robust", "direct", "variational"]
_GIGABYTES = 4.0  # for pictures: several runs share a GPU
# Tasks by the first two methods share their passes and belong together; by the third, each is on its own, and the
# default probe takes three times as long.
_SLOW_PORTIONS = {"resnet34": 13, "tf_efficientnet_lite0": 45}


@dataclass(frozen=True)
class Portion:
    """Some tasks, by one probe and method.

    Attributes:
        probe: name of the network.
        method: of the embeddings.
        number: which portion of how many.
        size: of the pictures, in pixels.
    """

    probe: str
    method: Method
    number: int = 0
    size: int = SIZE

    @property
    def name(self) -> str:
        """Of all portions together; where a probe has two sizes, its plain name is of the usual one."""
        has_two = any(one.probe == self.probe and one.size != self.size for one in PORTIONS)
        return (
            f"{self.probe} at {self.size} {self.method}"
            if has_two and self.size == SIZE
            else f"{self.probe} {self.method}"
        )

    @property
    def portions(self) -> int:
        """How many there are of its name."""
        return _SLOW_PORTIONS[self.probe] if self.method == "variational" else 1

    def place(self, folder: Path) -> Path:
        """Its file."""
        stem = self.method if self.size == SIZE else f"{self.method}-at-{self.size}"
        return folder / self.probe / f"{stem}-{self.number:02d}.safetensors"


# What the comparison of probes and methods needs, in the order in which it is missed.
PORTIONS = (
    Portion("tf_efficientnet_lite0", "robust", size=USUAL_SIZE),
    *(Portion(probe, method) for method in ("robust", "direct") for probe in ("tf_efficientnet_lite0", "resnet34")),
    *(Portion(probe, "robust") for probe in ("mobilenet_v2", "vgg16_features")),
    *(Portion(probe, "variational", number) for probe in _SLOW_PORTIONS for number in range(_SLOW_PORTIONS[probe])),
)


def embed_portion(
    plan: MetaTaskPlan, portion: Portion, folder: Path, *, weights: Path, device: str | None, say: Say
) -> Path:
    """Embeds the tasks of a portion, with the domains of all once for each probe, and returns its file."""
    begun = time.monotonic()
    file = portion.place(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    probe = _load_probe(portion.probe, weights, portion.size)
    every = [*plan.tasks, *plan.lessons]
    seconds: dict[str, float] = {}
    domains: list[t2v.DomainEmbedding] = []
    if portion.method == "robust" and portion.size == SIZE:
        domains = _embed_domains(every, probe, device)
        seconds["domain"] = round(time.monotonic() - begun, 2)
    begun = time.monotonic()
    settings = replace(t2v.EmbedSettings(), method=portion.method)
    if portion.method == "variational":
        settings = replace(settings, variational=t2v.VariationalSettings(epochs=2))
    some = [one.task for one in every[portion.number :: portion.portions]]
    made = []
    for result in t2v.embed_many(some, probe, settings=settings, device=device, gigabytes=_GIGABYTES):
        if result.embedding is None:
            say(f"{result.task} by {portion.method}: {result.error}")
        else:
            made.append(result.embedding)
    seconds[portion.method] = round(time.monotonic() - begun, 2)
    told = {"seconds": seconds, "code": fingerprint_code(), "tasks": len(made)}
    write_whole(file.with_suffix(".json"), json.dumps(told).encode())
    return save_compact(made, domains, path=file, datasets={one.task.name: one.dataset for one in every})


def _load_probe(name: str, weights: Path, size: int) -> t2v.Probe:
    """The default probes as anybody would load them; the others as the experts that they are, at another size."""
    if name == "tf_efficientnet_lite0":
        return t2v.load_probe(name, size=size)
    if name == "resnet34":
        return t2v.load_probe(name, weights=weights / PRETRAINED[name][1], size=size)
    return load_pretrained(name, weights, size=size)


def _embed_domains(tasks: Sequence[PlannedTask], probe: t2v.Probe, device: str | None) -> list[t2v.DomainEmbedding]:
    """The domain of every task; tasks on the same images have the same one."""
    known: dict[frozenset[str], t2v.DomainEmbedding] = {}
    found = []
    for planned in tasks:
        images = frozenset(planned.task.digests)
        if images not in known:
            known[images] = t2v.embed_domain(planned.task, probe, device=device)
        told = known[images].provenance | {"task_fingerprint": planned.task.fingerprint}
        found.append(replace(known[images], task=planned.task.name, provenance=told))
    return found


@dataclass(frozen=True)
class Embedded:
    """All embeddings by one probe and method, in the order of tasks and lessons, with the domains where they are known.

    Attributes:
        name: of its portions.
        embeddings: of tasks, then lessons.
        domains: of the same.
        seconds: what they took.
        code: fingerprints of the code that made them.
    """

    name: str
    embeddings: tuple[t2v.Embedding, ...]
    domains: tuple[t2v.DomainEmbedding, ...]
    seconds: dict[str, float]
    code: frozenset[str]


def read_embedded(plan: MetaTaskPlan, folder: Path) -> list[Embedded]:
    """What is complete in a folder."""
    wanted = [one.task.fingerprint for one in (*plan.tasks, *plan.lessons)]
    found = []
    for name in dict.fromkeys(one.name for one in PORTIONS):
        files = [one.place(folder) for one in PORTIONS if one.name == name]
        if not all(file.exists() for file in files):
            continue
        stores = [load_compact(file) for file in files]
        told = [json.loads(file.with_suffix(".json").read_text()) for file in files]
        seconds: dict[str, float] = {}
        for each in told:
            seconds |= {kind: seconds.get(kind, 0) + value for kind, value in each["seconds"].items()}
        embeddings = [one for store in stores for group in store.embeddings.values() for one in group]
        domains = [one for store in stores for one in store.domains]
        code = frozenset(each["code"] for each in told)
        found.append(Embedded(name, _order(embeddings, wanted), _order(domains, wanted), seconds, code))
    return found


def _order(made: Sequence, wanted: Sequence[str]) -> tuple:
    by_task = {one.provenance["task_fingerprint"]: one for one in made}
    missing = [fingerprint for fingerprint in wanted if fingerprint not in by_task]
    if by_task and missing:
        raise DataError(f"{len(missing)} of {len(wanted)} tasks have no embedding. Embed all tasks first.")
    return tuple(by_task[fingerprint] for fingerprint in wanted) if by_task else ()
