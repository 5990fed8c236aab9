"""`task2vec demo`: eight small tasks, embedded offline, compared and drawn, and a network recommended for one."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from task2vec.cli.place import default_place
from task2vec.cli.progress import watch_steps
from task2vec.cli.speech import open_page, print_json, say
from task2vec.errors import MissingExtraError
from task2vec.text import format_percent, printable

if TYPE_CHECKING:
    from task2vec.embedding import Embedding
    from task2vec.select.report import Recommendation
    from task2vec.tasks import Task

# Small images and a small budget: this is a look, not a measurement.
SIZE, IMAGES, BACKPROPAGATED = 80, 100, 48
# The task that a network is recommended for: the only one of photographs.
RECOMMENDED = "photos"

HOW_TO_READ = (
    "How to read it: two tasks are near (a small distance) when the same filters of the probe matter to both. "
    "The norm says how much they matter: little for easy tasks, much for hard ones, and hardly at all where nothing "
    "can be learned, as from coin flips."
)


def demo(
    out: Annotated[Path, typer.Option(help="The folder for the embeddings and the picture.")] = Path("task2vec-demo"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Embed eight small tasks offline and compare them.

    Prints how hard each one is and which is nearest to it, draws their distances, writes the embeddings, and recommends
    a network for one of them.
    """
    begin = time.perf_counter()
    from task2vec.plots import make_folder

    make_folder(out)
    import task2vec

    say("making eight small tasks and loading the probe ...")
    tasks = task2vec.sample_tasks(images_per_task=IMAGES)
    embeddings = _embed_all(tasks)
    for embedding in embeddings:
        embedding.save(default_place(embedding.task.replace(" ", "-"), out))
    distances = _measure_distances(embeddings)
    picture = _draw(distances, tasks, out)
    rows = _tabulate(embeddings, distances)
    advice = _recommend(next(task for task in tasks if task.name == RECOMMENDED))
    seconds = round(time.perf_counter() - begin, 1)
    if as_json:
        names = [task.name for task in tasks]
        document = {"tasks": rows, "names": names, "distances": distances, "picture": picture, "folder": str(out)}
        document |= {"recommendation": advice.to_dict()}
        print_json({**document, "probe": embeddings[0].probe, "seconds": seconds})
    else:
        _print_table(rows)
        _print_close(picture, out, seconds)
        _print_advice(advice)


def _embed_all(tasks: "Sequence[Task]") -> "list[Embedding]":
    import task2vec

    probe = task2vec.load_probe(size=SIZE)
    settings = task2vec.EmbedSettings(max_samples=BACKPROPAGATED)
    embeddings = []
    with watch_steps(len(tasks)) as advance:
        for task in tasks:
            advance(f"embedding {task.name}")
            embeddings.append(task2vec.embed(task, probe, settings=settings))
    return embeddings


def _measure_distances(embeddings: "Sequence[Embedding]") -> list[list[float]]:
    from task2vec.distance import symmetric

    return [[0.0 if a is b else float(symmetric(a, b)) for b in embeddings] for a in embeddings]


def _draw(distances: list[list[float]], tasks: "Sequence[Task]", out: Path) -> str | None:
    """The path of the picture, or nothing but a hint where matplotlib is missing."""
    import numpy as np

    from task2vec.plots import draw_matrix

    thumbnails = [[task.images.load(index) for index in (0, 1)] for task in tasks]
    names = [task.name for task in tasks]
    try:
        return str(draw_matrix(np.array(distances), names, out=out / "distances.png", thumbnails=thumbnails)[0])
    except MissingExtraError as error:
        say(f"no picture: {error}")
        return None


def _tabulate(embeddings: "Sequence[Embedding]", distances: list[list[float]]) -> list[dict[str, Any]]:
    rows = []
    for row, embedding in zip(distances, embeddings, strict=True):
        distance, nearest = min((d, e.task) for d, e in zip(row, embeddings, strict=True) if e is not embedding)
        counts, head = embedding.provenance["counts"], embedding.provenance["head"]
        rows.append({
            "task": embedding.task,
            "images": counts["images"],
            "classes": counts["classes"],
            "cv_error": head["cv_error"],
            "norm": float(embedding.norm()),
            "nearest": nearest,
            "distance": distance,
        })  # fmt: skip
    return rows


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("task", overflow="fold")
    for column in ("images", "classes", "error", "norm"):
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("nearest (distance)", overflow="fold")
    for row in rows:
        numbers = (str(row["images"]), str(row["classes"]), format_percent(row["cv_error"]), f"{row['norm']:.3g}")
        table.add_row(printable(row["task"]), *numbers, f"{printable(row['nearest'])} ({row['distance']:.2f})")
    open_page().print(table)


def _print_close(picture: str | None, out: Path, seconds: float) -> None:
    page = open_page()
    page.print(HOW_TO_READ + "\n")
    if picture:
        page.print(f"The picture of all distances: {printable(picture)}", soft_wrap=True)
    page.print(f"The embeddings: {printable(out)}   ({seconds:.0f} s)", soft_wrap=True)


def _recommend(task: "Task") -> "Recommendation":
    """Which network suits a task, by what is known of others; for that it is embedded as they were."""
    import task2vec
    from task2vec.select.evidence import image_size

    say(f"which network suits '{task.name}'? ...")
    like = next(iter(task2vec.bundled_metatask().spaces.values()))
    settings = task2vec.EmbedSettings(max_samples=BACKPROPAGATED)
    return task2vec.recommend(task2vec.embed(task, task2vec.load_probe(size=image_size(like)), settings=settings))


def _print_advice(advice: "Recommendation") -> None:
    page = open_page()
    first = next(row for row in advice.rows if row.model == advice.choice)
    page.print(f"\nWhich network suits '{printable(advice.task)}', of {len(advice)} that can be loaded?")
    page.print(f"{printable(advice.verdict)}\n")
    page.print(f"    {printable(first.load)}\n", soft_wrap=True)
    page.print("Your own images: task2vec embed FOLDER, task2vec recommend FOLDER", soft_wrap=True)
