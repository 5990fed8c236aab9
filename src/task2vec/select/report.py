"""A recommendation: which model to start from, its predicted error, and the table as text that fits the terminal."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from task2vec.experts.metatask import CellFailure
from task2vec.select.curves import Labels, Tuned
from task2vec.select.suggestions import Suggestion
from task2vec.select.zoo import UNKNOWN
from task2vec.storage import write_csv
from task2vec.text import format_percent, format_table, pluralize, printable

_PAGE = 30  # the narrowest one, in cells


@dataclass(frozen=True)
class Row:
    """One model of a recommendation; errors, probabilities and gains are shares, None stands for what is not known.

    Attributes:
        rank: its place, the best being 1.
        model: its name.
        error: its predicted test error on the task, given all that was measured there.
        low: lower end of the 90% interval.
        high: upper end of it.
        p_best: probability of being the best among those that can be loaded.
        measured: its measured test error on the task, the mean over the splits; `error` is the better estimate.
        measured_low: lower end of the interval of that.
        measured_high: upper end of it.
        splits: how many it was measured on.
        gain: how much lower its error is than that of the average-best model.
        source_task: what it was fine-tuned on.
        distance: symmetric distance of the task from that source task.
        nearest: the nearest task that its error is known on.
        nearest_distance: symmetric distance of the task from that.
        params: number of parameters.
        size: side of the images, in pixels, that its errors are of; None for the network's own.
        gmacs: multiplications for one image of that size, in billions.
        seconds: for 1,000 images on this machine, where it was timed.
        is_available: whether its weights are on this machine.
        is_average_best: whether it is the average-best model: the best on average over all known tasks.
        license: of its weights, as timm states it; "unknown" if it does not, and for files.
        load: the line of code that loads it, or how to train one like it.
        why: the reason for it, in words.
    """

    rank: int
    model: str
    error: float | None
    low: float | None
    high: float | None
    p_best: float | None = None
    measured: float | None = None
    measured_low: float | None = None
    measured_high: float | None = None
    splits: int = 0
    gain: float | None = None
    source_task: str | None = None
    distance: float | None = None
    nearest: str | None = None
    nearest_distance: float | None = None
    params: int | None = None
    size: int | None = None
    gmacs: float | None = None
    seconds: float | None = None
    is_available: bool = False
    is_average_best: bool = False
    license: str = UNKNOWN
    load: str = ""
    why: str = ""


@dataclass(frozen=True, repr=False)
class Recommendation:
    """Models for a task, the best first; print it to see a table.

    Attributes:
        task: name of the task.
        choice: the model to start from.
        verdict: why, in words; if the evidence favours no other model over the average-best one, it says so.
        is_confident: whether the evidence favours another model over the average-best one.
        average_best: the average-best model: the best on average over all known tasks.
        rows: models that can be loaded.
        others: models whose errors are known but whose weights are not available: the value of training one.
        neighbours: names and symmetric distances of the nearest known tasks.
        shots: what the classifiers of the errors were trained on: "half" of the images, or so many per class.
        train_images: images of the median class of this task to train on (half), where these are fewer than `shots`.
        protocol: the key of the protocol of the errors.
        strategy: by which they are predicted.
        probe: that the task was embedded with, its image size and method.
        known: what is known, in words.
        images: of the task.
        classes: of the task.
        notes: caveats.
        seconds: the time it took, without reading and embedding.
        is_interrupted: whether measuring was interrupted; what was measured until then is used.
        failures: models that could not be measured, and why.
        budget: seconds that were given, if any.
        spent: seconds of the budget by use: "embedding" and "measuring", including timing.
        measured_images: images that errors were measured on within the budget: all, or a sample.
        is_embedded: whether the task was embedded; a budget may do without.
        labels: how many images the recommended model needs for a lower error, once its error was measured.
        tuned: the predicted error of fine-tuning the recommended model.
        zoo: other models to fine-tune, by published errors: the three best and the best small one.
    """

    task: str
    choice: str
    verdict: str
    is_confident: bool
    average_best: str
    rows: tuple[Row, ...]
    others: tuple[Row, ...] = ()
    neighbours: tuple[tuple[str, float], ...] = ()
    shots: str = "half"
    train_images: int | None = None
    protocol: str = ""
    strategy: str = "combined"
    probe: str = ""
    known: str = ""
    images: int | None = None
    classes: int | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    is_interrupted: bool = False
    failures: tuple[CellFailure, ...] = ()
    budget: float | None = None
    spent: dict[str, float] = field(default_factory=dict)
    measured_images: int | None = None
    is_embedded: bool = True
    labels: Labels | None = None
    tuned: Tuned | None = None
    zoo: tuple[Suggestion, ...] = ()

    def __repr__(self) -> str:
        """The recommendation in one line."""
        what = "against" if self.choice == self.average_best else "that it is better than"
        doubt = "" if self.is_confident else f", no evidence {what} the average-best model"
        return f"Recommendation({self.task}: {self.choice}, {len(self.rows)} candidates{doubt})"

    def __str__(self) -> str:
        """The table, as wide as the terminal."""
        from rich.console import Console

        return self.to_text(width=Console().width)

    def __len__(self) -> int:
        """How many models can be loaded."""
        return len(self.rows)

    def __iter__(self) -> Iterator[str]:
        """The names of models that can be loaded, the best first."""
        return (row.model for row in self.rows)

    def __getitem__(self, model: str) -> Row:
        """The row of a model."""
        for row in (*self.rows, *self.others):
            if row.model == model:
                return row
        raise KeyError(f"'{model}' is not among the candidates: {', '.join(row.model for row in self.rows)}")

    def to_text(self, *, width: int = 100, limit: int | None = 10) -> str:
        """The table as text of so many columns, with so many rows at most; None shows all."""
        width = max(width, _PAGE)
        parts = [_fold(self._format_head(), width), _fold(self.verdict, width)]
        chosen = next((row for row in self.rows if row.model == self.choice), None)
        if chosen is not None:
            parts[-1] += f"\n\n    {printable(chosen.load)}"
        if curves := self.format_curves():
            parts.append(_fold("\n".join(curves), width))
        if self.rows:
            parts.append(_draw(self.rows, width, limit))
        if self.others:
            head = "Predicted errors of experts fine-tuned on other data. Their weights are not published: train one."
            table = _draw(self.others, width, 3, is_loadable=False)
            first = self.others[0]
            train = f"To train one like the first, use data like '{first.source_task or first.model}':"
            command = first.load.removeprefix("train it: ")
            parts.append(f"{_fold(head, width)}\n\n{table}\n\n{_fold(train, width)}\n    {printable(command)}")
        if self.zoo:
            head = (
                "Models of the zoo to fine-tune, ranked by published errors (all models: task2vec models). Nobody has "
                "measured them on tasks like yours. Test errors predicted for fine-tuning on "
                f"{format_shots(self.shots)}:"
            )
            parts.append(f"{_fold(head, width)}\n\n{_draw_zoo(self.zoo, width)}\n\n    {printable(self.zoo[0].load)}")
        parts += [_fold(note, width) for note in self.notes]
        return "\n\n".join(parts) + "\n"

    def _format_head(self) -> str:
        counts = [(self.images, "image"), (self.classes, "class")]
        words = ", ".join(pluralize(count, noun) for count, noun in counts if count is not None)
        near = ", ".join(f"{name} ({distance:.2f})" for name, distance in self.neighbours[:3])
        lines = [f"{self.task}: {words}" if words else self.task, f"evidence: {self.known}"]
        here = "" if self.train_images is None else f" ({self.train_images} where measured on this task)"
        lines.append(f"errors: test errors of a linear classifier trained on {format_shots(self.shots)}{here}")
        lines += [f"nearest known tasks: {near}"] if near else []
        if self.budget is not None:
            count = sum(row.measured is not None for row in self.rows)
            on = f" on {self.measured_images} of {pluralize(self.images or 0, 'image')}" if self.measured_images else ""
            spent = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in self.spent.items())
            lines.append(f"time: {spent} ({pluralize(count, 'model')}{on}) of {self.budget:g} s")
        return "\n".join(lines)

    def format_curves(self) -> list[str]:
        """What is known of labels, of fine-tuning, and of LoRA on the best transformer of the zoo, a sentence each."""
        lora = [(one.lora, f"LoRA on {one.model}", "fine-tuning all its weights") for one in self.zoo if one.lora][:1]
        words = [] if self.labels is None else [format_labels(self.labels)]
        words += [] if self.tuned is None else [format_tuned(self.tuned)]
        return words + [format_tuned(*one) for one in lora]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self)

    def to_csv(self, path: str | Path) -> Path:
        """Writes one line for every model, and returns the path."""
        rows = [asdict(row) | {"is_loadable": at < len(self.rows)} for at, row in enumerate((*self.rows, *self.others))]
        return write_csv(path, rows, [*(one.name for one in fields(Row)), "is_loadable"])


# --- words -----------------------------------------------------------------------------------------------------------


def format_shots(shots: str) -> str:
    """What a classifier was trained on, in words.

    Example:
        >>> format_shots("half"), format_shots("5")
        ('half of the images', '5 images per class')
    """
    return "half of the images" if shots == "half" else f"{shots} images per class"


def format_points(gap: float) -> str:
    """A difference of errors in percentage points."""
    return f"{100 * gap:.1f} points"


def format_error(row: Row) -> str:
    """The predicted error with its interval, in words."""
    if row.error is None:
        return "its test error cannot be predicted"
    ends = "" if row.low is None else f" (90% interval {100 * row.low:.1f} to {format_percent(row.high)})"
    return f"predicted test error {format_percent(row.error)}{ends}{f' at {row.size} pixels' if row.size else ''}"


def format_measured(row: Row) -> str:
    """The measured error with its interval, in words."""
    low = None if row.measured_low is None else f"{100 * row.measured_low:.1f}"
    ends = "" if low is None else f"95% interval {low} to {format_percent(row.measured_high)}, "
    return f"measured test error of {format_percent(row.measured)} ({ends}{pluralize(row.splits, 'split')})"


def format_labels(labels: Labels) -> str:
    """How many images an error takes, in words.

    Example:
        >>> format_labels(Labels(target=0.1, images=33, low=None, high=None, present=10, limit=80))
        'Labels: an error of 10.0% requires about 33 training images per class; there are 10 now.'
    """
    more = f"more than {labels.limit}"
    ends = "" if labels.low is None else f" (90% interval {labels.low} to {labels.high or more})"
    number = more if labels.images is None else f"about {labels.images}"
    target = format_percent(labels.target)
    words = f"Labels: an error of {target} requires {number} training images per class{ends}"
    return f"{words}; there {'is' if labels.present == 1 else 'are'} {labels.present} now."


def format_tuned(tuned: Tuned, what: str = "Fine-tuning the whole network", than: str = "a linear head") -> str:
    """The predicted error of fine-tuning, or of another way to train, in words."""
    ends = f"(90% interval {100 * tuned.low:.1f} to {format_percent(tuned.high)})"
    words = f"{what}: predicted test error {format_percent(tuned.error)} {ends}, "
    return f"{words}better than {than} with probability {tuned.p_better:.2f}."


# --- the table -------------------------------------------------------------------------------------------------------


def _draw(rows: Sequence[Row], width: int, limit: int | None, *, is_loadable: bool = True) -> str:
    """All that is known of the models; columns for which there is no room are left out, then names are shortened."""

    def number(value: float | None, form: str, factor: float = 1) -> str:
        return "-" if value is None else format(factor * value, form)

    table = []
    for row in rows:
        is_near = row.nearest is not None and row.nearest_distance is not None
        cells = {
            "": str(row.rank),
            "model": printable(row.model) + " *" * row.is_average_best,
            "measured": format_percent(row.measured),
            "predicted": "unknown" if row.error is None else format_percent(row.error),
            "90%": "-" if row.low is None or row.high is None else f"{100 * row.low:.0f} to {100 * row.high:.0f}%",
            "p(best)": number(row.p_best, ".0%"),
            "gain": number(row.gain, "+.1f", 100).replace("-0.0", "+0.0"),
            "distance": number(row.distance, ".2f"),
            "pixels": "-" if row.size is None else printable(str(row.size)),
            "params": number(row.params, ".1f", 1e-6) + " M" * (row.params is not None),
            "s/1,000": number(row.seconds, ".1f"),
            "nearest": printable(row.nearest or "-") + (f" ({row.nearest_distance:.2f})" if is_near else ""),
            "load": printable(row.load) if is_loadable else "",
        }
        table.append(cells)
    is_empty = {head: all(cells[head] in ("", "-") for cells in table) for head in table[0]}
    is_empty |= {"predicted": False, "nearest": len({row.nearest for row in rows}) < 2}
    is_empty["pixels"] = len({row.size for row in rows}) < 2
    table = [{head: cell for head, cell in cells.items() if not is_empty[head]} for cells in table[:limit]]
    drop = ["load", "nearest", "pixels", "params", "distance", "s/1,000", "p(best)", "", "gain", "90%"]
    if not is_empty["measured"]:
        drop.insert(6, drop.pop())
    text = ("model", "nearest", "load")
    lines, _ = format_table(table, width=width, text=text, shorten=["model"], drop=drop)
    lines += [f"and {len(rows) - len(table)} more"] if len(table) < len(rows) else []
    star = ["* best on average among these candidates"] if any(row.is_average_best for row in rows[:limit]) else []
    return "\n".join([*lines, *star])


def _draw_zoo(rows: Sequence[Suggestion], width: int) -> str:
    """The models of the zoo, with sizes and speeds."""
    is_timed = any(row.seconds is not None for row in rows)
    head, places = ("s/1,000", 1) if is_timed else ("images/s", 0)
    speeds = [row.seconds if is_timed else row.cpu_speed for row in rows]
    table = [
        {
            "model": printable(row.model),
            "predicted": format_percent(row.error),
            "90%": f"{100 * row.low:.0f} to {100 * row.high:.0f}%",
            "params": f"{row.params / 1e6:.1f} M",
            "pixels": str(row.size or "-"),
            head: "-" if speed is None else f"{speed:.{places}f}",
            "ImageNet": "-" if row.imagenet is None else format_percent(row.imagenet),
            "license": printable(row.license),
        }
        for row, speed in zip(rows, speeds, strict=True)
    ]
    drop = ["ImageNet", "pixels", head, "license", "params"]
    return "\n".join(format_table(table, width=width, text=["model", "license"], shorten=["model"], drop=drop)[0])


def _fold(text: str, width: int) -> str:
    """The text in lines that are not wider; its own line breaks stay."""
    lines = [textwrap.wrap(printable(line), width, break_on_hyphens=False) for line in text.split("\n")]
    return "\n".join(part for parts in lines for part in parts)
