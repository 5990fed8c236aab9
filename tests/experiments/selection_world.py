"""A small meta-task that all about choosing can be made of: two families, three datasets, experts of known lessons."""

from functools import cache

import numpy as np

from task2vec.embedding import Embedding
from task2vec.experts.metatask import MetaTask, ModelInfo, TaskInfo
from task2vec.probe import FilterLayer

LAYERS = (FilterLayer("a", "convolution", 12, 9, 0.1), FilterLayer("b", "linear", 8, 4, 0.2))
FILTERS = 20
TAXA, LABELS = 12, 5
PROTOCOLS = ("linear-1, train 5, logistic, usual", "linear-1, train half, logistic, usual")


def make_embeddings(probe, method, *, seed=0):
    """Tasks of one dataset are alike; every task is harder than the one before."""
    rng = np.random.default_rng([seed, 7])
    centres = rng.normal(size=(3, FILTERS))
    found = []
    for number in range(TAXA + LABELS):
        kind = 2 if number >= TAXA else number % 2
        fisher = np.exp(centres[kind] + 0.3 * rng.normal(size=FILTERS) + 0.1 * number)
        story = {"task_fingerprint": f"f{number}", "probe_fingerprint": probe, "settings": {"method": method}}
        prior = np.repeat([1e-3, 2e-3], [12, 8])
        found.append(Embedding(name_task(number), probe, fisher, np.zeros(FILTERS), prior, LAYERS, story))
    return found


def name_task(number):
    return f"cub_bird{number}" if number < TAXA else f"birds: question {number}"


@cache
def make_world(*, has_curves=True):
    """Errors fall with the nearness of an expert's lesson; experts have seen the task that they were taught."""
    rng = np.random.default_rng(3)
    tasks = tuple(
        TaskInfo(
            name_task(number), "taxa" if number < TAXA else "labels", "birds" if number >= TAXA else "ab"[number % 2],
            f"f{number}", 40 + 10 * number, 2 + number % 3,
        )
        for number in range(TAXA + LABELS)
    )  # fmt: skip
    lessons = [0, 1, 4, 5, 13, 14]
    experts = (
        ModelInfo("generic resnet34", "generic", "resnet34", parameters=21),
        ModelInfo("big network", "network", "big", parameters=99),
        *(
            ModelInfo(f"expert {name_task(n)}", "taxon", "resnet34", name_task(n), f"f{n}", parameters=21)
            for n in lessons
        ),
        ModelInfo("again", "taxon", "resnet34", name_task(0), "f0", parameters=21, is_repeat=True),
    )
    shape = (len(tasks), len(experts), 2, 3)
    base = 0.15 + 0.02 * np.arange(len(tasks))[:, None, None, None] + np.array([0.08, 0.0])[:, None]
    gain = np.zeros(shape[:2])
    for column, lesson in enumerate(lessons, start=2):
        gain[:, column] = [0.06 if tasks[lesson].dataset == task.dataset else -0.04 for task in tasks]
    errors = base - gain[:, :, None, None] + 0.015 * rng.normal(size=shape)
    errors = np.clip(errors, 0.01, 0.9)
    shares = np.zeros(shape[:2])
    for column, lesson in [*enumerate(lessons, start=2), (len(experts) - 1, 0)]:
        shares[lesson, column] = 1.0
    points = [
        {"task": task, "expert": expert, "way": way, "train": train, "images": images, "seed": seed,
         "error": float(0.5 - 0.1 * place + 0.01 * seed - 0.02 * column + (0.03 if way == "tuned" else 0))}
        for task in (name_task(2), name_task(3)) for way in ("linear", "tuned")
        for column, expert in enumerate(("generic resnet34", f"expert {name_task(0)}", f"expert {name_task(1)}"))
        for place, (train, images) in enumerate((("2", 4), ("5", 10), ("half", 30))) for seed in (0, 1)
    ]  # fmt: skip
    return MetaTask(
        "small", tasks, experts, PROTOCOLS, (0, 1, 2), errors, errors * 0.9, np.minimum(errors * 1.1, 1), shares,
        np.zeros(shape[:2], dtype=bool),
        scores={"logme": rng.normal(size=shape[:3])},
        embeddings={"other direct": make_embeddings("other", "direct", seed=1),
                    "resnet34 robust": make_embeddings("resnet34", "robust")},
        domains={"resnet34": rng.random((len(tasks), 6))},
        story={"curves": points} if has_curves else {},
    )  # fmt: skip
