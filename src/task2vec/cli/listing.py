"""Tasks as a table that fits the page: names are not broken, and columns are left out before they are squeezed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from task2vec.cli.speech import open_page, visible

# A longer word is broken; it would leave no room for anything else.
LONGEST_WORD = 24
GAP = 2
# What goes first where room is short; splits become one column of all images.
LEFT_OUT_IN_TURN = ("group", "kind", "splits", "positive", "classes")


@dataclass(frozen=True)
class Column:
    """A heading, its cells, and what it belongs to: words that may wrap, or numbers that may not."""

    head: str
    cells: tuple[str, ...]
    part: str
    is_number: bool = False

    @property
    def least(self) -> int:
        """The fewest cells of a terminal that it can be shown in."""
        from rich.cells import cell_len

        cells = (self.head, *self.cells)
        if self.is_number:
            return max(map(cell_len, cells))
        return min(max(cell_len(word) for cell in cells for word in cell.split() or [cell]), LONGEST_WORD)


def print_rows(rows: Sequence[dict[str, Any]], *, head: str = "task") -> None:
    """The tasks as a table, and below it the columns for which there was no room."""
    print_columns(make_columns(rows, head=head))


def print_columns(columns: list[Column], *, in_turn: Sequence[str] = LEFT_OUT_IN_TURN) -> None:
    """The columns that fit the page, and below them the headings of the others; `in_turn` says which parts go first."""
    page = open_page()
    columns, left_out = fit(columns, page.width, in_turn=in_turn)
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="")
    for column in columns:
        justify, is_whole = ("right", True) if column.is_number else ("left", False)
        table.add_column(column.head, justify=justify, no_wrap=is_whole, overflow="fold", min_width=column.least)
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*cells)
    page.print(table)
    if left_out:
        page.print(f"no room for {', '.join(left_out)}: a wider terminal shows all, --json lists all")


def make_columns(rows: Sequence[dict[str, Any]], *, head: str) -> list[Column]:
    """All that is known of the tasks, column by column; what no task has is no column."""
    splits = list(dict.fromkeys(split for row in rows for split in row["images"]))
    columns = [Column(head, tuple(visible(row["name"]) for row in rows), "name")]
    for word in ("kind", "group"):
        if any(row[word] for row in rows):
            columns.append(Column(word, tuple(visible(row[word]) for row in rows), word))
    columns.append(Column("classes", tuple(str(row["classes"]) for row in rows), "classes", is_number=True))
    for split in splits:
        cells = tuple(str(row["images"].get(split, "-")) for row in rows)
        columns.append(Column("images" if split == "all" else visible(split), cells, "splits", is_number=True))
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
