"""What to do next with a dataset: at most five suggestions, each with its evidence and the command that does it."""

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from task2vec.audit.analysis import Analysis, CopyGroup
from task2vec.select.recommendation import list_names
from task2vec.text import format_percent, pluralize

MAX_SUGGESTIONS = 5
# A class is small if it has fewer images than this, or than this share of the median class.
SMALL_CLASS = 10
SMALL_SHARE = 0.25
# A class is hard if its error is at least this, and this many times the error of the task.
HARD_ERROR = 0.3
HARD_RATIO = 1.5
# Two classes are worth a suggestion if at least this share of their images is taken for the other.
MIN_CONFUSION = 0.1


@dataclass(frozen=True)
class Suggestion:
    """Something to do next, the evidence for it, and the command that does it."""

    text: str
    evidence: str
    command: str


def format_path(path: str | Path) -> str:
    """The path as a word of a shell command, never taken for an option.

    Example:
        >>> format_path("my photos"), format_path("-x")
        ("'my photos'", './-x')
    """
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def suggest(analysis: Analysis, command: str | None) -> tuple[Suggestion, ...]:
    """What to do next, the most urgent first.

    `command` is the command that repeats the report; without it, the suggested commands are Python code.
    """
    return tuple(islice(_list_all(analysis, command), MAX_SUGGESTIONS))


def _list_all(analysis: Analysis, command: str | None) -> Iterator[Suggestion]:
    listing = f"{command} --out images.csv" if command else 'report.to_csv("images.csv")'
    leaks = [group for group in analysis.copies if group.is_leak]
    if leaks:
        yield Suggestion(
            f"Remove copies from one of the splits: {pluralize(len(leaks), 'group')}.",
            "Images of one split are copies of images of another one, so an error measured on them is too low. First: "
            f"{', '.join(leaks[0].images[:3])}.",
            listing,
        )
    if analysis.error is None:
        yield Suggestion(
            "Add images: the difficulty of the task cannot be measured.",
            "Every class has a single image, or only copies of one, so nothing is left to test on.",
            command or "t2v.report(task)",
        )
    elif not analysis.beats_chance:
        yield Suggestion(
            "Check how the labels were assigned before anything else.",
            f"They are predicted no better than by chance (error {format_percent(analysis.error.error)}).",
            listing,
        )
    if analysis.label_issues:
        worst = analysis.label_issues[0]
        yield Suggestion(
            f"Review {pluralize(len(analysis.label_issues), 'suspected label error')}.",
            f"Classifiers fitted without them predict a different label. First: {worst.image}, labelled {worst.label}, "
            f"predicted {worst.suggested}.",
            listing,
        )
    yield from _suggest_copies([group for group in analysis.copies if not group.is_leak], listing)
    if analysis.bad:
        yield Suggestion(
            f"Repair or remove {pluralize(len(analysis.bad), 'unreadable file')}.",
            f"First: {analysis.bad[0].path}: {analysis.bad[0].reason}.",
            f"{command} --json" if command else "report.bad",
        )
    yield from _suggest_images(analysis, command or "t2v.report(task)")
    yield from _suggest_models(analysis)


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


def _suggest_images(analysis: Analysis, again: str) -> Iterator[Suggestion]:
    """Which classes need more images, or a better definition."""
    median = float(np.median([facts.images for facts in analysis.classes]))
    least = HARD_ERROR if analysis.error is None else max(HARD_ERROR, HARD_RATIO * analysis.error.error)
    small = [facts for facts in analysis.classes if facts.images < max(SMALL_CLASS, SMALL_SHARE * median)]
    hard = [facts for facts in analysis.classes if (facts.error or 0) >= least]
    chosen = max(small or hard, key=lambda facts: (facts.error or 0.0, -facts.images), default=None)
    if chosen is not None:
        missing = max(SMALL_CLASS, round(median)) - chosen.images if small else chosen.images
        error = "" if chosen.error is None else f", and its error is {format_percent(chosen.error)}"
        yield Suggestion(
            f"Label about {max(SMALL_CLASS, missing)} more images of '{chosen.name}'.",
            f"It has {pluralize(chosen.images, 'image')} (median class: {median:.0f}){error}.",
            again,
        )
    if analysis.confused and analysis.confused[0].rate >= MIN_CONFUSION:
        pair = analysis.confused[0]
        merge = ", or merge them" if len(analysis.classes) > 2 else ""
        yield Suggestion(
            f"Check that '{pair.first}' and '{pair.second}' can be distinguished{merge}.",
            f"Images of '{pair.first}' predicted as '{pair.second}': {pair.first_as_second}; the other way round: "
            f"{pair.second_as_first}.",
            again,
        )


def _suggest_models(analysis: Analysis) -> Iterator[Suggestion]:
    """Models are to be measured on the images themselves, unless that was done."""
    advice = analysis.recommendation
    source = analysis.task.source
    if advice.measured or not advice.rows:
        return
    yield Suggestion(
        "Measure pretrained models on your images before you choose one.",
        f"To be measured first: {list_names([row.model for row in advice.rows], most=3)}.",
        f"task2vec recommend {format_path(source)}" if os.path.exists(source) else "t2v.recommend(task)",
    )
