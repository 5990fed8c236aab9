"""The table of the README, made from the files in docs/results: `python docs/tables.py` updates it.

It stands between two comments, so no number is copied by hand.
"""

import csv
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SPACE, MEASURED, LEVEL = "resnet34 robust", "4", 0.05
# Kinds of task: family, what is left out, and which errors are known.
ROWS = {
    "49 taxa": ("taxa", "task", "family"),
    "22 label sets": ("labels", "task", "family"),
    "taxa, no task of the dataset known": ("taxa", "dataset", "all"),
    "label sets, no task of the dataset known": ("labels", "dataset", "all"),
    "38 whole datasets, 45 models": ("datasets", "task", "all"),
}
SHOTS = ("half", "5")
# Orders of measuring, and the columns of the row of proposals that compare it with them: the gap and its p.
ORDERS = {
    "all": ("all measured", "", ""),
    "rule": ("**4 proposed**", "", ""),
    "average-best": ("4 best on average", "gap", "p"),
    "domain": ("4 by domain distances", "domain_gap", "p_domain"),
}
BLOCK = re.compile(r"(<!-- made by docs/tables\.py -->\n).*?(<!-- end -->)", re.DOTALL)

Rows = dict[tuple[str, ...], dict[str, str]]


def fill(text: str) -> str:
    """The text of the README, with its table as the files have it now."""
    return BLOCK.sub(lambda block: block[1] + make_table() + block[2], text)


def make_table() -> str:
    """Mean test errors in percent by kind of task and order of measuring, with stars where proposals are better."""
    with open(ROOT / "docs" / "results" / "selection" / "proposals.csv", newline="", encoding="utf-8") as file:
        keys = ("family", "leave", "known", "shots", "order", "measured")
        rows = {tuple(row[key] for key in keys): row for row in csv.DictReader(file) if row["space"] == SPACE}
    lines = [f"| | {' | '.join(head for head, *_ in ORDERS.values())} |", "|---" * (len(ORDERS) + 1) + "|"]
    for label, kind in ROWS.items():
        lines.append(f"| {label} | {' | '.join(_format_cell(rows, kind, order) for order in ORDERS)} |")
    return "\n".join(lines) + "\n"


def _format_cell(rows: Rows, kind: tuple[str, ...], order: str) -> str:
    """Errors with half of the images and with 5 per class; * if proposals are significantly better, ° if worse."""
    _, gap, p = ORDERS[order]
    texts = []
    for shots in SHOTS:
        row = rows.get((*kind, shots, order, "all" if order == "all" else MEASURED))
        if row is None:
            return "-"
        proposed = rows[*kind, shots, "rule", MEASURED]
        is_significant = bool(p) and float(proposed[p]) < LEVEL
        sign = ("*" if float(proposed[gap]) < 0 else "°") if is_significant else ""
        texts.append(f"{float(row['error']):.1f}{sign}")
    return " / ".join(texts)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(fill(readme.read_text(encoding="utf-8")), encoding="utf-8")
