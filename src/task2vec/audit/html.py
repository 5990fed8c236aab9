"""The report as one HTML file: style and images inside, no script, nothing loaded from elsewhere.

Names of files and classes may contain anything: every text passes through `_text`, and the page's own policy forbids
scripts, frames, forms and requests. A page is sent on, so of absolute paths it has the last part only.
"""

import html
from base64 import b64encode
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from task2vec import __version__
from task2vec.errors import DataError
from task2vec.text import format_percent, hide_paths, pluralize, printable

if TYPE_CHECKING:
    from task2vec.audit.report import CopyGroup, TaskReport
    from task2vec.select.report import Row

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
# Sides and quality of the small images; how many are listed of suspected labels, groups of copies, and classes.
_SIDE, _QUALITY = 160, 80
_ISSUES, _GROUPS, _MEMBERS, _CLASSES, _BARS, _GALLERY = 48, 16, 6, 12, 20, 16
_LONGEST_NAME = 200
# Tasks of a dataset from which on it is named on the map.
_FEWEST_NAMED = 3
_EXPLAIN = {
    "error": "Share of images that a linear classifier on the probe's features gets wrong when it was fitted without "
    "them, every class counting the same (five-fold cross-validation, copies kept together).",
    "norm": "Norm of the embedding: how much the probe's weights matter for this task. It grows with difficulty.",
}


def render(report: "TaskReport", *, max_thumbnails: int) -> str:
    """The page, with so many small images at most."""
    shown = _Thumbnails(report, max_thumbnails)
    title = _text(report.task.name)
    sections = {
        "At a glance": _render_glance(report, shown),
        "What to do next": _render_suggestions(report),
        "Labels": _render_labels(report, shown),
        "Copies": _render_copies(report, shown),
        "Likeness": _render_likeness(report),
        "Start from": _render_models(report),
    }
    links = "".join(f'<a href="#{_anchor(name)}">{name}</a>' for name in sections)
    body = "\n".join(
        f'<section id="{_anchor(name)}"><h2>{name}</h2>\n{text}</section>' for name, text in sections.items()
    )
    notes = "".join(f"<li>{_text(hide_paths(note))}</li>" for note in report.notes)
    size = "x".join(map(str, report.embedding.provenance.get("image_size") or ()))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}: task2vec report</title>
<style>
{(files("task2vec.audit") / "page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<h1>{title}</h1>
<p class="quiet">Report of task2vec {__version__} by {_text(report.embedding.probe)} at {size} pixels</p>
<nav>{links}</nav>
{body}
{f"<h2>Notes</h2><ul>{notes}</ul>" if notes else ""}
</body>
</html>
"""


def _text(value: object) -> str:
    """The value as text that is safe in HTML, also inside quotes, with control characters visible."""
    text = printable(value)
    return html.escape(text if len(text) <= _LONGEST_NAME * 4 else f"{text[: _LONGEST_NAME * 4]}…")


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already; a heading that ends with # has numbers below it, with % bars."""
    kinds = [{"#": ' class="number"', "%": ' class="bar"'}.get(head[-1:], "") for head in heads]
    head = "".join(f"<th{kind}>{name.rstrip('#%')}</th>" for name, kind in zip(heads, kinds, strict=True))
    lines = ("".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _bar(share: float) -> str:
    return f'<i style="width:{100 * min(max(share, 0.0), 1.0):.1f}%"></i>'


class _Thumbnails:
    """Small images as data URLs, up to a number of them: first those whose labels are suspected."""

    def __init__(self, report: "TaskReport", most: int):
        self.report, self.is_wanted = report, most > 0
        gallery = [one.typical[0] for one in report.classes[:_GALLERY] if one.typical]
        issues = [issue.number for issue in report.label_issues[:_ISSUES]]
        copies = [number for group in report.copies[:_GROUPS] for number in group.numbers[:_MEMBERS]]
        examples = [number for one in report.classes[:_CLASSES] for number in (*one.typical, *one.hardest)]
        wanted = [*dict.fromkeys([*gallery, *issues, *copies, *report.outliers, *examples])][: max(most, 0)]
        with ThreadPoolExecutor(4 if report.images.is_threadsafe else 1) as pool:
            self.urls = dict(zip(wanted, pool.map(self._encode, wanted), strict=True))

    def _encode(self, number: int) -> str | None:
        """None where the image is gone, or has changed since."""
        try:
            image = self.report.images.load(number)
        except DataError:
            return None
        image.thumbnail((_SIDE, _SIDE), reducing_gap=2.0)
        file = BytesIO()
        image.save(file, "JPEG", quality=_QUALITY)
        return f"data:image/jpeg;base64,{b64encode(file.getvalue()).decode()}"

    def show(self, number: int, caption: str, *, is_named: bool) -> str:
        """A figure with a caption of HTML and the name of the image; without an image, the name alone."""
        name, url = _text(hide_paths(self.report.images.name(number))), self.urls.get(number)
        image = f'<img src="{url}" alt="{name}" title="{name}">' if url else ""
        lines = [caption] * bool(caption) + [name] * (is_named or not url)
        return f"<figure>{image}<figcaption>{'<br>'.join(lines)}</figcaption></figure>"

    def show_all(self, pairs: Iterable[tuple[int, str]], kind: str = "images", *, is_named: bool = True) -> str:
        """Several images with their captions side by side."""
        return f'<div class="{kind}">{"".join(self.show(*pair, is_named=is_named) for pair in pairs)}</div>'


# --- sections ---------------------------------------------------------------------------------------------------------


def _render_glance(report: "TaskReport", shown: _Thumbnails) -> str:
    task, counts, sizes, error = report.task, report.task.counts, report.sizes, report.error
    leaks, middle = sum(group.is_leak for group in report.copies), np.median(sizes, axis=0).astype(int)
    formats = ", ".join(f"{count} {name}" for name, count in [*report.formats.items()][:3])
    each = f"{counts.max()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
    tiles = [
        ("images", f"{len(task):,}", formats),
        ("attributes" if task.is_multilabel else "classes", f"{len(task.classes):,}", f"{each} images each"),
        ("error", format_percent(error and error.error), report.format_interval()),
        ("label issues", f"{len(report.label_issues):,}", "suspected label errors"),
        ("copies", f"{report.n_copies:,}", f"{leaks} between splits" if leaks else "images that repeat another"),
        ("unreadable", f"{len(report.bad):,}", "files left out"),
        ("size", "{}×{}".format(*middle), "median; from {}×{} to {}×{} pixels".format(*sizes.min(0), *sizes.max(0))),
    ]
    parts = [f"<div><dt>{name}</dt><dd>{value}<small>{_text(more)}</small></dd></div>" for name, value, more in tiles]
    parts = [f"<dl>{''.join(parts)}</dl>"]
    if shown.is_wanted:
        gallery = [(one.typical[0], _text(one.name)) for one in report.classes[:_GALLERY] if one.typical]
        parts.append(shown.show_all(gallery, is_named=False))
    for key, own in (("error", error and error.error), ("norm", report.embedding.norm())):
        if own is not None and (rank := report.rank(key)) is not None:
            values = [one[key] for one in report.known if one[key] is not None]
            text = f"{_EXPLAIN[key]} Higher than that of {100 * rank:.0f} % of {len(values)} known tasks."
            parts += [f"<h3>How hard: {key}</h3><p>{text}</p>", _draw_strip(values, own, is_log=key == "norm")]
    rows = []
    for one in sorted(report.classes, key=lambda one: (-one.images, one.name)):
        bar = _bar(one.images / max(1, counts.max()))
        rows.append((_text(one.name), f"{one.images:,}", bar, format_percent(one.error), _bar(one.error or 0)))
    first, rest = (_table(("class", "images#", "%", "error#", "%"), some) for some in (rows[:_BARS], rows[_BARS:]))
    more = f"<details><summary>{len(rows) - _BARS} more</summary>{rest}</details>" if len(rows) > _BARS else ""
    parts.append(f"<h3>Images and errors by class</h3>{first}{more}")
    if report.bad:
        rows = [(_text(hide_paths(bad.path)), _text(hide_paths(bad.reason))) for bad in report.bad[:_BARS]]
        rest = _count_rest(len(report.bad) - _BARS, "file")
        parts.append(f"<h3>Unreadable files</h3>{_table(('file', 'reason'), rows)}{rest}")
    return "\n".join(parts)


def _count_rest(count: int, noun: str) -> str:
    return f"<p>and {pluralize(count, noun)} more: <code>--json</code> lists all</p>" if count > 0 else ""


def _render_suggestions(report: "TaskReport") -> str:
    if not report.suggestions:
        return "<p>Nothing: no copies, no suspected labels, no class with few images.</p>"
    items = (
        f"<li><b>{_text(one.text)}</b><br>{_text(hide_paths(one.evidence))}<pre>{_text(hide_paths(one.command))}</pre></li>"
        for one in report.suggestions
    )
    return f"<ol>{''.join(items)}</ol>"


def _render_labels(report: "TaskReport", shown: _Thumbnails) -> str:
    issues, parts = report.label_issues, ["<h3>Suspected label errors</h3>"]
    if issues:
        text = "Below each image its label and, in colour, what classifiers fitted without it predict. The worst first."
        pairs = ((one.number, f"{_text(one.label)}<br><b>{_text(one.suggested)}?</b>") for one in issues[:_ISSUES])
        parts.append(f"<p>{text}</p>{shown.show_all(pairs)}{_count_rest(len(issues) - _ISSUES, 'image')}")
    else:
        parts.append("<p>No label is suspected to be wrong.</p>")
    if report.confused:
        heads = ("first", "second", "first as second#", "second as first#", "of both#")
        rows = []
        for one in report.confused:
            ways = str(one.first_as_second), str(one.second_as_first)
            rows.append((_text(one.first), _text(one.second), *ways, format_percent(one.rate)))
        parts.append(f"<h3>Most confused classes</h3>{_table(heads, rows)}")
    if shown.is_wanted:
        parts.append("<h3>Most typical and hardest images</h3>")
        for one in report.classes[:_CLASSES]:
            parts.append(f"<p><b>{_text(one.name)}</b> <span class='quiet'>typical, then hardest</span></p>")
            pairs = ((number, "") for number in (*one.typical, *one.hardest))
            parts.append(shown.show_all(pairs, "images small", is_named=False))
    text = "Images that are like no other." if report.outliers else "No image is unlike all others."
    parts.append(f"<h3>Outliers</h3><p>{text}</p>{shown.show_all((number, '') for number in report.outliers)}")
    return "\n".join(parts)


def _render_copies(report: "TaskReport", shown: _Thumbnails) -> str:
    if not report.copies:
        return "<p>No image shows the same as another.</p>"
    groups, exact = pluralize(len(report.copies), "group"), sum(group.is_exact for group in report.copies)
    text = f"{groups} of images that show the same, {exact} of them with the same pixels."
    rows = "".join(_render_group(group, shown) for group in report.copies[:_GROUPS])
    return f"<p>{text}</p>{rows}{_count_rest(len(report.copies) - _GROUPS, 'group')}"


def _render_group(group: "CopyGroup", shown: _Thumbnails) -> str:
    tags = [("leak between splits", group.is_leak), ("different labels", group.has_conflict)]
    marks = " ".join(f'<span class="tag">{name}</span>' for name, applies in tags if applies)
    head = f'<span class="quiet">{"same pixels" if group.is_exact else "near copies"}</span> {marks}'
    pairs = zip(group.numbers[:_MEMBERS], map(_text, group.labels), strict=False)
    more = f"<p>and {len(group.images) - _MEMBERS} more</p>" if len(group.images) > _MEMBERS else ""
    return f'<div class="group">{head}{shown.show_all(pairs, "images small")}{more}</div>'


def _render_likeness(report: "TaskReport") -> str:
    parts = []
    if report.neighbours:
        rows = [
            (str(rank), _text(one.task), one.origin, f"{one.distance:.3f}", f"{one.floor:.3f}", f"{one.corrected:.3f}")
            for rank, one in enumerate(report.neighbours, 1)
        ]
        heads = ("", "task", "from", "distance#", "noise#", "without noise#")
        parts.append(f"<h3>Nearest known tasks</h3>{_table(heads, rows)}")
        parts.append(
            '<p class="quiet">Symmetric distance between embeddings. Noise: at least this distance would be seen '
            "between two embeddings of one task.</p>"
        )
    else:
        parts.append("<p>No known task can be compared with this one: they were embedded by another probe.</p>")
    if report.place is not None:
        parts.append(f"<h3>Map of the known tasks</h3>{_draw_map(report)}")
    rows = [
        (_text(stage["stage"]), f"{stage['filters']:,}", format_percent(stage["share"]), _bar(stage["share"]))
        for stage in report.embedding.stages()
    ]
    parts.append("<h3>Stages of the network that the task needs</h3>")
    parts.append(_table(("stage", "filters#", "share of norm#", "%"), rows))
    return "\n".join(parts)


def _render_models(report: "TaskReport") -> str:
    advice = report.recommendation
    if advice is None:
        return "<p>No model is recommended; the notes say why.</p>"
    rows = [_list_cells(row) for row in advice.rows[:10]]
    chosen = next((row.load for row in advice.rows if row.model == advice.choice), "")
    code = f"<pre>{_text(hide_paths(chosen))}</pre>" if chosen else ""
    heads = ("model", "predicted error#", "90 % interval#", "measured#", "p(best)#", "params#", "load")
    notes = "".join(f"<p class='quiet'>{_text(note)}</p>" for note in advice.notes)
    return (
        f"<p>{_text(advice.verdict)}</p>{code}{_table(heads, rows)}"
        f"<p class='quiet'>* best on average over the known tasks. Evidence: {_text(advice.known)}</p>{notes}"
    )


def _list_cells(row: "Row") -> tuple[str, ...]:
    ends = "-" if row.low is None or row.high is None else f"{100 * row.low:.0f} to {100 * row.high:.0f} %"
    best = "-" if row.p_best is None else f"{100 * row.p_best:.0f} %"
    params = "-" if row.params is None else f"{row.params / 1e6:.1f} M"
    error = "unknown" if row.error is None else format_percent(row.error)
    name = _text(row.model) + " *" * row.is_average_best
    return name, error, ends, format_percent(row.measured), best, params, f"<code>{_text(hide_paths(row.load))}</code>"


# --- drawings ---------------------------------------------------------------------------------------------------------


def _draw_strip(values: Sequence[float], own: float, *, is_log: bool) -> str:
    """The known tasks on a line, and this one among them."""
    every = np.array([*values, own], dtype=float)
    if is_log:
        every = np.log10(np.maximum(every, 1e-12))
    low, high = (0.0, max(1.0, every.max())) if not is_log else (every.min(), every.max())
    places = 16 + 448 * (every - low) / ((high - low) or 1.0)
    ends = ("0 %", "100 %") if not is_log else (f"{10**low:.2g}", f"{10**high:.2g}")
    dots = "".join(f'<circle class="known" cx="{x:.1f}" cy="26" r="5"/>' for x in places[:-1])
    anchor = "end" if places[-1] > 400 else "start" if places[-1] < 80 else "middle"
    return (
        '<svg viewBox="0 0 480 52" role="img" aria-label="this task among the known tasks">'
        f'<line class="axis" x1="16" x2="464" y1="26" y2="26"/>{dots}'
        f'<circle class="own" cx="{places[-1]:.1f}" cy="26" r="7"/>'
        f'<text class="name" x="{places[-1]:.1f}" y="13" text-anchor="{anchor}">this task</text>'
        f'<text x="16" y="48">{ends[0]}</text><text x="464" y="48" text-anchor="end">{ends[1]}</text></svg>'
    )


def _draw_map(report: "TaskReport") -> str:
    """The known tasks on a plane, the nearest with their ranks, and this one."""
    every = np.array([*(one["place"] for one in report.known), report.place], dtype=float)
    low, span = every.min(0), np.ptp(every, axis=0).max() or 1.0
    points = 20 + 560 * (every - low) / span
    height = float(points[:, 1].max()) + 20
    ranks = {one.task: rank for rank, one in enumerate(report.neighbours, 1) if one.origin == "bundled"}
    marks = []
    for one, (x, y) in zip(report.known, points[:-1], strict=True):
        rank, name = ranks.get(one["task"]), _text(one["task"])
        kind, radius = ("near", 8) if rank else ("known", 5)
        marks.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"><title>{name}</title></circle>')
        marks += [f'<text class="rank" x="{x:.1f}" y="{y + 4:.1f}">{rank}</text>'] if rank else []
    members: dict[str, list[int]] = {}
    for number, one in enumerate(report.known):
        members.setdefault(one["dataset"] or "", []).append(number)
    for name, numbers in members.items():
        if name and len(numbers) >= _FEWEST_NAMED:
            x, y = points[numbers, 0].mean(), points[numbers, 1].min() - 12
            marks.append(f'<text x="{x:.1f}" y="{max(y, 12):.1f}" text-anchor="middle">{_text(name)}</text>')
    x, y = points[-1]
    marks.append(f'<circle class="own" cx="{x:.1f}" cy="{y:.1f}" r="9"/>')
    x, y, name = min(x + 12, 440), max(y - 10, 12), _text(report.task.name[:40])
    marks.append(f'<text class="name" x="{x:.1f}" y="{y:.1f}">{name}</text>')
    drawing = f'<svg viewBox="0 0 600 {height:.0f}" role="img" aria-label="map of tasks">{"".join(marks)}</svg>'
    return f'{drawing}<p class="quiet">Tasks that are close are similar; numbers are the ranks above.</p>'
