"""The settings in which experts are chosen: tasks, training size, what is left out, and the space of the distances."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

import task2vec as t2v
from task2vec.metatask import find_shots

Leave = Literal["task", "dataset"]
LEAVES: dict[Leave, str] = {"task": "one task left out", "dataset": "its whole dataset left out"}
# The paper's probe first; the offline one beside it. "torchvision:" and the like before a name do not count.
FIRST_SPACES = ("resnet34 robust", "tf_efficientnet_lite0 robust")


@dataclass(frozen=True)
class Setting:
    """The tasks of a family by one training size, in one space, with what is left out."""

    space: str
    leave: Leave
    family: str
    shots: str

    @property
    def words(self) -> str:
        """The tasks and their training size."""
        return format_setting(self.family, self.shots)


def format_setting(family: str, shots: str) -> str:
    """A family, if tasks have one, by one training size.

    Example:
        >>> format_setting("taxa", "half"), format_setting("", "all"), format_setting("taxa", "5")
        ('taxa, half of the images', 'all images', 'taxa, 5 per class')
    """
    words = {"half": "half of the images", "all": "all images"}.get(shots, shots)
    return ", ".join(filter(None, [family, f"{shots} per class" if shots.isdigit() else words]))


def list_settings(metatask: t2v.MetaTask) -> list[tuple[str, str]]:
    """The families of a meta-task by its training sizes, the largest size first.

    A size is that of a protocol; of several protocols with the same size, their keys stand for them.
    """
    sizes = list(map(find_shots, metatask.protocols))
    names = [size if sizes.count(size) == 1 else key for size, key in zip(sizes, metatask.protocols, strict=True)]
    order = sorted(range(len(names)), key=lambda at: -int(sizes[at]) if sizes[at].isdigit() else -math.inf)
    families, counts = np.array([task.family for task in metatask.tasks]), np.isfinite(metatask.mean_errors()).sum(1)
    return [
        (family, names[at])
        for family in dict.fromkeys(families.tolist())
        for at in order
        if np.count_nonzero(counts[families == family, at]) > 1
    ]


def list_leaves(metatask: t2v.MetaTask) -> list[Leave]:
    """What can be left out: of the only dataset nothing would be left to learn from."""
    return list(LEAVES)[: 1 if len(set(metatask.datasets)) == 1 else None]


def list_spaces(metatask: t2v.MetaTask) -> list[str]:
    """The probes and methods ("resnet34 robust") that tasks have distances by, the paper's first."""
    names = dict.fromkeys([*metatask.distances, *metatask.embeddings])
    if not names:
        raise t2v.errors.DataError(
            f"the meta-task '{metatask.name}' has no embeddings and no distances, so no expert can be chosen by them. "
            "Give one with embeddings (--bundle)."
        )

    def rank(name: str) -> tuple[int, str]:
        short = name.rpartition(":")[2]
        return FIRST_SPACES.index(short) if short in FIRST_SPACES else len(FIRST_SPACES), name

    return sorted(names, key=rank)


# --- what verdicts rest on -------------------------------------------------------------------------------------------


def find_recipe(metatask: t2v.MetaTask) -> str:
    """The recipe of all candidates that were fine-tuned; empty if there are several or none."""
    recipes = {model.recipe for model in metatask.models if model.recipe and not model.is_repeat}
    return recipes.pop() if len(recipes) == 1 else ""


def describe_experts(metatask: t2v.MetaTask) -> str:
    """The recipe of the experts and where the weights of their network come from, as far as both are known.

    Example:
        >>> from experiments.report import load_bundle
        >>> describe_experts(load_bundle(None))
        "Experts by achille2019. The resnet34 that they were fine-tuned from is no library's: the body of ..."
    """
    recipe = find_recipe(metatask)
    origins = {(model.network, model.weights_origin) for model in metatask.models if model.recipe}
    texts = [f"Experts by {recipe}."] if recipe else []
    return " ".join(texts + [
        f"The {network} that they were fine-tuned from is no library's: {origin}."
        for network, origin in sorted(origins, key=str) if origin
    ])  # fmt: skip
