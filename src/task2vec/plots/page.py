"""The interactive map as one HTML file that opens anywhere and loads nothing.

Names may contain anything. They travel as JSON in which no character can end the script around it, become text on the
page and never markup, and a content security policy forbids every request should all of that fail. The map is the one
of `task2vec serve` (static/map.js), inlined.
"""

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.plots.figures import check_groups, check_positions, shorten
from task2vec.plots.layout import check_counts, check_square
from task2vec.storage import write_file

_MAX_NAME = 200
_NEAREST = 6
_FACTS = ("images", "classes", "error", "norm")
# What could end a script or open a comment in it; ends of lines beyond ASCII are escaped by JSON itself.
_UNSAFE = str.maketrans({letter: f"\\u{ord(letter):04x}" for letter in "<>&"})
_SCRIPTS, _STYLES = ("static/dom.js", "static/map.js", "page.js"), ("static/map.css", "page.css")


def write_page(
    positions: np.ndarray,
    names: Sequence[str],
    *,
    path: str | Path,
    distances: np.ndarray,
    groups: Sequence[str] | None = None,
    facts: Sequence[Mapping[str, float | None]] | None = None,
    title: str = "map of tasks",
    note: str = "",
) -> Path:
    """The path of a page with the map: search, zoom, and the nearest tasks of each.

    Args:
        positions: two coordinates per task.
        names: one per task.
        path: of the page; an existing file is replaced, whole or not at all.
        distances: between all tasks of the page, for the nearest ones.
        groups: one per task, each with its own colour and mark.
        facts: of each task its images, classes, error and norm; unknown ones are left out.
        title: above the map.
        note: beside the title, for example how the map was made.

    Example:
        >>> import numpy as np, tempfile
        >>> apart = np.array([[0, 0.2], [0.2, 0]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = write_page(np.eye(2), ["cats", "<dogs>"], path=f"{folder}/map.html", distances=apart)
        ...     "<dogs>" in page.read_text()
        False
    """
    positions = check_positions(positions, len(names))
    distances = check_square(distances, is_symmetric=False)
    facts = [{}] * len(names) if facts is None else facts
    check_counts(len(names), distances=distances, facts=facts)
    groups = check_groups(groups, len(names))
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    tasks = [
        {
            "name": shorten(name, _MAX_NAME),
            "group": numbers[groups[at]],
            "x": _round(positions[at, 0]),
            "y": _round(positions[at, 1]),
            **{key: _round(facts[at].get(key)) for key in _FACTS},
            "nearest": _find_nearest(distances[at], at),
        }
        for at, name in enumerate(names)
    ]
    document = {"groups": [shorten(group, _MAX_NAME) for group in numbers], "tasks": tasks}
    return write_file(Path(path), _fill(document, title=title, note=note).encode("utf-8", errors="replace"))


def format_script_data(document: Any) -> str:
    r"""The document as JSON that is safe inside a script tag.

    Example:
        >>> format_script_data(["</script>"])
        '["\\u003c/script\\u003e"]'
    """
    return json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_UNSAFE)


def _fill(document: dict[str, Any], *, title: str, note: str) -> str:
    """The page with its style, script and data inside; one pass, so that no name is taken for a placeholder."""
    script = "\n".join(_read_part(name) for name in _SCRIPTS)
    parts = {
        "title": html.escape(shorten(title, _MAX_NAME)),
        "note": html.escape(shorten(note, _MAX_NAME)),
        "style": "\n".join(_read_part(name) for name in _STYLES),
        "script": re.sub(r"^(import .*\n|export )", "", script, flags=re.MULTILINE),  # one module, not three
        "data": format_script_data(document),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read_part("page.html"))


def _read_part(name: str) -> str:
    return (files("task2vec.plots") / name).read_text(encoding="utf-8")


def _find_nearest(row: np.ndarray, task: int) -> list[tuple[int, float]]:
    """The numbers of the nearest other tasks with their distances, nearest first."""
    order = [int(number) for number in np.argsort(row, kind="stable")[: _NEAREST + 1] if number != task]
    return [(number, float(f"{row[number]:.6g}")) for number in order[:_NEAREST]]


def _round(value: float | None) -> float | int | None:
    """A number in six digits, as JSON has it: null for NaN and infinity."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if isinstance(value, int) else float(f"{value:.6g}")
