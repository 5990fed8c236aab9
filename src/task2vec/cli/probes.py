"""`task2vec probes`: which pretrained networks are ready on this machine."""

from typing import Annotated

import typer

from task2vec.cli.speech import open_page, print_json
from task2vec.text import printable

HOW_TO = """
Any timm or torchvision classifier is a probe:
  task2vec embed FOLDER --probe resnet34 --download    fetches its weights once
  task2vec embed FOLDER --probe resnet34 --weights resnet34.safetensors
"""


def probes(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False) -> None:
    """List the probes that are on this machine."""
    import task2vec

    rows = task2vec.list_probes()
    if as_json:
        print_json({"probes": rows})
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("probe", "here", "weights from"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(printable(row["name"]), "yes" if row["is_local"] else "no", printable(row["source"]))
    page = open_page()
    page.print(table)
    page.print(HOW_TO.strip(), soft_wrap=True)
