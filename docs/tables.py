"""The table of the README, made from the files in docs/results: `python docs/tables.py` updates it.

It stands between two comments, so no number is copied by hand.
"""

import csv
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = (("taxa", "half"), ("taxa", "5"), ("labels", "half"), ("labels", "5"))
ROWS = {
    "generic": "the generic ImageNet model",
    "average_best": "**average-best baseline**",
    "asymmetric": "nearest source task, asymmetric (the paper)",
    "model space published": "model space (the paper's model2vec)",
    "model space": "model space, our weight decay",
    "logme": "LogME †",
    "combined": "`combined`",
}
BLOCK = re.compile(r"(<!-- made by docs/tables\.py -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str) -> str:
    """The text of the README, with its table as the files have it now."""
    return BLOCK.sub(lambda found: found[1] + make_table() + found[2], text)


def make_table() -> str:
    """Error over the optimum in percent, by strategy: one task left out, and in brackets its whole dataset."""
    with open(ROOT / "docs" / "results" / "selection" / "table1.csv", newline="", encoding="utf-8") as file:
        rows = {(row["family"], row["shots"], row["leave"], row["strategy"]): row for row in csv.DictReader(file)}
    lines = ["| | 49 taxa, half | 5 per class | 22 label sets, half | 5 per class |", "|---|---|---|---|---|"]
    for strategy, label in ROWS.items():
        cells = [_cell(rows, family, shots, strategy) for family, shots in SETTINGS]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(rows: dict, family: str, shots: str, strategy: str) -> str:
    values = [
        rows[key]["increase"] for leave in ("task", "dataset") if (key := (family, shots, leave, strategy)) in rows
    ]
    first, *second = [f"{float(number):+.1f}" for number in values if number] or [""]
    return first + (f" ({second[0]})" if second else "")


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(fill(readme.read_text(encoding="utf-8")), encoding="utf-8")
