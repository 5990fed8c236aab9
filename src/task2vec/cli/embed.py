"""`task2vec embed` and `task2vec tasks`: what can be embedded, and the embeddings of it."""

import math
import shlex
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer import Option

import task2vec
from task2vec.cli import app, inputs, options
from task2vec.cli.library import open_for_run, open_if_any
from task2vec.embedding.embedding import find_saved
from task2vec.errors import (
    DataError,
    EmbeddingFileError,
    LibraryError,
    NotInLibraryError,
    ResourceError,
    Task2VecError,
    UsageError,
)
from task2vec.library import check_tags, identify
from task2vec.text import format_percent, pluralize, printable

# Rows of `task2vec tasks` that are printed; `--json` has all of them.
MAX_ROWS = 50


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
    layouts = inputs.recognize_paths(paths, reading)
    is_single = inputs.is_single(layouts, reading)
    if name is not None and not is_single:
        raise UsageError(f"--name {name!r} is for one task, but there may be several. Remove it.")
    if no_library and out is None:
        raise UsageError("--no-library without --out: nothing would be saved. Name a folder for files: --out DIR")
    inputs.check_output(out, is_folder=True)
    check_tags(tags or ())
    loaded, details = (inputs.load_probe(probe), {}) if no_library else find_probe(probe, library, is_forced=force)
    details |= {"paths": [str(path) for path in paths], "settings": settings.as_dict()}
    compute_options = {"device": compute.device, "batch_size": compute.batch_size, "num_workers": reading.num_workers}
    with ExitStack() as stack:
        backend = stack.enter_context(inputs.open_backend(compute))
        compute_options["backend"] = None if compute.backend == "serial" else backend
        opened = stack.enter_context(open_for_run(library, "embed", details, no_library=no_library))
        saving = Saving(loaded, settings, opened, out, tuple(tags or ()), is_forced=force)
        if not saving.places:
            raise ResourceError("the embeddings would be lost. Name a folder for files: --out DIR")
        app.say(f"reading {printable(paths[0]) if len(paths) == 1 else pluralize(len(paths), 'path')} ...")
        if not isinstance(loaded, KnownProbe):  # what cannot work is refused before reading
            task2vec.embed_many([], loaded, settings=settings, **compute_options)
        tasks = inputs.read_paths(layouts, reading)
        results = embed_tasks(tasks.tasks, saving, **compute_options)
        rows, is_interrupted = _collect(results, tasks, saving, is_single=is_single)
    if not is_single:
        _print_many(rows, tasks.failed, saving, is_interrupted)
    elif rows:
        rows[0]["seconds"] = app.count_seconds()
        app.print_report(rows[0], _print_one)
    codes = [error.exit_code for error in saving.refusals if not isinstance(error, ResourceError)]
    codes += [DataError.exit_code] if tasks.failed else []
    if is_interrupted or codes:
        raise typer.Exit(app.INTERRUPTED if is_interrupted else max(codes))


@dataclass(frozen=True)
class KnownProbe:
    """A probe whose fingerprint the library knows: it is loaded when something must be computed.

    Attributes:
        options: that load it.
        fingerprint: of its weights and preprocessing, as recorded.
        details: that it was recorded with.
    """

    options: options.ProbeOptions
    fingerprint: str
    details: dict[str, Any]


def find_probe(
    chosen: options.ProbeOptions, library: Path | None, *, is_forced: bool = False
) -> "tuple[task2vec.Probe | KnownProbe, dict[str, Any]]":
    """The probe of the options, not loaded if an earlier run recorded its fingerprint, and what to record of it.

    To import and load a network takes longer than all else that a command does for tasks that it has embedded before.
    A file of weights is always loaded. Weights that a hub replaces under the same name are noticed when they are loaded
    next, with --force (`is_forced`) at the latest; from then on these are the known ones.
    """
    details: dict[str, Any] = {"probe": chosen.probe}
    if chosen.weights is not None:
        return inputs.load_probe(chosen), details
    details |= {"size": chosen.size, "task2vec": task2vec.__version__}
    details |= {name: version(name) for name in ("timm", "torchvision")}
    with suppress(LibraryError, ResourceError), open_if_any(library) as opened:
        for run in opened.runs()[::-1] if opened is not None and not is_forced else ():
            fingerprint = run.details.get("probe_fingerprint")
            if fingerprint is not None and details.items() <= run.details.items():
                return KnownProbe(chosen, fingerprint, details), details | {"probe_fingerprint": fingerprint}
    loaded = inputs.load_probe(chosen)
    return loaded, details | {"probe_fingerprint": loaded.fingerprint}


@dataclass
class Saving:
    """Where embeddings are saved.

    Attributes:
        probe: by which they are.
        settings: with which they are computed.
        library: None if it is not used.
        folder: for files; None for none.
        tags: for the tasks.
        is_forced: whether known embeddings are computed again and replaced.
        refusals: why the library did not take an embedding.
    """

    probe: "task2vec.Probe | KnownProbe"
    settings: "task2vec.EmbedSettings"
    library: "task2vec.Library | None" = None
    folder: Path | None = None
    tags: tuple[str, ...] = ()
    is_forced: bool = False
    refusals: list[Task2VecError] = field(default_factory=list)

    @property
    def places(self) -> list[str]:
        """Where embeddings are saved."""
        library = None if self.library is None or self.library.is_read_only else self.library.folder
        return [str(path) for path in (library, self.folder) if path is not None]

    def save(self, result: "task2vec.TaskResult", task: "task2vec.Task") -> tuple[str | None, Path | None]:
        """The name of the task in the library, and the file of the embedding, if it is there.

        An embedding that the library refuses is written to a file, so that it is not lost.
        """
        embedding, file = result.embedding, None
        assert embedding is not None
        if self.folder is not None:
            file, saved = find_saved(self.folder, task, cast(Any, self.probe), settings=self.settings)
            if self.is_forced or saved is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                embedding.save(file)
        if self.library is None:
            return None, file
        try:
            if result.error is not None:
                raise result.error
            if self.library.is_read_only:
                entry = self.library.task(task.fingerprint)
                is_there = identify(embedding).key in {known.key for known in entry.embeddings}
                return entry.name if is_there else None, file
            if self.is_forced:
                (added,) = self.library.add(embedding, tags=self.tags, source=task.source, replace=True)
                return added.name, file
            if self.tags:
                return self.library.tag(task.fingerprint, *self.tags).name, file
            return self.library.task(task.fingerprint).name, file
        except NotInLibraryError:  # and nothing can be added to it
            return None, file
        except Task2VecError as error:
            self.refusals.append(error)
            saved_instead = ""
            if file is None:
                file = Path(f"task-{task.fingerprint[:16]}-{embedding.probe_fingerprint[:8]}.t2v.safetensors")
                embedding.save(file)
                saved_instead = f"; it is in '{printable(file)}' instead"
            reason = f"was not added to the library{saved_instead}: {printable(error)}"
            app.say(f"warning: '{printable(embedding.task)}' {reason}")
            return None, file


def embed_tasks(
    tasks: "Sequence[task2vec.Task]", saving: Saving, **compute_options: Any
) -> "Generator[task2vec.TaskResult]":
    """The embeddings of tasks, found or new; a `KnownProbe` is loaded if one of them is new."""
    library, probe, settings = saving.library, saving.probe, saving.settings
    if isinstance(probe, KnownProbe):
        known: list[task2vec.Embedding | None] = [None]
        if library is not None:
            known = [library.find(task, cast(Any, probe), settings=settings) for task in tasks]
        if None not in known:
            for number, (task, embedding) in enumerate(zip(tasks, known, strict=True)):
                named = replace(cast(task2vec.Embedding, embedding), task=task.name)
                yield task2vec.TaskResult(number, task.name, named, is_found=True)
            return
        recorded, probe = probe, inputs.load_probe(probe.options)
        if library is not None and not library.is_read_only and probe.fingerprint != recorded.fingerprint:
            with library.record("embed", recorded.details | {"probe_fingerprint": probe.fingerprint}):
                pass
    places = {} if saving.is_forced else {"library": library, "folder": saving.folder}
    if len(tasks) == 1:
        app.say(f"embedding {printable(tasks[0].name)} ...")
    yield from task2vec.embed_many(
        tasks, probe, settings=settings, progress=app.is_watched(), **places, **compute_options
    )


def _collect(
    results: "Generator[task2vec.TaskResult]", tasks: inputs.Tasks, saving: Saving, *, is_single: bool
) -> tuple[list[dict[str, Any]], bool]:
    """The facts of every embedding, of several tasks printed meanwhile, and whether the user interrupted."""
    width = min(60, max(len(printable(name)) for name in ["task", *(task.name for task in tasks.tasks)]))
    prints = not is_single and not app.wants_json() and bool(tasks.tasks)
    rows: list[dict[str, Any]] = []

    def print_row(name: str, images="", classes="", error="", norm="", notes: str = "") -> None:
        if prints:
            app.print_line(f"{printable(name):{width}}  {images:>6}  {classes:>7}  {error:>7}  {norm:>8}  {notes}")

    print_row("task", "images", "classes", "error", "norm")
    try:
        with closing(results):
            for result in results:
                if result.embedding is None:
                    error = result.error or AssertionError("neither an embedding nor an error")
                    if is_single:
                        raise error
                    tasks.fail(result.task, error)
                    print_row(result.task, notes="failed")
                    continue
                task = tasks.tasks[result.number]
                name, file = saving.save(result, task)
                row = describe(result.embedding, has_noise=not prints)  # the table does not show it
                row |= {"bad": task.bad, "is_found": result.is_found, "known_as": None if name == task.name else name}
                row |= {"key": identify(result.embedding).key, "written": file}
                row["library"] = None if name is None or saving.library is None else saving.library.folder
                rows.append(row)
                known_as = f"known as '{printable(name)}'" if row["known_as"] is not None else ""
                warnings = pluralize(len(row["warnings"]), "warning") if row["warnings"] else ""
                notes = ", ".join(filter(None, ("found" if row["is_found"] else "", known_as, warnings)))
                counts, error = row["counts"], format_percent(row["head"]["cv_error"])
                print_row(result.task, counts["images"], counts["classes"], error, f"{row['norm']:.3g}", notes=notes)
    except KeyboardInterrupt:
        places = " and ".join(f"'{printable(path)}'" for path in saving.places)
        done = f"{len(rows)} of {len(tasks.tasks)} tasks are finished and saved in {places}"
        app.say(f"interrupted: {done}. Run the same command again to continue.")
        return rows, True
    return rows, False


def _print_many(rows: list[dict[str, Any]], failed: list[dict[str, Any]], saving: Saving, is_interrupted: bool) -> None:
    """How many tasks are done, and their warnings; failures were printed when they happened."""
    known_count = sum(row["is_found"] for row in rows)
    report = {"embedded": len(rows) - known_count, "found": known_count, "failed": failed, "tasks": rows}
    report |= {"seconds": app.count_seconds(), "is_interrupted": is_interrupted, "places": saving.places}
    report |= {"library": None if saving.library is None else saving.library.folder, "folder": saving.folder}
    if not app.print_json(report) and not is_interrupted:
        counts = f"{report['embedded']} embedded, {known_count} found, {len(failed)} failed"
        print(f"{counts}; in {printable(' and '.join(saving.places))} ({report['seconds']:.1f} s)")
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
    note = "; found in the library, not computed again (--force recomputes it)" if facts["is_found"] else ""
    app.print_facts([*rows, ("time", f"{facts['seconds']:.1f} s{note}")])


def describe(embedding: "task2vec.Embedding", *, has_noise: bool = True) -> dict[str, Any]:
    """The facts of an embedding; the noise floor takes longer than all else, and may be left out.

    Raises:
        EmbeddingFileError: Its record lacks something, or has it in another form: files come from strangers.
    """
    provenance, noise = embedding.provenance, {}
    if has_noise:
        floor = task2vec.distance.find_floor(embedding)
        basis = task2vec.distance.find_basis(embedding)
        noise = {"floor": None if math.isnan(floor) else floor, "basis": basis}
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
    floor = "unknown, for no standard errors are stored; task2vec embed FOLDER estimates it"
    if noise["floor"] is not None:
        is_lower_bound = noise["basis"] == "stderr"
        bound, hint = ("at least ", "; --split-half estimates all of the noise") if is_lower_bound else ("", "")
        floor = f"{bound}{noise['floor']:.3f}, the distance between two such embeddings of this task{hint}"
    rows += [
        ("probe", f"{facts['probe']} at {height} x {width} pixels, {facts['filters']} filters"),
        ("head", f"cross-validated error {format_percent(head['cv_error'])}, L2 penalty {head['l2']:.3g}"),
        ("norm", f"{facts['norm']:.4g}"),
        ("precision", f"relative error {format_percent(facts['relative_error'])} per filter (median), from {samples}"),
        ("noise floor", floor),
    ]
    if trained := facts["variational"]:
        losses = f"loss {trained['loss']:.3g}, KL {trained['kl']:.3g} nats"
        rows.append(("training", f"{losses}, change in the last epoch {trained['drift']:.2g}"))
    return rows + [("warning", warning) for warning in facts["warnings"]]


# --- task2vec tasks --------------------------------------------------------------------------------------------------


def tasks(
    dataset: options.Folder,
    reading: Annotated[options.Reading, f"kind layout labels {options.OWN}"],
) -> None:
    """List the tasks of a dataset.

    CUB-200-2011, iNaturalist, iMaterialist (Fashion) 2018 and DeepFashion are recognised by their annotation files, and
    no image is opened. A folder with one folder per class, or a table, is a single task, which is read.
    """
    ((path, layout),) = inputs.recognize_paths([dataset], reading).items()
    if layout in (inputs.TABLE, inputs.FOLDER):
        (task,) = inputs.read_path(path, layout, reading, inputs.Tasks())
        report: dict[str, Any] = {"dataset": task.name, "images": {"all": len(task)}, "kinds": {layout: 1}}
        row = {"name": task.name, "kind": layout, "group": "", "classes": len(task.classes)}
        row |= {"images": {"all": len(task)}, "positives": {}, "is_multilabel": task.is_multilabel}
        report |= {"warnings": task.warnings, "bad": task.bad, "tasks": [row]}
    else:
        catalog = task2vec.read_catalog(path, layout=layout, labels=reading.labels, progress=app.is_watched())
        chosen = catalog.definitions if reading.kind is None else catalog.of_kind(reading.kind)
        splits = tuple(catalog.splits) if reading.split is None else (reading.split,)
        report = {
            "dataset": catalog.name,
            "images": {split: len(catalog.rows(split)) for split in splits},
            "kinds": dict(Counter(definition.kind for definition in catalog.definitions)),
            "warnings": catalog.warnings,
            "bad": [],
            "tasks": [
                {"name": task.name, "kind": task.kind, "group": task.group, "classes": len(task.classes)}
                | {"images": {split: count for split, count in task.counts.items() if split in splits}}
                | {"positives": {split: count for split, count in task.positives.items() if split in splits}}
                | {"is_multilabel": task.is_multilabel}
                for task in chosen
            ],
        }
    app.print_report(report, lambda report: _print_tasks(report, dataset))


def _print_tasks(report: dict[str, Any], dataset: Path) -> None:
    splits = report["images"]
    is_published = list(splits) != ["all"]
    by_split = f" ({', '.join(f'{split} {count}' for split, count in splits.items())})" if is_published else ""
    kinds = ", ".join(f"{count} {kind}" for kind, count in report["kinds"].items())
    app.print_text(f"{report['dataset']}: {pluralize(sum(splits.values()), 'image')}{by_split}; tasks: {kinds}")
    app.say_all("warning", report["warnings"])
    shown = list(splits) if len(splits) > 1 else []
    columns = ["task=name", "kind", "group", "classes", "images", *(f"{split}=images.{split}" for split in shown)]
    drop = ", ".join([*shown, "group", "kind", "positive", "classes"])
    app.print_table(report["tasks"][:MAX_ROWS], ", ".join([*columns, "positive=positives"]), drop=drop)
    if (more := len(report["tasks"]) - MAX_ROWS) > 0:
        app.print_text(f"and {more} more; --kind selects some, --json lists all")
    if is_published:
        print("Embed one of them, or all of a kind:")
        for option in ("--task NAME", "--kind KIND"):
            print(f"  task2vec embed {printable(dataset)} {option} --split train")
