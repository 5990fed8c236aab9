"""Builds a meta-task: trains its experts, tries each model on all tasks, embeds the tasks.

    python -m experiments.metatask.build experts --data DIR --weights DIR --out DIR
    python -m experiments.metatask.build inat-cub --inaturalist DIR --cub DIR --download --out DIR

`experts` makes `experts.safetensors`, all by the paper's recipe, and `fast-experts` the same experts by the recipe
`fast`; `networks` made the meta-task that ships with the package; `domains` the file `domain_experts.safetensors` of
experts for whole datasets beside the networks of the package. See `plan` for what they are, and `measure` for how a run
is resumed or shared.

`inat-cub` and `mixed` are the paper's own meta-tasks, for those who have its datasets, and `collection` embeds its
1,460 tasks. See `paper` for what they are, and `owner` for how a run is resumed. `--dry-run` prints the tasks, the
experts, GPU hours and disk, and starts nothing.
"""

import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

import task2vec as t2v
from experiments.embeddings import share_embeddings
from experiments.metatask import owner, paper
from experiments.metatask.measure import Studio
from experiments.metatask.plan import MetaTaskPlan, plan_domains, plan_experts, plan_fast_experts, plan_networks
from experiments.metatask.quality import write_results
from experiments.report import make_app, say, write_rows
from task2vec import plots
from task2vec.experts import find_recipe
from task2vec.metatask import find_shots
from task2vec.text import printable

PLANS = {
    "experts": plan_experts,
    "fast-experts": plan_fast_experts,
    "networks": plan_networks,
    "domains": plan_domains,
}


def write_tables(which: str, metatask: t2v.MetaTask, folder: Path) -> None:
    """The tables of a meta-task as CSV; mean errors in percent."""
    means = 100 * metatask.mean_errors()
    if which in ("experts", "fast-experts"):
        write_results(metatask, folder)
    elif which == "networks":
        rows = []
        for row, number in np.ndindex(means.shape[0], means.shape[2]):
            task = metatask.tasks[row]
            about = {"task": task.name, "source": task.dataset, "family": task.family, "images": task.images}
            about |= {"classes": task.classes, "training images": find_shots(metatask.protocols[number])}
            errors = zip(metatask.models, means[row, :, number], strict=True)
            rows.append(about | {model.name: f"{error:.2f}" for model, error in errors})
        write_rows(rows, folder / "errors.csv")
        write_rows(metatask.info["curves"], folder / "tuned.csv")


# --- our own meta-tasks ----------------------------------------------------------------------------------------------


def build(
    which: str,
    data: Path,
    weights: Path,
    out: Path,
    note: str = "",
    device: str | None = None,
    embeddings: Path | None = None,
    runs: int = 1,
    seconds: float | None = None,
) -> None:
    """Trains experts, tries each model on all tasks, embeds the tasks, and writes the meta-task and its tables."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    # Before CUDA is asked, which a process can be asked only after it was forked.
    plan = PLANS[which](data)
    known = None if embeddings is None else t2v.load_metatask(embeddings)
    plan = plan if known is None else replace(plan, spaces={})
    others = [
        multiprocessing.get_context("fork").Process(target=measure, args=(plan, weights, out / which, device, until))
        for _ in range(runs - 1)
    ]
    for process in others:
        process.start()
    studio = measure(plan, weights, out / which, device, until)
    for process in others:
        process.join()
    if studio.make_all():
        metatask, folder = studio.gather(note), plots.make_folder(out / which / "results")
        metatask = metatask if known is None else share_embeddings(known, metatask)
        path = metatask.save(folder / "metatask.safetensors")
        write_tables(which, t2v.load_metatask(path), folder)  # the tables are of what others will have
        say(f"{metatask} in {path}")


def measure(plan: MetaTaskPlan, weights: Path, out: Path, device: str | None, until: float) -> Studio:
    """Measures what no other run does, until there is nothing left or the time has come."""
    studio = Studio(plan, weights, out, device or ("cuda" if torch.cuda.is_available() else "cpu"), until)
    studio.make_all()
    return studio


Device = Annotated[str | None, typer.Option(help="cpu or cuda; default: a GPU if there is one.")]


def make_command(which: str) -> Callable[..., None]:
    """The command that builds one of our own meta-tasks."""

    def command(
        data: Annotated[Path, typer.Option(help="Folder with a tasks.csv, datasets, and folders domains and public.")],
        weights: Annotated[Path, typer.Option(help="Folder with the weights of the pretrained networks.")],
        out: Annotated[Path, typer.Option(help="Folder for tables and embeddings.")] = Path("task2vec-metatask"),
        note: Annotated[str, typer.Option(help="Where, when and by which commit it was measured.")] = "",
        device: Device = None,
        embeddings: Annotated[
            Path | None, typer.Option(help="A meta-task of the same tasks, whose embeddings are taken over.")
        ] = None,
        runs: Annotated[int, typer.Option(min=1, help="Processes that share the work, on one GPU.")] = 1,
        seconds: Annotated[float | None, typer.Option(help="Begin nothing that would take longer than this.")] = None,
    ) -> None:
        build(which, data, weights, out, note, device, embeddings, runs, seconds)

    command.__name__ = which
    command.__doc__ = " ".join((PLANS[which].__doc__ or "").split("\n\n")[0].split())
    return command


# --- those of the paper ----------------------------------------------------------------------------------------------

INaturalist = Annotated[Path, typer.Option("--inaturalist", help="Folder of iNaturalist, 2018 or 2021.")]
Cub = Annotated[Path, typer.Option(help="Folder of CUB-200-2011.")]
IMaterialist = Annotated[
    Path, typer.Option("--imaterialist", help="Folder of iMaterialist (Fashion) 2018, with the names of its labels.")
]
DeepFashion = Annotated[Path, typer.Option("--deepfashion", help="Folder of DeepFashion, attributes and categories.")]
Out = Annotated[Path, typer.Option(help="Folder for the library, the experts and the meta-task.")]
Probes = Annotated[list[str] | None, typer.Option("--probe", help="Probes beside ResNet-34; can be repeated.")]
Weights = Annotated[
    Path | None, typer.Option(help="torchvision's file of ResNet-34, or a folder with a file for each probe.")
]
Download = Annotated[bool, typer.Option(help="Download weights that are not on this machine.")]
Recipe = Annotated[str, typer.Option(help="Of experts: achille2019 (the paper's) or fast.")]
Tuning = Annotated[str, typer.Option(help="Of whole networks that are fine-tuned on tasks, for transfer distances.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the random tasks.")]
Backend = Annotated[str, typer.Option(help="serial or ray.")]
DryRun = Annotated[bool, typer.Option(help="Print what it would take, and start nothing.")]


def inat_cub(
    inaturalist: INaturalist,
    cub: Cub,
    out: Out,
    probe: Probes = None,
    weights: Weights = None,
    download: Download = False,
    recipe: Recipe = "achille2019",
    tuning: Tuning = "fast",
    backend: Backend = "serial",
    device: Device = None,
    dry_run: DryRun = False,
) -> None:
    """The paper's meta-task iNat+CUB: 50 tasks and an expert for each, with the probes of Table 2."""
    plan = paper.plan_inat_cub(t2v.read_inaturalist(inaturalist), t2v.read_cub200(cub, taxonomy="paper"))
    how = {"recipe": recipe, "tuning": tuning, "backend": backend, "device": device, "dry_run": dry_run}
    build_paper(plan, out, owner.PROBES if probe is None else probe, weights, download=download, **how)


def mixed(
    inaturalist: INaturalist,
    cub: Cub,
    imaterialist: IMaterialist,
    deepfashion: DeepFashion,
    out: Out,
    probe: Probes = None,
    weights: Weights = None,
    download: Download = False,
    recipe: Recipe = "achille2019",
    tuning: Tuning = "fast",
    seed: Seed = 0,
    backend: Backend = "serial",
    device: Device = None,
    dry_run: DryRun = False,
) -> None:
    """The paper's meta-task Mixed: 40 random tasks, 25 experts and the generic one, and data efficiency."""
    catalogs = read_catalogs(inaturalist, cub, imaterialist, deepfashion)
    plan = paper.plan_mixed(*catalogs, seed=seed)
    how = {"recipe": recipe, "tuning": tuning, "backend": backend, "device": device, "dry_run": dry_run}
    build_paper(plan, out, probe or (), weights, download=download, **how)


def collection(
    inaturalist: INaturalist,
    cub: Cub,
    imaterialist: IMaterialist,
    deepfashion: DeepFashion,
    out: Out,
    probe: Probes = None,
    weights: Weights = None,
    download: Download = False,
    backend: Backend = "serial",
    device: Device = None,
    dry_run: DryRun = False,
) -> None:
    """The embeddings of the paper's 1,460 tasks, without experts."""
    plan = paper.plan_collection(*read_catalogs(inaturalist, cub, imaterialist, deepfashion))
    how = {"backend": backend, "device": device, "dry_run": dry_run}
    build_paper(plan, out, probe or (), weights, download=download, **how)


def read_catalogs(inaturalist: Path, cub: Path, imaterialist: Path, deepfashion: Path) -> tuple[t2v.Catalog, ...]:
    """The catalogs of the four datasets."""
    birds, clothes = t2v.read_cub200(cub, taxonomy="paper"), t2v.read_imaterialist(imaterialist)
    return t2v.read_inaturalist(inaturalist), birds, clothes, t2v.read_deepfashion(deepfashion, progress=True)


def build_paper(
    plan: paper.PaperPlan,
    out: Path,
    probes: Sequence[str],
    weights: Path | None,
    *,
    recipe: str | t2v.Recipe = "achille2019",
    tuning: str | t2v.Recipe = "fast",
    download: bool = False,
    dry_run: bool = False,
    **how: Any,
) -> None:
    """Prints what a plan of the paper will take, measures it, and writes the meta-task."""
    names, recipes = tuple(dict.fromkeys((owner.BASE, *probes))), (find_recipe(recipe), find_recipe(tuning))
    print(printable(owner.describe_plan(plan, names, *recipes), keep_lines=True), flush=True)
    if not dry_run:
        loaded = owner.load_probes(names, weights, download=download)
        metatask = owner.Run(plan, plots.make_folder(out), loaded, *recipes, **how).make_metatask()
        say(f"{metatask} in {metatask.save(out / 'metatask.safetensors')}")


app = make_app(*map(make_command, PLANS), inat_cub, mixed, collection)

if __name__ == "__main__":
    app()
