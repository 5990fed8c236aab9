"""Builds a meta-task: trains its experts, tries each model on all tasks, embeds the tasks.

    python -m experiments.metatask.build experts --data DIR --weights DIR --out DIR
    python -m experiments.metatask.build inat-cub --inaturalist DIR --cub DIR --download --out DIR

`experts` makes `experts.safetensors`, all by the paper's recipe, and `fast-experts` the same experts by the recipe
`fast`; `networks` made the meta-task that ships with the package. Their tasks and models are in `plan`, and `measure`
describes how a run is resumed or shared. Commit 507e0f77 has the command that made `domain_experts.safetensors`.

`inat-cub` and `mixed` are the paper's own meta-tasks, for those who have its datasets, and `collection` embeds its
1,460 tasks; see `paper` and `owner`. `--dry-run` prints the tasks, the experts, GPU hours and disk, and starts nothing.
"""

import math
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

import task2vec as t2v
from experiments.embeddings import share_embeddings
from experiments.metatask import owner, paper
from experiments.metatask.measure import Studio
from experiments.metatask.plan import MetaTaskPlan, plan_experts, plan_fast_experts, plan_networks
from experiments.metatask.quality import write_results
from experiments.report import make_app, say, write_rows
from task2vec import plots
from task2vec.experts import find_recipe
from task2vec.metatask import find_shots
from task2vec.text import printable

PLANS = {"experts": plan_experts, "fast-experts": plan_fast_experts, "networks": plan_networks}


def write_tables(plan_name: str, metatask: t2v.MetaTask, folder: Path) -> None:
    """The tables of a meta-task as CSV; mean errors in percent."""
    means = 100 * metatask.mean_errors()
    if plan_name in ("experts", "fast-experts"):
        write_results(metatask, folder)
    elif plan_name == "networks":
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
    plan_name: str,
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
    # Before CUDA is initialised: processes must be forked first.
    plan = PLANS[plan_name](data)
    known = None if embeddings is None else t2v.load_metatask(embeddings)
    plan = plan if known is None else replace(plan, spaces={})
    processes = [
        multiprocessing.get_context("fork").Process(
            target=measure, args=(plan, weights, out / plan_name, device, until)
        )
        for _ in range(runs - 1)
    ]
    for process in processes:
        process.start()
    studio = measure(plan, weights, out / plan_name, device, until)
    for process in processes:
        process.join()
    if studio.make_all():
        metatask, folder = studio.gather(note), plots.make_folder(out / plan_name / "results")
        metatask = metatask if known is None else share_embeddings(known, metatask)
        path = metatask.save(folder / "metatask.safetensors")
        write_tables(plan_name, t2v.load_metatask(path), folder)  # as others will read it
        say(f"{metatask} in {path}")


def measure(plan: MetaTaskPlan, weights: Path, out: Path, device: str | None, until: float) -> Studio:
    """Measures what no other run does, until there is nothing left or the time has come."""
    studio = Studio(plan, weights, out, device or ("cuda" if torch.cuda.is_available() else "cpu"), until)
    studio.make_all()
    return studio


Device = Annotated[str | None, typer.Option(help="cpu or cuda; default: a GPU if there is one.")]


def make_command(plan_name: str) -> Callable[..., None]:
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
        build(plan_name, data, weights, out, note, device, embeddings, runs, seconds)

    command.__name__ = plan_name
    command.__doc__ = " ".join((PLANS[plan_name].__doc__ or "").split("\n\n")[0].split())
    return command


# --- those of the paper ----------------------------------------------------------------------------------------------

READERS: dict[str, Callable[[Path], t2v.Catalog]] = {
    "inaturalist": lambda folder: t2v.read_inaturalist(folder),
    "cub": lambda folder: t2v.read_cub200(folder, taxonomy="paper"),
    "imaterialist": lambda folder: t2v.read_imaterialist(folder),
    "deepfashion": lambda folder: t2v.read_deepfashion(folder, progress=True),
}
# The datasets of each meta-task.
DATASETS = {"inat-cub": ("inaturalist", "cub"), "mixed": tuple(READERS), "collection": tuple(READERS)}
SUMMARIES = {
    "inat-cub": "The paper's meta-task iNat+CUB: 50 tasks and an expert for each, with the probes of Table 2.",
    "mixed": "The paper's meta-task Mixed: 40 random tasks, 25 experts and the generic one, and data efficiency.",
    "collection": "The embeddings of the paper's 1,460 tasks, without experts.",
}


def plan_paper(plan_name: str, folders: dict[str, Path | None], seed: int) -> paper.PaperPlan:
    """The plan of a meta-task of the paper from the folders of its datasets."""
    for name, folder in folders.items():
        if (folder is not None) != (name in DATASETS[plan_name]):
            fix = "Leave it out." if folder is not None else f"Give the folder of the dataset: --{name} DIR"
            raise t2v.errors.UsageError(
                f"the meta-task {plan_name} is made of {', '.join(DATASETS[plan_name])}, so --{name} "
                f"{'would change nothing' if folder is not None else 'is needed'}. {fix}"
            )
    catalogs = [READERS[name](folder) for name, folder in folders.items() if folder is not None]
    if plan_name == "inat-cub":
        return paper.plan_inat_cub(*catalogs)
    return paper.plan_mixed(*catalogs, seed=seed) if plan_name == "mixed" else paper.plan_collection(*catalogs)


def make_paper_command(plan_name: str) -> Callable[..., None]:
    """The command that builds a meta-task of the paper."""

    def command(
        out: Annotated[Path, typer.Option(help="Folder for the library, the experts and the meta-task.")],
        inaturalist: Annotated[Path | None, typer.Option(help="Folder of iNaturalist, 2018 or 2021.")] = None,
        cub: Annotated[Path | None, typer.Option(help="Folder of CUB-200-2011.")] = None,
        imaterialist: Annotated[
            Path | None, typer.Option(help="Folder of iMaterialist (Fashion) 2018, with the names of its labels.")
        ] = None,
        deepfashion: Annotated[
            Path | None, typer.Option(help="Folder of DeepFashion, attributes and categories.")
        ] = None,
        probe: Annotated[list[str] | None, typer.Option(help="Probes beside ResNet-34; can be repeated.")] = None,
        weights: Annotated[
            Path | None, typer.Option(help="torchvision's file of ResNet-34, or a folder with a file for each probe.")
        ] = None,
        download: Annotated[bool, typer.Option(help="Download weights that are not on this machine.")] = False,
        recipe: Annotated[str, typer.Option(help="Of experts: achille2019 (the paper's) or fast.")] = "achille2019",
        tuning: Annotated[
            str, typer.Option(help="Of whole networks that are fine-tuned on tasks, for transfer distances.")
        ] = "fast",
        seed: Annotated[int, typer.Option(min=0, help="Of the random tasks of mixed.")] = 0,
        backend: Annotated[str, typer.Option(help="serial or ray.")] = "serial",
        device: Device = None,
        dry_run: Annotated[bool, typer.Option(help="Print what it would take, and start nothing.")] = False,
    ) -> None:
        folders = {"inaturalist": inaturalist, "cub": cub, "imaterialist": imaterialist, "deepfashion": deepfashion}
        plan, recipes = plan_paper(plan_name, folders, seed), (find_recipe(recipe), find_recipe(tuning))
        probes = probe or (owner.PROBES if plan_name == "inat-cub" else ())
        names = tuple(dict.fromkeys((owner.BASE, *probes)))
        print(printable(owner.describe_plan(plan, names, *recipes), keep_lines=True), flush=True)
        if not dry_run:
            networks = owner.load_probes(names, weights, download=download)
            run = owner.Run(plan, plots.make_folder(out), networks, *recipes, backend=backend, device=device)
            metatask = run.make_metatask()
            say(f"{metatask} in {metatask.save(out / 'metatask.safetensors')}")

    command.__name__ = plan_name
    command.__doc__ = SUMMARIES[plan_name]
    return command


app = make_app(*map(make_command, PLANS), *map(make_paper_command, DATASETS))

if __name__ == "__main__":
    app()
