"""Which columns of a Hugging Face dataset are the images and the labels, and what the labels say."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from task2vec.errors import DataError, UsageError
from task2vec.tasks.check import quote
from task2vec.tasks.class_names import settle_classes
from task2vec.tasks.regression import refuse_regression

TEXT = ("string", "large_string")
Labels = tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]


def find_columns(
    hf: Any, features: Any, image_column: str | None, label_columns: str | Sequence[str] | None
) -> tuple[str, list[str]]:
    """The image column and the label columns: those named, else the only ones whose type says so."""
    wanted = [label_columns] if isinstance(label_columns, str) else None if label_columns is None else [*label_columns]
    named = [*([] if image_column is None else [image_column]), *(wanted or [])]
    missing = [column for column in named if column not in features]
    if missing or len(set(named)) < len(named) or wanted == []:
        what = f"there is no column {quote(missing)}" if missing else "a column is named twice, or no label column"
        raise UsageError(f"{what}; the columns are {_show(features)}. Name image_column and label_columns, each once.")
    if image_column is not None:
        chosen = image_column
    else:
        found = [column for column, kind in features.items() if isinstance(kind, hf.Image)]
        if len(found) != 1:
            what = f"several columns hold images ({quote(found)})" if found else "no column is of the type Image"
            raise UsageError(
                f"{what}, so it is not known which one is meant; the columns are {_show(features)}. "
                "Pass image_column=..."
            )
        chosen = found[0]
    return chosen, _find_labels(hf, features) if wanted is None else wanted


def read_labels(hf: Any, table: Any, columns: list[str]) -> Labels:
    """Targets, class names and warnings of the label columns of all rows."""
    for column in columns:
        if _is_value(hf, table.features[column], "float", "double", "decimal"):
            refuse_regression(f"column {column!r}")
    if len(columns) > 1:
        return _read_binary(hf, table, columns)
    column, kind = columns[0], table.features[columns[0]]
    is_list = _is_list(hf, kind) and isinstance(kind.feature, hf.ClassLabel)
    if not (is_list or isinstance(kind, hf.ClassLabel) or _is_value(hf, kind, "bool", "int", "uint", *TEXT)):
        raise DataError(
            f"column {column!r} is {kind}, which names no class. Pass label_columns=... with a column of class labels, "
            "whole numbers or text, or several of 0 and 1; cast lists of class numbers to List(ClassLabel(...))."
        )
    values = table.select_columns(columns)[:][column]
    if is_list:
        return _read_lists(column, values, kind.feature)
    names = kind if isinstance(kind, hf.ClassLabel) else None
    cells = [_check(column, row, value, names) for row, value in enumerate(values)]
    if names is not None or _is_value(hf, kind, "bool"):
        called = (f"not {column}", column) if names is None else names.names
        return settle_classes(np.asarray(cells, dtype=np.int64), called, None, _row)
    kinds = sorted(set(cells))
    number = {value: index for index, value in enumerate(kinds)}
    return np.asarray([number[cell] for cell in cells], dtype=np.int64), tuple(map(str, kinds)), ()


def _find_labels(hf: Any, features: Any) -> list[str]:
    """The label columns that the types alone leave no choice about."""
    single = [[column] for column, kind in features.items() if isinstance(kind, hf.ClassLabel)]
    lists = [
        [column] for column, kind in features.items() if _is_list(hf, kind) and isinstance(kind.feature, hf.ClassLabel)
    ]
    flags = [column for column, kind in features.items() if _is_value(hf, kind, "bool")]
    candidates = [*single, *lists, *([flags] if flags else [])]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        shown = "; or ".join(quote(columns) for columns in candidates)
        raise UsageError(
            f"several columns may be the labels ({shown}), and each makes another task. Pass the one that you mean: "
            f"label_columns={candidates[0][0]!r}."
        )
    rest = {column: kind for column, kind in features.items() if not isinstance(kind, hf.Image)}
    if len(rest) == 1 and _is_value(hf, next(iter(rest.values())), "float", "double", "decimal"):
        refuse_regression(f"column {next(iter(rest))!r}")
    raise UsageError(
        f"no column is of the type ClassLabel, so the labels are not known; the columns are {_show(features)}. "
        "Pass label_columns=..."
    )


def _read_lists(column: str, values: list, kind: Any) -> Labels:
    """Lists of class numbers as rows of 0 and 1; classes that no row has are left out."""
    targets = np.zeros((len(values), len(kind.names)), dtype=np.uint8)
    for row, numbers in enumerate(values):
        targets[row, [_check(column, row, number, kind) for number in _check(column, row, numbers)]] = 1
    present = np.flatnonzero(targets.any(axis=0))
    absent = [name for number, name in enumerate(kind.names) if number not in set(present.tolist())]
    remarks = (f"classes without an item, left out: {quote(absent)}",) if absent and len(values) else ()
    return targets[:, present], tuple(kind.names[number] for number in present), remarks


def _read_binary(hf: Any, table: Any, columns: list[str]) -> Labels:
    """Several columns of 0 and 1 as a multi-label task of their names."""
    targets = np.zeros((len(table), len(columns)), dtype=np.uint8)
    for place, column in enumerate(columns):
        values = table.select_columns([column])[:][column]
        for row, value in enumerate(values):
            if value not in (0, 1) or isinstance(value, float):
                raise DataError(
                    f"column {column!r}, row {row}: {value!r} is not 0 or 1, as several label columns must be: nothing "
                    "else says yes or no. For one class per image pass that column alone as label_columns."
                )
        targets[:, place] = values
    return targets, tuple(columns), ()


def _check(column: str, row: int, value: Any, kind: Any = None) -> Any:
    """The value of a label cell, which must be there and, for class labels, one of the classes."""
    if value is None or value == "" or (kind is not None and value == -1):
        why = "is missing"
    elif kind is not None and not 0 <= value < len(kind.names):
        why = f"is none of the {len(kind.names)} classes"
    else:
        why = ""
    if why:
        raise DataError(
            f"column {column!r}, row {row}: the label {value!r} {why}, and guessing one would change the task. Test "
            "splits are often published without labels: take another split, or filter such rows out."
        )
    return value


def _is_value(hf: Any, kind: Any, *types: str) -> bool:
    """Whether a feature is a plain value of a type that begins like one of `types`."""
    return isinstance(kind, hf.Value) and kind.dtype.startswith(types)


def _is_list(hf: Any, kind: Any) -> bool:
    """Whether a feature is a list of one kind, under any of the names that `datasets` has had for it."""
    return isinstance(kind, (hf.Sequence, hf.LargeList))


def _show(features: Any) -> str:
    """The columns with their types."""
    return ", ".join(f"{column!r} ({str(kind)[:40]})" for column, kind in features.items())


def _row(row: int) -> str:
    return f"row {row}"
