"""The paper's two meta-tasks, chosen from the catalogs of the published datasets by its own rules.

Where the paper leaves something open, or contradicts itself, we chose as follows:

* Mixed has 50 tasks and 26 experts in its main text, 40 and 25 in its appendix. We take the appendix, which lists them:
  5 + 15 + 15 + 5 tasks, 15 + 3 + 2 + 5 experts. The generic expert, pretrained and never fine-tuned, is the 26th.
* "Samples" of iNaturalist are those to train on, which are what an expert needs.
* "Validation samples" of an iMaterialist label are those that have it: of every label all images are known, so that
  counting them would filter nothing.
* "Randomly pick tasks within each class" is a round: one task of every class in random order, then one more of each,
  until there are enough. That is the most even choice, and one task per class if there are as many classes.
* Experts of iNaturalist are the largest orders and classes of those with more than 10,000 samples.
* Attributes of DeepFashion are drawn from those that some training image has and some has not; others are no task.
* In iNat+CUB the paper leaves out the expert of the task itself. `left_out` has these pairs, and in Mixed also those of
  an order and the expert for its class, and of a label and the expert for its group.

`python -m experiments.paper_metatasks inat+cub --inaturalist DIR --cub200 DIR` lists one of them; no image is opened.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

import task2vec as t2v
from experiments.report import Row, make_app, say
from task2vec.errors import DataError, UsageError

# The catalog's name and the definition of a task in it.
Defined = tuple[str, t2v.TaskDefinition]
ATTRIBUTE, DIVIDED = "attribute", "Passeriformes"
# Orders and classes of iNaturalist that have an expert have more samples than this.
EXPERT_SAMPLES = 10_000


@dataclass(frozen=True)
class MetaTaskDefinition:
    """Tasks, and experts to choose from for each of them, before anything is read or trained.

    Attributes:
        name: what to call it.
        tasks: all tasks.
        experts: the tasks that experts are fine-tuned on; the generic expert is one more to choose.

    Example:
        >>> crows, ducks = (
        ...     t2v.TaskDefinition(name, "family", ("a", "b"), {"train": 60}, members)
        ...     for name, members in (("Corvidae", (0, 1)), ("Anatidae", (2, 3)))
        ... )
        >>> birds = (("birds", crows), ("birds", ducks))
        >>> sorted(MetaTaskDefinition("birds", birds, birds).left_out)
        [(0, 0), (1, 1)]
    """

    name: str
    tasks: tuple[Defined, ...]
    experts: tuple[Defined, ...]

    @property
    def left_out(self) -> frozenset[tuple[int, int]]:
        """Pairs of a task and an expert that was trained on the labels of that task: choosing it would prove nothing.

        That is so if both are of one catalog and one table and have a class or an attribute in common: an order and the
        expert for it or for the class that it belongs to, a colour and the expert for colours. Experts that saw the
        same images under other labels stay.
        """
        return frozenset(
            (row, column)
            for row, (catalog, task) in enumerate(self.tasks)
            for column, (other, source) in enumerate(self.experts)
            if catalog == other and task.table == source.table and not set(task.members).isdisjoint(source.members)
        )

    def to_dict(self) -> Row:
        """The meta-task as plain values."""

        def describe(catalog: str, one: t2v.TaskDefinition) -> Row:
            about = {"dataset": catalog, "name": one.name, "kind": one.kind, "group": one.group}
            about |= {"classes": len(one.classes), "images": dict(one.counts), "positives": dict(one.positives)}
            return about | {"is_multilabel": one.is_multilabel}

        tasks, experts = ([describe(*one) for one in side] for side in (self.tasks, self.experts))
        return {"metatask": self.name, "tasks": tasks, "experts": experts, "left_out": sorted(self.left_out)}


def inat_cub(inaturalist: t2v.Catalog, cub: t2v.Catalog) -> MetaTaskDefinition:
    """The meta-task iNat+CUB: the 25 largest orders of iNaturalist and the 25 CUB tasks, which are the experts as well.

    Args:
        inaturalist: from `read_inaturalist`.
        cub: from `read_cub200(folder, taxonomy="paper")`, whose tasks are the paper's 25; our own taxonomy gives 24.
    """
    orders = _choose_large(inaturalist, "order", 25, 0)
    tasks = (*((inaturalist.name, one) for one in orders), *((cub.name, one) for one in find_birds(cub)))
    return MetaTaskDefinition("inat+cub", tasks, tasks)


def mixed(
    inaturalist: t2v.Catalog, cub: t2v.Catalog, imaterialist: t2v.Catalog, deepfashion: t2v.Catalog, *, seed: int = 0
) -> MetaTaskDefinition:
    """The meta-task Mixed: 40 random tasks of four datasets, and 25 curated experts of three of them.

    Args:
        inaturalist: from `read_inaturalist`.
        cub: from `read_cub200(folder, taxonomy="paper")`.
        imaterialist: from `read_imaterialist`, with the map of its labels, without which they have no groups.
        deepfashion: from `read_deepfashion`.
        seed: another seed picks other tasks; the experts do not depend on it.
    """
    rngs = [np.random.default_rng([seed, number]) for number in range(4)]
    birds = find_birds(cub)
    picked = []
    for kind, wanted, words in (("order", 2, "orders but Passeriformes"), ("family", 3, "families of Passeriformes")):
        some = [one for one in birds if one.kind == kind]
        picked += [(cub, one) for one in _draw(some, wanted, rngs[0], f"{cub.name}: {words}")]
    split, fewest = _find_validation(inaturalist), 100
    orders = [one for one in inaturalist.of_kind("order") if one.counts[split] >= fewest]
    what = f"{inaturalist.name}: orders with at least {fewest} validation images"
    picked += [(inaturalist, one) for one in _draw(orders, 15, rngs[1], what, by_group=True)]
    split, fewest = _find_validation(imaterialist), 1_000
    labels = [one for one in imaterialist.of_kind(ATTRIBUTE) if one.group and one.positives[split] >= fewest]
    what = f"{imaterialist.name}: labels of a known group that at least {fewest} validation images have"
    picked += [(imaterialist, one) for one in _draw(labels, 15, rngs[2], what, by_group=True)]
    train = next(iter(deepfashion.splits))
    usable = [one for one in deepfashion.of_kind(ATTRIBUTE) if 0 < one.positives[train] < one.counts[train]]
    what = f"{deepfashion.name}: attributes that some training images have and some have not"
    picked += [(deepfashion, one) for one in _draw(usable, 5, rngs[3], what)]
    groups = ("color", "gender", "neckline", "sleeve", "style")
    curated = (
        (inaturalist, _choose_large(inaturalist, "order", 8, EXPERT_SAMPLES)),
        (inaturalist, _choose_large(inaturalist, "class", 7, EXPERT_SAMPLES)),
        (deepfashion, _choose_named(deepfashion, ("upper-body", "lower-body", "full-body"), "category")),
        (imaterialist, _choose_named(imaterialist, ("pants", "shoes"), ATTRIBUTE, group="category")),
        (imaterialist, _choose_named(imaterialist, groups, "attribute group")),
    )
    experts = tuple((catalog.name, one) for catalog, some in curated for one in some)
    return MetaTaskDefinition("mixed", tuple((catalog.name, one) for catalog, one in picked), experts)


def find_birds(cub: t2v.Catalog) -> list[t2v.TaskDefinition]:
    """The CUB tasks of the paper: the orders but Passeriformes, which outweighs them all, and the families of that.

    Another number of them comes from another taxonomy, and is refused.
    """
    known = [one for one in cub.of_kind("order") if one.name != DIVIDED]
    known += [one for one in cub.of_kind("family") if one.group == DIVIDED]
    if len(known) != 25:
        raise DataError(
            f"{cub.name}: there are {len(known)} orders and Passeriformes families of two species or more, and the "
            "meta-task takes 25. Read it with taxonomy='paper'."
        )
    return known


def _choose_large(catalog: t2v.Catalog, kind: str, wanted: int, more_than: int) -> list[t2v.TaskDefinition]:
    """The largest tasks of a kind, of those with more than so many samples to train on."""
    train = next(iter(catalog.splits))
    large = [one for one in catalog.of_kind(kind) if one.counts[train] > more_than]
    _check_count(wanted, large, f"{catalog.name}: tasks by {kind} with more than {more_than} training images")
    return sorted(large, key=lambda one: (-one.counts[train], one.name))[:wanted]


def _choose_named(
    catalog: t2v.Catalog, names: Sequence[str], kind: str, *, group: str = ""
) -> list[t2v.TaskDefinition]:
    """The tasks of these names, in capitals or not."""
    found = {one.name.casefold(): one for one in catalog.of_kind(kind) if not group or one.group.casefold() == group}
    missing = [name for name in names if name.casefold() not in found]
    if missing:
        raise DataError(
            f"{catalog.name} has no {kind}{f' of the group {group!r}' if group else ''} called {missing[0]!r}, on "
            f"which the paper trains experts; it has {', '.join(map(repr, found)) or 'none'}. Read it with its names "
            "(iMaterialist: labels=, --labels)."
        )
    return [found[name.casefold()] for name in names]


def _find_validation(catalog: t2v.Catalog) -> str:
    """The name of the catalog's validation split."""
    for name in ("val", "validation"):
        if name in catalog.splits:
            return name
    raise DataError(
        f"{catalog.name} has no validation split, only {', '.join(catalog.splits)}, and tasks are picked by how "
        "many validation images they have. Read it with its validation annotations."
    )


def _draw(
    among: Sequence[t2v.TaskDefinition], wanted: int, rng: np.random.Generator, what: str, *, by_group: bool = False
) -> list[t2v.TaskDefinition]:
    """Some tasks at random, whatever their order in the catalog.

    By group: one of every group in random order, then one more of each, until there are enough.
    """
    _check_count(wanted, among, what)
    groups: dict[str, list[t2v.TaskDefinition]] = defaultdict(list)
    for one in sorted(among, key=lambda one: (one.group if by_group else "", one.name)):
        groups[one.group if by_group else ""].append(one)
    shuffled = [[some[number] for number in rng.permutation(len(some))] for some in groups.values()]
    shuffled = [shuffled[number] for number in rng.permutation(len(shuffled))]
    rounds = range(max(map(len, shuffled), default=0))
    return [some[number] for number in rounds for some in shuffled if number < len(some)][:wanted]


def _check_count(wanted: int, there: Sequence[t2v.TaskDefinition], what: str) -> None:
    if len(there) < wanted:
        raise DataError(f"{what}: the rule needs {wanted}, and there are {len(there)}. Is the dataset whole?")


Folder = Annotated[Path | None, typer.Option(help="Where it is unpacked.", metavar="DIR")]


def list_metatask(
    name: Annotated[Literal["inat+cub", "mixed"], typer.Argument(help="Which meta-task of the paper.")],
    inaturalist: Folder = None,
    cub200: Folder = None,
    imaterialist: Folder = None,
    deepfashion: Folder = None,
    labels: Annotated[Path | None, typer.Option(help="iMaterialist: the table of the labels' names.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of mixed: another seed picks other tasks.")] = 0,
) -> None:
    """List the tasks and experts of a meta-task of the paper as JSON, without opening an image."""
    folders = {"inaturalist": inaturalist, "cub200": cub200, "imaterialist": imaterialist, "deepfashion": deepfashion}
    needed = list(folders)[:2] if name == "inat+cub" else list(folders)
    if missing := [f"--{one} DIR" for one in needed if folders[one] is None]:
        raise UsageError(
            f"{name} lacks {' '.join(missing)}: it is made of {', '.join(needed)}. Give the folder of each."
        )
    read = []
    for one in needed:
        # The paper files two species elsewhere than our own table does; its meta-tasks follow it.
        layout, names = "cub200-paper" if one == "cub200" else one, labels if one == "imaterialist" else None
        read.append(t2v.read_catalog(folders[one] or "", layout=layout, labels=names))
        for warning in read[-1].warnings:
            say(f"warning: {warning}")
    print(json.dumps((inat_cub(*read) if name == "inat+cub" else mixed(*read, seed=seed)).to_dict(), indent=1))


app = make_app(list_metatask)

if __name__ == "__main__":
    app()
