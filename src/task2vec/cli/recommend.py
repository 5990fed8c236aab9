"""`task2vec recommend`: which network to start from, with the error to expect and how sure that is."""

import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from task2vec.cli import options
from task2vec.cli.cautions import check_file
from task2vec.cli.chosen import Layout
from task2vec.cli.exits import INTERRUPTED
from task2vec.cli.seeking import Seeker
from task2vec.cli.shelf import place_of
from task2vec.cli.speech import is_watched, open_page, print_json
from task2vec.errors import UsageError
from task2vec.text import printable

if TYPE_CHECKING:
    from task2vec.select.report import Recommendation


def recommend(
    query: Annotated[
        str,
        typer.Argument(
            metavar="PATH|NAME|FILE",
            help="A folder or table of images, a task of the library by name or id, or a saved embedding.",
        ),
    ],
    candidates: Annotated[
        list[str] | None,
        typer.Option(
            "--candidate",
            "--candidates",
            metavar="NAME|FILE",
            help="Only these: timm or torchvision models, files of experts, known experts; commas or many times.",
        ),
    ] = None,
    confirm: Annotated[
        int, typer.Option(metavar="K", help="Measure the K best on your images, of those whose weights are here.")
    ] = 0,
    seeds: Annotated[int, typer.Option(help="With --confirm: how many splits.")] = 3,
    regime: Annotated[
        str | None,
        typer.Option(metavar="half|few|N", help="Trained on half of the images, or on few; default: by your images."),
    ] = None,
    max_params: Annotated[str | None, typer.Option(metavar="N", help="At most so many weights, such as 10M.")] = None,
    max_time: Annotated[
        float | None, typer.Option(metavar="S", help="At most S seconds for 1,000 images here; they are timed.")
    ] = None,
    evidence: Annotated[
        str | None,
        typer.Option(metavar="bundle|library|FILE", help="What to go by; default: what ships, and your library."),
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="How errors are predicted; see task2vec evaluate.")] = None,
    limit: Annotated[int, typer.Option(help="Rows to show.")] = 10,
    csv: Annotated[Path | None, typer.Option(help="Write the table to this file, too.", metavar="FILE")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite that file.")] = False,
    library: options.LibraryFolder = None,
    no_library: Annotated[bool, typer.Option("--no-library", help="Do without the library: keep nothing.")] = False,
    probe: Annotated[
        str | None, typer.Option(help="Embed by this probe, of those that errors are known for; default: the first.")
    ] = None,
    weights: options.Weights = None,
    download: options.Download = False,
    name: Annotated[str | None, typer.Option(help="What to call the task; default: the folder's name.")] = None,
    path_column: options.PathColumn = None,
    label_column: options.LabelColumn = None,
    root: options.Root = None,
    task_name: Annotated[str | None, typer.Option("--task", help="Published dataset: one of its tasks.")] = None,
    kind: Annotated[str | None, typer.Option(help="With --task: its kind, where several have the name.")] = None,
    layout: Annotated[Layout | None, typer.Option("--as", help="With --task: which dataset it is.")] = None,
    split: Annotated[str | None, typer.Option(help="Only the images of train, val or test.")] = None,
    draw: Annotated[int | None, typer.Option(help="With --task: read this many of its images, drawn by seed.")] = None,
    labels: Annotated[Path | None, typer.Option(help="With --task: iMaterialist's table of names of labels.")] = None,
    device: options.Device = None,
    num_workers: options.Workers = None,
    batch_size: options.BatchSize = None,
    allow_bad: options.AllowBad = False,
    as_json: options.AsJson = False,
) -> None:
    """Recommend a network to start from, with the error that it is predicted to leave.

    Goes by errors that were measured on other tasks: those that ship with task2vec, and those of your library. Where
    they give no reason to leave the network that is best on average, it says so. A folder is embedded first, as by
    `task2vec embed`, and kept in the library. --confirm K measures the K best on your own images and keeps the errors.
    """
    if confirm < 0 or seeds < 1 or limit < 1:
        raise UsageError("--confirm is 0 or more, --seeds and --limit are 1 or more: otherwise there is nothing to do.")
    check_file(csv, option="--csv", is_forced=force)
    from types import SimpleNamespace

    how = {"device": device, "num_workers": num_workers, "batch_size": batch_size}
    chosen = [one for text in candidates or () for one in text.split(",") if one] or None
    options = {"evidence": evidence, "candidates": chosen, "shots": regime, "strategy": strategy}
    options |= {"max_params": max_params, "max_time": max_time, "download": download, "progress": is_watched()}
    options |= {"device": device, "num_workers": num_workers, "batch_size": batch_size}
    asked = SimpleNamespace(evidence=evidence, download=download, options=options)
    table = {"root": root, "path_column": path_column, "label_columns": label_column}
    catalogue = {"kind": kind, "layout": layout, "split": split, "draw": draw, "labels": labels}
    reading = {"how": how, "table": table, "catalogue": catalogue, "task_name": task_name, "name": name}
    reading |= {"allow_bad": allow_bad, "no_library": no_library, "is_kept": False}
    run = Run(query, asked, Seeker(asked, None if no_library else library, no_library, probe, weights, reading))
    run.recommend(confirm, seeds=seeds)
    run.print(limit=limit, csv=csv, as_json=as_json)


@dataclass
class Run:
    """A recommendation under way."""

    query: str
    asked: Any
    seeker: Seeker
    advice: "Recommendation | None" = None
    is_interrupted: bool = False
    taken: list[Any] = field(default_factory=list)

    def recommend(self, confirm: int, *, seeds: int) -> None:
        """Finds the task, weighs, and measures; an interrupt leaves what was measured."""
        from task2vec.select.recommend import _check_options, recommend

        checked = ("evidence", "candidates", "shots", "strategy", "max_params", "max_time")
        known = {name: self.asked.options[name] for name in checked}
        with ExitStack() as stack:
            _check_options(library=self.seeker.open(stack, makes_one=False), **known)
        task, embedding = self.seeker.find(self.query, needs_images=confirm > 0)
        with ExitStack() as stack:
            library = self.seeker.open(stack, makes_one=confirm > 0)
            what = embedding if task is None else task
            how = self.asked.options | {"measure_top": confirm, "seeds": seeds, "embedding": embedding}
            self.advice = recommend(what, library=library, **how)
            self.is_interrupted = self.advice.is_interrupted

    def print(self, *, limit: int, csv: Path | None, as_json: bool) -> None:
        """Prints and writes the recommendation."""
        assert self.advice is not None
        written = None if csv is None else self.advice.to_csv(csv)
        if as_json:
            place = None if self.seeker.no_library else str(place_of(self.seeker.folder))
            more = {"library": place, "written": None if written is None else str(written)}
            print_json(self.advice.to_dict() | more | {"is_interrupted": self.is_interrupted})
        else:
            print(printable(self.advice.to_text(width=open_page().width, limit=limit), keep_lines=True), end="")
            if written is not None:
                print(f"\nwritten: {printable(written)}")
        sys.stdout.flush()
        if self.is_interrupted:
            raise typer.Exit(INTERRUPTED)
