"""The batches of a collection become embeddings, each with its twin."""

from task2vec.embedding.many import embed_many
from task2vec.embedding.settings import EmbedSettings
from task2vec.embedding.value import Embedding
from task2vec.engine import Engine
from task2vec.probe import Probe
from task2vec.tasks import Task, draw_batches


def embed_batches(
    task: Task,
    probe: Probe | None = None,
    *,
    batches: int | None = None,
    classes: int | None = 5,
    images: int = 10,
    seed: int = 0,
    settings: EmbedSettings = EmbedSettings(),
    device: str | None = None,
    workers: int | None = None,
    engine: Engine | str | None = None,
    progress: bool = False,
) -> tuple[list[Embedding], list[Embedding]]:
    """Embeddings of random batches of a task, and of their twins: what `distance.diversity` takes.

    Args:
        task: the collection.
        probe: what `load_probe` gives.
        batches: how many; None takes as many as there are images for, 20 at most.
        classes: how many of its classes are in each batch; None takes all.
        images: of each class in a batch, and as many again in its twin.
        seed: of the draw of batches.
        settings: how each is embedded, see `EmbedSettings`.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        workers: threads that decode images; None takes one per core.
        engine: who computes, see `embed_many`.
        progress: show progress bars on standard error.

    Raises:
        Task2VecError: A batch could not be embedded; a mean without it would be that of another collection.

    Example:
        >>> from task2vec import distance, load_probe, sample_tasks
        >>> digits = sample_tasks(images_per_task=120)[0]
        >>> small = EmbedSettings(images=6, l2=0.01)
        >>> batches, twins = embed_batches(digits, load_probe(size=32), classes=2, images=2, batches=4, settings=small)
        >>> distance.diversity(batches, twins).batches
        4
    """
    drawn = draw_batches(task, batches, classes=classes, images=images, seed=seed)
    tasks = [one for pair in drawn for one in pair]
    found: dict[int, Embedding] = {}
    how = {"device": device, "workers": workers, "engine": engine, "progress": progress}
    for result in embed_many(tasks, probe, settings=settings, **how):
        if result.embedding is None:
            raise result.error or AssertionError("neither an embedding nor an error")
        found[result.number] = result.embedding
    ordered = [found[number] for number in range(len(tasks))]
    return ordered[::2], ordered[1::2]
