"""`task2vec diversity`: how far apart batches of a collection are, and batches of two collections."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from task2vec.cli import options
from task2vec.cli.device import check_device
from task2vec.cli.reading import read_own, say_bad
from task2vec.cli.speech import is_watched, open_page, print_json, say
from task2vec.errors import UsageError
from task2vec.text import printable

if TYPE_CHECKING:
    from task2vec.distance import CrossDiversity, Diversity
    from task2vec.tasks import Task

HOW_TO_READ = (
    "Distances between embeddings of random batches; ± is one standard error (jackknife over batches). A twin asks the "
    "same as its batch about other images: their distance is noise. Only numbers of the same probe, settings and size "
    "of batches compare."
)


def diversity(
    path: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of class folders, or a table of images.")],
    other: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="Another one, to compare it with.", show_default=False)
    ] = None,
    batches: Annotated[int | None, typer.Option(help="How many; default: what the images allow, at most 20.")] = None,
    classes: Annotated[int, typer.Option(help="How many classes are in each batch.")] = 5,
    all_classes: Annotated[bool, typer.Option("--all-classes", help="All classes are in each batch.")] = False,
    per_class: Annotated[int, typer.Option(help="Images of each class in a batch, and in its twin.")] = 10,
    kind: Annotated[
        Literal["symmetric", "cosine", "jensen_shannon", "correlation", "log_euclidean", "centred_log_euclidean"],
        typer.Option(help="Which distance."),
    ] = "symmetric",
    probe: options.ProbeName = "tf_efficientnet_lite0",
    weights: options.Weights = None,
    size: options.Size = None,
    download: options.Download = False,
    method: options.Method = None,
    max_samples: options.MaxSamples = None,
    l2: options.L2 = None,
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 0,
    device: options.Device = None,
    num_workers: options.Workers = None,
    allow_bad: options.AllowBad = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure how diverse a collection is, and how far it is from another one.

    The diversity coefficient is the expected distance between the embeddings of two random batches. Beside it stands
    what noise alone would make, and how sure both are.
    """
    begin = time.perf_counter()
    check_device(device)
    import task2vec
    from task2vec.distance import cross_diversity
    from task2vec.distance import diversity as measure
    from task2vec.embedding import embed_batches

    given: dict[str, Any] = {"method": method, "max_samples": max_samples, "l2": l2, "seed": seed}
    settings = options.choose_settings(given, epochs=None)
    loaded = task2vec.load_probe(probe, weights=weights, size=size, download=download)
    drawing: dict[str, Any] = {"batches": batches, "classes": None if all_classes else classes, "images": per_class}
    sides, paths = [], [path] if other is None else [path, other]
    tasks = [read_own(each, table={}, split=None, allow_bad=allow_bad, workers=num_workers) for each in paths]
    for each, task in zip(paths, tasks, strict=True):
        say_bad(task.bad, root=each)
        _check_count(task, drawing, seed)
    _tell_shared(tasks)
    for each, task in zip(paths, tasks, strict=True):
        say(f"embedding batches of {printable(each)} ...")
        how: dict[str, Any] = {"device": device, "num_workers": num_workers, "progress": is_watched()}
        sides.append(embed_batches(task, loaded, **drawing, seed=seed, settings=settings, **how))
    found = [measure(*side, kind=kind, device=device) for side in sides]
    cross = None
    if other is not None:
        (ones, twins), (others, other_twins) = sides
        cross = cross_diversity(ones, others, twins=(twins, other_twins), kind=kind, device=device)
    report = _report(paths, found, cross) | {
        "probe": loaded.name,
        "settings": settings.as_dict(),
        "batch": {"classes": len(sides[0][0][0].provenance["classes"]), "images_of_each": per_class},
        "seconds": round(time.perf_counter() - begin, 1),
    }
    print_json(report) if as_json else _print_report(report)


def _check_count(task: "Task", drawing: dict[str, Any], seed: int) -> None:
    """Refuses, before the minutes of work, what has too few images."""
    from task2vec.distance import FEWEST_BATCHES
    from task2vec.tasks import draw_batches

    if (count := len(draw_batches(task, **drawing, seed=seed))) < FEWEST_BATCHES:
        raise UsageError(
            f"{count} batches of '{task.name}' would not tell how diverse it is, nor how sure that is; it takes "
            f"{FEWEST_BATCHES} or more. Ask for smaller batches: --per-class, --classes"
        )


def _tell_shared(tasks: "list[Task]") -> None:
    """Refuses a collection beside itself, and warns of images that are in both."""
    if len(tasks) < 2:
        return
    shared = len(set(tasks[0].digests) & set(tasks[1].digests))
    if tasks[0].fingerprint == tasks[1].fingerprint:
        raise UsageError(
            "both collections have the same images and labels, so each batch would be compared with itself. Name two "
            "different ones; how far apart batches of one are, it tells by itself."
        )
    if shared:
        say(f"warning: {shared} images are in both collections, and draw them together")


def _report(paths: list[Path], found: "list[Diversity]", cross: "CrossDiversity | None") -> dict[str, Any]:
    """All numbers as plain values."""
    from dataclasses import asdict

    rows = [{"collection": str(path), **asdict(one)} for path, one in zip(paths, found, strict=True)]
    return {"collections": rows, "cross": None if cross is None else asdict(cross), "kind": found[0].kind}


def _print_report(report: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("batches of", overflow="fold")
    for column in ("batches", "distance", "of noise", "beyond it"):
        table.add_column(column, justify="right")
    for row in report["collections"]:
        numbers = [_word(row[key]) for key in ("coefficient", "floor", "excess")]
        table.add_row(printable(row["collection"]), str(row["batches"]), *numbers)
    if cross := report["cross"]:
        numbers = [_word(cross[key]) for key in ("coefficient", "own", "excess")]
        table.add_row("the one and the other", "{} x {}".format(*cross["batches"]), *numbers)
    page = open_page()
    page.print(table)
    if cross and cross["alignment"]:
        told = "of noise: the mean of what batches of either are apart among themselves"
        page.print(f"alignment {_word(cross['alignment'])} (one less the distance of the two; {told})")
    page.print(HOW_TO_READ)
    batch = report["batch"]
    told = f"{batch['classes']} classes with {batch['images_of_each']} images in each batch, {report['kind']} distance"
    page.print(f"({told}, {printable(report['probe'])}, {report['seconds']:.0f} s)", soft_wrap=True)


def _word(spread: dict[str, float]) -> str:
    return f"{spread['value']:.3f} ± {spread['stderr']:.3f}"
