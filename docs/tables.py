"""The tables of the README, made from the files of docs/results: python docs/tables.py writes them anew.

They stand between two comments, so that no number is copied by hand.
"""

import csv
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = (("taxa", "half"), ("taxa", "5"), ("labels", "half"), ("labels", "5"))
ROWS = {
    "chance": "any expert, by chance",
    "generic": "the generic ImageNet expert",
    "static": "**static choice: best on average, whatever the task**",
    "symmetric": "nearest lesson, symmetric distance",
    "asymmetric": "nearest lesson, asymmetric distance (the paper)",
    "model space": "model space (the paper's model2vec)",
    "logme": "LogME, a pass of *every* expert over your images",
    "combined": "`combined`, what `recommend` goes by",
    "combined + logme": "`combined` with LogME",
}
BLOCK = re.compile(r"(<!-- made by docs/tables\.py -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str) -> str:
    """The text of the README, with its table as the files have it now."""
    return BLOCK.sub(lambda found: found[1] + make_table() + found[2], text)


def make_table() -> str:
    """Error over the optimum in percent, by way of choosing: one task left out, and in brackets its whole dataset."""
    with open(ROOT / "docs" / "results" / "selection" / "table1.csv", newline="", encoding="utf-8") as file:
        rows = {(row["family"], row["protocol"], row["leave"], row["strategy"]): row for row in csv.DictReader(file)}
    lines = ["| | 49 taxa, half | 5 per class | 22 questions, half | 5 per class |", "|---|---|---|---|---|"]
    for strategy, told in ROWS.items():
        cells = [_cell(rows, family, protocol, strategy) for family, protocol in SETTINGS]
        lines.append(f"| {told} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(rows: dict, family: str, protocol: str, strategy: str) -> str:
    told = [
        rows[key]["increase"] for leave in ("task", "dataset") if (key := (family, protocol, leave, strategy)) in rows
    ]
    first, *second = [f"{float(number):+.1f}" for number in told if number] or [""]
    return first + (f" ({second[0]})" if second else "")


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(fill(readme.read_text(encoding="utf-8")), encoding="utf-8")
