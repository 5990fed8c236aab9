"""The interactive map: one file of HTML that opens anywhere, fetches nothing and asks nobody.

Names come from strangers. They travel as JSON in which no letter can end the script it stands in, become text on the
page and never markup, and a content security policy forbids every request, should all of that fail.
"""

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.atlas.canvas import write_whole
from task2vec.atlas.labels import shorten
from task2vec.atlas.layout import check_square
from task2vec.atlas.palette import check_groups, choose_looks
from task2vec.errors import UsageError

_LONGEST_NAME = 200
_NEAREST = 6
# What could end a script, open a comment in it, or end a line of it.
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True)
class TaskFacts:
    """What the page tells of a task; what is not known is left out."""

    images: int | None = None
    classes: int | None = None
    error: float | None = None
    norm: float | None = None


def write_page(
    places: np.ndarray,
    names: Sequence[str],
    *,
    path: str | Path,
    distances: np.ndarray,
    groups: Sequence[str] | None = None,
    facts: Sequence[TaskFacts] | None = None,
    placed: int = 0,
    title: str = "map of tasks",
    note: str = "",
) -> Path:
    """The path of a page on which the map can be searched, zoomed and asked.

    Args:
        places: two coordinates per task.
        names: one per task.
        path: where the page goes; an existing file is replaced, whole or not at all.
        distances: between all tasks of the page, from which the nearest ones are told.
        groups: one per task, each with its own colour and mark.
        facts: one per task.
        placed: how many of the last tasks were put on the map afterwards; they are ringed.
        title: what stands above.
        note: a few words beside it, as how the map was made.

    Example:
        >>> import numpy as np, tempfile
        >>> apart = np.array([[0, 0.2], [0.2, 0]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = write_page(np.eye(2), ["cats", "<dogs>"], path=f"{folder}/map.html", distances=apart)
        ...     "<dogs>" in page.read_text()
        False
    """
    places, distances = np.asarray(places, dtype=np.float64), check_square(distances, is_symmetric=False)
    facts = [TaskFacts()] * len(names) if facts is None else facts
    if places.shape != (len(names), 2) or len(distances) != len(names) or len(facts) != len(names):
        raise UsageError(
            f"places of shape {places.shape}, distances between {len(distances)} tasks, {len(facts)} facts and "
            f"{len(names)} names do not belong together: every task needs one of each. Pass them for the same tasks."
        )
    groups = check_groups(groups, len(names))
    document = {
        "groups": _list_groups(groups),
        "tasks": _list_tasks(places, names, groups=groups, facts=facts, nearest=_find_nearest(distances)),
    }
    for task in document["tasks"][len(names) - placed :]:
        task["placed"] = True
    path = Path(path)
    write_whole(path, _fill(document, title=title, note=note).encode("utf-8", errors="replace"))
    return path


def write_script_data(document: Any) -> str:
    r"""The document as JSON that may stand inside a script tag.

    Example:
        >>> write_script_data(["</script>"])
        '["\\u003c/script\\u003e"]'
    """
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for letter, escape in _UNSAFE.items():
        text = text.replace(letter, escape)
    return text


def _fill(document: dict[str, Any], *, title: str, note: str) -> str:
    """The page with its style, script and data inside; one pass, so that no name is taken for a placeholder."""
    parts = {
        "title": html.escape(shorten(title, _LONGEST_NAME)),
        "note": html.escape(shorten(note, _LONGEST_NAME)),
        "style": _read_part("page.css"),
        "script": _read_part("page.js"),
        "data": write_script_data(document),
    }
    begin, *rest = _read_part("page.html").split("{{")
    pieces = [begin]
    for piece in rest:
        name, _, text = piece.partition("}}")
        pieces += [parts[name], text]
    return "".join(pieces)


def _read_part(name: str) -> str:
    return (files("task2vec.atlas") / name).read_text(encoding="utf-8")


def _list_groups(groups: Sequence[str]) -> list[dict[str, str]]:
    return [
        {"name": shorten(group, _LONGEST_NAME), "colour": look.colour, "mark": look.mark}
        for group, look in choose_looks(groups).items()
    ]


def _list_tasks(
    places: np.ndarray,
    names: Sequence[str],
    *,
    groups: Sequence[str],
    facts: Sequence[TaskFacts],
    nearest: list[list[tuple[int, float]]],
) -> list[dict[str, Any]]:
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return [
        {
            "name": shorten(name, _LONGEST_NAME),
            "group": numbers[group],
            "x": _round(place[0]),
            "y": _round(place[1]),
            "images": _round(fact.images),
            "classes": _round(fact.classes),
            "error": _round(fact.error),
            "norm": _round(fact.norm),
            "nearest": near,
        }
        for name, group, place, fact, near in zip(names, groups, places, facts, nearest, strict=True)
    ]


def _find_nearest(distances: np.ndarray) -> list[list[tuple[int, float]]]:
    """For every task the numbers of the nearest others, each with its distance, nearest first."""
    found = []
    for task, row in enumerate(distances):
        order = [int(other) for other in np.argsort(row, kind="stable")[: _NEAREST + 1] if other != task]
        found.append([(other, float(f"{row[other]:.6g}")) for other in order[:_NEAREST]])
    return found


def _round(value: float | None) -> float | int | None:
    """A number in six digits, as JSON has it: none for what is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if isinstance(value, int) else float(f"{value:.6g}")
