"""The embeddings of all tasks of the meta-task by several methods, with their domains, and what each method cost."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import task2vec as t2v
from task2vec.paper.collection import Say
from task2vec.paper.metatask_plan import MetaTaskPlan
from task2vec.paper.taxonomy_store import load_compact, save_compact

# Embeddings see more of the pictures than the experts do: as large as they are.
SIZE = 128
METHODS = ("robust", "direct", "variational")
_GIGABYTES = 16.0


def embed_tasks(
    plan: MetaTaskPlan,
    probe: t2v.Probe,
    folder: Path,
    *,
    methods: Sequence[str] = METHODS,
    seconds: float,
    device: str | None = None,
    say: Say,
) -> dict[str, float]:
    """Embeds what is not in `folder` yet, a file for each method, as long as `seconds` allow; what each method took."""
    begun = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    spent: dict[str, float] = {}
    for method in methods:
        file, start = folder / f"{method}.safetensors", time.monotonic()
        store = load_compact(file) if file.exists() else None
        known = [] if store is None else store.embeddings.get(method, [])
        domains = [] if store is None else store.domains
        if method == methods[0] and not domains:
            domains = _embed_domains(plan, probe, device)
            spent["domain"] = time.monotonic() - start
            start = time.monotonic()
        done = {one.task for one in known}
        tasks = [one.task for one in plan.tasks if one.task.name not in done]
        settings = replace(t2v.EmbedSettings(), method=method)  # type: ignore[arg-type]
        if method == "variational":
            settings = replace(settings, variational=t2v.VariationalSettings(epochs=2))
        for result in t2v.embed_many(tasks, probe, settings=settings, device=device, gigabytes=_GIGABYTES):
            if result.embedding is None:
                say(f"{result.task} by {method}: {result.error}")
            else:
                known.append(result.embedding)
            if time.monotonic() - begun > seconds:
                break
        spent[method] = time.monotonic() - start
        save_compact(known, domains, path=file, datasets={one.task.name: one.dataset for one in plan.tasks})
        say(f"{probe.name} {method}: {len(known)} of {len(plan.tasks)}, {spent[method]:.0f} s")
        if time.monotonic() - begun > seconds:
            break
    return spent


def _embed_domains(plan: MetaTaskPlan, probe: t2v.Probe, device: str | None) -> list[t2v.DomainEmbedding]:
    """The domain of every task; tasks on the same images have the same one."""
    known: dict[frozenset[str], t2v.DomainEmbedding] = {}
    found = []
    for planned in plan.tasks:
        images = frozenset(planned.task.digests)
        if images not in known:
            known[images] = t2v.embed_domain(planned.task, probe, device=device)
        told = known[images].provenance | {"task_fingerprint": planned.task.fingerprint}
        found.append(replace(known[images], task=planned.task.name, provenance=told))
    return found
