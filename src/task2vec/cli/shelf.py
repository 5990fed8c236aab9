"""The library as commands use it: opened for looking or changing, or as a shelf that what was just made goes to."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from task2vec.cli.speech import name_library, say
from task2vec.errors import LibraryError, ResourceError, Task2VecError, UsageError
from task2vec.text import printable

if TYPE_CHECKING:
    from task2vec.embedding import Embedding, EmbedSettings
    from task2vec.library import Library
    from task2vec.probe import Probe
    from task2vec.tasks import Task

FIRST = "Put the first task into it: task2vec embed FOLDER"


def open_if_any(folder: Path | None) -> "Library | None":
    """The library, or None if there is none: a look makes no folders.

    Raises:
        LibraryError: It is damaged, or its index was lost.
    """
    from task2vec.library import Library

    return Library.open(folder) if is_library(folder) else None


def is_library(folder: Path | None) -> bool:
    """Whether there is a library, even a damaged one."""
    from task2vec.library import find_library, has_library

    place = find_library(folder)
    if place.is_file() and place.suffix != ".sqlite":
        raise UsageError(f"'{place}' is a file, and a library is a folder. Name its folder: --library DIR")
    return has_library(place)


def open_known(folder: Path | None) -> "Library":
    """The library, which must be there: nothing can be done to one that is not."""
    library = open_if_any(folder)
    if library is None:
        raise UsageError(word_none(folder))
    return library


def place_of(folder: Path | None) -> Path:
    """Where the library lies or would lie."""
    from task2vec.library import find_library

    return find_library(folder)


def word_none(folder: Path | None) -> str:
    """What to say where there is no library."""
    return f"there is no library in '{place_of(folder)}'. {FIRST}, or choose another one: --library DIR"


def word_empty(folder: Path | None) -> str:
    """What to say of a library without tasks."""
    return f"The library in '{printable(place_of(folder))}' is empty. {name_library(FIRST)}"


def open_shelf(
    folder: Path | None, *, tags: Sequence[str] = (), is_forced: bool = False, is_backed: bool = False
) -> "LibraryShelf | None":
    """A shelf for what is about to be made; None, with a warning, where there can be no library.

    Raises:
        LibraryError: There is one, and it is damaged or of a newer version: better said now than after the work.
    """
    from task2vec.library import Library, find_library
    from task2vec.library.entries import check_tags

    check_tags(tags)
    try:
        place = find_library(folder)
        if place.is_file() and place.suffix != ".sqlite":
            raise ResourceError(f"'{place}' is a file, and a library is a folder. Name another one: --library DIR")
        return LibraryShelf(Library.open(place), tuple(tags), is_forced, is_backed)
    except ResourceError as error:
        _warn(error)
        return None
    except LibraryError as error:
        raise LibraryError(f"{error} To do without the library this time: --no-library") from error


@dataclass
class LibraryShelf:
    """A library that is asked for embeddings before they are made, and given them when they are.

    Attributes:
        library: which.
        tags: for all tasks that come in.
        is_forced: whether what is there is not asked for but replaced.
        is_backed: whether all is written to files anyway; if not, what the library does not take is.
        is_for_finding: whether nothing can be put here.
        names: under which names the library knows what went through here, by the task's fingerprint.
        saved: files that were written instead, by the task's fingerprint.
        problems: why it was not taken, by the task's fingerprint.
    """

    library: "Library"
    tags: tuple[str, ...] = ()
    is_forced: bool = False
    is_backed: bool = False
    is_for_finding: bool = False
    names: dict[str, str] = field(default_factory=dict)
    saved: dict[str, Path] = field(default_factory=dict)
    problems: dict[str, Task2VecError] = field(default_factory=dict)

    def begin(self, stack: ExitStack, what: str, story: dict[str, Any]) -> None:
        """Notes a run until the end of the stack; where that cannot be written, nothing can, which is said now."""
        try:
            stack.enter_context(self._note(what, story))
        except ResourceError as error:
            self.is_for_finding = True
            _warn(error)

    def find(self, task: "Task", probe: "Probe", *, settings: "EmbedSettings") -> "Embedding | None":
        """The embedding that a run would give again, if it is there and whole; its task gets the tags."""
        known = None if self.is_forced else self.library.find(task, probe, settings=settings)
        if known is not None:
            self.names[task.fingerprint] = known.task
            if self.tags and not self.library.is_read_only:
                self.library.add(known, tags=self.tags)
        return known

    def keep(self, embedding: "Embedding", *, source: str = "") -> None:
        """Puts an embedding into the library; what that does not take is written to a file, so that it is not lost.

        One that nothing can be put into is not asked: whoever made the embedding was told, and writes a file.
        """
        if self.is_for_finding:
            return
        fingerprint = embedding.provenance["task_fingerprint"]
        try:
            (added,) = self.library.add(embedding, tags=self.tags, source=source, replace=self.is_forced)
            self.names[fingerprint] = added.name
        except Task2VecError as error:
            self.problems[fingerprint] = error
            place = None if self.is_backed else self._save(embedding)
            where = f", and is in '{printable(place)}' instead" if place else ""
            say(f"warning: the library did not take '{printable(embedding.task)}'{where}: {printable(error)}")

    def _save(self, embedding: "Embedding") -> Path:
        from task2vec.cli.place import free_place

        place = embedding.save(free_place(embedding.task))
        self.saved[embedding.provenance["task_fingerprint"]] = place
        return place

    @contextmanager
    def _note(self, what: str, story: dict[str, Any]) -> Iterator[None]:
        """Notes a run in the library, and its end; if that cannot be noted, what came of the run is still worth it."""
        run = self.library.record(what, story)
        run.__enter__()
        try:
            yield
        except BaseException as error:
            with suppress(Task2VecError):
                run.__exit__(type(error), error, error.__traceback__)
            raise
        try:
            run.__exit__(None, None, None)
        except Task2VecError as error:
            say(f"warning: the end of the run is not noted in the library: {printable(error)}")


def _warn(error: ResourceError) -> None:
    say(f"warning: nothing is kept in the library: {printable(error)}")
