"""The settings of an embedding, the embedding itself, and its file.

An embedding has one number per filter with its standard error and prior, and its provenance. Settings are everything
that changes its numbers, and nothing else.

A file is safetensors with one JSON text beside the arrays and a SHA-256 over both: safetensors itself loads a flipped
byte or a NaN without complaint. The same embedding gives the same bytes: no time is written, and the metadata is a
single entry (the format keeps several in no fixed order).
"""

import hashlib
import io
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import accumulate, groupby
from numbers import Integral, Real
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from task2vec.errors import DataError, EmbeddingFileError, ResourceError, Task2VecError, UsageError
from task2vec.probe import FilterLayer
from task2vec.storage import write_file

if TYPE_CHECKING:
    from task2vec.probe import Probe
    from task2vec.tasks import Task

SCHEMA = 1
SUFFIX = ".t2v.safetensors"
_ARRAYS = ("fisher", "prior", "stderr")
_MAX_BYTES = 1 << 30
_MAX_HEADER_BYTES = 64 << 20
_MAX_NAME = 120
# The layers are grouped into at most so many stages.
MAX_STAGES = 14
# A temporary file older than this was left by a writer that was killed.
_ORPHAN_SECONDS = 3600
_EMBED_AGAIN = "embed the task again: task2vec embed FOLDER"
_TINY = math.ulp(0.0)
_CHOICES = {
    "method": ("robust", "direct", "variational"),
    "seeds": ("balanced", "plain", "all"),
    "dtype": ("float32", "float64", "bfloat16"),
    "head": ("joint", "fixed"),
}
# The lowest value of a setting, the first one above that is too high, and why.
_LIMITS = {
    **dict.fromkeys(("epochs", "head_epochs", "draws", "batch"), (1, math.inf, "it must be an integer, at least 1")),
    **dict.fromkeys(("rel_tol", "l2", "rate", "head_rate"), (_TINY, math.inf, "it must be a positive number")),
    "beta": (_TINY, math.inf, "without a prior, filters that are dead for two tasks make their distance 0/0"),
    "max_samples": (2, math.inf, "a standard error needs at least 2 samples"),
    "seed": (0, 1 << 63, "random generators take 0 to 2^63 - 1"),
    "smoothing": (0, 1, "at 1 all filters of a layer would be the same, below 0 they would move apart"),
}
# Increased when the same settings give other numbers than before, beyond rounding: saved embeddings are then made anew.
# 1: the first. 2: heads whose cross-validation stops later, and chooses another penalty now and then.
# 3: a fixed penalty of the head, folds that keep copies together, pairs as many as needed, filters smoothed by layer,
# images in the order of their pixels' hashes. 4: a penalty of the head that is the same per class.
RECIPE = 4
# How pairs are drawn and what is made of their rows: the variational method has its own sampling.
_SAMPLING = ("seeds", "max_samples", "rel_tol", "smoothing")


def _check(settings: "EmbedSettings | VariationalSettings") -> None:
    """Refuses values that are not available, not of the type of the default, or outside of their limits."""
    for setting in fields(settings):
        name, default = setting.name, setting.default
        value = getattr(settings, name)
        if name in _CHOICES and value not in _CHOICES[name]:
            raise UsageError(f"{name}={value!r} is not available. Choose one of {', '.join(_CHOICES[name])}.")
        if name not in _LIMITS or value is default is None:
            continue
        least, end, why = _LIMITS[name]
        kind = Integral if isinstance(default, int) else Real
        if not isinstance(value, kind) or not least <= value < end:
            raise UsageError(f"{name}={value} is not possible: {why}. Leave it out for the default, {default}.")


@dataclass(frozen=True)
class VariationalSettings:
    """How the variational method trains; the numbers that the paper gives are the defaults.

    Attributes:
        epochs: of joint training of noise and head. The paper does not give the number; check the drift.
        head_epochs: of training the head alone before, on clean features.
        draws: images per epoch, drawn with replacement, uniformly over classes.
        batch: images per step.
        rate: learning rate (Adam) of the logarithm of the precisions.
        head_rate: learning rate (Adam) of the head.
        head: "joint" as in the paper, or "fixed": the converged head of the other methods, which does not change.
    """

    epochs: int = 10
    head_epochs: int = 2
    draws: int = 10_000
    batch: int = 64
    rate: float = 1e-2
    head_rate: float = 1e-4
    head: str = "joint"

    def __post_init__(self):
        """Refuse invalid values."""
        _check(self)

    @property
    def steps_per_epoch(self) -> int:
        """Batches that make an epoch."""
        return -(-self.draws // self.batch)


@dataclass(frozen=True)
class EmbedSettings:
    """How a task is embedded.

    Attributes:
        method: "robust": the paper's variational Fisher in closed form; "direct": the Fisher of the filters as such;
            "variational": the paper's optimisation itself, slow, as a reference (see docs/explanation/embedding.md).
        seeds: how labels and images are drawn: "balanced" by their share of the Fisher; "plain" images uniformly and
            labels y ~ p, for comparison; "all" of them, without any sampling.
        max_samples: maximum number of (image, label) pairs that are back-propagated. Fewer are drawn if that is enough
            (see `task2vec.fisher.sampling`), unless `rel_tol` sets a precision.
        rel_tol: stop earlier, once the median relative standard error of the filters is below this.
        smoothing: how far every filter is moved towards the mean of its layer, from 0 to below 1; the norm stays.
        l2: penalty of the head per class: with C classes l2 / C beside a mean loss (see `task2vec.head.fit`).
        balance: give every class the same weight, as the paper does by drawing images uniformly over classes.
        beta: weight of the prior relative to a loss summed over the images (see `task2vec.fisher.estimate`).
        split_half: also embed two halves of the task, each with its own head and half of the pairs. It costs another
            Fisher pass and two heads, and shows how far other images would have moved the embedding.
        seed: of all random numbers.
        dtype: arithmetic of the probe. "bfloat16" changes single filters by about 10%: compare it only with itself.
        variational: how the variational method trains; the other methods ignore it.
    """

    method: str = "robust"
    seeds: str = "balanced"
    max_samples: int = 400
    rel_tol: float | None = None
    smoothing: float = 0.1
    l2: float = 2e-3
    balance: bool = True
    beta: float = 1e-7
    split_half: bool = False
    seed: int = 0
    dtype: str = "float32"
    variational: VariationalSettings = VariationalSettings()

    def __post_init__(self):
        """Refuse invalid values."""
        _check(self)

    def as_dict(self) -> dict[str, object]:
        """Plain values for provenance: those that change the numbers of this method."""
        values = asdict(self)
        training = values.pop("variational")
        if self.method != "variational":
            return values
        return {key: value for key, value in values.items() if key not in _SAMPLING} | training


@dataclass(frozen=True, eq=False, repr=False)
class Embedding:
    """A task as a vector.

    Attributes:
        task: name of the task.
        probe: name of the probe.
        fisher: mean Fisher information of each filter.
        stderr: its standard error (how much it would change with other images of the same kind and a fixed head; for
            the variational method, only how much its optimisation still moves). NaN in all filters where it is not
            known, as of the bundled tasks: 0 is known to be exact.
        prior: the value for a task without information.
        layers: name and number of filters of each layer, in the order of the coordinates.
        provenance: fingerprints of task and probe, settings, versions, counts, head metrics, effective images.
        halves: the Fisher of two halves of the task, each embedded separately, with `EmbedSettings(split_half=True)`:
            the effect of other images of the same kind, including the head (see `task2vec.distance.with_error`).
    """

    task: str
    probe: str
    fisher: np.ndarray
    stderr: np.ndarray
    prior: np.ndarray
    layers: tuple[FilterLayer, ...]
    provenance: dict[str, Any] = field(default_factory=dict)
    halves: np.ndarray | None = None

    def __post_init__(self):
        """Refuse arrays that do not fit together or are not finite, and make them read-only."""
        filters = sum(layer.filters for layer in self.layers)
        shapes = dict.fromkeys(_ARRAYS, (filters,)) | ({} if self.halves is None else {"halves": (2, filters)})
        for name, shape in shapes.items():
            values = np.array(getattr(self, name), dtype=np.float64, order="C")  # a copy: the caller's stays writable
            whose = f"'{name}' of the embedding of '{self.task}' has"
            if values.shape != shape:
                problem = f"{whose} shape {values.shape}, but its layers have {filters} filters"
                raise DataError(f"{problem}: they do not belong together. Pass one number per filter.")
            if name == "stderr" and np.isnan(values).all():
                pass  # not known
            elif not np.isfinite(values).all() or values.min(initial=1) < 0 or (name == "prior" and not values.all()):
                problem = f"{whose} values that no Fisher can have (NaN, infinite, negative, or a prior of zero)"
                raise DataError(f"{problem}: no distance could be computed from them. Embed the task again.")
            values.setflags(write=False)
            object.__setattr__(self, name, values)

    def __repr__(self) -> str:
        """The embedding in one line."""
        images = self.provenance.get("counts", {}).get("images", "?")
        return f"Embedding({self.task}, probe={self.probe}, {len(self.fisher)} filters, {images} images)"

    def __len__(self) -> int:
        """Number of filters."""
        return len(self.fisher)

    @property
    def vector(self) -> np.ndarray:
        """Fisher plus prior: positive everywhere, the vector that distances compare."""
        return self.fisher + self.prior

    @property
    def has_stderr(self) -> bool:
        """Whether its standard error is known."""
        return not np.isnan(self.stderr).any()

    @property
    def probe_fingerprint(self) -> str:
        """SHA-256 of the probe's weights and preprocessing: only equal ones can be compared."""
        return self.provenance.get("probe_fingerprint", "unknown")

    def norm(self) -> float:
        """L1 norm of the Fisher: how much the weights of the probe matter for the task."""
        return float(self.fisher.sum())

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper end, per filter, of an interval that has the population's Fisher with probability `level`.

        It is F exp(+-q r) with r = stderr / F and q Student's quantile with n degrees of freedom, where
        n = 1 / (1 / images + r^2) is the number of images that the filter's Fisher comes from. The upper end is at
        least what images of a kind that did not occur may add, by the rule of three: for 95%, 3 times the Fisher that
        one image gives a filter of the layer, the mean of F / n. Filters without Fisher have only this end, and 0.
        It holds for what `stderr` measures: other images, the same head; not for the variational method. Both ends are
        NaN where that is not known.

        Example:
            >>> layer = FilterLayer("conv", "convolution", 3, 9, 0.1)
            >>> fisher, stderr = np.array([1, 0.5, 0]), np.array([0.1, 0.25, 0])
            >>> birds = Embedding(
            ...     "birds", "net", fisher, stderr, np.ones(3), (layer,), {"counts": {"images_used": 100}}
            ... )
            >>> low, high = birds.interval()
            >>> low.round(2), high.round(2)
            (array([0.82, 0.12, 0.  ]), array([1.22, 2.05, 0.15]))
        """
        from scipy.special import stdtrit

        if not 0 < level < 1:
            raise UsageError(
                f"level={level} is not the probability of an interval. Choose one between 0 and 1, such as 0.95."
            )
        used = self.provenance.get("counts", {}).get("images_used", math.inf)
        error = np.divide(self.stderr, self.fisher, out=np.zeros(len(self)), where=self.fisher > 0)
        share = np.clip(1 / used + error**2, 1e-9, 1)  # of one image in the Fisher: 1/n
        width = np.exp(np.minimum(stdtrit(1 / share, (1 + level) / 2) * error, 100))
        one_image = [float((self.fisher * share)[rows].mean()) for rows in self.layer_slices().values()]
        unseen = -math.log1p(-level) * np.repeat(one_image, [layer.filters for layer in self.layers])
        return self.fisher / width, np.maximum(self.fisher * width, unseen)

    def layer_slices(self) -> dict[str, slice]:
        """Where each layer's filters lie in the arrays."""
        ends = accumulate(layer.filters for layer in self.layers)
        return {layer.name: slice(end - layer.filters, end) for layer, end in zip(self.layers, ends, strict=True)}

    def stages(self) -> list[dict[str, Any]]:
        """For every stage of the probe in order: its name, its filters, its share of the norm, and its mean Fisher."""
        norm = float(self.fisher.sum())
        rows = []
        start = 0
        for name, filters in group_layers([(layer.name, layer.filters) for layer in self.layers]):
            total = float(self.fisher[start : start + filters].sum())
            share = total / norm if norm > 0 else 0.0
            rows.append({"stage": name, "filters": filters, "share": share, "mean_fisher": total / filters})
            start += filters
        return rows

    def save(self, path: str | Path) -> Path:
        """Writes the embedding to `path`, whole or not at all (safetensors with its SHA-256), and returns it."""
        return write_file(Path(path), encode_embedding(self), makes_folder=True)


def group_layers(layers: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Consecutive layers grouped by the longest common prefixes of their names that give few enough stages.

    Example:
        >>> group_layers([("stem", 8), ("blocks.0.a", 4), ("blocks.0.b", 4), ("blocks.1.a", 6), ("neck", 2)])
        [('stem', 8), ('blocks.0.a', 4), ('blocks.0.b', 4), ('blocks.1.a', 6), ('neck', 2)]
    """
    depth = max(name.count(".") for name, _ in layers) + 1
    stages = layers
    while depth and len(stages) > MAX_STAGES:
        depth -= 1
        groups = groupby(layers, key=lambda layer: ".".join(layer[0].split(".")[:depth]))
        stages = [(name, sum(filters for _, filters in group)) for name, group in groups]
    return stages


def trivial(embedding: Embedding) -> Embedding:
    """The trivial embedding beside `embedding`: the prior alone, t0 of the asymmetric distance.

    Example:
        >>> import numpy as np
        >>> layer = FilterLayer("conv", "convolution", 2, 9, 0.1)
        >>> one = np.ones(2)
        >>> trivial(Embedding("birds", "net", one, one, one / 4, (layer,))).vector
        array([0.25, 0.25])
    """
    nothing = np.zeros_like(embedding.fisher)
    return replace(embedding, task=f"trivial ({embedding.task})", fisher=nothing, stderr=nothing, halves=None)


# --- files ------------------------------------------------------------------------------------------------------------


def encode_embedding(embedding: Embedding) -> bytes:
    """The embedding as the content of a file."""
    arrays = {name: getattr(embedding, name) for name in _ARRAYS}
    if embedding.halves is not None:
        arrays["halves"] = embedding.halves
    metadata = {
        "schema": SCHEMA,
        "task": embedding.task,
        "probe": embedding.probe,
        "layers": [list(asdict(layer).values()) for layer in embedding.layers],
        "provenance": embedding.provenance,
    }
    return pack_arrays(metadata, arrays)


def load_embedding(path: str | Path) -> Embedding:
    """The embedding saved at `path`, after checking format, schema, hash and values.

    Example:
        >>> import numpy as np, tempfile
        >>> layer = FilterLayer("conv", "convolution", 2, 9, 0.1)
        >>> one = np.ones(2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Embedding("birds", "net", one, one, one, (layer,)).save(f"{folder}/birds.t2v.safetensors")
        ...     load_embedding(file)
        Embedding(birds, probe=net, 2 filters, ? images)
    """
    path = Path(path)
    try:
        if (size := path.stat().st_size) > _MAX_BYTES:
            problem = f"'{path}' has {size} bytes, but no embedding is larger than {_MAX_BYTES}: it is some other file"
            raise EmbeddingFileError(f"{problem}. Check the path, or {_EMBED_AGAIN}")
        return decode_embedding(path.read_bytes(), path)
    except OSError as error:
        raise EmbeddingFileError(
            f"cannot read '{path}': {error.strerror}. Check the path, or {_EMBED_AGAIN}"
        ) from error


def decode_embedding(content: bytes, path: str | Path) -> Embedding:
    """The embedding in `content`; `path` is where that came from, for error messages."""
    try:
        metadata, arrays = unpack_arrays(content)
        schema = metadata["schema"]
    except (ValueError, KeyError) as error:
        problem = f"'{path}' is not a task2vec embedding, or it is damaged ({error})"
        raise EmbeddingFileError(f"{problem}, so nothing in it can be trusted; {_EMBED_AGAIN}") from error
    if schema != SCHEMA:
        is_newer = isinstance(schema, int) and schema > SCHEMA
        problem = f"'{path}' has schema {schema}, but this version reads {SCHEMA}: its numbers may mean something else"
        raise EmbeddingFileError(f"{problem}; {'upgrade: pip install -U task2vec' if is_newer else _EMBED_AGAIN}")
    try:
        layers = tuple(FilterLayer(*fields) for fields in metadata["layers"])
        return Embedding(
            metadata["task"], metadata["probe"], layers=layers, provenance=metadata["provenance"], **arrays
        )
    except (DataError, KeyError, TypeError, AttributeError) as error:
        raise EmbeddingFileError(f"'{path}' does not hold a valid embedding ({error}); {_EMBED_AGAIN}") from error


# --- files of arrays --------------------------------------------------------------------------------------------------


def pack_arrays(metadata: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """The content of a safetensors file with metadata, and with the SHA-256 of both: the format of all our files."""
    text = json.dumps(metadata, sort_keys=True, allow_nan=False)
    envelope = json.dumps({"sha256": hash_content(text, arrays), "story": text})
    return save_tensors(dict(arrays), metadata={"task2vec": envelope})


def unpack_arrays(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Metadata and arrays of a file that `pack_arrays` made.

    Raises:
        ValueError: It is something else, or was changed since.
    """
    try:
        arrays = load_tensors(content)
        metadata, text, sha256 = read_header(io.BytesIO(content))
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(repr(error)) from error
    if sha256 != hash_content(text, arrays):
        raise ValueError("its SHA-256 does not match its content")
    return metadata, arrays


def read_header(file: BinaryIO) -> tuple[dict[str, Any], str, Any]:
    """Metadata, their text, and the SHA-256 that the content should have; the arrays are not read.

    Raises:
        ValueError: There are none.
    """
    try:
        length = min(int.from_bytes(file.read(8), "little"), _MAX_HEADER_BYTES)
        envelope = json.loads(json.loads(file.read(length))["__metadata__"]["task2vec"])
        return dict(json.loads(envelope["story"])), envelope["story"], envelope["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(repr(error)) from error


def hash_content(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of a text and of arrays with their names, types and shapes."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


# --- embeddings of earlier runs ---------------------------------------------------------------------------------------


class Store(Protocol):
    """Where embeddings are looked up and kept, such as a library."""

    is_read_only: bool

    def find(self, task: "Task", probe: "Probe", *, settings: EmbedSettings) -> Embedding | None:
        """The embedding that embedding this task by this probe with these settings would give again, if present."""

    def add(self, embedding: Embedding, /, *, source: str) -> Any:
        """Adds an embedding; `source` is where its task was read from."""


@dataclass(frozen=True)
class TaskResult:
    """The result of one of many tasks.

    Attributes:
        number: the position of the task among those given.
        task: its name.
        embedding: its embedding, unless it failed.
        error: why it failed, or why the library refused the embedding.
        is_found: whether it was taken from the folder or the library instead of being computed.
    """

    number: int
    task: str
    embedding: Embedding | None = None
    error: Task2VecError | None = None
    is_found: bool = False


def name_file(task: "Task", suffix: str = SUFFIX) -> str:
    """The file name of a task: its name if that is a safe one, else what is safe of it and the task's fingerprint."""
    clean = re.sub(r"[^\w.-]", "_", task.name, flags=re.ASCII).lstrip(".")[:_MAX_NAME]
    return f"{clean if clean == task.name else f'{clean}-{task.fingerprint[:8]}'}{suffix}"


def open_folder(folder: Path) -> Path:
    """The folder, which is created if necessary, without temporary files of writers that were killed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        for orphan in folder.glob(f".*{SUFFIX}.*.partial"):
            if time() - orphan.stat().st_mtime > _ORPHAN_SECONDS:
                orphan.unlink(missing_ok=True)
    except OSError as error:
        problem = f"embeddings cannot be written to '{folder}': {error.strerror}"
        raise ResourceError(f"{problem}. They would be lost. Choose another folder.") from error
    return folder


def find_saved(folder: Path, task: "Task", probe: "Probe", *, settings: EmbedSettings) -> tuple[Path, Embedding | None]:
    """Where the embedding of `task` lies or belongs in `folder`, and the embedding if a run would give it again.

    The file has the task's name, unless another file has it; then a hash of everything that determines the embedding is
    appended, so that no other file is ever overwritten. A damaged file counts as another one.
    """
    name = name_file(task)
    identity = {
        "task_fingerprint": task.fingerprint,
        "probe_fingerprint": probe.fingerprint,
        "settings": json.loads(json.dumps(settings.as_dict())),
        "recipe": RECIPE,
    }
    values = [*identity.values(), *([task.groups_key] if task.groups_key else [])]
    identity_hash = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
    identity["groups"] = task.groups_key or None
    first = folder / name
    second = folder / f"{name.removesuffix(SUFFIX)}-{identity_hash}{SUFFIX}"
    for path in (first, second):
        try:
            known = load_embedding(path) if path.exists() else None
        except EmbeddingFileError:
            continue
        if known is not None and all(known.provenance.get(key) == value for key, value in identity.items()):
            return path, known
    return (second if os.path.lexists(first) else first), None
