"""`task2vec show`, `nearest`, `distance`, `diversity` and `map`: embeddings, looked at and compared."""

import csv
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from task2vec.cli import inputs, options, output
from task2vec.cli.embed import describe, format_facts
from task2vec.cli.library import format_space
from task2vec.errors import DataError, EmbeddingFileError, LibraryError, UsageError
from task2vec.text import format_percent, pluralize, printable

if TYPE_CHECKING:
    import numpy as np

    from task2vec.embedding import Embedding
    from task2vec.library import Library

MOST_STAGES, BAR_WIDTH = 14, 20
NO_GROUP = "(no group)"

# --- show ------------------------------------------------------------------------------------------------------------


def show(what: options.Query, library: options.LibraryFolder = None) -> None:
    """Show an embedding: its task, probe, error and norm, and which layers of the probe contribute to it.

    Names are looked up in the library first. For a file of the same name, write a path: ./NAME
    """
    if Path(what).is_dir() and inputs.find_origin(what, library) != inputs.LIBRARY:
        raise UsageError(f"'{what}' is a folder, not an embedding. Embed it first: task2vec embed {what}")
    embedding = inputs.load_query(what, library).embedding
    facts = {**describe(embedding), "stages": summarize_stages(embedding)}
    if output.print_json(facts):
        return
    output.print_facts(format_facts(facts))
    largest = max(stage["share"] for stage in facts["stages"]) or 1.0
    print()
    output.print_table(
        [
            {"stage": stage["stage"], "filters": stage["filters"], "share of norm": format_percent(stage["share"])}
            | {" ": "#" * round(BAR_WIDTH * stage["share"] / largest)}
            for stage in facts["stages"]
        ],
        text=("stage", " "),
        drop=(" ",),
    )
    print()
    settings = ", ".join(f"{key} {value}" for key, value in facts["settings"].items() if value is not None)
    prints = [(f"{key} fingerprint", value[:16]) for key, value in facts["fingerprints"].items()]
    versions = ", ".join(f"{key} {value}" for key, value in facts["versions"].items())
    output.print_facts([("settings", settings), *prints, ("versions", versions)])


def summarize_stages(embedding: "Embedding") -> list[dict[str, Any]]:
    """For every stage in order: its name, its filters, its share of the norm, and the mean Fisher of its filters."""
    norm = float(embedding.fisher.sum())
    rows, start = [], 0
    for name, filters in group_layers([(layer.name, layer.filters) for layer in embedding.layers]):
        total = float(embedding.fisher[start : start + filters].sum())
        share = total / norm if norm > 0 else 0.0
        rows.append({"stage": name, "filters": filters, "share": share, "mean_fisher": total / filters})
        start += filters
    return rows


def group_layers(layers: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Consecutive layers grouped by the longest common prefixes of their names that give few enough stages.

    Example:
        >>> group_layers([("stem", 8), ("blocks.0.a", 4), ("blocks.0.b", 4), ("blocks.1.a", 6), ("neck", 2)])
        [('stem', 8), ('blocks.0.a', 4), ('blocks.0.b', 4), ('blocks.1.a', 6), ('neck', 2)]
    """
    depth, stages = max(name.count(".") for name, _ in layers) + 1, layers
    while depth and len(stages) > MOST_STAGES:
        depth -= 1
        groups = groupby(layers, key=lambda layer: ".".join(layer[0].split(".")[:depth]))
        stages = [(name, sum(filters for _, filters in group)) for name, group in groups]
    return stages


# --- nearest ---------------------------------------------------------------------------------------------------------


def nearest(
    query: options.Query,
    k: options.K = 10,
    library: options.LibraryFolder = None,
    allow_bad: options.AllowBad = False,
) -> None:
    """Find the tasks of the library most similar to one, by the symmetric distance.

    A folder or table is embedded with default settings and added to the library; for other settings, run `task2vec
    embed` first. Names are looked up in the library first. For a folder of the same name, write a path: ./NAME
    """
    if k < 1:
        raise UsageError(f"-k {k}: at least one task must be asked for. Use -k 1 or more.")
    report = find_neighbours(inputs.load_query(query, library, allow_bad=allow_bad), library, k=k)
    output.print_json(report) if output.wants_json() else _print_neighbours(report)


def find_neighbours(query: inputs.Query, library: Path | None, *, k: int) -> dict[str, Any]:
    """The neighbours as plain values; where there are none, which embeddings the library has instead."""
    from task2vec.library import identify
    from task2vec.progress import show_progress

    embedding = query.embedding
    about = {"task": embedding.task, "from": query.origin, "description": query.description, "probe": embedding.probe}
    about |= {"key": identify(embedding).key, "is_alone": True}
    rows, spaces = [], []
    opened = inputs.open_if_any(library)
    if opened is not None:
        with opened, show_progress(output.is_watched()) as report:
            found = opened.nearest(embedding, k, report=report)
            rows = [_describe_neighbour(rank, one, embedding, opened) for rank, one in enumerate(found, start=1)]
            own = embedding.provenance.get("task_fingerprint")
            about["is_alone"] = not rows and all(task.fingerprint == own for task in opened.tasks())
            spaces = [] if rows or about["is_alone"] else opened.stats()["spaces"]
    return {"query": about, "library": str(inputs.find_library_folder(library)), "neighbours": rows, "spaces": spaces}


def _describe_neighbour(rank: int, found: Any, embedding: "Embedding", library: "Library") -> dict[str, Any]:
    """A neighbour as plain values, with the noise of its distance if both embeddings have halves."""
    from task2vec.distance import with_error

    task, noise = found.task, None
    if found.embedding.has_halves and embedding.halves is not None:
        try:
            noisy = with_error(embedding, library.get(found.embedding.key))
            noise = {"floor": noisy.floor, "stderr": noisy.stderr, "corrected": noisy.corrected}
        except LibraryError as error:
            output.say(f"damaged: {printable(error)}")
    row = {"rank": rank, "task": task.name, "distance": found.distance, "noise": noise, "images": task.images}
    row |= {"classes": len(task.classes), "tags": list(task.tags)}
    return row | {"fingerprint": task.fingerprint, "key": found.embedding.key}


def _print_neighbours(report: dict[str, Any]) -> None:
    """The query and a table of its neighbours, or what to do where there are none."""
    query, rows = report["query"], report["neighbours"]
    output.print_text(f"nearest to {query['task']} (embedding {query['key'][: output.DIGITS]}), {query['description']}")
    if rows:
        table = [
            {"rank": row["rank"], "task": row["task"], "distance": f"{row['distance']:.3f}"}
            | {"noise": None if row["noise"] is None else f"{row['noise']['floor']:.3f}"}
            | {"images": row["images"], "classes": row["classes"], "tags": ", ".join(row["tags"])}
            for row in rows
        ]
        output.print_table(table, text=("task", "tags"), drop=("tags", "noise", "classes", "images"))
    elif query["is_alone"]:
        output.print_text("There is no other task in the library. Add more: task2vec embed FOLDER")
    else:
        output.print_text(
            f"No embedding of the library can be compared with it: the probe, image size or method differs. It is by "
            f"{query['probe']}, the others are by:"
        )
        for space in report["spaces"]:
            print(f"  {format_space(space)}: {pluralize(space['embeddings'], 'embedding')}")
        output.print_text("Embed it like the others: task2vec embed PATH --probe MODEL --size N --method METHOD")


# --- distance --------------------------------------------------------------------------------------------------------


def distance(
    first: options.Query,
    second: options.Query,
    kind: options.Distance = "symmetric",
    library: options.LibraryFolder = None,
    allow_bad: options.AllowBad = False,
) -> None:
    """Compute the distance between two tasks, with its noise floor and the value corrected for noise.

    Folders and tables are embedded with default settings and added to the library.
    """
    from task2vec.distance import KINDS, with_error

    if kind not in KINDS:
        raise UsageError(f"--kind {kind} is not a distance. Choose one of: {', '.join(KINDS)}")
    queries = [inputs.load_query(word, library, allow_bad=allow_bad) for word in (first, second)]
    a, b = (query.embedding for query in queries)
    report: dict[str, Any] = {
        name: {"task": query.embedding.task, "from": query.origin, "probe": query.embedding.probe}
        for name, query in zip(("first", "second"), queries, strict=True)
    }
    report |= {"kind": kind, "distance": float(KINDS[kind](a, b)), "noise": None}
    if kind == "symmetric":
        noisy = with_error(a, b)
        stderr = None if math.isnan(noisy.stderr) else noisy.stderr
        report["noise"] = {"floor": noisy.floor, "stderr": stderr, "corrected": noisy.corrected, "basis": noisy.basis}
    if output.print_json(report):
        return
    rows = [
        (name, f"{query.embedding.task}, {query.description}")
        for name, query in zip(("first", "second"), queries, strict=True)
    ]
    rows.append(("distance", f"{report['distance']:.4f} ({kind})"))
    if noise := report["noise"]:
        is_lower_bound = noise["basis"] == "stderr"
        bound = "at least " if is_lower_bound else ""
        error = "" if noise["stderr"] is None else f" ± {noise['stderr']:.4f}"
        rows += [("noise floor", f"{bound}{noise['floor']:.4f}, the distance between two such embeddings of one task")]
        rows += [("corrected", f"{noise['corrected']:.4f}{error}, without the part that noise adds")]
    output.print_facts(rows)


# --- diversity -------------------------------------------------------------------------------------------------------


def diversity(
    path: options.Folder,
    probe: options.ProbeOptions,
    numbers: Annotated[options.SettingsOptions, "method max_samples l2 seed"],
    reading: Annotated[options.Reading, "allow_bad num_workers"],
    other: Annotated[Path | None, Argument(metavar="[OTHER]", help="Another one to compare with.")] = None,
    batches: options.Batches = None,
    classes: options.Classes = 5,
    shots: Annotated[int, Option("--shots", help="Images of each class in a batch, and in its repeat.")] = 10,
    kind: options.Distance = "symmetric",
    device: options.Device = None,
) -> None:
    """Measure how diverse a dataset is, and how far it is from another one.

    The diversity coefficient is the expected distance between the embeddings of two random batches. It is printed with
    the distance that noise alone would cause, and the standard errors of both.
    """
    begin = time.perf_counter()
    import task2vec
    from task2vec.distance import FEWEST_BATCHES, cross_diversity
    from task2vec.distance import diversity as measure
    from task2vec.tasks import draw_batches

    settings = inputs.make_settings(numbers)
    loaded = inputs.load_probe(probe)
    drawing: dict[str, Any] = {"batches": batches, "classes": classes or None, "images": shots, "seed": settings.seed}
    paths = [path] if other is None else [path, other]
    tasks = [inputs.read_own(each, reading) for each in paths]
    for each, task in zip(paths, tasks, strict=True):
        inputs.say_bad(task.bad, root=each)
        if (count := len(draw_batches(task, **drawing))) < FEWEST_BATCHES:
            raise UsageError(
                f"'{task.name}' has images for {count} batches, too few to estimate its diversity; at least "
                f"{FEWEST_BATCHES} are needed. Use smaller batches: --shots, --classes"
            )
    if other is not None and tasks[0].fingerprint == tasks[1].fingerprint:
        raise UsageError("both datasets have the same images and labels, so there is nothing to compare. Name another.")
    if other is not None and (shared := len(set(tasks[0].digests) & set(tasks[1].digests))):
        output.say(f"warning: {pluralize(shared, 'image')} in both datasets, which makes them more similar")
    how: dict[str, Any] = {"device": device, "num_workers": reading.num_workers, "progress": output.is_watched()}
    sides = []
    for each, task in zip(paths, tasks, strict=True):
        output.say(f"embedding batches of {printable(each)} ...")
        sides.append(task2vec.embed_batches(task, loaded, **drawing, settings=settings, **how))
    found = [measure(*side, kind=kind, device=device) for side in sides]
    cross = None
    if other is not None:
        (ones, twins), (others, other_twins) = sides
        cross = cross_diversity(ones, others, twins=(twins, other_twins), kind=kind, device=device)
    report = {
        "collections": [{"collection": str(path), **asdict(one)} for path, one in zip(paths, found, strict=True)],
        "cross": None if cross is None else asdict(cross),
        "kind": kind,
        "probe": loaded.name,
        "settings": settings.as_dict(),
        "batch": {"classes": len(sides[0][0][0].provenance["classes"]), "images_of_each": shots},
        "seconds": round(time.perf_counter() - begin, 1),
    }
    output.print_json(report) if output.wants_json() else _print_diversity(report)


def _print_diversity(report: dict[str, Any]) -> None:
    def format_spread(spread: dict[str, float]) -> str:
        return f"{spread['value']:.3f} ± {spread['stderr']:.3f}"

    rows = [
        {"dataset": row["collection"], "batches": str(row["batches"]), "distance": format_spread(row["coefficient"])}
        | {"noise": format_spread(row["floor"]), "beyond noise": format_spread(row["excess"])}
        for row in report["collections"]
    ]
    if cross := report["cross"]:
        between = {"dataset": "between the two", "batches": "{} x {}".format(*cross["batches"])}
        between |= {"distance": format_spread(cross["coefficient"]), "noise": format_spread(cross["own"])}
        rows.append(between | {"beyond noise": format_spread(cross["excess"])})
    output.print_table(rows, text=("dataset",), drop=("beyond noise", "batches"))
    if cross and cross["alignment"]:
        output.print_text(
            f"alignment {format_spread(cross['alignment'])} (one minus the distance between the two; the noise is the "
            "mean distance within each)"
        )
    output.print_text(
        "Distances between embeddings of random batches, ± one standard error (jackknife over batches). Noise: the "
        "distance between a batch and a repeat with the same classes and other images. Compare only numbers of one "
        "probe, settings and batch size."
    )
    batch = report["batch"]
    size = f"{batch['classes']} classes with {batch['images_of_each']} images in each batch"
    output.print_text(f"({size}, {report['kind']} distance, {report['probe']}, {report['seconds']:.0f} s)")


# --- map -------------------------------------------------------------------------------------------------------------


def draw_map(
    files: Annotated[list[Path] | None, Argument(help="Saved embeddings, or folders of them.")] = None,
    out: options.Out = Path("task2vec-map"),
    kind: options.Distance = "symmetric",
    group: options.Group = None,
    place: options.Place = None,
    tag: options.Tag = None,
    probe: options.AnyProbe = None,
    library: options.LibraryFolder = None,
) -> None:
    """Draw a map of embedded tasks, from the library or from files.

    Writes an interactive page (map.html), the map and the distance matrix as PNG and PDF, and their numbers as CSV.
    """
    begin = time.perf_counter()
    from task2vec.plots import import_figure, make_folder

    import_figure()  # a missing extra is reported now and not after the work
    if files and (given := inputs.list_given({"tag": tag, "probe": probe, "library": library})):
        raise UsageError(f"{given} only applies to the library, and files are drawn. Remove {given}, or the files.")
    placed, _ = _load_files(place or [])
    first_tags = None
    if files:
        known, left_out = _load_files(files, without=place or [])
    else:
        new = {embedding.provenance.get("task_fingerprint", "") for _, embedding in placed}
        known, first_tags, left_out = _load_library(library, tag=tag, probe=probe, without=new)
    if len(known) < 2:
        where = ", ".join(f"'{place}'" for place in files or [inputs.find_library_folder(library)])
        count = f"is only one embedding ('{known[0][1].task}')" if known else "is no embedding"
        raise DataError(f"there {count} in {where}, and a map needs two or more. Add some: task2vec embed FOLDER")
    items = [*known, *placed]
    if group is not None:
        known_groups = _read_groups(group)
        groups = [known_groups.get(embedding.task, NO_GROUP) for _, embedding in items]
    else:
        groups = first_tags or [file.resolve().parent.name for file, _ in known]
        groups = [*groups, *([NO_GROUP] * len(placed))] if len(set(groups)) > 1 else None
    distances = _measure_distances([one for _, one in known], [one for _, one in placed], kind)
    make_folder(out)
    report = _draw([one for _, one in items], distances, out=out, groups=groups, placed=len(placed), kind=kind)
    report |= {"left_out": [str(one) for one in left_out], "seconds": round(time.perf_counter() - begin, 1)}
    if output.print_json(report):
        return
    output.print_text(f"{report['tasks']} tasks by {kind} distance ({report['layout']})")
    for task in report["placed"]:
        output.print_text(f"placed {task['task']}: nearest is {task['nearest']}, at distance {task['distance']:.3f}")
    output.print_text(
        "Tasks that are close on the map are similar. Distances between groups mean little on a map; the matrix shows "
        "the distances themselves."
    )
    print("\n".join(["", *map(printable, report["files"])]))
    print(f"Open {printable(report['files'][0])} in a browser.   ({report['seconds']:.0f} s)")


def _load_files(
    places: Sequence[Path], *, without: Sequence[Path] = ()
) -> "tuple[list[tuple[Path, Embedding]], list[Path]]":
    """Every embedding once, and the files of folders that are none; a file that was named must be one."""
    import task2vec

    read, left_out, skipped = [], [], {file.resolve() for file in without}
    for file in inputs.list_embedding_files(places):
        try:
            read += [] if file.resolve() in skipped else [(file, task2vec.load_embedding(file))]
        except EmbeddingFileError as error:
            if file in places:
                raise
            left_out.append(file)
            output.say(f"left out: {printable(error)}")
    return read, left_out


def _load_library(
    folder: Path | None, *, tag: str | None, probe: str | None, without: set[str]
) -> "tuple[list[tuple[Path, Embedding]], list[str], list[str]]":
    """The embeddings of the largest space of the library, their first tags, and what was left out.

    Args:
        folder: of the library.
        tag: only tasks that have it.
        probe: only embeddings by this one: its name, or the first digits of its fingerprint.
        without: fingerprints of tasks that are placed on the map instead.
    """
    from task2vec.distance import SCALING
    from task2vec.progress import show_progress

    opened = inputs.open_if_any(folder)
    empty = f"{inputs.format_empty(folder)}, or name files or folders of embeddings: task2vec map DIR"
    if opened is None:
        raise UsageError(empty)
    with opened, show_progress(output.is_watched()) as report:
        if not len(opened):
            raise UsageError(empty)
        entries = [task for task in opened.tasks(tag=tag) if task.fingerprint not in without]
        spaces: dict[str, dict[str, Any]] = {}
        for task in entries:
            for entry in task.embeddings:
                if probe is None or entry.probe == probe or entry.probe_fingerprint.startswith(probe):
                    space = json.dumps([entry.probe_fingerprint, [entry.settings.get(name) for name in SCALING]])
                    spaces.setdefault(space, {})[task.fingerprint] = (task, entry)  # the newest stays
        chosen = max(spaces.values(), key=len, default={})
        left_out = []
        if others := len(entries) - len(chosen):
            left_out.append(
                f"{pluralize(others, 'task')} without an embedding by the same probe, image size and method"
            )
        step = report("reading", len(chosen))
        read, tags = [], []
        for task, entry in chosen.values():
            try:
                read.append((opened.folder / "library", opened.get(entry.key)))
                tags.append(task.tags[0] if task.tags else NO_GROUP)
            except LibraryError as error:
                left_out.append(str(error))
            step(1)
    output.say_all("left out", left_out)
    return read, tags, left_out


def _read_groups(table: Path) -> dict[str, str]:
    """The group of each task of a CSV file with the columns `task` and `group`."""
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            return {row["task"]: row["group"] or NO_GROUP for row in csv.DictReader(file) if row["task"]}
    except (OSError, UnicodeDecodeError, csv.Error, KeyError) as error:
        reason = f"no column {error}" if isinstance(error, KeyError) else error
        raise DataError(
            f"cannot read groups from '{table}' ({reason}), so there is nothing to color by. Use a CSV file in UTF-8 "
            "with the columns task and group: --group FILE.csv"
        ) from error


def _measure_distances(known: "Sequence[Embedding]", placed: "Sequence[Embedding]", kind: str) -> "np.ndarray":
    """Distances between all pairs; those of the known tasks do not depend on the placed ones."""
    import numpy as np

    from task2vec.distance import check_comparable, pairwise

    for other in (*known[1:], *placed):
        check_comparable(known[0], other)
    distances = np.asarray(pairwise(known, kind).values)
    if placed:
        across = pairwise(placed, kind, others=known).values
        distances = np.block([[distances, across.T], [across, pairwise(placed, kind).values]])
    if not np.allclose(distances, distances.T, atol=1e-5) or distances.min() < -1e-5:
        raise UsageError(f"--kind {kind} is asymmetric or negative, so no map can show it. Use --kind symmetric.")
    distances = ((distances + distances.T) / 2).clip(min=0)
    np.fill_diagonal(distances, 0.0)
    return distances


def _draw(
    embeddings: "Sequence[Embedding]",
    distances: "np.ndarray",
    *,
    out: Path,
    groups: list[str] | None,
    placed: int,
    kind: str,
) -> dict[str, Any]:
    """Draws the map of the known tasks with the placed ones on it, and the matrix of all."""
    import numpy as np

    from task2vec import plots

    names = [embedding.task for embedding in embeddings]
    known = len(names) - placed
    output.say(f"laying out {known} tasks ...")
    laid = plots.lay_out(distances[:known, :known], names[:known])
    places = np.vstack([laid.positions, laid.place(distances[known:, :known])]) if placed else laid.positions
    title, note = f"{len(names)} tasks", f"{kind} distance, {laid.describe()}"
    output.say("drawing ...")
    facts = [_find_facts(embedding) for embedding in embeddings]
    common: dict[str, Any] = {"groups": groups, "placed": placed}
    page = plots.write_page(
        places, names, path=out / "map.html", distances=distances, facts=facts, title=title, note=note, **common
    )
    drawn = plots.draw_map(places, names, out=out / "map", title=f"{title}: {note}", **common)
    matrix = plots.draw_matrix(distances, names, out=out / "matrix", groups=groups, title=f"{kind} distance")
    nearest = [
        {"task": names[row], "nearest": names[near], "distance": float(distances[row, near])}
        for row in range(known, len(names))
        for near in [int(distances[row, :known].argmin())]
    ]
    files = [str(path) for path in (page, *drawn, *matrix)]
    return {"tasks": known, "placed": nearest, "kind": kind, "layout": laid.describe(), "files": files}


def _find_facts(embedding: "Embedding") -> Any:
    """What the page shows of a task; what a file lacks, or has as something else than a number, is left out."""
    from task2vec.plots import TaskFacts

    def find(part: str, key: str) -> Any:
        record = embedding.provenance.get(part)
        value = record.get(key) if isinstance(record, dict) else None
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    return TaskFacts(find("counts", "images"), find("counts", "classes"), find("head", "cv_error"), embedding.norm())
