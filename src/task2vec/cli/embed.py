"""`task2vec embed` and `task2vec tasks`: what can be embedded, and the embeddings of it."""

import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer import Option

from task2vec.cli import inputs, options, output
from task2vec.errors import DataError, EmbeddingFileError, ResourceError, UsageError
from task2vec.text import format_percent, pluralize, printable

if TYPE_CHECKING:
    from task2vec.embedding import Embedding, EmbedSettings, TaskResult
    from task2vec.probe import Probe
    from task2vec.tasks import Task

# Rows of `task2vec tasks` that are printed; `--json` has all of them.
MOST_ROWS = 50


def embed(
    paths: options.AllPaths,
    reading: options.Reading,
    probe: options.ProbeOptions,
    numbers: options.SettingsOptions,
    name: Annotated[str | None, Option(help="Name of the task. Default: that of the folder.")] = None,
    out: Annotated[Path | None, Option("--out", metavar="DIR", help="Also write files to this folder.")] = None,
    force: options.Force = False,
    device: options.Device = None,
    batch_size: options.BatchSize = None,
    backend: options.Backend = "serial",
    jobs: options.Jobs = None,
    library: options.LibraryFolder = None,
    no_library: options.NoLibrary = False,
    tags: options.Tags = None,
) -> None:
    """Embed folders of images, tables, or tasks of published datasets.

    Embeddings are saved to the library. One that is there already, for the same images, labels, probe and settings, is
    not computed again. Unreadable images are named, never skipped silently.

    Several tasks at once: tasks on the same images share the work. Each is saved as soon as it is finished, failures
    are reported, and the same command run again continues with the rest.
    """
    begin = time.perf_counter()
    settings = inputs.make_settings(numbers)
    reading = replace(reading, name=name, seed=settings.seed)
    sorts = inputs.sort_paths(paths, reading)
    is_own = set(sorts.values()) <= {inputs.TABLE, inputs.FOLDER}
    is_one = len(sorts) == 1 and not reading.one_vs_rest and (is_own or len(set(reading.task_names or ())) == 1)
    if name is not None and not is_one:
        raise UsageError(f"--name {name!r} is for one task, and there may be several. Remove it.")
    if no_library and out is None:
        raise UsageError("--no-library without --out: nothing would be saved. Name a folder for files: --out DIR")
    inputs.check_output(out, is_folder=True)
    import task2vec

    loaded = inputs.load_probe(probe)
    how: dict[str, Any] = {"device": device, "num_workers": reading.num_workers, "batch_size": batch_size}
    details = {"paths": [str(path) for path in paths], "probe": loaded.name, "settings": settings.as_dict()}
    where: dict[str, Any] = {"no_library": no_library, "folder": out, "tags": tags or (), "is_forced": force}
    with ExitStack() as stack:
        if (backend, jobs) != ("serial", None) and not is_one:
            how["backend"] = stack.enter_context(inputs.open_backend(backend, jobs))
        session = stack.enter_context(inputs.open_session(library, "embed", details, **where))
        if not session.places:
            raise ResourceError("the embeddings would be lost. Name a folder for files: --out DIR")
        if is_one:
            ((path, sort),) = sorts.items()
            found = inputs.Tasks(inputs.read_path(path, sort, reading, inputs.Tasks()))
        else:
            task2vec.embed_many([], loaded, settings=settings, **how)  # refuses what cannot work before reading
            found = inputs.read_paths(sorts, reading)
        run = EmbedRun(found, session, loaded, settings, is_quiet=output.wants_json() or is_one)
        run.embed(inputs.embed_tasks(found.tasks, loaded, session, settings=settings, is_one=is_one, **how))
    seconds = {"seconds": round(time.perf_counter() - begin, 3)}
    if not is_one:
        run.print_report(seconds)
    elif not run.rows:
        pass  # interrupted
    elif output.wants_json():
        output.print_json(run.rows[0] | seconds)
    else:
        _print_one(run.rows[0] | seconds)
        inputs.say_bad(found.tasks[0].bad)
    sys.stdout.flush()
    codes = [error.exit_code for error in session.refusals.values() if not isinstance(error, ResourceError)]
    codes += [DataError.exit_code] if found.failed else []
    if run.is_interrupted or codes:
        raise typer.Exit(output.INTERRUPTED if run.is_interrupted else max(codes))


@dataclass
class EmbedRun:
    """Embeddings as they are finished: a row of facts for each, printed at once, and an interrupt reported."""

    found: inputs.Tasks
    session: inputs.Session
    probe: "Probe"
    settings: "EmbedSettings"
    is_quiet: bool
    rows: list[dict[str, Any]] = field(default_factory=list)
    is_interrupted: bool = False

    def embed(self, results: "Iterator[TaskResult]") -> None:
        """Takes the results; what is finished before an interrupt is saved and reported."""
        tasks = self.found.tasks
        width = min(60, max(len(printable(name)) for name in ["task", *(task.name for task in tasks)]))

        def print_row(name: str, images: object, classes: object, error: str, norm: str, notes: str) -> None:
            if not self.is_quiet and tasks:
                start = f"{printable(name):{width}}  {images:>6}  {classes:>7}"
                output.print_line(f"{start}  {error:>7}  {norm:>8}  {notes}")

        print_row("task", "images", "classes", "error", "norm", "")
        try:
            with closing(cast("Generator[TaskResult]", results)):
                for result in results:
                    if result.embedding is None:
                        self.found.failed.append({"name": result.task, "reason": str(result.error), "bad": []})
                        print_row(result.task, "", "", "", "", "failed")
                        continue
                    row = self._describe(tasks[result.number], result)
                    self.rows.append(row)
                    known_as = f"known as '{printable(row['known_as'])}'" if row["known_as"] is not None else ""
                    warnings = pluralize(len(row["warnings"]), "warning") if row["warnings"] else ""
                    notes = ", ".join(filter(None, ("found" if row["is_found"] else "", known_as, warnings)))
                    error, norm = format_percent(row["head"]["cv_error"]), f"{row['norm']:.3g}"
                    print_row(result.task, row["counts"]["images"], row["counts"]["classes"], error, norm, notes)
        except KeyboardInterrupt:
            places = " and ".join(f"'{printable(place)}'" for place in self.session.places)
            done = f"{len(self.rows)} of {len(tasks)} tasks are finished and saved in {places}"
            output.say(f"interrupted: {done}. Run the same command again to continue.")
            self.is_interrupted = True

    def _describe(self, task: "Task", result: "TaskResult") -> dict[str, Any]:
        """The facts of an embedding and where it is now; its file is written, if it is not yet."""
        from task2vec.embedding.embedding import find_saved
        from task2vec.library import identify

        session, embedding = self.session, cast("Embedding", result.embedding)
        written = session.files.get(task.fingerprint)
        if session.folder is not None:
            written, saved = find_saved(session.folder, task, self.probe, settings=self.settings)
            if session.is_forced or saved is None:
                session.folder.mkdir(parents=True, exist_ok=True)
                embedding.save(written)
        known_as = session.names.get(task.fingerprint)
        return {
            **describe(embedding, has_noise=self.is_quiet),  # the table does not show it
            "bad": [asdict(bad) for bad in task.bad],
            "is_found": result.is_found,
            "known_as": None if known_as == task.name else known_as,
            "key": identify(embedding).key,
            "library": None if known_as is None or session.library is None else str(session.library.folder),
            "written": None if written is None else str(written),
        }

    def print_report(self, more: dict[str, Any]) -> None:
        """How many tasks are done, the warnings, and the failures."""
        found, failed, session = sum(row["is_found"] for row in self.rows), self.found.failed, self.session
        report = {"embedded": len(self.rows) - found, "found": found, "failed": failed, "tasks": self.rows, **more}
        report |= {"is_interrupted": self.is_interrupted, "places": session.places}
        report |= {"library": None if session.library is None else str(session.library.folder)}
        report |= {"folder": None if session.folder is None else str(session.folder)}
        if not output.print_json(report) and not self.is_interrupted:
            counts = f"{report['embedded']} embedded, {found} found, {len(failed)} failed"
            print(f"{counts}; in {printable(' and '.join(session.places))} ({more['seconds']:.1f} s)")
            output.say_all("warning", (f"{row['task']}: {text}" for row in self.rows for text in row["warnings"]))
            output.say_all("failed", (f"{one['name']}: {one['reason']}" for one in failed))


def _print_one(facts: dict[str, Any]) -> None:
    """The facts of one embedding, and where it is."""
    rows = format_facts(facts)
    if facts["library"] is not None:
        known = ""
        if facts["known_as"] is not None:  # the same images and labels, under another name
            old, new = (shlex.quote(printable(facts[word])) for word in ("known_as", "task"))
            rename = output.name_library(f"task2vec library rename {old} {new}")
            known = f", known there as '{facts['known_as']}'. Use that name, or change it: {rename}"
        rows.append(("library", f"{facts['library']} (embedding {facts['key'][: output.DIGITS]}){known}"))
    rows += [("written", facts["written"])] if facts["written"] is not None else []
    found = "; found in the library, not computed (--force computes it again)" if facts["is_found"] else ""
    output.print_facts([*rows, ("time", f"{facts['seconds']:.1f} s{found}")])


def describe(embedding: "Embedding", *, has_noise: bool = True) -> dict[str, Any]:
    """The facts of an embedding as plain values, each checked for its type: files come from strangers.

    The noise floor takes longer than all else, and may be left out.
    """
    from task2vec.distance import find_basis, find_floor

    story = embedding.provenance
    try:
        noise = {"floor": find_floor(embedding), "basis": find_basis(embedding)} if has_noise else {}
        return {
            "task": str(embedding.task),
            "probe": str(embedding.probe),
            "image_size": [int(side) for side in story["image_size"]],
            "filters": len(embedding.fisher),
            "norm": float(embedding.norm()),
            "is_multilabel": bool(story["is_multilabel"]),
            "counts": {key: _to_number(value, int) for key, value in story["counts"].items()},
            "head": {key: _to_number(value) for key, value in story["head"].items()},
            "effective_images": _to_number(story["effective_images"]),
            "relative_error": _to_number(story["relative_error"]),
            "noise": noise,
            "variational": {key: _to_number(value) for key, value in story.get("variational", {}).items()},
            "warnings": [str(warning) for warning in [*story.get("warnings", [])]],
            "settings": dict(story["settings"]),
            "fingerprints": {"task": str(story["task_fingerprint"]), "probe": str(story["probe_fingerprint"])},
            "versions": dict(story["versions"]),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EmbeddingFileError(
            f"the embedding of '{embedding.task}' lacks a valid record of how it was computed ({type(error).__name__}: "
            f"{error}), so its numbers cannot be interpreted. Embed the task again: task2vec embed FOLDER"
        ) from error


def _to_number(value: Any, kind: Callable[[Any], Any] = float) -> Any:
    """The number, of the kind that is expected, or each of a list."""
    if isinstance(value, list):
        return [kind(part) for part in value]
    return value if value is None or isinstance(value, bool) else kind(value)


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
    hint = "; --split-half estimates all of it" if is_lower_bound else ""
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
    reading: Annotated[options.Reading, "kind split layout labels path_column label_column root allow_bad"],
) -> None:
    """List the tasks of a dataset.

    CUB-200-2011, iNaturalist, iMaterialist (Fashion) 2018 and DeepFashion are recognized by their annotation files, and
    no image is opened. A folder with one folder per class, or a table, is a single task, which is read.
    """
    from task2vec.tasks import read_catalog

    ((path, sort),) = inputs.sort_paths([dataset], reading).items()
    if sort in (inputs.TABLE, inputs.FOLDER):
        (task,) = inputs.read_path(path, sort, reading, inputs.Tasks())
        inputs.say_bad(task.bad)
        rows = [{"name": task.name, "kind": sort, "group": "", "classes": len(task.classes)}]
        rows[0] |= {"images": {"all": len(task)}, "positives": {}, "is_multilabel": task.is_multilabel}
        report = {"dataset": task.name, "images": {"all": len(task)}, "kinds": {sort: 1}}
        report |= {"warnings": list(task.warnings), "bad": [asdict(bad) for bad in task.bad], "tasks": rows}
    else:
        catalog = read_catalog(path, layout=sort, labels=reading.labels, progress=output.is_watched())
        chosen = catalog.definitions if reading.kind is None else catalog.of_kind(reading.kind)
        splits = tuple(catalog.splits) if reading.split is None else (reading.split,)
        report = {
            "dataset": catalog.name,
            "images": {name: len(catalog.rows(name)) for name in splits},
            "kinds": dict(Counter(one.kind for one in catalog.definitions)),
            "warnings": list(catalog.warnings),
            "bad": [],
            "tasks": [_describe_task(one, reading.split) for one in chosen],
        }
    output.print_json(report) if output.wants_json() else _print_tasks(report, dataset)


def _describe_task(one: Any, split: str | None) -> dict[str, Any]:
    counts = [
        {name: count for name, count in part.items() if split in (None, name)} for part in (one.counts, one.positives)
    ]
    about = {"name": one.name, "kind": one.kind, "group": one.group, "classes": len(one.classes)}
    return about | {"images": counts[0], "positives": counts[1], "is_multilabel": one.is_multilabel}


def _print_tasks(report: dict[str, Any], dataset: Path) -> None:
    splits = report["images"]
    is_own = list(splits) == ["all"]
    parts = "" if is_own else f" ({', '.join(f'{split} {count}' for split, count in splits.items())})"
    kinds = ", ".join(f"{count} {kind}" for kind, count in report["kinds"].items())
    output.print_text(f"{report['dataset']}: {pluralize(sum(splits.values()), 'image')}{parts}; tasks: {kinds}")
    output.say_all("warning", report["warnings"])
    rows = [
        {"task": row["name"], "kind": row["kind"], "group": row["group"], "classes": row["classes"]}
        | {"images": sum(row["images"].values())}
        | ({} if len(splits) < 2 else {split: row["images"].get(split) for split in splits})
        | {"positive": sum(row["positives"].values()) if row["positives"] else None}
        for row in report["tasks"][:MOST_ROWS]
    ]
    output.print_table(rows, text=("task", "kind", "group"), drop=(*splits, "group", "kind", "positive", "classes"))
    if (more := len(report["tasks"]) - MOST_ROWS) > 0:
        output.print_text(f"and {more} more; --kind selects some, --json lists all")
    if not is_own:
        print("Embed one of them, or all of a kind:")
        for option in ("--task NAME", "--kind KIND"):
            print(f"  task2vec embed {printable(dataset)} {option} --split train")
