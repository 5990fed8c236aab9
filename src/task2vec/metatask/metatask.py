"""The stored table of measured errors: tasks, models, all test errors, and everything else that model selection uses.

A `MetaTask` is measured by `error_matrix`, read from a library (`metatask_from_library`), or loaded from a file: one
safetensors file, arrays and a JSON text beside them. One ships with the package (`bundled_metatask`), so that every
claim about model selection can be checked in seconds, without images, weights or a GPU. `MetaTask.select` takes one
protocol and one embedding space: the `View` that the strategies of `task2vec.select` are fitted on.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.embedding import Embedding
from task2vec.embedding.embedding import pack_arrays, unpack_arrays
from task2vec.errors import DataError, UsageError
from task2vec.library import MeasuredError
from task2vec.metatask.info import CellFailure, ModelInfo, TaskInfo
from task2vec.metatask.table import Table, array_field, average_known
from task2vec.metatask.view import DOMAIN, SYMMETRIC, View, measure_all, measure_rows
from task2vec.probe import FilterLayer
from task2vec.storage import write_file, write_rows

SCHEMA = 2
# The record of an error matrix in a library, and its pairs of tasks and models that were trained on them.
RUN, SEEN = "error-matrix", "trivial"
# Ends the key of a protocol where each task comes with test images of its own.
OWN_TEST = "own test set"
MAX_BYTES = 1 << 28
_TEST = re.compile(r", test [0-9a-f]{16}$")
_GROUPS = re.compile(r", groups [0-9a-f]{16}$")
# Provenance of embeddings in the file: what those of a space share, and what each task has.
_OF_SPACE = ("settings", "recipe", "probe_fingerprint", "image_size")
_OF_TASK = ("task_fingerprint", "counts", "head")


@dataclass(frozen=True, eq=False, repr=False)
class MetaTask(Table):
    """T tasks, M models and their errors by P protocols and S seeds; NaN stands for what was not measured.

    N rows of embeddings, distances and norms are the tasks, then the source tasks.

    Attributes:
        protocols: keys of the protocols that errors were measured by.
        seeds: of the splits.
        errors: (T, M, P, S) test errors.
        low: lower ends of their confidence intervals.
        high: upper ends.
        scores: (T, M, P) transferability scores by name, of the training images of the first seed.
        embeddings: (N) by space, which is probe and method ("resnet34 robust"); of all images, test images included.
        domains: (N, features) mean features of the images, by probe.
        distances: (N, N) by space.
        trivial_distances: (N) symmetric distances from their own trivial embeddings, by space.
        norms: (N) L1 norms of the Fisher, by space.
        halves: (T, M, P, S, 2) errors on two disjoint halves of the test images.
        failures: cells that failed in the run that measured it.
        info: its origin, and the cost of measuring it.
    """

    protocols: tuple[str, ...]
    seeds: tuple[int, ...]
    errors: np.ndarray = field(metadata=array_field("TMPS", "f4"))
    low: np.ndarray = field(metadata=array_field("TMPS", "f2"))
    high: np.ndarray = field(metadata=array_field("TMPS", "f2"))
    scores: Mapping[str, np.ndarray] = field(default_factory=dict, metadata=array_field("TMP", "f4"))
    embeddings: Mapping[str, Sequence[Embedding]] = field(default_factory=dict, metadata=array_field("N"))
    domains: Mapping[str, np.ndarray] = field(default_factory=dict, metadata=array_field("NF", "f2"))
    trivial_distances: Mapping[str, np.ndarray] = field(default_factory=dict, metadata=array_field("N", "f4"))
    norms: Mapping[str, np.ndarray] = field(default_factory=dict, metadata=array_field("N", "f4"))
    halves: np.ndarray | None = field(default=None, metadata=array_field("TMPSH", "f2"))
    failures: tuple[CellFailure, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        """Refuse also errors that are no shares."""
        super().__post_init__()
        if (beyond := self.errors[(self.errors < 0) | (self.errors > 1)]).size:
            raise DataError(
                f"an error of the meta-task '{self.name}' is {beyond[0]:g}, but errors are fractions from 0 to 1, or "
                "NaN where not measured. Divide percentages by 100."
            )

    def __repr__(self) -> str:
        """The meta-task in one line."""
        shape = f"{len(self.tasks)} tasks, {len(self.models)} models, {len(self.protocols)} protocols"
        missing = int(np.isnan(self.errors).sum())
        return f"MetaTask({self.name}, {shape}, {len(self.seeds)} seeds{f', {missing} missing' if missing else ''})"

    # --- errors ----------------------------------------------------------------------------------------------------

    def mean_errors(self) -> np.ndarray:
        """(T, M, P) errors, averaged over the seeds that were measured; NaN where none was."""
        return average_known(self.errors, 3)

    def list_errors(self, protocol: str | None = None) -> list[MeasuredError]:
        """All errors, or those by one protocol, one by one."""
        is_wanted = np.array([protocol in (None, key) for key in self.protocols], dtype=bool)
        errors = []
        for cell in np.argwhere(~np.isnan(self.errors) & is_wanted[:, None]):
            task, model, number, seed = cell
            error, low, high = (float(values[*cell]) for values in (self.errors, self.low, self.high))
            key = (self.tasks[task].fingerprint, self.models[model].name)
            interval = (None if np.isnan(low) else low, None if np.isnan(high) else high)
            errors.append(MeasuredError(*key, error, self.protocols[number], self.seeds[seed], *interval))
        return errors

    def to_csv(self, path: str | Path) -> Path:
        """Writes one row for every measured error, and returns the path."""
        rows: list[Sequence[Any]] = [
            ("task", "fingerprint", "model", "size", "protocol", "seed", "error", "low", "high", "has_seen")
        ]
        for error, (task, model, _, _) in zip(self.list_errors(), np.argwhere(~np.isnan(self.errors)), strict=True):
            key = (self.tasks[task].name, error.task, error.expert, self.models[model].size, error.protocol, error.seed)
            rows.append((*key, error.error, error.low, error.high, int(self.has_seen[task, model])))
        return write_rows(path, rows)

    # --- one protocol, one space, some of the tasks ----------------------------------------------------------------

    @property
    def spaces(self) -> dict[str, Embedding]:
        """One embedding of every space that the tasks are embedded in, the default probe's first."""
        return {name: self.embeddings[name][0] for name in self._list_spaces() if len(self.embeddings.get(name, ()))}

    def _list_spaces(self) -> list[str]:
        """The names of all spaces, those by the default probe and of the method "robust" first."""
        names = dict.fromkeys([*self.embeddings, *self.distances])
        return sorted(names, key=lambda name: ("lite0" not in name, not name.endswith(" robust")))

    def select(
        self,
        shots: str | int | None = None,
        *,
        probe: str | None = None,
        method: str | None = None,
        family: str | None = None,
    ) -> View:
        """The view by one protocol and in one embedding space: what strategies are fitted on.

        Models that repeat others are left out, as are tasks and models without an error by that protocol.

        Args:
            shots: what the classifiers were trained on: "half" of the images, a number of images per class, or the key
                of a protocol; None takes "half", or the only protocol there is.
            probe: that tasks were embedded with; None takes the first of `spaces`.
            method: by which they were embedded; None takes "robust" if the probe has it.
            family: the tasks of one family only; source tasks are found among all.

        Raises:
            UsageError: There is no such protocol, embedding or family.

        Example:
            >>> from task2vec.metatask import bundled_metatask
            >>> bundled_metatask().select("half", family="labels")
            View(pretrained networks on many sources, 22 tasks, 7 models, 5 seeds, tf_efficientnet_lite0 robust)
        """
        protocol = find_protocol(self.protocols, shots, of=f"'{self.name}'")
        view = self.view(protocol, self._find_space(probe, method)).subset(family=family)
        known = np.isfinite(view.mean)
        return view.only(np.flatnonzero(known.any(1)), np.flatnonzero(known.any(0)))

    def view(self, protocol: int, space: str) -> View:
        """The view of all tasks and models by the protocol of this number, in the space of this name."""
        return View(
            self.name,
            self.tasks,
            self.models,
            self.protocols[protocol],
            self.seeds,
            self.errors[:, :, protocol],
            halves=None if self.halves is None else self.halves[:, :, protocol],
            shares_images=self.shares_images,
            shares_labels=self.shares_labels,
            source_tasks=self.source_tasks,
            **self._measure_space(space),
        )

    def _find_space(self, probe: str | None, method: str | None) -> str:
        """The name of the first space by this probe and method; empty if there is none and none was asked for."""
        known = self._list_spaces()
        parts = {name: name.rpartition(" ") for name in known}
        fit = [name for name in known if probe in (None, parts[name][0]) and method in (None, parts[name][2])]
        if known and not fit:
            raise UsageError(
                f"the tasks of '{self.name}' were not embedded in the space '{probe or 'any'} {method or 'any'}' "
                "(probe and method), so no distances are known there. Choose one of: " + ", ".join(known)
            )
        return fit[0] if fit else ""

    def _measure_space(self, space: str) -> dict[str, Any]:
        """What a view has of a space, as fields: stored when the meta-task was made, or from its embeddings now."""
        embeddings, distances = self.embeddings.get(space, ()), dict[str, np.ndarray]()
        rows = measure_rows(embeddings)
        rows |= {
            name: stored[space] for name in ("trivial_distances", "norms") if space in (stored := getattr(self, name))
        }
        if space in self.distances:
            distances[SYMMETRIC] = self.distances[space]
        elif len(embeddings):
            distances[SYMMETRIC] = measure_all(embeddings, embeddings)
        if (means := self.domains.get(space.rpartition(" ")[0])) is not None:
            units = means / np.linalg.norm(means, axis=1, keepdims=True)
            # The cosine distance of mean features as |x - y|^2 / 2 of unit vectors, see `distance.domain`.
            distances[DOMAIN] = np.array([np.square(units - unit).sum(1) / 2 for unit in units])
        return rows | {"space": space, "distances": distances}

    # --- files -----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Writes it to one file, whole or not at all; Fishers are kept to a part in a thousand."""
        arrays: dict[str, np.ndarray] = {}
        for array, key, values in self.list_arrays():
            if array.metadata["file_type"] is not None:
                name = array.name if key is None else f"{array.name}.{key}"
                arrays[name] = values.astype(array.metadata["file_type"], order="C")
        header: dict[str, Any] = {name: getattr(self, name) for name in ("name", "protocols", "seeds", "info")}
        for name in ("tasks", "models", "source_tasks"):
            header[name] = [vars(info) for info in getattr(self, name)]
        header |= {"schema": SCHEMA, "embeddings": {}}
        for name, embeddings in self.embeddings.items():
            packed, header["embeddings"][name] = _pack_embeddings(embeddings)
            arrays |= {f"embeddings.{name}.{key}": values for key, values in packed.items()}
        return write_file(Path(path), pack_arrays(header, arrays))


def load_metatask(path: str | Path) -> MetaTask:
    """The meta-task in a file that `MetaTask.save` wrote, after checking that nothing has changed since."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{path.stat().st_size} bytes")
        return _decode(path.read_bytes())
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"'{path}' is not a meta-task of task2vec, or it is damaged ({type(error).__name__}: {error}), so nothing "
            "in it can be trusted. Restore a good copy, or measure it again: task2vec metatask measure"
        ) from error


def _decode(content: bytes) -> MetaTask:
    header, arrays = unpack_arrays(content)
    if header["schema"] != SCHEMA:
        raise ValueError(f"schema {header['schema']}")
    fields: dict[str, Any] = {}
    for name, values in sorted(arrays.items()):  # the file's order is another one in every process
        kind, _, key = name.partition(".")
        if kind != "embeddings":
            values = values.astype(bool if kind == "shares_labels" else np.float64)
            fields[kind] = fields.get(kind, {}) | {key: values} if key else values
    models = [{name: value for name, value in model.items() if name != "entry"} for model in header["models"]]
    return MetaTask(
        header["name"],
        tuple(TaskInfo(**task) for task in header["tasks"]),
        tuple(ModelInfo(**model) for model in models),  # older files have their entry, which is always None
        tuple(header["protocols"]),
        tuple(header["seeds"]),
        source_tasks=tuple(TaskInfo(**task) for task in header["source_tasks"]),
        embeddings={name: _unpack_embeddings(name, about, arrays) for name, about in header["embeddings"].items()},
        info=header["info"],
        **fields,
    )


def _pack_embeddings(embeddings: Sequence[Embedding]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Fishers as logarithms in half precision (dead filters are minus infinity), a prior per layer, and the rest."""
    with np.errstate(divide="ignore"):
        fisher = np.log2(np.stack([embedding.fisher for embedding in embeddings])).astype(np.float16)
    first = embeddings[0]
    starts = [layer.start for layer in first.layer_slices().values()]
    header = {
        "probe": first.probe,
        "layers": [list(asdict(layer).values()) for layer in first.layers],
        "shared": {key: first.provenance.get(key) for key in _OF_SPACE},
        "own": [{key: embedding.provenance.get(key) for key in _OF_TASK} for embedding in embeddings],
        "tasks": [embedding.task for embedding in embeddings],
    }
    return {"fisher": fisher, "prior": np.array([embedding.prior[starts] for embedding in embeddings])}, header


def _unpack_embeddings(name: str, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[Embedding]:
    """The embeddings that `_pack_embeddings` was given; their standard errors are not known, for none is kept."""
    layers = tuple(FilterLayer(*layer) for layer in header["layers"])
    fishers = np.exp2(arrays[f"embeddings.{name}.fisher"], dtype=np.float64)
    priors = np.repeat(arrays[f"embeddings.{name}.prior"], [layer.filters for layer in layers], axis=1)
    stderr = np.full(fishers.shape[1], np.nan)
    return [
        Embedding(task, header["probe"], fisher, stderr, prior, layers, {**header["shared"], **provenance})
        for task, provenance, fisher, prior in zip(header["tasks"], header["own"], fishers, priors, strict=True)
    ]


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
    axes = ([task.fingerprint for task in tasks], [model.name for model in models], protocols, seeds)
    numbers = [{key: number for number, key in enumerate(axis)} for axis in axes]
    values = np.full((3, *map(len, axes)), np.nan)
    for error in errors:
        keys = (error.task, error.expert, error.protocol, error.seed)
        cell = [known.get(key) for key, known in zip(keys, numbers, strict=True)]
        if None not in cell:
            values[:, *cell] = np.array([error.error, error.low, error.high], dtype=float)  # None is NaN
    pairs = set(has_seen)
    seen = np.array([(task, model) in pairs for task in axes[0] for model in axes[1]], dtype=bool)
    seen = seen.reshape(len(tasks), len(models))
    arrays = {"errors": values[0], "low": values[1], "high": values[2]}
    arrays |= {"shares_images": seen.astype(np.float64), "shares_labels": np.zeros_like(seen)}
    return MetaTask(name, tuple(tasks), tuple(models), tuple(protocols), tuple(seeds), **arrays, **more)


def find_protocol(protocols: Sequence[str], shots: str | int | None, *, of: str) -> int:
    """The number of the protocol that is meant: by its key, or by what its classifiers were trained on."""
    if shots is None and len(protocols) == 1:
        return 0
    wanted = "half" if shots is None else str(shots)
    matches = [number for number, key in enumerate(protocols) if wanted in (key, find_shots(key))]
    if len(matches) != 1:
        raise UsageError(
            f"shots={shots!r} matches {'more than one' if matches else 'none'} of the {len(protocols)} protocols that "
            f"{of} was measured with. Errors of different protocols must not be mixed. Choose one of: "
            f"{'; '.join(protocols) or 'none'}."
        )
    return matches[0]


def find_shots(key: str) -> str:
    """What the classifiers of a protocol are trained on: "half" of the images, or so many per class.

    Example:
        >>> find_shots("linear-2, train 5, logistic, usual")
        '5'
    """
    return next((part.removeprefix("train ") for part in key.split(", ") if part.startswith("train ")), key)


def hide_test(key: str) -> str:
    """The key of a protocol as all tasks with test images or groups of their own share it: without which these are.

    Example:
        >>> hide_test("linear-2, train all, logistic, usual, test 0123456789abcdef")
        'linear-2, train all, logistic, usual, own test set'
        >>> hide_test("linear-2, train half, logistic, usual")
        'linear-2, train half, logistic, usual'
    """
    return _GROUPS.sub(", own groups", _TEST.sub(f", {OWN_TEST}", key))
