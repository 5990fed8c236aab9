"""`python -m experiments.taxonomy`: do distances between tasks agree with the tree of life?"""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.console import check_device, make_app, print_claims, print_json, say, watch_steps
from task2vec.errors import UsageError
from task2vec.text import printable

if TYPE_CHECKING:
    from experiments.collection import Collection
    from experiments.taxonomy import Found, Plan
    from experiments.taxonomy_attributes import Family
    from experiments.taxonomy_tree import Forest
    from task2vec.embedding import EmbedSettings

LAYOUT = (
    "a folder with a tasks.csv (columns dataset, taxon_level, taxon) and, for every dataset, DATASET/taxonomy.csv "
    "(class_dir, order, family, ...) and DATASET/images/CLASS_DIR/*.jpg"
)
MISSING = (
    "The taxonomy itself was not looked at, only questions about painted images: a tree of life cannot be made up. "
    f"python -m experiments.taxonomy --data DIR takes {LAYOUT}."
)
HOW_TO_READ = (
    "rho is Spearman's rank correlation between the distance and that in the tree, with its 95 % interval over tasks; "
    "p is from permuting tasks. A question is found again if, of all questions about other images, the same is nearest."
)
PERMUTATIONS, QUICK_PERMUTATIONS = 9999, 999


@dataclass(frozen=True)
class Amounts:
    """How much is looked at: tasks of a dataset, questions of a family, and images in each of its two sets."""

    tasks: int | None
    questions: int
    images: int
    painted: int


FULL, QUICK = Amounts(None, 10, 300, 120), Amounts(4, 4, 80, 40)


def taxonomy(
    data: Annotated[Path | None, typer.Option(help="Folder with a tasks.csv by taxon, and taxonomies.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for embeddings, figures and numbers.")] = Path("task2vec-taxonomy"),
    probe: Annotated[str, typer.Option(help="A timm or torchvision model.")] = "tf_efficientnet_lite0",
    weights: Annotated[Path | None, typer.Option(help="A local file of weights for the probe.")] = None,
    size: Annotated[int, typer.Option(help="Side of the images in pixels.")] = 64,
    images: Annotated[int, typer.Option(help="How many (image, label) pairs to back-propagate per embedding.")] = 24,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[robust|direct|variational]",
            help="How the Fisher is measured; repeat it for more. Default: robust and direct.",
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs of the variational method.")] = 10,
    l2: Annotated[
        float | None, typer.Option(help="Penalty of the head; default: by cross-validation, for each task.")
    ] = None,
    permutations: Annotated[
        int | None, typer.Option(help="Permutations behind every p; default: 9999, with --quick 999.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: what is there.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A look only: four tasks of each dataset, few questions.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Do distances between tasks agree with nature's taxonomy, and do they tell questions about the same images apart?

    Embeddings are kept in --out: the same command, run again, goes on where it was, or only draws.
    """
    begin = time.perf_counter()
    permutations = permutations or (QUICK_PERMUTATIONS if quick else PERMUTATIONS)
    _check(data, size=size, seed=seed, permutations=permutations)
    say("loading the probe ...")
    import task2vec
    from experiments.taxonomy import Plan, Shelf
    from experiments.taxonomy_tree import plant
    from task2vec.plots import import_figure, make_folder

    import_figure()  # asked for now and not after minutes of work
    check_device(device)
    chosen = list(dict.fromkeys(method or ["robust", "direct"]))
    settings = _settle(chosen, images=images, seed=seed, epochs=epochs, l2=l2)
    loaded = task2vec.load_probe(probe, weights=weights, size=size)
    amounts = QUICK if quick else FULL
    collection = _gather(data, amounts) if data is not None else None
    forest = plant(collection) if collection else None
    plan = Plan(collection, _ask(collection, amounts, seed=seed), settings)
    folder = make_folder(out)
    with watch_steps(len(plan)) as advance:
        shelf = Shelf(folder, loaded, device, advance, lambda message: say(printable(message)))
        embedded = plan.run(shelf)
    say(f"{shelf.found} of {len(plan)} embeddings were found in {printable(out)}")
    say("measuring and drawing ...")
    report = _measure(plan, embedded, forest, folder=folder, permutations=permutations, seed=seed, device=device)
    report = {
        "tasks": len(collection.members) if collection else 0,
        "embeddings": len(plan),
        "found": shelf.found,
        "probe": loaded.name,
        **report,
        "seconds": round(time.perf_counter() - begin, 1),
    }
    if as_json:
        return print_json(report)
    told = f"({report['embeddings']} embeddings, {report['found']} of them found, {report['seconds']:.0f} s)"
    print_claims(report, how_to_read=HOW_TO_READ, missing=report["missing"], cost=told)


def _check(data: Path | None, *, size: int, seed: int, permutations: int) -> None:
    """Refuses, before anything is loaded, what cannot be meant."""
    if size < 1 or seed < 0 or permutations < 99:
        raise UsageError(
            f"--size {size} --seed {seed} --permutations {permutations} cannot be meant: images have a side of some "
            "pixels, no seed is negative, and fewer than 99 permutations cannot make a p below 1 %. Leave them out."
        )
    if data is not None and not data.is_dir():
        raise UsageError(
            f"--data {data} is {'not a folder' if data.exists() else 'not there'}, so there are no tasks to read. "
            f"Name {LAYOUT}; or leave it out for painted images."
        )
    if data is not None and not (data / "tasks.csv").is_file():
        raise UsageError(
            f"--data {data} has no tasks.csv, so nothing says which tasks are relatives. Name {LAYOUT}; or leave it "
            "out for painted images."
        )


def _settle(
    methods: list[str], *, images: int, seed: int, epochs: int, l2: float | None
) -> "tuple[EmbedSettings, ...]":
    import task2vec

    training = task2vec.VariationalSettings(epochs=epochs)
    return tuple(
        task2vec.EmbedSettings(max_samples=images, method=method, seed=seed, l2=l2, variational=training)
        for method in methods
    )


def _gather(data: Path, amounts: Amounts) -> "Collection":
    """The tasks of the folder; a few of each dataset, from all over its list, for a look."""
    from dataclasses import replace

    from experiments.collection import read_collection

    collection = read_collection(data, say=lambda message: say(printable(message)))
    if amounts.tasks is None:
        return collection
    by_dataset: dict[str, list[Any]] = {}
    for member in collection.members:
        by_dataset.setdefault(member.dataset, []).append(member)
    kept = tuple(member for group in by_dataset.values() for member in group[:: math.ceil(len(group) / amounts.tasks)])
    return replace(collection, members=kept)


def _ask(collection: "Collection | None", amounts: Amounts, *, seed: int) -> "tuple[Family, ...]":
    """The questions about taxa of every dataset that has enough of them, and about painted images."""
    import numpy as np

    from experiments.taxonomy_attributes import ask_about_taxa, paint_family

    families = []
    for number, dataset in enumerate(collection.datasets if collection else ()):
        rng = np.random.default_rng([seed, 21, number])
        family = ask_about_taxa(dataset, images=amounts.images, most=amounts.questions, rng=rng)
        if family is None:
            say(printable(f"no questions about {dataset.images.name}: too few of its taxa have enough images"))
        else:
            families.append(family)
    return (*families, paint_family(images=amounts.painted, seed=seed))


def _measure(
    plan: "Plan",
    embedded: "Found",
    forest: "Forest | None",
    *,
    folder: Path,
    permutations: int,
    seed: int,
    device: str | None,
) -> dict[str, Any]:
    """The claims, the files, and what is missing."""
    from experiments.taxonomy import COMPACT
    from experiments.taxonomy_claims import make_claims
    from experiments.taxonomy_figures import write_agreements, write_claims, write_questions
    from experiments.taxonomy_rows import compare_questions, compare_spaces, list_asked

    whole, families = embedded
    options: dict[str, Any] = {"permutations": permutations, "seed": seed, "device": device}
    rows, pairs, files, missing, agreements = [], [], [], [], None
    if whole is None or plan.collection is None or forest is None:
        missing.append(MISSING)
    else:
        datasets = [member.dataset for member in plan.collection.members]
        agreements = compare_spaces(whole, forest, datasets, **options)
        files, missing = write_agreements(agreements, folder, seed=seed)
    asked = [row for family, found in zip(plan.families, families, strict=True) for row in list_asked(family, found)]
    for family, found in zip(plan.families, families, strict=True):
        told, listed = compare_questions(family, found, **options)
        rows, pairs = [*rows, *told], [*pairs, *listed]
    claims = make_claims(agreements, rows)
    files += [*write_questions(rows, pairs, asked, folder), write_claims(claims, folder), folder / COMPACT]
    return {"claims": claims, "missing": missing, "files": [str(path) for path in files]}


app = make_app(taxonomy)
