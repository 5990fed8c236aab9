"""A task that an expert is sought for: its embedding where errors of experts are known, and its images if need be."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from task2vec.cli.asked import EMBEDDING, FILE, NAME, PATH, load_asked, recognise
from task2vec.cli.making import Wish, make_embedding
from task2vec.cli.reading import say_bad
from task2vec.cli.shelf import open_if_any
from task2vec.cli.speech import say
from task2vec.errors import NotInLibraryError, UsageError
from task2vec.text import printable

if TYPE_CHECKING:
    from task2vec.embedding import Embedding
    from task2vec.library import Library, TaskEntry
    from task2vec.tasks import Task


@dataclass(frozen=True)
class Seeker:
    """What `task2vec recommend` was told about where the task is and how to read it.

    Attributes:
        asked: which errors count: they decide how a task is embedded.
        folder: of the library; None for the default.
        no_library: whether to do without.
        probe: of those that errors are known for; None for the first.
        weights: a file for the probe.
        reading: what else `Wish` takes.
    """

    asked: Any
    folder: Path | None
    no_library: bool
    probe: str | None
    weights: Path | None
    reading: dict[str, Any]

    def open(self, stack: ExitStack, *, makes_one: bool) -> "Library | None":
        """The library until the end of the stack, if there is one or one is to be made."""
        from task2vec.library import Library

        if self.no_library:
            return None
        opened = Library.open(self.folder) if makes_one else open_if_any(self.folder)
        return None if opened is None else stack.enter_context(opened)

    def find(self, query: str, *, needs_images: bool) -> "tuple[Task | None, Embedding]":
        """The task and its embedding, in a space that errors are known for."""
        if self.no_library:
            sort = FILE if Path(query).is_file() and query.endswith(EMBEDDING) else PATH
        else:
            sort = recognise(query, self.folder)
        if sort == NAME:
            return self._find_name(query, needs_images=needs_images)
        if sort == FILE:
            if needs_images:
                raise UsageError(
                    f"--confirm measures errors on images, and '{query}' is an embedding, which has none. Name "
                    "the folder instead."
                )
            return None, load_asked(query, FILE, self.folder, probe=None, method=None).embedding
        return self._embed(Path(query))

    def _find_name(self, query: str, *, needs_images: bool) -> "tuple[Task | None, Embedding]":
        """A task of the library, by an embedding that can be compared; else its folder is embedded anew, if known."""
        opened = open_if_any(self.folder)
        if opened is None:
            load_asked(query, NAME, self.folder, probe=None, method=None)  # says what is wrong
            raise AssertionError
        with opened:
            try:
                entry = opened.task(query)
            except NotInLibraryError as error:
                raise NotInLibraryError(f"{error} (Nor is there a folder or file '{query}' here.)") from error
            found = self._find_comparable(opened, entry)
        places = [Path(one) for one in (query, entry.source) if one]
        place = next((one for one in places if one.exists()), None)
        if found is not None and not needs_images:
            if Path(query).exists():
                say(
                    f"'{printable(query)}' is taken for the task of the library, as it was embedded then; to mean the "
                    f"folder or file as it is now: {printable(os.path.join(os.curdir, query))}"
                )
            return None, found
        if place is not None:
            if found is None:
                say(f"'{printable(entry.name)}' is embedded in another way: '{printable(place)}' is embedded again")
            return self._embed(place)
        return None, self._refuse(entry, needs_images=needs_images)

    def _spaces(self) -> "dict[str, Embedding]":
        from task2vec.select.recommend import find_metatask

        metatask = find_metatask(self.asked.evidence)
        return {} if metatask is None else metatask.spaces

    def _refuse(self, entry: "TaskEntry", *, needs_images: bool) -> "Embedding":
        """Says what a task of the library lacks whose images are not known to lie anywhere."""
        from task2vec.select.evidence import find_space
        from task2vec.select.recommend import choose_space

        if needs_images:
            raise UsageError(
                f"--confirm measures errors on images, and it is not known where those of '{entry.name}' lie. Name the "
                "folder instead."
            )
        with ExitStack() as stack:
            library = self.open(stack, makes_one=False)
            assert library is not None
            if not entry.embeddings:
                raise NotInLibraryError(
                    f"the task '{entry.name}' is in the library without an embedding. Make one: task2vec embed FOLDER"
                )
            one = library.get(entry.embeddings[-1].key)
            like = choose_space(self.asked.evidence, library)
            spaces = {"": like} if self.asked.evidence == "library" else self._spaces()
            find_space(one, spaces)
        raise AssertionError

    def _find_comparable(self, library: "Library", entry: "TaskEntry") -> "Embedding | None":
        from task2vec.select.evidence import find_embedding
        from task2vec.select.recommend import choose_space

        if self.asked.evidence == "library":
            return find_embedding(library, entry, choose_space(self.asked.evidence, library))
        spaces = self._spaces().values()
        found = (find_embedding(library, entry, like) for like in spaces if self.probe in (None, like.probe))
        return next((one for one in found if one is not None), None)

    def _embed(self, path: Path) -> "tuple[Task, Embedding]":
        """A folder or table, embedded as the evidence asks for; found in the library if it is there."""
        from task2vec.embedding import EmbedSettings
        from task2vec.select.evidence import image_size

        with ExitStack() as stack:
            like = self._choose_space(self.open(stack, makes_one=False))
        settings = EmbedSettings(method=like.provenance.get("settings", {}).get("method") or "robust")
        loading = {"weights": self.weights, "size": image_size(like), "download": self.asked.download}
        made = make_embedding(Wish(path, settings, like.probe, loading, library=self.folder, **self.reading))
        say_bad(made.task.bad)
        return made.task, made.embedding

    def _choose_space(self, library: "Library | None") -> "Embedding":
        from task2vec.select.evidence import format_space
        from task2vec.select.recommend import choose_space

        if self.probe is None or self.asked.evidence == "library":
            return choose_space(self.asked.evidence, library)
        spaces = self._spaces()
        for like in spaces.values():
            if like.probe == self.probe:
                return like
        known = "; ".join(dict.fromkeys(format_space(one) for one in spaces.values()))
        raise UsageError(
            f"no errors are known for tasks embedded by '{self.probe}' (--probe), so nothing would be near. Choose one "
            f"of: {known}"
        )
