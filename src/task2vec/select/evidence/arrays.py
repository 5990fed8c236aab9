"""What is known when an expert is to be chosen: errors of experts on other tasks, and how near those tasks are.

`Evidence` is what strategies are fitted on, a `Question` is a task that they are asked about, an `Answer` is what they
say. All three are plain arrays: where they come from (our meta-task, a library, two CSV files) stands in `sources`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from task2vec.errors import DataError

# Names of the distances that strategies know; a source has those that it can tell.
SYMMETRIC, DOMAIN, TAXONOMIC = "symmetric", "domain", "taxonomic"


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """Tasks, experts, errors, and all that tells one from the other. NaN stands for what is not known.

    Attributes:
        tasks: names of the T tasks.
        experts: names of the E experts.
        errors: (T, E, S) test errors by seed of the split.
        is_candidate: (T, E) whether an expert may be chosen for a task: it saw neither its images nor its labels.
        groups: (T) the dataset of each task.
        lessons: (E) what each expert was taught, if that is known.
        lesson_groups: (E) the dataset of that.
        generic: number of the generic expert, if there is one.
        parameters: (E) how many weights each expert has.
        images: (T) number of images.
        classes: (T) number of classes.
        distances: (T, T) between tasks, by kind: "symmetric", "domain", "taxonomic".
        to_lessons: (T, E) between a task and what an expert was taught, by kind.
        simplicity: (E) symmetric distance of an expert's lesson from the trivial task: of a simple one it is small.
        scores: (T, E) transferability scores, larger for experts that suit; by name.
        vectors: (T, F) embeddings of the tasks, positive.
        lesson_vectors: (E, F) embeddings of the lessons; rows of NaN where there is none.
        lesson_trivials: (E, F) trivial embeddings beside them, what a task without information would have.
        norms: (T) L1 norms of the tasks' Fishers.
        halves: (T, E, 2) errors on two disjoint halves of the test images, so that an optimum can be chosen on one and
            measured on the other.
    """

    tasks: tuple[str, ...]
    experts: tuple[str, ...]
    errors: np.ndarray
    is_candidate: np.ndarray
    groups: tuple[str, ...]
    lessons: tuple[str | None, ...]
    lesson_groups: tuple[str | None, ...]
    generic: int | None = None
    parameters: np.ndarray | None = None
    images: np.ndarray | None = None
    classes: np.ndarray | None = None
    distances: Mapping[str, np.ndarray] = field(default_factory=dict)
    to_lessons: Mapping[str, np.ndarray] = field(default_factory=dict)
    simplicity: np.ndarray | None = None
    scores: Mapping[str, np.ndarray] = field(default_factory=dict)
    vectors: np.ndarray | None = None
    lesson_vectors: np.ndarray | None = None
    lesson_trivials: np.ndarray | None = None
    norms: np.ndarray | None = None
    halves: np.ndarray | None = None

    def __post_init__(self):
        """Refuse arrays of other shapes than the names say, names that stand twice, and errors that are no numbers."""
        tasks, experts = len(self.tasks), len(self.experts)
        axes = {"T": tasks, "E": experts}
        for name, shape in _SHAPES.items():
            value = getattr(self, name)
            for each in value.values() if isinstance(value, Mapping) else [] if value is None else [value]:
                wanted, given = tuple(axes[axis] for axis in shape), np.shape(each)[: len(shape)]
                if given != wanted:
                    raise DataError(
                        f"'{name}' of the evidence has the shape {np.shape(each)} where {tasks} tasks and {experts} "
                        f"experts ask for {wanted}, so errors would be taken for those of others. Check its tables."
                    )
        for kind, names in (("task", self.tasks), ("expert", self.experts)):
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise DataError(
                    f"the {kind} '{twice}' stands {names.count(twice)} times in the evidence, so nobody could tell "
                    "whose errors are meant. Give each its own name, or keep one of them."
                )
        if np.isinf(self.errors).any():
            task, expert = (int(one) for one in np.argwhere(np.isinf(self.errors))[0][:2])
            raise DataError(
                f"the error of '{self.tasks[task]}' on '{self.experts[expert]}' is infinite, which no share of wrong "
                "images is, so every mean with it would be. Give a number from 0 to 1, or NaN where it is not known."
            )

    def __repr__(self) -> str:
        """The evidence in one line."""
        known = 100 * np.isfinite(self.mean).mean() if self.mean.size else 0
        return f"Evidence({len(self.tasks)} tasks, {len(self.experts)} experts, {known:.0f} % of the errors known)"

    @property
    def mean(self) -> np.ndarray:
        """(T, E) errors, averaged over the seeds that are known; NaN where none is."""
        known = np.isfinite(self.errors)
        sums, counts = np.where(known, self.errors, 0).sum(2), known.sum(2)
        return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)

    def only(self, rows: Sequence[int] | np.ndarray, columns: Sequence[int] | np.ndarray | None = None) -> "Evidence":
        """Some of the tasks, and some of the experts."""
        rows = np.asarray(rows, dtype=int)
        picked = np.arange(len(self.experts)) if columns is None else np.asarray(columns, dtype=int)
        cuts = {"T": rows, "E": picked}

        def cut(name: str, value: np.ndarray) -> np.ndarray:
            for axis, letter in enumerate(_SHAPES[name]):
                value = np.take(value, cuts[letter], axis=axis)
            return value

        changed = {}
        for name in _SHAPES:
            value = getattr(self, name)
            if isinstance(value, Mapping):
                changed[name] = {kind: cut(name, each) for kind, each in value.items()}
            elif isinstance(value, tuple):
                changed[name] = tuple(value[number] for number in cuts[_SHAPES[name]])
            elif value is not None:
                changed[name] = cut(name, value)
        places = {number: place for place, number in enumerate(picked.tolist())}
        return replace(self, **changed, generic=None if self.generic is None else places.get(self.generic))

    def ask(self, row: int) -> "Question":
        """What is known of one of the tasks, its errors apart: to ask strategies that were fitted on the others."""
        return Question(
            self.tasks[row],
            self.is_candidate[row],
            group=self.groups[row],
            distances={kind: each[row] for kind, each in self.distances.items()},
            to_lessons={kind: each[row] for kind, each in self.to_lessons.items()},
            scores={name: each[row] for name, each in self.scores.items()},
            vector=None if self.vectors is None else self.vectors[row],
            norm=None if self.norms is None else float(self.norms[row]),
            images=None if self.images is None else int(self.images[row]),
            classes=None if self.classes is None else int(self.classes[row]),
        )


_SHAPES = {
    "tasks": "T",
    "experts": "E",
    "errors": "TE",
    "is_candidate": "TE",
    "groups": "T",
    "lessons": "E",
    "lesson_groups": "E",
    "parameters": "E",
    "images": "T",
    "classes": "T",
    "distances": "TT",
    "to_lessons": "TE",
    "simplicity": "E",
    "scores": "TE",
    "vectors": "T",
    "lesson_vectors": "E",
    "lesson_trivials": "E",
    "norms": "T",
    "halves": "TE",
}


def tell_apart(names: Sequence[str]) -> tuple[str, ...]:
    """The names with a number behind those that were there before: libraries may have several tasks of one name.

    Example:
        >>> tell_apart(["birds", "cars", "birds"])
        ('birds', 'cars', 'birds (2)')
    """
    found: dict[str, None] = {}
    for name in names:
        own, number = name, 2
        while own in found:
            own, number = f"{name} ({number})", number + 1
        found[own] = None
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Question:
    """A task that an expert is to be chosen for. Nothing of its errors is in it.

    Attributes:
        name: of the task.
        is_candidate: (E) who may be chosen.
        group: its dataset, where that is known.
        distances: (T) from the tasks of the evidence, by kind.
        to_lessons: (E) from the experts' lessons, by kind.
        scores: (E) transferability scores by name.
        vector: (F) its embedding.
        norm: L1 norm of its Fisher.
        images: how many it has.
        classes: how many it has.
    """

    name: str
    is_candidate: np.ndarray
    group: str | None = None
    distances: Mapping[str, np.ndarray] = field(default_factory=dict)
    to_lessons: Mapping[str, np.ndarray] = field(default_factory=dict)
    scores: Mapping[str, np.ndarray] = field(default_factory=dict)
    vector: np.ndarray | None = None
    norm: float | None = None
    images: int | None = None
    classes: int | None = None

    def among(self, rows: Sequence[int] | np.ndarray) -> "Question":
        """The same question where only some tasks of the evidence are known."""
        return replace(self, distances={kind: each[np.asarray(rows)] for kind, each in self.distances.items()})


@dataclass(frozen=True, eq=False)
class Answer:
    """How a strategy ranks the experts for a task.

    Attributes:
        badness: (E) smaller for better experts; NaN for those that it can say nothing of, which come last.
        errors: (E) predicted errors, from strategies that predict them.
        low: (E) lower ends of intervals that should hold the error in nine of ten cases.
        high: (E) upper ends.
        chances: (E) of being the best of the candidates.
        fallback: (E) smaller for better experts: orders those that `badness` cannot tell apart or says nothing of.
        static: number of the candidate that is best on average, from strategies that compare their choice with it.
        sureness: the chance that the one with the smallest predicted error has a smaller error than that one; 0.5 if
            it is that one.
        abstains: whether the evidence does not beat the static choice, which then is ranked first.
    """

    badness: np.ndarray
    errors: np.ndarray | None = None
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    chances: np.ndarray | None = None
    fallback: np.ndarray | None = None
    static: int | None = None
    sureness: float | None = None
    abstains: bool | None = None

    def order(self, is_candidate: np.ndarray) -> np.ndarray:
        """Numbers of the candidates, the best first; of equals the one that is listed first."""
        places = self.places()
        return np.array([number for number in np.argsort(places, kind="stable") if is_candidate[number]], dtype=int)

    def places(self) -> np.ndarray:
        """(E) 0 for the best of all, then 1, ...: experts that nothing tells apart share a place."""
        keys = [self.badness] if self.fallback is None else [self.badness, self.fallback]
        table = np.stack([np.where(np.isnan(key), np.inf, key) for key in keys], axis=1)
        return np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
