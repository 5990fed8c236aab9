"""`task2vec recommend` and `metatask evaluate`: which pretrained model to use, and how well such choices do."""

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Option

import task2vec
from task2vec.cli import app, inputs, options
from task2vec.cli.library import FILE, LIBRARY, PATH, find_origin, get_named, open_if_any
from task2vec.errors import UsageError
from task2vec.library import find_library
from task2vec.progress import show_progress
from task2vec.text import pluralize, printable

if TYPE_CHECKING:
    from task2vec.metatask import View
    from task2vec.select.evaluate import Leave, ProposalEvaluation

# Strategies that take minutes with more tasks than this: `evaluate` runs them if asked to.
MAX_TASKS_FOR_SLOW = 20
SLOW = ("model space published", "model space")
STRATEGY = "Only this one and average_best; `all`: also slow ones; `proposals`: orders of measuring."
MODELS = "Compare only these models or files; `timm` compares all pretrained classifiers of timm."


def recommend(
    query: options.Query,
    models: Annotated[list[str] | None, Option("--model", metavar="A,B|timm", help=MODELS)] = None,
    pool: Annotated[Literal["timm"] | None, Option(hidden=True)] = None,
    budget: Annotated[str | None, Option(metavar="TIME", help="Time for measuring. Default: 60s; GPU: 10m.")] = None,
    no_measure: Annotated[bool, Option("--no-measure", help="Only propose models, from the embedding.")] = False,
    strategy: Annotated[str | None, Option(metavar="NAME", help="With --no-measure: a strategy of the paper.")] = None,
    prefer: Annotated[Literal["cheapest", "error"], Option(help="What decides between models that tie.")] = "cheapest",
    max_params: options.MaxParams = None,
    license: options.License = None,
    script: Annotated[Path | None, Option(metavar="FILE", help="Write a program that trains the model.")] = None,
    whole_network: Annotated[bool, Option("--whole-network", help="With --script: fine-tune all weights.")] = False,
    k: options.K = 20,
    out: options.OutFile = None,
    force: options.Force = False,
    offline: options.Offline = False,
    download: options.Download = False,
    device: options.Device = None,
    library: options.LibraryFolder = None,
    no_library: options.NoLibrary = False,
    *,
    reading: Annotated[options.Reading, options.OWN],
) -> None:
    """Measure pretrained models on your images, and recommend the cheapest of the best.

    Every model sees the same images, and a linear classifier on its features is cross-validated. Prints each error with
    its 95% interval, which models cannot be told apart, and the cheapest of these. By default about 16 modern networks
    are compared, as far as their weights are on this machine, and the experts of your library; --download fetches
    weights. Errors are saved to the library and not measured again. --no-measure prints the order in which models would
    be measured, and why.
    """
    for path, option in ((out, "--out"), (script, "--script")):
        inputs.check_output(path, is_forced=force, option=option)
    if download and offline:
        raise UsageError("--download and --offline contradict each other. Leave one out.")
    arguments = _check_options(models, pool=pool, no_measure=no_measure, strategy=strategy)
    if whole_network and script is None:
        raise UsageError("--whole-network says what the script does, but none is written. Add --script FILE.")
    arguments |= {"max_params": max_params, "license": license}
    with ExitStack() as stack:
        is_kept = not no_library and not no_measure and find_origin(query, None) == PATH
        opened = None if no_library else open_if_any(library)
        opened = stack.enter_context(task2vec.Library.open(library) if is_kept else opened or nullcontext())
        _check_models(arguments, opened, download=download)
        given = _find_task(query, opened, reading, is_measured=not no_measure)
        arguments |= {"budget": budget, "prefer": prefer, "download": download, "device": device}
        advice = task2vec.recommend(given, library=opened, progress=not app.wants_json(), **arguments)
    written = None if out is None else advice.to_csv(out)
    program = None if script is None else advice.script(script, whole_network=whole_network)
    document = advice.to_dict() | {"library": None if no_library else find_library(library)}
    if not app.print_json(document | {"written": written, "script": program}):
        _print_advice(advice, limit=k)
        for path in filter(None, (written, program)):
            print(f"\nwritten: {printable(path)}")
    if advice.is_interrupted:
        is_saved = opened is not None and advice.measured_images == advice.images
        saved = " and saved. Run the same command again to continue." if is_saved else "."
        app.say(f"interrupted: errors measured so far are used{saved}")
        raise typer.Exit(app.INTERRUPTED)
    if advice.failures and not advice.measured and not no_measure:
        app.say("no model could be measured; the reasons are above")
        raise typer.Exit(app.ENVIRONMENT)


def _check_options(
    models: list[str] | None, *, pool: str | None, no_measure: bool, strategy: str | None
) -> dict[str, Any]:
    """The models and the strategy of the options; combinations that cannot be meant are refused.

    Args:
        models: of `--model`.
        pool: of `--pool`, the former spelling of `--model timm`.
        no_measure: of `--no-measure`.
        strategy: of `--strategy`.
    """
    if models and pool:
        raise UsageError(f"--model and --pool {pool} both say which models to compare. Leave one out.")
    if strategy is not None and not no_measure:
        raise UsageError(
            f"--strategy {strategy} selects a model from the embedding alone, and measuring is more reliable. Add "
            "--no-measure, or leave --strategy out."
        )
    names = [name.strip() for text in models or filter(None, [pool]) for name in text.split(",")]
    chosen = "timm" if names == ["timm"] else names or None
    return {"models": chosen, "strategy": (strategy or "proposals") if no_measure else None}


def _check_models(arguments: dict[str, Any], library: "task2vec.Library | None", *, download: bool) -> None:
    """Refuses unknown models before torch is imported and images are read; says how much will be downloaded."""
    from task2vec.select.candidates import count_download, list_candidates

    filters = {name: arguments[name] for name in ("max_params", "license")}
    candidates = list_candidates(arguments["models"], library=library, **filters)
    if download and arguments["strategy"] is None and (megabytes := count_download(candidates)):
        count = pluralize(sum(not candidate.is_here for candidate in candidates), "model")
        app.say(f"downloading what is not on this machine of {count}: {megabytes:,.0f} MB at most ...")


def _find_task(
    query: str, library: "task2vec.Library | None", reading: options.Reading, *, is_measured: bool
) -> "task2vec.Task | task2vec.Embedding | str":
    """The task of a folder or table, the embedding of a file, or the name of a task in the library.

    Where a folder and a task of the library have one name, measuring takes the folder, for it needs the images. Of a
    folder with splits it takes the first one.
    """
    from task2vec.tasks.folder import list_splits

    origin, path = find_origin(query, library), Path(query)
    if origin == FILE:
        return task2vec.load_embedding(query)
    if origin == LIBRARY and not (is_measured and path.exists()):
        if library is None or not any(query in (task.name, task.fingerprint[: len(query)]) for task in library.tasks()):
            get_named(query, library)  # raises an error that says what is there
        return query
    if path.is_dir() and reading.split is None and (splits := list_splits(path)):
        app.say(
            f"'{printable(query)}' has splits ({', '.join(splits)}): {splits[0]} is used. Another one: --split NAME"
        )
        reading = replace(reading, split=splits[0])
    return inputs.read_own(path, reading)


def _print_advice(advice: "task2vec.Recommendation", *, limit: int) -> None:
    """Prints a recommendation, with the commands in it acting on the library that the user named."""
    named = {"notes": tuple(map(app.name_library, advice.notes)), "verdict": app.name_library(advice.verdict)}
    text = replace(advice, **named).to_text(width=min(app.find_width(), 200), limit=limit)
    print(printable(text, keep_lines=True), end="")


def evaluate(
    evidence: options.Evidence = None,
    leave: Annotated[Literal["task", "dataset"], Option(help="What to leave out in turn.")] = "task",
    strategies: Annotated[list[str] | None, Option("--strategy", help=STRATEGY)] = None,
    family: Annotated[str | None, Option("--kind", help="Bundled tasks of one kind: sources, taxa or labels.")] = None,
    shots: options.Shots = None,
    probe: options.AnyProbe = None,
    method: options.Method = None,
    out: options.OutFile = None,
    force: options.Force = False,
    library: options.LibraryFolder = None,
) -> None:
    """Compare model selection strategies, leave-one-task-out.

    For every task, each strategy chooses a model without knowing the errors on that task. Prints the mean error of the
    chosen models, its increase over the optimum with a 95% interval over tasks, and the difference from the
    average-best model with the two-sided p-value of a sign-flip test. With many tasks, strategies that take minutes are
    left out; --strategy all runs them, too.

    `--strategy proposals` measures models one after the other instead, in the order that `recommend` proposes and in
    others, and prints the error of the best so far: chosen on one half of the test images, judged on the other.
    """
    from task2vec.select import STRATEGIES

    inputs.check_output(out, is_forced=force)
    proposals = strategies == ["proposals"]
    if not proposals and "proposals" in (strategies or ()):
        raise UsageError("--strategy proposals compares orders of measuring, and no strategies. Remove the others.")
    if family is not None and evidence == "library":
        raise UsageError("--kind selects bundled tasks, but a library has no kinds. Remove --kind.")
    if evidence == "library":
        with task2vec.Library.open(library, read_only=True) as opened:
            metatask = task2vec.metatask_from_library(opened, probe=probe, method=method)
    else:
        metatask = task2vec.bundled_metatask() if evidence in (None, "bundle") else _load_evidence(evidence)
    if proposals:
        _evaluate_proposals(metatask.select(shots, probe=probe, method=method), family, leave, out)
        return
    left_out = SLOW if not strategies and len(metatask.tasks) > MAX_TASKS_FOR_SLOW else ()
    chosen = [name for name in STRATEGIES if name not in left_out]
    if strategies and "all" not in strategies:
        chosen = list(dict.fromkeys(["average_best", *strategies]))
    if left_out:
        slow = ", ".join(f"'{name}'" for name in left_out)
        app.say(f"without {slow}, which take {len(metatask.tasks) // 5} minutes or more: --strategy all")
    app.say(f"evaluating {len(chosen)} strategies on up to {pluralize(len(metatask.tasks), 'task')} ...")
    arguments: dict[str, Any] = {"shots": shots, "probe": probe, "method": method, "family": family, "leave": leave}
    with show_progress(app.is_watched()) as report:
        evaluation = task2vec.evaluate(metatask, chosen, report=report, **arguments)
    app.print_report(evaluation.to_dict() | {"slow": list(left_out)}, lambda _: _print_evaluation(evaluation))
    if out is not None:
        app.say(f"written: {printable(evaluation.to_csv(out))}")


def _load_evidence(evidence: str) -> "task2vec.MetaTask":
    """The meta-task in a file."""
    if not Path(evidence).is_file():
        raise UsageError(
            f"there is no file '{evidence}' (--evidence), so no errors are known. Choose 'bundle', 'library', or the "
            "path of a meta-task that was saved: MetaTask.save(FILE)"
        )
    return task2vec.load_metatask(evidence)


def _evaluate_proposals(view: "View", family: str | None, leave: "Leave", out: Path | None) -> None:
    """The error after k measured models, printed and written."""
    from task2vec.select.evaluate import evaluate_proposals

    app.say(f"evaluating proposals on up to {pluralize(len(view.tasks), 'task')} ...")
    with show_progress(app.is_watched()) as report:
        evaluation = evaluate_proposals(view, family=family, leave=leave, report=report)
    app.print_report(evaluation.to_dict(), lambda _: _print_evaluation(evaluation))
    if out is not None:
        app.say(f"written: {printable(evaluation.to_csv(out))}")


def _print_evaluation(evaluation: "task2vec.Evaluation | ProposalEvaluation") -> None:
    rows = evaluation.format_rows()
    heads = list(rows[0]) if rows else []
    app.print_table(rows, ", ".join(heads), drop=", ".join(heads[:2:-1]))
    print()
    for line in evaluation.explain():
        app.print_text(line)
