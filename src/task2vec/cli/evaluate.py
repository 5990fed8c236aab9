"""`task2vec evaluate`: how well ways of choosing an expert do, on tasks whose errors they do not know."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from task2vec.cli import options
from task2vec.cli.cautions import check_file
from task2vec.cli.listing import Column, print_columns
from task2vec.cli.speech import is_watched, open_page, print_json, say
from task2vec.errors import UsageError
from task2vec.text import printable

if TYPE_CHECKING:
    from task2vec.select.evaluate import Evaluation

# What goes first where room is short.
_IN_TURN = (
    *(
        "ms",
        "fidelity",
        "mean of ratios",
        "coverage",
        "over smallest",
        "top-3",
        "95 %",
        "p",
        "p datasets",
        "tau",
        "top-1",
    ),
    "over average-best",
)


def evaluate(
    errors: Annotated[
        Path | None, typer.Option(metavar="CSV", help="A table of errors of your own; default: those that ship.")
    ] = None,
    distances: Annotated[Path | None, typer.Option(metavar="CSV", help="With --errors: distances.")] = None,
    embeddings: Annotated[
        Path | None, typer.Option(metavar="CSV", help="With --errors: embeddings, where there are no distances.")
    ] = None,
    library: Annotated[
        Path | None, typer.Option("--library", metavar="DIR", help="Take errors and embeddings of this library.")
    ] = None,
    leave: Annotated[
        Literal["task", "dataset", "domain"],
        typer.Option(help="Leave out each task; each dataset; or each with the experts taught on it."),
    ] = "task",
    strategies: Annotated[
        list[str] | None,
        typer.Option("--strategy", metavar="NAME", help="Only this one, beside average_best; may be given many times."),
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="What ships: taxa, or labels (questions about the same photographs).")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="How errors were measured: half, 5, or a whole name; default: half.")
    ] = None,
    probe: Annotated[str | None, typer.Option(help="That tasks were embedded with.")] = None,
    method: Annotated[str | None, typer.Option(help="By which they were embedded.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the rows to this file as well.", metavar="FILE")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file of --csv.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare ways of choosing an expert: what each would have chosen for every task, not knowing its errors.

    Shown are the mean error of the choices, how much that is over the optimum with a 95 % interval over tasks, how well
    the rankings agree with the errors (weighted tau, top-1, top-3), and the gap to the static choice with Wilcoxon's p.
    """
    if errors is not None and library is not None:
        raise UsageError("--errors and --library both say where errors come from. Give one of them.")
    if errors is None and (distances or embeddings):
        raise UsageError("--distances and --embeddings are about the tasks of --errors. Give these, too: --errors CSV")
    if family is not None and (errors is not None or library is not None):
        raise UsageError("--family is about the tasks that ship, and tables and libraries know none. Leave it out.")
    check_file(csv, option="--csv", is_forced=force)
    from task2vec.progress import show_progress
    from task2vec.select.evaluate import evaluate as run

    if errors is not None:
        from task2vec.select.evidence import metatask_from_csv

        metatask = metatask_from_csv(errors, distances, embeddings, shots=protocol)
        protocol = None
    elif library is not None:
        from task2vec.library import Library
        from task2vec.select.evidence import metatask_from_library

        with Library.open(library, read_only=True) as opened:
            metatask = metatask_from_library(opened, probe=probe, method=method)
        probe = method = None
    else:
        from task2vec.experts.metatask import bundled_metatask

        metatask = bundled_metatask()
        if family is not None and leave != "task" and len(set(metatask.subset(family=family).datasets)) == 1:
            say(f"all tasks of '{printable(family)}' are of one dataset: the other tasks that ship are learned from")
    chosen = None if not strategies else list(dict.fromkeys(["average_best", *strategies]))
    with show_progress(is_watched()) as report:
        space = (probe, method)
        selected = metatask.select(protocol, probe=space[0], method=space[1])
        found = run(selected, chosen, family=family, leave=leave, report=report)
    if csv is not None:
        found.to_csv(csv)
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)
    if csv is not None:
        say(f"rows: {csv}")


def _print(found: "Evaluation") -> None:
    rows = found.format_rows()
    heads = list(rows[0]) if rows else []
    columns = [
        Column(head, tuple(printable(row[head]) for row in rows), head, is_number=place > 0, is_name=place == 0)
        for place, head in enumerate(heads)
        if any(row[head] for row in rows)
    ]
    if columns:
        print_columns(columns, in_turn=_IN_TURN)
    page = open_page()
    for line in ("", *found.explain()):
        page.print(printable(line), markup=False, highlight=False)
