"""The paper's own meta-tasks and its collection, from the catalogs of its four datasets; no image is opened here.

Achille 2019, appendix "Datasets, tasks and meta-tasks". Where it is unclear, we chose:

- Samples are the images of the published training split, and validation samples those of the last published split that
  has labels, on which errors are measured: "val" of iNaturalist and iMaterialist, "test" of CUB and DeepFashion.
- The year of iNaturalist is not given. Its orders need a year with ranks, so not 2017; 64,100 samples of
  Passeriformes, which a dry run can be compared with, would be most of the birds of 2018.
- The validation samples of an attribute of iMaterialist are the images that have it: with those that lack it, every
  attribute would have all images, and the limit would leave nothing out.
- The four tasks and five experts of the data-efficiency experiment are "a subset" of the meta-task Mixed, so they are
  in it; the other tasks are drawn at random, the other experts are the largest. Upper-body is a task, so the three
  tasks by category of DeepFashion are drawn from as its thousand attributes are.
- "Maximum variety": the groups take turns, and each gives a random task of its own in each turn.
- The category experts of DeepFashion classify the categories of upper-body, lower-body and full-body clothes. Those of
  iMaterialist likewise classify kinds of pants and kinds of shoes; its labels have no such groups, so `KINDS` lists
  them. An image with labels of two kinds is left out, since one class is needed.
- The generic expert is a 26th model of Mixed beside its 25 experts, as in the paper's section 5, and a 51st of
  iNat+CUB.
- An expert is no candidate for a task if it was trained on a label of the task on the images of its dataset: the task's
  own expert, and in Mixed also that of the class around an order, or of the group around an attribute. Experts for
  other labels of the same images are candidates; no test image was trained on.
- Seeds are not given: ours is 0.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

import task2vec as t2v
from task2vec.tasks import Catalog, TaskDefinition

INATURALIST, CUB, IMATERIALIST, DEEPFASHION = "inaturalist", "cub200", "imaterialist", "deepfashion"
# Names of tasks begin with these, as in the other meta-tasks.
PREFIXES = {INATURALIST: "inat", CUB: "cub", IMATERIALIST: "imat", DEEPFASHION: "deepfashion"}
TRAIN = "train"
PASSERIFORMES = "Passeriformes"
# Random tasks of these are drawn by group, for variety.
GROUPED = (INATURALIST, IMATERIALIST)
CATEGORIES = ("upper-body", "lower-body", "full-body")
GROUPS = ("color", "gender", "neckline", "sleeve", "style")
# Labels of iMaterialist as published.
KINDS = {
    "pants": ("Athletic Pants", "Baggy Jeans", "Capri Pants", "Cargo Pants", "Casual Pants", "Drawstring Pants",
              "Harem Pants", "Jeans", "Leggings", "Skinny Jeans", "Sweatpants", "Trousers", "Yoga Pants"),
    "shoes": ("Boots", "Business Shoes", "Casual Shoes", "Cleats", "Flats", "Heels", "Hiking Boots",
              "Loafers & Slip-on Shoes", "Rain Boots", "Running Shoes", "Sandals", "Slippers", "Sneakers", "Stilettos",
              "Wedges & Platforms", "Winter Boots"),
}  # fmt: skip
# The data-efficiency experiment; the paper writes Upper-body and Color.
SUBSET_TASKS = ("inat_Accipitriformes", "inat_Asparagales", "deepfashion_upper-body", "imat_Short Sleeves")
SUBSET_EXPERTS = ("imat_color", "inat_Lepidoptera", "deepfashion_upper-body", "inat_Passeriformes", "inat_Asterales")
# Images per class that it trains on. The paper does not give them.
SHOTS = (2, 5, 20, 100, 500)


@dataclass(frozen=True)
class PaperTask:
    """A task of one of the four datasets, as its catalog defines it.

    Attributes:
        dataset: "inaturalist", "cub200", "imaterialist" or "deepfashion".
        catalog: of the dataset.
        definition: of the task.
    """

    dataset: str
    catalog: Catalog
    definition: TaskDefinition

    @property
    def name(self) -> str:
        """The name, unique among all datasets."""
        return f"{PREFIXES[self.dataset]}_{self.definition.name}"

    @property
    def test_split(self) -> str:
        """The split that errors are measured on."""
        return [*self.catalog.splits][-1]

    @property
    def samples(self) -> int:
        """The number of training images."""
        return self.definition.counts[TRAIN]

    @property
    def labels(self) -> frozenset[str]:
        """Its classes, or the attributes that it is about."""
        table = self.catalog.tables[self.definition.table]
        return frozenset(table.names[number] for number in self.definition.members)

    @property
    def lineage(self) -> tuple[str, ...]:
        """The taxa from the kingdom down to the one that the task is about; empty for clothes."""
        tree, kind = self.catalog.taxonomy, self.definition.kind
        if tree is None or kind not in tree.ranks or self.dataset == DEEPFASHION:
            return ()
        return tuple(filter(None, tree.lineages[self.definition.classes[0]][: tree.ranks.index(kind) + 1]))

    def has_classes(self, split: str) -> bool:
        """Whether images of at least two classes are in a split."""
        table = self.catalog.tables[self.definition.table]
        _, labels = table.select(self.definition, self.catalog.rows(split))
        return len(np.unique(labels)) > 1

    def was_trained_on(self, expert: "PaperTask") -> bool:
        """Whether the expert for another task has learned a label of this one."""
        return self.dataset == expert.dataset and not self.labels.isdisjoint(expert.labels)


@dataclass(frozen=True)
class PaperPlan:
    """A meta-task of the paper, or its collection, which has no experts.

    Attributes:
        name: of the meta-task, as the command that builds it.
        tasks: its tasks.
        experts: the tasks that its experts are fine-tuned on; the generic expert is beside them.
        tuned_tasks: tasks that whole networks are fine-tuned on.
        tuned_experts: the experts that this starts from, beside the generic one.
        shots: images per class that it is also done with, for the data-efficiency curves.
    """

    name: str
    tasks: tuple[PaperTask, ...]
    experts: tuple[PaperTask, ...] = ()
    tuned_tasks: tuple[PaperTask, ...] = ()
    tuned_experts: tuple[PaperTask, ...] = ()
    shots: tuple[int, ...] = ()

    @property
    def embedded(self) -> tuple[PaperTask, ...]:
        """All tasks, and then the experts' source tasks that are none of them."""
        return tuple(dict.fromkeys((*self.tasks, *self.experts)))


@dataclass(frozen=True)
class Counts:
    """How many tasks and experts there are, and the limits on their images: the paper's, unless for a test.

    Attributes:
        orders: tasks of iNat+CUB from iNaturalist.
        bird_orders: orders of CUB, all of them tasks of iNat+CUB.
        bird_families: families of its Passeriformes, likewise.
        mixed: tasks of Mixed: orders of birds, families of birds, orders of iNaturalist, attributes of iMaterialist,
            and of DeepFashion.
        expert_orders: experts of Mixed for orders of iNaturalist.
        expert_classes: for classes of iNaturalist.
        more_samples: these experts have more training images than this.
        least_order: validation images that an order of iNaturalist has at least.
        least_attribute: validation images that have an attribute of iMaterialist, at least.
    """

    orders: int = 25
    bird_orders: int = 10
    bird_families: int = 15
    mixed: tuple[int, int, int, int, int] = (2, 3, 15, 15, 5)
    expert_orders: int = 8
    expert_classes: int = 7
    more_samples: int = 10_000
    least_order: int = 100
    least_attribute: int = 1_000


PAPER = Counts()


def plan_inat_cub(inaturalist: Catalog, cub: Catalog, *, counts: Counts = PAPER) -> PaperPlan:
    """The meta-task iNat+CUB: the orders of iNaturalist with the most samples, and 25 tasks of birds.

    Every task has its expert. The paper defines its transfer distance and measures none: here the few images of CUB are
    the tasks that all experts are fine-tuned on.
    """
    orders = sort_by_samples(list_tasks(INATURALIST, inaturalist, "order"))
    birds = list_birds(cub, counts)
    tasks = (*take(orders, counts.orders, "orders of iNaturalist"), *birds)
    return PaperPlan("inat-cub", tasks, tasks, tuned_tasks=tuple(birds), tuned_experts=tasks)


def plan_mixed(
    inaturalist: Catalog,
    cub: Catalog,
    imaterialist: Catalog,
    deepfashion: Catalog,
    *,
    counts: Counts = PAPER,
    seed: int = 0,
) -> PaperPlan:
    """The meta-task Mixed: 40 random tasks of all datasets, and 25 experts of all but CUB."""
    clothes, birds = add_kinds(imaterialist), list_birds(cub, counts)
    orders, classes = (list_tasks(INATURALIST, inaturalist, kind) for kind in ("order", "class"))
    attributes = list_tasks(IMATERIALIST, clothes, "attribute")
    fashion = list_tasks(DEEPFASHION, deepfashion, "attribute") + list_tasks(DEEPFASHION, deepfashion, "category")
    pools = {
        "orders of CUB": birds[: counts.bird_orders],
        "families of CUB": birds[counts.bird_orders :],
        f"orders of iNaturalist with {counts.least_order} validation samples or more":
            [task for task in orders if task.definition.counts[task.test_split] >= counts.least_order],
        f"attributes of iMaterialist with {counts.least_attribute} validation samples or more":
            [task for task in attributes if task.definition.positives[task.test_split] >= counts.least_attribute],
        "tasks of DeepFashion": [task for task in fashion if task.has_classes(TRAIN)],
    }  # fmt: skip
    tasks: list[PaperTask] = []
    for number, (name, pool) in enumerate(pools.items()):
        usable = [task for task in pool if task.has_classes(task.test_split)]
        tasks += take(draw_in_turns(usable, np.random.default_rng([seed, number])), counts.mixed[number], name)
    large = [[task for task in pool if task.samples > counts.more_samples] for pool in (orders, classes)]
    limit = f"of iNaturalist with more than {counts.more_samples} samples"
    experts = [
        *take(sort_by_samples(large[0], first=SUBSET_EXPERTS), counts.expert_orders, f"orders {limit}"),
        *take(sort_by_samples(large[1]), counts.expert_classes, f"classes {limit}"),
        *(PaperTask(DEEPFASHION, deepfashion, deepfashion.find(name, "category")) for name in CATEGORIES),
        *(PaperTask(IMATERIALIST, clothes, clothes.find(name, "category")) for name in KINDS),
        *(PaperTask(IMATERIALIST, clothes, clothes.find(name, "attribute group")) for name in GROUPS),
    ]
    tuned_tasks, tuned_experts = pick_subset(tasks, SUBSET_TASKS), pick_subset(experts, SUBSET_EXPERTS)
    return PaperPlan("mixed", tuple(tasks), tuple(experts), tuned_tasks, tuned_experts, shots=SHOTS)


def plan_collection(
    inaturalist: Catalog, cub: Catalog, imaterialist: Catalog, deepfashion: Catalog, *, counts: Counts = PAPER
) -> PaperPlan:
    """The collection: all orders of iNaturalist, 25 tasks of birds, and all attributes of both datasets of clothes.

    The paper has 207 + 25 + 228 + 1,000 tasks. A task whose training images are all of one class is left out.
    """
    tasks = list_tasks(INATURALIST, inaturalist, "order") + list_birds(cub, counts)
    tasks += list_tasks(IMATERIALIST, imaterialist, "attribute") + list_tasks(DEEPFASHION, deepfashion, "attribute")
    return PaperPlan("collection", tuple(task for task in tasks if task.has_classes(TRAIN)))


# --- choosing tasks --------------------------------------------------------------------------------------------------


def list_tasks(dataset: str, catalog: Catalog, kind: str) -> list[PaperTask]:
    """All tasks of a kind."""
    return [PaperTask(dataset, catalog, definition) for definition in catalog.of_kind(kind)]


def list_birds(cub: Catalog, counts: Counts) -> list[PaperTask]:
    """The usable orders of CUB without Passeriformes, and then the usable families of these."""
    orders = [task for task in list_tasks(CUB, cub, "order") if task.definition.name != PASSERIFORMES]
    families = [task for task in list_tasks(CUB, cub, "family") if task.definition.group == PASSERIFORMES]
    if (len(orders), len(families)) != (counts.bird_orders, counts.bird_families):
        raise t2v.errors.DataError(
            f"{cub.root} has {len(orders)} orders and {len(families)} families of Passeriformes with two species or "
            f"more, but the paper has {counts.bird_orders} and {counts.bird_families}. Use the complete CUB-200-2011, "
            "read by read_cub200(folder, taxonomy='paper')."
        )
    return orders + families


def draw_in_turns(tasks: Sequence[PaperTask], rng: np.random.Generator) -> list[PaperTask]:
    """The tasks in random order, those of the data-efficiency experiment first.

    Those of iNaturalist and iMaterialist are in groups that take turns: every group has given one before any gives two.
    """
    shuffled = [tasks[number] for number in rng.permutation(len(tasks))]
    shuffled.sort(key=lambda task: task.name not in SUBSET_TASKS)
    drawn: Counter[str] = Counter()
    turns: dict[PaperTask, tuple[bool, int]] = {}
    for task in shuffled:
        group = task.definition.group if task.dataset in GROUPED else ""
        turns[task] = (task.name not in SUBSET_TASKS, drawn[group] if group else 0)
        drawn[group] += 1
    return sorted(shuffled, key=turns.__getitem__)


def sort_by_samples(tasks: Iterable[PaperTask], *, first: Sequence[str] = ()) -> list[PaperTask]:
    """The tasks with the most samples first, after those whose names are in `first`."""
    return sorted(tasks, key=lambda task: (task.name not in first, -task.samples))


def take(tasks: Sequence[PaperTask], count: int, name: str) -> list[PaperTask]:
    """The first of the tasks; too few are refused."""
    if len(tasks) < count:
        raise t2v.errors.DataError(
            f"there are {len(tasks)} {name}, but the paper has {count}, so this would be another meta-task. Use the "
            "datasets as published, of iNaturalist the year 2018 or 2021."
        )
    return [*tasks[:count]]


def pick_subset(tasks: Sequence[PaperTask], names: Sequence[str]) -> tuple[PaperTask, ...]:
    """The tasks with these names, which the data-efficiency experiment needs."""
    picked = tuple(task for task in tasks if task.name in names)
    if missing := set(names) - {task.name for task in picked}:
        raise t2v.errors.DataError(
            f"{min(missing)} cannot be in the meta-task Mixed: it is not in the dataset, or has too few samples, but "
            "the data-efficiency experiment needs it. Use the datasets as published, of iNaturalist the year 2018 or "
            "2021."
        )
    return picked


def add_kinds(imaterialist: Catalog) -> Catalog:
    """The catalog of iMaterialist with two more tasks: kinds of pants, and kinds of shoes.

    Raises:
        DataError: Its labels have no names.
    """
    table = imaterialist.tables["labels"]
    tables, definitions = dict(imaterialist.tables), list(imaterialist.definitions)
    for kind, published in KINDS.items():
        columns = [column for column, name in enumerate(table.names) if name in published]
        if len(columns) < 2 or not set(GROUPS) <= set(table.groups):
            raise t2v.errors.DataError(
                f"{imaterialist.root} has {len(columns)} labels for {kind}, and not all of the groups "
                f"{', '.join(GROUPS)}: experts for them cannot be trained. Put the table of names, "
                "iMat_fashion_2018_label_map_228.csv, into the folder."
            )
        has_label = table.values[:, columns] == 1
        # The last class is that of images with no label of the kind, or with several; it is not in the task.
        values = np.where(has_label.sum(1) == 1, has_label.argmax(1), len(columns))
        names = [table.names[column] for column in columns]
        tables[kind] = replace(table, values=values, names=(*names, f"not one of the {kind}"), groups=())
        counts = {split: int((values[rows] < len(columns)).sum()) for split, rows in imaterialist.splits.items()}
        definitions.append(TaskDefinition(kind, "category", tuple(names), counts, tuple(range(len(columns))), kind))
    return replace(imaterialist, tables=tables, definitions=tuple(definitions))
