"""`task2vec demo`: eight small tasks, embedded offline and compared, and a model recommended for one of them."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from task2vec.cli import options, output
from task2vec.errors import MissingExtraError
from task2vec.text import format_percent, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from task2vec.embedding import Embedding
    from task2vec.tasks import Task

# Small images and few gradients: a demonstration, not a measurement.
SIZE, IMAGES, SAMPLES = 64, 60, 20
# The task that a model is recommended for: the only one of photographs.
RECOMMENDED = "photos"


def demo(out: options.Out = Path("task2vec-demo")) -> None:
    """Embed eight small tasks offline and compare them.

    Prints how hard each task is and which one is nearest, draws their distances, writes the embeddings, and recommends
    a pretrained model for one of them.
    """
    begin = time.perf_counter()
    import numpy as np
    import torch

    import task2vec
    from task2vec.plots import make_folder
    from task2vec.progress import show_progress

    make_folder(out)
    torch.set_num_threads(1)  # images this small keep several threads busy waiting for one another
    output.say("creating eight small tasks and loading the probe ...")
    tasks = task2vec.sample_tasks(images_per_task=IMAGES)
    probe = task2vec.load_probe(size=SIZE)
    settings = task2vec.EmbedSettings(max_samples=SAMPLES)
    embeddings = []
    with show_progress(output.is_watched()) as report:
        step = report("embedding", len(tasks))
        for task in tasks:
            embeddings.append(task2vec.embed(task, probe, settings=settings))
            step(1)
    distances = np.array(task2vec.distance.pairwise(embeddings).values)
    rows = _tabulate(embeddings, distances)
    if not output.wants_json():
        _print_table(rows, time.perf_counter() - begin)
    for embedding in embeddings:
        embedding.save(out / f"{embedding.task.replace(' ', '-')}.t2v.safetensors")
    picture = _draw(distances, tasks, out)
    advice = _recommend(next(task for task in tasks if task.name == RECOMMENDED))
    seconds = round(time.perf_counter() - begin, 1)
    if output.wants_json():
        document = {"tasks": rows, "names": [task.name for task in tasks], "distances": distances, "picture": picture}
        document |= {"folder": str(out), "recommendation": advice.to_dict(), "probe": probe.name, "seconds": seconds}
        output.print_json(document)
        return
    if picture:
        print(f"The distances as a figure: {printable(picture)}")
    print(f"The embeddings: {printable(out)}   ({seconds:.0f} s)\n")
    print("Your own images: task2vec embed FOLDER, task2vec recommend FOLDER")


def _tabulate(embeddings: "Sequence[Embedding]", distances: Any) -> list[dict[str, Any]]:
    rows = []
    for number, embedding in enumerate(embeddings):
        others = [other for other in range(len(embeddings)) if other != number]
        near = min(others, key=lambda other: distances[number][other])
        counts, head = embedding.provenance["counts"], embedding.provenance["head"]
        row = {"task": embedding.task, "images": counts["images"], "classes": counts["classes"]}
        row |= {"cv_error": head["cv_error"], "norm": float(embedding.norm())}
        rows.append(row | {"nearest": embeddings[near].task, "distance": float(distances[number][near])})
    return rows


def _print_table(rows: list[dict[str, Any]], seconds: float) -> None:
    table = [
        {"task": row["task"], "images": row["images"], "classes": row["classes"]}
        | {"error": format_percent(row["cv_error"]), "norm": f"{row['norm']:.3g}"}
        | {"nearest (distance)": f"{row['nearest']} ({row['distance']:.2f})"}
        for row in rows
    ]
    output.print_table(table, text=("task", "nearest (distance)"), drop=("images", "classes"))
    output.print_text(
        "Two tasks are near (a small distance) if the same filters of the probe matter for both. The norm is how much "
        "they matter: little for easy tasks, much for hard ones, and almost nothing where nothing can be learned, as "
        f"from random labels.   ({seconds:.0f} s)"
    )
    print(flush=True)


def _draw(distances: Any, tasks: "Sequence[Task]", out: Path) -> str | None:
    """The path of the figure, or nothing but a hint where matplotlib is missing."""
    from task2vec.plots import draw_matrix

    thumbnails = [[task.images.load(index) for index in (0, 1)] for task in tasks]
    names = [task.name for task in tasks]
    try:
        return str(draw_matrix(distances, names, out=out / "distances.png", thumbnails=thumbnails)[0])
    except MissingExtraError as error:
        output.say(f"no figure: {error}")
        return None


def _recommend(task: "Task") -> Any:
    """The recommended model for a task; it is embedded like the tasks that errors are known for."""
    import task2vec
    from task2vec.select import choose_space, image_size

    output.say(f"choosing a model for '{task.name}' ...")
    probe = task2vec.load_probe(size=image_size(choose_space()))
    advice = task2vec.recommend(task2vec.embed(task, probe, settings=task2vec.EmbedSettings(max_samples=SAMPLES)))
    if not output.wants_json():
        first = next(row for row in advice.rows if row.model == advice.choice)
        output.print_text(f"Which of {len(advice)} pretrained models suits '{advice.task}'? {advice.verdict}")
        print(f"\n    {printable(first.load)}\n")
    return advice
