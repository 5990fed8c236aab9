"""How near tasks and lessons are, from tables of distances or of embeddings; see `tables`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from task2vec.distance import pairwise_from_logs
from task2vec.errors import DataError
from task2vec.select.evidence import SYMMETRIC, Evidence
from task2vec.select.evidence.csv_tables import Table, parse_number

TRIVIAL = "trivial"


def add_distances(evidence: Evidence, table: Table) -> Evidence:
    """The evidence with the distances of a table."""
    rows = {row[0]: (line, row) for line, row in table.rows}
    if len(rows) < len(table.rows):
        raise DataError(f"'{table.path}' has two rows for the same name, so one would be lost. Keep one of them.")
    missing = [name for name in evidence.tasks if name not in rows]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise DataError(
            f"'{table.path}' has no row for the task '{missing[0]}'{more}, which the errors are about, so it is near "
            "to nothing. Add it, or take its errors out."
        )
    columns = {head: place for place, head in enumerate(table.heads) if place}
    known = {*evidence.tasks, *evidence.experts, *(lesson for lesson in evidence.lessons if lesson)}
    strange = [head for head in columns if head not in known]
    if len(strange) == len(columns):
        raise table.fail(1, f"names '{strange[0]}' and no task, expert or lesson of the errors", "Use their names.")
    values = np.array(
        [
            [_parse_distance(table, rows[task][0], rows[task][1][place]) for place in columns.values()]
            for task in evidence.tasks
        ]
    )
    numbers = {head: number for number, head in enumerate(columns)}
    apart = _pick(values, [numbers.get(task) for task in evidence.tasks])
    return replace(
        evidence,
        distances={} if not numbers.keys() & set(evidence.tasks) else {SYMMETRIC: _complete(apart, evidence, table)},
        to_lessons={SYMMETRIC: _pick(values, _find_lessons(evidence, numbers))},
    )


def _complete(apart: np.ndarray, evidence: Evidence, table: Table) -> np.ndarray:
    """The distances between tasks, where one way may be told for both.

    Raises:
        DataError: Of two tasks neither way is told.
    """
    whole = np.where(np.isnan(apart), apart.T, apart)
    whole = np.where(np.eye(len(whole), dtype=bool) & np.isnan(whole), 0, whole)
    lacking = np.argwhere(np.isnan(whole))
    if len(lacking):
        one, other = (evidence.tasks[number] for number in lacking[0])
        raise DataError(
            f"'{table.path}' tells no distance between the tasks '{one}' and '{other}', so it is not known whether one "
            "tells about the other. Fill that cell, or take out the errors of one of them."
        )
    return whole


def _parse_distance(table: Table, line: int, text: str) -> float:
    value = parse_number(table, line, text, "a distance")
    if value < 0:
        raise table.fail(
            line, f"has the distance {text}, and no symmetric one is below 0", "Give distances of 0 or more."
        )
    return value


def _find_lessons(evidence: Evidence, numbers: Mapping[str, int]) -> list[int | None]:
    """Where each expert's lesson stands: under its own name, or under that of the expert."""
    pairs = zip(evidence.lessons, evidence.experts, strict=True)
    return [numbers.get(lesson or "", numbers.get(expert)) for lesson, expert in pairs]


def _pick(values: np.ndarray, places: Sequence[int | None]) -> np.ndarray:
    """Columns of `values`; NaN where there is none."""
    unknown = np.full(len(values), np.nan)
    return np.stack([unknown if place is None else values[:, place] for place in places], axis=1)


def add_embeddings(evidence: Evidence, table: Table) -> Evidence:
    """The evidence with the embeddings of a table, and the symmetric distances between them."""
    names = [row[0] for _, row in table.rows]
    missing = [name for name in evidence.tasks if name not in names]
    if missing or len(set(names)) < len(names):
        told = f"has no row for '{missing[0]}'" if missing else "has two rows for the same name"
        raise DataError(
            f"'{table.path}' {told}, so embeddings and errors cannot be matched. Give one row for each task."
        )
    values = np.array([[parse_number(table, line, cell, "a filter") for cell in row[1:]] for line, row in table.rows])
    wrong = np.argwhere(~(values >= 0))
    if len(wrong):
        line, row = table.rows[wrong[0][0]]
        raise table.fail(
            line, f"has '{row[wrong[0][1] + 1]}' for a filter, and a Fisher is 0 or more", "Complete or mend that row."
        )
    dead = values == 0
    if dead.all(0).any():
        values, dead = values[:, ~dead.all(0)], dead[:, ~dead.all(0)]
    # A filter that is dead for some has no logarithm there: it gets the smallest value that the filter has for others.
    floors = np.where(dead, np.inf, values).min(0)
    vectors = np.where(dead, floors, values)
    gaps = pairwise_from_logs(np.log(vectors), dead=dead, device="cpu")
    numbers = {name: number for number, name in enumerate(names)}
    rows = [numbers[task] for task in evidence.tasks]
    lessons = _find_lessons(evidence, numbers)
    found = replace(
        evidence,
        distances={**evidence.distances, SYMMETRIC: gaps[np.ix_(rows, rows)]},
        to_lessons={**evidence.to_lessons, SYMMETRIC: _pick(gaps[rows], lessons)},
        vectors=vectors[rows],
        lesson_vectors=_pick(vectors.T, lessons).T,
        norms=np.where(dead, 0, values).sum(1)[rows],
    )
    if TRIVIAL not in numbers:
        return found
    place = numbers[TRIVIAL]
    return replace(
        found,
        simplicity=_pick(gaps[place][None], lessons)[0],
        lesson_trivials=np.tile(vectors[place], (len(evidence.experts), 1)),
    )
