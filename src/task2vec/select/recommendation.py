"""A recommendation: which model to start from, what was measured, and the script that trains it."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from task2vec.errors import UsageError
from task2vec.storage import write_csv
from task2vec.text import format_percent, format_table, pluralize, printable

if TYPE_CHECKING:
    from task2vec.select.candidates import Candidate
    from task2vec.select.decide import Decision
    from task2vec.select.learning_curve import LearningCurve
    from task2vec.select.measure import Measurements
    from task2vec.select.propose import Proposal
    from task2vec.tasks import Task

# The narrowest page, in characters.
MIN_WIDTH = 30
# Columns that are aligned to the left, shortened, and left out if there is no room, the first of them first.
TEXT_COLUMNS, SHORTENED_COLUMNS = ("model", "licence", "pretraining", "why"), ("pretraining", "why")
DROPPED_COLUMNS = ("pretraining", "licence", "GMACs", "seconds", "params", "gap", "why")


@dataclass(frozen=True)
class Row:
    """One model of a recommendation; errors are fractions, and None unless they were measured on this task.

    Attributes:
        rank: its place: models that were measured come first, the lowest error at the top, then those that were not, in
            the order of the proposals, then those that failed.
        model: its name.
        error: its error on images that its classifiers were not trained on.
        low: lower end of the 95% interval of the error.
        high: upper end of it.
        gap: how much higher its error is than the lowest one.
        gap_low: lower end of the 95% interval of the gap, from a paired comparison on the same images.
        gap_high: upper end of it.
        is_tied: whether it cannot be told apart from the model with the lowest error.
        is_choice: whether it is the one to start from.
        images: how many it was measured on.
        seconds: that measuring it took; None if it was not, or was found in the library.
        params: number of parameters.
        gmacs: multiplications for one image, in billions.
        size: side of the images in pixels.
        license: of its weights; "unknown" if that is not stated.
        pretraining: the data, and the method, that it was pretrained with.
        is_here: whether its weights are on this machine.
        location: what loads it: "timm:NAME", "torchvision:NAME" or the file of an expert; None for a module.
        load: the line of Python that loads it.
        reason: why it is proposed.
        failure: why it could not be measured; empty if it could, or was not tried.
    """

    rank: int
    model: str
    error: float | None = None
    low: float | None = None
    high: float | None = None
    gap: float | None = None
    gap_low: float | None = None
    gap_high: float | None = None
    is_tied: bool = False
    is_choice: bool = False
    images: int | None = None
    seconds: float | None = None
    params: int | None = None
    gmacs: float | None = None
    size: int | None = None
    license: str = "unknown"
    pretraining: str = ""
    is_here: bool = False
    location: str | None = None
    load: str = ""
    reason: str = ""
    failure: str = ""


@dataclass(frozen=True, repr=False)
class Recommendation:
    """Models for a task, the best first; print it to see a table.

    Attributes:
        task: name of the task.
        rows: all candidates.
        choice: the model to start from; None if nothing could be measured.
        tie: the models that cannot be told apart from the one with the lowest error, which is one of them.
        verdict: the choice and its reason, in words.
        notes: what else is to be known, a sentence or two each.
        images: of the task.
        classes: of the task.
        measured_images: images that all models were compared on: all, or a sample; None if nothing was measured.
        images_needed: about how many images would tell the first two models apart, if they tie; None if unknown.
        learning_curve: errors of the choice with fewer training images; None if it was not measured.
        prefer: what decides a tie: "cheapest" or "error".
        strategy: that ordered the models where nothing was measured; None if something was to be measured.
        neighbours: names and symmetric distances of the nearest known tasks, if the task was embedded.
        budget: seconds that measuring might take; None for no limit.
        seconds: that it took.
        is_interrupted: whether measuring was interrupted; what was measured until then is used.
        data: the task itself, for `script`.
    """

    task: str
    rows: tuple[Row, ...]
    choice: str | None
    tie: tuple[str, ...] = ()
    verdict: str = ""
    notes: tuple[str, ...] = ()
    images: int | None = None
    classes: int | None = None
    measured_images: int | None = None
    images_needed: int | None = None
    learning_curve: "LearningCurve | None" = None
    prefer: str = "cheapest"
    strategy: str | None = None
    neighbours: tuple[tuple[str, float], ...] = ()
    budget: float | None = None
    seconds: float = 0.0
    is_interrupted: bool = False
    data: "Task | None" = field(default=None, compare=False)

    def __repr__(self) -> str:
        """The recommendation in one line."""
        count = len(self.measured)
        counts = f"{count} of {pluralize(len(self.rows), 'model')} measured"
        return f"Recommendation({self.task}: {self.choice or 'no model measured'}, {counts})"

    def __str__(self) -> str:
        """The table, as wide as the terminal."""
        from rich.console import Console

        return self.to_text(width=Console().width)

    def __iter__(self) -> Iterator[str]:
        """The names of the candidates, the best first."""
        return (row.model for row in self.rows)

    def __getitem__(self, model: str) -> Row:
        """The row of a model."""
        return {row.model: row for row in self.rows}[model]

    @property
    def measured(self) -> tuple[Row, ...]:
        """The rows of models whose error on this task was measured."""
        return tuple(row for row in self.rows if row.error is not None)

    @property
    def failures(self) -> tuple[Row, ...]:
        """The rows of models that could not be measured."""
        return tuple(row for row in self.rows if row.failure)

    def to_text(self, *, width: int = 100, limit: int | None = None) -> str:
        """The table as text of so many columns, with so many models at most; None shows all."""
        width = max(width, MIN_WIDTH)
        blocks = [_fold(self._format_head(), width), _fold(self.verdict, width)]
        if self.choice is not None and self[self.choice].load:
            blocks.append(f"    {printable(self[self.choice].load)}")
        if self.rows:
            blocks.append(self._format_rows(width, limit))
        if self.learning_curve is not None:
            blocks.append(_fold(f"{self.choice}: {format_curve(self.learning_curve)}", width))
        failures = [f"{row.model} could not be measured: {row.failure}" for row in self.failures]
        return "\n\n".join([*blocks, *(_fold(note, width) for note in (*failures, *self.notes))]) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, without the images."""
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "data"}
        curve = None if self.learning_curve is None else asdict(self.learning_curve)
        return plain | {"rows": [asdict(row) for row in self.rows], "learning_curve": curve}

    def to_csv(self, path: str | Path) -> Path:
        """Writes one line for every model, and returns the path."""
        return write_csv(path, [asdict(row) for row in self.rows], [field.name for field in fields(Row)])

    def script(self, path: str | Path, *, whole_network: bool = False, model: str | None = None) -> Path:
        """Writes a program of timm and torch that trains the chosen model (or another) on this dataset.

        It trains a linear classifier on the features of the network, prints its error on images that it was not trained
        on, and saves the weights; with `whole_network`, it then fine-tunes all weights. It needs no task2vec.

        Raises:
            UsageError: There is no model to train, or the program could not load it or read the images.
        """
        from task2vec.select.script import write_script

        name = model or self.choice
        if name is None or self.data is None:
            raise UsageError(
                "there is no model to write a script (--script) for: nothing was measured, or images were not given. "
                "Pass a folder or a table and leave out --no-measure; or name a model: script(PATH, model=NAME)"
            )
        row = self[name]
        about = {"model": name, "location": row.location, "size": row.size, "whole_network": whole_network}
        measured = "" if row.error is None else format_interval(row)
        return write_script(Path(path), self.data, **about, measured=measured)

    def _format_head(self) -> str:
        counts = [(self.images, "image"), (self.classes, "class")]
        words = ", ".join(pluralize(count, noun) for count, noun in counts if count is not None)
        lines = [f"{self.task}: {words}" if words else self.task]
        if self.measured:
            sample = self.measured_images if self.measured_images not in (None, self.images) else None
            images = "" if sample is None else f" on {sample} of the images"
            limit = "" if self.budget is None else f" (budget: {self.budget:g} s)"
            among = f"{len(self.measured)} of {pluralize(len(self.rows), 'model')}"
            before = sum(row.seconds is None for row in self.measured)
            among += f" ({before} of them before)" if before else ""
            lines.append(f"measured: {among}{images} in {self.seconds:.1f} s{limit}")
        if self.neighbours:
            near = ", ".join(f"{name} ({distance:.2f})" for name, distance in self.neighbours[:3])
            lines.append(f"nearest known tasks: {near}")
        return "\n".join(lines)

    def _format_rows(self, width: int, limit: int | None) -> str:
        """The table of the models; columns without room are left out, then names are shortened."""
        cells = [_list_cells(row) for row in self.rows[:limit]]
        heads = [head for head in cells[0] if any(row[head] not in ("", "-") for row in cells)]
        rows = [{head: row[head] for head in heads} for row in cells]
        columns: dict[str, Any] = {"text": TEXT_COLUMNS, "shorten": SHORTENED_COLUMNS, "drop": DROPPED_COLUMNS}
        lines, dropped = format_table(rows, width=width, **columns)
        if len(self.rows) > len(rows):
            lines.append(f"and {len(self.rows) - len(rows)} more")
        if len(self.measured) > 1:
            lines.append(_fold("*: recommended; =: cannot be told apart from the lowest error", width))
        if dropped:
            lines.append(_fold(f"not shown: {', '.join(dropped)} (use a wider terminal, or --json)", width))
        return "\n".join(lines)


# --- rows ------------------------------------------------------------------------------------------------------------


def list_rows(
    candidates: "Sequence[Candidate]",
    proposals: "Sequence[Proposal]",
    measurements: "Measurements | None" = None,
    decision: "Decision | None" = None,
) -> Iterator[Row]:
    """All candidates: measured ones, the best first, those not tried, in the order of the proposals, then failures."""
    by_name = {model.name: model for model in candidates}
    reasons = {proposal.name: proposal.reason for proposal in proposals}
    judgements, seconds, failures = {}, {}, {}
    if measurements is not None and decision is not None:
        judgements = {judgement.name: judgement for judgement in decision.judgements}
        seconds = dict(zip(measurements.models, measurements.seconds, strict=True))
        failures = {failure.model: failure for failure in measurements.failures if failure.model not in judgements}
    failed = [name for name, failure in failures.items() if failure.was_tried]
    others = [name for name in (*reasons, *by_name) if name not in failed]
    for rank, name in enumerate(dict.fromkeys((*judgements, *others, *failed)), 1):
        model, reason = by_name[name], reasons.get(name, "")
        facts = ("params", "gmacs", "size", "license", "pretraining", "is_here", "location")
        known: dict[str, Any] = {fact: getattr(model, fact) for fact in facts} | {"load": model.load_line}
        if decision is not None and name in judgements:
            judgement, spent = judgements[name], seconds.get(name, math.nan)
            known |= {key: value for key, value in vars(judgement).items() if key != "name"}
            known |= {"is_choice": name == decision.choice, "seconds": None if math.isnan(spent) else float(spent)}
        elif name in failed:
            known["failure"] = failures[name].message
        elif name in failures:
            reason = f"not measured: {failures[name].message}"
        elif measurements is not None:
            reason = "measured on other images than the rest: allow a longer --budget"
        yield Row(rank, name, reason=reason, **known)


# --- words -----------------------------------------------------------------------------------------------------------


def format_interval(row: Row) -> str:
    """The measured error of a model with its interval, in words.

    Example:
        >>> format_interval(Row(1, "resnet34", error=0.041, low=0.02, high=0.079))
        'test error 4.1% (95% interval 2.0 to 7.9%)'
    """
    if row.low is None or row.high is None:
        return f"test error {format_percent(row.error)}"
    return f"test error {format_percent(row.error)} (95% interval {100 * row.low:.1f} to {100 * row.high:.1f}%)"


def format_curve(curve: "LearningCurve") -> str:
    """The errors of a learning curve, and what more images would bring, in words."""
    errors = [
        f"{format_percent(error)} with {images}" for images, error in zip(curve.images, curve.errors, strict=True)
    ]
    return f"{', '.join(errors)} images. {curve.sentence}"


def write_verdict(rows: Sequence[Row], *, prefer: str, images: int | None, images_needed: int | None) -> str:
    """Which model to start from and why, in words; `rows` are those of all models, measured ones first.

    Example:
        >>> first = Row(1, "vit_small", 0.039, 0.02, 0.07, is_tied=True)
        >>> second = Row(2, "resnet34", 0.041, 0.02, 0.079, is_tied=True, is_choice=True)
        >>> write_verdict([first, second], prefer="cheapest", images=100, images_needed=None)
        'Start from resnet34: test error 4.1% (95% interval 2.0 to 7.9%); ties with vit_small, and is the cheaper one.'
    """
    measured = [row for row in rows if row.error is not None]
    choice = next((row for row in measured if row.is_choice), None)
    if choice is None:
        failures = [row for row in rows if row.failure]
        reason = f" The first one: {failures[0].model}: {failures[0].failure}" if failures else ""
        return f"No model could be measured, so none is recommended.{reason}"
    words = f"Start from {choice.model}: {format_interval(choice)}"
    tied = [row.model for row in measured if row.is_tied and not row.is_choice]
    if len(measured) == 1:
        return f"{words}. No other model was measured."
    if not tied:
        return f"{words}; its error is the lowest of {len(measured)} measured, and no other model ties with it."
    quality = {"cheapest": ("the cheaper one", "the cheapest of them"), "error": ("the better one", "the best of them")}
    words += f"; ties with {list_names(tied)}, and is {quality[prefer][len(tied) > 1]}."
    if images_needed is not None and images is not None and images_needed > images:
        first, second = (row.model for row in measured[:2])
        words += f" About {images_needed - images} images more would tell {first} and {second} apart."
    return words


def list_names(names: Sequence[str], *, most: int = 4) -> str:
    """Names as an enumeration.

    Example:
        >>> list_names(["a", "b", "c"]), list_names(["a", "b", "c"], most=2)
        ('a, b and c', 'a, b and 1 more')
    """
    shown = [*names[:most], f"{len(names) - most} more"] if len(names) > most else [*names]
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


# --- the table -------------------------------------------------------------------------------------------------------


def _list_cells(row: Row) -> dict[str, str]:
    """The cells of one model as text, by their headings."""

    def format_number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    is_measured = row.error is not None
    ends = "-" if row.low is None or row.high is None else f"{100 * row.low:.1f} to {100 * row.high:.1f}%"
    gap = "-" if row.gap is None else f"{100 * row.gap:+.1f}"
    return {
        "": "*" if row.is_choice else "=" if row.is_tied else "",
        "model": printable(row.model),
        "error": format_percent(row.error),
        "95% interval": ends,
        "gap": gap,
        "params": "-" if row.params is None else f"{row.params / 1e6:.1f} M",
        "GMACs": format_number(row.gmacs, ".2g" if (row.gmacs or 0) < 10 else ".0f"),
        "seconds": format_number(row.seconds, ".1f"),
        "licence": printable(row.license),
        "pretraining": printable(row.pretraining),
        "why": "failed" if row.failure else "" if is_measured else printable(row.reason),
    }


def _fold(text: str, width: int) -> str:
    """The lines of a text, each folded at words."""
    lines = (textwrap.fill(printable(line), width, break_on_hyphens=False) for line in text.split("\n"))
    return "\n".join(lines)
