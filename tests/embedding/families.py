"""Families of tasks on common pictures, and how embeddings are compared number by number."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from task2vec.embedding import Embedding, EmbedSettings, TaskResult, VariationalSettings, embed_many
from task2vec.errors import Task2VecError
from task2vec.tasks import Images, Task
from tests.cases import ask, ask_binary, make_attributes, pictures

FINE = EmbedSettings(max_samples=30, dtype="float64", l2=0.05)
TRAINING = VariationalSettings(epochs=2, head_epochs=1, draws=32, batch=16, rate=0.3, head_rate=0.05)


def classes_family() -> list[Task]:
    """Three, four and two classes on the same pictures, in another order each time."""
    pool, labels = pictures((7, 6, 5))
    order = np.random.default_rng(1).permutation(len(pool))
    return [
        ask(pool, labels, "three"),
        ask([pool[i] for i in order], [i % 4 for i in order.tolist()], "four"),
        ask(pool[::-1], [int(i > 6) for i in range(len(pool))], "two"),
    ]


def attributes_family() -> list[Task]:
    """A multi-label task, and each of its attributes alone."""
    joint = make_attributes(16)
    return [joint, *joint.one_vs_rest()]


def overlapping_family() -> list[Task]:
    """Each shares pictures with the next, and the first none with the last."""
    pool, _ = pictures((24,), seed=2)
    spans = [(0, 12, 2), (6, 18, 3), (12, 24, 2)]
    return [ask(pool[a:b], [i % c for i in range(b - a)], f"from {a} to {b}") for a, b, c in spans]


def disjoint_family() -> list[Task]:
    """Nothing in common."""
    return [ask(pictures((8,), seed=s)[0], [i % c for i in range(8)], f"pool {s}") for s, c in ((3, 2), (4, 3), (5, 2))]


def copies_family() -> list[Task]:
    """One picture twice with one label, three times with two labels, once, and nothing but that picture."""
    pool, _ = pictures((8,), seed=6)
    a, b, *_ = pool
    return [
        ask([a, *pool], [0, *(i % 2 for i in range(8))], "twice"),
        ask([a, b, *pool, a], [0, 1, *(i % 3 for i in range(8)), 2], "thrice"),
        ask(pool, [i // 3 for i in range(8)], "once"),
        ask([a] * 6, [i % 2 for i in range(6)], "alike"),
    ]


FAMILIES = {
    "binary": lambda: ask_binary(4),
    "classes": classes_family,
    "attributes": attributes_family,
    "overlapping": overlapping_family,
    "disjoint": disjoint_family,
    "copies": copies_family,
}


@cache
def make_family(name: str) -> tuple[Task, ...]:
    """The tasks of a family; "mixed" are those of all, shuffled."""
    if name != "mixed":
        return tuple(FAMILIES[name]())
    tasks = [task for family in FAMILIES for task in make_family(family)]
    return tuple(tasks[i] for i in np.random.default_rng(7).permutation(len(tasks)))


def run_many(tasks, probe, *, settings=FINE, **options) -> list[TaskResult]:
    """The results in the order of their tasks, each told once."""
    results = sorted(embed_many(tasks, probe, settings=settings, **options), key=lambda result: result.number)
    assert [result.number for result in results] == list(range(len(tasks)))
    for result, task in zip(results, tasks, strict=True):
        assert result.task == task.name and (result.embedding is None) == isinstance(result.error, Task2VecError)
    return results


def plain_features(task, probe):
    """Normalised images, and the features of one after the other by the network as it is, in float64."""
    images = torch.stack([probe.preprocess(task.images.load(i)) for i in range(len(task))])
    images = probe.preprocess.normalise(images, torch.float64)
    with torch.no_grad():
        features = torch.cat([probe.network.double()(image[None]) for image in images])
    probe.network.float()
    return images, features


def numbers(embedding):
    """All numbers of an embedding, to the bit."""
    arrays = (embedding.fisher, embedding.stderr, embedding.prior, embedding.halves)
    return b"".join(array.tobytes() for array in arrays if array is not None)


def is_close(found: Embedding, wanted: Embedding, *, error: float) -> bool:
    """Whether two embeddings are the same number by number, up to a relative error; what is told of heads as well."""
    if (found.halves is None) != (wanted.halves is None):
        return False
    names = ("fisher", "stderr", "prior") + (("halves",) if found.halves is not None else ())
    pairs = [(getattr(found, name), getattr(wanted, name)) for name in names]
    pairs += [(found.provenance[key], wanted.provenance[key]) for key in ("effective_images", "relative_error")]
    is_same = all(float(np.abs(a - b).sum()) <= error * float(np.abs(b).sum()) for a, b in pairs)
    return is_same and found.task == wanted.task and simplify(found.provenance) == simplify(wanted.provenance)


def simplify(provenance: dict) -> dict:
    """What is told of an embedding beside its numbers, with few digits of losses, which are validated in float32."""
    told = {key: value for key, value in provenance.items() if key not in ("effective_images", "relative_error")}
    told["warnings"] = [text.split(" and ")[0] for text in told["warnings"]]
    story = told.get("variational", {})
    told["variational"] = {key: value if isinstance(value, bool) else f"{value:.2g}" for key, value in story.items()}
    head = dict(told["head"])
    return told | {"head": head | {key: f"{head[key]:.3g}" for key in ("train_loss", "cv_loss")}}


def out_of_memory() -> torch.cuda.OutOfMemoryError:
    """What a GPU says that is full."""
    return torch.cuda.OutOfMemoryError("CUDA out of memory (pretended)")


@dataclass
class Spoiled:
    """Images of which the third cannot be read."""

    images: Images
    error: BaseException
    is_threadsafe: bool = False

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        return self.images.name(index)

    def load(self, index: int):
        if index == 2:
            raise self.error
        return self.images.load(index)
