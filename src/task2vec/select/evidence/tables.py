"""Evidence from anybody's tables: errors of experts on tasks, and distances or embeddings, as CSV files.

Errors, one in a row, columns in any order (the table that `task2vec error-matrix --csv` writes is one):

    task,expert,error[,seed][,protocol][,dataset][,lesson][,is_trivial][,shares_images][,shares_labels]

or a row for each task and a column for each expert, of which the first is called `task` and one may be `dataset`:

    task,dataset,expert A,expert B

(or one for each expert and a column for each task, where the first is called `expert`, `model` or `network`).
A table of the first kind may have columns `seed_0`, `seed_1`, ... in the place of `error` and `seed`. Errors are
shares, from 0 to 1; empty cells, `nan`, `NA` and `-` are not known. `dataset` is that of the task, `lesson` what the
expert was taught; without it, an expert that is called like a task was taught that task. An expert may not be chosen
for its own lesson, nor where `is_trivial`, `shares_images` or `shares_labels` says that it has seen the task. The first
expert that has `generic` in its name is the generic one.

Distances: a row for each task, and a column for each task, expert or lesson, the first column being the tasks' names.
Embeddings: a row for each task, expert or lesson, its name first, then one number for each filter, 0 or more. A row
called `trivial` is the trivial embedding of the asymmetric distance.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from task2vec.errors import UsageError
from task2vec.select.evidence import Evidence
from task2vec.select.evidence.csv_tables import Table, parse_number, read_table
from task2vec.select.evidence.nearness_tables import add_distances, add_embeddings

_SEED = re.compile(r"seed_(\d+)")
_TASK_HEADS, _EXPERT_HEADS = ("", "task", "tasks", "name"), ("expert", "experts", "model", "models", "network")
_SEEN = ("is_trivial", "shares_images", "shares_labels")


def read_evidence(
    errors: str | Path,
    distances: str | Path | None = None,
    embeddings: str | Path | None = None,
    *,
    protocol: str | None = None,
) -> Evidence:
    r"""What tables of errors, and of distances or embeddings, tell about choosing experts.

    Args:
        errors: a CSV file, see the top of this module.
        distances: another, of distances between tasks and between tasks and lessons.
        embeddings: or one of embeddings, from which symmetric distances are computed.
        protocol: which errors to take where there are those of several ways of measuring.

    Raises:
        DataError: A table cannot be read; the message has the line.
        UsageError: Errors were measured in several ways, and none was chosen.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = Path(folder.name) / "errors.csv"
        >>> _ = path.write_text("task,generic,birds\ncats,0.2,0.3\nbirds,0.4,0.1\n")
        >>> evidence = read_evidence(path)
        >>> evidence, evidence.is_candidate.tolist()
        (Evidence(2 tasks, 2 experts, 100 % of the errors known), [[True, True], [True, False]])
        >>> folder.cleanup()
    """
    table = read_table(errors)
    cells = _list_cells(table) if {"task", "expert"} <= set(table.heads) else _list_wide(table)
    kept = _choose_protocol(cells, protocol, table.path)
    evidence = _arrange(kept, table)
    if distances is not None:
        evidence = add_distances(evidence, read_table(distances))
    return evidence if embeddings is None else add_embeddings(evidence, read_table(embeddings))


@dataclass(frozen=True)
class _Cell:
    """One error and what its row tells."""

    line: int
    task: str
    expert: str
    seed: int
    protocol: str
    error: float
    dataset: str = ""
    lesson: str = ""
    is_seen: bool = False


def _list_cells(table: Table) -> list[_Cell]:
    """The errors of a table with one error, or one for each seed, in a row."""
    columns = {head: place for place, head in enumerate(table.heads)}
    seeds = {int(found[1]): columns[head] for head in columns if (found := _SEED.fullmatch(head))}
    if "error" not in columns and not seeds:
        raise table.fail(1, "names no column 'error'", "Call the column of the errors so, or use seed_0, seed_1, ...")
    cells = []
    for line, row in table.rows:
        told = {key: row[columns[key]] if key in columns else "" for key in ("protocol", "dataset", "lesson")}
        is_seen = any(parse_number(table, line, row[columns[head]], head) > 0 for head in _SEEN if head in columns)
        seed = row[columns["seed"]] if "seed" in columns else "0"
        if not seed.isascii() or not seed.isdigit():
            raise table.fail(line, f"has the seed '{seed}', which is no whole number", "Give 0, 1, ...")
        for number, place in seeds.items() if seeds else ((int(seed), columns["error"]),):
            error = _parse_error(table, line, row[place])
            names = (row[columns["task"]], row[columns["expert"]])
            cells.append(_Cell(line, *names, number, told["protocol"], error, told["dataset"], told["lesson"], is_seen))
    return cells


def _list_wide(table: Table) -> list[_Cell]:
    """The errors of a table with a row for each task and a column for each expert, or the other way round."""
    first = table.heads[0].lower()
    if first not in (*_TASK_HEADS, *_EXPERT_HEADS):
        raise table.fail(
            1,
            f"begins with '{table.heads[0]}', so it cannot be told what its rows are",
            "Begin with 'task', then one column for each expert, or with 'expert', then one for each task.",
        )
    dataset = table.heads.index("dataset") if "dataset" in table.heads and first in _TASK_HEADS else None
    cells = []
    for line, row in table.rows:
        for place, (head, text) in enumerate(zip(table.heads, row, strict=True)):
            if place not in (0, dataset):
                names = (row[0], head) if first in _TASK_HEADS else (head, row[0])
                group = "" if dataset is None else row[dataset]
                cells.append(_Cell(line, *names, 0, "", _parse_error(table, line, text), group))
    return cells


def _parse_error(table: Table, line: int, text: str) -> float:
    value = parse_number(table, line, text.removesuffix("%").rstrip(), "an error")
    if text.endswith("%") or value > 1:
        raise table.fail(
            line, f"has the error {text}, and errors are shares from 0 to 1: this looks like percent", "Divide by 100."
        )
    if value < 0:
        raise table.fail(line, f"has the error {text}, and no error is below 0", "Give 1 - accuracy, not its negative.")
    return value


def _choose_protocol(cells: Sequence[_Cell], protocol: str | None, path: Path) -> list[_Cell]:
    known = list(dict.fromkeys(cell.protocol for cell in cells))
    meant = [one for one in known if protocol in (None, one)] or [
        one for one in known if f"train {protocol}" in one.split(", ")
    ]
    if len(meant) != 1:
        raise UsageError(
            f"the errors of '{path}' were measured in {len(known)} ways, and {protocol or 'no choice among them'!r} is "
            f"not one of these; they are not to be mixed. Choose one by its name: {'; '.join(known)}"
        )
    return [cell for cell in cells if cell.protocol == meant[0]]


def _arrange(cells: Sequence[_Cell], table: Table) -> Evidence:
    """The cells as arrays."""
    tasks, experts, seeds = (
        {name: place for place, name in enumerate(dict.fromkeys(getattr(cell, side) for cell in cells))}
        for side in ("task", "expert", "seed")
    )
    errors = np.full((len(tasks), len(experts), len(seeds)), np.nan)
    is_candidate = np.ones((len(tasks), len(experts)), dtype=bool)
    lines: dict[tuple[int, int, int], int] = {}
    lessons: dict[str, str] = {name: name for name in experts if name in tasks}
    groups = {name: name for name in tasks}
    for cell in cells:
        if not cell.task or not cell.expert:
            raise table.fail(cell.line, "has no task or no expert", "Name both.")
        place = (tasks[cell.task], experts[cell.expert], seeds[cell.seed])
        if place in lines:
            told = f"tells the error of '{cell.task}' on '{cell.expert}' again, after line {lines[place]}"
            raise table.fail(cell.line, told, "Keep one of them, or give them different seeds.")
        lines[place], errors[place] = cell.line, cell.error
        is_candidate[place[:2]] &= not cell.is_seen
        groups[cell.task] = cell.dataset or groups[cell.task]
        if cell.lesson:
            lessons[cell.expert] = cell.lesson
    for expert, lesson in lessons.items():
        if lesson in tasks:
            is_candidate[tasks[lesson], experts[expert]] = False
    return Evidence(
        tuple(tasks),
        tuple(experts),
        errors,
        is_candidate,
        tuple(groups.values()),
        tuple(lessons.get(name) for name in experts),
        tuple(groups.get(lessons.get(name, "")) for name in experts),
        generic=next((place for place, name in enumerate(experts) if "generic" in name.lower()), None),
    )
