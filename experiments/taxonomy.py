"""Do distances between tasks agree with nature's own taxonomy, and do they separate label sets of the same images?

(Achille 2019, figures 1 and 2.) Embeddings are kept as soon as they are computed, and the next run reads them.

The ranks of a dataset are the columns of its `taxonomy.csv`: those that its tasks were cut by, in the very column that
they follow (`order_traditional` and not `order`, if so), and those named by a rank of biology. What is above a dataset
of one kind of animal is not in such a table; it is given here for the datasets of the paper's field, others have it in
further columns (kingdom, phylum, class, ...). In the tree a class has the name of its dataset, since two datasets may
number theirs alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import task2vec as t2v
from experiments import report
from experiments.agreement import ALL, MIN_TASKS, agree, agree_within, neighbour_shares, retrieve
from experiments.collection import Collection, Dataset, read_collection
from experiments.embeddings import embed_all
from experiments.figures import draw_neighbourhoods
from experiments.label_sets import (
    Family,
    make_class_family,
    make_taxon_family,
    measure_class_means,
)
from experiments.report import Row
from task2vec import plots

RANKS = ("kingdom", "subkingdom", "phylum", "subphylum", "superclass", "class", "subclass", "infraclass", "superorder",
         "order", "suborder", "infraorder", "superfamily", "family", "subfamily", "tribe", "genus", "subgenus",
         "species", "subspecies")  # fmt: skip
_VERTEBRATE = {"kingdom": "Animalia", "phylum": "Chordata"}
ABOVE: dict[str, Mapping[str, str]] = {
    "cub200": {**_VERTEBRATE, "class": "Aves"},
    "dogs": {**_VERTEBRATE, "class": "Mammalia", "order": "Carnivora", "family": "Canidae"},
}
MAIN, DOMAIN = "robust", "domain"
COSINE = f"{DOMAIN}, cosine"
# Distances between squared differences of class means: of pooled features, without a head and a backward pass.
CLASS_MEANS, CLASS_MEAN_KINDS = "class means", ("cosine", "symmetric")
# Label sets of a family at most, and images in each of its two sets.
MOST_LABEL_SETS, IMAGES = 10, 300
# Random permutations behind every p.
PERMUTATIONS = 9999

Spaces = dict[str, np.ndarray]


# --- the tree --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """The tree of a collection.

    Attributes:
        taxonomy: of all classes of all datasets.
        distances: edges between the closest classes of two tasks.
        groups: names from the root to the smallest taxon that holds a task and more: Passeriformes for the task of a
            family of songbirds.
    """

    taxonomy: t2v.Taxonomy
    distances: np.ndarray
    groups: tuple[tuple[str, ...], ...]


def build_tree(collection: Collection) -> Tree:
    """The tree of a collection, with its tasks in it."""
    parts, above = {}, {}
    for dataset in collection.datasets:
        name, ranks = dataset.images.name, choose_ranks(dataset)
        table = t2v.read_taxonomy(dataset.path, "class_dir", ranks=ranks)
        parts[name] = t2v.Taxonomy(table.ranks, {f"{name}/{kind}": path for kind, path in table.lineages.items()})
        broadest = min((RANKS.index(rank) for rank in ranks if rank in RANKS), default=len(RANKS))
        above[name] = {rank: taxon for rank, taxon in ABOVE.get(name, {}).items() if RANKS.index(rank) < broadest}
    tree = t2v.Taxonomy.join(parts, above=above)
    classes = [[f"{member.dataset}/{kind}" for kind in member.task.classes] for member in collection.members]
    distances = t2v.distance.taxonomic_matrix(classes, tree, kind="graph")
    return Tree(tree, distances, tuple(find_group(names, tree) for names in classes))


def choose_ranks(dataset: Dataset) -> dict[str, str]:
    """The column of every rank of a dataset, the broadest first; ranks that biology does not know come last.

    Example:
        >>> row = {"class_dir": "husky", "family": "Canidae", "order": "?", "order_2011": "Carnivora", "use": "work"}
        >>> task = t2v.sample_tasks(images_per_task=20)[0]
        >>> choose_ranks(Dataset(task, (row,), Path("t.csv"), {"use": "use", "order": "order_2011"}))
        {'order': 'order_2011', 'family': 'family', 'use': 'use'}
    """
    ranks = {rank: rank for rank in RANKS if rank in dataset.taxonomy[0]}
    followed: dict[str, str] = {}
    for level, column in dataset.columns.items():
        # `order_2011` is an order.
        rank = next((rank for rank in RANKS if level == rank or level.startswith(f"{rank}_")), level)
        followed.setdefault(rank, column)
    ranks |= followed
    order = [*(rank for rank in RANKS if rank in ranks), *(rank for rank in ranks if rank not in RANKS)]
    return {rank: ranks[rank] for rank in order}


def find_group(classes: Sequence[str], tree: t2v.Taxonomy) -> tuple[str, ...]:
    """From the root to the smallest taxon that holds all of the classes and others too; the root if there are none.

    It is the parent of their lowest common ancestor, except for orders of a single family and the like: a taxon that
    has the same classes under another name is no relative.

    Example:
        >>> ranks = {"wren": ("Passeriformes", "A"), "lark": ("Passeriformes", "B"), "grebe": ("Podicipediformes", "C")}
        >>> tree = t2v.Taxonomy(("order", "family"), ranks, root="Aves")
        >>> find_group(["wren"], tree), find_group(["grebe"], tree)
        (('Aves', 'Passeriformes'), ('Aves',))
    """
    everything, rows = tree.ancestors(tree.classes), tree.ancestors(classes)
    sizes = np.bincount(everything[everything >= 0])
    lineage = rows[0][rows[0] >= 0]
    shared = [depth for depth, taxon in enumerate(lineage) if (rows == taxon).any(axis=1).all()]
    larger = [depth for depth in shared if sizes[lineage[depth]] > sizes[lineage[shared[-1]]]]
    return tree.lineage(classes[0])[: (larger[-1] if larger else 0) + 1]


def count_edges(a: Sequence[str], b: Sequence[str]) -> int:
    """The number of edges between two taxa in the tree, by their lineages from the root.

    Example:
        >>> count_edges(["Animalia", "Aves", "Passeriformes"], ["Animalia", "Aves", "Passeriformes", "Corvidae"])
        1
        >>> count_edges(["Animalia", "Aves", "Passeriformes"], ["Animalia", "Insecta"])
        3
    """
    shared = next(
        (depth for depth, taxa in enumerate(zip(a, b, strict=False)) if taxa[0] != taxa[1]), min(len(a), len(b))
    )
    return len(a) + len(b) - 2 * shared


# --- embeddings and distances ----------------------------------------------------------------------------------------


Embedded = tuple[Sequence[t2v.Embedding], Sequence[t2v.DomainEmbedding]]


def embed_tasks(
    tasks: Sequence[t2v.Task], probe: t2v.Probe, folder: Path, *, settings: t2v.EmbedSettings, device: str | None = None
) -> Embedded:
    """The embeddings of the tasks, kept in `folder`, and their domain embeddings."""
    report.say(f"embedding {len(tasks)} tasks")
    embeddings = embed_all(tasks, probe, folder, settings=settings, device=device)
    return embeddings, [t2v.embed_domain(task, probe, device=device) for task in tasks]


def measure_spaces(embeddings: Sequence[t2v.Embedding]) -> Spaces:
    """Distances between all tasks, the symmetric one first.

    Kinds that have a direction are left out: a taxonomy has none.
    """
    spaces = {MAIN: _make_square(t2v.distance.pairwise(embeddings))}
    for name, kind in t2v.distance.KINDS.items():
        if kind.is_symmetric and name != "symmetric":
            spaces[f"{MAIN}, {name}"] = _make_square(t2v.distance.pairwise(embeddings, kind))
    return spaces


def measure_domains(domains: Sequence[t2v.DomainEmbedding]) -> Spaces:
    """Distances between domains, by kind."""
    return {
        f"{DOMAIN}, {kind}": _make_square([[t2v.distance.domain(a, b, kind=kind) for b in domains] for a in domains])
        for kind in ("cosine", "standardised")
    }


def measure_class_mean_spaces(vectors: np.ndarray) -> Spaces:
    """Distances between squared differences of class means, by kind; features that are 0 in both do not count."""
    with np.errstate(divide="ignore"):
        logs, spaces = np.log(vectors), {}
    for name in CLASS_MEAN_KINDS:
        kind = t2v.distance.KINDS[name]
        rows = [[kind.from_counted(a, b, np.isfinite(a) | np.isfinite(b)) for b in logs] for a in logs]
        spaces[f"{CLASS_MEANS}, {name}"] = _make_square(rows)
    return spaces


def _make_square(values: Any) -> np.ndarray:
    """Exactly symmetric, with zeros on the diagonal."""
    values = np.array(values, dtype=np.float64)
    values = np.maximum((values + values.T) / 2, 0.0)
    np.fill_diagonal(values, 0.0)
    return values


# --- agreement with the tree, and label sets of the same images ------------------------------------------------------


def compare_spaces(
    spaces: Spaces, tree: np.ndarray, datasets: Sequence[str], groups: Sequence[Sequence[str]]
) -> list[Row]:
    """How well every space follows the tree, and how often the nearest task is a relative.

    The last rows of `spearman` are how much better the first space follows the tree than the best by domain.

    Args:
        spaces: distances between the tasks by the name of the space, the main one first.
        tree: distances between the tasks in the tree.
        datasets: that of every task.
        groups: the taxa around every task, from the root down; empty where neighbours do not count.
    """
    names, rows = list(spaces), []
    matrices = list(spaces.values())
    within = agree_within(matrices, tree, datasets, permutations=PERMUTATIONS, seed=0)
    for scope, agreement in ({ALL: agree(matrices, tree, permutations=PERMUTATIONS, seed=0)} | within).items():
        about: Row = {"tree": "graph", "scope": scope, "chance": None, "count": agreement.pairs}
        for number, name in enumerate(names):
            low, high = agreement.interval(number)
            row = {"measure": "spearman", "space": name, "value": float(agreement.rho[number])}
            rows.append(row | {"low": low, "high": high, "p": float(agreement.p[number])} | about)
        domains = [number for number, name in enumerate(names) if name.startswith(DOMAIN)]
        best = max(domains, key=lambda number: agreement.rho[number])
        low, high = agreement.interval(0, minus=best)
        row = {"measure": f"spearman above {names[best]}", "space": names[0], "low": low, "high": high, "p": None}
        rows.append(row | {"value": float(agreement.rho[0] - agreement.rho[best])} | about)
    labels = {"same dataset": datasets, "same group": [" > ".join(group) for group in groups]}
    for measure, kinds in labels.items() if groups else ():
        for name, matrix in spaces.items():
            shares, chance = neighbour_shares(matrix, kinds)
            counted = np.isfinite(chance) & (chance < 1)
            if not counted.any():
                continue
            row = {"measure": measure, "space": name, "low": None, "high": None, "p": None, "tree": "", "scope": ALL}
            row |= {"value": float(shares[counted].mean()), "chance": float(chance[counted].mean())}
            rows.append(row | {"count": int(counted.sum())})
    return rows


def list_pairs(tasks: Sequence[Row], spaces: Spaces) -> list[Row]:
    """One row per pair of tasks, with their distance in every space."""
    rows = []
    for i, j in combinations(range(len(tasks)), 2):
        about = {"task": tasks[i]["task"], "other": tasks[j]["task"]}
        about |= {"dataset": tasks[i]["dataset"], "other_dataset": tasks[j]["dataset"]}
        rows.append(about | {name: matrix[i, j] for name, matrix in spaces.items()})
    return rows


def compare_label_sets(family: Family, embedded: Embedded, class_means: np.ndarray) -> list[Row]:
    """How well label sets are found again on other images, by space.

    `class_means` is what `measure_class_means` returns: the squared differences of the means of the two classes.
    """
    k = len(family.attributes)
    # Every task on a set of images has the domain of that set.
    domains = {name: np.kron(matrix, np.ones((k, k))) for name, matrix in measure_domains(embedded[1][::k]).items()}
    spaces = measure_spaces(embedded[0]) | domains | measure_class_mean_spaces(class_means)
    about = {"images_per_set": len(family.tasks[0])}
    return [
        {"family": family.name, "space": name, **retrieve(matrix, permutations=PERMUTATIONS), **about}
        for name, matrix in spaces.items()
    ]


# --- output ----------------------------------------------------------------------------------------------------------


def draw_spaces(
    spaces: Spaces,
    tree: np.ndarray,
    names: Sequence[str],
    groups: Sequence[str],
    folder: Path,
    *,
    curves: Sequence[str],
) -> list[Path]:
    """The distances of the first space as a matrix, and the neighbourhood curves of several spaces."""
    main = next(iter(spaces))
    title = f"symmetric distance, {main}"
    files = plots.draw_matrix(spaces[main], names, out=folder / "tree", groups=groups, title=title)
    return files + draw_neighbourhoods({name: spaces[name] for name in curves}, tree, out=folder / "neighbourhoods")


def draw_maps(spaces: Spaces, names: Sequence[str], groups: Sequence[str], folder: Path) -> list[Path]:
    """The map of the first space beside that of the domains."""
    main = next(iter(spaces))
    layouts = {name: plots.lay_out(spaces[name], names, seed=0).positions for name in (main, COSINE)}
    panels = {f"task embeddings ({main})": layouts[main], "domain embeddings": layouts[COSINE]}
    return plots.draw_map(panels, names, out=folder / "maps", groups=groups)


def print_rows(rows: Sequence[Row]) -> None:
    """The main numbers of a table."""
    for row in rows:
        if "measure" in row:
            value = f"{row['value']:.2f}" + ("" if row["low"] is None else f" [{row['low']:.2f}, {row['high']:.2f}]")
            label = f"{row['measure']}, {row['scope']}, {row['space']}"
        else:
            value = f"{row['rate']:.2f}"
            label = f"label sets found again, {row['family']}, {row['space']}"
        value += "" if row["p"] is None else f", p {row['p']:.2g}"
        print(f"{label}: {value}" + ("" if row["chance"] is None else f", chance {row['chance']:.2f}"))


def compare_collection(collection: Collection, embedded: Embedded, folder: Path) -> list[Row]:
    """How the spaces of a collection follow its tree; its tables and figures are written."""
    tree, members = build_tree(collection), collection.members
    embeddings, domains = embedded
    spaces = measure_spaces(embeddings) | measure_domains(domains)
    rows = compare_spaces(spaces, tree.distances, [member.dataset for member in members], tree.groups)
    tasks = []
    for embedding, member, group in zip(embeddings, members, tree.groups, strict=True):
        counts, head = embedding.provenance["counts"], embedding.provenance["head"]
        row = {"task": embedding.task, "dataset": member.dataset, "group": group[-1], "images": counts["images"]}
        tasks.append(row | {"classes": counts["classes"], "error": head["cv_error"], "norm": embedding.norm()})
    tables = {"tasks": tasks, "measures": rows, "distances": list_pairs(tasks, {"graph": tree.distances, **spaces})}
    for name, table in tables.items():
        report.write_rows(table, folder / f"{name}.csv")
    names = [row["task"] for row in tasks]
    groups = [f"{row['dataset']}: {row['group']}" for row in tasks]
    curves = [name for name in spaces if name in (MAIN, f"{MAIN}, cosine") or name.startswith(DOMAIN)]
    draw_spaces(spaces, tree.distances, names, groups, folder, curves=curves)
    draw_maps(spaces, names, groups, folder)
    return rows


def draw_metatask(metatask: t2v.MetaTask, folder: Path) -> list[Row]:
    """Figures 1 and 2 from the lineages and embeddings of a meta-task: its maps, and the distances of its taxa.

    Taxa are as far apart in the tree as there are edges between them. The ranks below them differ from dataset to
    dataset and are left out.
    """
    main = min(metatask.distances, key=lambda name: (name.rpartition(":")[2] != "resnet34 robust", name))
    spaces = {name: _make_square(metatask.between(name)) for name in (main, *metatask.distances)}
    means = metatask.domains[main.rpartition(" ")[0]][: len(metatask.tasks)]
    units = means / np.linalg.norm(means, axis=1, keepdims=True)
    spaces[COSINE] = _make_square(1 - units @ units.T)
    names = [task.name for task in metatask.tasks]
    groups = [f"{task.dataset}: {task.label_set}" if task.label_set else task.dataset for task in metatask.tasks]
    draw_maps(spaces, names, groups, folder)
    lineages = metatask.info.get("lineages", {})
    taxa = [row for row, name in enumerate(names) if name in lineages]
    if len(taxa) < MIN_TASKS:
        return []
    tree = np.array([[count_edges(lineages[names[a]], lineages[names[b]]) for b in taxa] for a in taxa], dtype=float)
    spaces = {name: matrix[np.ix_(taxa, taxa)] for name, matrix in spaces.items()}
    draw_spaces(spaces, tree, [names[row] for row in taxa], [groups[row] for row in taxa], folder, curves=[*spaces])
    rows = compare_spaces(spaces, tree, [metatask.tasks[row].dataset for row in taxa], ())
    report.write_rows(rows, folder / "measures.csv")
    return rows


# --- command line ----------------------------------------------------------------------------------------------------


def taxonomy(
    data: Annotated[Path | None, typer.Option(help="Folder with a tasks.csv by taxon, and taxonomies.")] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="Instead of all else: figures 1 and 2 from a meta-task on the paper's data.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for embeddings, figures and tables.")] = Path("task2vec-taxonomy"),
    probe: Annotated[str, typer.Option(help="A timm or torchvision model.")] = "tf_efficientnet_lite0",
    weights: Annotated[Path | None, typer.Option(help="A local file of weights for the probe.")] = None,
    label_sets: Annotated[
        list[Path] | None, typer.Option(help="A folder of classes: each of the largest against the rest. Repeat it.")
    ] = None,
    size: Annotated[int, typer.Option(min=1, help="Side of the images in pixels.")] = 64,
    max_samples: Annotated[int, typer.Option(min=1, help="(Image, label) pairs per embedding.")] = 24,
    device: str | None = None,
) -> None:
    """Do distances agree with nature's taxonomy, and do they separate label sets of the same images?

    Embeddings are kept in --out: the same command, run again, does not make them again.
    """
    folder = plots.make_folder(out)
    if bundle is not None:
        print_rows(draw_metatask(t2v.load_metatask(bundle), folder))
        return
    options: Row = {"settings": t2v.EmbedSettings(max_samples=max_samples), "device": device}
    network, kept = t2v.load_probe(probe, weights=weights, size=size), folder / "embeddings"
    families = []
    if data is not None:
        collection = read_collection(data)
        tasks = [member.task for member in collection.members]
        embedded = embed_tasks(tasks, network, kept, **options)
        print_rows(compare_collection(collection, embedded, folder))
        for number, dataset in enumerate(collection.datasets):
            rng = np.random.default_rng([0, 21, number])
            columns = list(choose_ranks(dataset).values())
            family = make_taxon_family(dataset, columns, images=IMAGES, most=MOST_LABEL_SETS, rng=rng)
            families += [] if family is None else [family]
    for number, classes in enumerate(label_sets or []):
        rng = np.random.default_rng([0, 22, number])
        families.append(make_class_family(classes, images=IMAGES, most=MOST_LABEL_SETS, rng=rng))
    rows = []
    for family in families:
        embedded = embed_tasks(family.tasks, network, kept, **options)
        rows += compare_label_sets(family, embedded, measure_class_means(family, network, device=device))
    if rows:
        report.write_rows(rows, folder / "attributes.csv")
        print_rows(rows)


app = report.make_app(taxonomy)

if __name__ == "__main__":
    app()
