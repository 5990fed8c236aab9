"""From an entry of a library, or a file, to a network that gives features."""

import hashlib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from task2vec.errors import ConflictError, UsageError, WeightsError
from task2vec.experts.cost import count_multiplications, count_parameters
from task2vec.experts.files import read_story, read_tensors
from task2vec.experts.learning import EpochMetrics
from task2vec.experts.recipes import Recipe
from task2vec.library import Expert
from task2vec.probe import Probe, load_probe
from task2vec.probe.load import is_timm_model, is_torchvision_model
from task2vec.probe.probe import find_head_name


@dataclass(frozen=True, eq=False)
class TrainedExpert:
    """A network that was fine-tuned on a task.

    Attributes:
        name: what to call it.
        probe: the network without its head, with its preprocessing: what gives features.
        weight: (classes, features) of the head.
        bias: (classes,) of the head.
        story: all that made it: task, classes, recipe, seed, base, metrics.
        path: its file, if it has one.
        is_found: whether it lay there already.
    """

    name: str
    probe: Probe
    weight: Tensor = field(repr=False)
    bias: Tensor = field(repr=False)
    story: dict[str, Any] = field(repr=False)
    path: Path | None = None
    is_found: bool = False

    @property
    def metrics(self) -> tuple[EpochMetrics, ...]:
        """How each epoch of its training went."""
        return tuple(EpochMetrics(**one) for one in self.story["metrics"])

    @property
    def recipe(self) -> Recipe:
        """How it was trained."""
        told = self.story["recipe"]
        return Recipe(**(told | {"drops": tuple(told["drops"])}))

    def probabilities(self, features: Tensor) -> Tensor:
        """(n, classes) what it thinks of images with these features, in terms of the task that it was trained on."""
        logits = features.double() @ self.weight.to(features.device).double().T + self.bias.to(features.device).double()
        return logits.sigmoid() if self.story["is_multilabel"] else logits.softmax(1)

    def entry(self) -> Expert:
        """What a library keeps of it."""
        if self.path is None:
            raise UsageError(
                f"the expert '{self.name}' has no file, so nobody could load it again. Train it with out=FILE."
            )
        story = self.story
        return Expert(
            self.name,
            "file",
            str(self.path.absolute()),
            task=story["task_fingerprint"],
            recipe={
                **story["recipe"],
                "seed": story["seed"],
                "architecture": story["architecture"],
                "base": story["base_fingerprint"],
                "task": story["task"],
            },
            parameters=count_parameters(self.probe.network),
            input_size=self.probe.size[0],
            cost=round(count_multiplications(self.probe.network, self.probe.size), 6),
            sha256=hashlib.sha256(self.path.read_bytes()).hexdigest(),
        )


@dataclass(frozen=True, eq=False)
class ExpertProbe(Probe):
    """The network of an expert, as a probe that has not forgotten whose it is.

    Attributes:
        entry: what a library keeps of the expert.
        architecture: what `load_probe` calls the network, or None for a network of somebody's own.
    """

    entry: Expert | None = field(default=None, repr=False)
    architecture: str | None = field(default=None, repr=False)

    @property
    def task(self) -> str | None:
        """Fingerprint of the task that it was trained on, if that is known."""
        return None if self.entry is None else self.entry.task


def load_expert(expert: Expert | str | Path, *, download: bool = False) -> ExpertProbe:
    """The network of an expert, ready to give features, under the expert's name.

    An entry says where its weights come from; a path is a file that `train_expert` wrote. The task that it was trained
    on is known to it, so that its errors on that are marked as trivial.
    """
    if isinstance(expert, Expert):
        probe = _load_network(expert, download=download)
    else:
        trained = load_trained(expert)
        expert, probe = trained.entry(), trained.probe
    own: dict[str, Any] = {one.name: getattr(probe, one.name) for one in fields(Probe)} | {"name": expert.name}
    return ExpertProbe(**own, entry=expert, architecture=name_architecture(probe))


def _load_network(expert: Expert, *, download: bool) -> Probe:
    """The network of an entry, under the name of its architecture."""
    if expert.source != "file":
        name = expert.location.removeprefix("timm/")
        if "/" in name:
            raise UsageError(
                f"the expert '{expert.name}' is a model of a hub ('{expert.location}') that is not one of timm's, so "
                "its network is not known here. Build it and pass it to load_probe(module, head=..., transform=...)."
            )
        return load_probe(name, size=expert.input_size, download=download)
    path = Path(expert.location)
    if expert.sha256 is not None and path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() != expert.sha256:
        raise ConflictError(
            f"'{path}' is no longer the file that the library knows as the expert '{expert.name}', so errors measured "
            "with that one say nothing about it. Put the old file back, or train under another name."
        )
    if "architecture" in expert.recipe and "base" not in expert.recipe:
        architecture = str(expert.recipe["architecture"])
        return load_probe(architecture, weights=path, size=expert.input_size)
    return load_trained(path).probe


def load_trained(path: str | Path) -> TrainedExpert:
    """The expert in a file that `train_expert` wrote, with its head."""
    path = Path(path)
    story = read_story(path)
    if story.get("kind") != "expert":
        raise WeightsError(
            f"'{path}' is a training that has not ended, and no expert. Give train_expert the same arguments again: it "
            "goes on from there."
        )
    architecture = story["architecture"]
    if architecture is None:
        raise WeightsError(
            f"the expert '{path}' is a network of somebody's own ({story['network']}), which a file of weights cannot "
            "build. Load the weights into your module, and that by load_probe(module, head=..., transform=...)."
        )
    tensors, story = read_tensors(path)
    probe = load_probe(architecture, weights=path, size=story["size"][0])
    if probe.preprocess.description != story["preprocess"]:
        raise WeightsError(
            f"the expert '{path}' was trained on images that were prepared in another way than '{architecture}' does "
            "today, so its features would not be the same. Pass its transform to load_probe(..., weights=FILE, "
            "transform=...)."
        )
    place = find_head_name(probe.network)
    weight, bias = tensors[f"{place}.weight"], tensors[f"{place}.bias"]
    return TrainedExpert(story["name"], probe, weight, bias, story, path, is_found=True)


def name_architecture(probe: Probe) -> str | None:
    """What `load_probe` calls the network of a probe, or None for a network of somebody's own."""
    if isinstance(probe, ExpertProbe):
        return probe.architecture
    home = type(probe.network).__module__.partition(".")[0]
    is_known = {"timm": is_timm_model, "torchvision": is_torchvision_model}.get(home)
    return f"{home}:{probe.name}" if is_known is not None and is_known(probe.name) else None
