"""`task2vec train-expert` and `task2vec error-matrix`: experts, and the errors of tasks with them."""

import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from task2vec.cli import inputs, options, output
from task2vec.errors import ConflictError, DataError, NotInLibraryError, UsageError
from task2vec.text import format_percent, pluralize, printable

if TYPE_CHECKING:
    from task2vec.experts import ExpertResult, MetaTask, Recipe
    from task2vec.library import Library


def train_expert(
    paths: Annotated[list[Path], Argument(metavar="PATH", help="Folders with one folder per class, or tables.")],
    reading: Annotated[options.Reading, "split allow_bad path_column label_column root num_workers"],
    probe: options.ProbeOptions,
    name: Annotated[str | None, Option(help="Name of the expert of one PATH. Default: that of the task.")] = None,
    recipe: Annotated[str, Option(help="fast, or achille2019: that of the paper, 12 times slower.")] = "fast",
    epochs: options.Epochs = None,
    max_samples: Annotated[int | None, Option("--max-samples", help="Images per epoch. Default: 10,000.")] = None,
    out: options.Out = Path("task2vec-experts"),
    force: options.Force = False,
    seed: options.Seed = None,
    device: options.Device = None,
    backend: options.Backend = "serial",
    jobs: options.Jobs = None,
    library: options.LibraryFolder = None,
    no_library: options.NoLibrary = False,
) -> None:
    """Fine-tune a pretrained model on each task, and save it as an expert.

    An interrupted training continues where it stopped, and finished experts are not trained again. Failures are
    reported, and the other tasks continue. Another expert of the same images (--recipe, --seed, --probe) needs its own
    --name. On a CPU a large model takes hours: use a small --size, few --epochs or a small --max-samples.
    """
    begin = time.perf_counter()
    if name is not None and len(paths) > 1:
        raise UsageError(f"--name {name!r} is for one expert, and {len(paths)} paths are given. Remove it.")
    inputs.check_output(out, is_folder=True)
    from task2vec.experts import train_experts

    chosen = _choose_recipe(recipe, {"epochs": epochs, "draws": max_samples})
    reading = replace(reading, layout=inputs.FOLDER)
    found = inputs.read_paths(inputs.sort_paths(paths, reading), reading)
    output.say_all("warning", (f"'{task.name}': {text}" for task in found.tasks for text in task.warnings))
    if not found.tasks:
        raise typer.Exit(DataError.exit_code)
    base = inputs.load_probe(probe)
    each = f"{pluralize(chosen.epochs, 'epoch')} of {pluralize(chosen.draws, 'image')}"
    names = [f"{task.name} ({pluralize(len(task), 'image')})" for task in found.tasks[: output.MOST_LINES]]
    more = " ..." if len(found.tasks) > output.MOST_LINES else ""
    plan = f"{printable(', '.join(names))}{more}; {each} at {base.size[0]} x {base.size[1]} pixels for each"
    output.say(f"training unless finished already: {plan}")
    rows: dict[int, dict[str, Any]] = {}
    details = {"recipe": chosen.name, "tasks": [task.name for task in found.tasks]}
    with ExitStack() as stack:
        session = stack.enter_context(
            inputs.open_session(library, "train-expert", details, no_library=no_library, folder=out)
        )
        runner = stack.enter_context(inputs.open_backend(backend, jobs))
        how: dict[str, Any] = {"backend": runner, "seed": seed or 0, "device": device, "replace_other": force}
        try:
            names = [name] if name else [task.name for task in found.tasks]
            for result in train_experts(found.tasks, base, chosen, folder=out, names=names, progress=True, **how):
                rows[result.number] = _report_expert(result)
                if result.error is not None:
                    found.failed.append({"name": result.name, "reason": str(result.error), "bad": []})
                    output.say(f"failed: {printable(result.name)}: {printable(result.error)}")
                elif session.library is not None and not session.is_read_only:
                    _save_expert(session.library, found.tasks[result.number], result, is_forced=force)
        except KeyboardInterrupt:
            output.say(
                f"interrupted: the training so far is in '{printable(out)}'. Run the same command again to continue."
            )
            raise typer.Exit(output.INTERRUPTED) from None
    report = {
        "experts": [rows[number] for number in sorted(rows)],
        "failed": found.failed,
        "folder": str(out),
        "seconds": round(time.perf_counter() - begin, 3),
    }
    output.print_json(report) if output.wants_json() else _print_experts(report)
    if found.failed:
        output.say(f"{pluralize(len(found.failed), 'expert')} failed")
        raise typer.Exit(DataError.exit_code)


def _choose_recipe(name: str, wanted: dict[str, int | None]) -> "Recipe":
    """The recipe of that name with the changes, which become part of its name."""
    from task2vec.experts import find_recipe

    changed: dict[str, Any] = {key: value for key, value in wanted.items() if value is not None}
    full = ", ".join([name, *(f"{value} {key}" for key, value in changed.items())])
    return replace(find_recipe(name), name=full, **changed)


def _save_expert(library: "Library", task: Any, result: "ExpertResult", *, is_forced: bool) -> None:
    """Adds an expert with its task to the library; another expert of its name is kept, and a warning printed."""
    try:
        library.add(task)
        if result.entry is not None:
            library.add(result.entry, replace=is_forced)
    except ConflictError as error:
        output.say(f"warning: {printable(error)}; --force")


def _report_expert(result: "ExpertResult") -> dict[str, Any]:
    """One training as plain values."""
    from task2vec.experts import read_metadata

    row: dict[str, Any] = {"name": result.name, "task": result.task, "is_found": result.is_found, "error": None}
    if result.entry is None:
        return row | {"error": str(result.error)}
    about = read_metadata(Path(result.entry.location))
    row |= {"classes": len(about["classes"]), "images": about["images"], "metrics": about["metrics"]}
    return row | {"file": result.entry.location, "recipe": about["recipe"], "seed": about["seed"]}


def _print_experts(report: dict[str, Any]) -> None:
    rows = []
    for one in report["experts"]:
        last = one["metrics"][-1] if one["error"] is None else {}
        state = "failed" if one["error"] else "found" if one["is_found"] else "trained"
        loss = f"{last['loss']:.3f}" if last else None
        row = {"expert": one["name"], "train error": format_percent(last.get("error")), "state": state, "loss": loss}
        rows.append(row | {"classes": one.get("classes"), "images": one.get("images")})
    output.print_table(rows, text=("expert", "state"), drop=("loss", "classes", "images"))
    print(f"in {printable(report['folder'])} ({report['seconds']:.1f} s)")


def error_matrix(
    paths: options.AllPaths,
    reading: options.Reading,
    experts: Annotated[list[str], Option("--expert", help="Expert, its file, or any model. Can be repeated.")],
    shots: Annotated[list[str] | None, Option("--shots", metavar="half|N", help="As before. Can be repeated.")] = None,
    seeds: options.Seeds = 1,
    recipe: options.Classifier = "logistic",
    metric: options.Metric = "usual",
    out: options.OutFile = None,
    force: options.Force = False,
    size: options.Size = None,
    download: options.Download = False,
    device: options.Device = None,
    batch_size: options.BatchSize = None,
    backend: options.Backend = "serial",
    jobs: options.Jobs = None,
    library: options.LibraryFolder = None,
) -> None:
    """Measure the error of every task with every expert.

    A linear classifier is trained on the expert's features of a part of the images, and tested on half of them. Each
    error is saved to the library as soon as it is known. Failures are reported, and the same command run again
    continues with the rest.
    """
    begin = time.perf_counter()
    if seeds < 1:
        raise UsageError(f"--seeds {seeds}: at least one split is needed. Use --seeds 1 or more.")
    inputs.check_output(out, is_forced=force)
    import task2vec
    from task2vec.library import Library

    sizes = [int(one) if one.isascii() and one.isdigit() else one for one in dict.fromkeys(shots or ["half"])]
    protocols = [task2vec.ErrorProtocol(one, recipe, metric) for one in sizes]  # type: ignore[arg-type]
    sorts = inputs.sort_paths(paths, reading)
    how = {"device": device, "num_workers": reading.num_workers, "batch_size": batch_size, "download": download}
    matrix, is_interrupted = None, False
    computed, failed = 0, []

    def take(cell: Any) -> None:
        nonlocal computed
        computed += isinstance(cell, tuple)
        if not isinstance(cell, tuple):  # reported now, for what follows may take hours
            failed.append({"task": cell.task, "model": cell.model, "reason": cell.message})
            output.say(f"failed: {printable(cell.task)} with {printable(cell.model)}: {printable(cell.message)}")

    with Library.open(library) as opened, inputs.open_backend(backend, jobs) as runner:
        models = [find_model(name, opened, size=size, download=download) for name in dict.fromkeys(experts)]
        found = inputs.read_paths(sorts, reading)
        failed += [{"task": one["name"], "model": None, "reason": one["reason"]} for one in found.failed]
        output.say_all("warning", (f"'{task.name}': {text}" for task in found.tasks for text in task.warnings))
        try:
            if found.tasks:
                matrix = task2vec.error_matrix(
                    found.tasks, models, protocols=protocols, seeds=range(seeds), library=opened, backend=runner,
                    progress=output.is_watched(), on_cell=take, **how,
                )  # fmt: skip
        except KeyboardInterrupt:
            is_interrupted = True
            saved = f"{pluralize(computed, 'error')} of this run saved in '{printable(opened.folder)}'"
            output.say(f"interrupted: {saved}. Run the same command again to continue.")
        measured = {(one.task, one.expert, one.protocol, one.seed): one for one in opened.errors()}
        folder = str(opened.folder)
    report = _report_matrix(matrix, measured) | {"computed": computed, "failed": failed, "library": folder}
    report |= {"is_interrupted": is_interrupted, "seconds": round(time.perf_counter() - begin, 3)}
    report["written"] = None if out is None or matrix is None else str(matrix.to_csv(out))
    if not output.print_json(report) and matrix is not None:
        _print_matrix(matrix, report)
    sys.stdout.flush()
    if is_interrupted or failed:
        raise typer.Exit(output.INTERRUPTED if is_interrupted else DataError.exit_code)


def find_model(name: str, library: "Library", *, size: int | None, download: bool) -> Any:
    """The expert of the library with that name, or of a file, or a timm or torchvision model."""
    from task2vec.experts import load_trained
    from task2vec.probe import load_probe

    known = {expert.name: expert for expert in library.experts()}
    if name in known:
        if size is not None and known[name].input_size not in (None, size):
            raise UsageError(
                f"the library has '{name}' for images of {known[name].input_size} pixels, and --size {size} would mix "
                "errors of two models. Remove --size, or use another library: --library DIR"
            )
        return known[name]
    if name.endswith(".safetensors"):
        return load_trained(name)
    try:
        return load_probe(name, size=size, download=download)
    except UsageError as error:
        names = ", ".join(map(printable, list(known)[: output.MOST_LINES])) or "none"
        raise NotInLibraryError(
            f"'{name}' is neither an expert of the library (it has: {names}), nor a file ending in .safetensors, nor a "
            f"known model: {error}"
        ) from error


def _report_matrix(matrix: "MetaTask | None", measured: dict[tuple, Any]) -> dict[str, Any]:
    """The matrix as plain values: each error with its record in the library, and whether the model saw the task."""
    if matrix is None:
        return {name: [] for name in ("tasks", "fingerprints", "models", "protocols", "seeds", "errors")}
    names = {task.fingerprint: task.name for task in matrix.tasks}
    seen = {
        (task.fingerprint, model.name)
        for task, row in zip(matrix.tasks, matrix.has_seen, strict=True)
        for model, has_seen in zip(matrix.models, row, strict=True)
        if has_seen
    }
    rows = [
        asdict(measured.get((one.task, one.expert, one.protocol, one.seed), one))
        | {"name": names[one.task], "has_seen": (one.task, one.expert) in seen}
        for one in matrix.list_errors()
    ]
    report = {"tasks": list(names.values()), "fingerprints": list(names)}
    report |= {"models": [model.name for model in matrix.models], "protocols": list(matrix.protocols)}
    return report | {"seeds": list(matrix.seeds), "errors": rows}


def _print_matrix(matrix: "MetaTask", report: dict[str, Any]) -> None:
    """For every task and number of shots the best model that was not trained on the task, and the median of all."""
    import numpy as np

    from task2vec.experts.metatask import find_shots

    means = np.where(matrix.has_seen[..., None], np.nan, matrix.mean_errors(complete=True))
    rows = []
    for number, task in enumerate(matrix.tasks):
        for place, key in enumerate(matrix.protocols):
            errors = means[number, :, place]
            row: dict[str, Any] = {
                "task": task.name,
                "shots": find_shots(key),
                "best": None,
                "error": None,
                "median": None,
            }
            if not np.isnan(errors).all():
                best = int(np.nanargmin(errors))
                row |= {"best": matrix.models[best].name, "error": format_percent(float(errors[best]))}
                row |= {"median": format_percent(float(np.nanmedian(errors)))}
            rows.append(row)
    output.print_table(rows, text=("task", "best"), drop=("median",))
    counts = f"{pluralize(report['computed'], 'cell')} computed, {len(report['failed'])} failed"
    if seen := int(matrix.has_seen.sum()):
        counts += f", {seen} not shown because the model was trained on the task"
    print(f"{counts}; in {printable(report['library'])} ({report['seconds']:.1f} s)")
    seeds = matrix.count_seeds()
    partial = (seeds > 0) & (seeds < len(matrix.seeds))
    if partial.any():
        print(f"{pluralize(int(partial.sum()), 'mean')} not shown: some of the {len(matrix.seeds)} splits are missing")
    if report["written"]:
        print(f"written: {printable(report['written'])}")
