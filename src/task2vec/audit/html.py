"""The report as one HTML file: style and images inside, no script, nothing loaded from elsewhere.

Names of files and classes may contain anything: the template `page.html` escapes every text, and the page's own policy
forbids scripts, frames, forms and requests. Pages are shared, so they contain only the last part of absolute paths.
"""

from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from task2vec import __version__
from task2vec.errors import DataError
from task2vec.select.recommendation import format_curve
from task2vec.text import format_percent, hide_paths, pluralize, printable

if TYPE_CHECKING:
    from task2vec.audit.report import TaskReport

# Sides and quality of the small images; how many are shown of suspected labels, groups of copies, and classes.
_SIDE, _QUALITY = 160, 80
_ISSUES, _GROUPS, _MEMBERS, _CLASSES, _GALLERY = 48, 16, 6, 12, 16
_LONGEST_TEXT = 800
# Tasks of a dataset from which on it is named on the map.
_FEWEST_NAMED = 3


def render(report: "TaskReport", *, max_thumbnails: int) -> str:
    """The page, with at most `max_thumbnails` small images."""
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
    counts, sizes = report.task.counts, report.sizes
    shown = {
        "gallery": [one for one in report.classes[:_GALLERY] if one.typical],
        "issues": report.label_issues[:_ISSUES],
        "groups": report.copies[:_GROUPS],
        "members": _MEMBERS,
        "examples": report.classes[:_CLASSES],
    }
    return (
        environment.get_template("page.html")
        .render(
            report=report,
            task=report.task,
            version=__version__,
            image_size="x".join(map(str, report.embedding.provenance.get("image_size") or ())),
            error=report.error and report.error.error,
            formats=", ".join(f"{count} {name}" for name, count in [*report.formats.items()][:3]),
            each=f"{counts.max() if counts.min() == counts.max() else f'{counts.min()} to {counts.max()}'} images each",
            median="{}×{}".format(*np.median(sizes, axis=0).astype(int)),
            sizes="median; from {}×{} to {}×{} pixels".format(*sizes.min(0), *sizes.max(0)),
            most_images=max(1, counts.max()),
            by_images=sorted(report.classes, key=lambda one: (-one.images, one.name)),
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
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def _make_thumbnails(report: "TaskReport", most: int, shown: dict[str, Any]) -> dict[int, Markup | None]:
    """Small images as data URLs, by their numbers; None where the image is gone, or has changed since."""
    numbers = [one.typical[0] for one in shown["gallery"]]
    numbers += [issue.number for issue in shown["issues"]]
    numbers += [number for group in shown["groups"] for number in group.numbers[:_MEMBERS]]
    numbers += [*report.outliers, *(number for one in shown["examples"] for number in (*one.typical, *one.hardest))]
    wanted = [*dict.fromkeys(numbers)][: max(most, 0)]

    def encode(number: int) -> Markup | None:
        try:
            image = report.images.load(number)
        except DataError:
            return None
        image.thumbnail((_SIDE, _SIDE), reducing_gap=2.0)
        file = BytesIO()
        image.save(file, "JPEG", quality=_QUALITY)
        return Markup("data:image/jpeg;base64,") + b64encode(file.getvalue()).decode()

    with ThreadPoolExecutor(4 if report.images.is_threadsafe else 1) as pool:
        return dict(zip(wanted, pool.map(encode, wanted), strict=True))


def _place_on_scale(report: "TaskReport", key: str) -> dict[str, Any]:
    """Where the errors or norms of the known tasks lie on a line, that of this one, and the ends of the line."""
    values, own = report.compare(key)
    every = np.array([*values, own], dtype=float)
    if key == "norm":
        every = np.log10(np.maximum(every, 1e-12))
        low, high = every.min(), every.max()
        ends = f"{10**low:.3g}", f"{10**high:.3g}"
    else:
        low, high, ends = 0.0, max(1.0, every.max()), ("0%", "100%")
    *places, place = (16 + 448 * (every - low) / ((high - low) or 1.0)).tolist()
    return {"key": key, "places": places, "own": place, "ends": ends}


def _place_on_map(report: "TaskReport") -> dict[str, Any]:
    """Where the known tasks lie on a plane, the nearest with their ranks, the names of datasets, and this task."""
    every = np.array([*(one["place"] for one in report.known), report.place], dtype=float)
    points = 20 + 560 * (every - every.min(0)) / (np.ptp(every, axis=0).max() or 1.0)
    ranks = {one.task: rank for rank, one in enumerate(report.neighbours, 1) if one.origin == "bundled"}
    known = [
        {"task": one["task"], "rank": ranks.get(one["task"]), "x": x, "y": y}
        for one, (x, y) in zip(report.known, points.tolist(), strict=False)
    ]
    members: dict[str, list[int]] = {}
    for number, one in enumerate(report.known):
        members.setdefault(one["dataset"] or "", []).append(number)
    names = [
        (name, points[numbers, 0].mean(), points[numbers, 1].min() - 12)
        for name, numbers in members.items()
        if name and len(numbers) >= _FEWEST_NAMED
    ]
    return {"points": known, "names": names, "own": points[-1].tolist(), "height": points[:, 1].max() + 20}
