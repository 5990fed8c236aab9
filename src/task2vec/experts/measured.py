"""A meta-task that was measured: tasks, experts, the error of each on each, and all that choosing an expert can go by.

It is one safetensors file: arrays, and a story beside them. One comes with the package (`bundled_metatask`), so that
every claim about choosing experts can be checked in seconds, without images, weights or a GPU.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from task2vec.embedding import Embedding
from task2vec.embedding.embedding import hash_content
from task2vec.errors import DataError, UsageError
from task2vec.experts.packing import pack, tell_embeddings, unpack
from task2vec.storage import write_whole

SCHEMA = 1
BUNDLE = "metatask.safetensors"
_LARGEST = 1 << 28
_ARRAYS = ("errors", "low", "high", "shares_images", "shares_labels")
_BY_ROW = ("embeddings", "domains", "trivials", "norms")


@dataclass(frozen=True)
class MeasuredTask:
    """A task of a measured meta-task.

    Attributes:
        name: no two have the same.
        family: tasks of one family make up one comparison.
        dataset: that its images are of.
        fingerprint: of images and labels.
        images: how many.
        classes: how many.
        question: what is asked about its images.
    """

    name: str
    family: str
    dataset: str
    fingerprint: str
    images: int
    classes: int
    question: str = ""


@dataclass(frozen=True)
class MeasuredExpert:
    """An expert of a measured meta-task.

    Attributes:
        name: no two have the same.
        kind: "generic", "network" (of an unknown task), or what it was trained on.
        network: its architecture.
        lesson: name of the task that it was trained on, if it was.
        lesson_fingerprint: of that.
        seed: of its training.
        parameters: how many weights it has.
        cost: of one image, in billions of multiplications.
        is_repeat: whether it is another one trained a second time, to tell the noise.
    """

    name: str
    kind: str
    network: str
    lesson: str | None = None
    lesson_fingerprint: str | None = None
    seed: int = 0
    parameters: int | None = None
    cost: float | None = None
    is_repeat: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class MeasuredMetaTask:
    """Tasks, experts and errors.

    Attributes:
        name: what to call it.
        tasks: rows of all arrays.
        experts: columns of all arrays.
        protocols: how errors were measured.
        seeds: of the splits.
        errors: (tasks, experts, protocols, seeds) test errors; NaN where there is none.
        low: lower ends of their confidence intervals.
        high: upper ends.
        shares_images: (tasks, experts) the part of a task's images that the expert was trained on.
        shares_labels: (tasks, experts) whether the expert was trained on labels of the task.
        scores: (tasks, experts, protocols) transferability scores by name, of the training images of the first seed:
            of the errors, only those of that seed are on images that the scores have not seen.
        embeddings: of the tasks in their order, then of the lessons, by probe and method ("resnet34 robust"); of all
            their images, those that the errors were measured on included.
        domains: (tasks and lessons, features) mean features of their images, by probe.
        lessons: what experts were taught, where that is none of the tasks.
        distances: (tasks and lessons, the same) symmetric distances, by probe and method; of more than have embeddings
            here, for a table of distances is small.
        trivials: (tasks and lessons) symmetric distances from their own trivial embeddings, by probe and method.
        norms: (tasks and lessons) of the embeddings, by probe and method.
        halves: (tasks, experts, protocols, seeds, 2) errors on two disjoint halves of the test images, the same images
            for all experts and seeds: an expert can be chosen on one and measured on the other. None if not known.
        story: where it comes from, and what it cost.
    """

    name: str
    tasks: tuple[MeasuredTask, ...]
    experts: tuple[MeasuredExpert, ...]
    protocols: tuple[str, ...]
    seeds: tuple[int, ...]
    errors: np.ndarray
    low: np.ndarray
    high: np.ndarray
    shares_images: np.ndarray
    shares_labels: np.ndarray
    scores: Mapping[str, np.ndarray] = field(default_factory=dict)
    embeddings: Mapping[str, Sequence[Embedding]] = field(default_factory=dict)
    domains: Mapping[str, np.ndarray] = field(default_factory=dict)
    lessons: tuple[MeasuredTask, ...] = ()
    distances: Mapping[str, np.ndarray] = field(default_factory=dict)
    trivials: Mapping[str, np.ndarray] = field(default_factory=dict)
    norms: Mapping[str, np.ndarray] = field(default_factory=dict)
    halves: np.ndarray | None = None
    story: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        """Refuse arrays of other shapes than the names say."""
        cells = (len(self.tasks), len(self.experts))
        whole = (*cells, len(self.protocols), len(self.seeds))
        shapes = {"errors": whole, "low": whole, "high": whole, "shares_images": cells, "shares_labels": cells}
        wrong = [name for name, shape in shapes.items() if np.shape(getattr(self, name)) != shape]
        wrong += [name for name, scores in self.scores.items() if np.shape(scores) != whole[:3]]
        rows = len(self.tasks) + len(self.lessons)
        wrong += [name for kind in _BY_ROW for name, each in getattr(self, kind).items() if len(each) != rows]
        wrong += [name for name, each in self.distances.items() if np.shape(each) != (rows, rows)]
        wrong += ["halves"] if self.halves is not None and np.shape(self.halves) != (*whole, 2) else []
        if wrong:
            raise DataError(
                f"'{wrong[0]}' of the meta-task '{self.name}' does not have an entry for each of its "
                f"{len(self.tasks)} tasks and {len(self.experts)} experts, so rows would be taken for others."
            )
        finite = self.errors[np.isfinite(self.errors)]
        if finite.size and (finite.min() < 0 or finite.max() > 1):
            raise DataError(
                f"an error of the meta-task '{self.name}' is not between 0 and 1. Divide percentages by 100."
            )

    def __repr__(self) -> str:
        """The meta-task in one line."""
        shape = f"{len(self.tasks)} tasks, {len(self.experts)} experts, {len(self.protocols)} protocols"
        return f"MeasuredMetaTask({self.name}, {shape}, {len(self.seeds)} seeds)"

    @property
    def is_candidate(self) -> np.ndarray:
        """(tasks, experts) whether an expert may be chosen for a task: it saw neither its images nor its labels.

        What a network was pretrained on is not known here, and counts for nothing. Repeats are no candidates.
        """
        is_repeat = np.array([expert.is_repeat for expert in self.experts], dtype=bool)
        return (self.shares_images == 0) & ~self.shares_labels & ~is_repeat

    def only(
        self, *, family: str | None = None, without: str | None = None, repeats: bool = False
    ) -> "MeasuredMetaTask":
        """The tasks of one family, or those that are not of a dataset; by default without repeats among the experts.

        Example:
            >>> bundled_metatask().only(family="taxa")
            MeasuredMetaTask(...)
        """
        rows = [
            i
            for i, task in enumerate(self.tasks)
            if (family is None or task.family == family) and task.dataset != without
        ]
        if not rows:
            known = ", ".join(dict.fromkeys(task.family for task in self.tasks))
            raise UsageError(f"the meta-task '{self.name}' has no family '{family}'. Choose one of: {known}")
        columns = [j for j, expert in enumerate(self.experts) if repeats or not expert.is_repeat]
        cut = np.ix_(rows, columns)
        all_rows = [*rows, *range(len(self.tasks), len(self.tasks) + len(self.lessons))]
        return MeasuredMetaTask(
            self.name,
            tuple(self.tasks[i] for i in rows),
            tuple(self.experts[j] for j in columns),
            self.protocols,
            self.seeds,
            *(np.asarray(getattr(self, name))[cut] for name in _ARRAYS),
            scores={name: scores[cut] for name, scores in self.scores.items()},
            embeddings={name: [each[i] for i in all_rows] for name, each in self.embeddings.items()},
            domains={name: each[all_rows] for name, each in self.domains.items()},
            lessons=self.lessons,
            distances={name: each[np.ix_(all_rows, all_rows)] for name, each in self.distances.items()},
            trivials={name: each[all_rows] for name, each in self.trivials.items()},
            norms={name: each[all_rows] for name, each in self.norms.items()},
            halves=None if self.halves is None else self.halves[cut],
            story=self.story,
        )

    def save(self, path: str | Path) -> Path:
        """Writes it to one file, whole or not at all; Fishers are kept to a part in a thousand."""
        arrays: dict[str, np.ndarray] = {"errors": self.errors.astype(np.float32)}
        arrays |= {name: getattr(self, name).astype(np.float16) for name in ("low", "high", "shares_images")}
        arrays["shares_labels"] = self.shares_labels.astype(np.uint8)
        arrays |= {f"scores.{name}": scores.astype(np.float32) for name, scores in self.scores.items()}
        arrays |= {f"domains.{name}": each.astype(np.float16) for name, each in self.domains.items()}
        for kind in ("distances", "trivials", "norms"):
            arrays |= {f"{kind}.{name}": each.astype(np.float32) for name, each in getattr(self, kind).items()}
        if self.halves is not None:
            arrays["halves"] = self.halves.astype(np.float16)
        told = {}
        for name, each in self.embeddings.items():
            arrays |= {f"embeddings.{name}.{part}": values for part, values in pack(each).items()}
            told[name] = tell_embeddings(each)
        story = {
            "schema": SCHEMA,
            "name": self.name,
            "tasks": [asdict(task) for task in self.tasks],
            "experts": [asdict(expert) for expert in self.experts],
            "lessons": [asdict(task) for task in self.lessons],
            "protocols": list(self.protocols),
            "seeds": list(self.seeds),
            "embeddings": told,
            "story": dict(self.story),
        }
        text = json.dumps(story, sort_keys=True, allow_nan=False, separators=(",", ":"))
        envelope = json.dumps({"sha256": hash_content(text, arrays), "story": text})
        write_whole(Path(path), save_arrays(arrays, metadata={"task2vec": envelope}))
        return Path(path)


def load_metatask(path: str | Path) -> MeasuredMetaTask:
    """The meta-task in a file that `save` wrote, after checking that nothing has changed since."""
    path = Path(path)
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"{path.stat().st_size} bytes")
        return _decode(path.read_bytes())
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"'{path}' is not a measured meta-task, or it is damaged ({type(error).__name__}: {error}). Nothing in it "
            "can be trusted. Take a good copy."
        ) from error


@cache
def bundled_metatask() -> MeasuredMetaTask:
    """The meta-task that comes with the package: what it is and how it was measured stands in docs/results/metatask.

    Example:
        >>> metatask = bundled_metatask()
        >>> len(metatask.tasks) >= 43, len(metatask.experts) >= 36
        (True, True)
    """
    with resources.as_file(resources.files("task2vec.experts") / "data" / BUNDLE) as path:
        return load_metatask(path)


def _decode(content: bytes) -> MeasuredMetaTask:
    arrays = load_arrays(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    envelope = json.loads(header["__metadata__"]["task2vec"])
    story = json.loads(envelope["story"])
    if story["schema"] != SCHEMA or envelope["sha256"] != hash_content(envelope["story"], arrays):
        raise ValueError(f"schema {story['schema']}, or its SHA-256 does not fit")
    named = {
        kind: {
            name.removeprefix(f"{kind}."): values.astype(np.float64)
            for name, values in arrays.items()
            if name.startswith(f"{kind}.")
        }
        for kind in ("scores", "domains", "distances", "trivials", "norms")
    }
    return MeasuredMetaTask(
        story["name"],
        tuple(MeasuredTask(**task) for task in story["tasks"]),
        tuple(MeasuredExpert(**expert) for expert in story["experts"]),
        tuple(story["protocols"]),
        tuple(story["seeds"]),
        errors=arrays["errors"].astype(np.float64),
        low=arrays["low"].astype(np.float64),
        high=arrays["high"].astype(np.float64),
        shares_images=arrays["shares_images"].astype(np.float64),
        shares_labels=arrays["shares_labels"].astype(bool),
        embeddings={name: unpack(name, told, arrays) for name, told in story["embeddings"].items()},
        lessons=tuple(MeasuredTask(**task) for task in story.get("lessons", ())),
        halves=arrays["halves"].astype(np.float64) if "halves" in arrays else None,
        **named,
        story=story["story"],
    )
