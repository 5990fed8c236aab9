"""A recommendation: which expert to start from, what error to expect, and how sure that is."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from task2vec.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Recommended:
    """One expert of a recommendation; errors, chances and gains are shares, None stands for what is not known.

    Attributes:
        rank: its place, the best being 1.
        expert: its name.
        error: its test error on the task as far as can be told: predicted, and moved by all that was measured there.
        low: lower end of an interval that should hold the error in nine of ten cases.
        high: upper end of it.
        chance: of being the best among those that can be loaded.
        measured: its error on the task as it was measured, the mean over the splits; `error` is the better guess.
        measured_low: lower end of the interval of that.
        measured_high: upper end of it.
        splits: how many it was measured on.
        gain: how much lower its error is than that of the static choice.
        lesson: what it was taught beyond its pretraining.
        distance: symmetric distance of the task from that lesson.
        nearest: the nearest task that its error is known on.
        nearest_distance: symmetric distance of the task from that.
        parameters: how many weights it has.
        cost: of one image, in billions of multiplications.
        seconds: that it takes for 1,000 images on this machine, where that was asked for.
        is_here: whether its weights are on this machine.
        is_static: whether it is the static choice: the best on average over all that is known.
        load: the line of code that loads it, or how to train one like it.
        why: what speaks for it, in words.
    """

    rank: int
    expert: str
    error: float | None
    low: float | None
    high: float | None
    chance: float | None = None
    measured: float | None = None
    measured_low: float | None = None
    measured_high: float | None = None
    splits: int = 0
    gain: float | None = None
    lesson: str | None = None
    distance: float | None = None
    nearest: str | None = None
    nearest_distance: float | None = None
    parameters: int | None = None
    cost: float | None = None
    seconds: float | None = None
    is_here: bool = False
    is_static: bool = False
    load: str = ""
    why: str = ""

    @property
    def best_guess(self) -> float | None:
        """Its error as it is predicted, or else as it was measured."""
        return self.measured if self.error is None else self.error


@dataclass(frozen=True, repr=False)
class Recommendation:
    """Experts for a task, the best first; print it to see a table.

    Attributes:
        task: name of the task.
        choice: the expert to start from.
        verdict: why, in words; where the evidence does not beat the static choice, it says so.
        is_sure: whether there is reason to leave the static choice.
        static: the static choice: the best on average over all that is known.
        rows: experts that can be loaded.
        others: experts whose errors are known but whose weights nobody has: what training one would be worth.
        neighbours: names and symmetric distances of the nearest tasks that are known.
        regime: what the errors were trained on: "half" of the images, or so many of each class.
        protocol: how the errors were measured, word for word.
        strategy: by which they are predicted.
        probe: that the task was embedded with, in words.
        known: what is known, in words.
        images: of the task.
        classes: of the task.
        notes: what should be known before it is believed.
        seconds: what it took, reading and embedding apart.
    """

    task: str
    choice: str
    verdict: str
    is_sure: bool
    static: str
    rows: tuple[Recommended, ...]
    others: tuple[Recommended, ...] = ()
    neighbours: tuple[tuple[str, float], ...] = ()
    regime: str = "half"
    protocol: str = ""
    strategy: str = ""
    probe: str = ""
    known: str = ""
    images: int | None = None
    classes: int | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def __repr__(self) -> str:
        """The recommendation in one line."""
        sure = "" if self.is_sure else ", no evidence beyond the static choice"
        return f"Recommendation({self.task}: {self.choice}, {len(self.rows)} candidates{sure})"

    def __str__(self) -> str:
        """The table, as wide as the terminal."""
        from rich.console import Console

        return self.to_text(width=Console().width)

    def __len__(self) -> int:
        """How many experts can be loaded."""
        return len(self.rows)

    def __getitem__(self, expert: str) -> Recommended:
        """The row of an expert."""
        for row in (*self.rows, *self.others):
            if row.expert == expert:
                return row
        raise KeyError(f"'{expert}' is not among the candidates: {', '.join(row.expert for row in self.rows)}")

    def to_text(self, *, width: int = 100, limit: int | None = 10) -> str:
        """The table as text of so many columns, with so many rows at most; None shows all."""
        from task2vec.select.recommendation.wording import word_recommendation

        return word_recommendation(self, width=width, limit=limit)

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self)

    def to_csv(self, path: str | Path) -> Path:
        """Writes one line for every expert, and returns the path."""
        from task2vec.storage import write_whole
        from task2vec.text import escape_formula

        text = io.StringIO()
        names = [field.name for field in fields(Recommended)]
        table = csv.DictWriter(text, [*names, "is_loadable"], lineterminator="\n")
        table.writeheader()
        for row in self._list_rows():
            table.writerow(
                {name: escape_formula(value) if isinstance(value, str) else value for name, value in row.items()}
            )
        write_whole(Path(path), text.getvalue().encode())
        return Path(path)

    def to_pandas(self) -> "pandas.DataFrame":
        """One row for every expert."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError(
                "pandas is not installed, so there is no table of its kind. Install it: pip install pandas; or take "
                "`rows`, which are plain values."
            ) from error
        return pandas.DataFrame(self._list_rows())

    def _list_rows(self) -> list[dict[str, Any]]:
        told: Sequence[tuple[tuple[Recommended, ...], bool]] = ((self.rows, True), (self.others, False))
        return [asdict(row) | {"is_loadable": is_loadable} for rows, is_loadable in told for row in rows]
