"""The paper's two meta-tasks, chosen from the catalogues by its own rules.

Where the paper leaves something open, or says two things, we chose as follows:

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

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from experiments.console import make_app, open_page, print_json, say
from task2vec.errors import DataError, UsageError
from task2vec.tasks import Catalog, TaskDefinition, read_catalog
from task2vec.tasks.catalog import ATTRIBUTE, ATTRIBUTE_GROUP
from task2vec.tasks.cub200 import paper_tasks
from task2vec.tasks.task import quote
from task2vec.text import printable

# The catalogue's name and the definition of a task in it.
Defined = tuple[str, TaskDefinition]


@dataclass(frozen=True)
class MetaTaskDefinition:
    """Tasks, and experts to choose from for each of them, before anything is read or trained.

    Attributes:
        name: What to call it.
        tasks: All tasks.
        experts: The tasks that experts are fine-tuned on; the generic expert is one more to choose.

    Example:
        >>> crows, ducks = (
        ...     TaskDefinition(name, "family", ("a", "b"), {"train": 60}, members)
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

        That is so if both are of one catalogue and one table and have a class or an attribute in common: an order and
        the expert for it or for the class that it belongs to, a colour and the expert for colours. Experts that saw the
        same images under other labels stay.
        """
        return frozenset(
            (row, column)
            for row, (catalogue, task) in enumerate(self.tasks)
            for column, (other, source) in enumerate(self.experts)
            if catalogue == other and task.table == source.table and not set(task.members).isdisjoint(source.members)
        )


@dataclass(frozen=True)
class MixedRules:
    """The numbers of the Mixed meta-task; the defaults are the paper's.

    Attributes:
        birds: How many CUB tasks there must be to pick from: 25 by the paper's taxonomy.
        cub_orders: How many CUB tasks are orders.
        cub_families: How many CUB tasks are families of Passeriformes.
        inaturalist_tasks: How many tasks are orders of iNaturalist.
        inaturalist_validation: The fewest validation images of such an order.
        imaterialist_tasks: How many tasks are labels of iMaterialist.
        imaterialist_validation: The fewest validation images that have such a label.
        deepfashion_tasks: How many tasks are attributes of DeepFashion.
        order_experts: How many experts are for an order of iNaturalist.
        class_experts: How many experts are for a class of iNaturalist.
        expert_samples: What such an order or class must have more of than this.
        body_experts: The categories of DeepFashion that have an expert.
        label_experts: The categories of iMaterialist that have an expert.
        group_experts: The groups of iMaterialist labels that have an expert.
    """

    birds: int = 25
    cub_orders: int = 2
    cub_families: int = 3
    inaturalist_tasks: int = 15
    inaturalist_validation: int = 100
    imaterialist_tasks: int = 15
    imaterialist_validation: int = 1_000
    deepfashion_tasks: int = 5
    order_experts: int = 8
    class_experts: int = 7
    expert_samples: int = 10_000
    body_experts: tuple[str, ...] = ("upper-body", "lower-body", "full-body")
    label_experts: tuple[str, ...] = ("pants", "shoes")
    group_experts: tuple[str, ...] = ("color", "gender", "neckline", "sleeve", "style")


def inat_cub(inaturalist: Catalog, cub: Catalog, *, orders: int = 25, birds: int = 25) -> MetaTaskDefinition:
    """The meta-task iNat+CUB: the orders of iNaturalist with the most samples and the CUB tasks; as experts the same.

    Args:
        inaturalist: From `read_inaturalist`.
        cub: From `read_cub200(folder, taxonomy="paper")`, whose tasks are the paper's 25; our own taxonomy gives 24.
        orders: How many orders.
        birds: How many CUB tasks there must be.

    Raises:
        DataError: There are fewer of either.
    """
    train = inaturalist.splits.names[0]
    ranked = sorted(inaturalist.of_kind("order"), key=lambda one: (-one.counts[train], one.name))
    _need(orders, ranked, f"{inaturalist.name}: orders of two species or more")
    known = _find_birds(cub, birds, "pass birds={}")
    tasks = (*((inaturalist.name, one) for one in ranked[:orders]), *((cub.name, one) for one in known))
    return MetaTaskDefinition("inat+cub", tasks, tasks)


def mixed(
    inaturalist: Catalog,
    cub: Catalog,
    imaterialist: Catalog,
    deepfashion: Catalog,
    *,
    seed: int = 0,
    rules: MixedRules | None = None,
) -> MetaTaskDefinition:
    """The meta-task Mixed: 40 random tasks of four datasets, and 25 curated experts of three of them.

    Args:
        inaturalist: From `read_inaturalist`.
        cub: From `read_cub200(folder, taxonomy="paper")`, as for `inat_cub`.
        imaterialist: From `read_imaterialist`, with the map of its labels, without which they have no groups.
        deepfashion: From `read_deepfashion`.
        seed: Another seed picks other tasks; the experts do not depend on it.
        rules: Other numbers than the paper's.

    Raises:
        DataError: A dataset cannot fill a rule; the message says which, and how many there are.
    """
    rules = rules or MixedRules()
    picked = (
        (cub, _pick_birds(cub, rules, np.random.default_rng([seed, 0]))),
        (inaturalist, _pick_orders(inaturalist, rules, np.random.default_rng([seed, 1]))),
        (imaterialist, _pick_labels(imaterialist, rules, np.random.default_rng([seed, 2]))),
        (deepfashion, _pick_attributes(deepfashion, rules, np.random.default_rng([seed, 3]))),
    )
    curated = (
        (inaturalist, _choose_large(inaturalist, "order", rules.order_experts, rules.expert_samples)),
        (inaturalist, _choose_large(inaturalist, "class", rules.class_experts, rules.expert_samples)),
        (deepfashion, _choose_named(deepfashion, rules.body_experts, "category")),
        (imaterialist, _choose_named(imaterialist, rules.label_experts, ATTRIBUTE, group="category")),
        (imaterialist, _choose_named(imaterialist, rules.group_experts, ATTRIBUTE_GROUP)),
    )
    tasks = tuple((catalogue.name, one) for catalogue, some in picked for one in some)
    experts = tuple((catalogue.name, one) for catalogue, some in curated for one in some)
    return MetaTaskDefinition("mixed", tasks, experts)


def _find_birds(cub: Catalog, wanted: int, otherwise: str) -> tuple[TaskDefinition, ...]:
    """The CUB tasks of the paper; another number of them comes from another taxonomy, and is refused."""
    known = paper_tasks(cub)
    if len(known) != wanted:
        raise DataError(
            f"{cub.name}: there are {len(known)} orders and Passeriformes families of two species or more, and the "
            f"meta-task takes {wanted}. Read it with taxonomy='paper' for the paper's 25, or "
            f"{otherwise.format(len(known))}."
        )
    return known


def _pick_birds(cub: Catalog, rules: MixedRules, rng: np.random.Generator) -> list[TaskDefinition]:
    """Some orders and some families of Passeriformes."""
    known = _find_birds(cub, rules.birds, "pass rules=MixedRules(birds={})")
    picked = []
    for kind, wanted in (("order", rules.cub_orders), ("family", rules.cub_families)):
        some = [one for one in known if one.kind == kind]
        words = "orders but Passeriformes" if kind == "order" else "families of Passeriformes"
        picked += _draw(some, wanted, rng, f"{cub.name}: {words}, of two species or more")
    return picked


def _pick_orders(inaturalist: Catalog, rules: MixedRules, rng: np.random.Generator) -> list[TaskDefinition]:
    """Orders with enough validation images, evenly over the classes."""
    split, fewest = _find_validation(inaturalist), rules.inaturalist_validation
    enough = [one for one in inaturalist.of_kind("order") if one.counts[split] >= fewest]
    what = f"{inaturalist.name}: orders with at least {fewest} validation images"
    return _draw_in_rounds(enough, rules.inaturalist_tasks, rng, what)


def _pick_labels(imaterialist: Catalog, rules: MixedRules, rng: np.random.Generator) -> list[TaskDefinition]:
    """Labels that enough validation images have, evenly over the groups."""
    split, fewest = _find_validation(imaterialist), rules.imaterialist_validation
    enough = [one for one in imaterialist.of_kind(ATTRIBUTE) if one.group and one.positives[split] >= fewest]
    what = f"{imaterialist.name}: labels of a known group that at least {fewest} validation images have"
    return _draw_in_rounds(enough, rules.imaterialist_tasks, rng, what)


def _pick_attributes(deepfashion: Catalog, rules: MixedRules, rng: np.random.Generator) -> list[TaskDefinition]:
    """Attributes that can be learned, each with the same chance."""
    train = deepfashion.splits.names[0]
    usable = [one for one in deepfashion.of_kind(ATTRIBUTE) if 0 < one.positives[train] < one.counts[train]]
    what = f"{deepfashion.name}: attributes that some training images have and some have not"
    return _draw(usable, rules.deepfashion_tasks, rng, what)


def _choose_large(catalogue: Catalog, kind: str, wanted: int, more_than: int) -> list[TaskDefinition]:
    """The largest tasks of a kind, of those with more than so many samples to train on."""
    train = catalogue.splits.names[0]
    large = [one for one in catalogue.of_kind(kind) if one.counts[train] > more_than]
    _need(wanted, large, f"{catalogue.name}: tasks by {kind} with more than {more_than} training images, for experts")
    return sorted(large, key=lambda one: (-one.counts[train], one.name))[:wanted]


def _choose_named(catalogue: Catalog, names: Sequence[str], kind: str, *, group: str = "") -> list[TaskDefinition]:
    """The tasks of these names, in capitals or not."""
    among = [one for one in catalogue.of_kind(kind) if not group or one.group.casefold() == group]
    found = {one.name.casefold(): one for one in among}
    missing = [name for name in names if name.casefold() not in found]
    if missing:
        raise DataError(
            f"{catalogue.name} has no {kind}{f' of the group {group!r}' if group else ''} called {quote(missing)}, on "
            f"which the paper trains experts; it has {quote([one.name for one in among], 20) or 'none'}. Read it with "
            "its names (iMaterialist: labels=, --labels), or name others in Python: rules=MixedRules(...)."
        )
    return [found[name.casefold()] for name in names]


def _find_validation(catalogue: Catalog) -> str:
    """What the catalogue calls its validation split."""
    for name in ("val", "validation"):
        if name in catalogue.splits.names:
            return name
    raise DataError(
        f"{catalogue.name} has no validation split, only {quote(catalogue.splits.names)}, and tasks are picked by how "
        "many validation images they have. Read it with its validation annotations."
    )


def _draw(among: Sequence[TaskDefinition], wanted: int, rng: np.random.Generator, what: str) -> list[TaskDefinition]:
    """Some tasks at random, whatever their order in the catalogue."""
    _need(wanted, among, what)
    ordered = sorted(among, key=lambda one: one.name)
    return [ordered[number] for number in rng.permutation(len(ordered))[:wanted]]


def _draw_in_rounds(
    among: Sequence[TaskDefinition], wanted: int, rng: np.random.Generator, what: str
) -> list[TaskDefinition]:
    """One task of every group in random order, then one more of each, until there are enough."""
    _need(wanted, among, what)
    groups: dict[str, list[TaskDefinition]] = defaultdict(list)
    for one in sorted(among, key=lambda one: (one.group, one.name)):
        groups[one.group].append(one)
    shuffled = [[some[number] for number in rng.permutation(len(some))] for some in groups.values()]
    shuffled = [shuffled[number] for number in rng.permutation(len(shuffled))]
    rounds = range(max(map(len, shuffled), default=0))
    return [some[number] for number in rounds for some in shuffled if number < len(some)][:wanted]


def _need(wanted: int, there: Sequence[TaskDefinition], what: str) -> None:
    """Raise `DataError` if a rule asks for more tasks than there are."""
    if len(there) < wanted:
        raise DataError(
            f"{what}: the rule asks for {wanted}, and there are {len(there)} ({quote([one.name for one in there])}). "
            "Is the dataset whole? Other numbers than the paper's can be asked for in Python: orders=, rules=."
        )


Folder = Annotated[Path | None, typer.Option(help="Where it is unpacked.", metavar="DIR")]


def list_metatask(
    name: Annotated[Literal["inat+cub", "mixed"], typer.Argument(help="Which meta-task of the paper.")],
    inaturalist: Folder = None,
    cub200: Folder = None,
    imaterialist: Folder = None,
    deepfashion: Folder = None,
    labels: Annotated[Path | None, typer.Option(help="iMaterialist: the table of the labels' names.")] = None,
    seed: Annotated[int, typer.Option(help="Of mixed: another seed picks other tasks.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List the tasks and experts of a meta-task of the paper, without opening an image."""
    folders = {"inaturalist": inaturalist, "cub200": cub200, "imaterialist": imaterialist, "deepfashion": deepfashion}
    needed = ["inaturalist", "cub200"] if name == "inat+cub" else list(folders)
    missing = [f"--{one} DIR" for one in needed if folders[one] is None]
    if missing:
        raise UsageError(
            f"{name} lacks {' '.join(missing)}: it is made of {', '.join(needed)}. Give the folder of each."
        )
    read = {}
    for one in needed:
        # The paper files two species elsewhere than our own table does; its meta-tasks follow it.
        layout, names = "cub200-paper" if one == "cub200" else one, labels if one == "imaterialist" else None
        read[one] = read_catalog(folders[one] or "", layout=layout, labels=names)
        for warning in read[one].warnings:
            say(f"warning: {printable(warning)}")
    found = (
        inat_cub(**{"inaturalist": read["inaturalist"], "cub": read["cub200"]})
        if len(needed) == 2
        else mixed(read["inaturalist"], read["cub200"], read["imaterialist"], read["deepfashion"], seed=seed)
    )
    report = describe(found)
    if as_json:
        return print_json(report)
    page = open_page()
    for what in ("tasks", "experts"):
        page.print(f"{found.name}: {len(report[what])} {what}{' and the generic one' if what == 'experts' else ''}")
        for dataset, rows in groupby(report[what], key=lambda row: row["dataset"]):
            page.print(f"\nof {printable(dataset)}")
            for row in rows:
                images = sum(row["images"].values())
                page.print(printable(f"  {row['name']} ({row['kind']}): {row['classes']} classes, {images} images"))
        page.print("")
    page.print(
        f"{len(report['left_out'])} pairs are left out: the expert was trained on the labels of the task (--json)"
    )


def describe(meta: MetaTaskDefinition) -> dict[str, Any]:
    """The meta-task as plain values."""

    def tell(catalogue: str, one: TaskDefinition) -> dict[str, Any]:
        told = {"dataset": catalogue, "name": one.name, "kind": one.kind, "group": one.group}
        told |= {"classes": len(one.classes), "images": dict(one.counts), "positives": dict(one.positives)}
        return told | {"is_multilabel": one.is_multilabel}

    return {
        "metatask": meta.name,
        "tasks": [tell(*one) for one in meta.tasks],
        "experts": [tell(*one) for one in meta.experts],
        "left_out": sorted(meta.left_out),
    }


app = make_app(list_metatask)

if __name__ == "__main__":
    app()
