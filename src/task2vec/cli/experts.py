"""`task2vec metatask train` and `task2vec metatask measure`: experts, and the errors of tasks with them."""

from contextlib import ExitStack
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import typer
from typer import Option

import task2vec
from task2vec.cli import app, inputs, options
from task2vec.cli.library import open_for_run
from task2vec.errors import ConflictError, DataError, NotInLibraryError, UsageError
from task2vec.text import pluralize, printable

RECIPE = "Classifier: logistic regression, or the paper's."
SHOTS = "Train on half of the images, all (with --test-split) or N per class. Can be repeated."
TEST_SPLIT = "Published dataset: train on the training split (or --split), and test on this one."


def train_expert(
    paths: options.AllPaths,
    reading: options.Reading,
    compute: Annotated[options.Compute, "device backend jobs"],
    probe: options.ProbeOptions,
    name: Annotated[str | None, Option(help="Name of the expert of a single task. Default: the task's.")] = None,
    recipe: Annotated[str, Option(help="fast, or achille2019 (the paper's, 12 times slower).")] = "fast",
    epochs: options.Epochs = None,
    max_samples: Annotated[int | None, Option("--max-samples", help="Images per epoch. Default: 10,000.")] = None,
    out: options.Out = Path("task2vec-experts"),
    force: options.Force = False,
    seed: options.Seed = None,
    library: options.LibraryFolder = None,
    no_library: options.NoLibrary = False,
) -> None:
    """Fine-tune a pretrained model on each task, and save it as an expert.

    An interrupted run continues where it stopped, and finished experts are not trained again. Failures are reported,
    and the other tasks continue. Another expert on the same images (--recipe, --seed, --probe) needs its own --name.
    On a CPU, a large model takes hours: use a small --size, few --epochs or a small --max-samples.
    """
    layouts = inputs.recognize_paths(paths, reading)
    if name is not None and not inputs.is_single(layouts, reading):
        raise UsageError(f"--name {name!r} is for one expert, but there may be several. Remove it.")
    inputs.check_output(out, is_folder=True)
    from task2vec.experts import find_recipe

    changed: dict[str, Any] = {"epochs": epochs, "draws": max_samples}
    changed = {key: value for key, value in changed.items() if value is not None}
    full = ", ".join([recipe, *(f"{value} {key}" for key, value in changed.items())])
    chosen = replace(find_recipe(recipe), name=full, **changed)
    if reading.split is None and set(layouts.values()) - {inputs.TABLE, inputs.FOLDER}:
        app.say("warning: experts are trained on all images of a published dataset, those for testing included; usual "
                "is --split train")  # fmt: skip
    read = inputs.read_paths(layouts, reading)
    app.say_all("warning", (f"'{task.name}': {text}" for task in read.tasks for text in task.warnings))
    if not read.tasks:
        raise typer.Exit(DataError.exit_code)
    base = inputs.load_probe(probe)
    app.say_all("training", (f"{task.name} ({pluralize(len(task), 'image')})" for task in read.tasks))
    effort = f"{pluralize(chosen.epochs, 'epoch')} of {pluralize(chosen.draws, 'image')}"
    app.say(f"each: {effort} at {base.size[0]} x {base.size[1]} pixels, unless finished already")
    rows: dict[int, dict[str, Any]] = {}
    details = {"recipe": chosen.name, "tasks": [task.name for task in read.tasks]}
    with ExitStack() as stack:
        opened = stack.enter_context(open_for_run(library, "train-expert", details, no_library=no_library))
        arguments: dict[str, Any] = {
            "backend": stack.enter_context(inputs.open_backend(compute)),
            "device": compute.device,
        }
        arguments |= {"seed": seed or 0, "replace_other": force, "names": [name] if name else None}
        try:
            for result in task2vec.train_experts(read.tasks, base, chosen, folder=out, progress=True, **arguments):
                rows[result.number] = _describe_expert(result)
                if result.error is not None:
                    read.fail(result.name, result.error)
                elif opened is not None and not opened.is_read_only:
                    _save_expert(opened, read.tasks[result.number], result, is_forced=force)
        except KeyboardInterrupt:
            folder = printable(out)
            app.say(f"interrupted: the training so far is in '{folder}'. Run the same command again to continue.")
            raise typer.Exit(app.INTERRUPTED) from None
    report = {"experts": [rows[number] for number in sorted(rows)], "failed": read.failed, "folder": out}
    app.print_report(report | {"seconds": app.count_seconds()}, _print_experts)
    if read.failed:
        raise typer.Exit(DataError.exit_code)


def _save_expert(library: "task2vec.Library", task: Any, result: "task2vec.ExpertResult", *, is_forced: bool) -> None:
    """Adds an expert with its task to the library; another expert of its name is kept, and a warning printed."""
    try:
        library.add(task)
        if result.entry is not None:
            library.add(result.entry, replace=is_forced)
    except ConflictError as error:
        app.say(f"warning: {printable(error)}; --force")


def _describe_expert(result: "task2vec.ExpertResult") -> dict[str, Any]:
    """One training as plain values."""
    from task2vec.experts import read_metadata

    row: dict[str, Any] = {"name": result.name, "task": result.task, "is_found": result.is_found, "error": None}
    if result.entry is None:
        return row | {"error": str(result.error)}
    about = read_metadata(Path(result.entry.location))
    row |= {"classes": len(about["classes"]), "file": result.entry.location}
    return row | {key: about[key] for key in ("images", "metrics", "recipe", "seed")}


def _print_experts(report: dict[str, Any]) -> None:
    rows = [
        {**expert, "last": None if expert["error"] else expert["metrics"][-1]}
        | {"state": "failed" if expert["error"] else "found" if expert["is_found"] else "trained"}
        for expert in report["experts"]
    ]
    columns = "expert=name, train error=last.error, state, loss=last.loss, classes, images"
    app.print_table(rows, columns, drop="loss, classes, images")
    failed = f", {pluralize(len(report['failed']), 'expert')} failed" if report["failed"] else ""
    print(f"in {printable(report['folder'])} ({report['seconds']:.1f} s){failed}")


def error_matrix(
    paths: options.AllPaths,
    reading: options.Reading,
    compute: options.Compute,
    experts: Annotated[list[str], Option("--expert", help="An expert's name or file, or any model. Can be repeated.")],
    shots: Annotated[list[str] | None, Option("--shots", metavar="half|all|N", help=SHOTS)] = None,
    test_split: Annotated[str | None, Option("--test-split", metavar="SPLIT", help=TEST_SPLIT)] = None,
    seeds: options.Seeds = 1,
    recipe: Annotated[Literal["logistic", "achille2019"], Option("--recipe", help=RECIPE)] = "logistic",
    out: options.OutFile = None,
    force: options.Force = False,
    size: options.Size = None,
    download: options.Download = False,
    library: options.LibraryFolder = None,
) -> None:
    """Measure the test error of every expert on every task.

    A linear classifier is trained on the expert's features of a part of the images, and tested on half of them; with
    --test-split, it is trained and tested on the splits of a published dataset. Each error is saved to the library as
    soon as it is known. Failures are reported; run the same command again to continue with the rest.
    """
    from task2vec.experts.protocol import check_protocols

    inputs.check_output(out, is_forced=force)
    usual = "half" if test_split is None else "all"
    sizes: list[Any] = [int(size) if size.isdecimal() else size for size in dict.fromkeys(shots or [usual])]
    protocols = [task2vec.ErrorProtocol(size, recipe) for size in sizes]
    check_protocols(protocols, has_tests=test_split is not None)
    if seeds > 1 and sizes == ["all"] and recipe == "logistic":
        raise UsageError(
            f"--seeds {seeds} would measure the same error {seeds} times: with --test-split there is one split, and "
            "logistic regression on all images has one solution. Remove --seeds, or use --shots N."
        )
    reading = replace(reading, test_split=test_split)
    layouts = inputs.recognize_paths(paths, reading)
    matrix, is_interrupted = None, False
    computed, failed = 0, []

    def take(cell: Any) -> None:
        nonlocal computed
        computed += isinstance(cell, tuple)
        if not isinstance(cell, tuple):  # reported now, for what follows may take hours
            failed.append({"task": cell.task, "model": cell.model, "reason": cell.message})
            app.say(f"failed: {printable(cell.task)} with {printable(cell.model)}: {printable(cell.message)}")

    with task2vec.Library.open(library) as opened, inputs.open_backend(compute) as runner:
        models = [find_model(name, opened, size=size, download=download) for name in dict.fromkeys(experts)]
        read = inputs.read_paths(layouts, reading)
        failed += [{"task": failure["name"], "model": None, "reason": failure["reason"]} for failure in read.failed]
        app.say_all("warning", (f"'{task.name}': {text}" for task in read.tasks for text in task.warnings))
        tests = [read.tests[task.fingerprint] for task in read.tasks] if test_split is not None else None
        app.say_all(
            "warning", (f"'{matched.task.name}': {text}" for matched in tests or () for text in matched.warnings)
        )
        largest = max((size for size in sizes if isinstance(size, int)), default=0)
        classed = [task for task in read.tasks if not task.is_multilabel]
        divisor, portion = (2, "half of the median class") if tests is None else (1, "the median class")
        few = [task.name for task in classed if ceil(median(task.counts.tolist()) / divisor) < largest]
        why = f"{portion} has fewer than {largest} images (--shots), so all are used for training"
        app.say_all("warning", (f"'{name}': {why}" for name in few))
        arguments: dict[str, Any] = {"device": compute.device, "batch_size": compute.batch_size, "backend": runner}
        arguments |= {"num_workers": reading.num_workers, "download": download, "library": opened, "on_cell": take}
        arguments |= {"protocols": protocols, "seeds": range(seeds), "progress": app.is_watched()}
        arguments |= {"tests": tests and [matched.test for matched in tests]}
        try:
            matrix = task2vec.error_matrix(read.tasks, models, **arguments) if read.tasks else None
        except KeyboardInterrupt:
            is_interrupted = True
            saved = f"{pluralize(computed, 'error')} of this run saved in '{printable(opened.folder)}'"
            app.say(f"interrupted: {saved}. Run the same command again to continue.")
        report = _describe_matrix(matrix, opened) | {"computed": computed, "failed": failed, "library": opened.folder}
    report |= {"is_interrupted": is_interrupted, "seconds": app.count_seconds()}
    report["written"] = None if out is None or matrix is None else matrix.to_csv(out)
    if not app.print_json(report) and matrix is not None:
        _print_matrix(matrix, report)
    if is_interrupted or failed:
        raise typer.Exit(app.INTERRUPTED if is_interrupted else DataError.exit_code)


def find_model(name: str, library: "task2vec.Library", *, size: int | None, download: bool) -> Any:
    """The expert of the library with that name, or of a file, or a timm or torchvision model.

    Such a model at another image size, or with other weights, is another model, with an entry of its own.
    """
    from task2vec.experts import load_trained
    from task2vec.experts.error_matrix import describe_model
    from task2vec.metatask import describe_entry, find_free_name

    known = {expert.name: expert for expert in library.experts()}
    entry = known.get(name)
    if entry is not None and (entry.source == "file" or entry.location.rpartition(":")[2] != name):
        if size is not None and entry.input_size not in (None, size):
            raise UsageError(
                f"the library has '{name}' for images of {entry.input_size} pixels, so --size {size} would mix errors "
                "of two models. Remove --size, or name the model as timm or torchvision do."
            )
        return entry
    if name.endswith(".safetensors"):
        return load_trained(name)
    try:
        probe = inputs.load_probe(options.ProbeOptions(name, size=size, download=download))
    except UsageError as error:
        names = ", ".join(map(printable, list(known)[: app.MAX_LINES])) or "none"
        raise NotInLibraryError(
            f"'{name}' is neither an expert of the library (it has: {names}), nor a file ending in .safetensors, nor a "
            f"known model: {error}"
        ) from error
    new = describe_model(probe)
    for expert in known.values():
        is_size = expert.input_size == new.input_size or (expert.input_size is None and size is None)
        is_network = expert.recipe.get("network", probe.fingerprint) == probe.fingerprint
        if describe_entry(expert).location == new.location and is_size and is_network:
            return expert
    return replace(new, name=find_free_name(probe.name, known, size=new.input_size))


def _describe_matrix(matrix: "task2vec.MetaTask | None", library: "task2vec.Library") -> dict[str, Any]:
    """The matrix as plain values: each error with its record in the library, and whether the model saw the task."""
    from task2vec.metatask import hide_test

    if matrix is None:
        return {name: [] for name in ("tasks", "fingerprints", "models", "sizes", "protocols", "seeds", "errors")} | {
            "tests": {}
        }
    tests = matrix.info.get("tests", {})
    measured = {
        (error.task, error.expert, hide_test(error.protocol), error.seed): error
        for error in library.errors()
        if error.task not in tests or error.protocol.endswith(tests[error.task]["key"])
    }
    tasks, models = [task.fingerprint for task in matrix.tasks], [model.name for model in matrix.models]
    names = {task.fingerprint: task.name for task in matrix.tasks}
    rows = [
        asdict(measured.get((error.task, error.expert, error.protocol, error.seed), error))
        | {
            "name": names[error.task],
            "has_seen": bool(matrix.has_seen[tasks.index(error.task), models.index(error.expert)]),
        }
        for error in matrix.list_errors()
    ]
    report = {"tasks": list(names.values()), "fingerprints": tasks, "models": models, "errors": rows}
    report |= {"sizes": [model.size for model in matrix.models], "tests": tests}
    return report | {"protocols": list(matrix.protocols), "seeds": list(matrix.seeds)}


def _print_matrix(matrix: "task2vec.MetaTask", report: dict[str, Any]) -> None:
    """For every task and number of shots the best model that was not trained on the task, and the median of all."""
    import numpy as np

    from task2vec.metatask import find_shots

    is_measured = np.isfinite(matrix.errors).any(axis=-1)
    means = np.where(matrix.has_seen[:, :, None], np.nan, matrix.errors.mean(axis=-1))  # NaN: a split is missing
    rows = []
    for task, of_task in zip(matrix.tasks, means, strict=True):
        for protocol, errors in zip(matrix.protocols, of_task.T, strict=True):
            row: dict[str, Any] = {"task": task.name, "shots": find_shots(protocol)}
            if np.isfinite(errors).any():
                best = int(np.nanargmin(errors))
                row |= {"best": matrix.models[best].name, "size": matrix.models[best].size}
                row |= {"error": errors[best], "median": np.nanmedian(errors)}
            rows.append(row)
    app.print_table(rows, "task, shots, best, pixels=size, error, median", drop="median")
    counts = f"{pluralize(report['computed'], 'cell')} computed, {len(report['failed'])} failed"
    if seen := int((matrix.has_seen & is_measured.any(axis=-1)).sum()):
        counts += f", {seen} not shown because the model was trained on the task"
    print(f"{counts}; in {printable(report['library'])} ({report['seconds']:.1f} s)")
    if partial := int((is_measured & np.isnan(means) & ~matrix.has_seen[:, :, None]).sum()):
        print(f"{pluralize(partial, 'mean')} not shown: some of the {len(report['seeds'])} splits are missing")
