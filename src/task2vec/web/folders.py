"""Folders below the roots that the server was told to offer: known by ids, checked again whenever one is used."""

import os
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from task2vec.tasks.folder import IMAGE_SUFFIXES
from task2vec.web.answers import FolderAnswer, FoldersAnswer, Problem
from task2vec.web.ids import make_id
from task2vec.web.problems import NotServedError, find_none

# How deep below a root is looked, how many folders are listed, and how many files are counted at most.
DEPTH, MOST_FOLDERS, MOST_FILES = 4, 2000, 500_000


@dataclass(frozen=True)
class Folder:
    """A folder that was issued: its root, and the names that lead to it from there."""

    root: Path
    names: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.root.joinpath(*self.names)


@dataclass
class _Listing:
    """A root while it is listed."""

    folders: list[FolderAnswer]
    files: int = 0
    is_whole: bool = True


class Folders:
    """The folders of all roots; ids say nothing of where they lie, and are those of this server alone."""

    def __init__(self, roots: Sequence[Path]):
        """Roots are followed to where they really lie, once."""
        self._secret, self._lock = secrets.token_bytes(16), threading.Lock()
        self.roots = {self._issue(Folder(place)): place for place in dict.fromkeys(root.resolve() for root in roots)}
        self._known = {text: Folder(place) for text, place in self.roots.items()}

    def find(self, text: str) -> Path:
        """The folder of an id, if it is still a real one inside its root.

        Raises:
            NotServedError: The id was not issued, or something else is there now.
        """
        with self._lock:
            folder = self._known.get(text)
        if folder is None:
            raise find_none("folder", text)
        place = folder.root
        for name in ("", *folder.names):
            place = place / name if name else place
            if place.is_symlink() or not place.is_dir():
                raise NotServedError(
                    Problem(
                        what=f"the folder {text!r} is no longer there, or a link has taken its place.",
                        why="Links could lead out of what may be read.",
                        mend="List the folders again: /api/v1/folders",
                    )
                )
        return place

    def tell(self, text: str | None) -> FoldersAnswer:
        """The folders of a root, the root first; of all roots if none is named."""
        if text is not None and text not in self.roots:
            raise find_none("root", text)
        listing = _Listing([])
        for root in self.roots if text is None else [text]:
            self._list_one(Folder(self.roots[root]), None, listing)
        return FoldersAnswer(folders=listing.folders, is_whole=listing.is_whole)

    def _issue(self, folder: Folder) -> str:
        return make_id("f", str(folder.root), *folder.names, secret=self._secret)

    def _list_one(self, folder: Folder, parent: str | None, listing: _Listing) -> int:
        """Lists a folder and what is below; returns how many images these have."""
        if len(listing.folders) >= MOST_FOLDERS or listing.files >= MOST_FILES:
            listing.is_whole = False
            return 0
        own, images, inner = self._issue(folder), *self._look(folder.path, listing)
        with self._lock:
            self._known[own] = folder
        at, counts = len(listing.folders), []
        name = folder.names[-1] if folder.names else folder.root.name
        listing.folders.append(FolderAnswer(id=own, name=_shown(name), parent=parent, images=0, classes=0))
        if len(folder.names) < DEPTH:
            counts = [self._list_one(Folder(folder.root, (*folder.names, one)), own, listing) for one in inner]
        total = images + sum(counts)
        told = {"images": total, "classes": sum(count > 0 for count in counts)}
        listing.folders[at] = listing.folders[at].model_copy(update=told)
        return total

    @staticmethod
    def _look(place: Path, listing: _Listing) -> tuple[int, list[str]]:
        """How many images lie in a folder, and the names of its real folders; links are left out."""
        images, inner = 0, []
        try:
            with os.scandir(place) as found:
                for one in found:
                    listing.files += 1
                    if listing.files > MOST_FILES:
                        listing.is_whole = False
                        break
                    if one.name.startswith(".") or one.is_symlink():
                        continue
                    if one.is_dir(follow_symlinks=False):
                        inner.append(one.name)
                    elif os.path.splitext(one.name)[1].lower() in IMAGE_SUFFIXES:
                        images += 1
        except OSError:  # not ours to read: it has nothing to offer
            pass
        return images, sorted(inner)


def _shown(name: str) -> str:
    """A name as text that JSON can hold: bytes that are no letters are spelled out."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
