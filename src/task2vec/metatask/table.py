"""Arrays over tasks and models, and how some of both are taken: what the stored table and a view of it share."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.metatask.info import ModelInfo, TaskInfo


def array_field(axes: str, file_type: str | None = None) -> dict[str, Any]:
    """How a field holds an array, or several by name: its axes, and its type in a file if it is written as it is.

    Axes are T tasks, M models, P protocols, S seeds, H halves of the test images, N rows, and F anything.
    """
    return {"axes": axes, "file_type": file_type}


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """T tasks and M models, and arrays over both; N rows are the tasks, then the source tasks.

    Attributes:
        name: its name.
        tasks: rows of all arrays.
        models: columns of all arrays.
        shares_images: (T, M) share of the task's images that the model was trained on.
        shares_labels: (T, M) whether the model was trained on labels of the task.
        source_tasks: what models were fine-tuned on, where that is none of the tasks.
        distances: (N, N) by name.
    """

    name: str
    tasks: tuple[TaskInfo, ...]
    models: tuple[ModelInfo, ...]
    shares_images: np.ndarray = field(kw_only=True, metadata=array_field("TM", "f2"))
    shares_labels: np.ndarray = field(kw_only=True, metadata=array_field("TM", "u1"))
    source_tasks: tuple[TaskInfo, ...] = field(default=(), kw_only=True)
    distances: Mapping[str, np.ndarray] = field(default_factory=dict, kw_only=True, metadata=array_field("NN", "f4"))

    def __post_init__(self):
        """Refuse arrays of other shapes, and names that occur twice."""
        sizes = {"T": len(self.tasks), "M": len(self.models), "N": len(self.tasks) + len(self.source_tasks), "H": 2}
        sizes |= {"P": len(getattr(self, "protocols", ())), "S": len(getattr(self, "seeds", ()))}
        for array, key, values in self.list_arrays():
            axes = array.metadata["axes"]
            shape = values.shape if isinstance(values, np.ndarray) else (len(values),)
            expected = tuple(sizes.get(axis, size) for axis, size in zip(axes, shape, strict=False))
            if shape != expected or len(shape) != len(axes):
                raise DataError(
                    f"'{array.name}{f' {key}' if key else ''}' of the meta-task '{self.name}' has the shape {shape}, "
                    f"but its tasks and models need {expected}: rows would be mixed up. Check its tables."
                )
        for kind, infos in (("task", self.tasks), ("model", self.models)):
            (name, count), *_ = Counter(info.name for info in infos).most_common(1) or [("", 0)]
            if count > 1:
                raise DataError(
                    f"the {kind} '{name}' occurs {count} times in the meta-task '{self.name}', so its errors are "
                    "ambiguous. Give each its own name, or keep one of them."
                )

    def list_arrays(self) -> Iterator[tuple[Field, str | None, Any]]:
        """Every array with its field and, if that field holds several, its name there."""
        for array in fields(self):
            value = getattr(self, array.name)
            if "axes" in array.metadata and value is not None:
                for key, values in value.items() if isinstance(value, Mapping) else [(None, value)]:
                    if len(values) or isinstance(values, np.ndarray):
                        yield array, key, values

    def take(self, **numbers: Sequence[int]) -> dict[str, Any]:
        """All arrays at some numbers along their axes, as fields."""

        def pick(values: Any, axes: str) -> Any:
            if isinstance(values, Mapping):
                return {key: pick(value, axes) for key, value in values.items()}
            if not isinstance(values, np.ndarray):  # embeddings, if there are any
                return [values[row] for row in numbers["N"]] if values and "N" in numbers else values
            for position, axis in enumerate(axes):
                values = values.take(np.asarray(numbers[axis], dtype=int), position) if axis in numbers else values
            return values

        arrays = {array.name: array.metadata["axes"] for array in fields(self) if "axes" in array.metadata}
        return {name: pick(getattr(self, name), axes) for name, axes in arrays.items()}

    # --- who may be selected -------------------------------------------------------------------------------------

    @cached_property
    def has_seen(self) -> np.ndarray:
        """(T, M) whether a model was trained on images or labels of the task."""
        return (self.shares_images > 0) | self.shares_labels

    def list_seen(self) -> set[tuple[str, str]]:
        """Fingerprints of tasks, and names of models that were trained on their images or labels."""
        pairs = np.argwhere(self.has_seen)
        return {(self.tasks[row].fingerprint, self.models[column].name) for row, column in pairs}

    @cached_property
    def is_candidate(self) -> np.ndarray:
        """(T, M) whether a model may be selected for a task: it saw neither its images nor its labels.

        What a network was pretrained on is not known here and does not count. Repeats are no candidates.
        """
        return ~self.has_seen & ~np.array([model.is_repeat for model in self.models], dtype=bool)

    @property
    def generic(self) -> int | None:
        """The number of the generic model, if there is one."""
        return next((number for number, model in enumerate(self.models) if model.kind == "generic"), None)

    @property
    def datasets(self) -> tuple[str, ...]:
        """(T) the dataset of each task."""
        return tuple(task.dataset for task in self.tasks)

    # --- source tasks --------------------------------------------------------------------------------------------

    @cached_property
    def source_rows(self) -> np.ndarray:
        """(M) the row of each model's source task among tasks and source tasks, -1 if it is not there."""
        rows = {task.fingerprint: row for row, task in enumerate((*self.tasks, *self.source_tasks)) if task.fingerprint}
        return np.array([rows.get(model.source_fingerprint or "", -1) for model in self.models], dtype=int)

    def pick_sources(self, values: np.ndarray) -> np.ndarray:
        """The rows of (N, ...) values that belong to the models' source tasks; NaN where there is none."""
        if not len(values):
            return np.full((len(self.models), *values.shape[1:]), np.nan)
        picked = values[self.source_rows].astype(np.float64)
        picked[self.source_rows < 0] = np.nan
        return picked

    def between(self, kind: str) -> np.ndarray:
        """(T, T) distances between tasks."""
        count = len(self.tasks)
        return self.distances[kind][:count, :count]

    def to_sources(self, kind: str) -> np.ndarray:
        """(T, M) distances between tasks and the models' source tasks; NaN where not known."""
        return self.pick_sources(self.distances[kind][: len(self.tasks)].T).T

    # --- some of it ----------------------------------------------------------------------------------------------

    def only(self, rows: Iterable[int], models: Iterable[int] | None = None) -> Self:
        """Some of the tasks and models; source tasks of the models stay, also those that were among the tasks."""
        rows = [int(row) for row in rows]
        columns = list(range(len(self.models)) if models is None else map(int, models))
        tasks = (*self.tasks, *self.source_tasks)
        kept = {*range(len(self.tasks), len(tasks)), *self.source_rows[columns].tolist()} - {-1, *rows}
        order = [*rows, *sorted(kept)]
        return replace(
            self,
            tasks=tuple(tasks[row] for row in rows),
            models=tuple(self.models[column] for column in columns),
            source_tasks=tuple(tasks[row] for row in order[len(rows) :]),
            **self.take(T=rows, M=columns, N=order),
        )

    def subset(self, *, family: str | None = None, without: str | None = None, repeats: bool = False) -> Self:
        """The tasks of one family, or those that are not of a dataset; without repeats among the models.

        Example:
            >>> from task2vec.metatask import bundled_metatask
            >>> bundled_metatask().subset(family="taxa")
            MetaTask(...)
        """
        tasks = {row: task for row, task in enumerate(self.tasks) if family in (None, task.family)}
        if not tasks:
            known = ", ".join(dict.fromkeys(task.family for task in self.tasks))
            raise UsageError(
                f"the meta-task '{self.name}' has no tasks of the kind '{family}' (--kind). Choose one of: {known}"
            )
        columns = [column for column, model in enumerate(self.models) if repeats or not model.is_repeat]
        return self.only([row for row, task in tasks.items() if task.dataset != without], columns)


def average_known(values: np.ndarray, axis: int) -> np.ndarray:
    """The means along an axis over what is known; NaN where nothing is."""
    is_known = np.isfinite(values)
    counts, sums = is_known.sum(axis), np.where(is_known, values, 0).sum(axis)
    return np.divide(sums, counts, out=np.full(counts.shape, np.nan), where=counts > 0)
