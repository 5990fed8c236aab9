"""What a meta-task knows of its tasks and models, apart from errors."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass


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

    @property
    def is_named(self) -> bool:
        """Whether its name is enough to load it, from this machine or from a hub."""
        return self.location is not None and self.location.startswith(("timm:", "torchvision:"))

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
    free_name = name if name not in taken or size is None else f"{name} ({size} px)"
    number = 2
    while free_name in taken:
        free_name = f"{name} ({number})"
        number += 1
    return free_name


def deduplicate_names(names: Iterable[str]) -> list[str]:
    """The names, with a number appended to repeated ones: a library may have several tasks of one name."""
    distinct: list[str] = []
    for name in names:
        distinct.append(find_free_name(name, distinct))
    return distinct
