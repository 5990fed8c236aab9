"""`task2vec error-matrix`: every task on top of every expert, each error kept in the library as soon as it is known."""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from task2vec.cli import options
from task2vec.cli.cautions import check_file, warn_of, warn_size
from task2vec.cli.chosen import Layout
from task2vec.cli.exits import INTERRUPTED
from task2vec.cli.gathering import Gathered, Wanted, gather_tasks, sort_paths
from task2vec.cli.listing import Column, print_columns
from task2vec.cli.reading import MOST_NAMED
from task2vec.cli.speech import is_watched, print_json, say
from task2vec.errors import DataError, NotInLibraryError, UsageError
from task2vec.text import format_percent, pluralize, printable

if TYPE_CHECKING:
    from task2vec.experts.linear_probe import Model
    from task2vec.experts.metatask import MetaTask
    from task2vec.experts.protocol import ErrorProtocol
    from task2vec.library import Library

_SUFFIX = ".safetensors"


def error_matrix(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Folders of class folders, tables, or published datasets.")
    ],
    experts: Annotated[
        list[str],
        typer.Option(
            "--expert", metavar="EXPERT", help="An expert of the library, a file of one, or a model; many times."
        ),
    ],
    train: Annotated[
        list[str] | None,
        typer.Option(help="Train on half of the images, or so many per class: half, 5; may be given many times."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many splits: seeds 0, 1, ...")] = 1,
    classifier: Annotated[
        Literal["logistic", "achille2019"], typer.Option(help="Solved, or trained as in the paper.")
    ] = "logistic",
    measure: Annotated[
        Literal["usual", "balanced", "precision"], typer.Option(help="Which error; precision is for attributes.")
    ] = "usual",
    csv: Annotated[Path | None, typer.Option(help="Write all errors to this file as well.", metavar="FILE")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file of --csv.")] = False,
    library: options.LibraryFolder = None,
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
    path_column: options.PathColumn = None,
    label_column: options.LabelColumn = None,
    root: options.Root = None,
    size: Annotated[int | None, typer.Option(help="Models: side of the images in pixels.")] = None,
    download: options.Download = False,
    backend: options.BackendName = "serial",
    jobs: options.Jobs = None,
    threads: options.Threads = None,
    address: options.Address = None,
    device: options.Device = None,
    num_workers: options.Workers = None,
    batch_size: options.BatchSize = None,
    allow_bad: options.AllowBad = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure the error of every task on top of every expert.

    A linear classifier is trained on the expert's features of a part of the images and tested on half of them. Each
    error is kept in the library as soon as it is known. What fails is told, and the rest goes on. The same command,
    run again, computes what is missing.
    """
    begin = time.perf_counter()
    if seeds < 1:
        raise UsageError(f"--seeds {seeds} measures nothing. Give 1 or more.")
    check_file(csv, option="--csv", is_forced=force)
    warn_size(size)
    wanted = Wanted(
        table={"root": root, "path_column": path_column, "label_columns": label_column},
        names=task_names or (),
        kind=kind,
        layout=layout,
        draw=draw,
        labels=labels,
        split=split,
        seed=0,
        is_one_vs_rest=False,
        allow_bad=allow_bad,
        workers=num_workers,
    )
    protocols = _make_protocols(train or ["half"], classifier, measure)
    sorts = sort_paths(paths, wanted)
    from task2vec.library import Library
    from task2vec.parallel import open_backend

    how = {"device": device, "num_workers": num_workers, "batch_size": batch_size, "download": download}
    with Library.open(library) as opened, open_backend(backend, jobs=jobs, threads=threads, address=address) as runner:
        found = [find_expert(name, opened, size=size, download=download) for name in dict.fromkeys(experts)]
        run = Run(opened, gather_tasks(sorts, wanted), protocols, seeds)
        warn_of(run.gathered.tasks)
        run.measure(found, how | {"backend": runner})
    report = run.report(seconds=time.perf_counter() - begin)
    if csv is not None and run.matrix is not None:
        report["written"] = str(run.matrix.to_csv(csv))
    if as_json:
        print_json(report)
    elif run.matrix is not None:
        _print_report(run.matrix, report)
    sys.stdout.flush()
    if run.is_interrupted or report["failed"]:
        raise typer.Exit(INTERRUPTED if run.is_interrupted else DataError.exit_code)


def _make_protocols(train: Sequence[str], classifier: str, measure: str) -> "list[ErrorProtocol]":
    from task2vec.experts.protocol import ErrorProtocol

    sizes = [int(size) if size.isascii() and size.isdigit() else size for size in dict.fromkeys(train)]
    return [ErrorProtocol(size, classifier, measure) for size in sizes]  # type: ignore[arg-type]


def find_expert(name: str, library: "Library", *, size: int | None = None, download: bool = False) -> "Model":
    """The expert of the library that is called so, or of a file, or a model that timm or torchvision know."""
    from task2vec.experts.checkpoint import load_trained
    from task2vec.probe import load_probe

    known = {expert.name: expert for expert in library.experts()}
    if name in known:
        if size is not None and known[name].input_size not in (None, size):
            raise UsageError(
                f"the library knows '{name}' with images of {known[name].input_size} pixels, and --size {size} would "
                f"mix errors of two networks. Leave out --size, or keep these elsewhere: --library DIR"
            )
        return known[name]
    if name.endswith(_SUFFIX):
        return load_trained(name)
    try:
        return load_probe(name, size=size, download=download)
    except UsageError as error:
        names = ", ".join(map(printable, list(known)[:MOST_NAMED])) or "none"
        raise NotInLibraryError(
            f"'{name}' is no expert of the library (it has: {names}), no file ending in {_SUFFIX}, and no model "
            f"either: {error}"
        ) from error


@dataclass
class Run:
    """Cells on their way into the library, and what has become of them."""

    library: "Library"
    gathered: Gathered
    protocols: "list[ErrorProtocol]"
    seeds: int
    matrix: "MetaTask | None" = None
    is_interrupted: bool = False
    cells: int = 0
    failed: list[dict[str, Any]] = field(default_factory=list)
    moments: dict[tuple[str, str, str, int], tuple[str | None, str]] = field(default_factory=dict)

    def measure(self, experts: "Sequence[Model]", how: dict[str, Any]) -> None:
        """Measures all cells; an interrupt is told, and ends it."""
        from task2vec.experts.error_matrix import error_matrix

        self.failed = [{"task": one.name, "expert": None, "reason": one.reason} for one in self.gathered.failed]
        if not self.gathered.tasks:
            return
        asked = {"protocols": self.protocols, "seeds": range(self.seeds), "library": self.library}
        try:
            self.matrix = error_matrix(
                self.gathered.tasks, experts, **asked, **how, progress=is_watched(), on_cell=self._take
            )
        except KeyboardInterrupt:
            told = f"{pluralize(self.cells, 'cell')} of this run are in '{printable(self.library.folder)}'."
            say(f"interrupted: {told} The same command goes on with the rest.")
            self.is_interrupted = True
        self.moments = {
            (error.task, error.expert, error.protocol, error.seed): (error.measured, error.measured_by)
            for error in self.library.errors()
        }

    def _take(self, cell: Any) -> None:
        """Notes what became of a task on an expert; what failed is told now, for what follows may take hours."""
        self.cells += isinstance(cell, tuple)
        if not isinstance(cell, tuple):
            self.failed.append({"task": cell.task, "expert": cell.model, "reason": cell.message})
            say(f"failed: {printable(cell.task)} on {printable(cell.model)}: {printable(cell.message)}")

    def report(self, *, seconds: float) -> dict[str, Any]:
        """All of it as plain values."""
        matrix = self.matrix
        told: dict[str, Any] = {"tasks": [], "fingerprints": [], "experts": [], "protocols": [], "seeds": []}
        told["errors"] = []
        if matrix is not None:
            told = {"protocols": list(matrix.protocols), "seeds": list(matrix.seeds)}
            told |= {"tasks": [one.name for one in matrix.tasks], "experts": [one.name for one in matrix.models]}
            told["fingerprints"] = [one.fingerprint for one in matrix.tasks]
            told["errors"] = self._list_errors(matrix)
        return told | {
            "computed": self.cells,
            "failed": self.failed,
            "is_interrupted": self.is_interrupted,
            "library": str(self.library.folder),
            "written": None,
            "seconds": round(seconds, 3),
        }

    def _list_errors(self, matrix: "MetaTask") -> list[dict[str, Any]]:
        """Each error with the name of its task, when and by what it was measured, and whether it is trivial."""
        names, trivial = {task.fingerprint: task.name for task in matrix.tasks}, _list_trivial(matrix)
        told = []
        for error in matrix.list_errors():
            key = (error.task, error.expert, error.protocol, error.seed)
            moment = dict(zip(("measured", "measured_by"), self.moments.get(key, (None, "")), strict=True))
            more = {"name": names[error.task], "is_trivial": (error.task, error.expert) in trivial}
            told.append({**asdict(error), **moment, **more})
        return told


def _list_trivial(matrix: "MetaTask") -> set[tuple[str, str]]:
    return {
        (task.fingerprint, model.name)
        for task, row in zip(matrix.tasks, matrix.has_seen, strict=True)
        for model, has_seen in zip(matrix.models, row, strict=True)
        if has_seen
    }


def _print_report(matrix: "MetaTask", report: dict[str, Any]) -> None:
    """For every task and size of training the best expert that has not seen the task, and the middle of all."""
    import numpy as np

    seeds = matrix.count_seeds()
    partial = (seeds > 0) & (seeds < len(matrix.seeds))
    means = np.where(matrix.has_seen[..., None], np.nan, matrix.mean_errors(complete=True))
    rows: list[tuple[str, ...]] = []
    for task, name in enumerate([one.name for one in matrix.tasks]):
        for protocol, key in enumerate(matrix.protocols):
            errors = means[task, :, protocol]
            if np.isnan(errors).all():
                rows.append((printable(name), _word_training(key), "-", "-", "-"))
                continue
            best, middle = int(np.nanargmin(errors)), float(np.nanmedian(errors))
            names = (printable(name), _word_training(key), printable(matrix.models[best].name))
            rows.append((*names, format_percent(float(errors[best])), format_percent(middle)))
    if rows:
        heads = ("task", "train", "best expert", "error", "median")
        rooms = {"task": 10, "best expert": 12}
        columns = [
            Column(
                head, cells, head, is_number=head in ("error", "median"), is_name=head in rooms, room=rooms.get(head, 0)
            )
            for head, cells in zip(heads, zip(*rows, strict=True), strict=True)
        ]
        print_columns(columns, in_turn=("median",))
    seen = int(matrix.has_seen.sum())
    told = f"{pluralize(report['computed'], 'cell')} computed, {len(report['failed'])} failed"
    told += f", {seen} left out above: the expert was trained on the task" if seen else ""
    print(f"{told}; in {printable(report['library'])} ({report['seconds']:.1f} s)")
    if partial.any():
        least = int(seeds[partial].min())
        print(
            f"{pluralize(int(partial.sum()), 'mean')} left out above: only {least} of {len(matrix.seeds)} seeds are known"
        )
    if report["written"]:
        print(f"written: {printable(report['written'])}")


def _word_training(key: str) -> str:
    """What a protocol trains on, by its key."""
    return next((part.removeprefix("train ") for part in key.split(", ") if part.startswith("train ")), key)
