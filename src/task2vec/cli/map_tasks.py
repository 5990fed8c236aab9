"""The tasks of a map: those of saved embeddings, or of the library."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from task2vec.cli.groups import NO_GROUP
from task2vec.cli.shelf import open_if_any, word_empty
from task2vec.cli.speech import is_watched, say
from task2vec.errors import DataError, EmbeddingFileError, LibraryError, UsageError
from task2vec.text import pluralize, printable

if TYPE_CHECKING:
    from task2vec.embedding import Embedding
    from task2vec.library import EmbeddingEntry, TaskEntry

TAG = "tag"


def read_files(places: Sequence[Path], *, without: set[Path]) -> "tuple[list[tuple[Path, Embedding]], list[Path]]":
    """Every embedding once, and the files of folders that are none; a file that was named must be one."""
    import task2vec

    read: dict[Path, tuple[Path, Embedding]] = {}
    left_out = []
    for place in places:
        is_folder = place.is_dir()
        if not place.exists():
            raise UsageError(f"'{place}' is not there, so it cannot be drawn. Make it: task2vec embed FOLDER")
        for file in sorted(place.glob("*.safetensors")) if is_folder else [place]:
            if file.resolve() in read or file.resolve() in without:
                continue
            try:
                read[file.resolve()] = (file, task2vec.load_embedding(file))
            except EmbeddingFileError as error:
                if not is_folder:
                    raise
                left_out.append(file)
                say(printable(f"left out: {error}"))
    return list(read.values()), left_out


def check_count(known: "Sequence[tuple[Path, Embedding]]", places: Sequence[Path]) -> None:
    """Refuses fewer embeddings than make a map."""
    where = ", ".join(f"'{place}'" for place in places)
    if not known:
        raise DataError(
            f"there is no embedding in {where}, so there is nothing to draw. Make some: task2vec embed FOLDER"
        )
    if len(known) == 1:
        raise DataError(
            f"there is one embedding in {where} ('{known[0][1].task}'), and a map takes two or more. "
            "Make another: task2vec embed FOLDER"
        )


def read_library(
    folder: Path | None, *, tag: str | None, probe: str | None, without: set[str]
) -> "tuple[list[tuple[Path, Embedding]], list[str], list[str]]":
    """The embeddings of the largest space of the library, their tags, and what was left out, in words.

    Args:
        folder: of the library.
        tag: only tasks that have it.
        probe: only embeddings by this one: its name, or the first digits of its fingerprint.
        without: fingerprints of tasks that are to be placed on the map.
    """
    from task2vec.progress import show_progress

    opened = open_if_any(folder)
    if opened is None:
        raise UsageError(_say_empty(folder))
    with opened, show_progress(is_watched()) as report:
        if not len(opened):
            raise UsageError(_say_empty(folder))
        chosen, left_out = _choose(
            [task for task in opened.tasks(tag=tag) if task.fingerprint not in without], probe=probe
        )
        step = report("reading", len(chosen))
        read, tags = [], []
        for task, entry in chosen:
            try:
                read.append((opened.folder / "library", opened.get(entry.key)))
                tags.append(task.tags[0] if task.tags else NO_GROUP)
            except LibraryError as error:
                left_out.append(str(error))
            step(1)
    for words in left_out:
        say(f"left out: {printable(words)}")
    return read, tags, left_out


def _say_empty(folder: Path | None) -> str:
    return f"{word_empty(folder)}, or name files or folders of embeddings: task2vec map DIR"


def _choose(
    tasks: "Sequence[TaskEntry]", *, probe: str | None
) -> "tuple[list[tuple[TaskEntry, EmbeddingEntry]], list[str]]":
    """One embedding of every task, all of them of the space that has most tasks, and what was left out."""
    spaces: dict[str, dict[str, tuple[TaskEntry, EmbeddingEntry]]] = {}
    for task in tasks:
        for entry in task.embeddings:
            if probe is None or entry.probe == probe or entry.probe_fingerprint.startswith(probe):
                spaces.setdefault(_name_space(entry), {})[task.fingerprint] = (task, entry)  # the newest stays
    chosen = max(spaces.values(), key=len, default={})
    others = len(tasks) - len(chosen)
    if not others:
        return list(chosen.values()), []
    reason = "embedded by other probes, weights, sizes or methods, or not at all"
    return list(chosen.values()), [f"{pluralize(others, 'task')}, {reason}"]


def _name_space(entry: "EmbeddingEntry") -> str:
    """What two embeddings must have in common to be compared."""
    from task2vec.distance import SCALING

    return json.dumps([entry.probe_fingerprint, [entry.settings.get(name) for name in SCALING]])
