"""The neighbours of an embedding in the library, as plain values and as a table."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from task2vec.cli.asked import Asked
from task2vec.cli.library import DIGITS, find_unusual, word_space
from task2vec.cli.listing import Column, print_columns
from task2vec.cli.shelf import open_if_any, place_of
from task2vec.cli.speech import is_watched, name_library, say
from task2vec.errors import LibraryError
from task2vec.text import pluralize, printable

if TYPE_CHECKING:
    from task2vec.embedding import EmbedSettings
    from task2vec.library import Library, Neighbour
    from task2vec.probe import Probe
    from task2vec.tasks import Task

IN_TURN = ("tags", "noise", "classes", "images")


def find_neighbours(asked: Asked, library: Path | None, *, k: int, exact: bool) -> dict[str, Any]:
    """The neighbours as plain values; where there is none, what the library has instead."""
    from task2vec.library.identity import identify
    from task2vec.progress import show_progress

    embedding = asked.embedding
    told = {"task": embedding.task, "from": asked.sort, "words": asked.words, "probe": embedding.probe}
    told |= {"key": identify(embedding).key, "is_alone": True}
    rows, spaces = [], []
    opened = open_if_any(library)
    if opened is not None:
        with opened, show_progress(is_watched()) as report:
            found = opened.nearest(embedding, k, exact=exact, report=report)
            rows = [_tell(place, one, asked, opened) for place, one in enumerate(found, start=1)]
            own = embedding.provenance.get("task_fingerprint")
            told["is_alone"] = all(task.fingerprint == own for task in opened.tasks()) if not rows else False
            spaces = [] if rows or told["is_alone"] else _list_spaces(opened, without=own)
    return {"query": told, "library": str(place_of(library)), "neighbours": rows, "spaces": spaces}


def _tell(place: int, found: "Neighbour", asked: Asked, library: "Library") -> dict[str, Any]:
    """A neighbour as plain values, with the noise of its distance if both embeddings know theirs."""
    from task2vec.distance.noise import with_error

    task, noise = found.task, None
    if found.embedding.has_halves and asked.embedding.halves is not None:
        try:
            told = with_error(asked.embedding, library.get(found.embedding.key))
            noise = {"floor": told.floor, "stderr": told.stderr, "corrected": told.corrected}
        except LibraryError as error:
            say(f"damaged: {printable(error)}")
    return {
        "rank": place,
        "task": task.name,
        "distance": found.distance,
        "noise": noise,
        "images": task.images,
        "classes": len(task.classes),
        "tags": list(task.tags),
        "fingerprint": task.fingerprint,
        "key": found.embedding.key,
    }


def _list_spaces(library: "Library", *, without: str | None) -> list[dict[str, Any]]:
    """By which probes and settings the other tasks are embedded, with the size of images, as an example tells it."""
    examples = {}
    for task in library.tasks():
        for entry in task.embeddings if task.fingerprint != without else ():
            examples.setdefault(entry.probe_fingerprint, entry.key)
    spaces = []
    for space in library.stats()["spaces"]:
        if (key := examples.get(space["probe_fingerprint"])) is not None:
            size = library.get(key).provenance.get("image_size")
            spaces.append(space | {"image_size": size if isinstance(size, list) else None})
    return spaces


def warn_of_strangers(task: "Task", probe: "Probe", *, settings: "EmbedSettings", library: Path | None) -> None:
    """Says before the work if nothing in the library will be comparable with what comes of it, and what is there."""
    from task2vec.distance import SCALING

    opened = open_if_any(library)
    if opened is None:
        return
    told = settings.as_dict()
    scale = {name: told.get(name) for name in SCALING}
    with opened:
        spaces = opened.stats()["spaces"]
        if any(one["probe_fingerprint"] == probe.fingerprint and one["settings"] == scale for one in spaces):
            return
        try:
            spaces = _list_spaces(opened, without=task.fingerprint)
        except LibraryError as error:  # the embedding is worth making all the same
            say(f"damaged: {printable(error)}")
            return
    if spaces:
        say(
            f"warning: nothing in the library can be compared with '{printable(task.name)}' as it is about to be "
            f"embedded, by {printable(probe.name)} ({probe.fingerprint[:DIGITS]}). Ctrl-C, and ask for what is there:"
        )
        _say_spaces(spaces, say)


def print_neighbours(report: dict[str, Any]) -> None:
    """Whose neighbours they are and a table of them, or what can be done where there are none."""
    query, rows = report["query"], report["neighbours"]
    print(f"nearest to {printable(query['task'])} (embedding {query['key'][:DIGITS]}), {query['words']}")
    if rows:
        _print_rows(rows)
    elif query["is_alone"]:
        print(name_library("There is no other task in the library. Put more into it: task2vec embed FOLDER"))
    else:
        print("Nothing in the library can be compared with it: all else is by another probe, size or method.")
        print("Embed it as the others are, and ask again:")
        _say_spaces(report["spaces"], print)


def _say_spaces(spaces: Sequence[dict[str, Any]], tell: Callable[[str], None]) -> None:
    """The commands that give embeddings of each of the spaces."""
    for space in spaces:
        tell(name_library(f"  task2vec nearest PATH {_word_options(space)}"))
        tell(f"    to be compared with {pluralize(space['embeddings'], 'embedding')} by {word_space(space)}")


def _word_options(space: dict[str, Any]) -> str:
    """The options of `embed` that give embeddings of this space."""
    unusual, size = find_unusual(space["settings"]), space["image_size"]
    chosen = [f"--probe {printable(space['probe'])}"]
    chosen += [f"--size {size[0]}"] if size else []
    chosen += [f"--{name} {printable(unusual[name])}" for name in ("method", "dtype", "beta") if name in unusual]
    return " ".join(chosen)


def _print_rows(rows: Sequence[dict[str, Any]]) -> None:
    noises = tuple("-" if row["noise"] is None else f"{row['noise']['floor']:.3f}" for row in rows)
    columns = [
        Column("rank", tuple(str(row["rank"]) for row in rows), "rank", is_number=True),
        Column("task", tuple(printable(row["task"]) for row in rows), "name", is_name=True),
        Column("distance", tuple(f"{row['distance']:.3f}" for row in rows), "distance", is_number=True),
        Column("noise", noises, "noise", is_number=True),
        Column("images", tuple(str(row["images"]) for row in rows), "images", is_number=True),
        Column("classes", tuple(str(row["classes"]) for row in rows), "classes", is_number=True),
        Column("tags", tuple(printable(", ".join(row["tags"])) for row in rows), "tags"),
    ]
    print_columns([one for one in columns if one.part != "tags" or any(one.cells)], in_turn=IN_TURN)
