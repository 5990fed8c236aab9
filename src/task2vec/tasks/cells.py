"""Strangers' words in tables that we write."""

# A spreadsheet takes a cell that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def defuse(word: str) -> str:
    """The word as a cell that no spreadsheet runs.

    Example:
        >>> defuse("cats"), defuse("=cmd()")
        ('cats', "'=cmd()")
    """
    return f"'{word}" if word.startswith(_FORMULA) else word
