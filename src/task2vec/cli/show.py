"""`task2vec show`: what an embedding, of the library or saved, says about its task."""

from pathlib import Path
from typing import Annotated, Any

import typer

from task2vec.cli import options
from task2vec.cli.asked import FILE, NAME, load_asked, recognise
from task2vec.cli.facts import describe, word_facts
from task2vec.cli.reading import name_options
from task2vec.cli.speech import open_page, print_facts, print_json
from task2vec.cli.stages import summarize_stages
from task2vec.errors import UsageError
from task2vec.text import format_percent, printable

BAR_CELLS = 20


def show(
    what: Annotated[
        str, typer.Argument(metavar="NAME|FILE", help="A task of the library by name or id, or a saved embedding.")
    ],
    probe: Annotated[str | None, typer.Option(help="By which probe, where the task has several embeddings.")] = None,
    method: Annotated[str | None, typer.Option(help="By which method, where the task has several.")] = None,
    size: Annotated[int | None, typer.Option(help="Of images of which size, where the task has several.")] = None,
    library: options.LibraryFolder = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what an embedding says.

    Task, probe, head, norm, and which layers of the probe it rests on. A name is looked up in the library first; to
    mean a file of the same name, write it as a path: ./NAME
    """
    sort = recognise(what, library)
    if Path(what).is_dir() and sort != NAME:
        raise UsageError(f"'{what}' is a folder, and no embedding yet. Embed it: task2vec embed {what}")
    sort = NAME if sort == NAME else FILE
    if sort == FILE and (asked := name_options({"probe": probe, "method": method, "size": size})):
        raise UsageError(f"{asked} cannot be meant for '{what}': a file holds one embedding. Leave it out.")
    embedding = load_asked(what, sort, library, probe=probe, method=method, size=size).embedding
    facts = {**describe(embedding), "stages": summarize_stages(embedding)}
    if as_json:
        print_json(facts)
        return
    print_facts([*word_facts(facts), *(("warning", printable(warning)) for warning in facts["warnings"])])
    _print_stages(facts["stages"])
    settings = ", ".join(f"{key} {printable(value)}" for key, value in facts["settings"].items() if value is not None)
    prints = [(f"{key} fingerprint", printable(value)[:16]) for key, value in facts["fingerprints"].items()]
    versions = ", ".join(f"{printable(key)} {printable(value)}" for key, value in facts["versions"].items())
    print_facts([("settings", settings), *prints, ("made with", versions)])


def _print_stages(stages: list[dict[str, Any]]) -> None:
    """A small table of stages with a bar for the share of the norm in each."""
    from rich import box
    from rich.table import Table

    page = open_page()
    block = "█" if page.encoding.startswith("utf") else "#"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("stage", overflow="fold")
    table.add_column("filters", justify="right")
    table.add_column("share of norm", overflow="crop", no_wrap=True)
    largest = max(stage["share"] for stage in stages) or 1.0
    for stage in stages:
        bar = block * round((BAR_CELLS if page.width >= 60 else 6) * stage["share"] / largest)
        table.add_row(printable(stage["stage"]), str(stage["filters"]), f"{format_percent(stage['share']):>7} {bar}")
    page.print(table)
