"""`task2vec recommend` and `task2vec evaluate`: which pretrained model to use, and how well such choices do."""

import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Option

from task2vec.cli import inputs, options, output
from task2vec.errors import AmbiguousNameError, NotInLibraryError, UsageError
from task2vec.text import printable

if TYPE_CHECKING:
    from task2vec.embedding import Embedding
    from task2vec.library import Library
    from task2vec.tasks import Task


def recommend(
    query: options.Query,
    models: Annotated[list[str] | None, Option("--model", help="Rank only these models or files; with commas.")] = None,
    measure_top: Annotated[int, Option(metavar="K", help="Measure the top K models on your images.")] = 0,
    seeds: options.Seeds = 3,
    shots: options.Shots = None,
    max_params: Annotated[str | None, Option(metavar="N", help="Only models with at most N parameters: 10M.")] = None,
    max_time: Annotated[float | None, Option(metavar="S", help="Only models faster than S s for 1,000 images.")] = None,
    evidence: options.Evidence = None,
    strategy: Annotated[str | None, Option(help="Prediction strategy; see task2vec evaluate.")] = None,
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

    The prediction uses errors measured on other tasks: bundled ones, and those of your library. If they do not favor
    another model than the one that is best on average, that is printed. A folder is embedded first and added to the
    library. --measure-top K also measures the top K models on your images, and saves their errors to the library.
    """
    if measure_top < 0 or seeds < 1 or k < 1:
        raise UsageError("--measure-top must be 0 or more, --seeds and -k must be 1 or more. Change the value.")
    inputs.check_output(out, is_forced=force)
    import task2vec
    from task2vec.library import Library

    chosen = [one for text in models or () for one in text.split(",") if one] or None
    how: dict[str, Any] = {
        "library": None,
        "evidence": evidence,
        "probe": probe,
        "progress": output.is_watched(),
        "download": download,
    }
    how |= {"candidates": chosen, "measure_top": measure_top, "seeds": seeds, "shots": shots, "strategy": strategy}
    how |= {"max_params": max_params, "max_time": max_time}
    with ExitStack() as stack:
        opened = None
        if not no_library:
            opened = Library.open(library) if measure_top or Path(query).is_dir() else inputs.open_if_any(library)
            how["library"] = None if opened is None else stack.enter_context(opened)
        what = _find_task(query, how, allow_bad=allow_bad)
        advice = task2vec.recommend(what, **how)
    if advice.is_interrupted:
        output.say(
            "interrupted: the errors measured so far are used and saved. Run the same command again to continue."
        )
    written = None if out is None else advice.to_csv(out)
    if output.wants_json():
        place = None if no_library else str(inputs.find_library_folder(library))
        more = {"library": place, "written": None if written is None else str(written)}
        output.print_json(advice.to_dict() | more | {"is_interrupted": advice.is_interrupted})
    else:
        width = min(output.find_width(), 200)
        print(printable(advice.to_text(width=width, limit=k), keep_lines=True), end="")
        if written is not None:
            print(f"\nwritten: {printable(written)}")
    sys.stdout.flush()
    if advice.is_interrupted:
        raise typer.Exit(output.INTERRUPTED)


def _find_task(query: str, how: dict[str, Any], *, allow_bad: bool) -> "Task | Embedding":
    """The task of a folder or table, or an embedding of the library or a file in a space that errors are known for."""
    library, path = how["library"], Path(query)
    if library is not None:
        origin = inputs.find_origin(query, library.folder)
    else:
        origin = inputs.FILE if path.suffix == ".safetensors" or not path.exists() else inputs.PATH
    if origin == inputs.PATH:
        task = inputs.read_own(path, options.Reading(allow_bad=allow_bad))
        inputs.say_bad(task.bad)
        return task
    if how["measure_top"]:
        raise UsageError(
            f"--measure-top needs images, and '{query}' is an embedding. Name the folder instead: ./FOLDER"
        )
    if origin == inputs.LIBRARY and library is not None:
        with suppress(NotInLibraryError, AmbiguousNameError):
            found = _find_comparable(library, library.task(query), how)
            if found is not None:
                return found
    return inputs.load_query(query, None if library is None else library.folder).embedding


def _find_comparable(library: "Library", entry: Any, how: dict[str, Any]) -> "Embedding | None":
    """An embedding of a task of the library in a space that errors are known for."""
    import task2vec
    from task2vec.select import choose_space, find_embedding

    if how["evidence"] == "library":
        spaces = [choose_space("library", library)]
    else:
        is_bundle = how["evidence"] in (None, "bundle")
        known = task2vec.bundled_metatask() if is_bundle else task2vec.load_metatask(how["evidence"])
        spaces = [like for like in known.spaces.values() if how["probe"] in (None, like.probe)]
    found = (find_embedding(library, entry, like) for like in spaces)
    return next((one for one in found if one is not None), None)


def evaluate(
    evidence: options.Evidence = None,
    distances: Annotated[Path | None, Option(metavar="CSV", help="With --evidence FILE.csv: distances.")] = None,
    leave: Annotated[Literal["task", "dataset", "domain"], Option(help="What is left out in turn.")] = "task",
    strategies: Annotated[list[str] | None, Option("--strategy", help="Only this one and average_best.")] = None,
    family: Annotated[str | None, Option("--kind", help="Bundled tasks of one kind: taxa or labels.")] = None,
    shots: options.Shots = None,
    probe: options.AnyProbe = None,
    method: options.Method = None,
    out: options.OutFile = None,
    force: options.Force = False,
    library: options.LibraryFolder = None,
) -> None:
    """Compare model selection strategies, leave-one-task-out.

    For every task, each strategy chooses a model without knowing the errors on that task. Printed are the mean error of
    the choices, its increase over the optimum with a 95 % interval over tasks, rank agreement (weighted tau, top-1,
    top-3), and the gap to the model that is best on average with Wilcoxon's p.
    """
    inputs.check_output(out, is_forced=force)
    import task2vec
    from task2vec.progress import show_progress

    is_csv = evidence is not None and evidence.endswith(".csv")
    if distances is not None and not is_csv:
        raise UsageError("--distances are those of the tasks of a CSV file of errors. Name it: --evidence FILE.csv")
    if is_csv:
        metatask = task2vec.metatask_from_csv(str(evidence), distances, shots=shots)
    elif evidence == "library":
        from task2vec.library import Library

        with Library.open(library, read_only=True) as opened:
            metatask = task2vec.metatask_from_library(opened, probe=probe, method=method)
    else:
        is_bundle = evidence in (None, "bundle")
        metatask = task2vec.bundled_metatask() if is_bundle else task2vec.load_metatask(str(evidence))
    if family is not None and (is_csv or evidence == "library"):
        raise UsageError("--kind selects bundled tasks, and other tables have no kinds. Remove --kind.")
    chosen = None if not strategies else list(dict.fromkeys(["average_best", *strategies]))
    with show_progress(output.is_watched()) as report:
        found = task2vec.evaluate(
            metatask, chosen, shots=shots, probe=probe, method=method, family=family, leave=leave, report=report
        )
    if out is not None:
        found.to_csv(out)
    if not output.print_json(found.to_dict()):
        rows = found.format_rows()
        heads = list(rows[0]) if rows else []
        output.print_table(rows, text=heads[:1], drop=heads[:2:-1])
        print()
        for line in found.explain():
            output.print_text(line)
    if out is not None:
        output.say(f"written: {printable(out)}")
