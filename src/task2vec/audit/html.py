"""The report as one HTML file: style and images inside, no script, nothing loaded from elsewhere.

Every picture is stored once, in a definition of SVG, however often it is shown: small, beside a suspect, or enlarged.
Names of files and classes may contain anything: the template `page.html` escapes every text, and the page's own policy
forbids scripts, frames, forms and requests. Pages are shared, so they contain only the last part of absolute paths.
"""

import os
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL.Image import Image

from task2vec.audit.analysis import Analysis, LabelIssue
from task2vec.audit.corrections import find_path, format_line, format_relative, list_lines
from task2vec.errors import DataError
from task2vec.select.recommendation import format_curve
from task2vec.text import format_percent, hide_paths, pluralize, printable

if TYPE_CHECKING:
    from task2vec.select.learning_curve import LearningCurve

# The bytes of a page with its pictures; it is longer only if its text alone is.
MAX_BYTES = 1_900_000
# Long sides of pictures in pixels, and their quality: the largest that leaves room for all, judged by some of them.
SIDES, QUALITY, SAMPLE = (360, 256, 180, 128), 70, 24
# Findings on a page of findings, pictures of a group of copies, and examples beside a suspect.
PER_PAGE, MAX_MEMBERS, MAX_BESIDE = 25, 8, 2
MAX_CLASSES, MAX_CHARACTERS = 12, 800
_INDENT = re.compile(r"\n\s+")
# Up to so many classes the cells of the confusion picture have numbers, and its rows names; no more cells are drawn.
MAX_NUMBERED, MAX_NAMED, MAX_CELLS = 24, 80, 4000


def render(report: Analysis, *, max_bytes: int = MAX_BYTES) -> str:
    """The page of a report, with as many pictures as `max_bytes` leave room for."""
    environment = Environment(
        loader=PackageLoader("task2vec.audit", ""),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": format_percent,
        "hide": hide_paths,
        "pluralize": pluralize,
        "curve": format_curve,
        "number": "{:,}".format,
        "name": lambda number: hide_paths(_name_in_split(report, number)),
    }
    counts, sizes = report.task.counts, report.sizes
    typical = {facts.name: facts.typical for facts in report.classes}
    issues = [_compare(report, issue, typical) for issue in report.label_issues]
    lines: dict[int, list[str]] = {}
    for number, cells in list_lines(report):
        lines.setdefault(number, []).append(_format_line(report, number, cells))
    wanted = [
        *(number for group in report.copies for number in group.numbers[:MAX_MEMBERS]),
        *(number for issue, beside in issues for number in (issue.number, *(n for _, n in beside))),
        *report.outliers,
        *(n for facts in report.classes[:MAX_CLASSES] for n in (*facts.typical, *facts.hardest)),
    ]
    values: dict[str, Any] = {
        "report": report,
        "task": report.task,
        "formats": ", ".join(f"{count} {name}" for name, count in [*report.formats.items()][:3]),
        "each": f"{counts.max() if counts.min() == counts.max() else f'{counts.min()} to {counts.max()}'} images each",
        "median": "{}×{}".format(*np.median(sizes, axis=0).astype(int)),
        "sizes": "median; from {}×{} to {}×{} pixels".format(*sizes.min(0), *sizes.max(0)),
        "by_images": sorted(report.classes, key=lambda facts: (-facts.images, facts.name)),
        "hardest": report.classes[:MAX_CLASSES],
        "most_images": max(1, counts.max()),
        "issues": _divide(issues),
        "copies": _divide(report.copies),
        "lines": lines,
        "members": MAX_MEMBERS,
        "confusion": _draw_confusion(report) if report.confused else None,
        "curve": None if report.learning_curve is None else _draw_curve(report.learning_curve),
        "kinds": {"#": Markup(' class="number"'), "%": Markup(' class="bar"')},
    }
    store, template = (
        _store_pictures(report, list(dict.fromkeys(wanted)), max_bytes),
        environment.get_template("page.html"),
    )
    page = _INDENT.sub("\n", template.render(store=store, **values)).lstrip()
    excess = len(page.encode("utf-8", "replace")) - max_bytes
    if store and excess > 0:  # the text of very many findings: the last pictures give way
        while store and excess > 0:
            excess -= len(store.popitem()[1][2])
        page = _INDENT.sub("\n", template.render(store=store, **values)).lstrip()
    return page


def _name_in_split(report: Analysis, number: int) -> str:
    """The name of an image without that of its split."""
    images = report.images
    source, within = images.places[number]
    return images.sources[source].name(within)


def _finalize(value: object) -> object:
    """What is printed of a value: HTML of the template as it is, text without control characters, which is escaped."""
    if isinstance(value, Markup):
        return value
    text = printable(value)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"


def _divide(findings: Sequence[Any]) -> list[Sequence[Any]]:
    """The findings by pages."""
    return [findings[start : start + PER_PAGE] for start in range(0, len(findings), PER_PAGE)]


def _compare(
    report: Analysis, issue: LabelIssue, typical: dict[str, tuple[int, ...]]
) -> tuple[LabelIssue, list[tuple[str, int]]]:
    """A suspect, and typical images of its own class and of the suggested one, each after its class.

    An attribute is compared with images that have it, whatever is suggested.
    """
    names = [issue.label.rpartition(": ")[0]] if report.task.is_multilabel else [issue.label, issue.suggested]
    examples = {name: [number for number in typical.get(name, ()) if number != issue.number] for name in names}
    return issue, [(name, number) for name in names for number in examples[name][:MAX_BESIDE]]


def _format_line(report: Analysis, number: int, cells: Sequence[str]) -> str:
    """The line of a table of corrections in the current folder that takes what is suggested."""
    path = find_path(report.images, number)
    shown = report.images.name(number)
    if path is not None and path.is_relative_to(Path.cwd()):
        shown = format_relative(path, Path.cwd())
    label, suggestion, kind, _, *rest = cells
    return format_line([shown, label, suggestion, kind, "relabel" if kind == "label" else suggestion, *rest])


# --- pictures --------------------------------------------------------------------------------------------------------


def _store_pictures(report: Analysis, numbers: Sequence[int], max_bytes: int) -> dict[int, tuple[int, int, Markup]]:
    """Width, height and data URL of the pictures that there is room for, by number; not of those that are gone."""

    def load(number: int) -> tuple[int, Image | None]:
        try:
            image = report.images.load(number)
        except DataError:
            return number, None
        image.thumbnail((SIDES[0], SIDES[0]), reducing_gap=2.0)
        return number, image

    if not max_bytes:
        return {}
    stored: dict[int, tuple[int, int, Markup]] = {}
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1) if report.images.is_threadsafe else 1) as pool:
        sample = [image for _, image in pool.map(load, numbers[:: max(1, len(numbers) // SAMPLE)]) if image]
        left = 0.75 * max_bytes  # the rest is for the text
        side = _choose_side(sample, len(numbers), left)
        for start in range(0, len(numbers), SAMPLE):  # few of them in memory at a time
            for number, image in pool.map(load, numbers[start : start + SAMPLE]):
                if image is not None and len(url := _encode(image, side)) <= left:
                    left -= len(url)
                    stored[number] = (image.width, image.height, url)
    return stored


def _choose_side(sample: Sequence[Image], count: int, max_bytes: float) -> int:
    """The longest side at which so many pictures like these fit."""
    for side in SIDES[:-1]:
        if sum(len(_encode(image.copy(), side)) for image in sample) / max(1, len(sample)) * count <= 0.95 * max_bytes:
            return side
    return SIDES[-1]


def _encode(image: Image, side: int) -> Markup:
    image.thumbnail((side, side))
    file = BytesIO()
    image.save(file, "WEBP", quality=QUALITY)
    return Markup("data:image/webp;base64,") + b64encode(file.getvalue()).decode()


# --- figures ---------------------------------------------------------------------------------------------------------


def _draw_confusion(report: Analysis) -> dict[str, Any]:
    """Rows of classes, columns of what is predicted: the cells that are not empty, with shades.

    Classes are in their own order; of more than a few, those that are confused stand together.
    """
    names = [*report.task.classes]
    number = {name: row for row, name in enumerate(names)}
    shares = np.zeros((len(names), len(names)))
    for cell in report.confused:
        shares[number[cell.label], number[cell.predicted]] = cell.share
    if len(names) > MAX_NUMBERED:
        linked = shares + shares.T
        laplacian = np.diag(linked.sum(1)) - linked + 1e-9
        order = np.argsort(np.linalg.eigh(laplacian)[1][:, 1], kind="stable").tolist()
    else:
        order = sorted(range(len(names)), key=lambda row: names[row])
    position = {names[row]: rank for rank, row in enumerate(order)}
    size = max(4, min(30, 800 // len(names)))
    error = {facts.name: facts.error for facts in report.classes}

    def list_cells() -> Iterator[dict[str, Any]]:
        for name, share in error.items():
            if share is not None:
                yield {"row": name, "column": name, "share": 1 - share, "is_right": True}
        for cell in report.confused[:MAX_CELLS]:
            yield {"row": cell.label, "column": cell.predicted, "share": cell.share, "is_right": False}

    cells = [
        cell
        | {
            "x": size * position[cell["column"]],
            "y": size * position[cell["row"]],
            "shade": round(0.12 + 0.88 * cell["share"] ** 0.5, 2),
        }
        for cell in list_cells()
    ]
    is_named = len(names) <= MAX_NAMED
    margin = min(220, 7 * max(len(name) for name in names) + 10) if is_named else 2
    return {
        "cells": cells,
        "names": [names[row] for row in order] if is_named else [],
        "size": size,
        "margin": margin,
        "side": size * len(names),
        "has_numbers": len(names) <= MAX_NUMBERED,
    }


def _draw_curve(curve: "LearningCurve") -> dict[str, Any]:
    """Where the points of the learning curve lie, with their intervals, and the marks of the axis."""
    top = max(0.02, 1.1 * max(curve.high))
    x = [70 + 360 * rank / max(1, len(curve.images) - 1) for rank in range(len(curve.images))]

    def find_y(share: float) -> float:
        return 180 - 160 * share / top

    points = [
        {"x": at, "y": find_y(error), "low": find_y(low), "high": find_y(high), "images": images, "error": error}
        for at, images, error, low, high in zip(x, curve.images, curve.errors, curve.low, curve.high, strict=True)
    ]
    return {"points": points, "marks": [{"y": find_y(share * top), "share": share * top} for share in (0, 0.5, 1)]}
