"""`task2vec show`: what a saved embedding says about its task."""

from pathlib import Path
from typing import Annotated, Any

import typer

from task2vec.cli.facts import describe, percent, word_facts
from task2vec.cli.reading import check_there
from task2vec.cli.speech import open_page, print_facts, print_json, visible
from task2vec.cli.stages import summarize_stages

BAR_CELLS = 20


def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file written by `task2vec embed`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show what a saved embedding says.

    Task, probe, head, norm, and which layers of the probe it rests on.
    """
    import task2vec

    check_there(file)
    embedding = task2vec.load_embedding(file)
    facts = {**describe(embedding), "stages": summarize_stages(embedding)}
    if as_json:
        print_json(facts)
        return
    print_facts([*word_facts(facts), *(("warning", visible(warning)) for warning in facts["warnings"])])
    _print_stages(facts["stages"])
    settings = ", ".join(f"{key} {visible(value)}" for key, value in facts["settings"].items() if value is not None)
    prints = [(f"{key} fingerprint", visible(value)[:16]) for key, value in facts["fingerprints"].items()]
    versions = ", ".join(f"{visible(key)} {visible(value)}" for key, value in facts["versions"].items())
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
        table.add_row(visible(stage["stage"]), str(stage["filters"]), f"{percent(stage['share']):>7} {bar}")
    page.print(table)
