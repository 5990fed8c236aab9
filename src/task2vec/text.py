"""Counts, shares and tables as text, and untrusted names made safe to print."""

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath

# Joiners and variation selectors make up emoji and several scripts; they move nothing on a terminal.
_KEPT = {"\u200c", "\u200d", "\ufe0f"}
# Blanks between the columns of a table, and what a shortened cell keeps.
_GAP, _LEAST = 2, 12
_HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}

# An absolute path, in quotes or up to the next blank: its last part is the group "last".
_QUOTED = re.compile(r"""(?P<mark>['"])(?:/|[A-Za-z]:[/\\])[^'"\n]*?(?P<last>[^'"/\\\n]+)[/\\]?(?P=mark)""")
_BARE = re.compile(r"""(?<![\w.:/\\-])(?:/|[A-Za-z]:[/\\])(?:[^\s'"/\\]+[/\\])*(?P<last>[^\s'"/\\]+)[/\\]?""")


def pluralize(count: int, noun: str) -> str:
    """The count with its noun, in the plural unless it is one.

    Example:
        >>> pluralize(1, "image"), pluralize(3, "class")
        ('1 image', '3 classes')
    """
    return f"{count} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


def format_percent(share: float | None) -> str:
    """A share as a percentage with one decimal; a dash where there is none."""
    return "-" if share is None else f"{100 * share:.1f}%"


def printable(text: object, *, keep_lines: bool = False) -> str:
    r"""The text with every control character escaped: names of files and classes may contain anything.

    Example:
        >>> printable("cat\x1b[31m\ndog")
        'cat\\x1b[31m\\ndog'
    """
    kept = _KEPT | {"\n"} if keep_lines else _KEPT
    return "".join(
        letter.encode("unicode_escape").decode("ascii")
        if letter not in kept and unicodedata.category(letter) in _HIDDEN_CATEGORIES
        else letter
        for letter in str(text)
    )


def hide_paths(text: str, names: Mapping[str, str] | None = None) -> str:
    """The text with known folders under their public names, and of every other absolute path only the last part.

    Example:
        >>> hide_paths("'/home/ada/photos/cats' is empty", {"/home/ada/photos": "photos"})
        "'photos/cats' is empty"
        >>> hide_paths("cannot read /usr/lib/x.so: see '/etc/my hosts'", {"/": "root"})
        "cannot read x.so: see 'my hosts'"
    """
    for path, name in sorted((names or {}).items(), key=lambda pair: -len(pair[0])):
        if len(PurePath(path).parts) > 1:  # "/" is in every path
            text = re.sub(rf"{re.escape(path)}(?![\w-])", lambda _, name=name: name, text)
    text = _QUOTED.sub(lambda match: match["mark"] + match["last"] + match["mark"], text)
    return _BARE.sub(lambda match: match["last"], text)


def quote(names: Sequence[str], at_most: int = 5) -> str:
    """Names with quotation marks, spaces and line breaks visible, cut after a few.

    Example:
        >>> quote(["cat", "dog", "owl"], 2)
        "'cat', 'dog' and 1 more"
    """
    shown = ", ".join(repr(name) for name in names[:at_most])
    return shown if len(names) <= at_most else f"{shown} and {len(names) - at_most} more"


def format_table(
    rows: Sequence[Mapping[str, str]],
    *,
    width: int = 1_000_000,
    text: Collection[str] = (),
    shorten: Collection[str] = (),
    drop: Sequence[str] = (),
) -> tuple[list[str], list[str]]:
    """Lines of a table that is `width` cells wide at most, where that is possible, and the columns that it lacks.

    Args:
        rows: cells by heading, all with the same headings.
        width: of the page.
        text: columns that are aligned to the left.
        shorten: columns whose cells lose their middle where there is no room, down to 12 cells.
        drop: columns that are left out one by one where there is still none.

    Example:
        >>> lines, _ = format_table([{"model": "resnet34", "error": "9.5%"}], text=["model"])
        >>> lines
        ['model     error', 'resnet34  9.5%']
    """
    from rich.cells import cell_len, set_cell_size

    heads = list(rows[0]) if rows else []
    sizes = {head: max(map(cell_len, (head, *(row[head] for row in rows)))) for head in heads}
    least = {head: min(size, _LEAST) if head in shorten else size for head, size in sizes.items()}
    dropped = []
    for head in drop:
        if head in heads and sum(least[head] + _GAP for head in heads) > width + _GAP:
            heads.remove(head)
            dropped.append(head)
    while sum(sizes[head] + _GAP for head in heads) > width + _GAP:
        spare = [head for head in heads if sizes[head] > least[head]]
        if not spare:
            break
        sizes[max(spare, key=lambda head: sizes[head])] -= 1  # the widest gives way first
    lines = []
    for row in ({head: head for head in heads}, *rows):
        cells = []
        for head in heads:
            cell, size = row[head], sizes[head]
            if cell_len(cell) > size:  # names differ at their beginning and at their end
                end = (size - 1) // 2
                cell = set_cell_size(cell, size - 1 - end) + "…" + set_cell_size(cell[::-1], end)[::-1]
            blank = " " * (size - cell_len(cell))
            cells.append(cell + blank if head in text else blank + cell)
        lines.append((" " * _GAP).join(cells).rstrip())
    return lines, dropped
