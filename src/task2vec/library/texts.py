"""Texts that come from outside: of a length that can be listed, and made of letters that can be written down."""

import json
from typing import TypeVar

from task2vec.errors import UsageError

LONGEST = 1 << 16  # letters
DEEPEST = 20
LARGEST_NUMBER = 1 << 63  # of an index; whole numbers are below it

Text = TypeVar("Text", str, str | None)


def check_text(value: Text, name: str, *, may_be_none: bool = False) -> Text:
    """The text itself.

    Raises:
        UsageError: It is no text, longer than any name, or has half a letter, as names of files that are not UTF-8 do.

    Example:
        >>> check_text("Vögel", "name")
        'Vögel'
    """
    if value is None and may_be_none:
        return value
    if not isinstance(value, str):
        raise UsageError(f"{name}={value!r} is no text, and could not be listed. Give a text.")
    if len(value) > LONGEST:
        raise UsageError(f"the {name} has {len(value)} letters, and nobody could read it. Give at most {LONGEST}.")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise UsageError(
            f"the {name} {value[:80]!r} has bytes that are no UTF-8, so it cannot be written down. Rename it."
        )
    return value


def write_plain(content: object, name: str) -> str:
    """Plain values as a JSON text, as short and as flat as what people write down.

    Raises:
        UsageError: There is something else in it, a number without end, or lists in lists in lists, which may be too
            deep to be read again.

    Example:
        >>> write_plain({"epochs": 3}, "recipe")
        '{"epochs": 3}'
    """
    try:
        text = json.dumps(content, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"the {name} cannot be written down ({error}). Use texts, finite numbers, lists and dictionaries."
        ) from error
    if len(text) > LONGEST or _measure_depth(content) > DEEPEST:
        raise UsageError(
            f"the {name} has {len(text)} letters, or lists within lists: too much to be listed. Give at most {LONGEST} "
            f"letters, and {DEEPEST} lists within each other."
        )
    return text


def _measure_depth(content: object) -> int:
    """How many lists and dictionaries are within each other."""
    depth, level = 0, [content]
    while level := [inner for one in level for inner in _open(one)]:
        depth += 1
    return depth


def _open(value: object) -> list:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


def check_whole(value: int | None, name: str) -> None:
    """Raises an error if it is neither None nor a whole number that an index can hold."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and -LARGEST_NUMBER <= value < LARGEST_NUMBER
    if value is not None and not is_whole:
        raise UsageError(f"{name}={_show(value)} is no whole number that could be kept. Give one below 2^63.")


def _show(value: object) -> str:
    try:
        return repr(value)[:80]
    except ValueError:  # Python writes no numbers of more than 4,300 digits
        return "a huge number"
