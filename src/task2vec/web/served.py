"""All that a server has in hand: what it serves, who works out the answers, what is being embedded."""

import threading
from contextlib import suppress
from dataclasses import dataclass

from starlette.requests import Request

from task2vec.errors import Task2VecError
from task2vec.experts.metatask import MetaTask
from task2vec.web.advice import advise
from task2vec.web.answering import Answerer
from task2vec.web.folders import Folders
from task2vec.web.jobs import Jobs
from task2vec.web.maps import Maps
from task2vec.web.questions import find_nearest
from task2vec.web.settings import ServeSettings
from task2vec.web.world import View, World


@dataclass
class Served:
    """What the routes work with.

    Attributes:
        settings: that the server was started with.
        world: the library and the meta-task.
        answerer: works out answers.
        maps: of all spaces.
        folders: that may be embedded.
        jobs: that embed them.
        names: of folders of this machine, as visitors know them.
        listeners: to events, at this moment.
        is_closing: whether the server is about to end.
    """

    settings: ServeSettings
    world: World
    answerer: Answerer
    maps: Maps
    folders: Folders
    jobs: Jobs
    names: dict[str, str]
    listeners: int = 0
    is_closing: bool = False

    @classmethod
    def open(cls, settings: ServeSettings, *, measured: MetaTask | None = None) -> "Served":
        """All of it, with nothing begun yet."""
        world, folders = World(settings.library, measured=measured), Folders(settings.roots)
        # Where they really lie, from the top: a name as short as "." is in every sentence.
        names = {str(place): place.name or "root" for place in folders.roots.values()}
        names.setdefault(str(world.folder), world.name)
        jobs = Jobs(world.folder, limits=settings.limits, names=names)
        return cls(settings, world, Answerer(world), Maps(world), folders, jobs, names)

    async def look(self) -> View:
        """What is served now."""
        return self.world.peek() or await self.answerer.run(self.world.look)

    def can_embed(self) -> bool:
        """Whether there is something to embed, and a library that takes it."""
        if not self.folders.roots:
            return False
        try:
            library = self.world.open()
        except Task2VecError:
            return False
        return library is None or not library.is_read_only

    def warm(self) -> None:
        """Asks two questions that nobody has asked yet, so that the first visitor does not wait for what they read."""

        def ask() -> None:
            with suppress(Task2VecError):
                view = self.world.look()
                first = next(iter(view.default.entries))
                find_nearest(self.world, view, first.id, limit=1)
                advise(self.world, view, first.id, train=None)

        threading.Thread(target=ask, name="task2vec-warm", daemon=True).start()

    def close(self) -> None:
        """Ends all that is under way."""
        self.is_closing = True
        self.jobs.close()
        self.maps.close()
        self.answerer.close()
        self.world.close()


def served_by(request: Request) -> Served:
    """What the application of a request has in hand."""
    return request.app.state.served
