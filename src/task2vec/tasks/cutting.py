"""Tasks cut out of a task: some of its classes, one task per taxon, one yes-or-no question per class.

All of them refer to the images of the task they come from; nothing is read again. What a cut leaves out is told: an
empty or single class is refused, and `TasksByTaxon.left_out` names the taxa that make no task.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.check import find_copies, quote, remark
from task2vec.tasks.images import choose_images
from task2vec.tasks.taxonomy import Taxon, Taxonomy

if TYPE_CHECKING:
    from task2vec.tasks.task import Task


@dataclass(frozen=True, eq=False, repr=False)
class TasksByTaxon(Mapping[str, "Task"]):
    """The tasks of a rank by the name of their taxon, and why the other taxa of that rank make none.

    Attributes:
        level: The rank.
        tasks: One task per taxon with two classes or more, in the order of the classes.
        left_out: For every other taxon, and for the classes without one, the reason.
    """

    level: str
    tasks: Mapping[str, "Task"]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> "Task":
        """The task of the taxon `name`."""
        return self.tasks[name]

    def __iter__(self) -> Iterator[str]:
        """The names of the taxa that make a task."""
        return iter(self.tasks)

    def __len__(self) -> int:
        """The number of tasks."""
        return len(self.tasks)

    def __repr__(self) -> str:
        """The tasks in one line."""
        return f"TasksByTaxon({self.level}, {len(self)} tasks, {len(self.left_out)} left out)"


def select_classes(task: "Task", classes: Sequence[str | int], name: str | None) -> "Task":
    """The task of some classes, by name or number; for multi-label, of some columns and all images."""
    kept = find_classes(task, classes)
    if not task.is_multilabel and len(kept) < 2:
        raise UsageError(
            f"select got {len(kept)} of the classes of '{task.name}' ({quote([task.classes[i] for i in kept])}): a "
            "classifier needs two to tell apart. Name another; for 'is it X or not' take one_vs_rest()."
        )
    if not kept:
        raise UsageError(f"select got no column of '{task.name}', so nothing is asked. Name at least one.")
    return _keep(task, kept, task.name if name is None else name, inherit_warnings(task))


def divide_by_taxon(task: "Task", level: str, taxonomy: Taxonomy) -> TasksByTaxon:
    """One task per taxon of a rank, in which its classes are told apart."""
    members = group_by_taxon(task.classes, level, taxonomy)
    names = _name_taxa([taxon for taxon in members if taxon is not None])
    inherited = inherit_warnings(task)
    tasks, left_out = {}, {}
    for taxon, numbers in members.items():
        few = f"{len(numbers)} classes have none: {quote([task.classes[i] for i in numbers])}"
        if taxon is None:
            left_out[f"no {level}"] = few
        elif len(numbers) < 2:
            left_out[names[taxon]] = f"it has a single class with images, {task.classes[numbers[0]]!r}"
        else:
            tasks[names[taxon]] = _keep(task, numbers, f"{task.name}: {names[taxon]}", inherited)
    return TasksByTaxon(level, tasks, left_out)


def merge_by_taxon(task: "Task", level: str, taxonomy: Taxonomy, name: str | None) -> "Task":
    """The task that tells the taxa of a rank apart; images of classes without a taxon there are left out and told."""
    if task.is_multilabel:
        raise UsageError(
            f"'{task.name}' is multi-label, so an image may belong to several taxa at once and none is its class. "
            "Take by_taxon for the attributes of each group."
        )
    members = group_by_taxon(task.classes, level, taxonomy)
    lost = members.pop(None, [])
    names = _name_taxa([taxon for taxon in members if taxon is not None])
    new_number = np.full(len(task.classes), -1)
    for number, old in enumerate(members.values()):
        new_number[old] = number
    targets = new_number[task.targets]
    rows = np.flatnonzero(targets >= 0)
    told = inherit_warnings(task)
    if lost:
        told += (
            f"classes without {level}, left out with {len(task) - len(rows)} images: "
            f"{quote([task.classes[i] for i in lost])}",
        )
    called = f"{task.name} by {level}" if name is None else name
    return _make(task, rows, targets[rows], [names[taxon] for taxon in members if taxon], called, told)


def ask_one_vs_rest(task: "Task") -> tuple["Task", ...]:
    """One binary task per class or attribute on the same images: ("not X", "X")."""
    inherited = inherit_warnings(task)
    copies = find_copies(task.digests)
    tasks = []
    for number, kind in enumerate(task.classes):
        is_it = task.targets[:, number] if task.is_multilabel else task.targets == number
        targets, classes = is_it.astype(np.int64), (f"not {kind}", kind)
        remarks = remark(targets, classes, task.digests, task.images.name, copies=copies)
        called = f"{task.name}: {kind}"
        tasks.append(replace(task, name=called, targets=targets, classes=classes, warnings=(*inherited, *remarks)))
    return tuple(tasks)


def find_classes(task: "Task", wanted: Sequence[str | int]) -> list[int]:
    """The numbers of classes that are named or numbered, in the task's order; each must be meant, and once."""
    if isinstance(wanted, (str, int)) or not hasattr(wanted, "__iter__"):
        raise UsageError(f"select needs a list of classes and got {wanted!r}. Pass [{wanted!r}, ...].")
    found = [_find_class(task, kind) for kind in wanted]
    twice = [task.classes[number] for number in dict.fromkeys(found) if found.count(number) > 1]
    if twice:
        raise UsageError(f"select got {quote(twice)} twice: was another class meant? Name every class once.")
    return sorted(found)


def inherit_warnings(task: "Task") -> tuple[str, ...]:
    """The warnings of a task that hold for its parts too: all but those about its own counts and copies."""
    own = remark(task.targets, task.classes, task.digests, task.images.name) if task.warnings else ()
    return tuple(warning for warning in task.warnings if warning not in own)


def group_by_taxon(classes: Sequence[str], level: str, taxonomy: Taxonomy) -> dict[Taxon | None, list[int]]:
    """The numbers of the classes of every taxon of a rank, and under None of those that have no taxon there."""
    if level not in taxonomy.ranks:
        raise UsageError(
            f"level={level!r} is no rank of this taxonomy, so nothing lies there. Choose one of "
            f"{quote(taxonomy.ranks, 20)}."
        )
    taxonomy.ancestors(classes)  # names all unknown classes at once
    members: dict[Taxon | None, list[int]] = {}
    for number, kind in enumerate(classes):
        taxon = next((taxon for taxon in taxonomy.lineage(kind) if taxon.rank == level), None)
        members.setdefault(taxon, []).append(number)
    return members


def _find_class(task: "Task", kind: str | int) -> int:
    """The number of one class; an unknown or ambiguous name is refused with what may have been meant."""
    if isinstance(kind, str):
        if task.classes.count(kind) == 1:
            return task.classes.index(kind)
        if kind in task.classes:
            numbers = [number for number, name in enumerate(task.classes) if name == kind]
            raise UsageError(f"{len(numbers)} classes of '{task.name}' are called {kind!r}. Give a number: {numbers}.")
        close = difflib.get_close_matches(kind, task.classes, n=3) or list(task.classes[:3])
        raise UsageError(
            f"'{task.name}' has no class {kind!r}, and another one would make another task. Its {len(task.classes)} "
            f"classes are called {quote(close)}{' and so on' if len(task.classes) > len(close) else ''}."
        )
    if isinstance(kind, (bool, np.bool_)) or not isinstance(kind, (int, np.integer)):
        raise UsageError(f"{kind!r} is neither a name nor a number of a class. For a mask, pass numpy.flatnonzero.")
    if not 0 <= kind < len(task.classes):
        raise UsageError(f"class {kind} is not in '{task.name}': its classes are 0 to {len(task.classes) - 1}.")
    return int(kind)


def _keep(task: "Task", kept: list[int], name: str, inherited: tuple[str, ...]) -> "Task":
    """The task of the classes `kept`: their images, or for multi-label their columns."""
    classes = [task.classes[number] for number in kept]
    if task.is_multilabel:
        return _make(task, np.arange(len(task)), task.targets[:, kept], classes, name, inherited)
    new_number = np.full(len(task.classes), -1)
    new_number[kept] = np.arange(len(kept))
    targets = new_number[task.targets]
    rows = np.flatnonzero(targets >= 0)
    return _make(task, rows, targets[rows], classes, name, inherited)


def _make(
    task: "Task", rows: np.ndarray, targets: np.ndarray, classes: Sequence[str], name: str, inherited: tuple[str, ...]
) -> "Task":
    """A task of the images at `rows` under new labels."""
    is_whole = len(rows) == len(task)
    images = task.images if is_whole else choose_images(task.images, rows.tolist())
    digests = task.digests if is_whole else tuple(task.digests[row] for row in rows)
    warnings = (*inherited, *remark(targets, classes, digests, images.name))
    changes = {"name": name, "images": images, "targets": targets, "classes": tuple(classes), "digests": digests}
    try:
        return replace(task, **changes, warnings=warnings)
    except DataError as error:
        raise DataError(f"cut from '{task.name}': {error}") from None


def _name_taxa(taxa: Sequence[Taxon]) -> dict[Taxon, str]:
    """What to call each taxon: its name, or its whole lineage where two of the rank have one name."""
    names = [taxon.name for taxon in taxa]
    return {
        taxon: taxon.name if names.count(taxon.name) == 1 else " > ".join((*taxon.above[1:], taxon.name))
        for taxon in taxa
    }
