"""`task2vec demo`: eight small tasks, embedded offline and compared, and a model recommended for one of them."""

from pathlib import Path
from typing import Any

import task2vec
from task2vec.cli import options, output
from task2vec.errors import MissingExtraError
from task2vec.progress import show_progress
from task2vec.text import printable

# Small images and few gradients: a demonstration, not a measurement.
SIZE, IMAGES, SAMPLES = 64, 60, 20
# The task that a model is recommended for: the only one of photographs.
RECOMMENDED = "photos"


def demo(out: options.Out = Path("task2vec-demo")) -> None:
    """Embed eight small tasks offline and compare them.

    Prints how hard each task is and which one is nearest, draws their distances, writes the embeddings, and recommends
    a pretrained model for one of them.
    """
    import torch

    from task2vec.cli.inputs import import_networks
    from task2vec.plots import draw_matrix, make_folder

    make_folder(out)
    import_networks()
    torch.set_num_threads(1)  # images this small keep several threads busy waiting for one another
    output.say("creating eight small tasks and loading the probe ...")
    tasks = task2vec.sample_tasks(images_per_task=IMAGES)
    probe, settings = task2vec.load_probe(size=SIZE), task2vec.EmbedSettings(max_samples=SAMPLES)
    embeddings = []
    with show_progress(output.is_watched()) as report:
        step = report("embedding", len(tasks))
        for task in tasks:
            embeddings.append(task2vec.embed(task, probe, settings=settings))
            step(1)
    distances = task2vec.distance.pairwise(embeddings)
    rows: list[dict[str, Any]] = []
    for embedding in embeddings:
        counts, ((near, distance),) = embedding.provenance["counts"], distances.nearest(embedding.task, 1)
        row = {"task": embedding.task, "images": counts["images"], "classes": counts["classes"]}
        row |= {"cv_error": embedding.provenance["head"]["cv_error"], "norm": float(embedding.norm())}
        rows.append(row | {"nearest": near, "distance": distance})
    if not output.wants_json():
        _print_tasks(rows)
    for embedding in embeddings:
        embedding.save(out / f"{embedding.task.replace(' ', '-')}.t2v.safetensors")
    thumbnails = [[task.images.load(index) for index in (0, 1)] for task in tasks]
    names, picture = [task.name for task in tasks], None
    try:
        picture = draw_matrix(distances.values, names, out=out / "distances.png", thumbnails=thumbnails)[0]
    except MissingExtraError as error:
        output.say(f"no figure: {error}")
    advice = _recommend(next(task for task in tasks if task.name == RECOMMENDED))
    document = {"tasks": rows, "names": names, "distances": distances.values, "picture": picture, "folder": out}
    document |= {"recommendation": advice.to_dict(), "probe": probe.name, "seconds": output.count_seconds()}
    if output.print_json(document):
        return
    first = next(row for row in advice.rows if row.model == advice.choice)
    output.print_text(f"Which of {len(advice)} pretrained models suits '{advice.task}'? {advice.verdict}")
    print(f"\n    {printable(first.load)}\n")
    if picture:
        print(f"The distances as a figure: {printable(picture)}")
    print(f"The embeddings: {printable(out)}   ({document['seconds']:.0f} s)\n")
    print("Your own images: task2vec embed FOLDER, task2vec recommend FOLDER")


def _print_tasks(rows: list[dict[str, Any]]) -> None:
    table = [row | {"near": f"{row['nearest']} ({row['distance']:.2f})"} for row in rows]
    columns = "task, images, classes, error=cv_error, norm, nearest (distance)=near"
    output.print_table(table, columns, drop="images, classes")
    output.print_text(
        "Two tasks are near (a small distance) if the same filters of the probe matter for both. The norm measures how "
        "much they matter: little for easy tasks, more for hard ones. Coin flips are the photos with random labels: "
        f"an error at chance, and harder to memorise than the true ones.   ({output.count_seconds():.0f} s)"
    )
    print(flush=True)


def _recommend(task: "task2vec.Task") -> "task2vec.Recommendation":
    """The recommended model for a task; it is embedded like the tasks that errors are known for."""
    from task2vec.select import choose_space, image_size

    output.say(f"choosing a model for '{task.name}' ...")
    probe = task2vec.load_probe(size=image_size(choose_space()))
    return task2vec.recommend(task2vec.embed(task, probe, settings=task2vec.EmbedSettings(max_samples=SAMPLES)))
