"""Words for counts and shares, and names of strangers made safe to print."""

import unicodedata
from collections.abc import Sequence

# Joiners and variation selectors make up emoji and several scripts; they move nothing on a terminal.
_KEPT = {"\u200c", "\u200d", "\ufe0f"}
_HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def pluralize(count: int, noun: str) -> str:
    """The count with its noun, in the plural unless it is one.

    Example:
        >>> pluralize(1, "image"), pluralize(3, "class")
        ('1 image', '3 classes')
    """
    return f"{count} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


def format_percent(share: float | None) -> str:
    """A share as a percentage with one decimal; a dash where there is none."""
    return "-" if share is None else f"{100 * share:.1f} %"


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


def escape_formula(cell: str) -> str:
    """A cell of a CSV file that no spreadsheet evaluates as a formula.

    Example:
        >>> escape_formula("cats"), escape_formula("=cmd()")
        ('cats', "'=cmd()")
    """
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def quote(names: Sequence[str], at_most: int = 5) -> str:
    """Names with quotation marks, spaces and line breaks visible, cut after a few.

    Example:
        >>> quote(["cat", "dog", "owl"], 2)
        "'cat', 'dog' and 1 more"
    """
    shown = ", ".join(repr(name) for name in names[:at_most])
    return shown if len(names) <= at_most else f"{shown} and {len(names) - at_most} more"
