"""`task2vec embed-many`: many tasks become embeddings in the library; those on the same images share the work."""

import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from task2vec.cli import options
from task2vec.cli.chosen import Layout
from task2vec.cli.exits import INTERRUPTED
from task2vec.cli.facts import describe
from task2vec.cli.gathering import Failure, Gathered, Wanted, gather_tasks, sort_paths
from task2vec.cli.results import open_table, print_summary
from task2vec.cli.shelf import LibraryShelf, open_shelf
from task2vec.cli.speech import is_watched, print_json, say
from task2vec.errors import DataError, ResourceError, UsageError
from task2vec.text import format_percent, printable

if TYPE_CHECKING:
    from task2vec.embedding import EmbedSettings, TaskResult
    from task2vec.probe import Probe
    from task2vec.tasks import Task


def embed_many(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="Folders of class folders, tables, or published datasets."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Write files as well: their folder, one file for each task.", metavar="DIR")
    ] = None,
    library: options.LibraryFolder = None,
    no_library: Annotated[bool, typer.Option("--no-library", help="Keep nothing in the library: --out alone.")] = False,
    tags: options.Tags = None,
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
    gigabytes: Annotated[float, typer.Option(help="About how much memory features and sums may take.")] = 2.0,
    backend: options.BackendName = "serial",
    jobs: options.Jobs = None,
    threads: options.Threads = None,
    address: options.Address = None,
    allow_bad: options.AllowBad = False,
    as_json: options.AsJson = False,
) -> None:
    """Embed many tasks; those on the same images cost little more than one.

    Each is kept in the library as soon as it is finished. What fails is told, and the rest goes on. The same command,
    run again, computes what is missing.
    """
    begin = time.perf_counter()
    given = {"method": method, "max_samples": max_samples, "rel_tol": rel_tol, "l2": l2, "beta": beta}
    given |= {"seed": seed, "dtype": dtype, "split_half": split_half}
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
        workers=num_workers,
    )
    if no_library and out is None:
        raise UsageError("--no-library without --out: nothing would be kept. Name a folder for files: --out DIR")
    sorts = sort_paths(paths, wanted)
    import task2vec
    from task2vec.parallel import open_backend

    loaded = task2vec.load_probe(probe, weights=weights, size=size, download=download)
    how: dict[str, Any] = {
        "device": device,
        "num_workers": num_workers,
        "batch_size": batch_size,
        "gigabytes": gigabytes,
    }
    run = Run(loaded, settings, out, is_silent=as_json)
    with suppress(Interrupted), _leave_nothing_empty(out), ExitStack() as stack:
        # Refuses what cannot work, before anything is read.
        if backend != "serial" or (jobs, threads, address) != (None, None, None):
            opened = open_backend(backend, jobs=jobs, threads=threads, address=address)
            how["backend"] = stack.enter_context(opened)
        task2vec.embed_many([], loaded, settings=settings, folder=out, **how)
        if not no_library:
            run.open_shelf(stack, library, tags=tags or (), paths=paths)
        gathered = gather_tasks(sorts, wanted)
        run.embed(gathered, how)
    report = run.report(seconds=time.perf_counter() - begin)
    if as_json:
        print_json(report)
    elif not run.is_interrupted:
        print_summary(report)
    sys.stdout.flush()
    if run.is_interrupted or report["failed"]:
        raise typer.Exit(INTERRUPTED if run.is_interrupted else DataError.exit_code)


@contextmanager
def _leave_nothing_empty(folder: Path | None) -> Iterator[None]:
    """Takes the folder, and those above it, away again if they were made here and nothing came into them."""
    made = [] if folder is None else [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    finally:
        for place in made:
            with suppress(OSError):  # it is in use
                place.rmdir()


class Interrupted(KeyboardInterrupt):
    """An interrupt that was told."""


@dataclass
class Run:
    """Tasks on their way into the library or a folder, what has become of them, and how that is told."""

    probe: "Probe"
    settings: "EmbedSettings"
    folder: Path | None
    is_silent: bool
    shelf: LibraryShelf | None = None
    tasks: "Sequence[Task]" = ()
    failed: list[Failure] = field(default_factory=list)
    is_interrupted: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)

    def open_shelf(self, stack: ExitStack, library: Path | None, *, tags: Sequence[str], paths: Sequence[Path]) -> None:
        """Opens the library and notes the run in it; where it takes nothing, there must be a folder for files."""
        self.shelf = open_shelf(library, tags=tags, is_backed=self.folder is not None)
        if self.shelf is not None:
            stack.enter_context(self.shelf.library)
            story = {"paths": list(map(str, paths)), "probe": self.probe.name, "settings": self.settings.as_dict()}
            self.shelf.begin(stack, "embed-many", story)
        if not self.places:
            raise ResourceError("what is embedded would be lost. Name a folder for files: --out DIR")

    @property
    def places(self) -> list[str]:
        """Where the embeddings go."""
        library = None if self.shelf is None or self.shelf.is_for_finding else self.shelf.library.folder
        return [str(place) for place in (library, self.folder) if place is not None]

    def embed(self, gathered: Gathered, how: dict[str, Any]) -> None:
        """Embeds the tasks, and tells each as it is finished; an interrupt is told, too, and ends it."""
        import task2vec

        self.tasks, self.failed = gathered.tasks, gathered.failed
        if not self.tasks:
            return
        where = {"folder": self.folder, "library": self.shelf}
        results = task2vec.embed_many(
            self.tasks, self.probe, settings=self.settings, **where, progress=is_watched(), **how
        )
        tell = (lambda *cells: None) if self.is_silent else open_table([task.name for task in self.tasks])
        tell("task", "images", "classes", "error", "norm")
        try:
            with closing(cast("Generator[TaskResult]", results)):
                for result in results:
                    tell(*self._take(result))
        except KeyboardInterrupt:
            where = " and ".join(f"'{printable(place)}'" for place in self.places)
            told = f"{len(self.rows)} of {len(self.tasks)} tasks are finished and lie in {where}."
            say(f"interrupted: {told} The same command goes on with the rest.")
            self.is_interrupted = True
            raise Interrupted from None

    def _take(self, result: "TaskResult") -> list[str]:
        """Notes a result; its words for a row of the table."""
        if result.embedding is None:
            self.failed.append(Failure(result.task, str(result.error)))
            return [result.task, "", "", "", "", "failed"]
        task = self.tasks[result.number]
        known_as = self.shelf.names.get(task.fingerprint) if self.shelf else None
        facts = {
            **describe(result.embedding, has_noise=self.is_silent),  # a table does not show it
            "bad": [asdict(bad) for bad in task.bad],
            "is_found": result.is_found,
            "known_as": None if known_as == task.name else known_as,
            "written": self._find_file(task),
        }
        self.rows.append(facts)
        counts, warnings = facts["counts"], len(facts["warnings"])
        notes = ["found"] if result.is_found else []
        notes += [f"known as '{printable(facts['known_as'])}'"] if facts["known_as"] is not None else []
        notes += [f"{warnings} warning{'s' if warnings > 1 else ''}"] if warnings else []
        numbers = [str(counts["images"]), str(counts["classes"])]
        return [
            result.task,
            *numbers,
            format_percent(facts["head"]["cv_error"]),
            f"{facts['norm']:.3g}",
            ", ".join(notes),
        ]

    def _find_file(self, task: "Task") -> str | None:
        """The file that a task was written to, if one was."""
        from task2vec.embedding.embedding import find_saved

        if self.folder is not None:
            return str(find_saved(self.folder, task, self.probe, settings=self.settings)[0])
        saved = self.shelf.saved.get(task.fingerprint) if self.shelf else None
        return None if saved is None else str(saved)

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
            "library": str(self.shelf.library.folder) if self.shelf else None,
            "folder": None if self.folder is None else str(self.folder),
            "places": self.places,
        }
