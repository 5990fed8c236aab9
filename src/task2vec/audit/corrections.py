"""Acting on a report: a table of decisions to fill in, and the corrected table that they make.

The table of decisions has what was found first, then every other image, so that nothing else is needed to make the
corrected table: neither the report, nor the options that the data was read with. No image is moved, changed or deleted.
"""

import csv
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task2vec.audit.analysis import SCENE, Analysis, CopyGroup
from task2vec.errors import DataError, UsageError
from task2vec.storage import write_rows
from task2vec.tasks import Images
from task2vec.tasks.columns import read_columns
from task2vec.tasks.images import ChosenImages, StoredImages

COLUMNS = ("path", "label", "suggestion", "kind", "decision", "group", "split")
KEEP, RELABEL, REMOVE = DECISIONS = ("keep", "relabel", "remove")
SAME_SPLIT = "one split"
LABEL = "label"


@dataclass(frozen=True)
class Applied:
    """The corrected table, and how many images were kept as they are, given another label, and left out."""

    table: Path
    kept: int
    relabelled: int
    removed: int


def find_path(images: Images, number: int) -> Path | None:
    """The file of an image; None if it is in memory or inside another file."""
    if isinstance(images, ChosenImages):
        source, within = images.places[number]
        return find_path(images.sources[source], within)
    if not isinstance(images, StoredImages) or not images.root or not isinstance(images.keys[number], str):
        return None
    return Path(os.path.abspath(os.path.join(images.root, images.keys[number])))


def format_relative(path: Path, folder: Path) -> str:
    """The path relative to a folder that it is in, else the absolute one; never like an option or a formula."""
    if not path.is_relative_to(folder):
        return str(path)
    text = path.relative_to(folder).as_posix()
    return text if text[0].isalnum() else f"./{text}"


def suggest_decisions(group: CopyGroup, sizes: Sequence[int]) -> list[str]:
    """What to do with each image of a group, of so many pixels: of one picture the largest is kept.

    If another split has it, it is left out of the task, so that errors measured on that split stay comparable.
    """
    if not group.is_copy or group.has_conflict:
        return [SAME_SPLIT if group.kind == SCENE else ""] * len(sizes)
    best = max(range(len(sizes)), key=lambda row: (group.splits[row] != "", sizes[row], -row))
    return [KEEP if row == best or split else REMOVE for row, split in enumerate(group.splits)]


def list_lines(report: Analysis) -> Iterator[tuple[int, list[str]]]:
    """The number of an image, and the cells from its label to its split, for everything that was found."""
    pixels = dict(enumerate(report.sizes.prod(1).tolist()))  # images of other splits are kept in any case
    for issue in report.label_issues:
        yield issue.number, [issue.label, issue.suggested, LABEL, "", "", ""]
    for count, group in enumerate(report.copies, 1):
        decisions = suggest_decisions(group, [pixels.get(number, 0) for number in group.numbers])
        for number, label, split, decision in zip(group.numbers, group.labels, group.splits, decisions, strict=True):
            yield number, [label, decision, group.kind, "", str(count), split]


def format_line(cells: Sequence[str]) -> str:
    """The cells as a line of CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def _read_rows(file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a table of decisions, each after its place in messages."""
    columns = read_columns(file)
    if lacking := [name for name in COLUMNS[:5] if name not in columns]:
        raise UsageError(
            f"{file} is not a table of corrections: it has no column {', '.join(lacking)}. Make one: "
            f"task2vec report PATH --corrections {file.name}"
        )
    for row in range(len(columns["path"])):
        cells = {name: str(columns[name][row]).strip() for name in COLUMNS if name in columns}
        for name, cell in cells.items():
            if cell[:1] == "'" and cell[1:2] in tuple("=+-@"):  # as `write_rows` writes what looks like a formula
                cells[name] = cell[1:]
        yield columns.locate(row), cells


def apply_corrections(file: str | Path, table: str | Path) -> Applied:
    """Writes the table of images and labels that the decisions in `file` make; images stay as they are.

    Args:
        file: what `report --corrections` wrote, with decisions filled in: keep (the same as none), relabel (to the
            class in the column of suggestions), or remove.
        table: the CSV file to write.

    Raises:
        DataError: a decision is unknown or contradicts another one, or an image is not there.
    """
    file, table = Path(file), Path(table)
    here, there = Path(os.path.abspath(file)).parent, Path(os.path.abspath(table)).parent
    chosen: dict[tuple[str, str], tuple[str, str, str]] = {}  # by path and label: decision, new label, and its row
    for row, cells in _read_rows(file):
        path, label, decision = cells["path"], cells["label"], cells["decision"].lower()
        if decision and decision not in DECISIONS:
            raise DataError(
                f"{row}: the decision '{cells['decision']}' is unknown, so it is unclear what to do with {path}. Write "
                f"{', '.join(DECISIONS)}, or nothing."
            )
        if not os.path.isfile(here / path):
            raise DataError(
                f"{row}: there is no file '{path}', so the table would name an image that cannot be read. Move {file} "
                "back to where it was written, or report on the images again: task2vec report PATH --corrections FILE"
            )
        if cells.get("split"):
            if decision in (RELABEL, REMOVE):
                raise DataError(
                    f"{row}: {path} is in the split '{cells['split']}', and the corrected table has the other one. "
                    f"Correct that split from a report of its own: task2vec report PATH --split {cells['split']}"
                )
            continue
        new = cells["suggestion"] if decision == RELABEL else label
        is_action = cells["kind"] != LABEL and new in (*DECISIONS, SAME_SPLIT)
        if decision == RELABEL and (not new or is_action):
            raise DataError(
                f"{row}: the decision is relabel, but no label is suggested for {path}. Write the right class into the "
                "column suggestion."
            )
        before = chosen.get((path, label), ("", label, row))
        if decision and before[0] and (decision, new) != before[:2]:
            raise DataError(
                f"{row}: '{decision}' for {path} contradicts '{before[0]}' in {before[2]}. Keep one of the decisions."
            )
        chosen[path, label] = (decision, new, row) if decision else before
    rows: list[list[Any]] = []
    for (path, _), (decision, label, _) in chosen.items():
        if decision != REMOVE:
            is_number = label.removeprefix("-").isdecimal() and str(int(label)) == label  # no formula
            rows.append([format_relative(here / path, there), int(label) if is_number else label])
    decisions = [decision for decision, *_ in chosen.values()]
    if not rows:
        raise DataError(f"{file} keeps no image, so the table would be empty. Remove fewer.")
    write_rows(table, [["path", "label"], *rows])
    return Applied(table, len(rows) - decisions.count(RELABEL), decisions.count(RELABEL), decisions.count(REMOVE))


def has_files(report: Analysis) -> bool:
    """Whether a table can name the images with their classes."""
    return not report.task.is_multilabel and find_path(report.images, 0) is not None


def write_corrections(path: str | Path, report: Analysis) -> Path:
    """Writes the table of decisions: what was found, as `list_lines` lists it, then the images without a finding."""
    task, images = report.task, report.images
    if not has_files(report):
        kind = "have attributes instead of classes" if task.is_multilabel else "are not files of their own"
        raise UsageError(
            f"the images of '{task.name}' {kind}, so no table of corrections can be written (--corrections). Correct "
            "them in their source: --json (to_dict) lists what was found."
        )
    lines = list(list_lines(report))
    listed = {number for number, _ in lines}
    labels = enumerate(task.classes[target] for target in task.targets)
    lines += [(number, [label, *[""] * 5]) for number, label in labels if number not in listed]
    folder, rows = Path(os.path.abspath(path)).parent, []
    for number, cells in lines:
        file = find_path(images, number)
        rows.append([images.name(number) if file is None else format_relative(file, folder), *cells])
    return write_rows(path, [COLUMNS, *rows])
