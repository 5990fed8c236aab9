"""What an experiment of the paper found: a table of claims with their verdicts, or one JSON document."""

from collections.abc import Sequence
from typing import Any

from task2vec.cli.speech import open_page, print_json
from task2vec.text import printable


def print_claims_json(report: dict[str, Any]) -> None:
    """The whole report; its claims become plain values."""
    from dataclasses import asdict

    print_json({**report, "claims": [asdict(claim) for claim in report["claims"]]})


def print_claims(report: dict[str, Any], *, how_to_read: str, missing: Sequence[str], told: str) -> None:
    """The table of claims, how to read it, what is missing, the files, and last what it took."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("claim", "measured", ""):
        table.add_column(column, overflow="fold")
    for claim in report["claims"]:
        table.add_row(printable(claim.claim), printable(claim.measured), claim.verdict)
    page = open_page()
    page.print(table)
    page.print(how_to_read + "\n")
    for words in missing:
        page.print(printable(words) + "\n")
    for path in report["files"]:
        page.print(printable(path), soft_wrap=True)
    page.print(told, soft_wrap=True)
