"""`task2vec embed-many`: many tasks become embeddings in a folder; those on the same images share the work."""

import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from task2vec.cli import options
from task2vec.cli.chosen import Layout
from task2vec.cli.exits import INTERRUPTED, let_go
from task2vec.cli.facts import describe, percent
from task2vec.cli.gathering import Failure, Wanted, gather_tasks, sort_paths
from task2vec.cli.reading import MOST_NAMED
from task2vec.cli.speech import is_watched, print_json, say, visible
from task2vec.errors import DataError

if TYPE_CHECKING:
    from task2vec.embedding import EmbedSettings, TaskResult
    from task2vec.probe import Probe
    from task2vec.tasks import Task

# Longer names have a line of their own.
WIDEST_NAME = 60
# Of the columns of numbers, and of the notes behind them.
WIDTHS, NOTES_WIDTH = (6, 7, 7, 8), 16
# As many as a person would read; tasks of one kind have much the same ones.
MOST_WARNINGS = 5


def embed_many(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="Folders of class folders, tables, or published datasets."),
    ],
    out: Annotated[Path, typer.Option(help="The folder of the embeddings, one file for each task.", metavar="DIR")],
    kind: Annotated[str | None, typer.Option(help="Published datasets: the tasks of this kind.")] = None,
    task_names: Annotated[
        list[str] | None, typer.Option("--task", help="Published datasets: this task; may be given many times.")
    ] = None,
    layout: Annotated[Layout | None, typer.Option("--as", help="Which published dataset the folders are.")] = None,
    split: Annotated[str | None, typer.Option(help="Only the images of train, val or test.")] = None,
    draw: Annotated[
        int | None, typer.Option(help="Published datasets: read this many images of a task, of attributes together.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="iMaterialist: the table of the labels' names.")] = None,
    one_vs_rest: Annotated[
        bool, typer.Option("--one-vs-rest", help="Ask 'is it X?' for every class X; two classes are one such question.")
    ] = False,
    path_column: options.PathColumn = None,
    label_column: options.LabelColumn = None,
    root: options.Root = None,
    probe: options.ProbeName = "tf_efficientnet_lite0",
    weights: options.Weights = None,
    size: options.Size = None,
    download: options.Download = False,
    method: options.Method = None,
    epochs: options.Epochs = None,
    engine: options.Engine = None,
    images: options.ImageCount = None,
    halves: options.Halves = False,
    precision: options.Precision = None,
    l2: options.L2 = None,
    beta: options.Beta = None,
    seed: options.Seed = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    workers: options.Workers = None,
    batch_size: options.BatchSize = None,
    gigabytes: Annotated[float, typer.Option(help="About how much memory features and sums may take.")] = 2.0,
    allow_bad: options.AllowBad = False,
    as_json: options.AsJson = False,
) -> None:
    """Embed many tasks; those on the same images cost little more than one.

    Each is written into --out as soon as it is finished. What fails is told, and the rest goes on. The same command,
    run again, computes what is missing.
    """
    begin = time.perf_counter()
    given = {"method": method, "engine": engine, "images": images, "precision": precision, "l2": l2, "beta": beta}
    given |= {"seed": seed, "dtype": dtype, "halves": halves}
    settings = options.choose_settings(given, epochs=epochs)
    wanted = Wanted(
        table={"root": root, "path_column": path_column, "label_columns": label_column},
        names=task_names or (),
        kind=kind,
        layout=layout,
        draw=draw,
        labels=labels,
        split=split,
        seed=settings.seed,
        is_one_vs_rest=one_vs_rest,
        allow_bad=allow_bad,
        workers=workers,
    )
    sorts = sort_paths(paths, wanted)
    import task2vec

    loaded = task2vec.load_probe(probe, weights=weights, size=size, download=download)
    how = {"device": device, "workers": workers, "batch_size": batch_size, "gigabytes": gigabytes}
    with _leave_nothing_empty(out):
        task2vec.embed_many(
            [], loaded, settings=settings, folder=out, **how
        )  # refuses what cannot work, before reading
        gathered = gather_tasks(sorts, wanted)
        run = Run(gathered.tasks, loaded, settings, out, gathered.failed, is_silent=as_json)
        if run.tasks:
            run.embed(how)
    report = run.report(seconds=time.perf_counter() - begin)
    if as_json:
        print_json(report)
    elif not run.is_interrupted:
        _print_summary(report)
    sys.stdout.flush()
    if run.is_interrupted or report["failed"]:
        raise typer.Exit(INTERRUPTED if run.is_interrupted else DataError.exit_code)


@contextmanager
def _leave_nothing_empty(folder: Path) -> Iterator[None]:
    """Takes the folder, and those above it, away again if they were made here and nothing came into them."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    finally:
        for place in made:
            with suppress(OSError):  # it is in use
                place.rmdir()


@dataclass
class Run:
    """Tasks on their way into a folder, what has become of them, and how that is told."""

    tasks: "Sequence[Task]"
    probe: "Probe"
    settings: "EmbedSettings"
    folder: Path
    failed: list[Failure]
    is_silent: bool
    is_interrupted: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)

    def embed(self, how: dict[str, Any]) -> None:
        """Embeds the tasks, and tells each as it is finished; an interrupt is told, too, and ends it."""
        import task2vec

        results = task2vec.embed_many(
            self.tasks, self.probe, settings=self.settings, folder=self.folder, progress=is_watched(), **how
        )
        tell = (lambda *cells: None) if self.is_silent else _open_table([task.name for task in self.tasks])
        tell("task", "images", "classes", "error", "norm")
        try:
            with closing(cast("Generator[TaskResult]", results)):
                for result in results:
                    tell(*self._take(result))
        except KeyboardInterrupt:
            say(
                f"interrupted: {len(self.rows)} of {len(self.tasks)} tasks are finished and lie in "
                f"'{visible(self.folder)}'. The same command goes on with the rest."
            )
            self.is_interrupted = True

    def _take(self, result: "TaskResult") -> list[str]:
        """Notes a result; its words for a row of the table."""
        if result.embedding is None:
            self.failed.append(Failure(result.task, str(result.error)))
            return [result.task, "", "", "", "", "failed"]
        from task2vec.embedding.kept import find_place

        task = self.tasks[result.number]
        place = find_place(self.folder, task, self.probe, settings=self.settings)
        facts = {
            **describe(result.embedding, has_noise=self.is_silent),  # a table does not show it
            "bad": [asdict(bad) for bad in task.bad],
            "is_found": result.is_found,
            "written": str(place),
        }
        self.rows.append(facts)
        counts, warnings = facts["counts"], len(facts["warnings"])
        notes = ["found"] if result.is_found else []
        notes += [f"{warnings} warning{'s' if warnings > 1 else ''}"] if warnings else []
        numbers = [str(counts["images"]), str(counts["classes"])]
        return [result.task, *numbers, percent(facts["head"]["cv_error"]), f"{facts['norm']:.3g}", ", ".join(notes)]

    def report(self, *, seconds: float) -> dict[str, Any]:
        """All of it as plain values."""
        found = sum(row["is_found"] for row in self.rows)
        return {
            "embedded": len(self.rows) - found,
            "found": found,
            "failed": [asdict(failure) for failure in self.failed],
            "is_interrupted": self.is_interrupted,
            "tasks": self.rows,
            "seconds": round(seconds, 3),
            "folder": str(self.folder),
        }


def _open_table(names: Sequence[str]) -> Callable[..., None]:
    """A function that prints a row of words under the last one at once; the first column is as wide as the names."""
    from rich.cells import cell_len

    room = shutil.get_terminal_size().columns - sum(2 + size for size in (*WIDTHS, NOTES_WIDTH))
    width = min(max(room, 12), WIDEST_NAME, max(cell_len(visible(name)) for name in ("task", *names)))
    page = sys.stdout  # a bar on standard error would catch what is printed, even for a file

    def tell(name: str, *cells: str) -> None:
        shown, start = visible(name), ""
        if cell_len(shown) > width:
            shown, start = "", f"{shown}\n"
        numbers, notes = cells[: len(WIDTHS)], cells[len(WIDTHS) :]
        columns = [f"{cell:>{size}}" for cell, size in zip(numbers, WIDTHS, strict=True)]
        line = "  ".join([shown + " " * (width - cell_len(shown)), *columns, *notes])
        try:
            print(start + line.rstrip(), file=sys.stdout if page.isatty() else page, flush=True)
        except BrokenPipeError:  # a reader that has gone is no reason to stop working
            let_go(page)

    return tell


def _print_summary(report: dict[str, Any]) -> None:
    """How many came out, and why the others did not."""
    failed = report["failed"]
    told = f"{report['embedded']} embedded, {report['found']} found, {len(failed)} failed"
    print(f"{told}; in {visible(report['folder'])} ({report['seconds']:.1f} s)")
    _say_warnings(report["tasks"])
    for failure in failed[:MOST_NAMED]:
        say(f"failed: {visible(failure['name'])}: {visible(failure['reason'])}")
    if len(failed) > MOST_NAMED:
        say(f"and {len(failed) - MOST_NAMED} more; --json lists them all")


def _say_warnings(rows: Sequence[dict[str, Any]]) -> None:
    """The different warnings of the tasks, those that most of them have first, each with a task that has it."""
    having: dict[str, list[str]] = {}
    for row in rows:
        for warning in dict.fromkeys(row["warnings"]):
            having.setdefault(warning, []).append(row["task"])
    ordered = sorted(having, key=lambda warning: -len(having[warning]))
    for warning in ordered[:MOST_WARNINGS]:
        first, *others = having[warning]
        also = f" and {len(others)} more" if others else ""
        say(f"warning: {visible(first)}{also}: {visible(warning)}")
    if len(ordered) > MOST_WARNINGS:
        say(f"and {len(ordered) - MOST_WARNINGS} more warnings; --json lists them all")
