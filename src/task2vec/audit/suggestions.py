"""What to do next with a dataset: at most five suggestions, each with its evidence and the command that does it."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from task2vec.audit.analysis import Analysis, CopyGroup, Suggestion
from task2vec.audit.corrections import has_files
from task2vec.text import format_percent, pluralize

MAX_SUGGESTIONS = 5
# A class is small if it has fewer images than this, or than this share of the median class.
SMALL_CLASS = 10
SMALL_SHARE = 0.25
# A class is hard if its error is at least this, and this many times the error of the task.
HARD_ERROR = 0.3
HARD_RATIO = 1.5
# Two classes are worth a suggestion if at least this share of one, and so many images, are taken for the other.
MIN_CONFUSION, MIN_CONFUSED = 0.1, 2


def format_path(path: str | Path) -> str:
    """The path as a word of a shell command, never taken for an option.

    Example:
        >>> format_path("my photos"), format_path("-x")
        ("'my photos'", './-x')
    """
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def suggest(report: Analysis, command: Callable[[str], str]) -> tuple[Suggestion, ...]:
    """What to do next, the most urgent first; `command` runs a command on the same data."""
    return tuple(islice(_list_all(report, command), MAX_SUGGESTIONS))


def _list_all(report: Analysis, command: Callable[[str], str]) -> Iterator[Suggestion]:
    again, is_shell = command("report"), command("report").startswith("task2vec ")
    listing = f"{again} --json" if is_shell else "report.to_dict()"
    if has_files(report):
        listing = f"{again} --corrections corrections.csv" if is_shell else 'report.to_corrections("corrections.csv")'
    leaks = [group for group in report.copies if group.is_leak]
    if leaks:
        yield Suggestion(
            f"Separate the splits: {pluralize(len(leaks), 'group')} of images that show the same in two of them.",
            "An error measured on the other split is too low. Leave copies out of one split, and keep a scene in one. "
            f"First: {', '.join(leaks[0].images[:3])}.",
            listing,
        )
    error = report.model.error
    if error is None:
        yield Suggestion(
            "Add images: no error can be measured.",
            "Every class has a single image, or only copies of one, so nothing is left to test on.",
            again,
        )
    elif not report.beats_chance:
        yield Suggestion(
            "Check how the labels were assigned before anything else.",
            f"They are hardly predicted better than by guessing (error {format_percent(error)}).",
            listing,
        )
    if report.label_issues:
        worst = report.label_issues[0]
        yield Suggestion(
            f"Review {pluralize(len(report.label_issues), 'suspected label error')}.",
            f"{report.format_precision().capitalize()}. First: {worst.image}, labelled {worst.label}, suggested "
            f"{worst.suggested}.",
            listing,
        )
    yield from _suggest_copies([group for group in report.copies if group.is_copy and not group.is_leak], listing)
    if report.bad:
        yield Suggestion(
            f"Repair or remove {pluralize(len(report.bad), 'unreadable file')}.",
            f"First: {report.bad[0].path}: {report.bad[0].reason}.",
            f"{again} --json" if is_shell else "report.bad",
        )
    yield from _suggest_images(report, again)
    if not report.recommendation.choice:
        yield Suggestion(
            "Measure more pretrained models on your images before you choose one.",
            report.recommendation.verdict,
            command("recommend"),
        )


def _suggest_copies(copies: Sequence[CopyGroup], listing: str) -> Iterator[Suggestion]:
    """What to do with copies inside the task: those with different labels are not to be removed unseen."""
    conflicts = [group for group in copies if group.has_conflict]
    if conflicts:
        yield Suggestion(
            f"Check {pluralize(len(conflicts), 'group')} of copies with different labels.",
            "Either a label is wrong, or the classes are hard to distinguish. First: "
            f"{', '.join(conflicts[0].images[:3])}.",
            listing,
        )
    if same := [group for group in copies if not group.has_conflict]:
        yield Suggestion(
            f"Keep one image of each of {pluralize(len(same), 'group')} of copies.",
            f"Images that repeat another one: {sum(len(group.images) - 1 for group in same)}. They count twice in "
            "training and leak into a random test split.",
            listing,
        )


def _suggest_images(report: Analysis, again: str) -> Iterator[Suggestion]:
    """Which classes need more images, or a better definition."""
    median = float(np.median([facts.images for facts in report.classes]))
    least = max(HARD_ERROR, HARD_RATIO * (report.model.error or 0))
    small = [facts for facts in report.classes if facts.images < max(SMALL_CLASS, SMALL_SHARE * median)]
    hard = [facts for facts in report.classes if (facts.error or 0) >= least]
    chosen = max(small or hard, key=lambda facts: (facts.error or 0.0, -facts.images), default=None)
    if chosen is not None:
        missing = max(SMALL_CLASS, round(median)) - chosen.images if small else chosen.images
        error = "" if chosen.error is None else f", and its error is {format_percent(chosen.error)}"
        yield Suggestion(
            f"Label about {max(SMALL_CLASS, missing)} more images of '{chosen.name}'.",
            f"It has {pluralize(chosen.images, 'image')} (median class: {median:.0f}){error}.",
            again,
        )
    if report.confused and report.confused[0].share >= MIN_CONFUSION and report.confused[0].images >= MIN_CONFUSED:
        cell = report.confused[0]
        merge = ", or merge them" if len(report.classes) > 2 else ""
        yield Suggestion(
            f"Check that '{cell.label}' and '{cell.predicted}' can be distinguished{merge}.",
            f"{format_percent(cell.share)} of the images of '{cell.label}' are taken for '{cell.predicted}'.",
            again,
        )
