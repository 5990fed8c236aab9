"""A table of distances that knows its tasks: what `pairwise` returns, and what other libraries take as an array."""

import csv
import io
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.errors import DataError, MissingExtraError, ResourceError, UsageError
from task2vec.text import escape_formula

if TYPE_CHECKING:
    from pandas import DataFrame  # pyright: ignore[reportMissingImports]


@dataclass(frozen=True, eq=False, repr=False)
class DistanceMatrix:
    """Distances of tasks (rows) from tasks (columns).

    NumPy, SciPy and scikit-learn take it where they take an array, the latter as metric="precomputed".

    Attributes:
        values: (rows, columns) in float64, read-only.
        rows: names of the tasks; the sources, where the distance has a direction.
        columns: names of the tasks; the targets.
        kind: name of the distance.

    Example:
        >>> import numpy as np
        >>> table = DistanceMatrix(np.array([[0.0, 0.2], [0.2, 0.0]]), ("cats", "dogs"), ("cats", "dogs"), "symmetric")
        >>> table, table.nearest("cats", 1)
        (DistanceMatrix(symmetric, 2 x 2 tasks), [('dogs', 0.2)])
    """

    values: np.ndarray
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    kind: str

    def __post_init__(self):
        """Refuse names that do not fit the numbers, and make the numbers read-only."""
        values = np.array(self.values, dtype=np.float64, order="C")
        object.__setattr__(self, "rows", tuple(self.rows))
        object.__setattr__(self, "columns", tuple(self.columns))
        if values.shape != (len(self.rows), len(self.columns)):
            raise DataError(
                f"a matrix of shape {values.shape} cannot be the distances of {len(self.rows)} from "
                f"{len(self.columns)} tasks: each row and each column needs one name."
            )
        values.setflags(write=False)
        object.__setattr__(self, "values", values)

    def __repr__(self) -> str:
        """The table in one line."""
        return f"DistanceMatrix({self.kind}, {len(self.rows)} x {len(self.columns)} tasks)"

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.rows), len(self.columns)

    @property
    def T(self) -> "DistanceMatrix":
        """Columns as rows."""
        return DistanceMatrix(self.values.T, self.columns, self.rows, self.kind)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The values, for NumPy: a copy unless that is forbidden, since some libraries write into what they get."""
        return np.array(self.values, dtype=dtype, copy=copy is not False)

    def nearest(self, name: str, k: int = 5) -> list[tuple[str, float]]:
        """The `k` columns closest to the row `name`, the closest first; among the rows' own tasks, without itself.

        Ties are in the order of the columns. Where the distance has a direction rows are sources: `.T` asks who serves
        the task called `name`.
        """
        if self.rows.count(name) != 1:
            known = "no row is" if name not in self.rows else "several rows are"
            raise UsageError(
                f"{known} called '{name}' in {self!r}, so it is not clear whose neighbours are meant. "
                f"Rows are: {', '.join(self.rows[:8])}{', ...' if len(self.rows) > 8 else ''}"
            )
        if k < 1:
            raise UsageError(f"k={k} neighbours cannot be listed. Use 1 or more.")
        own = self.rows.index(name)
        row, is_square = self.values[own], self.rows == self.columns
        order = [index for index in np.argsort(row, kind="stable") if not (is_square and index == own)]
        return [(self.columns[index], float(row[index])) for index in order[:k]]

    def to_pandas(self) -> "DataFrame":
        """A data frame with the tasks as index and columns."""
        try:
            from pandas import DataFrame  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingExtraError(
                "a data frame needs pandas, which is not installed here and is no part of task2vec. "
                "Install it: pip install pandas; or use save_csv()"
            ) from error
        return DataFrame(self.values.copy(), index=list(self.rows), columns=list(self.columns))

    def save_csv(self, path: str | Path) -> Path:
        """Writes the table to `path`, whole or not at all, and returns it; the numbers keep all their digits."""
        path = Path(path)
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([self.kind, *map(escape_formula, self.columns)])
        rows = zip(self.rows, self.values.tolist(), strict=True)
        writer.writerows([escape_formula(name), *map(repr, row)] for name, row in rows)
        unfinished = None
        try:
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
                unfinished = file.name
                file.write(text.getvalue().encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except OSError as error:
            if unfinished is not None:
                Path(unfinished).unlink(missing_ok=True)
            raise ResourceError(
                f"cannot write the distances to '{path}': {error.strerror}. Nothing was left behind. Choose another "
                "place."
            ) from error
        return path
