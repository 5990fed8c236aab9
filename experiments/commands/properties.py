"""`python -m experiments.properties`: what the embedding says of a task."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from experiments.console import check_device, make_app, print_claims, print_json, say, watch_steps
from task2vec.errors import UsageError
from task2vec.text import printable

if TYPE_CHECKING:
    from experiments.collection import Collection
    from experiments.properties import Plan

MISSING = (
    "These are the small synthetic tasks of the package: real images are missing. To add yours: "
    "python -m experiments.properties --data DIR (one folder of class folders per task, or a tasks.csv)."
)
HOW_TO_READ = (
    "rho is Spearman's rank correlation with its 95 % interval. The trivial embedding is that of a task without "
    "information; 100 % of the way from the true labels is on it."
)


def properties(
    data: Annotated[
        Path | None, typer.Option(help="Folder of tasks: folders of class folders, or a tasks.csv by taxon.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for figures and numbers.")] = Path("task2vec-paper"),
    task: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A task to shuffle and cut; repeat it for more. Default: the richest."),
    ] = None,
    probe: Annotated[str, typer.Option(help="A timm or torchvision model.")] = "tf_efficientnet_lite0",
    weights: Annotated[Path | None, typer.Option(help="A local file of weights for the probe.")] = None,
    size: Annotated[int, typer.Option(help="Side of the images in pixels.")] = 64,
    images: Annotated[int, typer.Option(help="How many (image, label) pairs to back-propagate per embedding.")] = 24,
    method: Annotated[
        Literal["robust", "direct", "variational"], typer.Option(help="How the Fisher is measured.")
    ] = "robust",
    repeats: Annotated[
        int | None, typer.Option(help="Random subsets of each kind, for error bars; default: 3, with --data 5.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: what is there.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A look only: one task to cut, fewer sizes, two repeats.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """What the embedding says of a task: difficulty, labels, number of classes, sample size.

    Writes four figures with their numbers, and prints what each of them shows.
    """
    begin = time.perf_counter()
    _check(repeats=repeats, size=size, seed=seed, data=data)
    say("loading the probe ...")
    import task2vec
    from experiments.properties import Embedder, Experiments
    from experiments.property_claims import make_claims
    from experiments.property_figures import write_properties
    from task2vec.plots import import_figure, make_folder

    import_figure()  # asked for now and not after minutes of work
    check_device(device)
    settings = task2vec.EmbedSettings(max_samples=images, method=method, seed=seed)
    loaded = task2vec.load_probe(probe, weights=weights, size=size)
    folder = make_folder(out)
    collection = _gather(data, task or [], seed=seed, is_quick=quick)
    experiments = Experiments.of(collection, _plan(repeats, seed, is_real=data is not None, is_quick=quick))
    with watch_steps(len(experiments)) as advance:
        rows = experiments.run(Embedder(loaded, settings, device, advance))
    say("drawing ...")
    claims = make_claims(rows)
    files = write_properties(rows, claims, folder)
    report = {
        "tasks": len(collection.members),
        "embeddings": len(experiments),
        "probe": loaded.name,
        "claims": claims,
        "missing": MISSING if data is None else None,
        "files": [str(path) for path in files],
        "seconds": round(time.perf_counter() - begin, 1),
    }
    if as_json:
        return print_json(report)
    told = f"({report['embeddings']} embeddings, {report['seconds']:.0f} s)"
    print_claims(report, how_to_read=HOW_TO_READ, missing=[MISSING] if data is None else [], cost=told)


def _check(*, repeats: int | None, size: int, seed: int, data: Path | None) -> None:
    """Refuses, before anything is loaded, what cannot be meant."""
    if repeats is not None and repeats < 2:
        raise UsageError(
            f"--repeats {repeats} leaves no error bars, and without them nothing can be said to rise or fall. "
            "Use at least 2, or leave it out."
        )
    if size < 1 or seed < 0:
        raise UsageError(
            f"--size {size} --seed {seed} cannot be meant: images have a side of some pixels, and no seed is negative. "
            "Leave them out, or try --size 64 --seed 0."
        )
    if data is not None and not data.is_dir():
        raise UsageError(
            f"--data {data} is {'not a folder' if data.exists() else 'not there'}, so there are no tasks to read. "
            "Name a folder with one folder of class folders per task, or leave it out."
        )


def _gather(data: Path | None, names: list[str], *, seed: int, is_quick: bool) -> "Collection":
    """The tasks, with those of the given names as the ones to be cut."""
    from experiments.collection import read_collection, sample_collection

    if data is not None:
        collection = read_collection(data, say=lambda message: say(printable(message)))
    else:
        say("making small tasks ...")
        collection = sample_collection(sizes=(30,) if is_quick else (30, 50, 80), seed=seed)
    return collection.named(names) if names else collection


def _plan(repeats: int | None, seed: int, *, is_real: bool, is_quick: bool) -> "Plan":
    """How much is measured: a look takes less, and so do synthetic tasks, which are there for the first minutes."""
    from experiments.properties import Plan

    if is_quick:
        small: dict[str, Any] = {"shuffled": (0.0, 0.5, 1.0), "classes": (2, 5), "sizes": (1, 2, 5, 10), "tasks": 1}
        return Plan(repeats=repeats or 2, seed=seed, most_images=10, **small)
    return Plan(repeats=repeats or (5 if is_real else 3), seed=seed, most_images=20 if is_real else 10)


app = make_app(properties)
