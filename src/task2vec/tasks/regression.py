"""Targets that are measured and not named: not supported yet, and said so in one way wherever they come from."""

from typing import NoReturn

from task2vec.errors import DataError


def refuse_regression(what: str, *, example: str = "") -> NoReturn:
    """Raise the `DataError` for labels that are decimal numbers.

    Example:
        >>> refuse_regression("column 'age'", example="37.5")
        Traceback (most recent call last):
        task2vec.errors.DataError: column 'age' holds decimal numbers (such as 37.5): a regression target, ...
    """
    raise DataError(
        f"{what} holds decimal numbers{f' (such as {example})' if example else ''}: a regression target, and "
        "regression is not supported yet, while every number as a class of its own would make no sense. Bin it into "
        "classes first (numpy.digitize(values, edges)), or write class numbers as integers."
    )
