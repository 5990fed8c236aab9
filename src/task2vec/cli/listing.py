"""Tasks as a table that fits the page: names are not broken, and columns are left out before they are squeezed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from task2vec.cli.speech import find_table_width, open_page
from task2vec.text import printable

# A longer word is broken; it would leave no room for anything else.
LONGEST_WORD = 24
GAP = 2
# What goes first where room is short; splits become one column of all images.
LEFT_OUT_IN_TURN = ("group", "kind", "splits", "positive", "classes")


@dataclass(frozen=True)
class Column:
    """A heading, its cells, and what it belongs to: words that may wrap, names that may if long, or numbers.

    `room` is what a name is given at least, where it is longer.
    """

    head: str
    cells: tuple[str, ...]
    part: str
    is_number: bool = False
    is_name: bool = False
    room: int = LONGEST_WORD

    @cached_property
    def least(self) -> int:
        """The fewest cells of a terminal that it can be shown in."""
        from rich.cells import cell_len

        cells = (self.head, *self.cells)
        if self.is_number:
            return self.most
        if self.is_name:
            return min(self.most, self.room)
        return min(max(cell_len(word) for cell in cells for word in cell.split() or [cell]), LONGEST_WORD)

    @cached_property
    def most(self) -> int:
        """How wide it is where there is room."""
        from rich.cells import cell_len

        return max(map(cell_len, (self.head, *self.cells)))


def print_rows(rows: Sequence[dict[str, Any]], *, head: str = "task") -> None:
    """The tasks as a table, and below it the columns for which there was no room."""
    print_columns(make_columns(rows, head=head))


def print_columns(columns: list[Column], *, in_turn: Sequence[str] = LEFT_OUT_IN_TURN) -> None:
    """The columns that fit the page, and below them the headings of the others; `in_turn` says which parts go first."""
    page, room = open_page(), find_table_width()
    columns, left_out = fit(columns, room, in_turn=in_turn)
    widths = share_out(columns, room)
    heads = tuple(column.head for column in columns)
    dots = "…" if page.encoding.startswith("utf") else "..."
    # A table of rich's would take a second for every five hundred rows.
    for cells in (heads, *zip(*(column.cells for column in columns), strict=True)):
        parts = [
            _shorten(cell, width, dots) if column.is_name else _fold(cell, width)
            for cell, width, column in zip(cells, widths, columns, strict=True)
        ]
        for line in range(max(map(len, parts))):
            row = [part[line] if line < len(part) else "" for part in parts]
            print((" " * GAP).join(map(_pad, row, widths, columns)).rstrip())
    if left_out:
        page.print(f"no room for {', '.join(left_out)}: a wider terminal shows all, --json lists all")


def share_out(columns: Sequence[Column], width: int) -> list[int]:
    """How wide each column is: as wide as its cells, or where that is too much, the widest words give way first.

    Example:
        >>> share_out(
        ...     [Column("task", ("a name of many words",), "name"), Column("n", ("12",), "n", is_number=True)], 16
        ... )
        [12, 2]
    """
    widths = [column.most for column in columns]
    while sum(widths) + GAP * (len(columns) - 1) > width:
        spare = [wide - column.least for wide, column in zip(widths, columns, strict=True)]
        if max(spare) <= 0:
            break
        widest = max((wide, place) for place, wide in enumerate(widths) if spare[place] > 0)[1]
        widths[widest] -= 1
    return widths


def _fold(cell: str, width: int) -> list[str]:
    """The cell in lines that are not wider; words stay whole where they can."""
    from rich.cells import cell_len, chop_cells

    if cell_len(cell) <= width:
        return [cell]
    lines = [""]
    for word in cell.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(joined) <= width:
            lines[-1] = joined
        else:
            pieces = chop_cells(word, width)
            lines = [*lines, *pieces] if lines[-1] else pieces
    return lines


def _shorten(name: str, width: int, dots: str) -> list[str]:
    """The name in two lines at most: of a longer one its beginning and its end."""
    from rich.cells import cell_len, chop_cells

    lines = _fold(name, width)
    if len(lines) <= 2:
        return lines
    start, *_ = chop_cells(name, max(width - cell_len(dots), 1))
    end, *_ = chop_cells(name[::-1], width)
    return [start + dots, end[::-1]]


def _pad(cell: str, width: int, column: Column) -> str:
    from rich.cells import cell_len

    room = " " * (width - cell_len(cell))
    return room + cell if column.is_number else cell + room


def make_columns(rows: Sequence[dict[str, Any]], *, head: str) -> list[Column]:
    """All that is known of the tasks, column by column; what no task has is no column."""
    splits = list(dict.fromkeys(split for row in rows for split in row["images"]))
    columns = [Column(head, tuple(printable(row["name"]) for row in rows), "name")]
    for word in ("kind", "group"):
        if any(row[word] for row in rows):
            columns.append(Column(word, tuple(printable(row[word]) for row in rows), word))
    columns.append(Column("classes", tuple(str(row["classes"]) for row in rows), "classes", is_number=True))
    for split in splits:
        cells = tuple(str(row["images"].get(split, "-")) for row in rows)
        columns.append(Column("images" if split == "all" else printable(split), cells, "splits", is_number=True))
    if any(row["positives"] for row in rows):
        cells = tuple(str(sum(row["positives"].values())) if row["positives"] else "-" for row in rows)
        columns.append(Column("positive", cells, "positive", is_number=True))
    return columns


def fit(
    columns: list[Column], width: int, *, in_turn: Sequence[str] = LEFT_OUT_IN_TURN
) -> tuple[list[Column], list[str]]:
    """The columns that fit into the width, and the headings of the others.

    Example:
        >>> names = Column("task", ("Charadriiformes",), "name")
        >>> kinds = Column("kind", ("order",), "kind")
        >>> splits = [Column(split, ("12",), "splits", is_number=True) for split in ("train", "test")]
        >>> found, left_out = fit([names, kinds, *splits], 26)
        >>> [(column.head, column.cells) for column in found], left_out
        ([('task', ('Charadriiformes',)), ('images', ('24',))], ['kind', 'train', 'test'])
    """
    left_out: list[str] = []
    for part in in_turn:
        if sum(column.least + GAP for column in columns) - GAP <= width:
            break
        gone = [column for column in columns if column.part == part]
        if part == "splits" and len(gone) > 1:
            place = columns.index(gone[0])
            columns = [*columns[:place], _add_up(gone), *columns[place:]]
        elif part == "splits":
            continue
        columns = [column for column in columns if column not in gone]
        left_out += [column.head for column in gone]
    return columns, left_out


def _add_up(columns: Sequence[Column]) -> Column:
    """One column of the images of all splits."""
    rows = zip(*(column.cells for column in columns), strict=True)
    cells = tuple(str(sum(int(cell) for cell in row if cell != "-")) for row in rows)
    return Column("images", cells, "splits", is_number=True)
