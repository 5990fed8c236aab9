"""`task2vec embed` and `task2vec tasks`: what can be embedded, and the embeddings of it."""

import shlex
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

import task2vec
from task2vec.cli import app, inputs, options
from task2vec.errors import DataError, EmbeddingFileError, ResourceError, UsageError
from task2vec.text import format_percent, pluralize, printable

# Rows of `task2vec tasks` that are printed; `--json` has all of them.
MOST_ROWS = 50


def embed(
    paths: options.AllPaths,
    reading: options.Reading,
    probe: options.ProbeOptions,
    numbers: options.SettingsOptions,
    compute: options.Compute,
    name: Annotated[str | None, Option(help="Name of the task. Default: the folder's name.")] = None,
    out: Annotated[Path | None, Option("--out", metavar="DIR", help="Also write files to this folder.")] = None,
    force: options.Force = False,
    library: options.LibraryFolder = None,
    no_library: options.NoLibrary = False,
    tags: options.Tags = None,
) -> None:
    """Embed folders of images, tables, or tasks of published datasets.

    Embeddings are saved to the library. If there is already one for the same images, labels, probe and settings, it
    is not recomputed. Unreadable images are listed, never skipped silently.

    Tasks on the same images share work. Each embedding is saved as soon as it is finished, and failures are reported.
    Run the same command again to continue an interrupted run.
    """
    settings = inputs.make_settings(numbers)
    reading = replace(reading, name=name, seed=settings.seed)
    sorts = inputs.sort_paths(paths, reading)
    is_one = inputs.is_single(sorts, reading)
    if name is not None and not is_one:
        raise UsageError(f"--name {name!r} is for one task, but there may be several. Remove it.")
    if no_library and out is None:
        raise UsageError("--no-library without --out: nothing would be saved. Name a folder for files: --out DIR")
    inputs.check_output(out, is_folder=True)
    loaded, about = (inputs.load_probe(probe), {}) if no_library or force else inputs.find_probe(probe, library)
    how: dict[str, Any] = {"settings": settings, "num_workers": reading.num_workers}
    how |= {"device": compute.device, "batch_size": compute.batch_size}
    details = {"paths": [str(path) for path in paths], "probe": probe.probe, "settings": settings.as_dict(), **about}
    where: dict[str, Any] = {"no_library": no_library, "folder": out, "tags": tags or (), "is_forced": force}
    with ExitStack() as stack:
        if (compute.backend, compute.jobs) != ("serial", None) and not is_one:
            how["backend"] = stack.enter_context(inputs.open_backend(compute))
        session = stack.enter_context(inputs.open_session(library, "embed", details, **where))
        if not session.places:
            raise ResourceError("the embeddings would be lost. Name a folder for files: --out DIR")
        app.say(f"reading {printable(paths[0]) if len(paths) == 1 else pluralize(len(paths), 'path')} ...")
        if is_one:
            ((path, sort),) = sorts.items()
            found = inputs.Tasks(inputs.read_path(path, sort, reading, inputs.Tasks()))
        else:
            if not isinstance(loaded, inputs.KnownProbe):
                task2vec.embed_many([], loaded, **how)  # refuses what cannot work before reading
            found = inputs.read_paths(sorts, reading)
        results = inputs.embed_tasks(found.tasks, loaded, session, is_one=is_one, **how)
        rows, is_interrupted = _collect(results, found, session, prints=not is_one and not app.wants_json())
    if not is_one:
        _print_many(rows, found.failed, session, is_interrupted)
    elif rows:
        rows[0]["seconds"] = app.count_seconds()
        app.print_report(rows[0], _print_one)
    codes = [error.exit_code for error in session.refusals if not isinstance(error, ResourceError)]
    codes += [DataError.exit_code] if found.failed else []
    if is_interrupted or codes:
        raise typer.Exit(app.INTERRUPTED if is_interrupted else max(codes))


def _collect(
    results: "Generator[task2vec.TaskResult]", found: inputs.Tasks, session: inputs.Session, *, prints: bool
) -> tuple[list[dict[str, Any]], bool]:
    """The facts of every embedding, printed as soon as it is finished, and whether the user interrupted."""
    from task2vec.library import identify

    width = min(60, max(len(printable(name)) for name in ["task", *(task.name for task in found.tasks)]))
    rows: list[dict[str, Any]] = []

    def print_row(name: str, images="", classes="", error="", norm="", notes: str = "") -> None:
        if prints and found.tasks:
            app.print_line(f"{printable(name):{width}}  {images:>6}  {classes:>7}  {error:>7}  {norm:>8}  {notes}")

    print_row("task", "images", "classes", "error", "norm")
    try:
        with closing(results):
            for result in results:
                if result.embedding is None:
                    found.fail(result.task, result.error or AssertionError("neither an embedding nor an error"))
                    print_row(result.task, notes="failed")
                    continue
                task = found.tasks[result.number]
                name = session.names.get(task.fingerprint)
                row = describe(result.embedding, has_noise=not prints)  # the table does not show it
                row |= {"bad": task.bad, "is_found": result.is_found, "known_as": None if name == task.name else name}
                row |= {"key": identify(result.embedding).key, "written": session.files.get(task.fingerprint)}
                row["library"] = None if name is None or session.library is None else session.library.folder
                rows.append(row)
                known_as = f"known as '{printable(name)}'" if row["known_as"] is not None else ""
                warnings = pluralize(len(row["warnings"]), "warning") if row["warnings"] else ""
                notes = ", ".join(filter(None, ("found" if row["is_found"] else "", known_as, warnings)))
                counts, error = row["counts"], format_percent(row["head"]["cv_error"])
                print_row(result.task, counts["images"], counts["classes"], error, f"{row['norm']:.3g}", notes=notes)
    except KeyboardInterrupt:
        places = " and ".join(f"'{printable(place)}'" for place in session.places)
        done = f"{len(rows)} of {len(found.tasks)} tasks are finished and saved in {places}"
        app.say(f"interrupted: {done}. Run the same command again to continue.")
        return rows, True
    return rows, False


def _print_many(
    rows: list[dict[str, Any]], failed: list[dict[str, Any]], session: inputs.Session, is_interrupted: bool
) -> None:
    """How many tasks are done, and their warnings; failures were printed when they happened."""
    found = sum(row["is_found"] for row in rows)
    report = {"embedded": len(rows) - found, "found": found, "failed": failed, "tasks": rows}
    report |= {"seconds": app.count_seconds(), "is_interrupted": is_interrupted, "places": session.places}
    report |= {"library": None if session.library is None else session.library.folder, "folder": session.folder}
    if not app.print_json(report) and not is_interrupted:
        counts = f"{report['embedded']} embedded, {found} found, {len(failed)} failed"
        print(f"{counts}; in {printable(' and '.join(session.places))} ({report['seconds']:.1f} s)")
        app.say_all("warning", (f"{row['task']}: {text}" for row in rows for text in row["warnings"]))


def _print_one(facts: dict[str, Any]) -> None:
    """The facts of one embedding, and where it is."""
    rows = format_facts(facts)
    if facts["library"] is not None:
        known = ""
        if facts["known_as"] is not None:  # the same images and labels, under another name
            old, new = (shlex.quote(printable(facts[word])) for word in ("known_as", "task"))
            rename = app.name_library(f"task2vec library rename {old} {new}")
            known = f", known there as '{facts['known_as']}'. Use that name, or change it: {rename}"
        rows.append(("library", f"{facts['library']} (embedding {facts['key'][: app.DIGITS]}){known}"))
    rows += [("written", facts["written"])] if facts["written"] is not None else []
    found = "; found in the library, not computed again (--force recomputes it)" if facts["is_found"] else ""
    app.print_facts([*rows, ("time", f"{facts['seconds']:.1f} s{found}")])


def describe(embedding: "task2vec.Embedding", *, has_noise: bool = True) -> dict[str, Any]:
    """The facts of an embedding; the noise floor takes longer than all else, and may be left out.

    Raises:
        EmbeddingFileError: Its record lacks something, or has it in another form: files come from strangers.
    """
    provenance, noise = embedding.provenance, {}
    if has_noise:
        noise = {"floor": task2vec.distance.find_floor(embedding), "basis": task2vec.distance.find_basis(embedding)}
    facts: dict[str, Any] = {"task": embedding.task, "probe": embedding.probe, "filters": len(embedding.fisher)}
    facts |= {"norm": float(embedding.norm()), "noise": noise}
    try:
        facts |= {name: dict(provenance[name]) for name in ("counts", "head", "settings", "versions")}
        others = ("image_size", "is_multilabel", "effective_images", "relative_error")
        facts |= {name: provenance[name] for name in others}
        facts["variational"] = dict(provenance.get("variational", {}))
        facts["warnings"] = [*map(str, provenance.get("warnings", []))]
        facts["fingerprints"] = {name: str(provenance[f"{name}_fingerprint"]) for name in ("task", "probe")}
        format_facts(facts | {"noise": noise or {"floor": 0.0, "basis": ""}})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EmbeddingFileError(
            f"the embedding of '{embedding.task}' lacks a valid record of how it was computed ({type(error).__name__}: "
            f"{error}), so its numbers cannot be interpreted. Embed the task again: task2vec embed FOLDER"
        ) from error
    return facts


def format_facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts that matter first, as rows of name and text."""
    counts, head, noise = facts["counts"], facts["head"], facts["noise"]
    fewest, most = min(counts["per_class"]), max(counts["per_class"])
    per_class = pluralize(most, "image") if fewest == most else f"{fewest} to {most} images"
    kind = ", multi-label" if facts["is_multilabel"] else ""
    images = f"{pluralize(counts['images'], 'image')}, {pluralize(counts['classes'], 'class')} ({per_class} each{kind})"
    rows = [("task", f"{facts['task']}: {images}")]
    rows += [("excluded", pluralize(counts["bad"], "unreadable image"))] if counts["bad"] else []
    height, width = facts["image_size"]
    samples = f"{pluralize(counts['backpropagated'], 'gradient')} of {pluralize(counts['images_used'], 'image')}"
    is_lower_bound = noise["basis"] == "stderr"
    floor = f"{'at least ' if is_lower_bound else ''}{noise['floor']:.3f}"
    hint = "; --split-half estimates all of the noise" if is_lower_bound else ""
    rows += [
        ("probe", f"{facts['probe']} at {height} x {width} pixels, {facts['filters']} filters"),
        ("head", f"cross-validated error {format_percent(head['cv_error'])}, L2 penalty {head['l2']:.3g}"),
        ("norm", f"{facts['norm']:.4g}"),
        ("precision", f"relative error {format_percent(facts['relative_error'])} per filter (median), from {samples}"),
        ("noise floor", f"{floor}, the distance between two such embeddings of this task{hint}"),
    ]
    if trained := facts["variational"]:
        losses = f"loss {trained['loss']:.3g}, KL {trained['kl']:.3g} nats"
        rows.append(("training", f"{losses}, change in the last epoch {trained['drift']:.2g}"))
    return rows + [("warning", warning) for warning in facts["warnings"]]


# --- task2vec tasks --------------------------------------------------------------------------------------------------


def tasks(
    dataset: options.Folder,
    reading: Annotated[options.Reading, "kind split layout labels path_column label_columns root allow_bad"],
) -> None:
    """List the tasks of a dataset.

    CUB-200-2011, iNaturalist, iMaterialist (Fashion) 2018 and DeepFashion are recognised by their annotation files, and
    no image is opened. A folder with one folder per class, or a table, is a single task, which is read.
    """
    ((path, sort),) = inputs.sort_paths([dataset], reading).items()
    if sort in (inputs.TABLE, inputs.FOLDER):
        (task,) = inputs.read_path(path, sort, reading, inputs.Tasks())
        report: dict[str, Any] = {"dataset": task.name, "images": {"all": len(task)}, "kinds": {sort: 1}}
        row = {"name": task.name, "kind": sort, "group": "", "classes": len(task.classes)}
        row |= {"images": {"all": len(task)}, "positives": {}, "is_multilabel": task.is_multilabel}
        report |= {"warnings": task.warnings, "bad": task.bad, "tasks": [row]}
    else:
        catalog = task2vec.read_catalog(path, layout=sort, labels=reading.labels, progress=app.is_watched())
        chosen = catalog.definitions if reading.kind is None else catalog.of_kind(reading.kind)
        splits = tuple(catalog.splits) if reading.split is None else (reading.split,)
        report = {
            "dataset": catalog.name,
            "images": {name: len(catalog.rows(name)) for name in splits},
            "kinds": dict(Counter(one.kind for one in catalog.definitions)),
            "warnings": catalog.warnings,
            "bad": [],
            "tasks": [
                {"name": one.name, "kind": one.kind, "group": one.group, "classes": len(one.classes)}
                | {"images": {name: count for name, count in one.counts.items() if name in splits}}
                | {"positives": {name: count for name, count in one.positives.items() if name in splits}}
                | {"is_multilabel": one.is_multilabel}
                for one in chosen
            ],
        }
    app.print_report(report, lambda report: _print_tasks(report, dataset))


def _print_tasks(report: dict[str, Any], dataset: Path) -> None:
    splits = report["images"]
    is_own = list(splits) == ["all"]
    parts = "" if is_own else f" ({', '.join(f'{split} {count}' for split, count in splits.items())})"
    kinds = ", ".join(f"{count} {kind}" for kind, count in report["kinds"].items())
    app.print_text(f"{report['dataset']}: {pluralize(sum(splits.values()), 'image')}{parts}; tasks: {kinds}")
    app.say_all("warning", report["warnings"])
    shown = list(splits) if len(splits) > 1 else []
    columns = ["task=name", "kind", "group", "classes", "images", *(f"{split}=images.{split}" for split in shown)]
    drop = ", ".join([*shown, "group", "kind", "positive", "classes"])
    app.print_table(report["tasks"][:MOST_ROWS], ", ".join([*columns, "positive=positives"]), drop=drop)
    if (more := len(report["tasks"]) - MOST_ROWS) > 0:
        app.print_text(f"and {more} more; --kind selects some, --json lists all")
    if not is_own:
        print("Embed one of them, or all of a kind:")
        for option in ("--task NAME", "--kind KIND"):
            print(f"  task2vec embed {printable(dataset)} {option} --split train")
