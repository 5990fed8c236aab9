"""Experts on disk: safetensors under the names that the network's own library gives to its weights.

task2vec reads the metadata of such a file and gets an expert with its preprocessing and source task; timm and
torchvision read its tensors and get a classifier. The checkpoint of an unfinished training has the same format, with
the momentum beside the weights.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from task2vec.embedding.embedding import pack_arrays, read_header, unpack_arrays
from task2vec.errors import ConflictError, UsageError, WeightsError, WeightsNotFoundError
from task2vec.experts.recipes import EpochMetrics
from task2vec.library import Expert
from task2vec.probe import Probe, load_probe
from task2vec.probe.load import is_timm_model, is_torchvision_model
from task2vec.probe.probe import find_head_name
from task2vec.storage import write_file

SUFFIX = ".expert.safetensors"
UNFINISHED = ".training"
SCHEMA = 1
# Tensors and metadata of an unfinished training.
Checkpoint = tuple[dict[str, Tensor], dict[str, Any]]


@dataclass(frozen=True, eq=False)
class TrainedExpert:
    """A network that was fine-tuned on a task.

    Attributes:
        name: its name.
        probe: the network without its head, with its preprocessing.
        weight: (classes, features) of the head.
        bias: (classes,) of the head.
        metadata: everything that determined it: task, classes, recipe, seed, base; and metrics.
        path: its file, if it has one.
        is_found: whether it already existed.
    """

    name: str
    probe: Probe
    weight: Tensor = field(repr=False)
    bias: Tensor = field(repr=False)
    metadata: dict[str, Any] = field(repr=False)
    path: Path | None = None
    is_found: bool = False

    @property
    def task(self) -> str:
        """Fingerprint of its source task."""
        return self.metadata["task_fingerprint"]

    @property
    def metrics(self) -> tuple[EpochMetrics, ...]:
        """Loss and error of every epoch of its training."""
        return tuple(EpochMetrics.read(values) for values in self.metadata["metrics"])

    def probabilities(self, features: Tensor) -> Tensor:
        """(n, classes) probabilities of the classes of its source task for images with these features."""
        logits = features.double() @ self.weight.to(features.device).double().T + self.bias.to(features.device).double()
        return logits.sigmoid() if self.metadata["is_multilabel"] else logits.softmax(1)

    def entry(self) -> Expert:
        """The expert as a library keeps it."""
        if self.path is None:
            raise UsageError(
                f"the expert '{self.name}' has no file, so a library could not load it again. Train it with out=FILE."
            )
        known = self.metadata
        recipe = known["recipe"] | {key: known[key] for key in ("seed", "architecture", "task")}
        return replace(
            describe_network(self),
            source="file",
            location=str(self.path.absolute()),
            sha256=_hash_file(self.path),
            recipe=recipe | {"base": known["base_fingerprint"]},
        )

    def save(self, path: Path) -> "TrainedExpert":
        """The expert with a file; the checkpoint of its training is removed."""
        head_name = find_head_name(self.probe.network)
        head = {f"{head_name}.weight": self.weight, f"{head_name}.bias": self.bias}
        write_tensors(path, dict(self.probe.network.state_dict()) | head, self.metadata)
        unfinished(path).unlink(missing_ok=True)
        return replace(self, path=path)


@dataclass(frozen=True, eq=False)
class ExpertProbe(Probe):
    """The network of an expert as a probe.

    Attributes:
        entry: the expert as a library keeps it.
        architecture: what `load_probe` calls the network, or None for a custom network.
    """

    entry: Expert | None = field(default=None, repr=False)
    architecture: str | None = field(default=None, repr=False)

    @property
    def task(self) -> str | None:
        """Fingerprint of its source task, if that is known."""
        return None if self.entry is None else self.entry.task


def load_expert(expert: Expert | str | Path, *, download: bool = False) -> ExpertProbe:
    """The network of an expert as a probe, under the expert's name.

    `expert` is an entry of a library, which holds the location of its weights, or the path of a file written by
    `train_expert`. The probe knows its source task, so that errors on it are marked.
    """
    if isinstance(expert, Expert):
        probe = _load_network(expert, download=download)
    else:
        trained = load_trained(expert)
        expert = trained.entry()
        probe = trained.probe
    values: dict[str, Any] = vars(probe) | {"name": expert.name}
    return ExpertProbe(**values, entry=expert, architecture=name_architecture(probe))


def _load_network(expert: Expert, *, download: bool) -> Probe:
    """The network of an entry, under the name of its architecture."""
    path = Path(expert.location)
    if expert.source != "file":
        name = expert.location.removeprefix("timm/")
        if "/" in name:
            raise UsageError(
                f"the model '{expert.name}' is from a hub ('{expert.location}') and not one of timm's, so its network "
                "is not known here. Build it and pass it to load_probe(module, head=..., transform=...)."
            )
        return load_probe(name, size=expert.input_size, download=download)
    if expert.sha256 is not None and path.exists() and _hash_file(path) != expert.sha256:
        raise ConflictError(
            f"'{path}' is no longer the file that the library knows as the expert '{expert.name}', so errors measured "
            "with that expert are not those of this file. Restore the old file, or train under another name."
        )
    if "architecture" in expert.recipe and "base" not in expert.recipe:
        return load_probe(str(expert.recipe["architecture"]), weights=path, size=expert.input_size)
    return load_trained(path).probe


def load_trained(path: str | Path) -> TrainedExpert:
    """The expert in a file that `train_expert` wrote, with its head."""
    path = Path(path)
    tensors, metadata = read_tensors(path)
    if metadata.get("kind") != "expert":
        raise WeightsError(
            f"'{path}' is the checkpoint of an unfinished training, not an expert. Call train_expert with the same "
            "arguments again: it resumes from there."
        )
    if metadata["architecture"] is None:
        raise WeightsError(
            f"'{path}' is a custom network ({metadata['network']}), which cannot be built from a file of weights. Load "
            "the weights into your module, and pass that to load_probe(module, head=..., transform=...)."
        )
    probe = load_probe(metadata["architecture"], weights=path, size=metadata["size"][0])
    if probe.preprocess.description != metadata["preprocess"]:
        raise WeightsError(
            f"the expert '{path}' was trained with different preprocessing from that of its network now, so its "
            "features would not be the same. Pass its transform to load_probe(..., weights=FILE, transform=...)."
        )
    head_name = find_head_name(probe.network)
    weight = tensors[f"{head_name}.weight"]
    bias = tensors[f"{head_name}.bias"]
    return TrainedExpert(metadata["name"], probe, weight, bias, metadata, path, is_found=True)


def name_architecture(probe: Probe) -> str | None:
    """What `load_probe` calls the network of a probe, or None for a custom network."""
    if isinstance(probe, ExpertProbe):
        return probe.architecture
    home = type(probe.network).__module__.partition(".")[0]
    is_known = {"timm": is_timm_model, "torchvision": is_torchvision_model}.get(home)
    return f"{home}:{probe.name}" if is_known is not None and is_known(probe.name) else None


# --- files -----------------------------------------------------------------------------------------------------------


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Writes tensors and their metadata to `path`, whole or not at all."""
    arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
    write_file(path, pack_arrays({"schema": SCHEMA, **metadata}, arrays), makes_folder=True)


def read_tensors(path: Path) -> Checkpoint:
    """Tensors and metadata of a file that `write_tensors` wrote, after checking that nothing has changed since."""
    with _reading(path):
        metadata, arrays = unpack_arrays(path.read_bytes())
        if metadata.get("schema") != SCHEMA:
            raise ValueError(f"its schema {metadata.get('schema')} is not {SCHEMA}")
    return {name: torch.tensor(values) for name, values in arrays.items()}, metadata


def read_metadata(path: Path) -> dict[str, Any]:
    """The metadata alone, without checking the tensors: fast, for listings."""
    with _reading(path), path.open("rb") as file:
        return read_header(file)[0]


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Explains why an expert cannot be read."""
    try:
        yield
    except OSError as error:
        raise WeightsNotFoundError(
            f"cannot read the expert '{path}': {error.strerror}. Without its weights it cannot be used. Check the "
            "path, or train it again: task2vec metatask train"
        ) from error
    except ValueError as error:
        raise WeightsError(
            f"'{path}' is not an expert of task2vec, or it was changed after it was written ({error}), so it may be "
            "another network. Restore a good copy, or train it again: task2vec metatask train. Plain weights are "
            "loaded by load_probe(NAME, weights=FILE)."
        ) from error


def _hash_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- existing experts and checkpoints --------------------------------------------------------------------------------


def unfinished(path: Path) -> Path:
    """The checkpoint of the expert that will be written to `path`."""
    return path.with_name(path.name + UNFINISHED)


def check_place(path: Path, key: str) -> None:
    """Raises `ConflictError` or `WeightsError` if `path` holds another expert or its checkpoint; reads no weights."""
    for file, kind in ((path, "an expert"), (unfinished(path), "the checkpoint of an unfinished training")):
        try:
            known = read_metadata(file).get("key") if os.path.lexists(file) else key
        except WeightsError:
            if file == path:
                raise
            continue  # a damaged checkpoint counts as none
        if known != key:
            raise ConflictError(
                f"'{file}' is {kind} of another task, network, recipe or seed, and would be lost. Give the new expert "
                "a name of its own (--name) or another place (--out), or overwrite it: replace_other=True, --force"
            )


def find_kept(path: Path, key: str) -> TrainedExpert | Checkpoint | None:
    """The expert at `path`, or else its checkpoint, if it is of the same key; damaged files count as none."""
    is_finished = False
    kept = None
    with suppress(WeightsError, WeightsNotFoundError):
        is_finished = read_metadata(path).get("key") == key
    if is_finished:
        return load_trained(path)
    with suppress(WeightsError, WeightsNotFoundError):
        kept = read_tensors(unfinished(path))
    return kept if kept is not None and kept[1].get("key") == key else None


# --- networks and their costs ----------------------------------------------------------------------------------------


def describe_network(model: Probe | TrainedExpert) -> Expert:
    """The network of a model as a library entry; one that cannot be loaded again is kept by name, for its errors."""
    probe = model if isinstance(model, Probe) else model.probe
    known = name_architecture(probe)
    source, location = ("file", f"module {type(probe.network).__name__}") if known is None else ("hub", known)
    recipe = {"network": probe.fingerprint, "weights": probe.source}
    costs = (count_parameters(probe.network), probe.size[0], round(count_gmacs(probe.network, probe.size), 6))
    return Expert(model.name, source, location, getattr(model, "task", None), recipe, *costs)


def count_parameters(network: nn.Module) -> int:
    """The number of its parameters.

    Example:
        >>> count_parameters(nn.Linear(3, 2))
        8
    """
    return sum(weight.numel() for weight in network.parameters())


def count_gmacs(network: nn.Module, size: tuple[int, int]) -> float:
    """Billions of multiply-accumulate operations for one image of `size`.

    Example:
        >>> count_gmacs(nn.Conv2d(3, 4, 3, padding=1), (10, 10)) * 1e9
        10800.0
    """
    weight = next(network.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(1, 3, *size, device=weight.device, dtype=weight.dtype))
    return counter.get_total_flops() / 2e9
