"""`task2vec recommend` and `task2vec evaluate`: which pretrained model to use, and how well such choices do."""

from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Option

import task2vec
from task2vec.cli import app, inputs, options
from task2vec.errors import AmbiguousNameError, NotInLibraryError, UsageError
from task2vec.library import find_library
from task2vec.progress import show_progress
from task2vec.text import pluralize, printable

# Strategies that take minutes with more tasks than this: `evaluate` runs them if asked to.
MANY, SLOW = 20, ("model space published", "model space", "combined domain", "combined + logme")
STRATEGY = "Only this strategy and average_best; `all` includes the slow ones."


def recommend(
    query: options.Query,
    models: Annotated[list[str] | None, Option("--model", help="Rank only these models or files: A,B.")] = None,
    measure_top: Annotated[int, Option(min=0, metavar="K", help="Measure the top K models on your images.")] = 0,
    budget: Annotated[str | None, Option(metavar="TIME", help="Measure models for this long, e.g. 60s or 2m.")] = None,
    seeds: options.Seeds = 3,
    shots: options.Shots = None,
    max_params: options.MaxParams = None,
    max_time: Annotated[float | None, Option(metavar="S", help="At most S seconds for 1,000 images.")] = None,
    license: options.License = None,
    offline: options.Offline = False,
    evidence: options.Evidence = None,
    probe: options.AnyProbe = None,
    k: options.K = 10,
    out: options.OutFile = None,
    force: options.Force = False,
    download: options.Download = False,
    library: options.LibraryFolder = None,
    no_library: options.NoLibrary = False,
    allow_bad: options.AllowBad = False,
) -> None:
    """Recommend a pretrained model for a task, with its predicted test error.

    The prediction uses errors measured on other tasks: bundled ones, and those of your library. If they do not favour
    any model over the one that is best on average, the output says so. A folder is embedded first and added to the
    library. --measure-top K also measures the top K models on your images, and saves their errors to the library. If
    one of them cannot be measured, the others are used, and the exit code is not 0. --budget 60s measures the most
    promising models in that time (on a sample, if there are many images), and embeds the folder only if that helps.
    """
    inputs.check_output(out, is_forced=force)
    how: dict[str, Any] = {"evidence": evidence, "probe": probe, "measure_top": measure_top, "budget": budget}
    how |= {"seeds": seeds, "shots": shots, "download": download}
    how |= {"max_params": max_params, "max_time": max_time, "license": license, "offline": offline}
    how["candidates"] = [one.strip() for text in models or () for one in text.split(",")] or None
    with ExitStack() as stack:
        opened = None
        if not no_library:
            is_kept = measure_top or budget or Path(query).is_dir()
            opened = stack.enter_context(task2vec.Library.open(library) if is_kept else inputs.open_if_any(library))
        what = _find_task(query, opened, how, allow_bad=allow_bad)
        advice = task2vec.recommend(what, library=opened, progress=app.is_watched(), **how)
    written = None if out is None else advice.to_csv(out)
    report = advice.to_dict() | {"library": None if no_library else find_library(library)}
    if not app.print_json(report | {"written": written, "is_interrupted": advice.is_interrupted}):
        width = min(app.find_width(), 200)
        notes = tuple(map(app.name_library, advice.notes))
        text = replace(advice, notes=notes, verdict=app.name_library(advice.verdict)).to_text(width=width, limit=k)
        print(printable(text, keep_lines=True), end="")
        print("" if written is None else f"\nwritten: {printable(written)}\n", end="")
    if advice.is_interrupted:
        is_kept = not no_library and advice.measured_images in (None, advice.images)
        saved = " and saved. Run the same command again to continue." if is_kept else "."
        app.say(f"interrupted: errors measured so far are used{saved}")
        raise typer.Exit(app.INTERRUPTED)
    if advice.failures:
        count = pluralize(len(advice.failures), "model")
        app.say(f"{count} could not be measured; the notes say why. Run the same command again to continue with them.")
        raise typer.Exit(max(one.exit_code for one in advice.failures))


def _find_task(
    query: str, library: "task2vec.Library | None", how: dict[str, Any], *, allow_bad: bool
) -> "task2vec.Task | task2vec.Embedding":
    """The task of a folder or table, or an embedding of the library or a file in a space that errors are known for.

    Where a folder and a task of the library have one name, measuring takes the folder, for it needs the images.
    """
    from task2vec.select import choose_space, find_embedding

    origin = inputs.find_origin(query, library)
    needs_images = bool(how["budget"] or how["measure_top"])
    if origin == inputs.PATH or (needs_images and origin == inputs.LIBRARY and Path(query).exists()):
        return inputs.read_own(Path(query), options.Reading(allow_bad=allow_bad))
    if origin == inputs.FILE:
        return task2vec.load_embedding(query)
    if library is not None:
        with suppress(NotInLibraryError, AmbiguousNameError):
            entry = library.task(query)
            like = choose_space(how["evidence"], library, how["probe"])
            if (found := find_embedding(library, entry, like)) is not None:
                return found
    if Path(query).is_dir():  # its name is in the library, by another probe or size: the folder is embedded
        return inputs.read_own(Path(query), options.Reading(allow_bad=allow_bad))
    return inputs.get_named(query, library)


def evaluate(
    evidence: options.Evidence = None,
    distances: Annotated[Path | None, Option(metavar="CSV", help="Distances, for --evidence FILE.csv.")] = None,
    leave: Annotated[Literal["task", "dataset", "domain"], Option(help="What to leave out in turn.")] = "task",
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

    For every task, each strategy chooses a model without knowing the errors on that task, except those called
    "measured": these measure models on one half of its test images and are evaluated on the rest. Prints the mean error
    of the chosen models, its increase over the optimum with a 95% interval over tasks, rank agreement (weighted tau,
    top-1, top-3), and the difference from the average-best model with the two-sided p-value of a sign-flip test. With
    many tasks, strategies that take minutes are left out; --strategy all runs them, too.
    """
    from task2vec.select import STRATEGIES, find_metatask

    inputs.check_output(out, is_forced=force)
    is_csv = evidence is not None and evidence.lower().endswith(".csv")
    if distances is not None and not is_csv:
        raise UsageError("--distances applies only to a CSV file of errors. Name that file: --evidence FILE.csv")
    if family is not None and (is_csv or evidence == "library"):
        raise UsageError("--kind selects bundled tasks, but other tables have no kinds. Remove --kind.")
    metatask = task2vec.metatask_from_csv(str(evidence), distances, shots=shots) if is_csv else find_metatask(evidence)
    if metatask is None:
        with task2vec.Library.open(library, read_only=True) as opened:
            metatask = task2vec.metatask_from_library(opened, probe=probe, method=method)
    left_out = SLOW if not strategies and len(metatask.tasks) > MANY else ()
    chosen = [name for name in STRATEGIES if name not in left_out]
    if strategies and "all" not in strategies:
        chosen = list(dict.fromkeys(["average_best", *strategies]))
    if left_out:
        slow = ", ".join(f"'{name}'" for name in left_out)
        app.say(f"without {slow}, which take {len(metatask.tasks) // 5} minutes or more: --strategy all")
    app.say(f"evaluating {len(chosen)} strategies on up to {pluralize(len(metatask.tasks), 'task')} ...")
    how: dict[str, Any] = {"shots": shots, "probe": probe, "method": method, "family": family, "leave": leave}
    with show_progress(app.is_watched()) as report:
        found = task2vec.evaluate(metatask, chosen, report=report, **how)
    app.print_report(found.to_dict() | {"slow": list(left_out)}, lambda _: _print_evaluation(found))
    if out is not None:
        app.say(f"written: {printable(found.to_csv(out))}")


def _print_evaluation(found: "task2vec.Evaluation") -> None:
    rows = found.format_rows()
    heads = list(rows[0]) if rows else []
    app.print_table(rows, ", ".join(heads), drop=", ".join(heads[:2:-1]))
    print()
    for line in found.explain():
        app.print_text(line)
