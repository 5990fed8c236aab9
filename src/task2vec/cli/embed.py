"""`task2vec embed`: a folder or a table of images becomes an embedding in the library."""

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from task2vec.cli import options
from task2vec.cli.chosen import Layout
from task2vec.cli.facts import describe, word_facts
from task2vec.cli.library import DIGITS
from task2vec.cli.making import Made, Wish, make_embedding
from task2vec.cli.reading import say_bad
from task2vec.cli.speech import name_library, print_facts, print_json
from task2vec.text import printable


def embed(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A folder of class folders, a .csv or .parquet table, or with --task a published dataset.",
        ),
    ],
    probe: options.ProbeName = "tf_efficientnet_lite0",
    weights: options.Weights = None,
    size: options.Size = None,
    download: options.Download = False,
    out: Annotated[Path | None, typer.Option(help="Write a file as well: its name, or its folder.")] = None,
    library: options.LibraryFolder = None,
    no_library: options.NoLibrary = False,
    tags: options.Tags = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compute again what the library has, and overwrite files.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="What to call the task; default: the folder's name.")] = None,
    path_column: options.PathColumn = None,
    label_column: options.LabelColumn = None,
    root: options.Root = None,
    task_name: Annotated[
        str | None, typer.Option("--task", help="Published dataset: one of its tasks, see `task2vec tasks`.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="With --task: its kind, where several have the name.")] = None,
    layout: Annotated[Layout | None, typer.Option("--as", help="With --task: which dataset it is.")] = None,
    split: Annotated[str | None, typer.Option(help="Only the images of train, val or test.")] = None,
    draw: Annotated[int | None, typer.Option(help="With --task: read this many of its images, drawn by seed.")] = None,
    labels: Annotated[Path | None, typer.Option(help="With --task: iMaterialist's table of names of labels.")] = None,
    method: options.Method = None,
    epochs: options.Epochs = None,
    max_samples: options.MaxSamples = None,
    split_half: options.SplitHalf = False,
    rel_tol: options.RelTol = None,
    l2: options.L2 = None,
    beta: options.Beta = None,
    seed: options.Seed = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    num_workers: options.Workers = None,
    batch_size: options.BatchSize = None,
    allow_bad: options.AllowBad = False,
    as_json: options.AsJson = False,
) -> None:
    """Embed a folder of class folders, a table of images, or a task of a published dataset.

    The embedding goes into the library; one that is there already, of the same images, labels, probe and settings, is
    not computed again. Every image that cannot be read is named; nothing is skipped in silence.
    """
    begin = time.perf_counter()
    given = {"method": method, "max_samples": max_samples, "rel_tol": rel_tol, "l2": l2, "beta": beta}
    given |= {"seed": seed, "dtype": dtype, "split_half": split_half}
    wish = Wish(
        path=path,
        settings=options.choose_settings(given, epochs=epochs),
        probe=probe,
        loading={"weights": weights, "size": size, "download": download},
        how={"device": device, "num_workers": num_workers, "batch_size": batch_size},
        table={"root": root, "path_column": path_column, "label_columns": label_column},
        catalogue={"kind": kind, "layout": layout, "split": split, "draw": draw, "labels": labels},
        task_name=task_name,
        name=name,
        allow_bad=allow_bad,
        out=out,
        force=force,
        library=library,
        no_library=no_library,
        tags=tuple(tags or ()),
    )
    made = make_embedding(wish)
    report = tell_made(made) | {"seconds": round(time.perf_counter() - begin, 3)}
    print_json(report) if as_json else _print_report(report)
    if made.exit_code:
        raise typer.Exit(made.exit_code)


def tell_made(made: Made) -> dict[str, Any]:
    """What was embedded, and where it is now, as plain values."""
    from task2vec.library.identity import identify

    return {
        **describe(made.embedding),
        "bad": [asdict(bad) for bad in made.task.bad],
        "is_found": made.is_found,
        "known_as": made.known_as,
        "key": identify(made.embedding).key,
        "library": None if made.library is None else str(made.library),
        "written": None if made.written is None else str(made.written),
    }


def _print_report(report: dict[str, Any]) -> None:
    rows = word_facts(report)
    rows += [("warning", printable(warning)) for warning in report["warnings"]]
    if report["library"] is not None:
        rows.append(
            ("library", f"{printable(report['library'])} (embedding {report['key'][:DIGITS]}){_word_name(report)}")
        )
    if report["written"] is not None:
        rows.append(("written", printable(report["written"])))
    found = "; it was there already, so nothing was computed (--force computes it again)" if report["is_found"] else ""
    rows.append(("time", f"{report['seconds']:.1f} s{found}"))
    print_facts(rows)
    from task2vec.tasks import BadImage

    say_bad([BadImage(**bad) for bad in report["bad"]])


def _word_name(report: dict[str, Any]) -> str:
    """The name to ask by, where the library knows the same images and labels by another than this one."""
    if report["known_as"] is None:
        return ""
    known, new = (shlex.quote(printable(report[word])) for word in ("known_as", "task"))
    rename = name_library(f"task2vec library rename {known} {new}")
    return f", already known as '{printable(report['known_as'])}': ask by that name, or change it: {rename}"
