"""Do distances between tasks agree with nature's own taxonomy, and do they separate label sets of the same images?

(Achille 2019, figures 1 and 2.) Embeddings are kept as soon as they are computed, and found again by the next run.

The ranks of a dataset are the columns of its `taxonomy.csv`: those that its tasks were cut by, in the very column that
they follow (`order_traditional` and not `order`, if so), and those named by a rank of biology. What is above a dataset
of one kind of animal is not in such a table; it is given here for the datasets of the paper's field, others have it in
further columns (kingdom, phylum, class, ...). In the tree a class has the name of its dataset, since two datasets may
number theirs alike.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import task2vec as t2v
from experiments import report
from experiments.agreement import (
    ALL,
    MIN_TASKS,
    WITHIN,
    Agreement,
    agree,
    agree_within,
    neighbour_shares,
    resample_mean,
    retrieve,
)
from experiments.collection import Collection, Dataset, read_collection
from experiments.embeddings import embed_all
from experiments.figures import curve_area, draw_neighbourhoods, draw_norms
from experiments.label_sets import (
    Family,
    make_class_family,
    make_painted_family,
    make_taxon_family,
    measure_class_means,
)
from experiments.report import FAILS, HOLDS, PARTLY, UNCLEAR, Claim, Row
from task2vec import plots

RANKS = ("kingdom", "subkingdom", "phylum", "subphylum", "superclass", "class", "subclass", "infraclass", "superorder",
         "order", "suborder", "infraorder", "superfamily", "family", "subfamily", "tribe", "genus", "subgenus",
         "species", "subspecies")  # fmt: skip
_VERTEBRATE = {"kingdom": "Animalia", "phylum": "Chordata"}
ABOVE: dict[str, Mapping[str, str]] = {
    "cub200": {**_VERTEBRATE, "class": "Aves"},
    "dogs": {**_VERTEBRATE, "class": "Mammalia", "order": "Carnivora", "family": "Canidae"},
}
DOMAIN = "domain"
COSINE = f"{DOMAIN}, cosine"
# Distances between squared differences of class means: of pooled features, without a head and a backward pass.
CLASS_MEANS, CLASS_MEAN_KINDS = "class means", ("cosine", "symmetric")
# Kinds of neighbours: of the same dataset, of the same group, of the same group among those of the same dataset.
SAME_DATASET, SAME_GROUP, SAME_GROUP_WITHIN = "same dataset", "same group", "same group within dataset"
# A finding that chance gives more rarely than this counts.
LEVEL = 0.05
TREE = "graph"
# Label sets of a family at most, images in each of its two sets, painted images.
MOST_LABEL_SETS, IMAGES, PAINTED = 10, 300, 120

Spaces = dict[str, np.ndarray]


# --- the tree --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """The tree of a collection.

    Attributes:
        taxonomy: of all classes of all datasets.
        distances: between the tasks, by kind: "graph" and "ultrametric".
        groups: names from the root to the smallest taxon that holds a task and more: Passeriformes for the task of a
            family of songbirds.
    """

    taxonomy: t2v.Taxonomy
    distances: Spaces
    groups: tuple[tuple[str, ...], ...]


def build_tree(collection: Collection) -> Tree:
    """The tree of a collection, with its tasks in it."""
    parts, above = {}, {}
    for dataset in collection.datasets:
        name, ranks = dataset.images.name, choose_ranks(dataset)
        part = t2v.read_taxonomy(dataset.path, "class_dir", ranks=ranks)
        parts[name] = t2v.Taxonomy(part.ranks, {f"{name}/{kind}": path for kind, path in part.lineages.items()})
        broadest = min((RANKS.index(rank) for rank in ranks if rank in RANKS), default=len(RANKS))
        above[name] = {rank: taxon for rank, taxon in ABOVE.get(name, {}).items() if RANKS.index(rank) < broadest}
    tree = t2v.Taxonomy.join(parts, above=above)
    classes = [[f"{member.dataset}/{kind}" for kind in member.task.classes] for member in collection.members]
    distances = {kind: t2v.distance.taxonomic_matrix(classes, tree, kind=kind) for kind in ("graph", "ultrametric")}
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
    shared = [place for place, number in enumerate(lineage) if (rows == number).any(axis=1).all()]
    larger = [place for place in shared if sizes[lineage[place]] > sizes[lineage[shared[-1]]]]
    return tree.lineage(classes[0])[: (larger[-1] if larger else 0) + 1]


# --- embeddings and distances ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Embedded:
    """Tasks by method, the main one first, and their domains; the rows of all belong to the same tasks."""

    by_method: dict[str, list[t2v.Embedding]]
    domains: list[t2v.DomainEmbedding]

    @property
    def main(self) -> str:
        """The method that other distances are tried on."""
        return next(iter(self.by_method))


def embed_tasks(
    tasks: Sequence[t2v.Task],
    probe: t2v.Probe,
    folder: Path,
    *,
    settings: Sequence[t2v.EmbedSettings],
    device: str | None = None,
) -> Embedded:
    """The tasks by all methods, a setting for each, and their domains; `folder` keeps the embeddings."""
    report.say(f"embedding {len(tasks)} tasks")
    by_method = {
        one.method: embed_all(tasks, probe, folder / one.method, settings=one, device=device) for one in settings
    }
    return Embedded(by_method, [t2v.embed_domain(task, probe, device=device) for task in tasks])


def measure_spaces(embedded: Embedded) -> Spaces:
    """Distances between all tasks: the symmetric one of every method, and all other kinds of the main one.

    Kinds that have a direction are left out: a taxonomy has none.
    """
    spaces = {name: _make_square(t2v.distance.pairwise(group)) for name, group in embedded.by_method.items()}
    for name, kind in t2v.distance.KINDS.items():
        if kind.is_symmetric and name != "symmetric":
            group = embedded.by_method[embedded.main]
            spaces[f"{embedded.main}, {name}"] = _make_square(t2v.distance.pairwise(group, kind))
    return spaces


def measure_domains(domains: Sequence[t2v.DomainEmbedding]) -> Spaces:
    """Distances between domains, by kind."""
    return {
        f"{DOMAIN}, {kind}": _make_square([[t2v.distance.domain(a, b, kind=kind) for b in domains] for a in domains])
        for kind in ("cosine", "standardised")
    }


def measure_vectors(vectors: np.ndarray) -> Spaces:
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


# --- the collection and its tree -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """All that was measured on a collection.

    Attributes:
        spaces: distances between the tasks by the name of the space; the methods first, the domains last.
        methods: names of the spaces that are the symmetric distance of a method, the main one first.
        tree: distances in the tree, by kind.
        found: the agreement by kind of tree and scope.
        tasks: a row per task.
        measures: a row per number.
    """

    spaces: Spaces
    methods: tuple[str, ...]
    tree: Spaces
    found: dict[tuple[str, str], Agreement]
    tasks: list[Row]
    measures: list[Row]


def compare_spaces(
    embedded: Embedded, tree: Tree, datasets: Sequence[str], *, permutations: int = 9999, seed: int = 0
) -> Comparison:
    """Every space beside the tree: correlations, areas and neighbours."""
    spaces = measure_spaces(embedded) | measure_domains(embedded.domains)
    found: dict[tuple[str, str], Agreement] = {}
    options = {"permutations": permutations, "seed": seed}
    for kind, taxonomic in tree.distances.items():
        found[kind, ALL] = agree(list(spaces.values()), taxonomic, **options)
        within = agree_within(list(spaces.values()), taxonomic, datasets, **options)
        found |= {(kind, scope): agreement for scope, agreement in within.items()}
    measures: list[Row] = []
    for (kind, scope), agreement in found.items():
        for number, name in enumerate(spaces):
            low, high = agreement.interval(number)
            row = {"measure": "spearman", "space": name, "tree": kind, "scope": scope, "count": agreement.pairs}
            row |= {"value": float(agreement.rho[number]), "low": low, "high": high, "p": float(agreement.p[number])}
            measures.append(row)
    for kind, taxonomic in tree.distances.items():
        about: Row = {"measure": "area", "tree": kind, "scope": ALL, "count": len(datasets)}
        areas = {name: curve_area(each, taxonomic) for name, each in spaces.items()}
        measures += [{**about, "space": name, "value": area} for name, area in areas.items()]
    measures += _count_neighbours(spaces, tree, datasets, seed=seed)
    columns = ("measure", "space", "tree", "scope", "value", "low", "high", "p", "chance", "count")
    tasks = []
    for one, dataset, group in zip(embedded.by_method[embedded.main], datasets, tree.groups, strict=True):
        counts, head = one.provenance["counts"], one.provenance["head"]
        row = {"task": one.task, "dataset": dataset, "group": group[-1], "images": counts["images"]}
        tasks.append(row | {"classes": counts["classes"], "error": head["cv_error"], "norm": one.norm()})
    measures = [{column: row.get(column) for column in columns} for row in measures]
    return Comparison(spaces, tuple(embedded.by_method), tree.distances, found, tasks, measures)


def _count_neighbours(spaces: Spaces, tree: Tree, datasets: Sequence[str], *, seed: int) -> list[Row]:
    """How often the nearest task is a relative, over the tasks that have one."""
    groups = [" > ".join(group) for group in tree.groups]
    kinds = {SAME_DATASET: (datasets, None), SAME_GROUP: (groups, None), SAME_GROUP_WITHIN: (groups, datasets)}
    rows = []
    for kind, (labels, among) in kinds.items():
        for name, matrix in spaces.items():
            shares, chance = neighbour_shares(matrix, labels, among=among)
            # Where all of a dataset are of one group, the nearest of them cannot be of another.
            counted = np.isfinite(chance) & (chance < 1)
            if counted.any():
                low, high = resample_mean(shares[counted], seed=seed)
                about = {"measure": kind, "space": name, "tree": "", "scope": ALL, "count": int(counted.sum())}
                found = {"value": float(shares[counted].mean()), "chance": float(chance[counted].mean())}
                rows.append({**about, **found, "low": low, "high": high})
    return rows


def list_pairs(comparison: Comparison) -> list[Row]:
    """One row per pair of tasks: both distances in the tree, and the distance in every space."""
    tasks, columns = comparison.tasks, {**comparison.tree, **comparison.spaces}
    rows = []
    for i, j in combinations(range(len(tasks)), 2):
        about = {"task": tasks[i]["task"], "other": tasks[j]["task"]}
        about |= {"dataset": tasks[i]["dataset"], "other_dataset": tasks[j]["dataset"]}
        rows.append(about | {name: matrix[i, j] for name, matrix in columns.items()})
    return rows


# --- label sets of the same images -----------------------------------------------------------------------------------


def compare_label_sets(
    family: Family, embedded: Embedded, class_means: np.ndarray, *, permutations: int = 9999, seed: int = 0
) -> tuple[list[Row], list[Row], list[Row]]:
    """A row per space of how well label sets are found again, a row per pair in the main spaces, and a row per task.

    `class_means` is what `measure_class_means` returns: the squared differences of the means of the two classes.
    """
    k, names = len(family.attributes), family.attributes
    # Every task on a set of images has the domain of that set; those of the first and the last should be one.
    domains = {n: np.repeat(np.repeat(m, k, 0), k, 1) for n, m in measure_domains(embedded.domains[::k]).items()}
    spaces = measure_spaces(embedded) | domains | measure_vectors(class_means)
    pairs = [(embedded.domains[place], embedded.domains[place + k - 1]) for place in (0, k)]
    changed = sum(int(((a.mean != b.mean) | (a.second_moment != b.second_moment)).sum()) for a, b in pairs)
    about = {"images_per_set": len(family.tasks[0]), "domain_features_changed": changed}
    rows = [
        {"family": family.name, "space": name, **retrieve(matrix, permutations=permutations, seed=seed), **about}
        for name, matrix in spaces.items()
    ]
    listed = []
    for space in (name for name in spaces if "," not in name or name == COSINE or name.startswith(CLASS_MEANS)):
        for i, j in combinations(range(2 * k), 2):
            kind = "beside" if i // k == j // k else "same" if i % k == j % k else "other"
            row = {"family": family.name, "space": space, "kind": kind, "sets": f"{i // k + 1}{j // k + 1}"}
            row |= {"attribute": names[i % k], "other": names[j % k], "distance": float(spaces[space][i, j])}
            listed.append(row)
    described = []
    for number, (task, one) in enumerate(zip(family.tasks, embedded.by_method[embedded.main], strict=True)):
        head = one.provenance["head"]
        row = {"family": family.name, "attribute": names[number % k], "set": number // k + 1, "images": len(task)}
        row |= {"positive": int(task.counts[1]), "error": head["cv_error"], "l2": head["l2"], "norm": one.norm()}
        described.append(row)
    return rows, listed, described


# --- claims ----------------------------------------------------------------------------------------------------------


def make_claims(comparison: Comparison | None, retrieved: Sequence[Row]) -> list[Claim]:
    """All claims, those on the taxonomy first."""
    claims = [] if comparison is None else _claim_taxonomy(comparison)
    for rows in report.split_rows(retrieved, "family").values():
        claims += _claim_label_sets(rows)
    return claims


def _claim_taxonomy(comparison: Comparison) -> list[Claim]:
    found, names = comparison.found, list(comparison.spaces)
    whole = found[TREE, ALL]
    measured = f"{_format(whole)}, {whole.pairs} pairs"
    claims = [Claim("taxonomy", "distances follow the taxonomy", measured, _judge(whole))]
    if (TREE, WITHIN) in found:
        # It holds if it does in the datasets together and in each by itself; partly, if only together.
        pooled = found[TREE, WITHIN]
        parts = {scope: each for (kind, scope), each in found.items() if kind == TREE and scope not in (ALL, WITHIN)}
        verdict, each = _judge(pooled), ", ".join(f"{scope} {part.rho[0]:.2f}" for scope, part in parts.items())
        if verdict == HOLDS and any(_judge(part) != HOLDS for part in parts.values()):
            verdict = PARTLY
        claims.append(Claim("taxonomy", "... within a dataset", f"{_format(pooled)} ({each})", verdict))
    domains = [name for name in names if name.startswith(DOMAIN)]
    for scope, claim in ((ALL, "agrees better than domains do"), (WITHIN, "... within a dataset")):
        if (TREE, scope) in found:
            claims.append(_claim_better(found[TREE, scope], claim, names, domains))
    cosine = f"{comparison.methods[0]}, cosine"
    claims.append(_claim_better(whole, "... than cosine of the Fishers", names, [cosine]))
    sentences = {SAME_DATASET: "the nearest is of the same dataset", SAME_GROUP: "... of the same group"}
    sentences[SAME_GROUP_WITHIN] = "... of the same group, within"
    for row in comparison.measures:
        if row["measure"] in sentences and row["space"] == comparison.methods[0]:
            measured = f"{100 * row['value']:.0f}%, chance {100 * row['chance']:.0f}%, {row['count']} tasks"
            verdict = HOLDS if row["low"] > row["chance"] else FAILS if row["high"] <= row["chance"] else UNCLEAR
            claims.append(Claim("neighbours", sentences[row["measure"]], measured, verdict))
    norm = report.correlate([row["norm"] for row in comparison.tasks], [row["error"] for row in comparison.tasks])
    return [*claims, Claim("norm_error", "the norm ranks tasks by error", f"rho {norm}", norm.verdict)]


def _claim_better(agreement: Agreement, claim: str, names: Sequence[str], rivals: Sequence[str]) -> Claim:
    """The main space against the best of its rivals."""
    best = max((names.index(rival) for rival in rivals), key=lambda number: agreement.rho[number])
    difference = float(agreement.rho[0] - agreement.rho[best])
    low, high = agreement.interval(0, minus=best)
    measured = f"rho {difference:+.2f} [{low:+.2f}, {high:+.2f}] over {agreement.rho[best]:.2f}"
    return Claim("taxonomy", claim, measured, HOLDS if low > 0 else FAILS if high < 0 else UNCLEAR)


def _claim_label_sets(rows: Sequence[Row]) -> list[Claim]:
    """The rows of one family, the main space first."""
    main, family = rows[0], rows[0]["family"]
    rival = max((row for row in rows if row["space"].startswith(DOMAIN)), key=lambda row: row["rate"])
    verdict = UNCLEAR
    if main["rate"] <= main["chance"]:
        verdict = FAILS
    elif main["p"] < LEVEL:
        verdict = HOLDS if main["auc_beside"] > 0.5 else PARTLY
    measured = f"{100 * main['rate']:.0f}%, chance {100 * main['chance']:.0f}%, p {main['p']:.2g}"
    changed, is_blind = main["domain_features_changed"], math.isclose(rival["rate"], rival["chance"])
    collapse = f"{changed} features move, found {100 * rival['rate']:.0f}%"
    blind = HOLDS if is_blind and not changed else PARTLY if is_blind else FAILS
    return [
        Claim("attributes", f"label sets are found again: {family}", measured, verdict),
        Claim("attributes", f"... and not by their domain: {family}", collapse, blind),
    ]


def _judge(agreement: Agreement) -> str:
    """Whether the main space surely agrees, surely does not, or neither."""
    low, high = agreement.interval(0)
    return HOLDS if agreement.p[0] < LEVEL and low > 0 else FAILS if high <= 0 else UNCLEAR


def _format(agreement: Agreement) -> str:
    low, high = agreement.interval(0)
    return f"rho {agreement.rho[0]:.2f} [{low:.2f}, {high:.2f}], p {agreement.p[0]:.1g}"


# --- figures ---------------------------------------------------------------------------------------------------------


def write_comparison(comparison: Comparison, folder: Path, *, seed: int = 0) -> list[Path]:
    """The figures and tables of a collection."""
    main, names = comparison.methods[0], [row["task"] for row in comparison.tasks]
    groups = [f"{row['dataset']}: {row['group']}" for row in comparison.tasks]
    spaces = comparison.spaces
    title = f"symmetric distance, {main}"
    files = plots.draw_matrix(spaces[main], names, out=folder / "tree", groups=groups, title=title)
    shown = [name for name in spaces if name == f"{main}, cosine" or name.startswith(DOMAIN)]
    curves = {name: spaces[name] for name in (*comparison.methods, *shown)}
    files += draw_neighbourhoods(curves, comparison.tree["graph"], out=folder / "neighbourhoods")
    tasks = [row | {"family": "all tasks"} for row in comparison.tasks]
    figure = draw_norms(tasks, ["norm"], error="error", what="error")
    rows = ([row[key] for key in ("task", "dataset", "norm", "error")] for row in tasks)
    files += plots.save_figure(figure, folder / "norm_error", ["task", "group", "norm", "error"], rows)
    tables = {"tasks": comparison.tasks, "distances": list_pairs(comparison), "measures": comparison.measures}
    files += [report.write_rows(rows, folder / f"{name}.csv") for name, rows in tables.items()]
    maps = {name: plots.lay_out(spaces[name], names, seed=seed) for name in (main, COSINE)}
    panels = {f"task embeddings ({main})": maps[main].positions, "domain embeddings": maps[COSINE].positions}
    files += plots.draw_map(panels, names, out=folder / "maps", groups=groups)
    return files


# --- a meta-task that was measured on the paper's data ---------------------------------------------------------------


def draw_metatask(
    metatask: t2v.MetaTask, folder: Path, *, permutations: int, seed: int
) -> tuple[list[Claim], list[Path]]:
    """Figures 1 and 2 from the lineages and embeddings of a meta-task: its maps, and the distances of its taxa.

    Taxa are as far apart in the tree as there are edges between them. The ranks below them differ from dataset to
    dataset and are left out.
    """
    spaces = {name: _make_square(metatask.between(name)) for name in metatask.distances}
    main = min(spaces, key=lambda name: (name.rpartition(":")[2] != "resnet34 robust", name))
    means = metatask.domains[main.rpartition(" ")[0]][: len(metatask.tasks)]
    units = means / np.linalg.norm(means, axis=1, keepdims=True)
    spaces[COSINE] = _make_square(1 - units @ units.T)
    names = [task.name for task in metatask.tasks]
    groups = [f"{task.dataset}: {task.label_set}" if task.label_set else task.dataset for task in metatask.tasks]
    layouts = {name: plots.lay_out(spaces[name], names, seed=seed).positions for name in (main, COSINE)}
    panels = {f"task embeddings ({main})": layouts[main], "domain embeddings": layouts[COSINE]}
    files = plots.draw_map(panels, names, out=folder / "maps", groups=groups)
    lineages = metatask.info.get("lineages", {})
    taxa = [row for row, name in enumerate(names) if name in lineages]
    if len(taxa) < MIN_TASKS:
        return [], files
    tree = np.array([[count_edges(lineages[names[a]], lineages[names[b]]) for b in taxa] for a in taxa], dtype=float)
    own, about = {name: each[np.ix_(taxa, taxa)] for name, each in spaces.items()}, [names[row] for row in taxa]
    title = f"symmetric distance, {main}"
    above = [groups[row] for row in taxa]
    files += plots.draw_matrix(own[main], about, out=folder / "tree", groups=above, title=title)
    files += draw_neighbourhoods(own, tree, out=folder / "neighbourhoods")
    whole = agree([own[main], own[COSINE]], tree, permutations=permutations, seed=seed)
    measured = f"{_format(whole)}, {whole.pairs} pairs"
    claims = [Claim("taxonomy", "distances follow the taxonomy", measured, _judge(whole))]
    return [*claims, _claim_better(whole, "agrees better than domains do", [main, COSINE], [COSINE])], files


def count_edges(a: Sequence[str], b: Sequence[str]) -> int:
    """The number of edges between two taxa in the tree, by their lineages from the root.

    Example:
        >>> count_edges(["Animalia", "Aves", "Passeriformes"], ["Animalia", "Aves", "Passeriformes", "Corvidae"])
        1
        >>> count_edges(["Animalia", "Aves", "Passeriformes"], ["Animalia", "Insecta"])
        3
    """
    shared = next((place for place, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), None)
    return len(a) + len(b) - 2 * (min(len(a), len(b)) if shared is None else shared)


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
    method: Annotated[list[str] | None, typer.Option(help="Repeat it for more; default: robust and direct.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Of the variational method.")] = 10,
    l2: Annotated[float, typer.Option(help="Penalty of the head.")] = t2v.EmbedSettings.l2,
    permutations: Annotated[int, typer.Option(min=99, help="Behind every p.")] = 9999,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    device: str | None = None,
) -> None:
    """Do distances agree with nature's taxonomy, and do they separate label sets of the same images?

    Embeddings are kept in --out: the same command, run again, does not make them again.
    """
    folder = plots.make_folder(out)
    if bundle is not None:
        claims, files = draw_metatask(t2v.load_metatask(bundle), folder, permutations=permutations, seed=seed)
        report.print_claims(claims, files)
        return
    training = t2v.VariationalSettings(epochs=epochs)
    common: Row = {"max_samples": max_samples, "seed": seed, "l2": l2, "variational": training}
    settings = tuple(t2v.EmbedSettings(method=one, **common) for one in dict.fromkeys(method or ["robust", "direct"]))
    network, place = t2v.load_probe(probe, weights=weights, size=size), folder / "embeddings"
    options = {"permutations": permutations, "seed": seed}
    families, comparison, files = [], None, []
    if data is not None:
        collection = read_collection(data)
        datasets = [member.dataset for member in collection.members]
        tasks = [member.task for member in collection.members]
        embedded = embed_tasks(tasks, network, place, settings=settings, device=device)
        comparison = compare_spaces(embedded, build_tree(collection), datasets, **options)
        files = write_comparison(comparison, folder, seed=seed)
        for number, dataset in enumerate(collection.datasets):
            rng = np.random.default_rng([seed, 21, number])
            columns = list(choose_ranks(dataset).values())
            family = make_taxon_family(dataset, columns, images=IMAGES, most=MOST_LABEL_SETS, rng=rng)
            families += [] if family is None else [family]
    for number, place in enumerate(label_sets or []):
        rng = np.random.default_rng([seed, 22, number])
        families.append(make_class_family(place, images=IMAGES, most=MOST_LABEL_SETS, rng=rng))
    families.append(make_painted_family(images=PAINTED, seed=seed))
    found = []
    for family in families:
        embedded = embed_tasks(family.tasks, network, place, settings=settings[:1], device=device)
        class_means = measure_class_means(family, network, device=device)
        found.append(compare_label_sets(family, embedded, class_means, **options))
    rows, pairs, described = ([row for each in found for row in each[part]] for part in range(3))
    claims = make_claims(comparison, rows)
    tables = {"attributes": rows, "attribute_distances": pairs, "attribute_tasks": described}
    files += [report.write_rows(table, folder / f"{name}.csv") for name, table in tables.items()]
    note = "rho is Spearman's correlation with the distance in the tree, p (two-sided) from permuting tasks."
    files += report.write_claims(claims, folder, note)
    report.print_claims(claims, files, note)


app = report.make_app(taxonomy)

if __name__ == "__main__":
    app()
