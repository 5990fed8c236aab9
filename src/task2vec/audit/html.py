"""The report as one HTML file: style and images inside, no script, nothing loaded from elsewhere.

Names of files and classes may contain anything: the template `page.html` escapes every text, and the page's own policy
forbids scripts, frames, forms and requests. Pages are shared, so they contain only the last part of absolute paths.
"""

from base64 import b64encode
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from task2vec.audit.analysis import Analysis
from task2vec.audit.suggestions import Suggestion
from task2vec.errors import DataError
from task2vec.select.recommendation import format_curve
from task2vec.text import format_percent, hide_paths, pluralize, printable
from task2vec.version import __version__

# Side in pixels and JPEG quality of the small images.
THUMBNAIL_SIDE = 160
THUMBNAIL_QUALITY = 80
# How many of each the page shows, at most.
MAX_GALLERY = 16
MAX_ISSUES = 48
MAX_GROUPS = 16
MAX_GROUP_IMAGES = 6
MAX_CLASSES = 12
MAX_CHARACTERS = 800
# A dataset is named on the map if it has at least this many tasks.
MIN_TASKS_NAMED = 3


def render(report: Analysis, suggestions: Sequence[Suggestion], *, max_thumbnails: int) -> str:
    """The page of a finished analysis, with at most `max_thumbnails` small images."""
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
    }
    environment.filters["number"] = "{:,}".format
    counts = report.task.counts
    sizes = report.sizes
    shown = {
        "gallery": [facts for facts in report.classes[:MAX_GALLERY] if facts.typical],
        "issues": report.label_issues[:MAX_ISSUES],
        "groups": report.copies[:MAX_GROUPS],
        "members": MAX_GROUP_IMAGES,
        "examples": report.classes[:MAX_CLASSES],
    }
    return (
        environment.get_template("page.html")
        .render(
            report=report,
            suggestions=suggestions,
            task=report.task,
            version=__version__,
            image_size="x".join(map(str, report.embedding.provenance.get("image_size") or ())),
            error=report.error and report.error.error,
            formats=", ".join(f"{count} {name}" for name, count in [*report.formats.items()][:3]),
            each=f"{counts.max() if counts.min() == counts.max() else f'{counts.min()} to {counts.max()}'} images each",
            median="{}×{}".format(*np.median(sizes, axis=0).astype(int)),
            sizes="median; from {}×{} to {}×{} pixels".format(*sizes.min(0), *sizes.max(0)),
            most_images=max(1, counts.max()),
            by_images=sorted(report.classes, key=lambda facts: (-facts.images, facts.name)),
            scales=[_place_on_scale(report, key) for key in ("error", "norm") if report.rank(key) is not None],
            map=None if report.place is None else _place_on_map(report),
            kinds={"#": Markup(' class="number"'), "%": Markup(' class="bar"')},
            with_images=max_thumbnails > 0,
            urls=_make_thumbnails(report, max_thumbnails, shown),
            **shown,
        )
        .lstrip()
    )


def _finalize(value: object) -> object:
    """What is printed of a value: HTML of the template as it is, text without control characters, which is escaped."""
    if isinstance(value, Markup):
        return value
    text = printable(value)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"


def _make_thumbnails(report: Analysis, limit: int, shown: dict[str, Any]) -> dict[int, Markup | None]:
    """Small images as data URLs, by their numbers; None where the image is gone, or has changed since."""
    numbers = [facts.typical[0] for facts in shown["gallery"]]
    numbers += [issue.number for issue in shown["issues"]]
    numbers += [number for group in shown["groups"] for number in group.numbers[:MAX_GROUP_IMAGES]]
    numbers += report.outliers
    numbers += [number for facts in shown["examples"] for number in (*facts.typical, *facts.hardest)]
    wanted = list(dict.fromkeys(numbers))[: max(limit, 0)]

    def encode(number: int) -> Markup | None:
        try:
            image = report.images.load(number)
        except DataError:
            return None
        image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), reducing_gap=2.0)
        file = BytesIO()
        image.save(file, "JPEG", quality=THUMBNAIL_QUALITY)
        return Markup("data:image/jpeg;base64,") + b64encode(file.getvalue()).decode()

    with ThreadPoolExecutor(4 if report.images.is_threadsafe else 1) as pool:
        return dict(zip(wanted, pool.map(encode, wanted), strict=True))


def _place_on_scale(report: Analysis, key: str) -> dict[str, Any]:
    """Where the errors or norms of the known tasks lie on a line, that of this one, and the ends of the line."""
    known, value = report.compare(key)
    values = np.array([*known, value], dtype=float)
    if key == "norm":
        values = np.log10(np.maximum(values, 1e-12))
        low, high = values.min(), values.max()
        ends = f"{10**low:.3g}", f"{10**high:.3g}"
    else:
        low = 0.0
        high = max(1.0, values.max())
        ends = "0%", "100%"
    *known_x, task_x = (16 + 448 * (values - low) / ((high - low) or 1.0)).tolist()
    return {"key": key, "known": known_x, "task": task_x, "ends": ends}


def _place_on_map(report: Analysis) -> dict[str, Any]:
    """Where the known tasks lie on a plane, the nearest with their ranks, the names of datasets, and this task."""
    positions = np.array([*(task["place"] for task in report.known), report.place], dtype=float)
    points = 20 + 560 * (positions - positions.min(0)) / (np.ptp(positions, axis=0).max() or 1.0)
    ranks = {near.task: rank for rank, near in enumerate(report.neighbours, 1) if near.origin == "bundled"}
    known = [
        {"task": task["task"], "rank": ranks.get(task["task"]), "x": x, "y": y}
        for task, (x, y) in zip(report.known, points.tolist(), strict=False)
    ]
    members: dict[str, list[int]] = {}
    for number, task in enumerate(report.known):
        members.setdefault(task["dataset"] or "", []).append(number)
    names = [
        (name, points[numbers, 0].mean(), points[numbers, 1].min() - 12)
        for name, numbers in members.items()
        if name and len(numbers) >= MIN_TASKS_NAMED
    ]
    return {"points": known, "names": names, "task": points[-1].tolist(), "height": points[:, 1].max() + 20}
