"""`task2vec map`: the tasks of the library, or saved embeddings, become a map of the task space."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from task2vec.cli import options
from task2vec.cli.groups import NO_GROUP, choose_groups
from task2vec.cli.map_tasks import TAG, check_count, read_files, read_library
from task2vec.cli.reading import name_options
from task2vec.cli.shelf import place_of
from task2vec.cli.speech import open_page, print_json, say
from task2vec.errors import UsageError
from task2vec.text import printable

if TYPE_CHECKING:
    import numpy as np

    from task2vec.embedding import Embedding
    from task2vec.plots import TaskFacts

HOW_TO_READ = (
    "How to read it: tasks that stand together are alike. How far apart groups stand means little on a map; the matrix "
    "has the distances themselves."
)


def draw_map(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILES OR FOLDERS]", help="Embeddings, or folders of them. Default: the library."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for the map.")] = Path("task2vec-map"),
    kind: Annotated[str, typer.Option(help="The distance between tasks.")] = "symmetric",
    group: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.csv|COLUMN",
            help="Colours: a table of task and group, or a fact of the embeddings. Default: the first tag of a task, "
            "or the folders of the files.",
        ),
    ] = None,
    place: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="An embedding to put on the map of the others; repeat it for more."),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Library: only tasks with this tag.")] = None,
    probe: Annotated[str | None, typer.Option(help="Library: by this probe; default: that of most tasks.")] = None,
    library: options.LibraryFolder = None,
    as_json: options.AsJson = False,
) -> None:
    """Draw a map of embedded tasks: of the library, or of files.

    Writes a page to walk about on (map.html), the map and the matrix of distances as pictures, and their numbers.
    """
    begin = time.perf_counter()
    from task2vec.plots import import_figure, make_folder

    import_figure()  # asked for now and not after the work
    if files and (asked := name_options({"tag": tag, "probe": probe, "library": library})):
        raise UsageError(f"{asked} cannot be meant for files: they are drawn as they are. Leave it out, or the files.")
    placed, _ = read_files(place or [], without=set())
    tags = None
    if files:
        known, left_out = read_files(files, without={file.resolve() for file in place or []})
    else:
        new = {embedding.provenance.get("task_fingerprint", "") for _, embedding in placed}
        known, tags, left_out = read_library(library, tag=tag, probe=probe, without=new)
    check_count(known, files or [place_of(library)])
    tasks = [*known, *placed]
    if tags is not None and group in (None, TAG):
        groups = [*tags, *([NO_GROUP] * len(placed))] if set(tags) != {NO_GROUP} else None
    else:
        groups = choose_groups(group, [file for file, _ in tasks], [embedding for _, embedding in tasks])
    distances = _measure([embedding for _, embedding in known], [embedding for _, embedding in placed], kind)
    make_folder(out)
    report = _draw(tasks, distances, out=out, groups=groups, placed=len(placed), kind=kind)
    report |= {"left_out": [str(one) for one in left_out], "seconds": round(time.perf_counter() - begin, 1)}
    print_json(report) if as_json else _print(report)


def _measure(known: "Sequence[Embedding]", placed: "Sequence[Embedding]", kind: str) -> "np.ndarray":
    """Distances between all pairs, those of the known tasks measured by themselves: a new task does not touch them."""
    import numpy as np

    from task2vec.distance import check_comparable, pairwise

    for other in (*known[1:], *placed):
        check_comparable(known[0], other)
    distances = pairwise(known, kind).values
    if placed:
        across = pairwise(placed, kind, others=known).values
        distances = np.block([[distances, across.T], [across, pairwise(placed, kind).values]])
    if not np.allclose(distances, distances.T, atol=1e-5) or distances.min() < -1e-5:
        raise UsageError(
            f"--kind {kind} is not the same there and back, or falls below zero, so no plane can show it. "
            "Use --kind symmetric."
        )
    distances = ((distances + distances.T) / 2).clip(min=0)
    np.fill_diagonal(distances, 0.0)
    return distances


def _draw(
    tasks: "Sequence[tuple[Path, Embedding]]",
    distances: "np.ndarray",
    *,
    out: Path,
    groups: list[str] | None,
    placed: int,
    kind: str,
) -> dict[str, Any]:
    """The report of what was drawn: the map of the known tasks, the placed ones on it, the matrix of all."""
    import numpy as np

    from task2vec import plots

    names = [embedding.task for _, embedding in tasks]
    known = len(tasks) - placed
    say(f"laying out {known} tasks ...")
    laid = plots.lay_out(distances[:known, :known], names[:known])
    places = np.vstack([laid.positions, laid.place(distances[known:, :known])]) if placed else laid.positions
    title, note = f"{len(tasks)} tasks", f"{kind} distance, {laid.describe()}"
    say("drawing ...")
    facts = [_state_facts(embedding) for _, embedding in tasks]
    page = plots.write_page(
        places, names, path=out / "map.html", distances=distances, groups=groups, facts=facts, placed=placed,
        title=title, note=note,
    )  # fmt: skip
    drawn = plots.draw_map(places, names, out=out / "map", groups=groups, placed=placed, title=f"{title}: {note}")
    matrix = plots.draw_matrix(distances, names, out=out / "matrix", groups=groups, title=f"{kind} distance")
    nearest = [
        {"task": names[row], "nearest": names[near], "distance": float(distances[row, near])}
        for row in range(known, len(tasks))
        for near in [int(distances[row, :known].argmin())]
    ]
    files = [str(path) for path in (page, *drawn, *matrix)]
    return {"tasks": known, "placed": nearest, "kind": kind, "layout": laid.describe(), "files": files}


def _state_facts(embedding: "Embedding") -> "TaskFacts":
    """What an embedding says of its task; what a stranger's file does not say, or not as a number, is left out."""
    from task2vec.plots import TaskFacts

    def find(part: str, key: str) -> Any:
        told = embedding.provenance.get(part)
        value = told.get(key) if isinstance(told, dict) else None
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    return TaskFacts(find("counts", "images"), find("counts", "classes"), find("head", "cv_error"), embedding.norm())


def _print(report: dict[str, Any]) -> None:
    page = open_page()
    page.print(f"{report['tasks']} tasks by {report['kind']} distance ({printable(report['layout'])})")
    for task in report["placed"]:
        page.print(
            f"placed {printable(task['task'])}: nearest is {printable(task['nearest'])}, at {task['distance']:.3f}",
            soft_wrap=True,
        )
    page.print(HOW_TO_READ + "\n")
    for path in report["files"]:
        page.print(printable(path), soft_wrap=True)
    page.print(f"Open {printable(report['files'][0])} in a browser.   ({report['seconds']:.0f} s)", soft_wrap=True)
