"""A recommendation as text that fits the page: the answer first, then the table, then what to know about it."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from task2vec.select.recommendation import Recommendation, Recommended
from task2vec.text import printable

GAP = 2
# The fewest cells that the name of an expert is shown in, and the narrowest page.
_NAME, _PAGE = 16, 30
# Joiners belong to how Persian and emoji are written, so they stay.
_KEPT = "\u200c\u200d"


def word_recommendation(told: Recommendation, *, width: int, limit: int | None) -> str:
    """The whole recommendation in lines of so many columns."""
    width = max(width, _PAGE)
    parts = [_fold(_word_head(told), width), _fold(f"{told.verdict}", width)]
    chosen = next((row for row in told.rows if row.expert == told.choice), None)
    if chosen is not None:
        parts[-1] += f"\n\n    {printable(chosen.load)}"
    if told.rows:
        parts.append(_draw(told.rows, width, limit, _list_columns(told.rows)))
    if told.others:
        parts.append(_word_others(told, width))
    parts += [_fold(note, width) for note in told.notes]
    return "\n\n".join(parts) + "\n"


def _word_head(told: Recommendation) -> str:
    counts = []
    if told.images is not None:
        counts.append(f"{told.images} image{'s' * (told.images != 1)}")
    if told.classes is not None:
        counts.append(f"{told.classes} class{'es' * (told.classes != 1)}")
    what = f"{told.task}{': ' + ', '.join(counts) if counts else ''}"
    near = ", ".join(f"{name} ({distance:.2f})" for name, distance in told.neighbours[:3])
    regime = "half of the images" if told.regime == "half" else f"{told.regime} images per class"
    lines = [what, f"known: {told.known}", f"errors: of a linear classifier trained on {regime}"]
    return "\n".join([*lines, *([f"nearest known tasks: {near}"] if near else [])])


def _word_others(told: Recommendation, width: int) -> str:
    """What experts would be worth that nobody has the weights of."""
    head = (
        "Not to be had, but to be trained: what experts fine-tuned on other data would be predicted to reach. The "
        "figures are known, the weights are not published."
    )
    table = _draw(told.others, width, 3, _list_columns(told.others, is_loadable=False))
    first = told.others[0]
    mend = f"An expert like the first: train it on data like '{first.lesson or first.expert}': "
    command = first.load.removeprefix("train it: ")
    return f"{_fold(head, width)}\n\n{table}\n\n{_fold(mend, width)}\n    {printable(command)}"


@dataclass(frozen=True)
class _Column:
    """A heading, its cells, and how readily it is left out: the higher, the sooner; 0 never is."""

    head: str
    cells: tuple[str, ...]
    readiness: int
    is_number: bool = True


def _list_columns(rows: Sequence[Recommended], *, is_loadable: bool = True) -> list[_Column]:
    """All that is known of the experts, column by column; what none has is no column."""

    def column(head: str, word: Callable[[Recommended], str], readiness: int, *, is_number: bool = True) -> _Column:
        return _Column(head, tuple(word(row) for row in rows), readiness, is_number)

    is_measured = any(row.measured is not None for row in rows)
    columns = [
        column("", lambda row: str(row.rank), 4),
        column("expert", lambda row: printable(row.expert) + " *" * row.is_static, 0, is_number=False),
    ]
    if is_measured:
        columns.append(column("measured", lambda row: _percent(row.measured), 0))
    columns += [
        column("expected" if is_measured else "predicted", lambda row: _percent(row.error), 0),
        column("interval", lambda row: _span(row.low, row.high), 5 if is_measured else 1),
        column("best", lambda row: _percent(row.chance, digits=0), 6),
        column("gain", lambda row: "-" if row.gain is None else f"{100 * row.gain:+.1f}".replace("-0.0", "+0.0"), 3),
        column("lesson", lambda row: "-" if row.distance is None else f"{row.distance:.2f}", 8),
        column("weights", lambda row: _count(row.parameters), 9),
        column("s/1,000", lambda row: "-" if row.seconds is None else f"{row.seconds:.1f}", 7),
    ]
    if len({row.nearest for row in rows}) > 1:
        columns.append(column("nearest", lambda row: _word_nearest(row), 10, is_number=False))
    if is_loadable:
        columns.append(column("load", lambda row: printable(row.load), 11, is_number=False))
    return [one for one in columns if one.readiness == 0 or any(cell not in ("", "-") for cell in one.cells)]


def _draw(rows: Sequence[Recommended], width: int, limit: int | None, columns: list[_Column]) -> str:
    """The table; columns for which there is no room are left out, then names are shortened."""
    from rich.cells import cell_len

    shown = len(rows) if limit is None else min(limit, len(rows))
    columns = [_Column(one.head, one.cells[:shown], one.readiness, one.is_number) for one in columns]

    def wide(one: _Column) -> int:
        return max(map(cell_len, (one.head, *one.cells)))

    def least(one: _Column) -> int:
        return min(wide(one), _NAME) if one.head == "expert" else wide(one)

    while sum(map(least, columns)) + GAP * (len(columns) - 1) > width:
        ready = max(columns, key=lambda one: one.readiness)
        if ready.readiness == 0:
            break
        columns.remove(ready)
    widths = [wide(one) for one in columns]
    spare = width - sum(widths) - GAP * (len(columns) - 1)
    lines = []
    for cells in ((one.head for one in columns), *zip(*(one.cells for one in columns), strict=True)):
        parts = []
        for cell, own, column in zip(cells, widths, columns, strict=True):
            room = max(own + min(spare, 0), 4) if column.head == "expert" else own
            cell = _shorten(cell, room) if cell_len(cell) > room else cell
            blank = " " * (room - cell_len(cell))
            parts.append(blank + cell if column.is_number else cell + blank)
        lines.append((" " * GAP).join(parts).rstrip())
    more = [f"and {len(rows) - shown} more"] if shown < len(rows) else []
    star = ["* the static choice"] if any(row.is_static for row in rows[:shown]) else []
    return "\n".join([*lines, *more, *star])


def _shorten(name: str, room: int) -> str:
    """The beginning and the end of a name, which is where families of networks differ."""
    from rich.cells import chop_cells

    end = chop_cells(name[::-1], room // 2)[0][::-1]
    start = chop_cells(name, room - room // 2 - 1)[0]
    return f"{start}…{end}"


def _percent(share: float | None, *, digits: int = 1) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def _span(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{100 * low:.0f} to {100 * high:.0f} %"


def _count(parameters: int | None) -> str:
    return "-" if parameters is None else f"{parameters / 1e6:.1f} M"


def _word_nearest(row: Recommended) -> str:
    if row.nearest is None:
        return "-"
    return printable(row.nearest) + ("" if row.nearest_distance is None else f" ({row.nearest_distance:.2f})")


def _fold(text: str, width: int) -> str:
    """The text in lines that are not wider; its own ends of lines stay, and numbers keep their signs."""
    lines = []
    for line in text.split("\n"):
        kept = printable(line).replace(" %", "\N{NO-BREAK SPACE}%")
        lines += [
            part.replace("\N{NO-BREAK SPACE}%", " %") for part in textwrap.wrap(kept, width, break_on_hyphens=False)
        ]
    return "\n".join(lines)
