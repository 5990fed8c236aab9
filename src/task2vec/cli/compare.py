"""`task2vec library embedding`, `nearest`, `distance`, `diversity` and `map`: embeddings, looked at and compared."""

import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import task2vec
from task2vec.cli import app, inputs, options
from task2vec.cli.embed import Saving, describe, embed_tasks, find_probe, format_facts
from task2vec.cli.library import (
    FILE,
    LIBRARY,
    find_origin,
    format_empty,
    format_space,
    get_named,
    list_embedding_files,
    open_for_run,
    open_if_any,
)
from task2vec.errors import DataError, EmbeddingFileError, LibraryError, UsageError
from task2vec.library import find_library
from task2vec.progress import show_progress
from task2vec.text import pluralize, printable

BAR_WIDTH = 20
BUNDLED = "bundled"
# An embedding on a map, and its group there.
Grouped = tuple["task2vec.Embedding", str]


def load_query(
    query: str, library: Path | None, *, embeds: bool = True, reading: options.Reading | None = None
) -> "tuple[task2vec.Embedding, dict[str, str]]":
    """The embedding that a word stands for, and its task, probe and origin as plain values.

    A folder or table is embedded with default settings, if `embeds`.
    """
    with open_if_any(library) as opened:
        origin = find_origin(query, opened)
        embedding = get_named(query, opened) if origin == LIBRARY else None
    if origin == LIBRARY:
        path_hint = f" (for the folder or file: {os.path.join(os.curdir, query)})" if Path(query).exists() else ""
        text = f"from the library{path_hint}"
    elif origin == FILE:
        embedding, text = task2vec.load_embedding(query), f"from the file '{query}'"
    elif not embeds:
        raise UsageError(f"'{query}' contains images, not an embedding. Embed it first: task2vec embed {query}")
    else:
        probe, details = find_probe(options.ProbeOptions(), library)
        with open_for_run(library, "embed", details | {"paths": [query]}) as opened:
            saving = Saving(probe, task2vec.EmbedSettings(), opened)
            task = inputs.read_own(Path(query), reading or options.Reading())
            (result,) = embed_tasks([task], saving)
            embedding = result.embedding
            if embedding is None:
                raise result.error or AssertionError("neither an embedding nor an error")
            name, _ = saving.save(result, task)
        known = f", known there as '{name}'" if name not in (None, task.name) else ""
        state = "found in the library" if result.is_found else "embedded now"
        text = f"from '{query}', {state}{known}"
    assert embedding is not None
    return embedding, {"task": embedding.task, "probe": embedding.probe, "from": origin, "description": text}


# --- show ------------------------------------------------------------------------------------------------------------


def show(query: options.Query, library: options.LibraryFolder = None) -> None:
    """Show an embedding: its task, probe, error and norm, and which layers of the probe contribute to it.

    Names are looked up in the library first. For a file of the same name, write a path: ./NAME
    """
    embedding, _ = load_query(query, library, embeds=False)
    app.print_report({**describe(embedding), "stages": embedding.stages()}, _print_embedding)


def _print_embedding(facts: dict[str, Any]) -> None:
    app.print_facts(format_facts(facts))
    print()
    largest = max(stage["share"] for stage in facts["stages"]) or 1.0
    rows = [stage | {"bar": "#" * round(BAR_WIDTH * stage["share"] / largest)} for stage in facts["stages"]]
    app.print_table(rows, f"stage, filters, share of norm=share, {app.BAR}=bar", drop=app.BAR)
    print()
    settings = ", ".join(f"{key} {value}" for key, value in facts["settings"].items() if value is not None)
    prints = [(f"{key} fingerprint", value[:16]) for key, value in facts["fingerprints"].items()]
    versions = ", ".join(f"{key} {value}" for key, value in facts["versions"].items())
    app.print_facts([("settings", settings), *prints, ("versions", versions)])


# --- nearest ---------------------------------------------------------------------------------------------------------


def nearest(
    query: options.Query,
    reading: Annotated[options.Reading, options.OWN],
    k: options.K = 10,
    kind: options.Distance = "symmetric",
    library: options.LibraryFolder = None,
) -> None:
    """Find the tasks most similar to one: those of the library, and the bundled ones.

    A folder or table is embedded with default settings and added to the library; for other settings, run `task2vec
    embed` first. Names are looked up in the library first. For a folder of the same name, write a path: ./NAME
    """
    from task2vec.distance.distances import find_kind
    from task2vec.library import identify
    from task2vec.metatask import list_bundled, measure_all

    measure, is_symmetric = find_kind(kind), kind == "symmetric"
    embedding, about = load_query(query, library, reading=reading)
    rows, spaces, is_alone = [], [], True
    fingerprint = embedding.provenance.get("task_fingerprint")
    known = list_bundled(embedding)
    with open_if_any(library) as opened, show_progress(app.is_watched()) as report:
        if opened is not None:
            near = opened.nearest(embedding, k, kind=kind, report=report)
            rows = [_describe_neighbour(neighbour, embedding, opened, has_noise=is_symmetric) for neighbour in near]
            is_alone = not rows and all(task.fingerprint == fingerprint for task in opened.tasks())
            spaces = [] if rows or is_alone else opened.stats()["spaces"]
    without = {fingerprint, *(row["fingerprint"] for row in rows)}
    if is_symmetric:
        distances = measure_all([embedding], known)[0].tolist()
    else:
        distances = [measure(embedding, bundled) for bundled in known]
    for bundled, distance in zip(known, distances, strict=True):
        if (fingerprint := bundled.provenance["task_fingerprint"]) not in without:
            counts = {name: bundled.provenance["counts"][name] for name in ("images", "classes")}
            row = {"task": bundled.task, "from": BUNDLED, "distance": distance, "noise": None, **counts, "tags": ()}
            rows.append(row | {"fingerprint": fingerprint, "key": None})
    rows = [{"rank": rank, **row} for rank, row in enumerate(sorted(rows, key=lambda row: row["distance"])[:k], 1)]
    report = {"query": about | {"key": identify(embedding).key, "is_alone": is_alone, "kind": kind}}
    report |= {"library": find_library(library), "neighbours": rows, "spaces": spaces}
    app.print_report(report, _print_neighbours)


def _describe_neighbour(
    neighbour: Any, embedding: "task2vec.Embedding", library: "task2vec.Library", *, has_noise: bool
) -> dict[str, Any]:
    """A neighbour as plain values, with the noise of its distance if wanted and both embeddings have halves."""
    task, noise = neighbour.task, None
    if has_noise and neighbour.embedding.has_halves and embedding.halves is not None:
        try:
            noisy = task2vec.distance.with_error(embedding, library.get(neighbour.embedding.key))
            noise = {"floor": noisy.floor, "stderr": noisy.stderr, "corrected": noisy.corrected}
        except LibraryError as error:
            app.say(f"damaged: {printable(error)}")
    row = {"task": task.name, "from": LIBRARY, "distance": neighbour.distance, "noise": noise}
    row |= {"images": task.images, "classes": len(task.classes), "tags": task.tags}
    return row | {"fingerprint": task.fingerprint, "key": neighbour.embedding.key}


def _print_neighbours(report: dict[str, Any]) -> None:
    """The query and a table of its neighbours, or what to do where there are none."""
    query, rows = report["query"], report["neighbours"]
    app.print_text(f"nearest to {query['task']} (embedding {query['key'][: app.DIGITS]}), {query['description']}")
    if query["kind"] != "symmetric":
        app.print_text(f"by the distance '{query['kind']}'; other commands use 'symmetric'")
    if rows:
        columns = "rank, task, from, distance, noise=noise.floor, images, classes, tags"
        app.print_table(rows, columns, drop="tags, noise, classes, images")
    elif query["is_alone"]:
        app.print_text("There is no other task to compare with. Add more: task2vec embed FOLDER")
    else:
        app.print_text(f"No embedding in the library can be compared with this one by {query['probe']}. It has:")
        for space in report["spaces"]:
            print(f"  {format_space(space)}: {pluralize(space['embeddings'], 'embedding')}")
        app.print_text("Embed the task like the others: task2vec embed PATH --probe MODEL --size N --method METHOD")


# --- distance --------------------------------------------------------------------------------------------------------


def distance(
    first: options.Query,
    second: options.Query,
    reading: Annotated[options.Reading, options.OWN],
    kind: options.Distance = "symmetric",
    library: options.LibraryFolder = None,
) -> None:
    """Compute the distance between two tasks, with its noise floor and the value corrected for noise.

    Folders and tables are embedded with default settings and added to the library.
    """
    from task2vec.distance.distances import find_kind
    from task2vec.distance.noise import EMBED_AGAIN

    measure = find_kind(kind)
    (a, first_facts), (b, second_facts) = (load_query(word, library, reading=reading) for word in (first, second))
    report: dict[str, Any] = {
        "first": first_facts,
        "second": second_facts,
        "kind": kind,
        "distance": float(measure(a, b)),
    }
    report["noise"] = None
    rows = [(name, "{task}, {description}".format(**report[name])) for name in ("first", "second")]
    rows.append(("distance", f"{report['distance']:.4f} ({kind})"))
    if kind == "symmetric":
        noisy = task2vec.distance.with_error(a, b)
        noise = {name: getattr(noisy, name) for name in ("floor", "stderr", "corrected")}
        noise = {name: None if math.isnan(value) else value for name, value in noise.items()}
        report["noise"] = noise | {"basis": noisy.basis}
        if noise["floor"] is None:
            rows.append(("noise floor", f"unknown; {EMBED_AGAIN}"))
        else:
            bound = "at least " if noisy.basis == "stderr" else ""
            error = "" if noise["stderr"] is None else f" ± {noisy.stderr:.4f}"
            rows += [("noise floor", f"{bound}{noisy.floor:.4f}, the distance between two such embeddings of one task")]
            rows += [("corrected", f"{noisy.corrected:.4f}{error}, without the part that is due to noise")]
    app.print_report(report, lambda _: app.print_facts(rows))


# --- diversity -------------------------------------------------------------------------------------------------------


def diversity(
    path: options.Folder,
    probe: options.ProbeOptions,
    numbers: Annotated[options.SettingsOptions, "method max_samples l2 seed"],
    reading: Annotated[options.Reading, options.OWN],
    compute: Annotated[options.Compute, "device"],
    second: Annotated[Path | None, Argument(metavar="[OTHER]", help="A second dataset to compare with.")] = None,
    classes: Annotated[int, Option(help="Classes in each batch; 0 for all.")] = 5,
    shots: Annotated[int, Option("--shots", help="Images per class in each batch and in its twin.")] = 10,
    kind: options.Distance = "symmetric",
) -> None:
    """Measure how diverse a dataset is, and how far it is from another one.

    The diversity coefficient is the expected distance between the embeddings of two random batches. It is printed with
    the distance that noise alone would cause, and the standard errors of both.
    """
    from task2vec.tasks import draw_batches

    settings, loaded = inputs.make_settings(numbers), inputs.load_probe(probe)
    drawing: dict[str, Any] = {"classes": classes or None, "images": shots, "seed": settings.seed}
    paths = [path] if second is None else [path, second]
    tasks = [inputs.read_own(side_path, reading) for side_path in paths]
    for task in tasks:
        if (count := len(draw_batches(task, **drawing))) < (least := task2vec.distance.FEWEST_BATCHES):
            raise UsageError(
                f"'{task.name}' has images for {count} batches, too few to estimate its diversity; at least {least} "
                "are needed. Use smaller batches: --shots, --classes"
            )
    if second is not None and tasks[0].fingerprint == tasks[1].fingerprint:
        raise UsageError("both datasets have the same images and labels, so there is nothing to compare. Name another.")
    if second is not None and (shared := len(set(tasks[0].digests) & set(tasks[1].digests))):
        app.say(f"warning: {pluralize(shared, 'image')} in both datasets, which makes them more similar")
    device, sides = compute.device, []
    computing: dict[str, Any] = {"device": device, "num_workers": reading.num_workers, "progress": app.is_watched()}
    for side_path, task in zip(paths, tasks, strict=True):
        app.say(f"embedding batches of {printable(side_path)} ...")
        sides.append(task2vec.embed_batches(task, loaded, **drawing, settings=settings, **computing))
    results = [task2vec.distance.diversity(*side, kind=kind, device=device) for side in sides]
    cross = None
    if second is not None:
        (ones, twins), (others, other_twins) = sides
        cross = task2vec.distance.cross_diversity(ones, others, twins=(twins, other_twins), kind=kind, device=device)
    report = {
        "collections": [{"collection": str(path), **vars(result)} for path, result in zip(paths, results, strict=True)],
        "cross": cross,
        "kind": kind,
        "probe": loaded.name,
        "settings": settings.as_dict(),
        "batch": {"classes": len(sides[0][0][0].provenance["classes"]), "images_of_each": shots},
        "seconds": app.count_seconds(),
    }
    app.print_report(report, _print_diversity)


def _print_diversity(report: dict[str, Any]) -> None:
    rows, cross = report["collections"], report["cross"]
    if cross is not None:
        counts = {"collection": "between the two", "batches": "{} x {}".format(*cross.batches)}
        rows = [*rows, vars(cross) | counts | {"floor": cross.own}]
    columns = "dataset=collection, batches, mean distance=coefficient, noise floor=floor, beyond noise=excess"
    app.print_table(rows, columns, drop="beyond noise, batches")
    if cross and cross.alignment:
        app.print_text(f"alignment {cross.alignment} (1 - distance between the two; noise: distance within each)")
    app.print_text(
        "Distances between embeddings of random batches, ± one standard error (jackknife over batches). Noise: the "
        "distance between a batch and another one with the same classes and other images. Compare only numbers for "
        "the same probe, settings and batch size."
    )
    batch = report["batch"]
    size = f"{batch['classes']} classes with {batch['images_of_each']} images in each batch"
    app.print_text(f"({size}, {report['kind']} distance, {report['probe']}, {report['seconds']:.0f} s)")


# --- map -------------------------------------------------------------------------------------------------------------


def draw_map(
    files: Annotated[list[Path] | None, Argument(help="Saved embeddings, or folders of them.")] = None,
    out: options.Out = Path("task2vec-map"),
    kind: options.Distance = "symmetric",
    tag: options.Tag = None,
    probe: options.AnyProbe = None,
    library: options.LibraryFolder = None,
) -> None:
    """Draw a map of embedded tasks, from the library with the bundled tasks, or from files or by --tag without them.

    Writes an interactive page (map.html), the map and the distance matrix as PNG and PDF, and their numbers as CSV.
    Colours show the first tag of a task, or the folder of its file.
    """
    import numpy as np

    from task2vec import plots
    from task2vec.metatask import list_bundled

    plots.import_figure()  # a missing extra is reported now and not after the work
    if files and (given := inputs.list_given({"tag": tag, "probe": probe, "library": library})):
        raise UsageError(f"{given} only applies to the library, but files were given. Remove {given}, or the files.")
    known, left_out = _load_files(files) if files else _load_library(library, tag=tag, probe=probe)
    fingerprints = {embedding.provenance.get("task_fingerprint") for embedding, _ in known}
    every = list_bundled(known[0][0]) if known and not files and not tag else []
    bundled = [(entry, BUNDLED) for entry in every if entry.provenance["task_fingerprint"] not in fingerprints]
    known += bundled
    if len(known) < 2:
        listed = ", ".join(f"'{path}'" for path in files or [find_library(library)])
        count = f"is only one embedding ('{known[0][0].task}')" if known else "is no embedding"
        raise DataError(f"there {count} in {listed}, but a map needs two or more. Add some: task2vec embed FOLDER")
    embeddings, groups = [embedding for embedding, _ in known], [group for _, group in known]
    distances = np.asarray(task2vec.distance.pairwise(embeddings, kind).values)
    if not np.allclose(distances, distances.T, atol=1e-5) or distances.min() < -1e-5:
        raise UsageError(f"--kind {kind} is asymmetric or negative and cannot be shown as a map. Use --kind symmetric.")
    distances = ((distances + distances.T) / 2).clip(min=0)
    np.fill_diagonal(distances, 0.0)
    plots.make_folder(out)
    app.say(f"laying out {len(known)} tasks ...")
    names = [embedding.task for embedding in embeddings]
    laid = plots.lay_out(distances, names)
    app.say("drawing ...")
    title, note = f"{len(names)} tasks", f"{kind} distance, {laid.describe()}"
    looks: dict[str, Any] = {"groups": groups if len(set(groups)) > 1 else None}
    about = {"facts": [_find_facts(embedding) for embedding in embeddings], "title": title, "note": note, **looks}
    drawn = [plots.write_page(laid.positions, names, path=out / "map.html", distances=distances, **about)]
    drawn += plots.draw_map(laid.positions, names, out=out / "map", title=f"{title}: {note}", **looks)
    drawn += plots.draw_matrix(distances, names, out=out / "matrix", title=f"{kind} distance", **looks)
    report = {"tasks": len(known), "kind": kind, "layout": laid.describe(), "files": drawn, "bundled": len(bundled)}
    report |= {"left_out": left_out, "seconds": app.count_seconds()}
    app.print_report(report, _print_map)


def _print_map(report: dict[str, Any]) -> None:
    bundled = f", {report['bundled']} of them bundled," if report["bundled"] else ""
    app.print_text(f"{report['tasks']} tasks{bundled} by {report['kind']} distance ({report['layout']})")
    app.print_text("Tasks that are close on the map are similar. For distances between groups, see the matrix.")
    print("\n".join(["", *map(printable, report["files"])]))
    print(f"Open {printable(report['files'][0])} in a browser.   ({report['seconds']:.0f} s)")


def _load_files(places: Sequence[Path]) -> tuple[list[Grouped], list[Any]]:
    """Every embedding once, grouped by folder, and the files of folders that are none; a named file must be one."""
    read, left_out = [], []
    for file in list_embedding_files(places):
        try:
            read.append((task2vec.load_embedding(file), file.resolve().parent.name))
        except EmbeddingFileError as error:
            if file in places:
                raise
            left_out.append(file)
            app.say(f"left out: {printable(error)}")
    return read, left_out


def _find_space(entry: Any) -> tuple[str, ...]:
    """What embeddings of the library must share to be compared."""
    return entry.probe_fingerprint, *(str(entry.settings.get(name)) for name in task2vec.distance.SCALING)


def _load_library(folder: Path | None, *, tag: str | None, probe: str | None) -> tuple[list[Grouped], list[Any]]:
    """The embeddings of the largest space of the library, grouped by first tag, and what was left out.

    Args:
        folder: of the library.
        tag: only tasks that have it.
        probe: only embeddings by the probe of this name.
    """
    with open_if_any(folder) as opened:
        if not opened:
            raise UsageError(f"{format_empty(folder)}, or name files or folders of them: task2vec map DIR")
        tasks = opened.tasks(tag=tag)
        pairs = [(task, entry) for task in tasks for entry in task.embeddings if probe in (None, entry.probe)]
        sizes = Counter(_find_space(entry) for _, entry in pairs)
        largest = max(sizes, key=lambda space: sizes[space], default=None)
        # Of several embeddings of a task, the newest stays.
        chosen = {task.fingerprint: (task, entry) for task, entry in pairs if _find_space(entry) == largest}
        read, left_out = [], []
        if others := len(tasks) - len(chosen):
            same = "an embedding by the same probe, image size and method"
            left_out.append(f"{pluralize(others, 'task')} without {same}")
        for task, entry in chosen.values():
            try:
                read.append((opened.get(entry.key), task.tags[0] if task.tags else LIBRARY))
            except LibraryError as error:
                left_out.append(str(error))
    app.say_all("left out", left_out)
    return read, left_out


def _find_facts(embedding: "task2vec.Embedding") -> dict[str, Any]:
    """What the page shows of a task; what a file lacks, or has as something else than a number, is left out."""

    def find(section: str, key: str) -> Any:
        record = embedding.provenance.get(section)
        value = record.get(key) if isinstance(record, dict) else None
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    counts = {name: find("counts", name) for name in ("images", "classes")}
    return counts | {"error": find("head", "cv_error"), "norm": embedding.norm()}
