"""D8, for what is written: names that a spreadsheet would run are neutralised in every CSV that holds names."""

import csv

import numpy as np

from task2vec.distance import DistanceMatrix
from task2vec.experts import MetaTask, ModelInfo, TaskInfo
from task2vec.select import Recommendation, Row

FORMULAS = ["=cmd()", "+1", "-rf", "@sum", "\tx"]


def read_cells(path):
    with path.open(newline="", encoding="utf-8") as file:
        return [cell for row in csv.reader(file) for cell in row]


def is_harmless(cell):
    """Whether no spreadsheet runs it; a number may have its sign."""
    try:
        float(cell)
    except ValueError:
        return not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    return True


def test_d8_distances(tmp_path):
    matrix = DistanceMatrix(np.zeros((5, 5)), tuple(FORMULAS), tuple(FORMULAS), "symmetric")
    matrix.save_csv(tmp_path / "x.csv")
    cells = read_cells(tmp_path / "x.csv")
    assert all(map(is_harmless, cells[1:6])) and cells[1:6] == [f"'{name}" for name in FORMULAS]


def test_d8_measured_errors(tmp_path):
    errors, tasks = np.full((1, 5, 1, 1), 0.5), (TaskInfo("=cmd()", fingerprint="f" * 64),)
    models, shares = tuple(map(ModelInfo, FORMULAS)), np.zeros((1, 5))
    hostile = MetaTask("=x", tasks, models, ("-p",), (0,), errors, errors, errors, shares, shares > 0)
    cells = read_cells(hostile.to_csv(tmp_path / "x.csv"))
    assert all(map(is_harmless, cells)) and {f"'{name}" for name in FORMULAS} | {"'-p"} <= set(cells)


def test_d8_recommendations(tmp_path):
    rows = tuple(Row(rank, name, 0.1, 0.0, 0.2, nearest=name, why=name) for rank, name in enumerate(FORMULAS))
    hostile = Recommendation("=cmd()", "=cmd()", "", False, "=cmd()", rows)
    cells = read_cells(hostile.to_csv(tmp_path / "x.csv"))
    assert all(map(is_harmless, cells)) and [cells.count(f"'{name}") for name in FORMULAS] == [3] * 5
