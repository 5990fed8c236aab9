"""`task2vec nearest`: the tasks of the library that are most like one."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from task2vec.cli import options
from task2vec.cli.asked import NAME, PATH, Asked, load_asked, recognise
from task2vec.cli.chosen import Layout
from task2vec.cli.making import Wish, make_embedding
from task2vec.cli.neighbours import find_neighbours, print_neighbours, warn_of_strangers
from task2vec.cli.reading import name_options
from task2vec.cli.speech import print_json
from task2vec.errors import UsageError
from task2vec.text import printable

DEFAULT_PROBE = "tf_efficientnet_lite0"


def nearest(
    query: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE|PATH",
            help="A task of the library by name or id, a saved embedding, or a folder or table, which is embedded.",
        ),
    ],
    k: Annotated[int, typer.Option("-k", help="How many.")] = 10,
    exact: Annotated[bool, typer.Option("--exact", help="Compare with every task, however many there are.")] = False,
    library: options.LibraryFolder = None,
    no_library: options.NoLibrary = False,
    tags: options.Tags = None,
    force: Annotated[bool, typer.Option("--force", help="PATH: compute again what the library has.")] = False,
    probe: Annotated[
        str | None, typer.Option("--probe", help=f"PATH: a timm or torchvision model; default: {DEFAULT_PROBE}.")
    ] = None,
    weights: options.Weights = None,
    size: options.Size = None,
    download: options.Download = False,
    name: Annotated[str | None, typer.Option(help="PATH: what to call the task; default: the folder's name.")] = None,
    path_column: options.PathColumn = None,
    label_column: options.LabelColumn = None,
    root: options.Root = None,
    task_name: Annotated[str | None, typer.Option("--task", help="Published dataset: one of its tasks.")] = None,
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
    """Find the tasks of the library that are nearest to one, by the symmetric distance.

    A name is looked up in the library first; to mean a folder of the same name, write it as a path: ./NAME. A folder or
    table is embedded as by `task2vec embed`, whose options are here, and kept in the library, too.
    """
    if k < 1:
        raise UsageError(f"-k {k}: there are no {k} nearest tasks. Ask for at least one.")
    given = {"method": method, "max_samples": max_samples, "rel_tol": rel_tol, "l2": l2, "beta": beta}
    given |= {"seed": seed, "dtype": dtype, "split_half": split_half}
    loading = {"weights": weights, "size": size, "download": download}
    how = {"device": device, "num_workers": num_workers, "batch_size": batch_size}
    table = {"root": root, "path_column": path_column, "label_columns": label_column}
    catalogue = {"kind": kind, "layout": layout, "split": split, "draw": draw, "labels": labels}
    sort = recognise(query, library)
    if sort == PATH:
        wish = Wish(
            Path(query),
            options.choose_settings(given, epochs=epochs),
            probe or DEFAULT_PROBE,
            loading,
            how,
            table,
            catalogue,
            task_name=task_name,
            name=name,
            allow_bad=allow_bad,
            force=force,
            library=library,
            no_library=no_library,
            tags=tuple(tags or ()),
        )
        asked = _embed(wish)
    else:
        # A task of the library may have several embeddings: these choose one.
        of_name = ("method", "probe", "size") if sort == NAME else ()
        others = given | loading | how | table | catalogue | {"epochs": epochs, "task": task_name, "name": name}
        others |= {"probe": probe, "tag": tags, "force": force, "allow_bad": allow_bad, "no_library": no_library}
        asked = load_asked(query, sort, library, probe=probe, method=method, size=size)
        _refuse_strays({key: value for key, value in others.items() if key not in of_name}, query, sort)
    report = find_neighbours(asked, library, k=k, exact=exact)
    print_json(report) if as_json else print_neighbours(report)


def _refuse_strays(options: dict[str, Any], query: str, sort: str) -> None:
    """Raise `UsageError` if options were given that are for what is yet to be embedded."""
    if asked := name_options(options):
        what = "a task of the library" if sort == NAME else "a saved embedding"
        raise UsageError(
            f"{asked} cannot be meant for '{query}': it is {what}, which is taken as it is. Leave it out, or name a "
            f"folder of images by its path, as in {os.path.join(os.curdir, query)}"
        )


def _embed(wish: Wish) -> Asked:
    made = make_embedding(
        wish, before=lambda task, probe: warn_of_strangers(task, probe, settings=wish.settings, library=wish.library)
    )
    where = "found in the library" if made.is_found else "embedded now"
    known_as = f", known there as '{printable(made.known_as)}'" if made.known_as else ""
    written = f"; written to '{printable(made.written)}'" if made.written else ""
    return Asked(made.embedding, PATH, f"'{printable(wish.path)}', {where}{known_as}{written}")
